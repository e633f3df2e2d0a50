"""Folds over blocks of rows in block order, on threads or on Dask, to the same bits."""
