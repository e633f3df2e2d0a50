"""Checkpoints of killed processes and workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from threading import Timer

import numpy as np
import pytest

from calibscale.engine.checkpoint import Checkpoint
from calibscale.kernels import pair_sums
from tests.support import ROOT, kill_run


@pytest.fixture(autouse=True)
def frequent_writes(monkeypatch):
    """Write a checkpoint after each unit."""
    monkeypatch.setattr(pair_sums, "Checkpoint", partial(Checkpoint, every=0.0))


@contextmanager
def _process(folder, seconds=0.0, pause=0):
    """The run in a process of its own, killed at the end if still alive."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.kill_run", str(folder), str(seconds), str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def _wait_for(process, word):
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"{word} was never printed: {process.stderr.read()}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Result of an uninterrupted run, seconds to its first checkpoint and to its end."""
    with _process(tmp_path_factory.mktemp("whole") / "folder") as process:
        _wait_for(process, "start")
        started = time.monotonic()
        _wait_for(process, "saved")
        first = time.monotonic() - started
        _wait_for(process, "middle")
        result = json.loads(process.stdout.readline())
        seconds = time.monotonic() - started
    return result, first, seconds


@pytest.mark.process
def test_runs__of_two_processes_have_the_same_bits(uninterrupted):
    expected, first, seconds = uninterrupted
    assert first < seconds
    assert kill_run.run(scheduler="threads:2") == expected


def _killed(folder, moment):
    """Kill a run `moment` seconds after its start. Return whether it was still running."""
    with _process(folder) as process:
        _wait_for(process, "start")
        time.sleep(moment)
        if process.poll() is not None:
            return False
        os.kill(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.process
def test_sigkill__three_times_in_a_row_changes_nothing(uninterrupted, tmp_path):
    """Each run resumes from the checkpoint of the killed one."""
    expected, _, seconds = uninterrupted
    # moments differ from run to run, so that many are tried in time
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    while not _killed(tmp_path / "f", rng.uniform(0, 0.7 * seconds)):
        seconds *= 0.7  # the measured run was slower
    # a resumed run may end before it is killed
    for moment in rng.uniform(0, 0.7 * seconds, 2):
        _killed(tmp_path / "f", moment)
    assert kill_run.run(tmp_path / "f", "threads:2") == expected


@pytest.mark.process
@pytest.mark.slow
def test_sigkill__at_twenty_random_moments_changes_nothing(uninterrupted, tmp_path):
    expected, _, seconds = uninterrupted
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    hits = late = 0
    for number, moment in enumerate(rng.uniform(0, seconds, 60)):
        folder = tmp_path / str(number)
        if not _killed(folder, moment):  # the run ended sooner
            continue
        hits += 1
        # kills after a first checkpoint
        late += bool(list(folder.glob("*.npz")))
        assert kill_run.run(folder, ("serial", "threads:2")[number % 2]) == expected
        if hits == 20:
            break
    assert hits == 20
    assert late >= 10


@pytest.mark.cluster
@pytest.mark.slow
def test_workers_killed__at_random_moments_change_nothing(uninterrupted, tmp_path):
    """SIGKILL to a Dask worker of a running fold, which continues without it."""
    from distributed import Client, LocalCluster

    expected, *_ = uninterrupted
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        assert kill_run.run(scheduler=client) == expected  # also compiles
        started = time.monotonic()
        assert kill_run.run(scheduler=client) == expected
        seconds = time.monotonic() - started
        hits = 0
        for number, moment in enumerate(rng.uniform(0, seconds, 20)):
            client.wait_for_workers(2)
            pid = rng.choice(list(client.run(os.getpid).values()))
            timer = Timer(moment, os.kill, (pid, signal.SIGKILL))
            timer.start()
            assert kill_run.run(tmp_path / str(number), client) == expected
            hits += timer.finished.is_set()  # else the run ended sooner
            # a timer of a run that ended sooner must not kill a worker of the next run
            timer.cancel()
            timer.join()
            if hits == 8:
                break
        assert hits == 8


@pytest.mark.process
def test_sigterm__writes_finished_work(uninterrupted, tmp_path):
    """In the middle of a product, by a run that would not write for hours."""
    with _process(tmp_path, seconds=1e9, pause=20) as process:
        _wait_for(process, "middle")
        process.terminate()
        assert process.wait(15) != 0
    assert not list(tmp_path.glob("*.tmp"))
    seen = []
    resumed = kill_run.run(tmp_path, progress=lambda count, total: seen.append((count, total)))
    assert resumed == uninterrupted[0]
    # nine panels have 45 pairs
    over_pairs = [count for count, total in seen if total == 45]
    assert over_pairs[:5] == [45, 45, 45, 10, 11]  # three sums, then the second product


@pytest.mark.slow
@pytest.mark.cluster
def test_worker_killed__then_the_run_itself(uninterrupted, tmp_path):
    """SIGKILL ends a Dask worker, and its nanny starts another one. Then comes an interrupt."""
    from distributed import Client, LocalCluster

    expected, *_ = uninterrupted
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        pids = list(client.run(os.getpid).values())
        seen = []

        def progress(count, total):
            if total > 10:
                # beyond the passes over rows
                seen.append(count)
            if len(seen) == 10:
                os.kill(pids[0], signal.SIGKILL)
            if len(seen) == 100:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            kill_run.run(tmp_path, client, progress)
        assert kill_run.run(tmp_path, client) == expected
        # the nanny started another worker
        assert pids[0] not in client.run(os.getpid).values()
