"""Proper scores and the signed confidence gap: means of row scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from calibscale.estimators.base import Estimator
from calibscale.excess import excess_limits
from calibscale.limits import Limits, clopper_pearson
from calibscale.results import Estimate
from calibscale.statistics import EventSums, Statistic, Totals, TotalsState


@dataclass(frozen=True)
class _MeanScore(Estimator):
    notion: ClassVar[str] = "canonical"
    unbiased: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Totals(),)

    def finalize(self, totals: TotalsState, *others: Any) -> Estimate:
        if totals.weight == 0:
            return Estimate(
                self.name, self.notion, None, reason="no rows with a label and a positive weight"
            )
        value = float(self._total(totals) / totals.weight)
        return Estimate(self.name, self.notion, value, n=int(totals.n))

    def _total(self, totals: TotalsState) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class Accuracy(_MeanScore):
    """Share of rows whose top label is the label."""

    name: ClassVar[str] = "accuracy"
    notion: ClassVar[str] = "top_label"

    def _total(self, totals: TotalsState) -> float:
        return float(totals.hit)

    def limits(self, level: float, *states: Any) -> Limits:
        """Clopper & Pearson's, of (Σw)²/Σw² rows."""
        (totals,) = states
        rows = float(totals.weight**2 / totals.weight2)
        hits = rows * float(totals.hit / totals.weight)
        return Limits(*clopper_pearson(hits, rows, (1.0 - level) / 2.0), "clopper_pearson")


@dataclass(frozen=True)
class Brier(_MeanScore):
    """Mean of Σ_k (q_k − e_k)², over all classes (for two classes twice the binary score)."""

    name: ClassVar[str] = "brier"

    def _total(self, totals: TotalsState) -> float:
        return float(totals.brier)


@dataclass(frozen=True)
class NLL(_MeanScore):
    """Mean of −log q_y, in nats."""

    name: ClassVar[str] = "nll"

    def _total(self, totals: TotalsState) -> float:
        return float(totals.nll)


@dataclass(frozen=True)
class ConfidenceGap(_MeanScore):
    """Mean confidence minus accuracy: positive where the classifier is overconfident."""

    name: ClassVar[str] = "confidence_gap"
    notion: ClassVar[str] = "top_label"

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Totals(), EventSums(self.notion))

    def _total(self, totals: TotalsState) -> float:
        return float(totals.confidence - totals.hit)

    def limits(self, level: float, *states: Any) -> Limits:
        """Limits of weighted counts, see `calibscale.excess.excess_limits`."""
        totals, events = states
        others, happened = events.sums[2:].T
        low, high = excess_limits(others, happened, (1.0 - level) / 2.0)
        weight = float(totals.weight)
        return Limits(-float(high) / weight, -float(low) / weight, "weighted_counts")
