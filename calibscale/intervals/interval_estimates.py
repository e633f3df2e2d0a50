"""Confidence intervals of estimates: from limits, from squared norms, or from parts of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from scipy.special import ndtri

from calibscale.intervals.parts_of_rows import Parts, parts_of
from calibscale.intervals.proportions import Limits
from calibscale.intervals.resampling import (
    Estimated,
    HasSquaredNorm,
    Jackknife,
    Resampling,
    drawn_sums,
    drawn_values,
    events_of,
    frozen_by,
    norm_of,
    parted_of,
    total,
)
from calibscale.kernels.pairwise import Pairwise
from calibscale.results.estimate import BOTH, POPULATION, THIS_N, Estimate, Interval
from calibscale.statistics.one_pass import States
from calibscale.statistics.statistic import Statistic

if TYPE_CHECKING:
    from calibscale.kernels.pair_sums import Pairs


@runtime_checkable
class HasLimits(Protocol):
    """Estimator with confidence limits from the states of all rows, if rows are independent."""

    def limits(self, confidence_level: float, *states: Any) -> Limits | None:
        """Confidence limits, or None where they are undefined.

        The limits of a biased estimator are the lower limit of the population's value and the upper
        limit of the expectation at this n.
        """
        ...


@runtime_checkable
class HasRowLimits(Protocol):
    """Mean over rows with confidence limits from the moments of the rows, if they are independent.

    Evaluations ask for it.  The value does not need the moments.
    """

    @property
    def moments(self) -> Statistic | None:
        """Statistic of the moments, or None if the estimator has other limits."""
        ...

    def row_limits(self, confidence_level: float, state: Any) -> Limits | None:
        """Confidence limits from the state of `moments`, or None where they are undefined."""
        ...


@runtime_checkable
class HasLowLimit(Protocol):
    """Biased estimator with a lower limit of the population's value from groups of rows.

    Without it the interval by jackknife or bootstrap is for the expectation at this n.
    """

    def low_of_groups(
        self, confidence_level: float, states: Sequence[Any], counted: bool
    ) -> float | None:
        """Lower limit from the stacked states of groups of rows.

        `counted` states whether labels are events, which can be counted.
        """
        ...


@runtime_checkable
class NoInterval(Protocol):
    """Estimator without an interval, for a reason of its own."""

    @property
    def no_interval(self) -> str | None:
        """Reason for having no interval."""
        ...


@runtime_checkable
class NoResampling(Protocol):
    """Estimator without an interval by jackknife or bootstrap, where `limits` do not apply."""

    @property
    def no_resampling(self) -> str | None:
        """Reason for having no such interval."""
        ...


@runtime_checkable
class HasBins(Protocol):
    """Estimator from the bins of a reliability diagram.

    Diagrams have its bins, and intervals are named after them.
    """

    @property
    def bin_settings(self) -> tuple[int, str | Sequence[float]]:
        """Settings `bins` and `edges`."""
        ...


def estimate_of(
    estimator: Estimated,
    states: States,
    grouped: Iterable[Statistic] = (),
    pairs: Pairs | None = None,
) -> Estimate:
    """Estimate from sums over pairs, or from states of all rows or of the groups of rows."""
    if isinstance(estimator, Pairwise):
        assert pairs is not None
        return estimator.solve(pairs)
    merged = [total(states[s]) for s in grouped] or [states[s] for s in estimator.needs]
    return estimator.finalize(*merged)


def interval_statistics(
    estimator: Estimated, request: Resampling, classes: int
) -> tuple[Statistic, ...]:
    """Statistics that an interval needs, none if the estimator's own are enough."""
    parted = parted_of(estimator)
    grouped = request.needs(parted)
    if not grouped or has_limits(estimator, request):
        return ()
    if parted is not estimator:  # the value does not follow from the parts
        return (*estimator.needs, *grouped, *request.sizes)
    by_norm = isinstance(estimator, HasSquaredNorm) and not request.clustered
    events = (events_of(estimator),) if by_norm else ()
    return (*grouped, *drawn_sums(estimator, request.null, classes), *request.sizes, *events)


def row_moments(estimator: Estimated, request: Resampling) -> Statistic | None:
    """Statistic of the moments of the rows that give the interval, or None.

    A bootstrap is computed as requested, and clusters need groups of rows.
    """
    if not isinstance(estimator, HasRowLimits) or not isinstance(request, Jackknife):
        return None
    if request.clustered or has_limits(estimator, request):
        return None
    return estimator.moments


def has_limits(estimator: Estimated, request: Resampling | None = None) -> bool:
    """Whether the estimator has limits of its own, for independent rows, or no interval at all."""
    defined = isinstance(estimator, HasLimits)
    return (defined and _independent(request)) or no_interval(estimator, request) is not None


def no_interval(estimator: object, request: Resampling | None = None) -> str | None:
    """Reason why an estimator, or a class of estimators, has no interval, or None if it may."""
    reason = estimator.no_interval if isinstance(estimator, NoInterval) else None
    if reason is not None or _independent(request):
        return reason
    return estimator.no_resampling if isinstance(estimator, NoResampling) else None


def _independent(request: Resampling | None) -> bool:
    """Whether rows are independent, with labels of one class."""
    return request is None or (request.draws_responses and not request.clustered)


def with_interval(
    estimator: Estimated,
    estimate: Estimate,
    request: Resampling,
    states: States,
    classes: int,
    pairs: Pairs | None = None,
    parts: Callable[[], Parts | None] | None = None,
) -> Estimate:
    """Return the estimate with its interval, or with a note on why there is none.

    The estimator's `limits` give the interval if they are defined, else the limits from the moments
    of the rows if `states` has them, else the limits of a squared norm, else the jackknife or
    bootstrap of `parts` (default: `parts_of`), which is called only then.  `states` contains the
    states of `interval_statistics`, or if there are none the states of the estimator's `needs`.
    """
    if estimate.value is None:
        return estimate
    if (reason := no_interval(estimator, request)) is not None:
        return estimate.with_note(f"no interval: {reason}")
    limits = _limits(estimator, request, states, classes)
    interval = None
    if limits is None and not _has_own_limits(estimator, request, states):
        values = parts() if parts else parts_of(estimator, request, states, pairs, estimate.value)
        if request.clustered:
            if values is None or not np.isfinite(values.value):
                note = "without correction for clusters, by this method or with so few clusters"
                return estimate.with_note(note)
            estimate = replace(estimate, value=values.value)
        if values is not None and values.form is not None:
            limits = values.form.limits(estimator, request.confidence_level)
        elif values is not None:
            interval = _interval_of_parts(estimator, estimate, request, states, values, classes)
    if limits is not None:
        interval = _interval_of_limits(estimator, request, limits)
    value = float(estimate)
    if interval is not None:
        # Limits of few rows may exclude the estimate, and are widened to include it.
        end = max(value, 0.0) if estimate.squared else value
        interval = replace(interval, low=min(interval.low, end), high=max(interval.high, end))
    result = replace(estimate, interval=interval)
    if limits is not None and limits.note:
        result = result.with_note(limits.note)
    if interval is not None and estimate.squared and value < 0.0 <= interval.low:
        return result.with_note("negative by chance; the interval is of a square, which is not")
    return result


def _has_own_limits(estimator: Estimated, request: Resampling, states: States) -> bool:
    """Whether limits of the estimator give the interval, even if they are undefined."""
    return has_limits(estimator, request) or row_moments(estimator, request) in states


def _limits(
    estimator: Estimated, request: Resampling, states: States, classes: int
) -> Limits | None:
    """Limits from the states alone, without values of parts of the rows."""
    if has_limits(estimator, request):
        groups = dict(zip(estimator.needs, request.needs(estimator), strict=False))
        merged = (states[s] if s in states else total(states[groups[s]]) for s in estimator.needs)
        assert isinstance(estimator, HasLimits)  # as there is no reason against an interval
        return estimator.limits(request.confidence_level, *merged)
    moments = row_moments(estimator, request)
    if moments is not None and moments in states:
        assert isinstance(estimator, HasRowLimits)
        return estimator.row_limits(request.confidence_level, states[moments])
    if request.clustered:
        return None
    form = norm_of(estimator, request, states, classes)
    return None if form is None else form.limits(estimator, request.confidence_level)


def _interval_of_limits(estimator: Estimated, request: Resampling, limits: Limits) -> Interval:
    """Interval with given limits, without parts."""
    level = request.confidence_level
    # The standard error that a normal interval of this length would have.
    error = (limits.high - limits.low) / (2.0 * float(ndtri(0.5 + level / 2)))
    return Interval(
        limits.low,
        limits.high,
        level,
        method=limits.method,
        parts=0,
        standard_error=error,
        covers=POPULATION if estimator.unbiased or limits.of_population else BOTH,
    )


def _interval_of_parts(
    estimator: Estimated,
    estimate: Estimate,
    request: Resampling,
    states: States,
    parts: Parts,
    classes: int,
) -> Interval | None:
    """Interval by jackknife or bootstrap."""
    covers = POPULATION if estimator.unbiased else THIS_N
    error = max(_calibrated_error(estimator, request, states, classes), parts.least_error)
    interval = replace(parts, least_error=error).interval(request, covers)
    if interval is None:
        return None
    parted = parted_of(estimator)
    grouped = request.needs(parted)
    if grouped and not estimator.unbiased and all(s in states for s in grouped):
        parts_of_sums = [states[s] for s in grouped]
        low = None
        if isinstance(parted, HasLowLimit):
            counted = request.draws_responses
            low = parted.low_of_groups(request.confidence_level, parts_of_sums, counted)
        if low is not None:
            # The expectation of a biased error is above the population's value, so that an upper
            # limit of the expectation covers both.
            interval = replace(interval, low=low, covers=BOTH)
            if isinstance(estimator, HasBins):
                interval = replace(interval, method="binned", parts=0)
    if not estimate.squared:
        return interval
    return replace(interval, low=max(interval.low, 0.0), high=max(interval.high, 0.0))


def _calibrated_error(
    estimator: Estimated, request: Resampling, states: States, classes: int
) -> float:
    """Standard deviation of the estimate over drawn labels, or 0 if none were drawn."""
    grouped = request.needs(estimator)
    replicates = drawn_sums(estimator, request.null, classes)
    if not (grouped and replicates and all(r in states for r in replicates)):
        return 0.0
    totals = [total(states[g]) for g in grouped]
    by_statistic = {r.statistic: states[r] for r in replicates}
    sums = [by_statistic.get(s) for s in estimator.needs]
    values = drawn_values(frozen_by(estimator, *totals), totals, sums, len(replicates[0]))
    return float(np.std(np.fromiter(values, float), ddof=1))
