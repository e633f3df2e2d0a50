"""Proper scores and the signed confidence gap: means of row scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from calibscale.estimators.base import Estimator
from calibscale.results import Estimate
from calibscale.statistics import Statistic, Totals, TotalsState


@dataclass(frozen=True)
class _MeanScore(Estimator):
    notion: ClassVar[str] = "canonical"
    unbiased: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Totals(),)

    def finalize(self, totals: TotalsState) -> Estimate:
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

    def _total(self, totals: TotalsState) -> float:
        return float(totals.confidence - totals.hit)
