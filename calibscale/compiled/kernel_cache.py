"""Compiled kernels on disk, in files that nobody else can have written.

An entry is a pickle, and a pickle runs the code that its writer chose.  Entries are therefore read
under the rules of ssh for its keys.  File, folder and all folders above belong to the user or to
root, and nobody else can write to them.  A folder above may also be sticky, like /tmp.  The path is
followed once, when this module is imported, and contains no link after that.  The file is checked
after it was opened, and the bytes that are unpickled come from the same open file.  Their SHA-256
stands before them, because compiled code with a flipped bit ends the process.

A file or folder that fails a check stays as it is, and its kernels are compiled in memory.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shlex
import stat
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numba
from llvmlite import binding
from numba.core import caching, environment, serialize
from numba.core.runtime import rtsys
from platformdirs import user_cache_path

from calibscale.atomic_files import write_whole
from calibscale.errors import StoreError

_DIGEST = hashlib.sha256().digest_size
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_VARIABLE = "set CALIBSCALE_CACHE_DIR to a folder that only you can write"


def cache_folder() -> Path:
    """Folder of the compiled kernels: ``$CALIBSCALE_CACHE_DIR``, or the user's cache folder.

    It has one subfolder for each combination of Numba and CPU.
    """
    root = os.environ.get("CALIBSCALE_CACHE_DIR") or user_cache_path("calibscale")
    cpu = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    tag = hashlib.sha256(cpu.encode()).hexdigest()[:12]
    return Path(root) / "kernels" / f"numba-{numba.__version__}-{tag}"


def _source_stamp() -> str:
    """Digest of all kernels, because a kernel inlines functions of its neighbours."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_STAMP = _source_stamp()
_FOLDER = Path(os.path.realpath(cache_folder() / _STAMP[:16]))
_KERNELS = _FOLDER.parents[1]  # folder of the entries of all versions of Numba and kernels


class _RefusedError(Exception):
    """A file or folder of the cache fails a check."""


def _require_trusted(path: Path, status: os.stat_result, sticky: bool) -> None:
    """Refuse a file or folder that another user may have written, except `sticky` folders."""
    if os.name != "posix":  # Windows has no owners and modes of this kind
        return
    if status.st_uid not in (0, os.geteuid()):
        raise _RefusedError(
            f"{path} belongs to user {status.st_uid}, and a cache must belong to you or to root; "
            f"{_VARIABLE}"
        )
    # In a sticky folder users can add files, but cannot replace the files of other users.
    if _others_write(status, sticky):
        raise _RefusedError(
            f"other users can write to {path} (mode {stat.S_IMODE(status.st_mode):04o}), and a "
            f"cache must be protected from them; run {_mending()}, or {_VARIABLE}"
        )


def _others_write(status: os.stat_result, sticky: bool) -> bool:
    mode = status.st_mode
    return bool(mode & _OTHERS_WRITE) and not (sticky and mode & stat.S_ISVTX)


def _mending() -> str:
    """Command that protects the folders above the cache, and removes what others can write.

    An earlier umask of 002 lets the group write to all of them.  Removed kernels are compiled
    again, because others may have changed the old ones.
    """
    # Folders that do not exist yet are made for this user alone.
    above = [path for path in reversed(_KERNELS.parents) if path.exists()]
    writable = [path for path in above if _others_write(path.lstat(), sticky=True)]
    commands = []
    if writable:
        quoted = " ".join(shlex.quote(str(path)) for path in writable)
        commands.append(f"chmod go-w {quoted}")
    inside = [_KERNELS, *_KERNELS.rglob("*")] if _KERNELS.is_dir() else []
    if any(_others_write(path.lstat(), sticky=False) for path in inside if not path.is_symlink()):
        commands.append(f"rm -r {shlex.quote(str(_KERNELS))}")
    return " && ".join(commands)


def _trusted_folder(create: bool = False) -> bool:
    """Whether the folder of entries exists.  It and the folders above it must be trusted.

    With `create`, missing folders are made for this user alone.  Once a folder is trusted, nobody
    else can exchange the next one on the path.
    """
    # From the root downwards: a folder is checked only when nobody else can exchange it any more.
    for path in (*reversed(_FOLDER.parents), _FOLDER):
        try:
            status = path.lstat()
        except FileNotFoundError:
            if not create:
                return False
            path.mkdir(mode=0o700, exist_ok=True)  # another process may have been faster
            status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise _RefusedError(f"{path} is not a folder; {_VARIABLE}")
        _require_trusted(path, status, sticky=path != _FOLDER)
    return True


def _without_link(path: str, flags: int) -> int:
    """Open a file without following a link, and without waiting for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _content(path: Path) -> bytes:
    """Pickle of an entry, which must be trusted and undamaged."""
    if path.is_symlink():
        raise _RefusedError(f"{path} is a link, and an entry must be a file; remove it")
    with open(path, "rb", opener=_without_link) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _RefusedError(f"{path} is not a file; remove it")
        _require_trusted(path, status, sticky=False)
        data = file.read()
    digest, content = data[:_DIGEST], data[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise _RefusedError(f"{path} is damaged, because its checksum differs; remove it")
    return content


class _Unpickler(pickle.Unpickler):
    """Unpickler of compiled code that does not import the modules of its functions.

    Numba imports the module of each function that a kernel calls.  The modules of its own
    functions, such as ``np.empty``, take a thirtieth of a second.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Function or class of a name."""
        if (module, name) == (environment.__name__, environment._rebuild_env.__name__):
            return _environment
        return super().find_class(module, name)


def _environment(module: str, constants: list[Any], name: str) -> environment.Environment:
    """Environment of a compiled function, with its constants.

    Only object mode reads its globals, and kernels are compiled without that mode.  The name of the
    module is needed to write the environment to the cache again.
    """
    known = environment.lookup_environment(name)
    if known is not None:
        return known
    made = environment.Environment({"__name__": module})
    made.consts[:] = constants
    made.env_name = name
    environment.Environment._memo[name] = made
    return made


class _Entries:
    """Files of a kernel, one for each signature, instead of Numba's index and data files.

    The name of a file has a digest of its key, so that processes that write at once agree on it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def _path(self, key: Any) -> Path:
        return _FOLDER / f"{self._name}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    def load(self, key: Any) -> Any:
        """Compiled code of a key, or None."""
        if not _trusted_folder():
            return None
        try:
            stored, compiled = _Unpickler(io.BytesIO(_content(self._path(key)))).load()
        except (FileNotFoundError, AttributeError, ImportError):
            # An entry of another release may name a class that does not exist any more.
            return None
        # Digests of two keys may begin with the same digits.
        return compiled if stored == key else None

    def save(self, key: Any, compiled: Any) -> None:
        """Write compiled code for this user alone."""
        _trusted_folder(create=True)
        content = serialize.dumps((key, compiled))
        write_whole(self._path(key), hashlib.sha256(content).digest() + content, mode=0o600)


class _Locator(caching._CacheLocator):
    def __init__(self, py_file: str) -> None:
        self._py_file = py_file

    def ensure_cache_path(self) -> None:
        """Nothing: `_Entries.save` makes folders."""

    def get_cache_path(self) -> str:
        return str(_FOLDER)

    def get_source_stamp(self) -> str:
        return _STAMP

    def get_disambiguator(self) -> str:
        return "k"

    @classmethod
    def from_function(cls, py_func: Callable, py_file: str) -> _Locator:
        return cls(py_file)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # type: ignore[list-item]  # noqa: RUF012


class KernelCache(caching.FunctionCache):
    """Cache of a kernel.  The first problem of a process is a warning, later ones are silent."""

    _impl_class: type[caching.CompileResultCacheImpl] = _Implementation
    _warned: ClassVar[bool] = False
    # Start and end of each compilation that was written to the cache since `newly_compiled`
    _compilations: ClassVar[list[tuple[float, float]]] = []

    def __init__(self, py_func: Callable) -> None:
        super().__init__(py_func)
        self._cache_file: Any = _Entries(self._impl.filename_base)
        self._started = 0.0  # of the latest compilation

    @classmethod
    def newly_compiled(cls) -> tuple[int, float]:
        """Number of kernels compiled into the cache since the last call, and the seconds."""
        compilations = sorted(cls._compilations)
        cls._compilations.clear()
        seconds, latest = 0.0, 0.0
        for started, ended in compilations:
            # A kernel that calls another one compiles it meanwhile.
            seconds += max(ended - max(started, latest), 0.0)
            latest = max(ended, latest)
        return len(compilations), seconds

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Compiled code from the cache, or None.

        Numba's method first loads the implementations of all functions that kernels may call.  This
        takes a third of a second, and only a compilation needs them, which loads them itself.
        """
        rtsys.initialize(target_context)  # the counters of references to arrays
        try:
            loaded = self._load_overload(sig, target_context)
        except (_RefusedError, OSError) as error:
            self._leave_alone(str(error))
            loaded = None
        self._started = time.perf_counter()
        return loaded

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write compiled code to the cache."""
        try:
            super().save_overload(sig, data)
            if self._enabled:
                self._compilations.append((self._started, time.perf_counter()))
        except StoreError as error:  # read-only or full
            self._leave_alone(f"{error}; set CALIBSCALE_CACHE_DIR to a writable folder")
        except (_RefusedError, OSError) as error:
            self._leave_alone(str(error))

    def _leave_alone(self, problem: str) -> None:
        """Compile this kernel in memory from now on."""
        self.disable()
        if not KernelCache._warned:
            KernelCache._warned = True
            warnings.warn(f"kernels are compiled in memory: {problem}", stacklevel=3)
