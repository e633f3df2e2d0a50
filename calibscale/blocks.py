"""Work in blocks, and the tree in which the states of blocks merge.

The tree is a binary one over block numbers that depends on their count alone.  Work goes out as
aligned runs of blocks, whose trees are subtrees of it, so threads, processes and clusters of any
size give the same bits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

from threadpoolctl import ThreadpoolController

from calibscale.checkpoint import Checkpoint

Progress = Callable[[int, int], None]  # (blocks done, blocks in all)

LONGEST_RUN, LONGEST_REMOTE_RUN = 16, 128  # of remote ones the states travel


class Task(Protocol):
    """What the engine runs: states of blocks, and how two neighbours merge."""

    @property
    def blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int:
        """Peak bytes while one block is worked on."""

    @property
    def state_bytes(self) -> int: ...

    def state(self, block: int) -> Any: ...

    def merge(self, a: Any, b: Any) -> Any: ...

    def part(self, first: int, last: int) -> Task:
        """The task of blocks first..last−1 in a form that can be sent away, less `shared`."""

    @property
    def shared(self) -> Any:
        """What all parts have in common: sent once."""

    def joined(self, shared: Any) -> Task:
        """A part made whole again."""


class PairTask(Task, Protocol):
    """A task whose blocks are long, parallel inside on one machine, and may be checkpointed."""

    def threaded(self, threads: int) -> PairTask:
        """The task that works on one block at a time with so many threads."""

    def pack(self, state: Any) -> dict[str, Any]:
        """A state as named arrays."""

    def unpack(self, arrays: dict[str, Any]) -> Any: ...


class _OneThread:
    """BLAS at one thread for as long as anybody in the process is inside.

    The limit of BLAS belongs to the process: the first who enters sets it, the last who leaves
    restores it, so nobody gets several threads back while another computes.  That of OpenMP, which
    some builds of BLAS obey, belongs to the calling thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: _Numbers = []
        self._own = threading.local()  # of each thread: how deep it is inside, and its OpenMP

    def enter(self) -> None:
        depth = getattr(self._own, "depth", 0)
        if not depth:
            self._own.before = _limited(_of_threads())
        self._own.depth = depth + 1
        with self._lock:
            if not self._inside:
                self._before = _limited(_of_process())
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                _restore(self._before)
        self._own.depth -= 1
        if not self._own.depth:
            _restore(self._own.before)

    def unlock(self) -> None:
        """In a process that was forked while another thread held the lock."""
        self._lock = threading.Lock()


_Numbers = list[tuple[Any, int]]  # of threads, by library

_ONE_THREAD = _OneThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ONE_THREAD.unlock)


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which BLAS has one thread: more would change bits with the number of cores."""
    _ONE_THREAD.enter()
    try:
        yield
    finally:
        _ONE_THREAD.leave()


def _limited(libraries: list[Any]) -> _Numbers:
    """Set libraries to one thread; what they had before."""
    before = [(library, library.get_num_threads()) for library in libraries]
    for library in libraries:
        _set(library, 1)
    return before


def _restore(before: _Numbers) -> None:
    for library, threads in before:
        if threads is not None:
            _set(library, threads)


def _set(library: Any, threads: int) -> None:
    """Past threadpoolctl's rule that only the thread which set a limit may change it."""
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)


def _of_threads() -> list[Any]:
    """Libraries that have a limit in each thread."""
    return [library for library in _libraries() if _obeys_openmp(library)]


def _of_process() -> list[Any]:
    """Libraries that have one limit in the process."""
    return [library for library in _libraries() if not _obeys_openmp(library)]


def _obeys_openmp(library: Any) -> bool:
    return "openmp" in (library.user_api, getattr(library, "threading_layer", None))


@cache
def _libraries() -> list[Any]:
    """Looking for them takes milliseconds: once is enough, with SciPy's among them."""
    import scipy.linalg  # noqa: F401

    return list(ThreadpoolController().lib_controllers)


def run_blocks(task: Task, first: int, last: int) -> Any:
    """The merged state of blocks first..last−1; O(log) states alive."""
    with one_thread():
        return _subtree(task, first, last)


def _subtree(task: Task, first: int, last: int) -> Any:
    if last - first == 1:
        return task.state(first)
    middle = first + (1 << (last - first - 1).bit_length() - 1)
    left = _subtree(task, first, middle)
    return task.merge(left, _subtree(task, middle, last))


def run_length(task: Task, workers: int, longest: int = LONGEST_RUN) -> int:
    """Blocks sent out together: a power of two that leaves every worker a dozen runs.

    One, where blocks are long.
    """
    length = 1
    longest = 1 if hasattr(task, "threaded") else longest
    while length < longest and task.blocks // (2 * length) >= 12 * workers:
        length *= 2
    return length


def runs_of(task: Task, length: int) -> list[tuple[int, int]]:
    """The runs of a task, as (first, last + 1)."""
    return [(a, min(a + length, task.blocks)) for a in range(0, task.blocks, length)]


class Tree:
    """Merges the states of runs as they come, in any order, always in the same shape.

    What a checkpoint holds are nodes of runs of one block, as those of a `PairTask` are.
    """

    def __init__(self, task: Any, length: int, checkpoint: Checkpoint | None = None) -> None:
        self._task = task
        self._runs = -(-task.blocks // length)
        self._waiting: dict[tuple[int, int], Any] = {}
        self._checkpoint = checkpoint
        if checkpoint is not None:
            for node, arrays in checkpoint.load().items():
                self._waiting[node] = task.unpack(arrays)

    def todo(self) -> list[int]:
        """The runs that are not in the tree yet."""
        done: set[int] = set()
        for level, index in self._waiting:
            done.update(range(index << level, min((index + 1) << level, self._runs)))
        return [run for run in range(self._runs) if run not in done]

    def add(self, run: int, state: Any) -> None:
        """Put the state of a run in its place, and merge what has become neighbours."""
        level = 0
        while (1 << level) < self._runs:
            sibling = run ^ 1
            if (sibling << level) < self._runs:  # else: the last node rises alone
                other = self._waiting.pop((level, sibling), None)
                if other is None:
                    break
                pair = (other, state) if sibling < run else (state, other)
                state = self._task.merge(*pair)
            level, run = level + 1, run >> 1
        self._waiting[level, run] = state
        if self._checkpoint is not None and self._checkpoint.due():
            self.save()

    def save(self) -> None:
        """Write what is in the tree to the checkpoint, if there is one."""
        if self._checkpoint is None:
            return
        self._checkpoint.save({n: self._task.pack(state) for n, state in self._waiting.items()})

    def result(self) -> Any:
        """The state of all blocks."""
        (state,) = self._waiting.values()
        return state
