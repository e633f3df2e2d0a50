"""Predictions of the mean of a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibscale.predictions.outcomes import OutcomeTarget
from calibscale.predictions.target import KERNEL_ERROR


@dataclass(frozen=True)
class PointMean(OutcomeTarget):
    """The claim E[Y − x | x] = 0 of a prediction x, which is no distribution of Y."""

    name: ClassVar[str] = "point_mean"
    claim: ClassVar[str] = "means"
    columns: ClassVar[int | None] = 1
    draws_responses: ClassVar[bool] = False
    kernel_error: ClassVar[str] = "kce"

    @property
    def n_features(self) -> int:
        return 1

    def of_outcomes(self, y: Any) -> Any:
        return y[:, None]

    def embedded(self, values: Any, y: Any) -> Any:
        return values

    def residual_variance(self, q: Any) -> Any:
        return np.zeros(len(q))  # a mean does not say how outcomes vary

    def scalar_residuals(self, values: Any, y: Any) -> Any:
        return values[:, 0] - y

    def drawn_residuals(self, rows: Any, draws: Any, first: int, last: int) -> Iterator[Any]:
        raise TypeError("a mean is no distribution from which outcomes can be drawn")

    @property
    def default_tests(self) -> tuple[str, ...]:
        return (KERNEL_ERROR,)

    @property
    def sizes(self) -> tuple[str, ...]:
        return (KERNEL_ERROR,)
