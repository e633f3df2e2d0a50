"""The examples for experiment trackers log the metrics of a result."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

NUMBERED = re.compile(r"^ *(\S+)  (-?\d+\.\d{4})$", re.M)


def printed(example: str, folder: Path) -> dict[str, float]:
    """Metrics that an example prints."""
    command = [sys.executable, ROOT / "examples" / example, folder]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert ran.returncode == 0, ran.stderr
    return {name: float(value) for name, value in NUMBERED.findall(ran.stdout)}


@pytest.mark.slow
@pytest.mark.process
def test_mlflow_run__stores_the_metrics_of_groups(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow's database needs sqlalchemy")
    shown = printed("mlflow_run.py", tmp_path)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        stored = dict(database.execute("SELECT key, value FROM metrics"))
    assert {name: round(value, 4) for name, value in stored.items()} == shown
    # y ~ p in the north; in the south E[p − p^1.3] = 1/2 − 1/2.3
    assert stored["ece/region/south/low"] < 1 / 2 - 1 / 2.3 < stored["ece/region/south/high"]
    assert stored["ece/region/north"] < 0.02
    assert list(tmp_path.glob("artifacts/*/artifacts/calibration.html"))


@pytest.mark.long
@pytest.mark.process
def test_wandb_run__writes_an_offline_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    shown = printed("wandb_run.py", tmp_path)
    assert {"ece", "ece/low", "ece/high", "brier"} <= shown.keys()
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"ece/high" in log.read_bytes()
