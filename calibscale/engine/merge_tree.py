"""A tree that merges states of blocks in a fixed order."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from calibscale.engine.checkpoint import Checkpoint
from calibscale.engine.threads import RunParts, one_thread

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
