"""Ledgers after their writers were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest

import calibscale as cs
from calibscale.atomic_files import aside_of
from calibscale.monitoring.ledger.day_ledger import Ledger
from tests.support import ROOT
from tests.support.ledgers import records_of

_WRITER = """
import sys
import time
import numpy as np
from calibscale.monitoring.ledger.day_ledger import Ledger, Record
ledger = Ledger.open(sys.argv[1])
print("start", flush=True)
for turn in range(1, 10_000):
    with ledger.writing():
        value = float(turn)
        states = {"states": np.full(ledger.recipe.sizes["states"], value)}
        records = {None: Record(turn, states, {"turn": turn}), 1.0: Record(turn, states, {})}
        ledger.write("2026-01-01", "v1", records)
"""


@pytest.mark.slow
@pytest.mark.process
def test_kills__leave_the_old_or_the_new_day(small, tmp_path):
    """A process replaces one day repeatedly. After each kill both states are of one run."""
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, small)
    with ledger.writing():
        zero = np.zeros(small.sizes["states"])
        ledger.write("2026-01-01", "v1", records_of({None: (0, zero), 1.0: (0, zero)}, {"turn": 0}))
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    turns = []
    # moments of starting, and one after many turns
    for moment in (*rng.uniform(0, 0.3, 3), 1.0):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "start\n"
        time.sleep(moment)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        opened = Ledger.open(path)
        all_rows, part = opened.select()[0], opened.select(group=1.0)[0]
        assert len(opened.entries) == 2
        # the records of all rows and of the group are of one turn
        assert all_rows.n == part.n == all_rows.info["turn"]
        for entry in (all_rows, part):
            np.testing.assert_array_equal(opened.read(entry), float(all_rows.n))
        turns.append(all_rows.n)
    assert max(turns) > 0
    with ledger.writing():
        pass
    assert [p for p in path.rglob(".*") if p.name != ".writer.lock"] == []
    # two slots of records, each a folder and a file
    assert len(list((path / "states" / "c").rglob("*"))) == 4


_STOPS = """
import os, sys, time
from pathlib import Path
import numpy as np
from calibscale.monitoring.ledger import day_ledger as module
from calibscale.monitoring.ledger.day_ledger import Ledger, Record
def hang(*_):
    print("midway", flush=True)
    time.sleep(600)
def hang_in_the_line(path, index, line):
    with open(path / "index.log", "ab") as file:
        file.write(line[: len(line) // 2])
    hang()
ledger = Ledger.open(sys.argv[1])
if sys.argv[2] == "create":
    module.write_whole = hang
    Ledger.create(sys.argv[3], ledger.recipe)
vector = np.ones(ledger.recipe.sizes["states"])
with ledger.writing():
    if sys.argv[2] == "slot":
        Path.replace = hang
    else:
        module.log.append = hang_in_the_line
    records = {group: Record(1, {"states": vector}, {}) for group in (None, 1.0)}
    ledger.write("2026-01-02", "v1", records)
"""


@contextmanager
def _midway(*arguments):
    """A writer stopped in the middle of a write, and killed at the end of the context."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STOPS, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "midway\n"
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
@pytest.mark.parametrize(("stage", "left"), [("slot", "0.*.partial"), ("index", "0")])
def test_killed_writer__leftovers_in_the_ledger_are_removed(small, tmp_path, stage, left):
    ledger = Ledger.create(tmp_path / "ledger", small)
    vector = np.ones(small.sizes["states"])
    with ledger.writing():
        ledger.write("2026-01-01", "v1", records_of({None: (1, vector)}, {}))
    slots = tmp_path / "ledger" / "states" / "c"
    with _midway(tmp_path / "ledger", stage):
        assert list(slots.glob(f"1/{left}"))
        assert (ledger.path / "index.log").read_bytes().endswith(b"\n") == (stage != "index")
        with pytest.raises(cs.StoreError, match="another writer"), ledger.writing():
            pass
        # a half line at the end is no damage
        assert ledger.check() == []
    assert list(slots.glob(f"1/{left}"))
    with ledger.writing():
        # the slot of the killed writer is gone
        assert [p.name for p in slots.iterdir()] == ["0"]
        ledger.write("2026-01-03", "v1", records_of({None: (1, vector)}, {}))
    assert Ledger.open(tmp_path / "ledger").days() == ["2026-01-01", "2026-01-03"]
    np.testing.assert_array_equal(ledger.read(ledger.select()[0]), vector)


@pytest.mark.process
def test_killed_writer__unfinished_ledger_is_removed(small, tmp_path):
    Ledger.create(tmp_path / "other", small)
    with _midway(tmp_path / "other", "create", tmp_path / "ledger"):
        (aside,) = tmp_path.glob(".ledger.*.new")
        ledger = Ledger.create(tmp_path / "ledger", small)
        with ledger.writing():
            assert aside.exists()
    with ledger.writing():
        # its writer has ended
        assert not aside.exists()


def test_killed_writer__unfinished_sum_is_removed(small, tmp_path):
    """The sum is removed even if its final name has changed."""
    ledger = Ledger.create(tmp_path / "ledger", small)
    aside = aside_of(ledger.path / "sums" / "v1-46188-0123456789abcdef.sum")
    aside.parent.mkdir()
    aside.write_bytes(b"half")
    with ledger.writing():
        pass
    assert list(aside.parent.iterdir()) == []
