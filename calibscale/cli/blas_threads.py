"""Threads of OpenBLAS in the process of a command."""

from __future__ import annotations

import os

VARIABLE = "OPENBLAS_NUM_THREADS"
_LIMIT = "1"

_is_limited = False


def limit_blas_threads() -> None:
    """Let OpenBLAS start with one thread, unless the environment has `VARIABLE`.

    Blocks of rows run on threads of this package.  Threads of OpenBLAS would wait in loops for work
    that does not come, which is a quarter of the processor time of a short command.
    """
    global _is_limited
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = _LIMIT
        _is_limited = True


def is_limited() -> bool:
    """Whether this process has the limit of `limit_blas_threads`."""
    return _is_limited
