"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import platform
import re
import secrets
import select
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from calibscale.addresses import is_url, raise_from, shown_address
from calibscale.errors import OptionError, StoreError

_ZARR = ("zarr.json", ".zgroup", ".zarray")  # one of them is in every store and ledger
_NAME_BYTES = 200  # longest name used in temporary names, where file systems take 255
_DAY = 86_400.0  # seconds
_READER_WAIT, _PIPE_WAIT = 10.0, 60.0  # seconds until a pipe is read, and takes something
_STREAMS = ("/dev/std", "/dev/fd/", "/dev/null", "/proc/self/fd/")
_PIPE_BYTES = 4096  # written at once to a pipe, which has room for them where it is ready


def write_whole(path: str | Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file by `replacing`."""
    with replacing(path, mode) as file:
        file.write(data)


def write_json(path: str | Path, value: Any, indent: int = 2) -> None:
    """Write a JSON value by `replacing`."""
    write_whole(path, (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode())


@contextmanager
def replacing(path: str | Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Context with a temporary file that replaces `path` at the end, in one step.

    An interruption leaves the old file.  Missing folders are created, links keep their target, and
    a pipe or a device gets the content at the end.  Temporary files of killed writers are removed.
    The file has the permissions `mode`, less the permissions that the user withholds by umask.  A
    StoreError that names the path is raised if the file cannot be written, or if no program reads a
    pipe.
    """
    if is_url(path):
        raise StoreError(f"{shown_address(path)}: outputs are local files, not URLs")
    try:
        place = _real(path)
        # A pipe or a device cannot be replaced by a rename.
        if os.path.exists(path) and not place.is_file():  # /dev/stdout has no real path
            content = io.BytesIO()
            yield content
            _write_to_pipe(path, content.getvalue())
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = aside_of(place)
        try:
            # The file is beside its target, because a rename is atomic within a file system only.
            with open(aside, "xb", opener=partial(os.open, mode=mode)) as file:
                yield file
                file.flush()
                # The content is on the disk before the name is: a power failure leaves the old file
                # or the new one.
                os.fsync(file.fileno())
            os.replace(aside, place)
        finally:
            with suppress(OSError):
                aside.unlink()
        with suppress(OSError):  # folders cannot be flushed on every file system
            flush(place.parent)
        remove_leftovers(place)
    except OSError as error:
        fault = error.strerror or error
        reason = f"{shown_address(path)}: cannot be written: {fault}"
        raise_from(StoreError(reason), error, path)


def _write_to_pipe(path: str | Path, content: bytes) -> None:
    """Write to a pipe or a device, with limits of the waits for the program that reads it."""
    if os.name != "posix":
        with open(path, "wb") as device:
            device.write(content)
        return
    pipe = _opened_pipe(path)
    try:
        ready = select.poll()
        ready.register(pipe, select.POLLOUT)
        left = memoryview(content)
        while left:
            # A reader that has stopped must not hang a night.
            if not ready.poll(1000 * _PIPE_WAIT):
                raise StoreError(
                    f"{path}: the program that reads this pipe has taken nothing for "
                    f"{_PIPE_WAIT:g} s"
                )
            with suppress(BlockingIOError):  # another writer of the pipe was faster
                left = left[os.write(pipe, left[:_PIPE_BYTES]) :]
    finally:
        os.close(pipe)


def _opened_pipe(path: str | Path) -> int:
    """Handle of a pipe or a device.  The reader may start a little later."""
    deadline = time.monotonic() + _READER_WAIT
    while True:
        try:
            # Without O_NONBLOCK, opening waits for a reader without any limit.
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(os.stat(path).st_mode):
                raise
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{path}: this is a pipe that no program reads; name a file"
                ) from error
        time.sleep(0.05)


def refuse_pipe(path: str | Path, role: str) -> None:
    """Raise an OptionError for a pipe, a device or a folder, except streams of this process."""
    if Path(path).exists() and not (os.path.isfile(path) or _is_stream(path)):
        raise OptionError(f"{path} is a pipe, a device or a folder: {role} must be a file")


def _is_stream(path: str | Path) -> bool:
    return os.path.abspath(path).startswith(_STREAMS)


def refuse_overwriting(output: str | Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raise an OptionError for an output that is, or is inside, an input, a store or a ledger."""
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
        if os.path.islink(place):  # a cycle of links
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return place
    except ValueError as error:  # a NUL character
        raise StoreError(f"{path}: cannot be written: {error}") from error


def aside_of(place: Path, ending: str = "tmp") -> Path:
    """Unique temporary path beside a file, with a name that identifies the process."""
    owner = f"{_process_space()}.{os.getpid()}.{secrets.token_hex(4)}"
    return place.with_name(f".{_short(place.name)}.{owner}.{ending}")


def _short(name: str) -> str:
    """Name short enough to be extended.  A long name is cut and ends in its digest."""
    data = os.fsencode(name)
    if len(data) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[: _NAME_BYTES - 17].decode(errors='ignore')}-{digest}"


def remove_leftovers(place: Path) -> None:
    """Remove temporary files of killed writers of a path, ``.NAME.SPACE.PID.TOKEN.tmp``.

    A file of this machine is removed once its process has ended.  A process of another machine,
    container or boot (SPACE differs) cannot be checked: its file is removed when it is a day older
    than the path, and so is ``.NAME.PID.tmp`` or ``.new`` unless a process here has that id.
    Files that cannot be removed are left, and so are folders beside a file.
    """
    # Names of earlier versions have neither SPACE nor TOKEN.
    name = re.compile(
        rf"\.{re.escape(_short(place.name))}\."
        r"(?:([0-9a-f]{8})\.)?([0-9]{1,10})(?(1)\.[0-9a-f]{8})\.(?:tmp|new)"
    )
    current_space = _process_space()
    with suppress(OSError):
        now = place.stat().st_mtime  # by the clock of the file system
        for match in filter(None, map(name.fullmatch, os.listdir(place.parent))):
            leftover, space = place.with_name(match[0]), match[1]
            with suppress(OSError):
                if space in (current_space, None) and _runs(int(match[2])):
                    continue
                if space != current_space and now - leftover.lstat().st_mtime <= _DAY:
                    continue
                if place.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink()


def _process_space() -> str:
    """Name of the namespace of process ids, or a new name at each call if unknown."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return secrets.token_hex(4)
    # Ids of processes are unique in one namespace of one boot of one machine.
    return hashlib.sha256(repr((platform.node(), boot, namespace)).encode()).hexdigest()[:8]


def _runs(pid: int) -> bool:
    """Whether a process with this id exists, or may exist."""
    if os.name != "posix":  # signal 0 would end the process
        return True
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        # A process of another user exists, although signals to it are refused.
        return not isinstance(error, ProcessLookupError)
    return True


def flush(path: Path) -> None:
    """Flush a file, or a rename in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
