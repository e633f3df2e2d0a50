"""What each number of a result says about calibration: a p-value, and the size of the error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy.special import ndtr, ndtri, stdtr, stdtrit

from calibscale.estimators import ESTIMATORS
from calibscale.formatting import name_of
from calibscale.results import THIS_N, Estimate, Interval
from calibscale.results.inference_results import TestResult
from calibscale.results.verdict_results import ErrorSize
from calibscale.statistics.bins import MASS

# Scores and shares, which a calibrated model need not have at any particular value.
SCORES = ("accuracy", "brier", "nll", "crps", "log_score", "pinball_loss", "aurc")
# Values of a calibrated model, where they are not 0.
_CALIBRATED = {"cox_slope": 1.0}
# Errors in units of a probability, and the power of the error that the value is, in the order in
# which they are cited: means of absolute errors are understood by more people than roots of means
# of squares, and errors with the interval of a population's value come first.
_POWERS = {
    "confidence_gap": 1, "coverage": 1, "ece": 1, "quantile_ece": 1, "tce2_debiased": 2,
    "tce2_kumar": 2, "smooth_ece": 1, "ici": 1, "tce2": 2, "atb_debiased": 2, "cwce2": 2,
    "corp": 2,
}  # fmt: skip
DIRECTED = ("confidence_gap", "coverage")  # errors with a sign, and without a size of their own
_CROWDED = 0.8  # share of the rows in one bin, from which a binned error is little but the gap


@dataclass(frozen=True, eq=False)
class Indication:
    """What one number says about calibration.

    Attributes
    ----------
    label : str
        Name of the number, as in the table of the result.
    notion : str
        What is judged.
    p_value : float
        Probability under calibration of a value at least as extreme; 1 where it is unknown and
        nothing is beyond chance.
    beyond_chance : bool
        Whether the table shows the number beyond chance, without regard to the other numbers: its
        interval excludes the value of a calibrated model, it exceeds its noise floor, or its
        p-value is at most α.
    value : float
        The number.
    size : ErrorSize or None
        Its size in units of a probability.
    interval : Interval or None
        Interval of the population's value.
    group : str or None
        Group of rows that it is about, such as ``region = north``; None: all rows.
    joint : bool
        Whether the p-value is adjusted for all numbers with joint p-values already.
    crowded : float or None
        Share of the rows in the largest bin of equal width, if it holds most of them.
    details : dict
        Details of the estimate.
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
        """Position among the numbers from which a size is taken; the first is cited.

        Errors in bins that hold most rows come last.
        """
        order = list(_POWERS)
        place = order.index(self.name) if self.name in order else len(order)
        return place if self.crowded is None else place + len(order)


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
    known = []
    for estimate in estimates:
        tested = None if joint is None else joint.get(estimate.estimator)
        one = _of_estimate(estimate, alpha, tested)
        if one is not None:
            known.append(replace(one, group=group))
    return known


def evidence_of_tests(tests: Iterable[TestResult], alpha: float) -> list[Indication]:
    """Evidence of tests that are not adjusted for each other."""
    return [
        Indication(
            test.statistic, test.notion, test.p_value, test.p_value <= alpha, test.value,
            _size(name_of(test.statistic), test.value, 0.0, None, None),
        )
        for test in tests
        if test.value is not None and test.p_value is not None
    ]  # fmt: skip


def _of_estimate(estimate: Estimate, alpha: float, tested: float | None) -> Indication | None:
    name, value = name_of(estimate.estimator), estimate.value
    if value is None or not math.isfinite(value) or name in SCORES:
        return None
    null = _calibrated_value(name, estimate)
    interval = estimate.interval
    if null is None or (interval is not None and interval.covers == THIS_N):
        interval = None  # of an expectation that is above 0 for a calibrated model
    p_value = tested if tested is not None else _p_value(estimate, interval, null)
    if p_value is None:
        return None
    excluded = interval is not None and null is not None and _excludes(interval, null)
    above_floor = estimate.floor is not None and value > estimate.floor.high
    noise = None if estimate.floor is None else estimate.floor.mean
    return Indication(
        estimate.estimator,
        estimate.notion,
        p_value,
        excluded or above_floor or p_value <= alpha,
        value,
        _size(name, value, null or 0.0, interval, noise),
        interval,
        joint=tested is not None,
        crowded=_crowded(estimate),
        details=estimate.details,
    )


def _calibrated_value(name: str, estimate: Estimate) -> float | None:
    """Value of a calibrated model; None if it is unknown."""
    if name == "coverage":
        expected = estimate.details.get("expected")
        return None if expected is None else float(expected)
    if name == "spiegelhalter" or name not in ESTIMATORS:
        # z scores have a normal null, not an interval; a user's number need not be an error
        return None
    return _CALIBRATED.get(name, 0.0)


def _p_value(estimate: Estimate, interval: Interval | None, null: float | None) -> float | None:
    """p-value by the noise floor, the estimator, or the interval; None if there is none."""
    if estimate.floor is not None:
        return estimate.floor.p_value
    own = estimate.details.get("p_value")
    if isinstance(own, float):
        return own
    if interval is None or null is None:
        return None
    assert estimate.value is not None
    return interval_p_value(estimate.value, interval, null)


def interval_p_value(value: float, interval: Interval, null: float = 0.0) -> float:
    """p-value of a null value, two-sided, from the interval on its side of the estimate.

    The half of the interval towards the null value is taken for that of a normal distribution, or
    of Student's t for the jackknife, so that the p-value is at most 1 − level where the interval
    excludes the null value.  It is 1 where the interval includes the null value at its end, as
    limits of errors that are at least 0 do.

    Examples
    --------
    >>> from calibscale.results import POPULATION, Interval
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
    """Size in units of a probability; without an interval, less the noise of a calibrated model."""
    if name not in _POWERS:
        return None
    low, high = (None, None) if interval is None else (interval.low - null, interval.high - null)
    error = value - null
    if _POWERS[name] == 1:
        return ErrorSize(name, error, low, high)
    if interval is None and noise is not None:
        error -= noise
    low, high = (None if end is None else math.sqrt(max(end, 0.0)) for end in (low, high))
    return ErrorSize(name, math.sqrt(max(error, 0.0)), low, high)


# ---------------------------------------------------------------- bins that hold most rows


def _crowded(estimate: Estimate) -> float | None:
    """Share of the rows in the largest bin, if bins of equal width leave most rows in one."""
    bins = estimate.details.get("bins")
    edges = estimate.parameters.get("edges")
    if not isinstance(bins, Sequence) or len(bins) < 2 or edges in MASS:
        return None
    if name_of(estimate.estimator) == "quantile_ece":  # bins are levels, with all rows in each
        return None
    weights = [float(one["weight"]) for one in bins]
    total = sum(weights)
    share = max(weights) / total if total > 0 else 0.0
    return share if share > _CROWDED else None


def largest_crowded(estimates: Iterable[Estimate]) -> tuple[str, float] | None:
    """Label of the first estimate with a bin that holds most rows, and their share."""
    shares = ((estimate.estimator, _crowded(estimate)) for estimate in estimates)
    return next(((label, share) for label, share in shares if share is not None), None)
