"""Confidence intervals: limits from sums of all rows, and jackknife and bootstrap of groups.

The standard error of a jackknife comes from the observed residuals, and is zero if no confident
prediction failed.  Limits in closed form, or by inversion of a test, use the variance that each
hypothesis implies.  Under calibration this is the variance of the predictions.
"""
