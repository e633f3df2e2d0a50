"""Pairs of a prediction and an outcome: exact while they fit, else sums in cells of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.statistics.statistic import Statistic, weights_of

MOST_PAIRS = 2**20  # different pairs that are kept apart
MOMENTS = 3  # sums of each cell: Σw, Σw·d and Σw·d² of distances d from the reference of the cell
# Odd numbers for multiplicative hashing: 2^64 over the golden ratio, and a prime.
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


class OutcomePairState(NamedTuple):
    """Predictions x, outcomes y and weights of pairs (c,) in any order, or sums in cells.

    `sums` (3, X·Y) are Σw, Σwd and Σwd² of distances d of outcomes from a reference number of their
    cell.  `least` and `largest` (X + Y,) are the ends of the numbers in each cell of predictions,
    and in each cell of outcomes.  The arrays of pairs, or of cells, are empty.
    """

    x: Floats
    y: Floats
    weights: Floats
    sums: Floats
    least: Floats
    largest: Floats

    @property
    def exact(self) -> bool:
        """Whether every pair is kept."""
        return not self.sums.size

    def sorted(self) -> OutcomePairState:
        """State with each pair once, in increasing order of x and then of y."""
        if not self.exact:
            return self
        order = np.lexsort((self.y, self.x))
        x, y, weights = self.x[order], self.y[order], self.weights[order]
        is_first = np.append(True, (np.diff(x) > 0) | (np.diff(y) > 0))[: len(x)]
        starts = np.flatnonzero(is_first)
        pooled = np.add.reduceat(weights, starts) if len(starts) else weights
        return self._replace(x=x[starts], y=y[starts], weights=pooled)


class CellPairs(NamedTuple):
    """Occupied cells, in increasing order of the predictions and then of the outcomes (c,).

    `weight`, `mean` and `variance` are of the outcomes of each cell, `column` numbers the occupied
    cells of outcomes, and `ends` (g,) is the index after the last cell of each cell of predictions.
    `first` and `last` are the ends of the predictions of these (g,), and `low` and `high` the ends
    of the outcomes of each column (Y,).
    """

    weight: Floats
    mean: Floats
    variance: Floats
    column: Ints
    ends: Ints
    first: Floats
    last: Floats
    low: Floats
    high: Floats

    def by_outcome(self) -> CellPairs:
        """Cells of outcomes with all predictions in one cell."""
        weight: Floats = np.bincount(self.column, self.weight).astype(np.float64)
        mean = np.bincount(self.column, self.weight * self.mean) / weight
        spread = self.variance + (self.mean - mean[self.column]) ** 2
        variance = np.bincount(self.column, self.weight * spread) / weight
        column = np.arange(len(weight))
        ends = np.array([len(weight)])
        return CellPairs(
            weight,
            mean,
            variance,
            column,
            ends,
            self.first[:1],
            self.last[-1:],
            self.low,
            self.high,
        )


@dataclass(frozen=True)
class OutcomePairs(Statistic):
    """Weights of rows by pairs of a prediction and an outcome.

    Sums in cells replace the pairs when there are more than 2^20.  A cell is a range of predictions
    and a range of outcomes between two edges, closed on the right.  The cells of a row depend on
    the edges alone, so that the state does not depend on the order of the rows but for rounding.

    Parameters
    ----------
    prediction_edges, outcome_edges : tuple of float
        Increasing edges, beyond which cells have no end.
    most_rows : int, optional
        Largest number of rows, from which the memory of a state follows.  Default: unknown.
    """

    prediction_edges: tuple[float, ...]
    outcome_edges: tuple[float, ...]
    most_rows: int | None = field(default=None, compare=False)
    large_chunks: ClassVar[bool] = True  # a chunk may fill all cells

    @property
    def columns(self) -> int:
        """Number of cells of outcomes."""
        return len(self.outcome_edges) + 1

    @property
    def cells(self) -> int:
        return (len(self.prediction_edges) + 1) * self.columns

    @property
    def references(self) -> Floats:
        """Number of each cell of outcomes (Y,), from which distances are taken."""
        edges = np.array(self.outcome_edges)
        # Differences of edges keep the digits of outcomes far from 0.
        inner = edges[:-1] + 0.5 * np.diff(edges)
        return np.concatenate([edges[:1], inner, edges[-1:]])

    def zero(self, classes: int) -> OutcomePairState:
        x, y, weights, least, largest = (np.empty(0) for _ in range(5))
        return OutcomePairState(x, y, weights, np.zeros((MOMENTS, 0)), least, largest)

    def nbytes(self, classes: int) -> int:
        # A pair has three numbers, as a cell has.
        if self.most_rows is not None and self.most_rows <= MOST_PAIRS:
            return 8 * MOMENTS * self.most_rows
        return 8 * MOMENTS * max(self.cells, MOST_PAIRS)

    def nbytes_of_groups(self, classes: int, groups: int) -> int:
        most = super().nbytes_of_groups(classes, groups)
        if self.most_rows is None:
            return most
        # The groups share the rows, and a group has cells only if its pairs do not fit.
        groups_with_cells = min(groups, self.most_rows // MOST_PAIRS)
        pairs = min(self.most_rows, groups * MOST_PAIRS)
        return min(most, 8 * MOMENTS * (pairs + groups_with_cells * self.cells))

    def accumulate(self, state: OutcomePairState, chunk: Any) -> OutcomePairState:
        weights = weights_of(chunk)
        kept = weights > 0
        x = chunk.target.ordered_by(chunk.values)[kept] + 0.0  # −0 + 0 is 0
        rows = self.zero(1)._replace(x=x, y=chunk.outcomes[kept] + 0.0, weights=weights[kept])
        if state.exact:
            return self.merge(state, rows)
        self._add(state, rows)
        return state

    def merge(self, a: OutcomePairState, b: OutcomePairState) -> OutcomePairState:
        if a.exact and b.exact:
            if not len(a.x) or not len(b.x):
                union = a if len(a.x) else b
            else:
                pairs = (np.append(p, q) for p, q in zip(a[:3], b[:3], strict=True))
                union = a._replace(**dict(zip(OutcomePairState._fields, pairs, strict=False)))
            if len(union.x) <= MOST_PAIRS:
                return union
            if not _many(union):
                union = union.sorted()
                if len(union.x) <= MOST_PAIRS:
                    return union
            return self._in_cells(union)
        a = self._in_cells(a)
        self._add(a, b)
        return a

    def _in_cells(self, state: OutcomePairState) -> OutcomePairState:
        """State of cells instead of the pairs."""
        if not state.exact:
            return state
        ends = len(self.prediction_edges) + 1 + self.columns
        cells = self.zero(1)._replace(
            sums=np.zeros((MOMENTS, self.cells)),
            least=np.full(ends, np.inf),
            largest=np.full(ends, -np.inf),
        )
        self._add(cells, state)
        return cells

    def _add(self, cells: OutcomePairState, state: OutcomePairState) -> None:
        """Add a state to a state of cells."""
        if not state.exact:
            np.add(cells.sums, state.sums, out=cells.sums)
            np.minimum(cells.least, state.least, out=cells.least)
            np.maximum(cells.largest, state.largest, out=cells.largest)
            return
        rows = np.searchsorted(self.prediction_edges, state.x)
        columns = np.searchsorted(self.outcome_edges, state.y)
        numbers = rows * self.columns + columns
        distances = state.y - self.references[columns]
        summed = state.weights
        for out in cells.sums:
            out += np.bincount(numbers, summed, self.cells)
            summed = summed * distances
        split = len(self.prediction_edges) + 1
        for places, values in ((rows, state.x), (columns + split, state.y)):
            np.minimum.at(cells.least, places, values)
            np.maximum.at(cells.largest, places, values)

    def occupied(self, state: OutcomePairState) -> CellPairs:
        """Occupied cells of a state of cells."""
        weights, firsts, seconds = state.sums
        occupied = np.flatnonzero(weights)
        rows, columns = np.divmod(occupied, self.columns)
        weight = weights[occupied]
        distance = firsts[occupied] / weight
        variance = np.maximum(seconds[occupied] / weight - distance**2, 0.0)
        split = len(self.prediction_edges) + 1
        filled_rows = np.unique(rows)
        filled, column = np.unique(columns, return_inverse=True)
        low, high = state.least[split:][filled], state.largest[split:][filled]
        mean = np.clip(self.references[columns] + distance, low[column], high[column])
        return CellPairs(
            weight,
            mean,
            variance,
            column,
            np.searchsorted(rows, filled_rows, "right"),
            state.least[:split][filled_rows],
            state.largest[:split][filled_rows],
            low,
            high,
        )


def _many(state: OutcomePairState) -> bool:
    """Whether more than `MOST_PAIRS` pairs have different hashes, a quick test of many pairs."""
    x, y = (column.view(np.uint64) * odd for column, odd in zip(state[:2], _ODD, strict=True))
    seen = np.zeros(2**24, bool)
    seen[(x ^ (y >> np.uint64(7)) * _ODD[0]) >> np.uint64(40)] = True
    return bool(np.count_nonzero(seen) > MOST_PAIRS)
