"""The packages of extras may be missing: everything else works, and an error names the extra."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale as cs

PACKAGES = ("dask", "distributed", "aiohttp", "s3fs", "safetensors", "sklearn", "onnx")
# Imports of packages that `sys.modules` maps to None raise ModuleNotFoundError.
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({PACKAGES})); "
# Runs commands, and prints their exit codes and errors.
COMMANDS = (
    WITHOUT
    + """
import contextlib, io, json
from calibscale.cli import main

for command in json.loads(sys.argv[1]):
    code, err = 0, io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            main(command)
    except SystemExit as end:
        code = end.code
    print(json.dumps([code, err.getvalue()]))
"""
)
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


def _commands(folder: Path, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit codes and errors of commands in one process."""
    ran = _python(folder, COMMANDS, json.dumps(commands))
    assert ran.returncode == 0, ran.stderr
    return [tuple(json.loads(line)) for line in ran.stdout.splitlines()]


@pytest.mark.process
def test_commands__run_without_the_packages_of_extras(folder):
    ended = _commands(
        folder,
        ("demo", "--rows", "1000"),
        ("evaluate", *CSV, "--memory-limit", "4GB"),
        ("check", *CSV, "-o", "report.html"),
        ("ingest", *CSV, "predictions.zarr"),
    )
    assert [code for code, _ in ended] == [0, 0, 0, 0], ended


@pytest.mark.slow
@pytest.mark.process
def test_functions__run_without_the_packages_of_extras(folder):
    ran = _python(folder, FUNCTIONS)
    assert ran.returncode == 0, ran.stderr
    assert "ece" in ran.stdout


@pytest.mark.process
def test_missing_package__is_an_error_that_names_the_extra(folder):
    cases = [
        ("cluster", ("evaluate", *CSV, "--scheduler", "local:1")),
        ("cluster", ("evaluate", *CSV, "--scheduler", "tcp://127.0.0.1:9")),
        ("http", ("evaluate", "http://127.0.0.1:9/predictions.npz")),
        ("http", ("evaluate", "http://127.0.0.1:9/predictions.zarr")),
        ("s3", ("evaluate", "s3://bucket/predictions.npz")),
        ("s3", ("evaluate", "simplecache::s3://bucket/predictions.npz")),
        ("safetensors", ("evaluate", "predictions.safetensors")),
    ]
    ended = _commands(folder, *(command for _, command in cases))
    for (extra, command), (code, err) in zip(cases, ended, strict=True):
        assert (code, err.count("\n")) == (2, 1), command
        sentence = f"which is not installed: pip install 'calibscale[{extra}]'\n"
        assert err.endswith(sentence), command


@pytest.mark.process
def test_missing_scikit_learn__is_an_import_error_that_names_the_extra(folder):
    ran = _python(folder, WITHOUT + "import calibscale.sklearn")
    assert "ImportError: calibscale.sklearn needs scikit-learn, which is not" in ran.stderr
    assert "pip install 'calibscale[sklearn]'" in ran.stderr


@pytest.mark.process
def test_missing_torch__is_an_import_error_that_names_the_package(folder):
    # SciPy looks at a module of PyTorch that has been imported, and None has no tensors.
    finder = "class Finder:\n    def find_spec(self, name, path, target=None):\n"
    finder += "        if name == 'torch':\n            raise ModuleNotFoundError(name)\n"
    code = f"import sys\n{finder}sys.meta_path.insert(0, Finder())\nimport calibscale.torch"
    ran = _python(folder, code)
    assert "ImportError: calibscale.torch needs PyTorch, which is not installed" in ran.stderr


def test_missing_dask__is_an_option_error(monkeypatch):
    source = cs.from_arrays(probabilities=np.array([0.2, 0.9]), labels=np.array([0, 1]))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(cs.OptionError, match=r"pip install 'calibscale\[cluster\]'"):
        cs.evaluate(source, "brier", scheduler="local:1")
    assert cs.evaluate(source, "brier")["brier"].value == pytest.approx(0.05)
