"""Names of sources with rows from several files, and places of rows in messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


class RowOrigins(str):
    """Name of a source that knows from which file each of its rows comes.

    Examples
    --------
    >>> from calibscale.predictions.row_origins import RowOrigins, row_text
    >>> name = RowOrigins.of("folder", ["a.csv", "b.csv"], [10, 5])
    >>> name, row_text(12, name)
    ('folder', 'row 2 of b.csv')
    """

    files: tuple[str, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, name: str, files: Sequence[object], rows: Sequence[int]) -> RowOrigins:
        """Name of a source of files with these numbers of rows."""
        origins = cls(name)
        origins.files = tuple(map(str, files))
        origins.ends = tuple(accumulate(rows))
        return origins


def row_text(row: int, name: str) -> str:
    """Row and name of a source, or row and name of the file that the row comes from.

    Names of sources of text files have a method `text_of_row`, which tells the line as well.
    """
    text_of_row = getattr(name, "text_of_row", None)
    if text_of_row is not None and (text := text_of_row(row)):
        return str(text)
    if isinstance(name, RowOrigins) and 0 <= row < name.ends[-1]:
        # The first file that ends after the row.
        k = bisect_right(name.ends, row)
        first = name.ends[k - 1] if k else 0
        return f"row {row - first} of {name.files[k]}"
    return f"row {row} of {name}"


def place_in(name: str, row: int) -> str:
    """Name of a source, or of the file that a row comes from, and the row, as in ``a.csv, row 2``.

    >>> place_in(RowOrigins.of("folder", ["a.csv", "b.csv"], [10, 5]), 12)
    'b.csv, row 2'
    """
    text, _, origin = row_text(row, name).partition(" of ")
    return f"{origin}, {text}"
