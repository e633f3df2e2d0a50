"""A package of a third party, which pip installs in a new environment, adds to calibscale."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import calibscale
from calibscale import LogitStore
from tests.support import ROOT
from tests.support.commands import Ran

PACKAGE = ROOT / "tests" / "plugin_package"
pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    pytest.mark.skipif(not PACKAGE.is_dir(), reason="no tests beside an installed wheel"),
]

IN_PYTHON = """
import calibscale
p = [0.3, 0.95, 0.99, 0.6]
source = calibscale.from_arrays(probabilities=p, labels=[0, 1, 0, 1], binary=True)
names = ["confident_gap", "ece", "confident_gap(side=below, absolute=true)"]
for estimate in calibscale.evaluate(source, names).estimates:
    print(estimate.estimator, round(estimate.value, 6), estimate.parameters)
options = {"null": "normal_factors", "n_replicates": 19}
tests = calibscale.calibration_test(source, ["confident_gap"], **options)
print(tests.results[0].p_value, tests.results[0].null)
"""
JOB = """
ledger = "kept"
windows = ["day", "all"]
estimators = ["brier", {name = "confident_gap", threshold = 0.6, absolute = true}]
[source]
path = "days/{date}.zarr"
[test]
statistics = ["confident_gap"]
replicates = 19
[[thresholds]]
estimator = "confident_gap"
above = 0.9
[[checks]]
name = "row_drop"
below = 0.4
"""


class Environment(NamedTuple):
    """Folder of a virtual environment, which sees calibscale and its dependencies."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def pip(self, *arguments: str | Path) -> None:
        """Run the pip of the tests, for the environment."""
        command = [sys.executable, "-m", "pip", "--python", self.python, *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)

    def run(self, *arguments: str | Path, at: Path | None = None) -> Ran:
        """Run a Python program or a module in the environment."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        ran = subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=at or self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def calibscale(self, *arguments: str | Path, at: Path | None = None) -> Ran:
        """Run a command of calibscale."""
        return self.run("-m", "calibscale", *arguments, at=at)


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Environment:
    """Environment with the package, built and installed without a network."""
    pytest.importorskip("setuptools", minversion="77", reason="builds the package")
    pytest.importorskip("pip", reason="installs the package")
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    created = Environment(folder)
    (purelib,) = folder.glob("lib/python*/site-packages")
    paths = [str(Path(calibscale.__file__).parents[1]), sysconfig.get_path("purelib")]
    (purelib / "dependencies.pth").write_text("\n".join(paths))
    sources, wheels = folder / "sources", folder / "wheels"
    shutil.copytree(PACKAGE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(wheels)!r})"
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=sources, capture_output=True, check=True)
    created.pip("install", "--no-index", "--no-deps", *wheels.glob("*.whl"))
    return created


def test_estimator_and_null__run_in_python(environment):
    ran = environment.run("-c", IN_PYTHON)
    assert ran.code == 0, ran.err
    first, _, third, tested = ran.out.splitlines()
    # Of confidences 0.95 and 0.99, one prediction is right: 0.97 − 0.5.
    assert first == "confident_gap 0.47 {'threshold': 0.9, 'side': 'above', 'absolute': False}"
    assert third.endswith("0.35 {'threshold': 0.9, 'side': 'below', 'absolute': True}")
    assert tested.endswith(" normal_factors")


def test_plugins__are_listed(environment):
    ran = environment.calibscale("plugins", "--json", "-")
    listed = {entry["group"]: entry for entry in ran.json["plugins"]}
    names = {group: entry["name"] for group, entry in listed.items()}
    assert names == {
        "calibscale.checks": "row_drop",
        "calibscale.estimators": "confident_gap",
        "calibscale.statistics": "ConfidentSums",
        "calibscale.nulls": "normal_factors",
        "calibscale.readers": ".scores",
        "calibscale.targets": "geometric_mean",
    }
    for entry in listed.values():
        assert (entry["package"], entry["version"]) == ("confident-rows", "2.1")
        assert entry["state"] == "works"


def test_help__has_the_names(environment):
    ran = environment.calibscale("evaluate", "--help")
    assert "confident_gap from the package confident-rows 2.1" in " ".join(ran.out.split())
    assert "normal_factors" in environment.calibscale("test", "--help").out


def test_commands__take_the_estimator_the_null_and_the_reader(environment, tmp_path):
    rows = tmp_path / "rows.scores"
    rows.write_text("0 0.3\n1 0.95\n0 0.99\n1 0.6\n")
    text = "confident_gap(threshold=0.9, absolute=true)"
    ran = environment.calibscale("evaluate", rows, "-e", text, "--json", "-")
    (result,) = ran.json["results"]
    assert result["value"] == pytest.approx(0.47)
    assert result["n"] == 2
    options = ("-s", "confident_gap", "--null", "normal_factors", "--replicates", "19")
    ran = environment.calibscale("test", rows, *options, "--json", "-")
    assert 0 < ran.json["p_value"] <= 1
    wrong = environment.calibscale("evaluate", rows, "-e", "confident_gap(side=left)")
    assert wrong.code == 2
    assert "confident_gap: side must be one of 'above', 'below', not 'left'" in wrong.err
    wrong = environment.calibscale("evaluate", rows, "-e", "confident_gap(absolute=2)")
    assert "confident_gap: absolute must be true or false, not 2" in wrong.err


def test_commands__take_the_kind_of_prediction(environment, tmp_path):
    rng = np.random.default_rng(0)
    mean = rng.gamma(2.0, 1.0, 500)
    outcomes = mean * rng.lognormal(0.0, 0.7, 500)  # with the geometric mean `mean`
    for name, values in (("calibrated", mean), ("too_high", 1.3 * mean)):
        rows = np.column_stack([values, outcomes])
        np.savetxt(tmp_path / f"{name}.csv", rows, delimiter=",", header="x,y", comments="")
    options = ("--predictions", "x", "--forecast", "geometric_mean", "--labels", "y", "-b", "99")
    states = {}
    for name in ("calibrated", "too_high"):
        ran = environment.calibscale(
            "check", f"{name}.csv", *options, "--json", "check.json", at=tmp_path
        )
        assert ran.code == 0, ran.err
        result = json.loads((tmp_path / "check.json").read_text())
        assert result["source"]["kind"] == "geometric_mean"
        states[name] = result["judgement"]["state"]
    ran = environment.calibscale("report", "check.json", "-o", "check.html", at=tmp_path)
    assert ran.code == 0, ran.err
    assert states["too_high"] == "miscalibrated"
    assert states["calibrated"] != "miscalibrated"
    unknown = environment.calibscale(
        "check", "too_high.csv", "--predictions", "x", "--forecast", "mode", at=tmp_path
    )
    assert "forecast must be one of normal" in unknown.err
    assert "geometric_mean, not 'mode'" in " ".join(unknown.err.split())


def _write_day(folder: Path, day: str, seed: int, rows: int = 200) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), rows)
    labels = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    store = LogitStore.create(folder / "days" / f"{day}.zarr", classes=3, kind="probabilities")
    with store.writer() as writer:
        writer.append(p, labels)


def test_nights__have_the_check(environment, tmp_path):
    (tmp_path / "days").mkdir()
    _write_day(tmp_path, "2026-03-01", 0)
    _write_day(tmp_path, "2026-03-02", 1, rows=60)
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    codes, verdicts = [], []
    for day in ("2026-03-01", "2026-03-02"):
        ran = environment.calibscale("nightly", job, "--date", day, "--json", "a.json", at=tmp_path)
        codes.append(ran.code)
        verdicts += json.loads((tmp_path / "a.json").read_text())["checks"]
    assert codes == [0, 3]
    assert [verdict["check"] for verdict in verdicts] == ["row_drop(below=0.4)"] * 2
    assert [(verdict["value"], verdict["breached"]) for verdict in verdicts] == [
        (None, False),
        (0.3, True),
    ]
    assert "Breached: 1 of 1 check." in ran.out
    assert "row_drop(below=0.4): The day has 60 rows, 0.30 times the mean" in " ".join(
        ran.out.split()
    )
    # This process does not have the package.
    command = [sys.executable, "-m", "calibscale", "nightly", job, "--date", "2026-03-02"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    message = " ".join(ran.stderr.split())
    assert "checks[0]: there is no check 'row_drop' in calibscale or in the inst" in message
    assert "allowed: unlabelled_share" in message


def test_nights_and_ledgers__have_the_estimator(environment, tmp_path):
    (tmp_path / "days").mkdir()
    for number, day in enumerate(("2026-03-01", "2026-03-02")):
        _write_day(tmp_path, day, number)
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    for day in ("2026-03-01", "2026-03-02"):
        ran = environment.calibscale(
            "nightly", job, "--date", day, "--json", "night.json", at=tmp_path
        )
        assert ran.code == 0, ran.err
        assert "confident_gap" in ran.out
    night = json.loads((tmp_path / "night.json").read_text())
    (_, gap) = night["windows"][1]["results"]
    assert gap["interval"]["low"] < gap["value"] < gap["interval"]["high"]
    assert gap["parameters"] == {"threshold": 0.6, "side": "above", "absolute": True}
    # Settings of wrong types are named with their lines.
    job.write_text(JOB.replace("absolute = true", "absolute = 1"))
    ran = environment.calibscale("nightly", job, "--date", "2026-03-02", at=tmp_path)
    assert ran.code == 2
    assert "absolute: must be true or false, not 1" in ran.err
    job.write_text(JOB)
    # This process does not have the package.
    command = [sys.executable, "-m", "calibscale", "ledger", "check", "kept"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert (
        "the ledger has 'confident_gap' of the package confident-rows, which is not" in ran.stderr
    )
