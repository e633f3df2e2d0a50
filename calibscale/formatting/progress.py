"""Progress: a bar in a notebook or on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape

from calibscale.errors import OptionError
from calibscale.formatting.escapes import printable
from calibscale.formatting.number_texts import plural

_HEARTBEAT = 30.0  # seconds between lines without a terminal
_REDRAW = 0.2  # seconds between changes of a bar in a notebook


@contextmanager
def reporting(
    setting: Callable[..., None] | bool | None, task: str, unit: str
) -> Iterator[Callable[..., None] | None]:
    """Callback of a parameter `progress`: a callable, or True for the function `progress`."""
    if setting is True:
        with progress(task, unit) as report:
            yield report
    elif setting in (None, False) or callable(setting):
        yield setting or None
    else:
        raise OptionError(f"progress must be True or a function of (done, total), not {setting!r}")


@contextmanager
def progress(task: str, unit: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a callback ``(done, total=None, now=None)`` and show progress until the context ends.

    `now` replaces the description `task`.  If `done` decreases, the work takes several passes and
    the remaining time is not estimated.
    """
    # The callback of a quiet command has the same signature, and does nothing.
    if quiet:
        yield lambda done, total=None, now=None: None
    elif _in_notebook():
        with _cell(task, unit) as report:
            yield report
    elif sys.stderr.isatty():
        with _bar(task, unit) as report:
            yield report
    else:
        yield _texts(
            task, unit, _HEARTBEAT, lambda line, *_: print(line, file=sys.stderr, flush=True)
        )


def _count(number: int, unit: str) -> str:
    return plural(number, unit.removesuffix("s"))


@contextmanager
def _bar(description: str, unit: str) -> Iterator[Callable[..., None]]:
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
        task = bars.add_task(description, total=None, count="")

        def report(done: int, total: int | None = None, now: str | None = None) -> None:
            count = _count(done, unit) if total is None else f"{done:,} of {_count(total, unit)}"
            bars.update(
                task,
                completed=done,
                total=total,
                count=count,
                description=printable(now or description),
            )

        yield report


def _texts(
    description: str, unit: str, interval: float, show: Callable[..., None]
) -> Callable[..., None]:
    """Callback that passes a line of text, `done` and `total` to `show`, once per interval."""
    started = last = time.monotonic()
    previous, several_passes = 0, False

    def report(done: int, total: int | None = None, now: str | None = None) -> None:
        nonlocal last, previous, several_passes
        # A count that falls begins another pass, of unknown length.
        previous, several_passes = done, several_passes or done < previous
        time_now = time.monotonic()
        # The first line comes after an interval, so that quick work prints none.
        if time_now - last < interval:
            return
        last, passed = time_now, time_now - started
        shown = now or description
        line = f"{printable(shown)}: {_count(done, unit)} after {passed:.0f} s"
        if total and 0 < done < total and not several_passes:
            line += f", about {passed * (total - done) / done:.0f} s left"
        show(line, done, total)

    return report


def _in_notebook() -> bool:
    """Whether the process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def _cell(description: str, unit: str) -> Iterator[Callable[..., None]]:
    """Bar in the output of the cell, without widgets, which is emptied at the end."""
    from IPython.display import display

    # The display is updated in place, so that the output of a cell does not grow.
    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show(line: str, done: int, total: int | None) -> None:
        share = f' value="{done}" max="{total}"' if total else ""
        bar = f"<progress{share}></progress> {escape(line)}"
        handle.update({"text/plain": line, "text/html": bar}, raw=True)

    try:
        yield _texts(description, unit, _REDRAW, show)
    finally:
        handle.update({"text/plain": "", "text/html": ""}, raw=True)
