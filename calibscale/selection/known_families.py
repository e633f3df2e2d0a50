"""Families of calibration estimators by name."""

from __future__ import annotations

from collections.abc import Iterable

from calibscale.errors import require
from calibscale.selection.families import Family
from calibscale.selection.kde import KDE, LeaveOneOutKDE
from calibscale.selection.ridge import KKR, UKKR
from calibscale.selection.score_families import CubeRootBins, IsotonicCurve, SmoothCurve, SweepBins
from calibscale.selection.simple_families import Bins, DebiasedBins, Temperature

FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (
        Bins,
        DebiasedBins,
        CubeRootBins,
        SweepBins,
        IsotonicCurve,
        SmoothCurve,
        KDE,
        LeaveOneOutKDE,
        KKR,
        UKKR,
        Temperature,
    )
}


def default_families(notion: str) -> tuple[str, ...]:
    """Names of the default estimators of a notion."""
    names = ("bins", "kde", "kkr", "ukkr", "temperature")
    return names[1:] if notion == "canonical" else names


def families_named(estimators: Iterable[str | Family] | None, notion: str) -> tuple[Family, ...]:
    """Families of an option, which are families, names, or None for the defaults of a notion."""
    if estimators is None:
        estimators = default_families(notion)
    chosen = []
    for estimator in [estimators] if isinstance(estimators, str | Family) else estimators:
        if isinstance(estimator, str):
            available = ", ".join(FAMILIES)
            require(
                estimator in FAMILIES, f"unknown estimator {estimator!r}; available: {available}"
            )
            estimator = FAMILIES[estimator]()
        chosen.append(estimator)
    require(chosen, "select at least one estimator")
    names = [family.name for family in chosen]
    for name in names:
        require(names.count(name) <= 1, f"{name} is listed twice; combine its grids")
    return tuple(chosen)
