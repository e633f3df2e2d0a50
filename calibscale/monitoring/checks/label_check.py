"""Check of the share of rows whose labels are late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from calibscale.errors import require
from calibscale.formatting import day_names, number_texts
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.checks.night_check import NightCheck
from calibscale.monitoring.job.job_values import checked_window
from calibscale.results.night_results import CheckResult


@dataclass(frozen=True)
class UnlabelledShare(NightCheck):
    """Share of the rows of a window that have no label, breached above a limit.

    Parameters
    ----------
    above : float
        Limit of the share, at least 0 and below 1.
    window : str
        Window as in `windows` of a job.

    Examples
    --------
    >>> from calibscale.monitoring.checks.label_check import UnlabelledShare
    >>> UnlabelledShare(above=0.5).label
    'unlabelled_share(above=0.5)'
    """

    above: float = 0.2
    window: str = "7d"
    name: ClassVar[str] = "unlabelled_share"

    def __post_init__(self) -> None:
        require(0 <= self.above < 1, "above must be at least 0 and below 1", self.above)
        checked_window(self.window)

    def judge(self, day: JudgedDay) -> CheckResult:
        """Compare the share of the days of the window that have a record with the limit."""
        entries = day.entries(window=self.window)
        unlabelled = sum(entry.n_unlabelled for entry in entries)
        rows = unlabelled + sum(entry.n for entry in entries)
        if rows == 0:
            return CheckResult(self.label, False, "There are no rows.", None, self.above)
        share = unlabelled / rows
        sentence = (
            f"{unlabelled:,} of {rows:,} rows over {day_names.window(self.window)} have no label "
            f"yet ({number_texts.percent(share)})."
        )
        return CheckResult(self.label, share > self.above, sentence, share, self.above)
