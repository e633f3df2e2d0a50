"""Parts of a day's rows, kept beside their sum: how far an estimate of a window is off within days.

The stratified jackknife (Jones 1974) leaves out one part of one day, or of a run of days, at a time
and compares it with the other parts of the same days: over strata s and their G parts,
SE² = Σ_s G/(G − 1) (1 − n_s/(Gn))² Σ_g (θ_sg − θ̄_s)², as what is left of a stratum is not weighted
up.  How days differ is no part of it, so that no drift hides itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from calibscale.estimators import Estimator
from calibscale.intervals import Intervals, Parts, has_limits
from calibscale.results import Interval
from calibscale.scan import States
from calibscale.statistics import Statistic

SECTION = "parts"
PARTS = 5  # of a day's rows
STRATA = 8  # runs of days, at most, of which each part is left out once
_LARGEST = 2**22  # bytes of the parts of a statistic


class Strata(NamedTuple):
    """Runs of days: by statistic the parts of each, and its share of the rows."""

    parts: list[dict[Statistic, tuple[Any, ...]]]
    shares: list[float]


def parted(estimators: Iterable[Estimator], classes: int) -> tuple[Statistic, ...]:
    """The statistics whose parts are kept: of estimators that have no limits of their own.

    None of an estimator whose parts are too large: days are the groups of its jackknife.
    """
    found: dict[Statistic, None] = {}
    for e in estimators:
        sizes = (field.nbytes for s in e.needs for field in zero_parts(s, classes))
        if not has_limits(e) and sum(sizes) <= _LARGEST:
            found.update(dict.fromkeys(e.needs))
    return tuple(found)


def _names(statistic: Statistic, state: Any) -> list[str]:
    return [name for name in state._fields if name not in statistic.shared]


def zero_parts(statistic: Statistic, classes: int) -> tuple[Any, ...]:
    """No rows in any part, of the fields that are kept."""
    zero = statistic.zero(classes)
    fields = (getattr(zero, name) for name in _names(statistic, zero))
    return tuple(np.zeros((PARTS, *field.shape), field.dtype) for field in fields)


def gathered(statistic: Statistic, groups: Any) -> tuple[Any, ...]:
    """The fields that are kept, from a state by group, of a multiple of `PARTS` groups."""
    fields = (getattr(groups, name) for name in _names(statistic, groups))
    return tuple(f.reshape(-1, PARTS, *f.shape[1:]).sum(axis=0) for f in fields)


def _without(e: Estimator, states: States, parts: Any, g: int) -> list[Any]:
    """What an estimator needs, of all rows less a part of them."""
    found, rest = [], 1.0
    for s in e.needs:
        state = states[s]
        kept = dict(zip(_names(s, state), parts[s], strict=True))
        if "weight" in kept:
            rest = 1.0 - float(kept["weight"][g] / state.weight)
        less = {name: getattr(state, name) - field[g] for name, field in kept.items()}
        found.append(state._replace(**less))
    return [
        state._replace(**{name: getattr(state, name) * rest for name in s.shared})
        for s, state in zip(e.needs, found, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class PartsOfDays(Parts):
    """The values of an estimate without parts of days, and the interval that follows from them.

    Attributes
    ----------
    error : float
        Of the stratified jackknife.
    freedom : int
        Parts, less one for each stratum.
    """

    error: float = 0.0
    freedom: int = 0

    @property
    def standard_error(self) -> float:
        return self.error if self.freedom else float("nan")

    def interval(self, asked: Intervals, covers: str) -> Interval | None:
        """value ± t·SE; None where it is not defined."""
        if not np.isfinite(self.value) or not self.freedom:
            return None
        half = float(student.ppf(0.5 + asked.level / 2, self.freedom)) * self.error
        low, high, count = self.value - half, self.value + half, len(self.left_out)
        return Interval(low, high, asked.level, "jackknife", count, self.error, covers)


def parts_of_days(estimator: Estimator, value: float, states: States, strata: Strata) -> Parts:
    """Of an estimate from the states of all rows, whose statistics are in the strata."""
    variance, freedom = 0.0, 0
    every: list[float] = []
    for parts, rows in zip(*strata, strict=True):
        left_out = [
            estimator.value(*_without(estimator, states, parts, g))
            for g in range(PARTS)
            if any(np.any(field[g]) for s in estimator.needs for field in parts[s])
        ]
        there = np.array(left_out)[np.isfinite(left_out)]
        if (G := len(there)) > 1:
            spread = (1 - rows / G) ** 2 * float(np.sum((there - there.mean()) ** 2))
            variance += G / (G - 1) * spread
            freedom += G - 1
            every += there.tolist()
    error = float(np.sqrt(variance))
    return PartsOfDays(value, np.array(every), np.empty(0), error=error, freedom=freedom)
