"""Readers of text files of rows: CSV and JSON Lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from operator import length_hint
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data.arrow_values import load_pandas
from calibscale.data.ingest.csv_dialects import decimal_of, delimiter_of, exchanged, opened_text
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.mixed_sets import first_mixed
from calibscale.data.ingest.readers import BATCH_BYTES, TEXT, InputColumn, InputPart, TableReader
from calibscale.data.ingest.row_bounds import ROW_BYTES, RowBounds
from calibscale.data.missing import is_missing, is_missing_number, texts_of
from calibscale.errors import InvalidDataError

_CELL_BYTES = 96  # memory of a cell before conversion: a short string in a list
FIRST_ROWS = 100  # rows that decide about the types of columns
# Remedies for a text among numbers
_ONE_TYPE = (
    "the values of a column are all numbers, or all texts, and a missing number is empty, NA, NaN "
    "or null"
)
_SINGLE_SETS = (
    "the first rows are numbers, which are sizes of sets: write sets of one class in brackets, "
    "such as [3], or all rows as sizes"
)


class CsvFile:
    """Reader of values separated by commas, semicolons, tabs or bars.

    Python's reader tells the line of each row, which may have line breaks in quotes, and reads
    numbers as strictly as ``float``.  The reader of pyarrow is faster and does neither.
    """

    def __init__(self, file: InputFile) -> None:
        self._path = file
        self._delimiter = delimiter_of(file)
        with self._rows() as (rows, bounds):
            self.names: Sequence[str] = [name.strip() for name in next(rows, (0, []))[1]]
            self._first = [row for _, row in bounds.taken(rows, FIRST_ROWS)]
        self._sets: set[str] = set()  # columns that are read as sets
        self._sizes: set[str] = set()  # columns that may have sets, and whose first cells are sizes
        self._decimal = decimal_of(self._delimiter, chain(*self._first))

    @contextmanager
    def _rows(self) -> Iterator[tuple[Iterator[tuple[int, list[str]]], RowBounds]]:
        """Rows with the number of their last line, and the bounds of their reader."""
        bounds = RowBounds(self._path)
        # The module has one limit of a cell in the process, by default 131,072 characters.  It is
        # raised, so that the bound of a row is reached first.
        csv.field_size_limit(max(csv.field_size_limit(), 2 * ROW_BYTES))

        def numbered(reader: Any) -> Iterator[tuple[int, list[str]]]:
            for row in reader:
                line = reader.line_num
                bounds.next_row(line + 1)
                if row:
                    yield line, row

        with opened_text(self._path, bounds, newline="") as file:
            yield numbered(csv.reader(file, strict=True, delimiter=self._delimiter)), bounds

    def _pointed(self, cell: str) -> str:
        """Cell with a decimal point.

        Where the decimal sign is a comma, a point turns into a comma, so that no number has both
        meanings.
        """
        return exchanged(cell) if self._decimal == "," else cell

    def read_as_sets(self, name: str) -> bool:
        """Read a column as texts of sets from now on, unless its first cells are all numbers.

        Numbers are sizes of sets.  Cells that are all empty are empty sets.
        """
        cells = self._first_cells(name)
        if cells and all(_is_number(self._pointed(cell)) for cell in cells):
            self._sizes.add(name)
            return False
        self._sets.add(name)
        return True

    def _first_cells(self, name: str) -> list[str]:
        """The first cells of a column that are not missing, in whatever row they are."""
        j = self.names.index(name)
        cells = _filled(self._first, j)
        if self._first and not cells:
            with self._rows() as (rows, _):
                next(rows)
                cells = _filled((row for _, row in rows), j)
        return cells

    def column(self, name: str) -> InputColumn:
        """Describe a column.  It is a column of texts if no number is in its first filled cells."""
        if name in self._sets:
            return InputColumn(None if self._first else 0, (), np.dtype(np.float64))
        cells = self._first_cells(name)
        text = len(cells) > 0 and not any(_is_number(self._pointed(cell)) for cell in cells)
        dtype = TEXT if text else np.dtype(np.float64)
        return InputColumn(None if self._first else 0, (), dtype, len(cells) > 0)

    def parts(self, names: Sequence[str], skip: int, step: int) -> Iterator[InputPart]:
        width = len(self.names)
        texts = {
            name: self.names.index(name)
            for name in names
            if name in self._sets or self.column(name).dtype == TEXT
        }
        numbers_of = [name for name in names if name not in texts]
        cells_of = [self.names.index(name) for name in numbers_of]
        # Cells take more memory before their conversion than numbers.
        step = max(1, min(step, BATCH_BYTES // (_CELL_BYTES * width)))
        with self._rows() as (rows, bounds):
            next(rows)
            start = sum(1 for _ in islice(rows, skip))
            lines = [0]
            while lines:  # the last, empty part gives the number of rows
                lines = []
                cells = []
                texts_in = {name: list[str]() for name in texts}
                for line, row in bounds.taken(rows, step):
                    if len(row) != width:
                        raise InvalidDataError(
                            f"{self._path}, line {line}: {len(row)} fields, but {width} in line 1",
                            start + len(lines),
                        )
                    lines.append(line)
                    cells += [row[j] for j in cells_of]
                    for name, j in texts.items():
                        texts_in[name].append(row[j])
                # All cells are converted at once, which is faster than one by one.
                if self._decimal == ",":
                    cells = [exchanged(cell) for cell in cells]
                numbers, wrong = _numbers([cell or "nan" for cell in cells])
                if wrong is not None:
                    i, j = divmod(wrong, len(numbers_of))
                    place, name = f"{self._path}, line {lines[i]}", numbers_of[j]
                    remedy = _ONE_TYPE if name not in self._sizes else _SINGLE_SETS
                    raise InvalidDataError(
                        f"{place}: {name!r} is {self._pointed(cells[wrong])!r:.60}, "
                        f"not a number; {remedy}",
                        start + i,
                    )
                numbers = numbers.reshape(len(lines), len(numbers_of))
                columns = dict(zip(numbers_of, numbers.T, strict=True))
                # An empty cell is an empty set, and a missing value in other columns.
                columns |= {
                    name: np.array(cells, object) if name in self._sets else texts_of(cells)
                    for name, cells in texts_in.items()
                }
                yield InputPart(start, columns, lines)
                start += len(lines)


def _filled(rows: Iterable[list[str]], j: int) -> list[str]:
    """The first cells of a column that are not missing."""
    cells = (row[j] for row in rows if len(row) > j)
    return list(islice((cell for cell in cells if not is_missing_number(cell)), FIRST_ROWS))


def _numbers(cells: list[str]) -> tuple[NDArray[np.float64], int | None]:
    """Numbers of cells, NaN where they are missing, and the position of the first wrong cell."""
    joined = "".join(cells)
    # One test of all cells saves a test of each.
    convert = float if joined.isascii() and "_" not in joined else _decimal
    # After an error, the length of the iterator that is left tells the position of the wrong cell.
    left = iter(cells)
    try:
        return np.fromiter(map(convert, left), np.float64, len(cells)), None
    except ValueError:
        wrong = len(cells) - length_hint(left) - 1
    if not is_missing_number(cells[wrong]):
        return np.empty(0), wrong
    return _numbers(["nan" if is_missing_number(cell) else cell for cell in cells])


def _is_number(cell: str) -> bool:
    try:
        _decimal(cell)
    except ValueError:
        return False
    return True


def _decimal(text: str) -> float:
    """Convert a number; unlike Python, refuse 1_0 and digits of other scripts."""
    if not text.isascii() or "_" in text:
        raise ValueError(f"could not convert string to float: {text!r}")
    return float(text)


def json_objects(
    file: InputFile, bounds: RowBounds | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of each line.  Members of inner objects are ``outer.inner``."""
    bounds = bounds or RowBounds(file)
    with opened_text(file, bounds) as lines:
        for line, text in enumerate(lines, 1):
            bounds.next_row(line + 1)
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                fault = f"{file}, line {line}: not a JSON object ({error})"
                raise InvalidDataError(fault) from error
            if not isinstance(row, dict):
                raise InvalidDataError(f"{file}, line {line}: not a JSON object")
            for name in [name for name, value in row.items() if isinstance(value, dict)]:
                row |= {f"{name}.{key}": value for key, value in row.pop(name).items()}
            yield line, row


class JsonLinesFile(TableReader):
    """Reader of a JSON object per line.  Members of inner objects are columns ``outer.inner``.

    The first rows decide about types, and all numbers are read as float64.  Python's parser tells
    the line of each value, and accepts NaN.
    """

    def __init__(self, file: InputFile) -> None:
        import pyarrow as pa

        load_pandas()
        self._file = file
        bounds = RowBounds(file)
        self._first = [row for _, row in bounds.taken(self._objects(bounds), FIRST_ROWS)]
        cells = (
            sum(len(value) if isinstance(value, list) else 1 for value in row.values())
            for row in self._first
        )
        self._step = max(1, BATCH_BYTES // (_CELL_BYTES * max(cells, default=1)))
        super().__init__(file, pa.schema([]), None if self._first else 0)
        self.names = list(dict.fromkeys(chain(*self._first)))

    def find(self, names: Iterable[str]) -> None:
        """Look for columns in all rows, unless the first rows have columns that begin like them."""
        first = tuple(self.names)
        if all(any(column.startswith(name) for column in first) for name in names):
            return
        columns = dict.fromkeys(first)  # a dictionary keeps their order
        for _, row in self._objects():
            columns.update(dict.fromkeys(row))
        self.names = list(columns)

    def read_as_sets(self, name: str) -> bool:
        kind = self._type_of_sets(name)
        if kind is not None:
            self._types[name] = kind
        return super().read_as_sets(name)

    def _type_of_sets(self, name: str) -> Any:
        """Type of lists with the first class of a column, or None if it has no lists."""
        import pyarrow as pa

        lists = [value for value in _values_of(self._first, name) if isinstance(value, list)]
        if not lists and _values_of(self._first, name):
            return None
        values: Iterable[Any] = lists
        if not any(lists):  # all empty
            values = (row.get(name) for _, row in self._objects())
        for value in values:
            for member in value if isinstance(value, list) else ():
                if isinstance(member, bool):
                    return pa.list_(pa.bool_())
                if member is not None:
                    return pa.list_(pa.string() if isinstance(member, str) else pa.float64())
        return pa.list_(pa.float64()) if lists else None

    def type_of(self, name: str) -> Any:
        """Type of the first values of a column that are not missing; numbers if all are."""
        if name not in self._types:
            values = _values_of(self._first, name)
            if not values:
                values = _values_of((row for _, row in self._objects()), name)
            self._types[name] = self._common_type(name, values)
        return self._types[name]

    def _common_type(self, name: str, values: list[Any]) -> Any:
        import pyarrow as pa

        numbers = [value for value in values if not _stands_for_number(value)]
        if not all(isinstance(value, str) for value in numbers):
            values = numbers  # such as "NaN" among numbers
        try:
            kind = pa.array(values).type
        except (pa.ArrowException, OverflowError) as error:
            raise self._fault_of_types(name, error) from error
        # Later rows may have fractions, or no number.
        if pa.types.is_int64(kind):
            return pa.float64()
        return pa.list_(pa.float64()) if pa.types.is_list(kind) else kind

    def _fault_of_types(self, name: str, error: Exception) -> InvalidDataError:
        """Error that names the first line with a value of another type than the first value."""
        first: Any = None
        for line, row in self._objects():
            value = row.get(name)
            if is_missing(value) or isinstance(value, list):
                continue
            first = value if first is None else first
            if any(isinstance(value, kind) != isinstance(first, kind) for kind in (str, bool)):
                return InvalidDataError(
                    f"{self._file}, line {line}: {name!r} is {value!r:.60}, but earlier lines have "
                    f"{first!r:.60}; write values of one type"
                )
        return InvalidDataError(f"{self._file}: {name!r} has values of several types ({error})")

    def _objects(self, bounds: RowBounds | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        return json_objects(self._file, bounds)

    def batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        """Number of the first row, and a record batch of the first `step` rows.

        `column` describes a column of lists by these rows.  `parts` reads all rows.
        """
        import pyarrow as pa

        first = list(islice(self._objects(), step))
        lines = [line for line, _ in first]
        arrays = []
        for name in names:
            values = [row.get(name) for _, row in first]
            arrays.append(self._array(name, values, lines))
        return 0, iter([pa.RecordBatch.from_arrays(arrays, names)])

    def parts(self, names: Sequence[str], skip: int, step: int) -> Iterator[InputPart]:
        shapes = {name: self.column(name).shape for name in names}
        bounds = RowBounds(self._file)
        rows = self._objects(bounds)
        start = sum(1 for _ in islice(rows, skip))
        lines: Sequence[int] = [0]
        while lines:  # the last, empty part gives the number of rows
            part = list(bounds.taken(rows, min(step, self._step)))
            lines = [line for line, _ in part]
            columns = {}
            for name in names:
                column = self._array(name, [row.get(name) for _, row in part], lines)
                columns[name] = self._values(column, name, shapes[name], start, lines)
            yield InputPart(start, columns, lines)
            start += len(lines)

    def _array(self, name: str, values: list[Any], lines: Sequence[int]) -> Any:
        """Arrow array of values.  An InvalidDataError names the line of a value of another type."""
        import pyarrow as pa

        kind = self.type_of(name)
        if name in self._sets and pa.types.is_list(kind):
            self._check_lists(name, values, lines)
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError):
            values = [None if _stands_for_number(value) else value for value in values]
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError) as error:
            for line, value in zip(lines, values, strict=True):
                try:
                    pa.array([value], kind)
                except (pa.ArrowException, OverflowError):
                    fault = f"{self._file}, line {line}: {name!r} is {value!r:.60}, not {kind}"
                    raise InvalidDataError(fault) from error
            raise

    def _check_lists(self, name: str, values: list[Any], lines: Sequence[int]) -> None:
        """Refuse sets that Arrow would convert or refuse in its own words."""
        import pyarrow as pa

        # The first lists decide about the type of all.
        example: Any = {pa.bool_(): True, pa.string(): "a"}.get(self.type_of(name).value_type, 0)
        mixed = first_mixed([[example], *values])
        if mixed is not None:
            raise InvalidDataError(
                f"{self._file}, line {lines[mixed.row - 1]}: {name!r} is {mixed.fault}"
            )


def _values_of(rows: Iterable[dict[str, Any]], name: str) -> list[Any]:
    """The first values of a member that are not missing."""
    values = (row.get(name) for row in rows)
    return list(islice((value for value in values if not is_missing(value)), FIRST_ROWS))


def _stands_for_number(value: Any) -> bool:
    """Whether a value is a text that means a missing number."""
    return isinstance(value, str) and is_missing_number(value)
