"""Folds: equal bits on all engines, bounded memory, the first bad row, lost workers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import dask
import dask.system
import dask.utils
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

import calibscale as cs
from calibscale.engine import memory
from calibscale.engine.dask_connection import available_cpus
from calibscale.engine.execution import Execution
from calibscale.engine.fold import fold
from calibscale.engine.memory import parse_bytes
from calibscale.engine.schedulers import within_memory
from calibscale.engine.threads import one_thread
from tests.support import ROOT
from tests.support.slow_cases import some_slow

ROWS, CLASSES = 1500, 4


@dataclass
class Spelling:
    """Task with a state that spells out its merge tree."""

    blocks: int
    block_bytes: int = 0
    state_bytes: int = 0
    delay: dict[int, float] = field(default_factory=dict)
    fails: tuple[int, ...] = ()

    def state(self, block):
        # later blocks may be ready sooner
        time.sleep(self.delay.get(block, 0.0))
        if block in self.fails:
            raise ValueError(f"block {block}")
        return str(block)

    def merge(self, a, b):
        return f"({a} {b})"

    shared = None

    def part(self, first, last):
        return self

    def joined(self, shared):
        return self


def _tree(first, last):
    if last - first == 1:
        return str(first)
    # the largest power of two below the length
    half = 1
    while 2 * half < last - first:
        half *= 2
    return f"({_tree(first, first + half)} {_tree(first + half, last)})"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("engine") / "logits.zarr"
    created = cs.LogitStore.create(path, classes=CLASSES, covariate_names=["group"], weights=True)
    with created.writer() as writer:
        # some labels are -1
        writer.append(
            rng.normal(size=(ROWS, CLASSES)).astype(np.float32),
            rng.integers(-1, CLASSES, ROWS),
            covariates=rng.integers(0, 2, (ROWS, 1)),
            weights=rng.random(ROWS),
        )
    return path


@pytest.fixture(scope="module")
def cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        yield client


def _results(source, scheduler, block_rows=100, **options):
    result = cs.evaluate(source, scheduler=scheduler, block_rows=block_rows, **options).to_dict()
    return result["results"], result["n"], result["n_unlabelled"], result.get("groups")


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(blocks=st.integers(1, 300), workers=st.integers(1, 5))
def test_fold__has_one_tree_for_any_number_of_workers(blocks, workers):
    assert fold(Spelling(blocks), f"threads:{workers}") == _tree(0, blocks)


def test_fold__does_not_depend_on_the_order_of_arrival():
    # the first blocks arrive last
    slow = {0: 0.05, 5: 0.03, 11: 0.02}
    assert fold(Spelling(13, delay=slow), "threads:4") == _tree(0, 13)


@pytest.mark.parametrize("scheduler", ["serial", "threads:2", "threads:5"])
def test_fold__raises_the_first_failure(scheduler):
    # block 2 fails last in time, and first in order
    task = Spelling(12, delay={2: 0.1}, fails=(2, 3, 4, 11))
    with pytest.raises(ValueError, match="block 2"):
        fold(task, scheduler)


def test_fold__reports_progress_up_to_the_end():
    seen = []
    fold(Spelling(40), "threads:2", progress=lambda count, total: seen.append((count, total)))
    assert seen[-1] == (40, 40)
    # counts never go back
    assert seen == sorted(seen)


@pytest.mark.cluster
@pytest.mark.parametrize("group_by", some_slow([None, "group"], keep=["group"]))
def test_engines__give_the_same_bits(store, cluster, group_by):
    expected = _results(store, "serial", group_by=group_by)
    for scheduler in ("threads:2", "threads:7", cluster, None):
        assert _results(store, scheduler, group_by=group_by) == expected


@pytest.mark.cluster
def test_engines__arrays_in_memory_reach_the_workers(arrays, cluster):
    source = cs.from_arrays(
        logits=arrays["logits"],
        labels=arrays["labels"],
        weights=arrays["weights"],
        covariates=arrays["covariates"],
        covariate_names=["group"],
    )
    expected = _results(source, "serial", 7, group_by="group")
    assert _results(source, cluster, 7, group_by="group") == expected


@pytest.mark.cluster
def test_engines__a_dask_array_is_used_with_the_active_client(arrays, cluster):
    import dask.array as da

    source = cs.from_arrays(
        logits=da.from_array(arrays["logits"], chunks=(90, 2)),
        labels=da.from_array(arrays["labels"], chunks=130),
    )
    plain = cs.from_arrays(logits=arrays["logits"], labels=arrays["labels"])
    assert _results(source, None, 50) == _results(plain, "serial", 50)


def _is_told(message):
    """Whether the filter of the logger lets a message pass."""
    record = logging.makeLogRecord({"msg": message})
    return bool(logging.getLogger("distributed.worker").filter(record))


@pytest.mark.cluster
def test_local_processes__do_not_log_a_lost_scheduler():
    with Execution("local:1").opened() as opened:
        client = opened.scheduler.client
        # a scheduler that ends with its run is no news, memory is
        lost, full = "Failed to communicate with scheduler during heartbeat.", "Worker is at 80 %"
        assert list(client.run(_is_told, lost).values()) == [False]
        assert list(client.run(_is_told, full).values()) == [True]


@pytest.mark.cluster
def test_local_processes__give_the_same_bits(store):
    assert _results(store, "local:2", 500) == _results(store, "serial", 500)


@pytest.mark.cluster
def test_local_processes__may_be_started_from_another_thread(store):
    with ThreadPoolExecutor(1) as pool:
        results = pool.submit(_results, store, "local:1", 500).result()
    assert results == _results(store, "serial", 500)


@pytest.mark.cluster
def test_scheduler_file_and_address__reach_real_processes(store, tmp_path):
    """Scheduler and worker started as commands, as on a cluster."""
    place = tmp_path / "scheduler.json"
    where, local = ["--scheduler-file", str(place)], ["--local-directory", str(tmp_path)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    # any free port of this machine
    scheduler = subprocess.Popen(
        [*command, *where, "--port", "0", "--no-dashboard", "--host", "127.0.0.1"],
        **quiet,
    )
    command = [sys.executable, "-m", "distributed.cli.dask_worker"]
    # without a nanny, which would start the worker again
    worker = subprocess.Popen(
        [*command, *where, "--nthreads", "1", "--no-dashboard", "--no-nanny", *local],
        **quiet,
    )
    try:
        deadline = time.monotonic() + 60
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        import json

        few = {"estimators": ["ece", "ckce"]}
        expected = _results(store, "serial", 500, **few)
        address = json.loads(place.read_text())["address"]
        for where_to in (str(place), address):
            assert _results(store, where_to, 500, **few) == expected
    finally:
        for process in (worker, scheduler):  # their shutdown is not tested
            process.terminate()
        for process in (worker, scheduler):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _blas_threads():
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_one_thread__holds_until_the_last_one_has_left():
    outside = _blas_threads()
    entered, leave = threading.Event(), threading.Event()

    def other():
        with one_thread():
            entered.set()
            leave.wait(30)

    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(other)
        assert entered.wait(30)
        with one_thread():
            pass
        # a second thread must not set the number back while the first needs one
        assert _blas_threads() == {1}  # the other thread is still inside
        with one_thread():
            leave.set()
            there.result()
            assert _blas_threads() == {1}  # entered second, and still inside
    assert _blas_threads() == outside


@pytest.mark.long
def test_calls_at_once__give_the_bits_of_one_after_the_other():
    rng = np.random.default_rng(5)
    logits, labels = rng.normal(size=(1000, 10)), rng.integers(0, 10, 1000)
    source = cs.from_arrays(logits=logits, labels=labels)

    def call(number):
        features = cs.RandomFourier(n_features=40, seed=number % 4)
        kinds = (cs.CKCE, cs.CKCECentred, cs.CMMD, cs.JKCE, cs.JKCEBiased)
        estimators = [cs.ECE(), *(kind(features) for kind in kinds)]
        return [e.to_dict() for e in cs.evaluate(source, estimators, block_rows=250).estimates]

    alone = [call(number) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(call, range(16)))
    assert together == 4 * alone


@pytest.mark.long
def test_block_size__changes_results_by_roundings_only(store):
    first = cs.evaluate(store, block_rows=ROWS)
    for rows in (17, 999):
        blocked = cs.evaluate(store, block_rows=rows)
        for a, b in zip(first.estimates, blocked.estimates, strict=True):
            # jkce subtracts its diagonal, so that its rounding errors have the scale of jkce_biased
            scale = first["jkce_biased"].value if a.estimator == "jkce" else abs(a.value)
            assert abs(a.value - b.value) <= 1e-12 * scale


@pytest.mark.slow  # `test_worker_lost__a_pass_continues_without_it` stays in the full run
@pytest.mark.cluster
def test_worker_killed__changes_nothing(store):
    """SIGKILL to a worker process: the nanny restarts it, and its task is run again."""
    from distributed import Client, LocalCluster

    estimators = ["ece", "ckce"]
    expected = _results(store, "serial", 10, estimators=estimators)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        pids = list(client.run(os.getpid).values())
        killed = threading.Event()

        def progress(count, total):
            # after the fold has begun
            if count > total // 3 and not killed.is_set():
                killed.set()
                os.kill(pids[0], signal.SIGKILL)

        options = {"estimators": estimators, "progress": progress}
        assert _results(store, client, 10, **options) == expected
        assert killed.is_set()
        # a killed process may wait for its parent to read its exit code
        assert not psutil.pid_exists(pids[0]) or psutil.Process(pids[0]).status() == "zombie"


@pytest.mark.cluster
@pytest.mark.parametrize("scheduler", ["serial", "threads:4", "cluster"])
def test_bad_rows__the_first_is_named_by_every_engine(arrays, cluster, scheduler):
    logits = arrays["logits"].copy()
    # in three blocks of 20 rows
    logits[[111, 250, 399]] = np.nan
    source = cs.from_arrays(logits=logits, labels=arrays["labels"])
    with pytest.raises(cs.InvalidDataError, match=r"row 111\b") as caught:
        cs.evaluate(
            source,
            [cs.ECE()],
            scheduler=cluster if scheduler == "cluster" else scheduler,
            block_rows=20,
        )
    assert caught.value.row == 111


def test_memory_limit__decides_how_many_blocks_are_in_flight(monkeypatch):
    task = Spelling(100, block_bytes=200_000_000, state_bytes=0)
    # 1 GB is left: five blocks of 200 MB
    monkeypatch.setattr("calibscale.engine.memory.resident_bytes", lambda: 3 * 10**9)
    assert within_memory(task, 8, memory.room_here(4 * 10**9)) == 5
    assert within_memory(task, 8, memory.room_here(None)) == 8


def test_memory_limit__too_small_is_an_error_that_says_what_is_needed(store):
    with pytest.raises(cs.OptionError, match="cannot hold one block: the process has"):
        cs.evaluate(store, scheduler="threads", memory_limit="1MB")


@pytest.mark.long
def test_memory_limit__never_changes_a_number(store):
    expected = _results(store, "threads:2")
    assert _results(store, "threads:2", memory_limit="4GB") == expected


@pytest.mark.cluster
@pytest.mark.parametrize("scheduler", some_slow(["threads:2", "local:1"], keep=["threads:2"]))
def test_memory_limit__counts_the_states_of_every_group(scheduler, monkeypatch):
    """Forty groups of 2.5 MB each. Their number is not known in advance."""
    monkeypatch.setattr("calibscale.engine.memory.resident_bytes", lambda: 0)
    rng = np.random.default_rng(0)
    source = cs.from_arrays(
        logits=rng.normal(size=(4000, 100)),
        labels=rng.integers(0, 100, 4000),
        covariates=np.arange(4000)[:, None] // 100,
        covariate_names=("day",),
    )
    done_blocks = []
    options = {
        "estimators": [cs.JKCE(cs.RandomFourier(200))],
        "group_by": "day",
        "block_rows": 500,
    }
    # with other bits, a test above would fail
    expected = _results(source, "threads:2", **options)
    limited = _results(
        source,
        scheduler,
        memory_limit="0.9GB",
        progress=lambda count, _: done_blocks.append(count),
        **options,
    )
    assert limited == expected
    begun_again = any(later <= count for count, later in itertools.pairwise(done_blocks))
    assert begun_again == (scheduler == "threads:2")  # with one worker, for more memory per worker
    ours = {f"distributed.worker.memory.{act}": False for act in ("pause", "terminate")}
    with (
        dask.config.set(ours),  # Dask's limits are for the whole worker
        pytest.raises(cs.OptionError, match=r"cannot hold one block: .* for \d+ groups of day$"),
    ):
        _results(source, scheduler, memory_limit="500MB", **options)


@pytest.mark.parametrize(
    "bad", ["thread", "threads:0", "local:x", "no/such/file.json", "threads:-1", ""]
)
def test_scheduler__unknown_ones_are_refused(store, bad):
    with pytest.raises(cs.OptionError):
        cs.evaluate(store, scheduler=bad)


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), (77, 77), (None, None)]
)
def test_parse_bytes__reads_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("number", ["7", "1.5 ", "1e3", " 0.25 ", "-2"])
@pytest.mark.parametrize("unit", ["", "B", "k", "kB", "MiB", "gi", "GB", "T", "PiB"])
def test_parse_bytes__agrees_with_dask(number, unit):
    assert parse_bytes(number + unit) == dask.utils.parse_bytes(number + unit)


@pytest.mark.parametrize("text", ["a lot", "", "GB", "2 GBs", "nan", "inf", "1e999 GB", "2 4 x"])
def test_parse_bytes__refuses_nonsense(text):
    with pytest.raises(cs.OptionError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.cluster
def test_imports__need_distributed_for_clusters_only(store):
    code = (
        "import sys, calibscale; "
        f"calibscale.evaluate({str(store)!r}, [calibscale.ECE()]); "
        "assert 'distributed' not in sys.modules; "
        "assert not {'matplotlib', 'pyarrow', 'xarray', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.process
def test_one_thread__limits_linear_algebra_that_is_imported_inside():
    """Modules of SciPy are linked to one BLAS, so that its limit also holds for later modules."""
    code = (
        "from threadpoolctl import threadpool_info\n"
        "from calibscale.engine.threads import one_thread\n"
        "with one_thread():\n"
        "    before = {part['filepath']: part['num_threads'] for part in threadpool_info()}\n"
        "    import scipy.linalg\n"
        "    after = {part['filepath']: part['num_threads'] for part in threadpool_info()}\n"
        "    print(after == before, set(after.values()))"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True {1}"


def test_package__needs_no_extra_for_tables_pictures_and_reports():
    root = ROOT
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = {requirement.partition(">")[0] for requirement in project["dependencies"]}
    assert {"matplotlib", "pyarrow", "fsspec"} <= names
    optional = {"all", "cluster", "safetensors", "s3", "http", "onnx", "sklearn", "docs", "test"}
    assert set(project["optional-dependencies"]) == optional


def _small():
    rng = np.random.default_rng(8)
    return cs.from_arrays(logits=rng.normal(size=(300, 3)), labels=rng.integers(0, 3, 300))


def _in_a_task(scheduler=None):
    if scheduler == "client":
        # the client of the task's own worker
        from distributed import get_client

        scheduler = get_client()
    return [cs.evaluate(_small(), [cs.JKCE()], scheduler=scheduler)["jkce"].value for _ in "12"]


@pytest.mark.cluster
@pytest.mark.parametrize("scheduler", [None, "client"])
def test_task_of_a_worker__does_not_block_on_its_own_slot(scheduler):
    from distributed import Client

    value = cs.evaluate(_small(), [cs.JKCE()], scheduler="serial")["jkce"].value
    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as client:
        # the only worker has one slot, which the task holds
        assert client.submit(_in_a_task, scheduler).result(timeout=60) == [value, value]


@pytest.mark.cluster
def test_asynchronous_client__is_refused_and_works_from_another_thread():
    from distributed import Client

    async def run():
        async with Client(
            asynchronous=True,
            processes=False,
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=None,
        ):
            with pytest.raises(cs.OptionError, match=r"asynchronous.*to_thread"):
                # an asynchronous client would need `await`
                cs.evaluate(_small(), [cs.JKCE()])
            return await asyncio.to_thread(cs.evaluate, _small(), [cs.JKCE()])

    alone = cs.evaluate(_small(), [cs.JKCE()], scheduler="serial")
    assert asyncio.run(run())["jkce"].value == alone["jkce"].value


@pytest.mark.cluster
def test_scheduler__not_a_client_is_refused():
    with pytest.raises(cs.OptionError, match=r"a distributed\.Client, not int"):
        cs.evaluate(_small(), [cs.ECE()], scheduler=3)


# a child that waits for a lock of its parent would wait for ever
_FORK = """
import os, signal
import numpy as np
import calibscale as cs
rng = np.random.default_rng(8)
source = cs.from_arrays(logits=rng.normal(size=(300, 3)), labels=rng.integers(0, 3, 300))
def pairs():
    return cs.evaluate(source, [cs.JKCE(method="tiles")], scheduler="threads:2")["jkce"].value
before = pairs()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    os._exit(0 if pairs() == before else 1)
raise SystemExit(os.waitpid(pid, 0)[1])
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork__after_a_sum_over_pairs_has_the_same_value():
    ran = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.process
def test_available_cpus__are_those_of_the_affinity_mask_and_the_quota():
    assert available_cpus() == dask.system.cpu_count()  # an independent reading
    # one of the processors of this process
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from calibscale.engine.dask_connection import available_cpus; print(available_cpus())"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "1\n"
