"""Commands on a cluster of real `dask scheduler` and `dask worker` processes, and its faults."""

from __future__ import annotations

import ast
import http.server
import json
import logging
import os
import signal
import subprocess
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
from calibscale import engine
from calibscale.agreement import versions
from calibscale.cli import cli
from calibscale.errors import ClusterError
from tests.test_cli import run  # noqa: F401

EXAMPLES = Path(__file__).parent.parent / "examples" / "cluster"
ROWS = 900
LIMIT = 60.0  # seconds within which a process must have come up, or a fault been told


class Cluster:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start(
            sys.executable, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"
        )
        _wait_for(lambda: self.file.exists() and self.file.read_text())
        self.address = json.loads(self.file.read_text())["address"]

    def worker(
        self, python: str = sys.executable, threads: int = 1, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Another worker, which is there when this returns."""
        before = self.count()
        process = self.slow_worker(python, threads, **environment)
        _wait_for(lambda: self.count() > before)
        return process

    def slow_worker(
        self, python: str = sys.executable, threads: int = 1, **environment: str
    ) -> subprocess.Popen[bytes]:
        options = ("--nthreads", str(threads), "--no-nanny", "--no-dashboard")
        place = ("--local-directory", str(self.folder))
        return self._start(python, "worker", *options, *place, **environment)

    def count(self) -> int:
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            return len(client.nthreads())

    def _start(self, python: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [python, "-m", "dask", *arguments, "--scheduler-file", str(self.file)],
                cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **environment},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _wait_for(holds: Any) -> None:
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that live as long as the tests of this file."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.worker()
        made.worker()
        yield made
    finally:
        made.stop()


@pytest.fixture
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler without workers, for tests that break something."""
    made = Cluster(tmp_path_factory.mktemp("frail"))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module", autouse=True)
def short_blocks() -> Iterator[None]:
    """Blocks of 64 rows: enough of them to share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibscale.source._BLOCK_NUMBERS", 1)
        yield


def _write(path: Path, heat: float = 1.0, rows: int = ROWS) -> Path:
    rng = np.random.default_rng(4)
    p, group = rng.uniform(0.1, 0.7, rows), rng.integers(0, 2, rows)
    y = rng.random(rows) < p + 0.2 * group
    made = cs.LogitStore.create(
        path, classes=2, kind="probabilities", binary=True, dtype=np.float64,
        covariate_names=["group", "age"],
    )  # fmt: skip
    odds = (p / (1 - p)) ** heat
    with made.writer() as writer:
        ages = rng.uniform(20, 80, rows)
        writer.append(odds / (1 + odds), y.astype(int), covariates=np.column_stack([group, ages]))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, short_blocks: None) -> Path:
    """Calibrated, but for the rows of group 1, whose predictions are too low."""
    return _write(tmp_path_factory.mktemp("store") / "loans.zarr")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, short_blocks: None) -> Path:
    return _write(tmp_path_factory.mktemp("other") / "bold.zarr", 1.5)


def _numbers(result: dict[str, Any]) -> dict[str, Any]:
    """Less what may change from run to run."""
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
    "evaluate": ("--group-by", "group", "--interval", "jackknife"),
    "evaluate pairs": (*("-e", "jkce", "-e", "klce"), "--method", "tiles", *LOCAL),
    "test": ("-s", "ece", "-s", "klce", "-b", 19, *LOCAL),
    "rank": ("--by", "ckce", "--groups", 5, "--subset-size", 200, "--trials", 20),
    "reliability": ("--group-by", "group"),
    "audit": (*LOCAL, "-b", 19, "--recalibrate", "platt"),
    "power": ("--bias", 0.2, "--most", 500, "--trials", 10, "-b", 19),
    "bias": LOCAL,
    "select": ("--notion", "positive", "--estimators", "bins,ukkr,temperature", "--folds", 3),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands__give_the_bits_of_threads(
    run: Any,  # noqa: F811
    cluster: Cluster,
    store: Path,
    other: Path,
    name: str,
) -> None:
    command = name.split()[0]
    stores = (store, other) if command == "rank" else (store,)
    given = (command, *stores, *COMMANDS[name], "--json", "-", "-q")
    there = run(*given, "--scheduler", cluster.address).json
    here = run(*given, "--scheduler", "threads:2").json
    assert _numbers(there) == _numbers(here)


def test_worker_of_several_threads__gives_the_bits_of_one(frail: Cluster) -> None:
    rng = np.random.default_rng(6)
    source = cs.from_arrays(logits=rng.normal(size=(2000, 10)), labels=rng.integers(0, 10, 2000))
    asked = [kind(cs.RandomFourier()) for kind in (cs.CKCE, cs.CMMD, cs.JKCE)]

    def call(scheduler: str) -> list[dict[str, Any]]:
        found = cs.evaluate(source, asked, block_rows=125, scheduler=scheduler)
        return [estimate.to_dict() for estimate in found.estimates]

    alone = call("serial")
    for threads in (1, 2, 4):
        worker = frail.worker(threads=threads)
        assert call(frail.address) == alone
        worker.kill()
        worker.wait()
        _wait_for(lambda: not frail.count())


def test_plan__counts_the_workers_of_a_cluster(run: Any, cluster: Cluster, store: Path) -> None:  # noqa: F811
    found = run("plan", store, "--json", "-", "--scheduler-file", cluster.file).json
    assert found["workers"] == 2


def test_scheduler_file__is_an_option_of_its_own(
    run: Any,  # noqa: F811
    cluster: Cluster,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("threads").write_text(cluster.file.read_text())  # a path, whatever it is called
    given = ("evaluate", store, "-e", "ece", "--json", "-")
    found = run(*given, "--scheduler-file", "threads").json
    assert found["parameters"]["scheduler"] == str(tmp_path / "threads")
    same = run(*given, "--scheduler", cluster.file).json
    assert _numbers(found) == _numbers(same)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scheduler-file", "none.json"), "'none.json' does not exist"),
        (("--scheduler-file", "a.json", "--scheduler", "serial"), "one of --scheduler and"),
        (("--scheduler-file", "a.json"), "a.json is no scheduler file"),
        (("--scheduler", "a.json"), "a.json is no scheduler file"),
        (("--scheduler", "carrier://pigeon"), "carrier://pigeon is no address of a Dask scheduler"),
        (("--scheduler", "http://127.0.0.1:8787"), "http is that of its dashboard"),
    ],
)
def test_scheduler__what_is_none_is_told(
    run: Any,  # noqa: F811
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


def test_scheduler__one_that_does_not_answer_is_not_the_active_one(store: Path) -> None:
    with pytest.raises(cs.OptionError, match="no address") as held:
        cs.evaluate(store, [cs.ECE()], scheduler="carrier://pigeon")
    assert cs.evaluate(store, [cs.ECE()])["ece"].n == ROWS, held


# ---------------------------------------------------------------- where stores lie


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(store: Path) -> Iterator[str]:
    """The folder of the store over HTTP."""
    pytest.importorskip("aiohttp", reason="fsspec's http needs it")
    handler = partial(_Quiet, directory=str(store.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_remote_store__is_read_by_every_worker(
    run: Any,  # noqa: F811
    cluster: Cluster,
    store: Path,
    served: str,
) -> None:
    given = ("-e", "ece", "-e", "ckce", "--json", "-", "--scheduler")
    there = run("evaluate", f"{served}/{store.name}", *given, cluster.address).json
    here = run("evaluate", store, *given, "serial").json
    assert there["source"].pop("name").startswith("http://")
    here["source"].pop("name")
    assert _numbers(there) == _numbers(here)


def test_remote_arrays__of_other_origin(cluster: Cluster, store: Path, served: str) -> None:
    names = {"probabilities": "probabilities", "labels": "labels", "binary": True}
    there = cs.open_arrays(store=f"{served}/{store.name}", **names)
    here = cs.open_arrays(store=store, **names)
    found = [
        cs.evaluate(source, [cs.ECE()], scheduler=where)["ece"].value
        for source, where in ((there, cluster.address), (here, "serial"))
    ]
    assert found[0] == found[1]


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="no path that every process has")
@pytest.mark.parametrize("foreign", [False, True])
def test_path__that_workers_do_not_see(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: bool
) -> None:
    """Each process has its own /proc/self/cwd, as each machine its own /tmp."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "mine.zarr")
    _write(tmp_path / "yours.zarr")
    if not (cluster.folder / "yours.zarr").exists():
        _write(cluster.folder / "yours.zarr", rows=2 * ROWS)
    for name, message in (("mine", "does not see"), ("yours", "sees something else at")):
        source: Any = f"/proc/self/cwd/{name}.zarr"
        if foreign:  # zarr would read zeros there, and say nothing
            arrays = {part: f"{source}/{part}" for part in ("probabilities", "labels")}
            source = cs.open_arrays(**arrays, binary=True)
        with pytest.raises(cs.StoreError, match=rf"worker tcp://\S+ {message} .*{name}") as caught:
            cs.evaluate(source, [cs.ECE()], on_invalid="drop", scheduler=cluster.address)
        assert "workers must see the path" in str(caught.value)


def test_path__in_the_memory_of_this_process(cluster: Cluster) -> None:
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
    """The environment of a process to which another version of a package is installed."""
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("package", ["calibscale", "numba"])
def test_versions__others_at_a_worker_are_told_before_any_work(
    run: Any,  # noqa: F811
    frail: Cluster,
    store: Path,
    tmp_path: Path,
    package: str,
) -> None:
    frail.worker(**_reports(tmp_path, package, "0.0.7"))
    ran = run("evaluate", store, "-e", "ece", "--scheduler", frail.address)
    assert ran.code == 2
    assert f"has {package} 0.0.7, not {versions()[package]}" in ran.err
    assert "worker tcp://127.0.0.1" in ran.err


def test_versions__a_worker_without_calibscale(
    run: Any,  # noqa: F811
    frail: Cluster,
    store: Path,
    tmp_path: Path,
) -> None:
    """An environment like this one, less calibscale."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (into,) = tmp_path.glob("venv/lib/python*/site-packages")
    for found in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "calibscale" not in found.name:
            (into / found.name).symlink_to(found)
    frail.worker(str(tmp_path / "venv/bin/python"), PYTHONPATH="")
    ran = run("evaluate", store, "-e", "ece", "--scheduler", frail.address)
    assert ran.code == 2
    assert "has no calibscale, not 0." in ran.err


def test_versions__of_a_worker_that_comes_later(
    frail: Cluster, store: Path, tmp_path: Path
) -> None:
    first = frail.worker()
    with engine.session(frail.address) as opened:
        cs.evaluate(store, [cs.ECE()], scheduler=opened)
        frail.worker(**_reports(tmp_path, "calibscale", "0.0.7"))
        first.kill()
        with pytest.raises(cs.OptionError, match=r"has calibscale 0\.0\.7, not"):
            cs.evaluate(store, [cs.ECE()], scheduler=opened)


# ---------------------------------------------------------------- what may be lost

PAIRS = ("evaluate", "-e", "klce", "--covariates", "age", "--method", "tiles", "--json", "-")


class _At:
    """Progress that does something once, when a third of a long fold is done."""

    def __init__(self, act: Any) -> None:
        self.act = act
        self.acted = 0.0  # at this time

    def __call__(self, done: int, total: int) -> None:
        if not self.acted and total > 5 and done > total // 3:
            self.act()
            self.acted = time.monotonic()


def test_worker_lost__a_pass_goes_on_without_it(frail: Cluster, store: Path) -> None:
    expected = _numbers(cs.evaluate(store, scheduler="serial", block_rows=5).to_dict())
    workers = [frail.worker(), frail.worker()]
    kill = _At(workers[0].kill)
    found = cs.evaluate(store, scheduler=frail.address, block_rows=5, progress=kill)
    assert workers[0].wait(LIMIT) == -signal.SIGKILL
    assert _numbers(found.to_dict()) == expected


@contextmanager
def _patience(seconds: int) -> Iterator[None]:
    with dask.config.set({"distributed.scheduler.no-workers-timeout": f"{seconds}s"}):
        yield


def test_worker_lost__all_of_them(frail: Cluster, store: Path) -> None:
    kill = _At(frail.worker().kill)
    with _patience(3), pytest.raises(ClusterError, match="had no worker for 3 s"):
        cs.evaluate(store, scheduler=frail.address, block_rows=5, progress=kill)
    assert time.monotonic() - kill.acted < LIMIT


def test_no_worker__is_told_after_a_while(run: Any, frail: Cluster, store: Path) -> None:  # noqa: F811
    started = time.monotonic()
    with _patience(2):
        ran = run("evaluate", store, "-e", "ece", "--scheduler", frail.address)
    assert time.monotonic() - started < LIMIT
    assert ran.code == 75
    assert "had no worker for 2 s: start workers" in ran.err


def test_no_worker__a_slow_one_is_waited_for(
    frail: Cluster,
    store: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(record: logging.LogRecord) -> bool:
        if "no worker at" in record.getMessage():
            frail.slow_worker()
        return True

    monkeypatch.setattr(logging.getLogger("calibscale.cluster"), "filters", [start])
    with caplog.at_level(logging.WARNING, "calibscale"):
        found = cs.evaluate(store, [cs.ECE()], scheduler=str(frail.file))
    assert found["ece"].n == ROWS
    assert "waiting up to 60 s" in caplog.text


def test_scheduler_lost__is_told_and_a_checkpoint_goes_on(
    run: Any,  # noqa: F811
    frail: Cluster,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "calibscale.pairs.panel_cuts",
        lambda rows, classes, multiple=1: tuple((a, a + 60) for a in range(0, rows, 60)),
    )
    expected = run(*PAIRS, store, "--scheduler", "serial").json
    frail.worker()

    class Kill(_At):
        def __call__(self, done: int, total: int) -> None:
            if total > 50:  # the pairs, not the pass before
                super().__call__(done, total)

    kill = Kill(frail.scheduler.kill)
    given = (*PAIRS, store, "--checkpoint", tmp_path / "c", "--scheduler")
    with monkeypatch.context() as patch:
        shown = sys.modules["calibscale.cli.evaluate"]
        patch.setattr(shown, "progress", lambda *_: nullcontext(kill))
        lost = run(*given, frail.address)
    assert time.monotonic() - kill.acted < LIMIT
    assert lost.code == 75
    assert f"error: the Dask scheduler at {frail.address} was lost" in lost.err
    assert "Traceback" not in lost.err
    seen: list[tuple[int, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(shown, "progress", lambda *_: nullcontext(lambda *now: seen.append(now)))
        found = run(*given, "threads:2").json
    assert next(done for done, total in seen if total > 50) > 0  # does not begin anew
    assert _numbers(found) == _numbers(expected)


def test_scheduler_lost__between_a_scheduler_and_the_next(
    run: Any,  # noqa: F811
    frail: Cluster,
    store: Path,
) -> None:
    frail.scheduler.kill()
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):
        ran = run("evaluate", store, "-e", "ece", "--scheduler-file", frail.file)
    assert ran.code == 75
    assert f"no Dask scheduler answers at {frail.address}" in ran.err


def test_scheduler_stopped__is_not_waited_for_without_end(frail: Cluster, store: Path) -> None:
    """A machine that hangs answers nothing, and closes nothing."""
    frail.worker()
    stop = _At(lambda: frail.scheduler.send_signal(signal.SIGSTOP))
    with _patience(3), pytest.raises(ClusterError, match="was lost"):
        cs.evaluate(store, scheduler=frail.address, block_rows=5, progress=stop)
    assert time.monotonic() - stop.acted < LIMIT


# ---------------------------------------------------------------- examples


def test_examples__slurm_is_python_that_names_what_exists() -> None:
    text = (EXAMPLES / "slurm_jobqueue.py").read_text()
    tree = ast.parse(text)
    (imported,) = (
        node for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "calibscale"
    )  # fmt: skip
    assert all(hasattr(cs, name.name) for name in imported.names)
    command = ["s.zarr", "--scheduler-file", str(EXAMPLES / "slurm_jobqueue.py")]
    assert '["calibscale", "test", store, "--scheduler-file", scheduler_file]' in text
    _parsed("test", command)


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
    given = _parsed(command, arguments)
    assert given["scheduler"] == f"tcp://{name}-scheduler:{port['port']}"


def _parsed(command: str, arguments: list[str]) -> dict[str, Any]:
    """What a command takes its arguments for; nothing runs."""
    found = cli.commands[command]
    with click.Context(cli):
        return found.make_context(command, arguments).params
