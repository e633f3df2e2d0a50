"""Folds over blocks of rows in block order, on threads or on Dask, to the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from calibscale.addresses import full_address, shown_address
from calibscale.engine import dask_backend, dask_connection, memory
from calibscale.engine.dask_connection import Connection, available_cpus, parse_bytes
from calibscale.engine.memory import Room
from calibscale.engine.merge_tree import (
    Add,
    Checkpoint,
    Outcomes,
    Progress,
    Runs,
    Task,
    arities_of,
    merged,
    one_thread,
    parts_on_threads,
    threads_can_start,
    tree_levels,
)
from calibscale.errors import OptionError, require
from calibscale.formatting.progress import reporting

# limit of the threads or processes that a scheduler may start, by its number of processors
_WORKERS_PER_CPU, _LEAST_LIMIT = 8, 64
_WORKERS = {"threads": "threads", "local": "worker processes"}


class NoRoomError(OptionError):
    """The memory limit cannot hold one block."""


def fold(
    task: Task,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Any:
    """Compute the merged state of all blocks.

    Parameters
    ----------
    scheduler : str, path, distributed.Client or None
        ``"serial"``, ``"threads"``, ``"threads:N"``, ``"local:N"`` (Dask worker processes on this
        machine), the address or scheduler file of a cluster, or a client.  None: the active
        client if there is one, else threads.  In a task of a Dask worker, None means the calling
        thread alone, because the task has one slot; with a client, the task leaves its slot.
    memory_limit : int or str, optional
        Bytes, or a string such as ``"2GB"``: maximum memory of the process (with ``local:N``, of
        all worker processes together).
    progress : callable, optional
        Called with the number of finished blocks and of all blocks.
    checkpoint : Checkpoint, optional
        File to which a `PairTask` writes finished work, and from which it resumes.

    Raises
    ------
    OptionError
        If the scheduler is unknown, the checkpoint belongs to other work, the memory limit cannot
        hold one block, or a machine of the cluster has other versions.
    StoreError
        If a worker cannot see a path of the source.
    ClusterError
        If the cluster has no workers, or its scheduler is lost.
    """
    limit = parse_bytes(memory_limit)
    report = progress or (lambda done, total: None)
    kind, argument = _parse_scheduler(scheduler)
    if kind == "threads":
        threads = argument or available_cpus()
        if hasattr(task, "threaded"):
            _within_memory(task, 1, memory.room_here(limit))
            return _fold_here(task, threads, report, checkpoint)
        count = _within_memory(task, threads, memory.room_here(limit))
        return _fold_threads(task, count, report)
    with dask_backend.connect(kind, argument, limit) as opened:
        if opened.started:
            _within_memory(task, 1, opened.room())
        return dask_backend.fold(task, opened, report, checkpoint)


@dataclass(frozen=True)
class Execution:
    """Options of folds, with the meaning in `fold`, the size of blocks, and the name for results.

    `block_rows` is the number of rows of a block, None for that of the source.  `progress` may be
    True, for a progress bar.
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
        kind, argument = _parse_scheduler(self.scheduler)
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

    def fold(self, task: Task, checkpoint: Checkpoint | None = None) -> Any:
        """Fold a task; see `fold`."""
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
        self._count = max(self._count, self._done)
        last = 100 * self._count
        if report is None:
            return None
        return lambda done, total: report(first + 100 * done // max(total, 1), last)


def workers(scheduler: Any = None) -> int:
    """Number of blocks that a scheduler executes at a time."""
    kind, argument = _parse_scheduler(scheduler)
    if kind in ("threads", "local"):
        return argument or available_cpus()
    with dask_backend.connect(kind, argument, None) as opened:
        return opened.threads


def room_with(scheduler: Any = None, memory_limit: int | str | None = None) -> Room:
    """Memory for the blocks and states of a pass with a scheduler, without starting processes."""
    kind, argument = _parse_scheduler(scheduler)
    limit = parse_bytes(memory_limit)
    if kind == "threads":
        return memory.room_here(limit)
    if kind == "local":
        return dask_connection.room_of_process(argument, limit)
    with dask_backend.connect(kind, argument, limit) as opened:
        return opened.room()


def roomy(task: Task, scheduler: Any = None, memory_limit: int | str | None = None) -> bool:
    """Whether the memory limit, if any, holds one block for each worker."""
    kind, argument = _parse_scheduler(scheduler)
    if kind == "threads":
        count = min(argument or available_cpus(), task.blocks)
        room = memory.room_here(parse_bytes(memory_limit))
    elif kind == "connection" and argument.started:
        count, room = 1, argument.room()
    else:
        return True
    try:
        return _within_memory(task, count, room) == count
    except NoRoomError:
        return False


def _parse_scheduler(scheduler: Any) -> tuple[str, Any]:
    if scheduler is None:
        if dask_connection.in_task():
            return "threads", 1
        client = dask_connection.active_client()
        return ("threads", None) if client is None else ("client", client)
    if isinstance(scheduler, Connection):
        return "connection", scheduler
    if not isinstance(scheduler, str | Path):
        return "client", scheduler
    text = full_address(scheduler)
    word, _, count = text.partition(":")
    if text == "serial":
        return "threads", 1
    if word in ("threads", "local") and (not count or count.isdigit()):
        number = int(count) if count else None
        require(number != 0, f"scheduler {text!r}: at least one worker is needed")
        most = max(_LEAST_LIMIT, _WORKERS_PER_CPU * available_cpus())
        require(
            number is None or number <= most,
            f"scheduler {text!r}: at most {most} {_WORKERS[word]} are started on this machine, "
            f"with {available_cpus()} processors; use {word}:N with a smaller N",
        )
        return word, number
    if "://" in text:
        return "address", text
    if Path(text).is_file():
        return "address", dask_connection.address_in(text)
    raise OptionError(
        f"unknown scheduler {shown_address(text)!r}: use serial, threads[:N], local:N, an address "
        "such as tcp://host:8786, or the path of a scheduler file"
    )


def _within_memory(task: Task, workers: int, room: Room) -> int:
    workers, limit, used = min(workers, task.blocks), room.limit, room.used
    if limit is None:
        return workers
    each, depth = (
        task.block_bytes + task.state_bytes,
        tree_levels(task.blocks, arities_of(task)) + 2,
    )
    peak = used + each + depth * task.state_bytes  # with one worker
    if peak <= limit:
        return min(workers, 1 + (limit - peak) // max(1, each))
    enough = math.ceil(1.1 * peak / 1e7) * 10  # MB, with a margin as the process still grows
    text = f"{limit / 1e6:.0f} MB" if limit >= 10**6 else f"{limit} bytes"
    text += f" (is {limit}GB meant?)" if limit < 1000 else ""
    raise NoRoomError(
        f"memory limit{room.whose} {text}, below the required {enough} MB, cannot hold one block: "
        f"the process has {used / 1e6:.0f} MB, a block needs {task.block_bytes / 1e6:.0f} MB and "
        f"its states {(depth + 1) * task.state_bytes / 1e6:.0f} MB"
    )


def _fold_here(task: Any, threads: int, report: Progress, checkpoint: Checkpoint | None) -> Any:
    """Fold long blocks one after another; the parts of a block run on several threads."""

    def execute(runs: Runs, add: Add, stopped: Callable[[], bool]) -> Outcomes:
        with one_thread(), parts_on_threads(threads) as run_parts:
            inside = task.threaded(run_parts)
            for block in runs:
                add(block, inside.state(block))
                yield block, None

    return merged(task, 1, execute, report, checkpoint)


def _fold_threads(task: Task, workers: int, report: Progress) -> Any:
    def execute(runs: Runs, add: Add, stopped: Callable[[], bool]) -> Outcomes:
        todo = iter(runs)
        pending: dict[Future, int] = {}

        def run(block: int) -> None:  # threads merge as well: fewer states wait
            with one_thread():
                add(block, task.state(block))

        if not threads_can_start():
            for block in todo:
                run(block)
                yield block, None
            return
        with one_thread(), ThreadPoolExecutor(workers, "calibscale") as pool:
            try:
                while True:
                    free = 0 if stopped() else workers + 1 - len(pending)
                    pending |= {pool.submit(run, block): block for block in islice(todo, free)}
                    if not pending:
                        break
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        yield pending.pop(future), future.exception()
            except BaseException:  # an interrupt: finish the running blocks, start no others
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    return merged(task, 1, execute, report)
