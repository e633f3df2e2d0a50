"""How many threads a parallel loop uses, and that one Python thread at a time enters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numba

_ENTERED = threading.Lock()


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Context for one call of a kernel that was compiled with `parallel`; free if threads is 1.

    Numba's threading layer aborts the process if two threads enter at a time.
    """
    if threads == 1:
        yield
        return
    with _ENTERED:
        before = numba.get_num_threads()
        most = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        numba.set_num_threads(min(threads, most))
        try:
            yield
        finally:
            numba.set_num_threads(before)
