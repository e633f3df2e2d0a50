"""The examples of nightly jobs: schedulers take them, and the simulation finds its drift."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from calibscale.monitoring.job.job_reader import read_job
from tests.support import ROOT

EXAMPLES = ROOT / "examples"
NIGHTLY = EXAMPLES / "nightly"
SERVICE, TIMER = (NIGHTLY / f"calibscale-nightly.{kind}" for kind in ("service", "timer"))

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="no examples beside the tests")


def unit(path: Path) -> list[tuple[str, str, str]]:
    """(section, key, value) of every line. Keys may come twice, which configparser refuses."""
    result, section = [], ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            result.append((section, key, value))
    return result


@pytest.fixture
def calibscale(tmp_path, monkeypatch):
    """Install a command of that name that ends with the given exit codes, one after the other."""
    folder = tmp_path / "bin"
    folder.mkdir()
    codes, said = folder / "codes", folder / "said"
    script = folder / "calibscale"
    result = '{"thresholds": [{"name": "too large", "breached": true}], "alarms": null, '
    result += '"status": "breached", "n": 5}'
    script.write_text(
        f"""#!/bin/sh
echo "$@" >> {said}
case "$*" in *--json*) echo '{result}' ;; *) echo "the table" ;; esac
code=$(head -n 1 {codes})
sed -i 1d {codes}
exit "$code"
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    return folder, codes, said


def test_job__is_valid():
    read_job(NIGHTLY / "job.toml")


@pytest.mark.parametrize("path", [SERVICE, TIMER], ids=["service", "timer"])
def test_units__parse(path):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(path)
    assert "Unit" in parser


def test_service__tells_exit_codes_apart():
    settings = {key: value for _, key, value in unit(SERVICE)}
    assert settings["Restart"] == "on-failure"
    never = set(settings["RestartPreventExitStatus"].split())
    assert never == {"2", "3", "4", "5"}  # so that 1 and 75 are tried again
    assert "MemoryDenyWriteExecute" not in settings  # kernels are compiled


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_units__are_what_systemd_takes():
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", SERVICE, TIMER],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in ran.stderr.splitlines() if "calibscale-nightly" in line]
    assert not complaints


def test_service__looks_for_late_labels_first(calibscale, tmp_path):
    folder, codes, said = calibscale
    codes.write_text("0\n0\n")
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    for _, key, value in unit(SERVICE):
        if key == "ExecStart":
            command = value.removeprefix("-").replace("/opt/calibscale/bin/", "")
            command = command.replace("%%", "%")  # of systemd
            subprocess.run(["sh", "-c", command], env=environment, check=True, cwd=tmp_path)
    late, last = said.read_text().splitlines()
    assert re.fullmatch(r"nightly job.toml --date \d{4}-\d\d-\d\d --quiet", late)
    assert last == "nightly job.toml"  # yesterday


@pytest.mark.parametrize(
    ("codes", "mailed"),
    [
        ([0], ""),
        ([75, 1, 0], ""),
        ([3], "exit code 3"),
        ([4], "exit code 4"),
        ([5], "exit code 5"),
        ([75, 75, 75], "exit code 75"),
    ],
)
def test_crontab__mails_what_is_wrong(calibscale, tmp_path, codes, mailed):
    folder, codes_file, said = calibscale
    # the first command is of a day a week ago, which is not there
    codes_file.write_text("".join(f"{code}\n" for code in [4, *codes]))
    lines = [
        line for line in (NIGHTLY / "crontab").read_text().splitlines() if re.match(r"\d", line)
    ]
    command = lines[0].split(maxsplit=5)[5].replace(r"\%", "%")
    assert "%" not in lines[0].replace(r"\%", "")  # cron would take it for the end of the command
    command = command.replace("/srv/calibscale", str(tmp_path)).replace("sleep", ": sleep")
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert len(said.read_text().splitlines()) == 1 + len(codes)
    assert ran.stdout == (f"the table\n{mailed}\n" if mailed else "")


@pytest.mark.parametrize("name", ["airflow_dag", "prefect_flow"])
def test_schedulers__are_python(name):
    path = NIGHTLY / f"{name}.py"
    compile(path.read_text(), str(path), "exec")


def loaded(name: str, tmp_path: Path, code: str, path: Path | None = None) -> list[str]:
    """The lines that `code` prints after the example of that name was imported as `example`."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "PREFECT_HOME": str(tmp_path),
        "PYTHONPATH": str(NIGHTLY),
        "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
    }
    ran = subprocess.run(
        [sys.executable, "-c", f"import {name} as example\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


JUDGED = """
night = getattr(example, "run_night", None) or example.night.fn
for _ in range(6):
    try:
        print("judged", night("2026-11-20")["status"])
    except Exception as error:
        print("judged", type(error).__name__, error)
"""


def judged(name: str, tmp_path: Path, calibscale) -> list[str]:
    """What becomes of the exit codes 0, 3, 1, 75, 2 and 4."""
    folder, codes, _ = calibscale
    codes.write_text("0\n3\n1\n75\n2\n4\n")
    lines = loaded(name, tmp_path, JUDGED, folder)
    return [line.removeprefix("judged ") for line in lines if line.startswith("judged ")]


@pytest.mark.skipif(not importlib.util.find_spec("airflow"), reason="Airflow is not installed")
def test_airflow__loads_the_dag(tmp_path):
    code = "d = example.scheduled; print(d.dag_id, d.catchup, d.max_active_runs, *d.task_dict)"
    last = loaded("airflow_dag", tmp_path, code)[-1]
    assert last == "calibscale_nightly True 1 late_labels night"


@pytest.mark.skipif(not importlib.util.find_spec("airflow"), reason="Airflow is not installed")
def test_airflow__retries_what_another_run_may_fix(calibscale, tmp_path):
    fine, breached, *retried, usage, invalid = judged("airflow_dag", tmp_path, calibscale)
    assert fine == "breached"
    assert breached == "AirflowFailException 2026-11-20: too large"
    assert [line.split()[0] for line in retried] == ["RuntimeError"] * 2
    assert [line.split()[0] for line in (usage, invalid)] == ["AirflowFailException"] * 2


@pytest.mark.skipif(not importlib.util.find_spec("prefect"), reason="Prefect is not installed")
def test_prefect__loads_the_flow(tmp_path):
    last = loaded("prefect_flow", tmp_path, "print(example.nightly.name)")[-1]
    assert last == "calibscale-nightly"


@pytest.mark.skipif(not importlib.util.find_spec("prefect"), reason="Prefect is not installed")
def test_prefect__retries_what_another_run_may_fix(calibscale, tmp_path):
    fine, breached, *retried, usage, invalid = judged("prefect_flow", tmp_path, calibscale)
    assert fine == "breached"
    assert breached == "Breached 2026-11-20: too large"
    assert [line.split()[0] for line in retried] == ["Unfinished"] * 2
    assert [line.split()[0] for line in (usage, invalid)] == ["RuntimeError"] * 2


def simulated(folder: Path, *options: str) -> list[str]:
    command = [sys.executable, EXAMPLES / "sixty_days.py", folder, *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param((), id="all", marks=pytest.mark.slow),
        pytest.param(("--group-only",), id="group"),
    ],
)
def test_sixty_days__alarm_after_the_drift(how, tmp_path):
    options = ("--days", "6", "--drift-day", "4", "--temperature", "3", "--rows", "1000")
    lines = simulated(tmp_path / "out", *options, *how)
    nights = [line for line in lines if re.match(r" +\d+  2026-", line)]
    assert len(nights) == 6 + 3  # the last three are read again
    assert not any("ALARM" in line for line in nights[:3])
    assert "ALARM" in nights[-1]
    # rows without a label on the last day
    first, repeated = (int(nights[i].split()[3]) for i in (-4, -1))
    assert first > 700
    assert repeated == 0
    report = (tmp_path / "out" / "report.html").read_text()
    assert "<html" in report
