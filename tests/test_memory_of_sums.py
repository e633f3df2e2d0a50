"""Sums that do not fit into memory. Checks leave estimators out. Plans and errors name them."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager

import numpy as np
import pytest

import calibscale as cs
from calibscale.engine.memory import resident_bytes, room_here
from calibscale.engine.schedulers import room_with

CLASSES, ROWS = 20_000, 100
NEED = r"its sums over 20,000 classes need \d+ GB, above the memory limit of [\d.]+ GB"


@pytest.fixture(scope="module")
def source():
    rng = np.random.default_rng(8)
    logits = rng.normal(size=(ROWS, CLASSES)).astype(np.float32)
    return cs.from_arrays(logits=logits, labels=rng.integers(0, CLASSES, ROWS))


@pytest.fixture
def limit():
    """Limit of 2 GB beyond the memory that tests before these have left in the process."""
    return f"{(resident_bytes() + 2 * 10**9) // 10**6}MB"


@pytest.mark.long
def test_check__leaves_out_what_does_not_fit(source, limit):
    before = resident_bytes()
    result = cs.check(source, n_replicates=19, memory_limit=limit)
    kernel = result["jkce"]
    assert kernel.value is None
    assert kernel.reason is not None
    assert re.match(NEED, kernel.reason)
    assert all(
        estimate.value is not None for estimate in result.estimates if estimate.estimator != "jkce"
    )
    assert "jkce" not in [test.statistic for test in result.tests]
    assert set(result.adjusted_p_values) == {
        estimate.estimator for estimate in result.estimates if estimate.value is not None
    } | {test.statistic for test in result.tests[len(result.estimates) - 1 :]}
    assert resident_bytes() < before + 10**9


@pytest.mark.long
def test_plan__says_so_before(source, limit):
    names = ["confidence_gap", "ece", "jkce"]
    options = {"on_unsupported": "report", "memory_limit": limit}
    planned = cs.plan(source, names, interval="jackknife", **options)
    assert list(planned.left_out) == ["jkce"]
    result = cs.evaluate(source, names, interval="jackknife", **options)
    assert result["jkce"].reason == planned.left_out["jkce"]


@pytest.mark.long
def test_errors__name_the_estimator(source, limit):
    with pytest.raises(cs.OptionError, match=f"jkce: {NEED}.*; leave it out"):
        cs.evaluate(source, ["ece", "jkce"], memory_limit=limit)
    with pytest.raises(cs.OptionError, match=f"jkce: {NEED}"):
        cs.calibration_test(source, ["jkce"], memory_limit=limit)


@pytest.mark.long
def test_plan__command_prints_what_is_left_out(run, tmp_path):
    place = tmp_path / "rows.zarr"
    rng = np.random.default_rng(9)
    store = cs.LogitStore.create(place, classes=2000)
    with store.writer() as writer:
        writer.append(rng.normal(size=(70, 2000)), rng.integers(0, 2000, 70))
    limit = f"{(resident_bytes() + 12 * 10**7) // 10**6}MB"
    options = ["-e", "accuracy,jkce,all", "--memory-limit", limit]
    ran = run("plan", place, *options)
    assert "There would be no value of jkce: its sums over 2,000 classes need" in " ".join(
        ran.out.split()
    )
    planned = run("plan", place, *options, "--json", "-").json
    assert "jkce" in planned["left_out"]


def test_free_memory__is_that_of_the_limit_or_of_the_machine():
    left = room_here(resident_bytes() + 10**9).free
    assert left is not None
    assert abs(left - 10**9) < 10**8
    machine = room_here(None).free
    assert machine is None or machine > 0


@pytest.fixture
def cluster():
    """Context of a cluster of one worker, which is a thread of this process, and its client."""
    distributed = pytest.importorskip("distributed")

    @contextmanager
    def started(limit):
        with (
            distributed.LocalCluster(
                1, processes=False, memory_limit=limit, dashboard_address=None
            ) as here,
            distributed.Client(here, set_as_default=False) as client,
        ):
            yield client

    return started


@pytest.mark.cluster
def test_cluster__is_judged_by_the_limits_of_its_workers(source, cluster):
    """The limit leaves room beside the memory of this process, in which the worker runs."""
    limit = 10**9 + 2 * resident_bytes()
    with cluster(limit) as client:
        options = {"on_unsupported": "report", "scheduler": client}
        result = cs.evaluate(source, ["ece", "jkce"], **options)
        planned = cs.plan(source, ["ece", "jkce"], **options)
    for reason in (result["jkce"].reason, planned.left_out["jkce"]):
        assert re.search(r"need \d+ GB, above the memory limit of a worker of [\d.]+ GB$", reason)


@pytest.mark.cluster
def test_cluster__without_limits_is_not_judged(cluster):
    """A limit of zero bytes is none: nothing is said of workers without a limit."""
    with cluster(0) as client:
        assert room_with(client).free is None


@pytest.mark.slow
@pytest.mark.cluster
def test_paused_workers__are_an_error_in_limited_time(source, cluster):
    """Dask pauses a worker when its memory is nearly full, for ever if nothing frees it."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "3s"}),
        cluster(resident_bytes()) as client,
    ):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and "running" in client.run(_status_of_worker).values():
            time.sleep(0.1)
        with pytest.raises(cs.CalibscaleError, match=r"workers of .* have been paused for 3 s"):
            cs.evaluate(source, "ece", scheduler=client)


def _status_of_worker(dask_worker):
    return dask_worker.status.name
