"""All checks of a night, in the order in which they are judged."""

from __future__ import annotations

from dataclasses import dataclass

from calibscale.monitoring.checks.alarm_check import AlarmCheck
from calibscale.monitoring.checks.drift_check import DriftCheck
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.checks.ranking_check import RankingCheck
from calibscale.monitoring.checks.threshold_check import ThresholdCheck
from calibscale.monitoring.checks.trend_check import TrendCheck
from calibscale.monitoring.checks.window_check import WindowCheck
from calibscale.results.night_results import (
    NO_TREND,
    AlarmResult,
    DriftResult,
    NightRanking,
    ThresholdResult,
    Trend,
    WindowResult,
)


@dataclass(frozen=True)
class NightVerdicts:
    """Results of the checks, and the sentences that they add to the notes of the night.

    Without a ledger there are no results.
    """

    windows: tuple[WindowResult, ...] = ()
    thresholds: tuple[ThresholdResult, ...] = ()
    drift: DriftResult | None = None
    alarms: AlarmResult | None = None
    trend: Trend = NO_TREND
    ranking: NightRanking | None = None
    notes: tuple[str, ...] = ()

    @property
    def breached(self) -> bool:
        """Whether a threshold is breached or there is an alarm."""
        alarm = self.alarms is not None and self.alarms.alarm
        return alarm or any(threshold.breached for threshold in self.thresholds)


def judge(day: JudgedDay) -> NightVerdicts:
    """Judge the ledger of a job as of a day by every check that the job requests."""
    job = day.job
    # Thresholds limit the p-values of drift, which therefore is judged before them.
    drift = None if job.drift is None else DriftCheck(job.drift).judge(day)
    windows = tuple(WindowCheck(name).judge(day) for name in job.windows)
    thresholds: list[ThresholdResult] = []
    for threshold in job.thresholds:
        thresholds += ThresholdCheck(threshold, drift).judge(day)
    return NightVerdicts(
        windows=windows,
        thresholds=tuple(thresholds),
        drift=drift,
        alarms=None if job.alarms is None else AlarmCheck(job.alarms).judge(day),
        trend=TrendCheck().judge(day),
        ranking=None if job.ranking is None else RankingCheck(job.ranking).judge(day),
        notes=tuple(day.notes),
    )
