"""Expected cost of a run, from a measurement on a few rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

from calibscale.engine import schedulers
from calibscale.engine.dask_connection import available_cpus
from calibscale.engine.memory import Room
from calibscale.engine.merge_tree import arities_of, run_length, tree_levels
from calibscale.errors import require
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.evaluation.pass_estimates import (
    fitting_in_memory,
    needed_statistics,
    session_intervals,
)
from calibscale.inference.monte_carlo import batch_of
from calibscale.inference.nulls import recombined, replicates_of
from calibscale.inference.testable import for_test
from calibscale.intervals.resampling import Resampling
from calibscale.kernels.pairwise import Pairwise
from calibscale.planning.measured_times import (
    MeasuredPass,
    block_seconds,
    measured_pass,
    sent_to_worker,
    solving_seconds,
    timed_rows,
)
from calibscale.planning.pair_costs import PairTimes, pair_draw_times, pair_times
from calibscale.planning.parallel_runs import RunTimes, expected_times, task_seconds
from calibscale.planning.process_start import ProcessTrial, process_trial
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import ClusterCost, Cost, Plan
from calibscale.results.parallel_results import extrapolated, second_look, unmeasured
from calibscale.session import Run, Session, SessionOptions, listed, verb
from calibscale.statistics.null_distributions import DrawnLabels, Null
from calibscale.statistics.one_pass import Scan, scan_of
from calibscale.statistics.recombined_draws import RecombinedLabels

_TIMED = 2, 20  # numbers of replicates that are timed
_QUICK = 1.0  # seconds of an opening that is repeated


@verb
def plan(
    source: Any,
    estimators: Estimator | str | Iterable[Estimator | str],
    *,
    on_unsupported: str = "raise",
    interval: Resampling | str | bool | None = None,
    rows: int | None = None,
    workers: int | None = None,
    n_replicates: int = 0,
    **options: Unpack[SessionOptions],
) -> Plan:
    """Estimate time, memory and input of `evaluate` or `calibration_test` with these arguments.

    On this machine, the pass is timed on its first block and pairs on a sample of 1,000 rows.  With
    `workers`, the solve, the start of a process, and the transport of states by Dask within that
    process are timed as well.  `parallel` then has the expected times with one thread, with so many
    threads, and with so many Dask workers.  They follow from whole blocks, the order of merges, and
    tasks that one client sends.

    Parameters
    ----------
    source, estimators, on_unsupported, interval, **options
        See `evaluate`.  `left_out` of the plan has the reasons of estimators that would not be
        computed.
    rows : int, optional
        Number of rows of a larger or smaller source of this kind.  Default: the rows of the source.
    workers : int, optional
        Number of threads of one machine, and of single-threaded worker processes of a cluster.
        Default: the workers of the scheduler, without the costs of a cluster.
    n_replicates : int
        Number of draws of labels of a test, or 0 for no test.

    Raises
    ------
    OptionError, InvalidDataError, StoreError
        In the same cases as `evaluate`.

    Examples
    --------
    >>> import calibscale, numpy as np
    >>> source = calibscale.from_arrays(
    ...     probabilities=np.full((100, 4), 0.25), labels=np.zeros(100, int)
    ... )
    >>> planned = calibscale.plan(source, [calibscale.ECE()], rows=10**9, workers=64)
    >>> planned.cluster.blocks > planned.cluster.tasks > 12 * 64
    True
    """
    for name, count, minimum in (
        ("rows", rows, 1),
        ("workers", workers, 1),
        ("n_replicates", n_replicates, 0),
    ):
        require(count is None or count >= minimum, f"{name} must be at least {minimum}", count)
    # A plan must not start workers.  It only needs to know how many there would be.
    scheduler = options.pop("scheduler", None)
    requested = listed(estimators)
    started = time.perf_counter()
    with Session.open(source, **options) as session:
        request, _ = session_intervals(session, interval, False)
        run = session.run(requested, on_unsupported)
        opening = time.perf_counter() - started
        room = _least_room(run, scheduler)
        run = fitting_in_memory(run, request, None, on_unsupported, room)
        rows = run.source.rows if rows is None else rows
        count, on_dask = _workers(workers, scheduler or run.execution.scheduler)
        linear, cluster, task, measured = _pass(run, rows, count, request)
        draws = None
        if n_replicates:
            draws = _draws(run, task, rows, count, n_replicates)
        sums = _pair_sums(run, rows, n_replicates)
        if workers is not None:
            # The process reads a block of the open source.
            trial = process_trial(sent_to_worker(task))
            solving = solving_seconds(run, task, measured.state, request)
    pieces = [linear]
    if draws is not None:
        pieces.append(draws.cost)
    pieces += [replace(cost, seconds=pairs.elapsed(count, on_dask)) for cost, pairs in sums]
    left_out = {
        estimate.estimator: str(estimate.reason)
        for estimate in run.chosen
        if isinstance(estimate, Estimate)
    }
    remarks = extrapolated(timed_rows(task), min(task.block_rows, rows))
    if draws is not None:
        remarks += draws.remarks
    result = Plan(
        run.source.describe(), rows, count, tuple(pieces), left_out=left_out, remarks=remarks
    )
    if workers is None:
        return result
    if opening < _QUICK:  # the first opening also imports modules
        opening = _opening_seconds(source, requested, on_unsupported, options)
    times = _run_times(
        task, measured, draws, sums, workers, trial=trial, opening=opening, solving=solving
    )
    parallel = expected_times(times, workers)
    cluster = _of_the_run(cluster, times, workers)
    remarks += unmeasured(parallel, available_cpus())
    return replace(result, cluster=cluster, parallel=parallel, remarks=remarks)


def _of_the_run(cluster: ClusterCost, times: RunTimes, workers: int) -> ClusterCost:
    """Cost of the pass on a cluster, with the time of its client and with sums over pairs."""
    # Without Dask, no time of its tasks is known.
    task, byte = times.dask or (0.0, 0.0)
    client_seconds = cluster.client_seconds
    if times.dask is not None:
        client_seconds = times.tasks * (task_seconds(times, times.dask) + times.block.merging)
    pairs = times.pairs
    return replace(
        cluster,
        bytes_moved=cluster.bytes_moved + sum(sums.bytes_moved(workers) for sums in pairs),
        worker_seconds=cluster.worker_seconds + sum(sums.elapsed(workers, True) for sums in pairs),
        client_seconds=client_seconds + sum(sums.client_seconds(task, byte) for sums in pairs),
        panel_pairs=sum(sums.tasks for sums in pairs),
        pair_tail=sum(sums.tail_on_workers(workers, task, byte) for sums in pairs),
    )


def _workers(workers: int | None, scheduler: Any) -> tuple[int, bool]:
    """Number of workers of the costs, and whether they are Dask workers, not threads."""
    if workers is not None:
        return workers, True
    kind, _ = schedulers.parse_scheduler(scheduler)
    return schedulers.workers(scheduler), kind != "threads"


def _opening_seconds(
    source: Any, requested: list[Estimator], on_unsupported: str, options: Any
) -> float:
    """Time of opening a source again and of binding estimators to it."""
    started = time.perf_counter()
    with Session.open(source, **options) as session:
        session.run(requested, on_unsupported)
        return time.perf_counter() - started


def _run_times(
    task: Scan,
    measured: MeasuredPass,
    draws: _Draws | None,
    sums: list[tuple[Cost, PairTimes]],
    workers: int,
    *,
    trial: ProcessTrial | None,
    opening: float,
    solving: float,
) -> RunTimes:
    """Times of the pieces of a run, with the number of runs of blocks for Dask workers."""
    block = measured.times
    if draws is not None:
        block = block._replace(computing=block.computing + draws.block_seconds)
    length = run_length(task, workers)
    return RunTimes(
        start=None if trial is None else trial.start,
        dask=None if trial is None else trial.dask,
        opening=opening,
        solving=solving,
        blocks=task.blocks,
        length=length,
        tasks=-(-task.blocks // length),
        block=block,
        # Rows in memory are sent along with the task of a run.
        moved_bytes=length * measured.task_bytes + measured.state_bytes,
        pickling=measured.pickling,
        arities=arities_of(task),
        in_order=task.in_order,
        pairs=tuple(pairs for _, pairs in sums),
    )


def _pair_sums(run: Run, rows: int, n_replicates: int) -> list[tuple[Cost, PairTimes]]:
    """Costs on one core, and times, of all sums over pairs of rows."""
    sums = []
    for estimator in run.fitting:
        if not isinstance(estimator, Pairwise):
            continue
        sums.append(pair_times(run, estimator, rows))
        if n_replicates and (draws := pair_draw_times(run.profile, estimator, rows, n_replicates)):
            sums.append(draws)
    return sums


def _least_room(run: Run, scheduler: Any) -> Room:
    """Memory of this process, which times a block, or of a worker if it has less."""
    process_room = run.execution.room()
    scheduler_room = schedulers.room_with(scheduler, run.execution.memory_limit)
    limited = [room for room in (scheduler_room, process_room) if room.free is not None]
    return min(limited, key=lambda room: room.free or 0, default=process_room)


def _pass(
    run: Run, rows: int, workers: int, interval: Resampling | None
) -> tuple[Cost, ClusterCost, Scan, MeasuredPass]:
    """Cost of the one pass over the rows, and the task that was timed with its times."""
    data, size = run.source, run.block_rows
    statistics = tuple(dict.fromkeys(needed_statistics(run, interval, None)))
    task = scan_of(data, statistics, run.rules, size, covariates=run.covariates)
    # The timed block is of this source, and the number of blocks of the planned one.
    task = replace(task, blocks=-(-rows // size))
    planned = min(size, rows)  # rows of a block
    measured = measured_pass(task, planned)
    block, merge = measured.times.block, measured.times.merging
    # More workers than blocks have nothing to do.
    busy = min(workers, task.blocks)
    # A task is a run of blocks, merged by the worker before it is sent.
    length = run_length(task, workers)
    tasks = -(-task.blocks // length)
    depth = tree_levels(task.blocks, arities_of(task))
    state_bytes = task.state_bytes
    linear = Cost(
        "one pass",
        ", ".join(e.name for e in run.fitting if not isinstance(e, Pairwise)) or "validation",
        0,
        block * -(-task.blocks // busy),
        busy * (task.block_bytes + state_bytes) + (depth + 1) * state_bytes,
        rows * data.row_bytes,
    )
    cluster = ClusterCost(
        blocks=task.blocks,
        tasks=tasks,
        merge_depth=depth,
        task_bytes=measured.task_bytes,
        state_bytes=measured.state_bytes,
        bytes_moved=tasks * (measured.task_bytes + measured.state_bytes),
        worker_memory=task.block_bytes + (tree_levels(length, arities_of(task)) + 1) * state_bytes,
        client_memory=(2 * workers + depth) * state_bytes,
        # Workers run tasks in rounds, each with all of its blocks and their merges.
        worker_seconds=-(-tasks // busy) * length * (block + merge),
        client_seconds=tasks * merge,
    )
    return linear, cluster, task, measured


class _Draws(NamedTuple):
    """Cost of the replicates of a test with states that merge, and their time in one block.

    `remarks` say what the cost does not include.
    """

    cost: Cost
    block_seconds: float
    remarks: tuple[str, ...]


def _draws(run: Run, task: Scan, rows: int, workers: int, n_replicates: int) -> _Draws | None:
    """Cost of the replicates of a test with states that merge."""
    # A test may draw replicates of other sums than those of the estimate.
    tested = [for_test(e, run.profile) for e in run.fitting]
    one_pass = [e for e in tested if not isinstance(e, Pairwise)]
    drawn = replicates_of(one_pass, DrawnLabels(0), 0, n_replicates)
    if not drawn:
        return None
    rounds = -(-task.blocks // min(workers, task.blocks))
    seconds = _drawing_seconds(run, task, one_pass, rows, n_replicates)
    remarks: tuple[str, ...] = ()
    null = recombined(DrawnLabels(0), tested, rows, n_replicates)
    if isinstance(null, RecombinedLabels):
        remarks = second_look(seconds * rounds)
        seconds = _recombining_seconds(run, task, one_pass, null, rows, n_replicates)
    names = ", ".join(e.name for e in one_pass if any(s in drawn for s in e.needs))
    alive = min(workers, task.blocks) + tree_levels(task.blocks, arities_of(task)) + 1
    state_bytes = sum(replicates.nbytes(run.source.n_features) for replicates in drawn.values())
    cost = Cost(f"{n_replicates:,} draws", names, 0, seconds * rounds, state_bytes * alive, 0)
    return _Draws(cost, seconds, remarks)


def _drawing_seconds(
    run: Run, task: Scan, estimators: Sequence[BoundEstimator], rows: int, n_replicates: int
) -> float:
    """Time in one block of replicates with labels of their own, from the times of a few."""
    counts = [min(n_replicates, count) for count in _TIMED]
    scans = [_scan_of_draws(run, task, estimators, DrawnLabels(0), count) for count in counts]
    planned = min(task.block_rows, rows)
    first, seconds = (block_seconds(scan, planned) for scan in scans)
    if n_replicates > counts[-1]:
        # Features of the rows are computed once for all replicates.
        each = max(seconds - first, 0.0) / (counts[-1] - counts[0])
        seconds += (n_replicates - counts[-1]) * each
    return seconds


def _recombining_seconds(
    run: Run,
    task: Scan,
    estimators: Sequence[BoundEstimator],
    null: RecombinedLabels,
    rows: int,
    n_replicates: int,
) -> float:
    """Time in one block of replicates that recombine drawn labels, over all passes."""
    batch = batch_of(replace(run, chosen=tuple(estimators)), n_replicates)
    scan = _scan_of_draws(run, task, estimators, null, batch)
    passes = -(-n_replicates // batch)
    return passes * block_seconds(scan, min(task.block_rows, rows))


def _scan_of_draws(
    run: Run, task: Scan, estimators: Iterable[BoundEstimator], null: Null, count: int
) -> Scan:
    """Task of a pass that draws replicates alone, without the other sums of the pass."""
    drawn = tuple(replicates_of(estimators, null, 0, count).values())
    scan = scan_of(run.source, drawn, run.rules, run.block_rows, covariates=run.covariates)
    return replace(scan, blocks=task.blocks)
