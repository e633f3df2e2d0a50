"""Predictions of means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.errors import require
from calibscale.predictions.claims import MEANS
from calibscale.predictions.functionals.functional import Functional, elementary_scores
from calibscale.predictions.invalid_rows import NOT_POSITIVE
from calibscale.predictions.target import Response

SCALES = ("identity", "log")


@dataclass(frozen=True)
class MeanPrediction(Functional):
    """Prediction x of the mean of a number: E[Y | x] = x.

    Counts and sums with an exposure are predictions of the rate.  The outcome is the count divided
    by the exposure, and the exposure is the weight.

    Parameters
    ----------
    scale : {"identity", "log"}
        Scale on which kernels compare predictions.  ``log`` suits positive means that differ by
        factors, and predictions must then be positive.

    See Also
    --------
    calibscale.QuantilePrediction, calibscale.ExpectilePrediction, calibscale.IntervalPrediction

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[0.1, 0.2, 0.4], forecast="mean(scale=log)", labels=[0.0, 0.5, 0.2],
    ...     weights=[1.0, 2.0, 1.0],
    ... )
    >>> round(cs.evaluate(data, "bias")["bias"].details["ratio"], 4)
    1.3333
    """

    scale: str = field(default="identity", kw_only=True)
    name: ClassVar[str] = "mean"
    claim: ClassVar[str] = MEANS
    has_linear_kernel: ClassVar[bool] = True
    claims_its_value: ClassVar[bool] = True
    score: ClassVar[str] = "squared_error"
    response: ClassVar[Response] = Response("mean outcome", "predictions", False)

    def __post_init__(self) -> None:
        require(self.scale in SCALES, f"scale must be one of {', '.join(SCALES)}", self.scale)

    def claimed(self, values: Floats) -> Floats:
        return values[:, 0]

    def responses(self, values: Floats, y: Floats) -> Floats:
        return y

    def loss(self, values: Floats, y: Floats) -> Floats:
        return (values[:, 0] - y) ** 2

    def elementary_scores(self, values: Floats, y: Floats, thresholds: Floats) -> Floats:
        return elementary_scores(values[:, 0], y, thresholds)

    @property
    def condensed(self) -> MeanPrediction:
        return self

    def embedded(self, values: Floats, y: Floats) -> Floats:
        return np.log(values) if self.scale == "log" else values

    def unembedded(self, points: Floats) -> Floats:
        return np.exp(points) if self.scale == "log" else points

    def check_values(self, values: Floats, status: Ints) -> None:
        if self.scale == "log":
            status[~(values[:, 0] > 0)] = NOT_POSITIVE

    def explained(self, reason: int, values: Floats, y: float) -> str:
        if reason == NOT_POSITIVE:
            return f"its prediction is {values[0]:g}, not positive as scale='log' needs"
        return super().explained(reason, values, y)

    def imagined(self, n: int, rng: np.random.Generator) -> tuple[str, Any]:
        return self.name, rng.gamma(2.0, size=(n, 1))


@dataclass(frozen=True)
class SecondMomentPrediction(Functional):
    """Prediction x of the mean of the square of a number: E[Y² | x] = x.

    Outcomes that are errors of another prediction make it a prediction of their variance.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[1.0, 4.0], forecast="second_moment", labels=[1.0, -3.0])
    >>> cs.evaluate(data, "bias")["bias"].value
    -2.5
    """

    name: ClassVar[str] = "second_moment"
    claim: ClassVar[str] = MEANS
    has_linear_kernel: ClassVar[bool] = True
    claims_its_value: ClassVar[bool] = True
    score: ClassVar[str] = "squared_error"
    response: ClassVar[Response] = Response("mean squared outcome", "predictions", False)

    @property
    def condensed(self) -> MeanPrediction:
        return MeanPrediction()

    def claimed(self, values: Floats) -> Floats:
        return values[:, 0]

    def responses(self, values: Floats, y: Floats) -> Floats:
        return y * y

    def loss(self, values: Floats, y: Floats) -> Floats:
        return (values[:, 0] - y * y) ** 2

    def elementary_scores(self, values: Floats, y: Floats, thresholds: Floats) -> Floats:
        return elementary_scores(values[:, 0], y * y, thresholds)

    def compared(self, y: Floats) -> Floats:
        return y * y
