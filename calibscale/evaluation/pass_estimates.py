"""Estimates from the states of one pass, with their intervals, floors and groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from calibscale.engine.memory import Room
from calibscale.engine.threads import mapped
from calibscale.estimators.base import BoundEstimator
from calibscale.evaluation.reliability_curves import drawn
from calibscale.inference.floors import floor_statistics, noise_of, with_floor
from calibscale.intervals.interval_estimates import (
    estimate_of,
    has_limits,
    interval_statistics,
    row_moments,
    with_interval,
)
from calibscale.intervals.resampling import Jackknife, Resampling, merged, requested
from calibscale.kernels.pairwise import Pairwise
from calibscale.results.cluster_results import Clusters
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import Evaluation
from calibscale.session import Run, Session, versions
from calibscale.statistics.label_table import LabelTable, label_warnings
from calibscale.statistics.null_distributions import Null
from calibscale.statistics.one_pass import PassResult, States
from calibscale.statistics.score_sums import Fingerprint, FingerprintState
from calibscale.statistics.statistic import Statistic

if TYPE_CHECKING:
    from calibscale.kernels.pair_sums import Pairs


@runtime_checkable
class Noted(Protocol):
    """Estimator with notes on its rows, from statistics that the value does not need.

    Evaluations ask for it.
    """

    @property
    def counted(self) -> tuple[Statistic, ...]:
        """Statistics that give the arguments of `noted`."""
        ...

    def noted(self, estimate: Estimate, *states: Any) -> Estimate:
        """Estimate with notes on its rows."""
        ...


def session_intervals(
    session: Session, interval: Resampling | str | bool | None, floor: bool
) -> tuple[Resampling | None, Null | None]:
    """Request of intervals, and null of floors, as clusters and labels allow, each or None."""
    clustered = session.rules.cluster is not None
    request = requested(interval)
    if clustered:
        request = replace(request or Jackknife(), clustered=True)
    elif request is not None:
        request = replace(request, draws_responses=session.rules.target.draws_responses)
    return request, noise_of(session.rules) if floor else None


_FINGERPRINT = Fingerprint()
_LABELS = LabelTable()


def needed_statistics(run: Run, interval: Resampling | None, noise: Null | None) -> list[Statistic]:
    """Statistics of the pass of a run."""
    needed: list[Statistic] = []
    if any(isinstance(estimator, Pairwise) for estimator in run.fitting):
        needed.append(_FINGERPRINT)
    needed += run.cluster_sums
    if run.source.target.has_single_labels:
        needed.append(_LABELS)
    for estimator in run.fitting:
        needed += statistics_of(estimator, run.source.n_features, interval, noise)
    return needed


def statistics_of(
    estimator: BoundEstimator, classes: int, interval: Resampling | None, noise: Null | None
) -> tuple[Statistic, ...]:
    """Statistics of an estimator, its interval and its floor."""
    # The states of groups of rows sum to the state of all rows, which needs no statistic then.
    moments = row_moments(estimator, interval) if interval else None
    grouped: tuple[Statistic, ...] = ()
    if moments is not None:
        grouped = (*estimator.needs, moments)
    elif interval:
        grouped = interval_statistics(estimator, interval, classes)
    floors = () if noise is None else floor_statistics(estimator, noise, classes)
    counted = estimator.counted if isinstance(estimator, Noted) else ()
    return (*(grouped or estimator.needs), *counted, *floors)


def fitting_in_memory(
    run: Run,
    interval: Resampling | None,
    noise: Null | None,
    on_unsupported: str,
    room: Room | None = None,
) -> Run:
    """Run without the estimators that memory cannot hold, see `Run.within_memory`."""
    classes = run.source.n_features
    return run.within_memory(
        lambda e: statistics_of(e, classes, interval, noise), on_unsupported, room
    )


def evaluation_of(
    run: Run,
    names: Iterable[str],
    result: PassResult,
    interval: Resampling | None,
    started: float,
    checkpoint: str | Path | None = None,
    noise: Null | None = None,
) -> Evaluation:
    """Evaluation from the result of the pass of a run, with a name for each of its estimators."""
    classes = run.source.n_features
    pairwise = any(isinstance(e, Pairwise) for e in run.fitting)
    estimates, clusters = {}, run.clusters(result)
    for key, states in result.groups.items():
        pairs = None
        if pairwise:
            group = None if key is None else (run.source.covariate(run.group_by or ""), float(key))
            # A checkpoint belongs to the same rows, labels and weights only.
            identity = _identity(run, states[_FINGERPRINT])
            pairs = run.pairs(checkpoint=checkpoint, identity=identity, group=group)
        solve = partial(
            _estimate,
            states=states,
            pairs=pairs,
            interval=interval,
            classes=classes,
            noise=noise,
            clusters=clusters,
        )
        # Sums over pairs use the threads themselves.
        threads = 1 if pairwise else run.execution.threads
        values = mapped(solve, run.chosen, threads)
        estimates[key] = tuple(
            run.judged(replace(value, estimator=name))
            for value, name in zip(values, names, strict=True)
        )
    overall = estimates.pop(None)
    outcome = run.outcome(result.counts, started)
    table = result.groups[None].get(_LABELS)
    names = outcome["source"].get("class_names")
    warnings: tuple[str, ...] = ()
    if table is not None:
        warnings = label_warnings(table.counts, outcome["n_unlabelled"], names)
    # Bands of diagrams assume independent rows, with labels as the predictions would draw them.
    with_bands = run.rules.target.draws_responses and not run.cluster_sums
    return Evaluation(
        estimates=overall,
        reliability=drawn(overall) if with_bands else None,
        group_by=run.group_by,
        groups={key: values for key, values in estimates.items() if key is not None},
        clusters=clusters,
        warnings=warnings,
        **outcome,
    )


def _estimate(
    estimator: BoundEstimator | Estimate,
    states: States,
    pairs: Pairs | None,
    interval: Resampling | None,
    classes: int,
    noise: Null | None,
    clusters: Clusters | None,
) -> Estimate:
    """Estimate with its notes, and with its floor and interval if requested."""
    if isinstance(estimator, Estimate):  # an unsupported estimator, with the reason
        return estimator
    ungrouped = interval is None or (
        has_limits(estimator, interval) or row_moments(estimator, interval) is not None
    )
    grouped = () if interval is None or ungrouped else interval.needs(estimator)
    estimate = estimate_of(estimator, states, grouped, pairs)
    if isinstance(estimator, Noted):
        estimate = estimator.noted(estimate, *(states[s] for s in estimator.counted))
    if noise is not None:
        sums = merged(states, grouped)
        estimate = with_floor(estimator, estimate, sums, noise, classes, clusters)
    if interval is None:
        return estimate
    return with_interval(estimator, estimate, interval, states, classes, pairs)


def _identity(run: Run, fingerprint: FingerprintState) -> dict[str, Any]:
    """Identity of the data, by which a checkpoint recognises them."""
    return {
        "version": versions()["calibscale"],
        "source": {key: value for key, value in run.source.describe().items() if key != "name"},
        "rows": [int(fingerprint.n), f"{int(fingerprint.hashes[0]):016x}"],
        "rules": [run.rules.tolerance, run.rules.on_invalid],
        "covariates": [
            [c.name, *(f"{value:.10g}" for value in (c.mean, c.deviation, c.low, c.high))]
            for c in run.columns.values()
        ],
    }
