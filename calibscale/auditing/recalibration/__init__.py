"""Recalibration: fit a method to one part of the rows, and evaluate it on the other.

`part_of` splits a source, `Recalibrator.fit` fits a method to one part, and `recalibrated` returns
the other part with recalibrated predictions, a source for `evaluate` and other functions.
`refits_of` returns the null of a test that accounts for the noise of the fit.
"""

from calibscale.auditing.recalibration.boosting import MCBoost, MCBoostFit, PMCBoost
from calibscale.auditing.recalibration.fits import (
    METHODS,
    FittedRecalibration,
    load_recalibration,
    method_of,
    recalibrate,
)
from calibscale.auditing.recalibration.nonparametric import (
    BBQ,
    BBQFit,
    Isotonic,
    IsotonicFit,
    LocalBias,
    LocalBiasFit,
)
from calibscale.auditing.recalibration.parametric import (
    Platt,
    PlattFit,
    TemperatureFit,
    TemperatureScaling,
)
from calibscale.auditing.recalibration.recalibrator import (
    FittedRecalibrator,
    Recalibrator,
    Refits,
    recalibrated,
)
from calibscale.auditing.recalibration.refits import refits_of
from calibscale.data.derived_sources import left_out, part_of
