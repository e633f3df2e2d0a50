"""Bias and scores of predictions of functionals: means, quantiles, expectiles and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import xlogy

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, SimpleEstimator, bound_notion, without_rows
from calibscale.estimators.forecast_scores import RowScore
from calibscale.intervals.mean_limits import mean_error, skewed_limits, student_half
from calibscale.intervals.proportions import Limits, share_limits
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import EXCEEDANCES, EXPECTILES, FUNCTIONALS, INTERVALS, MEANS
from calibscale.predictions.target import Response
from calibscale.results.estimate import Estimate
from calibscale.statistics.response_sums import ResponseState, ResponseSums
from calibscale.statistics.row_moments import RowMoments, RowMomentState
from calibscale.statistics.statistic import Statistic


@dataclass(frozen=True)
class Bias(SimpleEstimator):
    """Mean residual of predictions of a functional, positive where predictions are too high.

    The residual of a mean is x − y, of a quantile 1{y ≤ x} − level, of an expectile
    2·|1{y ≤ x} − level|·(x − y), and of an interval 1{low ≤ y ≤ high} − coverage.  A calibrated
    model has a bias of about 0.  Values have the units of the outcomes, or of a probability.

    `details` has the mean of the claims as `predicted`, the mean of the responses as `observed`,
    and for positive predictions their `ratio` observed/predicted, which insurers call A/E or O/E.
    Shares have confidence intervals of Clopper and Pearson with (Σw)²/Σw² rows, exceedances have
    Student's, and means and expectiles have limits for skewed residuals, see
    `calibscale.intervals.mean_limits.skewed_limits`.

    See Also
    --------
    MeanScore : Test of the mean residual.
    KCE : Kernel error, which sees errors that cancel on average.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[1.0, 2.0, 3.0], forecast="mean", labels=[1.5, 2.0, 4.0])
    >>> bias = cs.evaluate(data, "bias")["bias"]
    >>> bias.value, bias.details["ratio"]
    (-0.5, 1.25)
    """

    is_share: bool = False  # whether responses are events with one claimed probability
    response: Response | None = None
    name: ClassVar[str] = "bias"
    judges: ClassVar[tuple[str, ...]] = FUNCTIONALS
    testable: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    signed: ClassVar[bool] = True
    smaller_is_better: ClassVar[bool] = False
    fixed: ClassVar[tuple[str, ...]] = ("is_share", "response")
    bound_fields: ClassVar[tuple[str, ...]] = ("is_share", "response")
    notion = "prediction"

    def __post_init__(self) -> None:
        object.__setattr__(self, "response", Response.restored(self.response))

    def bind(self, profile: DataProfile) -> BoundEstimator:
        target = profile.source.target
        is_share = target.draws_responses and target.claim != EXCEEDANCES
        return replace(self, is_share=is_share, response=target.response)

    def with_parts(self, **parts: Any) -> BoundEstimator:
        return replace(self, **parts)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (ResponseSums(),)

    def finalize(self, *states: Any) -> Estimate:
        state: ResponseState = states[0]
        if not state.weight > 0:
            return without_rows(self)
        predicted = float(state.claimed / state.weight)
        observed = float(state.responses / state.weight)
        details: dict[str, Any] = {"predicted": predicted, "observed": observed}
        if self.response is not None:
            details |= self.response.described
        if predicted > 0 and not self.is_share:
            details["ratio"] = observed / predicted
        return Estimate(
            self.name, bound_notion(self), predicted - observed, n=int(state.n), details=details
        )

    def limits(self, confidence_level: float, *states: Any) -> Limits | None:
        state: ResponseState = states[0]
        if self.is_share:
            share = share_limits(state, state.responses, confidence_level)
            predicted = float(state.claimed / state.weight)
            return Limits(predicted - share.high, predicted - share.low, share.method)
        rows = float(state.weight**2 / state.weight2)
        if rows < 2.0:
            return None
        bias = float((state.claimed - state.responses) / state.weight)
        error = mean_error(bias, state.weight, state.weight2, state.residuals2, state.squares)
        half = student_half(float(error), rows, confidence_level)
        return Limits(bias - half, bias + half, "student")

    @property
    def moments(self) -> Statistic | None:
        return None if self.is_share else RowMoments(_Residuals())

    def row_limits(self, confidence_level: float, state: RowMomentState) -> Limits | None:
        return skewed_limits(state, confidence_level)

    @property
    def as_error(self) -> BoundEstimator:
        return _BiasSize(self.is_share, self.response)


@dataclass(frozen=True)
class _Residuals:
    """Residuals of rows, the scores with the mean that is the bias."""

    def rows(self, target: Any, values: Floats, y: Floats) -> Sequence[Any]:
        return [target.scalar_residuals(values, y)]


class _BiasSize(Bias):
    """Size of the bias, by which it is tested."""

    smaller_is_better: ClassVar[bool] = True

    def finalize(self, *states: Any) -> Estimate:
        estimate = super().finalize(*states)
        if estimate.value is None:
            return estimate
        return replace(estimate, value=abs(estimate.value))

    @property
    def as_error(self) -> BoundEstimator:
        return self


# ---------------------------------------------------------------- scores


class _MeanLoss(RowScore):
    """Base class of the mean of a consistent score of a functional."""

    notion = "prediction"

    def rows(self, forecast: Any, values: Floats, y: Floats) -> Sequence[Any]:
        return [forecast.loss(values, y)]

    @property
    def moments(self) -> Statistic:
        return RowMoments(self)

    def row_limits(self, confidence_level: float, state: RowMomentState) -> Limits | None:
        return skewed_limits(state, confidence_level)


@dataclass(frozen=True)
class SquaredError(_MeanLoss):
    """Mean squared difference of claim and response, such as (x − y)² for means.

    A consistent score of means in squared units of the outcomes.  For probabilities of exceedances
    it is the Brier score.

    See Also
    --------
    Deviance : Scores of positive means of the Tweedie family.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[1.0, 2.0], forecast="mean", labels=[1.5, 4.0])
    >>> cs.evaluate(data, "squared_error")["squared_error"].value
    2.125
    """

    name: ClassVar[str] = "squared_error"
    judges: ClassVar[tuple[str, ...]] = (MEANS, EXCEEDANCES)


@dataclass(frozen=True)
class Deviance(_MeanLoss):
    """Mean unit deviance of the Tweedie family, a consistent score of positive means.

    With the power p = 0 it is the squared error, with 1 the Poisson deviance 2(y log(y/x) − y + x),
    with 2 the gamma deviance 2(log(x/y) + y/x − 1), and else
    2(y^(2−p)/((1−p)(2−p)) − y·x^(1−p)/(1−p) + x^(2−p)/(2−p)) [Jørgensen, JRSS B 49 (1987)].
    Predictions must be positive, and outcomes at least 0, or positive for p ≥ 2.

    Parameters
    ----------
    power : float
        Power of the mean in the variance of the family, 0 or at least 1.

    See Also
    --------
    SquaredError : Score of means of any sign.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[1.0, 2.0], forecast="mean", labels=[0.0, 2.0])
    >>> cs.evaluate(data, "deviance(power=1)")["deviance"].value
    1.0
    """

    power: float = 1.0
    name: ClassVar[str] = "deviance"
    judges: ClassVar[tuple[str, ...]] = (MEANS,)
    by_default: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.power == 0 or self.power >= 1, "power must be 0 or at least 1", self.power)

    def rows(self, forecast: Any, values: Floats, y: Floats) -> Sequence[Any]:
        x, r, p = forecast.claimed(values), forecast.responses(values, y), float(self.power)
        if p == 0:
            return [(x - r) ** 2]
        least = "positive" if p >= 2 else "at least 0"
        if not (x > 0).all():
            raise OptionError("deviance needs positive predictions; use squared_error")
        if not ((r > 0) if p >= 2 else (r >= 0)).all():
            raise OptionError(f"deviance(power={p:g}) needs outcomes {least}")
        if p == 1:
            return [2.0 * (xlogy(r, r / x) - r + x)]
        if p == 2:
            return [2.0 * (np.log(x / r) + r / x - 1.0)]
        of_outcomes = r ** (2.0 - p) / ((1.0 - p) * (2.0 - p))
        of_both = r * x ** (1.0 - p) / (1.0 - p)
        return [2.0 * (of_outcomes - of_both + x ** (2.0 - p) / (2.0 - p))]


@dataclass(frozen=True)
class ExpectileLoss(_MeanLoss):
    """Asymmetric squared error |1{y ≤ x} − level|·(x − y)², a consistent score of expectiles.

    See Also
    --------
    SquaredError : Score of means.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[1.0, 2.0], forecast="expectile(level=0.75)", labels=[2.0, 0.0]
    ... )
    >>> cs.evaluate(data, "expectile_loss")["expectile_loss"].value
    0.875
    """

    name: ClassVar[str] = "expectile_loss"
    judges: ClassVar[tuple[str, ...]] = (EXPECTILES,)


@dataclass(frozen=True)
class IntervalScore(_MeanLoss):
    """Interval score: the width, and 2/(1 − coverage) times the distance of outcomes outside.

    A consistent score of central intervals in the units of the outcomes [Winkler, JASA 67 (1972);
    Gneiting & Raftery 2007, eq. 43].  It is infinite where a side is open.

    See Also
    --------
    Coverage : Share of the outcomes in the intervals.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[[0.0, 2.0], [1.0, 4.0]], forecast="interval(coverage=0.8)",
    ...     labels=[1.0, 5.0],
    ... )
    >>> round(cs.evaluate(data, "interval_score")["interval_score"].value, 12)
    7.5
    """

    name: ClassVar[str] = "interval_score"
    judges: ClassVar[tuple[str, ...]] = (INTERVALS,)
