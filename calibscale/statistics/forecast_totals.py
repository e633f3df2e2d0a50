"""Sums of scores of forecasts, and the distribution of their probability integral transforms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled.row_sums import count_numbers
from calibscale.statistics.response_sums import drawn_residuals
from calibscale.statistics.statistic import Replicates, Statistic, added, weighted_sum, weights_of

CELLS = 2**16  # cells of PIT values, and largest number of rows for which values are stored


class ForecastState(NamedTuple):
    """Σ1, Σw, Σw², and Σw·s of each column s of a score (J,)."""

    n: Floats
    weight: Floats
    weight2: Floats
    totals: Floats


@dataclass(frozen=True)
class ForecastTotals(Statistic):
    """Sums of the columns that ``score.rows(forecast, values, outcomes)`` has for rows."""

    score: Any
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1)

    def zero(self, classes: int) -> ForecastState:
        return ForecastState._make([*map(np.zeros, [()] * 3), np.zeros(self.score.columns)])

    def accumulate(self, state: ForecastState, chunk: Any) -> ForecastState:
        columns = self.score.rows(chunk.forecast, chunk.values, chunk.outcomes)
        w = weights_of(chunk)
        totals = [weighted_sum(column, chunk.weights) for column in columns]
        return added(state, len(w), w.sum(), w @ w, totals)


class CoverageState(NamedTuple):
    """Σ1, Σw, Σw², and the weighted sums of covered outcomes, widths, and expected coverage."""

    n: Floats
    weight: Floats
    weight2: Floats
    covered: Floats
    width: Floats
    expected: Floats


@dataclass(frozen=True)
class CoverageTotals(Statistic):
    """Outcomes in central prediction intervals of a level, and their expected number.

    A drawn outcome is covered if its PIT value lies in the range of PIT values that the interval
    covers.  Other nulls change the residual, which is the expected coverage minus 1 if the outcome
    is covered.
    """

    level: float
    drawn: ClassVar[tuple[str, ...]] = ("covered",)
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1, 1)

    @property
    def countable(self) -> bool:
        return True

    def zero(self, classes: int) -> CoverageState:
        return CoverageState(*(np.zeros(()) for _ in range(6)))

    def accumulate(self, state: CoverageState, chunk: Any) -> CoverageState:
        covered, width, expected, _ = self._rows(chunk)
        w = weights_of(chunk)
        sums = (weighted_sum(column, chunk.weights) for column in (covered, width, expected))
        return added(state, len(w), w.sum(), w @ w, *sums)

    def draw(self, sums: tuple[Floats, ...], chunk: Any, replicates: Replicates) -> None:
        w = weights_of(chunk)
        if chunk.target.claims_event:
            # The residual of an interval is 1{covered} − coverage, and its draws are those of the
            # other statistics of a pass.
            claimed = chunk.target.claimed(chunk.values)
            sums[0][...] += drawn_residuals(chunk, claimed, replicates) @ w + w @ (1.0 - claimed)
            return
        covered, _, expected, start = self._rows(chunk)
        if replicates.null.of_labels:
            for b, u in enumerate(replicates.pit_values(chunk, placed=False)):
                sums[0][b] += w @ ((start <= u) & (u - start < expected))
            return
        delta = replicates.scalars("forecast", chunk.units, expected, expected - covered)
        sums[0][...] += w @ expected - delta @ w

    def _rows(self, chunk: Any) -> tuple[Any, Floats, Floats, Floats]:
        """Whether each outcome is covered, width, expected coverage, and first covered level."""
        key = f"coverage of {self.level!r}"
        if key not in chunk.views:
            forecast = chunk.forecast
            values = chunk.values
            y = chunk.outcomes
            low, high = interval = forecast.interval(values, self.level)
            start, expected = forecast.covered_part(values, y, self.level, interval)
            expected = np.clip(expected, 0.0, 1.0)
            chunk.views[key] = (low <= y) & (y <= high), high - low, expected, start
        return chunk.views[key]


class PITCurve(NamedTuple):
    """Distribution function at points x from 0 to 1, linear from `at` one to `below` the next.

    Fields are (…, c), and may have fewer axes than x.
    """

    x: Floats
    below: Floats
    at: Floats

    @classmethod
    def of(cls, weights: Floats, values: Floats | None = None) -> PITCurve:
        """Curve of sorted values (…, n), or of values that are uniform within cells."""
        if values is None:
            reached = _shares_reached(weights)
            return cls(np.linspace(0.0, 1.0, len(reached)), reached, reached)
        zeros = np.zeros((*values.shape[:-1], 1))
        x = np.concatenate([zeros, values, zeros + 1.0], axis=-1)
        return cls.of_steps(x, _steps(weights))

    @classmethod
    def of_steps(cls, x: Floats, steps: Floats) -> PITCurve:
        """Curve at 0, n sorted values and 1 (…, n + 2), with the `_steps` of the n weights."""
        return cls(x, steps[:-1], steps[1:])

    @property
    def gaps(self) -> tuple[Floats, Floats]:
        """Distribution function minus x, after and before each point."""
        return self.at - self.x, self.below - self.x

    def shares(self, levels: Any) -> Floats:
        """Share of the values up to each level in [0, 1) (…, L)."""
        if self.x.ndim == 1:
            below = np.searchsorted(self.x, levels, "right")
        else:
            below = np.stack([(self.x <= level).sum(axis=-1) for level in levels], axis=-1)
        k = (below - 1).clip(0, self.x.shape[-1] - 2)
        low, high = (np.take_along_axis(self.x, k + step, -1) for step in (0, 1))
        between = (np.array(levels) - low) / (high - low)
        return self.at[k] + (self.below[k + 1] - self.at[k]) * between


class PITState(NamedTuple):
    """Σ1, Σw, Σw², and PIT values and weights of rows (c,), or no values and Σw of all cells."""

    n: Floats
    weight: Floats
    weight2: Floats
    values: Floats
    weights: Floats

    @property
    def exact(self) -> bool:
        """Whether every value is kept."""
        return len(self.values) == len(self.weights)

    @property
    def rows(self) -> int:
        """Effective number of rows (Σw)²/Σw², rounded."""
        return max(round(float(self.weight**2 / self.weight2)), 1)

    def in_cells(self) -> PITState:
        """State of the cells instead of the values."""
        if not self.exact:
            return self
        numbers = np.minimum((self.values * CELLS).astype(np.int64), CELLS - 1)
        cells = np.bincount(numbers, self.weights, CELLS).astype(np.float64, copy=False)
        return self._replace(values=np.empty(0), weights=cells)

    def curve(self) -> PITCurve:
        if not self.exact:
            return PITCurve.of(self.weights)
        # Ties are sorted by weight, so that the curve does not depend on the order of the rows.
        order = np.lexsort((self.weights, self.values))
        return PITCurve.of(self.weights[order], self.values[order])

    def drawn(self, rngs: Iterable[np.random.Generator]) -> Iterator[PITCurve]:
        """Curve of uniform values instead of the values of the rows, for each generator.

        A state in cells has lost the weights of single rows.  Its curve is of `rows` equal weights.
        """
        if not self.exact:
            for rng in rngs:
                yield PITCurve.of(_cells_of(rng, self.rows))
            return
        weights = np.sort(self.weights)
        steps, is_weighted = _steps(weights), weights[0] < weights[-1]
        for rng in rngs:
            if is_weighted:
                steps = _steps(rng.permutation(weights))
            ends = np.zeros(len(weights) + 2)
            np.cumsum(rng.standard_exponential(len(weights) + 1), out=ends[1:])
            yield PITCurve.of_steps(ends / ends[-1], steps)


def _shares_reached(weights: Floats) -> Floats:
    """Share of the first k weights in the sum of all n, for k from 0 to n (n + 1,)."""
    reached = np.append(0.0, np.cumsum(weights))
    return reached / reached[-1]


def _steps(weights: Floats) -> Floats:
    """Share of the weights up to 0, up to each of n values and up to 1 (n + 3,).

    The first n + 2 numbers are the shares below these points, and the last n + 2 those at them.
    """
    return np.concatenate([[0.0], _shares_reached(weights), [1.0]])


def uniform_order(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Uniform numbers, sorted along the last axis, from exponential spacings."""
    sums = np.cumsum(rng.standard_exponential((*shape[:-1], shape[-1] + 1)), axis=-1)
    return sums[..., :-1] / sums[..., -1:]


def _cells_of(rng: np.random.Generator, rows: int) -> Floats:
    """Number of rows in each cell (2^16,), drawn row by row if that is faster."""
    if rows > 2 * CELLS * 16:  # a multinomial draw takes a time that does not depend on the rows
        return rng.multinomial(rows, np.full(CELLS, 1.0 / CELLS)).astype(np.float64)
    # Each number of 64 bits is four numbers of 16 bits, which are numbers of cells.
    bits = rng.integers(0, 2**64 - 1, -(-rows // 4), np.uint64, endpoint=True)
    counts = np.zeros(CELLS)
    count_numbers(bits.view(np.uint16)[:rows], counts)
    return counts


@dataclass(frozen=True)
class PITCells(Statistic):
    """Weights of rows by PIT value in 2^16 cells of equal width.  States are added."""

    def zero(self, classes: int) -> PITState:
        return PITState._make([*map(np.zeros, [()] * 3), np.empty(0), np.zeros(CELLS)])

    def accumulate(self, state: PITState, chunk: Any) -> PITState:
        return self.merge(state, _pit(chunk).in_cells())


@dataclass(frozen=True)
class PITValues(Statistic):
    """Weights of rows by PIT value: exact while there are at most 2^16 rows, else `PITCells`.

    Without weights states are bitwise equal for any cut and order of the rows.
    """

    def zero(self, classes: int) -> PITState:
        return PITCells().zero(classes)._replace(weights=np.empty(0))

    def nbytes(self, classes: int) -> int:
        return 16 * CELLS

    def accumulate(self, state: PITState, chunk: Any) -> PITState:
        return self.merge(state, _pit(chunk))

    def merge(self, a: PITState, b: PITState) -> PITState:
        # The number of rows decides, so that the state does not depend on the order of merges.
        if not a.exact or not b.exact or len(a.values) + len(b.values) > CELLS:
            return super().merge(a.in_cells(), b.in_cells())
        totals = (np.add(x, y)[...] for x, y in zip(a[:3], b[:3], strict=True))
        return PITState._make([*totals, *map(np.append, a[3:], b[3:])])


def _pit(chunk: Any) -> PITState:
    """State of a chunk of forecasts."""
    w = weights_of(chunk)
    values = chunk.forecast.pit(chunk.values, chunk.outcomes, chunk.rows)
    totals = (np.array(total, np.float64) for total in (len(w), w.sum(), w @ w))
    return PITState._make([*totals, np.clip(values, 0.0, 1.0), w])
