"""Claims of targets, by which estimators say what they judge.  Commands read them without NumPy."""

from __future__ import annotations

from collections.abc import Collection

CLASSES, FORECASTS, SOFT = "classes", "forecasts", "soft labels"
MEANS, QUANTILES, EXPECTILES = "means", "quantiles", "expectiles"
EXCEEDANCES, INTERVALS, SETS = "exceedances", "intervals", "sets"
FUNCTIONALS = (MEANS, QUANTILES, EXPECTILES, EXCEEDANCES, INTERVALS, SETS)  # claims of `Functional`
ALL = ("all",)  # of estimators that judge every target


def includes(claims: Collection[str], claim: str) -> bool:
    """Whether the claims that an estimator judges include the claim of a target."""
    return claim in claims or ALL[0] in claims
