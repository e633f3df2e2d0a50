"""Histogram of a scalar prediction: exact while scores repeat, else in 2^16 cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from calibscale.data import Chunk, Floats
from calibscale.kernels import row_sums
from calibscale.limits.excess import ratio
from calibscale.statistics import Statistic, weights_of
from calibscale.statistics.bins import BinState, fine_borders
from calibscale.statistics.score_sums import SquareState

MAX_SCORES = row_sums.FINE_CELLS  # number of different scores that are kept apart


class ScoreState(NamedTuple):
    """Increasing keys (c,) and sums Σ1, Σw, Σw², Σwp, Σwδ, Σw²p(1 − p) of each (6, c).

    Keys are the scores, or with more than `MAX_SCORES` of them the occupied cells of
    `FineHistogram`, from −2^16 to −1.
    """

    keys: Floats
    sums: Floats

    @property
    def exact(self) -> bool:
        """Whether every score is kept."""
        return not len(self.keys) or self.keys[0] >= 0.0


@dataclass(frozen=True)
class ScoreHistogram(Statistic):
    """Sums of rows by the score of a scalar notion, from which scalar measures follow.

    The cells that replace the scores when there are too many depend on the score alone, so that
    the state does not depend on the order of the rows but for rounding.
    """

    notion: str
    large_chunks: ClassVar[bool] = True  # the scores of a chunk are sorted

    def zero(self, classes: int) -> ScoreState:
        return ScoreState(np.empty(0), np.zeros((6, 0)))

    def accumulate(self, state: ScoreState, chunk: Chunk) -> ScoreState:
        p, rest, delta, _ = chunk.event(self.notion)
        w, one, spread = weights_of(chunk), np.ones(len(p)), p * np.maximum(rest, 0.0)
        pairs = ((one, one), (w, one), (w, w), (w, p), (w, delta), (w * w, spread))
        keys, numbers = np.unique(p if state.exact else _cells(p), return_inverse=True)
        sums = np.array([np.bincount(numbers, a * b) for a, b in pairs])
        return self.merge(state, ScoreState(keys, sums))

    def merge(self, a: ScoreState, b: ScoreState) -> ScoreState:
        if len(a.keys) == 0 and len(b.keys) <= MAX_SCORES:
            return b
        if not a.exact or not b.exact:
            a, b = _in_cells(a), _in_cells(b)
        keys = np.sort(np.append(a.keys, b.keys), kind="stable")  # fast, as there are two runs
        keys = keys[np.diff(keys, prepend=-np.inf) > 0.0]
        if len(keys) > MAX_SCORES:
            return self.merge(_in_cells(a), _in_cells(b))
        sums = np.zeros((6, len(keys)))
        for part in (a, b):
            sums[:, np.searchsorted(keys, part.keys)] += part.sums
        return ScoreState(keys, sums)


def _cells(scores: Floats) -> Floats:
    out = np.empty(len(scores), np.int64)
    row_sums.fine_cells(scores, out)
    return (out - row_sums.FINE_CELLS).astype(np.float64)


def _in_cells(state: ScoreState) -> ScoreState:
    if not state.exact or not len(state.keys):
        return state
    keys = _cells(state.keys)
    starts = np.flatnonzero(np.diff(keys, prepend=-np.inf))
    return ScoreState(keys[starts], np.add.reduceat(state.sums, starts, axis=1))


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

    def coarse(self, most: int) -> OccupiedCells:
        """At most `most` cells of nearly equal weight and variance, made of neighbours."""
        if len(self.score) <= most:
            return self
        reached = np.cumsum(self.share + ratio(self.variance, self.variance.sum()))
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
    keys = np.arange(-float(row_sums.FINE_CELLS), 0.0)
    return ScoreState(keys, np.vstack([histogram.sums, variances.squares]))


def scores_of(state: ScoreState) -> OccupiedCells:
    """Cells of a state; empty if it has no rows."""
    full = state.sums[1] > 0
    _, weight, weight2, p, delta, variance = state.sums[:, full]
    score, width = state.keys[full], np.zeros_like(p)
    if not state.exact:
        width = np.diff(fine_borders())[score.astype(int)]  # from the end
        score = p / weight
    events = np.clip(p - delta, 0.0, weight)
    return OccupiedCells(score, weight, weight**2 / weight2, events, variance, width)


class ScoreCells(NamedTuple):
    """Cells of a histogram with positive weight, in increasing order of p; each (c,).

    Σw and Σw², mean of p (non-decreasing), and frequency of y = 1.
    """

    weight: Floats
    weight2: Floats
    mean: Floats
    frequency: Floats

    @staticmethod
    def of(state: BinState) -> ScoreCells:
        """Cells of sums Σ1, Σw, Σw², Σwp and Σwδ."""
        _, weight, weight2, p, delta = state.sums[:, state.sums[1] > 0]
        # round, because the rounding errors of sums would add steps
        frequency = np.clip(np.round((p - delta) / weight, 12), 0.0, 1.0)
        # rounding may raise a mean above the next
        mean = np.maximum.accumulate(np.clip(p / weight, 0.0, 1.0))
        return ScoreCells(weight, weight2, mean, frequency)


def steps(mean: Floats, frequency: Floats, weight: Floats) -> tuple[Floats, Floats, int]:
    """Knots, values and number of steps of isotonic regression of frequencies (c,) on means (c,).

    The knots are the first and the last mean of each step.
    """
    fitted = isotonic_regression(frequency, weights=weight)
    starts, ends = fitted.blocks[:-1], fitted.blocks[1:] - 1
    knots = np.unique(np.concatenate([starts, ends]))
    return mean[knots], fitted.x[knots], len(starts)


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
