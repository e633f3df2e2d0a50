"""The commands nightly and ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import calibscale as cs
from calibscale.formatting.number_texts import evidence
from calibscale.monitoring.ledger.day_ledger import Ledger
from tests.support.ten_nights import DAYS, JOB, day_name, invoke, write_job


@pytest.mark.long
def test_command__exits_with_3_where_a_threshold_is_breached(folder):
    ran = invoke("nightly", folder / "job.toml", "--date", day_name(9))
    assert ran.exit_code == 3
    assert "Breached: 2 of 5 thresholds" in ran.stdout
    result = json.loads((folder / "out" / f"{day_name(9)}.json").read_text())
    now = evidence(result["alarms"]["log_evidence"][-1])
    (combined,) = [x for x in ran.stdout.splitlines() if x.startswith("combined ")]
    assert combined.replace("−", "-").split()[-3:-1] == [now.replace("−", "-"), "20"]
    job = write_job(folder, JOB.replace("above = -1.0", "above = 1.0"))
    ran = invoke("nightly", job, "--date", day_name(9), "--json", "-", "-q")
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["status"] == "fine"


@pytest.mark.long
def test_command__takes_another_scheduler(folder):
    ran = invoke("nightly", folder / "job.toml", "--date", day_name(9), "--scheduler", "threads:1")
    assert ran.exit_code == 3
    settings = ("--date", day_name(9), "--scheduler", "nowhere", "--force")
    ran = invoke("nightly", folder / "job.toml", *settings)
    assert isinstance(ran.exception, cs.OptionError)
    assert "unknown scheduler" in str(ran.exception)


@pytest.mark.long
def test_command__prints_a_plan(folder):
    ran = invoke("nightly", folder / "job.toml", "--date", day_name(9), "--dry-run")
    assert ran.exit_code == 0
    shown = " ".join(ran.stdout.split())
    assert "nothing: the day in the ledger is up to date" in shown
    assert "day (1 day), 7d (7 days)" in shown
    assert "2026-11-20T06" in invoke("nightly", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--date", "2026-3-1"), "a day must be a date"),
        (("--date", "2026-02-30"), "a day must be a date"),
    ],
)
def test_command__reports_invalid_days(tmp_path, arguments, words):
    ran = invoke("nightly", write_job(tmp_path), *arguments)
    assert ran.exit_code == 2
    assert words in ran.stderr


@pytest.mark.process
def test_ledger_forget__asks_on_a_terminal(folder):
    place = folder / "ledger"
    command = [sys.executable, "-m", "calibscale", "ledger", "forget", str(place)]
    command += ["--date", day_name(3), "--model", "v1"]
    n = Ledger.open(place).day(day_name(3), "v1")[0].n
    for answer, there in ((b"n\n", True), (b"\n", True), (b"y\n", False)):
        controller, terminal = os.openpty()
        os.write(controller, answer)
        process = subprocess.run(command, stdin=terminal, capture_output=True, text=True)
        os.close(controller)
        os.close(terminal)
        assert f"Remove {day_name(3)} of v1 ({n:,} rows) from" in process.stdout
        assert process.returncode == there
        assert (day_name(3) in Ledger.open(place).days()) == there
        assert "Traceback" not in process.stderr


def test_ledger_command__lists_checks_and_forgets(folder):
    place = folder / "ledger"
    assert "10 days, 30 records, 0 damaged" in invoke("ledger", "check", place).stdout
    listed = json.loads(invoke("ledger", "list", place, "--json", "-").stdout)["days"]
    assert [d["day"] for d in listed] == [day_name(k) for k in range(DAYS)]
    unknown = invoke("ledger", "forget", place, "--date", day_name(3))
    assert str(unknown.exception).endswith(
        f"has no {day_name(3)} of default; models of that day: v1"
    )
    forget = ("ledger", "forget", place, "--date", day_name(3), "--model", "v1")
    ran = invoke(*forget)
    assert ran.exit_code == 2
    assert "pass --yes" in ran.stderr
    assert day_name(3) in Ledger.open(place).days()
    ran = invoke(*forget, "--yes")
    assert ran.stdout == f"{place}: removed {day_name(3)} of v1\n"
    assert day_name(3) not in Ledger.open(place).days()
    file = sorted(Path(place, "states", "c").glob("*/0"))[4]
    stored = bytearray(file.read_bytes())
    stored[60] ^= 1
    file.write_bytes(bytes(stored))
    ran = invoke("ledger", "check", place)
    assert ran.exit_code == 1
    assert "1 damaged" in ran.stdout
