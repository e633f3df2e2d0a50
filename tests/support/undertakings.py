"""Commands that faults disturb, the valid contents that they leave, and calls below libc that fail.

Stores are folders of this machine or of a local S3 server.
"""

from __future__ import annotations

import hashlib
import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.store import LogitStore
from calibscale.monitoring.ledger.day_ledger import Ledger
from tests.support import ROOT
from tests.support.ledgers import change_days, recipe_of, records_of, source_of_loans
from tests.support.night_faults import REPORT, Forks, Scene, ledger_records, night_outputs
from tests.support.s3_server import BUCKET, S3Server

ROWS, CLASSES = 200, 1000  # four chunks of a store
# numbers of calls, the call that fails, its error, and whether later ones fail; texts of C
_ORDERS = struct.Struct("4i32s512s512s")


class Ran(NamedTuple):
    code: int
    err: str
    calls: int  # number of calls that change the folder
    failed: str  # the call that failed


class Injector:
    """Commands in processes in which a call fails."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("no C compiler, to build the library that has writes fail")
        library, orders = folder / "failing_writes.so", folder / "orders"
        source = ROOT / "tests" / "support" / "failing_writes.c"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            pytest.skip(f"the library that has writes fail cannot be built: {built.stderr}")
        # orders are in memory that the processes share, so that none of them reads a file
        orders.write_bytes(bytes(_ORDERS.size))
        with open(orders, "r+b") as file:
            self._orders = mmap.mmap(file.fileno(), 0)
        preloaded = {"LD_PRELOAD": str(library), "FAILING_WRITES": str(orders)}
        self.forks = Forks(preloaded | (environment or {}))

    def begin(
        self, command: list[str], folder: Path, at: int = 0, error: int = 0, lasting: bool = False
    ) -> int:
        """Start a command, and return its process. Change number `at` of the folder fails."""
        _ORDERS.pack_into(self._orders, 0, 0, at, error, lasting, b"", b"", bytes(folder))
        (process,) = self.forks.begin(command)
        return process

    def end(self) -> Ran:
        """Wait for the command."""
        (code,), err = self.forks.end()
        # lines about outputs are no errors
        err = "".join(line for line in err.splitlines(True) if not line.startswith("wrote "))
        calls, _, _, _, call, path, _ = _ORDERS.unpack_from(self._orders)
        failed = b" ".join(text.rstrip(b"\0") for text in (call, path)).decode()
        return Ran(code, err, calls, failed)

    def run(
        self, command: list[str], folder: Path, at: int = 0, error: int = 0, lasting: bool = False
    ) -> Ran:
        """Run a command. Change number `at` of the folder fails."""
        self.begin(command, folder, at, error, lasting)
        return self.end()


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
    """A command that writes a new store or replaces an old one, here or on a server."""

    def __init__(
        self,
        folder: Path,
        command: list[Any],
        again: list[Any],
        old: bool,
        server: S3Server | None = None,
    ) -> None:
        self.folder = folder / "work"
        self.server = server
        self.place = store_of(folder, server)
        self.command, self.again = ([str(x) for x in words] for words in (command, again))
        self._kept = folder / "old.zarr" if old else None
        if self._kept is not None:
            rng = np.random.default_rng(1)
            # an old store of other rows, so that a mixture of both is seen
            with LogitStore.create(self._kept, classes=CLASSES).writer() as writer:
                writer.append(rng.normal(size=(70, CLASSES)), rng.integers(0, CLASSES, 70))
        self.undo()
        self.old = self._content()

    def undo(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self.server is not None:
            self.server.put(self._remote, {} if self._kept is None else files_of(self._kept))
        elif self._kept is not None:
            shutil.copytree(self._kept, self.place)

    @property
    def _remote(self) -> str:
        """Folder of the store in the bucket."""
        return str(self.place).removeprefix(f"s3://{BUCKET}/")

    def measure(self, injector: Injector) -> None:
        self.new = self._content()
        assert self.new not in (None, self.old)
        self._chunks = self._stored_chunks()

    def _files(self) -> dict[str, bytes]:
        if self.server is not None:
            return self.server.files(self._remote)
        return files_of(Path(self.place))

    def _stored_chunks(self) -> dict[str, bytes]:
        # chunks have the rows, other files the description
        return {name: content for name, content in self._files().items() if "/c/" in name}

    def _content(self) -> Any:
        """Number and hash of the rows of a complete store, or None if there is no such store."""
        options = None
        if self.server is not None:
            # fsspec would answer from its memory of the folder
            options = {**self.server.options, "use_listings_cache": False}
        try:
            store = LogitStore.open(self.place, storage_options=options)
            if not store.finished:
                # an unfinished store has no source, and says why
                with pytest.raises(cs.StoreError, match="did not finish"):
                    _ = store.source
                return None
        except cs.StoreError as error:
            if "there is no prediction store" not in str(error):  # for instance a damaged store
                raise AssertionError(str(error)) from error
            return None
        columns = store.source.values, store.source.labels
        # bits of all rows: a missing chunk would be zeros
        data = b"".join(np.asarray(column[: store.rows]).tobytes() for column in columns)
        return store.rows, hashlib.sha256(data).hexdigest()

    def check(self) -> None:
        self.state()

    def state(self) -> str:
        """State of the store: that before the command, that after it, or one between."""
        content = self._content()
        assert content in (None, self.old, self.new)
        if self.command[-1] == "append":  # the old rows were complete
            assert content is not None
        if content == self.new:
            return "after"
        # an empty folder is the same as no store
        if content == self.old and (content is not None or not self._files()):
            return "before"
        return "between"

    def may_go_on(self) -> bool:
        """Whether `again` gives the new store: rows appended twice would be in it twice."""
        return self.command[-1] != "append" or self._content() == self.old

    def check_done(self) -> None:
        assert self._content() == self.new
        assert self._stored_chunks() == self._chunks
        # no leftovers of writers
        left = [path.name for path in self.folder.iterdir()]
        assert left == ([] if self.server is not None else [Path(self.place).name])


def store_of(folder: Path, server: S3Server | None = None) -> Path | str:
    """Path or URL of the store that a command makes."""
    if server is None:
        return folder / "work" / "made.zarr"
    return f"s3://{BUCKET}/{folder.name}/made.zarr"


def files_of(folder: Path) -> dict[str, bytes]:
    """Content of the files in a folder, by their paths in it."""
    if not folder.exists():
        return {}
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


class LedgerWriting:
    """Changes of days of a ledger. Its log is worn and is rewritten at the first of them."""

    server = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self._kept, place = folder / "kept", self.folder / "ledger"
        self.command = self.again = ["days", str(place)]
        recipe = recipe_of(source_of_loans(np.random.default_rng(6)), (cs.ECE(notion="positive"),))
        ledger = Ledger.create(self._kept, recipe)
        vector = np.zeros(recipe.sizes["states"])
        with ledger.writing():
            # more lines of replaced days than of days in use: the next write makes a new log
            for _ in range(70):
                ledger.write("2026-01-01", "v1", records_of({None: (0, vector)}, {}))
        self.undo()
        self.states = [self._records(), *(self._records() for _ in change_days(place))]

    def undo(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._kept, self.folder / "ledger")

    def measure(self, injector: Injector) -> None:
        self.check_done()

    def _records(self) -> dict[str, Any]:
        return ledger_records(self.folder)

    def check(self) -> None:
        self.state()

    def state(self) -> str:
        """State of the ledger: that before the changes, after them, or after one of them."""
        at = self.states.index(self._records())
        return {0: "before", len(self.states) - 1: "after"}.get(at, "between")

    def may_go_on(self) -> bool:
        return True

    def check_done(self) -> None:
        assert self._records() == self.states[-1]
        # the file of the lock stays, as other writers may hold it
        left = [path.name for path in self.folder.rglob(".*") if path.name != ".writer.lock"]
        assert left == []


class NightOf(Scene):
    """A night: the first one of its ledger, or one with late labels."""

    def __init__(
        self, folder: Path, kind: str, server: S3Server | None = None, outputs: str = REPORT
    ) -> None:
        super().__init__(folder, kind, rows=200, groups=2, server=server, outputs=outputs)
        self.command = self.again = ["nightly", str(self.job), "--date", self.day, "-q"]

    server = None  # the outputs and the ledger are on this machine

    def measure(self, injector: Injector) -> None:  # type: ignore[override]
        """Keep the results of the night that has just ended undisturbed."""
        self.keep_new()

    def state(self) -> str:
        """State of the ledger and the outputs: that before the night, after it, or one between."""
        self.check()
        now = ledger_records(self.folder), night_outputs(self.folder)
        if now == (self.new_records, self.new):
            return "after"
        return "before" if now == (self.old_records, self.old) else "between"

    def may_go_on(self) -> bool:
        return True


def simulate_store(folder: Path, overwrite: bool) -> StoreWriting:
    command = ["simulate", store_of(folder), "-n", ROWS, "-k", CLASSES, "-q"]
    if overwrite:  # without it, the command resumes
        command.append("--overwrite")
    return StoreWriting(folder, command, command, overwrite)


def ingest_store(folder: Path, overwrite: bool, server: S3Server | None = None) -> StoreWriting:
    rng = np.random.default_rng(2)
    files = folder / "logits.npy", folder / "labels.npy"
    np.save(files[0], rng.normal(size=(ROWS, CLASSES)).astype(np.float32))
    np.save(files[1], rng.integers(0, CLASSES, ROWS))
    command = ["ingest", *files, store_of(folder, server), "-q"]
    if overwrite:
        command.append("--overwrite")
    return StoreWriting(folder, command, command, overwrite, server)


def loop_store(folder: Path, mode: str, server: S3Server | None = None) -> StoreWriting:
    command = ["loop", store_of(folder, server)]
    again = "append" if mode == "append" else "overwrite"
    return StoreWriting(folder, [*command, mode], [*command, again], mode != "new", server)
