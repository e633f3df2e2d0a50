"""Estimators of calibration error, listed in `registry`."""
