"""Histogram of a scalar prediction: exact while scores repeat, else in 2^16 cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled import row_sums
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.bins import BinState, FineHistogram, fine_borders
from calibscale.statistics.isotonic import isotonic_regression
from calibscale.statistics.ratios import ratio
from calibscale.statistics.score_sums import SquareState
from calibscale.statistics.statistic import Replicates, Statistic, added, weights_of

MAX_SCORES = row_sums.FINE_CELLS  # number of different scores that are kept apart
_CERTAIN = 1e-12  # steps this near to 0 or 1 are equal to it but for rounding
# Cells have negative keys in the order of the score, so that they differ from all scores.
_CELL_KEYS = np.arange(-float(row_sums.FINE_CELLS), 0.0)
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, for multiplicative hashing


class ScoreState(NamedTuple):
    """Keys (c,) and sums Σ1, Σw, Σw², Σwp, Σwδ, Σw²p(1 − p) of each (6, c).

    Keys are scores in any order, at most `MAX_SCORES` with repetitions.  If more scores differ,
    keys are cells of `FineHistogram`, from −2^16 to −1: all of them, or the cells with rows.
    """

    keys: Floats
    sums: Floats

    @property
    def exact(self) -> bool:
        """Whether every score is kept."""
        return not len(self.keys) or self.keys[0] >= 0.0

    def sorted(self) -> ScoreState:
        """State with each score once, in increasing order."""
        if not self.exact:
            return self
        keys, numbers = np.unique(self.keys, return_inverse=True)
        return ScoreState(keys, np.array([np.bincount(numbers, row) for row in self.sums]))

    def in_cells(self) -> ScoreState:
        """State of all cells instead of the scores."""
        if not self.exact and len(self.keys) == row_sums.FINE_CELLS:
            return self
        state = ScoreState(_CELL_KEYS, np.zeros((6, row_sums.FINE_CELLS)))
        self.add_to(state.sums)
        return state

    def add_to(self, sums: Floats) -> None:
        """Add to the sums of all cells (6, 2^16)."""
        if not self.exact:
            sums[:, self.keys.astype(int)] += self.sums
            return
        numbers = FineHistogram("").numbers(self.keys)
        for out, row in zip(sums, self.sums, strict=True):
            out += np.bincount(numbers, row, len(out))


@dataclass(frozen=True)
class ScoreHistogram(Statistic):
    """Sums of rows by the score of a scalar notion, from which scalar measures follow.

    Cells replace the scores when there are too many.  The cell of a row depends on its score alone,
    so that the state does not depend on the order of the rows but for rounding.
    """

    notion: str
    large_chunks: ClassVar[bool] = True  # the scores of a chunk are sorted

    def zero(self, classes: int) -> ScoreState:
        return ScoreState(np.empty(0), np.zeros((6, 0)))

    def accumulate(self, state: ScoreState, chunk: Chunk) -> ScoreState:
        p, complement, delta, _ = chunk.event(self.notion)
        w, spread = weights_of(chunk), p * np.maximum(complement, 0.0)
        if not state.exact:
            state, cells = state.in_cells(), FineHistogram(self.notion)
            cells.add(p, delta, chunk.weights, state.sums[:5])
            state.sums[5] += np.bincount(cells.numbers(p), w * w * spread, cells.CELLS)
            return state
        sums = np.array([np.ones(len(p)), w, w * w, w * p, w * delta, w * w * spread])
        return self.merge(state, ScoreState(p, sums))

    def merge(self, a: ScoreState, b: ScoreState) -> ScoreState:
        if a.exact and b.exact:
            keys = np.append(a.keys, b.keys)
            if not _many(keys):
                union = ScoreState(keys, np.hstack([a.sums, b.sums]))
                if (len(a.keys) and len(b.keys)) or len(keys) > MAX_SCORES:
                    union = union.sorted()
                return union if len(union.keys) <= MAX_SCORES else union.in_cells()
        # Sums of all cells are fast to add, and occupied cells need less memory between merges.
        a = a.in_cells()
        b.add_to(a.sums)
        occupied = np.flatnonzero(a.sums[0])
        return ScoreState(_CELL_KEYS[occupied], a.sums.take(occupied, axis=1))


def _many(scores: Floats) -> bool:
    """Whether more than `MAX_SCORES` scores have different hashes.

    This is a quick test of many scores.  The sum with 0 makes −0 and 0 equal.
    """
    if len(scores) <= MAX_SCORES:
        return False
    seen = np.zeros(2**20, bool)
    seen[((scores + 0.0).view(np.uint64) * _ODD) >> np.uint64(44)] = True
    return bool(np.count_nonzero(seen) > MAX_SCORES)


def cells_of(histogram: BinState, variances: SquareState, *unused: Any) -> ScoreState:
    """State of the same rows from the states of `FineHistogram` and `LabelVariances`, which add."""
    return ScoreState(_CELL_KEYS, np.vstack([histogram.sums, variances.squares]))


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

    @staticmethod
    def of(sums: Floats) -> OccupiedCells:
        """Cells of positive weight from sums of a `ScoreState`, with or without the variances."""
        _, weight, weight2, p, delta, *variance = sums[:, sums[1] > 0]
        # Rounding may raise a mean above the next.
        score = np.maximum.accumulate(np.clip(p / weight, 0.0, 1.0))
        events = np.clip(p - delta, 0.0, weight)
        zero = np.zeros_like(p)
        spread = variance[0] if variance else zero
        return OccupiedCells(score, weight, weight**2 / weight2, events, spread, zero)

    @property
    def frequency(self) -> Floats:
        return self.events / self.weight

    @property
    def unit(self) -> float:
        """Weight Σw²/Σw of a row if the effective number of rows had equal weights."""
        return float((self.weight**2 / self.effective).sum() / self.weight.sum())

    @property
    def share(self) -> Floats:
        return self.weight / self.weight.sum()

    def coarse(self, most: int) -> OccupiedCells:
        """At most `most` cells of nearly equal weight and variance, made of neighbours."""
        if len(self.score) <= most:
            return self
        # Shares of weight and of variance are added, so that a cell has little of either.
        reached = np.cumsum(self.share + ratio(self.variance, self.variance.sum()))
        starts = np.unique(np.searchsorted(reached, reached[-1] * np.arange(most) / most, "right"))
        starts = np.unique(np.append(0, starts[starts < len(reached)]))
        ends = np.append(starts[1:], len(reached)) - 1
        weight, weight2, score, events, variance = (
            np.add.reduceat(column, starts)
            for column in (
                self.weight,
                self.weight**2 / self.effective,
                self.weight * self.score,
                self.events,
                self.variance,
            )
        )
        # The last of the neighbours may reach beyond its mean score.
        width = self.score[ends] - self.score[starts] + self.width[ends]
        return OccupiedCells(score / weight, weight, weight**2 / weight2, events, variance, width)


def scores_of(state: ScoreState) -> OccupiedCells:
    """Cells of a state.  They are empty if it has no rows."""
    state = state.sorted()
    keys = state.keys[state.sums[1] > 0]
    cells = OccupiedCells.of(state.sums)
    if state.exact:
        return cells._replace(score=keys)
    return cells._replace(width=np.diff(fine_borders())[keys.astype(int)])  # from the end


def steps(
    mean: Floats, frequency: Floats, weight: Floats, prior: float = 0.0
) -> tuple[Floats, Floats, int]:
    """Knots, values and number of steps of isotonic regression of frequencies (c,) on means (c,).

    The knots are the first and the last mean of each step.  With the weight `prior` of a row, an
    event and another row precede all cells if the first step is 0, and follow them if the last
    step is 1, so that no step is.
    """
    fitted = isotonic_regression(frequency, weights=weight)
    before = after = 0
    if prior > 0.0:
        before = int(fitted.x[0] <= _CERTAIN)
        after = int(fitted.x[-1] >= 1.0 - _CERTAIN)
    if before or after:
        frequency = np.pad(frequency, (before, after), constant_values=0.5)
        weight = np.pad(weight, (before, after), constant_values=2.0 * prior)
        fitted = isotonic_regression(frequency, weights=weight)
    # ½ violates the order beside a step of 0 or 1, so that it never is a step of its own.
    starts = np.maximum(fitted.blocks[:-1] - before, 0)
    ends = np.minimum(fitted.blocks[1:] - before, len(mean)) - 1
    values = fitted.x[before : before + len(mean)]
    knots = np.unique(np.concatenate([starts, ends]))
    return mean[knots], values[knots], len(starts)


def cell_steps(cells: OccupiedCells, prior: float = 0.0) -> tuple[Floats, Floats, int]:
    """Knots, values and number of `steps` of cells."""
    # The rounding errors of sums would add steps.
    return steps(cells.score, np.round(cells.frequency, 12), cells.weight, prior)


class SpreadState(NamedTuple):
    """Σ1, Σw(event − p)(1 − 2p) and Σw²(1 − 2p)²p(1 − p)."""

    n: Floats
    difference: Floats
    variance: Floats


@dataclass(frozen=True)
class SpreadSums(Statistic):
    """Sums of Spiegelhalter's z of a scalar notion."""

    notion: str
    drawn: ClassVar[tuple[str, ...]] = ("difference",)
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2)

    def zero(self, classes: int) -> SpreadState:
        return SpreadState(*(np.zeros(()) for _ in range(3)))

    def accumulate(self, state: SpreadState, chunk: Chunk) -> SpreadState:
        p, complement, delta, _ = chunk.event(self.notion)
        w, slope = weights_of(chunk), complement - p
        variance = (w * slope) ** 2 @ (p * np.maximum(complement, 0.0))
        return added(state, len(p), -(w * slope) @ delta, variance)

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        (out,) = sums
        p, complement, _, _ = chunk.event(self.notion)
        out -= replicates.events(chunk, self.notion) @ (weights_of(chunk) * (complement - p))
