"""Proper scores, accuracy and confidence gap, and decompositions of scores by recalibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import rel_entr, xlogy

from calibscale.array_types import Floats
from calibscale.estimators.base import ScalarEstimator, SimpleEstimator, bound_notion, without_rows
from calibscale.estimators.binned import TCE2, Binned
from calibscale.intervals.excess import excess_limits
from calibscale.intervals.proportions import Limits, share_limits
from calibscale.predictions.claims import CLASSES, SOFT
from calibscale.results.estimate import Estimate
from calibscale.statistics import score_sums
from calibscale.statistics.bins import BinnedRows, BinRests, BinState, BinTable
from calibscale.statistics.statistic import Statistic


@dataclass(frozen=True)
class _MeanScore(SimpleEstimator):
    unbiased: ClassVar[bool] = True
    judges: ClassVar[tuple[str, ...]] = (CLASSES, SOFT)
    total: ClassVar[str]  # field of the state of `Totals` that becomes the value, a mean

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (score_sums.Totals(),)

    def finalize(self, totals: score_sums.TotalsState, *extra_states: Any) -> Estimate:
        if totals.weight == 0:
            return without_rows(self)
        value = float(self._total(totals, *extra_states) / totals.weight)
        return Estimate(self.name, bound_notion(self), value, n=int(totals.n))

    def _total(self, totals: score_sums.TotalsState, *extra_states: Any) -> float:
        return float(getattr(totals, self.total))


@dataclass(frozen=True)
class Accuracy(_MeanScore):
    """Share of rows with the label as their top label, Σw 1{y = argmax q}/Σw.

    A value between 0 and 1, larger is better.  It does not measure calibration.  One pass.

    See Also
    --------
    ConfidenceGap : Mean prediction minus frequency, with its sign.
    AURC : Area under the risk–coverage curve.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.Accuracy()])["accuracy"].value, 4)
    0.5
    """

    name: ClassVar[str] = "accuracy"
    smaller_is_better: ClassVar[bool] = False
    notion = "top_label"
    total: ClassVar[str] = "hit"

    def limits(self, confidence_level: float, *states: Any) -> Limits:
        """Clopper-Pearson limits with (Σw)²/Σw² rows."""
        (totals,) = states
        return share_limits(totals, totals.hit, confidence_level)


@dataclass(frozen=True)
class Brier(_MeanScore):
    """Brier score, the mean of Σ_k (q_k − 1{y = k})² over rows, twice the binary score for K = 2.

    Soft labels replace 1{y = k}.  A squared proper score between 0 and 2.  A large value means
    miscalibrated or uninformative predictions, which `BrierDecomposition` separates.  Use it to
    compare models.  One pass.

    See Also
    --------
    NLL : Mean negative log probability of the label.
    BrierDecomposition : Calibration and refinement parts of the Brier score.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.Brier()])["brier"].value, 4)
    0.63
    """

    name: ClassVar[str] = "brier"
    total: ClassVar[str] = "brier"


@dataclass(frozen=True)
class NLL(_MeanScore):
    """Negative log-likelihood: mean of −log q_y, in nats.

    A proper score, ≥ 0, with soft labels the cross entropy.  A large value means miscalibrated or
    uninformative predictions, which `NLLDecomposition` separates.  It is infinite if a label has
    probability 0, and dominated by few confident errors.  One pass.

    See Also
    --------
    Brier : Mean squared error of the probabilities.
    NLLDecomposition : Calibration and refinement parts of the log loss.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.NLL()])["nll"].value, 4)
    0.8483
    """

    name: ClassVar[str] = "nll"
    total: ClassVar[str] = "nll"
    counted: ClassVar[tuple[Statistic, ...]] = (score_sums.ImpossibleLabels(),)

    def noted(self, estimate: Estimate, *states: Any) -> Estimate:
        count = int(states[0].n)
        note = f"{count:,} of {estimate.n:,} rows have probability 0 for their label"
        return estimate.with_note(note) if count else estimate


@dataclass(frozen=True)
class ConfidenceGap(_MeanScore, ScalarEstimator):
    """Signed gap Σwδ/Σw, mean prediction minus frequency of the event.

    It has the unit of a probability.  Predictions are too high on average if it is above 0.  For
    the top label it is mean confidence − accuracy (overconfidence), for class 1 of two classes mean
    P(y = 1) − rate.  It is unbiased with a short interval. Errors of opposite sign cancel, which
    `ECE` shows.  One pass.

    Parameters
    ----------
    notion : {"top_label", "positive"}, optional
        Default: ``positive`` for two classes, else ``top_label``.

    See Also
    --------
    ECE : Mean distance of bins from calibration.
    MeanScore : Test of calibration in the large.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.ConfidenceGap()])["confidence_gap"].value, 4)
    -0.05
    """

    notion: str | None = None
    name: ClassVar[str] = "confidence_gap"
    smaller_is_better: ClassVar[bool] = False
    signed: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (score_sums.Totals(), score_sums.EventSums(bound_notion(self)))

    def _total(self, totals: score_sums.TotalsState, *extra_states: Any) -> float:
        if bound_notion(self) == "top_label":
            # Totals have the sums of the top label already.
            return float(totals.confidence - totals.hit)
        (events,) = extra_states
        (p, _), (_, complement) = events.sums[2:4]  # δ is p without the event, −(1 − p) with it
        return float(p - complement)

    def limits(self, confidence_level: float, *states: Any) -> Limits:
        """Limits of weighted counts by `calibscale.intervals.excess.excess_limits`."""
        totals, events = states
        missed, happened = events.sums[2:].T
        # The gap is minus the excess Σw(event − p), so that its limits change places.
        low, high = excess_limits(missed, happened, (1.0 - confidence_level) / 2.0)
        weight = float(totals.weight)
        return Limits(-float(high) / weight, -float(low) / weight, "weighted_counts")


# ---------------------------------------------------------------- Decompositions


class _Decomposition(Binned):
    """Base class of decompositions, which are no tests."""

    def _parts_of(
        self,
        bins: BinTable,
        score: float,
        calibration: float,
        refinement: float,
        uncertainty: float,
    ) -> Estimate:
        return self._result(
            bins,
            score=score,
            calibration=calibration,
            refinement=refinement,
            uncertainty=uncertainty,
            resolution=uncertainty - refinement,
            within_bins=score - calibration - refinement,
        )


@dataclass(frozen=True)
class BrierDecomposition(_Decomposition):
    """Brier score of the event = calibration + refinement + within-bin part (Murphy 1973).

    The value is the calibration part Σ_b (n_b/n)(conf_b − acc_b)², a squared error: the part of the
    score that recalibration would remove.  `details` contains the refinement Σ_b (n_b/n) acc_b (1 −
    acc_b), its parts uncertainty and resolution, the score Σδ²/n, and the part due to the spread of
    p within bins.  Use it to see whether a poor score is due to calibration.  For biases,
    parameters and cost see `TCE2`.

    See Also
    --------
    NLLDecomposition : Calibration and refinement parts of the log loss.
    CORP : Miscalibration part of the Brier score, without bins.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.BrierDecomposition()])["brier_decomposition"].value, 4)
    0.065
    """

    name: ClassVar[str] = "brier_decomposition"
    of_gaps = TCE2.of_gaps

    def _value(self, bins: BinTable) -> float:
        return float(bins.share @ bins.gap**2)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (*super().needs, score_sums.ScalarScores(bound_notion(self)))

    def _estimate(self, bins: BinTable, scores: score_sums.ScalarState) -> Estimate:
        refinement = float(bins.share @ (bins.frequency * (1.0 - bins.frequency)))
        base = float(bins.share @ bins.frequency)
        score = float(scores.squared / scores.weight)
        return self._parts_of(bins, score, self._value(bins), refinement, base * (1.0 - base))


@dataclass(frozen=True)
class NLLDecomposition(_Decomposition):
    """Log loss of the event = calibration + refinement + within-bin part, in nats.

    The value is the calibration part Σ_b (n_b/n) KL(acc_b ‖ conf_b): the part of the log loss that
    recalibration would remove.  The refinement is Σ_b (n_b/n) H(acc_b).  `details` has the same
    parts as `BrierDecomposition`.  Overconfident errors near 0 and 1 dominate.  Noise biases the
    value upwards.  Sums of 1 − p keep it finite where the log loss is.  Parameters and cost: see
    `Binned`.

    See Also
    --------
    BrierDecomposition : Calibration and refinement parts of the Brier score.
    NLL : Mean negative log probability of the label.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.NLLDecomposition()])["nll_decomposition"].value, 4)
    0.1552
    """

    name: ClassVar[str] = "nll_decomposition"
    squared: ClassVar[bool] = False

    def _bins(self, state: BinState, *extra_states: Any) -> BinTable:
        bins = super()._bins(state, *extra_states)
        if extra_states and isinstance(extra_states[-1], BinState):  # sums of 1 − p instead of δ
            bins = bins._replace(rest=super()._bins(extra_states[-1]).delta)
        return bins

    def _value(self, bins: BinTable) -> float:
        return self._parts(bins)[0]

    def of_gaps(self, gaps: Floats, bins: BinTable) -> Floats:
        """KL(acc_b ‖ conf_b), of the second order where 1 − conf_b is rounded."""
        conf = np.clip(bins.mean_p, 1e-300, 1.0 - 1e-16)
        acc = np.clip(conf - gaps, 0.0, 1.0)
        return (rel_entr(acc, conf) + rel_entr(1.0 - acc, 1.0 - conf)) @ bins.share

    @staticmethod
    def _parts(bins: BinTable) -> tuple[float, float]:
        """Calibration and refinement parts."""
        acc, conf = bins.frequency, bins.mean_p
        assert bins.rest is not None
        complement = np.divide(bins.rest, bins.weight, np.ones_like(conf), where=bins.weight > 0)
        entropy = -xlogy(acc, acc) - xlogy(1.0 - acc, 1.0 - acc)
        refinement = float(bins.share @ entropy)
        with np.errstate(divide="ignore"):
            # KL(acc ‖ conf) is the cross entropy minus the entropy.  Sums of 1 − p keep the digits
            # of 1 − conf.
            cross = bins.share @ (-xlogy(acc, conf) - xlogy(1.0 - acc, np.maximum(complement, 0.0)))
        return float(cross) - refinement, refinement

    @property
    def needs(self) -> tuple[Statistic, ...]:
        (counts,) = super().needs
        assert isinstance(counts, BinnedRows)
        return counts, score_sums.ScalarScores(bound_notion(self)), BinRests(counts)

    def _estimate(
        self, bins: BinTable, scores: score_sums.ScalarState, rests: BinState
    ) -> Estimate:
        calibration, refinement = self._parts(bins)
        base = float(bins.share @ bins.frequency)
        uncertainty = float(-xlogy(base, base) - xlogy(1.0 - base, 1.0 - base))
        score = float(scores.log_loss / scores.weight)
        return self._parts_of(bins, score, calibration, refinement, uncertainty)
