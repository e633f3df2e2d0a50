"""Sums over drawn labels that intervals and tests of one pass share.

Intervals need the noise of sums under calibration, from about a hundred sets of drawn labels.  The
first look of a test recombines 63 sets, see `calibscale.statistics.recombined_draws`.  Beside a
test, intervals draw labels with its seed.  The sums of the first 63 sets are then computed once for
each chunk of rows, unless a pass over few blocks has parts of the draws in several units of work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
        sums = _part_of_kept_sums(replicates, chunk)
        if sums is None:
            sums = replicates.accumulate(replicates.zero(chunk.n_features), chunk)
        chunk.views[replicates] = sums
    return chunk.views[replicates]


def _part_of_kept_sums(replicates: Replicates, chunk: Chunk) -> Any:
    """Sums from those that the chunk keeps of a larger statistic with the same draws, or None.

    The kernel test of all classes has the first frequencies of the kernel errors by default.
    """
    for key, sums in chunk.views.items():
        if (
            isinstance(key, Replicates)
            and replace(key, statistic=replicates.statistic) == replicates
        ):
            part = replicates.statistic.drawn_part(key.statistic, sums)
            if part is not None:
                return part
    return None


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
