"""Zarr arrays and groups of this machine that are read without zarr, which is slow to import.

These are the arrays and groups of version 3 in the layout that prediction stores and ledgers have.
Zarr reads all others, and says what is wrong with those that are damaged.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

_CHECKSUM_BYTES = 4  # CRC32C
_SHORTEST = 16 + _CHECKSUM_BYTES  # bytes of the header of Blosc, and of the checksum after a chunk
_ENTRY_BYTES = 16  # of a chunk in the index of a shard: its offset and its size
_NO_CHUNK = 2**64 - 1  # offset and size of a chunk that has the fill value alone
_METADATA = "zarr.json"
_TYPES = tuple(
    np.dtype(code).name for code in ("?", *np.typecodes["AllInteger"], *np.typecodes["Float"])
)


class Layout(NamedTuple):
    """Layout of an array: what its metadata say besides its codecs.

    `shard_chunks` is the number of chunks in a file that has an index of them.  It is None if each
    chunk is a file.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype
    fill_value: Any
    shard_chunks: int | None = None

    @classmethod
    def of(cls, array: Any) -> Layout:
        """Layout of an array without shards that zarr has opened."""
        return cls(array.shape, array.chunks, np.dtype(array.dtype), array.fill_value)


def direct_array(folder: Path) -> DirectArray | None:
    """Array in a folder, or None if it is missing, damaged, or of another layout."""
    metadata = _metadata(folder)
    try:
        layout, codecs = _chunks_of_shards(_layout(metadata), metadata["codecs"])
        is_direct = (
            metadata["node_type"] == "array"
            and metadata["chunk_grid"]["name"] == "regular"
            and metadata["chunk_key_encoding"]
            == {"name": "default", "configuration": {"separator": "/"}}
            and not metadata.get("storage_transformers")
            and _are_direct(codecs, layout.dtype)
            and all(type(size) is int and size >= 0 for size in layout.shape)
            and all(type(size) is int and size > 0 for size in layout.chunks)
            and layout.chunks[1:] == layout.shape[1:]
        )
    except (LookupError, AttributeError, TypeError, ValueError, OverflowError):
        return None
    return DirectArray(folder, layout) if is_direct and len(layout.shape) else None


def group_attributes(folder: Path) -> dict[str, Any] | None:
    """Attributes of the group in a folder, or None if it is missing or damaged.

    Groups with a copy of the metadata of their arrays are left to zarr.
    """
    metadata = _metadata(folder)
    attributes = metadata.get("attributes")
    is_plain = metadata.get("node_type") == "group" and not metadata.get("consolidated_metadata")
    return attributes if is_plain and isinstance(attributes, dict) else None


def _metadata(folder: Path) -> dict[str, Any]:
    """Metadata of an array or group of version 3, empty if there are none."""
    try:
        metadata = json.loads(_content(folder / _METADATA))
    except (OSError, ValueError, RecursionError):
        return {}
    is_known = isinstance(metadata, dict) and metadata.get("zarr_format") == 3
    return metadata if is_known else {}


def _layout(metadata: dict[str, Any]) -> Layout:
    name = metadata["data_type"]
    if name not in _TYPES:
        raise ValueError(name)
    dtype = np.dtype(name)
    fill = metadata["fill_value"]
    if isinstance(fill, str):  # NaN and ∞; a text such as 0x7ff8000000000000 raises an error
        fill = float(fill)
    if not isinstance(fill, int | float):
        raise TypeError(fill)
    return Layout(
        tuple(metadata["shape"]),
        tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"]),
        dtype,
        dtype.type(fill),
    )


def _chunks_of_shards(
    files: Layout, codecs: list[dict[str, Any]]
) -> tuple[Layout, list[dict[str, Any]]]:
    """Layout and codecs of the chunks in the files, which are shards if their codec says so.

    A ValueError is raised for shards that are not in the layout of `lay_out`.
    """
    if codecs[0]["name"] != "sharding_indexed":
        return files, codecs
    shards = codecs[0]["configuration"]
    shape = tuple(shards["chunk_shape"])
    if not all(type(size) is int and size > 0 for size in (*shape, *files.chunks)):
        raise ValueError(shape, files.chunks)
    is_known = (
        len(codecs) == 1
        and shards["index_location"] == "end"
        and [codec["name"] for codec in shards["index_codecs"]] == ["bytes", "crc32c"]
        and shards["index_codecs"][0]["configuration"]["endian"] == "little"
        and shape[1:] == files.chunks[1:]
        and files.chunks[0] % shape[0] == 0
    )
    if not is_known:
        raise ValueError(shards)
    layout = files._replace(chunks=shape, shard_chunks=files.chunks[0] // shape[0])
    return layout, shards["codecs"]


def _are_direct(codecs: list[dict[str, Any]], dtype: np.dtype) -> bool:
    """Whether chunks are arrays of this machine's byte order, by Blosc, with a checksum."""
    order = codecs[0].get("configuration", {}).get("endian")
    is_native = order == sys.byteorder or (order is None and dtype.itemsize == 1)
    return is_native and [codec["name"] for codec in codecs] == ["bytes", "blosc", "crc32c"]


class DirectArray:
    """Rows of a local array in the layout of `lay_out`, equal to the rows of zarr."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._fill = layout.fill_value
        self._shard_chunks = layout.shard_chunks
        self.shape, self.chunks, self.dtype = layout.shape, layout.chunks, layout.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        size = self.chunks[0]
        parts = []
        for chunk in range(start // size, -(-stop // size)):
            first = chunk * size
            part = self._chunk(chunk)
            parts.append(part[max(start - first, 0) : stop - first])
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, *self.shape[1:]), self.dtype)

    def _chunk(self, chunk: int) -> np.ndarray:
        decoded = np.empty(self.chunks, self.dtype)
        file, place = divmod(chunk, self._shard_chunks or 1)
        name = "/".join(str(index) for index in ("c", file, *(0 for _ in self.shape[1:])))
        content: bytes | None  # as stored
        try:
            if self._shard_chunks is None:
                content, shown = _content(self._folder / name), f"chunk file {name}"
            else:
                content = self._chunk_in_shard(name, place, self._shard_chunks)
                shown = f"chunk {place} of shard file {name}"
        except FileNotFoundError:
            content = None
        if content is None:
            # zarr does not write chunks that have the fill value alone.
            decoded[...] = self._fill
            return decoded
        stored = np.frombuffer(content, np.uint8)
        if len(stored) < _SHORTEST:
            raise ValueError(f"{shown} is truncated: it has {len(stored)} bytes")
        body = _checked(stored, shown)
        if int.from_bytes(body[4:8].tobytes(), "little") != decoded.nbytes:
            # The header of Blosc has the decoded size: less content would leave rows unset.
            raise ValueError(f"{shown} has the wrong number of rows")
        _decompress(body, decoded)
        return decoded

    def _chunk_in_shard(self, name: str, place: int, count: int) -> bytes | None:
        """Content of one of the chunks of a shard, None if it has the fill value alone.

        The index after the chunks has the offset and the size of each.
        """
        with _opened(self._folder / name) as file:
            index_bytes = count * _ENTRY_BYTES + _CHECKSUM_BYTES
            end = os.fstat(file.fileno()).st_size - index_bytes
            if end < 0:
                raise ValueError(f"shard file {name} is truncated")
            file.seek(end)
            stored = np.frombuffer(file.read(index_bytes), np.uint8)
            index = _checked(stored, f"the index of shard file {name}")
            offset, size = (int(number) for number in index.view("<u8").reshape(count, 2)[place])
            if offset == size == _NO_CHUNK:
                return None
            if offset + size > end:
                raise ValueError(f"the index of shard file {name} leads beyond its end")
            file.seek(offset)
            return file.read(size)


def is_zarr(array: Any) -> bool:
    """Whether an array is one of zarr, which is not imported to find out."""
    return type(array).__module__.partition(".")[0] == "zarr"


def _decompress(body: np.ndarray, decoded: np.ndarray) -> None:
    """Decompress a chunk of Blosc into an array."""
    from numcodecs import blosc  # slow to import, and other files do not need it

    blosc.decompress(body, decoded)


def _checked(stored: np.ndarray, shown: str) -> np.ndarray:
    """Bytes before their checksum, or a ValueError if it does not match."""
    body, checksum = stored[:-_CHECKSUM_BYTES], stored[-_CHECKSUM_BYTES:]
    if google_crc32c.value(body) != int.from_bytes(checksum.tobytes(), "little"):
        raise ValueError(f"the checksum of {shown} does not match its content")
    return body


def _content(path: Path) -> bytes:
    """Content of a regular file."""
    with _opened(path) as file:
        return file.read()


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Regular file, open to be read.  A pipe is refused, without a wait for its writer."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:  # its buffer makes reads complete
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{path} is not a regular file")
        yield file
