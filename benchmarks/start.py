"""Time of a command from start-up by input, and of many simultaneous commands on a cold cache.

Times of an evaluation by input are processor times (user and system), without the first run, which
compiles modules.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from measure import Report, Settings
from pyarrow import csv, parquet

from calibscale.data.ingest.ingestion import ingest

CLASSES = 10


def run(settings: Settings) -> Report:
    report = Report("start", settings)
    store = settings.store(settings.rows(10_000), CLASSES)
    evaluation = [sys.executable, "-m", "calibscale", "evaluate", store, "--json", "-"]
    runs = 5 if settings.runs > 1 else 1
    with TemporaryDirectory() as cache:
        if not _cold(report, evaluation, cache, processes=3 if settings.small else 16):
            return report
        seconds = [_timed(evaluation, cache) for _ in range(runs)]
        report.check("evaluate", statistics.median(seconds), 2.0, "s")
        for name, arguments in _inputs(Path(cache), settings.rows(10_000)).items():
            command = [sys.executable, "-m", "calibscale", "evaluate", *arguments]
            seconds = [_processor_time(command, cache) for _ in range(runs + 1)][1:]
            report.check(f"evaluate {name}, processor time", statistics.median(seconds), 1.0, "s")
        help_text = [*_console_script(), "--help"]
        seconds = [_timed(help_text, cache) for _ in range(runs)]
        report.check("--help", statistics.median(seconds), 0.5, "s")
    return report


def _cold(report: Report, command: list[str], cache: str, processes: int) -> bool:
    """All at once without compiled code. Then one more, which must find all of it.

    Whether all succeeded. A failed start is not measured further.
    """
    started = time.perf_counter()
    children = [
        subprocess.Popen(
            command, env=_environment(cache), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for _ in range(processes)
    ]
    outputs = [child.communicate()[0] for child in children]
    report.row(what=f"{processes} at once, cold", seconds=time.perf_counter() - started)
    failed = sum(child.returncode != 0 for child in children)
    report.check(f"{processes} at once, failures", failed, 0)
    if failed:
        return False
    values = {json.dumps(json.loads(output)["results"]) for output in outputs}
    report.check(f"{processes} at once, different results", len(values), 1)
    compiled = _files(cache)
    report.check("compiled files", len(compiled), 1, at_least=True)
    seconds = _timed(command, cache)
    report.check("one more, new or changed files", len(_files(cache) ^ compiled), 0)
    report.check("one more", seconds, 2.0, "s")
    return True


def _environment(cache: str) -> dict[str, str]:
    return {**os.environ, "CALIBSCALE_CACHE_DIR": cache}


def _timed(command: list[str], cache: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, env=_environment(cache), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _processor_time(command: list[str], cache: str) -> float:
    """User and system time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _timed(command, cache)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _inputs(folder: Path, rows: int) -> dict[str, list[str]]:
    """Arguments of an evaluation of the same rows as a store and as files."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(CLASSES), rows)
    labels = (rng.random((rows, 1)) > p.cumsum(1)).sum(1).clip(0, CLASSES - 1)
    np.save(folder / "p.npy", p)
    np.save(folder / "labels.npy", labels)
    names = [f"p{k}" for k in range(CLASSES)]
    table = pa.table({**dict(zip(names, p.T, strict=True)), "label": labels})
    csv.write_csv(table, folder / "rows.csv")
    parquet.write_table(table, folder / "rows.parquet")
    columns = ["--probabilities", ",".join(names), "--labels", "label"]
    store = str(folder / "rows.zarr")
    ingest([folder / "rows.parquet"], store, keys={"probabilities": "p", "labels": "label"})
    return {
        "csv": [str(folder / "rows.csv"), *columns],
        "parquet": [str(folder / "rows.parquet"), *columns],
        "store": [store],
        "npy": [str(folder / "p.npy"), "--labels", str(folder / "labels.npy")],
    }


def _files(folder: str) -> set[tuple[str, int, int]]:
    result = ((path, path.stat()) for path in Path(folder).rglob("*") if path.is_file())
    return {(str(path), status.st_size, status.st_mtime_ns) for path, status in result}


def _console_script() -> list[str]:
    script = Path(sys.executable).with_name("calibscale")
    return [str(script)] if script.exists() else [sys.executable, "-m", "calibscale"]
