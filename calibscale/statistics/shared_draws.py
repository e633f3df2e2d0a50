"""Sums over drawn labels that intervals and tests of one pass share.

Intervals need the noise of sums under calibration, from about a hundred sets of drawn labels.  The
first look of a test recombines 63 sets, see `calibscale.statistics.recombined_draws`.  Both draw
the same labels if they have the same seed.  The sums of the first 63 sets are then computed once
for each chunk of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibscale.predictions.chunk import Chunk
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.statistic import Replicates, Statistic, with_fields

DRAWN_SETS = 63  # sets of drawn labels that intervals and tests share


def sums_of_sets(statistic: Statistic, null: DrawnLabels, chunk: Chunk) -> Any:
    """Sums of a chunk with each of the first sets of drawn labels, which must not be modified."""
    # Nulls of subclasses draw the same labels.
    replicates = Replicates(statistic, DrawnLabels(null.seed), 0, DRAWN_SETS)
    if replicates not in chunk.views:
        zero = replicates.zero(chunk.n_features)
        chunk.views[replicates] = replicates.accumulate(zero, chunk)
    return chunk.views[replicates]


@dataclass(frozen=True)
class NoiseReplicates(Replicates):
    """Replicates that estimate the noise under calibration, and share their first sets of labels.

    The first sets are summed over a chunk before they are added, whether or not a test shares them.
    Noise has the same bits for this reason.
    """

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        has_shared_sets = self.first == 0 and self.last >= DRAWN_SETS
        if not (has_shared_sets and type(self.null) is DrawnLabels):
            return super().accumulate(state, chunk)
        shared = sums_of_sets(self.statistic, self.null, chunk)
        for total, sums in zip(state, shared, strict=True):
            total[:DRAWN_SETS] += sums
        if self.last > DRAWN_SETS:
            further = Replicates(self.statistic, self.null, DRAWN_SETS, self.last)
            further.accumulate(with_fields(state, (total[DRAWN_SETS:] for total in state)), chunk)
        return state
