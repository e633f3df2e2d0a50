"""Outputs of a night: files, and text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from calibscale.data.zarr_arrays import is_url
from calibscale.engine.atomic_files import refuse_overwriting, write_whole
from calibscale.formatting import plural, seconds
from calibscale.monitoring import exports
from calibscale.monitoring.job.job import Job
from calibscale.output.report import report
from calibscale.output.text import escape, print_result, show, terminal
from calibscale.results.night_results import Night, NightPlan


def places(job: Job, day: str) -> dict[str, Path]:
    """Paths of the outputs, by kind."""
    return {
        kind: Path(job.place(template, day))
        for kind, template in job.to_dict()["outputs"].items()
        if template is not None
    }


def check_places(job: Job, day: str) -> None:
    """Refuse outputs that would overwrite inputs of the night."""
    source = job.place(job.source.path, day)
    inputs: list[str | Path] = [job.file, job.ledger_path]
    inputs += [] if is_url(source) else [source]
    for place in places(job, day).values():
        refuse_overwriting(place, inputs)


def write(job: Job, day: str, result: dict[str, Any]) -> None:
    """Write every output of a job."""
    for kind, place in places(job, day).items():
        _WRITERS[kind](place, result)


def stamps(job: Job, day: str) -> dict[str, list[int]]:
    """Size and modification time of each file, except a history, which other days change."""
    files = {kind: place.stat() for kind, place in places(job, day).items() if kind != "history"}
    return {kind: [file.st_size, file.st_mtime_ns] for kind, file in files.items()}


def _write_report(path: str | Path, result: dict[str, Any]) -> None:
    write_whole(path, report([result]).encode())


_WRITERS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "json": exports.write_json, "prometheus": exports.write_prometheus,
    "junit": exports.write_junit, "history": exports.write_history, "report": _write_report,
}  # fmt: skip


# ---------------------------------------------------------------- Text


def night_tables(night: Night) -> None:
    """Print the document of a night, and whether it was computed before."""
    print_result(night)
    if not night.fresh:
        terminal().print("nothing has changed, nothing was done")


def plan_tables(plan: NightPlan) -> None:
    """Print what a night would do."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    rows = "unknown before it is ingested" if plan.rows is None else f"{plan.rows:,} rows"
    table.add_row("predictions", f"{escape(plan.source)}, {rows}")
    table.add_row("reads", plan.reads)
    if plan.seconds is not None:
        table.add_row("a pass takes", f"about {seconds(plan.seconds)}")
    days = f"{plural(plan.ledger_days, 'day')} of {plan.model}"
    table.add_row("ledger", f"{escape(plan.ledger)}, {days}")
    windows = ", ".join(f"{name} ({plural(n, 'day')})" for name, n in plan.windows.items())
    table.add_row("windows", windows)
    for kind, place in plan.outputs.items():
        table.add_row(f"writes {kind}", escape(place))
    show(terminal(), table)
