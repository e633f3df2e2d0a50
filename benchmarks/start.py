"""Time of a command from start-up, and of many simultaneous commands on a cold cache."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import Report, Settings

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


def _files(folder: str) -> set[tuple[str, int, int]]:
    result = ((path, path.stat()) for path in Path(folder).rglob("*") if path.is_file())
    return {(str(path), status.st_size, status.st_mtime_ns) for path, status in result}


def _console_script() -> list[str]:
    script = Path(sys.executable).with_name("calibscale")
    return [str(script)] if script.exists() else [sys.executable, "-m", "calibscale"]
