"""Elapsed times with several workers, as arithmetic over measured times of single pieces of work.

Amdahl's law divides a run into a serial part and a part that N workers divide by N.  The formulas
here have the structure of the engine instead: whole blocks, a tree that merges states in a fixed
order, one client that sends tasks and receives states, and pairs of panels of different sizes.

All times are in seconds.  Blocks are assumed to take equally long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from calibscale.engine.merge_tree import arity, node_blocks, tree_levels


class BlockTimes(NamedTuple):
    """Measured times of a pass: of reading and computing a block, and of merging two states.

    `task` is the time in which the client sends a task to a Dask worker and receives its state.
    """

    reading: float
    computing: float
    merging: float
    task: float = 0.0

    @property
    def block(self) -> float:
        return self.reading + self.computing


class PassTimes(NamedTuple):
    """Elapsed time of a pass by step.

    `rounds` is the number of blocks, or of runs of blocks, that are computed one after another in
    this time.  With one round, more workers do not divide it.
    """

    reading: float
    computing: float
    merging: float
    transport: float = 0.0
    rounds: int = 1

    @property
    def total(self) -> float:
        return self.reading + self.computing + self.merging + self.transport


def rounds_of(pieces: int, workers: int) -> int:
    """Number of pieces of the worker that has most of them."""
    return -(-pieces // workers)


# ---------------------------------------------------------------- A pass over the rows


def pass_on_threads(
    times: BlockTimes, blocks: int, threads: int, arities: tuple[int, ...], in_order: bool = False
) -> PassTimes:
    """Elapsed time of a pass on threads, each of which merges the states of its blocks.

    With `in_order`, only one thread reads at a time, as from columns of frames.
    """
    rounds = rounds_of(blocks, threads)
    # The tree merges each state once.  A thread has one state per block, which it merges before it
    # takes the next block.
    merging = (rounds - 1) * times.merging
    # The blocks of the last round end together, and no other work overlaps with their merges.
    last = blocks - (rounds - 1) * threads
    merging += closing_merges(blocks, last, arities) * times.merging
    # A node merges its children one after another, which may take longer than their blocks.
    round_time = times.block + times.merging
    chain = last_chain(blocks, threads, round_time, times.merging, arities)
    merging = max(merging, times.block + chain - rounds * times.block)
    reading, computing = rounds * times.reading, rounds * times.computing
    if in_order:
        # The last block is computed after all blocks are read one after another.
        reading = max(reading, blocks * times.reading + times.computing - computing)
    return PassTimes(reading, computing, merging, rounds=rounds)


def closing_merges(blocks: int, last: int, arities: tuple[int, ...]) -> int:
    """Number of merges that follow one another after the last blocks of a pass.

    On each level of the tree, the nodes that `last` blocks complete are merged in the node above
    them, with the state of earlier blocks if there is one.
    """
    merges = 0
    for level in range(tree_levels(blocks, arities)):
        below = node_blocks(arities, level)
        children = min(arity(arities, level), -(-last // below))
        siblings = min(arity(arities, level), -(-blocks // below))
        # The first child of a node is not merged with anything.
        merges += children - 1 if children == siblings else children
    return merges


def last_chain(
    blocks: int, threads: int, round_time: float, merging: float, arities: tuple[int, ...]
) -> float:
    """Time after the first block at which the longest chain of merges of one node ends.

    In each round one block per thread ends.  The chain of a node starts with its first block.
    Chains of earlier nodes run at the same time on other threads, so that the last two nodes of
    each level decide, of which the last one may have fewer children.

    Example: 20 blocks and arities (8, 128) are nodes of 8, 8 and 4 blocks below one root.  Node 1
    starts when 8 blocks have ended, which are 2 rounds of 4 threads.  It merges 8 children in 7
    merges, and its state is merged once more in the root: 2 rounds and 8 merges.  Node 2 has 4
    rounds, 3 merges of its own, and the merge in the root.
    """
    longest = 0.0
    levels = tree_levels(blocks, arities)
    for level in range(levels):
        child_blocks = node_blocks(arities, level)
        full_blocks = node_blocks(arities, level + 1)
        last_node = (blocks - 1) // full_blocks
        for node in range(max(0, last_node - 1), last_node + 1):
            first_block = node * full_blocks
            children = -(-min(full_blocks, blocks - first_block) // child_blocks)
            levels_above = levels - (level + 1)
            merges = (children - 1) + levels_above  # one merge on each level above
            started = first_block // threads * round_time
            longest = max(longest, started + merges * merging)
    return longest


def pass_on_workers(
    times: BlockTimes, blocks: int, tasks: int, length: int, workers: int
) -> PassTimes:
    """Elapsed time of a pass on Dask workers, for runs of `length` blocks each.

    A worker merges the states of a run.  The client merges the states of runs, one after another.
    If the client limits the time, only the first run is booked as work of the workers, because the
    client overlaps with all others.
    """
    rounds = rounds_of(tasks, workers)
    length = min(length, blocks)
    run = length * times.block + (length - 1) * times.merging
    received = times.task + times.merging
    # Workers limit: the runs of the last round end together, and the client then receives them.
    last = tasks - (rounds - 1) * min(workers, tasks)
    by_workers = rounds * run + last * received
    # The client limits: it receives states without a pause from the first run on.
    by_client = run + tasks * received
    if by_client > by_workers:
        rounds, received_alone = 1, tasks
    else:
        received_alone = last
    return PassTimes(
        rounds * length * times.reading,
        rounds * length * times.computing,
        (rounds * (length - 1) + received_alone) * times.merging,
        received_alone * times.task,
        rounds,
    )


# ---------------------------------------------------------------- Sums over pairs


class PairUnits(NamedTuple):
    """Tasks of a sum over pairs, which are pairs of panels, or panels with blocks of their own.

    `number` is their number, and `total` and `longest` are the seconds of work of all and of the
    longest.  `parts` is the number of sub-tiles of the longest, which threads share.
    """

    number: int
    total: float
    longest: float
    parts: int


def units_of_panels(sizes: tuple[tuple[int, int], ...], rate: float, parts: int) -> PairUnits:
    """Tasks of all pairs of panels, of `rate` pairs of rows per second.

    `sizes` are (rows, number of panels of so many rows).
    """
    rows = sum(size * count for size, count in sizes)
    panels = sum(count for _, count in sizes)
    largest = max(size for size, _ in sizes)
    # Two different panels have size² pairs, and a panel with itself has half of them.
    longest = largest**2 if panels > 1 else largest**2 / 2
    return PairUnits(panels * (panels + 1) // 2, rows**2 / 2 / rate, longest / rate, parts)


def units_of_blocks(panels: int, total: float, parts: int) -> PairUnits:
    """Tasks of panels with blocks, whose pairs take `total` seconds.

    Threads share the sub-tiles of one block after another.
    """
    return PairUnits(panels, total, total / panels, parts)


class PairSteps(NamedTuple):
    """Elapsed time of a sum over pairs by step.

    `rounds` is the number of tasks, or of parts of a task, that a worker computes one after
    another in this time.  With one round, more workers do not divide it.
    """

    pairs: float
    transport: float = 0.0
    rounds: int = 1

    @property
    def total(self) -> float:
        return self.pairs + self.transport


def pairs_on_threads(units: PairUnits, threads: int) -> PairSteps:
    """Elapsed time of pair sums on threads, which share the sub-tiles of one task after another."""
    # As `parts_on_threads`: about eight parts per thread, of at least one sub-tile.
    size = max(1, units.parts // (8 * threads))
    # All parts but the last have this size.  The slowest thread has most of them, and no more work
    # than the whole task.
    rounds = rounds_of(-(-units.parts // size), threads)
    return PairSteps(units.total * min(1.0, rounds * size / units.parts), rounds=rounds)


def pairs_on_workers(units: PairUnits, workers: int, task: float = 0.0) -> PairSteps:
    """Elapsed time of pair sums on Dask workers, each of which computes whole units.

    A list schedule of tasks of different sizes takes at least total / N and the longest task, and
    at most total / N + (1 − 1/N) · longest (Graham 1969): when the last task to end started, no
    worker was idle.  The value is the mean of the bounds, so that its error is at most half of
    their distance, which is at most half of the longest task.

    `task` is the time of the client for the state of one task.  It overlaps with the work, except
    for the last one, unless the client takes longer than the workers.  Then only the longest task
    is booked as work of the workers.
    """
    even = units.total / workers
    least = max(even, units.longest)
    most = even + (1.0 - 1.0 / workers) * units.longest
    # With a worker for each task, the longest task alone decides.
    elapsed = least if units.number <= workers else (least + most) / 2.0
    by_workers, by_client = elapsed + task, units.longest + units.number * task
    if by_client > by_workers:
        return PairSteps(units.longest, units.number * task)
    return PairSteps(elapsed, task, rounds_of(units.number, workers))


def panels_of_worker(units: int, panels: int, workers: int, cached: bool) -> int:
    """Number of panels that a worker reads for its pairs of panels.

    Units are numbered row by row.  A worker keeps the first panel of a row, and the second one is
    another for each of its units, unless the cache holds all panels.
    """
    read = rounds_of(units, workers) + 1
    return min(read, panels) if cached else read


# ---------------------------------------------------------------- What limits a run

# Steps that workers share, with the limit if they cannot share the time any further.
_SHARED = {"reading": "few_blocks", "computing": "few_blocks", "pairs": "few_panels"}


def limit_of(steps: Mapping[str, float], rounds: Mapping[str, int]) -> str:
    """Name of the step that takes most of the elapsed time.

    `rounds` are the numbers of pieces of work that follow one another in the time of a shared step.
    With one round, the time is the time of the largest piece of work, which more workers do not
    divide, and the limit is ``"few_blocks"`` or ``"few_panels"``.
    """
    largest = max(steps, key=steps.__getitem__)
    if largest in _SHARED and rounds[largest] == 1:
        return _SHARED[largest]
    return largest
