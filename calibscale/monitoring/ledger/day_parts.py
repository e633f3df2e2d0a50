"""Parts of the rows of a day, which a ledger keeps for the jackknife over a window."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from calibscale.estimators.base import BoundEstimator
from calibscale.intervals.interval_estimates import has_limits
from calibscale.intervals.parts_of_rows import Parts, of_clusters
from calibscale.intervals.resampling import Jackknife
from calibscale.statistics.one_pass import States
from calibscale.statistics.score_sums import Totals, TotalsState
from calibscale.statistics.statistic import Statistic

SECTION = "parts"
PARTS = 5  # of a day's rows
STRATA = 8  # maximum number of runs of days with parts to leave out
_LARGEST = 2**22  # bytes of the parts of a statistic


class Strata(NamedTuple):
    """Parts of each run of days by statistic, and its share of the rows."""

    parts: list[dict[Statistic, tuple[Any, ...]]]
    shares: list[float]


def parted(
    estimators: Iterable[BoundEstimator],
    classes: int,
    clustered: bool = False,
    draws_responses: bool = True,
) -> tuple[Statistic, ...]:
    """Statistics of estimators without closed-form limits, which need parts for the jackknife.

    Estimators with too large parts are left out.  Their jackknife groups rows by day.
    """
    request = Jackknife(clustered=clustered, draws_responses=draws_responses)
    statistics: dict[Statistic, None] = dict.fromkeys(s.statistic for s in request.sizes)
    for e in estimators:
        sizes = (field.nbytes for s in e.needs for field in zero_parts(s, classes))
        if not has_limits(e, request) and sum(sizes) <= _LARGEST:
            statistics.update(dict.fromkeys(e.needs))
    return tuple(statistics)


def _names(statistic: Statistic, state: Any) -> list[str]:
    return [name for name in state._fields if name not in statistic.shared]


def zero_parts(statistic: Statistic, classes: int) -> tuple[Any, ...]:
    """Fields of the parts before any rows."""
    zero = statistic.zero(classes)
    fields = (getattr(zero, name) for name in _names(statistic, zero))
    return tuple(np.zeros((PARTS, *field.shape), field.dtype) for field in fields)


def gathered(statistic: Statistic, groups: Any) -> tuple[Any, ...]:
    """Fields of the parts from a state by group, with a multiple of `PARTS` groups."""
    fields = (getattr(groups, name) for name in _names(statistic, groups))
    return tuple(f.reshape(-1, PARTS, *f.shape[1:]).sum(axis=0) for f in fields)


def _without(e: BoundEstimator, states: States, parts: Any, g: int) -> list[Any]:
    """States that an estimator needs, for all rows except a part of them."""
    reduced, share = [], 1.0  # share of the weight of the rows that remain
    for s in e.needs:
        state = states[s]
        fields = dict(zip(_names(s, state), parts[s], strict=True))
        # Shared fields have no parts.  They are reduced by the share of the weight below.
        if "weight" in fields:
            # A statistic of another package may have one weight for each of its cells.
            share = 1.0 - float(np.sum(fields["weight"][g]) / np.sum(state.weight))
        less = {name: getattr(state, name) - field[g] for name, field in fields.items()}
        reduced.append(state._replace(**less))
    return [
        state._replace(**{name: getattr(state, name) * share for name in s.shared})
        for s, state in zip(e.needs, reduced, strict=True)
    ]


def parts_of_days(
    estimator: BoundEstimator, value: float, states: States, strata: Strata, clustered: bool = False
) -> Parts:
    """Stratified jackknife of an estimate with statistics in the strata.

    It has as many degrees of freedom as parts, less the number of strata.  Parts of clusters have
    the same clusters on all days, which are therefore one stratum.
    """
    variance, freedom = 0.0, 0
    replicates: list[float] = []
    for parts, rows in zip(*strata, strict=True):
        left_out = [
            estimator.value(*_without(estimator, states, parts, g))
            if any(np.any(field[g]) for s in estimator.needs for field in parts[s])
            else math.nan  # an empty part leaves nothing out
            for g in range(PARTS)
        ]
        if clustered:
            weights = TotalsState(*parts[Totals()]).weight
            return of_clusters(Parts(value, np.array(left_out)), weights, estimator.unbiased)
        finite = np.array(left_out)[np.isfinite(left_out)]
        G = len(finite)
        if G > 1:
            # Leaving out the share rows/G of all rows magnifies a deviation by 1/(1 − rows/G).
            spread = (1 - rows / G) ** 2 * float(np.sum((finite - finite.mean()) ** 2))
            variance += G / (G - 1) * spread
            freedom += G - 1
            replicates += finite.tolist()
    error = float(np.sqrt(variance))
    return Parts(value, np.array(replicates), error=error, freedom=freedom)
