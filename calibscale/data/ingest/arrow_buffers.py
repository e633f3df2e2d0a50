"""Sizes of the compressed buffers of Arrow files, which are decompressed as a whole each.

The message of a record batch has the places of its buffers, as a FlatBuffer: Message.fbs of the
Arrow format.  The message of a dictionary, the texts of a column of categories, has a record batch
inside.  A compressed buffer begins with its size.
"""

from __future__ import annotations

import struct
from typing import Any

from calibscale.data.ingest.parquet_pages import PAGE_BYTES
from calibscale.errors import InvalidDataError
from calibscale.formatting.number_texts import size as size_text

_MAGIC = b"ARROW1"  # start of a file; messages begin after it and two bytes of padding
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3  # fields of Message and RecordBatch
_DATA = 1  # field of DictionaryBatch
_FEWER_ROWS = (
    "write the file with fewer rows in a batch: max_chunksize= of write_table of pyarrow, "
    "chunksize= of write_feather, record_batch_size= of write_ipc of polars"
)
_NO_DICTIONARY = (
    "write the column as plain texts: dictionary_decode() of pyarrow, cast(pl.String) of polars, "
    "and fewer rows in a batch"
)
_BUFFER = 16  # bytes of the offset and the length of a buffer


def refuse_large_buffers(path: str, file: Any) -> None:
    """Raise an InvalidDataError for a compressed buffer that is above `PAGE_BYTES`."""
    import pyarrow as pa

    with pa.memory_map(path) as content:
        if content.read(len(_MAGIC)) == _MAGIC:
            content.seek(len(_MAGIC) + 2)
        else:
            content.seek(0)
        batches = 0
        for message in pa.ipc.MessageReader.open_stream(content):
            header = memoryview(message.metadata)
            batch = _table(header, _followed(header, 0), _HEADER)
            if message.type == "record batch":
                place = f"record batch {batches} has a compressed column"
                remedy = _FEWER_ROWS
                batches += 1
            elif message.type == "dictionary":
                place = "a dictionary of texts has a compressed buffer"
                remedy = _NO_DICTIONARY
                batch = None if batch is None else _table(header, batch, _DATA)
            else:
                continue
            # The size is read before Arrow allocates it: a damaged file may state any size.
            largest = _largest_buffer(header, batch, memoryview(message.body))
            if largest > PAGE_BYTES:
                size, limit = size_text(largest), size_text(PAGE_BYTES)
                text = f"{place} of {size}, which is read as a whole, up to {limit}; {remedy}"
                raise InvalidDataError(f"{file}: {text}")


def _largest_buffer(message: memoryview, batch: int | None, body: memoryview) -> int:
    """Bytes of the largest compressed buffer of a record batch, or 0 if it is not compressed."""
    if batch is None:
        return 0
    buffers, compression = (_field(message, batch, field) for field in (_BUFFERS, _COMPRESSION))
    if buffers is None or compression is None:
        return 0
    vector = _followed(message, buffers)
    # A vector begins with its length, and each buffer has an offset and a length of 8 bytes.
    (count,) = struct.unpack_from("<I", message, vector)
    largest = 0
    for place in range(vector + 4, vector + 4 + count * _BUFFER, _BUFFER):
        offset, length = struct.unpack_from("<qq", message, place)
        if length:
            (size,) = struct.unpack_from("<q", body, offset)
            largest = max(largest, size)
    return largest


def _table(data: memoryview, outer: int, number: int) -> int | None:
    """Place of the table in a field of another table, or None if the other table lacks it."""
    field = _field(data, outer, number)
    return None if field is None else _followed(data, field)


def _followed(data: memoryview, place: int) -> int:
    """Place to which the offset at a place leads."""
    (offset,) = struct.unpack_from("<I", data, place)
    return place + int(offset)


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Place of a field of a table, or None if the table lacks it."""
    # A table begins with the distance back to its list of offsets.  The list begins with its own
    # size and the size of the table, two bytes each, and has two bytes for each field.
    (back,) = struct.unpack_from("<i", data, table)
    offsets = table - back
    (size,) = struct.unpack_from("<H", data, offsets)
    entry = 4 + 2 * number
    if entry >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, offsets + entry)
    return table + offset if offset else None
