"""Sizes of sets, and whether they contain the label, computed when rows are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.engine.dask_connection import available_cpus

_NUMBERS = np.dtype(np.float64)


class SetOutcomes(NamedTuple):
    """Size of each set, and 1 where the label is in it, 0 where not, or NaN where unknown."""

    sizes: Floats
    hits: Floats


class RowsOfSets(ABC):
    """Base class of outcomes of sets by rows.

    Sizes and hits of a block are read one after the other, and computed once: the latest blocks are
    kept, one for each thread and two more.

    Parameters
    ----------
    rows : number of rows
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._latest: deque[tuple[slice, SetOutcomes]] = deque(maxlen=available_cpus() + 2)

    @abstractmethod
    def computed(self, start: int, stop: int) -> SetOutcomes:
        """Sizes and hits of the rows from `start` to before `stop`."""

    def outcomes(self, rows: slice) -> SetOutcomes:
        """Sizes and hits of neighbouring rows."""
        start, stop, _ = rows.indices(self.rows)
        if stop <= start:
            return SetOutcomes(np.empty(0), np.empty(0))
        key = slice(start, stop)
        for kept, outcomes in list(self._latest):  # a copy, as other threads add blocks
            if kept == key:
                return outcomes
        outcomes = self.computed(start, stop)
        self._latest.append((key, outcomes))
        return outcomes

    def __getstate__(self) -> dict[str, Any]:
        # Blocks are for this process alone.
        return vars(self) | {"_latest": deque(maxlen=self._latest.maxlen)}


class SetSizes:
    """Sizes of sets (n,), NaN where a set is absent."""

    def __init__(self, source: RowsOfSets) -> None:
        self.source = source

    @property
    def shape(self) -> tuple[int]:
        """Number of rows."""
        return (self.source.rows,)

    @property
    def dtype(self) -> np.dtype:
        """Type of the numbers."""
        return _NUMBERS

    def __getitem__(self, rows: slice) -> Floats:
        return self.source.outcomes(rows).sizes


class SetHits(SetSizes):
    """1 where the label is in its set, 0 where it is not, and NaN where it is unknown (n,)."""

    def __getitem__(self, rows: slice) -> Floats:
        return self.source.outcomes(rows).hits
