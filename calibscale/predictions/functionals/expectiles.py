"""Predictions of an expectile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import require
from calibscale.predictions.claims import EXPECTILES
from calibscale.predictions.functionals.functional import Functional, elementary_scores
from calibscale.predictions.target import Response


@dataclass(frozen=True)
class ExpectilePrediction(Functional):
    """Prediction x of an expectile of a number: E[|1{Y ≤ x} − level|·(x − Y) | x] = 0.

    The expectile of level 0.5 is the mean.  The residual is 2·|1{y ≤ x} − level|·(x − y) [Newey &
    Powell, Econometrica 55 (1987)].

    Parameters
    ----------
    level : float
        Level of the expectile, in (0, 1).

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[3.0] * 2, forecast="expectile(level=0.75)", labels=[1.0, 5.0]
    ... )
    >>> cs.evaluate(data, "bias")["bias"].value
    -1.0
    """

    level: float = 0.5
    name: ClassVar[str] = "expectile"
    claim: ClassVar[str] = EXPECTILES
    has_linear_kernel: ClassVar[bool] = True
    score: ClassVar[str] = "expectile_loss"
    response: ClassVar[Response] = Response("weighted mean outcome", "predictions", False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", float(self.level))  # plain, as settings become JSON
        require(0.0 < self.level < 1.0, "level must be in (0, 1)", self.level)

    def _factors(self, values: Floats, y: Floats) -> Floats:
        """Twice the weight of each outcome (c,): 1 for the mean."""
        return 2.0 * np.abs((y <= values[:, 0]) - self.level)

    def claimed(self, values: Floats) -> Floats:
        return values[:, 0]

    def responses(self, values: Floats, y: Floats) -> Floats:
        # The outcome is moved so that its distance from the prediction has the weight of its side.
        x = values[:, 0]
        return x - self._factors(values, y) * (x - y)

    def loss(self, values: Floats, y: Floats) -> Floats:
        return 0.5 * self._factors(values, y) * (values[:, 0] - y) ** 2

    def elementary_scores(self, values: Floats, y: Floats, thresholds: Floats) -> Floats:
        # Twice the weight of each side, so that the level 0.5 has the scores of the mean.
        too_high, too_low = 2.0 * (1.0 - self.level), 2.0 * self.level
        return elementary_scores(values[:, 0], y, thresholds, too_high=too_high, too_low=too_low)
