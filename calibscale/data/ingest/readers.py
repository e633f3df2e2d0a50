"""Readers of files as named columns, and parts of their rows."""

from __future__ import annotations

import csv
import math
import shutil
import tempfile
import weakref
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from calibscale.errors import CalibscaleError, InvalidDataError, OptionError, StoreError

PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib", ".dill")
BATCH_ROWS, BATCH_BYTES = 2**16, 2**24
TEXT = np.dtype(object)  # type of a text column; None in empty cells


class InputColumn(NamedTuple):
    """Column of a file: number of rows (None if unknown), shape of one row, and type."""

    rows: int | None
    shape: tuple[int, ...]
    dtype: np.dtype


class InputPart(NamedTuple):
    """Rows of some columns of a file from row `start` on; `lines`: their lines in a text file."""

    start: int
    columns: dict[str, NDArray[Any]]
    lines: Sequence[int] | None = None


class Reader(Protocol):
    """A file as named columns.

    `parts` yields at most `step` rows at a time after the first `skip`; `names` maps each column
    to read to whether its cells may be empty: these become NaN, or None in a text column.
    """

    names: Sequence[str]

    def column(self, name: str) -> InputColumn: ...

    def parts(self, names: Mapping[str, bool], skip: int, step: int) -> Iterator[InputPart]: ...


def pickled(name: str | Path) -> InvalidDataError:
    return InvalidDataError(
        f"{name}: pickled objects are refused because reading them may run code from the file; "
        "save plain numbers (numpy.savez, safetensors) and ingest those"
    )


@contextmanager
def reading(file: str | Path) -> Iterator[None]:
    """Convert errors of a library over a damaged file to one that names the file."""
    try:
        yield
    except (CalibscaleError, MemoryError):
        raise
    except Exception as error:
        system = isinstance(error, OSError) and error.errno
        hint = "" if system else ": the file is damaged, truncated, or of another format"
        raise InvalidDataError(f"{file}: cannot be read ({error or type(error)}){hint}") from error


# ---------------------------------------------------------------- Formats


_CELL_BYTES = 96  # memory of a CSV cell before conversion: a short string in a list
_TEXTS = ("string", "large_string", "string_view")  # Arrow types of text
_FIRST_ROWS = 100  # rows of a CSV file that decide whether a column is text
_TENSORS = {"BOOL": "?", "F16": "f2", "F32": "f4", "F64": "f8"} | {
    f"{sign}{8 * size}": f"{sign.lower()}{size}" for sign in "IU" for size in (1, 2, 4, 8)
}


_NPY = ((1, 0), (2, 0), (3, 0))  # versions of the format


class _Mapped:
    """Numbers of an npy file of `size` bytes; `file` is positioned at its start."""

    def __init__(self, file: Any, name: str, size: int) -> None:
        version = npy.read_magic(file)
        if version not in _NPY:
            number = ".".join(map(str, version))
            raise InvalidDataError(f"{name}: npy files of version {number} are not supported")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, fortran, self.dtype = read(file)
        if self.dtype.hasobject:
            raise pickled(name)
        self.file, self.offset, self.order = file, file.tell(), "F" if fortran else "C"
        declared = self.offset + self.dtype.itemsize * math.prod(self.shape)
        if size != declared:
            raise InvalidDataError(f"{name}: {size} bytes, but its header declares {declared}")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        # mapped again every time: the pages of a lasting mapping would accumulate
        order: Any = self.order
        array = np.memmap(self.file, self.dtype, "r", self.offset, self.shape, order)
        return np.array(array[rows])


class _Zipped(_Mapped):
    """Numbers of an npy file in a zip file, read forwards; unpacked first if stored by columns."""

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        if self.order == "F":
            if isinstance(self.file, zipfile.ZipExtFile):
                stream, self.file = self.file, tempfile.TemporaryFile()  # noqa: SIM115
                weakref.finalize(self, self.file.close)
                self.offset = 0  # the header of the stream is read already
                try:
                    shutil.copyfileobj(stream, self.file, BATCH_BYTES)
                    self.file.flush()
                except OSError as error:
                    raise StoreError(
                        f"no space to unpack {stream.name}, stored by columns ({error.strerror}): "
                        "set TMPDIR to a larger file system"
                    ) from error
            return super().__getitem__(rows)
        row_bytes, count = self.dtype.itemsize * math.prod(self.shape[1:]), rows.stop - rows.start
        self.file.seek(self.offset + rows.start * row_bytes)
        data = self.file.read(count * row_bytes)
        if rows.stop == self.shape[0]:
            self.file.read(1)  # zipfile checks the checksum at the end
        return np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])


class _Tensor:
    """Tensor of a safetensors file."""

    def __init__(self, path: Path, opened: Callable[[], Any], name: str) -> None:
        self._opened, self._name = opened, name
        with opened() as file:
            tensor = file.get_slice(name)
            self.shape, code = tuple(tensor.get_shape()), tensor.get_dtype()
        if code not in _TENSORS:
            raise InvalidDataError(f"{path}: {name!r} is {code}, which NumPy lacks; save it as F32")
        self.dtype = np.dtype(_TENSORS[code])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        with self._opened() as file:  # opened again, as in _Mapped
            return file.get_slice(self._name)[rows]


class _Arrays:
    """Reader of named arrays with shape, dtype and slices of rows."""

    def __init__(self, names: Sequence[str], array: Callable[[str], Any]) -> None:
        self.names, self._array = names, array

    def column(self, name: str) -> InputColumn:
        array = self._array(name)
        rows, *shape = array.shape or (0,)
        return InputColumn(rows, tuple(shape), array.dtype.newbyteorder("="))

    def parts(self, names: Mapping[str, bool], skip: int, step: int) -> Iterator[InputPart]:
        arrays = {name: self._array(name) for name in names}
        rows = min(array.shape[0] for array in arrays.values())
        for start in range(skip, rows, step):
            some = slice(start, min(start + step, rows))
            yield InputPart(start, {name: array[some] for name, array in arrays.items()})


def _npy(paths: Sequence[Path]) -> _Arrays:
    files = {path.stem: path for path in paths}

    def array(name: str) -> _Mapped:
        with open(files[name], "rb") as file:
            mapped = _Mapped(file, str(files[name]), files[name].stat().st_size)
        mapped.file = files[name]
        return mapped

    return _Arrays(list(files), array)


def _npz(path: Path) -> _Arrays:
    archive = zipfile.ZipFile(path)
    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    def array(name: str) -> _Zipped:
        member = archive.getinfo(f"{name}.npy")
        return _Zipped(archive.open(member), f"{path}: {name!r}", member.file_size)

    return _Arrays(names, array)


def _safetensors(path: Path) -> _Arrays:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise OptionError(f"{path}: safetensors is missing: pip install safetensors") from error
    opened = partial(safe_open, str(path), framework="numpy")
    with opened() as file:
        return _Arrays(list(file.keys()), partial(_Tensor, path, opened))


class TableReader(ABC):
    """Reader of columns of Arrow types."""

    def __init__(self, path: str | Path, schema: Any, rows: int) -> None:
        with suppress(ImportError):  # else pyarrow imports it where interrupts are lost
            import_module("pandas")
        self._path, self._rows = path, rows
        self._types = {field.name: field.type for field in schema}
        self.names: Sequence[str] = list(schema.names)

    @abstractmethod
    def _batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        """First row, at most `skip`, and record batches from it on."""

    def column(self, name: str) -> InputColumn:
        kind, shape = self._types[name], tuple[int, ...]()
        if str(kind).startswith("struct"):
            inner = ", ".join(f"{name}.{field.name}" for field in kind)
            raise InvalidDataError(
                f"{self._path}: {name!r} is a struct; flatten it (table.flatten() of pyarrow) into "
                f"the columns {inner}, and pass the prefix {name}. as their name"
            )
        if str(kind).startswith(("list", "large_list", "fixed_size_list")):
            first = next(self._batches([name], 0, 64)[1], [()])
            lengths = (len(x.as_py() or ()) for x in first[0])
            kind, shape = kind.value_type, (next(filter(None, lengths), 0),)
        if str(kind).startswith("dictionary"):
            kind = kind.value_type
        text = str(kind) in _TEXTS
        return InputColumn(self._rows, shape, TEXT if text else np.dtype(kind.to_pandas_dtype()))

    def parts(self, names: Mapping[str, bool], skip: int, step: int) -> Iterator[InputPart]:
        shapes = {name: self.column(name).shape for name in names}
        start, batches = self._batches(list(names), skip, step)
        for rows in batches:
            left = rows.slice(max(0, skip - start))
            start += len(rows) - len(left)
            if len(left):
                columns = {
                    n: self._numbers(left.column(n), n, shapes[n], start, empty)
                    for n, empty in names.items()
                }
                yield InputPart(start, columns)
            start += len(left)

    def _numbers(
        self, column: Any, name: str, shape: tuple[int, ...], start: int, empty: bool
    ) -> NDArray[Any]:
        rows, wrong = len(column), np.zeros(1, bool)
        if str(column.type).startswith("dictionary"):
            column = column.dictionary_decode()
        if shape:
            lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            wrong, column = lengths != shape[0], column.flatten()
        if column.null_count and not (empty or wrong.any()):
            wrong = column.is_null().to_numpy(zero_copy_only=False).reshape(rows, -1).any(axis=1)
        if wrong.any():
            i = start + int(np.argmax(wrong))
            fault = f"must have {shape[0]} numbers" if shape else "is empty"
            raise InvalidDataError(f"{self._path}, row {i}: {name!r} {fault}", i)
        if column.null_count and str(column.type) not in _TEXTS:
            column = column.cast("double", safe=False)
        return column.to_numpy(zero_copy_only=False).reshape(rows, *shape)


class _Parquet(TableReader):
    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        # small buffers: there may be one for each class
        self._file = parquet.ParquetFile(path, buffer_size=2**16, pre_buffer=False)
        super().__init__(path, self._file.schema_arrow, self._file.metadata.num_rows)

    def _batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        meta, start, group = self._file.metadata, 0, 0
        while group < meta.num_row_groups and start + meta.row_group(group).num_rows <= skip:
            start += meta.row_group(group).num_rows  # not decoded
            group += 1
        groups = range(group, meta.num_row_groups)
        return start, self._file.iter_batches(step, row_groups=groups, columns=names)


class _Arrow(TableReader):
    """Reader of a memory-mapped file of record batches, such as a Feather file."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        rows = sum(batch.num_rows for batch in self._all())
        super().__init__(path, self._file.schema, rows)

    def _all(self) -> Iterator[Any]:
        return map(self._file.get_batch, range(self._file.num_record_batches))

    def _batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        parts = (
            batch.slice(first, step).select(names)
            for batch in self._all()
            for first in range(0, batch.num_rows, step)
        )
        return 0, parts


class _Csv:
    def __init__(self, path: Path) -> None:
        self._path = path
        with self._rows() as rows:
            self.names: Sequence[str] = [name.strip() for name in next(rows, (0, []))[1]]
            self._first = [row for _, row in islice(rows, _FIRST_ROWS)]

    @contextmanager
    def _rows(self) -> Iterator[Iterator[tuple[int, list[str]]]]:
        with open(self._path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
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


READERS: dict[str, Callable[[Any], Reader]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".parquet": _Parquet,
    ".pq": _Parquet,
    ".arrow": _Arrow,
    ".feather": _Arrow,
    ".csv": _Csv,
    ".npy": _npy,  # takes all paths at once
}
