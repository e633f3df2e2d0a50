"""Two hundred evaluations at once in one process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import calibscale as cs
from calibscale.engine.memory import resident_bytes

CALLS = 200
SCHEDULERS = [None, "serial", "threads:2", "threads:4"]
ESTIMATORS = ["ece", "ckce(features=9)", "kce"]


@pytest.mark.long
def test_calls_at_once__give_the_bits_of_one_alone():
    """Each with one of four schedulers, and a limit of memory for all of them."""
    rng = np.random.default_rng(5)
    logits, labels = rng.normal(size=(120, 3)), rng.integers(0, 3, 120)
    source = cs.from_arrays(logits=logits, labels=labels)

    def bits(scheduler):
        estimates = cs.evaluate(source, ESTIMATORS, scheduler=scheduler, block_rows=40, floor=False)
        return [np.float64(estimate.value).tobytes() for estimate in estimates]

    alone = bits("serial")
    threads, before = threading.active_count(), resident_bytes()
    together = threading.Barrier(CALLS)

    def call(number):
        together.wait()
        return bits(SCHEDULERS[number % len(SCHEDULERS)])

    with ThreadPoolExecutor(CALLS) as pool:
        results = list(pool.map(call, range(CALLS), timeout=300))
    assert results == [alone] * CALLS
    assert resident_bytes() - before < 10**9
    deadline = time.monotonic() + 10
    while threading.active_count() > threads:  # no thread of a pool is left
        assert time.monotonic() < deadline
        time.sleep(0.05)
