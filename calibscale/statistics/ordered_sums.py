"""Sums of rows in the order of a number: exact while numbers repeat, else in cells of them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.errors import OptionError
from calibscale.statistics.statistic import Statistic, weights_of

MOST_KEYS = 2**16  # numbers, or cells of them, that are kept apart
# Bits of the mantissa that cells leave out.  The first cells are 2⁻¹² wide, relative to the number,
# which is enough for 16 powers of two.
_FIRST_SHIFT = 40
_MANTISSA_BITS = 52


class OrderedState(NamedTuple):
    """Keys (c,) in increasing order, and sums of each (s, c), by default Σ1, Σw, Σw·x and Σwδ.

    A key is the binary representation of a number x without its last `shift` bits (0-d).  Keys are
    in the order of the numbers, and with the shift 0 a key is one number.
    """

    keys: Ints
    sums: Floats
    shift: Ints

    @property
    def exact(self) -> bool:
        """Whether every number is kept."""
        return not self.shift

    @property
    def cell_width(self) -> float:
        """Largest width of a cell, relative to its numbers, or 0 if every number is kept."""
        return 0.0 if self.exact else 2.0 ** (int(self.shift) - _MANTISSA_BITS)

    def coarser(self) -> OrderedState:
        """State with cells that are twice as wide, at least 2⁻¹²."""
        shift = max(int(self.shift) + 1, _FIRST_SHIFT)
        return _pooled(self.keys >> (shift - self.shift), self.sums, shift)

    def least_numbers(self) -> Floats:
        """Smallest number of each cell (c,), for numbers that are at least 0."""
        return numbers_of_keys(self.keys << self.shift)

    def largest_numbers(self) -> Floats:
        """Largest number of each cell (c,), for numbers that are at least 0."""
        return numbers_of_keys(((self.keys + 1) << self.shift) - 1)


def keys_of(x: Floats) -> Ints:
    """Integers (c,) in the order of finite numbers."""
    bits = np.ascontiguousarray(x + 0.0).view(np.int64)  # −0 + 0 is 0
    # Bits of negative numbers, without the sign, grow with the distance to 0.
    magnitude = bits & np.int64(2**63 - 1)
    return np.where(bits < 0, ~magnitude, bits)


def numbers_of_keys(keys: Ints) -> Floats:
    """Numbers with these keys (c,), by the inverse of `keys_of`."""
    magnitude = np.ascontiguousarray(np.where(keys < 0, ~keys, keys)).view(np.float64)
    return np.where(keys < 0, -magnitude, magnitude)


def _pooled(keys: Ints, sums: Floats, shift: int) -> OrderedState:
    """State of rows or states with repeated keys."""
    distinct, places = np.unique(keys, return_inverse=True)
    pooled = np.array([np.bincount(places, row, len(distinct)) for row in sums])
    return OrderedState(distinct, pooled.reshape(len(sums), -1), np.array(shift))


class SumsInOrder(Statistic):
    """Base of statistics with sums by a number of each row.

    Cells replace the numbers when there are more than 65,536.  The cell of a row depends on its
    number alone, and the width of the cells on the set of all numbers, so that the state does not
    depend on the order of the rows but for rounding.  `width` is the number of sums of each key.
    """

    large_chunks: ClassVar[bool] = True  # the numbers of a chunk are sorted
    width: ClassVar[int] = 4

    @abstractmethod
    def numbers(self, chunk: Any) -> Floats:
        """Number by which each row is put in order (c,)."""

    @abstractmethod
    def columns(self, chunk: Any) -> list[Any]:
        """Columns (c,) of which sums are kept, `width` of them."""

    def zero(self, classes: int) -> OrderedState:
        return OrderedState(np.empty(0, np.int64), np.zeros((self.width, 0)), np.array(0))

    def nbytes(self, classes: int) -> int:
        return 8 * (1 + self.width) * MOST_KEYS  # a key and the sums of each number

    def accumulate(self, state: OrderedState, chunk: Any) -> OrderedState:
        with np.errstate(over="ignore", invalid="ignore"):  # squares of huge outcomes
            columns = np.array(self.columns(chunk))
        rows = _pooled(keys_of(self.numbers(chunk)), columns, 0)
        return self.merge(state, rows)

    def merge(self, a: OrderedState, b: OrderedState) -> OrderedState:
        shift = max(int(a.shift), int(b.shift))
        keys = np.concatenate([state.keys >> (shift - state.shift) for state in (a, b)])
        merged = _pooled(keys, np.hstack([a.sums, b.sums]), shift)
        while len(merged.keys) > MOST_KEYS:
            merged = merged.coarser()
        return merged


@dataclass(frozen=True)
class OrderedSums(SumsInOrder):
    """Sums Σ1, Σw, Σw·x and Σwδ by the claimed means x of functionals.

    Isotonic regression of the outcomes follows from it.
    """

    def numbers(self, chunk: Any) -> Floats:
        claimed: Floats = chunk.target.claimed(chunk.values)
        return claimed

    def columns(self, chunk: Any) -> list[Any]:
        x, w = self.numbers(chunk), weights_of(chunk)
        return [np.ones(len(x)), w, w * x, w * chunk.scalar_residual]


class ConcentrationState(NamedTuple):
    """Columns of `ConcentrationSums` for each cell, see there.  Fields are (c,)."""

    rows: Floats
    weight: Floats
    weight2: Floats
    claimed: Floats
    responses: Floats
    squared_claims: Floats
    products: Floats
    squared_responses: Floats


@dataclass(frozen=True)
class ConcentrationSums(SumsInOrder):
    """Sums Σ1, Σw, Σw², Σwx, Σwr, Σw²x², Σw²xr and Σw²r² by the claimed means x of responses r.

    The concentration curve of the responses follows from it, with the error of its area.
    """

    width: ClassVar[int] = len(ConcentrationState._fields)

    def numbers(self, chunk: Any) -> Floats:
        claimed: Floats = chunk.target.claimed(chunk.values)
        return claimed

    def columns(self, chunk: Any) -> list[Any]:
        x, w = self.numbers(chunk), weights_of(chunk)
        r = chunk.target.responses(chunk.values, chunk.outcomes)
        strengths, weighted = w * x, w * r
        squares = (strengths * strengths, strengths * weighted, weighted * weighted)
        return [np.ones(len(x)), w, w * w, strengths, weighted, *squares]


@dataclass(frozen=True)
class OrderedResponses(SumsInOrder):
    """Sums Σ1, Σw and Σw·r by the responses r of functionals, for their Lorenz curve."""

    width: ClassVar[int] = 3

    def numbers(self, chunk: Any) -> Floats:
        responses: Floats = chunk.target.responses(chunk.values, chunk.outcomes)
        return responses

    def columns(self, chunk: Any) -> list[Any]:
        r, w = self.numbers(chunk), weights_of(chunk)
        return [np.ones(len(r)), w, w * r]


class RatioState(NamedTuple):
    """Columns of `RatioSums` for each cell or bin: see there.  Fields are (c,)."""

    rows: Floats
    weight: Floats
    weight2: Floats
    first: Floats
    second: Floats
    responses: Floats
    responses2: Floats
    squared_responses: Floats
    excess: Floats
    excess2: Floats
    squared_excess: Floats


@dataclass(frozen=True)
class RatioSums(SumsInOrder):
    """Sums by the ratio b/a of the claimed means of two models, for their double lift chart.

    The sums are Σ1, Σw, Σw², Σwa, Σwb, Σwr, Σw²r, Σw²r², Σwe, Σw²e and Σw²e² of responses r, and
    of their excess e = r − (a + b)/2.  The second prediction b is the covariate at `position`.
    """

    position: int
    width: ClassVar[int] = len(RatioState._fields)

    def numbers(self, chunk: Any) -> Floats:
        first, second = self._predictions(chunk)
        # A ratio of 0 or of a negative number has no order that means anything.
        invalid = ~((first > 0) & (second > 0))
        if invalid.any():
            i = int(np.argmax(invalid))
            raise OptionError(
                "a ratio of predictions needs predictions above 0: those of row "
                f"{chunk.rows[i]} are {first[i]:g} and {second[i]:g}"
            )
        ratio: Floats = second / first
        return ratio

    def columns(self, chunk: Any) -> list[Any]:
        a, b = self._predictions(chunk)
        r, w = chunk.target.responses(chunk.values, chunk.outcomes), weights_of(chunk)
        # The second model is nearer to a mean outcome on the far side of the middle of both.
        excess = r - 0.5 * (a + b)
        w2 = w * w
        of_responses = (w * r, w2 * r, w2 * r * r)
        of_excess = (w * excess, w2 * excess, w2 * excess * excess)
        return [np.ones(len(w)), w, w2, w * a, w * b, *of_responses, *of_excess]

    def _predictions(self, chunk: Any) -> tuple[Floats, Floats]:
        return chunk.target.claimed(chunk.values), chunk.covariates[:, self.position]
