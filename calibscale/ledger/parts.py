"""Parts of a day's rows, kept beside their sum: how far an estimate of a window is off within days.

The stratified jackknife (Jones 1974) leaves out one part of one day, or of a run of days, at a time
and compares it with the other parts of the same days: over strata s and their G parts,
SE² = Σ_s G/(G − 1) (1 − n_s/(Gn))² Σ_g (θ_sg − θ̄_s)², as what is left of a stratum is not weighted
up.  How days differ is no part of it, so that no drift hides itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from calibscale.estimators import Estimator
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
    """The statistics whose parts are kept: of estimators that have no limits in closed form.

    None of an estimator whose parts are too large: days are the groups of its jackknife.
    """
    found: dict[Statistic, None] = {}
    for e in estimators:
        sizes = (field.nbytes for s in e.needs for field in zero_parts(s, classes))
        if type(e).limits is Estimator.limits and sum(sizes) <= _LARGEST:
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


def _without(statistic: Statistic, state: Any, parts: Sequence[Any], g: int) -> Any:
    """The state of all rows less a part of them."""
    kept = dict(zip(_names(statistic, state), parts, strict=True))
    share = 1.0 - kept["weight"][g] / state.weight if statistic.shared else 1.0
    return state._replace(
        **{name: getattr(state, name) - field[g] for name, field in kept.items()},
        **{name: getattr(state, name) * share for name in statistic.shared},
    )


def interval_within(
    estimator: Estimator, value: float, states: States,
    strata: Strata, level: float,
    covers: str,
) -> Interval | None:  # fmt: skip
    """value ± t·SE of the stratified jackknife; `states` are of all rows.

    None where it is not defined.
    """
    variance, freedom, count = 0.0, 0, 0
    for parts, rows in zip(*strata, strict=True):
        left_out = [
            estimator.value(*(_without(s, states[s], parts[s], g) for s in estimator.needs))
            for g in range(PARTS)
            if any(np.any(field[g]) for s in estimator.needs for field in parts[s])
        ]
        there = np.array(left_out)[np.isfinite(left_out)]
        if (G := len(there)) > 1:
            spread = (1 - rows / G) ** 2 * float(np.sum((there - there.mean()) ** 2))
            variance += G / (G - 1) * spread
            freedom += G - 1
            count += G
    if not np.isfinite(value) or freedom < 1:
        return None
    error = float(np.sqrt(variance))
    half = float(student.ppf(0.5 + level / 2, freedom)) * error
    return Interval(value - half, value + half, level, "jackknife", count, error, covers)
