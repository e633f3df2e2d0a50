"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from calibscale.errors import OptionError, StoreError

_ZARR = ("zarr.json", ".zgroup", ".zarray")  # what every store and every ledger has
_NAME_BYTES = 200  # of a name beside which others are made; file systems take 255
_DAY = 86_400.0  # seconds


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file by `replacing`."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file aside that is renamed at the end: whatever happens, the old one is there or the new.

    Its folder is made if it is missing; a link keeps pointing where it does.  What is no file (a
    pipe, a device) is written to as it is.  What killed writers of the file left aside is removed.

    Raises
    ------
    StoreError
        If it cannot be written; names the path.
    """
    try:
        place = _real(path)
        if os.path.exists(path) and not place.is_file():  # /dev/stdout has no real path
            with open(path, "wb") as file:
                yield file
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = aside_of(place)
        try:
            with open(aside, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, place)
        finally:
            with suppress(OSError):
                aside.unlink()
        _flush(place.parent)
        remove_leftovers(place)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error


def refuse_overwriting(output: str | Path, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse an output in the place of an input, inside one, or inside a store or a ledger.

    Raises
    ------
    OptionError
        Names both paths.
    """
    place = Path(os.path.realpath(output))
    for path in inputs:
        real = Path(os.path.realpath(path))
        if place == real or (place.exists() and real.exists() and place.samefile(real)):
            raise OptionError(f"{output} is also read, as {path}: write it elsewhere")
        if real in place.parents:
            raise OptionError(f"{output} is inside {path}, which is read: write it elsewhere")
    for folder in place.parents:
        if any((folder / name).is_file() for name in _ZARR):
            raise OptionError(f"{output} is inside {folder}, a store or a ledger: write elsewhere")


def _real(path: str | Path) -> Path:
    try:
        place = Path(os.path.realpath(path))
        if os.path.islink(place):  # to itself, perhaps through others
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return place
    except ValueError as error:  # a NUL
        raise StoreError(f"{path}: cannot be written: {error}") from error


def aside_of(place: Path, ending: str = "tmp") -> Path:
    """A name beside a file that no other writer has, and that says which process does."""
    owner = f"{_process_space()}.{os.getpid()}.{secrets.token_hex(4)}"
    return place.with_name(f".{_short(place.name)}.{owner}.{ending}")


def _short(name: str) -> str:
    """A name that leaves room for what is written around it; a long one ends in its digest."""
    data = os.fsencode(name)
    if len(data) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[: _NAME_BYTES - 17].decode(errors='ignore')}-{digest}"


def remove_leftovers(place: Path) -> None:
    """Remove what killed writers of a file or folder left aside, ``.NAME.SPACE.PID.TOKEN.tmp``.

    What a process of this machine left goes when the process has ended.  What comes from elsewhere
    (another machine, container or boot: SPACE differs) says nothing that can be checked; it goes
    when it is a day older than what stands in the place.  So does ``.NAME.PID.tmp``, or ``.new``,
    unless a process here has that id.  What cannot be removed stays, and folders beside a file.
    """
    name = re.compile(
        rf"\.{re.escape(_short(place.name))}\."
        r"(?:([0-9a-f]{8})\.)?([0-9]{1,10})(?(1)\.[0-9a-f]{8})\.(?:tmp|new)"
    )
    here = _process_space()
    with suppress(OSError):
        now = place.stat().st_mtime  # by the clock that the others have
        for found in filter(None, map(name.fullmatch, os.listdir(place.parent))):
            other, space = place.with_name(found[0]), found[1]
            with suppress(OSError):
                if space in (here, None) and _runs(int(found[2])):
                    continue
                if space != here and now - other.lstat().st_mtime <= _DAY:
                    continue
                if place.is_dir():
                    shutil.rmtree(other, ignore_errors=True)
                else:
                    other.unlink()


def _process_space() -> str:
    """A name of where process ids mean what they do here; another each time if that is unknown."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return secrets.token_hex(4)
    return hashlib.sha256(repr((platform.node(), boot, namespace)).encode()).hexdigest()[:8]


def _runs(pid: int) -> bool:
    """Whether there is such a process, or may be."""
    if os.name != "posix":  # signal 0 is a real one
        return True
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _flush(folder: Path) -> None:
    """Have a rename reach the disk, on file systems where folders can be flushed."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
