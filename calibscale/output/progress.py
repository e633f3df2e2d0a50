"""Progress on standard error: a bar on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from calibscale.formatting import plural, printable

_HEARTBEAT = 30.0  # seconds between lines without a terminal


@contextmanager
def progress(what: str, unit: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a callback ``(done, total=None, now=None)`` and show progress until the context ends.

    `now` replaces the description `what`.  If `done` decreases, the work takes several passes and
    the remaining time is not estimated.
    """
    if quiet:
        yield lambda done, total=None, now=None: None
    elif sys.stderr.isatty():
        with _bar(what, unit) as report:
            yield report
    else:
        yield _heartbeat(what, unit)


def _count(number: int, unit: str) -> str:
    return plural(number, unit.removesuffix("s"))


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Callable[..., None]]:
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.text import Text

    class RemainingTime(rich_progress.TimeRemainingColumn):
        def render(self, task: rich_progress.Task) -> Text:
            if task.finished or not task.total:
                return Text()
            return Text("remaining ") + super().render(task)

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.fields[count]}"),
        rich_progress.TimeElapsedColumn(),
        RemainingTime(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None, count="")

        def report(done: int, total: int | None = None, now: str | None = None) -> None:
            count = _count(done, unit) if total is None else f"{done:,} of {_count(total, unit)}"
            bars.update(
                task, completed=done, total=total, count=count, description=printable(now or what)
            )

        yield report


def _heartbeat(what: str, unit: str) -> Callable[..., None]:
    started = last = time.monotonic()
    previous, several_passes = 0, False

    def report(done: int, total: int | None = None, now: str | None = None) -> None:
        nonlocal last, previous, several_passes
        previous, several_passes = done, several_passes or done < previous
        time_now = time.monotonic()
        if time_now - last < _HEARTBEAT:
            return
        last, passed = time_now, time_now - started
        line = f"{printable(now or what)}: {_count(done, unit)} after {passed:.0f} s"
        if total and 0 < done < total and not several_passes:
            line += f", about {passed * (total - done) / done:.0f} s left"
        print(line, file=sys.stderr, flush=True)

    return report
