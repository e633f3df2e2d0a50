"""Expected cost of a run, from a measurement on a few rows."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from calibscale.compiled import tiles
from calibscale.engine import schedulers
from calibscale.engine.memory import Room, parse_bytes
from calibscale.engine.merge_tree import arities_of, run_length, tree_levels
from calibscale.engine.threads import one_thread
from calibscale.errors import require
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.evaluation.pass_estimates import (
    fitting_in_memory,
    needed_statistics,
    session_intervals,
)
from calibscale.inference.nulls import replicates_of
from calibscale.intervals.resampling import Resampling
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.pair_tasks import PairSum
from calibscale.kernels.pairwise import PairSummed, Pairwise
from calibscale.kernels.tile_layout import TileLayout, panel_cuts
from calibscale.predictions.notions import width
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import ClusterCost, Cost, Plan
from calibscale.session import Run, Session, SessionOptions, verb
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.one_pass import Scan, scan_of
from calibscale.statistics.statistic import Statistic

_SAMPLE_SECONDS = 0.1  # least time of a timing
_FEW = 20  # replicates that are timed
_COLUMNS = 64  # columns of a product that are timed


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

    On this machine, the pass is timed on its first block and pairs on a sample of 1,000 rows.

    Parameters
    ----------
    source, estimators, on_unsupported, interval, **options
        See `evaluate`.  `left_out` of the plan has the reasons of estimators that would not be
        computed.
    rows : int, optional
        Number of rows of a larger or smaller source of this kind.  Default: the rows of the source.
    workers : int, optional
        Number of single-threaded worker processes of a cluster.  Default: the workers of the
        scheduler, without the costs of a cluster.
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
    # A plan must not start processes.  It only needs to know how many there would be.
    scheduler = options.pop("scheduler", None)  # not started
    with Session.open(source, **options) as session:
        request, _ = session_intervals(session, interval, False)
        run = session.run(estimators, on_unsupported)
        room = _least_room(run, scheduler)
        run = fitting_in_memory(run, request, None, on_unsupported, room)
        rows = run.source.rows if rows is None else rows
        count = workers
        if count is None:
            count = schedulers.workers(scheduler or run.execution.scheduler)
        linear, cluster, task = _pass(run, rows, count, request)
        costs: list[Cost | None] = [linear]
        if n_replicates:
            costs.append(_draws(task, run.fitting, rows, count, n_replicates))
        for e in run.fitting:
            costs.append(_pairs(run, e, rows, count))
            if n_replicates:
                costs.append(_pair_draws(run.profile, e, rows, count, n_replicates))
    pieces = tuple(cost for cost in costs if cost is not None)
    left_out = {
        estimate.estimator: str(estimate.reason)
        for estimate in run.chosen
        if isinstance(estimate, Estimate)
    }
    return Plan(
        run.source.describe(), rows, count, pieces, None if workers is None else cluster, left_out
    )


def _least_room(run: Run, scheduler: Any) -> Room:
    """Memory of this process, which times a block, or of a worker if it has less."""
    process_room = run.execution.room()
    scheduler_room = schedulers.room_with(scheduler, run.execution.memory_limit)
    limited = [room for room in (scheduler_room, process_room) if room.free is not None]
    return min(limited, key=lambda room: room.free or 0, default=process_room)


def _pass(
    run: Run, rows: int, workers: int, interval: Resampling | None
) -> tuple[Cost, ClusterCost, Scan]:
    """Cost of the one pass over the rows, and the task that was timed."""
    data, size = run.source, run.block_rows
    needed: Iterable[Statistic] = (s for e in run.fitting for s in e.needs)
    if interval is not None:
        needed = needed_statistics(run, interval, None)
    statistics = tuple(dict.fromkeys(needed))
    task = scan_of(data, statistics, run.rules, size, covariates=run.covariates)
    # The timed block is of this source, and the number of blocks of the planned one.
    task = replace(task, blocks=-(-rows // size))
    with one_thread():
        state = task.state(0)  # compile outside the clock
        sent = len(pickle.dumps(state)), len(pickle.dumps((task.part(0, 1), task.shared)))
        started = time.perf_counter()
        second = task.state(0)
        # The first block may have fewer rows than a block of a larger source.
        block = (time.perf_counter() - started) * size / max(1, min(size, data.rows))
        started = time.perf_counter()
        task.merge(state, second)
        merge = time.perf_counter() - started
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
        task_bytes=sent[1],
        state_bytes=sent[0],
        bytes_moved=tasks * sum(sent),
        worker_memory=task.block_bytes + (tree_levels(length, arities_of(task)) + 1) * state_bytes,
        client_memory=(2 * workers + depth) * state_bytes,
        # Workers run tasks in rounds, each with all of its blocks and their merges.
        worker_seconds=-(-tasks // busy) * length * (block + merge),
        client_seconds=tasks * merge,
    )
    return linear, cluster, task


def _draws(
    task: Scan, chosen: list[BoundEstimator], rows: int, workers: int, n_replicates: int
) -> Cost | None:
    """Cost of the replicates of a test with states that merge, from the time of a few."""
    one_pass = (e for e in chosen if not isinstance(e, Pairwise))
    drawn = replicates_of(one_pass, DrawnLabels(0), 0, min(n_replicates, _FEW))
    if not drawn:
        return None
    # The sums of a few replicates are timed, without the other sums of the pass.
    few = replace(task, statistics=tuple(drawn.values()))
    with one_thread():
        few.state(0)  # compile outside the clock
        started = time.perf_counter()
        few.state(0)
        seconds = time.perf_counter() - started
    # Time and states grow in proportion to the number of replicates.
    share = n_replicates / min(n_replicates, _FEW)
    seconds *= share * task.block_rows / max(1, min(task.block_rows, task.source.rows))
    names = ", ".join(e.name for e in chosen if any(s in drawn for s in e.needs))
    alive = min(workers, task.blocks) + tree_levels(task.blocks, arities_of(task)) + 1
    return Cost(
        f"{n_replicates:,} draws",
        names,
        0,
        seconds * -(-task.blocks // min(workers, task.blocks)),
        int(share * few.state_bytes) * alive,
        0,
    )


def _pair_draws(
    profile: DataProfile, estimator: BoundEstimator, n: int, workers: int, n_replicates: int
) -> Cost | None:
    """Cost of the replicates of a test that need products of the kernel matrix."""
    if not isinstance(estimator, PairSummed):
        return None
    spec = estimator.pair_sum
    cuts = panel_cuts(n, profile.n_features)
    columns = n_replicates * width(spec.notion, profile.n_features)
    at_once = min(columns, _COLUMNS)
    # Unordered pairs of different rows.
    pairs = n * (n - 1) // 2
    rate = _rate(profile, spec, cuts[0][1] - cuts[0][0], at_once)
    return Cost(
        f"{n_replicates:,} draws",
        estimator.name,
        pairs,
        pairs * columns / at_once / (rate * workers),
        2 * 8 * n * at_once,
        0,
    )


def _pairs(run: Run, estimator: BoundEstimator, n: int, workers: int) -> Cost | None:
    """Cost of the sums over pairs of n rows of one estimator, or None if it has no such sums."""
    if not isinstance(estimator, Pairwise):
        return None
    K = run.source.n_features
    limit = parse_bytes(run.execution.memory_limit)
    work = estimator.pair_work(n, K)
    cuts = panel_cuts(n, K)
    rows = cuts[0][1] - cuts[0][0]
    rate = _rate(run.profile, work.sum, rows, work.vectors)
    pairs = work.times * work.pairs
    row_bytes = 8 * (6 * K + 20)
    cached = min(n * row_bytes, 2**29 if limit is None else limit // 4)
    # Panels that do not fit into the cache are read again, on average for half of the panels.
    reads = 1 if n * row_bytes <= cached else max(1, len(cuts) // 2)
    return Cost(
        estimator.name,
        work.method,
        pairs,
        pairs / (rate * workers),
        2 * rows * row_bytes + cached + 4 * 8 * n * work.vectors,
        work.times * reads * n * run.source.row_bytes,
    )


def _rate(profile: DataProfile, spec: PairSum, rows: int, vectors: int) -> float:
    """Unordered pairs per second of one core, measured on panels that repeat a sample."""
    layout = TileLayout(spec.tiled, width(spec.notion, profile.n_features), spec.precision)
    sample = profile.sample(spec.notion)
    # The time of a pair does not depend on values, so that a sample may stand for any rows.
    repeated = sample.take(np.arange(rows if len(sample) else 0) % max(1, len(sample)))
    panel, _ = layout.panel(repeated)
    form, size = layout.form, panel.s.size
    V = np.zeros((vectors, size), panel.s.dtype)
    into = np.zeros((1, *V.shape), V.dtype), np.empty_like(V)
    strips = np.array(layout.strips(panel), np.int64)
    grid = layout.grid(panel, panel, False)

    def part(index: int) -> int:
        """Visit some of the pairs, and return their number."""
        if vectors:
            strip = strips[[index % len(strips)]]
            tiles.row_sums(panel, panel, form, strip, True, V, V, *into)
            return int(size * (strip[0, 1] - strip[0, 0]))
        tile = grid[[index % len(grid)]]
        tiles.pair_sums(panel, panel, form, tile, spec.kernel_sums, np.zeros((1, 2)))
        i0, i1, j0, j1, _ = tile[0]
        return int((i1 - i0) * (j1 - j0))

    # Compile outside of the clock.
    part(0)
    visited, index, started = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < _SAMPLE_SECONDS or not index:
        visited, index = visited + part(index), index + 1
    # Panels are padded to whole tiles.  Only this share of the visited pairs are pairs of rows.
    padding = (max(1, len(repeated)) / size) ** 2
    return visited * padding / elapsed
