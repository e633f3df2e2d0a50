"""Noise floors: from drawn labels by the estimator itself, else from residuals with random signs.

Labels of dependent rows, and distributions over the classes, cannot be drawn from the predictions.
There the floor comes from `Replicates`: residuals with a random sign for each cluster, or for each
row with soft labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from calibscale.estimators.base import BoundEstimator
from calibscale.inference.nulls import ClusterSigns, Null, null_of
from calibscale.inference.resampling import drawn_sums
from calibscale.predictions.rules import Rules
from calibscale.results.cluster_results import Clusters
from calibscale.results.estimate import Estimate, Floor
from calibscale.statistics.one_pass import States
from calibscale.statistics.statistic import Replicates, Statistic


def noise_of(rules: Rules) -> Null:
    """Null of the floors of a source read by these rules."""
    if rules.cluster is not None:
        return ClusterSigns()
    return null_of(rules.target.null, 0)


def floor_statistics(estimator: BoundEstimator, null: Null, classes: int) -> tuple[Statistic, ...]:
    """Statistics that `with_floor` needs besides the statistics of the estimate."""
    if null.of_labels:
        return estimator.floor_statistics
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
        return estimator.with_floor(estimate, states)
    if estimate.value is None or estimator.no_floor is not None:
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


def _replicates(estimator: BoundEstimator, null: Null, classes: int) -> tuple[Replicates, ...]:
    """Replicates of the statistics, or none where there is no floor, or signs cannot be drawn."""
    if estimator.no_floor is not None or null.unsupported(estimator) is not None:
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
    fixed, count = estimator.frozen(*parts), len(replicates[0])
    if not null.signed:
        return fixed.drawn_values(parts, sums, count)
    return fixed.signed_values(parts, sums, count, fixed.sign_scale(parts, sums, count))
