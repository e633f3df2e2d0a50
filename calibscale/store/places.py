"""Where stores lie: paths, URLs, locks, and folders that appear all at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from calibscale.errors import InvalidDataError, OptionError, StoreError


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
    aside = place.with_name(f".{place.name}.{os.getpid()}.new")
    away = place.with_name(f".{place.name}.{os.getpid()}.old")
    try:
        fill(str(aside))
        if not old:
            aside.rename(place)
            return
        with write_lock(place):
            place.rename(away)
            try:
                aside.rename(place)
            except BaseException:
                away.rename(place)
                raise
        shutil.rmtree(away, ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


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
