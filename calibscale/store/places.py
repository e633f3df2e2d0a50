"""Where stores lie: paths, URLs, locks, and folders that appear all at once."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from calibscale.errors import InvalidDataError, OptionError, StoreError
from calibscale.files import aside_of, remove_leftovers

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def is_url(address: str | Path) -> bool:
    """Whether an address goes through fsspec; ``file://`` is a path."""
    return "://" in str(address) and not str(address).startswith("file://")


def local_path(path: str | Path) -> Path:
    """The absolute path of a local address."""
    return Path(str(path).removeprefix("file://")).absolute()


def zarr_address(url: str | Path) -> str:
    """An address as zarr takes it."""
    return str(url) if is_url(url) else str(local_path(url))


def put_in_place(place: Path, fill: Callable[[str], None], replace: bool) -> None:
    """Make a folder aside and rename it: a crash leaves the old store, or the new one."""
    empty = place.is_dir() and not any(place.iterdir())
    old = place.exists() and not empty
    if old and not replace:
        raise StoreError(
            f"{place}: something stands there already (overwriting replaces prediction stores, "
            "and nothing else)"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(place, "new")
    try:
        fill(str(aside))
        if old:
            with write_lock(place):
                _exchange(aside, place)
        else:
            aside.rename(place)
        remove_leftovers(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(aside: Path, place: Path) -> None:
    """Let two folders change places: in one step, where the system can."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    names = os.fsencode(aside), os.fsencode(place)
    if swap is not None and swap(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0:
        return
    away = aside.with_suffix(".old")
    place.rename(away)
    try:
        aside.rename(place)
    except BaseException:
        away.rename(place)
        raise
    away.rename(aside)


def write_lock(place: Path) -> FileLock:
    """The lock of a local store, taken.

    Raises
    ------
    StoreError
        If another process has it, or the folder cannot be written.
    """
    lock = FileLock(place / ".writer.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise StoreError(f"{place}: another writer is at work") from error
    except OSError as error:
        raise StoreError(f"{place}: {error}") from error
    return lock


@contextmanager
def complaints(url: str | Path) -> Iterator[None]:
    """Turn what zarr and the file system raise into a `StoreError` that names the store."""
    try:
        yield
    except (StoreError, OptionError, InvalidDataError):
        raise
    except Exception as error:
        raise StoreError(f"{url}: {error or type(error).__name__}") from error
