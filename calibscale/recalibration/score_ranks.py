"""Scores of given ranks in groups of rows, exactly, and counts of the rows between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Bools, Floats, Ints
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.recalibrator import Read
from calibscale.statistics.statistic import Statistic

# Bits of a number from 0 to 1, without the sign and the first of its exponent, which are 0.
KEY_BITS = 62
KEPT_SCORES = 2**20  # scores that are kept instead of their further digits, 16 MB with their groups
_TABLE_BITS = 19  # of the beginnings of keys that a table lists
_TABLE_CELLS = 2**12  # of equal width, for which the number of bounds below is tabulated


# ---------------------------------------------------------------- rows with a score


class ScoredRows(NamedTuple):
    """Rows of a group in a chunk: scores in [0, 1], and events, 0 or 1, both (m,)."""

    group: int
    scores: Floats
    events: Floats


class RowGroups(ABC):
    """Groups of rows, each with a score and an event."""

    cell_bits: ClassVar[int]  # a pass counts about 2^cell_bits cells

    @abstractmethod
    def rows(self, chunk: Chunk) -> Iterator[ScoredRows]:
        """Rows of a chunk by group.  Groups without rows may be left out."""


@dataclass(frozen=True)
class PositiveScores(RowGroups):
    """One group of all rows of two classes, with the scores P(y = 1)."""

    cell_bits: ClassVar[int] = 19  # 4 MB

    def rows(self, chunk: Chunk) -> Iterator[ScoredRows]:
        yield ScoredRows(0, positive_scores(chunk), chunk.positive)


def positive_scores(chunk: Chunk) -> Floats:
    """P(y = 1), which a tolerance allows to be a little outside of [0, 1]."""
    return np.clip(chunk.q[:, 1], 0.0, 1.0) + 0.0  # −0 + 0 is 0


@dataclass(frozen=True)
class TopLabelScores(RowGroups):
    """Rows by the group of their predicted class, with the largest probability as the score.

    `groups` has the group of each class.  An event is a right prediction.
    """

    groups: tuple[int, ...]
    cell_bits: ClassVar[int] = 21  # 16 MB, because classes multiply the prefixes

    def rows(self, chunk: Chunk) -> Iterator[ScoredRows]:
        # Groups are few beside the rows of a chunk, so that a loop over them costs little.
        scores, hit = confidence(chunk), chunk.hit
        for group, rows in rows_by_group(np.array(self.groups)[chunk.top]):
            yield ScoredRows(group, scores[rows], hit[rows])


def confidence(chunk: Chunk) -> Floats:
    """Largest probability of each row, within the range that `common_prefix` is of."""
    return np.clip(chunk.confidence, _lowest(chunk.n_features), 1.0)


def _lowest(classes: int) -> float:
    """Bound below all confidences, which are at least 1/K but for a tolerance."""
    return 0.5 / classes


def common_prefix(classes: int) -> tuple[int, int]:
    """Bits with which the keys of all confidences begin, and their number."""
    # Bits of positive numbers have the order of the numbers, so that all confidences share the bits
    # that the smallest and the largest have in common.
    low, high = np.array([_lowest(classes), 1.0]).view(np.int64).tolist()
    known = KEY_BITS - (low ^ high).bit_length()
    return high >> (KEY_BITS - known), known


def rows_by_group(groups: Ints) -> Iterator[tuple[int, Ints]]:
    """Each group that occurs, and the positions of its rows."""
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    yield from zip(present.tolist(), np.split(order, starts[1:]), strict=True)


def _starts(sizes: Sequence[int]) -> Ints:
    """First place of each group in an array with `sizes` places of the groups, and the end."""
    return np.cumsum([0, *sizes])


# ---------------------------------------------------------------- digits of keys


class DigitState(NamedTuple):
    """Number of rows by group, prefix and next digit of the keys of their scores (cells,)."""

    counts: Floats


@dataclass(frozen=True)
class _BegunKeys(Statistic):
    """Base class of statistics of rows with the beginnings of the keys that are looked for.

    Keys are the bits of the scores, which are in their order because none is negative.  `prefixes`
    has for each group the different beginnings of `known` bits, in increasing order.
    """

    groups: RowGroups
    prefixes: tuple[tuple[int, ...], ...]
    known: int

    @cached_property
    def prefix_arrays(self) -> tuple[Ints, ...]:
        """Prefixes of each group."""
        return tuple(np.array(prefixes, np.int64) for prefixes in self.prefixes)

    def sought(self, chunk: Chunk) -> Iterator[tuple[ScoredRows, Ints]]:
        """Rows of each group with prefixes, and the prefixes.

        A group with a single bin has no bounds to look for.
        """
        for rows in self.groups.rows(chunk):
            prefixes = self.prefix_arrays[rows.group]
            if len(prefixes):
                yield rows, prefixes


@dataclass(frozen=True)
class ScoreDigits(_BegunKeys):
    """Counts of the next digit of the scores, among the rows with each of the digits so far."""

    @cached_property
    def digit(self) -> int:
        """Number of bits of the next digit, fewer for many prefixes."""
        pairs = sum(map(len, self.prefixes))
        # A digit has at least one bit, or a pass would bring no progress.
        bits = max(1, self.groups.cell_bits - (pairs - 1).bit_length())
        return min(bits, KEY_BITS - self.known)

    @cached_property
    def starts(self) -> Ints:
        """First cell of each group."""
        return _starts([len(prefixes) << self.digit for prefixes in self.prefixes])

    def zero(self, classes: int) -> DigitState:
        return DigitState(np.zeros(int(self.starts[-1])))

    def accumulate(self, state: DigitState, chunk: Chunk) -> DigitState:
        for rows, prefixes in self.sought(chunk):
            cells = _digit_cells(rows.scores, prefixes, self.known, self.digit)
            # There are more cells than rows of a chunk, so that a histogram of each is slower.
            np.add.at(state.counts, self.starts[rows.group] + cells, 1.0)
        return state

    def counts_of(self, state: DigitState, group: int) -> Floats:
        """Counts of a group (prefixes, digits)."""
        first, last = self.starts[group : group + 2]
        return state.counts[first:last].reshape(-1, 2**self.digit)


# As long as nothing is known of the scores of two classes, all keys begin alike.
FIRST_DIGITS = ScoreDigits(PositiveScores(), ((0,),), 0)


def _digit_cells(scores: Floats, prefixes: Ints, known: int, digit: int) -> Ints:
    """Cell of the next `digit` bits of each score that has one of the prefixes, else no cell.

    Cells are numbered by prefix and digit.
    """
    begun = scores.view(np.int64) >> (KEY_BITS - known - digit)
    places = np.zeros(len(begun), np.int64)
    if known:
        above = begun >> digit
        places = np.minimum(np.searchsorted(prefixes, above), len(prefixes) - 1)
        # Other rows are below or above all scores that are still possible.
        near = prefixes[places] == above
        begun, places = begun[near], places[near]
    return places << digit | (begun & (2**digit - 1))


class BegunState(NamedTuple):
    """Groups and scores (r,) of some rows in any order."""

    groups: Ints
    scores: Floats


@dataclass(frozen=True)
class BegunScores(_BegunKeys):
    """Scores whose keys begin with one of the prefixes of their group, about `count` of them."""

    count: int

    def zero(self, classes: int) -> BegunState:
        return BegunState(np.empty(0, np.int64), np.empty(0))

    def nbytes(self, classes: int) -> int:
        return 16 * self.count

    def accumulate(self, state: BegunState, chunk: Chunk) -> BegunState:
        groups, scores = [state.groups], [state.scores]
        for rows, prefixes in self.sought(chunk):
            kept = rows.scores[_begins_with(rows.scores, prefixes, self.known)]
            groups.append(np.full(len(kept), rows.group))
            scores.append(kept)
        return BegunState(np.concatenate(groups), np.concatenate(scores))

    def merge(self, a: BegunState, b: BegunState) -> BegunState:
        return BegunState(*(np.append(*parts) for parts in zip(a, b, strict=True)))


def _begins_with(scores: Floats, prefixes: Ints, known: int) -> Bools:
    """Whether the key of each score begins with one of the increasing prefixes (c,)."""
    begun = scores.view(np.int64) >> (KEY_BITS - known)
    # A table of all beginnings, if they are few, is faster than a search.
    if known <= _TABLE_BITS:
        sought = np.zeros(2**known, bool)
        sought[prefixes] = True
        return sought[begun]
    places = np.minimum(np.searchsorted(prefixes, begun), len(prefixes) - 1)
    return np.asarray(prefixes[places] == begun)


# ---------------------------------------------------------------- search


@dataclass
class RankSearch:
    """Search for the scores of some ranks of a group, pass by pass.

    Attributes
    ----------
    ranks : (r,)
        Ranks from 1 among the rows whose keys begin with the prefix.
    prefixes : (r,)
        Beginnings of the keys of the scores.
    """

    ranks: Ints
    prefixes: Ints

    @classmethod
    def of_bins(cls, rows: int, bins: int, prefix: int = 0) -> Self:
        """Search for the ranks ⌈b(n + 1)/B⌉, b = 1 … B − 1, of n rows."""
        ranks = np.array([-(-b * (rows + 1) // bins) for b in range(1, bins)], np.int64)
        return cls(ranks, np.full(bins - 1, prefix, np.int64))

    @property
    def distinct(self) -> Ints:
        """Different prefixes in increasing order."""
        return np.unique(self.prefixes)

    def advance(self, counts: Floats, digit: int) -> int:
        """Append the digit of each key, by the counts of rows by distinct prefix and digit.

        The number of rows with the new prefixes is returned, which is counted again for equal ones.
        """
        places = np.searchsorted(self.distinct, self.prefixes)
        reached = np.cumsum(counts, axis=1)
        near = 0
        for i, place in enumerate(places.tolist()):
            value = int(np.searchsorted(reached[place], self.ranks[i]))
            self.ranks[i] -= int(reached[place, value - 1]) if value else 0
            self.prefixes[i] = self.prefixes[i] << digit | value
            near += int(counts[place, value])
        return near

    def finish(self, scores: Floats, known: int) -> None:
        """Set all bits of the keys, by the scores (m,) that begin with the `known` bits so far."""
        ordered = np.sort(scores)
        # Positive numbers have the order of their bits.
        first = np.searchsorted(ordered.view(np.int64) >> (KEY_BITS - known), self.prefixes)
        self.prefixes = ordered[first + self.ranks - 1].view(np.int64)

    @property
    def scores(self) -> Floats:
        """Different scores, once all bits are known."""
        return self.distinct.view(np.float64)


def finish_searches(
    groups: RowGroups, searches: Sequence[RankSearch], read: Read, known: int, near: int
) -> int:
    """Set all bits of the keys of each group's search, and return the number of passes.

    Parameters
    ----------
    groups : RowGroups
    searches : search of each group
    read : one pass over the rows
    known : number of bits that are known
    near : number of rows that the scores may be among
    """
    passes = 0
    while known < KEY_BITS and near:
        prefixes = tuple(tuple(search.distinct.tolist()) for search in searches)
        passes += 1
        # Few scores that begin with the digits so far are kept, and need no further digits.
        if near <= KEPT_SCORES:
            kept = BegunScores(groups, prefixes, known, near)
            begun: BegunState = read(kept).groups[None][kept]
            for group, rows in rows_by_group(begun.groups):
                searches[group].finish(begun.scores[rows], known)
            break
        digits = ScoreDigits(groups, prefixes, known)
        state: DigitState = read(digits).groups[None][digits]
        near = sum(
            search.advance(digits.counts_of(state, group), digits.digit)
            for group, search in enumerate(searches)
        )
        known += digits.digit
    return passes


# ---------------------------------------------------------------- rows between bounds


class BoundedState(NamedTuple):
    """Number of rows and of events below, at and between the bounds of each group, (parts,)."""

    rows: Floats
    events: Floats


@dataclass(frozen=True)
class BoundedBins(Statistic):
    """Rows and events of the open intervals between increasing bounds, and of the bounds.

    `bounds` has b bounds for each group, which has 2b + 1 parts.  Part 2i has the scores between
    the bounds i − 1 and i, and part 2i + 1 the scores that are equal to the bound i.
    """

    groups: RowGroups
    bounds: tuple[tuple[float, ...], ...]

    @cached_property
    def bound_arrays(self) -> tuple[Floats, ...]:
        """Bounds of each group."""
        return tuple(np.array(bounds, np.float64) for bounds in self.bounds)

    @cached_property
    def starts(self) -> Ints:
        """First part of each group."""
        return _starts([2 * len(bounds) + 1 for bounds in self.bounds])

    def zero(self, classes: int) -> BoundedState:
        parts = int(self.starts[-1])
        return BoundedState(np.zeros(parts), np.zeros(parts))

    def accumulate(self, state: BoundedState, chunk: Chunk) -> BoundedState:
        for group, scores, events in self.groups.rows(chunk):
            parts = parts_of_scores(self.bound_arrays[group], scores)
            first, last = self.starts[group : group + 2]
            size = int(last - first)
            state.rows[first:last] += np.bincount(parts, minlength=size)
            state.events[first:last] += np.bincount(parts, events, size)
        return state


def parts_of_scores(bounds: Floats, scores: Floats) -> Ints:
    """Part of each score in [0, 1] (c,): 2i between two bounds, 2i + 1 at the bound i."""
    if len(scores) < _TABLE_CELLS:
        return _searched_parts(bounds, scores)
    # A table says for nearly all scores how many bounds are below them, in a tenth of the time of a
    # search.  The product with a power of two is exact.
    cells = (scores * _TABLE_CELLS).astype(np.int64)
    below = np.searchsorted(bounds, np.arange(_TABLE_CELLS + 2) / _TABLE_CELLS, "left")
    parts = 2 * below[cells]
    searched = np.flatnonzero(np.diff(below)[cells])  # in cells that have a bound
    parts[searched] = _searched_parts(bounds, scores[searched])
    return parts


def _searched_parts(bounds: Floats, scores: Floats) -> Ints:
    """Parts of `parts_of_scores`, by a search for each score."""
    # More bounds are below or at a score than below it only if one is equal.
    return np.searchsorted(bounds, scores, "left") + np.searchsorted(bounds, scores, "right")
