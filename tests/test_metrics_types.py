"""The file of types of `calibscale.metrics`: current, useful to mypy, and in the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.support import ROOT
from tests.support.metrics_stub import PATH, text_of_stub

PROGRAM = """\
import numpy as np

from calibscale.metrics import ece, klce, smooth_ece

y, p = ["no", "yes"] * 50, np.linspace(0.1, 0.9, 100)
error: float = ece(y, p, bins=np.int64(10), edges="equal-mass", positive="yes")
error += smooth_ece(y, p, sample_weight=np.ones(100))
error += klce(y, p, covariates=np.arange(100.0), categorical=["x0"])
ece(y, p, bins="many")  # refused
ece(y, p, bin=5)  # refused
text: str = ece(y, p)  # refused
"""


def test_types__are_those_of_the_estimators():
    written = PATH.read_text(encoding="utf-8")
    assert written == text_of_stub(), "run python -m tests.support.metrics_stub"


@pytest.mark.process
@pytest.mark.long
def test_types__are_those_that_mypy_checks_in_a_program(tmp_path):
    """Correct calls are accepted.  Wrong names, settings and values are refused."""
    pytest.importorskip("mypy", reason="checks types with mypy")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
    command = [sys.executable, "-m", "mypy", *options, "--cache-dir", tmp_path, path]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    errors = [line.split(":")[1] for line in ran.stdout.splitlines() if ": error:" in line]
    numbered = enumerate(PROGRAM.splitlines(), start=1)
    assert errors == [str(number) for number, line in numbered if "# refused" in line]


@pytest.mark.process
@pytest.mark.long
def test_types__are_in_the_wheel(tmp_path):
    pytest.importorskip("setuptools", minversion="77", reason="builds a wheel")
    sources = tmp_path / "sources"
    shutil.copytree(
        ROOT / "calibscale", sources / "calibscale", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=sources, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert {"calibscale/metrics.py", "calibscale/metrics.pyi", "calibscale/py.typed"} <= set(
        zipfile.ZipFile(wheel).namelist()
    )
