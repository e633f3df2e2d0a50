"""Columns of tables that hold the set of classes of each row, and not its size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats
from calibscale.data.ingest import set_texts
from calibscale.data.ingest.readers import InputPart, Reader, place_of_row
from calibscale.data.label_values import LabelValues
from calibscale.data.missing import as_floats
from calibscale.data.set_members import Members, Place, hits_of, of_matrix, with_columns

SIZES_HAVE_NO_NAMES = "class_names= (--class-names) is for columns of sets, and not for their sizes"
_FIRST_ROWS = 64  # rows read at a time to describe a column


class SetOutcomes(NamedTuple):
    """Size of each set, and 1 where the label is in it, 0 where not, or NaN where unknown."""

    sizes: Floats
    hits: Floats


@dataclass(frozen=True)
class SetColumns:
    """Columns of a table with the set of each row, and the column of their labels.

    One column has lists of classes, lists of a boolean for each class, or texts such as
    ``['cat', 'dog']``.  Several columns have a boolean for each class.

    Attributes
    ----------
    names : names of the columns of sets
    labels : name of the column of labels
    n_classes : int or None
        Number of booleans in a row, or None for lists of classes.
    width : int
        Number of members in the largest of the first sets.
    numeric_labels : bool
        Whether the labels are numbers.
    numeric_texts : bool
        Whether all classes in the first of the sets that are texts are numbers.
    """

    names: tuple[str, ...]
    labels: str
    numeric_labels: bool
    n_classes: int | None = None
    width: int = 1
    numeric_texts: bool = False

    def outcomes(self, file: str, part: InputPart, named: LabelValues | None = None) -> SetOutcomes:
        """Sizes and hits of the rows of a part of a file, with the names of classes, if known.

        Raises
        ------
        OptionError, InvalidDataError
            As for `calibscale.from_sets`.  Errors name the row or line.
        """

        place = _places(file, part)
        labels = as_floats(part.columns[self.labels])
        members = self._members(part, labels, named, place)
        if labels.dtype.kind == "b" and named is None:
            labels = labels.astype(np.int64)  # of two classes
        hits = hits_of(members, labels, named, place, part.start)
        return SetOutcomes(members.known_sizes, hits)

    def _members(
        self,
        part: InputPart,
        labels: NDArray[Any],
        named: LabelValues | None,
        place: Place,
    ) -> Members:
        columns = [part.columns[name] for name in self.names]
        column = columns[0]
        if isinstance(column, Members):
            members = column
        elif column.dtype.kind == "O" and len(columns) == 1:
            members = set_texts.of_texts(
                column.tolist(),
                place,
                part.start,
                as_numbers=self._are_numbers(labels, named),
                flags=self.n_classes is not None,
                class_names={} if named is None else named.exact,
            )
        else:
            return _of_flags(column if column.ndim > 1 else np.column_stack(columns))
        return with_columns(members, place, part.start, self.n_classes)

    def _are_numbers(self, labels: NDArray[Any], named: LabelValues | None) -> bool:
        """Whether texts that are numbers are numbers and no names of classes.

        They are compared with labels, or with names of classes, of the same type.
        """
        if named is not None:
            # Numbers are positions if no name is a number, see `from_sets`.
            return not (named.are_positions and named.by_number)
        if self.numeric_labels or not self.numeric_texts:
            return self.numeric_labels
        # Positions never equal names.  They are refused as numbers, instead of sets that all miss
        # their labels.
        return not any(set_texts.is_number(str(label)) for label in set(labels.tolist()))


def reads_as_sets(reader: Reader, name: str) -> bool:
    """Make a reader return a column as sets, if the column has lists or texts, and say so.

    Readers of arrays have no such columns.
    """
    declare = getattr(reader, "read_as_sets", None)
    return name in reader.names and declare is not None and declare(name)


def sets_in(reader: Reader, names: tuple[str, ...], labels: str) -> SetColumns | None:
    """Description of the columns of predictions if they hold sets, or None if they hold sizes."""
    columns = [reader.column(name) for name in names]
    sets = SetColumns(names, labels, reader.column(labels).dtype.kind in "fiub")
    if len(names) == 1 and reads_as_sets(reader, names[0]):
        return _described(sets, reader)
    # A single column of booleans has sizes of 0 and 1.
    count = sum(int(np.prod(column.shape)) for column in columns)
    if all(column.dtype.kind == "b" for column in columns) and (columns[0].shape or count > 1):
        return replace(sets, n_classes=count, width=count)
    return None


def _described(sets: SetColumns, reader: Reader) -> SetColumns:
    """Description that says what the first sets show that are not empty."""
    (name,) = sets.names
    for part in reader.parts([name], 0, _FIRST_ROWS):
        column = part.columns[name]
        if isinstance(column, Members):
            width = int(column.sizes.max(initial=0))
            flags, numeric = column.values.dtype.kind == "b", False
        else:
            width, flags, numeric = set_texts.form_of(column.tolist())
        if width:
            n_classes = width if flags else None
            return replace(sets, n_classes=n_classes, width=width, numeric_texts=numeric)
    return sets


def _places(file: str, part: InputPart) -> Place:
    """Function that names the file and the line or row of a row."""
    return lambda row: place_of_row(file, part, row - part.start)


def _of_flags(is_member: NDArray[Any]) -> Members:
    """Members of rows with a boolean for each class.  A row with a missing boolean has no set."""
    values = as_floats(is_member)
    if values.dtype.kind == "b":
        return of_matrix(values)
    absent = np.isnan(values).any(axis=1)
    present = of_matrix((values > 0) & ~absent[:, None])
    return Members(present.starts, present.values, present.n_classes, absent)
