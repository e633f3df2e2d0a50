"""A call below libc that fails, or kills the process, at each write of the commands that write.

A preloaded library counts the calls that change a folder and lets one of them fail.  In each case
there is an error of one line or none, no partial output counts as complete, and the same command
succeeds afterwards.
"""

from __future__ import annotations

import errno
import json
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.store import LogitStore
from tests.support.night_faults import read_output
from tests.support.slow_cases import some_slow
from tests.support.undertakings import (
    Injector,
    NightOf,
    Ran,
    Undertaking,
    ingest_store,
    loop_store,
    simulate_store,
)

KINDS = {  # errno, and whether later calls fail as well
    "full disk": (errno.ENOSPC, True),
    "input/output error": (errno.EIO, False),
    "kill": (0, False),
}


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Injector]:
    started = Injector(tmp_path_factory.mktemp("library"))
    yield started
    started.forks.close()


# ---------------------------------------------------------------- commands


class Outputs:
    """A command that writes files."""

    def __init__(self, folder: Path, command: Callable[[Path], list[str]], *names: str) -> None:
        self.folder, self.names = folder / "work", names
        self.command = self.again = command(self.folder)
        self.undo()

    def undo(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for name in self.names:
            (self.folder / name).write_text("old")

    def measure(self, injector: Injector) -> None:
        self.new = self._content()
        assert "old" not in self.new.values()

    def _content(self) -> dict[str, Any]:
        def content(path: Path) -> Any:
            data = path.read_bytes()
            return "old" if data == b"old" else data if path.suffix == ".png" else read_output(path)

        return {name: content(self.folder / name) for name in self.names}

    def check(self) -> None:
        content = self._content()
        assert [x for x in self.names if content[x] not in ("old", self.new[x])] == []

    def may_go_on(self) -> bool:
        return True

    def check_done(self) -> None:
        content = self._content()
        assert [name for name in self.names if content[name] != self.new[name]] == []
        assert {path.name for path in self.folder.iterdir()} == {*self.names}


def _toy(folder: Path) -> Path:
    """A small store of two classes and a covariate."""
    rng = np.random.default_rng(3)
    store = LogitStore.create(folder / "toy.zarr", classes=2, covariate_names=["x"])
    with store.writer() as writer:
        writer.append(rng.normal(size=(90, 2)), rng.integers(0, 2, 90), covariates=rng.random(90))
    return folder / "toy.zarr"


def _report(folder: Path) -> Outputs:
    result = folder / "result.json"
    evaluation = cs.evaluate(_toy(folder), [cs.ECE()], scheduler="serial")
    result.write_text(json.dumps(evaluation.to_dict()))
    return Outputs(
        folder, lambda to: ["report", str(result), "-o", str(to / "page.html")], "page.html"
    )


def _command(name: str, *outputs: str, more: tuple[str, ...] = ()) -> Callable[[Path], Outputs]:
    def build(folder: Path) -> Outputs:
        def command(to: Path) -> list[str]:
            options = [
                part
                for output in outputs
                for part in ("--json" if output.endswith(".json") else "-o", str(to / output))
            ]
            return [name, str(_toy(folder)), *options, *more, "--scheduler", "serial", "-q"]

        return Outputs(folder, command, *outputs)

    return build


UNDERTAKINGS: dict[str, Callable[[Path], Undertaking]] = {
    "simulate": lambda folder: simulate_store(folder, False),
    "simulate over an old store": lambda folder: simulate_store(folder, True),
    "ingest": lambda folder: ingest_store(folder, False),
    "ingest over an old store": lambda folder: ingest_store(folder, True),
    "loop": lambda folder: loop_store(folder, "new"),
    "loop over an old store": lambda folder: loop_store(folder, "overwrite"),
    "loop appending": lambda folder: loop_store(folder, "append"),
    "first night": lambda folder: NightOf(folder, "first"),
    "late labels": lambda folder: NightOf(folder, "late"),
    "report": _report,
    "evaluate": _command("evaluate", "out.json", more=("-e", "ece")),
    "reliability": _command("reliability", "picture.png", "out.json"),
    "bias": _command("bias", "map.csv", "out.json", more=("--covariates", "x", "--at", "grid")),
}


# ---------------------------------------------------------------- the faults


def _fail(injector: Injector, undertaking: Undertaking, max_points: int | None = None) -> None:
    """Let every call fail in every way, or at most `max_points` of them, spread over the calls."""
    undertaking.undo()
    ran = injector.run(undertaking.command, undertaking.folder)
    assert ran[:2] == (0, ""), ran
    undertaking.measure(injector)
    undertaking.check_done()
    calls = range(1, ran.calls + 1)
    points = [(at, kind) for kind in KINDS for at in calls]
    if max_points is not None:
        spread = np.linspace(1, ran.calls, max_points).round().astype(int)
        points = [(int(at), [*KINDS][k % len(KINDS)]) for k, at in enumerate(spread)]
    codes: Counter[int] = Counter()
    failures = []
    for at, kind in points:
        undertaking.undo()
        error, lasting = KINDS[kind]
        ran = injector.run(undertaking.command, undertaking.folder, at, error, lasting)
        codes[ran.code] += 1
        try:
            _check(injector, undertaking, ran, killed=not error)
        except AssertionError as failure:
            failures.append(f"{kind} at call {at}: {ran}: {failure}")
            print(failures[-1], flush=True)
    print(f"{ran.calls} calls, {len(points)} points, exit codes {dict(codes)}", flush=True)
    assert failures == []


def _check(injector: Injector, undertaking: Undertaking, ran: Ran, killed: bool) -> None:
    """Check what a command with a failing call leaves, and that it can be completed."""
    succeeded = ran.code == 0
    assert succeeded or ran.code == (-signal.SIGKILL if killed else 1)
    if succeeded or killed:
        assert ran.err == ""
    else:
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
    if succeeded:
        undertaking.check_done()
    undertaking.check()
    if undertaking.may_go_on():
        assert injector.run(undertaking.again, undertaking.folder)[:2] == (0, "")
    undertaking.check_done()


@pytest.mark.parametrize("name", some_slow(UNDERTAKINGS, keep=("first night",)))
def test_failing_writes__at_some_calls(injector: Injector, tmp_path: Path, name: str) -> None:
    _fail(injector, UNDERTAKINGS[name](tmp_path), max_points=len(KINDS))


@pytest.mark.slow
@pytest.mark.parametrize("name", UNDERTAKINGS)
def test_failing_writes__at_every_call(injector: Injector, tmp_path: Path, name: str) -> None:
    _fail(injector, UNDERTAKINGS[name](tmp_path))
