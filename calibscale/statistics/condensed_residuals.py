"""Residuals of many rows, condensed to few rows from which random signs are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.hashes import mixed
from calibscale.predictions.outcomes import OutcomeChunk
from calibscale.statistics.segments import crossings
from calibscale.statistics.statistic import Statistic, weights_of

# Effective condensed rows: the sum of so many random signs has a kurtosis of 3 − 2/300.
_ENOUGH_ROWS = 300


class CondensedState(NamedTuple):
    """Sums of cells: v = Σw²δ² (C,), Σw²δ²·x of predictions (C,), and of the axes' columns (A, C).

    `fourths` is Σw⁴δ⁴ of all rows (0-d).
    """

    variance: Floats
    predictions: Floats
    covariates: Floats
    fourths: Floats


@dataclass(frozen=True)
class CondensedResiduals(Statistic):
    """Variance of the signed residuals of cells of nearly equal predictions and covariates.

    Random signs of many rows with about equal predictions and covariates change a statistic like
    one random sign of a single row with the residual √v, where v = Σw²δ².  The cells are
    replicated `parts` times, by a hash of the row, so that enough rows are left where few
    predictions and covariates differ.

    Parameters
    ----------
    edges : tuple of float
        Inner edges of the cells of predictions, which are (lo, hi].
    axes : tuple of Axis
        Cells of covariates, by values or between edges.
    parts : int
        Number of condensed rows for each cell.
    """

    edges: tuple[float, ...]
    axes: tuple[Any, ...]
    parts: int

    @property
    def count(self) -> int:
        """Number of condensed rows C, some of which may stand for no row."""
        crossed = math.prod(len(axis) + 1 for axis in self.axes)
        return (len(self.edges) + 1) * crossed * self.parts

    def zero(self, classes: int) -> CondensedState:
        count = self.count
        covariates = np.zeros((len(self.axes), count))
        return CondensedState(np.zeros(count), np.zeros(count), covariates, np.zeros(()))

    def accumulate(self, state: CondensedState, chunk: Any) -> CondensedState:
        x = chunk.target.ordered_by(chunk.values)
        squares = (weights_of(chunk) * chunk.scalar_residual) ** 2
        cells = self._cells(chunk, x)
        count = len(state.variance)
        state.variance[...] += np.bincount(cells, squares, count)
        state.predictions[...] += np.bincount(cells, squares * x, count)
        for axis, sums in zip(self.axes, state.covariates, strict=True):
            sums += np.bincount(cells, squares * chunk.covariates[:, axis.position], count)
        with np.errstate(over="ignore"):  # see `has_enough`
            state.fourths[...] += squares @ squares
        return state

    def _cells(self, chunk: OutcomeChunk, x: Floats) -> Ints:
        """Number of the condensed row of each row (c,)."""
        cells = np.searchsorted(np.array(self.edges), x)
        if self.axes:
            assert chunk.covariates is not None
            crossed = math.prod(len(axis) + 1 for axis in self.axes)
            cells = cells * crossed + crossings(self.axes, chunk.covariates)
        if self.parts > 1:
            part = mixed(chunk.rows.astype(np.uint64)) % np.uint64(self.parts)
            cells = cells * self.parts + part.astype(np.int64)
        return cells

    def has_enough(self, state: CondensedState) -> bool:
        """Whether sums of signs of condensed rows are as normal as those of all rows.

        The effective number of condensed rows is (Σv)²/Σv².  Few are enough only where few rows
        have most of the variance, which are then in cells of their own.
        """
        total = float(state.variance.sum())
        fourths = float(state.fourths)
        if not (0 < total < np.inf and 0 < fourths < np.inf):
            return False
        shares = state.variance / total  # squares of sums might overflow
        condensed = 1.0 / float(shares @ shares)
        return condensed >= min(_ENOUGH_ROWS, 0.9 / (fourths / total / total))

    def rows(self, state: CondensedState) -> tuple[Floats, Floats, Floats]:
        """Predictions (m,), residuals (m,) and covariates of the axes (m, A) of condensed rows.

        The predictions and covariates are means with the weights v, within their cells.
        """
        occupied = np.flatnonzero(state.variance > 0)
        variance = state.variance[occupied]
        sizes = (len(self.edges) + 1, *(len(axis) + 1 for axis in self.axes), self.parts)
        cell, *by_axis, _ = np.unravel_index(occupied, sizes)
        x = _within(state.predictions[occupied] / variance, cell, self.edges)
        columns = np.empty((len(occupied), len(self.axes)))
        for a, (axis, part) in enumerate(zip(self.axes, by_axis, strict=True)):
            mean = state.covariates[a, occupied] / variance
            if axis.levels is None:
                columns[:, a] = _within(mean, part, axis.edges)
            else:
                # The mean of equal values may differ from them by rounding.
                levels = np.array(axis.levels)
                known = part < len(levels)
                columns[:, a] = np.where(known, levels[np.minimum(part, len(levels) - 1)], mean)
        return x, np.sqrt(variance), columns


def _within(means: Floats, cells: Ints, edges: tuple[float, ...]) -> Floats:
    """Means of the rows of cells (lo, hi], moved into the cell where rounding left it."""
    ends = np.array([-np.inf, *edges, np.inf])
    return np.clip(means, np.nextafter(ends[cells], np.inf), ends[cells + 1])
