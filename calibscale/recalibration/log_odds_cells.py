"""Rows of two classes by cells of their log-odds, to which splines are fitted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.cell_fits import log_odds_of
from calibscale.recalibration.logistic import log_odds
from calibscale.recalibration.parametric import CLIP
from calibscale.statistics.score_histogram import OccupiedCells
from calibscale.statistics.statistic import Statistic, weights_of

_WIDTH = 0.02  # of a cell of arsinh z: the log-odds of a row are known to about 1 % or 0.01
_HALF = 2**15  # cells on either side of 0, which reach to 1e284


class LogOddsCells(NamedTuple):
    """Cells with rows in increasing order of the mean log-odds z, fields of which are (c,).

    `events` is Σw of the rows with an event.  `unit` is the weight Σw²/Σw of a row if the
    effective number of rows had equal weights.
    """

    z: Floats
    weight: Floats
    events: Floats
    unit: float

    @classmethod
    def of_scores(cls, cells: OccupiedCells, clip: float) -> LogOddsCells:
        """Cells of scores, which say the log-odds if neither p nor 1 − p is 0 by rounding."""
        return cls(log_odds_of(cells, clip), cells.weight, cells.events, cells.unit)

    @property
    def share(self) -> Floats:
        return self.weight / self.weight.sum()


class LogOddsState(NamedTuple):
    """Sums Σw, Σw², Σwz and Σwy of the rows of each cell (4, cells)."""

    sums: Floats

    @property
    def cells(self) -> LogOddsCells:
        """Cells of positive weight."""
        weight, weight2, weighted_z, events = self.sums[:, self.sums[0] > 0]
        # Rounding may raise a mean above the next.
        means = np.maximum.accumulate(weighted_z / weight)
        return LogOddsCells(means, weight, events, float(weight2.sum() / weight.sum()))


@dataclass(frozen=True)
class LogOddsHistogram(Statistic):
    """Sums of two classes by cells of the log-odds z that are equally wide in arsinh z.

    Scores of logits beyond ±37 are 0 or 1 to rounding, so that cells of scores do not tell their
    log-odds.  These cells do, whatever the scale of the logits.
    """

    clip: float = CLIP

    def zero(self, classes: int) -> LogOddsState:
        return LogOddsState(np.zeros((4, 2 * _HALF)))

    def accumulate(self, state: LogOddsState, chunk: Chunk) -> LogOddsState:
        z, w = log_odds(chunk, self.clip), weights_of(chunk)
        numbers = np.floor(np.arcsinh(z) / _WIDTH).astype(np.int64)
        cells = np.clip(numbers + _HALF, 0, 2 * _HALF - 1)
        for total, values in zip(state.sums, (w, w * w, w * z, w * chunk.positive), strict=True):
            total += np.bincount(cells, values, len(total))
        return state
