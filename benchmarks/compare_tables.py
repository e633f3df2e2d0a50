"""Tables of docs/ of the benchmark `compare`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from compare_contestants import TASKS

Rows = list[dict[str, Any]]
Lines = list[list[str]]
# Factor between times that count as alike: repeated runs of one contestant differ by 1.5 in the
# median.
ALIKE = 1.6
ROUNDING = 1e-12  # relative error of sums in float64


def of_task(task: str, rows: Rows) -> Lines:
    """Time and peak memory by size and contestant.

    The shortest time is bold, and so are the times that are like it.
    """
    runs = [row for row in rows if row["what"] == "run" and row["task"] == task]
    names = list(dict.fromkeys(row["by"] for row in runs))
    lines = [["rows", "classes", *map(partial(_heading, runs), names)]]
    for size in dict.fromkeys((row["rows"], row["classes"]) for row in runs):
        of_size = {row["by"]: row for row in runs if (row["rows"], row["classes"]) == size}
        fastest = min(row.get("seconds", float("inf")) for row in of_size.values())
        cells = [_cell(of_size[name], fastest, rows) for name in names]
        lines.append([f"{size[0]:,}", f"{size[1]:,}", *cells])
    return lines


def _heading(runs: Rows, name: str) -> str:
    versions = [row["version"] for row in runs if row["by"] == name and row["version"]]
    return f"{name} ({versions[0]})" if versions else name


def _cell(row: dict[str, Any], fastest: float, rows: Rows) -> str:
    if "seconds" in row:
        seconds = duration(row["seconds"])
        if row["seconds"] <= ALIKE * fastest:
            seconds = f"**{seconds}**"
        return f"{seconds}, {row['peak_mb']:,.0f} MB{_stated_error(row)}"
    most = limits(rows)
    texts = {
        "time limit": f"over {most['seconds']:g} s",
        "memory limit": f"over {most['bytes'] / 1e9:g} GB",
    }
    return texts.get(row["state"], row["state"])


def _stated_error(row: dict[str, Any]) -> str:
    """Relative error that an approximation states, where it is larger than rounding."""
    values = row["values"]
    # Tasks with approximations have one value.
    largest = max(abs(value) for name, value in values.items() if name != "error")
    error = values.get("error", 0.0)
    return f", ± {_scientific(error / largest)}" if error > ROUNDING * largest else ""


def limits(rows: Rows) -> dict[str, Any]:
    """Limits of a run, in seconds and bytes."""
    (row,) = (row for row in rows if row["what"] == "limits")
    return row


def duration(seconds: float) -> str:
    """At least two digits, in milliseconds or seconds."""
    if seconds == 0.0:
        return "0 ms"
    # 999.5 ms would be rounded to 1000 ms.
    value, unit = (1000.0 * seconds, "ms") if seconds < 0.9995 else (seconds, "s")
    digits = 0 if value >= 9.95 else 1 if value >= 0.995 else 2
    return f"{value:.{digits}f} {unit}"


def values(rows: Rows) -> Lines:
    """Largest differences of values from the first contestant, and their reasons."""
    lines = [["task", "contestant", "largest difference", "at", "remark"]]
    for row in rows:
        if row["what"] == "difference":
            kind = " (relative)" if row["is_relative"] else ""
            lines.append(
                [
                    TASKS[row["task"]].title,
                    row["by"],
                    f"{_scientific(row['difference'])}{kind}",
                    f"{row['rows']:,} x {row['classes']:,}",
                    "; ".join(_remarks(row, rows)),
                ]
            )
    return lines


def _scientific(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _remarks(row: dict[str, Any], rows: Rows) -> list[str]:
    remarks = [row["reason"]] if row["reason"] else []
    is_approximate = any(
        "error" in run.get("values", {})
        for run in rows
        if run["what"] == "run" and (run["task"], run["by"]) == (row["task"], row["by"])
    )
    if is_approximate:
        remarks.append("approximate for many rows, with an error that is reported")
    remarks += [f"not compared: {text}" for text in row["other"].values()]
    if row["drops_missing"]:
        remarks.append("not compared: sizes with a class without labels, which it drops")
    return remarks


def start(rows: Rows) -> Lines:
    """Seconds of start-up, medians over tasks, each of which has one start."""
    starts = [row for row in rows if row["what"] == "start"]
    lines = [["contestant", "starts", "start of Python and imports", "first call of 1,000 rows"]]
    for name in dict.fromkeys(row["by"] for row in starts):
        own = [row for row in starts if row["by"] == name]
        medians = (
            statistics.median(row[key] for row in own)
            for key in ("import_seconds", "first_call_seconds")
        )
        lines.append([name, str(len(own)), *map(duration, medians)])
    return lines


TABLES: dict[str, Callable[[Rows], Lines]] = {
    **{f"compare_{task}": partial(of_task, task) for task in TASKS},
    "compare_values": values,
    "compare_start": start,
}
