"""Families of calibration estimators by name."""

from __future__ import annotations

from collections.abc import Iterable

from calibscale.errors import OptionError, require
from calibscale.registry import Registry, RegistryEntry
from calibscale.selection.families import Family

_ROOM = "calibscale.selection"
FAMILIES: Registry[type[Family]] = Registry(
    "family",
    [
        RegistryEntry("bins", f"{_ROOM}.simple_families:Bins", "bins of equal width"),
        RegistryEntry(
            "bins_debiased", f"{_ROOM}.simple_families:DebiasedBins", "bins without bias"
        ),
        RegistryEntry(
            "bins_cube_root", f"{_ROOM}.score_families:CubeRootBins", "as many as ∛n bins"
        ),
        RegistryEntry(
            "bins_sweep", f"{_ROOM}.score_families:SweepBins", "the most bins that increase"
        ),
        RegistryEntry("isotonic", f"{_ROOM}.score_families:IsotonicCurve", "isotonic regression"),
        RegistryEntry("smooth_ece", f"{_ROOM}.score_families:SmoothCurve", "a reflected kernel"),
        RegistryEntry("kde", f"{_ROOM}.kde:KDE", "kernel density estimate"),
        RegistryEntry(
            "kde_loo", f"{_ROOM}.kde:LeaveOneOutKDE", "kernel density, each row left out"
        ),
        RegistryEntry("kkr", f"{_ROOM}.ridge:KKR", "kernel ridge regression"),
        RegistryEntry("ukkr", f"{_ROOM}.ridge:UKKR", "kernel ridge regression of the residuals"),
        RegistryEntry("temperature", f"{_ROOM}.simple_families:Temperature", "temperature scaling"),
    ],
    group="calibscale.families",
    base=f"{_ROOM}.families:Family",
)


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
            if estimator not in FAMILIES:
                available = ", ".join(FAMILIES)
                raise OptionError(f"unknown estimator {estimator!r}; available: {available}")
            estimator = FAMILIES[estimator]()
        chosen.append(estimator)
    require(chosen, "select at least one estimator")
    names = [family.name for family in chosen]
    for name in names:
        require(names.count(name) <= 1, f"{name} is listed twice; combine its grids")
    return tuple(chosen)
