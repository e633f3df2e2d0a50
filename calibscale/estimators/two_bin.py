"""Averaged two-bin calibration error, from the histogram of the score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Floats
from calibscale.estimators.base import bound_notion
from calibscale.estimators.score_measures import WALK_DRAWS, ScoreError, ScoreMeasure, walk
from calibscale.results.estimate import Estimate
from calibscale.statistics.bins import BinCounts
from calibscale.statistics.score_histogram import OccupiedCells
from calibscale.statistics.score_sums import SquaredResiduals
from calibscale.statistics.statistic import Statistic


def _averages(cells: OccupiedCells, residuals: Floats | None = None) -> Floats:
    """Mean of the squared sums of both bins over thresholds in [0, 1], from the `walk`."""
    reached = walk(cells, residuals)
    # Both sums are constant in τ between two scores.
    gaps = np.diff(np.concatenate([[0.0], cells.score, [1.0]]))
    return (reached**2 + (reached[..., -1:] - reached) ** 2) @ gaps


def _error(cells: OccupiedCells) -> float:
    """Bound of the effect of the unknown order of the rows within their cells."""
    if not cells.width.any():
        return 0.0
    reached = walk(cells)
    step = np.maximum(cells.events, cells.weight * cells.score) / cells.weight.sum()

    def largest(values: Floats) -> Floats:
        return np.maximum(np.abs(values[1:]), np.abs(values[:-1]))

    # Within a cell both sums move by at most `step`, which changes their squares by at most
    # 2·step·(|sum| + step).
    slope = largest(reached) + largest(reached[-1] - reached)
    return float(cells.width @ (2.0 * step * (slope + step)))


@dataclass(frozen=True)
class ATB(ScoreError):
    """Averaged two-bin error ∫ [(Σ_{p<τ} wδ)² + (Σ_{p≥τ} wδ)²] dτ / (Σw)², δ = p − event.

    The definition of Hartline, Hu & Wu (COLT 2026), with their factor 1/n² for rows of weight 1: a
    mean over thresholds τ in [0, 1], equal to the mean of δ_i δ_j (1 − |p_i − p_j|) over all pairs
    of rows.  The error is squared.  It is truthful: among all predictions its expectation is
    smallest for the true probabilities.  There is nothing to choose.  Noise biases it upwards by
    Σw²Var(event)/(Σw)², which `ATBDebiased` removes.  Errors of opposite sign at close scores
    cancel.

    See Also
    --------
    ATBDebiased : The same error without the noise of the labels.
    ECE : Mean distance of bins from calibration.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["atb"])["atb"].value, 4)
    0.0175
    """

    name: ClassVar[str] = "atb"
    floor_draws: ClassVar[tuple[int, int, int]] = WALK_DRAWS

    def _size(self, cells: OccupiedCells) -> float:
        return float(_averages(cells))

    def _sizes(self, cells: OccupiedCells, residuals: Floats) -> Floats:
        return _averages(cells, residuals)

    def _mean(self, cells: OccupiedCells) -> float:
        return float(cells.variance.sum() / cells.weight.sum() ** 2)

    def _estimate(self, cells: OccupiedCells, *extra_states: Any) -> Estimate:
        return replace(self._result(self._size(cells), _error(cells)), squared=True)


@dataclass(frozen=True)
class ATBDebiased(ScoreMeasure):
    """`ATB` without the pairs of a row with itself: the mean of δ_i δ_j (1 − |p_i − p_j|), i ≠ j.

    ((Σw)²·ATB − Σw²δ²)/((Σw)² − Σw²).  The error is squared.  Its expectation does not depend on n,
    so that it is 0 on average for a calibrated model, and can fall below 0.

    See Also
    --------
    ATB : The averaged two-bin error of Hartline, Hu & Wu.
    TCE2Debiased : The squared binned error without the noise of the labels.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["atb_debiased"])["atb_debiased"].value, 4)
    0.0145
    """

    name: ClassVar[str] = "atb_debiased"
    unbiased: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (*super().needs, SquaredResiduals(BinCounts(bound_notion(self), (0.0, 1.0))))

    def _estimate(self, cells: OccupiedCells, *extra_states: Any) -> Estimate:
        total = float(cells.weight.sum()) ** 2
        # The effective number of rows of a cell is (Σw)²/Σw², so that this is Σw² of all rows.
        weight2 = float((cells.weight**2 / cells.effective).sum())
        pairs = total - weight2
        if not pairs > 1e-12 * total:
            return Estimate(
                self.name, bound_notion(self), None, True, reason="there is only one row"
            )
        # The pair of a row with itself has the distance 0, and contributes w²δ².
        diagonal = float(extra_states[0].squares.sum())
        value = (total * float(_averages(cells)) - diagonal) / pairs
        return replace(self._result(value, _error(cells) * total / pairs), squared=True)
