"""Sets of classes in zarr arrays: a matrix of booleans, or positions of classes row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibscale.data.label_values import named_labels
from calibscale.data.missing import as_floats
from calibscale.data.set_members import Members, hits_of, of_flags, without_sets
from calibscale.data.set_outcomes import RowsOfSets, SetOutcomes
from calibscale.errors import InvalidDataError

# Names of the arrays of a group with a sparse matrix by rows, as AnnData writes it
STARTS, CLASSES, VALUES = "indptr", "indices", "data"


class ReadsMembers(Protocol):
    """Sets of rows of zarr arrays."""

    rows: int

    def members(self, start: int, stop: int, name: str) -> Members:
        """Members of the sets of the rows from `start` to before `stop`."""
        ...


class MatrixOfSets:
    """Sets in an array (n, K) of booleans, or of the numbers 0 and 1.

    A row with NaN has no set.
    """

    def __init__(self, array: Any) -> None:
        self.array = array
        self.rows = int(array.shape[0])

    def members(self, start: int, stop: int, name: str) -> Members:
        values = np.asarray(self.array[start:stop])

        def refused(row: int, column: int) -> str:
            return (
                f"{name}: row {start + row} has {values[row, column]:g} in column {column}, not "
                "true or false (1 or 0); sets by positions are a group of the arrays indptr and "
                "indices"
            )

        return of_flags(values, start, refused)


class CompressedSets:
    """Sets in the arrays of a sparse matrix by rows.

    The classes of row i are ``indices[indptr[i]:indptr[i + 1]]``.  Where there is an array ``data``
    and its number is 0, the class is no member, and where it is NaN, the row has no set.
    """

    def __init__(self, arrays: Callable[[str], Any], has_values: bool, name: str) -> None:
        self.starts, self.classes = arrays(STARTS), arrays(CLASSES)
        self.values = arrays(VALUES) if has_values else None
        dtypes = (self.starts.dtype, self.classes.dtype)
        shapes = {len(self.starts.shape), len(self.classes.shape)}
        if shapes != {1} or any(dtype.kind not in "iu" for dtype in dtypes):
            raise InvalidDataError(
                f"{name}: indptr and indices must be whole numbers (n + 1,) and (members,)"
            )
        self.rows = int(self.starts.shape[0]) - 1
        if self.rows < 1:
            raise InvalidDataError(
                f"{name}: there are no rows: indptr has n + 1 numbers for n rows"
            )

    def members(self, start: int, stop: int, name: str) -> Members:
        starts = np.asarray(self.starts[start : stop + 1]).astype(np.int64)
        end = int(self.classes.shape[0])
        wrong = (np.diff(starts) < 0) | (starts[:-1] < 0) | (starts[1:] > end)
        if wrong.any():
            i = start + int(np.argmax(wrong))
            raise InvalidDataError(
                f"{name}: row {i}: indptr must not decrease, and be from 0 to the {end:,} members "
                "of indices",
                i,
            )
        within = slice(int(starts[0]), int(starts[-1]))
        classes = np.asarray(self.classes[within])
        starts = starts - starts[0]
        if self.values is None:
            return Members(starts, classes)
        flags = np.asarray(self.values[within])
        present = flags != 0
        before = np.append(0, np.cumsum(present))
        members = Members(before[starts], classes[present])
        is_missing_flag = np.isnan(flags) if flags.dtype.kind == "f" else np.zeros(0, bool)
        if is_missing_flag.any():
            return without_sets(members, is_missing_flag[present])
        return members


class ArraySets(RowsOfSets):
    """Outcomes of the sets of zarr arrays by rows.

    Parameters
    ----------
    sets : sets by rows
    labels : (n,) array of numbers
    class_names : names of the classes, or None
    name : name of the source in messages
    """

    def __init__(
        self, sets: ReadsMembers, labels: Any, class_names: Sequence[Any] | None, name: str
    ) -> None:
        super().__init__(sets.rows)
        if tuple(labels.shape) != (sets.rows,):
            raise InvalidDataError(
                f"{name}: {sets.rows:,} sets, but labels of the shape {tuple(labels.shape)}"
            )
        self._sets, self._labels, self._name = sets, labels, name
        self._named = None if class_names is None else named_labels(class_names)

    def computed(self, start: int, stop: int) -> SetOutcomes:
        members = self._sets.members(start, stop, self._name)
        labels: NDArray[Any] = as_floats(np.asarray(self._labels[start:stop]))
        if labels.dtype.kind == "b":
            labels = labels.astype(np.int64)  # of two classes

        def place(row: int) -> str:
            return f"{self._name}: row {row}"

        hits = hits_of(members, labels, self._named, place, start)
        return SetOutcomes(members.known_sizes, hits)
