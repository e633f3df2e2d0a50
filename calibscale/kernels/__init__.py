"""Jit decorators of the project, and the cache of compiled code.

Compiled kernels are cached in the user's cache folder, one subfolder for each combination of
Numba and CPU.  The sources of all kernels stamp every entry, because a kernel inlines functions
of its neighbours.  Writers take a lock, so that any number of processes may start on a cold cache:
without the lock, two of them could give one file name to two signatures.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from llvmlite import binding
from platformdirs import user_cache_path

from calibscale.errors import OptionError

try:
    import numba
    from numba.core import caching
except ValueError as error:  # Numba checks variables of the environment while it is loaded
    threads = os.environ.get("NUMBA_NUM_THREADS")
    raise OptionError(
        f"Numba cannot be loaded ({error}); the variable NUMBA_NUM_THREADS of the environment is "
        f"{threads!r}, and must be a whole number from 1, or unset"
    ) from error


def cache_folder() -> Path:
    """Folder of the compiled kernels: ``$CALIBSCALE_CACHE_DIR``, or the user's cache folder."""
    root = os.environ.get("CALIBSCALE_CACHE_DIR") or user_cache_path("calibscale")
    cpu = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    tag = hashlib.sha256(cpu.encode()).hexdigest()[:12]
    return Path(root) / "kernels" / f"numba-{numba.__version__}-{tag}"


def _source_stamp() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_FOLDER = cache_folder()
_STAMP = _source_stamp()


class _Locator(caching._CacheLocator):
    def __init__(self, py_file: str) -> None:
        self._py_file = py_file

    def get_cache_path(self) -> str:
        return str(_FOLDER / _STAMP[:16])

    def get_source_stamp(self) -> str:
        return _STAMP

    def get_disambiguator(self) -> str:
        return "k"

    @classmethod
    def from_function(cls, py_func: Callable, py_file: str) -> _Locator:
        return cls(py_file)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # type: ignore[list-item]  # noqa: RUF012


class _KernelCache(caching.FunctionCache):
    _impl_class: type[caching.CompileResultCacheImpl] = _Implementation

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            os.makedirs(self.cache_path, exist_ok=True)
            with FileLock(os.path.join(self.cache_path, "lock")):
                super().save_overload(sig, data)
        except OSError as error:  # read-only or full: warn once, and compile again next time
            self.disable()
            warnings.warn(
                f"compiled kernels cannot be cached in {self.cache_path} ({error}); "
                "set CALIBSCALE_CACHE_DIR to a writable folder",
                stacklevel=2,
            )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with contextlib.suppress(Exception):  # a damaged entry is compiled again
            return super().load_overload(sig, target_context)
        return None


def kernel(function: Callable) -> Callable:
    """Compile a block function: serial, without the GIL, cached on disk.

    ``nogil``: threads run blocks side by side.  ``error_model="numpy"``: a division by zero gives
    inf instead of a branch that prevents vectorisation.  Fast-math is off; a kernel that needs it
    enables it in a small `inlined` function.
    """
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(function)
    if hasattr(compiled, "py_func"):  # absent under NUMBA_DISABLE_JIT
        compiled._cache = _KernelCache(compiled.py_func)
    return compiled


def inlined(*flags: str, first: bool = False) -> Callable[[Callable], Callable]:
    """Compile a scalar helper that LLVM inlines into kernels, with the named fast-math flags.

    With `first`, it is inlined before it is optimised.  The loop that calls it is then vectorised
    although the optimised helper alone would look too costly for that.
    """
    fastmath = set(flags)
    return numba.njit(nogil=True, error_model="numpy", fastmath=fastmath, forceinline=first)


def full_width(function: Callable) -> Callable:
    """Compile a scalar helper whose callers use the widest vectors that the CPU has.

    LLVM prefers vectors of 256 bits on many CPUs that have 512, because a few 512-bit instructions
    once slowed all others.  Loops that consist of such instructions are a third faster with 512.
    """
    body: Any = inlined()(function)
    if not hasattr(body, "py_func"):  # under NUMBA_DISABLE_JIT
        return function
    extending: Any = numba.extending

    @extending.intrinsic
    def widen(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # llvmlite has no name for this attribute
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
            return arguments[0]

        return x(x), generate

    @extending.overload(function, inline="always")
    def typed(x):
        return lambda x: body(widen(x))

    return function
