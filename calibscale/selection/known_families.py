"""Families of calibration estimators by name."""

from __future__ import annotations

from collections.abc import Iterable

from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.predictions.claims import includes
from calibscale.registry import Registry, RegistryEntry
from calibscale.selection.families import Family
from calibscale.session import unsuitable

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


def default_families(source: ArraySource, notion: str | None = None) -> tuple[str, ...]:
    """Names of the default estimators of a notion for the predictions of a source.

    Other predictions than classes have all families that judge them.  An OptionError is raised if
    there are none.
    """
    target = source.target
    if target.has_classes:
        of_rows = ("kde", "kkr", "ukkr", "temperature")
        return of_rows if notion == "canonical" else ("bins", *of_rows)
    columns = source.values.shape[1] if len(source.values.shape) > 1 else 1
    families = {name: FAMILIES[name] for name in FAMILIES.built_in}
    names = tuple(
        name
        for name, family in families.items()
        if includes(family.judges, target.claim) and columns <= (family.most_columns or columns)
    )
    if not names:
        raise unsuitable("select", source)
    return names


def families_named(estimators: Iterable[str | Family]) -> tuple[Family, ...]:
    """Families of an option, which are families or names."""
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
