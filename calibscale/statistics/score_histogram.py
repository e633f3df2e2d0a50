"""Histogram of a scalar prediction: exact while scores repeat, else in 2^16 cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.data import Chunk, Floats, Ints
from calibscale.kernels import row_sums
from calibscale.statistics import Statistic, weights_of
from calibscale.statistics.bins import BinState, fine_borders
from calibscale.statistics.score_sums import SquareState

MAX_SCORES = row_sums.FINE_CELLS  # number of different scores that are kept apart


class ScoreState(NamedTuple):
    """Increasing scores (c,) and sums Σ1, Σw, Σw², Σwp, Σwδ, Σw²p(1 − p) of each (6, c).

    With more than `MAX_SCORES` scores they are empty, and the sums are those of the cells of
    `FineHistogram`.
    """

    scores: Floats
    sums: Floats

    @property
    def exact(self) -> bool:
        """Whether every score is kept."""
        return len(self.scores) == self.sums.shape[1]


@dataclass(frozen=True)
class ScoreHistogram(Statistic):
    """Sums of rows by the score of a scalar notion, from which scalar measures follow.

    The cells that replace the scores when there are too many depend on the score alone, so that
    the state does not depend on the order of the rows but for rounding.
    """

    notion: str
    large_chunks: ClassVar[bool] = True  # distinct scores of a chunk are merged with those before

    def zero(self, classes: int) -> ScoreState:
        return ScoreState(np.empty(0), np.zeros((6, 0)))

    def accumulate(self, state: ScoreState, chunk: Chunk) -> ScoreState:
        p, rest, delta, _ = chunk.event(self.notion)
        w = weights_of(chunk)
        variances = w * w * p * np.maximum(rest, 0.0)
        if not state.exact:
            row_sums.fine_histogram(p, delta, chunk.weights, state.sums[:5])
            _add(_cells(p), (variances,), state.sums[5:])
            return state
        scores, numbers = np.unique(p, return_inverse=True)
        sums = np.zeros((6, len(scores)))
        _add(numbers, (np.ones_like(w), w, w * w, w * p, w * delta, variances), sums)
        return self.merge(state, ScoreState(scores, sums))

    def merge(self, a: ScoreState, b: ScoreState) -> ScoreState:
        if a.exact and b.exact:
            if not len(a.scores):
                return b if len(b.scores) <= MAX_SCORES else _in_cells(b)
            scores = np.sort(np.append(a.scores, b.scores), kind="stable")  # fast: two sorted runs
            different = np.append(True, scores[1:] > scores[:-1])
            if np.count_nonzero(different) <= MAX_SCORES:
                scores = scores[different]
                sums = np.zeros((6, len(scores)))
                for part in (a, b):
                    sums[:, np.searchsorted(scores, part.scores)] += part.sums
                return ScoreState(scores, sums)
        a = _in_cells(a)
        np.add(a.sums, _in_cells(b).sums, out=a.sums)
        return a


def _cells(scores: Floats) -> Ints:
    out = np.empty(len(scores), np.int64)
    row_sums.fine_cells(scores, out)
    return out


def _add(numbers: Ints, columns: tuple[Floats, ...] | Floats, sums: Floats) -> None:
    for column, total in zip(columns, sums, strict=True):
        total += np.bincount(numbers, column, len(total))


def _in_cells(state: ScoreState) -> ScoreState:
    if not state.exact:
        return state
    sums = np.zeros((6, row_sums.FINE_CELLS))
    _add(_cells(state.scores), state.sums, sums)
    return ScoreState(np.empty(0), sums)


class OccupiedCells(NamedTuple):
    """Occupied cells of a `ScoreState` in increasing order of the score, each field (c,).

    `score` is the mean of p, `events` Σw·event, `variance` Σw²p(1 − p), and `width` the largest
    distance of two scores of the cell, 0 if the scores are exact.
    """

    score: Floats
    weight: Floats
    effective: Floats
    events: Floats
    variance: Floats
    width: Floats

    @property
    def frequency(self) -> Floats:
        return self.events / self.weight

    @property
    def share(self) -> Floats:
        return self.weight / self.weight.sum()

    @property
    def rate(self) -> float:
        return float(self.share @ self.frequency)

    def coarse(self, most: int) -> OccupiedCells:
        """At most `most` cells of nearly equal weight, made of neighbours."""
        if len(self.score) <= most:
            return self
        reached = np.cumsum(self.weight)
        starts = np.unique(np.searchsorted(reached, reached[-1] * np.arange(most) / most, "right"))
        starts = np.unique(np.append(0, starts[starts < len(reached)]))
        ends = np.append(starts[1:], len(reached)) - 1
        weight, weight2, score, events, variance = (
            np.add.reduceat(column, starts)
            for column in (self.weight, self.weight**2 / self.effective, self.weight * self.score,
                           self.events, self.variance)
        )  # fmt: skip
        width = self.score[ends] - self.score[starts] + self.width[ends]
        return OccupiedCells(score / weight, weight, weight**2 / weight2, events, variance, width)


def cells_of(histogram: BinState, variances: SquareState, *others: Any) -> ScoreState:
    """State of the same rows from those of `FineHistogram` and `LabelVariances`, which add."""
    return ScoreState(np.empty(0), np.vstack([histogram.sums, variances.squares]))


def scores_of(state: ScoreState) -> OccupiedCells:
    """Cells of a state; empty if it has no rows."""
    full = state.sums[1] > 0
    _, weight, weight2, p, delta, variance = state.sums[:, full]
    score = state.scores[full] if state.exact else p / weight
    width = np.zeros_like(score) if state.exact else np.diff(fine_borders())[full]
    events = np.clip(p - delta, 0.0, weight)
    return OccupiedCells(score, weight, weight**2 / weight2, events, variance, width)


class SpreadState(NamedTuple):
    """Σ1, Σw(event − p)(1 − 2p) and Σw²(1 − 2p)²p(1 − p)."""

    n: Floats
    difference: Floats
    variance: Floats


@dataclass(frozen=True)
class SpreadSums(Statistic):
    """Sums of Spiegelhalter's z of a scalar notion."""

    notion: str
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2)

    def zero(self, classes: int) -> SpreadState:
        return SpreadState(*(np.zeros(()) for _ in range(3)))

    def accumulate(self, state: SpreadState, chunk: Chunk) -> SpreadState:
        p, rest, delta, _ = chunk.event(self.notion)
        w, slope = weights_of(chunk), rest - p
        state.n[...] += len(p)
        state.difference[...] -= (w * slope) @ delta
        state.variance[...] += (w * slope) ** 2 @ (p * np.maximum(rest, 0.0))
        return state
