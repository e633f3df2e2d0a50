"""Values of covariates that print as their names, and the keys of missing ones."""

from __future__ import annotations

import numpy as np

from calibscale.formatting.escapes import one_line
from calibscale.formatting.naming import NO_LEVEL

# Key of the rows whose group, a number, is missing.  NaN is equal to no key, not even to itself,
# and JSON, in which ledgers keep the keys, has no infinity.
NO_NUMBER = float(np.finfo(np.float64).max)


class Level(float):
    """Value of a categorical covariate: a number that prints as its name."""

    name: str

    def __new__(cls, value: float, name: str) -> Level:
        level = super().__new__(cls, value)
        level.name = name
        return level

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.name

    @property
    def missing(self) -> bool:
        """Whether it stands for missing values."""
        return float(self) in (NO_LEVEL, NO_NUMBER)

    def __format__(self, spec: str) -> str:
        return one_line(self.name) if spec.endswith("g") else super().__format__(spec)


def missing_last(value: float) -> tuple[bool, float]:
    """Sort key of values: increasing, missing ones last."""
    # The keys of missing values are numbers, which would sort among the others.
    return getattr(value, "missing", False), float(value)
