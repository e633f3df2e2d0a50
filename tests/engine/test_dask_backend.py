"""Commands on a cluster of `dask scheduler` and `dask worker` processes, and its faults."""

from __future__ import annotations

import ast
import http.server
import logging
import os
import shutil
import signal
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
import dask
import fsspec
import numpy as np
import pytest
import yaml

import calibscale as cs
from calibscale.cli import cli
from calibscale.engine.dask_backend import versions
from calibscale.engine.execution import Execution
from calibscale.errors import ClusterError
from tests.support import ROOT
from tests.support.dask_cluster import LIMIT, At, Cluster
from tests.support.slow_cases import some_slow

EXAMPLES = ROOT / "examples" / "cluster"
ROWS = 900


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Cluster of two workers, shared by the tests of this file."""
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.worker()
        started.worker()
        yield started
    finally:
        started.stop()


@pytest.fixture
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Scheduler without workers, for tests that stop it."""
    started = Cluster(tmp_path_factory.mktemp("frail"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Scheduler that tests of `lone` share."""
    started = Cluster(tmp_path_factory.mktemp("lasting"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def lone(lasting: Cluster) -> Iterator[Cluster]:
    """Scheduler without workers, for tests that start and kill workers."""
    yield lasting
    lasting.stop_workers()


@pytest.fixture(scope="module", autouse=True)
def short_blocks() -> Iterator[None]:
    """Use blocks of 64 rows, enough for several workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibscale.data.source._BLOCK_NUMBERS", 1)
        yield


def _write(path: Path, heat: float = 1.0, rows: int = ROWS) -> Path:
    rng = np.random.default_rng(4)
    p, group = rng.uniform(0.1, 0.7, rows), rng.integers(0, 2, rows)
    y = rng.random(rows) < p + 0.2 * group
    created = cs.LogitStore.create(
        path,
        classes=2,
        kind="probabilities",
        binary=True,
        dtype=np.float64,
        covariate_names=["group", "age"],
    )
    odds = (p / (1 - p)) ** heat
    with created.writer() as writer:
        ages = rng.uniform(20, 80, rows)
        writer.append(odds / (1 + odds), y.astype(int), covariates=np.column_stack([group, ages]))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, short_blocks: None) -> Path:
    """Calibrated predictions, except in group 1, where they are too low."""
    return _write(tmp_path_factory.mktemp("store") / "loans.zarr")


@pytest.fixture(scope="module")
def bold_store(tmp_path_factory: pytest.TempPathFactory, short_blocks: None) -> Path:
    return _write(tmp_path_factory.mktemp("other") / "bold.zarr", 1.5)


def _numbers(result: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields that change from run to run."""
    for changing in ("seconds", "run", "created"):
        result.pop(changing, None)
    result.get("parameters", {}).pop("scheduler", None)
    for inner in result.values():
        for part in inner if isinstance(inner, list) else [inner]:
            if isinstance(part, dict):
                _numbers(part)
    return result


# ---------------------------------------------------------------- the same bits

LOCAL = ("--covariates", "age,group", "--categorical", "group")
COMMANDS = {
    "evaluate": ("-e", "all", "--group-by", "group", "--interval", "jackknife"),
    "evaluate pairs": ("-e", "jkce(method=tiles)", "-e", "klce(method=tiles)", *LOCAL),
    "test": ("-s", "ece", "-s", "klce", "-b", 19, *LOCAL),
    "rank": ("--by", "ckce", "--groups", 5, "--subset-size", 200, "--trials", 5),
    "reliability": ("--group-by", "group"),
    "audit": (*LOCAL, "-b", 19, "--recalibrate", "platt"),
    "power": ("--bias", 0.2, "--most", 200, "--trials", 10, "-b", 19),
    "bias": LOCAL,
    "select": ("--notion", "positive", "--estimators", "bins,ukkr,temperature", "--folds", 3),
}


@pytest.mark.cluster
@pytest.mark.parametrize("name", some_slow(COMMANDS, keep=("evaluate",)))
def test_commands__give_the_bits_of_threads(
    run: Any,
    cluster: Cluster,
    store: Path,
    bold_store: Path,
    name: str,
) -> None:
    command = name.split()[0]
    stores = (store, bold_store) if command == "rank" else (store,)
    arguments = (command, *stores, *COMMANDS[name], "--json", "-", "-q")
    there = run(*arguments, "--scheduler", cluster.address).json
    here = run(*arguments, "--scheduler", "threads:2").json
    assert _numbers(there) == _numbers(here)


@pytest.mark.cluster
def test_worker_of_several_threads__gives_the_bits_of_one(lone: Cluster) -> None:
    rng = np.random.default_rng(6)
    source = cs.from_arrays(logits=rng.normal(size=(2000, 10)), labels=rng.integers(0, 10, 2000))
    estimators = [kind(cs.RandomFourier()) for kind in (cs.CKCE, cs.CMMD, cs.JKCE)]

    def call(scheduler: str) -> list[dict[str, Any]]:
        result = cs.evaluate(source, estimators, block_rows=125, scheduler=scheduler)
        return [estimate.to_dict() for estimate in result.estimates]

    alone = call("serial")
    lone.worker(threads=4)
    assert call(lone.address) == alone


@pytest.mark.cluster
def test_plan__counts_the_workers_of_a_cluster(run: Any, cluster: Cluster, store: Path) -> None:
    result = run("plan", store, "--json", "-", "--scheduler-file", cluster.file).json
    assert result["workers"] == 2


@pytest.mark.cluster
def test_scheduler_file__is_an_option_of_its_own(
    run: Any,
    cluster: Cluster,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("threads").write_text(cluster.file.read_text())  # a path, not the scheduler of this name
    arguments = ("evaluate", store, "-e", "ece", "--json", "-")
    result = run(*arguments, "--scheduler-file", "threads").json
    assert result["parameters"]["scheduler"] == str(tmp_path / "threads")
    by_scheduler = run(*arguments, "--scheduler", cluster.file).json
    assert _numbers(result) == _numbers(by_scheduler)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scheduler-file", "none.json"), "'none.json' does not exist"),
        (("--scheduler-file", "a.json", "--scheduler", "serial"), "one of --scheduler and"),
        (("--scheduler-file", "a.json"), "a.json is not a scheduler file"),
        (("--scheduler", "a.json"), "a.json is not a scheduler file"),
        (("--scheduler", "carrier://pigeon"), "is not the address of a Dask scheduler"),
        (("--scheduler", "http://127.0.0.1:8787"), "addresses are dashboards"),
    ],
)
def test_scheduler__invalid_ones_are_reported(
    run: Any,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: Any,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text('{"type": "Cluster"}')
    ran = run("evaluate", store, "-e", "ece", *options)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_scheduler__a_failed_client_does_not_become_active(store: Path) -> None:
    with pytest.raises(cs.OptionError, match="is not the address") as caught:
        cs.evaluate(store, [cs.ECE()], scheduler="carrier://pigeon")
    assert cs.evaluate(store, [cs.ECE()])["ece"].n == ROWS, caught


# ---------------------------------------------------------------- where stores lie


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(store: Path) -> Iterator[str]:
    """Base URL at which the folder of the store is served."""
    pytest.importorskip("aiohttp", reason="fsspec's http needs it")
    handler = partial(_Quiet, directory=str(store.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.cluster
def test_remote_store__is_read_by_every_worker(
    run: Any,
    cluster: Cluster,
    store: Path,
    served: str,
) -> None:
    arguments = ("-e", "ece", "-e", "ckce", "--json", "-", "--scheduler")
    there = run("evaluate", f"{served}/{store.name}", *arguments, cluster.address).json
    here = run("evaluate", store, *arguments, "serial").json
    assert there["source"].pop("name").startswith("http://")
    here["source"].pop("name")
    assert _numbers(there) == _numbers(here)


@pytest.mark.cluster
def test_remote_arrays__of_other_programs_give_the_bits_of_local_ones(
    cluster: Cluster, store: Path, served: str
) -> None:
    names = {"probabilities": "probabilities", "labels": "labels", "binary": True}
    there = cs.open_arrays(store=f"{served}/{store.name}", **names)
    here = cs.open_arrays(store=store, **names)
    values = [
        cs.evaluate(source, [cs.ECE()], scheduler=where)["ece"].value
        for source, where in ((there, cluster.address), (here, "serial"))
    ]
    assert values[0] == values[1]


@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="no path that every process has")
@pytest.mark.parametrize("foreign", [False, True])
def test_path__invisible_to_workers_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: bool
) -> None:
    """Each process has its own /proc/self/cwd, as each machine has its own /tmp."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "mine.zarr")
    _write(tmp_path / "yours.zarr")
    if not (cluster.folder / "yours.zarr").exists():
        _write(cluster.folder / "yours.zarr", rows=2 * ROWS)
    for name, message in (("mine", "does not see"), ("yours", "sees something else at")):
        source: Any = f"/proc/self/cwd/{name}.zarr"
        if foreign:  # zarr would silently read zeros
            arrays = {part: f"{source}/{part}" for part in ("probabilities", "labels")}
            source = cs.open_arrays(**arrays, binary=True)
        with pytest.raises(cs.StoreError, match=rf"worker tcp://\S+ {message} .*{name}") as caught:
            cs.evaluate(source, [cs.ECE()], on_invalid="drop", scheduler=cluster.address)
        assert "workers must see the path" in str(caught.value)


@pytest.mark.cluster
def test_path__in_the_memory_of_this_process_is_refused(cluster: Cluster) -> None:
    place = "memory://test_cluster/s.zarr"
    with cs.LogitStore.create(place, classes=2).writer() as writer:
        writer.append(np.zeros((ROWS, 2), np.float32), np.zeros(ROWS, int))
    try:
        with pytest.raises(cs.StoreError, match="workers must see the store"):
            cs.evaluate(place, [cs.ECE()], on_invalid="drop", scheduler=cluster.address)
    finally:
        fsspec.filesystem("memory").rm("/test_cluster", recursive=True)


# ---------------------------------------------------------------- versions


def _reports(folder: Path, package: str, version: str) -> dict[str, str]:
    """Environment variables of a process with another version of a package."""
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}  # this checkout


@pytest.mark.cluster
@pytest.mark.parametrize("package", ["calibscale", "numba"])
def test_versions__of_a_worker_are_checked_before_any_work(
    run: Any,
    lone: Cluster,
    store: Path,
    tmp_path: Path,
    package: str,
) -> None:
    lone.worker(**_reports(tmp_path, package, "0.0.7"))
    ran = run("evaluate", store, "-e", "ece", "--scheduler", lone.address)
    assert ran.code == 2
    assert f"has {package} 0.0.7, not {versions()[package]}" in ran.err
    assert "worker tcp://127.0.0.1" in ran.err


@pytest.mark.cluster
def test_versions__a_worker_without_calibscale_is_named(
    run: Any,
    lone: Cluster,
    store: Path,
    tmp_path: Path,
) -> None:
    """Worker in an environment without calibscale."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (into,) = tmp_path.glob("venv/lib/python*/site-packages")
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "calibscale" not in package.name:
            (into / package.name).symlink_to(package)
    lone.worker(str(tmp_path / "venv/bin/python"), PYTHONPATH="")
    ran = run("evaluate", store, "-e", "ece", "--scheduler", lone.address)
    assert ran.code == 2
    assert "has no calibscale, not 0." in ran.err


@pytest.mark.slow
@pytest.mark.cluster
def test_versions__of_a_worker_that_joins_later_are_checked(
    lone: Cluster, store: Path, tmp_path: Path
) -> None:
    first = lone.worker()
    with Execution(lone.address).opened() as opened:
        cs.evaluate(store, [cs.ECE()], scheduler=opened.scheduler)
        lone.worker(**_reports(tmp_path, "calibscale", "0.0.7"))
        first.kill()
        with pytest.raises(cs.OptionError, match=r"has calibscale 0\.0\.7, not"):
            cs.evaluate(store, [cs.ECE()], scheduler=opened.scheduler)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("__init__.py", "0.0.7"),
        ("__init__.py", cs.__version__),
        ("__init__.pyi", cs.__version__),  # names the modules of public names
    ],
)
def test_versions__of_the_source_files_are_checked(
    lone: Cluster, store: Path, tmp_path: Path, file: str, version: str
) -> None:
    """The worker has a checkout of calibscale, which the installed version does not tell."""
    shutil.copytree(ROOT / "calibscale", tmp_path / "calibscale")
    with (tmp_path / "calibscale" / file).open("a") as changed:
        changed.write(f'__version__ = "{version}"\n')
    lone.worker(PYTHONPATH=str(tmp_path))
    versions = rf"has calibscale source {version} \(digest \w+\), not {cs.__version__} \(digest"
    with pytest.raises(cs.OptionError, match=versions):
        cs.evaluate(store, [cs.ECE()], scheduler=lone.address)


# ---------------------------------------------------------------- what may be lost

LIGHT = ("ece", "ckce")  # estimators with short blocks
PAIRS = ("evaluate", "-e", "klce(method=tiles)", "--covariates", "age", "--json", "-")


@pytest.mark.cluster
def test_worker_lost__a_pass_continues_without_it(lone: Cluster, store: Path) -> None:
    expected = _numbers(cs.evaluate(store, LIGHT, scheduler="serial", block_rows=5).to_dict())
    workers = [lone.worker(), lone.worker()]
    kill = At(workers[0].kill)
    result = cs.evaluate(store, LIGHT, scheduler=lone.address, block_rows=5, progress=kill)
    assert workers[0].wait(LIMIT) == -signal.SIGKILL
    assert _numbers(result.to_dict()) == expected


@contextmanager
def _patience(seconds: int = 3) -> Iterator[None]:
    """Let the scheduler answer in `seconds`, which a busy machine needs as well."""
    with dask.config.set({"distributed.scheduler.no-workers-timeout": f"{seconds}s"}):
        yield


@pytest.mark.slow
@pytest.mark.cluster
def test_worker_lost__without_another_one_ends_the_run(lone: Cluster, store: Path) -> None:
    kill = At(lone.worker().kill)
    with _patience(), pytest.raises(ClusterError, match="had no worker for 3 s"):
        cs.evaluate(store, LIGHT, scheduler=lone.address, block_rows=5, progress=kill)
    assert time.monotonic() - kill.acted < LIMIT


@pytest.mark.cluster
def test_no_worker__is_an_error_after_a_timeout(run: Any, lone: Cluster, store: Path) -> None:
    started = time.monotonic()
    with _patience():
        ran = run("evaluate", store, "-e", "ece", "--scheduler", lone.address)
    assert time.monotonic() - started < LIMIT
    assert ran.code == 75
    assert "had no worker for 3 s: start workers" in ran.err


@pytest.mark.cluster
def test_no_worker__waits_for_a_slow_one(
    lone: Cluster,
    store: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(record: logging.LogRecord) -> bool:
        if "no worker at" in record.getMessage():
            lone.slow_worker()
        return True

    monkeypatch.setattr(logging.getLogger("calibscale.engine.dask_backend"), "filters", [start])
    with caplog.at_level(logging.WARNING, "calibscale"):
        result = cs.evaluate(store, [cs.ECE()], scheduler=str(lone.file))
    assert result["ece"].n == ROWS
    assert "waiting up to 60 s" in caplog.text


@pytest.mark.cluster
def test_scheduler_lost__is_reported_and_a_checkpoint_resumes(
    run: Any,
    frail: Cluster,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "calibscale.kernels.pair_sums.panel_cuts",
        lambda rows, classes, multiple=1: tuple((a, a + 60) for a in range(0, rows, 60)),
    )
    expected = run(*PAIRS, store, "--scheduler", "serial").json
    frail.worker()

    class Kill(At):
        def __call__(self, count: int, total: int) -> None:
            if total > 50:  # the pairs, not the pass before
                super().__call__(count, total)

    kill = Kill(frail.scheduler.kill)
    arguments = (*PAIRS, store, "--checkpoint", tmp_path / "c", "--scheduler")
    with monkeypatch.context() as patch:
        shown = sys.modules["calibscale.cli.command_outputs"]
        patch.setattr(shown, "progress", lambda *_: nullcontext(kill))
        lost = run(*arguments, frail.address)
    assert time.monotonic() - kill.acted < LIMIT
    assert lost.code == 75
    assert f"error: the Dask scheduler at {frail.address} was lost" in lost.err
    assert "Traceback" not in lost.err
    seen: list[tuple[int, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(shown, "progress", lambda *_: nullcontext(lambda *now: seen.append(now)))
        resumed = run(*arguments, "threads:2").json
    assert next(count for count, total in seen if total > 50) > 0  # resumed
    assert _numbers(resumed) == _numbers(expected)


@pytest.mark.cluster
def test_scheduler_lost__before_a_new_one_starts(
    run: Any,
    frail: Cluster,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("calibscale.engine.dask_connection._CONNECT_TIMEOUT", 4.0)
    frail.scheduler.kill()
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):
        ran = run("evaluate", store, "-e", "ece", "--scheduler-file", frail.file)
    assert ran.code == 75
    assert f"no Dask scheduler answers at {frail.address}" in ran.err


@pytest.mark.slow
@pytest.mark.cluster
def test_scheduler_stopped__is_an_error_after_a_timeout(
    frail: Cluster, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped scheduler does not answer and closes no connection."""
    monkeypatch.setattr("calibscale.engine.dask_connection._CLOSE_TIMEOUT", 1.0)
    frail.worker()
    stop = At(lambda: frail.scheduler.send_signal(signal.SIGSTOP))
    with _patience(), pytest.raises(ClusterError, match="was lost"):
        cs.evaluate(store, LIGHT, scheduler=frail.address, block_rows=5, progress=stop)
    assert time.monotonic() - stop.acted < LIMIT


# ---------------------------------------------------------------- examples


@pytest.mark.cluster
def test_examples__slurm_is_python_that_names_what_exists() -> None:
    text = (EXAMPLES / "slurm_jobqueue.py").read_text()
    tree = ast.parse(text)
    (imported,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "calibscale"
    )
    assert all(hasattr(cs, name.name) for name in imported.names)
    command = ["s.zarr", "--scheduler-file", str(EXAMPLES / "slurm_jobqueue.py")]
    assert '["calibscale", "test", store, "--scheduler-file", scheduler_file]' in text
    _parsed("test", command)


@pytest.mark.cluster
def test_examples__kubernetes_fits_together() -> None:
    parts = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    cluster, nightly = parts
    assert (cluster["kind"], nightly["kind"]) == ("DaskCluster", "CronJob")
    name = cluster["metadata"]["name"]
    spec = cluster["spec"]
    (port,) = (p for p in spec["scheduler"]["service"]["ports"] if p["name"] == "tcp-comm")
    assert spec["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == name
    pod = nightly["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    pods = (pod, spec["worker"]["spec"], spec["scheduler"]["spec"])
    assert len({container["image"] for p in pods for container in p["containers"]}) == 1
    program, command, *arguments = pod["containers"][0]["args"]
    assert program == "calibscale"
    parsed = _parsed(command, arguments)
    assert parsed["scheduler"] == f"tcp://{name}-scheduler:{port['port']}"


def _parsed(command: str, arguments: list[str]) -> dict[str, Any]:
    """Parameters that a command parses from its arguments. Nothing runs."""
    parser = cli.commands[command]
    with click.Context(cli):
        return parser.make_context(command, arguments).params
