"""Confidence limits in closed form or by inversion of tests, where a jackknife collapses.

A jackknife's standard error comes from the observed residuals: it is zero on confident predictions
none of which failed.  The limits of this subpackage use the variance that each hypothesis implies.
Under calibration this is the variance of the predictions.
"""
