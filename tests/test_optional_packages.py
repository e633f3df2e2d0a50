"""The packages of extras may be missing: everything else works, and an error names the extra."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale as cs

PACKAGES = ("dask", "distributed", "aiohttp", "s3fs", "safetensors")
# Imports of packages that `sys.modules` maps to None raise ModuleNotFoundError.
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({PACKAGES})); "
COMMANDS = WITHOUT + "from calibscale.cli import main; main(sys.argv[1:])"
FUNCTIONS = (
    WITHOUT
    + """
import calibscale as cs
from calibscale.metrics import ece

columns = {"labels": "rain", "probabilities": "p", "binary": True}
source = cs.from_file("predictions.csv", **columns)
print(cs.evaluate(source, ["ece"], scheduler="threads:2", memory_limit="4 GB", progress=True))
print(cs.calibration_test(source, "ece", n_replicates=19))
cs.reliability(source).plot()
ece([0, 1, 1, 0], [0.2, 0.7, 0.9, 0.4])
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with predictions in files of several kinds."""
    rng = np.random.default_rng(8)
    p = rng.random(400)
    rain = rng.random(400) < p
    with open(tmp_path / "predictions.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["p", "rain"])
        lines.writerows(zip(p.round(4), rain.astype(int), strict=True))
    (tmp_path / "predictions.safetensors").write_bytes(bytes(100))
    return tmp_path


def _python(folder: Path, code: str, *arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


CSV = ("predictions.csv", "--labels", "rain", "--probabilities", "p", "--binary")


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        ("demo", "--rows", "1000"),
        ("evaluate", *CSV, "--memory-limit", "4GB"),
        ("check", *CSV, "-o", "report.html"),
        ("ingest", *CSV, "predictions.zarr"),
    ],
    ids=lambda command: command[0],
)
def test_commands__run_without_the_packages_of_extras(folder, command):
    ran = _python(folder, COMMANDS, *command)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.process
def test_functions__run_without_the_packages_of_extras(folder):
    ran = _python(folder, FUNCTIONS)
    assert ran.returncode == 0, ran.stderr
    assert "ece" in ran.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("cluster", ("evaluate", *CSV, "--scheduler", "local:1")),
        ("cluster", ("evaluate", *CSV, "--scheduler", "tcp://127.0.0.1:9")),
        ("http", ("evaluate", "http://127.0.0.1:9/predictions.npz")),
        ("http", ("evaluate", "http://127.0.0.1:9/predictions.zarr")),
        ("s3", ("evaluate", "s3://bucket/predictions.npz")),
        ("s3", ("evaluate", "simplecache::s3://bucket/predictions.npz")),
        ("safetensors", ("evaluate", "predictions.safetensors")),
    ],
)
def test_missing_package__is_an_error_that_names_the_extra(folder, extra, command):
    ran = _python(folder, COMMANDS, *command)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.endswith(f"which is not installed: pip install 'calibscale[{extra}]'\n")


def test_missing_dask__is_an_option_error(monkeypatch):
    source = cs.from_arrays(probabilities=np.array([0.2, 0.9]), labels=np.array([0, 1]))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(cs.OptionError, match=r"pip install 'calibscale\[cluster\]'"):
        cs.evaluate(source, "brier", scheduler="local:1")
    assert cs.evaluate(source, "brier")["brier"].value == pytest.approx(0.05)
