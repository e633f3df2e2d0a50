"""Sizes of the compressed buffers of Arrow files, each of which is decompressed as a whole.

The message of a record batch has the places of its buffers, as a FlatBuffer: Message.fbs of the
Arrow format.  A compressed buffer begins with its size.
"""

from __future__ import annotations

import struct
from typing import Any

from calibscale.data.ingest.parquet_pages import PAGE_BYTES
from calibscale.errors import InvalidDataError
from calibscale.formatting.number_texts import size as size_text

_MAGIC = b"ARROW1"  # of files; the messages of a stream begin after it and two bytes
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3  # fields of Message and RecordBatch
_BUFFER = 16  # bytes of the offset and the length of a buffer


def refuse_large_buffers(path: str, file: Any) -> None:
    """Raise an InvalidDataError for a compressed buffer that is above `PAGE_BYTES`."""
    import pyarrow as pa

    with pa.memory_map(path) as content:
        if content.read(len(_MAGIC)) == _MAGIC:
            content.seek(len(_MAGIC) + 2)
        else:
            content.seek(0)
        for number, message in enumerate(pa.ipc.MessageReader.open_stream(content)):
            if message.type != "record batch":
                continue
            largest = _largest_buffer(memoryview(message.metadata), memoryview(message.body))
            if largest > PAGE_BYTES:
                raise InvalidDataError(
                    f"{file}: record batch {number - 1} has a compressed column of "
                    f"{size_text(largest)}, which is read as a whole, up to "
                    f"{size_text(PAGE_BYTES)}; write the file with fewer rows in a batch "
                    "(chunksize=, max_chunksize=)"
                )


def _largest_buffer(message: memoryview, body: memoryview) -> int:
    """Bytes of the largest compressed buffer of a record batch; 0 if it is not compressed."""
    batch = _field(message, _followed(message, 0), _HEADER)
    if batch is None:
        return 0
    batch = _followed(message, batch)
    buffers, compression = (_field(message, batch, each) for each in (_BUFFERS, _COMPRESSION))
    if buffers is None or compression is None:
        return 0
    vector = _followed(message, buffers)
    (count,) = struct.unpack_from("<I", message, vector)
    largest = 0
    for place in range(vector + 4, vector + 4 + count * _BUFFER, _BUFFER):
        offset, length = struct.unpack_from("<qq", message, place)
        if length:
            (size,) = struct.unpack_from("<q", body, offset)
            largest = max(largest, size)
    return largest


def _followed(data: memoryview, place: int) -> int:
    """Place to which the offset at a place leads."""
    (offset,) = struct.unpack_from("<I", data, place)
    return place + int(offset)


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Place of a field of a table; None if the table lacks it."""
    (back,) = struct.unpack_from("<i", data, table)
    offsets = table - back
    (size,) = struct.unpack_from("<H", data, offsets)
    entry = 4 + 2 * number
    if entry >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, offsets + entry)
    return table + offset if offset else None
