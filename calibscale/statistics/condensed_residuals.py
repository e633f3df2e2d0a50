"""Residuals of many rows, condensed to few rows from which random signs are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.statistics.condensed_cells import CondensedCells
from calibscale.statistics.statistic import weights_of

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
class CondensedResiduals(CondensedCells):
    """Variance of the signed residuals of cells of nearly equal predictions and covariates.

    Random signs of many rows with about equal predictions and covariates change a statistic like
    one random sign of a single row with the residual √v, where v = Σw²δ².  The cells are
    replicated `parts` times, by a hash of the row, so that enough rows are left where few
    predictions and covariates differ.
    """

    def zero(self, classes: int) -> CondensedState:
        count = self.count
        covariates = np.zeros((len(self.axes), count))
        return CondensedState(np.zeros(count), np.zeros(count), covariates, np.zeros(()))

    def accumulate(self, state: CondensedState, chunk: Any) -> CondensedState:
        x = chunk.target.ordered_by(chunk.values)
        squares = (weights_of(chunk) * chunk.scalar_residual) ** 2
        cells = self.cells(chunk, x)
        count = len(state.variance)
        state.variance[...] += np.bincount(cells, squares, count)
        state.predictions[...] += np.bincount(cells, squares * x, count)
        for axis, sums in zip(self.axes, state.covariates, strict=True):
            sums += np.bincount(cells, squares * chunk.covariates[:, axis.position], count)
        with np.errstate(over="ignore"):  # see `represents_rows`
            state.fourths[...] += squares @ squares
        return state

    def represents_rows(self, state: CondensedState) -> bool:
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
        x, columns = self.means(occupied, state.variance, state.predictions, state.covariates)
        return x, np.sqrt(state.variance[occupied]), columns
