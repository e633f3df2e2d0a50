"""Dialects of CSV files: the encoding, the delimiter and the decimal sign that a file shows."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from typing import Any

from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.row_bounds import ROW_BYTES, BoundedFile, RowBounds
from calibscale.errors import InvalidDataError

_DELIMITERS = (",", ";", "\t", "|")
_HEADER_LENGTH = 2**20  # characters of the header that are read to find the delimiter
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_EXCHANGED = str.maketrans(",.", ".,")


@contextmanager
def opened_text(
    file: InputFile, bounds: RowBounds, newline: str | None = None
) -> Iterator[TextIOWrapper]:
    """Text of a file in UTF-8, or in UTF-16 if it begins with a byte order mark.

    Raises
    ------
    InvalidDataError
        If bytes are no text in this encoding.  The error names the first such line.
    """
    with file.open() as content:
        encoding = "utf-16" if content.read(2) in _UTF_16 else "utf-8-sig"
    try:
        bounded: Any = BoundedFile(file.open(), bounds)
        with TextIOWrapper(bounded, newline=newline, encoding=encoding) as text:
            yield text
    except UnicodeDecodeError as error:
        name = "UTF-8" if encoding == "utf-8-sig" else "UTF-16"
        raise InvalidDataError(
            f"{file}{_undecodable(file, encoding)} is not {name}; save the file in UTF-8"
        ) from error


def _undecodable(file: InputFile, encoding: str) -> str:
    """Place and byte of the first line that cannot be decoded."""
    if encoding != "utf-8-sig":
        return ": its content"
    with file.open() as lines:
        # Text is decoded in blocks, so that only a second reading tells the line.
        for number, line in enumerate(iter(partial(lines.readline, ROW_BYTES), b""), 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f", line {number}: the byte 0x{line[error.start]:02x}"
    return ": its content"


def delimiter_of(file: InputFile) -> str:
    """Delimiter that is most frequent in the header, outside quotes.

    If none occurs or two are equally frequent, the ending of the file decides: a tab in files that
    end in ``.tsv``, else a comma.
    """
    usual = "\t" if file.suffix.startswith(".tsv") else ","
    # `max` returns the first of equal counts, so that the usual delimiter comes first.
    counts = dict.fromkeys((usual, *_DELIMITERS), 0)
    with opened_text(file, RowBounds(file), newline="") as text:
        beginning = text.read(_HEADER_LENGTH).lstrip("\r\n")
    # A delimiter in quotes is part of a name.
    quoted = False
    for character in beginning:
        if character == '"':
            quoted = not quoted
        elif not quoted:
            if character in "\r\n":
                break
            if character in counts:
                counts[character] += 1
    return max(counts, key=lambda delimiter: counts[delimiter])


def decimal_of(delimiter: str, cells: Iterable[str]) -> str:
    """Decimal sign of the first cells of a file: a comma, or a point.

    A comma is possible only where commas do not separate columns, and only if no cell is a number
    with a decimal point.
    """
    if delimiter == ",":
        return "."
    with_comma = False
    for cell in cells:
        if "." in cell and _is_float(cell):
            return "."
        with_comma = with_comma or ("," in cell and _is_float(exchanged(cell)))
    return "," if with_comma else "."


def exchanged(cell: str) -> str:
    """Cell with commas for points and points for commas, so that no number has both meanings."""
    return cell.translate(_EXCHANGED)


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
