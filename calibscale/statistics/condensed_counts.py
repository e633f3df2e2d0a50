"""Numbers of rows with similar predictions, from which numbers of events are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.predictions.outcomes import OutcomeChunk
from calibscale.statistics.condensed_cells import CondensedCells


class CondensedCountState(NamedTuple):
    """Number of rows of cells, and number, prediction and covariates of the first row of each.

    Fields are (C,), but predictions are (C, 2) and covariates (C, A) in the order of the axes.  A
    prediction of one number has a second column of zeros, and a cell without rows the number ∞.
    """

    rows: Floats
    first: Floats
    predictions: Floats
    covariates: Floats


@dataclass(frozen=True)
class CondensedCounts(CondensedCells):
    """Number of rows of cells of nearly equal predictions and covariates.

    If all rows claim one probability, the number of events of a cell is binomial.  Draws of a
    statistic that needs only these numbers then have the same law as draws row by row.  The first
    row of a cell stands for all of its rows.

    Parameters
    ----------
    starts : tuple of float
        Inner edges of the cells of the starts of intervals, with `edges` of their widths.
    """

    starts: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.starts) + 1, *super().shape)

    def cells(self, chunk: OutcomeChunk, x: Floats) -> Ints:
        cells = super().cells(chunk, x)
        if self.starts:
            by_start = np.searchsorted(np.array(self.starts), chunk.values[:, 0])
            cells += by_start * (self.count // (len(self.starts) + 1))
        return cells

    def zero(self, classes: int) -> CondensedCountState:
        count = self.count
        first = np.full(count, np.inf)
        covariates = np.zeros((count, len(self.axes)))
        return CondensedCountState(np.zeros(count), first, np.zeros((count, 2)), covariates)

    def accumulate(self, state: CondensedCountState, chunk: Any) -> CondensedCountState:
        cells = self.cells(chunk, chunk.target.ordered_by(chunk.values))
        state.rows[...] += np.bincount(cells, minlength=self.count)
        rows = chunk.rows.astype(np.float64)
        np.minimum.at(state.first, cells, rows)
        leads = np.flatnonzero(state.first[cells] == rows)
        columns = chunk.values.shape[1]
        state.predictions[cells[leads], :columns] = chunk.values[leads]
        for a, axis in enumerate(self.axes):
            state.covariates[cells[leads], a] = chunk.covariates[leads, axis.position]
        return state

    def merge(self, a: CondensedCountState, b: CondensedCountState) -> CondensedCountState:
        a.rows[...] += b.rows
        earlier = b.first < a.first
        for total, other in zip(a[1:], b[1:], strict=True):
            total[earlier] = other[earlier]
        return a

    def represents_rows(self, state: CondensedCountState) -> bool:
        """Whether cells tell rows apart: a cell of open intervals would have any finite ends."""
        return bool(np.isfinite(state.predictions).all())

    def condensed(self, state: CondensedCountState) -> tuple[Floats, Ints, Floats]:
        """Predictions (m, 2), numbers of rows (m,) and covariates (m, A) of the occupied cells."""
        occupied = np.flatnonzero(state.rows)
        counts = state.rows[occupied].astype(np.int64)
        return state.predictions[occupied], counts, state.covariates[occupied]
