"""A tree that merges states of blocks in a fixed order, and the checkpoints of its states."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from calibscale.atomic_files import replacing
from calibscale.errors import OptionError, StoreError
from calibscale.forks import renew_in_children

Arrays = dict[str, NDArray[Any]]
Nodes = dict[tuple[int, int], Arrays]  # (level, index): state of blocks from index·2^level on

_FORMAT = 1  # of checkpoints; a file of another format has another identity, and is refused


@dataclass
class Checkpoint:
    """File of the nodes of a merge tree, replaced in one step.

    `identity` has JSON values that identify data and parameters.  A file with other values is
    refused.  `every` is the minimum number of seconds between two writes.
    """

    path: Path
    identity: dict[str, Any]
    every: float = 2.0
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> Nodes:
        """Read the nodes that an earlier run of the same work has finished.

        An OptionError is raised if the file belongs to other data or other parameters, a StoreError
        if it cannot be read.
        """
        nodes: Nodes = {}
        try:
            if not self.path.exists():
                return {}
            with np.load(self.path, allow_pickle=False) as file:
                identity = json.loads(str(file["identity"]))
                for key in file.files:
                    if key != "identity":
                        level, index, name = key.split("|")
                        nodes.setdefault((int(level), int(index)), {})[name] = file[key]
        except Exception as error:  # zipfile and NumPy raise many types over damaged files
            raise self.damaged(error) from error
        expected = self._identity()
        if identity != expected:
            old_values = _flat(identity)
            new_values = _flat(expected)
            keys = old_values.keys() | new_values.keys()
            changed = sorted(key for key in keys if old_values.get(key) != new_values.get(key))
            raise OptionError(
                f"the checkpoint {self.path} belongs to other data or parameters "
                f"({', '.join(changed)}); choose another folder, or remove it"
            )
        return nodes

    def damaged(self, reason: object) -> StoreError:
        """Return the error for a file that is no checkpoint of this work."""
        return StoreError(
            f"the checkpoint {self.path} cannot be read ({reason}); remove it to start again"
        )

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._last >= self.every

    def save(self, nodes: Nodes) -> None:
        """Write the nodes.  An interrupted write leaves the old file."""
        arrays: dict[str, Any] = {
            f"{level}|{index}|{name}": array
            for (level, index), state in nodes.items()
            for name, array in state.items()
        }
        started = time.monotonic()
        with replacing(self.path) as file:
            np.savez(file, identity=np.array(json.dumps(self._identity())), **arrays)
        self._last = time.monotonic()
        # A write of many large states may take long.  Writes take at most 2 % of the time.
        self.every = max(self.every, 50 * (self._last - started))

    def _identity(self) -> dict[str, Any]:
        identity = {"format": _FORMAT, **self.identity}
        return json.loads(json.dumps(identity, default=lambda scalar: scalar.item()))


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested dicts, joining names by dots."""
    if not isinstance(value, dict):
        return {name: value}
    items: dict[str, Any] = {}
    for key, item in value.items():
        items |= _flat(item, f"{name}.{key}" if name else key)
    return items


def digest(*arrays: NDArray[Any]) -> str:
    """Short hash of arrays, for identities."""
    sha256 = hashlib.sha256()
    for array in arrays:
        sha256.update(np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()[:16]


# ---------------------------------------------------------------- Tree


Progress = Callable[[int, int], None]  # (blocks done, blocks in all)

LONGEST_RUN = 256  # blocks in a run of a remote worker, as its state costs a transfer


class Task(Protocol):
    """Work for the engine: states of blocks, and the merge of two neighbours."""

    @property
    def blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int:
        """Peak bytes while one block is computed."""

    @property
    def state_bytes(self) -> int: ...

    def state(self, block: int) -> Any: ...

    def merge(self, a: Any, b: Any) -> Any: ...

    def part(self, first: int, last: int) -> Task:
        """The task of blocks first..last−1, without `shared`, to be sent to a worker."""

    @property
    def shared(self) -> Any:
        """Data that all parts need and that is sent once."""

    def joined(self, shared: Any) -> Task:
        """A received part with its `shared` data."""


class PairTask(Task, Protocol):
    """A task of long blocks that run in parts on threads and can be checkpointed."""

    def threaded(self, run_parts: RunParts) -> PairTask:
        """The task that computes one block at a time and runs its parts by `run_parts`."""

    def pack(self, state: Any) -> dict[str, Any]:
        """Convert a state to named arrays."""

    def unpack(self, arrays: dict[str, Any], blocks: range) -> Any:
        """Convert named arrays to the state of blocks.

        A ValueError is raised for arrays that are no such state.
        """


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
        if threads is not None:
            _set(library, threads)


def _set(library: Any, threads: int) -> None:
    """Set the number of threads, bypassing threadpoolctl's check of the calling thread."""
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)


@cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """Loaded libraries with a limit that is local to a thread, and libraries with a shared limit.

    They include the libraries of SciPy.  They are searched once, as the search takes milliseconds.
    """
    import scipy.linalg  # noqa: F401

    local: list[Any] = []
    shared: list[Any] = []
    for controller in ThreadpoolController().lib_controllers:
        openmp = "openmp" in (controller.user_api, getattr(controller, "threading_layer", None))
        (local if openmp else shared).append(controller)
    return local, shared


def threads_can_start() -> bool:
    """Whether the process can start threads, which it cannot while it ends (``atexit``)."""
    return threading.main_thread().is_alive()


RunParts = Callable[[Callable[[slice], object], int], None]


def in_one_part(work: Callable[[slice], object], units: int) -> None:
    """Call `work` for the slice of all units."""
    work(slice(0, units))


@contextmanager
def parts_on_threads(threads: int) -> Iterator[RunParts]:
    """Context with a function that calls `work` for slices of independent units on threads."""
    if threads == 1 or not threads_can_start():
        yield in_one_part
        return
    with ThreadPoolExecutor(threads) as pool:

        def run_parts(work: Callable[[slice], object], units: int) -> None:
            size = max(1, units // (8 * threads))  # short parts end at about the same time
            futures = [
                pool.submit(_alone, work, slice(start, start + size))
                for start in range(0, units, size)
            ]
            try:
                for future in futures:
                    future.result()
            finally:  # after an error or an interrupt
                for future in futures:
                    future.cancel()

        yield run_parts


def _alone(work: Callable[[slice], object], units: slice) -> None:
    with one_thread():
        work(units)


def run_blocks(task: Task, first: int, last: int) -> Any:
    """Compute the merged state of blocks first..last−1 with O(log) states in memory."""
    tree = Tree(task, last - first)
    with one_thread():
        for block in range(first, last):
            tree.add(block - first, task.state(block))
    return tree.result()


def run_length(task: Task, workers: int) -> int:
    """Number of blocks in a run of a remote worker.

    A run has the blocks of a node of the tree, the largest that leaves 12 runs for each worker.
    The number is 1 for long blocks, and for blocks that are read in order.
    """
    longest = 1 if hasattr(task, "threaded") or getattr(task, "in_order", False) else LONGEST_RUN
    arities = arities_of(task)
    length = level = 1
    longer = node_blocks(arities, level)
    while longer <= longest and task.blocks // longer >= 12 * workers:
        length, level = longer, level + 1
        longer = node_blocks(arities, level)
    return length


def arities_of(task: Task) -> tuple[int, ...]:
    """Number of neighbours that the merge tree of a task joins at a node of each level.

    The last number applies to all higher levels.  A tree is binary by default.
    """
    return getattr(task, "arities", (2,))


def arity(arities: tuple[int, ...], level: int) -> int:
    """Number of neighbours on a level that a merge tree joins at a node of the next level."""
    return arities[min(level, len(arities) - 1)]


def node_blocks(arities: tuple[int, ...], level: int) -> int:
    """Number of blocks below a complete node of a level of a merge tree."""
    return math.prod(arity(arities, lower) for lower in range(level))


def tree_levels(blocks: int, arities: tuple[int, ...]) -> int:
    """Number of levels of a merge tree.  A state waits in each of them."""
    level = 0
    while node_blocks(arities, level) < blocks:
        level += 1
    return level


@dataclass
class _Node:
    """Children of a node of the tree.

    The first `merged` children are merged in `state`.  The other children that have arrived wait.
    """

    merged: int = 0
    state: Any = None  # None while a thread merges
    busy: bool = False
    early: dict[int, Any] = field(default_factory=dict)  # states by number of the child


class Tree:
    """Merge tree of the states of runs, which may arrive in any order and from several threads.

    A node merges its children from the first to the last, so that the order of the additions
    depends on the number of blocks alone, and one state waits in each level while runs end in
    order.  With a checkpoint, each run is one block, as in a `PairTask`.

    Parameters
    ----------
    task
        Task that gives the states to merge.
    runs : int
        Number of runs.
    checkpoint : Checkpoint, optional
        Where finished nodes are kept.
    length : int
        Number of blocks in a run, which are the blocks of a node of the tree, see `run_length`.
    """

    def __init__(
        self, task: Any, runs: int, checkpoint: Checkpoint | None = None, length: int = 1
    ) -> None:
        self._task = task
        arities = arities_of(task)
        # Runs merge the lowest levels themselves, so that the tree of runs begins above them.  The
        # last arity applies to all higher levels, so that it remains.
        lower_levels = tree_levels(length, arities)
        self._arities = arities[min(lower_levels, len(arities) - 1) :]
        self._runs = runs
        self._nodes: dict[tuple[int, int], _Node] = {}  # by level and index of the first child
        self._root: tuple[int, Any] | None = None  # its level, and the state of all runs
        self._lock = threading.Lock()
        self._checkpoint = checkpoint
        if checkpoint is not None:
            for (level, index), state in self._loaded(checkpoint).items():
                self._place(level, index, state)

    def _loaded(self, checkpoint: Checkpoint) -> dict[tuple[int, int], Any]:
        """States of a checkpoint by level and index.  Each run is in at most one state."""
        states: dict[tuple[int, int], Any] = {}
        placed_runs: set[int] = set()
        for (level, index), arrays in checkpoint.load().items():
            place = f"state {index:,} of level {level:,}"
            if not 0 <= level <= self._runs.bit_length():
                raise checkpoint.damaged(f"{place} is not in a tree of {self._runs:,} runs")
            length = node_blocks(self._arities, level)
            runs = range(index * length, min((index + 1) * length, self._runs))
            if index < 0 or not runs or not placed_runs.isdisjoint(runs):
                raise checkpoint.damaged(f"{place} does not fit among {self._runs:,} runs")
            placed_runs.update(runs)
            try:
                states[level, index] = self._task.unpack(arrays, runs)
            except ValueError as error:
                raise checkpoint.damaged(f"{place}: {error}") from error
        return states

    def todo(self) -> list[int]:
        """Runs that are not in the tree yet."""
        finished_runs: set[int] = set()
        for level, index in self._finished():
            length = node_blocks(self._arities, level)
            finished_runs.update(range(index * length, min((index + 1) * length, self._runs)))
        return [run for run in range(self._runs) if run not in finished_runs]

    def add(self, run: int, state: Any) -> None:
        """Add the state of a run, and merge it with its neighbours."""
        self._place(0, run, state)
        if self._checkpoint is not None and self._checkpoint.due():
            self.save()

    def save(self) -> None:
        """Write the tree to the checkpoint, if there is one."""
        if self._checkpoint is None:
            return
        self._checkpoint.save({n: self._task.pack(state) for n, state in self._finished().items()})

    def result(self) -> Any:
        """The state of all blocks."""
        assert self._root is not None
        return self._root[1]

    def _place(self, level: int, index: int, state: Any) -> None:
        """Merge the state of a node, and of each node that it completes, with their neighbours."""
        width = -(-self._runs // node_blocks(self._arities, level))  # nodes of the level
        while width > 1:
            children = arity(self._arities, level)
            child = index % children
            siblings = min(children, width - (index - child))  # the last node may be incomplete
            if siblings > 1:
                state = self._merged(level, index - child, child, siblings, state)
            if state is None:
                return
            level, index, width = level + 1, index // children, -(-width // children)
        self._root = level, state

    def _merged(self, level: int, first: int, child: int, siblings: int, state: Any) -> Any:
        """State of all siblings, or None if a sibling is missing and the state waits for it."""
        merge = self._task.merge
        with self._lock:
            node = self._nodes.setdefault((level, first), _Node())
            if node.busy or child != node.merged:
                node.early[child] = self._parked(state)
                return None
            left, node.state, node.busy = node.state, None, True
        # Merges run outside the lock.  While the node is busy, other threads only park states, so
        # that the additions keep the order of the children.
        if child > 0:
            state = merge(self._resumed(left), state)
        for number in range(child + 1, siblings):
            with self._lock:
                right = node.early.pop(number, None)
                if right is None:
                    node.merged, node.state, node.busy = number, self._parked(state), False
                    return None
            state = merge(state, self._resumed(right))
        with self._lock:
            del self._nodes[level, first]
        return state

    def _finished(self) -> dict[tuple[int, int], Any]:
        """States that wait, by level and index, of a binary tree."""
        states = {} if self._root is None else {(self._root[0], 0): self._root[1]}
        for (level, first), node in self._nodes.items():
            if node.merged:
                states[level, first] = node.state
            states |= {(level, first + child): state for child, state in node.early.items()}
        return states

    def _parked(self, state: Any) -> Any:
        """State while it waits, in less memory if the task has `parked` and `resumed`."""
        return self._task.parked(state) if hasattr(self._task, "parked") else state

    def _resumed(self, state: Any) -> Any:
        return self._task.resumed(state) if hasattr(self._task, "resumed") else state


Runs = dict[int, tuple[int, int]]  # by number: first block, and last block + 1
Add = Callable[[int, Any], None]  # takes the number of a run and its state
# Numbers of runs in the order in which they end, with the failure of a run that was not added.
Outcomes = Generator[tuple[int, BaseException | None], None, None]


def merged(
    task: Task,
    length: int,
    execute: Callable[[Runs, Add, Callable[[], bool]], Outcomes],
    report: Progress,
    checkpoint: Checkpoint | None = None,
) -> Any:
    """Compute the merged state of all blocks.

    `execute` gets the runs to do, the function to which it passes their states, and a function that
    says when to start no more runs.
    """
    tree = Tree(task, -(-task.blocks // length), checkpoint, length)
    runs = {run: (run * length, min((run + 1) * length, task.blocks)) for run in tree.todo()}
    finished_blocks = task.blocks - sum(last - first for first, last in runs.values())
    failures: dict[int, Exception] = {}
    report(finished_blocks, task.blocks)
    try:
        with closing(execute(runs, tree.add, lambda: bool(failures))) as outcomes:
            for run, error in outcomes:
                if isinstance(error, Exception):
                    # Runs end in any order.  An earlier run that is still computed may fail too,
                    # and its failure is raised instead.
                    failures[run] = error
                elif error is not None:
                    raise error
                else:
                    finished_blocks += runs[run][1] - runs[run][0]
                    report(finished_blocks, task.blocks)
    finally:
        tree.save()
    if failures:  # the first failed run has the first bad row, which the error names
        raise failures[min(failures)]
    return tree.result()
