"""A champion and its challengers over the nights of a ledger: who competes, and who wins.

All decisions follow from the records of the nights, which the ledger keeps with the days.  The
champion and the challengers of a night are fixed before its labels are read, and stay as they are
when the night is read again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from typing import Any, Self

from calibscale.array_types import Floats
from calibscale.inference.score_bets import DuelSums, log_evidence, log_threshold
from calibscale.recalibration.score_duels import NightScores, restored_scores, stored_scores

AS_THEY_ARE = 0  # number of the predictions as they are, the first champion
# Reasons why a challenger does not compete any more.
WON = "replaced the champion"
WORSE = "is worse than the champion"
PUSHED_OUT = "gave its place to a newer one, with the least evidence of all"
OTHER_CHAMPION = "was compared with an earlier champion"


@dataclass(frozen=True)
class MapEntry:
    """A fitted recalibration of a ledger.

    Attributes
    ----------
    number : int
        1 for the first one.
    day : str
        First day that it is compared on.  It was fitted to earlier days.
    method : str
    n : int
        Number of rows of the fit.
    checksum : str
        Checksum of all that recalibrated predictions depend on.
    is_adopted : bool
        Whether it is a champion that the user has put in place.
    """

    number: int
    day: str
    method: str
    n: int
    checksum: str
    is_adopted: bool = False


@dataclass(frozen=True)
class ChallengeNight:
    """Record of a night: who competed, the scores, and what followed from them.

    Attributes
    ----------
    champion, challengers : int, tuple of int
        Numbers of the maps whose scores were compared.
    fit : MapEntry or None
        Map that came on this night.
    attempted : bool
        Whether the schedule waits for the next date, with or without a fit.
    note : str
        Why no challenger came on this night, or empty.
    rows : str
        Hash of the records of the days that a challenger was fitted to.
    left : dict
        Reasons why challengers do not compete on later nights, by number.
    winner : int or None
        Challenger that replaced the champion after this night.
    """

    day: str
    champion: int = AS_THEY_ARE
    challengers: tuple[int, ...] = ()
    fit: MapEntry | None = None
    attempted: bool = False
    note: str = ""
    rows: str = ""
    scores: NightScores = field(default_factory=NightScores)
    left: dict[int, str] = field(default_factory=dict)
    winner: int | None = None

    @property
    def champion_after(self) -> int:
        """Champion of later nights."""
        return self.champion if self.winner is None else self.winner

    def to_dict(self) -> dict[str, Any]:
        """JSON object of the record, without the day, which the ledger knows."""
        return {
            "champion": self.champion,
            "challengers": list(self.challengers),
            "fit": None if self.fit is None else asdict(self.fit),
            "attempted": self.attempted,
            "note": self.note,
            "rows": self.rows,
            "scores": stored_scores(self.scores),
            "left": {str(number): reason for number, reason in self.left.items()},
            "winner": self.winner,
        }

    @classmethod
    def from_dict(cls, day: str, value: dict[str, Any]) -> Self:
        """Record of a day from its JSON object."""
        fit = value["fit"]
        return cls(
            day=day,
            champion=value["champion"],
            challengers=tuple(value["challengers"]),
            fit=None if fit is None else MapEntry(**fit),
            attempted=value["attempted"],
            note=value["note"],
            rows=value["rows"],
            scores=restored_scores(value["scores"]),
            left={int(number): reason for number, reason in value["left"].items()},
            winner=value["winner"],
        )


@dataclass(frozen=True)
class ChallengeHistory:
    """Records of the nights of a model, in the order of their days."""

    nights: tuple[ChallengeNight, ...] = ()

    @property
    def newest(self) -> ChallengeNight | None:
        """Record of the latest day."""
        return self.nights[-1] if self.nights else None

    @property
    def maps(self) -> dict[int, MapEntry]:
        """Maps by number."""
        return {night.fit.number: night.fit for night in self.nights if night.fit is not None}

    @property
    def champion(self) -> int:
        """Number of the champion after the latest night."""
        return AS_THEY_ARE if self.newest is None else self.newest.champion_after

    @property
    def champion_since(self) -> str | None:
        """Day after whose rows the champion was chosen, None for the predictions as they are."""
        since = None
        champion = AS_THEY_ARE
        for night in self.nights:
            for number in (night.champion, night.champion_after):
                if number != champion:
                    champion, since = number, night.day
        return since

    @property
    def challengers(self) -> tuple[int, ...]:
        """Numbers of the challengers that compete on the next night."""
        newest = self.newest
        if newest is None or newest.winner is not None:
            return ()
        return tuple(number for number in newest.challengers if number not in newest.left)

    @property
    def last_attempt(self) -> ChallengeNight | None:
        """Latest night on which a challenger was due and rows sufficed."""
        return next((night for night in reversed(self.nights) if night.attempted), None)

    def until(self, day: str) -> ChallengeHistory:
        """History up to a day."""
        return ChallengeHistory(tuple(night for night in self.nights if night.day <= day))

    def before(self, day: str) -> ChallengeHistory:
        """History of the nights before a day."""
        return ChallengeHistory(tuple(night for night in self.nights if night.day < day))

    def with_night(self, night: ChallengeNight) -> ChallengeHistory:
        """History with the record of a night, which replaces an earlier one of its day."""
        others = [other for other in self.nights if other.day != night.day]
        return ChallengeHistory(tuple(sorted([*others, night], key=lambda item: item.day)))

    def duels(self, champion: int, challenger: int) -> dict[str, DuelSums]:
        """Sums of the nights on which two maps competed, by day."""
        return {
            night.day: night.scores.duels[challenger]
            for night in self.nights
            if night.champion == champion and challenger in night.challengers
        }

    def rows_compared(self, champion: int, challenger: int) -> int:
        """Number of rows on which two maps were compared."""
        days = self.duels(champion, challenger)
        return sum(night.scores.n for night in self.nights if night.day in days)

    def evidence(self, champion: int, challenger: int, *, of_worse: bool = False) -> Floats:
        """log E that a challenger is better, or worse, after each date since it came (dates,)."""
        duels = self.duels(champion, challenger)
        first = date.fromisoformat(self.maps[challenger].day[:10])
        last = max(duels, default=self.maps[challenger].day)
        count = 1 + (date.fromisoformat(last[:10]) - first).days
        # Dates without rows have the factor 1.
        by_date: list[list[DuelSums]] = [[] for _ in range(count)]
        for day, sums in duels.items():
            position = (date.fromisoformat(day[:10]) - first).days
            by_date[position].append(sums.reversed if of_worse else sums)
        return log_evidence(by_date)


def is_due(history: ChallengeHistory, day: str, every: int) -> bool:
    """Whether a challenger is due on a new day, `every` days after the latest one."""
    last = history.last_attempt
    if last is None:
        return True
    return (date.fromisoformat(day[:10]) - date.fromisoformat(last.day[:10])).days >= every


def free_place(history: ChallengeHistory, most: int) -> tuple[bool, int | None]:
    """Whether a new challenger can come, and the number of the challenger that it pushes out.

    Challengers that were never compared keep their places, because their labels may come late.
    Otherwise, frequent fits would push out every challenger before there is evidence.
    """
    competing = history.challengers
    if len(competing) < most:
        return True, None
    compared = [number for number in competing if history.rows_compared(history.champion, number)]
    if not compared:
        return False, None
    # The choice depends on earlier nights alone, so that it takes nothing from the evidence.
    weakest = min(compared, key=lambda number: history.evidence(history.champion, number)[-1])
    return True, weakest


def begun(
    history: ChallengeHistory,
    day: str,
    *,
    fit: MapEntry | None = None,
    most: int = 1,
    attempted: bool = False,
    note: str = "",
    rows: str = "",
) -> ChallengeNight:
    """Record of a new day before its rows are read: who will compete.

    A day that comes after later days has no challengers, because they may have used it.
    """
    newest = history.newest
    # Fits of later nights may have used the rows of a late day, which would favour them.
    if newest is not None and day < newest.day:
        late = "The day came after later ones, on which challengers were compared."
        return ChallengeNight(day, history.before(day).champion, note=late)
    champion, competing = history.champion, history.challengers
    left: dict[int, str] = {}
    if fit is not None and fit.is_adopted:
        left = dict.fromkeys(competing, OTHER_CHAMPION)
        champion, competing = fit.number, ()
    elif fit is not None:
        _, pushed_out = free_place(history, most)
        if pushed_out is not None:
            left[pushed_out] = PUSHED_OUT
        competing = (*(number for number in competing if number not in left), fit.number)
    return ChallengeNight(
        day, champion, competing, fit, attempted=attempted, note=note, rows=rows, left=left
    )


def decided(history: ChallengeHistory, night: ChallengeNight, alpha: float) -> ChallengeNight:
    """Record of a night with its decision, in a history that may have an earlier record of it.

    The champion is replaced by a challenger whose evidence reaches its threshold and that was
    better on the latest night on which they were compared.  If there are several, the challenger
    with the best score of that night wins.  A challenger leaves if the evidence that it is worse
    reaches 1/α.  Decisions of a night stay when it is read again, and late labels of earlier nights
    count on the next new night.
    """
    complete = history.with_night(night)
    # Only the newest night decides: the champion of earlier nights has been used since.
    if complete.newest is not night or night.winner is not None:
        return night
    left = dict(night.left)
    winners: dict[int, float] = {}
    for number in night.challengers:
        if number in left:
            continue
        evidence = complete.evidence(night.champion, number)[-1]
        # Evidence of many nights may be about a law that has changed since.
        lead = _latest_lead(complete, night.champion, number)
        if lead > 0 and evidence >= log_threshold(number, alpha):
            winners[number] = lead
        worse = complete.evidence(night.champion, number, of_worse=True)[-1]
        # Nothing is lost if a good challenger leaves by chance: the next one comes by schedule.
        if worse >= -math.log(alpha):
            left[number] = WORSE
    if not winners:
        return replace(night, left=left)
    winner = max(winners, key=lambda number: winners[number])
    for number in night.challengers:
        left.setdefault(number, WON if number == winner else OTHER_CHAMPION)
    return replace(night, left=left, winner=winner)


def _latest_lead(history: ChallengeHistory, champion: int, challenger: int) -> float:
    """Gain of a challenger on the latest night with labels on which it competed."""
    gains: Sequence[float] = [
        sums.gain for sums in history.duels(champion, challenger).values() if sums.squares > 0
    ]
    return gains[-1] if gains else 0.0
