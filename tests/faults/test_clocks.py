"""Nights on a machine with a clock that goes back between them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from calibscale.monitoring.night import night
from tests.support.night_faults import (
    DAYS,
    FILES,
    TABLES,
    ledger_records,
    night_outputs,
    write_job,
    write_parquet,
)

_MONTH = 30 * 86_400  # seconds


def _age(folder: Path, seconds: float) -> None:
    """Let the files of a folder be older, or of the future if the number is negative."""
    for path in folder.rglob("*"):
        state = path.stat()
        os.utime(path, (state.st_atime - seconds, state.st_mtime - seconds))


def _nights(folder: Path, jumps: tuple[float, float, float]) -> tuple[Any, Any]:
    """Records and outputs of three nights. Before each, files become older by so much."""
    job = write_job(folder, FILES + TABLES)
    write_parquet(folder, 0, 200)
    night(job, DAYS[0])
    _age(folder, jumps[0])
    night(job, write_parquet(folder, 1, 200, labelled=100))
    _age(folder, jumps[1])
    labelled = write_parquet(folder, 1, 200)  # of the same size
    _age(folder / "days", jumps[2])
    assert night(job, labelled).fresh
    assert not night(job, labelled).fresh
    vectors = {
        day: {key: value for key, value in record.items() if isinstance(value, bytes)}
        for day, record in ledger_records(folder).items()
    }
    results = {
        name: [result[part] for part in ("n", "windows", "alarms", "drift", "trend")]
        for name, result in night_outputs(folder).items()
        if name.endswith(".json")
    }
    return vectors, results


def test_clock__that_goes_back_between_nights_changes_no_number(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    expected = _nights(folder, (0.0, 0.0, 0.0))
    shutil.rmtree(folder)
    folder.mkdir()
    numbers = _nights(folder, (-_MONTH, -2 * _MONTH, 3 * _MONTH))
    assert numbers == expected
