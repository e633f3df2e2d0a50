"""Replicates of many rows, which are random combinations of few drawn labels.

A test with 999 replicates of 10⁶ rows would draw 10⁹ labels.  Here the rows are cut into segments,
and each segment has 64 sets of labels: its observed labels, and 63 sets drawn from its predictions.
A replicate takes one of the 64 sets of each segment, at random and independently.  As sums over
rows are sums over segments, a replicate adds one of 64 sums for each segment.

The p-value is exact at every number of rows.  Under calibration, the 64 sets of a segment are
exchangeable, so that a permutation of the sets within each segment does not change the law of all
sets.  The first sets of all segments are the data, and a replicate is the first sets after a random
element of this group of permutations [Hemerik and Goeman, TEST 27 (2018), Theorem 2].  The observed
set must be among the 64 sets for this.

Replicates with the observed set in a segment repeat the errors of its predictions.  An error in one
segment has a p-value of at least 1/64 for this reason.  Replicates with drawn labels alone, which
are more than a third of all, show such errors, see `RecombinedLabels.drawn_alone`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from calibscale.array_types import Bools, Floats, Ints
from calibscale.compiled import random_draws as kernel_draws
from calibscale.compiled.drawn_sums import add_chosen
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.null_distributions import DrawnLabels, Null, RandomSigns
from calibscale.statistics.shared_draws import DRAWN_SETS, sums_of_sets
from calibscale.statistics.statistic import Replicates

SETS = DRAWN_SETS + 1  # sets of labels of a segment, the last of which is observed
FEWEST_REPLICATES = 99  # fewer replicates draw hardly more labels themselves
# The combinations of sets of 32 segments are many, and their sums nearly normal.  With 64 segments
# or more, few replicates would have drawn labels alone.
_FEWEST_SEGMENTS = 32
_FEWEST_ROWS = 512  # of a segment, as each adds its sums to all replicates


def segment_rows(rows: int) -> int | None:
    """Number of rows of each of 32 to 63 segments, a power of two, or None if rows are too few."""
    if rows < _FEWEST_SEGMENTS * _FEWEST_ROWS:
        return None
    largest = rows // _FEWEST_SEGMENTS
    return 1 << (largest.bit_length() - 1)


@dataclass(frozen=True)
class ObservedSigns(RandomSigns):
    """The observed residuals, which are residuals with the sign +1."""

    def _signs(self, rows: Ints, first: int, last: int) -> Floats:
        return np.ones((last - first, len(rows)))


@dataclass(frozen=True)
class RecombinedLabels(DrawnLabels):
    """Null of replicates that recombine the labels of segments of the rows.

    It draws labels as `DrawnLabels` does.  `RecombinedReplicates` use its first `SETS` − 1 draws.

    Parameters
    ----------
    segment_rows : int
        Number of rows of a segment.  The segment of a row is its number divided by it.
    """

    segment_rows: int = _FEWEST_ROWS

    def sets(self, segment: int, first: int, last: int) -> Ints:
        """Number of the set of labels that each replicate takes in a segment (B,)."""
        pairs = kernel_draws.table(1, -(-last // 2), self.seed, kernel_draws.SETS, segment)
        return (pairs.ravel()[first:last] * SETS).astype(np.int64)

    def drawn_alone(self, rows: int, count: int) -> Bools:
        """Whether each replicate has drawn labels alone, and no observed set (B,)."""
        segments = range(-(-rows // self.segment_rows))
        chosen = np.array([self.sets(segment, 0, count) for segment in segments])
        return np.all(chosen < SETS - 1, axis=0)


@dataclass(frozen=True)
class RecombinedReplicates(Replicates):
    """Replicates that add one of the `SETS` sums of each segment.

    `null` is `RecombinedLabels`.  With `parts`, only the segments with the number `part` modulo
    `parts` are added, so that several units of work share the segments of a block.
    """

    part: int = 0
    parts: int = 1

    @property
    def draws(self) -> int:
        return min(len(self), SETS)

    @property
    def segment_rows(self) -> int:
        return self.null.segment_rows

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        segments = chunk.rows // self.segment_rows
        # A pass cuts its chunks at the ends of segments, so that there is one in most chunks.
        cuts = np.flatnonzero(np.diff(segments)) + 1
        for low, high in pairwise([0, *cuts.tolist(), len(chunk)]):
            segment = int(segments[low])
            if segment % self.parts == self.part:
                # A chunk that is not cut shares its labels among all statistics.
                is_cut = high - low < len(chunk)
                rows = chunk.take(slice(low, high)) if is_cut else chunk
                self._add(state, rows, self.null.sets(segment, self.first, self.last))
        return state

    def _add(self, state: Any, rows: Chunk, chosen: Ints) -> None:
        """Add rows of one segment to replicates, each with its set of labels (B,)."""
        used, positions = np.unique(chosen, return_inverse=True)
        if len(used) > SETS // 2:
            # Sets are drawn fastest in one range, although a few of them may not be used.
            drawn = sums_of_sets(self.statistic, self.null.seed, rows)
            observed = self._sums(ObservedSigns(), SETS - 1, SETS, rows)
            parts, positions = [drawn, observed], chosen
        else:
            parts = []
            for low, high in _ranges(used):
                first, last = int(used[low]), int(used[high - 1]) + 1
                null = ObservedSigns() if first == SETS - 1 else self.null
                parts.append(self._sums(null, first, last, rows))
        for total, *fields in zip(state, *parts, strict=True):
            sums = np.concatenate(fields)  # of the sets, in their order
            add_chosen(_as_floats(sums), positions, _as_floats(total))

    def _sums(self, null: Null, first: int, last: int, rows: Chunk) -> Any:
        """Sums of rows with sets of labels or signs of a null."""
        replicates = Replicates(self.statistic, null, first, last)
        return replicates.accumulate(replicates.zero(rows.n_features), rows)


def _ranges(used: Ints) -> Iterator[tuple[int, int]]:
    """Positions of the ranges of consecutive sets, with the observed set in a range of its own."""
    ends = np.flatnonzero((np.diff(used) > 1) | (used[1:] == SETS - 1)) + 1
    return pairwise([0, *ends.tolist(), len(used)])


def _as_floats(field: Any) -> Floats:
    """Sums of each replicate in one row (B, d), where a complex number is two numbers."""
    return field.reshape(len(field), -1).view(np.float64)
