"""The ledger of a job as of a day, which the checks of a night judge."""

from __future__ import annotations

from calibscale.monitoring.checks.judged_window import JudgedWindow
from calibscale.monitoring.job.job_days import window_days
from calibscale.monitoring.job.job_tables import Job
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.group_keys import FLAGS, GroupKey, condition, shown
from calibscale.monitoring.ledger.index import Entry
from calibscale.results.levels import NO_NUMBER

TREND_DAYS = 90  # days of each estimate and of the evidence in a result


class JudgedDay:
    """Ledger of a job as of a day: its windows, groups and records.

    Attributes
    ----------
    job : Job
        The job, with its settings.
    ledger : Ledger
        Records of all days and models.
    day, date : str
        Day that is judged, such as 2026-11-21T06, and its date.
    recipe : Recipe
        Estimators of the ledger, and the column of its groups.
    model : str
        Model version of the job.
    notes : list of str
        Sentences for the result, to which checks add.

    See Also
    --------
    calibscale.monitoring.checks.night_check.NightCheck : base class of checks, with an example
    """

    def __init__(self, job: Job, ledger: Ledger, day: str) -> None:
        self.job, self.ledger, self.day = job, ledger, day
        self.recipe = ledger.recipe
        self.model = job.model
        self.date = day[:10]
        self.notes: list[str] = []
        self._windows: dict[str, JudgedWindow] = {}
        self._keys = ledger.groups(job.model)

    # ---------------------------------------------------------------- windows

    def window(self, name: str) -> JudgedWindow:
        """Estimates and tests of a window such as ``7d``, which is read once for all checks."""
        if name not in self._windows:
            first, last = window_days(name, self.date)
            self._windows[name] = self.read(name, first, min(last, self.date))
        return self._windows[name]

    def read(self, name: str, first: str, last: str) -> JudgedWindow:
        """Estimates and tests of the dates from `first` to `last`, under a name of your own."""
        settings = self.job.drift
        # Only windows that are compared need the values without each run of days.
        compared = settings is not None and name in (str(settings.window), "baseline")
        return JudgedWindow.read(self.job, self.ledger, name, first, last, compared)

    # ---------------------------------------------------------------- groups

    def groups(self) -> list[GroupKey]:
        """Groups that the model had up to this day."""
        return [group for group in self._keys if self.entries(group)]

    def shown(self, group: GroupKey | None) -> GroupKey | None:
        """Name or number of a group in results."""
        return shown(group, self._keys)

    def key(self, group: GroupKey | None) -> GroupKey | None:
        """Key of a group that the job names or numbers, where 0 and 1 are false and true."""
        numbered = {*self._keys} - {NO_NUMBER}
        are_flags = len(numbered) > 0 and numbered <= {*FLAGS}
        if group in (0.0, 1.0) and are_flags:
            return FLAGS[int(group)]
        return next((key for key in self._keys if self.shown(key) == group), group)

    def condition(self, group: GroupKey) -> str:
        """Group as a condition, such as “region = north”."""
        name = self.shown(group)
        return "" if name is None else condition(self.recipe.group_by, name)

    def is_known(self, group: GroupKey) -> bool:
        """Whether a day of the model has rows of the group."""
        return group in self._keys

    def group_names(self) -> list[str]:
        """Names or numbers of all groups of the model."""
        return [str(self.shown(key)) for key in self._keys]

    # ---------------------------------------------------------------- days

    def entries(self, group: GroupKey | None = None, window: str = "all") -> list[Entry]:
        """Records of the days of a window up to this day, of all rows or of a group."""
        first, last = window_days(window, self.date)
        return self.ledger.select(first, min(last, self.date), self.model, group)

    def first_date(self) -> str:
        """Date of the first record of the model, or else this day."""
        entries = self.entries()
        return entries[0].date if entries else self.date
