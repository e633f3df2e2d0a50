"""A call below libc that fails, or kills the process, at each write of the commands that write.

A preloaded library counts the calls that change a folder and lets one of them fail.  In each case
there is an error of one line or none, no partial output counts as complete, and the same command
succeeds afterwards.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import shutil
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.store import LogitStore
from tests.support import ROOT
from tests.support.night_faults import Forks, Scene, read_output

KINDS = {  # errno, and whether later calls fail as well
    "full disk": (errno.ENOSPC, True),
    "input/output error": (errno.EIO, False),
    "kill": (0, False),
}
ROWS, CLASSES = 200, 1000  # four chunks of a store
_ORDERS = struct.Struct("4i32s512s512s")


class Ran(NamedTuple):
    code: int
    err: str
    calls: int  # number of calls that change the folder
    failed: str  # the call that failed


class Injector:
    """Commands in processes in which a call fails."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("no C compiler, to build the library that has writes fail")
        library, orders = folder / "failing_writes.so", folder / "orders"
        source = ROOT / "tests" / "support" / "failing_writes.c"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            pytest.skip(f"the library that has writes fail cannot be built: {built.stderr}")
        orders.write_bytes(bytes(_ORDERS.size))
        with open(orders, "r+b") as file:
            self._orders = mmap.mmap(file.fileno(), 0)
        self.forks = Forks({"LD_PRELOAD": str(library), "FAILING_WRITES": str(orders)})

    def run(
        self, command: list[str], folder: Path, at: int = 0, error: int = 0, lasting: bool = False
    ) -> Ran:
        """Run a command; call number `at` of those that change the folder fails."""
        _ORDERS.pack_into(self._orders, 0, 0, at, error, lasting, b"", b"", bytes(folder))
        self.forks.begin(command)
        (code,), err = self.forks.end()
        err = "".join(line for line in err.splitlines(True) if not line.startswith("wrote "))
        calls, _, _, _, call, path, _ = _ORDERS.unpack_from(self._orders)
        failed = b" ".join(text.rstrip(b"\0") for text in (call, path)).decode()
        return Ran(code, err, calls, failed)


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Injector]:
    one = Injector(tmp_path_factory.mktemp("library"))
    yield one
    one.forks.close()


# ---------------------------------------------------------------- commands


class Undertaking(Protocol):
    """A command, and the valid contents of its folder after a fault."""

    folder: Path
    command: list[str]
    again: list[str]  # command that completes it

    def undo(self) -> None: ...
    def measure(self, injector: Injector) -> None: ...
    def check(self) -> None: ...
    def may_go_on(self) -> bool: ...
    def check_done(self) -> None: ...


class StoreWriting:
    """A command that writes a new store or replaces an old one."""

    def __init__(self, folder: Path, command: list[str], again: list[str], old: bool) -> None:
        self.folder = folder / "work"
        self.place = self.folder / "made.zarr"
        self.command, self.again = ([str(x) for x in each] for each in (command, again))
        self._kept = folder / "old.zarr" if old else None
        if self._kept is not None:
            rng = np.random.default_rng(1)
            with LogitStore.create(self._kept, classes=CLASSES).writer() as writer:
                writer.append(rng.normal(size=(70, CLASSES)), rng.integers(0, CLASSES, 70))
        self.undo()
        self.old = self._content()

    def undo(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self._kept is not None:
            shutil.copytree(self._kept, self.place)

    def measure(self, injector: Injector) -> None:
        self.new = self._content()
        assert self.new not in (None, self.old)

    def _content(self) -> Any:
        """Number and hash of the rows of a complete store; None if there is no such store."""
        try:
            store = LogitStore.open(self.place)
            if not store.finished:
                with pytest.raises(cs.StoreError, match="did not finish"):
                    _ = store.source
                return None
        except cs.StoreError as error:
            if "there is no prediction store" not in str(error):  # for instance a damaged store
                raise AssertionError(str(error)) from error
            return None
        columns = store.source.values, store.source.labels
        data = b"".join(np.asarray(column[: store.rows]).tobytes() for column in columns)
        return store.rows, hashlib.sha256(data).hexdigest()

    def check(self) -> None:
        assert self._content() in (None, self.old, self.new)
        if self.command[-1] == "append":  # the old rows were complete
            assert self._content() is not None

    def may_go_on(self) -> bool:
        """Whether `again` gives the new store: rows appended twice would be in it twice."""
        return self.command[-1] != "append" or self._content() == self.old

    def check_done(self) -> None:
        assert self._content() == self.new
        assert [path.name for path in self.folder.iterdir()] == [self.place.name]


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


class NightOf(Scene):
    """A night: the first one of its ledger, or one with late labels."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, kind, rows=200, groups=2)
        self.command = self.again = ["nightly", str(self.job), "--date", self.day, "-q"]

    def measure(self, injector: Injector) -> None:  # type: ignore[override]
        super().measure(injector.forks)

    def may_go_on(self) -> bool:
        return True


def _simulate(folder: Path, overwrite: bool) -> StoreWriting:
    place = folder / "work" / "made.zarr"
    command = ["simulate", place, "-n", ROWS, "-k", CLASSES, "-q"]
    command += ["--overwrite"] * overwrite  # without it, the command resumes
    return StoreWriting(folder, command, command, overwrite)


def _ingest(folder: Path, overwrite: bool) -> StoreWriting:
    rng = np.random.default_rng(2)
    files = folder / "logits.npy", folder / "labels.npy"
    np.save(files[0], rng.normal(size=(ROWS, CLASSES)).astype(np.float32))
    np.save(files[1], rng.integers(0, CLASSES, ROWS))
    command = ["ingest", *files, folder / "work" / "made.zarr", "-q"]
    command += ["--overwrite"] * overwrite
    return StoreWriting(folder, command, command, overwrite)


def _loop(folder: Path, mode: str) -> StoreWriting:
    command = ["loop", folder / "work" / "made.zarr"]
    again = "append" if mode == "append" else "overwrite"
    return StoreWriting(folder, [*command, mode], [*command, again], mode != "new")


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
    "simulate": lambda folder: _simulate(folder, False),
    "simulate over an old store": lambda folder: _simulate(folder, True),
    "ingest": lambda folder: _ingest(folder, False),
    "ingest over an old store": lambda folder: _ingest(folder, True),
    "loop": lambda folder: _loop(folder, "new"),
    "loop over an old store": lambda folder: _loop(folder, "overwrite"),
    "loop appending": lambda folder: _loop(folder, "append"),
    "first night": lambda folder: NightOf(folder, "first"),
    "late labels": lambda folder: NightOf(folder, "late"),
    "report": _report,
    "evaluate": _command("evaluate", "out.json"),
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
    done = ran.code == 0
    assert done or ran.code == (-signal.SIGKILL if killed else 1)
    if done or killed:
        assert ran.err == ""
    else:
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
    if done:
        undertaking.check_done()
    undertaking.check()
    if undertaking.may_go_on():
        assert injector.run(undertaking.again, undertaking.folder)[:2] == (0, "")
    undertaking.check_done()


@pytest.mark.parametrize("name", UNDERTAKINGS)
def test_failing_writes__at_some_calls(injector: Injector, tmp_path: Path, name: str) -> None:
    _fail(injector, UNDERTAKINGS[name](tmp_path), max_points=len(KINDS))


@pytest.mark.slow
@pytest.mark.parametrize("name", UNDERTAKINGS)
def test_failing_writes__at_every_call(injector: Injector, tmp_path: Path, name: str) -> None:
    _fail(injector, UNDERTAKINGS[name](tmp_path))
