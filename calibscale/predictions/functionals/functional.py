"""Base class of predictions of a functional of the distribution of an outcome."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Bools, Floats
from calibscale.compiled import threshold_scores
from calibscale.errors import OptionError
from calibscale.predictions.outcomes import OutcomeChunk, OutcomeTarget
from calibscale.predictions.target import KERNEL_ERROR, Draws, Response


def elementary_scores(
    x: Floats,
    y: Floats,
    thresholds: Floats,
    *,
    too_high: float = 1.0,
    too_low: float = 1.0,
    by_distance: bool = True,
) -> Floats:
    """Elementary scores of predictions x (c,) of outcomes y (c,) at increasing thresholds θ (c, m).

    The score is `too_high` where y ≤ θ < x, `too_low` where x ≤ θ < y, and else 0, both times
    |y − θ| if `by_distance` [Ehm, Gneiting, Jordan & Krüger, JRSS B 78 (2016), eqs. 10 and 12].
    Scores of expectiles are half as large there.
    """
    scores = np.zeros((len(x), len(thresholds)))
    columns = (np.ascontiguousarray(x), np.ascontiguousarray(y), thresholds)
    threshold_scores.set_scores(*columns, too_high, too_low, by_distance, scores)
    return scores


@dataclass(frozen=True)
class Functional(OutcomeTarget):
    """Base class of predictions x of a functional of the distribution of an outcome Y.

    A prediction claims that the mean of a response r(x, Y) is m(x).  The residual is δ = m(x) −
    r(x, y), the identification function of the functional [Fissler & Ziegel, Annals of Statistics
    44 (2016)].  Its mean is positive where predictions are too high.  A mean has m(x) = x and r =
    y, and a quantile of level α has m(x) = 1 − α and r = 1{y > x}.

    A kind defines `claimed`, `responses` and `loss`, in a file of its own, and one entry of the
    registry `calibscale.predictions.kinds.TARGETS`.

    Attributes
    ----------
    draws_responses : bool
        Whether responses are events, so that m(x) is the probability of a response of 1 and
        residuals can be drawn.  Otherwise a prediction does not say how outcomes vary, and tests
        give residuals random signs.
    claims_its_value : bool
        Whether the claimed mean is the prediction itself, so that residuals are relative to it.
    has_constant_claim : bool
        Whether the claimed mean is the same for all predictions, such as one minus a coverage.
    order_name : str
        Name of the column of `ordered_by` where it stands beside covariates.
    score : str
        Estimator of the mean of `loss`, by which predictions are compared.

    See Also
    --------
    calibscale.predictions.distributions.forecast.Forecast : Predictive distributions.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[1.0, 2.0, 3.0], forecast="mean", labels=[1.5, 2.0, 4.0])
    >>> cs.evaluate(data, "bias")["bias"].value
    -0.5
    """

    columns: ClassVar[int | None] = 1
    draws_responses: ClassVar[bool] = False
    # The linear kernel is in the units of the predictions, and its intervals are those of classes.
    has_linear_kernel: ClassVar[bool] = False
    claims_its_value: ClassVar[bool] = False
    has_constant_claim: ClassVar[bool] = False
    order_name: ClassVar[str] = "prediction"
    kernel_error: ClassVar[str] = "kce"
    ranked_by: ClassVar[str] = "kce"
    score: ClassVar[str]
    response: ClassVar[Response] = Response("mean response", "predictions", False)

    # ---------------------------------------------------------------- the claim

    @abstractmethod
    def claimed(self, values: Floats) -> Floats:
        """Claimed mean m(x) of the response of each prediction (c, columns), (c,)."""

    @abstractmethod
    def responses(self, values: Floats, y: Floats) -> Floats:
        """Response r(x, y) of each row (c,)."""

    @abstractmethod
    def loss(self, values: Floats, y: Floats) -> Floats:
        """Loss of each row (c,), with the smallest expectation at the true functional."""

    def elementary_scores(self, values: Floats, y: Floats, thresholds: Floats) -> Floats:
        """Elementary score of each row at each threshold (c, m), see `elementary_scores`.

        An OptionError is raised for a functional of several numbers, such as an interval.
        """
        raise OptionError(
            f"{self.in_words} have no elementary scores: give means, expectiles, quantiles, "
            "exceedances, or probabilities of two classes"
        )

    def compared(self, y: Floats) -> Floats:
        """Number (c,) that each prediction is compared with by elementary scores."""
        return y

    def ordered_by(self, values: Floats) -> Floats:
        """Number (c,) by which predictions are put in order, for cells and diagrams."""
        return values[:, 0]

    def event(self, values: Floats, y: Floats) -> tuple[Floats, Bools]:
        """Probability of the claimed event of each row, and whether it happened (c,).

        A response of a constant claim is a miss, and the event is that there is none: outcomes up
        to a quantile, or covered by an interval.
        """
        p, happened = self.claimed(values), self.responses(values, y) > 0.5
        return (1.0 - p, ~happened) if self.has_constant_claim else (p, happened)

    # ---------------------------------------------------------------- layout

    @property
    def n_features(self) -> int:
        return 1

    @property
    def in_words(self) -> str:
        return f"predictions ({self.name})"

    @property
    def described(self) -> dict[str, Any]:
        return {"forecast": self.description, "claim": self.claim}

    def named_notion(self, notion: str) -> str:
        return "prediction" if notion == "canonical" else notion

    # ---------------------------------------------------------------- points and residuals

    def embedded(self, values: Floats, y: Floats) -> Floats:
        return values

    def unembedded(self, points: Floats) -> Floats:
        """Predictions of the points of `embedded`, where a prediction is one number."""
        return points

    def residuals(self, rows: OutcomeChunk) -> Floats:
        return rows.scalar_residual[:, None]

    def scalar_residuals(self, values: Floats, y: Floats) -> Floats:
        return self.claimed(values) - self.responses(values, y)

    def residual_variance(self, rows: OutcomeChunk) -> Floats:
        """E δ² of events drawn with their claimed probabilities (c,), or 0 without events."""
        if not self.draws_responses:
            return np.zeros(len(rows))
        p = self.claimed(rows.values)
        return p * (1.0 - p)

    # ---------------------------------------------------------------- draws under the null

    def event_probabilities(self, rows: Any) -> Floats:
        return self.claimed(rows.parameters[:, :-1])

    def drawn_residuals(self, rows: Any, draws: Draws, first: int, last: int) -> Iterator[Floats]:
        if not self.draws_responses:
            raise OptionError(f"{self.in_words} do not say how outcomes vary; use null='wild'")
        p = self.event_probabilities(rows)
        for u in draws.uniforms(rows.units, first, last):
            yield (p - (u < p))[:, None]

    # ---------------------------------------------------------------- default estimators

    @property
    def default_estimators(self) -> tuple[str, ...]:
        return ("bias", self.score, self.kernel_error)

    @property
    def scores(self) -> tuple[str, ...]:
        return (self.score,)

    @property
    def default_tests(self) -> tuple[str, ...]:
        return ("mean_score", "smooth_test", "residual_scan", KERNEL_ERROR)

    @property
    def segment_test(self) -> str:
        return "segment_scan"

    @property
    def sizes(self) -> tuple[str, ...]:
        return ("bias", KERNEL_ERROR)
