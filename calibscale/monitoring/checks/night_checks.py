"""All checks of a night, in the order in which they are judged."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from traceback import format_exc

from calibscale.addresses import without_secrets
from calibscale.monitoring.checks.alarm_check import AlarmCheck
from calibscale.monitoring.checks.drift_check import DriftCheck
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.checks.night_check import NightCheck
from calibscale.monitoring.checks.ranking_check import RankingCheck
from calibscale.monitoring.checks.recalibration_check import RecalibrationCheck
from calibscale.monitoring.checks.threshold_check import ThresholdCheck
from calibscale.monitoring.checks.trend_check import TrendCheck
from calibscale.monitoring.checks.window_check import WindowCheck
from calibscale.results.night_results import (
    NO_TREND,
    AlarmResult,
    CheckResult,
    DriftResult,
    NightRanking,
    NightRecalibration,
    ThresholdResult,
    Trend,
    WindowResult,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NightVerdicts:
    """Results of the checks, and the sentences that they add to the notes of the night.

    Without a ledger there are no results.
    """

    windows: tuple[WindowResult, ...] = ()
    thresholds: tuple[ThresholdResult, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    drift: DriftResult | None = None
    alarms: AlarmResult | None = None
    trend: Trend = NO_TREND
    ranking: NightRanking | None = None
    recalibration: NightRecalibration | None = None
    notes: tuple[str, ...] = ()

    @property
    def breached(self) -> bool:
        """Whether a threshold or a check is breached or failed, or there is an alarm."""
        alarm = self.alarms is not None and self.alarms.alarm
        breaches = [threshold.breached for threshold in self.thresholds]
        breaches += [check.breached for check in self.checks]
        breaches.append(self.recalibration is not None and self.recalibration.fault is not None)
        return alarm or any(breaches)


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
        checks=tuple(check_result(check, day) for check in job.built_checks()),
        drift=drift,
        alarms=None if job.alarms is None else AlarmCheck(job.alarms).judge(day),
        trend=TrendCheck().judge(day),
        ranking=None if job.ranking is None else RankingCheck(job.ranking).judge(day),
        recalibration=(
            None if job.recalibration is None else RecalibrationCheck(job.recalibration).judge(day)
        ),
        notes=tuple(day.notes),
    )


def check_result(check: NightCheck, day: JudgedDay) -> CheckResult:
    """Verdict of a check, which is breached if the check fails."""
    try:
        return _plain(check.judge(day))
    except (Exception, SystemExit) as error:  # a check of another package may fail in any way
        _log.debug("the check %s failed: %s", check.label, without_secrets(format_exc()))
        # A sentence is one line, and the text of an error may have several.
        reason = " ".join(without_secrets(f"{type(error).__name__}: {error}").split())
        return CheckResult(check.label, True, f"The check failed: {reason}", failed=True)


def _plain(result: CheckResult) -> CheckResult:
    """Result of a check with numbers that JSON has.

    A check may use numbers of NumPy, and NaN where there is no value.
    """
    if not isinstance(result, CheckResult):
        raise TypeError(f"judge returned {type(result).__name__} instead of CheckResult")
    return CheckResult(
        str(result.check),
        bool(result.breached),
        str(result.sentence),
        _finite(result.value),
        _finite(result.limit),
    )


def _finite(value: float | None) -> float | None:
    """A number, or None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else float(value)
