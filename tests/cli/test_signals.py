"""Commands that a signal interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from calibscale import LogitStore
from calibscale.cli import cli
from tests.support.command_store import ROWS
from tests.support.commands import finish, start


@pytest.fixture(scope="module")
def long_store(tmp_path_factory) -> Path:
    """Store that takes half a minute with these features, in blocks of a fraction of a second."""
    path = tmp_path_factory.mktemp("cli") / "long.zarr"
    created = LogitStore.create(path, classes=2, dtype=np.float16)
    z = np.random.default_rng(0).normal(size=(2**16, 2)).astype(np.float16)
    with created.writer() as writer:
        for _ in range(80):
            writer.append(z, np.zeros(2**16, int))
    return path


def wait_until(condition: Any, process: subprocess.Popen[str], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.02)


not_under_nohup = pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="run under nohup"
)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("number", "scheduler", "early", "group"),
    [
        pytest.param(*(signal.SIGTERM, "threads", False, False), marks=pytest.mark.slow),
        pytest.param(*(signal.SIGINT, "threads", False, False), marks=pytest.mark.slow),
        pytest.param(
            *(signal.SIGHUP, "threads", False, False), marks=[pytest.mark.slow, not_under_nohup]
        ),
        pytest.param(*(signal.SIGTERM, "local:2", False, False), marks=pytest.mark.slow),
        pytest.param(*(signal.SIGTERM, "local:2", True, False), marks=pytest.mark.slow),
        pytest.param(*(signal.SIGINT, "local:2", True, False), marks=pytest.mark.slow),
        pytest.param(*(signal.SIGTERM, "local:2", False, True), marks=pytest.mark.slow),
        pytest.param(*(signal.SIGINT, "local:2", False, True), marks=pytest.mark.slow),
        (signal.SIGINT, "local:2", True, True),
    ],
)
def test_evaluate__a_signal_ends_it_with_75(long_store, tmp_path, number, scheduler, early, group):
    """Send the signal early (before the workers report), or to the whole process group.

    A terminal sends Ctrl-C to the group, so that the workers receive it as well.
    """
    path = tmp_path / "result.json"
    process = start(
        *("evaluate", long_store, "-e", "ckce", "--features", "100", "--json", path),
        *("--scheduler", scheduler),
        start_new_session=group,
    )
    myself = psutil.Process(process.pid)

    def busy() -> bool:
        if scheduler == "threads":
            # the computation began
            return myself.cpu_times().user > 3
        with suppress(psutil.Error):  # a child that has just ended
            workers = [p for p in myself.children() if "spawn_main" in " ".join(p.cmdline())]
            return len(workers) == 2 and (early or all(p.cpu_times().user > 2 for p in workers))
        return False

    wait_until(busy, process)
    children = myself.children(recursive=True)
    (os.killpg if group else os.kill)(process.pid, number)
    ran = finish(process)
    assert ran.code == 75, ran.err
    assert "interrupted; run the same command again" in ran.err
    for words in ("Traceback", "CancelledError", "KeyboardInterrupt"):
        assert words not in ran.err
    assert ran.out == ""
    assert not path.exists()
    # no worker outlives the command
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


@pytest.mark.process
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGINT, pytest.param(signal.SIGHUP, marks=not_under_nohup)],
    ids=lambda n: n.name,
)
def test_signal__in_a_callback_that_ignores_exceptions(number):
    """The compiler calls back through ctypes, which discards what a signal handler raises."""
    code = (
        "import ctypes, os, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs\n"
        "from calibscale import cli\n"
        "def run(**_):\n"
        "    @ctypes.CFUNCTYPE(None)\n"
        f"    def callback(): os.kill(os.getpid(), {int(number)}); time.sleep(0.01)\n"
        "    callback()\n"
        "    time.sleep(60)\n"
        "cli.cli.main = run\n"
        "cli.main([])\n"
    )
    started = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert (ran.returncode, ran.stdout) == (75, ""), ran.stderr
    assert ran.stderr == "interrupted; run the same command again\n"
    # the signal does not wait for the end of the sleep of 60 s
    assert time.monotonic() - started < 30


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
    ids=lambda n: n.name,
)
def test_simulate__an_interrupted_run_can_be_repeated_as_its_message_says(tmp_path, number):
    path = tmp_path / "s.zarr"
    command = ("simulate", path, "--rows", 2_000_000, "--classes", 2, "--dtype", "float16")
    process = start(*command)

    def has_rows() -> bool:
        return (path / "zarr.json").exists() and '"rows": 0' not in (path / "zarr.json").read_text()

    wait_until(has_rows, process)
    process.send_signal(number)
    ran = finish(process)
    assert ran.code == 75, ran.err
    assert "interrupted; nothing is lost, run the same command again" in ran.err
    assert "Traceback" not in ran.err
    repeated = finish(start(*command))
    assert repeated.code == 0, repeated.err
    assert LogitStore.open(path).rows == 2_000_000
    once_more = finish(start(*command))
    assert once_more.code == 0, once_more.err


@pytest.mark.parametrize(
    ("arguments", "resumes"),
    [
        (["ingest"], True),
        (["nightly"], True),
        (["evaluate", "--checkpoint", "c"], True),
        (["evaluate", "--checkpoint=c"], True),
        (["test", "nightly"], False),
        ([], False),
    ],
)
def test_interrupted__says_whether_anything_is_lost(run, monkeypatch, arguments, resumes):
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    monkeypatch.setattr(sys, "argv", ["calibscale"])
    ran = run(*arguments)
    assert ran.code == 75
    advice = "nothing is lost, " if resumes else ""
    assert ran.err == f"interrupted; {advice}run the same command again\n"


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_signal__after_the_work_ends_the_process_without_words(store, number):
    """The signal arrives while the interpreter exits."""
    code = (
        "import atexit, signal, sys\n"
        "from calibscale.cli import main\n"
        f"atexit.register(signal.raise_signal, {number:d})\n"
        f"sys.argv = ['calibscale', 'info', {str(store)!r}]\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-number, "")
    assert f"{ROWS:,}" in ended.stdout


@pytest.mark.slow
@pytest.mark.process
def test_ingest__an_interrupted_run_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2_000_000, 3)).astype(np.float32)
    y = rng.integers(0, 3, len(z)).astype(np.int32)
    np.save(tmp_path / "logits.npy", z)
    np.save(tmp_path / "labels.npy", y)
    path = tmp_path / "s.zarr"
    command = ("ingest", tmp_path / "logits.npy", tmp_path / "labels.npy", path)
    process = start(*command)
    wait_until(lambda: (path / "logits/c/2").exists(), process)
    process.send_signal(signal.SIGTERM)
    ran = finish(process)
    assert ran.code == 75, ran.err
    assert "Traceback" not in ran.err
    written = LogitStore.open(path).rows
    assert 0 < written < len(z)
    repeated = finish(start(*command))
    assert repeated.code == 0, repeated.err
    assert f"{len(z) - written:,} rows added" in repeated.out
    source = LogitStore.open(path).source
    assert source.rows == len(z)
    np.testing.assert_array_equal(source.read(0, len(z)).values, z)
    np.testing.assert_array_equal(source.read(0, len(z)).labels, y)
