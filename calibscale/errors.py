"""Errors, by what the caller can do about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class CalibscaleError(Exception):
    """Base class of all errors that calibscale raises.

    Examples
    --------
    >>> from calibscale import CalibscaleError, evaluate
    >>> try:
    ...     evaluate("no-such.zarr")
    ... except CalibscaleError as error:
    ...     print(str(error)[:42])
    no-such.zarr: there is no prediction store
    """


class OptionError(CalibscaleError, ValueError):
    """A setting is impossible, or does not match the data.

    Examples
    --------
    >>> from calibscale import ECE
    >>> ECE(bins=0)
    Traceback (most recent call last):
    calibscale.errors.OptionError: ...
    """


class StoreError(CalibscaleError):
    """A store cannot be opened, read or written.

    Examples
    --------
    >>> from calibscale import LogitStore, StoreError
    >>> try:
    ...     LogitStore.open("no-such.zarr")
    ... except StoreError as error:
    ...     print(str(error)[:42])
    no-such.zarr: there is no prediction store
    """


class NotFoundError(StoreError):
    """There is nothing at an address."""


class UnavailableError(StoreError):
    """A server does not answer, or answers that it cannot serve for the moment.

    Run again later.  Finished parts are kept.

    Examples
    --------
    >>> from calibscale import StoreError, UnavailableError
    >>> issubclass(UnavailableError, StoreError)
    True
    """


class InvalidDataError(CalibscaleError, ValueError):
    """The data violate a rule.  The message names the first bad row.

    Attributes
    ----------
    row : int or None
        Number of the first bad row, counted from 0.

    Examples
    --------
    >>> from calibscale import evaluate, from_arrays
    >>> evaluate(from_arrays(probabilities=[[0.5, 0.2]], labels=[0]), "ece")
    Traceback (most recent call last):
    calibscale.errors.InvalidDataError: ...
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row

    def __reduce__(self) -> tuple[type, tuple[str, int | None]]:
        return type(self), (str(self), self.row)


class NoRowsError(InvalidDataError):
    """The data have no rows."""


class BinaryError(InvalidDataError):
    """Predictions of several columns are declared binary."""


class MissingNameError(OptionError):
    """A file has no array or column of the requested name.

    `role` is the role of the array or column, such as labels.  `what` names the file, the missing
    name, and the existing names.
    """

    def __init__(self, message: str, role: str, what: str) -> None:
        super().__init__(message)
        self.role = role
        self.what = what


class ClusterError(CalibscaleError):
    """The Dask cluster is unreachable or has no workers.

    Run again when it is back.  Work in a checkpoint is kept.

    Examples
    --------
    >>> from calibscale import CalibscaleError, ClusterError
    >>> issubclass(ClusterError, CalibscaleError)
    True
    """


def causes(error: BaseException) -> Iterator[BaseException]:
    """Errors that caused an error, or that were handled when it was raised, the latest first."""
    seen = {id(error)}  # a cause may have been raised from its effect
    while True:
        earlier = error.__cause__
        if earlier is None and not error.__suppress_context__:
            earlier = error.__context__
        if earlier is None or id(earlier) in seen:
            return
        seen.add(id(earlier))
        yield earlier
        error = earlier


def missing_package(user: str, package: str, extra: str) -> OptionError:
    """Return the OptionError for an optional package that is not installed."""
    return OptionError(
        f"{user} needs {package}, which is not installed: pip install 'calibscale[{extra}]'"
    )


def require(holds: Any, message: str, *value: Any) -> None:
    """Raise OptionError unless a condition holds.  The message may end in the value at fault."""
    if not holds:
        texts = [repr(v) if isinstance(v, str) else str(v) for v in value]
        raise OptionError(", not ".join([message, *texts]))
