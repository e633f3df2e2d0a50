"""Children that are forked while threads of their parent evaluate."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback

import numpy as np
import pytest

import calibscale as cs
from tests.support.slow_cases import some_slow

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

LIMIT = 20.0  # seconds that a child may take
ESTIMATORS = ["ece", "brier", "ckce"]


def _values(source):
    return [estimate.value for estimate in cs.evaluate(source, ESTIMATORS)]


def _in_child(work):
    """Exit code of a forked child: 0 if the work returns True, and None if it does not end."""
    child = os.fork()
    if child == 0:
        try:
            code = 0 if work() else 1
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            code = 2
        os._exit(code)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


@pytest.fixture
def sources(tmp_path, rng):
    """The same rows in memory, in a store, and in a file that is read in batches."""
    logits, labels = rng.normal(size=(1200, 4)), rng.integers(0, 4, 1200)
    store = cs.LogitStore.create(tmp_path / "s.zarr", classes=4, dtype="float64")
    with store.writer() as writer:
        writer.append(logits, labels)
    import pyarrow as pa
    from pyarrow import parquet

    columns = {f"z_{k}": logits[:, k] for k in range(4)} | {"y": labels}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=200)
    return {
        "arrays": cs.from_arrays(logits=logits, labels=labels),
        "store": store.source,
        "table": cs.from_file(tmp_path / "t.parquet", logits="z", labels="y"),
    }


@pytest.mark.parametrize("kind", some_slow(["arrays", "store", "table"], keep=["store"]))
def test_child__forked_while_threads_evaluate_has_the_same_numbers(sources, kind):
    source = sources[kind]
    expected = _values(source)
    ended = threading.Event()

    def evaluate():
        while not ended.is_set():
            _values(source)

    threads = [threading.Thread(target=evaluate, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for pause in (0.0, 0.05, 0.11):
            time.sleep(pause)
            assert _in_child(lambda: _values(source) == expected) == 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _held(lock):
    """Thread that holds a lock until the event is set."""
    locked, ended = threading.Event(), threading.Event()

    def hold():
        with lock:
            locked.set()
            ended.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    locked.wait()
    return ended


def test_child__makes_the_lock_of_an_accumulator_anew():
    accumulator = cs.Accumulator("brier", classes=2)
    p, y = np.full((4, 2), 0.5), np.array([0, 1, 0, 1])
    accumulator.update(probabilities=p, labels=y)
    ended = _held(accumulator._lock)
    try:

        def work():
            accumulator.update(probabilities=p, labels=y)
            return accumulator.rows == 8

        assert _in_child(work) == 0
    finally:
        ended.set()
    assert accumulator.rows == 4


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cached properties have no locks")
def test_child__makes_the_locks_of_cached_properties_anew(source):
    from calibscale.predictions.chunk import Chunk

    properties = [event for event in vars(Chunk).values() if hasattr(event, "attrname")]
    assert properties
    ended = [_held(event.lock) for event in properties]
    try:
        assert _in_child(lambda: cs.evaluate(source, "ece").n == 400) == 0
    finally:
        for event in ended:
            event.set()


def test_fork__waits_for_a_compilation(source):
    from numba.core.compiler_lock import global_compiler_lock

    ended = _held(global_compiler_lock)
    threading.Timer(0.3, ended.set).start()
    started = time.monotonic()

    def work():
        with global_compiler_lock:
            return True

    assert _in_child(work) == 0
    assert time.monotonic() - started > 0.2


def test_child__refuses_lazy_frames_of_polars_which_would_wait_for_ever(sources, tmp_path):
    polars = pytest.importorskip("polars")
    lazy = polars.scan_parquet(tmp_path / "t.parquet")
    source = cs.from_frame(lazy, logits="z_", labels="y")
    expected = cs.evaluate(source, "brier")["brier"].value

    def work():
        with pytest.raises(cs.OptionError, match="polars does not work in a forked process"):
            cs.evaluate(source, "brier")
        return True

    assert _in_child(work) == 0
    assert cs.evaluate(source, "brier")["brier"].value == expected
