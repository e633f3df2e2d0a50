"""Benchmarks at a hundredth of their size: they run, and their numbers are right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from matplotlib.image import imread

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
NAMES = (
    *("golden", "exact", "start", "reads", "scaling", "subnormal", "excess_coverage"),
    "compare",
)
SLOW = {
    *("alarms", "forecasts", "levels", "nightly", "pairs", "peers"),
    *("scale", "scaling", "selection", "start", "subnormal", "excess_coverage", "compare"),
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


def _compare(results: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    """Rows of a small comparison of one task, and its table."""
    task = "kernel_top"
    page = results / "page.md"
    results.mkdir()
    page.write_text(f"<!-- benchmark: compare_{task} -->\n<!-- end -->\n")
    _python("run.py", "compare", "--small", "--task", task, "--results", results, *options)
    _python("table.py", page, results)
    return json.loads((results / "compare.json").read_text())["table"], page.read_text()


def test_compare__measures_and_draws_the_contestants(tmp_path: Path) -> None:
    rows, table = _compare(tmp_path / "results")
    runs = {(row["by"], row["rows"], row["classes"]): row for row in rows if row["what"] == "run"}
    for by in ("calibscale", "NumPy, all pairs"):
        for size in ((1000, 2), (3000, 2), (1000, 10), (3000, 10)):
            run = runs[by, *size]
            assert 0.0 < run["seconds"] < 60.0
            if by == "NumPy, all pairs":
                assert run["extra_mb"] > 8e-6 * size[0] ** 2  # its matrix of float64
    (difference,) = (
        row for row in rows if row["what"] == "difference" and row["by"] == "NumPy, all pairs"
    )
    assert difference["difference"] < 1e-9  # both in float64
    assert re.search(r"\| 3,000 \| 10 \| .*\d m?s\S*, \d+ MB", table), table

    _python("compare_plots.py", tmp_path / "results", tmp_path)
    picture = imread(tmp_path / "compare_kernel_top.png")
    height, width, _ = picture.shape
    # Two rows of panels, and a legend beside them.
    assert width > height > 500
    assert picture[: height // 2].std() > 0.05
    assert picture[height // 2 :].std() > 0.05


def test_compare__states_what_exceeds_a_limit(tmp_path: Path) -> None:
    # calibscale alone has more, and the matrices of the dense formula from 3,000 rows.
    rows, table = _compare(tmp_path / "results", "--limit-bytes", "130e6")
    states = {
        (row["by"], row["rows"]): row["state"]
        for row in rows
        if row["what"] == "run" and row["classes"] == 2
    }
    assert states["calibscale", 1000] == "memory limit"
    assert states["calibscale", 3000] == "not tried"
    assert states["NumPy, all pairs", 1000] == "measured"
    assert states["NumPy, all pairs", 3000] == "memory limit"
    assert "over 0.13 GB" in table
    assert "not tried" in table


def test_table_of_contestants__marks_alike_times_and_approximations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from compare_tables import duration, of_task

    run = {"what": "run", "task": "kernel_top", "version": "1", "rows": 1000, "classes": 2}
    run |= {"state": "measured", "peak_mb": 50.0}
    rows: list[dict[str, Any]] = [
        {"what": "limits", "seconds": 20.0, "bytes": 6e9},
        run | {"by": "a", "seconds": 0.1, "values": {"kce": 0.5}},
        run | {"by": "b", "seconds": 0.16, "values": {"kce": 0.5, "error": 0.001}},
        # An error of the size of rounding is no approximation.
        run | {"by": "c", "seconds": 0.17, "values": {"kce": 0.5, "error": 1e-16}},
    ]
    assert of_task("kernel_top", rows)[1] == [
        *("1,000", "2"),
        *("**100 ms**, 50 MB", "**160 ms**, 50 MB, ± 2.0e-03", "170 ms, 50 MB"),
    ]
    assert [duration(seconds) for seconds in (0.0, 0.00019, 0.9994, 0.9996, 12.3)] == [
        *("0 ms", "0.19 ms", "999 ms", "1.0 s", "12 s"),
    ]


def test_worker__ends_a_run_beyond_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pieces.py").write_text(
        "import time\n"
        "def sleeping():\n    return time.sleep\n"
        "def allocating():\n    return lambda size: len(bytearray(b'1') * size)\n"
    )
    monkeypatch.syspath_prepend(BENCHMARKS)
    from measure import Limits, OverLimit, Worker

    path = {"PYTHONPATH": str(tmp_path)}
    limits = Limits(seconds=2.0, memory=300e6)
    with Worker(("pieces:sleeping",), environment=path, limits=limits) as worker:
        assert worker.run(0.01).seconds < 2.0
        with pytest.raises(OverLimit, match="time"):
            worker.run(60.0)
    with Worker(("pieces:allocating",), environment=path, limits=limits) as worker:
        run = worker.run(100_000_000)
        assert run.value == 100_000_000
        assert run.peak - run.before > 90e6
        with pytest.raises(OverLimit, match="memory"):
            worker.run(10**14)  # more than there is


def test_worker__that_died_between_runs_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pieces.py").write_text(
        "import os, sys, threading\n"
        "def leaving():\n"
        "    def work(seconds):\n"
        "        print('left early', file=sys.stderr, flush=True)\n"
        "        threading.Timer(seconds, os._exit, (1,)).start()\n"
        "        return os.getpid()\n"
        "    return work\n"
    )
    monkeypatch.syspath_prepend(BENCHMARKS)
    from measure import Worker

    with Worker(("pieces:leaving",), environment={"PYTHONPATH": str(tmp_path)}) as worker:
        process = psutil.Process(worker.run(0.1).value)
        # A process that has ended is a zombie until its parent asks for its state.
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with pytest.raises(RuntimeError, match="left early"):
            worker.run(0.1)
        # The process is gone now, and not only its end of the pipe.
        with pytest.raises(RuntimeError, match="left early"):
            worker.run(0.1)


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
