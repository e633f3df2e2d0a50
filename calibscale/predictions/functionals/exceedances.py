"""Predictions of the probability that a number exceeds a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import scored_rows
from calibscale.errors import require
from calibscale.predictions.claims import EXCEEDANCES
from calibscale.predictions.functionals.functional import Functional, elementary_scores
from calibscale.predictions.target import Response


@dataclass(frozen=True)
class ExceedancePrediction(Functional):
    """Prediction p of the probability that a number exceeds a threshold: P(Y > threshold | p) = p.

    Parameters
    ----------
    threshold : float
        Threshold, in the units of the outcomes.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[0.2, 0.8], forecast="exceedance(threshold=10)", labels=[4.0, 12.5]
    ... )
    >>> round(cs.evaluate(data, "squared_error")["squared_error"].value, 12)
    0.04
    """

    threshold: float = 0.0
    name: ClassVar[str] = "exceedance"
    claim: ClassVar[str] = EXCEEDANCES
    draws_responses: ClassVar[bool] = True
    claims_event: ClassVar[bool] = True
    score: ClassVar[str] = "squared_error"
    response: ClassVar[Response] = Response(
        "share of outcomes above the threshold", "predictions", True
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", float(self.threshold))
        require(bool(np.isfinite(self.threshold)), "threshold must be finite", self.threshold)

    def claimed(self, values: Floats) -> Floats:
        return values[:, 0]

    def responses(self, values: Floats, y: Floats) -> Floats:
        return (y > self.threshold).astype(np.float64)

    def loss(self, values: Floats, y: Floats) -> Floats:
        return self.scalar_residuals(values, y) ** 2

    def elementary_scores(self, values: Floats, y: Floats, thresholds: Floats) -> Floats:
        return elementary_scores(values[:, 0], self.compared(y), thresholds)

    def compared(self, y: Floats) -> Floats:
        return (y > self.threshold).astype(np.float64)

    def check_values(self, values: Floats, status: Ints) -> None:
        status[values[:, 0] > 1.0] = scored_rows.ABOVE_ONE
        status[values[:, 0] < 0.0] = scored_rows.NEGATIVE

    def explained(self, reason: int, values: Floats, y: float) -> str:
        if reason == scored_rows.ABOVE_ONE:
            return f"its probability is {values[0]:g}, above 1"
        return super().explained(reason, values, y)

    def imagined(self, n: int, rng: np.random.Generator) -> tuple[str, Any]:
        return self.name, rng.random((n, 1))
