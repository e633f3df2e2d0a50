"""Evaluation of many estimators in one pass, and reliability diagrams."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np

from calibscale import engine
from calibscale.data import SCALAR_NOTIONS, default_notion
from calibscale.data.groups import Grouping, grouped, listed_groups
from calibscale.data.levels import Level
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.estimators import labels
from calibscale.estimators.base import CLASSES, BoundEstimator, Estimator
from calibscale.estimators.binned import ECE, TCE2Debiased
from calibscale.estimators.forecast_scores import QuantileECE
from calibscale.evaluation.crowded_bins import with_equal_mass
from calibscale.formatting import name_of
from calibscale.inference.evidence import crowded_share
from calibscale.inference.floors import floor_statistics, noise_of, with_floor
from calibscale.inference.intervals import (
    estimate_of,
    has_limits,
    interval_statistics,
    with_interval,
)
from calibscale.inference.nulls import Null
from calibscale.inference.resampling import Jackknife, Resampling, merged, requested
from calibscale.inference.verdict import check_negligible, judgement_of_evaluation
from calibscale.kernel_sums.pair_sums import Pairs
from calibscale.limits import check_level, consistency_interval, wilson_interval
from calibscale.results import Estimate, Outcome, SourceRows
from calibscale.results.evaluation_results import (
    Clusters,
    Diagram,
    Evaluation,
    Range,
    Reliability,
    ReliabilityBin,
    ReliabilityCurve,
)
from calibscale.results.verdict_results import NEGLIGIBLE
from calibscale.session import (
    Run,
    Session,
    SessionOptions,
    default_estimators,
    listed,
    verb,
    versions,
)
from calibscale.statistics import PassResult, States, Statistic
from calibscale.statistics.bins import MASS, BinState, BinTable
from calibscale.statistics.label_table import LabelTable, label_warnings
from calibscale.statistics.score_sums import Fingerprint, FingerprintState


@verb
def evaluate(
    source: Any,
    estimators: Estimator | str | Iterable[Estimator | str] | None = None,
    *,
    on_unsupported: str | None = None,
    group_by: str | Sequence[str] | None = None,
    interval: Resampling | str | bool | None = None,
    cluster: str | None = None,
    floor: bool = True,
    checkpoint: str | Path | None = None,
    negligible: float = NEGLIGIBLE,
    **options: Unpack[SessionOptions],
) -> Evaluation:
    """Compute calibration errors of a source in one pass over it.

    Estimators that need sums over pairs of rows (such as `method="tiles"`) are computed after the
    pass.

    Parameters
    ----------
    source : path, URL, LogitStore, ArraySource or Session
        See `LogitStore` and `from_arrays`.
    estimators : Estimator or str or several, optional
        Estimators, or their text such as ``"ece"`` or ``"ckce(ridge=0.03, features=200)"``.  Two
        estimates of one name are distinguished by their settings: ``result["ece(bins=10)"]``.
        Default: all with `by_default`.
    on_unsupported : {"raise", "report"}, optional
        For an estimator that the data do not support (for instance with too many classes): raise an
        error, or report an estimate without a value and with the reason.  Default: ``raise`` if
        `estimators` is given.
    group_by : str or several, optional
        Groups of rows for which all estimators are also computed: the name of a covariate for each
        of its values, ``"age:5"`` for 5 ranges of about equally many rows, ``"age:[18,30,65]"`` for
        ranges with these edges, or ``"signup:month"`` for the year, quarter, month, week, day, hour
        or weekday of dates and times.  Rows without a value are the group "missing".  Several
        groupings take a pass each; those after the first are in `Evaluation.others`.
    interval : Resampling, {"jackknife", "bootstrap"} or bool, optional
        Confidence intervals of the estimates; True: by the jackknife.
    cluster : str, optional
        Name of a covariate, numbers or texts, whose equal values are one cluster, such as a
        patient.  Groups of clusters are left out of intervals, which are then always computed, by
        the jackknife unless requested otherwise; unbiased estimates leave out the noise of
        clusters, and means over pairs all pairs within a group of clusters.  Floors are those of
        residuals with one random sign a cluster.  There are no reliability diagrams, which assume
        independent rows; nor with soft labels.
    floor : bool
        Compute the noise floor of biased estimates: mean and 95 % quantile of the estimate if
        labels were drawn from the same predictions; of soft labels, if the residuals of rows had
        random signs.
    checkpoint : path, optional
        Folder for finished parts of sums over pairs, from which the same call resumes bit for bit.
    negligible : float
        Size in units of a probability, below which the verdict calls an error real but small.
    **options
        on_invalid, tolerance, block_rows, scheduler, memory_limit, progress: see `Session.open`.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, with its number, its chunk and the remedy; if the data do not
        support a setting, or cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 3))
    >>> source = calibscale.from_arrays(logits=logits, labels=rng.integers(0, 3, 500))
    >>> calibscale.evaluate(source, [calibscale.ECE(bins=10)])["ece"].n
    500
    """
    started = time.perf_counter()
    on_unsupported = on_unsupported or ("report" if estimators is None else "raise")
    check_negligible(negligible)
    with Session.open(source, **options) as session:
        session = session.by_cluster(cluster)
        interval, noise = session_intervals(session, interval, floor)
        groupings = listed_groups(group_by) or (None,)
        for grouping in filter(None, groupings):  # an unknown name fails before anything is read
            known = Grouping.parse(grouping, session.source.covariate_names)
            session.source.covariate(known.column)
        if estimators is None:
            chosen = with_equal_mass(session.profile, default_estimators(session.source.target))
        else:
            chosen = listed(estimators)
        names = labels(chosen)
        if checkpoint is not None and len(groupings) > 1:
            raise OptionError("checkpoint= needs a single pass: give one group_by")
        passes = []
        for grouping in groupings:
            data, by = by_group(session, grouping)
            run = data.run(chosen, on_unsupported, by)
            run = fitting_in_memory(run, interval, noise, on_unsupported)
            result = run.scan(needed_statistics(run, interval, noise))
            passes.append(evaluation_of(run, names, result, interval, started, checkpoint, noise))
            started = time.perf_counter()
        evaluation = replace(passes[0], others=tuple(passes[1:]))
    return judged(evaluation, negligible)


def judged(result: Evaluation, negligible: float) -> Evaluation:
    """The evaluation with the judgement of all of its numbers."""
    judgement = judgement_of_evaluation(result, negligible=negligible)
    parameters = {**result.parameters, "negligible": negligible}
    return replace(result, judgement=judgement, parameters=parameters)


def by_group(
    session: Session, grouping: str | None, cut: bool = False
) -> tuple[Session, str | None]:
    """Session of a source with a covariate of groups, and its name; see `grouped`."""
    if grouping is None:
        return session, None
    source, column = grouped(session.source, grouping, session.execution.scheduler, cut)
    return (session if source is session.source else session.on(source)), column


def by_groups(session: Session, group_by: Any) -> tuple[Session, list[str]]:
    """Session with covariates of groups, and their names; numbers with many values are cut."""
    columns = []
    for grouping in listed_groups(group_by):
        session, column = by_group(session, grouping, cut=True)
        columns.append(str(column))
    return session, columns


def session_intervals(
    session: Session, interval: Resampling | str | bool | None, floor: bool
) -> tuple[Resampling | None, Null | None]:
    """Request of intervals, and null of floors, as clusters and labels allow; None for none."""
    soft, clustered = session.rules.soft, session.rules.cluster is not None
    request = requested(interval)
    if clustered:
        request = replace(request or Jackknife(), clustered=True)
    elif request is not None:
        request = replace(request, soft=soft)
    return request, noise_of(session.rules) if floor else None


_FINGERPRINT = Fingerprint()
_LABELS = LabelTable()


def needed_statistics(run: Run, interval: Resampling | None, noise: Null | None) -> list[Statistic]:
    """Statistics of the pass of a run."""
    needed: list[Statistic] = [_FINGERPRINT] * any(e.pairwise for e in run.fitting)
    needed += run.cluster_sums
    if run.source.target == CLASSES:
        needed.append(_LABELS)
    for e in run.fitting:
        needed += statistics_of(e, run.source.classes, interval, noise)
    return needed


def statistics_of(
    estimator: BoundEstimator, classes: int, interval: Resampling | None, noise: Null | None
) -> tuple[Statistic, ...]:
    """Statistics of an estimator, its interval and its floor."""
    grouped = interval_statistics(estimator, interval, classes) if interval else ()
    floors = () if noise is None else floor_statistics(estimator, noise, classes)
    return (*(grouped or estimator.needs), *estimator.counted, *floors)


def fitting_in_memory(
    run: Run,
    interval: Resampling | None,
    noise: Null | None,
    on_unsupported: str,
    room: engine.Room | None = None,
) -> Run:
    """Run without the estimators that memory cannot hold; see `Run.within_memory`."""
    classes = run.source.classes
    return run.within_memory(
        lambda e: statistics_of(e, classes, interval, noise), on_unsupported, room
    )


def evaluation_of(
    run: Run, names: Iterable[str], result: PassResult, interval: Resampling | None,
    started: float, checkpoint: str | Path | None = None, noise: Null | None = None,
) -> Evaluation:  # fmt: skip
    """Evaluation from the result of the pass of a run, with a name for each of its estimators."""
    classes, pairwise = run.source.classes, any(e.pairwise for e in run.fitting)
    estimates, clusters = {}, run.clusters(result)
    for key, states in result.groups.items():
        pairs = None
        if pairwise:
            group = None if key is None else (run.source.covariate(run.group_by or ""), float(key))
            identity = _identity(run, states[_FINGERPRINT])
            pairs = run.pairs(checkpoint=checkpoint, identity=identity, group=group)
        estimates[key] = tuple(
            run.judged(
                replace(
                    _estimate(e, states, pairs, interval, classes, noise, clusters), estimator=name
                )
            )
            for e, name in zip(run.chosen, names, strict=True)
        )
    overall, outcome = estimates.pop(None), run.outcome(result.counts, started)
    table, names = result.groups[None].get(_LABELS), outcome["source"].get("class_names")
    warnings: tuple[str, ...] = ()
    if table is not None:
        warnings = label_warnings(table.counts, outcome["n_unlabelled"], names)
    return Evaluation(
        estimates=overall,
        reliability=None if run.cluster_sums or run.rules.soft else drawn(overall),
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
    if isinstance(estimator, Estimate):
        return estimator
    independent = interval is None or has_limits(estimator, interval)
    grouped = () if interval is None or independent else interval.needs(estimator)
    with engine.one_thread():
        estimate = estimate_of(estimator, states, grouped, pairs)
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


# ---------------------------------------------------------------- Reliability diagrams


@dataclass(frozen=True)
class _Diagram(TCE2Debiased):
    """Bins with effective counts and both errors; of column `class_index` if class-wise."""

    class_index: int | None = None
    name: ClassVar[str] = "reliability"
    notions: ClassVar[tuple[str, ...]] = (*SCALAR_NOTIONS, "class_wise")
    of_gaps = ECE.of_gaps

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.notion != "class_wise" and self.class_index is not None:
            raise OptionError(f"class_index is for notion 'class_wise', not {self.notion!r}")
        if self.notion == "class_wise" and self.edges in MASS:
            raise OptionError("one class cannot have equal-mass bins: give edges as numbers")

    def _bins(self, state: BinState, *others: Any) -> BinTable:
        if self.class_index is None:
            return super()._bins(state, *others)
        (squares,) = others
        k = self.class_index
        bins = BinTable(np.array(self.edge_values), *state.sums[k].T)
        return bins._replace(squares=squares.squares[k])

    def _estimate(self, bins: BinTable, *others: Any) -> Estimate:
        estimate = super()._estimate(bins)
        debiased = None if bins.squares is None else estimate.value
        details = {**estimate.details, "tce2_debiased": debiased}
        return replace(estimate, value=ECE()._value(bins), squared=False, details=details)


@verb
def reliability(
    source: Any,
    *,
    bins: int | None = None,
    edges: str | Iterable[float] = "equal-width",
    notion: str | None = None,
    class_index: int | str | None = None,
    group_by: str | None = None,
    confidence_level: float = 0.95,
    **options: Unpack[SessionOptions],
) -> Reliability:
    """Compute observed frequencies by bins of the prediction, in one pass over a source.

    Each bin has two intervals: a confidence interval of the true frequency (`interval`), and the
    range of the observed frequency if the model is calibrated (`consistency`).  On average, at most
    1 − `confidence_level` of the bins of a calibrated model lies outside their `consistency`.

    Of forecasts, the bins are levels: `frequency` is the share of outcomes below the quantile, and
    `Reliability.overall.pit` the histogram of PIT values, or of ranks in ensembles; see
    `QuantileECE`.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    bins, edges
        See `ECE`, default 15; of forecasts `bins` is that of `QuantileECE`.
    notion : {"top_label", "positive", "class_wise"}, optional
        ``positive`` is class 1 of a binary source.  Default: ``positive`` for two classes, else
        ``top_label``.
    class_index : int or str, optional
        Class to judge, 0..K−1 or its name; for ``class_wise`` only.  Default: each class, with a
        curve in `Reliability.groups` and none of all rows.
    group_by : str, optional
        Groups of rows with a curve each, see `evaluate`.
    confidence_level : float
        Level of both intervals, in (0, 1).

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, with its number, its chunk and the remedy; if the data do not
        support a setting, or cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays
    >>> from calibscale import reliability
    >>> p = np.repeat([0.2, 0.8], 50)
    >>> y = np.arange(100) % 5 == 0  # one in five comes true at any prediction
    >>> source = from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    >>> diagram = reliability(source, bins=2, notion="positive")
    >>> [(round(b.frequency, 2), b.outside) for b in diagram.bins]
    [(0.2, False), (0.2, True)]
    """
    check_level(confidence_level)
    edges = edges if isinstance(edges, str) else tuple(edges)
    with Session.open(source, **options) as session:
        session.source.need_integer_labels("reliability")
        classes: list[Any] = [None]
        diagrams: list[Estimator] = [QuantileECE(bins=bins)]
        if session.source.forecast is None:
            notion = notion or default_notion(session.source.classes)
            classes = _classes(session.source, notion, class_index, group_by)
            bins = 15 if bins is None else bins
            diagrams = [_Diagram(bins, edges, notion, k if k is None else int(k)) for k in classes]
        elif notion or class_index is not None or edges != "equal-width":
            raise OptionError("forecasts have no notion=, class_index= and edges=")
        require(len(listed_groups(group_by)) < 2, "group_by takes one grouping", group_by)
        result = evaluate(session, diagrams, group_by=group_by)
        group_by = result.group_by
    run = {f.name: getattr(result, f.name) for f in (*fields(Outcome), *fields(SourceRows))}
    settings = {**result.estimates[0].parameters, **result.parameters}
    del settings["negligible"]  # of the verdict of `evaluate`
    curves = [curve_of_estimate(e, confidence_level) for e in result.estimates]
    groups = {v: curve_of_estimate(some[0], confidence_level) for v, some in result.groups.items()}
    overall = curves[0]
    if len(classes) > 1:
        overall = ReliabilityCurve(result.n, (), None, None, "each class has a curve of its own")
        groups, group_by = dict(zip(classes, curves, strict=True)), "class"
    return Reliability(
        notion=notion or "pit",
        class_index=None if len(classes) > 1 or classes[0] is None else int(classes[0]),
        level=confidence_level,
        overall=overall,
        group_by=group_by,
        groups=groups,
        **{**run, "parameters": settings},
    )


def _classes(
    source: ArraySource, notion: str, chosen: int | str | None, group_by: str | None
) -> list[Any]:
    """Classes to judge as numbers, with their names; None for other notions than class_wise."""
    if notion != "class_wise":
        return [chosen]
    names = source.class_names or ()
    every = [Level(k, names[k]) if names else k for k in range(source.classes)]
    require(chosen is not None or group_by is None, "group_by needs one class: give class_index")
    if chosen is None:
        return every
    if isinstance(chosen, str) and chosen in names:
        return [names.index(chosen)]
    if isinstance(chosen, str) or chosen not in range(source.classes):
        raise OptionError(
            f"there is no class {chosen!r}; classes are 0..{source.classes - 1}"
            + f", or by name {', '.join(names[:20])}" * bool(names)
        )
    return [chosen]


def curve_of(
    estimator: BoundEstimator, states: States, confidence_level: float
) -> ReliabilityCurve | None:
    """Bins of a binned error of a scalar notion, from states; None for other estimators."""
    if estimator.bin_settings is None or estimator.notion not in SCALAR_NOTIONS:
        return None
    diagram = _Diagram(*estimator.bin_settings, estimator.notion)
    available = [states[s] for s in diagram.needs if s in states]
    estimate = diagram.with_floor(diagram.finalize(*available), states)
    return curve_of_estimate(estimate, confidence_level)


def drawn(estimates: Iterable[Estimate]) -> Diagram | None:
    """Diagram of the first binned error of a scalar notion; None without such an error.

    An error whose bins of equal width leave most rows in one gives way to one of equal mass.  The
    level is that of the first interval, or 0.95 without intervals.
    """
    estimates = tuple(estimates)
    level = next((e.interval.level for e in estimates if e.interval is not None), 0.95)
    binned = [e for e in estimates if e.value is not None and "bins" in e.details]
    forecasts = [e for e in binned if "pit" in e.details]
    if forecasts:
        return Diagram(forecasts[0].notion, level, curve_of_estimate(forecasts[0], level))
    binned = [e for e in binned if e.notion in SCALAR_NOTIONS]
    if not binned:
        return None
    first = next((e for e in binned if crowded_share(e) is None), binned[0])
    none = Estimate("", first.notion, None)
    same = {
        name_of(e.estimator): e
        for e in estimates
        if (e.notion, e.parameters) == (first.notion, first.parameters)
    }
    ece, debiased = (same.get(name, none) for name in ("ece", "tce2_debiased"))
    details = {**first.details, "tce2_debiased": debiased.value}
    shown = replace(first, value=ece.value, floor=ece.floor, details=details)
    return Diagram(first.notion, level, curve_of_estimate(shown, level))


def curve_of_estimate(estimate: Estimate, confidence_level: float) -> ReliabilityCurve:
    """Bins of an estimate with their intervals."""
    return ReliabilityCurve(
        n=estimate.n,
        bins=_with_ranges(estimate.details.get("bins", []), confidence_level),
        ece=estimate.value,
        tce2_debiased=estimate.details.get("tce2_debiased"),
        reason=estimate.reason,
        floor=estimate.floor,
        pit=_with_ranges(estimate.details.get("pit", []), confidence_level),
    )


def _with_ranges(
    table: list[dict[str, Any]], confidence_level: float
) -> tuple[ReliabilityBin, ...]:
    """Bins of a table with their confidence and consistency intervals."""
    filled = [row for row in table if row["frequency"] is not None]
    p, f, n, rows = (
        np.array([row[key] for row in filled], np.float64)
        for key in ("mean_p", "frequency", "effective_count", "count")
    )
    whole = np.isclose(n, rows, rtol=1e-9, atol=0.0)
    n = np.where(whole, rows, n)
    intervals = zip(*wilson_interval(f, n, confidence_level), strict=True)
    bands = zip(*consistency_interval(p, n, confidence_level, whole=whole), strict=True)
    bins = []
    for row in table:
        if row["frequency"] is not None:
            interval, band = (Range(*map(float, next(ends))) for ends in (intervals, bands))
            row = {**row, "interval": interval, "consistency": band}
        bins.append(ReliabilityBin(**row))
    return tuple(bins)
