"""A window of days as a night judges it: its estimates and tests, of all rows and of groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from calibscale.errors import StoreError
from calibscale.inference.floors import with_floor_of_labels
from calibscale.intervals.resampling import Jackknife
from calibscale.monitoring.job.job_tables import Job
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.group_keys import GroupKey
from calibscale.monitoring.ledger.windows import Window, window
from calibscale.results.estimate import BOTH, POPULATION, THIS_N, Estimate, Floor, Interval
from calibscale.results.inference_results import TestResult

_KEPT_DETAILS = ("level", "expected")  # of coverage, while other details are tables


@dataclass(frozen=True, eq=False)
class JudgedWindow:
    """Window of a night.

    Attributes
    ----------
    name : str
        Name of the window in the job.
    first, last : str
        First and last date.
    parts : dict
        Merged state of the days by the key of the group, with None for all rows.  Without rows, or
        if no day can be read, it is empty.
    reason : str or None
        Reason why there are no parts.
    """

    job: Job
    ledger: Ledger
    name: str
    first: str
    last: str
    parts: dict[GroupKey | None, Window]
    reason: str | None = None

    @classmethod
    def read(
        cls, job: Job, ledger: Ledger, name: str, first: str, last: str, compared: bool
    ) -> JudgedWindow:
        """Read the days of all rows and of every group from the ledger.

        Only a window that is `compared` with another one has the values without each run of days.
        """
        model = job.model
        parts: dict[GroupKey | None, Window] = {}
        damaged: list[str] = []
        for group in (None, *ledger.groups(model)):
            entries = ledger.select(first, last, model, group)
            # A group may have no rows in this window.
            if group is not None and not any(e.n for e in entries):
                continue
            try:
                part = window(ledger, first, last, model, group, job.confidence, compared=compared)
            except StoreError as error:
                if group is None:
                    return cls(job, ledger, name, first, last, {}, str(error))
                damaged.append(str(error))
                continue
            damaged += part.damaged
            # Only the window of all rows is judged by its states again, for floors and diagrams.
            # The states of many groups would fill the memory.
            parts[group] = part if group is None else replace(part, states={})
        parts[None] = replace(parts[None], damaged=tuple(damaged))
        return cls(job, ledger, name, first, last, parts)

    @property
    def whole(self) -> Window | None:
        """State of all rows."""
        return self.parts.get(None)

    def estimates(self, group: GroupKey | None) -> tuple[Estimate, ...]:
        """Estimates of all rows or of a group, with intervals and floors."""
        part = self.parts.get(group)
        if part is None:
            return ()
        estimates = []
        for k, estimate in enumerate(part.estimates):
            if len(part.days) == 1:
                estimate = self._of_day(estimate, part.days[0], group, k)
            # A floor needs independent rows, and the states of the whole window.
            elif group is None and not self.ledger.recipe.cluster:
                estimate = with_floor_of_labels(part.estimators[k], estimate, part.states)
            estimates.append(self._in_result(estimate))
        return tuple(estimates)

    def _of_day(self, estimate: Estimate, day: str, group: GroupKey | None, k: int) -> Estimate:
        """Estimate of a day with the floor and the interval of its record."""
        (entry,) = [e for e in self.ledger.day(day, self.job.model) if e.group == group]
        floors = entry.info.get("floors")  # records of earlier versions have none
        floor = None if floors is None else floors[k]
        # A single day has no variation between days: its record has an interval from groups of
        # rows.  Records of earlier versions do not name the method, which was the jackknife.
        recorded_value, low, high, error, *methods = entry.info["estimates"][k]
        value = estimate.value
        recipe = self.ledger.recipe
        if recipe.cluster and estimate.interval is None:
            value = recorded_value
        estimate = replace(estimate, value=value, floor=floor and Floor(**floor))
        if low is None or estimate.interval is not None:
            return estimate
        level = self.job.confidence
        jackknife = Jackknife(confidence_level=level)
        method = methods[0] if methods else jackknife.method
        resampled = method == jackknife.method
        covers = POPULATION
        if not recipe.estimators[k].unbiased:
            # Resampled values vary around the expectation at this n.
            covers = THIS_N if resampled else BOTH
        parts = jackknife.groups if resampled else 0
        return replace(estimate, interval=Interval(low, high, level, method, parts, error, covers))

    def _in_result(self, estimate: Estimate) -> Estimate:
        """Estimate as results have it: a finite value, the notion of forecasts, few details."""
        value = estimate.value
        if value is not None:
            value = float(value) if math.isfinite(value) else None
        kept = {key: estimate.details[key] for key in _KEPT_DETAILS if key in estimate.details}
        return replace(
            estimate,
            value=value,
            notion=self.ledger.recipe.notion_of(estimate.notion),
            details=kept,
            reason=estimate.why,
        )

    def tests(self) -> tuple[TestResult, ...]:
        """Tests of all rows, of a single day from its record."""
        if self.whole is None:
            return ()
        notion_of = self.ledger.recipe.notion_of
        if len(self.whole.days) > 1:
            return tuple(replace(t, notion=notion_of(t.notion)) for t in self.whole.tests)
        entry = self.ledger.day(self.whole.days[0], self.job.model)[0]
        return tuple(
            TestResult.from_dict({**stored, "notion": notion_of(stored["notion"])})
            for stored in entry.info["tests"]
        )
