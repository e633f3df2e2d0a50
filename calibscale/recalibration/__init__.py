"""Recalibration: fit a method to one part of the rows, and evaluate it on the other.

`part_of` splits a source, `RecalibrationMethod.fit` fits a method to one part, and `recalibrated`
returns the other part with recalibrated predictions, a source for `evaluate` and other functions.
`refits_of` returns the null of a test that accounts for the noise of the fit.
"""
