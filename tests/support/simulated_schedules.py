"""Simulations of the engine's schedules, with given times of blocks, merges and tasks.

They are deterministic, and share no arithmetic with the closed forms of `calibscale.planning`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence


def list_schedule(durations: Sequence[float], workers: int) -> float:
    """Time until all tasks have ended, if the worker that is free first takes the next task."""
    free = [0.0] * workers
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def threads_schedule(
    durations: Sequence[float], merge: float, threads: int, arities: tuple[int, ...]
) -> float:
    """Time of a pass on threads that merge the states of their blocks in a tree."""
    tree = _Tree(len(durations), merge, arities)
    waiting = iter(range(len(durations)))

    def thread() -> Iterator[float]:
        for block in waiting:
            yield durations[block]
            yield from tree.add(block)

    running = [(0.0, number, thread()) for number in range(threads)]
    end = 0.0
    while running:
        now, number, steps = heapq.heappop(running)
        end = max(end, now)
        duration = next(steps, None)
        if duration is not None:
            heapq.heappush(running, (now + duration, number, steps))
    assert tree.finished
    return end


class _Tree:
    """Nodes that merge their children from the first to the last, one thread at a time."""

    def __init__(self, blocks: int, merge: float, arities: tuple[int, ...]) -> None:
        self.merge, self.finished = merge, False
        self.widths = [blocks]
        self.arities: list[int] = []
        while self.widths[-1] > 1:
            self.arities.append(arities[min(len(self.arities), len(arities) - 1)])
            self.widths.append(-(-self.widths[-1] // self.arities[-1]))
        self.merged: dict[tuple[int, int], int] = {}
        self.early: dict[tuple[int, int], set[int]] = {}
        self.busy: set[tuple[int, int]] = set()

    def add(self, index: int) -> Iterator[float]:
        """Durations of the merges that the state of a block causes."""
        for level, arity in enumerate(self.arities):
            parent, child = divmod(index, arity)
            node = level, parent
            siblings = min(arity, self.widths[level] - parent * arity)
            early = self.early.setdefault(node, set())
            early.add(child)
            if node in self.busy:
                return
            self.busy.add(node)
            while self.merged.get(node, 0) in early:
                if self.merged.get(node, 0) > 0:
                    yield self.merge
                self.merged[node] = self.merged.get(node, 0) + 1
            self.busy.remove(node)
            if self.merged.get(node, 0) < siblings:
                return
            index = parent
        self.finished = True


def client_schedule(runs: Sequence[float], received: float, workers: int, window: int) -> float:
    """Time of a pass on workers with a client that receives one state at a time.

    The client has at most `window` runs in flight, and sends a run when it has received a state.
    """
    sent = min(window, len(runs))
    free = [0.0] * workers
    ended: list[float] = []

    def start(run: int, now: float) -> None:
        begin = max(now, heapq.heappop(free))
        heapq.heappush(free, begin + runs[run])
        heapq.heappush(ended, begin + runs[run])

    for run in range(sent):
        start(run, 0.0)
    client = 0.0
    while ended:
        client = max(client, heapq.heappop(ended)) + received
        if sent < len(runs):
            start(sent, client)
            sent += 1
    return client
