"""Ledgers with a flipped bit: in each byte of their small files, in samples of the large ones."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.ledger.alarms import AlarmBook
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night
from tests.support.night_faults import write_job, write_store

_LARGE = 10_000  # bytes of a file of which only samples are damaged, except of the index


@pytest.fixture(scope="module")
def three_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ledger of three days with two groups."""
    folder = tmp_path_factory.mktemp("nights")
    job = write_job(folder)
    for k in range(3):
        night(job, write_store(folder, k))
    return folder / "ledger"


def _contents(path: Path) -> dict[str, Any] | None:
    """Everything that nights read of a ledger, by its entries, or None if it is refused."""
    try:
        ledger = Ledger.open(path)
        book = AlarmBook(ledger)
    except cs.StoreError:
        return None
    contents: dict[str, Any] = {
        "recipe": ledger.recipe,
        "notes": ledger.notes,
        "alarms": (book._starts, book._raised, book._places),
        "damaged": ledger.check(),
    }
    named = {(day, model) for day, model in ledger.damaged}
    for entry in ledger.entries:
        if (entry.day, entry.model) in named:
            continue
        numbers = {name: ledger.read(entry, name).tobytes() for name in entry.sections}
        key = f"{entry.day} {entry.model} {entry.group}"
        contents[key] = entry.n, entry.revision, entry.facts, numbers
    return contents


def _places(ledger: Path, small_step: int, samples: int) -> Iterator[tuple[Path, int]]:
    """Files with the positions to damage."""
    for file in sorted(ledger.rglob("*")):
        if not file.is_file() or file.name == ".writer.lock" or "results" in file.parts:
            continue
        size = file.stat().st_size
        if size < _LARGE or file.name == "index.log":
            yield from ((file, at) for at in range(0, size, small_step))
        else:
            yield from ((file, int(at)) for at in np.linspace(0, size - 1, samples))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("small_step", "samples"), [(401, 3), pytest.param(1, 200, marks=pytest.mark.slow)]
)
def test_flipped_bit__is_an_error_or_names_its_day(
    three_nights: Path, tmp_path: Path, small_step: int, samples: int
) -> None:
    ledger = tmp_path / "ledger"
    shutil.copytree(three_nights, ledger)
    intact = _contents(ledger)
    assert intact is not None
    assert intact["damaged"] == []
    rng = np.random.default_rng(small_step)
    outcomes: Counter[str] = Counter()
    for file, at in _places(ledger, small_step, samples):
        content = file.read_bytes()
        changed = bytearray(content)
        changed[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(bytes(changed))
        contents = _contents(ledger)
        if contents is None:
            outcomes["refused"] += 1
        else:
            damaged = contents.pop("damaged")
            wrong = [key for key, value in contents.items() if intact[key] != value]
            assert wrong == [], (file, at, changed[at], damaged)
            assert damaged or contents.keys() == intact.keys() - {"damaged"}, (file, at)
            outcomes["named" if damaged else "same"] += 1
        file.write_bytes(content)
    print(f"{outcomes.total()} flipped bits: {dict(outcomes)}")
    assert outcomes["named"] > outcomes.total() / 4
