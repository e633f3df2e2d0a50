"""The part of a night that lets a champion and challengers of recalibration compete."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from calibscale.addresses import without_secrets
from calibscale.atomic_files import write_json
from calibscale.errors import CalibscaleError, OptionError
from calibscale.formatting import number_texts
from calibscale.monitoring.job.job_tables import Challenges, Job
from calibscale.monitoring.ledger.challenges import (
    AS_THEY_ARE,
    ChallengeHistory,
    ChallengeNight,
    MapEntry,
    begun,
    decided,
    free_place,
    is_due,
)
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.index import Entry
from calibscale.monitoring.ledger.map_files import (
    foreign_champion,
    history_of,
    map_path,
    stored_map,
)
from calibscale.monitoring.window_rows import window_source
from calibscale.recalibration.recalibrator import FittedRecalibrator
from calibscale.recalibration.score_duels import DuelState, ScoreDuels, night_scores
from calibscale.session import Session, classes_only

if TYPE_CHECKING:
    from calibscale.recalibration.fits import FittedRecalibration


@dataclass(frozen=True)
class NightChallenge:
    """Who competes on a night, and the statistic that compares their scores in the day's pass.

    `fault` is the reason why nobody competes, which the record keeps until the night is run again.
    """

    alpha: float
    history: ChallengeHistory
    night: ChallengeNight
    statistic: ScoreDuels | None = None
    fault: str = ""

    def record(self, state: DuelState | None) -> dict[str, Any]:
        """JSON object for the record of the day, from the state of its pass if it has rows."""
        if self.statistic is None:
            return {"fault": self.fault}
        scored = replace(self.night, scores=night_scores(self.statistic, state))
        return decided(self.history, scored, self.alpha).to_dict()


def prepared_challenge(
    job: Job, ledger: Ledger | None, day: str, session: Session
) -> NightChallenge | None:
    """Champion and challengers of a day, with a new challenger if it is due.

    A challenger is fitted before the rows of the day are read.  Its file is written before the
    ledger names it, so that a run that is killed in between fits it again.  Errors are kept as the
    fault of the night, because the other results do not depend on it.
    """
    settings = job.recalibration
    if settings is None:
        return None
    history = history_of(ledger, job.model)
    try:
        classes_only("recalibration", session.source)
        night = next((night for night in history.nights if night.day == day), None)
        # Who competes on a day is fixed when it is first read, as bets of alarms are.
        if night is None:
            night = _new_night(job, settings, ledger, history, day, session.source.classes)
        return NightChallenge(
            settings.alpha, history, night, _statistic(job, history.with_night(night), night)
        )
    except CalibscaleError as error:
        fault = " ".join(without_secrets(str(error)).split())
        return NightChallenge(settings.alpha, history, ChallengeNight(day), fault=fault)


def _statistic(job: Job, history: ChallengeHistory, night: ChallengeNight) -> ScoreDuels:
    numbers = (night.champion, *night.challengers)
    maps: list[FittedRecalibrator | None] = []
    for number in numbers:
        if number == AS_THEY_ARE:
            maps.append(None)
        else:
            maps.append(stored_map(job.ledger_path, job.model, history.maps[number]).fit)
    return ScoreDuels(numbers, tuple(maps))


def _new_night(
    job: Job,
    settings: Challenges,
    ledger: Ledger | None,
    history: ChallengeHistory,
    day: str,
    classes: int,
) -> ChallengeNight:
    """Record of a new day, before its rows are read."""
    newest = history.newest
    if newest is not None and day < newest.day:
        return begun(history, day)
    # The numbers of maps share out α, so that a number is never used again.
    number = max(history.maps, default=0) + 1
    adopted = _adopted(job, history, classes)
    if adopted is not None:
        entry = _kept(job, adopted, number, day, is_adopted=True)
        return begun(history, day, fit=entry)
    planned = planned_fit(job, settings, ledger, history, day)
    if planned.reason:
        return begun(history, day, note=planned.reason)
    try:
        fitted = _fitted(job, settings, planned.days)
    except OptionError as error:
        return begun(history, day, note=f"No challenger was fitted: {without_secrets(str(error))}")
    if fitted is None:
        reason = "No challenger was fitted: the predictions of earlier days are not there any more."
        return begun(history, day, note=reason)
    if _is_champion(fitted, history):
        note = f"The fit ({fitted.method}) is the champion itself, and no challenger."
        return begun(history, day, attempted=True, note=note, rows=planned.rows)
    entry = _kept(job, fitted, number, day)
    return begun(
        history, day, fit=entry, most=settings.challengers, attempted=True, rows=planned.rows
    )


def _adopted(job: Job, history: ChallengeHistory, classes: int) -> FittedRecalibration | None:
    """Recalibration that the user has put in the place of the champion.

    A file that cannot be used is reported by the check of the night, and the champion of the ledger
    goes on.
    """
    try:
        return foreign_champion(job.champion_path, history, classes)
    except CalibscaleError:
        return None


def _is_champion(fitted: FittedRecalibration, history: ChallengeHistory) -> bool:
    from calibscale.recalibration.parametric import Identity  # slow to import

    champion = history.maps.get(history.champion)
    # A challenger that equals the champion would take a place and never win.
    if champion is None:
        return fitted.method == Identity.name
    return champion.checksum == fitted.checksum or champion.method == fitted.method == Identity.name


def _kept(
    job: Job, fitted: FittedRecalibration, number: int, day: str, *, is_adopted: bool = False
) -> MapEntry:
    """Entry of a fit whose file has been written to the ledger."""
    # The time that a fit takes is no part of it: a repeated run writes the same file.
    fitted = replace(fitted, seconds=0.0)
    write_json(map_path(job.ledger_path, job.model, number), fitted.to_dict())
    return MapEntry(number, day, fitted.method, fitted.n, str(fitted.checksum), is_adopted)


class PlannedFit(NamedTuple):
    """Days of a fit and the hash of their records, or the reason why there is no fit."""

    days: tuple[str, ...] = ()
    n: int = 0
    rows: str = ""
    reason: str = ""


def planned_fit(
    job: Job, settings: Challenges, ledger: Ledger | None, history: ChallengeHistory, day: str
) -> PlannedFit:
    """Plan of the fit of a new day, which a dry run shows."""
    if not is_due(history, day, settings.interval):
        return PlannedFit(reason=_next_fit(history, settings))
    entries = _window(ledger, job.model, day, int(settings.days[:-1]))
    n = sum(entry.n for entry in entries)
    # Few rows give a map that later nights would only reject.  The next night tries again.
    if n < settings.min_rows:
        return PlannedFit(
            reason=f"No challenger was fitted: the {settings.days[:-1]} days before have "
            f"{number_texts.plural(n, 'labelled row')}, fewer than min_rows = "
            f"{settings.min_rows:,}."
        )
    # A day that is read again has another revision, as its labels or predictions have changed.
    revisions = repr([(entry.day, entry.revision) for entry in entries])
    rows = hashlib.sha256(revisions.encode()).hexdigest()[:16]
    last = history.last_attempt
    if last is not None and last.rows == rows:
        reason = "No challenger was fitted: no labels have come since the last fit."
        return PlannedFit(reason=reason)
    is_free, _ = free_place(history, settings.challengers)
    if not is_free:
        return PlannedFit(
            reason="No challenger was fitted: all challengers still wait for their first labels."
        )
    return PlannedFit(tuple(entry.day for entry in entries), n, rows)


def _next_fit(history: ChallengeHistory, settings: Challenges) -> str:
    last = history.last_attempt
    assert last is not None
    due = date.fromisoformat(last.day[:10]) + timedelta(settings.interval)
    return f"The next challenger is due on {due.isoformat()}."


def _window(ledger: Ledger | None, model: str, day: str, days: int) -> list[Entry]:
    """Records with labelled rows of the dates before a day."""
    if ledger is None:
        return []
    end = date.fromisoformat(day[:10])
    first = end - timedelta(min(days, (end - date.min).days))
    last = (end - timedelta(1)).isoformat()
    return [entry for entry in ledger.select(first.isoformat(), last, model) if entry.n]


def _fitted(job: Job, settings: Challenges, days: tuple[str, ...]) -> FittedRecalibration | None:
    """Recalibration fitted to the labelled rows of days, or None if they are gone."""
    source = window_source(job, days)
    if source is None:
        return None
    from calibscale.recalibration.fitting import recalibrate  # slow to import

    # Later nights judge the fit, so that a cross-fit would be wasted.
    return recalibrate(source, settings.method, validate=False, tolerance=job.source.tolerance)
