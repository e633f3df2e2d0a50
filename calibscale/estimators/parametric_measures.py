"""Cox's slope and intercept, and Spiegelhalter's z, of a scalar prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from calibscale.array_types import Floats
from calibscale.estimators.base import BoundEstimator, ScalarEstimator, bound_notion, without_rows
from calibscale.estimators.score_measures import ScoreMeasure
from calibscale.intervals.proportions import Limits
from calibscale.results.estimate import Estimate
from calibscale.statistics.score_histogram import OccupiedCells, SpreadSums
from calibscale.statistics.statistic import Statistic

_COEFFICIENTS = ("intercept", "slope")
_NEAREST = 2.0**-53  # distance from 0 and 1 at which logits are cut
# Newton's method: iterations, largest step of a coefficient, and largest condition number.
_ITERATIONS, _LONGEST, _SINGULAR = 100, 4.0, 1e13


@dataclass(frozen=True)
class Spiegelhalter(ScalarEstimator):
    """Spiegelhalter's z = Σw(event − p)(1 − 2p)/√(Σw²(1 − 2p)²p(1 − p)) (1986).

    Standard normal for a calibrated model and many rows: the deviation of the Brier score from its
    expectation.  Above 0 the score is worse than expected, as of overconfident predictions.  Errors
    that cancel are missed.  `details` has the two-sided `p_value` of the normal distribution.  A
    test is of |z|, and its p-value is exact with drawn labels.  Parameters: see `ConfidenceGap`.

    See Also
    --------
    SpreadScore : The same deviation by cells, as a test statistic.
    Brier : Mean squared error of the probabilities.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["spiegelhalter"])["spiegelhalter"].value, 4)
    6.0878
    """

    notion: str | None = None
    name: ClassVar[str] = "spiegelhalter"
    testable: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    by_default: ClassVar[bool] = False
    smaller_is_better: ClassVar[bool] = False
    signed: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (SpreadSums(bound_notion(self)),)

    def finalize(self, *states: Any) -> Estimate:
        n, difference, variance = (float(total) for total in states[0])
        if not n:
            return without_rows(self)
        if not variance > 0.0:
            # The variance Σw²(1 − 2p)²p(1 − p) is 0.
            reason = "all predictions are 0, 0.5 or 1, whose Brier score does not vary"
            return Estimate(self.name, bound_notion(self), None, reason=reason)
        z = difference / math.sqrt(variance)
        details = {"p_value": 2.0 * float(ndtr(-abs(z)))}
        return Estimate(self.name, bound_notion(self), z, details=details, n=int(n))

    @property
    def as_error(self) -> BoundEstimator:
        return _AbsoluteZ(self.notion)


class _AbsoluteZ(Spiegelhalter):
    """Absolute value of Spiegelhalter's z, by which it is tested."""

    signed: ClassVar[bool] = False

    def finalize(self, *states: Any) -> Estimate:
        estimate = super().finalize(*states)
        if estimate.value is None:
            return estimate
        return replace(estimate, value=abs(estimate.value), parameters={"z": estimate.value})

    @property
    def as_error(self) -> BoundEstimator:
        return self


@dataclass(frozen=True)
class _CoxMeasure(ScoreMeasure):
    """A coefficient of the logistic recalibration logit P(event) = a + b·logit p."""

    unbiased: ClassVar[bool] = True
    smaller_is_better: ClassVar[bool] = False
    coefficient: ClassVar[int]  # position in `_COEFFICIENTS`

    def _estimate(self, cells: OccupiedCells, *extra_states: Any) -> Estimate:
        p = np.clip(cells.score, _NEAREST, 1.0 - _NEAREST)
        x = np.column_stack([np.ones_like(p), logit(p)])
        coefficients = _logistic(x, cells.weight, cells.events)
        offset = _logistic(x[:, :1], cells.weight, cells.events, x[:, 1])
        if offset is None:
            return self._undefined("all events have the same outcome")
        if coefficients is None:
            equal = np.ptp(p) == 0.0
            return self._undefined(
                "all predictions are equal" if equal else "the score separates the outcomes"
            )
        # Sandwich estimate of the covariance: weights are no numbers of rows, so that the variance
        # of the score (`meat`) has their squares.
        mu = expit(x @ coefficients)
        spread = mu * (1.0 - mu)
        inverse = np.linalg.inv((x.T * (cells.weight * spread)) @ x)
        meat = (x.T * (cells.weight**2 / cells.effective * spread)) @ x
        errors = np.sqrt(np.diag(inverse @ meat @ inverse))
        # First-order effect of moving logits within their cells.
        moved = cells.width / (p * (1.0 - p))
        residuals = cells.events * (1.0 - mu) + (cells.weight - cells.events) * mu
        slopes = cells.weight * spread * abs(coefficients[1])
        change = np.array([moved @ slopes, moved @ (residuals + slopes * np.abs(x[:, 1]))])
        position, companion = self.coefficient, 1 - self.coefficient
        details = {
            _COEFFICIENTS[companion]: float(coefficients[companion]),
            "standard_error": float(errors[position]),
            f"{_COEFFICIENTS[companion]}_standard_error": float(errors[companion]),
            "calibration_in_the_large": float(offset[0]),
        }
        error = float(np.abs(inverse[position]) @ change)
        return self._result(float(coefficients[position]), error, **details)

    def limits(self, confidence_level: float, *states: Any) -> Limits | None:
        estimate = self.finalize(*states)
        if estimate.value is None:
            return None
        deviate = float(ndtri(0.5 + confidence_level / 2))
        reach = deviate * estimate.details["standard_error"] + (estimate.approximation.error or 0.0)
        return Limits(estimate.value - reach, estimate.value + reach, "wald")

    def _undefined(self, reason: str) -> Estimate:
        return Estimate(self.name, bound_notion(self), None, reason=reason)


@dataclass(frozen=True)
class CoxSlope(_CoxMeasure):
    """Slope b of the logistic recalibration logit P(event) = a + b·logit p (Cox 1958).

    The slope is 1 for a calibrated model.  Below 1 predictions are too extreme, above 1 too
    moderate.  `details` has the intercept a, the standard errors of both, and
    `calibration_in_the_large`, the intercept with slope 1.  Predictions of 0 and 1 count as 2⁻⁵³
    from them.  Intervals are b ± z·standard error (Wald's).

    See Also
    --------
    CoxIntercept : The intercept of the same recalibration.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["cox_slope"])["cox_slope"].value, 4) + 0.0
    0.0
    """

    name: ClassVar[str] = "cox_slope"
    coefficient: ClassVar[int] = 1


@dataclass(frozen=True)
class CoxIntercept(_CoxMeasure):
    """Intercept a of the logistic recalibration logit P(event) = a + b·logit p (Cox 1958).

    0 for a calibrated model.  With a slope b near 1, predictions are too high below 0 and too low
    above 0.  `details` has the slope b, the standard errors of both, and
    `calibration_in_the_large`, the intercept with slope 1.  Predictions of 0 and 1 count as 2⁻⁵³
    from them.  Intervals are a ± z·standard error (Wald's).

    See Also
    --------
    CoxSlope : The slope of the same recalibration.

    Examples
    --------
    >>> import calibscale as cs
    >>> p, y = [0.25] * 40 + [0.75] * 40, [1] * 4 + [0] * 36 + [1] * 20 + [0] * 20
    >>> data = cs.from_arrays(probabilities=p, labels=y, binary=True)
    >>> round(cs.evaluate(data, ["cox_intercept"])["cox_intercept"].value, 4)
    -1.0986
    """

    name: ClassVar[str] = "cox_intercept"
    coefficient: ClassVar[int] = 0


def _logistic(
    x: Floats, weight: Floats, events: Floats, offset: Floats | float = 0.0
) -> Floats | None:
    """Coefficients of a logistic regression on x (c, m), by Newton's method, None if undefined."""
    beta = np.zeros(x.shape[1])
    if not 0.0 < events.sum() < weight.sum():
        return None
    for _ in range(_ITERATIONS):
        mu = expit(x @ beta + offset)
        gradient = x.T @ (events - weight * mu)
        hessian = (x.T * (weight * mu * (1.0 - mu))) @ x
        if not np.isfinite(hessian).all() or np.linalg.cond(hessian) > _SINGULAR:
            return None
        step = np.linalg.solve(hessian, gradient)
        # Steps are cut because the likelihood is flat far from its maximum.
        step *= min(1.0, _LONGEST / float(np.abs(step).max(initial=_LONGEST)))
        beta = beta + step
        if np.abs(step).max() <= 1e-12 * (1.0 + np.abs(beta).max()):
            return beta
    return None
