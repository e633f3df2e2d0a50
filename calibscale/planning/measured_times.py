"""Times of single pieces of work, measured on this machine.

Computations are measured in processor time, so that other work on the machine does not count.
Reads also wait for storage, and are measured in elapsed time.  The quickest of a few repetitions
counts.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibscale.compiled import tiles
from calibscale.engine.threads import one_thread
from calibscale.evaluation.evaluate import judged
from calibscale.evaluation.pass_estimates import evaluation_of
from calibscale.intervals.resampling import Resampling
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.pair_tasks import PairSum
from calibscale.kernels.pairwise import Pairwise
from calibscale.kernels.tile_layout import TileLayout
from calibscale.planning.parallel_times import BlockTimes
from calibscale.predictions.notions import width
from calibscale.results.verdict_results import NEGLIGIBLE
from calibscale.session import Run
from calibscale.statistics.one_pass import PassResult, Scan, finished

_SAMPLE_SECONDS = 0.1  # least time of a timing
_REPETITIONS = 3  # most repetitions of a merge
_BLOCK_REPETITIONS = 10  # most of a short block, as costs of draws are differences of such times
# Most repetitions of the read of a panel, which other work may delay by a multiple.
_PANEL_REPETITIONS = 10


class MeasuredPass(NamedTuple):
    """Times of a pass, the state of a block, and bytes of a pickled task and of this state.

    `pickling` is the time in which the state is pickled and restored.  `task_bytes` is 0 for a task
    that pickle does not support.
    """

    times: BlockTimes
    state: PassResult
    pickling: float
    task_bytes: int
    state_bytes: int


def measured_pass(task: Scan, planned: int) -> MeasuredPass:
    """Measure the first block of a pass, for blocks of `planned` rows."""
    rows = timed_rows(task)
    scale = planned / max(1, rows)

    def read() -> object:
        return task.source.read(0, rows, covariates=task.rules.reads_covariates)

    with one_thread():
        state = task.state(0)  # compile outside the clock
        state_bytes = len(pickle.dumps(state))
        reading = quickest(read, time.perf_counter)
        # A block is read again in the time of its state.
        computing = quickest(_state_of(task), time.thread_time) - quickest(read, time.thread_time)
        merging = _merging(task, state)
        pickling = quickest(_copy_of(state), time.thread_time)
    times = BlockTimes(scale * reading, scale * max(0.0, computing), merging)
    return MeasuredPass(times, state, pickling, len(sent_to_worker(task)), state_bytes)


def timed_rows(task: Scan) -> int:
    """Number of rows of the timed block.  A block of the plan may have another number."""
    return min(task.block_rows, task.source.rows)


def sent_to_worker(task: Scan) -> bytes:
    """The first part of a task and its shared data, as a worker gets them.

    No bytes if pickle does not support the task, as with a source whose class a function defines.
    """
    try:
        return pickle.dumps((task.part(0, 1), task.shared))
    # Pickle has no common error: AttributeError is for local classes, TypeError for open files.
    except (AttributeError, TypeError, pickle.PicklingError):
        return b""


def quickest(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Time of the quickest of a few repetitions of some work."""
    times: list[float] = []
    while len(times) < _BLOCK_REPETITIONS and sum(times) < _SAMPLE_SECONDS:
        started = clock()
        work()
        times.append(clock() - started)
    return min(times)


def block_seconds(task: Scan, planned: int) -> float:
    """Processor time of the first block of a task, for a block of `planned` rows."""
    with one_thread():
        task.state(0)  # compile outside the clock
        seconds = quickest(_state_of(task), time.thread_time)
    return seconds * planned / max(1, timed_rows(task))


def _state_of(task: Scan) -> Callable[[], object]:
    """Function that computes the first block of a task."""

    def state() -> object:
        return task.state(0)

    return state


def _copy_of(state: PassResult) -> Callable[[], object]:
    """Function that copies a state as its transport does."""

    def copy() -> object:
        return pickle.loads(pickle.dumps(state))

    return copy


def _merging(task: Scan, state: PassResult) -> float:
    """Processor time of a merge, which may change its arguments."""
    content = pickle.dumps(state)
    times = []
    for _ in range(_REPETITIONS):
        first, second = pickle.loads(content), pickle.loads(content)
        started = time.thread_time()
        task.merge(first, second)
        times.append(time.thread_time() - started)
    return min(times)


def solving_seconds(run: Run, task: Scan, state: PassResult, interval: Resampling | None) -> float:
    """Processor time of the estimates and intervals from the state of all rows.

    The state of a block stands for it, because the sizes of most states do not depend on the number
    of rows.  Estimates from sums over pairs are left out.
    """
    if not state.counts.used:
        return 0.0
    chosen = tuple(e for e in run.chosen if not isinstance(e, Pairwise))
    names = [str(number) for number in range(len(chosen))]
    of_states = replace(run, chosen=chosen)
    content = pickle.dumps(state)
    times = []
    for _ in range(2):  # the first loads compiled code and modules
        result = finished(task, pickle.loads(content))
        started = time.thread_time()
        judged(evaluation_of(of_states, names, result, interval, started), NEGLIGIBLE)
        times.append(time.thread_time() - started)
    return min(times)


def panel_seconds(run: Run, spec: PairSum, rows: int) -> float:
    """Elapsed time in which a panel of so many rows is read and laid out for a sum over pairs."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < _PANEL_REPETITIONS and sum(times) < _SAMPLE_SECONDS):
        # The first one compiles.  Panels are cached in one context, and read again in another.
        with run.pairs().panels(spec.tiled, spec.notion, spec.precision) as panels:
            started = time.perf_counter()
            first = panels[0]
            times.append(time.perf_counter() - started)
    return min(times) * rows / max(1, len(first.rows))


class PairRate(NamedTuple):
    """Measured speed of the pairs of two panels.

    Attributes
    ----------
    pairs : float
        Unordered pairs per second of one core.
    parts : int
        Number of parts of a pair of panels that threads share.
    """

    pairs: float
    parts: int


def pair_rate(profile: DataProfile, spec: PairSum, rows: int, vectors: int) -> PairRate:
    """Measure pairs of panels of so many rows, which repeat a sample."""
    layout = TileLayout(spec.tiled, width(spec.notion, profile.n_features), spec.precision)
    sample = profile.sample(spec.notion)
    # The time of a pair does not depend on values, so that a sample may stand for any rows.
    repeated = sample.take(np.arange(rows if len(sample) else 0) % max(1, len(sample)))
    panel, _ = layout.panel(repeated)
    form, size = layout.form, panel.s.size
    V = np.zeros((vectors, size), panel.s.dtype)
    into = np.zeros((1, *V.shape), V.dtype), np.empty_like(V)
    strips = np.array(layout.strips(panel), np.int64)
    # The blocks of a panel have pairs within them alone.
    grid = layout.grid(panel, panel, spec.block is not None)

    def part(index: int) -> int:
        """Visit some of the pairs, and return their number."""
        if vectors:
            strip = strips[[index % len(strips)]]
            tiles.row_sums(panel, panel, form, strip, True, V, V, *into)
            return int(size * (strip[0, 1] - strip[0, 0]))
        tile = grid[[index % len(grid)]]
        tiles.pair_sums(panel, panel, form, tile, spec.kernel_sums, np.zeros((1, 2)))
        i0, i1, j0, j1, diagonal = tile[0]
        return int((i1 - i0) * (j1 - j0)) // (2 if diagonal else 1)

    # Compile outside of the clock.
    part(0)
    visited, index, started = 0, 0, time.thread_time()
    while (elapsed := time.thread_time() - started) < _SAMPLE_SECONDS or not index:
        visited, index = visited + part(index), index + 1
    # Panels are padded to whole tiles.  Only this share of the visited pairs are pairs of rows.
    padding = (max(1, len(repeated)) / size) ** 2
    return PairRate(visited * padding / elapsed, len(strips if vectors else grid))
