"""Confidence limits in closed form or by inversion of tests, where a jackknife collapses.

The standard error of a jackknife comes from the observed residuals, and is zero if no confident
prediction failed.  The limits of this subpackage use the variance that each hypothesis implies.
Under calibration this is the variance of the predictions.
"""
