"""`audit` with tests, groups, bias curves, the bias map, recalibration, and another model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Unpack

from calibscale.auditing.bias_curves import curves
from calibscale.auditing.bias_regions import local_map, regions
from calibscale.auditing.group_tests import GroupSums, tested_groups
from calibscale.auditing.local_bias import local_settings
from calibscale.auditing.range_scan import ScanSums, scanned_ranges
from calibscale.auditing.segment_tests import Segments, tested_segments
from calibscale.auditing.tests_and_scores import against as compare
from calibscale.auditing.tests_and_scores import (
    frozen,
    local_estimators,
    local_tests,
    methods_named,
    recalibrations,
)
from calibscale.data.covariates import Axis
from calibscale.data.derived_sources import HoldOut, part_of, predicted
from calibscale.data.source import ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.errors import OptionError, require
from calibscale.estimators.base import set_names
from calibscale.estimators.skce import SKCE
from calibscale.predictions.blocks import RowCounts
from calibscale.results.audit_results import Audit, Group, Scores, Segment
from calibscale.session import Session, SessionOptions, verb
from calibscale.statistics.segments import axes_of

_MAX_REGIONS = 8  # listed regions of the bias map


@dataclass(frozen=True)
class Recalibration:
    """Methods of recalibration, and the share of the rows that they are evaluated on.

    Parameters
    ----------
    methods : str or sequence of str
        ``temperature`` and ``ensemble_temperature``, for three classes or more ``vector``,
        ``matrix``, ``dirichlet``, ``structured``, ``one_vs_rest`` and ``top_label_histogram``, for
        two classes ``platt``, ``beta``, ``spline``, ``isotonic``, ``venn_abers``, ``histogram``,
        ``bbq``, ``local_bias``, ``mc`` and ``pmc``, or ``all`` that suit the number of classes.
        Settings follow a name, such as ``mc(depth=1, alpha=0.02)``.
    hold_out : float
        Share of the rows on which recalibration is evaluated.  The methods are fitted to the other
        rows.

    Examples
    --------
    >>> from calibscale import Recalibration
    >>> Recalibration(("platt", "isotonic"), hold_out=0.3).hold_out
    0.3
    """

    methods: str | Sequence[str] = ()
    hold_out: float = 0.5

    def __post_init__(self) -> None:
        set_names(self, "methods")
        require(0 < self.hold_out < 1, "hold_out must be in (0, 1)", self.hold_out)


@verb
def audit(
    source: Any,
    covariates: str | Sequence[str] | SKCE | Segments,
    *,
    n_replicates: int = 999,
    seed: int = 0,
    confidence_level: float = 0.95,
    bins: int = 5,
    min_rows: int = 30,
    recalibrate: str | Sequence[str] | Recalibration = (),
    against: Any = None,
    **options: Unpack[SessionOptions],
) -> Audit:
    """Audit a model: test whether it is calibrated on covariates, and find where it is not.

    * Tests with labels drawn from the predictions: KLCE on all covariates together [VF, eq. 4],
      KCE and the default statistics of `calibration_test` without covariates, adjusted for each
      other, and KLCE on each covariate alone, adjusted by Holm.
    * Groups: every level of covariates with few values, quantile bins of the others, and their
      pairwise crossings, with the mean of y − p, simultaneous intervals, and p-values from the same
      drawn labels, adjusted by Westfall–Young.
    * Ranges: intervals of several widths of the prediction and of each covariate with ordered
      values, with one p-value adjusted for all of them.  The ranges with the most evidence are
      listed.
    * Map of local bias [VF, eq. 7]: its most biased regions, and curves along each covariate.
    * Recalibration fitted to a part of the rows, with tests before and after on the other rows.
      The null of the tests after it accounts for the noise of the fit by ``temperature``,
      ``platt`` and ``isotonic`` (`calibscale.recalibration.refits.refits_of`).
    * Comparison with another model on the same rows, by paired differences.

    Quantiles, intervals, sets and probabilities of exceedance are audited by the event that they
    claim, see `forecast_events`, and ``predicted_quantile``, ``interval_width`` or ``set_size`` is
    a further covariate.
    Means and expectiles do not say how outcomes vary, and are refused.

    A session with clusters, ``session.by_cluster(column)``, has tests and intervals of groups by
    random signs of clusters (the null ``wild_cluster``), but neither recalibration nor a
    comparison.  If a cluster is too large for random signs, there are no p-values, see
    `calibration_test`.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    covariates : sequence of str, KLCE or Segments
        Names of covariates, or a `KLCE` with its covariates and the settings of the tests and the
        map (curves have smaller bandwidths).  Its notion is ``positive``, the default for two
        classes, or ``top_label``.  Rows that chose the bandwidths are excluded from the tests,
        recalibration and `against`.  With `Segments`, intersections of columns are judged as well.
    n_replicates, seed : int
        Number of replicates of the null, and seed of the null and of the held-out rows.
    confidence_level : float
        Confidence level of the simultaneous intervals.  Tests use alpha = 1 − confidence_level.
    bins : int
        Number of quantile bins of a covariate with more than ten values.
    min_rows : int
        Minimum effective rows, (Σw)²/Σw², of a group, a region or a point of a curve.
    recalibrate : str, sequence of str or Recalibration
        Methods of recalibration.  Half of the rows are held out from their fits.
    against : path, URL, LogitStore or ArraySource, optional
        Predictions of another model for the same rows.  Labels, weights and covariates are taken
        from `source`.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if a setting does not suit the data, or if a source cannot be
        read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale import audit
    >>> rng = np.random.default_rng(0)
    >>> group, p = rng.integers(0, 2, 1000), rng.uniform(0.2, 0.8, 1000)
    >>> source = calibscale.from_arrays(
    ...     probabilities=p, labels=(rng.random(1000) < p + 0.2 * group).astype(int), binary=True,
    ...     covariates=group[:, None], covariate_names=["group"],
    ... )
    >>> result = audit(source, ["group"], n_replicates=99)
    >>> result.verdict, result.groups[0].name, result.groups[0].direction
    ('locally miscalibrated on group (p ≤ 0.01)', 'group = 1', 'too low')
    """
    started = time.perf_counter()
    chosen = recalibrate if isinstance(recalibrate, Recalibration) else Recalibration(recalibrate)
    requested = Segments.on(covariates)
    with Session.open(source, **options) as opened:
        session = opened.of_events()
        data = session.source
        _check_events(data)
        local = replace(local_settings(requested.local, data), seed=seed)
        names, notion = local.covariates, str(local.notion)
        _check(names, confidence_level, bins, min_rows)
        for name in names:
            data.covariate(name)  # raises for an unknown name before anything is read
        estimators = local_estimators(local)
        methods, unsuitable = methods_named(chosen.methods, data, local)
        unsuitable += _clustered(session, methods, against, local.bandwidth_share)
        if against is not None:  # an unsuitable model is an error before the tests take minutes
            if opened.source.target.claims_event:
                raise OptionError(
                    f"each model of {opened.source.target.in_words} claims an event of its own: "
                    "compare models by their scores with rank"
                )
            against = as_source(against)
            predicted(against, data)
        tests, tested = local_tests(session, estimators, n_replicates, seed)
        frozen_estimators = frozen(estimators, tests)

        # Groups and ranges share one pass over the rows.
        axes = axes_of(session.profile, names, notion, local.categorical, bins)
        statistic = GroupSums(tuple(axis for axis in axes if len(axis) > 1), notion)
        scan = ScanSums.of(session, names, notion, local.categorical)
        states = session.scan([statistic, *scan.needs], covariates=names).groups[None]
        grouped = tested_groups(
            session,
            names,
            statistic,
            n_replicates,
            seed,
            min_rows,
            confidence_level,
            states[statistic],
        )
        ranges = scanned_ranges(
            session, names, scan, states, n_replicates, seed, min_rows, confidence_level
        )
        segments = None
        if judged := requested.estimator(local, bins, min_rows):
            segments = tested_segments(session, judged, n_replicates, seed, confidence_level)
        notes = [*_notes(axes, notion, data.classes), *unsuitable, *grouped.notes, *ranges.notes]
        overall, groups = grouped.overall, grouped.listed
        # Next to a cluster with too many rows, random signs of clusters do not keep the level.
        if tested.clusters is not None and tested.clusters.refusal is not None:
            notes.append(f"groups, ranges and segments have no p-values: {tested.clusters.refusal}")
            overall = overall and _untested(overall)
            groups = tuple(map(_untested, groups))
            if segments is not None:
                listed = tuple(map(_untested, segments.listed))
                segments = replace(segments, p_value=None, listed=listed)
            ranges = replace(ranges, p_value=None, listed=tuple(map(_untested, ranges.listed)))
        bias_curves, histograms, missing = curves(session, notion, axes, tested.n, min_rows)
        bias_map, unmapped = local_map(session, frozen_estimators[0], min_rows)
        notes += [*missing, *unmapped]
        unused = session
        if local.bandwidth_share is not None:
            # Rows that chose the bandwidths have seen the labels and would judge too well.
            unused = session.on(part_of(data, HoldOut(local.bandwidth_share, seed), held=False))
        recalibration: tuple[Scores, ...] = ()
        if methods:
            recalibration = recalibrations(
                unused, methods, frozen_estimators[0], chosen.hold_out, n_replicates, seed
            )
        comparison = None
        if against is not None:
            comparison = compare(
                unused, against, frozen_estimators, tests, n_replicates, seed, confidence_level
            )
    counts = RowCounts(tested.n, tested.n_unlabelled, tested.dropped)
    if tested.impossible is not None:
        impossible = tested.impossible
        counts = counts._replace(
            impossible=impossible.count,
            first_impossible=impossible.first_row,
            decimals=impossible.decimals or 0,
        )
    return Audit(
        covariates=names,
        categorical=local.categorical,
        notion=notion,
        level=confidence_level,
        tests=tests,
        overall=overall,
        groups=groups,
        dispersion=grouped.dispersion,
        regions=() if bias_map is None else regions(bias_map, _MAX_REGIONS),
        curves=bias_curves,
        histograms=histograms,
        recalibration=recalibration,
        against=comparison,
        bias_map=bias_map,
        notes=tuple(notes),
        clusters=tested.clusters,
        segments=segments,
        ranges=ranges,
        **session.outcome(
            counts,
            started,
            null=tests.joint.null,
            adjusted="westfall-young",  # p-values of groups
            flips=grouped.flips,
            replicates=n_replicates,
            seed=seed,
            choose=local.bandwidth_share,
            bins=bins,
            min_rows=min_rows,
            recalibrate=[method.name for method in methods],
            hold_out=chosen.hold_out if methods else None,
        ),
    )


def _check_events(source: ArraySource) -> None:
    """Raise an OptionError for functionals without events, whose outcomes cannot be drawn."""
    target = source.target
    if target.response is not None and not target.draws_responses:
        raise OptionError(
            f"an audit draws outcomes, and {target.in_words} do not say how outcomes vary; use "
            "calibration_test with covariates, local_bias, and evaluate with group_by"
        )


def _check(names: tuple[str, ...], confidence_level: float, bins: int, min_rows: int) -> None:
    require(names, "an audit needs covariates")
    require(0 < confidence_level < 1, "confidence_level must be in (0, 1)", confidence_level)
    require(bins >= 2, "bins must be at least 2", bins)
    require(min_rows >= 2, "min_rows must be at least 2", min_rows)


def _clustered(session: Session, *parts_of_rows: Any) -> list[str]:
    """Note on clusters.

    An OptionError is raised if parts of the rows or paired rows are requested.
    """
    if session.rules.cluster is None:
        return []
    if any(part not in (None, ()) for part in parts_of_rows):
        raise OptionError(
            "with clusters there is no recalibrate, against or bandwidth_share: they hold out, or "
            "pair, rows that are independent of the others"
        )
    return ["curves and the map have standard errors of independent rows, not of clusters"]


_Tested = TypeVar("_Tested", Group, Segment)


def _untested(group: _Tested) -> _Tested:
    """Group or segment without p-values."""
    return replace(group, p_value=None, adjusted=None)


def _notes(axes: tuple[Axis, ...], notion: str, classes: int) -> list[str]:
    """Notes on constant covariates, and on the notion."""
    notes = []
    for axis in axes:
        if len(axis) < 2:
            # Quantile bins may coincide although a few values differ.
            constant = "nearly constant" if axis.levels is None else "constant"
            notes.append(f"{axis.name} is {constant}: it defines no groups")
    if notion == "top_label":
        reason = f"{classes} classes" if classes > 2 else "notion top_label"
        notes.append(f"{reason}: the audit is of the confidence in the predicted class (top_label)")
    return notes
