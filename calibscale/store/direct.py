"""Reading chunks of our own layout in the calling thread.

zarr hands every chunk through its event loop and a pool of threads, one hop a codec; with several
readers those hops, not the codecs, set the pace.  The layout that `calibscale.store.format` writes
to local disks needs none of it: a chunk is one file, bit-shuffled LZ4 and a checksum.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import blosc
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

_CHECKSUM_BYTES = 4


class DirectArray:
    """The rows of a local, unsharded array as `lay_out` makes it; reads what zarr would read."""

    def __init__(self, folder: Path, array: zarr.Array) -> None:
        self._folder = folder
        self._fill = array.fill_value
        self.shape: tuple[int, ...] = array.shape
        self.chunks: tuple[int, ...] = array.chunks
        self.dtype = np.dtype(array.dtype)

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
            stored = np.frombuffer((self._folder / name).read_bytes(), np.uint8)
        except FileNotFoundError:
            decoded[...] = self._fill
            return decoded
        body, checksum = stored[:-_CHECKSUM_BYTES], stored[-_CHECKSUM_BYTES:]
        if google_crc32c.value(body) != int.from_bytes(checksum.tobytes(), "little"):
            raise ValueError(f"the checksum of chunk file {name} does not match its content")
        if int.from_bytes(body[4:8].tobytes(), "little") != decoded.nbytes:  # of the Blosc header
            raise ValueError(f"chunk file {name} holds another number of rows than a chunk")
        blosc.decompress(body, decoded)
        return decoded


def is_direct(array: zarr.Array) -> bool:
    """Whether an array has the layout that `DirectArray` reads."""
    metadata: Any = array.metadata
    codecs: Any = getattr(metadata, "codecs", ())
    encoding = getattr(metadata, "chunk_key_encoding", None)
    return (
        [type(codec) for codec in codecs] == [BytesCodec, BloscCodec, Crc32cCodec]
        and np.dtype(array.dtype).isnative
        and getattr(codecs[0].endian, "value", codecs[0].endian) in (None, sys.byteorder)
        and getattr(encoding, "name", None) == "default"
        and getattr(encoding, "separator", None) == "/"
        and array.chunks[1:] == array.shape[1:]
    )
