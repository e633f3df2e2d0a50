"""Columns of tables that hold the set of classes of each row, and not its size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data.ingest import set_texts
from calibscale.data.ingest.readers import InputPart, Reader, place_of_row
from calibscale.data.label_values import WORDS, LabelValues, key_of
from calibscale.data.missing import as_floats, is_missing, is_missing_number
from calibscale.data.set_members import Members, Place, hits_of, of_flags, with_columns
from calibscale.data.set_outcomes import SetOutcomes

SIZES_HAVE_NO_NAMES = "class_names= (--class-names) is for columns of sets, and not for their sizes"
_FLAGS = {**WORDS, "0": 0, "1": 1}  # texts of booleans by their keys
_FIRST_ROWS = 64  # rows read at a time to describe a column


@dataclass(frozen=True)
class SetColumns:
    """Columns of a table with the set of each row, and the column of their labels.

    One column has lists of classes, lists of a boolean for each class, or texts such as
    ``['cat', 'dog']``.  Several columns have a boolean for each class, as booleans, as the numbers
    0 and 1, or as texts such as ``True``.

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
    texts : names of the columns that have booleans as texts
    """

    names: tuple[str, ...]
    labels: str
    numeric_labels: bool
    n_classes: int | None = None
    width: int = 1
    numeric_texts: bool = False
    texts: tuple[str, ...] = ()

    @property
    def names_of_sets(self) -> tuple[str, ...]:
        """Names of the columns that a reader has to return as sets or texts."""
        return self.names if len(self.names) == 1 else self.texts

    def outcomes(self, file: str, part: InputPart, named: LabelValues | None = None) -> SetOutcomes:
        """Sizes and hits of the rows of a part of a file, with the names of classes, if known.

        Raises
        ------
        OptionError, InvalidDataError
            As for `calibscale.from_sets`.  Errors name the row or line.
        """

        place = _places(file, part)
        labels = as_floats(part.columns[self.labels])
        if labels.dtype.kind == "O" and self._are_texts(part):
            # A text means the same beside sets that are texts as inside of them.
            class_names = () if named is None else named.exact
            missing = set_texts.missing_among(labels.tolist(), class_names)
            labels = labels.copy()
            labels[missing] = None
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
        elif self._are_texts(part):
            members = set_texts.of_texts(
                column.tolist(),
                place,
                part.start,
                as_numbers=self._are_numbers(labels, named),
                flags=self.n_classes is not None,
                class_names={} if named is None else named.exact,
            )
        else:
            return self._of_flags(columns, place, part.start)
        return with_columns(members, place, part.start, self.n_classes)

    def _are_texts(self, part: InputPart) -> bool:
        """Whether sets are texts of a list."""
        column = part.columns[self.names[0]]
        return len(self.names) == 1 and isinstance(column, np.ndarray) and column.dtype.kind == "O"

    def _of_flags(self, columns: list[NDArray[Any]], place: Place, first: int) -> Members:
        """Members of rows with a boolean for each class, without a set where one is missing."""
        if columns[0].ndim > 1:
            values = as_floats(columns[0])
            names = self.names * values.shape[1]
        else:
            values = np.column_stack([_flags_of_column(column) for column in columns])
            names = self.names

        def refused(row: int, column: int) -> str:
            value = columns[0][row, column] if columns[0].ndim > 1 else columns[column][row]
            shown = repr(value) if isinstance(value, str) else f"{value:g}"
            return (
                f"{place(first + row)}: {names[column]!r} is {shown:.60}, not true or false (1 or "
                "0): several columns say of each class whether the set has it"
            )

        return of_flags(values, first, refused)

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
    sets = SetColumns(names, labels, reader.column(labels).dtype.kind in "fiub")
    if len(names) == 1 and reads_as_sets(reader, names[0]):
        return _described(sets, reader)
    columns = [reader.column(name) for name in names]
    count = sum(int(np.prod(column.shape)) for column in columns)
    # A single column of numbers or booleans has sizes of sets.
    if len(names) == 1 and count <= 1 and not (columns[0].shape and columns[0].dtype.kind == "b"):
        return None
    are_lists = len(names) > 1 and any(column.shape or column.time for column in columns)
    if are_lists or not all(column.dtype.kind in "fiubOU" for column in columns):
        return None
    in_texts = [column.dtype.kind in "OU" for column in columns]
    texts = tuple(name for name, is_text in zip(names, in_texts, strict=True) if is_text)
    if not all(reads_as_sets(reader, name) for name in texts):
        return None
    return replace(sets, n_classes=count, width=count, texts=texts)


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


def _flags_of_column(column: NDArray[Any]) -> NDArray[Any]:
    """Booleans of a column (n,), or numbers with NaN where they are missing.

    Texts such as ``True`` and ``no`` are booleans.  Other texts become ∞, which is no boolean.
    """
    values = as_floats(column)
    if values.dtype.kind != "O":
        return values
    numbers = {}
    for text in set(values.tolist()):
        key = key_of(text)
        is_absent = is_missing(text) or is_missing_number(str(text))
        numbers[text] = np.nan if is_absent else _FLAGS.get(key, np.inf)
    return np.array([numbers[text] for text in values.tolist()], np.float64)
