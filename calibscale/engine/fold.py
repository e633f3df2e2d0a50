"""Folds over blocks of rows in block order, on threads or on Dask, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from calibscale.engine import dask_backend, memory
from calibscale.engine.checkpoint import Checkpoint
from calibscale.engine.dask_connection import available_cpus
from calibscale.engine.memory import parse_bytes
from calibscale.engine.merge_tree import Add, Outcomes, Progress, Runs, Task, merged
from calibscale.engine.schedulers import parse_scheduler, within_memory
from calibscale.engine.threads import WorkerThreads, one_thread, parts_on_threads, threads_can_start


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
        client if it exists, else threads.  In a task of a Dask worker, None means the calling
        thread alone, because the task has one slot.  With a client, the task leaves its slot.
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
    kind, argument = parse_scheduler(scheduler)
    if kind == "threads":
        threads = argument or available_cpus()
        if hasattr(task, "threaded"):
            within_memory(task, 1, memory.room_here(limit))
            return _fold_here(task, threads, report, checkpoint)
        count = within_memory(task, threads, memory.room_here(limit))
        return _fold_threads(task, count, report)
    with dask_backend.connect(kind, argument, limit) as opened:
        # Workers of a running cluster have their own limits.
        if opened.started:
            within_memory(task, 1, opened.room())
        return dask_backend.fold(task, opened, report, checkpoint)


def _fold_here(task: Any, threads: int, report: Progress, checkpoint: Checkpoint | None) -> Any:
    """Fold long blocks one after another, with the parts of a block on several threads."""

    def execute(runs: Runs, add: Add, stopped: Callable[[], bool]) -> Outcomes:
        with one_thread(), parts_on_threads(threads) as run_parts:
            inside = task.threaded(run_parts)
            for block in runs:
                add(block, inside.state(block))
                yield block, None

    return merged(task, 1, execute, report, checkpoint)


def _fold_threads(task: Task, count: int, report: Progress) -> Any:
    def execute(runs: Runs, add: Add, stopped: Callable[[], bool]) -> Outcomes:
        todo = iter(runs)

        def run(block: int) -> None:
            # The thread merges its state as well, so that fewer states wait.
            add(block, task.state(block))

        if not threads_can_start():
            for block in todo:
                with one_thread():
                    run(block)
                yield block, None
            return
        with one_thread(), WorkerThreads(count) as workers:
            running = 0
            while True:
                # One block waits, so that no thread does when its block is finished.
                free = 0 if stopped() else count + 1 - running
                for block in islice(todo, free):
                    workers.start(block, run, block)
                    running += 1
                if not running:
                    return
                block, _, error = workers.next_finished()
                running -= 1
                yield block, error

    return merged(task, 1, execute, report)
