"""Predictions of a quantile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import require
from calibscale.predictions.claims import QUANTILES
from calibscale.predictions.functionals.functional import Functional, elementary_scores
from calibscale.predictions.target import Response


@dataclass(frozen=True)
class QuantilePrediction(Functional):
    """Prediction x of a quantile of a number: P(Y ≤ x | x) = level.

    The residual is 1{y ≤ x} − level.  Outcomes that take few values, such as counts, have
    predictions with P(Y ≤ x) above the level by up to the probability of x itself.

    Parameters
    ----------
    level : float
        Level of the quantile, in (0, 1).

    See Also
    --------
    calibscale.QuantileForecast : Quantiles at several levels as a distribution.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[3.0] * 4, forecast="quantile(level=0.9)", labels=[1.0, 2.0, 3.0, 5.0]
    ... )
    >>> round(cs.evaluate(data, "bias")["bias"].value, 12)
    -0.15
    """

    level: float = 0.5
    name: ClassVar[str] = "quantile"
    claim: ClassVar[str] = QUANTILES
    draws_responses: ClassVar[bool] = True
    claims_event: ClassVar[bool] = True
    has_constant_claim: ClassVar[bool] = True
    order_name: ClassVar[str] = "predicted_quantile"
    score: ClassVar[str] = "pinball_loss"
    response: ClassVar[Response] = Response("share of outcomes above", "predictions", True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", float(self.level))  # plain, as settings become JSON
        require(0.0 < self.level < 1.0, "level must be in (0, 1)", self.level)

    @property
    def levels(self) -> tuple[float, ...]:
        return (self.level,)

    def quantile(self, values: Floats, level: float) -> Floats:
        """Predicted quantile (c,).  An OptionError is raised for another level."""
        require(level == self.level, f"the predictions are quantiles of level {self.level}", level)
        return values[:, 0]

    @property
    def claimed_level(self) -> float:
        return self.level

    def distances(self, values: Floats, y: Floats) -> Floats:
        """How far each outcome is above its quantile (c,)."""
        return y - values[:, 0]

    def widened(self, values: Floats, offsets: Floats) -> Floats:
        """Quantiles that are higher by the offsets (c,)."""
        return values + offsets[:, None]

    def claimed(self, values: Floats) -> Floats:
        return np.full(len(values), 1.0 - self.level)

    def responses(self, values: Floats, y: Floats) -> Floats:
        return (y > values[:, 0]).astype(np.float64)

    def loss(self, values: Floats, y: Floats) -> Floats:
        x = values[:, 0]
        return (y - x) * (self.level - (y < x))

    def elementary_scores(self, values: Floats, y: Floats, thresholds: Floats) -> Floats:
        return elementary_scores(
            values[:, 0],
            y,
            thresholds,
            too_high=1.0 - self.level,
            too_low=self.level,
            by_distance=False,
        )


@dataclass(frozen=True)
class MedianPrediction(QuantilePrediction):
    """Prediction x of the median of a number, the quantile of level 0.5.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[3.0] * 4, forecast="median", labels=[1, 2, 3, 5])
    >>> cs.evaluate(data, "bias")["bias"].value
    0.25
    """

    name: ClassVar[str] = "median"
