"""Boundaries that turn errors of other libraries, raised while rows are read, into our own errors.

The boundaries stand around the calls of these libraries, and never around statistics: an error of
another type in a statistic is a defect, which its traceback should show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from calibscale.addresses import raise_from, without_secrets
from calibscale.data.file_systems import server_failure
from calibscale.errors import CalibscaleError, InvalidDataError

_LONGEST_CAUSE = 500  # characters of a cause: some libraries put the whole value into a message


def cause_of(error: Exception, *addresses: Any) -> str:
    """Message of an error on one line without secrets, or the name of its type if it has none."""
    # Secrets are hidden first: a shortened secret would not be recognised.
    text = " ".join(without_secrets(str(error), *addresses).split())
    if len(text) > _LONGEST_CAUSE:
        text = f"{text[:_LONGEST_CAUSE]}…"
    return text or type(error).__name__


@contextmanager
def reading(file: Any) -> Iterator[None]:
    """Convert errors of a library over a damaged file, or of a server, to one with its name."""
    try:
        yield
    except (CalibscaleError, MemoryError):
        raise
    except Exception as error:
        address = getattr(file, "label", file)  # the label of an `InputFile` knows its secrets
        # An error with a number, such as a missing permission, says nothing about the content.
        system = isinstance(error, OSError) and error.errno
        hint = "" if system else ": the file is damaged, truncated, or of another format"
        damaged = InvalidDataError(f"{file}: cannot be read ({cause_of(error, address)}){hint}")
        raise_from(server_failure(address, error) or damaged, error, address)


@contextmanager
def reading_frame(name: str) -> Iterator[None]:
    """Convert errors of the library of a frame, which may read files or ask a database."""
    try:
        yield
    except (CalibscaleError, MemoryError):
        raise
    except Exception as error:
        failure = InvalidDataError(f"{name}: its rows cannot be read ({cause_of(error)})")
        raise_from(failure, error, name)


@contextmanager
def converting(name: str) -> Iterator[None]:
    """Convert errors of the library of an array, such as an array on a device that is lost."""
    try:
        yield
    except (CalibscaleError, MemoryError):
        raise
    except Exception as error:
        failure = InvalidDataError(f"{name} cannot be an array of numbers: {cause_of(error)}")
        raise_from(failure, error, name)
