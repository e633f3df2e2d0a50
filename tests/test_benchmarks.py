"""Benchmarks at a hundredth of their size: they run, and their numbers are right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
IN_TABLES = ("peers", "scale", "selection", "pairs", "levels", "nightly", "alarms")
NAMES = ("golden", "exact", "start", "reads", "scaling", "subnormal")
one_worker = pytest.mark.xdist_group("tables")  # with the folder of results

pytestmark = [
    pytest.mark.benchmarks,
    pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no benchmarks folder here"),
]


def _python(script: str, *arguments: object) -> None:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=one_worker) for name in IN_TABLES), *NAMES]
)
def test_benchmark__small_run_meets_its_bounds(name: str, folder: Path) -> None:
    _python("run.py", "--small", name, "--workdir", folder)
    result = json.loads((folder / "results" / f"{name}.json").read_text())
    assert result["small"]
    if not result["checks"]:
        pytest.skip("the reference values are not here: CALIBSCALE_DATA")
    assert all(check["met"] is not False for check in result["checks"])


@one_worker
def test_table__stands_between_its_marks(folder: Path, tmp_path: Path) -> None:
    if not {f"{name}.json" for name in IN_TABLES} <= {
        p.name for p in (folder / "results").glob("*")
    }:
        pytest.skip(f"needs the results of {', '.join(IN_TABLES)}")
    readme = tmp_path / "README.md"
    mark = "<!-- benchmark: {} -->\nold\n<!-- end -->\n"
    readme.write_text("before\n" + "".join(map(mark.format, IN_TABLES)) + "after\n")
    _python("table.py", readme, folder / "results")
    text = readme.read_text()
    assert text.startswith("before\n<!-- benchmark: peers -->\n| data |")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
    assert len(re.findall(r"^\| (?:binary|10 classes), ", text, re.MULTILINE)) == 26
    _python("table.py", readme, folder / "results")
    assert readme.read_text() == text


@pytest.mark.parametrize("topic", ["intervals", "ranking", "selection"])
def test_levels__of_any_law(topic: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def law(rng, n):\n    return rng.beta(3.0, 5.0, n)\n")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "levels.py"), topic, "--small", "--count", "2",
         "--law", "mine:law", "--miscalibration", "1.4"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mine:law" in done.stdout


def test_levels__of_an_unknown_law_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "levels.py"), "intervals", "--law", "nonsense"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "a law is one of" in done.stderr
