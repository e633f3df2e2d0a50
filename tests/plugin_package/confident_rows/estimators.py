"""Error of the most confident predictions, and the sums that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from calibscale import Estimate
from calibscale.estimators.base import SimpleEstimator
from calibscale.statistics.statistic import Statistic, weights_of


class SumsState(NamedTuple):
    """Number of rows, Σw and Σwδ of the rows on one side of the threshold, each (1,)."""

    rows: Any
    weight: Any
    delta: Any


@dataclass(frozen=True)
class ConfidentSums(Statistic):
    """Sums of the rows with a confidence above or below a threshold."""

    threshold: float
    side: str
    powers: ClassVar[tuple[int, ...]] = (0, 1, 1)
    drawn: ClassVar[tuple[str, ...]] = ("delta",)

    def zero(self, classes: int) -> SumsState:
        return SumsState(np.zeros(1), np.zeros(1), np.zeros(1))

    def _weights(self, chunk: Any) -> Any:
        above = chunk.confidence > self.threshold
        return weights_of(chunk) * (above if self.side == "above" else ~above)

    def accumulate(self, state: SumsState, chunk: Any) -> SumsState:
        weights, delta = self._weights(chunk), chunk.event("top_label").delta
        state.rows[0] += np.count_nonzero(weights)
        state.weight[0] += weights.sum()
        state.delta[0] += weights @ delta
        return state

    def draw(self, sums: tuple[Any, ...], chunk: Any, replicates: Any) -> None:
        sums[0][:, 0] += replicates.events(chunk, "top_label") @ self._weights(chunk)


@dataclass(frozen=True)
class ConfidentGap(SimpleEstimator):
    """Mean confidence minus accuracy of the rows with a confidence above or below a threshold.

    Parameters
    ----------
    threshold : float
    side : {"above", "below"}
    absolute : bool
        Whether the sign is dropped.
    """

    threshold: float = 0.9
    side: Literal["above", "below"] = "above"
    absolute: bool = False
    protocol: ClassVar[int] = 2
    name: ClassVar[str] = "confident_gap"
    notion: ClassVar[str] = "top_label"
    testable: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (ConfidentSums(self.threshold, self.side),)

    def finalize(self, state: SumsState) -> Estimate:
        settings = {"threshold": self.threshold, "side": self.side, "absolute": self.absolute}
        if state.weight[0] == 0:
            return Estimate(self.name, self.notion, None, parameters=settings, reason="no rows")
        gap = float(state.delta[0] / state.weight[0])
        value = abs(gap) if self.absolute else gap
        rows = int(state.rows[0])
        return Estimate(self.name, self.notion, value, parameters=settings, n=rows)
