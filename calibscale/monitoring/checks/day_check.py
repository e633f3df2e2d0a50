"""Check of the days of the windows: which are missing, broken or provisional."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

from calibscale.monitoring.job.job_days import window_days
from calibscale.monitoring.job.job_tables import Job
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.index import Entry
from calibscale.results.night_results import BrokenDay, IncompleteDays, ProvisionalDay

MOST_DAYS = 60  # latest days of the windows that are examined


def incomplete_days(
    job: Job,
    ledger: Ledger | None,
    day: str,
    *,
    absent: bool,
    broken: Mapping[str, str],
    unlabelled: int = 0,
) -> IncompleteDays:
    """Days up to `day` without predictions, with predictions that cannot be read, without labels.

    The days belong to the windows of the job since the first day of the model, and are at most the
    last 60.  A day without rows is missing, unless it is one of `off_days`.

    Parameters
    ----------
    absent : bool
        Whether there are no predictions of `day` and no record of it.
    broken : dict
        Reasons why days cannot be read, by day.
    unlabelled : int
        Number of rows of `day` without any record, because no row has a label on the first night.
    """
    entries = [] if ledger is None else ledger.select(None, day, job.model)
    damaged = {} if ledger is None else ledger.damaged_days(job.model)
    reasons = {key: text for key, text in (damaged | {**broken}).items() if key[:10] <= day[:10]}
    first = _first(job, day, entries, reasons)
    dates = [date.fromordinal(k) for k in range(first.toordinal(), _date(day).toordinal() + 1)]
    # A day without labels yet is provisional, not missing.
    filled = {entry.date for entry in entries if entry.n or entry.n_unlabelled}
    accounted = filled | {key[:10] for key in reasons} | ({day[:10]} if unlabelled else set())
    missing = [d.isoformat() for d in dates if d.isoformat() not in accounted and not job.off(d)]
    if absent and day not in missing and not (job.off(_date(day)) or day in reasons):
        missing.append(day)  # a part of a day that has other parts
    examined = {d.isoformat() for d in dates}
    broken_days = tuple(
        BrokenDay(key, reasons[key]) for key in sorted(reasons) if key[:10] in examined
    )
    provisional = [
        ProvisionalDay(entry.day, entry.n, entry.n_unlabelled)
        for entry in entries
        if entry.n_unlabelled and entry.date in examined and entry.day not in reasons
    ]
    if unlabelled:
        provisional.append(ProvisionalDay(day, 0, unlabelled))
    return IncompleteDays(tuple(missing), broken_days, tuple(provisional))


def is_incomplete(job: Job, days: IncompleteDays) -> bool:
    """Whether a night with these days is incomplete, as the job says."""
    provisional = days.provisional and job.provisional == "incomplete"
    return bool(days.missing or days.broken or provisional)


def _first(job: Job, day: str, entries: list[Entry], reasons: Mapping[str, str]) -> date:
    """First day to examine."""
    last = _date(day)
    earliest = [window_days(name, day[:10])[0] for name in job.windows]
    # Days before the first record, or the first broken day, are no missing days.
    begun = min([entry.date for entry in entries[:1]] + [key[:10] for key in reasons], default=day)
    return max(min(map(_date, earliest)), _date(begun), last - timedelta(MOST_DAYS - 1))


def _date(day: str) -> date:
    return date.fromisoformat(day[:10])
