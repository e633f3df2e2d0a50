"""Results of `evaluate`, `reliability` and `plan`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from calibscale.formatting.escapes import one_line
from calibscale.formatting.number_texts import plural
from calibscale.results.cluster_results import Clusters
from calibscale.results.declarations import (
    Bounds,
    Computed,
    Count,
    Declared,
    Finite,
    Fraction,
    Hidden,
    Inline,
    Json,
    Later,
    Omitted,
    Size,
    key,
)
from calibscale.results.estimate import Estimate, Floor
from calibscale.results.exported import Row, Tabular
from calibscale.results.levels import NO_NUMBER, Level
from calibscale.results.outcome import Labelled, Outcome
from calibscale.results.parallel_results import ParallelTime
from calibscale.results.source_rows import Source, SourceRows
from calibscale.results.verdict_results import Judgement

_ROUNDING = 1e-9  # rounding error of a frequency that lies on a border


def _value_and_name(key: float) -> tuple[float | None, str | None]:
    """Value of a column that is the key of a group, None if it is missing, and its name."""
    if not isinstance(key, Level):
        return key, None
    # The number of the missing group is no value of the column.
    return None if key.missing else float(key), key.name


def _key(value: float | None, name: str | None) -> float:
    """Key of a group with a value and a name, the inverse of `_value_and_name`."""
    number = NO_NUMBER if value is None else value
    return number if name is None else Level(number, name)


def _strata(overall: Any, *columns: tuple[str | None, dict[float, Any]]) -> Iterator[Any]:
    """Values of all rows and of groups, with the columns of tidy tables that name the group."""
    yield {"covariate": None, "group": None} if columns[0][1] else {}, overall
    for column, groups in columns:
        for value, members in groups.items():
            yield {"covariate": column, "group": getattr(value, "name", value)}, members


class Range(NamedTuple):
    """Closed interval."""

    lower: Finite
    upper: Finite


@dataclass(frozen=True)
class ReliabilityBin(Declared):
    """Bin of a reliability diagram.  Means and intervals of an empty bin are None.

    Attributes
    ----------
    lower, upper : float
        Edges of the bin.
    count, weight, effective_count : int, float, float
        Number of rows, Σw, and the effective number of rows (Σw)²/Σw².
    mean_p, frequency : float
        Weighted means of the predictions, and of the events.
    interval : Range
        Confidence interval of the true frequency, see `wilson_interval`.
    consistency : Range
        Range of the frequency if the predictions are right, see `consistency_interval`.
    place : float
        For functionals, mean of the number by which predictions are put in order.
    """

    lower: Finite
    upper: Finite
    count: Count
    weight: Size
    effective_count: float
    mean_p: float | None = None
    frequency: float | None = None
    interval: Range | None = None
    consistency: Range | None = None
    place: Later[Omitted[float | None]] = None

    @property
    def gap(self) -> float | None:
        """mean_p − frequency, which is above 0 if predictions are too high."""
        if self.mean_p is None or self.frequency is None:
            return None
        return self.mean_p - self.frequency

    @property
    def outside(self) -> Computed[bool]:
        """Whether the frequency lies outside the range of a calibrated model."""
        if self.frequency is None or self.consistency is None:
            return False
        low, high = self.consistency
        # A frequency on the border is inside: bands of counts end at possible frequencies.
        return not low - _ROUNDING <= self.frequency <= high + _ROUNDING


@dataclass(frozen=True)
class ReliabilityCurve(Declared):
    """Bins of all rows, or of one group.

    Attributes
    ----------
    n : int
        Number of rows.
    bins : tuple of ReliabilityBin
        Bins in increasing order, or no bins and a `reason` if no row has a positive weight.
    ece : float or None
        Σ_b (n_b/n) |conf_b − acc_b| of these bins.
    tce2_debiased : float or None
        Squared error of these bins without bias, see `TCE2Debiased`.
    floor : Floor or None
        Noise floor of `ece`.
    pit : tuple of ReliabilityBin
        PIT histogram of forecasts.  The `bins` of forecasts are levels: `frequency` is the share of
        all rows within, `mean_p` the share of calibrated forecasts, and `ece` the quantile
        calibration error.
    """

    n: Count
    bins: tuple[ReliabilityBin, ...]
    ece: float | None
    tce2_debiased: float | None
    reason: Omitted[str | None] = None
    floor: Later[Omitted[Floor | None]] = None
    pit: Later[Omitted[tuple[ReliabilityBin, ...]]] = ()

    @property
    def filled(self) -> tuple[ReliabilityBin, ...]:
        """Bins that are not empty."""
        return tuple(b for b in self.bins if b.frequency is not None)

    @property
    def outside(self) -> tuple[ReliabilityBin, ...]:
        """Bins with a frequency outside the range of a calibrated model."""
        return tuple(b for b in self.bins if b.outside)


@dataclass(frozen=True)
class Diagram(Declared):
    """Reliability curve of all rows, the notion that it judges, and the level of its intervals."""

    notion: str
    level: Fraction
    curve: Inline[ReliabilityCurve]


@dataclass(frozen=True)
class GroupEstimates(Declared):
    """Estimates of the rows with one value of a covariate."""

    value: Finite | None
    name: Omitted[str | None]
    n: Count
    results: tuple[Estimate, ...]

    @property
    def group(self) -> float | str | None:
        """Name of the value, or the value if it has no name."""
        return self.name or self.value


@dataclass(frozen=True)
class GroupedEstimates(Declared):
    """Estimates by value of the covariate `column`."""

    column: str
    values: tuple[GroupEstimates, ...]

    @property
    def by_key(self) -> dict[float, tuple[Estimate, ...]]:
        """Estimates by the key of their group."""
        return {_key(group.value, group.name): group.results for group in self.values}


@dataclass(frozen=True, kw_only=True)
class Evaluation(Labelled[Estimate], Outcome, SourceRows):
    """Estimates of one pass over a source.

    Attributes
    ----------
    estimates : tuple of Estimate
        Estimates in the order of the requested estimators.
    verdict : str or None
        The sentence of `judgement`.
    judgement : Judgement or None
        Conclusion from the estimates of all rows and of groups together, see
        `calibscale.inference.verdict`.  None if no estimate has an interval, a noise floor or a
        p-value.
    reliability : Diagram or None
        Reliability diagram of the first binned error of one probability.
    clusters : Clusters or None
        Clusters of the rows, if requested.
    warnings : tuple of str
        Sentences about labels that look wrong: one class alone, or exchanged classes.
    groups : dict
        Estimates by value of the column ``group_by``.
    others : tuple of Evaluation
        Evaluations grouped by the further columns of ``calibscale evaluate --group-by``.

    Examples
    --------
    >>> from calibscale import from_arrays, evaluate
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> result = evaluate(source, ["accuracy", "ece"])
    >>> [estimate.estimator for estimate in result.estimates], result["accuracy"].value
    (['accuracy', 'ece'], 1.0)
    """

    schema: ClassVar[str] = "calibscale.evaluation/1"
    parts: ClassVar[tuple[str, str]] = ("estimates", "estimator")

    estimates: Annotated[tuple[Estimate, ...], key("results")]
    reliability: Later[Diagram | None]
    clusters: Later[Omitted[Clusters | None]] = None
    warnings: Later[Omitted[tuple[str, ...]]] = ()
    group_by: Hidden[str | None] = None
    groups: Hidden[dict[float, tuple[Estimate, ...]]] = field(default_factory=dict)
    others: Hidden[tuple[Evaluation, ...]] = ()
    judgement: Later[Omitted[Judgement | None]] = None

    @cached_property  # results of earlier versions have this sentence alone
    def verdict(self) -> Later[Computed[str | None]]:
        """The sentence of `judgement`."""
        return None if self.judgement is None else self.judgement.sentence

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore an evaluation, with the groups of all columns."""
        restored = super().from_dict
        first, *others = (
            {} if item is None else _groups_of(GroupedEstimates.from_dict(item))
            for item in (value.get("groups"), *(value.get("other_groups") or ()))
        )
        evaluations = tuple(restored(value, **groups) for groups in others)
        return restored(value, others=evaluations, **first, **further)

    @property
    def grouped(self) -> Annotated[Computed[Omitted[GroupedEstimates | None]], key("groups")]:
        """Estimates by value of `group_by`, or None without groups."""
        if self.group_by is None:
            return None
        values = tuple(
            GroupEstimates(*_value_and_name(group), estimates[0].n if estimates else 0, estimates)
            for group, estimates in self.groups.items()
        )
        return GroupedEstimates(self.group_by, values)

    @property
    def other_groups(self) -> Computed[Omitted[tuple[GroupedEstimates, ...]]]:
        """Estimates by value of the further columns."""
        columns = (evaluation.grouped for evaluation in self.others)
        return tuple(grouped for grouped in columns if grouped is not None)

    @property
    def groupings(self) -> tuple[GroupedEstimates, ...]:
        """Estimates by value of each column."""
        return self.other_groups if self.grouped is None else (self.grouped, *self.other_groups)

    def _strata(self) -> Iterator[tuple[Row, Iterable[Estimate]]]:
        columns = [(evaluation.group_by, evaluation.groups) for evaluation in (self, *self.others)]
        return _strata(self.estimates, *columns)

    def __repr__(self) -> str:
        values = ", ".join(f"{e.estimator}={e.value}" for e in self.estimates)
        return f"Evaluation(n={self.n}, {values})"


def _groups_of(grouped: GroupedEstimates) -> Json:
    """Fields of an evaluation by the groups of one column."""
    return {"group_by": grouped.column, "groups": grouped.by_key}


@dataclass(frozen=True)
class GroupCurve(Declared):
    """Curve of the rows with one value of a covariate."""

    value: Finite | None
    name: Omitted[str | None]
    curve: Inline[ReliabilityCurve]

    @property
    def group(self) -> float | str | None:
        """Name of the value, or the value if it has no name."""
        return self.name or self.value


@dataclass(frozen=True)
class GroupedCurves(Declared):
    """Curves by value of the covariate `column`."""

    column: str
    values: tuple[GroupCurve, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Reliability(Outcome, SourceRows):
    """Data of a reliability diagram, drawn by `calibscale.output.plots.plot_reliability`.

    Attributes
    ----------
    class_index : int or None
        Class that is judged, for the notion class_wise.
    level : float
        Level of both intervals of every bin.
    overall : ReliabilityCurve
        Curve of all rows.
    groups : dict
        Curves by value of the column `group_by`.

    Examples
    --------
    >>> from calibscale import from_arrays, reliability
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> [(b.count, round(b.frequency, 6)) for b in reliability(source, bins=2).bins]
    [(100, 0.0), (100, 1.0)]
    """

    schema: ClassVar[str] = "calibscale.reliability/1"

    notion: str
    class_index: Annotated[Count | None, key("class")]
    level: Fraction
    overall: Inline[ReliabilityCurve]
    group_by: Hidden[str | None] = None
    groups: Hidden[dict[float, ReliabilityCurve]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore a diagram, with the curves of its groups."""
        if value.get("groups") is None:
            return super().from_dict(value, **further)
        grouped = GroupedCurves.from_dict(value["groups"])
        curves = {_key(group.value, group.name): group.curve for group in grouped.values}
        return super().from_dict(value, group_by=grouped.column, groups=curves, **further)

    @property
    def grouped(self) -> Annotated[Computed[Omitted[GroupedCurves | None]], key("groups")]:
        """Curves by value of `group_by`, or None without groups."""
        if self.group_by is None:
            return None
        values = tuple(
            GroupCurve(*_value_and_name(group), curve) for group, curve in self.groups.items()
        )
        return GroupedCurves(self.group_by, values)

    def _strata(self) -> Iterator[tuple[Row, Iterable[ReliabilityBin]]]:
        for names, curve in _strata(self.overall, (self.group_by, self.groups)):
            yield names, curve.bins

    def _measured(self) -> Iterator[Row]:
        for names, curve in _strata(self.overall, (self.group_by, self.groups)):
            yield {**names, "name": "ece", "value": curve.ece}
            yield {**names, "name": "tce2_debiased", "value": curve.tce2_debiased}

    @property
    def bins(self) -> tuple[ReliabilityBin, ...]:
        """Bins of all rows."""
        return self.overall.bins

    @property
    def ece(self) -> float | None:
        """Expected calibration error of all rows with these bins."""
        return self.overall.ece

    @property
    def judged(self) -> str:
        """Name of the prediction that is judged."""
        if self.class_index is not None:
            names = self.source.get("class_names")
            name = one_line(names[self.class_index]) if names else self.class_index
            return f"class {name}"
        names = {"top_label": "top label", "class_wise": "each class", "pit": "quantiles"}
        return names.get(self.notion, "positive class")

    @property
    def verdict(self) -> str:
        """Number of bins outside the range of a calibrated model, as a sentence."""
        class_wise = self.notion == "class_wise" and self.class_index is None
        # Without a class, each class is a group of its own.
        curves = tuple(self.groups.values()) if class_wise else (self.overall,)
        filled = sum(len(curve.filled) for curve in curves)
        outside = sum(len(curve.outside) for curve in curves)
        if not filled:
            return str(self.overall.reason)
        # A bin of a calibrated model lies outside of its band with probability at most 1 − level.
        expected = filled * (1.0 - self.level)
        bins = plural(filled, "level" if self.notion == "pit" else "bin")
        return f"{outside} of {bins} outside the band (at most {expected:.2g} expected by chance)"


@dataclass(frozen=True)
class Cost(Declared):
    """Expected cost of one piece of work.

    Attributes
    ----------
    work : str
        Description of the work: the pass, the draws of a test, or an estimator.
    method : str
        Method of the estimator, or names of the estimators.
    pairs : int
        Number of unordered pairs of rows visited.
    seconds : float
        Elapsed time.
    memory, bytes_read : int
        Memory and input in bytes.
    """

    work: str
    method: str
    pairs: Count
    seconds: Size
    memory: Size
    bytes_read: Size


@dataclass(frozen=True)
class ClusterCost(Declared):
    """Expected cost of a run on worker processes of one thread each.

    Attributes
    ----------
    blocks, tasks : int
        Numbers of blocks of rows of the pass, and of runs of neighbouring blocks, each sent as one
        task.
    merge_depth : int
        Number of levels of the merge tree.
    task_bytes, state_bytes, bytes_moved : int
        Sizes of a task of the pass and of the state it returns, and of all tasks and states of the
        pass and of sums over pairs.
    worker_memory, client_memory : int
        Memory in bytes of the pass beyond the about 200 MB of an interpreter with imported
        packages.
    worker_seconds, client_seconds : float
        Time of one worker, and of the client, which sends tasks and merges their states, for the
        pass and sums over pairs.  If tasks of Dask could not be measured, the time of the client
        has the merges of the pass alone.
    panel_pairs : int
        Number of pairs of panels, which are the tasks of exact sums over pairs of rows, over all
        sums.
    pair_tail : float
        Seconds by which these sums, with their transport, take longer than an even division among
        the workers.
    """

    blocks: Count
    tasks: Count
    merge_depth: Count
    task_bytes: Count
    state_bytes: Count
    bytes_moved: Count
    worker_memory: Count
    client_memory: Count
    worker_seconds: Size
    client_seconds: Size
    panel_pairs: Later[Count] = 0
    pair_tail: Later[Size] = 0.0


@dataclass(frozen=True, repr=False)
class Plan(Tabular, Declared):
    """Expected costs of a run, with `cluster` and `parallel` if a number of workers was given.

    `parallel` has the expected elapsed times with one thread, with so many threads, and with so
    many Dask workers, and `remarks` say what the times do not cover.  `left_out` are the reasons
    why estimators would have no value, by name.

    Examples
    --------
    >>> from calibscale import from_arrays, plan
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> plan(source, "ece").rows
    200
    """

    schema: ClassVar[str] = "calibscale.plan/1"
    table: ClassVar[str] = "costs"
    measures: ClassVar[tuple[str, ...]] = ("seconds",)

    source: Source
    rows: Annotated[int, Bounds(ge=1)]
    workers: Annotated[int, Bounds(ge=1)]
    costs: tuple[Cost, ...]
    cluster: ClusterCost | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    parallel: Later[tuple[ParallelTime, ...]] = ()
    remarks: Later[tuple[str, ...]] = ()

    @property
    def seconds(self) -> Computed[Size]:
        return sum(cost.seconds for cost in self.costs)
