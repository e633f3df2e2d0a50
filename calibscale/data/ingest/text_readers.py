"""Readers of text files of rows: CSV and JSON Lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain, islice
from operator import length_hint
from typing import Any

import numpy as np

from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.readers import BATCH_BYTES, TEXT, InputColumn, InputPart, TableReader
from calibscale.errors import InvalidDataError

_CELL_BYTES = 96  # memory of a cell before conversion: a short string in a list
FIRST_ROWS = 100  # rows that decide about the types of columns


class CsvFile:
    """Reader of values separated by commas, or by tabs in files that end in ``.tsv``.

    Python's reader tells the line of each row, which may have line breaks in quotes, and reads
    numbers as strictly as ``float``; the reader of pyarrow is faster and does neither.
    """

    def __init__(self, file: InputFile) -> None:
        self._path = file
        self._delimiter = "\t" if file.suffix.startswith(".tsv") else ","
        with self._rows() as rows:
            self.names: Sequence[str] = [name.strip() for name in next(rows, (0, []))[1]]
            self._first = [row for _, row in islice(rows, FIRST_ROWS)]

    @contextmanager
    def _rows(self) -> Iterator[Iterator[tuple[int, list[str]]]]:
        with TextIOWrapper(self._path.open(), newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True, delimiter=self._delimiter)
            yield ((reader.line_num, row) for row in reader if row)

    def column(self, name: str) -> InputColumn:
        """Describe a column; it is text if no filled cell of the first rows is a number."""
        j = self.names.index(name)
        cells = [row[j] for row in self._first if len(row) > j and row[j].strip()]
        text = len(cells) > 0 and not any(map(_is_number, cells))
        return InputColumn(None if self._first else 0, (), TEXT if text else np.dtype(np.float64))

    def parts(self, names: Mapping[str, bool], skip: int, step: int) -> Iterator[InputPart]:
        width = len(self.names)
        texts = {n: self.names.index(n) for n in names if self.column(n).dtype == TEXT}
        numbers_of = {n: empty for n, empty in names.items() if n not in texts}
        cells_of = [(self.names.index(n), "nan" if e else "") for n, e in numbers_of.items()]
        step = max(1, min(step, BATCH_BYTES // (_CELL_BYTES * width)))
        with self._rows() as rows:
            next(rows)
            start = sum(1 for _ in islice(rows, skip))
            lines = [0]
            while lines:  # the last, empty part gives the number of rows
                lines, cells, texts_of = [], [], {name: list[str | None]() for name in texts}
                for line, row in islice(rows, step):
                    if len(row) != width:
                        raise InvalidDataError(
                            f"{self._path}, line {line}: {len(row)} fields, but {width} in line 1",
                            start + len(lines),
                        )
                    lines.append(line)
                    cells += [row[j] or empty for j, empty in cells_of]
                    for name, j in texts.items():
                        texts_of[name].append(row[j].strip() or None)
                left = iter(cells)
                plain = "".join(cells)
                convert = float if plain.isascii() and "_" not in plain else _decimal
                try:
                    numbers = np.fromiter(map(convert, left), np.float64, len(cells))
                except ValueError as error:
                    i, j = divmod(len(cells) - length_hint(left) - 1, len(numbers_of))
                    hint = "; categories are all numbers, or all texts" * (cells_of[j][1] == "nan")
                    raise InvalidDataError(
                        f"{self._path}, line {lines[i]}, {list(numbers_of)[j]!r}: {error}{hint}",
                        start + i,
                    ) from error
                numbers = numbers.reshape(len(lines), len(numbers_of))
                columns = dict(zip(numbers_of, numbers.T, strict=True))
                columns |= {name: np.array(cells, TEXT) for name, cells in texts_of.items()}
                yield InputPart(start, columns, lines)
                start += len(lines)


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


def json_objects(file: InputFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of each line; members of inner objects are ``outer.inner``."""
    with TextIOWrapper(file.open(), encoding="utf-8-sig") as lines:
        for line, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                what = f"{file}, line {line}: not a JSON object ({error})"
                raise InvalidDataError(what) from error
            if not isinstance(row, dict):
                raise InvalidDataError(f"{file}, line {line}: not a JSON object")
            for name in [name for name, value in row.items() if isinstance(value, dict)]:
                row |= {f"{name}.{key}": value for key, value in row.pop(name).items()}
            yield line, row


class JsonLinesFile(TableReader):
    """Reader of JSON objects, one a line; members of inner objects are columns ``outer.inner``.

    The first rows decide about types, and all numbers are read as float64.  Python's parser tells
    the line of each value, and accepts NaN.
    """

    def __init__(self, file: InputFile) -> None:
        import pyarrow as pa

        self._file = file
        first = [row for _, row in islice(self._objects(), FIRST_ROWS)]
        kinds = {}
        for name in dict.fromkeys(chain(*first)):
            try:
                kind = pa.array([row.get(name) for row in first]).type
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                what = f"{file}: {name!r} has values of several types ({error})"
                raise InvalidDataError(what) from error
            if str(kind) in ("int64", "null"):
                kind = pa.float64()
            elif str(kind).startswith("list"):
                kind = pa.list_(pa.float64())
            kinds[name] = kind
        cells = [sum(len(v) if isinstance(v, list) else 1 for v in row.values()) for row in first]
        self._step = max(1, BATCH_BYTES // (_CELL_BYTES * max(cells, default=1)))
        super().__init__(file, pa.schema(kinds), None if first else 0)

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return json_objects(self._file)

    def batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        """Record batches for `column`, which describes lists."""
        import pyarrow as pa

        first = [row for _, row in islice(self._objects(), step)]
        arrays = [pa.array([row.get(n) for row in first], self._types[n]) for n in names]
        return 0, iter([pa.RecordBatch.from_arrays(arrays, names)])

    def parts(self, names: Mapping[str, bool], skip: int, step: int) -> Iterator[InputPart]:
        shapes = {name: self.column(name).shape for name in names}
        rows = self._objects()
        start = sum(1 for _ in islice(rows, skip))
        lines: Sequence[int] = [0]
        while lines:  # the last, empty part gives the number of rows
            part = list(islice(rows, min(step, self._step)))
            lines = [line for line, _ in part]
            columns = {}
            for name, empty in names.items():
                column = self._array(name, [row.get(name) for _, row in part], lines)
                columns[name] = self._numbers(column, name, shapes[name], start, empty, lines)
            yield InputPart(start, columns, lines)
            start += len(lines)

    def _array(self, name: str, values: list[Any], lines: Sequence[int]) -> Any:
        """Arrow array of values; an InvalidDataError names the line of one of another type."""
        import pyarrow as pa

        kind = self._types[name]
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            for line, value in zip(lines, values, strict=True):
                try:
                    pa.array([value], kind)
                except (pa.ArrowInvalid, pa.ArrowTypeError):
                    what = f"{self._file}, line {line}: {name!r} is {value!r:.60}, not {kind}"
                    raise InvalidDataError(what) from error
            raise
