"""Results of a night, of its plan, and of a list of days, with the parts of their JSON objects."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

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
    Object,
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

_Group = float | str | None  # number or name of a group, None for all rows
_GROUP = Object("GroupResult", group=Finite | str, n=Count, results=list[Estimate])
_WINDOW = Object(
    "WindowResult",
    "Estimates and tests over the days of a window.",
    name=str,
    first=Day,
    last=Day,
    days=list[Day],
    missing=list[Day],
    damaged=list[str],
    n=Count,
    results=list[Estimate],
    tests=list[TestResult],
    groups=list[_GROUP],  # type: ignore[valid-type]
    reliability=Diagram | None,
)
_CALIBRATION = Object(
    "DayTests",
    "Default tests of all rows of the day, and the smallest of their p-values, which are adjusted.",
    p_value=Share | None,
    statistic=str | None,
    finding=str | None,
    tests=list[AdjustedTest],
)
_THRESHOLD = Object(
    "ThresholdResult",
    "Verdict on a threshold; its limit is `above`, `below`, or for a size `abs_above`.",
    name=str,
    window=str,
    group=_Group,
    estimator=str,
    quantity=Annotated[str, Values(("value", "low", "high", "p_value", "drift_p_value"))],
    above=float | None,
    below=float | None,
    abs_above=Later[float | None],  # type: ignore[misc]
    observed=float | None,
    breached=bool,
    reason=str | None,
)
_DRIFT_OF_ESTIMATE = Object(
    "DriftOfEstimate",
    "Difference of an estimate from the baseline.",
    estimator=str,
    notion=str,
    group=_Group,
    difference=float | None,
    low=float | None,
    high=float | None,
    level=Fraction,
    p_value=Share | None,
    adjusted_p_value=Share | None,
)
_DRIFT = Object(
    "DriftResult",
    "Differences of a window from its baseline.",
    window=str,
    baseline=Object("Baseline", first=Day, last=Day, n=Count),
    results=list[_DRIFT_OF_ESTIMATE],  # type: ignore[valid-type]
)
_IMPOSSIBLE = Object(
    "ImpossibleOnDay",
    "First day with labels of the predicted probability 0: their number, the first row, its group. "
    "From that day on E is infinite, and its logarithm is null.",
    day=Day,
    group=_Group,
    count=Count,
    first_row=Count,
)
_PROCESS = Object(
    "ProcessResult",
    "Evidence of one notion and group by day, and the day on which it reached the threshold.",
    notion=str,
    group=_Group,
    log_evidence=list[float],
    threshold=Finite,
    alarm=bool,
    since=Day | None,
    at_least=Later[list[float] | None],  # type: ignore[misc]
    impossible=Later[Annotated[Json, _IMPOSSIBLE] | None],  # type: ignore[misc]
)
_ALARMS = Object(
    "AlarmResult",
    "Mean evidence by day, and the day on which it reached the threshold.",
    level=Fraction,
    alarm=bool,
    since=Day | None,
    first_day=Day,
    days=list[Day],
    log_evidence=list[float],
    processes=list[_PROCESS],  # type: ignore[valid-type]
    threshold=Finite,
    process_threshold=Finite,
    tolerance=Later[float | None],  # type: ignore[misc]
    certainty_tolerance=Later[float],
    impossible=Later[Annotated[Json, _IMPOSSIBLE] | None],  # type: ignore[misc]
)
_SERIES = Object(
    "Series",
    "Values of an estimate by day, with the ends of its intervals.",
    estimator=str,
    notion=str,
    group=_Group,
    values=list[float],
    low=list[float],
    high=list[float],
)
_TREND = Object(
    "Trend",
    "Numbers of rows and estimates of the last days of a ledger.",
    ledger_days=Later[Count],
    first_day=Later[Day | None],  # type: ignore[misc]
    days=list[Day],
    n=list[Count],
    series=list[_SERIES],  # type: ignore[valid-type]
)
_MODEL = Object(
    "ComparedModel",
    "One model of the ranking of a night.",
    model=str,
    rank=Annotated[int, Bounds(ge=1)],
    value=float | None,
    n=Count,
    interval=Interval | None,
    rank_probabilities=list[Share],
)
_PAIR = Object(
    "ComparedPair",
    "Difference of the estimates of two models of a night.",
    a=str,
    b=str,
    difference=float | None,
    paired=bool,
    low=float | None,
    high=float | None,
    p_value=Share | None,
    adjusted_p_value=Share | None,
)
_RANKING = Object(
    "NightRanking",
    "Models compared on the days that all of them have.",
    window=str,
    by=str,
    level=Fraction,
    days=list[Day],
    models=list[_MODEL],  # type: ignore[valid-type]
    differences=list[_PAIR],  # type: ignore[valid-type]
)
_BROKEN = Object("BrokenDay", "Day whose predictions cannot be read.", day=Day, reason=str)
_PROVISIONAL = Object(
    "ProvisionalDay",
    "Day whose labels are not complete: numbers of rows with and without one.",
    day=Day,
    n=Count,
    n_unlabelled=Count,
)
_INCOMPLETE = Object(
    "IncompleteDays",
    "Days of the windows without predictions, with broken ones, or few labels.",
    missing=list[Day],
    broken=list[_BROKEN],  # type: ignore[valid-type]
    provisional=list[_PROVISIONAL],  # type: ignore[valid-type]
)
_PARAMETERS = Object(
    "NightParameters",
    "Settings of the job and of the estimators of the ledger, and what an unchanged night matches.",
    job=Json,
    estimators=list[Annotated[Json, Having(("estimator",))]],
    extras=tuple[str | None, Json],
    key=str,
)


def estimate_rows(night: dict[str, Any]) -> Iterator[Row]:
    """Rows of the tidy table of a night: one for each estimator, window and group."""
    for window in night["windows"]:
        p_values = {(t["statistic"], t["notion"]): t["p_value"] for t in window["tests"]}
        # All rows, and then each group.
        parts = [(None, window["results"])]
        parts += [(group["group"], group["results"]) for group in window["groups"]]
        for group, results in parts:
            for e in results:
                row = {name: night[name] for name in ("job", "model", "day")}
                row |= {"window": window["name"], "group": group}
                row |= {name: e[name] for name in ("estimator", "notion", "value")}
                ends = e["interval"] or {"low": None, "high": None}
                floor = e.get("floor") or {}
                row |= {f"floor_{key}": floor.get(key) for key in ("mean", "high")}
                # Tests are of all rows of a window, and not of its groups.
                p = p_values.get((e["estimator"], e["notion"])) if group is None else None
                yield row | {"low": ends["low"], "high": ends["high"], "n": e["n"], "p_value": p}


def evidence_logs(process: dict[str, Any], days: list[str]) -> list[float | None]:
    """Logarithm of E of a process, or of the mean of all processes, on each of some days.

    In JSON it is null where it is ∞, from the day of a label of the predicted probability 0 on.
    """
    logs = process["log_evidence"]
    impossible = process.get("impossible")
    if impossible is None:
        return logs
    # Only null values from this day on are infinite.
    first = impossible["day"][:10]
    return [
        math.inf if log is None and day >= first else log
        for log, day in zip(logs, days, strict=True)
    ]


@dataclass(frozen=True, kw_only=True, repr=False)
class Night(Outcome, SourceRows):
    """Result of a night, with parts that are JSON objects.

    Attributes
    ----------
    status : str
        ``breached`` if a threshold is breached or there is an alarm.  Otherwise ``incomplete`` if
        days are missing, broken or provisional, see the job, else ``fine``.
    created : str
        Time at which the day was judged, with the offset from UTC.
    bias, selection : dict or None
        Map of the local bias, and table of risks, of the day.
    incomplete_days : dict or None
        Days of the windows, at most the last 60, that are ``missing``, ``broken`` or
        ``provisional``.
    fresh : bool
        Whether the result was computed, not read from an earlier run.
    """

    schema: ClassVar[str] = "calibscale.nightly/1"

    source: Source | None  # type: ignore[assignment]
    parameters: Annotated[Json, _PARAMETERS]
    job: str
    day: Day
    model: str
    status: Annotated[str, Values(("fine", "incomplete", "breached"))]
    created: str
    group_by: str | None
    clusters: Later[Omitted[Annotated[Json, Clusters] | None]] = None
    calibration: Later[Omitted[Annotated[Json, _CALIBRATION] | None]] = None
    windows: list[Annotated[Json, _WINDOW]]
    thresholds: list[Annotated[Json, _THRESHOLD]]
    drift: Annotated[Json, _DRIFT] | None
    alarms: Annotated[Json, _ALARMS] | None
    trend: Annotated[Json, _TREND]
    ranking: Annotated[Json, _RANKING] | None
    selection: Annotated[Json, Selection] | None
    bias: Annotated[Json, BiasMap] | None
    incomplete_days: Later[Omitted[Annotated[Json, _INCOMPLETE] | None]] = None
    notes: list[str]
    fresh: Hidden[bool]

    def records(self) -> Iterator[Row]:
        """Rows of the tidy table, one for each estimator, window and group."""
        return estimate_rows(vars(self))

    @property
    def breached(self) -> bool:
        """Whether a threshold is breached or an alarm was raised."""
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
