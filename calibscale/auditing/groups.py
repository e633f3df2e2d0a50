"""Groups of rows by levels and quantiles of covariates, their crossings, and their bias."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import pearson3

from calibscale.chunk import Chunk, Floats, Ints
from calibscale.covariates import Column
from calibscale.limits import excess_limits
from calibscale.multiplicity import holm
from calibscale.results import finite
from calibscale.statistics import Statistic, weights_of

_MOST_SKEWED = 1e4  # events of probability 1e-8: SciPy's distribution is right up to there
MOST_LEVELS = 10  # a continuous covariate of no more values is grouped value by value


# ---------------------------------------------------------------- what a group is


@dataclass(frozen=True)
class Where:
    """A condition on one covariate: equal to `value`, or `above` < x ≤ `up_to`."""

    covariate: str
    value: float | None = None
    above: float | None = None
    up_to: float | None = None

    def __str__(self) -> str:
        name = self.covariate
        if self.value is not None:
            return f"{name} = {self.value:.10g}"
        if self.above is None:
            return f"{name} ≤ {self.up_to:.10g}"
        if self.up_to is None:
            return f"{name} > {self.above:.10g}"
        return f"{self.above:.10g} < {name} ≤ {self.up_to:.10g}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON object of what is given."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Axis:
    """A covariate cut into parts: its `levels`, or the intervals between inner `edges`."""

    name: str
    position: int
    levels: tuple[float, ...] | None = None
    edges: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.edges) + 1 if self.levels is None else len(self.levels)

    def codes(self, column: Floats) -> Ints:
        """The part of each value (c,)."""
        return np.searchsorted(np.array(self.edges if self.levels is None else self.levels), column)

    def where(self, part: int) -> Where:
        """The condition that a part is."""
        if self.levels is not None:
            return Where(self.name, value=self.levels[part])
        ends = (None, *self.edges, None)
        return Where(self.name, above=ends[part], up_to=ends[part + 1])


def axis_of(column: Column, categorical: bool, sample: Floats, bins: int) -> Axis:
    """Levels where there are few, else quantiles of a sample, rounded to readable numbers."""
    if column.levels is not None and (categorical or len(column.levels) <= MOST_LEVELS):
        return Axis(column.name, column.position, column.levels)
    sample = sample[np.isfinite(sample)]
    if not len(sample):
        return Axis(column.name, column.position)
    cuts = np.unique(np.quantile(sample, np.arange(1, bins) / bins))
    gaps = np.diff(cuts)
    # finer than the gaps too, which are far below the deviation where tails are heavy
    scales = [column.deviation, *10 * gaps[gaps > 1e-9 * np.abs(cuts).max()]]
    known = [2 - math.floor(math.log10(scale)) for scale in scales if 0 < scale < math.inf]
    edges = {round(float(cut), max(known)) if known else float(cut) for cut in cuts}
    inside = sorted(edge for edge in edges if column.low <= edge < column.high)
    return Axis(column.name, column.position, None, tuple(inside))


# ---------------------------------------------------------------- what is summed


class GroupState(NamedTuple):
    """Sums of every group.

    Attributes
    ----------
    sums : (8, 2, G)
        Rows of a weight above 0, then Σ of w, w², wp, wr, w²p², w²pr, w²r², where r = 1 − p: of
        the rows without the event, and of those with it.
    thirds : (2, G)
        Σw³pr(r − p) of the rows of p ≤ 1/2, and of the others.
    """

    sums: Floats
    thirds: Floats


@dataclass(frozen=True)
class GroupSums(Statistic):
    """Residuals summed over all rows, over the parts of every axis, and over crossings of two.

    Groups are numbered in that order, those of a crossing row by row.
    """

    axes: tuple[Axis, ...]
    notion: str

    @cached_property
    def crossed(self) -> tuple[tuple[Axis, ...], ...]:
        """The axes of each table of groups: none, one, two."""
        return ((), *((axis,) for axis in self.axes), *combinations(self.axes, 2))

    def zero(self, classes: int) -> GroupState:
        count = sum(math.prod(map(len, axes)) for axes in self.crossed)
        return GroupState(np.zeros((8, 2, count)), np.zeros((2, count)))

    def accumulate(self, state: GroupState, chunk: Chunk) -> GroupState:
        p, rest, _, hit = chunk.event(self.notion)
        w = weights_of(chunk)
        a, b = w * p, w * rest
        event, high = (hit > 0.5).astype(np.int64), (p > rest).astype(np.int64)
        split = [(event, value) for value in (w > 0, w, w * w, a, b, a * a, a * b, b * b)]
        split.append((high, w * a * b * (rest - p)))
        codes = {}
        if self.axes:
            assert chunk.covariates is not None
            codes = {a: a.codes(chunk.covariates[:, a.position]) for a in self.axes}
        first = 0
        for axes in self.crossed:
            code, size = np.zeros(len(chunk), np.int64), 1
            for axis in axes:
                code, size = code * len(axis) + codes[axis], size * len(axis)
            for total, (half, value) in zip((*state.sums, state.thirds), split, strict=True):
                found = np.bincount(code + size * half, value, 2 * size)
                total[:, first : first + size] += found.reshape(2, size)
            first += size
        return state

    def conditions(self) -> Iterator[tuple[Where, ...]]:
        """What each group is, in their order."""
        for axes in self.crossed:
            for parts in np.ndindex(*map(len, axes)):
                yield tuple(axis.where(part) for axis, part in zip(axes, parts, strict=True))


# ---------------------------------------------------------------- what was found


@dataclass(frozen=True)
class Group:
    """The bias of a group of rows.

    Attributes
    ----------
    where : tuple of Where
        What its rows have in common; none: all rows.
    n : int
        Rows with a weight above 0.
    effective_rows : float
        (Σw)²/Σw²; n without weights.
    mean_prediction, frequency : float
        Weighted means of p and of the event.
    bias : float
        frequency − mean_prediction: positive where predictions are too low.
    standard_error : float
        Of the bias, from the spread of y − p in the group, as if it had one row more of either
        label, of weight Σw²/Σw, at the mean prediction: a group of equal labels has an error too.
    null_error : float
        Of the bias if the group is calibrated, √(Σw²p(1 − p))/Σw.
    z : float
        bias in units of null_error·√dispersion, see `Groups`.
    p_value : float
        Two-sided, of z under calibration.  A few rare events are far from normal: each tail is
        that of a Pearson III distribution, of the skewness that the events rare on its side give,
        half an event nearer to 0.
    adjusted : float or None
        Holm's, over the groups listed.
    low, high : float or None
        The bias, by intervals that cover simultaneously over the groups listed (Bonferroni), few
        and rare events included, see `excess_limits`; not symmetric, so no multiple of an error.
    """

    where: tuple[Where, ...]
    n: int
    effective_rows: float
    mean_prediction: float
    frequency: float
    bias: float
    standard_error: float
    null_error: float
    z: float
    p_value: float
    adjusted: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def name(self) -> str:
        return " & ".join(map(str, self.where)) or "all rows"

    @property
    def direction(self) -> str:
        """How its predictions are off."""
        return "too low" if self.bias > 0 else "too high"

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        told = {"group": self.name, "where": [w.to_dict() for w in self.where]}
        return finite(told | {key: v for key, v in asdict(self).items() if key != "where"})


class Groups(NamedTuple):
    """All rows, if any has weight; the groups listed by |z|, largest first; and the dispersion.

    The dispersion is max(1, Σw²(δ − δ̄)²/Σw²p(1 − p)) over all rows: where predictions are too
    extreme, y − p varies more than they say, and groups would be called biased that are not.
    """

    overall: Group | None
    listed: tuple[Group, ...]
    dispersion: float


def found_groups(statistic: GroupSums, state: GroupState, min_rows: float, level: float) -> Groups:
    """The groups of enough effective rows, with p-values and intervals over all of them.

    A crossing that holds the same rows as one of its conditions alone is not listed again.
    """
    every = _totals(state)
    if not every[0].w > 0:  # of all rows
        return Groups(None, (), 1.0)
    dispersion = _dispersion(every[0])
    rows: dict[tuple[Where, ...], float] = {}
    made: list[tuple[Group, _Totals]] = []
    for where, sums in zip(statistic.conditions(), every, strict=True):
        rows[where] = sums.n
        if sums.w > 0:
            repeated = len(where) > 1 and any(rows[(alone,)] == sums.n for alone in where)
            group = _group(where, sums, dispersion)
            if not where or (group.effective_rows >= min_rows * (1 - 1e-9) and not repeated):
                made.append((group, sums))
    (overall, _), *found = made
    found.sort(key=lambda pair: -abs(pair[0].z))
    adjusted = holm([group.p_value for group, _ in found])
    listed = []
    for (group, sums), p in zip(found, adjusted, strict=True):
        low, high = excess_limits(sums.others, sums.events, (1 - level) / (2 * len(found)))
        low, high = low / sums.w, high / sums.w
        listed.append(replace(group, adjusted=p, low=low, high=high))
    return Groups(overall, tuple(listed), dispersion)


class _Totals(NamedTuple):
    """Of a group: the state's columns, rows, Σ of w, w², wp, wy, wδ, w²δ, w²δ² and w²p(1 − p)."""

    others: Floats
    events: Floats
    thirds: Floats
    n: float
    w: float
    w2: float
    p: float
    y: float
    d: float
    w2d: float
    w2d2: float
    spread: float


def _totals(state: GroupState) -> list[_Totals]:
    """Of each group."""
    n, w, w2, p, _, _, spread, _ = state.sums.sum(1)
    others, events = state.sums[3:, 0], state.sums[3:, 1]
    d = others[0] - events[1]
    w2d = others[2] + others[3] - events[3] - events[4]
    columns = np.stack([n, w, w2, p, state.sums[1, 1], d, w2d, others[2] + events[4], spread])
    return [
        _Totals(others[:, g], events[:, g], state.thirds[:, g], *column)
        for g, column in enumerate(columns.T.tolist())
    ]


def _dispersion(sums: _Totals) -> float:
    if not sums.spread > 1e-300:  # every prediction is certain, or all but certain
        return 1.0
    return max(1.0, _around_mean(sums) / sums.spread)


def _around_mean(sums: _Totals) -> float:
    """Σw²(δ − δ̄)²."""
    gap = sums.d / sums.w
    return max(sums.w2d2 - 2 * gap * sums.w2d + gap * gap * sums.w2, 0.0)


def _group(where: tuple[Where, ...], sums: _Totals, dispersion: float) -> Group:
    w, spread = sums.w, sums.spread
    mean_p, f, gap = sums.p / w, sums.y / w, sums.d / w
    # and a row of the weight that counts and the mean prediction with either label
    squares = _around_mean(sums) + (sums.w2 / w) ** 2 * (f * f + (1 - f) ** 2)
    null = math.sqrt(max(spread, 0.0)) / w
    if null > 0:
        z = -gap / (null * math.sqrt(dispersion))
        # third moments grow with the dispersion as variances do
        unit = math.sqrt(spread * dispersion)
        rare, frequent = map(float, sums.thirds)
        p_value = 2 * min(_tail(z, rare / spread / unit), _tail(-z, -frequent / spread / unit))
    else:  # every prediction is certain
        z, p_value = (0.0, 1.0) if gap == 0 else (math.copysign(math.inf, -gap), 0.0)
    return Group(
        where, int(sums.n), w * w / sums.w2, mean_p, f, -gap, math.sqrt(squares) / w, null, z,
        min(1.0, float(p_value)),
    )  # fmt: skip


def _tail(z: float, skewness: float) -> float:
    """P(Z ≥ z); of rare events, the skewness is how far one of them is."""
    skewness = min(skewness, _MOST_SKEWED)
    return float(pearson3.sf(z - skewness / 2, skewness))
