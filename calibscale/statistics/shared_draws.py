"""Sums over drawn labels that intervals and tests of one pass share.

Intervals need the noise of sums under calibration, from about a hundred sets of drawn labels.  The
first look of a test recombines 63 sets, see `calibscale.statistics.recombined_draws`.  Beside a
test, intervals draw labels with its seed.  The sums of the first 63 sets are then computed once for
each chunk of rows, unless a pass over few blocks has parts of the draws in several units of work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibscale.predictions.chunk import Chunk
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.statistic import Replicates, Statistic, with_fields

DRAWN_SETS = 63  # sets of drawn labels that intervals and tests share


@dataclass(frozen=True)
class SharedLabels(DrawnLabels):
    """Labels as `DrawnLabels` draws them, with sums that intervals and tests of a pass share."""


def sums_of_sets(statistic: Statistic, seed: int, chunk: Chunk) -> Any:
    """Sums of a chunk with each of the first sets of drawn labels.

    The chunk keeps them.  Callers do not modify them.
    """
    replicates = Replicates(statistic, DrawnLabels(seed), 0, DRAWN_SETS)
    if replicates not in chunk.views:
        zero = replicates.zero(chunk.n_features)
        chunk.views[replicates] = replicates.accumulate(zero, chunk)
    return chunk.views[replicates]


@dataclass(frozen=True)
class NoiseReplicates(Replicates):
    """Replicates with `SharedLabels`, which take the sums of the first sets from the chunk."""

    def nbytes(self, classes: int) -> int:
        # The sums that a chunk keeps need memory as well.
        shared = Replicates(self.statistic, self.null, 0, DRAWN_SETS)
        return super().nbytes(classes) + shared.nbytes(classes)

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        if self.first > 0 or self.last < DRAWN_SETS:  # a part of the draws, in a unit of work
            return super().accumulate(state, chunk)
        sums_of_first = sums_of_sets(self.statistic, self.null.seed, chunk)
        for total, sums in zip(state, sums_of_first, strict=True):
            total[:DRAWN_SETS] += sums
        if self.last > DRAWN_SETS:
            further = Replicates(self.statistic, self.null, DRAWN_SETS, self.last)
            totals = with_fields(state, (total[DRAWN_SETS:] for total in state))
            further.accumulate(totals, chunk)
        return state
