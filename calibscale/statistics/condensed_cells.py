"""Cells of nearly equal predictions and covariates, whose rows are condensed to few rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.hashes import mixed
from calibscale.predictions.outcomes import OutcomeChunk
from calibscale.statistics.segments import crossings
from calibscale.statistics.statistic import Statistic


@dataclass(frozen=True)
class CondensedCells(Statistic):
    """Base class of sums of cells of nearly equal predictions and covariates.

    The cells are replicated `parts` times, by a hash of the row.

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
    parts: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells of predictions and of each axis, and of parts."""
        return (len(self.edges) + 1, *(len(axis) + 1 for axis in self.axes), self.parts)

    @property
    def count(self) -> int:
        """Number of condensed rows C, some of which may stand for no row."""
        return math.prod(self.shape)

    def cells(self, chunk: OutcomeChunk, x: Floats) -> Ints:
        """Number of the condensed row of each row (c,), with the predictions x (c,)."""
        cells = np.searchsorted(np.array(self.edges), x)
        if self.axes:
            assert chunk.covariates is not None
            crossed = math.prod(len(axis) + 1 for axis in self.axes)
            cells = cells * crossed + crossings(self.axes, chunk.covariates)
        if self.parts > 1:
            part = mixed(chunk.rows.astype(np.uint64)) % np.uint64(self.parts)
            cells = cells * self.parts + part.astype(np.int64)
        return cells

    def means(
        self, occupied: Ints, masses: Floats, predictions: Floats, covariates: Floats
    ) -> tuple[Floats, Floats]:
        """Mean predictions (m,) and covariates (m, A) of occupied cells, from sums of all cells.

        Means are moved into the cell where rounding left it.
        """
        cell, *by_axis, _ = np.unravel_index(occupied, self.shape)
        mass = masses[occupied]
        x = _within(predictions[occupied] / mass, cell, self.edges)
        columns = np.empty((len(occupied), len(self.axes)))
        for a, (axis, part) in enumerate(zip(self.axes, by_axis, strict=True)):
            mean = covariates[a, occupied] / mass
            if axis.levels is None:
                columns[:, a] = _within(mean, part, axis.edges)
            else:
                # The mean of equal values may differ from them by rounding.
                levels = np.array(axis.levels)
                known = part < len(levels)
                columns[:, a] = np.where(known, levels[np.minimum(part, len(levels) - 1)], mean)
        return x, columns


def _within(means: Floats, cells: Ints, edges: tuple[float, ...]) -> Floats:
    """Means of the rows of cells (lo, hi], moved into the cell where rounding left it."""
    ends = np.array([-np.inf, *edges, np.inf])
    return np.clip(means, np.nextafter(ends[cells], np.inf), ends[cells + 1])
