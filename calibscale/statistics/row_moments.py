"""Moments of the scores of rows, from which the limits of their mean follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled import power_sums
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
    """Sums of the powers of the scores of rows (c,), or (s, c), with their weights (c,).

    Fields for several scores have them on the first axis.  Powers of huge scores may overflow, and
    the limits are then undefined.
    """
    sums = np.zeros((*scores.shape[:-1], 14))
    power_sums.add_power_sums(np.atleast_2d(scores), w, np.atleast_2d(sums))
    total, weight, *by_power = np.split(sums, (1, 2, 5, 9), axis=-1)
    return RowMomentState(total[..., 0], weight[..., 0], *by_power)
