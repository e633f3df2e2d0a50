"""Confidence intervals of estimates: the jackknife and the bootstrap of groups of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.estimators import JKCE, KLCE, Estimator
from calibscale.kernels import random
from calibscale.pairs import Pairs
from calibscale.products import Rows
from calibscale.results import Interval
from calibscale.scan import States
from calibscale.statistics import Statistic

METHODS = ("jackknife", "bootstrap")


@dataclass(frozen=True)
class Intervals:
    """What intervals are asked for.

    Rows are put into groups by a counter hash of their number, so groups do not depend on chunks
    or workers, and are the same for two models of the same rows.

    Parameters
    ----------
    method : {"jackknife", "bootstrap"}
        ``jackknife``: groups left out one at a time, value ± t·standard error, with t of
        groups − 1 degrees of freedom; sums over pairs leave out one row at a time.  ``bootstrap``:
        the value and the quantiles of what groups resampled with replacement deviate from their
        mean, in the units of the jackknife's standard error; how often a row is drawn is its
        weight, so that no row is paired with itself.
    level : float
    groups : int
    resamples : int
        Of the bootstrap.
    seed : int
        Of groups and resamples.
    """

    method: str = "jackknife"
    level: float = 0.95
    groups: int = 20
    resamples: int = 999
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise OptionError(f"interval must be one of {', '.join(METHODS)}, not {self.method!r}")
        if not 0 < self.level < 1:
            raise OptionError(f"level must be in (0, 1), not {self.level}")
        if not 2 <= self.groups <= 1000:
            raise OptionError(f"groups must be in 2..1000, not {self.groups}")
        if self.resamples < 19:
            raise OptionError(f"resamples must be at least 19, not {self.resamples}")
        if not 0 <= self.seed < 2**64:
            raise OptionError(f"seed must be in 0..2^64−1, not {self.seed}")

    def needs(self, estimator: Estimator) -> tuple[Grouped, ...]:
        """The statistics of an estimator, by group; none where parts of them tell nothing."""
        additive = all(type(s).merge is Statistic.merge for s in estimator.needs)
        weighted = self.method == "jackknife" or all(s.powers for s in estimator.needs)
        if estimator.pairwise or not (additive and weighted):
            return ()
        return tuple(Grouped(s, self.groups, self.seed) for s in estimator.needs)


@dataclass(frozen=True)
class Grouped(Statistic):
    """The states of a statistic by group: its fields, stacked."""

    statistic: Statistic
    groups: int
    seed: int = 0

    @property
    def large_chunks(self) -> bool:  # type: ignore[override]
        return self.statistic.large_chunks

    def size(self, classes: int) -> int:
        return self.statistic.size(classes)

    def zero(self, classes: int) -> Any:
        zero = self.statistic.zero(classes)
        return type(zero)(*(np.zeros((self.groups, *f.shape), f.dtype) for f in zero))

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        groups = self.of(chunk.rows)
        for g in np.unique(groups):
            part = type(state)(*(field[g, ...] for field in state))
            self.statistic.accumulate(part, chunk.take(groups == g))
        return state

    def of(self, rows: Any) -> Any:
        """The group of each of the numbered rows (c,)."""
        u = np.empty(len(rows))
        random.uniform_at(np.uint64(self.seed), np.uint64(random.GROUPS), rows, u)
        return np.minimum((u * self.groups).astype(np.int64), self.groups - 1)


# ---------------------------------------------------------------- values of parts of the rows


@dataclass(frozen=True, eq=False)
class Parts:
    """An estimate, and its values on parts of the rows that an interval follows from.

    Differences of two estimates on the same rows have the differences of these.

    Attributes
    ----------
    value : float
    left_out : (parts,)
        With each group, or row with a weight, left out; NaN for a group without rows, or where
        what is left has no value.
    resampled : (resamples,)
        With groups resampled; empty for the jackknife.
    """

    value: float
    left_out: Floats
    resampled: Floats

    def __sub__(self, other: Parts) -> Parts:
        return Parts(
            self.value - other.value,
            self.left_out - other.left_out,
            self.resampled - other.resampled,
        )

    @property
    def standard_error(self) -> float:
        """Of the jackknife."""
        found = self.left_out[np.isfinite(self.left_out)]
        G = len(found)
        if G < 2:
            return float("nan")
        return float(np.sqrt((G - 1) / G * np.sum((found - found.mean()) ** 2)))

    def interval(self, asked: Intervals, covers: str) -> Interval | None:
        """The interval, with what it covers; None where it is not defined."""
        error = self.standard_error
        count = int(np.isfinite(self.left_out).sum())
        if not np.isfinite(self.value) or not np.isfinite(error):
            return None
        if asked.method == "jackknife" or not len(self.resampled):
            half = float(student.ppf(0.5 + asked.level / 2, count - 1)) * error
            low, high, method = self.value - half, self.value + half, "jackknife"
        else:
            tails = [0.5 - asked.level / 2, 0.5 + asked.level / 2]
            spread = self.resampled - np.nanmean(self.resampled)  # its bias is not of the data
            deviation = float(np.nanstd(spread))
            if deviation > 0:  # that of few groups, and of squares of noise, is not the value's
                spread *= error / deviation
            low, high = (self.value + np.nanquantile(spread, tails)).tolist()
            method = "bootstrap"
        return Interval(low, high, asked.level, method, count, error, covers)


def parts_of(
    estimator: Estimator, asked: Intervals, states: States, pairs: Pairs | None, value: float
) -> Parts | None:
    """The values on parts of the rows; None where the statistics do not tell them.

    `states` has those of `Intervals.needs`.
    """
    if not np.isfinite(value):
        return None
    if estimator.pairwise:
        if pairs is None or not isinstance(estimator, JKCE | KLCE):
            return None
        return _rows_left_out(estimator, pairs, value)
    needed = asked.needs(estimator)
    if not needed:
        return None
    known = estimator.frozen(*(total(states[s]) for s in needed))
    left_out = np.full(asked.groups, np.nan)
    for g in range(asked.groups):
        if any(np.any(field[g]) for s in needed for field in states[s]):
            left_out[g] = known.value(*(total(states[s], skip=g) for s in needed))
    resampled: list[float] = []
    if asked.method == "bootstrap":
        rng = np.random.default_rng(asked.seed)
        even = np.full(asked.groups, 1 / asked.groups)
        for counts in rng.multinomial(asked.groups, even, asked.resamples).astype(np.float64):
            with np.errstate(invalid="ignore"):  # an infinite log loss, drawn not at all
                drawn = [s.statistic.weighted_total(states[s], counts) for s in needed]
            resampled.append(known.value(*drawn))
    return Parts(value, left_out, np.array(resampled))


def total(state: Any, skip: int | None = None) -> Any:
    """The merged state of all groups, or of all but one.

    A sum of what is kept: a difference would lose digits.
    """
    fields = (field if skip is None else np.delete(field, skip, axis=0) for field in state)
    return type(state)(*(np.add.reduce(field, axis=0)[...] for field in fields))


def _rows_left_out(estimator: JKCE | KLCE, pairs: Pairs, value: float) -> Parts | None:
    """Each row left out of a sum over pairs, from its own sum over all others."""
    if getattr(estimator, "method", "") != "tiles":
        return None
    spec = estimator.pair_sum
    state = pairs.sum(spec)
    with pairs.panels(spec.kernel, spec.notion) as panels:
        held = [panels[index].rows for index in range(len(panels))]
        rows = Rows.join(held)
        w = rows.weights
        vectors = np.hstack([rows.delta * w[:, None], w[:, None]])
        cuts = np.cumsum([len(part) for part in held])[:-1]
        name = pairs.name("rows")
        sums = np.concatenate(pairs.product(panels, np.split(vectors, cuts), name))
    by_row = np.einsum("ij,ij->i", vectors[:, :-1], sums[:, :-1])
    kernels = w * sums[:, -1]
    kappa = spec.kernel.diagonal(rows)
    own, own_kernel = (w * w * kappa) * np.einsum("ij,ij->i", rows.delta, rows.delta), w * w * kappa
    whole, diagonal, kernel_sum = by_row.sum(), own.sum(), kernels.sum()
    left_out = np.full(len(rows), np.nan)
    for i in range(len(rows)):
        rest = state._replace(
            weight=state.weight - w[i],
            weight2=state.weight2 - w[i] ** 2,
            kernel_pairs=np.zeros(()),
            kernel_diagonal=kernel_sum - 2 * kernels[i] + own_kernel[i],
        )
        if not estimator._undefined(rest):
            left_out[i] = estimator.from_sums(
                float(whole - 2 * by_row[i] + own[i]), float(diagonal - own[i]), rest
            )
    return Parts(value, left_out[w > 0], np.empty(0))
