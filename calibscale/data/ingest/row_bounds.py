"""Bounds of the memory that rows of text files take, which may be compressed a thousandfold."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedIOBase
from itertools import islice
from typing import Any, TypeVar

from calibscale.data.ingest.readers import BATCH_BYTES
from calibscale.errors import InvalidDataError

ROW_BYTES = 2**24  # bytes of one row: a million classes with 15 characters and a comma each

Row = TypeVar("Row")


class RowBounds:
    """Number of bytes read of a text file, and of its present row, which must not be too long.

    The reader of the rows calls `next_row` at the start of each row.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._line, self._row_bytes = 1, 0
        self.bytes_read = 0

    def next_row(self, line: int) -> None:
        """Begin a row, in this line of the file."""
        self._line, self._row_bytes = line, 0

    def add(self, count: int) -> None:
        """Count bytes that were read."""
        self.bytes_read += count
        self._row_bytes += count
        if self._row_bytes > ROW_BYTES:
            limit = ROW_BYTES // 2**20
            raise InvalidDataError(
                f"{self._file}, line {self._line}: the row has more than {limit} MiB, the most "
                "that is read at once; leave long texts out of the file, or check for a quote that "
                "is not closed"
            )

    def taken(self, rows: Iterator[Row], count: int) -> Iterator[Row]:
        """The next rows: at most `count`, and fewer if they are long."""
        # A batch of long rows ends early, so that its memory is bounded.
        last = self.bytes_read + BATCH_BYTES
        for row in islice(rows, count):
            yield row
            if self.bytes_read >= last:
                return


class BoundedFile(BufferedIOBase):
    """Binary file of rows that is read within bounds."""

    def __init__(self, content: Any, bounds: RowBounds) -> None:
        self._content, self._bounds = content, bounds
        # `read1` returns what is there, so that rows are counted as they arrive.
        self._part = getattr(content, "read1", content.read)

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        data: bytes = self._part(size)
        self._bounds.add(len(data))
        return data

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = self._content.read(size)
        self._bounds.add(len(data))
        return data

    def close(self) -> None:
        self._content.close()
        super().close()
