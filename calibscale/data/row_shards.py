"""Arrays that are stored in several pieces, one after another by rows, and never joined."""

from __future__ import annotations

import ctypes
import mmap
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.errors import InvalidDataError

_TRIM_EVERY = 4  # reads of files between two releases of freed memory, each of about 1 ms
_reads = count(1)


def read_rows(array: Any, start: int, stop: int) -> NDArray[Any]:
    """Read rows start..stop−1 of an array that can be sliced, as a NumPy array.

    The pages of a memory map are copied and released.  Otherwise the pages of a lasting map would
    accumulate, and a pass would end with the whole file in the memory of the process.
    """
    part = array[start:stop]
    if hasattr(part, "compute"):  # arrays of dask and xarray, in a caller that is parallel already
        part = part.compute(scheduler="synchronous")
    if isinstance(part, np.memmap):
        part = np.array(part)
        _release(array)
    if _is_mapped(array) and next(_reads) % _TRIM_EVERY == 0:
        _release_freed_memory()
    return np.asarray(part)


def _release(array: np.memmap) -> None:
    """Release the pages of a memory map that the process has not changed."""
    # A private attribute: NumPy has no other way to reach the map of an array.
    pages = getattr(array, "_mmap", None)
    shared = getattr(array, "mode", None) in ("r", "r+", "w+")  # "c" has changes of its own
    if pages is not None and shared and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _release_freed_memory() -> None:
    """Release memory that was freed, which the C library keeps in pieces of many sizes.

    The pieces that the arrays of several threads leave would add a third to the memory of a pass.
    """
    if _trim is not None:
        _trim(0)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None


def _is_mapped(array: Any) -> bool:
    """Whether an array is a memory map, or in a file that is mapped for each read."""
    return isinstance(array, np.memmap) or hasattr(array, "origin")


@dataclass(frozen=True, eq=False)
class RowShards:
    """Arrays of equal width, concatenated by rows and read by slices of rows.

    Each shard is anything with ``shape``, ``dtype`` and slicing by rows.  The type of the rows is
    the smallest type that holds the numbers of all shards.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale.data.row_shards import RowShards
    >>> array = RowShards((np.zeros((2, 3)), np.ones((1, 3))))
    >>> array.shape, array[1:3].tolist()
    ((3, 3), [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    """

    shards: tuple[Any, ...]

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Number of rows up to the end of each shard."""
        return tuple(accumulate(int(shard.shape[0]) for shard in self.shards))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of all rows, and shape of one row."""
        return (self.ends[-1], *(int(size) for size in self.shards[0].shape[1:]))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """Common type of the shards, in the byte order of this machine."""
        return np.result_type(*(np.dtype(shard.dtype).newbyteorder("=") for shard in self.shards))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("shards are read by slices of consecutive rows")
        parts = []
        shard = bisect_right(self.ends, start)
        while start < stop:
            first = self.ends[shard] - int(self.shards[shard].shape[0])
            end = min(stop, self.ends[shard])
            parts.append(read_rows(self.shards[shard], start - first, end - first))
            start, shard = end, shard + 1
        if not parts:
            return np.empty((0, *self.shape[1:]), self.dtype)
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.astype(self.dtype, copy=False)


class ComputedRows(ABC):
    """Base class of columns with rows that are computed from rows of other columns when read."""

    @property
    @abstractmethod
    def columns(self) -> tuple[Any, ...]:
        """Columns from which the rows are computed."""


@dataclass(frozen=True, eq=False)
class ConvertedRows(ComputedRows):
    """Rows of another array that are converted when they are read, and never held.

    `convert` takes rows and the number of the first one.  The results are of the type `dtype`.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale.data.row_shards import ConvertedRows
    >>> array = ConvertedRows(np.array([5, 90]), lambda rows, start: rows / 100, np.dtype(float))
    >>> array.shape, array[1:2].tolist()
    ((2,), [0.9])
    """

    array: Any
    convert: Callable[[NDArray[Any], int], NDArray[Any]]
    dtype: np.dtype

    @property
    def columns(self) -> tuple[Any, ...]:
        return (self.array,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and shape of one row."""
        return tuple(int(size) for size in self.array.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def chunks(self) -> Any:
        """Chunks of the array, or None for plain arrays."""
        return getattr(self.array, "chunks", None)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self))
        converted = self.convert(read_rows(self.array, start, max(start, stop)), start)
        return converted.astype(self.dtype, copy=False)


def shards_of(array: Any) -> tuple[Any, ...]:
    """Shards of an array, or of the columns from which it is computed, or the array itself."""
    if isinstance(array, ComputedRows):
        return tuple(shard for column in array.columns for shard in shards_of(column))
    return array.shards if isinstance(array, RowShards) else (array,)


def is_shards(array: Any, split: bool = False) -> bool:
    """Whether a list has shards, and not rows or numbers.

    Matrices are shards, and so are columns that are not in memory or have different lengths.  With
    `split`, which says that predictions are shards, all arrays are.
    """
    if not isinstance(array, list | tuple) or not array:
        return False
    shapes = [getattr(item, "shape", None) for item in array]
    if not all(isinstance(shape, tuple) and shape for shape in shapes):
        return False
    # A list of vectors could be rows as well as shards.
    axes = {len(shape) for shape in shapes if shape is not None}
    if split or 2 in axes:
        return True
    lengths = {shape[0] for shape in shapes if shape}
    return axes == {1} and (len(lengths) > 1 or any(map(_is_on_disk, array)))


def _is_on_disk(array: Any) -> bool:
    return isinstance(array, np.memmap) or getattr(array, "chunks", None) is not None


def check_shards(shards: Sequence[Any], role: str, name: str) -> None:
    """Raise an InvalidDataError that names two shards which cannot be one array."""
    first = shards[0]
    for i, shard in enumerate(shards):
        if any(size != size for size in shard.shape):
            raise InvalidDataError(
                f"{name}: the number of rows of shard {i} of {role} is unknown; call "
                "compute_chunk_sizes() on the dask array"
            )
        fault = f"{name}: the shards of {role} differ: {_named(shard, i)} has"
        if tuple(shard.shape[1:]) != tuple(first.shape[1:]):
            raise InvalidDataError(
                f"{fault} the shape {tuple(shard.shape)}, but {_named(first, 0)} has "
                f"{tuple(first.shape)}"
            )
        if _is_numeric(shard) != _is_numeric(first):
            raise InvalidDataError(
                f"{fault} the type {shard.dtype}, but {_named(first, 0)} has {first.dtype}"
            )


def _is_numeric(array: Any) -> bool:
    return np.dtype(array.dtype).kind in "iufb"


def _named(shard: Any, number: int) -> str:
    """Name of a shard in messages: its number, from 0, and its file."""
    file = getattr(shard, "filename", None) or getattr(shard, "origin", None)
    return f"shard {number}" + (f" ({file})" if file else "")
