"""Plans of nights: what a night would read, judge and write, without writing anything."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from calibscale.data.source import ArraySource
from calibscale.formatting.naming import joined
from calibscale.formatting.number_texts import plural
from calibscale.formatting.terms import notion
from calibscale.monitoring import day_source, outputs
from calibscale.monitoring.day_record import prepared
from calibscale.monitoring.job.job_consistency import one_sided
from calibscale.monitoring.job.job_days import window_days
from calibscale.monitoring.job.job_ledger import open_ledger
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.job.job_tables import Job
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.index import check_key
from calibscale.monitoring.ledger.map_files import history_of
from calibscale.monitoring.ledger.recipe import Recipe
from calibscale.monitoring.night import NO_ALARMS
from calibscale.monitoring.night_challenge import planned_fit
from calibscale.planning.cost_plan import plan
from calibscale.results.night_results import NightPlan
from calibscale.session import Session


def dry_run(job: Job | str | Path, day: str) -> NightPlan:
    """Plan what `night` would do, without writing anything.

    Raises
    ------
    OptionError, StoreError, InvalidDataError
        Errors of `night` that do not require reading the rows.
    """
    job = job if isinstance(job, Job) else read_job(job)
    check_key(day)
    outputs.check_places(job, day)
    ledger = open_ledger(job)
    mark = day_source.mark(job, day)
    entries = [] if ledger is None else ledger.select(model=job.model)
    marks = {e.day: e.info.get("mark") for e in entries}
    days = {e.day for e in entries if e.n}
    # The plan repeats the decisions of `calibscale.monitoring.night`, without its locks and files.
    reads = "nothing: the day in the ledger is up to date"
    recipe = None if ledger is None else ledger.recipe
    if mark is None or marks.get(day) != mark:
        days.add(day)
        reads = "the day, for the first time"
        if day in marks:
            reads = "the day again: its predictions or labels have changed"
    rows = seconds = None
    # Sources that are not files are opened even if nothing is to be read, because opening is cheap.
    reading = mark is None or marks.get(day) != mark
    if reading or job.source.format != "files":
        with ExitStack() as stack:
            source = _opened_for_plan(job, day, stack)
            if source is None:
                days.discard(day)
            else:
                rows = source.rows
                seconds, recipe = _checked(job, source, ledger)
    windows = {}
    for name in job.windows:
        first, last = window_days(name, day[:10])
        windows[name] = sum(first <= key[:10] <= min(last, day[:10]) for key in days)
    places = {kind: str(place) for kind, place in outputs.places(job, day).items()}
    return NightPlan(
        day,
        job.model,
        str(day_source.place(job, day)),
        rows,
        reads,
        str(job.ledger_path),
        len(marks),
        windows,
        places,
        seconds,
        _alarms_in_words(job, recipe),
        recalibration=_challenge_in_words(job, ledger, day),
        warnings=one_sided(job),
    )


def _challenge_in_words(job: Job, ledger: Ledger | None, day: str) -> str | None:
    """Fit and comparison of a night in words, or None without [recalibration]."""
    settings = job.recalibration
    if settings is None:
        return None
    history = history_of(ledger, job.model)
    night = next((night for night in history.nights if night.day == day), None)
    if night is not None:
        count = plural(len(night.challengers), "challenger")
        return f"compares {count} with the champion, as when the day was first read"
    if history.newest is not None and day < history.newest.day:
        return "nothing: later days have been compared"
    planned = planned_fit(job, settings, ledger, history, day)
    compared = len(history.challengers)
    if planned.reason:
        text = planned.reason.removesuffix(".").removeprefix("No challenger was fitted: ")
        return f"compares {plural(compared, 'challenger')} with the champion; no fit: {text}"
    rows = f"{plural(planned.n, 'row')} of {plural(len(planned.days), 'day')}"
    return f"fits {settings.method} to {rows}, and compares it with the champion"


def _opened_for_plan(job: Job, day: str, stack: ExitStack) -> ArraySource | None:
    """Source of a day.  Files are copied to a temporary folder, and not next to the ledger."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="calibscale-plan-"))
    return stack.enter_context(day_source.opened(job, day, Path(folder)))


def _checked(job: Job, source: ArraySource, ledger: Ledger | None) -> tuple[float | None, Recipe]:
    """Duration of a pass over a day, and the recipe of its ledger, or the errors of a night."""
    day_source.check_covariates(job, source)
    bound = () if ledger is None else ledger.recipe.estimators
    estimators = [e.settings for e in bound] or job.built_estimators()
    duration = plan(source, estimators, **job.options).seconds
    with Session.open(source, **job.options) as session:
        _, recipe, _ = prepared(job, session, ledger)
    return duration, recipe


def _alarms_in_words(job: Job, recipe: Recipe | None) -> str:
    """Sources of alarms in words, or the reason why alarms are off."""
    if job.alarms is None:
        return "off: alarms = false"
    tests = list(job.alarms.tests)
    if recipe is None:
        return "on"
    if not (recipe.wagers or tests):
        return f"off: {NO_ALARMS[0].lower()}{NO_ALARMS[1:].removesuffix('.')}"
    names = [notion(wager.notion) for wager in recipe.wagers]
    return f"on: {joined([*names, *tests])}"
