"""Columns that the names of folders hold, such as ``date=2026-09-01/region=north``.

Spark, Hive, Arrow, DuckDB and polars write the values of partition columns into the names of
folders instead of the files.  A value means the same thing in each format of files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.readers import TEXT, InputColumn, InputPart, Reader
from calibscale.data.missing import is_missing, missing_entries, of_arrow, plain_arrow
from calibscale.errors import InvalidDataError

_NULL = "__HIVE_DEFAULT_PARTITION__"  # Hive and Spark write it where a value is missing
_EXACT = 2**53  # larger integers are ids, and different ids can be equal as numbers in float64

Value = float | str | None


def folder_texts(address: Any) -> dict[str, str | None]:
    """Texts of the partition columns in the path of a file, by name, or None where one is missing.

    Names and values are URL-encoded.

    Examples
    --------
    >>> from calibscale.data.ingest.partitions import folder_texts
    >>> folder_texts("lake/date=2026-09-01/region=a%20b/part-0.parquet")
    {'date': '2026-09-01', 'region': 'a b'}
    """
    texts: dict[str, str | None] = {}
    for folder in str(address).split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if name and equals:
            # Signs such as a slash cannot stand in the name of a folder.
            text = unquote(value)
            texts[unquote(name)] = None if text == _NULL or is_missing(text) else text
    return texts


def describe_partitions(files: Sequence[InputFile]) -> None:
    """Set the partition columns of files: numbers if all values of a column are integers."""
    texts = [{} if file.whole else folder_texts(file.address) for file in files]
    numbers = {
        name
        for name in dict.fromkeys(chain(*texts))
        if _are_integers([texts_of_file[name] for texts_of_file in texts if name in texts_of_file])
    }
    for file, texts_of_file in zip(files, texts, strict=True):
        values: dict[str, Value] = {**texts_of_file}
        for name in numbers & texts_of_file.keys():
            text = texts_of_file[name]
            values[name] = math.nan if text is None else float(text)
        file.partition = values
        file.partition_texts = texts_of_file


def _are_integers(texts: Sequence[str | None]) -> bool:
    present = [text for text in texts if text is not None]
    integers = all(re.fullmatch("[+-]?[0-9]{1,18}", text) for text in present)
    return bool(present) and integers and all(abs(int(text)) <= _EXACT for text in present)


class PartitionedFile:
    """Reader of a file that also has the columns of its folders, with one value in all rows.

    Attributes
    ----------
    partition : dict
        Values of the partition columns, by name.
    levels : dict
        Texts of the partition columns of texts, by name; an empty tuple where the text is missing.
    """

    def __init__(self, reader: Reader, file: InputFile) -> None:
        self._reader, self._file = reader, file
        self.partition = self._values = file.partition
        self.names: Sequence[str] = list(dict.fromkeys([*reader.names, *file.partition]))
        self.levels = {
            name: () if value is None else (value,)
            for name, value in file.partition.items()
            if not isinstance(value, float)
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def column(self, name: str) -> InputColumn:
        """Describe a column.  The number of rows of a partition column is None."""
        if name not in self._values:
            return self._reader.column(name)
        value = self._values[name]
        number = isinstance(value, float)
        missing = value is None or is_missing(value)
        return InputColumn(None, (), np.dtype(np.float64) if number else TEXT, not missing)

    def parts(self, names: Sequence[str], skip: int, step: int) -> Iterator[InputPart]:
        """Rows of columns.  An InvalidDataError if a column of the file contradicts its folder."""
        # A column of the file is read for the number of rows, even if none is wanted.
        inside = self._inside(names) or list(self._reader.names[:1])
        for part in self._reader.parts(inside, skip, step):
            count = len(part.columns[inside[0]])
            columns = {}
            for name in names:
                if name not in self._values:
                    columns[name] = part.columns[name]
                    continue
                if name in inside and name in self._reader.names:
                    self._check(name, part.columns[name], part.start, part.lines)
                columns[name] = self._constant(name, count)
            yield InputPart(part.start, columns, part.lines)

    def batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        """First row, and record batches, of a file with a reader of record batches."""
        start, batches = self._reader.batches(self._inside(names), skip, step)  # type: ignore[attr-defined]
        return start, self._with_constants(names, start, batches)

    def type_of(self, name: str) -> Any:
        """Arrow type of a column of a file with a reader of Arrow types."""
        import pyarrow as pa

        if name not in self._values:
            return self._reader.type_of(name)  # type: ignore[attr-defined]
        return pa.float64() if isinstance(self._values[name], float) else pa.string()

    def _with_constants(
        self, names: Sequence[str], start: int, batches: Iterator[Any]
    ) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            columns = []
            for name in names:
                if name not in self._values:
                    columns.append(batch.column(name))
                    continue
                # Some writers keep the column in the file, too, where it may say otherwise.
                if name in batch.schema.names:
                    self._check(name, of_arrow(plain_arrow(batch.column(name))), start, None)
                value = self._values[name]
                number = isinstance(value, float)
                kind = pa.float64() if number else pa.string()
                columns.append(pa.repeat(pa.scalar(value, kind), len(batch)))
            start += len(batch)
            yield pa.RecordBatch.from_arrays(columns, list(names))

    def _inside(self, names: Sequence[str]) -> list[str]:
        """Columns that the file itself has."""
        return [name for name in names if name in self._reader.names]

    def _constant(self, name: str, count: int) -> NDArray[Any]:
        value = self._values[name]
        return np.full(count, value, np.float64 if isinstance(value, float) else object)

    def _check(
        self, name: str, column: NDArray[Any], start: int, lines: Sequence[int] | None
    ) -> None:
        """Raise an InvalidDataError unless all rows of a column have the value of the folder.

        The column (c,) begins at row `start` of the file.  `lines` (c,) are the lines of its rows
        in a file of text.
        """
        text = self._file.partition_texts[name]
        is_missing_in_folder = text is None
        wrong = missing_entries(column) != is_missing_in_folder
        if text is not None:
            wrong |= ~_equal(column, text)
        if wrong.any():
            i = int(np.argmax(wrong))
            where = f"line {lines[i]}" if lines else f"row {start + i}"
            value = column[i]
            shown = repr(value.item()) if column.dtype.kind in "fiub" else repr(str(value))
            in_folder = _NULL if text is None else text
            raise InvalidDataError(
                f"{self._file}, {where}: {name!r} is {shown}, but the file is in the folder "
                f"{name}={in_folder}; the values must be the same",
                start + i,
            )


def _equal(column: NDArray[Any], text: str) -> NDArray[np.bool_]:
    """Whether entries (c,) of any type are the value that a folder writes as `text`."""
    kind = column.dtype.kind
    try:
        if kind == "b":
            return column == {"true": True, "false": False}[text.lower()]
        if kind in "fiu":
            return column == float({"true": 1, "false": 0}.get(text.lower(), text))
        if kind == "M":
            return column == np.datetime64(text)
    except (KeyError, ValueError):
        return np.zeros(len(column), bool)
    return np.array([value == text for value in column.tolist()], bool)
