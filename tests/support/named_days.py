"""Days of predictions in files, with regions by name, and the jobs that read them."""

from __future__ import annotations

import csv
import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

JOB = """
estimators = ["ece", "confidence_gap"]
windows = ["day", "7d"]
group_by = "region"
[source]
path = "days/{date}.SUFFIX"
format = "files"
binary = true
[source.columns]
probabilities = "p"
labels = "y"
"""
REGIONS = ("north", "south", "Ωst = α")


def day_name(k: int) -> str:
    return (date(2026, 11, 1) + timedelta(k)).isoformat()


def columns_of(
    k: int, regions: tuple[str | None, ...] = REGIONS, rows: int = 400, gap: float = 0.0
) -> dict[str, list[Any]]:
    """Columns of a day. In the first of the regions predictions are too low by `gap`."""
    rng = np.random.default_rng([11, k])
    p = rng.beta(2, 3, rows)
    at = rng.integers(0, len(regions), rows)
    q = np.clip(p + gap * (at == 0), 0, 1)
    # ages of text files and of parquet are the same numbers
    return {
        "p": p.tolist(),
        "y": (rng.random(rows) < q).astype(int).tolist(),
        "region": [regions[i] for i in at],
        "age": np.round(rng.normal(45, 12, rows), 1).tolist(),
    }


def write_columns(place: Path, columns: dict[str, list[Any]]) -> Path:
    """Write columns in the format of a file's ending, None as null or as an empty cell."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), place)
        return place
    # None is null in JSON, and an empty cell in CSV
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with open(place, "w", newline="", encoding="utf-8") as file:
        if place.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(columns))
            writer.writeheader()
            writer.writerows(rows)
    return place


def write_day(folder: Path, k: int, suffix: str = "parquet", **settings: Any) -> Path:
    columns = columns_of(k, **settings)
    return write_columns(folder / "days" / f"{day_name(k)}.{suffix}", columns)


def write_job(folder: Path, text: str = JOB, suffix: str = "parquet") -> Path:
    path = folder / "job.toml"
    path.write_text(text.replace("SUFFIX", suffix), encoding="utf-8")
    return path
