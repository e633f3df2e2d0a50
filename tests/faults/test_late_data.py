"""Nights with missing or late rows and labels, and with wrong clocks."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night
from tests.support.night_faults import (
    DAYS,
    FILES,
    JOB,
    ledger_records,
    write_job,
    write_parquet,
    write_store,
)
from tests.support.slow_cases import some_slow


def _evidence(folder: Path, day: str) -> list[float]:
    outcome = night(folder / "job.toml", day).to_dict()
    assert outcome["day"] == outcome["windows"][1]["last"] == day
    return outcome["alarms"]["log_evidence"]


@pytest.mark.slow
def test_clock__that_goes_back_does_not_change_evidence(run: Any, tmp_path: Path) -> None:
    """The days are two apart and bets learn from the day before, so no day learns from another."""
    logs = []
    for name, order in (("forth", (0, 2, 4)), ("back", (0, 4, 2))):
        folder = tmp_path / name
        write_job(folder, JOB + "[alarms]\nlearn_days = 1\n")
        for k in (0, 2, 4):
            write_store(folder, k)
        for k in order:
            night(folder / "job.toml", DAYS[k])
        logs.append([_evidence(folder, DAYS[k]) for k in (2, 4)])
    assert logs[0] == logs[1]
    result = night(tmp_path / "back" / "job.toml", DAYS[2]).to_dict()
    assert result["windows"][1]["days"] == [DAYS[0], DAYS[2]]
    assert any(f"later days, up to {DAYS[4]}" in note for note in result["notes"])
    ran = run("nightly", tmp_path / "back" / "job.toml", "--date", DAYS[2], "--force")
    assert "later days" in " ".join(ran.out.split())


def test_clock__bets_of_a_day_learn_only_from_days_before_it(tmp_path: Path) -> None:
    write_job(tmp_path)
    for k in (0, 2, 1):
        night(tmp_path / "job.toml", write_store(tmp_path, k, rows=2000))
    ledger = Ledger.open(tmp_path / "ledger")
    bets = {e.day: e.info["bets"] for e in ledger.select()}
    folder_in_order = tmp_path / "other"
    write_job(folder_in_order)
    for k in (0, 1):
        night(folder_in_order / "job.toml", write_store(folder_in_order, k, rows=2000))
    assert bets[DAYS[1]] == Ledger.open(folder_in_order / "ledger").select()[1].info["bets"]


def test_clock__default_is_yesterday_although_there_are_future_days(
    run: Any,
    tmp_path: Path,
) -> None:
    """The clock of the machine and of its files was years ahead and is correct now."""
    job = write_job(tmp_path)
    yesterday = (datetime.now(UTC).date() - timedelta(1)).isoformat()
    place = Path(tmp_path / "days" / f"{write_store(tmp_path, 0)}.zarr")
    for day in ("2099-01-01", yesterday):
        shutil.copytree(place, place.with_name(f"{day}.zarr"))
        for path in place.with_name(f"{day}.zarr").rglob("*"):
            os.utime(path, (4e9, 4e9))
    assert run("nightly", job, "--date", "2099-01-01", "-q").code == 0
    for path in (*(tmp_path / "ledger").rglob("*"), *(tmp_path / "out").iterdir()):
        os.utime(path, (4e9, 4e9))
    ran = run("nightly", job)
    today = (datetime.now(UTC).date() - timedelta(1)).isoformat()
    if today == yesterday:  # unless midnight has passed
        assert ran.code == 0
        assert f"v1: Night of {date.fromisoformat(yesterday):%-d %b %Y}" in ran.out
    # an earlier day was added, so that the days between them are missing
    assert run("nightly", job, "--date", "2099-01-01", "-q").code == 5
    assert "nothing has changed" in run("nightly", job, "--date", "2099-01-01").out


@pytest.mark.parametrize("kind", ["store", "files"])
def test_day_without_rows__is_recorded(run: Any, tmp_path: Path, kind: str) -> None:
    """On the first night and on a later one, before rows arrive."""
    text, write = (JOB, write_store) if kind == "store" else (FILES, write_parquet)
    job = write_job(tmp_path, text)
    write(tmp_path, 0, 0)
    ran = run("nightly", job, "--date", DAYS[0])
    assert ran.code == 5, ran.err
    assert not (tmp_path / "ledger").exists()
    assert "rows of the day: 0 (none left out)" in ran.out
    assert json.loads((tmp_path / "out" / f"{DAYS[0]}.json").read_text())["n"] == 0
    write(tmp_path, 1, 200)
    assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
    write(tmp_path, 2, 0)
    ran = run("nightly", job, "--date", DAYS[2])
    assert ran.code == 5, ran.err
    assert f"No row of {DAYS[2]} could be used" in ran.out
    result = json.loads((tmp_path / "out" / f"{DAYS[2]}.json").read_text())
    day, all_days = result["windows"]
    assert (day["n"], all_days["n"], all_days["days"]) == (0, 200, [DAYS[1]])
    before, now = result["alarms"]["log_evidence"]
    assert now == pytest.approx(before, abs=1e-12)
    assert "nothing was done" in run("nightly", job, "--date", DAYS[2]).out
    write(tmp_path, 3, 200)
    assert night(job, DAYS[3]).to_dict()["windows"][1]["n"] == 400
    for k in (0, 2):
        write(tmp_path, k, 200)
        assert night(job, DAYS[k]).to_dict()["n"] == 200
    assert [r[None][0] for r in ledger_records(tmp_path).values()] == [200] * 4


@pytest.mark.parametrize("labelled", some_slow([0, 80], keep=[80]))
def test_late_labels__meet_the_bets_of_their_day(
    folder: Path, labelled: int, tmp_path: Path
) -> None:
    job = folder / "job.toml"
    night(job, write_store(folder, 1, rows=2000))
    result = night(job, write_store(folder, 2, labelled=labelled)).to_dict()
    assert (result["n"], result["n_unlabelled"]) == (labelled, 200 - labelled)
    assert any("have no label yet" in note for note in result["notes"])

    def bets() -> Any:
        (entry,) = Ledger.open(folder / "ledger").select(DAYS[2], DAYS[2])
        return entry.info["bets"]

    before = bets()
    assert any(before), before
    night(job, write_store(folder, 1, rows=3000))  # new bets would differ now
    result = night(job, write_store(folder, 2)).to_dict()
    assert (result["n"], result["n_unlabelled"]) == (200, 0)
    assert bets() == before


def test_first_night__without_labels_keeps_nothing(run: Any, tmp_path: Path) -> None:
    write_store(tmp_path, 0, labelled=0)
    ran = run("nightly", write_job(tmp_path), "--date", DAYS[0])
    assert ran.code == 5, ran.err
    assert "nothing was kept" in ran.out
    assert "labels are not complete for" in " ".join(ran.out.split())
    write_store(tmp_path, 0)
    assert night(tmp_path / "job.toml", DAYS[0]).to_dict()["n"] == 200


@pytest.mark.parametrize("kind", ["store", "files"])
def test_missing_predictions__are_reported(run: Any, folder: Path, kind: str) -> None:
    old = ledger_records(folder)
    job = folder / "job.toml"
    if kind == "files":
        job.write_text(FILES)
    ran = run("nightly", job, "--date", DAYS[1])
    assert ran.code == 5
    text = " ".join(ran.out.split())
    assert f"there are no predictions for {DAYS[1]}" in text
    assert f"{folder / 'days' / DAYS[1]}" in text
    assert ledger_records(folder) == old
