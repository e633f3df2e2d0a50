"""Prediction intervals with a coverage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.errors import require
from calibscale.predictions.claims import INTERVALS
from calibscale.predictions.functionals.functional import Functional
from calibscale.predictions.invalid_rows import REVERSED
from calibscale.predictions.target import KERNEL_ERROR, Response


@dataclass(frozen=True)
class IntervalPrediction(Functional):
    """Prediction interval [low, high] that claims to contain the outcome with a probability.

    Intervals are closed.  An open side is ∓∞.  The residual is 1{low ≤ y ≤ high} − coverage, and
    its mean is positive where intervals are too wide.

    Parameters
    ----------
    coverage : float
        Claimed probability, in (0, 1).

    See Also
    --------
    calibscale.Coverage : Share of the outcomes in the intervals.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[[0.0, 2.0], [1.0, 4.0]], forecast="interval(coverage=0.8)",
    ...     labels=[1.0, 5.0],
    ... )
    >>> cs.evaluate(data, "coverage")["coverage"].value
    0.5
    """

    coverage: float = 0.9
    name: ClassVar[str] = "interval"
    claim: ClassVar[str] = INTERVALS
    columns: ClassVar[int | None] = 2
    has_scalar_points: ClassVar[bool] = False
    draws_responses: ClassVar[bool] = True
    claims_event: ClassVar[bool] = True
    has_constant_claim: ClassVar[bool] = True
    order_name: ClassVar[str] = "interval_width"
    score: ClassVar[str] = "interval_score"
    response: ClassVar[Response] = Response("share of outcomes outside", "widths", True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coverage", float(self.coverage))
        require(0.0 < self.coverage < 1.0, "coverage must be in (0, 1)", self.coverage)

    # ---------------------------------------------------------------- the claim

    def claimed(self, values: Floats) -> Floats:
        return np.full(len(values), 1.0 - self.coverage)

    def responses(self, values: Floats, y: Floats) -> Floats:
        return ((y < values[:, 0]) | (y > values[:, 1])).astype(np.float64)

    def loss(self, values: Floats, y: Floats) -> Floats:
        """Interval score of Winkler: the width, and a penalty for an outcome outside."""
        low, high = values.T
        missed = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
        return high - low + 2.0 / (1.0 - self.coverage) * missed

    def ordered_by(self, values: Floats) -> Floats:
        """Widths (c,), which tell intervals apart that are easy or hard to predict.

        Intervals with an open side are put in order by their end.
        """
        low, high = self.embedded(values, values[:, 0]).T
        return np.where(np.isinf(values).any(axis=1), low, high - low)

    def sizes_of(self, values: Floats) -> Floats:
        """Widths (c,), ∞ with an open side."""
        return values[:, 1] - values[:, 0]

    def embedded(self, values: Floats, y: Floats) -> Floats:
        """Ends (c, 2), where an open side has the end of the other side, or 0."""
        low, high = np.where(np.isinf(values), np.nan, values).T
        ends = np.column_stack([np.where(np.isnan(low), high, low), high])
        ends[:, 1] = np.where(np.isnan(high), low, high)
        return np.nan_to_num(ends)

    # ---------------------------------------------------------------- conformal adjustment

    @property
    def claimed_level(self) -> float:
        return self.coverage

    def distances(self, values: Floats, y: Floats) -> Floats:
        """Distance of each outcome from its interval (c,), below 0 inside."""
        return np.maximum(values[:, 0] - y, y - values[:, 1])

    def widened(self, values: Floats, offsets: Floats) -> Floats:
        """Intervals that reach further by the offsets (c,), or end in their middle."""
        low, high = values[:, 0] - offsets, values[:, 1] + offsets
        with np.errstate(invalid="ignore"):  # of open sides, which never cross
            middle = 0.5 * (values[:, 0] + values[:, 1])
        crossed = low > high
        return np.column_stack([np.where(crossed, middle, low), np.where(crossed, middle, high)])

    # ---------------------------------------------------------------- the interval as a forecast

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels t and 1 − t, between which a central interval has the coverage."""
        return (0.5 - self.coverage / 2.0, 0.5 + self.coverage / 2.0)

    def interval(self, values: Floats, level: float) -> tuple[Floats, Floats]:
        """Ends of the intervals (c,).  An OptionError is raised for another coverage."""
        self.check_level(level, "intervals")
        return values[:, 0], values[:, 1]

    def check_level(self, level: float, noun: str) -> None:
        """Raise an OptionError unless a level is the coverage of the predictions, a plural noun."""
        is_stated = abs(level - self.coverage) < 1e-9  # levels are rounded to twelve digits
        require(is_stated, f"the {noun} have the coverage {self.coverage}", level)

    def covered_part(
        self, values: Floats, y: Floats, level: float, interval: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats]:
        """First covered level and claimed coverage (c,): levels up to the coverage are covered."""
        return np.zeros(len(y)), np.full(len(y), self.coverage)

    def cdf_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        """Function from uniform numbers (c,) to levels, which are the numbers themselves."""
        return lambda u: u

    # ---------------------------------------------------------------- default estimators

    @property
    def default_estimators(self) -> tuple[str, ...]:
        return ("coverage", self.score, self.kernel_error)

    @property
    def sizes(self) -> tuple[str, ...]:
        return ("coverage", KERNEL_ERROR)

    # ---------------------------------------------------------------- rows

    def not_finite(self, values: Floats) -> Any:
        return np.isnan(values).any(axis=1)

    def check_values(self, values: Floats, status: Ints) -> None:
        status[values[:, 0] > values[:, 1]] = REVERSED

    def explained(self, reason: int, values: Floats, y: float) -> str:
        if reason == REVERSED:
            return f"its interval ends at {values[1]:g}, below its start {values[0]:g}"
        return super().explained(reason, values, y)
