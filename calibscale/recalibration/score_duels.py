"""Sums of the differences of scores between one recalibration and several others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.inference.score_bets import DuelSums
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.recalibrator import FittedRecalibrator
from calibscale.statistics.cluster_sums import ClusterRows
from calibscale.statistics.statistic import Statistic, weights_of


class DuelState(NamedTuple):
    """Sums over rows, with weights w, and exponents a = 1 or 1/m in clusters of m rows.

    `totals` has Σ1, Σw, ΣwS of the predictions as they are, and ΣwS of the champion (4,), where S
    is half of the Brier score.  `sums` has ΣawD and Σa(wD)² of each challenger (challengers, 2),
    and `largest` the largest w|D| for any label (challengers,).
    """

    totals: Floats
    sums: Floats
    largest: Floats


@dataclass(frozen=True)
class ScoreDuels(Statistic):
    """Differences of half of the Brier score between a champion and challengers.

    Parameters
    ----------
    numbers : tuple of int
        Number of the champion, and then of each challenger.  The number 0 stands for the
        predictions as they are.
    maps : tuple of FittedRecalibrator or None
        Fit of each number, None for the predictions as they are.
    clusters : array, optional
        Counts of `ClusterRows`.
    """

    numbers: tuple[int, ...]
    maps: tuple[FittedRecalibrator | None, ...] = field(compare=False)
    clusters: Floats | None = field(default=None, compare=False, repr=False)

    def zero(self, classes: int) -> DuelState:
        challengers = len(self.numbers) - 1
        return DuelState(np.zeros(4), np.zeros((challengers, 2)), np.zeros(challengers))

    def accumulate(self, state: DuelState, chunk: Chunk) -> DuelState:
        rows, weights = np.arange(len(chunk)), weights_of(chunk)
        exponents = np.ones(len(chunk))
        if self.clusters is not None:
            exponents = 1.0 / ClusterRows.at_most(self.clusters, chunk.units)
        champion, *challengers = (self._mapped(fit, chunk) for fit in self.maps)
        norm = _halved_norm(champion)
        score = 0.5 + norm - champion[rows, chunk.labels]
        state.totals[...] += [
            len(chunk),
            weights.sum(),
            np.sum(weights * 0.5 * chunk.brier),
            np.sum(weights * score),
        ]
        for number, challenger in enumerate(challengers):
            # Half of the Brier scores differ by D = A + q_y − p_y, with A = (Σp² − Σq²)/2.
            moved = challenger - champion
            level = norm - _halved_norm(challenger)
            difference = weights * (level + moved[rows, chunk.labels])
            state.sums[number] += [
                np.sum(exponents * difference),
                np.sum(exponents * difference**2),
            ]
            # The largest loss or gain of a row over all labels does not depend on its label.
            ends = np.maximum(np.abs(level + moved.min(axis=1)), np.abs(level + moved.max(axis=1)))
            reach = float(np.max(weights * ends, initial=0.0))
            state.largest[number] = max(state.largest[number], reach)
        return state

    def merge(self, a: DuelState, b: DuelState) -> DuelState:
        largest = np.maximum(a.largest, b.largest)
        return DuelState(a.totals + b.totals, a.sums + b.sums, largest)

    def _mapped(self, fit: FittedRecalibrator | None, chunk: Chunk) -> Floats:
        return chunk.q if fit is None else fit.predictions(chunk)


def _halved_norm(q: Floats) -> Floats:
    """Half of Σ_k q_k² of each row (c,)."""
    return 0.5 * np.einsum("ck,ck->c", q, q)


@dataclass(frozen=True)
class NightScores:
    """Scores of a night: number of rows, mean scores, and the sums of each challenger by number."""

    n: int = 0
    as_they_are: float | None = None
    champion: float | None = None
    duels: dict[int, DuelSums] = field(default_factory=dict)


def night_scores(statistic: ScoreDuels, state: DuelState | None) -> NightScores:
    """Scores from a state, with weights over their mean, or of no rows without a state."""
    challengers = statistic.numbers[1:]
    if state is None or state.totals[1] == 0.0:
        return NightScores(duels={number: DuelSums() for number in challengers})
    n, weight, before, champion = state.totals.tolist()
    # Weights of any scale give the same sums, because stakes are for differences up to 1.
    mean: float = weight / n
    duels = {
        number: DuelSums(float(gain) / mean, float(squares) / mean**2, float(reach) / mean)
        for number, (gain, squares), reach in zip(
            challengers, state.sums, state.largest, strict=True
        )
    }
    return NightScores(int(n), before / weight, champion / weight, duels)


def stored_scores(scores: NightScores) -> dict[str, Any]:
    """JSON object of scores, which a ledger keeps."""
    duels = {
        str(number): [sums.gain, sums.squares, sums.largest]
        for number, sums in scores.duels.items()
    }
    return {
        "n": scores.n,
        "as_they_are": scores.as_they_are,
        "champion": scores.champion,
        "duels": duels,
    }


def restored_scores(value: dict[str, Any]) -> NightScores:
    """Scores from their JSON object."""
    duels = {int(number): DuelSums(*sums) for number, sums in value["duels"].items()}
    return NightScores(value["n"], value["as_they_are"], value["champion"], duels)
