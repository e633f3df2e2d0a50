"""Nights that are killed, interrupted, run at once, or lose their Dask cluster."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibscale.errors import ClusterError
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.night import night
from tests.support.dask_cluster import At, Cluster
from tests.support.night_faults import (
    BRIEF,
    DAYS,
    JOB,
    LIMIT,
    Forks,
    Scene,
    after_night,
    ledger_records,
    write_job,
    write_parquet,
    write_store,
)
from tests.support.slow_cases import some_slow


def _kills(scene: Scene, forks: Forks, count: int, stages: set[str], early: bool = False) -> None:
    """Send SIGKILL at random moments of a night, at least `count` times and in every stage.

    Every other one before the outputs if `early`, for the report takes most of a small night.
    """
    seconds = scene.seconds
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    kills: Counter[str] = Counter()
    late = 0
    while kills.total() < count or not stages <= kills.keys():
        scene.undo()
        moment = rng.uniform(0, scene.judged if early and kills.total() % 2 else seconds)
        (process,) = forks.start((scene.job, scene.day))
        time.sleep(moment)
        os.kill(process, signal.SIGKILL)
        codes, _ = forks.end()
        if codes != [-signal.SIGKILL]:  # the night had ended before
            late += 1
            seconds = min(seconds, moment)
            continue
        kills[scene.stage()] += 1
        scene.check()
        if kills.total() % 5:
            assert night(scene.job, scene.day).status == "fine"
        else:
            forks.start((scene.job, scene.day))
            assert forks.end() == ([0], "")
        scene.check_done()
    print(f"{kills.total()} kills in {scene.seconds:.2f} s, {late} too late: {dict(kills)}")


def test_kills__leave_the_old_state_or_the_new_one(forks: Forks, scene: Scene) -> None:
    _kills(scene, forks, 8, set(), early=True)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("late", 50), ("day", 25), ("first", 25)])
def test_kills__at_any_moment_of_every_stage_leave_whole_nights(
    forks: Forks, tmp_path: Path, kind: str, count: int
) -> None:
    """During ingest, reading, the ledger, judging and the outputs, including the report."""
    stages = {"ingest", "read", "ledger", "judge", "write"}
    scene = Scene(tmp_path, kind, rows=10_000, groups=12)
    scene.measure(forks)
    _kills(scene, forks, count, stages)


@pytest.mark.parametrize("first", [False, True])
def test_two_nights__at_once_do_not_conflict(forks: Forks, tmp_path: Path, first: bool) -> None:
    """One night does the work. The other reports why it does not, or that nothing changed."""
    job = write_job(tmp_path, BRIEF)
    if not first:
        night(job, write_parquet(tmp_path, 0, 300))
    for k in (1, 2):
        write_parquet(tmp_path, k, 300)
        codes = forks.start((job, DAYS[k]), (job, DAYS[k])) and forks.end()
        if first:
            assert ledger_records(tmp_path)[DAYS[k]][None][0] == 300
            shutil.rmtree(tmp_path / "ledger")
        assert sorted(codes[0]) in ([0, 1], [0, 0]), codes
        assert codes[0] == [0, 0] or codes[1].startswith(f"error: {tmp_path}"), codes
        assert codes[0] == [0, 0] or "by another writer" in codes[1], codes
    if not first:
        assert [r[None][0] for r in ledger_records(tmp_path).values()] == [300] * 3


@pytest.mark.parametrize("number", some_slow([signal.SIGTERM, signal.SIGINT], keep=[signal.SIGINT]))
def test_interrupted_night__exits_with_75_and_resumes(
    forks: Forks, scene: Scene, number: signal.Signals
) -> None:
    """During the copy of rows, and later."""
    codes = []
    for wait in (0.0, 0.3 * scene.seconds):
        scene.undo()
        (process,) = forks.start((scene.job, scene.day))
        deadline = time.monotonic() + LIMIT
        while not list(scene.folder.glob(".ledger.ingest/*.zarr")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(wait)
        os.kill(process, number)
        ended, messages = forks.end()
        codes += ended
        if ended == [75]:
            assert "interrupted; nothing is lost, run the same" in messages
            scene.check()
        else:  # the night had ended before, or was about to end
            assert ended[0] in (0, -number, -signal.SIGINT), messages
            scene.check_done()
    assert codes[0] == 75
    night(scene.job, scene.day)
    scene.check_done()


@pytest.mark.slow
def test_cluster__whose_worker_and_then_scheduler_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker replaces a killed one. A night without its scheduler ends."""
    monkeypatch.setattr("calibscale.data.source._BLOCK_NUMBERS", 1)  # short blocks
    (tmp_path / "cluster").mkdir()
    for k in range(3):
        write_store(tmp_path, k, rows=1500)
    job = write_job(tmp_path, JOB)
    night(job, DAYS[0])
    expected = []
    for day in DAYS[1:3]:
        expected.append(after_night(tmp_path, lambda day=day: night(job, day)))
    cluster = Cluster(tmp_path / "cluster")
    try:
        there = read_job(job)
        file = there.file
        there = replace(there, run=replace(there.run, scheduler=cluster.address))
        object.__setattr__(there, "file", file)
        first = cluster.worker()
        new_workers = []

        def swap() -> None:
            new_workers.append(cluster.slow_worker())
            first.kill()

        night(there, DAYS[1], progress=At(swap))
        assert first.wait(LIMIT) == -signal.SIGKILL
        assert new_workers[0].poll() is None
        assert ledger_records(tmp_path) == expected[0][0]
        kill = At(cluster.scheduler.kill)
        with pytest.raises(ClusterError, match=f"scheduler at {cluster.address} was lost"):
            night(there, DAYS[2], progress=kill)
        assert time.monotonic() - kill.acted < LIMIT
    finally:
        cluster.stop()
    assert ledger_records(tmp_path) == expected[0][0]
    night(job, DAYS[2])
    assert ledger_records(tmp_path)[DAYS[2]][None][0] == 1500
