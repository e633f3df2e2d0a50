"""Costs of sums over all pairs of rows, and their times with several workers."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from calibscale.engine.memory import parse_bytes
from calibscale.estimators.base import BoundEstimator
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.pairwise import PairSummed, Pairwise
from calibscale.kernels.tile_layout import panel_cuts
from calibscale.planning.measured_times import pair_rate, panel_seconds
from calibscale.planning.parallel_times import (
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
    times : float
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
    times: float = 1.0
    panels: int = 0
    panel: float = 0.0
    reads: int = 0
    state_bytes: int = 0
    shared_bytes: int = 0
    serial: float = 0.0

    def on_threads(self, threads: int) -> float:
        """Elapsed time of the sums on threads, without the time of panels."""
        if self.units is None:
            return self.serial
        return self.times * pairs_on_threads(self.units, threads)

    def panels_on_threads(self) -> float:
        """Elapsed time of reading panels, while threads wait."""
        return self.reads * self.panels * self.panel

    def on_workers(self, workers: int, task: float, byte: float) -> float:
        """Elapsed time of the sums on Dask workers, without the time of panels.

        `task` and `byte` are the seconds of the client for a task and for each byte that it moves.
        """
        if self.units is None:
            return self.serial
        per_unit = task + byte * self.state_bytes
        once = pairs_on_workers(self.units, workers, per_unit)
        return self.times * (once + byte * self.shared_bytes)

    def tail_on_workers(self, workers: int) -> float:
        """Time by which the sums exceed an even division of their work among Dask workers."""
        if self.units is None:
            return 0.0
        even = self.times * self.units.total / workers
        return self.on_workers(workers, 0.0, 0.0) - even

    def panels_on_workers(self, workers: int) -> float:
        """Elapsed time in which a worker reads its panels."""
        if self.units is None:
            return 0.0
        cached = self.reads <= 1
        once = panels_of_worker(self.units.number, self.panels, workers, cached)
        return (1.0 if cached else self.times) * once * self.panel

    def elapsed(self, workers: int, on_dask: bool) -> float:
        """Elapsed time of the sums and of their panels, without transport."""
        if on_dask:
            return self.on_workers(workers, 0.0, 0.0) + self.panels_on_workers(workers)
        return self.on_threads(workers) + self.panels_on_threads()

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
        units,
        work.times,
        len(cuts),
        panel_seconds(run, work.sum, rows),
        reads if reads == 1 else work.times * reads,
        16 * rows * work.vectors if work.vectors else 8 * 18,
        8 * n * work.vectors,
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
        units, products, state_bytes=16 * rows * at_once, shared_bytes=8 * n * at_once
    )
    return cost, times
