"""Name of a source of text files, which knows the line of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibscale.data.ingest.formats import reader_of
from calibscale.data.ingest.input_files import InputFile
from calibscale.errors import CalibscaleError


class TextOrigins(str):
    """Name of a source of rows that were copied from text files.

    Files are read again for the line of a row, so that sources of valid rows need no lines.
    """

    files: tuple[InputFile, ...]
    keys: dict[str, str]

    @classmethod
    def of(cls, name: str, files: Sequence[InputFile], keys: Mapping[str, str]) -> TextOrigins:
        """Name of a source of files, in which `keys` name the columns as in `ingest`."""
        origins = cls(name)
        origins.files, origins.keys = tuple(files), dict(keys)
        return origins

    def text_of_row(self, row: int) -> str | None:
        """File, row and line of a row, or None if the files cannot be read any more."""
        try:
            for file in self.files:
                reader = reader_of(file, self.keys)()
                part = next(reader.parts([reader.names[0]], row, 1))
                if part.lines is None:
                    return None
                if part.lines:
                    return f"row {row} of {file} (line {part.lines[0]})"
                row -= part.start  # the number of rows of this file
        except (CalibscaleError, OSError):
            return None
        return None
