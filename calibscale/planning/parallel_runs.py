"""Expected times of a whole run with several workers, from the measured times of its pieces."""

from __future__ import annotations

from typing import NamedTuple

from calibscale.engine.dask_trial import DaskTimes
from calibscale.planning.pair_costs import PairTimes
from calibscale.planning.parallel_times import (
    BlockTimes,
    PairSteps,
    PassTimes,
    limit_of,
    pass_on_threads,
    pass_on_workers,
)
from calibscale.planning.process_start import StartTimes
from calibscale.results.parallel_results import ParallelTime, TimeSteps


class RunTimes(NamedTuple):
    """Measured times of a run, and the numbers of its pieces.

    Attributes
    ----------
    start, dask : StartTimes or None, DaskTimes or None
        Start of a process, and time of a client for the tasks of Dask workers, if measured.
    opening, solving : float
        Times before and after the pass and the sums over pairs.
    blocks, length, tasks : int
        Number of blocks, of blocks in a run of a Dask worker, and of these runs.
    block : BlockTimes
        Times of a block of the pass.
    moved_bytes, pickling : int, float
        Bytes that the client sends and receives for a run, and time of pickling its state.
    arities : tuple of int
        Numbers of states that a node of the merge tree joins, by level.
    in_order : bool
        Whether one thread reads at a time.
    pairs : tuple of PairTimes
        Times of sums over pairs, which follow the pass one after another.
    """

    start: StartTimes | None
    dask: DaskTimes | None
    opening: float
    solving: float
    blocks: int
    length: int
    tasks: int
    block: BlockTimes
    moved_bytes: int
    pickling: float
    arities: tuple[int, ...]
    in_order: bool = False
    pairs: tuple[PairTimes, ...] = ()


def expected_times(times: RunTimes, workers: int) -> tuple[ParallelTime, ...]:
    """Expected times with one thread, with several, and with Dask workers if their times exist."""
    expected = [time_on_threads(times, threads) for threads in sorted({1, workers})]
    if times.start is not None and times.dask is not None:
        expected.append(time_on_workers(times, workers, times.start, times.dask))
    return tuple(expected)


def time_on_threads(times: RunTimes, threads: int) -> ParallelTime:
    """Expected time with threads of one process."""
    return _parallel_time(
        "threads",
        threads,
        times,
        0.0 if times.start is None else times.start.process,
        pass_on_threads(times.block, times.blocks, threads, times.arities, times.in_order),
        sum(sums.panels_on_threads() for sums in times.pairs),
        [sums.on_threads(threads) for sums in times.pairs],
    )


def time_on_workers(
    times: RunTimes, workers: int, start: StartTimes, dask: DaskTimes
) -> ParallelTime:
    """Expected time with Dask workers of one thread, which start when the client has started."""
    block = times.block._replace(task=task_seconds(times, dask))
    return _parallel_time(
        "dask",
        workers,
        times,
        2.0 * (start.process + start.dask),
        pass_on_workers(block, times.blocks, times.tasks, times.length, workers),
        sum(sums.panels_on_workers(workers) for sums in times.pairs),
        [sums.on_workers(workers, dask.task, dask.byte) for sums in times.pairs],
    )


def task_seconds(times: RunTimes, dask: DaskTimes) -> float:
    """Time of a client for the task of a run of blocks, with its state."""
    return dask.task + dask.byte * times.moved_bytes + times.pickling


def _parallel_time(
    kind: str,
    workers: int,
    times: RunTimes,
    start: float,
    pass_times: PassTimes,
    panels: float,
    pairs: list[PairSteps],
) -> ParallelTime:
    """Result from the times of the steps."""
    steps = TimeSteps(
        start=start,
        opening=times.opening,
        reading=pass_times.reading,
        computing=pass_times.computing,
        merging=pass_times.merging,
        transport=pass_times.transport + sum(sums.transport for sums in pairs),
        panels=panels,
        pairs=sum(sums.pairs for sums in pairs),
        solving=times.solving,
    )
    in_pass = min(workers, times.blocks if kind == "threads" else times.tasks)
    in_pairs = max((sums.busy(workers, kind) for sums in times.pairs), default=0)
    # Of several sums, the longest one decides whether more workers divide their time.
    seconds = [sums.pairs for sums in pairs]
    longest = seconds.index(max(seconds)) if seconds else None
    rounds = {
        "reading": pass_times.rounds,
        "computing": pass_times.rounds,
        "pairs": 1 if longest is None else pairs[longest].rounds,
    }
    limit = limit_of(steps.by_name(), rounds)
    if limit == "few_panels" and longest is not None and times.pairs[longest].units is None:
        limit = "drawn_pairs"
    # More threads do not read faster if only one of them reads at a time.
    in_order = times.in_order and kind == "threads" and steps.reading > steps.computing
    if in_order and limit in ("reading", "few_blocks"):
        limit = "reading_in_order"
    return ParallelTime(kind, workers, max(in_pass, in_pairs), limit, steps)
