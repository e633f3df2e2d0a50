"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from calibscale.errors import StoreError


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file aside and rename it: whatever happens, the old file is there or the new one.

    Its folder is made if it is missing; a link keeps pointing where it does.  What is no file (a
    pipe, a device) is written to as it is.

    Raises
    ------
    StoreError
        If it cannot be written; names the path.
    """
    try:
        place = Path(os.path.realpath(path))
        aside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        if place.exists() and not place.is_file():
            place.write_bytes(data)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(aside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, place)
        finally:
            with suppress(OSError):
                aside.unlink()
        _flush(place.parent)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{path}: cannot be written: {reason}") from error


def _flush(folder: Path) -> None:
    """Have a rename reach the disk, on file systems where folders can be flushed."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
