"""Zarr arrays and groups of this machine that are read without zarr, which is slow to import.

These are the arrays and groups of version 3 in the layout that prediction stores and ledgers have.
Zarr reads all others, and says what is wrong with those that are damaged.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from numcodecs import blosc

_CHECKSUM_BYTES = 4  # CRC32C
_SHORTEST = 16 + _CHECKSUM_BYTES  # bytes of the header of Blosc, and of the checksum after a chunk
_METADATA = "zarr.json"
_TYPES = tuple(
    np.dtype(code).name for code in ("?", *np.typecodes["AllInteger"], *np.typecodes["Float"])
)


class Layout(NamedTuple):
    """Layout of an array: what its metadata say besides its codecs."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype
    fill_value: Any

    @classmethod
    def of(cls, array: Any) -> Layout:
        """Layout of an array that zarr has opened."""
        return cls(array.shape, array.chunks, np.dtype(array.dtype), array.fill_value)


def direct_array(folder: Path) -> DirectArray | None:
    """Array in a folder, or None if it is missing, damaged, or of another layout."""
    metadata = _metadata(folder)
    try:
        layout = _layout(metadata)
        is_direct = (
            metadata["node_type"] == "array"
            and metadata["chunk_grid"]["name"] == "regular"
            and metadata["chunk_key_encoding"]
            == {"name": "default", "configuration": {"separator": "/"}}
            and not metadata.get("storage_transformers")
            and _are_direct(metadata["codecs"], layout.dtype)
            and all(type(size) is int and size >= 0 for size in layout.shape)
            and all(type(size) is int and size > 0 for size in layout.chunks)
            and layout.chunks[1:] == layout.shape[1:]
        )
    except (LookupError, TypeError, ValueError, OverflowError):
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


def _are_direct(codecs: list[dict[str, Any]], dtype: np.dtype) -> bool:
    """Whether chunks are arrays of this machine's byte order, by Blosc, with a checksum."""
    order = codecs[0].get("configuration", {}).get("endian")
    is_native = order == sys.byteorder or (order is None and dtype.itemsize == 1)
    return is_native and [codec["name"] for codec in codecs] == ["bytes", "blosc", "crc32c"]


class DirectArray:
    """Rows of a local, unsharded array in the layout of `lay_out`, equal to the rows of zarr."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._fill = layout.fill_value
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
        name = "/".join(str(index) for index in ("c", chunk, *(0 for _ in self.shape[1:])))
        try:
            stored = np.frombuffer(_content(self._folder / name), np.uint8)
        except FileNotFoundError:
            # zarr does not write chunks that have the fill value alone.
            decoded[...] = self._fill
            return decoded
        if len(stored) < _SHORTEST:
            raise ValueError(f"chunk file {name} is truncated: it has {len(stored)} bytes")
        body = stored[:-_CHECKSUM_BYTES]
        checksum = stored[-_CHECKSUM_BYTES:]
        if google_crc32c.value(body) != int.from_bytes(checksum.tobytes(), "little"):
            raise ValueError(f"the checksum of chunk file {name} does not match its content")
        if int.from_bytes(body[4:8].tobytes(), "little") != decoded.nbytes:
            # The header of Blosc has the decoded size: less content would leave rows unset.
            raise ValueError(f"chunk file {name} has the wrong number of rows")
        blosc.decompress(body, decoded)
        return decoded


def _content(path: Path) -> bytes:
    """Content of a regular file.  A pipe is refused, without a wait for its writer."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{path} is not a regular file")
        return file.read()
