"""Kills at random moments and disks that are full at random writes, of all commands that write.

``python -m tests.faults.campaign --kills 500 --full-disks 300`` disturbs commands and runs them
again: the result must have the bits of an undisturbed run.  It prints each case, a failure with
its seed, and at the end a table of the cases by command, storage and what the fault left.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from tests.support.night_faults import TABLES
from tests.support.s3_server import S3Server, s3_server
from tests.support.undertakings import (
    Injector,
    LedgerWriting,
    NightOf,
    Ran,
    StoreWriting,
    ingest_store,
    loop_store,
)

Undertaking = StoreWriting | LedgerWriting | NightOf
Build = Callable[[Path, S3Server], Undertaking]

# by command and storage: of the store, or of the predictions of a night, whose ledger is here
UNDERTAKINGS: dict[tuple[str, str], Build] = {
    ("ingest", "disk"): lambda folder, server: ingest_store(folder, False),
    ("ingest", "S3"): lambda folder, server: ingest_store(folder, False, server),
    ("ingest --overwrite", "disk"): lambda folder, server: ingest_store(folder, True),
    ("ingest --overwrite", "S3"): lambda folder, server: ingest_store(folder, True, server),
    ("append", "disk"): lambda folder, server: loop_store(folder, "append"),
    ("append", "S3"): lambda folder, server: loop_store(folder, "append", server),
    ("ledger", "disk"): lambda folder, server: LedgerWriting(folder),
    ("first night", "disk"): lambda folder, server: NightOf(folder, "first", None, TABLES),
    ("first night", "S3"): lambda folder, server: NightOf(folder, "first", server, TABLES),
    ("late labels", "disk"): lambda folder, server: NightOf(folder, "late", None, TABLES),
    ("late labels", "S3"): lambda folder, server: NightOf(folder, "late", server, TABLES),
}
FAULTS = ("kill", "full disk")
STATES = ("before", "between", "after")  # that a fault left
FAILURES = ("lost or wrong", "not finished")


@dataclass(frozen=True)
class Outcome:
    """What a fault left, or the failure after it."""

    fault: str
    name: tuple[str, str]
    state: str
    text: str = ""


@dataclass
class Prepared:
    """An undertaking with the duration and the number of writes of an undisturbed run."""

    undertaking: Undertaking
    seconds: float
    writes: int
    late: int = field(default=0, init=False)  # kills after the command had ended


class Campaign:
    """Faults of undertakings that are prepared once."""

    def __init__(self, folder: Path, server: S3Server, injector: Injector) -> None:
        self._folder, self._server, self._injector = folder, server, injector
        self._prepared: dict[tuple[str, str], Prepared] = {}

    def run(self, fault: str, name: tuple[str, str], seed: int) -> Outcome:
        """One fault at a random moment or write, and the run after it."""
        rng = np.random.default_rng([seed, FAULTS.index(fault), [*UNDERTAKINGS].index(name)])
        prepared = self._prepare(name)
        if fault == "kill":
            ran = self._kill(prepared, rng)
        else:
            ran = self._fill(prepared, int(rng.integers(1, prepared.writes + 1)))
        text = f"seed {seed}, {ran}"
        undertaking = prepared.undertaking
        try:
            _check_end(ran, killed=fault == "kill")
            state = undertaking.state()
        except AssertionError as failure:
            return Outcome(fault, name, "lost or wrong", f"{text}: {failure}")
        if undertaking.may_go_on():
            again = self._injector.run(undertaking.again, undertaking.folder)
            if again[:2] != (0, ""):
                return Outcome(fault, name, "not finished", f"{text}: {state}: {again}")
        try:
            undertaking.check_done()
        except AssertionError as failure:
            return Outcome(fault, name, "lost or wrong", f"{text}: {state}: {failure}")
        return Outcome(fault, name, state)

    @property
    def late(self) -> int:
        """Number of kills that came after the command had ended, and were repeated."""
        return sum(prepared.late for prepared in self._prepared.values())

    def _prepare(self, name: tuple[str, str]) -> Prepared:
        if name not in self._prepared:
            folder = self._folder / "-".join(name).replace(" ", "-")
            folder.mkdir()
            undertaking = UNDERTAKINGS[name](folder, self._server)
            undertaking.undo()
            self._server.fill(0)
            began = time.perf_counter()
            ran = self._injector.run(undertaking.command, undertaking.folder)
            seconds = time.perf_counter() - began
            assert ran[:2] == (0, ""), ran
            writes = ran.calls if undertaking.server is None else self._server.writes
            undertaking.measure(self._injector)
            undertaking.check_done()
            self._prepared[name] = Prepared(undertaking, seconds, writes)
        return self._prepared[name]

    def _kill(self, prepared: Prepared, rng: np.random.Generator) -> Ran:
        """Kill the command at a random moment before its end."""
        undertaking = prepared.undertaking
        while True:
            undertaking.undo()
            process = self._injector.begin(undertaking.command, undertaking.folder)
            time.sleep(rng.uniform(0.0, prepared.seconds))
            os.kill(process, signal.SIGKILL)
            ran = self._injector.end()
            if ran.code == -signal.SIGKILL:
                return ran
            assert ran[:2] == (0, ""), ran
            prepared.late += 1
            prepared.seconds *= 0.98

    def _fill(self, prepared: Prepared, at: int) -> Ran:
        """Let the disk or the server have no room from a write on."""
        undertaking = prepared.undertaking
        undertaking.undo()
        if undertaking.server is None:
            return self._injector.run(
                undertaking.command, undertaking.folder, at, errno.ENOSPC, lasting=True
            )
        undertaking.server.fill(at)
        try:
            return self._injector.run(undertaking.command, undertaking.folder)
        finally:
            undertaking.server.fill(0)


def _check_end(ran: Ran, killed: bool) -> None:
    """Check the exit code and the error of a disturbed command."""
    if killed or ran.code == 0:
        assert ran.err == ""
        return
    assert ran.code == 1
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1


@contextmanager
def prepared_campaign(folder: Path) -> Iterator[Campaign]:
    """A campaign in a folder, with a server and processes of its own."""
    with s3_server() as server:
        names = {"key": "KEY", "secret": "SECRET", "endpoint_url": "ENDPOINT_URL"}
        options = {f"FSSPEC_S3_{names[key]}": value for key, value in server.options.items()}
        injector = Injector(folder, options)
        try:
            yield Campaign(folder, server, injector)
        finally:
            injector.forks.close()


def planned(kills: int, full_disks: int) -> list[tuple[str, tuple[str, str]]]:
    """Faults and undertakings of a campaign, in turn."""
    names = {"kill": kills, "full disk": full_disks}
    return [(fault, name) for fault, n in names.items() for name in islice(cycle(UNDERTAKINGS), n)]


def table(outcomes: list[Outcome]) -> str:
    """Numbers of cases by fault, command, storage and what the fault left."""
    lines = [_row("fault", "command", "storage", "cases", *STATES, *FAILURES)]
    for fault in FAULTS:
        total: Counter[str] = Counter()
        for name in UNDERTAKINGS:
            counts = Counter(o.state for o in outcomes if (o.fault, o.name) == (fault, name))
            total += counts
            lines.append(_row(fault, *name, *_numbers(counts)))
        lines.append(_row(fault, "all", "", *_numbers(total)))
    return "\n".join(lines)


def _numbers(counts: Counter[str]) -> list[int]:
    return [counts.total(), *(counts[state] for state in (*STATES, *FAILURES))]


def _row(*cells: object) -> str:
    widths = (10, 20, 8, 6, 7, 8, 6, 14, 13)
    texts = [
        f"{cell:<{w}}" if k < 3 else f"{cell:>{w}}"
        for k, (cell, w) in enumerate(zip(cells, widths, strict=True))
    ]
    return " ".join(texts)


def main() -> None:
    """Run a campaign and print its table and failures. Exit with 1 if there are any failures."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--full-disks", type=int, default=300)
    parser.add_argument(
        "--seed", type=int, default=1, help="first seed; each case has the next one"
    )
    parser.add_argument("--only", action="append", help="only these commands, as 'ingest S3'")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder, prepared_campaign(Path(folder)) as campaign:
        for k, (fault, name) in enumerate(planned(arguments.kills, arguments.full_disks)):
            if arguments.only and " ".join(name) not in arguments.only:
                continue
            outcome = campaign.run(fault, name, arguments.seed + k)
            outcomes.append(outcome)
            print(len(outcomes), fault, *name, outcome.state, outcome.text, sep="\t", flush=True)
        late = campaign.late
    print(table(outcomes))
    print(f"{late} kills came too late and were repeated")
    sys.exit(any(outcome.state in FAILURES for outcome in outcomes))


if __name__ == "__main__":
    main()
