"""Check of the windows of a job: estimates, tests and a reliability diagram of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from calibscale.evaluation.reliability_curves import curve_of
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.checks.judged_window import JudgedWindow
from calibscale.monitoring.ledger.windows import Window
from calibscale.results.evaluation_results import Diagram
from calibscale.results.night_results import GroupResult, WindowResult

_NAMED_MISSING = 60
_FEW_DAYS = 5  # fewer days make an interval that is based on them unreliable


@dataclass(frozen=True)
class WindowCheck:
    """Describe a window of the job.

    Parameters
    ----------
    name : str
        Name of the window.
    """

    name: str

    def judge(self, day: JudgedDay) -> WindowResult:
        """Estimates and tests of the window as of a day."""
        window = day.window(self.name)
        whole = window.whole
        begin = day.first_date()
        # The window of all days begins with the first day of the model, and not with the calendar.
        first = max(window.first, begin) if self.name == "all" else window.first
        self._note_few_days(day, whole)
        days = () if whole is None else whole.days
        return WindowResult(
            name=self.name,
            first=first,
            last=window.last,
            days=days,
            missing=_missing(max(first, begin), window.last, days),
            damaged=_damaged(day, window),
            n=0 if whole is None else whole.n,
            results=window.estimates(None),
            tests=window.tests(),
            groups=_groups(day, window),
            reliability=_reliability(day, whole),
        )

    def _note_few_days(self, day: JudgedDay, whole: Window | None) -> None:
        """Add a note if intervals are based on the variation between few days."""
        if whole and whole.by_days and len(whole.days) < _FEW_DAYS:
            day.notes.append(
                f"The intervals of {', '.join(whole.by_days)} over {self.name} "
                f"({len(whole.days)} days) are rough: they are based on the variation between "
                f"days, and there are fewer than {_FEW_DAYS}."
            )


def _damaged(day: JudgedDay, window: JudgedWindow) -> tuple[str, ...]:
    """Messages about the days of a window that cannot be read."""
    if window.whole is not None:
        return window.whole.damaged
    # A window that has rows but no state could not be read, and its reason says why.
    entries = day.ledger.select(window.first, window.last, day.model)
    has_rows = any(entry.n for entry in entries)
    return (window.reason,) if has_rows and window.reason is not None else ()


def _groups(day: JudgedDay, window: JudgedWindow) -> tuple[GroupResult, ...]:
    """Estimates of the groups that have rows in a window."""
    groups = []
    for key, part in window.parts.items():
        name = day.shown(key)
        if name is not None:
            groups.append(GroupResult(name, part.n, window.estimates(key)))
    return tuple(groups)


def _reliability(day: JudgedDay, whole: Window | None) -> Diagram | None:
    """Diagram of the first estimator with bins, of the notion that the job may name."""
    # The band of a diagram needs independent rows.
    if whole is None or day.recipe.cluster:
        return None
    notion, level = day.job.report.reliability, day.job.confidence
    for e in day.recipe.estimators:
        if notion not in (None, e.notion):
            continue
        curve = curve_of(e, whole.states, level)
        if curve is not None:
            return Diagram(e.notion or "canonical", level, curve)
    return None


def _missing(first: str, last: str, days: Sequence[str]) -> tuple[str, ...]:
    """Dates of a window without data, at most the last 60."""
    present = {day[:10] for day in days}
    start = date.fromisoformat(first)
    count = (date.fromisoformat(last) - start).days + 1
    expected = ((start + timedelta(k)).isoformat() for k in range(count))
    return tuple(day for day in expected if day not in present)[-_NAMED_MISSING:]
