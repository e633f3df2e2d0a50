"""Map blocks to states and fold them in block order: here or on a cluster, to the same bits."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibscale import cluster
from calibscale.blocks import Progress, Task, Tree, one_thread, run_blocks, run_length, runs_of
from calibscale.checkpoint import Checkpoint
from calibscale.cluster import Session, available_cpus, parse_bytes
from calibscale.errors import OptionError

__all__ = [
    *("NoRoomError", "Progress", "Session", "available_cpus", "fold", "one_thread"),
    *("parse_bytes", "resident_bytes", "roomy", "session", "workers"),
]


class _Loops:
    """Whether parallel loops run in this process.

    Their threads are lost in a child made by `fork`, which would hang, or be ended by OpenMP, in
    its first such loop.  There the loops run in one thread, to the same bits.
    """

    def __init__(self) -> None:
        self._used = self._lost = False

    def threads(self, wanted: int) -> int:
        if self._lost:
            return 1
        self._used = self._used or wanted > 1
        return wanted

    def forked(self) -> None:
        self._lost = self._used


_LOOPS = _Loops()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOOPS.forked)


class NoRoomError(OptionError):
    """The memory limit cannot hold one block."""


def fold(
    task: Task,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Any:
    """The merged state of all blocks.

    Parameters
    ----------
    task : Task
    scheduler : str, path, distributed.Client or None
        ``"serial"``, ``"threads"``, ``"threads:N"``, ``"local:N"`` (Dask worker processes on this
        machine), the address or scheduler file of a cluster, or a client.  None: the active
        client if there is one, else threads; in a task of a Dask worker this thread alone, as one
        slot is what the task has.  A client that is given there is waited for outside of the slot.
    memory_limit : int or str, optional
        Bytes, or text such as ``"2GB"``: bounds the peak memory of the process (of each worker
        process together, for ``local:N``).
    progress : callable, optional
        Called with the number of blocks done and of blocks in all.
    checkpoint : Checkpoint, optional
        Where a `PairTask` keeps what it has finished, and takes it from.

    Raises
    ------
    OptionError
        If the scheduler is unknown, the checkpoint is of other work, the memory limit cannot
        hold one block, or a machine of the cluster has other versions.
    StoreError
        If a worker does not see a path of the source.
    ClusterError
        If the cluster has no workers, or its scheduler is lost.
    """
    limit = parse_bytes(memory_limit)
    report = progress or (lambda done, total: None)
    kind, argument = _parse_scheduler(scheduler)
    if kind == "threads":
        threads = argument or available_cpus()
        if hasattr(task, "threaded"):
            _within_memory(task, 1, limit)
            return _fold_here(task.threaded(_LOOPS.threads(threads)), report, checkpoint)
        return _fold_threads(task, _within_memory(task, threads, limit), report)
    with cluster.session(kind, argument, limit) as opened:
        if opened.worker_limit is not None:
            _within_memory(task, 1, opened.worker_limit, " of a worker")
        return cluster.fold(task, opened, report, checkpoint)


@contextmanager
def session(scheduler: Any = None, memory_limit: int | str | None = None) -> Iterator[Any]:
    """A scheduler for several folds: worker processes are started, and addresses called, once.

    While it is open BLAS has one thread, so what is computed between folds has the same bits too.
    """
    kind, argument = _parse_scheduler(scheduler)
    with one_thread():
        if kind == "threads":
            yield scheduler
            return
        with cluster.session(kind, argument, parse_bytes(memory_limit)) as opened:
            yield opened


def workers(scheduler: Any = None) -> int:
    """How many blocks a scheduler works on at a time."""
    kind, argument = _parse_scheduler(scheduler)
    if kind in ("threads", "local"):
        return argument or available_cpus()
    with cluster.session(kind, argument, None) as opened:
        return opened.threads


def roomy(task: Task, scheduler: Any = None, memory_limit: int | str | None = None) -> bool:
    """Whether the memory limit, if there is one, holds a block of every worker."""
    limit = parse_bytes(memory_limit)
    kind, argument = _parse_scheduler(scheduler)
    if kind == "threads":
        count = min(argument or available_cpus(), task.blocks)
    else:
        count = 1
        limit = argument.worker_limit if kind == "session" else None
    try:
        return _within_memory(task, count, limit) == count
    except NoRoomError:
        return False


def _parse_scheduler(scheduler: Any) -> tuple[str, Any]:
    if scheduler is None:
        if cluster.in_task():
            return "threads", 1
        client = cluster.active_client()
        return ("threads", None) if client is None else ("client", client)
    if isinstance(scheduler, Session):
        return "session", scheduler
    if not isinstance(scheduler, str | Path):
        return "client", scheduler
    text = str(scheduler)
    word, _, count = text.partition(":")
    if text == "serial":
        return "threads", 1
    if word in ("threads", "local") and (not count or count.isdigit()):
        number = int(count) if count else None
        if number == 0:
            raise OptionError(f"scheduler {text!r}: at least one worker is needed")
        return word, number
    if "://" in text:
        return "address", text
    if Path(text).is_file():
        return "file", text
    raise OptionError(
        f"unknown scheduler {text!r}: use serial, threads[:N], local:N, an address such as "
        "tcp://host:8786, or the path of a scheduler file"
    )


# ---------------------------------------------------------------- one process


def _within_memory(task: Task, workers: int, limit: int | None, whose: str = "") -> int:
    workers = min(workers, task.blocks)
    if limit is None:
        return workers
    depth = task.blocks.bit_length() + 1
    used = resident_bytes()
    peak = 0
    while workers > 0:
        peak = used + workers * (task.block_bytes + task.state_bytes) + depth * task.state_bytes
        if peak <= limit:
            return workers
        workers -= 1
    enough = math.ceil(1.1 * peak / 1e7) * 10  # MB; what the process has goes on to grow a little
    given = f"{limit / 1e6:.0f} MB" if limit >= 10**6 else f"{limit} bytes"
    given += f" (is {limit}GB meant?)" if limit < 1000 else ""
    raise NoRoomError(
        f"memory limit{whose} {given}, where {enough} MB are enough, cannot hold one block: the "
        f"process has {used / 1e6:.0f} MB, a block needs {task.block_bytes / 1e6:.0f} MB and its "
        f"states {(depth + 1) * task.state_bytes / 1e6:.0f} MB"
    )


def resident_bytes() -> int:
    """Resident memory of this process (its peak, where the present value is not to be had)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def _fold_here(task: Task, report: Progress, checkpoint: Checkpoint | None) -> Any:
    """One long block after another in this thread; each is parallel inside.

    A pool would hand every block to another thread, and give that a team of threads of its own.
    """
    tree = Tree(task, 1, checkpoint)
    todo = tree.todo()
    done = task.blocks - len(todo)
    report(done, task.blocks)
    try:
        with one_thread():
            for block in todo:
                tree.add(block, task.state(block))
                done += 1
                report(done, task.blocks)
    finally:
        tree.save()
    return tree.result()


def _fold_threads(task: Task, workers: int, report: Progress) -> Any:
    length = run_length(task, workers)
    runs = runs_of(task, length)
    tree = Tree(task, length)
    todo = iter(range(len(runs)))
    done = 0
    failed: tuple[int, Exception] | None = None
    with one_thread(), ThreadPoolExecutor(workers, "calibscale") as pool:
        pending: dict[Future, int] = {}
        try:
            while True:
                while len(pending) <= workers and (run := next(todo, None)) is not None:
                    pending[pool.submit(run_blocks, task, *runs[run])] = run
                if not pending:
                    break
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    run = pending.pop(future)
                    try:
                        tree.add(run, future.result())
                    except Exception as error:
                        # Earlier runs are at work and may fail, too; the first bad row is named.
                        todo = iter(())
                        if failed is None or run < failed[0]:
                            failed = (run, error)
                        continue
                    done += runs[run][1] - runs[run][0]
                    report(done, task.blocks)
        except BaseException:  # an interrupt: let the blocks at work end, start no others
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if failed is not None:
        raise failed[1]
    return tree.result()
