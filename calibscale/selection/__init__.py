"""Choosing a calibration estimator by its risk [GB]."""

from calibscale.selection.bins import Bins, DebiasedBins
from calibscale.selection.kde import KDE, LeaveOneOutKDE
from calibscale.selection.pipeline import FAMILIES, default_families, select
from calibscale.selection.results import Candidate, Selection
from calibscale.selection.ridge import KKR, UKKR
from calibscale.selection.risk import plug_in_risk, plug_in_risk_error, sampled_risk
from calibscale.selection.temperature import Temperature

__all__ = [
    "FAMILIES",
    "KDE",
    "KKR",
    "UKKR",
    "Bins",
    "Candidate",
    "DebiasedBins",
    "LeaveOneOutKDE",
    "Selection",
    "Temperature",
    "default_families",
    "plug_in_risk",
    "plug_in_risk_error",
    "sampled_risk",
    "select",
]
