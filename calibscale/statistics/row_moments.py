"""Moments of the scores of rows, from which the limits of their mean follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.statistics.statistic import Statistic, added, weights_of


class RowMomentState(NamedTuple):
    """Σws and Σw of scores s, and Σw²sᵏ (3,), Σw³sᵏ (4,) and Σw⁴sᵏ (5,) with the powers k from 0.

    The first two are 0-d.
    """

    total: Floats
    weight: Floats
    second: Floats
    third: Floats
    fourth: Floats


@dataclass(frozen=True)
class RowMoments(Statistic):
    """Sums of powers of the first column that ``score.rows(target, values, outcomes)`` has.

    Every sum has the power of the weights of the central moment that it belongs to, so that the
    moments of Σw(s − mean) follow for any mean.
    """

    score: Any
    powers: ClassVar[tuple[int, ...]] = (1, 1, 2, 3, 4)

    def zero(self, classes: int) -> RowMomentState:
        return RowMomentState(np.zeros(()), np.zeros(()), np.zeros(3), np.zeros(4), np.zeros(5))

    def accumulate(self, state: RowMomentState, chunk: Any) -> RowMomentState:
        column, *_ = self.score.rows(chunk.target, chunk.values, chunk.outcomes)
        return added(state, *moment_sums(column, weights_of(chunk)))


def moment_sums(scores: Floats, w: Floats) -> RowMomentState:
    """Sums of the powers of the scores of rows (c,) with their weights (c,)."""
    # A row of weight 0 adds 0, even if its score is infinite.
    score = np.where(w > 0, scores, 0.0)
    # Powers of huge scores may overflow, and the limits are then undefined.
    with np.errstate(over="ignore", invalid="ignore"):
        by_power = []
        for power in (2, 3, 4):
            term = w**power
            sums = [term.sum()]
            for _ in range(power):
                term = term * score
                sums.append(term.sum())
            by_power.append(np.array(sums))
        return RowMomentState(w @ score, w.sum(), *by_power)
