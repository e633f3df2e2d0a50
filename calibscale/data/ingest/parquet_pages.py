"""Sizes of the pages of a Parquet file, which are decompressed as a whole each.

The metadata of a file have the sizes of columns in row groups.  The sizes of pages are in the
headers before them, in the compact protocol of Thrift: parquet.thrift of the Parquet format,
`struct PageHeader`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from calibscale.errors import InvalidDataError
from calibscale.formatting.number_texts import size as size_text

_FOOTER = struct.Struct("<I4s")  # end of a file: number of bytes of the metadata, and PAR1
PAGE_BYTES = 2**28  # largest page that is read; writers make pages of about a megabyte
_HEADER_BYTES = 2**12  # bytes read at first; statistics of long texts may need more
_LONGEST_HEADER = 2**24  # bytes without an end of the header, from which a page counts as damaged
_UNCOMPRESSED, _COMPRESSED = 2, 3  # fields of a header
# Types of values in the compact protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


def refuse_large_pages(path: Path, metadata: Any, names: Iterable[str], file: Any) -> None:
    """Raise an InvalidDataError for a page of the named columns that is above `PAGE_BYTES`.

    The header of a damaged page may have any size, which a reader would allocate.
    """
    wanted = set(names)
    with open(path, "rb") as content:
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            for c in range(group.num_columns):
                chunk = group.column(c)
                name = chunk.path_in_schema.partition(".")[0]
                if not wanted.intersection((name, chunk.path_in_schema)):
                    continue
                largest = largest_page(content, chunk)
                if largest <= PAGE_BYTES:
                    continue
                size = size_text(largest)
                page = f"{file}: the column {name!r} has a page of {size} in row group {g}"
                # A page cannot be larger than all pages together.
                if largest > chunk.total_uncompressed_size:
                    raise InvalidDataError(
                        f"{page}, and all its pages have "
                        f"{size_text(chunk.total_uncompressed_size)}: the file is damaged"
                    )
                raise InvalidDataError(
                    f"{page}, and pages are read as a whole, up to {size_text(PAGE_BYTES)}; "
                    "write the file with smaller pages (data_page_size=)"
                )


def refuse_large_metadata(file: Any, limit: int) -> None:
    """Raise an InvalidDataError if the metadata of a file are above a limit of their texts.

    Metadata below the limit have no text above it, so that a file which says so is damaged.
    """
    with file.open() as content:
        content.seek(-_FOOTER.size, os.SEEK_END)
        size, _ = _FOOTER.unpack(content.read(_FOOTER.size))
    if size > limit:
        raise InvalidDataError(
            f"{file}: its metadata of {size_text(size)} are too large, because texts in them are "
            f"read up to {size_text(limit)}; write the file without them "
            "(table.replace_schema_metadata() and store_schema=False of pyarrow) or with fewer "
            "columns"
        )


def largest_page(content: BinaryIO, chunk: Any) -> int:
    """Bytes of the largest page of a column in a row group, compressed or not.

    The search ends at a header that cannot be read, which the reader of the file reports.
    """
    # The page of a dictionary, if there is one, comes before the pages of data.
    starts = [chunk.dictionary_page_offset, chunk.data_page_offset]
    place = min(start for start in starts if start)
    end, largest = place + chunk.total_compressed_size, 0
    while place < end:
        try:
            fields, length = _header(content, place)
        except ValueError:
            break
        stored = max(0, fields.get(_COMPRESSED, 0))
        largest = max(largest, stored, fields.get(_UNCOMPRESSED, 0))
        place += length + stored
    return largest


def _header(content: BinaryIO, place: int) -> tuple[dict[int, int], int]:
    """Integers of the header of the page at a place of a file by field, and its length."""
    count = _HEADER_BYTES
    while True:
        content.seek(place)
        data = content.read(count)
        try:
            return _Struct(data).read()
        except IndexError:
            if len(data) < count or count >= _LONGEST_HEADER:
                raise ValueError(f"the header of the page at byte {place} has no end") from None
            # A header that ends beyond the bytes read so far is read again with more of them.
            count *= 16


class _Struct:
    """Bytes of a struct in the compact protocol.  Reading beyond them is an IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def read(self) -> tuple[dict[int, int], int]:
        """Integers by field, and the number of bytes."""
        return self._fields(), self._place

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        """Unsigned number in groups of seven bits, the lowest first."""
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def _integer(self) -> int:
        """Signed number, with the sign in the lowest bit."""
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _fields(self) -> dict[int, int]:
        integers: dict[int, int] = {}
        field = 0
        while (head := self._byte()) != 0:
            # Four bits have the distance from the number of the last field; 0: the number follows.
            step, kind = head >> 4, head & 0x0F
            field = field + step if step else self._integer()
            if _BYTE < kind < _DOUBLE:
                integers[field] = self._integer()
            else:
                self._skip(kind)
        return integers

    def _skip(self, kind: int, inside: bool = False) -> None:
        """Pass over a value.  A boolean is a byte only inside of lists and maps."""
        if kind in (_TRUE, _FALSE):
            self._place += inside
        elif kind == _BYTE:
            self._place += 1
        elif _BYTE < kind < _DOUBLE:
            self._varint()
        elif kind == _DOUBLE:
            self._place += 8
        elif kind == _BINARY:
            length = self._varint()
            self._place += length
        elif kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4  # 15: the number follows
            for _ in range(self._varint() if count == 15 else count):
                self._skip(head & 0x0F, inside=True)
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._byte()
                for _ in range(count):
                    self._skip(kinds >> 4, inside=True)
                    self._skip(kinds & 0x0F, inside=True)
        elif kind == _STRUCT:
            self._fields()
        else:
            raise ValueError(f"{kind} is not a type of Thrift")
        if self._place > len(self._data):
            raise IndexError
