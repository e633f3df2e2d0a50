"""Nights of damaged ledgers, and of jobs and data that do not fit the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night
from tests.support.night_faults import (
    DAYS,
    JOB,
    ledger_records,
    night_outputs,
    write_job,
    write_store,
)
from tests.support.slow_cases import some_slow


def flip_bit(folder: Path, day: str, section: str, group: float | None) -> None:
    """Flip a bit of a record."""
    ledger = Ledger.open(folder / "ledger")
    (entry,) = ledger.select(day, day, group=group)
    file = folder / "ledger" / section / "c" / str(entry.slot) / "0"
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 4
    file.write_bytes(bytes(stored))


@pytest.mark.parametrize("group", some_slow([None, 1.0], keep=[1.0]))
@pytest.mark.parametrize("section", ["states", "wagers", "replicates"])
def test_damaged_day__is_named_and_repaired_while_other_days_are_used(
    run: Any,
    folder: Path,
    section: str,
    group: float | None,
) -> None:
    if (section, group) in {("wagers", None), ("replicates", 1.0)}:
        return  # there are no such records
    job = folder / "job.toml"
    night(job, write_store(folder, 1))
    night(job, write_store(folder, 2))
    intact = ledger_records(folder)
    flip_bit(folder, DAYS[1], section, group)
    ran = run("ledger", "check", folder / "ledger")
    assert ran.code == 1
    assert f"the record of {DAYS[1]} (v1) is damaged" in ran.err
    assert "1 damaged" in ran.out
    write_store(folder, 3)
    ran = run("nightly", job, "--date", DAYS[3])
    assert ran.code == 5, ran.err
    result = json.loads((folder / "out" / f"{DAYS[3]}.json").read_text())
    window = result["windows"][1]
    messages = [*window["damaged"], *result["notes"]]
    assert any(DAYS[1] in message for message in messages), messages
    assert DAYS[1] in ran.out
    if (section, group) == ("states", None):
        assert window["days"] == [DAYS[0], DAYS[2], DAYS[3]]
    assert all(records["value"] is not None for records in window["results"])
    # run the same day again: its predictions are unchanged, but its record is damaged
    assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
    records = ledger_records(folder)
    del records[DAYS[3]]
    assert records == intact
    assert run("ledger", "check", folder / "ledger").code == 0


def test_damaged_index__is_reported(run: Any, folder: Path) -> None:
    index = folder / "ledger" / "index.log"
    index.unlink()
    ran = run("nightly", folder / "job.toml", "--date", DAYS[0], "-q")
    assert ran.code == 1
    assert f"{folder / 'ledger'}: its index is damaged" in ran.err
    assert "index.log" in ran.err
    assert not index.exists()


def test_truncated_index__of_a_killed_night_loses_its_day_which_is_read_again(
    run: Any,
    folder: Path,
) -> None:
    index = folder / "ledger" / "index.log"
    content, old = index.read_bytes(), night_outputs(folder)
    index.write_bytes(content[:-20])
    (folder / "ledger" / "index.last").unlink()  # it is written after the line
    assert run("nightly", folder / "job.toml", "--date", DAYS[0], "-q").code == 0
    assert index.read_bytes() == content
    assert night_outputs(folder) == old


def test_truncated_index__of_an_earlier_night_is_an_error_until_it_is_repaired(
    run: Any, folder: Path
) -> None:
    job = folder / "job.toml"
    night(job, write_store(folder, 1))
    intact = ledger_records(folder)
    index = folder / "ledger" / "index.log"
    index.write_bytes(index.read_bytes().splitlines(keepends=True)[0])
    write_store(folder, 2)
    ran = run("nightly", job, "--date", DAYS[2], "-q")
    assert ran.code == 1
    assert "its last lines are missing" in ran.err
    assert f"calibscale ledger repair {folder / 'ledger'}" in ran.err
    assert run("ledger", "repair", folder / "ledger").code == 0
    assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
    assert ledger_records(folder) == intact


def test_damaged_result__is_recomputed(run: Any, folder: Path) -> None:
    old = night_outputs(folder)
    (stored,) = (folder / "ledger" / "results").rglob("*.json")
    stored.write_text(stored.read_text()[:500])
    assert run("nightly", folder / "job.toml", "--date", DAYS[0], "-q").code == 0
    assert night_outputs(folder) == old


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("features = 20", "features = 21"), "estimators"),
        (('"ece", ', ""), "estimators"),
        (('group_by = "region"\n', ""), "group_by"),
        (("replicates = 19", "replicates = 29"), "test"),
    ],
)
def test_job__that_does_not_fit_its_ledger_is_refused(
    run: Any,
    folder: Path,
    change: tuple[str, str],
    word: str,
) -> None:
    old = ledger_records(folder), night_outputs(folder)
    text = JOB.replace(*change).replace('["ece", "ckce"]', '["ckce"]')
    write_store(folder, 1)
    ran = run("nightly", write_job(folder, text), "--date", DAYS[1])
    assert ran.code == 2
    assert word in ran.err
    assert "changed since the ledger" in ran.err
    assert (ledger_records(folder), night_outputs(folder)) == old


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": 4}, "4 classes, but the ledger has 3"),
        ({"names": ("age", "region")}, "the covariates are age, region, but the ledger has"),
    ],
)
def test_data__that_do_not_fit_the_ledger_are_refused(
    run: Any,
    folder: Path,
    changes: dict[str, Any],
    words: str,
) -> None:
    old = ledger_records(folder)
    write_store(folder, 1, **changes)
    ran = run("nightly", folder / "job.toml", "--date", DAYS[1])
    assert ran.code == 5
    assert words in ran.err
    assert f"{DAYS[1]}.zarr" in ran.err
    assert ledger_records(folder) == old
