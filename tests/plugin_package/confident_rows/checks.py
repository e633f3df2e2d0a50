"""Check of the number of rows of a day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.checks.night_check import NightCheck
from calibscale.results.night_results import CheckResult


@dataclass(frozen=True)
class RowDrop(NightCheck):
    """Rows of the day as a share of the mean of the earlier days of a window."""

    below: float = 0.5
    window: str = "30d"
    protocol: ClassVar[int] = 1
    name: ClassVar[str] = "row_drop"

    def judge(self, day: JudgedDay) -> CheckResult:
        rows = {entry.date: entry.n for entry in day.entries(window=self.window)}
        today = rows.pop(day.date, 0)
        if not any(rows.values()):
            return CheckResult(self.label, False, "There are no earlier days.")
        share = today * len(rows) / sum(rows.values())
        sentence = f"The day has {today:,} rows, {share:.2f} times the mean of earlier days."
        return CheckResult(self.label, share < self.below, sentence, share, self.below)
