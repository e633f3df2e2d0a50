"""Readers of files as named columns, and parts of their rows."""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from calibscale.data.arrow_values import numpy_of
from calibscale.data.ingest.arrow_buffers import refuse_large_buffers
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.parquet_pages import refuse_large_metadata, refuse_large_pages
from calibscale.data.missing import of_arrow, plain_arrow, plain_type
from calibscale.data.set_members import of_arrow_lists
from calibscale.data.time_columns import kind_of_arrow, kind_of_type, seconds_of
from calibscale.errors import InvalidDataError, StoreError, missing_package
from calibscale.predictions.row_origins import place_in

PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib", ".dill")
BATCH_ROWS, BATCH_BYTES = 2**16, 2**24  # largest number of rows and of bytes in a batch
# Bytes of a text in the metadata of Parquet: the schema of fifty thousand columns.  Headers of
# damaged pages are read up to it again and again, for seconds with the default of 100 MB.
_THRIFT_BYTES = 10**7
_LISTS = 64  # rows read at a time to find the length of lists
TEXT = np.dtype(object)  # type of a text column; None in empty cells


class InputColumn(NamedTuple):
    """Column of a file: number of rows (None if unknown), shape of one row, and type.

    A column is not `known` if all its values are missing, so that its type says nothing.  The
    values of a column with a kind of `time`, such as “date”, are seconds, see `time_columns`.
    """

    rows: int | None
    shape: tuple[int, ...]
    dtype: np.dtype
    known: bool = True
    time: str = ""


class InputPart(NamedTuple):
    """Rows of some columns of a file from row `start` on, and their `lines` in a text file.

    Columns are arrays, or `Members` for columns of lists that are read as sets.
    """

    start: int
    columns: dict[str, Any]
    lines: Sequence[int] | None = None


def place_of_row(file: str, part: InputPart, i: int) -> str:
    """File and line or row of row i of a part."""
    return f"{file}, line {part.lines[i]}" if part.lines else place_in(file, part.start + i)


class Reader(Protocol):
    """A file as named columns.

    `parts` yields at most `step` rows of the columns `names` at a time, after the first `skip`.
    Missing numbers are NaN, missing texts and booleans None, see `calibscale.data.missing`.  A
    reader with columns of lists or texts may have a method `read_as_sets(name)`, which says whether
    a column has sets, and whose `parts` then have these, see `TableReader.read_as_sets`.
    """

    names: Sequence[str]

    def column(self, name: str) -> InputColumn: ...

    def parts(self, names: Sequence[str], skip: int, step: int) -> Iterator[InputPart]: ...


def pickled(name: Any) -> InvalidDataError:
    """Error for a file with pickled objects."""
    return InvalidDataError(
        f"{name}: pickled objects are refused because reading them may run code from the file; "
        "save plain numbers (numpy.savez, safetensors) and ingest those"
    )


# ---------------------------------------------------------------- Formats


TEXTS = ("string", "large_string", "string_view")  # Arrow types of text
_TENSORS = {"BOOL": "?", "F16": "f2", "F32": "f4", "F64": "f8"} | {
    f"{sign}{8 * size}": f"{sign.lower()}{size}" for sign in "IU" for size in (1, 2, 4, 8)
}


_NPY = ((1, 0), (2, 0), (3, 0))  # versions of the format


class _Mapped:
    """Numbers of an npy file of `size` bytes; `file` is positioned at its start."""

    origin: InputFile | None = None  # a temporary copy of a URL is deleted with it

    def __init__(self, file: Any, name: str, size: int) -> None:
        version = npy.read_magic(file)
        if version not in _NPY:
            number = ".".join(map(str, version))
            raise InvalidDataError(f"{name}: npy files of version {number} are not supported")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, fortran, self.dtype = read(file)
        # Objects are stored as pickles, which run code when they are read.
        if self.dtype.hasobject:
            raise pickled(name)
        self.file = file
        self.offset = file.tell()
        self.order = "F" if fortran else "C"
        declared = self.offset + self.dtype.itemsize * math.prod(self.shape)
        # A truncated file has fewer bytes than its header declares.
        if size != declared:
            raise InvalidDataError(f"{name}: {size} bytes, but its header declares {declared}")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        # The file is mapped again every time: the pages of a lasting mapping would accumulate.
        order: Any = self.order
        array = np.memmap(self.file, self.dtype, "r", self.offset, self.shape, order)
        return np.array(array[rows])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "origin"}


class _Zipped(_Mapped):
    """Numbers of an npy file in a zip file, read forwards, or unpacked if stored by columns."""

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
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        count = rows.stop - rows.start
        self.file.seek(self.offset + rows.start * row_bytes)
        data = self.file.read(count * row_bytes)
        if rows.stop == self.shape[0]:
            self.file.read(1)  # zipfile checks the checksum at the end of the content
        return np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])


class _Tensor:
    """Tensor of a safetensors file."""

    def __init__(self, path: str, opened: Callable[[], Any], name: str) -> None:
        self._opened, self._name = opened, name
        with opened() as file:
            tensor = file.get_slice(name)
            self.shape = tuple(tensor.get_shape())
            code = tensor.get_dtype()
        if code not in _TENSORS:
            raise InvalidDataError(f"{path}: {name!r} is {code}, which NumPy lacks; save it as F32")
        self.dtype = np.dtype(_TENSORS[code])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        with self._opened() as file:  # opened again for each read, as in _Mapped
            return file.get_slice(self._name)[rows]


class NamedArrays:
    """Reader of named arrays with shape, dtype and slices of rows."""

    def __init__(self, names: Sequence[str], array: Callable[[str], Any]) -> None:
        self.names, self.array = names, array

    def column(self, name: str) -> InputColumn:
        array = self.array(name)
        rows, *shape = array.shape or (0,)
        dtype = array.dtype.newbyteorder("=")
        time = kind_of_type(dtype)
        dtype = np.dtype(np.float64) if time else dtype
        return InputColumn(rows, tuple(shape), dtype, time=time)

    def parts(self, names: Sequence[str], skip: int, step: int) -> Iterator[InputPart]:
        arrays = {name: self.array(name) for name in names}
        rows = min(array.shape[0] for array in arrays.values())
        for start in range(skip, rows, step):
            rows_of_part = slice(start, min(start + step, rows))
            yield InputPart(start, {name: array[rows_of_part] for name, array in arrays.items()})


def npy_array(file: InputFile) -> _Mapped:
    """Array in an npy file, which is mapped again for each read."""
    path = file.path
    with open(path, "rb") as opened:
        mapped = _Mapped(opened, str(file), path.stat().st_size)
    mapped.file = path
    mapped.origin = file
    return mapped


def npy_files(inputs: Sequence[InputFile]) -> NamedArrays:
    files = {file.stem: file for file in inputs}
    return NamedArrays(list(files), lambda name: npy_array(files[name]))


def npz_file(file: InputFile) -> NamedArrays:
    archive = zipfile.ZipFile(file.path)
    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    def array(name: str) -> _Zipped:
        member = archive.getinfo(f"{name}.npy")
        return _Zipped(archive.open(member), f"{file}: {name!r}", member.file_size)

    return NamedArrays(names, array)


def safetensors_file(file: InputFile) -> NamedArrays:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise missing_package(str(file), "safetensors", "safetensors") from error
    opened = partial(safe_open, str(file.path), framework="numpy")
    with opened() as tensors:
        return NamedArrays(list(tensors.keys()), partial(_Tensor, str(file), opened))


class TableReader(ABC):
    """Base class of readers of columns of Arrow types.  Subclasses define `batches`."""

    def __init__(self, path: Any, schema: Any, rows: int | None) -> None:
        self._path, self.rows = path, rows
        self._types = {field.name: field.type for field in schema}
        self._sets: set[str] = set()  # columns that are read as sets
        self.names: Sequence[str] = list(schema.names)

    @abstractmethod
    def batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        """First row, at most `skip`, and record batches from it on."""

    def type_of(self, name: str) -> Any:
        """Arrow type of a column."""
        return self._types[name]

    def read_as_sets(self, name: str) -> bool:
        """Read a column as sets from now on, if it has lists or texts, and say so.

        Lists become `Members`, and texts stay as they are, with None for nulls.

        Raises
        ------
        InvalidDataError
            If a column has lists of other values than numbers, texts and booleans.
        """
        kind = self.type_of(name)
        if _has_lists(kind):
            if not _is_type_of_classes(plain_type(kind.value_type)):
                raise InvalidDataError(
                    f"{self._path}: {name!r} has lists of {kind.value_type}; sets are lists of "
                    "names or positions of classes, or of a boolean for each class"
                )
        elif str(plain_type(kind)) not in TEXTS:
            return False
        self._sets.add(name)
        return True

    def column(self, name: str) -> InputColumn:
        kind, shape = self.type_of(name), tuple[int, ...]()
        if name in self._sets:
            return InputColumn(self.rows, (), np.dtype(np.float64))
        if str(kind).startswith("struct"):
            inner = ", ".join(f"{name}.{field.name}" for field in kind)
            raise InvalidDataError(
                f"{self._path}: {name!r} is a struct; flatten it (table.flatten() of pyarrow) into "
                f"the columns {inner}, and pass the prefix {name}. as their name"
            )
        if _has_lists(kind):
            kind, shape = kind.value_type, (self._length(name),)
        has_values = str(kind) != "null"
        time = kind_of_arrow(kind)
        if time:
            return InputColumn(self.rows, shape, np.dtype(np.float64), has_values, time)
        try:
            kind = plain_type(kind)
            dtype = TEXT if str(kind) in TEXTS else np.dtype(kind.to_pandas_dtype())
        except NotImplementedError as error:  # such as maps
            raise InvalidDataError(
                f"{self._path}: {name!r} is of the type {kind}, which is not supported; convert it "
                "to numbers or texts"
            ) from error
        return InputColumn(self.rows, shape, dtype, has_values)

    def _length(self, name: str) -> int:
        """Length of the first list of a column that is not missing or empty."""
        for batch in self.batches([name], 0, _LISTS)[1]:
            lengths = numpy_of(batch.column(0).value_lengths().drop_null())
            if lengths.any():
                return int(lengths[lengths > 0][0])
        return 0

    def parts(self, names: Sequence[str], skip: int, step: int) -> Iterator[InputPart]:
        shapes = {name: self.column(name).shape for name in names}
        start, batches = self.batches(list(names), skip, step)
        for rows in batches:
            left = rows.slice(max(0, skip - start))
            start += len(rows) - len(left)
            if len(left):
                columns = {
                    name: self._values(left.column(name), name, shapes[name], start)
                    for name in names
                }
                yield InputPart(start, columns)
            start += len(left)

    def _values(
        self,
        column: Any,
        name: str,
        shape: tuple[int, ...],
        start: int,
        lines: Sequence[int] | None = None,
    ) -> Any:
        """Values of a column of rows from `start` on, or its lists as rows of numbers."""
        if name in self._sets:
            return of_arrow_lists(column) if _has_lists(column.type) else _texts_in(column)
        if not shape:
            return of_arrow(plain_arrow(column))
        filled = numpy_of(column.is_valid())
        lengths = numpy_of(column.value_lengths().fill_null(shape[0]))
        if (lengths != shape[0]).any():
            i = int(np.argmax(lengths != shape[0]))
            place = place_in(self._path, start + i)
            if lines:
                place = f"{self._path}, line {lines[i]}"
            fault = f"must have {shape[0]} numbers"
            if lines:
                fault += "; different numbers of choices need a list `choices`"
            raise InvalidDataError(f"{place}: {name!r} {fault}", start + i)
        numbers = of_arrow(plain_arrow(column.flatten())).reshape(-1, *shape)
        numbers = seconds_of(numbers) if numbers.dtype.kind in "mM" else numbers
        if filled.all():
            return numbers
        # A missing list is a row of missing numbers.
        rows = np.full((len(column), *shape), np.nan)
        rows[filled] = numbers
        return rows


def _has_lists(kind: Any) -> bool:
    """Whether a column of an Arrow type has lists."""
    return str(kind).startswith(("list", "large_list", "fixed_size_list"))


def _is_type_of_classes(kind: Any) -> bool:
    """Whether a plain Arrow type has names or positions of classes, or booleans."""
    import pyarrow as pa

    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return is_number or str(kind) in TEXTS


def _texts_in(column: Any) -> NDArray[Any]:
    """Texts of an Arrow array as they are, and None for nulls.

    Texts of blanks, which are missing in other columns, are empty sets.
    """
    texts = np.empty(len(column), object)
    texts[:] = plain_arrow(column).to_pylist()
    return texts


class ParquetTable(TableReader):
    """Reader of a Parquet file."""

    def __init__(self, file: InputFile) -> None:
        from pyarrow import parquet

        self._input = file
        self._checked: set[str] = set()  # columns whose pages have been checked
        # Buffers are small, as there may be one for each class.
        try:
            self._file = parquet.ParquetFile(
                file.parts(),
                buffer_size=2**16,
                pre_buffer=False,
                page_checksum_verification=True,
                thrift_string_size_limit=_THRIFT_BYTES,
            )
        except OSError as error:
            if "Exceeded size limit" not in str(error):
                raise
            refuse_large_metadata(file, _THRIFT_BYTES)
            raise
        super().__init__(file, self._file.schema_arrow, self._file.metadata.num_rows)

    def batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        meta, start, group = self._file.metadata, 0, 0
        while group < meta.num_row_groups and start + meta.row_group(group).num_rows <= skip:
            start += meta.row_group(group).num_rows  # groups before the first row are not decoded
            group += 1
        unchecked = set(names) - self._checked
        if unchecked and not self._input.remote:
            refuse_large_pages(self._input.path, meta, unchecked, self._input)
            self._checked |= unchecked
        groups = range(group, meta.num_row_groups)
        return start, self._file.iter_batches(step, row_groups=groups, columns=names)


class ArrowTable(TableReader):
    """Reader of a memory-mapped file or stream of record batches, such as a Feather file."""

    def __init__(self, file: InputFile) -> None:
        self._memory = str(file.path)
        refuse_large_buffers(self._memory, file)
        schema = self._opened().schema
        rows = sum(batch.num_rows for batch in self._all(schema.names[:1]))
        super().__init__(file, schema, rows)

    def _opened(self, names: Sequence[str] = ()) -> Any:
        """File or stream in which the named columns are decompressed; by default all columns."""
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions()
        if names:
            schema = self._opened().schema
            options.included_fields = [i for i, n in enumerate(schema.names) if n in set(names)]
        try:
            return pa.ipc.open_file(pa.memory_map(self._memory), options=options)
        except pa.ArrowInvalid:
            return pa.ipc.open_stream(pa.memory_map(self._memory), options=options)

    def _all(self, names: Sequence[str]) -> Iterator[Any]:
        # A file tells its number of batches, and a stream is read to its end.
        batches = self._opened(names)
        if hasattr(batches, "num_record_batches"):
            return map(batches.get_batch, range(batches.num_record_batches))
        return iter(batches)

    def batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        parts = (
            batch.slice(first, step).select(names)
            for batch in self._all(names)
            for first in range(0, batch.num_rows, step)
        )
        return 0, parts
