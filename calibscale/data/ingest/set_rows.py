"""Sizes of sets, and whether they contain the label, computed when rows of a frame are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.ingest.readers import TableReader
from calibscale.data.ingest.set_columns import SetColumns, SetOutcomes
from calibscale.data.label_values import named_labels
from calibscale.engine.dask_connection import available_cpus

_NUMBERS = np.dtype(np.float64)


class SetRows:
    """Outcomes of the sets of a frame by rows.

    Sizes and hits of a block are read one after the other, and computed once: the latest blocks are
    kept, one for each thread and two more.

    Parameters
    ----------
    frame : reader of the frame, whose `parts` begin at any row
    sets : columns of sets and of labels
    class_names : names of the classes, or None
    rows : number of rows
    name : name of the source in messages
    """

    def __init__(
        self,
        frame: TableReader,
        sets: SetColumns,
        class_names: Sequence[Any] | None,
        rows: int,
        name: str,
    ) -> None:
        self.frame, self.rows = frame, rows
        self._sets, self._name = sets, name
        self._named = None if class_names is None else named_labels(class_names)
        self._latest: deque[tuple[slice, SetOutcomes]] = deque(maxlen=available_cpus() + 2)

    def outcomes(self, rows: slice) -> SetOutcomes:
        """Sizes and hits of neighbouring rows."""
        start, stop, _ = rows.indices(self.rows)
        if stop <= start:
            return SetOutcomes(np.empty(0), np.empty(0))
        key = slice(start, stop)
        for kept, outcomes in list(self._latest):  # a copy, as other threads add blocks
            if kept == key:
                return outcomes
        names = [*self._sets.names, self._sets.labels]
        part = next(self.frame.parts(names, start, stop - start))
        outcomes = self._sets.outcomes(self._name, part, self._named)
        self._latest.append((key, outcomes))
        return outcomes


@dataclass(frozen=True, eq=False)
class SetSizes:
    """Sizes of sets (n,), NaN where a set is absent."""

    source: SetRows

    @property
    def frame(self) -> TableReader:
        """Reader of the frame, which belongs to this process."""
        return self.source.frame

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
