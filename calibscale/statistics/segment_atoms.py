"""Atoms of segments: sums of rows by the finest crossing of covariates and by the score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import drawn_sums
from calibscale.data.covariates import Axis
from calibscale.errors import OptionError
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.segments import crossings
from calibscale.statistics.statistic import Replicates, Statistic, weights_of

MAX_ATOMS = 2**19  # keys and six sums of so many atoms have 29 MB
_BITS = 40  # bits of the position of a score: scores that differ by less than 1e-12 are equal
_FINE, _COARSE = 16, 5  # bits of cells, if there are too many atoms: from the first to the last
_DENSE = 15  # bits of the number of atoms in ledgers: 1.5 MB for a day
_MAX_DENSE_BITS = 10  # bits of cells in ledgers
_MAX_CROSSINGS = 2**22  # a key, the number of a crossing times 2^40, then fits into an int64


class AtomState(NamedTuple):
    """Increasing keys (a,), sums of each atom (6, a), and number of bits of cells, 40 at first.

    A key is the number of the crossing times 2^40, plus the position of the score's cell.  The sums
    are the same as in `ScoreState`: Σ1 over rows of positive weight, Σw, Σw², Σwp, Σwδ,
    Σw²p(1 − p).
    """

    keys: Ints
    sums: Floats
    bits: Ints

    @property
    def crossing(self) -> Ints:
        """Number of the crossing of each atom (a,)."""
        return self.keys >> _BITS

    @property
    def cell(self) -> Ints:
        """Position of the score's cell of each atom (a,)."""
        return self.keys & ((1 << _BITS) - 1)


@dataclass(frozen=True)
class SegmentAtoms(Statistic):
    """Sums of rows by the crossing of all axes and the score of a scalar notion.

    Every segment, a crossing of some of the axes, is a sum of atoms.  The position of a score is
    √p/(√p + √(1 − p)), so that cells of equal width have about equal information on p near 0 and 1.
    Scores are kept to 40 bits while there are at most 2^19 atoms.  Beyond that, there are 2^16,
    2^15, …, or 2^5 cells, as many as allow so few atoms.  The number of atoms does not fall when
    rows are added, so that the cells depend on the rows and not on the order of merges.

    Raises
    ------
    OptionError
        If there are more than 2^19 atoms with 2^5 cells.
    """

    axes: tuple[Axis, ...]
    notion: str
    large_chunks: ClassVar[bool] = True  # the atoms of a chunk are sorted

    def __post_init__(self) -> None:
        if math.prod(self.sizes) > _MAX_CROSSINGS:
            raise OptionError(
                f"{len(self.axes)} columns with {' × '.join(map(str, map(len, self.axes)))} parts "
                f"cross in more than {_MAX_CROSSINGS:,} ways: use fewer columns, or fewer bins"
            )

    @property
    def sizes(self) -> list[int]:
        """Number of parts of each axis, with one for other values."""
        return [len(axis) + 1 for axis in self.axes]

    def zero(self, classes: int) -> AtomState:
        return AtomState(np.empty(0, np.int64), np.zeros((6, 0)), np.array(_BITS))

    def nbytes(self, classes: int) -> int:
        return 7 * 8 * 2**16  # an upper bound for most states, although `MAX_ATOMS` have 29 MB

    def accumulate(self, state: AtomState, chunk: Chunk) -> AtomState:
        keys, values = self.located(chunk)
        return self.merge(state, _summed(keys, _BITS, values))

    def located(self, chunk: Chunk) -> tuple[Ints, Iterator[Floats]]:
        """Key of each row, and its terms of the six sums, one sum after another."""
        p, complement, delta, _ = chunk.event(self.notion)
        w, complement = weights_of(chunk), np.maximum(complement, 0.0)
        root = np.sqrt(np.maximum(p, 0.0))
        position = (root / (root + np.sqrt(complement)) * 2.0**_BITS).astype(np.int64)
        keys = np.minimum(position, (1 << _BITS) - 1)
        assert chunk.covariates is not None
        crossing = crossings(self.axes, chunk.covariates)
        counted = (w > 0).astype(np.float64)
        pairs = (
            (counted, counted),
            (w, counted),
            (w, w),
            (w, p),
            (w, delta),
            (w * w * p, complement),
        )
        return keys + (crossing << _BITS), (a * b for a, b in pairs)

    def merge(self, a: AtomState, b: AtomState) -> AtomState:
        state = _summed(np.append(a.keys, b.keys), int(min(a.bits, b.bits)), a.sums, b.sums)
        if len(state.keys) > MAX_ATOMS:
            raise OptionError(
                f"the segments of {', '.join(axis.name for axis in self.axes)} have more than "
                f"{MAX_ATOMS:,} atoms, even with {2**_COARSE} cells of the score: use fewer "
                "columns, or fewer bins"
            )
        return state


def _summed(keys: Ints, bits: int, *parts: Iterable[Floats], most: int | None = None) -> AtomState:
    """State of keys in any order, in cells of so few bits that there are `most` atoms, if possible.

    Each part has the six terms of some of the keys.
    """
    order = np.argsort(keys, kind="stable")  # fast for two sorted runs, as in a merge
    keys = keys[order]
    while True:
        # Dropping low bits of sorted keys leaves them sorted, so that one sort serves all widths.
        cells = keys >> (_BITS - bits)
        starts = np.flatnonzero(np.diff(cells, prepend=-1))
        if len(starts) <= (most or MAX_ATOMS) or bits <= _COARSE:
            break
        bits = min(_FINE, bits - 1)
    sums = np.zeros((6, len(starts)))
    for total, *columns in zip(sums, *parts, strict=True):  # one by one, to need less memory
        if len(keys):
            total += np.add.reduceat(np.concatenate(columns)[order], starts)
    return AtomState(cells[starts] << (_BITS - bits), sums, np.array(bits))


def coarsened(state: AtomState, most: int) -> AtomState:
    """State with at most `most` atoms, or in the fewest cells."""
    return _summed(state.keys, int(state.bits), state.sums, most=most)


@dataclass(frozen=True)
class AtomResiduals(Statistic):
    """Σwδ* of given atoms, for replicates of rows.  `keys` are the keys of a state, as bytes."""

    atoms: SegmentAtoms
    bits: int
    keys: bytes

    @property
    def count(self) -> int:
        return len(self.keys) // 8

    def zero(self, classes: int) -> tuple[Floats]:
        return (np.zeros(self.count),)

    def zero_drawn(self, classes: int, count: int) -> tuple[Floats]:
        return (np.zeros((count, self.count)),)

    def _places(self, chunk: Chunk) -> Ints:
        keys = self.atoms.located(chunk)[0]
        dropped = _BITS - self.bits
        return np.searchsorted(np.frombuffer(self.keys, np.int64), keys >> dropped << dropped)

    def accumulate(self, state: tuple[Floats], chunk: Chunk) -> tuple[Floats]:
        delta = chunk.event(self.atoms.notion).delta * weights_of(chunk)
        return (state[0] + np.bincount(self._places(chunk), delta, self.count),)

    def draw(self, sums: tuple[Floats], chunk: Chunk, replicates: Replicates) -> None:
        p, _, delta, _ = chunk.event(self.atoms.notion)
        drawn = replicates.scalars(self.atoms.notion, chunk.units, p, delta)
        drawn_sums.add_bins(drawn * weights_of(chunk), self._places(chunk), sums[0])


class DenseState(NamedTuple):
    """Sums of every possible atom (6, a), in order of its key."""

    sums: Floats


@dataclass(frozen=True)
class DenseAtoms(Statistic):
    """`SegmentAtoms` in 32 to 1,024 cells of the score.  States add, as ledgers need it."""

    atoms: SegmentAtoms

    def __post_init__(self) -> None:
        if self.bits < _COARSE:
            raise OptionError(
                f"a ledger keeps at most {2 ** (_DENSE - _COARSE):,} crossings of columns, not "
                f"{math.prod(self.atoms.sizes):,}: use fewer columns, or fewer bins"
            )

    @property
    def bits(self) -> int:
        return min(_MAX_DENSE_BITS, _DENSE - (math.prod(self.atoms.sizes) - 1).bit_length())

    def zero(self, classes: int) -> DenseState:
        return DenseState(np.zeros((6, math.prod(self.atoms.sizes) << self.bits)))

    def accumulate(self, state: DenseState, chunk: Chunk) -> DenseState:
        keys, values = self.atoms.located(chunk)
        for total, value in zip(state.sums, values, strict=True):
            total += np.bincount(keys >> (_BITS - self.bits), value, len(total))
        return state

    def sparse(self, state: DenseState) -> AtomState:
        """State of the atoms with rows."""
        full = np.flatnonzero(state.sums[0])
        return AtomState(full << (_BITS - self.bits), state.sums[:, full], np.array(self.bits))
