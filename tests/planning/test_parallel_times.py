"""Closed forms of elapsed times with several workers, against simulated schedules."""

from __future__ import annotations

import time

import numpy as np
import pytest

import calibscale as cs
from calibscale.engine.merge_tree import run_length, tree_levels
from calibscale.kernels.tile_layout import panel_cuts
from calibscale.planning.parallel_times import (
    BlockTimes,
    PairUnits,
    closing_merges,
    limit_of,
    pairs_on_threads,
    pairs_on_workers,
    panels_of_worker,
    pass_on_threads,
    pass_on_workers,
    units_of_panels,
)
from calibscale.session import Session
from calibscale.statistics.one_pass import Scan, scan_of
from tests.support.simulated_schedules import client_schedule, list_schedule, threads_schedule

ARITIES = Scan.arities
many_workers = pytest.mark.parametrize("workers", [1, 2, 16, 64])
many_blocks = pytest.mark.parametrize("blocks", [1, 3, 64, 153, 1000, 3001])


@many_workers
@many_blocks
@pytest.mark.parametrize("merge", [0.0, 0.01, 0.3, 2.0])
def test_pass_on_threads__agrees_with_a_simulation(workers, blocks, merge):
    expected = threads_schedule([1.0] * blocks, merge, workers, ARITIES)
    times = BlockTimes(0.25, 0.75, merge)
    value = pass_on_threads(times, blocks, workers, ARITIES).total
    # Threads do not stay in step: a thread that merges the children of a node lets others take
    # more blocks.  The difference is at most one block, and the merges along one path of the tree.
    path = closing_merges(blocks, min(blocks, workers), ARITIES) + tree_levels(blocks, ARITIES)
    assert abs(value - expected) <= 1.0 + path * merge + 1e-9


@many_workers
@many_blocks
def test_pass_on_threads__of_free_merges_takes_whole_rounds(workers, blocks):
    value = pass_on_threads(BlockTimes(0.25, 0.75, 0.0), blocks, workers, ARITIES).total
    assert value == pytest.approx(list_schedule([1.0] * blocks, workers), rel=1e-12)


class _Blocks:
    """Number of blocks of a pass, as `run_length` asks for it."""

    arities = ARITIES

    def __init__(self, blocks):
        self.blocks = blocks


@many_workers
@many_blocks
@pytest.mark.parametrize(("merge", "task"), [(0.0, 0.001), (0.02, 0.01), (0.3, 0.1), (0.1, 3.0)])
def test_pass_on_workers__agrees_with_a_simulation(workers, blocks, merge, task):
    length = run_length(_Blocks(blocks), workers)
    tasks = -(-blocks // length)
    run = length + (length - 1) * merge
    expected = client_schedule([run] * tasks, task + merge, workers, 2 * workers)
    times = BlockTimes(0.25, 0.75, merge, task)
    value = pass_on_workers(times, blocks, tasks, length, workers)
    # A client that is nearly as slow as the workers lets some of them wait.  Neither bound has
    # these waits, which are shorter than a run and the states of a round.
    assert value.total <= expected + 1e-9
    assert expected - value.total <= run + min(workers, tasks) * (task + merge)
    assert min(value) >= 0
    # More workers would shorten the time exactly if there is more than one round.
    doubled = pass_on_workers(times, blocks, tasks, length, 2 * workers)
    assert (value.rounds > 1) == (doubled.total < value.total - 1e-9)


@pytest.mark.parametrize("workers", [16, 64])
@pytest.mark.long
def test_passes__of_measured_blocks_agree_with_simulations(rng, workers):
    """Blocks of a real pass do not take equally long."""
    source = cs.from_arrays(
        logits=rng.standard_normal((40_000, 5)), labels=rng.integers(0, 5, 40_000)
    )
    with Session.open(source, block_rows=1000) as session:
        run = session.run(["ece", "brier"])
        needs = tuple(dict.fromkeys(s for e in run.fitting for s in e.needs))
        task = scan_of(run.source, needs, run.rules, 1000)
        task.state(0)
        measured, states = [], []
        for block in range(task.blocks):
            started = time.thread_time()
            states.append(task.state(block))
            measured.append(time.thread_time() - started)
        started = time.thread_time()
        for state in states[1:]:
            task.merge(states[0], state)
        merge = (time.thread_time() - started) / (task.blocks - 1)
    durations = np.resize(measured, 2000)
    mean, longest = float(np.mean(durations)), max(measured)
    value = pass_on_threads(BlockTimes(0.0, mean, merge), 2000, workers, ARITIES).total
    expected = threads_schedule(list(durations), merge, workers, ARITIES)
    # The simulated workers take whichever block is next, so that the work is even up to the
    # longest block.
    path = closing_merges(2000, workers, ARITIES) + tree_levels(2000, ARITIES)
    assert abs(value - expected) <= longest + mean + path * merge
    # The serial part of a worker's task: here a tenth of a block.
    times = BlockTimes(0.0, mean, merge, mean / 10)
    expected = client_schedule(list(durations), mean / 10 + merge, workers, 2 * workers)
    value = pass_on_workers(times, 2000, 2000, 1, workers).total
    assert abs(value - expected) <= longest + workers * (mean / 10 + merge)


def _units(rows: int, classes: int) -> list[int]:
    """Number of pairs of each pair of panels, in the order of the engine."""
    sizes = [stop - start for start, stop in panel_cuts(rows, classes)]
    return [
        first * (first - 1) // 2 if i == j else first * second
        for i, first in enumerate(sizes)
        for j, second in enumerate(sizes)
        if j >= i
    ]


@many_workers
@pytest.mark.parametrize("rows", [500, 5000, 65_536, 200_000, 1_000_000, 2_500_000])
def test_pairs_on_workers__agrees_with_a_list_schedule(workers, rows):
    durations = _units(rows, 10)
    sizes = [stop - start for start, stop in panel_cuts(rows, 10)]
    counted = tuple((size, sizes.count(size)) for size in dict.fromkeys(sizes))
    units = units_of_panels(counted, 1.0, 100)
    assert units.number == len(durations)
    # The model counts rows²/2 instead of rows·(rows − 1)/2 pairs.
    assert units.total == pytest.approx(sum(durations), rel=2 / rows)
    assert units.longest == pytest.approx(max(durations), rel=2 / rows)
    expected = list_schedule(durations, workers)
    value = pairs_on_workers(units, workers).total
    # Half of the distance of Graham's bounds.
    assert abs(value - expected) <= 0.5 * units.longest + 2 * units.total / rows


def test_pairs_on_workers__cannot_use_more_workers_than_pairs_of_panels():
    units = units_of_panels(((16_384, 4),), 1e6, 100)
    assert units.number == 10
    assert pairs_on_workers(units, 10) == pairs_on_workers(units, 64) == (units.longest, 0.0, 1)
    assert pairs_on_workers(units, 64, task=1e9) == (units.longest, 10e9, 1)


@pytest.mark.parametrize("threads", [1, 2, 16, 64])
@pytest.mark.parametrize("parts", [1, 7, 100, 528, 5000])
def test_pairs_on_threads__agrees_with_a_list_schedule(threads, parts):
    # As `parts_on_threads` divides the sub-tiles of one pair of panels.
    size = max(1, parts // (8 * threads))
    slices = [min(size, parts - start) for start in range(0, parts, size)]
    expected = list_schedule(slices, threads)
    value = pairs_on_threads(PairUnits(1, float(parts), float(parts), parts), threads).total
    # The last part may be shorter than the others.
    assert expected - 1e-9 <= value <= expected + size


@pytest.mark.parametrize("workers", [2, 16])
@pytest.mark.parametrize("panels", [4, 13])
def test_panels_of_worker__covers_what_workers_read(workers, panels):
    pairs = [(i, j) for i in range(panels) for j in range(i, panels)]
    of_workers = [pairs[number::workers] for number in range(workers)]
    # A cache of all panels reads each of them at most once.
    most = max(len({panel for pair in own for panel in pair}) for own in of_workers)
    value = panels_of_worker(len(pairs), panels, workers, cached=True)
    assert value <= panels
    # The first panel changes with the row, which happens less often than the second one changes.
    assert abs(value - most) <= panels / 2


def test_pass_on_threads__in_order_reads_one_block_at_a_time():
    times = BlockTimes(1.0, 4.0, 0.0)
    # Four threads compute as fast as one thread reads, and eight do not go faster.
    value = pass_on_threads(times, 64, 8, ARITIES, in_order=True)
    assert value.total == 64 * 1.0 + 4.0
    assert pass_on_threads(times, 64, 1, ARITIES, in_order=True).total == 64 * 5.0


@pytest.mark.parametrize(
    ("steps", "rounds", "expected"),
    [
        ({"computing": 5.0, "solving": 1.0}, {"computing": 2}, "computing"),
        ({"computing": 5.0, "solving": 1.0}, {"computing": 1}, "few_blocks"),
        ({"computing": 5.0, "solving": 6.0}, {"computing": 1}, "solving"),
        ({"computing": 1.0, "pairs": 6.0}, {"computing": 8, "pairs": 1}, "few_panels"),
        ({"computing": 1.0, "transport": 6.0}, {"computing": 8}, "transport"),
    ],
)
def test_limit_of__names_the_longest_step_or_one_piece_of_work(steps, rounds, expected):
    assert limit_of(steps, rounds) == expected
