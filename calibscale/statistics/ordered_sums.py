"""Sums of rows by their prediction, in order: exact while predictions repeat, else in cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.statistics.statistic import Statistic, weights_of

MOST_KEYS = 2**16  # predictions, or cells of them, that are kept apart
# Bits of the mantissa that cells leave out.  The first cells are 2⁻¹² wide, relative to the
# prediction, which is enough for 16 powers of two.
_FIRST_SHIFT = 40


class OrderedState(NamedTuple):
    """Keys (c,) in increasing order, and sums Σ1, Σw, Σw·x, Σwδ of each (4, c).

    A key is the binary representation of a prediction x without its last `shift` bits (0-d).  Keys
    are in the order of the predictions, and with the shift 0 a key is one prediction.
    """

    keys: Ints
    sums: Floats
    shift: Ints

    @property
    def exact(self) -> bool:
        """Whether every prediction is kept."""
        return not self.shift

    def coarser(self) -> OrderedState:
        """State with cells that are twice as wide, at least 2⁻¹²."""
        shift = max(int(self.shift) + 1, _FIRST_SHIFT)
        return _pooled(self.keys >> (shift - self.shift), self.sums, shift)


def keys_of(x: Floats) -> Ints:
    """Integers (c,) in the order of finite numbers."""
    bits = np.ascontiguousarray(x + 0.0).view(np.int64)  # −0 + 0 is 0
    # Bits of negative numbers, without the sign, grow with the distance to 0.
    magnitude = bits & np.int64(2**63 - 1)
    return np.where(bits < 0, ~magnitude, bits)


def _pooled(keys: Ints, sums: Floats, shift: int) -> OrderedState:
    """State of rows or states with repeated keys."""
    distinct, places = np.unique(keys, return_inverse=True)
    pooled = np.array([np.bincount(places, row, len(distinct)) for row in sums])
    return OrderedState(distinct, pooled.reshape(len(sums), -1), np.array(shift))


@dataclass(frozen=True)
class OrderedSums(Statistic):
    """Sums by the claimed means x of functionals, from which isotonic regression follows.

    Cells replace the predictions when there are more than 65,536.  The cell of a row depends on its
    prediction alone, and the width of the cells on the set of all predictions, so that the state
    does not depend on the order of the rows but for rounding.
    """

    large_chunks: ClassVar[bool] = True  # the predictions of a chunk are sorted

    def zero(self, classes: int) -> OrderedState:
        return OrderedState(np.empty(0, np.int64), np.zeros((4, 0)), np.array(0))

    def nbytes(self, classes: int) -> int:
        return 8 * 5 * MOST_KEYS  # a key and four sums of each prediction

    def accumulate(self, state: OrderedState, chunk: Any) -> OrderedState:
        x, w = chunk.target.claimed(chunk.values), weights_of(chunk)
        sums = np.array([np.ones(len(x)), w, w * x, w * chunk.scalar_residual])
        return self.merge(state, _pooled(keys_of(x), sums, 0))

    def merge(self, a: OrderedState, b: OrderedState) -> OrderedState:
        shift = max(int(a.shift), int(b.shift))
        keys = np.concatenate([state.keys >> (shift - state.shift) for state in (a, b)])
        merged = _pooled(keys, np.hstack([a.sums, b.sums]), shift)
        while len(merged.keys) > MOST_KEYS:
            merged = merged.coarser()
        return merged
