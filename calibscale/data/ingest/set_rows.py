"""Sizes of the sets of a frame, and whether they contain the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibscale.data.ingest.readers import TableReader
from calibscale.data.ingest.set_columns import SetColumns
from calibscale.data.label_values import named_labels
from calibscale.data.set_outcomes import RowsOfSets, SetHits, SetOutcomes, SetSizes


class FrameSets(RowsOfSets):
    """Outcomes of the sets of a frame by rows.

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
        super().__init__(rows)
        self.frame = frame
        self._sets, self._name = sets, name
        self._named = None if class_names is None else named_labels(class_names)

    def computed(self, start: int, stop: int) -> SetOutcomes:
        names = [*self._sets.names, self._sets.labels]
        part = next(self.frame.parts(names, start, stop - start))
        return self._sets.outcomes(self._name, part, self._named)


class FrameSetSizes(SetSizes):
    """Sizes of the sets of a frame (n,), NaN where a set is absent."""

    source: FrameSets

    @property
    def frame(self) -> TableReader:
        """Reader of the frame, which belongs to this process."""
        return self.source.frame


class FrameSetHits(SetHits, FrameSetSizes):
    """1 where the label is in the set of a row of a frame, 0 where it is not, or NaN (n,)."""
