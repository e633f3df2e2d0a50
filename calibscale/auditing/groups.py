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
from scipy.stats import t as student

from calibscale.chunk import Chunk, Floats, Ints
from calibscale.covariates import Column
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
    """Of every group (10, G): rows of a weight above 0, then Σ of w, w², wp, wδ, w²δ, w²δ²,
    w²v, w³v(1 − 2p) of rows of p < 1/2 and of the others, where v = p(1 − p).
    """

    sums: Floats


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
        return GroupState(np.zeros((10, count)))

    def accumulate(self, state: GroupState, chunk: Chunk) -> GroupState:
        p, rest, delta, _ = chunk.event(self.notion)
        w = weights_of(chunk)
        spread = w * w * p * rest
        third = w * spread * (rest - p)
        values = np.stack([
            w > 0, w, w * w, w * p, w * delta, w * w * delta, (w * delta) ** 2, spread,
            np.maximum(third, 0.0), np.minimum(third, 0.0),
        ])  # fmt: skip
        codes = {}
        if self.axes:
            assert chunk.covariates is not None
            codes = {a: a.codes(chunk.covariates[:, a.position]) for a in self.axes}
        first = 0
        for axes in self.crossed:
            code, size = np.zeros(len(chunk), np.int64), 1
            for axis in axes:
                code, size = code * len(axis) + codes[axis], size * len(axis)
            for total, value in zip(state.sums, values, strict=True):
                total[first : first + size] += np.bincount(code, value, size)
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
        The bias, by intervals that cover simultaneously over the groups listed (Bonferroni).
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
    if not state.sums[1, 0] > 0:  # of all rows
        return Groups(None, (), 1.0)
    dispersion = _dispersion(state.sums[:, 0])
    rows: dict[tuple[Where, ...], float] = {}
    made: list[Group] = []
    for where, sums in zip(statistic.conditions(), state.sums.T, strict=True):
        rows[where] = float(sums[0])
        if sums[1] > 0:
            repeated = len(where) > 1 and any(rows[(alone,)] == sums[0] for alone in where)
            group = _group(where, sums, dispersion)
            if not where or (group.effective_rows >= min_rows * (1 - 1e-9) and not repeated):
                made.append(group)
    overall, *found = made
    found.sort(key=lambda group: -abs(group.z))
    adjusted = holm([group.p_value for group in found])
    listed = (
        _listed(group, p, level, len(found)) for group, p in zip(found, adjusted, strict=True)
    )
    return Groups(overall, tuple(listed), dispersion)


def _dispersion(sums: Floats) -> float:
    w, w2, d, w2d, w2d2, spread = map(float, sums[[1, 2, 4, 5, 6, 7]])
    gap = d / w
    if not spread > 1e-300:  # every prediction is certain, or all but certain
        return 1.0
    return max(1.0, (w2d2 - 2 * gap * w2d + gap * gap * w2) / spread)


def _group(where: tuple[Where, ...], sums: Floats, dispersion: float) -> Group:
    n, w, w2, p, d, w2d, w2d2, spread, rare, frequent = map(float, sums)
    mean_p, gap = p / w, d / w
    f = min(max(mean_p - gap, 0.0), 1.0)
    # Σw²(δ − δ̄)², and a row of the weight that counts and the mean prediction with either label
    squares = max(w2d2 - 2 * gap * w2d + gap * gap * w2, 0.0)
    squares += (w2 / w) ** 2 * (f * f + (1 - f) ** 2)
    null = math.sqrt(max(spread, 0.0)) / w
    if null > 0:
        z = -gap / (null * math.sqrt(dispersion))
        # third moments grow with the dispersion as variances do
        unit = math.sqrt(spread * dispersion)
        p_value = 2 * min(_tail(z, rare / spread / unit), _tail(-z, -frequent / spread / unit))
    else:  # every prediction is certain
        z, p_value = (0.0, 1.0) if gap == 0 else (math.copysign(math.inf, -gap), 0.0)
    return Group(
        where, int(n), w * w / w2, mean_p, f, -gap, math.sqrt(squares) / w, null, z,
        min(1.0, float(p_value)),
    )  # fmt: skip


def _tail(z: float, skewness: float) -> float:
    """P(Z ≥ z); of rare events, the skewness is how far one of them is."""
    skewness = min(skewness, _MOST_SKEWED)
    return float(pearson3.sf(z - skewness / 2, skewness))


def _listed(group: Group, adjusted: float | None, level: float, count: int) -> Group:
    degrees = max(group.effective_rows - 1, 1.0)
    half = float(student.ppf(1 - (1 - level) / (2 * count), degrees)) * group.standard_error
    return replace(group, adjusted=adjusted, low=group.bias - half, high=group.bias + half)
