"""BLAS with one thread, so that bits do not depend on it, and parts of a block on threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from threadpoolctl import ThreadpoolController

from calibscale.forks import renew_in_children
from calibscale.signals import undisturbed

T = TypeVar("T")
R = TypeVar("R")


class _OneThread:
    """Limit of BLAS to one thread while any thread of the process is inside.

    The limit of BLAS is global to the process.  The first thread to enter notes the earlier numbers
    of threads, and the last thread to leave restores them.  The limit of OpenMP, which some builds
    of BLAS use, is local to each thread.

    An interrupt may come at any line.  Limits are therefore set by every thread that enters, and
    `_leave` can be called again.  If a thread was interrupted before it restored the numbers, the
    next thread to leave restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[int] = set()  # identifiers of threads
        self._before: _Numbers = []
        self._local = threading.local()  # per thread: nesting depth, and its OpenMP limit

    def __enter__(self) -> None:
        depth = getattr(self._local, "depth", 0)
        try:
            self._local.depth = depth + 1
            if not depth:
                self._enter()
        except BaseException:
            self._local.depth = depth
            if not depth:
                self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        self._local.depth -= 1
        if not self._local.depth:
            self._leave()

    def _enter(self) -> None:
        local, shared = _libraries()
        if getattr(self._local, "before", None) is None:
            self._local.before = _numbers(local)
        _limit(local)
        with self._lock:
            if not self._inside:
                self._before = _numbers(shared)
            self._inside.add(threading.get_ident())
            _limit(shared)

    def _leave(self) -> None:
        thread = threading.get_ident()
        with self._lock:
            if self._inside == {thread}:
                _restore(self._before)
            self._inside.discard(thread)
        _restore(getattr(self._local, "before", None) or [])
        self._local.before = None

    def after_fork(self) -> None:
        """Forget the other threads of the parent, which may have held the lock, in its child."""
        self._lock = threading.Lock()
        self._inside &= {threading.get_ident()}


_Numbers = list[tuple[Any, int]]  # libraries and their numbers of threads

_ONE_THREAD = _OneThread()
renew_in_children(_ONE_THREAD)


def one_thread() -> _OneThread:
    """Context in which BLAS has one thread, so that bits do not depend on the number of cores."""
    return _ONE_THREAD


def _numbers(libraries: list[Any]) -> _Numbers:
    return [(library, library.get_num_threads()) for library in libraries]


def _limit(libraries: list[Any]) -> None:
    for library in libraries:
        _set(library, 1)


def _restore(before: _Numbers) -> None:
    for library, threads in before:
        if threads is not None:  # some libraries do not tell their number
            _set(library, threads)


def _set(library: Any, threads: int) -> None:
    """Set the number of threads, bypassing threadpoolctl's check of the calling thread."""
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)


@cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """Loaded libraries with a limit that is local to a thread, and libraries with a shared limit.

    They include the libraries of SciPy.  They are searched once, as the search takes milliseconds.
    """
    # `scipy.linalg` is linked to the same BLAS as the special functions, and slower to import.
    import scipy.special  # noqa: F401

    local: list[Any] = []
    shared: list[Any] = []
    for controller in ThreadpoolController().lib_controllers:
        openmp = "openmp" in (controller.user_api, getattr(controller, "threading_layer", None))
        (local if openmp else shared).append(controller)
    return local, shared


def threads_can_start() -> bool:
    """Whether the process can start threads, which it cannot while it ends (``atexit``)."""
    return threading.main_thread().is_alive()


# Takes a function of a slice of units, and the number of units.
RunParts = Callable[[Callable[[slice], object], int], None]


def in_one_part(work: Callable[[slice], object], units: int) -> None:
    """Call `work` for the slice of all units."""
    work(slice(0, units))


class WorkerThreads:
    """Threads that run calls, with BLAS of one thread, for a caller that may be interrupted.

    A KeyboardInterrupt inside the conditions of `threading`, by which a thread submits calls and
    waits for futures, leaves them locked, and the thread on the other side waits for ever.  Calls
    are therefore submitted without interrupts, and the caller waits for a queue without conditions.
    """

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "calibscale")
        self._finished: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # After an error or an interrupt, running calls are finished, and no others start.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def start(self, number: int, function: Callable[[Any], Any], argument: Any) -> None:
        """Call a function on a thread, as soon as one is free."""

        def call() -> None:
            try:
                with one_thread():
                    result = function(argument)
            except BaseException as error:
                self._finished.put((number, None, error))
            else:
                self._finished.put((number, result, None))

        with undisturbed():
            self._pool.submit(call)

    def next_finished(self) -> tuple[int, Any, BaseException | None]:
        """Number of a call that is finished, with its result or its error, once there is one."""
        return self._finished.get()

    def in_order(
        self, function: Callable[[T], R], items: Sequence[T], most: int | None = None
    ) -> Iterator[R]:
        """Yield the result of a function of each item, in the order of the items.

        At most `most` results wait, by default all.  The error of an item is raised in its place,
        and the threads are of no further use after it.
        """
        finished: dict[int, tuple[Any, BaseException | None]] = {}
        started = 0
        for number in range(len(items)):
            while started < min(len(items), number + (most or len(items))):
                self.start(started, function, items[started])
                started += 1
            while number not in finished:
                key, *outcome = self.next_finished()
                finished[key] = outcome[0], outcome[1]
            result, error = finished.pop(number)
            if error is not None:
                raise error
            yield result


@contextmanager
def parts_on_threads(threads: int) -> Iterator[RunParts]:
    """Context with a function that calls `work` for slices of independent units on threads."""
    if threads == 1 or not threads_can_start():
        yield in_one_part
        return
    with WorkerThreads(threads) as workers:

        def run_parts(work: Callable[[slice], object], units: int) -> None:
            size = max(1, units // (8 * threads))  # short parts end at about the same time
            slices = [slice(start, start + size) for start in range(0, units, size)]
            for _ in workers.in_order(work, slices):
                pass

        yield run_parts


def mapped(function: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Results of a function of each item.  Each thread computes one item at a time."""
    if threads == 1 or len(items) < 2 or not threads_can_start():
        with one_thread():
            return [function(item) for item in items]
    with WorkerThreads(threads) as workers:
        return list(workers.in_order(function, items))
