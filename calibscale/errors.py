"""What can go wrong, by what the caller can do about it."""

from __future__ import annotations


class CalibscaleError(Exception):
    """Base of every error raised on purpose."""


class OptionError(CalibscaleError, ValueError):
    """A setting is impossible, or does not fit the data."""


class StoreError(CalibscaleError):
    """A store cannot be opened, read or written."""


class InvalidDataError(CalibscaleError, ValueError):
    """The data break a rule of the store; names the first bad row.

    Attributes
    ----------
    row : int or None
        Number of the first bad row, counted from 0.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row

    def __reduce__(self) -> tuple[type, tuple[str, int | None]]:
        return type(self), (str(self), self.row)


class NoRowsError(InvalidDataError):
    """The data have no rows at all."""


class ClusterError(CalibscaleError):
    """A cluster went away, or has no workers; where it is there again, so is the work."""
