"""Results of a night, of its plan, and of a list of days, with the parts of a night."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self, TypeVar

from calibscale.results.bias_results import BiasMap
from calibscale.results.cluster_results import Clusters
from calibscale.results.comparison_results import Selection
from calibscale.results.declarations import (
    Bounds,
    Count,
    Day,
    Declared,
    Finite,
    Fraction,
    Having,
    Hidden,
    Json,
    Later,
    Omitted,
    Share,
    Size,
    Values,
)
from calibscale.results.estimate import Estimate, Interval
from calibscale.results.evaluation_results import Diagram
from calibscale.results.exported import Row
from calibscale.results.inference_results import AdjustedTest, TestResult
from calibscale.results.outcome import Outcome
from calibscale.results.source_rows import Source, SourceRows

Group = float | str | None  # number or name of a group, None for all rows


@dataclass(frozen=True)
class GroupResult(Declared):
    """Estimates of a group over the days of a window."""

    group: Finite | str
    n: Count
    results: tuple[Estimate, ...]


@dataclass(frozen=True)
class WindowResult(Declared):
    """Estimates and tests over the days of a window."""

    name: str
    first: Day
    last: Day
    days: tuple[Day, ...]
    missing: tuple[Day, ...]
    damaged: tuple[str, ...]
    n: Count
    results: tuple[Estimate, ...]
    tests: tuple[TestResult, ...]
    groups: tuple[GroupResult, ...]
    reliability: Diagram | None

    def results_of(self, group: Group) -> tuple[Estimate, ...]:
        """Estimates of a group, or of all rows.  A group without rows has none."""
        if group is None:
            return self.results
        return next((part.results for part in self.groups if part.group == group), ())


@dataclass(frozen=True)
class DayTests(Declared):
    """Default tests of all rows of the day, and the smallest of their p-values, which are adjusted.

    `statistic` and `finding` name this test and the error that it found.
    """

    p_value: Share | None
    statistic: str | None
    finding: str | None
    tests: tuple[AdjustedTest, ...]


@dataclass(frozen=True, kw_only=True)
class ThresholdResult(Declared):
    """Verdict on a threshold; its limit is `above`, `below`, or for a size `abs_above`."""

    name: str
    window: str
    group: Group
    estimator: str
    quantity: Annotated[str, Values(("value", "low", "high", "p_value", "drift_p_value"))]
    above: float | None
    below: float | None
    abs_above: Later[float | None] = None
    observed: float | None
    breached: bool
    reason: str | None

    @property
    def side(self) -> str:
        """Side of the limit: above, below, or abs_above for the size of a number."""
        if self.above is not None:
            return "above"
        return "abs_above" if self.below is None else "below"

    @property
    def limit(self) -> float | None:
        return getattr(self, self.side)

    @property
    def is_of_p_value(self) -> bool:
        """Whether the threshold limits a p-value."""
        return self.quantity in ("p_value", "drift_p_value")

    @property
    def value_limits(self) -> tuple[float, ...]:
        """Limits of a value or of an end of an interval, two for its size.  P-values have none."""
        if self.limit is None or self.is_of_p_value:
            return ()
        return (self.limit, -self.limit) if self.side == "abs_above" else (self.limit,)


@dataclass(frozen=True)
class CheckResult(Declared):
    """Verdict of a check of a job, see `NightCheck`.

    Attributes
    ----------
    check : str
        Label of the check: its name, and settings that are not their defaults.
    breached : bool
    sentence : str
        Sentence about the days that were judged, which is shown in the report.
    value, limit : float or None
        Number that was judged, and its limit.
    failed : bool
        Whether the check raised an error, which `sentence` has, instead of a verdict.  The night
        sets it.

    Examples
    --------
    >>> from calibscale.results.night_results import CheckResult
    >>> CheckResult("few_rows", True, "The day has 12 rows.", 12, 100).breached
    True
    """

    check: str
    breached: bool
    sentence: str
    value: float | None = None
    limit: float | None = None
    failed: bool = False


@dataclass(frozen=True)
class DriftOfEstimate(Declared):
    """Difference of an estimate from the baseline."""

    estimator: str
    notion: str
    group: Group
    difference: float | None
    low: float | None
    high: float | None
    level: Fraction
    p_value: Share | None
    adjusted_p_value: Share | None


@dataclass(frozen=True)
class Baseline(Declared):
    """Days of the baseline, and the number of their rows."""

    first: Day
    last: Day
    n: Count


@dataclass(frozen=True)
class DriftResult(Declared):
    """Differences of a window from its baseline."""

    window: str
    baseline: Baseline
    results: tuple[DriftOfEstimate, ...]


@dataclass(frozen=True)
class ImpossibleOnDay(Declared):
    """First day with labels of the predicted probability 0: their number, the first row, its group.

    From that day on E is infinite, and its logarithm is null.
    """

    day: Day
    group: Group
    count: Count
    first_row: Count


_Logs = tuple[float | None, ...]  # of E by day


@dataclass(frozen=True, kw_only=True)
class ProcessResult(Declared):
    """Evidence of one notion and group by day, and the day on which it reached the threshold."""

    notion: str
    group: Group
    log_evidence: _Logs
    threshold: Finite
    alarm: bool
    since: Day | None
    at_least: Later[_Logs | None] = None
    impossible: Later[ImpossibleOnDay | None] = None


@dataclass(frozen=True, kw_only=True)
class AlarmResult(Declared):
    """Mean evidence by day, and the day on which it reached the threshold."""

    level: Fraction
    alarm: bool
    since: Day | None
    first_day: Day
    days: tuple[Day, ...]
    log_evidence: _Logs
    processes: tuple[ProcessResult, ...]
    threshold: Finite
    process_threshold: Finite
    tolerance: Later[float | None] = None
    certainty_tolerance: Later[float | None] = None
    impossible: Later[ImpossibleOnDay | None] = None

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore alarms from their JSON object, in which infinite evidence is null."""
        return super().from_dict(value, **further).with_infinity()

    def with_infinity(self) -> Self:
        """Alarms with evidence that is infinite from a label of the probability 0 on.

        Where only finite numbers are allowed, such evidence is None.
        """
        processes = tuple(_with_infinity(process, self.days) for process in self.processes)
        return replace(_with_infinity(self, self.days), processes=processes)

    @property
    def raised(self) -> list[ProcessResult]:
        """Processes with an alarm by its day.  The processes of all rows come first."""
        raised = [process for process in self.processes if process.alarm]
        return sorted(raised, key=lambda p: (p.since or "", p.group is not None))


_Evidence = TypeVar("_Evidence", bound=ProcessResult | AlarmResult)


def _with_infinity(evidence: _Evidence, days: Sequence[str]) -> _Evidence:
    """Evidence that is infinite where it is None, from a label of the probability 0 on."""
    if evidence.impossible is None:
        return evidence
    # Values of earlier days that are None are missing.
    first = evidence.impossible.day[:10]
    logs = tuple(
        math.inf if log is None and day >= first else log
        for log, day in zip(evidence.log_evidence, days, strict=True)
    )
    return replace(evidence, log_evidence=logs)


@dataclass(frozen=True)
class Series(Declared):
    """Values of an estimate by day, with the ends of its intervals."""

    estimator: str
    notion: str
    group: Group
    values: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Trend(Declared):
    """Numbers of rows and estimates of the last days of a ledger.

    `ledger_days` and `first_day` are about all days of the ledger.
    """

    ledger_days: Later[Count] = 0
    first_day: Later[Day | None] = None
    days: tuple[Day, ...]
    n: tuple[Count, ...]
    series: tuple[Series, ...]


NO_TREND = Trend(days=(), n=(), series=())


@dataclass(frozen=True)
class ComparedModel(Declared):
    """One model of the ranking of a night."""

    model: str
    rank: Annotated[int, Bounds(ge=1)]
    value: float | None
    n: Count
    interval: Interval | None
    rank_probabilities: tuple[Share, ...]


@dataclass(frozen=True)
class ComparedPair(Declared):
    """Difference of the estimates of two models of a night."""

    a: str
    b: str
    difference: float | None
    paired: bool
    low: float | None
    high: float | None
    p_value: Share | None
    adjusted_p_value: Share | None


@dataclass(frozen=True)
class NightRanking(Declared):
    """Models compared on the days that all of them have."""

    window: str
    by: str
    level: Fraction
    days: tuple[Day, ...]
    models: tuple[ComparedModel, ...]
    differences: tuple[ComparedPair, ...]


@dataclass(frozen=True)
class RecalibrationChallenger(Declared):
    """Challenger of a champion: its fit, and the evidence that its score is smaller.

    Attributes
    ----------
    number : int
        Number of the fit in the life of the ledger.
    day : str
        First day of the comparison.  The fit used earlier days.
    n_fit, n : int
        Number of rows of the fit, and of rows on which it was compared.
    gain : float or None
        Mean of half of the Brier score of the champion, minus that of the challenger.  With
        clusters it is a mean over clusters, rather than over rows.
    log_evidence, log_threshold : float
        log E that it is better, and the value at which it replaces the champion.
    state : str
        ``competes``, or the reason why it does not compete on later nights.
    """

    number: Count
    day: Day
    method: str
    n_fit: Count
    n: Count
    gain: float | None
    log_evidence: Finite
    log_threshold: Finite
    state: str


@dataclass(frozen=True)
class RecalibrationNight(Declared):
    """Scores of one night, and the champion whose score it is.

    `as_they_are` and `champion_score` are means of half of the Brier score.
    """

    day: Day
    n: Count
    as_they_are: float | None
    champion_score: float | None
    champion: str
    event: str


@dataclass(frozen=True, kw_only=True)
class NightRecalibration(Declared):
    """Champion of recalibration after a night, its challengers, and the nights before.

    Attributes
    ----------
    champion : str
        Method and first day of the champion, or that predictions are used as they are.
    since : str or None
        Day on which the champion was chosen.
    replaced : bool
        Whether this night replaced the champion.
    fitted : bool
        Whether a challenger came on this night.
    note : str
        Why no challenger came, or empty.
    fault : str or None
        Why champion and challengers were not compared, or the champion was not written.
    """

    path: str
    method: str
    alpha: Fraction
    champion: str
    since: Day | None
    replaced: bool
    fitted: bool
    note: str
    fault: str | None
    challengers: tuple[RecalibrationChallenger, ...]
    nights: tuple[RecalibrationNight, ...]


@dataclass(frozen=True)
class BrokenDay(Declared):
    """Day whose predictions cannot be read."""

    day: Day
    reason: str


@dataclass(frozen=True)
class ProvisionalDay(Declared):
    """Day whose labels are not complete: numbers of rows with and without one."""

    day: Day
    n: Count
    n_unlabelled: Count


@dataclass(frozen=True)
class IncompleteDays(Declared):
    """Days of the windows without predictions, with broken ones, or few labels."""

    missing: tuple[Day, ...] = ()
    broken: tuple[BrokenDay, ...] = ()
    provisional: tuple[ProvisionalDay, ...] = ()

    @property
    def by_kind(self) -> dict[str, tuple[str, ...]]:
        """Days by kind: missing, broken or provisional."""
        return {
            "missing": self.missing,
            "broken": tuple(day.day for day in self.broken),
            "provisional": tuple(day.day for day in self.provisional),
        }


@dataclass(frozen=True)
class NightParameters(Declared):
    """Settings of the job and of the estimators of the ledger, and what an unchanged night matches.

    Attributes
    ----------
    extras : (str or None, dict)
        Mark of the predictions of the day, and the parts of the report that need their rows.
    key : str
        Hash of the job, the ledger, the days and the versions.
    """

    job: Json
    estimators: tuple[Annotated[Json, Having(("estimator",))], ...]
    extras: tuple[str | None, Json]
    key: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Night(Outcome, SourceRows):
    """Result of a night.

    Attributes
    ----------
    status : str
        ``breached`` if a threshold or a check is breached or there is an alarm.  Otherwise
        ``incomplete`` if days are missing, broken or provisional, see the job, else ``fine``.
    created : str
        Time at which the day was judged, with the offset from UTC.
    checks : tuple of CheckResult
        Verdicts of the checks of the job, in its order.
    bias : BiasMap or None
        Map of the local bias of the day.
    selection : Selection or None
        Table of risks of the day.
    incomplete_days : IncompleteDays or None
        Days of the windows, at most the last 60, that are ``missing``, ``broken`` or
        ``provisional``.
    fresh : bool
        Whether the result was computed, not read from an earlier run.
    """

    schema: ClassVar[str] = "calibscale.nightly/1"

    source: Source | None  # type: ignore[assignment]
    parameters: NightParameters  # type: ignore[assignment]
    job: str
    day: Day
    model: str
    status: Annotated[str, Values(("fine", "incomplete", "breached"))]
    created: str
    group_by: str | None
    clusters: Later[Omitted[Clusters | None]] = None
    calibration: Later[Omitted[DayTests | None]] = None
    windows: tuple[WindowResult, ...]
    thresholds: tuple[ThresholdResult, ...]
    checks: Later[Omitted[tuple[CheckResult, ...]]] = ()
    drift: DriftResult | None
    alarms: AlarmResult | None
    trend: Trend
    ranking: NightRanking | None
    recalibration: Later[Omitted[NightRecalibration | None]] = None
    selection: Selection | None
    bias: BiasMap | None
    incomplete_days: Later[Omitted[IncompleteDays | None]] = None
    notes: tuple[str, ...]
    fresh: Hidden[bool]

    def records(self) -> Iterator[Row]:
        """Rows of the tidy table, one for each estimator, window and group."""
        for window in self.windows:
            yield from self.window_records(window)

    def window_records(self, window: WindowResult) -> Iterator[Row]:
        """Rows of the tidy table for one window."""
        p_values = {(t.statistic, t.notion): t.p_value for t in window.tests}
        # All rows, and then each group.
        parts: list[tuple[Group, tuple[Estimate, ...]]] = [(None, window.results)]
        parts += [(part.group, part.results) for part in window.groups]
        for group, results in parts:
            for e in results:
                row = {name: getattr(self, name) for name in ("job", "model", "day")}
                row |= {"window": window.name, "group": group}
                row |= {name: getattr(e, name) for name in ("estimator", "notion", "value")}
                row |= {f"floor_{key}": getattr(e.floor, key, None) for key in ("mean", "high")}
                row |= {key: getattr(e.interval, key, None) for key in ("low", "high")}
                # Tests are of all rows of a window, and not of its groups.
                p = p_values.get((e.estimator, e.notion)) if group is None else None
                yield row | {"n": e.n, "p_value": p}

    def window(self, name: str | None) -> WindowResult | None:
        """Window of a name, or None."""
        return next((window for window in self.windows if window.name == name), None)

    @property
    def breached(self) -> bool:
        """Whether a threshold or a check is breached, or an alarm was raised."""
        return self.status == "breached"

    @property
    def incomplete(self) -> bool:
        """Whether days are missing, broken or provisional, and nothing is breached."""
        return self.status == "incomplete"


@dataclass(frozen=True)
class NightPlan(Declared):
    """Plan of a night."""

    schema: ClassVar[str] = "calibscale.nightly_plan/1"

    day: Day
    model: str
    source: str
    rows: Count | None
    reads: str
    ledger: str
    ledger_days: Count
    windows: dict[str, Count]
    outputs: dict[str, str]
    seconds: Size | None
    alarms: Later[str] = ""
    recalibration: Later[Omitted[str | None]] = None
    warnings: Later[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class LedgerDay(Declared):
    """Numbers of rows of a day of a ledger."""

    day: Day
    model: str
    n: Count
    n_unlabelled: Count
    n_dropped: Count


@dataclass(frozen=True)
class LedgerDays(Declared):
    """Days of a ledger."""

    schema: ClassVar[str] = "calibscale.ledger/1"

    days: tuple[LedgerDay, ...]
