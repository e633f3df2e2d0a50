"""Gaps of the bins of a reliability diagram, and their draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints

SEED = 20261122  # seed of the simulated bins: equal sums have equal limits


class BinGaps(NamedTuple):
    """Occupied bins: share of the weight, effective rows, mean prediction and gap, (B,) each."""

    share: Floats
    rows: Floats
    mean_p: Floats
    gap: Floats

    @property
    def whole_rows(self) -> Ints:
        """Numbers of trials of the binomial distributions that are simulated."""
        return np.maximum(np.rint(self.rows), 1.0).astype(np.int64)

    @property
    def frequency(self) -> Floats:
        """Observed frequency of the event."""
        return np.clip(self.mean_p - self.gap, 0.0, 1.0)

    @property
    def moved_frequency(self) -> Floats:
        """Frequency observed with one additional row at p̄, which is 0 or 1 only if p̄ is."""
        return (self.rows * self.frequency + self.mean_p) / (self.rows + 1.0)

    def drawn(self, frequency: Floats, draws: int) -> Floats:
        """Gaps (draws, B) of binomial numbers of events of a frequency (B,)."""
        rows = self.whole_rows
        events = np.random.default_rng(SEED).binomial(rows, frequency, (draws, len(rows)))
        expected = self.mean_p - frequency
        # The noise of a whole number of rows is scaled to the effective number of rows.
        return expected + (frequency - events / rows) * np.sqrt(rows / self.rows)
