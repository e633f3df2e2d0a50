"""Check of the champion of recalibration and its challengers."""

from __future__ import annotations

from dataclasses import dataclass

from calibscale.addresses import shown_address, without_secrets
from calibscale.errors import CalibscaleError
from calibscale.formatting import day_names
from calibscale.inference.score_bets import log_threshold
from calibscale.monitoring.checks.judged_day import TREND_DAYS, JudgedDay
from calibscale.monitoring.job.job_tables import Challenges, Job
from calibscale.monitoring.ledger.challenges import ChallengeHistory, ChallengeNight
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.map_files import (
    foreign_champion,
    history_of,
    is_published,
    publish,
)
from calibscale.results.night_results import (
    NightRecalibration,
    RecalibrationChallenger,
    RecalibrationNight,
)

COMPETES = "competes"
AS_THEY_ARE = "the predictions as they are"


@dataclass(frozen=True)
class RecalibrationCheck:
    """Describe the champion, its challengers, and the nights on which they competed."""

    settings: Challenges

    def judge(self, day: JudgedDay) -> NightRecalibration:
        """Champion and challengers as of a day, with the fault of the file or of the night."""
        settings, history = self.settings, history_of(day.ledger, day.model, day.day)
        newest = history.newest
        # A day without predictions has no record, and the champion is that of earlier days.
        tonight = newest if newest is not None and newest.day == day.day else None
        competed = () if newest is None else newest.challengers
        return NightRecalibration(
            path=shown_address(settings.path),
            method=settings.method,
            alpha=settings.alpha,
            champion=_name(history, history.champion),
            since=history.champion_since,
            replaced=tonight is not None and tonight.winner is not None,
            fitted=tonight is not None and tonight.fit is not None,
            note="" if tonight is None else tonight.note,
            fault=self._fault(day, history),
            challengers=tuple(
                self._challenger(history, newest, number)
                for number in competed
                if newest is not None
            ),
            nights=tuple(_night(history, night) for night in history.nights[-TREND_DAYS:]),
        )

    def _fault(self, day: JudgedDay, history: ChallengeHistory) -> str | None:
        """Why the night has no comparison, or why the champion cannot be written."""
        entries = day.ledger.day(day.day, day.model)
        record = entries[0].info.get("recalibration", {}) if entries else {}
        if "fault" in record:
            return str(record["fault"])
        # The file is about now, and the history about the day: the ledger may have later days.
        complete = history_of(day.ledger, day.model)
        classes = day.recipe.classes
        try:
            foreign_champion(day.job.champion_path, complete, classes)
        except CalibscaleError as error:
            return " ".join(without_secrets(str(error)).split())
        return None

    def _challenger(
        self, history: ChallengeHistory, night: ChallengeNight, number: int
    ) -> RecalibrationChallenger:
        entry, champion = history.maps[number], night.champion
        n = history.rows_compared(champion, number)
        gains = sum(sums.gain for sums in history.duels(champion, number).values())
        return RecalibrationChallenger(
            number=number,
            day=entry.day,
            method=entry.method,
            n_fit=entry.n,
            n=n,
            gain=gains / n if n else None,
            log_evidence=float(history.evidence(champion, number)[-1]),
            log_threshold=log_threshold(number, self.settings.alpha),
            state=night.left.get(number, COMPETES),
        )


def _name(history: ChallengeHistory, number: int) -> str:
    """Method and first day of a map in words."""
    entry = history.maps.get(number)
    if entry is None:
        return AS_THEY_ARE
    if entry.is_adopted:
        return f"{entry.method} of the file, adopted on {day_names.day(entry.day)}"
    return f"{entry.method}, fitted before {day_names.day(entry.day)}"


def _night(history: ChallengeHistory, night: ChallengeNight) -> RecalibrationNight:
    events = []
    if night.fit is not None:
        verb = "adopted as champion" if night.fit.is_adopted else "came"
        events.append(f"number {night.fit.number} ({night.fit.method}) {verb}")
    events += [f"number {number} {reason}" for number, reason in night.left.items()]
    return RecalibrationNight(
        day=night.day,
        n=night.scores.n,
        as_they_are=night.scores.as_they_are,
        champion_score=night.scores.champion,
        champion=_name(history, night.champion),
        event="; ".join(events),
    )


def publish_champion(job: Job, ledger: Ledger | None) -> None:
    """Write the champion to its file, if it has changed.

    A file that cannot be used stays as it is, and the check of the night has reported it.
    """
    if job.recalibration is None or ledger is None:
        return
    path, history = job.champion_path, history_of(ledger, job.model)
    # A damaged file may be of use to its owner, and a champion of another kind may be in use.
    try:
        foreign_champion(path, history, ledger.recipe.classes)
    except CalibscaleError:
        return
    publish(path, ledger.path, job.model, history)


def is_champion_published(job: Job, ledger: Ledger | None) -> bool:
    """Whether the file of the champion is as it should be, which is read to know it."""
    if job.recalibration is None or ledger is None:
        return True
    try:
        return is_published(job.champion_path, history_of(ledger, job.model))
    except CalibscaleError:
        return False
