"""Evidence of each number of a result about calibration: a p-value, and the size of the error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scipy.special import ndtr, ndtri, stdtr, stdtrit

from calibscale.estimators.known_estimators import ESTIMATORS, SCORES
from calibscale.formatting.naming import name_of
from calibscale.inference.multiple_testing import surprise
from calibscale.results.estimate import THIS_N, Estimate, Interval
from calibscale.results.verdict_results import ErrorSize

if TYPE_CHECKING:
    from calibscale.results.inference_results import TestResult

# Values of a calibrated model of numbers that may lie on either side of them.
_CALIBRATED = {"cox_slope": 1.0, "cox_intercept": 0.0, "bias": 0.0}
# Errors in units of a probability, and the power of the error that the value is, in the order in
# which they are cited: means of absolute errors are understood by more people than roots of means
# of squares, and errors with the interval of a population's value come first.
_POWERS = {
    "confidence_gap": 1,
    "coverage": 1,
    "ece": 1,
    "quantile_ece": 1,
    "tce2_debiased": 2,
    "tce2_kumar": 2,
    "smooth_ece": 1,
    "ici": 1,
    "tce2": 2,
    "atb_debiased": 2,
    "cwce2": 2,
    "corp": 2,
    "mce": 1,
}
_CERTIFIED = ("certified_l1", "certified_l2")
DIRECTED = ("confidence_gap", "coverage")  # errors with a sign, and without a size of their own
CROWDED = 0.8  # share of the rows in one bin, from which a binned error is little but the gap


@dataclass(frozen=True, eq=False)
class Indication:
    """Evidence of one number about calibration.

    Attributes
    ----------
    label : str
        Name of the number, as in the table of the result.
    notion : str
        Notion of calibration that is judged.
    p_value : float
        Probability under calibration of a value at least as extreme.  It is 1 where it is unknown
        and nothing is beyond chance.
    beyond_chance : bool
        Whether the table shows the number beyond chance, without regard to the other numbers: its
        interval excludes the value of a calibrated model, or its p-value is at most α.
    value : float
        The number.
    size : ErrorSize or None
        Its size in units of a probability.
    interval : Interval or None
        Interval of the population's value.
    group : str or None
        Group of rows that it is about, such as ``region = north``, or None for all rows.
    joint : bool
        Whether the p-value is adjusted for all numbers with joint p-values already.
    crowded : float or None
        Share of the rows in the largest bin of equal width, if it holds most of them.
    details : dict
        Details of the estimate.
    least : bool
        Whether the p-value is the smallest one that so many draws can give.
    surprise : float
        −log of the p-value that a gamma distribution fitted to the draws gives.  It tells numbers
        apart that all have the smallest possible p-value by draws.
    seen : float or None
        Size above which the number exceeds its noise floor, in units of a probability.
    """

    label: str
    notion: str
    p_value: float
    beyond_chance: bool
    value: float
    size: ErrorSize | None = None
    interval: Interval | None = None
    group: str | None = None
    joint: bool = False
    crowded: float | None = None
    details: Mapping[str, Any] | None = None
    least: bool = False
    seen: float | None = None
    surprise: float = 0.0

    @property
    def name(self) -> str:
        """Name of the estimator."""
        return name_of(self.label)

    @property
    def directed(self) -> bool:
        """Whether the number has a sign that says in which direction predictions are wrong."""
        return self.name in DIRECTED

    @property
    def rank(self) -> int:
        """Position among the numbers from which a size is taken.  The first is cited.

        Errors in bins that hold most rows come last.
        """
        order = list(_POWERS)
        place = order.index(self.name) if self.name in order else len(order)
        return place if self.crowded is None else place + len(order)


def absolute(indication: Indication) -> float:
    """Absolute size of an error in units of a probability, or 0 if it is unknown."""
    return 0.0 if indication.size is None else abs(indication.size.value)


def evidence_of_estimates(
    estimates: Iterable[Estimate],
    alpha: float,
    joint: Mapping[str, float | None] | None = None,
    group: str | None = None,
) -> list[Indication]:
    """Evidence of the estimates that say something about calibration.

    Parameters
    ----------
    alpha : float
        Level of tests.
    joint : {label: p-value}, optional
        p-values of tests, adjusted for each other.
    group : str, optional
        Group of rows of the estimates.
    """
    indications = []
    for estimate in estimates:
        tested = None if joint is None else joint.get(estimate.estimator)
        indication = _of_estimate(estimate, alpha, tested)
        if indication is not None:
            indications.append(replace(indication, group=group))
    return indications


def evidence_of_tests(
    tests: Sequence[TestResult], alpha: float, joint: Sequence[float | None]
) -> list[Indication]:
    """Evidence of tests.

    Parameters
    ----------
    alpha : float
        Level of tests.
    joint : sequence of float or None
        p-values of the tests, adjusted for each other.  Tests that share no draws have None.
    """
    indications = []
    for test, adjusted in zip(tests, joint, strict=True):
        if test.value is None or test.p_value is None:
            continue
        p_value = test.p_value if adjusted is None else adjusted
        value, null, details = test.value, 0.0, test.details
        if name_of(test.statistic) == "coverage":  # the tested value is the distance
            details = test.parameters
            value, null = float(details["coverage"]), float(details["expected"])
        indications.append(
            Indication(
                test.statistic,
                test.notion,
                p_value,
                p_value <= alpha,
                value,
                _size(name_of(test.statistic), value, null, None, None),
                joint=adjusted is not None,
                details=details,
                least=_least(test),
                surprise=surprise(test.value, test.values_of_null),
            )
        )
    return indications


def _least(test: TestResult) -> bool:
    """Whether the p-value is the smallest one that so many draws can give."""
    return len(test.null_values) > 0 and test.exceedances == 0


def _of_estimate(estimate: Estimate, alpha: float, tested: float | None) -> Indication | None:
    name, value = name_of(estimate.estimator), estimate.value
    if value is None or not math.isfinite(value) or name in SCORES:
        return None
    null = _calibrated_value(name, estimate)
    interval = estimate.interval
    if interval is not None and not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        interval = None
    # The expectation at this n is above 0 for a calibrated model.  Its interval is an upper limit
    # alone.
    at_this_n = interval if interval is not None and interval.covers == THIS_N else None
    if null is None or at_this_n is not None:
        interval = None
    p_value = tested if tested is not None else _p_value(estimate, interval, null)
    if p_value is None or math.isnan(p_value):
        return None
    excluded = interval is not None and null is not None and _excludes(interval, null)
    noise = None if estimate.floor is None else estimate.floor.mean
    size = _size(name, value, null or 0.0, interval, noise)
    if size is not None and at_this_n is not None and null is not None:
        size = replace(size, high=_in_units(name, at_this_n.high))
    seen = None
    if estimate.floor is not None and name in _POWERS:
        seen = _in_units(name, estimate.floor.high)
    return Indication(
        estimate.estimator,
        estimate.notion,
        p_value,
        excluded or p_value <= alpha,
        value,
        size,
        interval,
        joint=tested is not None,
        crowded=crowded_share(estimate),
        details=estimate.details,
        seen=seen,
    )


def _calibrated_value(name: str, estimate: Estimate) -> float | None:
    """Value of a calibrated model, or None if it is unknown."""
    if name == "coverage":
        expected = estimate.details.get("expected")
        return None if expected is None else float(expected)
    if name == "spiegelhalter" or name not in ESTIMATORS.built_in:
        # z scores have a normal null, not an interval.  A user's number need not be an error.
        return None
    return _CALIBRATED.get(name, 0.0)


def _p_value(estimate: Estimate, interval: Interval | None, null: float | None) -> float | None:
    """p-value by the noise floor, the estimator, or the interval, or None if there is none."""
    value, name = estimate.value, name_of(estimate.estimator)
    assert value is not None
    if name in _CERTIFIED:  # a lower confidence bound of the error
        return 1.0 - float(estimate.parameters["level"]) if value > 0 else 1.0
    # Floors of random signs have too few draws for a p-value.
    if estimate.floor is not None and estimate.floor.null is None:
        return estimate.floor.p_value
    of_details = estimate.details.get("p_value")
    if isinstance(of_details, float):
        return of_details
    if interval is None or null is None:
        return None
    # Errors have one side, so that a value below 0 is no evidence.
    if value <= null and name not in DIRECTED and name not in _CALIBRATED:
        return 1.0  # a debiased error below 0
    return interval_p_value(value, interval, null)


def interval_p_value(value: float, interval: Interval, null: float = 0.0) -> float:
    """p-value of a null value, two-sided, from the interval on its side of the estimate.

    The half of the interval towards the null value is treated as half of an interval of a normal
    distribution, or of Student's t for the jackknife, so that the p-value is at most 1 − level
    where the interval excludes the null value.  It is 1 where the interval includes the null value
    at its end, as limits of errors that are at least 0 do.

    Examples
    --------
    >>> from calibscale.results.estimate import POPULATION, Interval
    >>> interval = Interval(0.0, 3.92, 0.95, "binned", 0, 1.0, POPULATION)
    >>> round(interval_p_value(1.96, interval, -0.001), 3), interval_p_value(1.96, interval)
    (0.05, 1.0)
    """
    end = interval.low if value > null else interval.high
    if not _excludes(interval, null) and null in (value, end):
        return 1.0
    half = abs(value - end)
    if half == 0.0:
        return 0.0 if _excludes(interval, null) else 1.0
    # The half interval is the quantile at `upper` times the standard error.
    steps = abs(value - null) / half
    upper = 0.5 + interval.level / 2
    freedom = interval.parts - 1 if interval.method == "jackknife" else 0
    if freedom > 0:
        return min(1.0, float(2.0 * stdtr(freedom, -steps * stdtrit(freedom, upper))))
    return min(1.0, float(2.0 * ndtr(-steps * ndtri(upper))))


def _excludes(interval: Interval, null: float) -> bool:
    return interval.low > null or interval.high < null


def _size(
    name: str, value: float, null: float, interval: Interval | None, noise: float | None
) -> ErrorSize | None:
    """Size in units of a probability, without an interval less the noise of a calibrated model."""
    if name not in _POWERS:
        return None
    error = value - null
    if interval is None:
        if noise is not None:
            error = max(error - noise, 0.0)
        return ErrorSize(name, _in_units(name, error))
    # Intervals are transformed end by end, as the root is increasing.
    ends = (_in_units(name, end - null) for end in (interval.low, interval.high))
    return ErrorSize(name, _in_units(name, error), *ends)


def _in_units(name: str, error: float) -> float:
    """An error in units of a probability: the root of a squared error, else the error."""
    return math.sqrt(max(error, 0.0)) if _POWERS[name] == 2 else error


# ---------------------------------------------------------------- bins that hold most rows


def crowded_share(estimate: Estimate) -> float | None:
    """Share of the rows in the largest bin, if bins of equal width leave most rows in one."""
    bins = estimate.details.get("bins")
    equal_width = estimate.parameters.get("edges") == "equal-width"
    if not isinstance(bins, Sequence) or len(bins) < 2 or not equal_width:
        return None
    # Bins of equal mass cannot be crowded.
    weights = [float(row["weight"]) for row in bins]
    total = sum(weights)
    share = max(weights) / total if total > 0 else 0.0
    return share if share > CROWDED else None


def largest_crowded(estimates: Iterable[Estimate]) -> tuple[str, float] | None:
    """Label of the first estimate with a bin that holds most rows, and their share."""
    shares = ((estimate.estimator, crowded_share(estimate)) for estimate in estimates)
    return next(((label, share) for label, share in shares if share is not None), None)
