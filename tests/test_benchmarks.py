"""Benchmarks at a hundredth of their size: they run, and their numbers are right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.slow_cases import some_slow

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
IN_TABLES = (
    "peers",
    "conventions",
    "scale",
    "selection",
    "pairs",
    "forecasts",
    "levels",
    "nightly",
    "alarms",
)
NAMES = ("golden", "exact", "start", "reads", "scaling", "subnormal", "excess_coverage")
SLOW = {
    *("alarms", "forecasts", "levels", "nightly", "pairs", "peers"),
    *("scale", "scaling", "selection", "start", "subnormal", "excess_coverage"),
}
EVERY_RUN = [name for name in (*IN_TABLES, *NAMES) if name not in SLOW]

pytestmark = [
    pytest.mark.benchmarks,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no benchmarks folder here"),
]


def _python(script: str, *arguments: object) -> None:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


@pytest.mark.parametrize("name", some_slow([*IN_TABLES, *NAMES], keep=EVERY_RUN))
def test_benchmark__small_run_meets_its_bounds(name: str, folder: Path, tmp_path: Path) -> None:
    _python("run.py", "--small", name, "--workdir", folder)
    result = json.loads((folder / "results" / f"{name}.json").read_text())
    assert result["small"]
    if name in IN_TABLES:
        _check_table(name, folder / "results", tmp_path / "README.md")
    if not result["checks"]:
        pytest.skip("the reference values are not here: CALIBSCALE_DATA")
    assert all(check["met"] is not False for check in result["checks"])


def _check_table(name: str, results: Path, readme: Path) -> None:
    """Check that the table of a result is written between its marks, and again the same."""
    readme.write_text(f"before\n<!-- benchmark: {name} -->\nold\n<!-- end -->\nafter\n")
    _python("table.py", readme, results)
    text = readme.read_text()
    table = r"(\|.*\|\n){3,}\n.*"  # names, rule, rows, and the machine
    assert re.fullmatch(
        rf"before\n<!-- benchmark: {name} -->\n{table}\n<!-- end -->\nafter\n", text
    ), text
    if name == "peers":
        assert len(re.findall(r"^\| (?:binary|10 classes), ", text, re.MULTILINE)) == 26
    _python("table.py", readme, results)
    assert readme.read_text() == text


@pytest.mark.parametrize(
    "topic", some_slow(["intervals", "ranking", "selection", "limits"], keep=["limits"])
)
def test_levels__take_any_law(topic: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def law(rng, n):\n    return rng.beta(3.0, 5.0, n)\n")
    options = ["--small", "--count", "2", "--law", "mine:law", "--miscalibration", "1.4"]
    process = subprocess.run(
        [sys.executable, str(BENCHMARKS / "levels.py"), topic, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "mine:law" in process.stdout


@pytest.mark.slow
def test_levels__of_functionals_are_simulated() -> None:
    _python("levels.py", "functionals", "--small", "--count", 2)


def test_levels__of_an_unknown_law_are_refused() -> None:
    process = subprocess.run(
        [sys.executable, str(BENCHMARKS / "levels.py"), "intervals", "--law", "nonsense"],
        capture_output=True,
        text=True,
    )
    assert process.returncode != 0
    assert "a law is one of" in process.stderr
