"""Expected times of whole runs, from given times of their pieces."""

from __future__ import annotations

import pytest

from calibscale.engine.dask_trial import DaskTimes
from calibscale.planning.pair_costs import PairTimes
from calibscale.planning.parallel_runs import RunTimes, expected_times, task_seconds
from calibscale.planning.parallel_times import BlockTimes, PairUnits
from calibscale.planning.process_start import StartTimes
from calibscale.results.parallel_results import unmeasured
from calibscale.statistics.one_pass import Scan

TIMES = RunTimes(
    start=StartTimes(1.0, 0.5),
    dask=DaskTimes(0.01, 1e-9),
    opening=0.25,
    solving=0.125,
    blocks=100,
    length=1,
    tasks=100,
    block=BlockTimes(1.0, 3.0, 0.0),
    moved_bytes=0,
    pickling=0.0,
    arities=Scan.arities,
)
# They take longer than a quick start.
THREE_BLOCKS = {"blocks": 3, "tasks": 3, "start": StartTimes(0.5, 0.25)}


def test_expected_times__of_four_workers_divide_the_blocks_alone():
    serial, threads, dask = expected_times(TIMES, 4)
    assert serial.seconds == 1.0 + 0.25 + 100 * 4.0 + 0.125
    assert threads.seconds == 1.0 + 0.25 + 25 * 4.0 + 0.125
    # Two starts with Dask, and the client receives the four states of the last round.
    assert dask.seconds == pytest.approx(3.0 + 0.25 + 25 * 4.0 + 4 * 0.01 + 0.125)
    assert [time.limit for time in (serial, threads, dask)] == ["computing"] * 3
    assert serial.sentence == (
        "1 thread: 75 % of the time is computing blocks, which threads divide."
    )


def test_expected_times__of_one_worker_has_one_time_of_threads():
    assert [time.name for time in expected_times(TIMES, 1)] == ["1 thread", "1 Dask worker"]


@pytest.mark.parametrize(
    ("changes", "threads", "dask"),
    [
        ({"start": StartTimes(900.0, 0.0)}, "start", "start"),
        ({"opening": 900.0}, "opening", "opening"),
        ({"solving": 900.0}, "solving", "solving"),
        ({"block": BlockTimes(3.0, 1.0, 0.0)}, "reading", "reading"),
        ({"block": BlockTimes(1.0, 1.0, 9.0)}, "merging", "merging"),
        ({"pickling": 9.0}, "computing", "transport"),
        (THREE_BLOCKS, "few_blocks", "few_blocks"),
    ],
)
def test_expected_times__name_the_limiting_step(changes, threads, dask):
    expected = expected_times(TIMES._replace(**changes), 4)
    assert [time.limit for time in expected[1:]] == [threads, dask]


def test_expected_times__of_three_blocks_leave_a_worker_idle():
    for time in expected_times(TIMES._replace(**THREE_BLOCKS), 4)[1:]:
        assert time.busy == 3
        assert "do not divide. 1 of them has nothing to do." in time.sentence


def test_expected_times__of_pairs_count_panels_and_states():
    units = PairUnits(number=10, total=80.0, longest=10.0, parts=1000)
    sums = PairTimes(units, 2.0, panels=4, panel=3.0, reads=1, state_bytes=10**6)
    times = TIMES._replace(blocks=1, tasks=1, pairs=(sums,))
    serial, threads, dask = expected_times(times, 16)
    assert serial.steps.pairs == 2 * 80.0
    # Threads divide the sub-tiles of each pair of panels, and read panels one after another.
    assert threads.steps.pairs == pytest.approx(2 * 80.0 / 16, rel=0.05)
    assert threads.steps.panels == serial.steps.panels == 4 * 3.0
    # Ten of 16 workers compute a pair of panels, and read two panels each.
    assert dask.steps.pairs == 2 * 10.0
    # All of them end at once, and the client receives one state of a megabyte after another.
    assert dask.steps.transport == pytest.approx(0.01 + 2 * 10 * (0.01 + 1e-3))
    assert dask.steps.panels == 2 * 3.0
    assert dask.limit == "few_panels"
    assert dask.busy == 10


def test_expected_times__of_many_short_pairs_are_limited_by_the_client():
    units = PairUnits(number=100_000, total=16_000.0, longest=0.2, parts=1000)
    times = TIMES._replace(blocks=1, tasks=1, pairs=(PairTimes(units),))
    # Sixteen workers compute 100 tasks per second, as many as the client sends.
    assert expected_times(times, 8)[2].limit == "pairs"
    for workers in (17, 20, 64):
        dask = expected_times(times, workers)[2]
        assert dask.limit == "transport"
        assert dask.steps.pairs == pytest.approx(0.2)  # the first task
        assert dask.seconds > 100_000 * 0.01


def test_expected_times__name_the_client_from_the_number_of_workers_that_gains_nothing():
    """More workers than the client can serve have the same time."""
    block = BlockTimes(0.0, 1.0, 0.001)
    times = TIMES._replace(
        block=block, blocks=10_000, tasks=10_000, dask=DaskTimes(0.02, 0.0), opening=0.0
    )
    few, enough, many = (expected_times(times, workers)[2] for workers in (16, 64, 128))
    assert few.limit == "computing"
    assert few.seconds > enough.seconds == many.seconds
    for expected in (enough, many):
        assert expected.limit == "transport"
        assert expected.steps.transport == pytest.approx(10_000 * 0.02)


def test_expected_times__of_one_piece_of_work_are_not_divided():
    one_block = TIMES._replace(blocks=1, tasks=1, start=StartTimes(0.5, 0.25))
    for expected in expected_times(one_block, 1):
        assert expected.limit == "few_blocks"
        assert expected.busy == 1
        assert expected.sentence.endswith("do not divide.")


def test_expected_times__of_reads_in_order_are_not_divided_by_threads():
    """Columns of frames are read by one thread at a time."""
    times = TIMES._replace(block=BlockTimes(3.0, 1.0, 0.0), in_order=True)
    _, four, _ = expected_times(times, 4)
    _, eight, _ = expected_times(times, 8)
    assert four.limit == eight.limit == "reading_in_order"
    assert four.seconds == eight.seconds
    assert eight.sentence.endswith("one thread does at a time.")


def test_expected_times__of_drawn_pairs_are_serial():
    times = TIMES._replace(blocks=1, tasks=1, pairs=(PairTimes(None, serial=100.0),))
    for expected in expected_times(times, 8):
        assert expected.limit == "drawn_pairs"
        assert expected.sentence.startswith(
            f"{expected.name}: {100 * 100 / expected.seconds:.0f} % of the time is sums over drawn"
        )


def test_expected_times__of_threads_share_the_parts_of_pairs_of_panels():
    """Sixteen threads share the parts of the only pair of panels, which one worker computes."""
    units = PairUnits(number=1, total=80.0, longest=80.0, parts=1000)
    times = TIMES._replace(blocks=1, tasks=1, pairs=(PairTimes(units),))
    _, threads, dask = expected_times(times, 8)
    assert (threads.limit, dask.limit) == ("pairs", "few_panels")
    few_parts = times._replace(pairs=(PairTimes(units._replace(parts=4)),))
    threads = expected_times(few_parts, 8)[1]
    assert threads.limit == "few_panels"
    assert "too few parts" in threads.sentence


def test_unmeasured__says_that_no_start_was_measured():
    text = "The start of a process was not measured and is not in the totals."
    assert text not in unmeasured(expected_times(TIMES, 4), 4)
    assert text in unmeasured(expected_times(TIMES._replace(start=None), 4), 4)


def test_task_seconds__are_of_the_bytes_moved():
    times = TIMES._replace(moved_bytes=10**9, pickling=0.5)
    assert task_seconds(times, DaskTimes(0.01, 1e-9)) == pytest.approx(1.51)


def test_expected_times__without_dask_are_of_threads():
    expected = expected_times(TIMES._replace(dask=None), 4)
    assert [time.kind for time in expected] == ["threads", "threads"]
    assert any("There is no time of Dask workers" in text for text in unmeasured(expected, 4))


def test_unmeasured__names_more_cores_than_there_are():
    expected = expected_times(TIMES, 4)
    assert any("This machine has 2 cores." in text for text in unmeasured(expected, 2))
    assert not any("This machine has" in text for text in unmeasured(expected, 4))
