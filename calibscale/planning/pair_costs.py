"""Costs of sums over all pairs of rows, and their times with several workers."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from calibscale.engine.memory import parse_bytes
from calibscale.estimators.base import BoundEstimator
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.pairwise import PairSummed, Pairwise
from calibscale.kernels.tile_layout import panel_cuts
from calibscale.planning.measured_times import pair_rate, panel_seconds
from calibscale.planning.parallel_times import (
    PairSteps,
    PairUnits,
    pairs_on_threads,
    pairs_on_workers,
    panels_of_worker,
    units_of_blocks,
    units_of_panels,
)
from calibscale.predictions.notions import width
from calibscale.results.evaluation_results import Cost
from calibscale.session import Run

_COLUMNS = 64  # columns of a product that are timed


class PairTimes(NamedTuple):
    """Measured times of a sum over pairs, or of several sums one after another.

    Attributes
    ----------
    units : PairUnits or None
        Pairs of panels of one sum, or None for a sum that one thread computes.
    repeats : float
        Number of sums.
    panels : int
        Number of panels of rows.
    panel : float
        Seconds in which a panel is read and laid out.
    reads : int
        Number of times that each panel is read in one process, over all sums.
    state_bytes, shared_bytes : int
        Bytes of a state of a pair of panels, and of the data that each worker gets for a sum.
    serial : float
        Seconds of work that one thread does.
    """

    units: PairUnits | None
    repeats: float = 1.0
    panels: int = 0
    panel: float = 0.0
    reads: int = 0
    state_bytes: int = 0
    shared_bytes: int = 0
    serial: float = 0.0

    def on_threads(self, threads: int) -> PairSteps:
        """Elapsed time of the sums on threads, without the time of panels."""
        if self.units is None:
            return PairSteps(self.serial)
        steps = pairs_on_threads(self.units, threads)
        return steps._replace(pairs=self.repeats * steps.pairs)

    def panels_on_threads(self) -> float:
        """Elapsed time of reading panels, while threads wait."""
        return self.reads * self.panels * self.panel

    def on_workers(self, workers: int, task: float = 0.0, byte: float = 0.0) -> PairSteps:
        """Elapsed time of the sums on Dask workers, without the time of panels.

        `task` and `byte` are the seconds of the client for a task and for each byte that it moves.
        """
        if self.units is None:
            return PairSteps(self.serial)
        steps = pairs_on_workers(self.units, workers, task + byte * self.state_bytes)
        return PairSteps(
            self.repeats * steps.pairs,
            self.repeats * (steps.transport + byte * self.shared_bytes),
            steps.rounds,
        )

    def tail_on_workers(self, workers: int, task: float = 0.0, byte: float = 0.0) -> float:
        """Time by which the sums exceed an even division of their work among Dask workers."""
        if self.units is None:
            return 0.0
        even = self.repeats * self.units.total / workers
        return self.on_workers(workers, task, byte).total - even

    @property
    def tasks(self) -> int:
        """Number of tasks of Dask workers in all sums."""
        return 0 if self.units is None else math.ceil(self.repeats) * self.units.number

    def bytes_moved(self, workers: int) -> int:
        """Bytes of all states, and of the data that each busy worker gets for each sum."""
        shared = self.shared_bytes * self.busy(workers, "dask")
        return self.tasks * self.state_bytes + math.ceil(self.repeats) * shared

    def client_seconds(self, task: float, byte: float) -> float:
        """Time of the client for the tasks of Dask workers and for their data, see `on_workers`."""
        if self.units is None:
            return 0.0
        per_sum = self.units.number * (task + byte * self.state_bytes) + byte * self.shared_bytes
        return self.repeats * per_sum

    def panels_on_workers(self, workers: int) -> float:
        """Elapsed time in which a worker reads its panels."""
        if self.units is None:
            return 0.0
        cached = self.reads <= 1
        per_sum = panels_of_worker(self.units.number, self.panels, workers, cached)
        return (1.0 if cached else self.repeats) * per_sum * self.panel

    def elapsed(self, workers: int, on_dask: bool) -> float:
        """Elapsed time of the sums and of their panels, without transport."""
        if on_dask:
            return self.on_workers(workers).total + self.panels_on_workers(workers)
        return self.on_threads(workers).total + self.panels_on_threads()

    def busy(self, workers: int, kind: str) -> int:
        """Number of workers that have work."""
        if self.units is None:
            return 1
        return min(workers, self.units.number if kind == "dask" else self.units.parts)


def pair_times(run: Run, estimator: Pairwise, n: int) -> tuple[Cost, PairTimes]:
    """Cost on one core of the sums over pairs of n rows of an estimator, and their times."""
    K = run.source.n_features
    limit = parse_bytes(run.execution.memory_limit)
    work = estimator.pair_work(n, K)
    cuts = panel_cuts(n, K, work.sum.block or 1)
    rows = cuts[0][1] - cuts[0][0]
    timed = min(rows, work.sum.block or rows)
    rate = pair_rate(run.profile, work.sum, timed, work.vectors)
    pairs = work.times * work.pairs
    row_bytes = 8 * (6 * K + 20)
    cached = min(n * row_bytes, 2**29 if limit is None else limit // 4)
    # Panels that do not fit into the cache are read again, on average for half of the panels.
    reads = 1 if n * row_bytes <= cached else max(1, len(cuts) // 2)
    cost = Cost(
        estimator.name,  # type: ignore[attr-defined]
        work.method,
        pairs,
        pairs / rate.pairs,
        2 * rows * row_bytes + cached + 4 * 8 * n * work.vectors,
        work.times * reads * n * run.source.row_bytes,
    )
    if work.method == "pairs":  # drawn pairs are few, and are not a task of the engine
        return cost, PairTimes(None, serial=cost.seconds)
    if work.sum.block is not None:
        units = units_of_blocks(len(cuts), work.pairs / rate.pairs, rate.parts)
    else:
        sizes = Counter(stop - start for start, stop in cuts)
        units = units_of_panels(tuple(sizes.items()), rate.pairs, rate.parts)
    return cost, PairTimes(
        units=units,
        repeats=work.times,
        panels=len(cuts),
        panel=panel_seconds(run, work.sum, rows),
        reads=reads if reads == 1 else work.times * reads,
        state_bytes=16 * rows * work.vectors if work.vectors else 8 * 18,
        shared_bytes=8 * n * work.vectors,
    )


def pair_draw_times(
    profile: DataProfile, estimator: BoundEstimator, n: int, n_replicates: int
) -> tuple[Cost, PairTimes] | None:
    """Cost of the replicates of a test that need products of the kernel matrix, and their times."""
    if not isinstance(estimator, PairSummed):
        return None
    spec = estimator.pair_sum
    cuts = panel_cuts(n, profile.n_features)
    columns = n_replicates * width(spec.notion, profile.n_features)
    at_once = min(columns, _COLUMNS)
    # Unordered pairs of different rows.
    pairs = n * (n - 1) // 2
    rate = pair_rate(profile, spec, cuts[0][1] - cuts[0][0], at_once)
    products = columns / at_once
    cost = Cost(
        f"{n_replicates:,} draws",
        estimator.name,
        pairs,
        pairs * products / rate.pairs,
        2 * 8 * n * at_once,
        0,
    )
    sizes = Counter(stop - start for start, stop in cuts)
    units = units_of_panels(tuple(sizes.items()), rate.pairs, rate.parts)
    rows = cuts[0][1] - cuts[0][0]
    times = PairTimes(
        units, repeats=products, state_bytes=16 * rows * at_once, shared_bytes=8 * n * at_once
    )
    return cost, times
