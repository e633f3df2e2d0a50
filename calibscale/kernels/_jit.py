"""The one jit decorator of the project, and where its compiled code is kept.

Compiled kernels are cached in the user's cache folder, one subfolder for each combination of
Numba and CPU.  The sources of the whole package stamp every entry, because a kernel inlines
functions of its neighbours.  Writers take a lock, so any number of processes may start on a cold
cache; without it two of them could give one file name to two signatures.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock
from llvmlite import binding
from numba.core import caching
from platformdirs import user_cache_path


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


class _ParallelLocator(_Locator):
    def get_disambiguator(self) -> str:
        return "p"


class _ParallelImplementation(caching.CompileResultCacheImpl):
    _locator_classes = [_ParallelLocator]  # type: ignore[list-item]  # noqa: RUF012


class _KernelCache(caching.FunctionCache):
    _impl_class: type[caching.CompileResultCacheImpl] = _Implementation

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            os.makedirs(self.cache_path, exist_ok=True)
            with FileLock(os.path.join(self.cache_path, "lock")):
                super().save_overload(sig, data)
        except OSError as error:  # read-only or full: compile again next time, but say so once
            self.disable()
            warnings.warn(
                f"compiled kernels cannot be kept in {self.cache_path} ({error}); "
                "set CALIBSCALE_CACHE_DIR to a writable folder",
                stacklevel=2,
            )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with contextlib.suppress(Exception):  # a damaged entry is compiled anew
            return super().load_overload(sig, target_context)
        return None


class _ParallelCache(_KernelCache):
    _impl_class = _ParallelImplementation


def kernel(function: Callable) -> Callable:
    """Compile a block function: serial, without the GIL, cached on disk.

    ``nogil``: threads run blocks side by side.  ``error_model="numpy"``: a division by zero gives
    inf instead of a branch that stops vectorisation.  No fast-math: a kernel that wants it asks
    for it in a small inlined function, where it can be seen.
    """
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(function)
    if hasattr(compiled, "py_func"):  # not so under NUMBA_DISABLE_JIT
        compiled._cache = _KernelCache(compiled.py_func)
    return compiled


def parallel(function: Callable) -> Callable:
    """The same function with its `prange` loop spread over threads.

    One Python thread at a time may enter: Numba's own threading layer aborts otherwise.
    """
    compiled: Any = numba.njit(nogil=True, error_model="numpy", parallel=True)(function)
    if hasattr(compiled, "py_func"):
        compiled._cache = _ParallelCache(compiled.py_func)
    return compiled


def inlined(*flags: str) -> Callable[[Callable], Callable]:
    """Compile a scalar helper that LLVM inlines into kernels, with the named fast-math flags."""
    return numba.njit(nogil=True, error_model="numpy", fastmath=set(flags))


def full_width(function: Callable) -> Callable:
    """Compile a scalar helper whose callers use the widest vectors that the CPU has.

    For many CPUs with vectors of 512 bits LLVM prefers 256 of them, since few instructions of 512
    bits once slowed all others.  Loops that consist of them are a third faster so.
    """
    body: Any = inlined()(function)
    if not hasattr(body, "py_func"):  # under NUMBA_DISABLE_JIT
        return function
    extending: Any = numba.extending

    @extending.intrinsic
    def widen(context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # not among the attributes that llvmlite knows by name
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
            return arguments[0]

        return x(x), generate

    @extending.overload(function, inline="always")
    def typed(x):
        return lambda x: body(widen(x))

    return function
