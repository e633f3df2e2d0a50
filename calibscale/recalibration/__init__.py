"""Recalibration: fit on one part of the rows, look again at the rest.

`part_of` cuts a source in two, a method's `fit` learns from one part, and `recalibrated` is the
other as the recalibrated model sees it, for `evaluate` and all else that takes a source.
`refits_of` makes the null of a test that counts the noise of the fit.
"""

from calibscale.recalibration.base import Fitted, Method
from calibscale.recalibration.isotonic import Isotonic, IsotonicFit
from calibscale.recalibration.local import LocalBias, LocalBiasFit
from calibscale.recalibration.parametric import Platt, PlattFit, Temperature, TemperatureFit
from calibscale.recalibration.refits import Refits, refits_of
from calibscale.recalibration.sources import left_out, part_of, recalibrated

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Temperature, Platt, Isotonic, LocalBias)
}

__all__ = [
    "METHODS",
    "Fitted",
    "Isotonic",
    "IsotonicFit",
    "LocalBias",
    "LocalBiasFit",
    "Method",
    "Platt",
    "PlattFit",
    "Refits",
    "Temperature",
    "TemperatureFit",
    "left_out",
    "part_of",
    "recalibrated",
    "refits_of",
]
