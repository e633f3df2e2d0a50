"""Scheduler, memory limit and progress of folds, and the progress of several folds as one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from calibscale.addresses import shown_address
from calibscale.engine import dask_backend, memory
from calibscale.engine.checkpoint import Checkpoint
from calibscale.engine.dask_connection import Connection, available_cpus
from calibscale.engine.fold import fold
from calibscale.engine.memory import Room, parse_bytes
from calibscale.engine.merge_tree import Progress, Task
from calibscale.engine.schedulers import parse_scheduler
from calibscale.engine.threads import one_thread
from calibscale.errors import OptionError
from calibscale.formatting.progress import reporting

_MOST_THREADS = 4  # that solve estimates, which are few and of unequal lengths


@dataclass(frozen=True)
class Execution:
    """Options by which folds run, with the meaning that they have in `fold`.

    `name` is the name of the scheduler in results.  `block_rows` is the number of rows of a block.
    None keeps the blocks of the source.  `progress` may be True, for a progress bar.
    """

    scheduler: Any = None
    memory_limit: int | str | None = None
    progress: Progress | None = None
    block_rows: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.block_rows is not None and self.block_rows < 1:
            raise OptionError(f"block_rows must be at least 1, not {self.block_rows}")

    @contextmanager
    def opened(self) -> Iterator[Execution]:
        """Open the scheduler for several folds: start worker processes, or connect, once.

        Meanwhile BLAS has one thread, so that computations between folds have the same bits too.
        """
        named = "auto" if self.scheduler is None else type(self.scheduler).__name__
        name = shown_address(self.scheduler) if isinstance(self.scheduler, str) else named
        kind, argument = parse_scheduler(self.scheduler)
        opening: AbstractContextManager[Any] = nullcontext(self.scheduler)
        if kind != "threads":
            opening = dask_backend.connect(kind, argument, parse_bytes(self.memory_limit))
        with (
            reporting(self.progress, "computing", "steps") as report,
            one_thread(),
            opening as scheduler,
        ):
            yield replace(self, scheduler=scheduler, progress=report, name=self.name or name)

    @property
    def limit(self) -> int | None:
        """Memory limit in bytes that was requested, of each worker process if we start them."""
        if isinstance(self.scheduler, Connection) and self.scheduler.started:
            return self.scheduler.worker_limit
        return parse_bytes(self.memory_limit)

    def room(self) -> Room:
        """Memory for the blocks and states of a pass."""
        if isinstance(self.scheduler, Connection):
            return self.scheduler.room()
        return memory.room_here(parse_bytes(self.memory_limit))

    @property
    def threads(self) -> int:
        """Number of threads that solve estimates at a time.

        It is 1 under a memory limit, as each thread needs memory, and with a scheduler that has
        other processes.
        """
        kind, argument = parse_scheduler(self.scheduler)
        if kind != "threads" or self.memory_limit is not None:
            return 1
        return min(argument or available_cpus(), _MOST_THREADS)

    def fold(self, task: Task, checkpoint: Checkpoint | None = None) -> Any:
        """Fold a task with these options, see `fold`."""
        return fold(task, self.scheduler, self.memory_limit, self.progress, checkpoint)

    def describe(self) -> dict[str, Any]:
        """JSON object for the parameters of results."""
        return {"scheduler": self.name, "memory_limit": parse_bytes(self.memory_limit)}


class Stages:
    """Progress of several folds reported as one, in hundredths of a fold."""

    def __init__(self, progress: Progress | None, count: int) -> None:
        self._progress, self._count, self._done = progress, count, 0

    def next(self) -> Progress | None:
        """Callback of the next fold."""
        first, report = 100 * self._done, self._progress
        self._done += 1
        # More folds may be needed than were announced.  The share of finished work then falls back,
        # but never exceeds 1.
        self._count = max(self._count, self._done)
        last = 100 * self._count
        if report is None:
            return None
        return lambda done, total: report(first + 100 * done // max(total, 1), last)
