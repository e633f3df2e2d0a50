"""Progress on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_HEARTBEAT = 30.0  # seconds between lines where there is no terminal


@contextmanager
def progress(what: str, unit: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A callback (done, total or None), shown until the context ends."""
    if quiet:
        yield lambda done, total=None: None
    elif sys.stderr.isatty():
        with _bar(what, unit) as report:
            yield report
    else:
        yield _heartbeat(what, unit)


def _count(number: int, unit: str) -> str:
    from calibscale.report.words import plural

    return plural(number, unit.removesuffix("s"))


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None, count="")

        def report(done: int, total: int | None = None) -> None:
            count = _count(done, unit) if total is None else f"{done:,} of {_count(total, unit)}"
            bars.update(task, completed=done, total=total, count=count)

        yield report


def _heartbeat(what: str, unit: str) -> Callable[..., None]:
    started = last = time.monotonic()

    def report(done: int, total: int | None = None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _HEARTBEAT:
            return
        last = now
        line = f"{what}: {_count(done, unit)} after {now - started:.0f} s"
        if total and done:
            line += f", about {(now - started) * (total - done) / done:.0f} s left"
        print(line, file=sys.stderr, flush=True)

    return report
