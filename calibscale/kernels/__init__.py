"""Kernels on predictions and covariates, their features, and sums over pairs of rows."""
