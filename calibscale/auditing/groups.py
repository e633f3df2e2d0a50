"""Groups of rows by levels and quantiles of covariates, their crossings, and their sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from calibscale.chunk import Chunk, Floats, Ints
from calibscale.covariates import Column
from calibscale.kernels import draws as kernel_draws
from calibscale.nulls import Replicates
from calibscale.statistics import Statistic, weights_of

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


class DrawnGroups(NamedTuple):
    """Of B replicates with drawn labels; δ* is around the probability that they are drawn with.

    Attributes
    ----------
    deltas : (B, G)
        Σwδ* of every group.
    squares : (B, 2)
        Σw²δ* and Σw²δ*² of all rows.
    """

    deltas: Floats
    squares: Floats


@dataclass(frozen=True)
class GroupSums(Statistic):
    """Residuals summed over all rows, over the parts of every axis, and over crossings of two.

    Groups are numbered in that order, those of a crossing row by row.  Replicates draw labels from
    p + ε(1 − 2p): from the predictions, with a share ε of `flips`.
    """

    axes: tuple[Axis, ...]
    notion: str
    flips: float = 0.0

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
        codes = self._codes(chunk)
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

    def _codes(self, chunk: Chunk) -> dict[Axis, Ints]:
        """The part of each axis that each row is in."""
        if not self.axes:
            return {}
        assert chunk.covariates is not None
        return {axis: axis.codes(chunk.covariates[:, axis.position]) for axis in self.axes}

    def zero_drawn(self, classes: int, count: int) -> DrawnGroups:
        groups = sum(math.prod(map(len, axes)) for axes in self.crossed)
        return DrawnGroups(np.zeros((count, groups)), np.zeros((count, 2)))

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        deltas, squares = sums
        p, _, delta, _ = chunk.event(self.notion)
        w = weights_of(chunk)
        p = p + self.flips * (1 - 2 * p)
        drawn = replicates.scalars(self.notion, chunk.rows, p, delta)
        drawn *= w
        # by BLAS the last bit would depend on how many replicates there are
        squares[:, 0] += np.einsum("bi,i->b", drawn, w)
        squares[:, 1] += np.einsum("bi,bi->b", drawn, drawn)
        starts = np.cumsum([0, *(math.prod(map(len, axes)) for axes in self.crossed)])
        todo = dict(zip(self.crossed, starts.tolist(), strict=False))
        codes = self._codes(chunk)
        while todo:
            axes = next(reversed(todo))  # crossings first: the sums of a part are theirs added up
            shape = tuple(map(len, axes))
            code = np.zeros(len(chunk), np.int64)
            for axis in axes:
                code = code * len(axis) + codes[axis]
            table = np.zeros((len(drawn), math.prod(shape)))
            kernel_draws.add_bins(drawn, code, table)
            table = table.reshape(-1, *shape)
            for parts in [parts for parts in todo if set(parts) <= set(axes)]:
                others = tuple(1 + i for i, axis in enumerate(axes) if axis not in parts)
                found = table.sum(axis=others).reshape(len(drawn), -1)
                first = todo.pop(parts)
                deltas[:, first : first + found.shape[1]] += found

    def conditions(self) -> Iterator[tuple[Where, ...]]:
        """What each group is, in their order."""
        for axes in self.crossed:
            for parts in np.ndindex(*map(len, axes)):
                yield tuple(axis.where(part) for axis, part in zip(axes, parts, strict=True))
