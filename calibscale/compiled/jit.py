"""Jit decorators of the project."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from calibscale.errors import OptionError

try:
    import numba
    from numba.core.compiler_lock import global_compiler_lock
except ValueError as error:  # Numba checks variables of the environment while it is loaded
    threads = os.environ.get("NUMBA_NUM_THREADS")
    if threads is None:
        raise
    raise OptionError(
        f"Numba cannot be loaded ({error}); the variable NUMBA_NUM_THREADS of the environment is "
        f"{threads!r}, and must be a whole number from 1, or unset"
    ) from error

from calibscale.compiled.kernel_cache import KernelCache

if hasattr(os, "register_at_fork"):
    # A child that was forked during a compilation could never compile.  A fork waits for its end.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


def kernel(function: Callable) -> Callable:
    """Compile a block function: serial, without the GIL, cached on disk.

    ``nogil``: threads run blocks side by side.  ``error_model="numpy"``: a division by zero gives
    inf instead of a branch that prevents vectorisation.  Fast-math is off.  A kernel that needs it
    enables it in a small `inlined` function.
    """
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(function)
    if hasattr(compiled, "py_func"):  # absent under NUMBA_DISABLE_JIT
        compiled._cache = KernelCache(compiled.py_func)
        compiled._compilation_chain_init_hook = _without_extensions
    return compiled


def _without_extensions() -> None:
    """Do nothing before a kernel is loaded or compiled.

    Numba would import its extensions by other packages, which add types that kernels do not have.
    It finds them by reading the entry points of all installed packages, one file after another.
    """


def inlined(*flags: str, first: bool = False) -> Callable[[Callable], Callable]:
    """Compile a scalar helper that LLVM inlines into kernels, with the named fast-math flags.

    With `first`, it is inlined before it is optimised.  The loop that calls it is then vectorised
    although the optimised helper alone would look too costly for that.

    Python must not call a helper.  It has no wrappers for calls from Python and C, because their
    compilation takes a fifth of the time.
    """
    fastmath = set(flags)
    # Numba leaves these options out of its types.  Its own `overload` sets them.
    wrappers: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(
        nogil=True, error_model="numpy", fastmath=fastmath, forceinline=first, **wrappers
    )


def full_width(function: Callable) -> Callable:
    """Compile a scalar helper so that its callers use the widest vectors of the CPU.

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
            # llvmlite has no name for this attribute.
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
            return arguments[0]

        return x(x), generate

    @extending.overload(function, inline="always")
    def typed(x):
        return lambda x: body(widen(x))

    return function
