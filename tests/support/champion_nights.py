"""Sixty simulated nights of a champion and challengers, by the functions that a night calls.

``python -m tests.support.champion_nights RUNS SEED`` prints the delays of a drift at night 30, and
how often a champion was replaced by a worse one, in a number of runs from a first seed on.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.arrays import from_arrays
from calibscale.monitoring.ledger.challenges import (
    AS_THEY_ARE,
    ChallengeHistory,
    MapEntry,
    begun,
    decided,
    free_place,
    is_due,
)
from calibscale.recalibration.fits import FittedRecalibration
from calibscale.recalibration.fitting import recalibrate
from calibscale.recalibration.score_duels import ScoreDuels, night_scores
from calibscale.session import Session

NIGHTS, DRIFT = 60, 30
NOISE = 1e-5  # difference of two scores below which neither map is worse
_MOST = 7  # challengers, as in a job


@dataclass(frozen=True)
class Law:
    """Log-odds z ~ N(centre, 1.5²), y ~ Bernoulli(σ(z)), predictions σ(slope·z + shift)."""

    slope: float = 1.5
    shift: float = 0.0
    centre: float = -0.5

    def drawn(self, rng: np.random.Generator, rows: int, drifted: bool) -> tuple[Floats, Ints]:
        """Predictions and labels of rows, calibrated before the drift."""
        z = rng.normal(self.centre, 1.5, rows)
        labels = (rng.random(rows) < _sigmoid(z)).astype(np.int64)
        return _sigmoid(self.slope * z + self.shift if drifted else z), labels

    def fresh(self, rng: np.random.Generator, drifted: bool) -> tuple[Floats, Floats]:
        """Predictions and true probabilities of 100,000 rows."""
        z = rng.normal(self.centre, 1.5, 100_000)
        return _sigmoid(self.slope * z + self.shift if drifted else z), _sigmoid(z)


def _sigmoid(z: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-z))


class Replacement(NamedTuple):
    """Night of a replacement, and the expected score of the winner minus that of the champion."""

    night: int
    change: float


def simulated(
    seed: int,
    law: Law,
    method: str = "platt",
    *,
    rows: int = 2000,
    nights: int = NIGHTS,
    drift: int = DRIFT,
    every: int = 1,
    days: int = 28,
    alpha: float = 0.05,
) -> list[Replacement]:
    """Replacements of a champion over nights, counted from 1."""
    rng = np.random.default_rng([2026, seed])
    history, maps = ChallengeHistory(), dict[int, FittedRecalibration]()
    earlier: list[tuple[Floats, Ints]] = []
    replacements = []
    for number in range(1, nights + 1):
        day = (date(2026, 9, 1) + timedelta(number - 1)).isoformat()
        entry = None
        due = bool(earlier) and is_due(history, day, every)
        if due and free_place(history, _MOST)[0]:
            p, y = (np.concatenate(columns) for columns in zip(*earlier[-days:], strict=True))
            fitted = recalibrate(
                from_arrays(probabilities=p, labels=y, binary=True), method, validate=False
            )
            if not (fitted.method == "identity" and history.champion == AS_THEY_ARE):
                entry = MapEntry(
                    max(maps, default=0) + 1, day, fitted.method, fitted.n, str(fitted.checksum)
                )
                maps[entry.number] = fitted
        night = begun(history, day, fit=entry, most=_MOST, attempted=due)
        numbers = (night.champion, *night.challengers)
        fits = tuple(maps[n].fit if n != AS_THEY_ARE else None for n in numbers)
        duels = ScoreDuels(numbers, fits)
        drifted = number >= drift
        today = law.drawn(rng, rows, drifted)
        source = from_arrays(probabilities=today[0], labels=today[1], binary=True)
        with Session.open(source) as session:
            state = session.scan([duels]).groups[None][duels]
        night = decided(history, replace(night, scores=night_scores(duels, state)), alpha)
        if night.winner is not None:
            p, truth = law.fresh(rng, drifted)
            before, after = (
                _expected(maps.get(n), p, truth) for n in (night.champion, night.winner)
            )
            replacements.append(Replacement(number, after - before))
        history = history.with_night(night)
        earlier.append(today)
    return replacements


def _expected(fitted: FittedRecalibration | None, p: Floats, truth: Floats) -> float:
    """Expected half of the Brier score of a map, without the noise of labels."""
    q = p if fitted is None else fitted.transform(p)
    return float(np.mean((q - truth) ** 2 + truth * (1 - truth)))


def main() -> None:
    runs, first = int(sys.argv[1]), int(sys.argv[2])
    method = sys.argv[3] if len(sys.argv) > 3 else "platt"
    for name, law in (
        ("overconfident, slope 1.5", Law()),
        ("no drift", Law(slope=1.0)),
        ("biased, shift 0.4", Law(slope=1.0, shift=0.4)),
        ("overconfident, slope 1.3", Law(slope=1.3)),
    ):
        delays, worse, replaced = [], 0, 0
        for seed in range(first, first + runs):
            replacements = simulated(seed, law, method)
            replaced += len(replacements)
            worse += any(change > NOISE for _, change in replacements)
            delays.append(next((r.night - DRIFT + 1 for r in replacements if r.night >= DRIFT), 99))
        print(
            f"{name}, {method}: {runs} runs, replaced within "
            f"{np.median(delays):.0f} nights (median), {max(delays)} (at most; 99: never), "
            f"{replaced / runs:.1f} replacements a run, by a worse one in {worse} runs",
            flush=True,
        )


if __name__ == "__main__":
    main()
