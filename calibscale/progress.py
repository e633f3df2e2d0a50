"""Progress on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_HEARTBEAT = 30.0  # seconds between lines where there is no terminal


@contextmanager
def progress(what: str, unit: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A callback (done, total or None, what is at work if that changes), shown until the end.

    Where `done` falls, the work takes several passes, and what is left of them is not told.
    """
    if quiet:
        yield lambda done, total=None, now=None: None
    elif sys.stderr.isatty():
        with _bar(what, unit) as report:
            yield report
    else:
        yield _heartbeat(what, unit)


def _count(number: int, unit: str) -> str:
    from calibscale.report.words import plural

    return plural(number, unit.removesuffix("s"))


def _name(text: str) -> str:
    from calibscale.report.words import printable

    return printable(text)


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            if task.finished or not task.total:
                return Text()
            return Text("left ") + super().render(task)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        Left(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None, count="")

        def report(done: int, total: int | None = None, now: str | None = None) -> None:
            count = _count(done, unit) if total is None else f"{done:,} of {_count(total, unit)}"
            bars.update(
                task, completed=done, total=total, count=count, description=_name(now or what)
            )

        yield report


def _heartbeat(what: str, unit: str) -> Callable[..., None]:
    started = last = time.monotonic()
    before, again = 0, False

    def report(done: int, total: int | None = None, now: str | None = None) -> None:
        nonlocal last, before, again
        before, again = done, again or done < before
        time_now = time.monotonic()
        if time_now - last < _HEARTBEAT:
            return
        last, passed = time_now, time_now - started
        line = f"{_name(now or what)}: {_count(done, unit)} after {passed:.0f} s"
        if total and 0 < done < total and not again:
            line += f", about {passed * (total - done) / done:.0f} s left"
        print(line, file=sys.stderr, flush=True)

    return report
