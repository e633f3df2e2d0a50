"""Claims of targets, by which estimators say what they judge.  Commands read them without NumPy."""

from __future__ import annotations

from collections.abc import Iterable

# Claims, by which estimators name the targets that they judge.
CLASSES, FORECASTS, SOFT = "classes", "forecasts", "soft labels"
ALL = ("all",)  # of estimators that judge every target


def judges(targets: Iterable[str], claim: str) -> bool:
    """Whether an estimator that judges these targets judges a target with this claim."""
    return claim in targets or targets == ALL
