"""Noise floors: from drawn labels by the estimator itself, else from residuals with random signs.

Labels of dependent rows, and distributions over the classes, cannot be drawn from the predictions.
There the floor comes from `Replicates`: residuals with a random sign for each cluster, or for each
row with soft labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from calibscale.estimators.base import BoundEstimator
from calibscale.inference.testable import sign_scale, signed_values
from calibscale.intervals.resampling import drawn_sums, drawn_values, frozen_by
from calibscale.kernels.pairwise import Pairwise
from calibscale.predictions.rules import Rules
from calibscale.results.cluster_results import Clusters
from calibscale.results.estimate import Estimate, Floor
from calibscale.statistics.null_distributions import ClusterSigns, Null, null_of
from calibscale.statistics.one_pass import States
from calibscale.statistics.statistic import Replicates, Statistic


@runtime_checkable
class HasFloor(Protocol):
    """Estimator with a noise floor: its values if labels were drawn from the predictions.

    `with_floor` asks for it, in evaluations, rankings and nights.
    """

    @property
    def floor_needs(self) -> tuple[Statistic, ...]:
        """Statistics that give the arguments of `floor`, none if these settings have no floor."""
        ...

    def floor(self, *states: Any) -> Floor | None:
        """Noise floor of an estimate with a value."""
        ...


@runtime_checkable
class HasPartialFloor(HasFloor, Protocol):
    """Estimator with a floor from some of the states of `floor_needs`.

    Ledgers keep the states of `needs` only.
    """

    def partial_floor(self, states: States) -> Floor | None:
        """Noise floor from the states that are there, or None if they are not enough."""
        ...


@runtime_checkable
class NoFloor(Protocol):
    """Estimator without a noise floor, for a reason of its own."""

    @property
    def no_floor(self) -> str | None:
        """Reason for having no noise floor of any rows."""
        ...


def no_floor(estimator: BoundEstimator) -> str | None:
    """Reason for having no noise floor of any rows, or None if there may be a floor."""
    if isinstance(estimator, NoFloor):
        return estimator.no_floor
    if estimator.unbiased:
        return "it is unbiased: noise does not raise its mean"
    pairwise = isinstance(estimator, Pairwise)
    return "sums over pairs of rows have no drawn labels" if pairwise else None


def noise_of(rules: Rules) -> Null:
    """Null of the floors of a source read by these rules."""
    if rules.cluster is not None:
        return ClusterSigns()
    return null_of(rules.target.null, 0)


def floor_statistics(estimator: BoundEstimator, null: Null, classes: int) -> tuple[Statistic, ...]:
    """Statistics that `with_floor` needs besides the statistics of the estimate."""
    if null.of_labels:
        needed = estimator.floor_needs if isinstance(estimator, HasFloor) else ()
        return tuple(s for s in needed if s not in estimator.needs)
    return _replicates(estimator, null, classes)


def with_floor(
    estimator: BoundEstimator,
    estimate: Estimate,
    states: States,
    null: Null,
    classes: int,
    clusters: Clusters | None = None,
) -> Estimate:
    """Return the estimate with its floor, or with a note on why these rows have none.

    `states` has the states of the estimator's `needs` and of `floor_statistics`.
    """
    if null.of_labels:
        return with_floor_of_labels(estimator, estimate, states)
    if estimate.value is None or no_floor(estimator) is not None:
        return estimate
    if clusters is not None and clusters.refusal is not None:
        # Beside a large cluster, the sums of few others are not symmetric enough for signs.
        return estimate.with_note(f"no floor: {clusters.refusal}")
    replicates = _replicates(estimator, null, classes)
    if not replicates:
        reason = null.unsupported(estimator) or "no labels or signs can be drawn for this method"
        return estimate.with_note(f"no floor: {reason.split(';')[0]}")
    values = list(_values(estimator, states, replicates, null))
    return replace(estimate, floor=replace(Floor.of(values, estimate.value), null=null.name))


def with_floor_of_labels(estimator: BoundEstimator, estimate: Estimate, states: States) -> Estimate:
    """Return the estimate with its floor for drawn labels, if the states for it are there."""
    if estimate.value is None or not isinstance(estimator, HasFloor):
        return estimate
    needed = estimator.floor_needs
    if needed and all(s in states for s in needed):
        return replace(estimate, floor=estimator.floor(*(states[s] for s in needed)))
    if isinstance(estimator, HasPartialFloor):
        return replace(estimate, floor=estimator.partial_floor(states))
    return estimate


def _replicates(estimator: BoundEstimator, null: Null, classes: int) -> tuple[Replicates, ...]:
    """Replicates of the statistics, or none where there is no floor, or signs cannot be drawn."""
    if no_floor(estimator) is not None or null.unsupported(estimator) is not None:
        return ()
    return drawn_sums(estimator, null, classes)


def _values(
    estimator: BoundEstimator, states: States, replicates: tuple[Replicates, ...], null: Null
) -> Iterable[float]:
    """Value of each replicate."""
    parts = [states[s] for s in estimator.needs]
    by_statistic = {r.statistic: states[r] for r in replicates}
    sums = [by_statistic.get(s) for s in estimator.needs]
    # Settings that follow from the rows, such as λ, are the same for every replicate.
    fixed, count = frozen_by(estimator, *parts), len(replicates[0])
    if not null.signed:
        return drawn_values(fixed, parts, sums, count)
    return signed_values(fixed, parts, sums, count, sign_scale(fixed, parts, sums, count))
