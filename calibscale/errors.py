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


class BinaryError(InvalidDataError):
    """The predictions have one column and are not declared binary, or are and have several."""


class MissingNameError(OptionError):
    """A file has nothing of a name that was given.

    Attributes
    ----------
    role : str
        What the name was given for, such as labels.
    what : str
        The file, the name, and those that there are.
    """

    def __init__(self, message: str, role: str, what: str) -> None:
        super().__init__(message)
        self.role = role
        self.what = what


class ClusterError(CalibscaleError):
    """A cluster went away, or has no workers; where it is there again, so is the work."""
