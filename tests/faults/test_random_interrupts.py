"""KeyboardInterrupt at random moments of calls in this process, as a user sends by Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from threadpoolctl import threadpool_info

import calibscale as cs
from calibscale.data.ingest.ingestion import ingest
from calibscale.data.store import LogitStore
from calibscale.monitoring.night import night
from tests.support.night_faults import TABLES, Forks, Scene
from tests.support.slow_cases import some_slow

COUNTS = [10, pytest.param(1000, marks=pytest.mark.slow)]


@contextmanager
def _interrupt_after(seconds: float) -> Iterator[None]:
    """Send SIGINT to this process after so many seconds of the block."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, before)


def _interrupted(call: Callable[[], Any], seconds: float) -> bool:
    """Whether a call was interrupted after so many seconds, or ended before."""
    try:
        with _interrupt_after(seconds):
            call()
    except KeyboardInterrupt:
        return True
    return False


def _interrupts(
    call: Callable[[], Any], count: int, after: Callable[[bool, int], None], undo: Any = None
) -> None:
    """Interrupt a call at `count` random moments. `after` checks each of them."""
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    call()  # compiles kernels
    if undo is not None:
        undo()
    began = time.perf_counter()
    call()
    seconds = time.perf_counter() - began
    outcomes: Counter[bool] = Counter()
    while outcomes[True] < count:
        if undo is not None:
            undo()
        interrupted = _interrupted(call, rng.uniform(0.0, seconds))
        outcomes[interrupted] += 1
        seconds *= 1.0 if interrupted else 0.98
        after(interrupted, outcomes.total())
        if outcomes.total() % 50 == 0:
            print(f"{outcomes[True]} interrupts so far", flush=True)
    print(f"{outcomes[True]} interrupts, {outcomes[False]} too late, of calls of {seconds:.3f} s")


def _threads_of_libraries() -> dict[str, int]:
    return {library["filepath"]: library["num_threads"] for library in threadpool_info()}


def _rows(n: int = 8_000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(n, 5))
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.mark.parametrize("scheduler", some_slow(["serial", "threads"], keep=["threads"]))
@pytest.mark.parametrize("count", COUNTS)
def test_evaluate__interrupted_gives_the_same_numbers_afterwards(count, scheduler):
    logits, labels = _rows()
    source = cs.from_arrays(logits=logits, labels=labels)

    def call() -> Any:
        return cs.evaluate(
            source,
            ["ece", "jkce", "cwce2"],
            interval="jackknife",
            scheduler=scheduler,
            block_rows=800,
        )

    expected = [estimate.to_dict() for estimate in call().estimates]
    threads = _threads_of_libraries()

    def after(interrupted: bool, number: int) -> None:
        if number % 10 == 0:
            assert [estimate.to_dict() for estimate in call().estimates] == expected
            assert _threads_of_libraries() == threads

    _interrupts(call, count, after)


@pytest.mark.parametrize("count", COUNTS)
def test_ingest__interrupted_leaves_a_store_that_the_same_call_finishes(count, tmp_path):
    logits, labels = _rows(3000)
    for part in range(3):
        rows = slice(1000 * part, 1000 * (part + 1))
        columns = {f"p_{k}": column for k, column in enumerate(logits[rows].T)}
        table = pa.table({**columns, "labels": labels[rows]})
        pq.write_table(table, tmp_path / f"part-{part}.parquet")
    place = tmp_path / "store.zarr"

    def call() -> Any:
        files = sorted(tmp_path.glob("*.parquet"))
        return ingest(files, place, keys={"logits": "p"})

    def undo() -> None:
        for path in tmp_path.glob("*store.zarr*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def after(interrupted: bool, number: int) -> None:
        call()
        store = LogitStore.open(place)
        assert store.finished
        block = store.source.read(0, 3000)
        np.testing.assert_array_equal(block.values, logits.astype(block.values.dtype))
        np.testing.assert_array_equal(block.labels, labels)

    _interrupts(call, count, after, undo)


@pytest.mark.process
@pytest.mark.parametrize("count", COUNTS)
def test_night__interrupted_leaves_the_old_state_or_the_new_one(
    count: int, tmp_path: Path, forks: Forks
) -> None:
    scene = Scene(tmp_path, "late", rows=200, groups=2, outputs=TABLES)
    scene.measure(forks)

    def call() -> Any:
        return night(scene.job, scene.day)

    def after(interrupted: bool, number: int) -> None:
        scene.check()
        if number % 5 == 0:
            assert call().status == "fine"
            scene.check_done()

    scene.undo()
    _interrupts(call, count, after, scene.undo)


def test_interrupter__interrupts(tmp_path: Path):
    assert _interrupted(lambda: time.sleep(5.0), 0.05)
    assert not _interrupted(lambda: None, 5.0)
