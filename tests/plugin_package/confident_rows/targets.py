"""Predictions of the geometric mean of a positive number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibscale.predictions.claims import MEANS
from calibscale.predictions.functionals.functional import Functional
from calibscale.predictions.target import Response


@dataclass(frozen=True)
class GeometricMean(Functional):
    """The claim E[log Y | x] = log x of a prediction x."""

    name: ClassVar[str] = "geometric_mean"
    claim: ClassVar[str] = MEANS
    score: ClassVar[str] = "squared_error"
    response: ClassVar[Response] = Response("mean log outcome", "predictions", False)

    def claimed(self, values: Any) -> Any:
        return np.log(values[:, 0])

    def responses(self, values: Any, y: Any) -> Any:
        return np.log(y)

    def loss(self, values: Any, y: Any) -> Any:
        return self.scalar_residuals(values, y) ** 2
