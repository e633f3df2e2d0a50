"""Map blocks to states and fold them in block order: one process, or Dask.

The fold is a binary tree over block numbers that depends on their count alone.  Work goes out as
aligned runs of blocks, whose trees are subtrees of it, so threads, processes and clusters of any
size give the same bits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from threadpoolctl import ThreadpoolController

from calibscale.checkpoint import Checkpoint
from calibscale.errors import OptionError

Progress = Callable[[int, int], None]  # (blocks done, blocks in all)

_LONGEST_RUN = 16


class Task(Protocol):
    """What the engine runs: states of blocks, and how two neighbours merge."""

    @property
    def blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int:
        """Peak bytes while one block is worked on."""

    @property
    def state_bytes(self) -> int: ...

    def state(self, block: int) -> Any: ...

    def merge(self, a: Any, b: Any) -> Any: ...

    def part(self, first: int, last: int) -> Task:
        """The task of blocks first..last−1 in a form that can be sent away, less `shared`."""

    @property
    def shared(self) -> Any:
        """What all parts have in common: sent once."""

    def joined(self, shared: Any) -> Task:
        """A part made whole again."""


class PairTask(Task, Protocol):
    """A task whose blocks are long, parallel inside on one machine, and may be checkpointed."""

    def threaded(self, threads: int) -> PairTask:
        """The task that works on one block at a time with so many threads."""

    def pack(self, state: Any) -> dict[str, Any]:
        """A state as named arrays."""

    def unpack(self, arrays: dict[str, Any]) -> Any: ...


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
        client if there is one, else threads.
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
        If the scheduler is unknown, the checkpoint is of other work, or the memory limit cannot
        hold one block.
    """
    limit = parse_bytes(memory_limit)
    report = progress or (lambda done, total: None)
    kind, argument = _parse_scheduler(scheduler)
    if kind == "threads":
        threads = argument or available_cpus()
        if hasattr(task, "threaded"):
            _within_memory(task, 1, limit)
            return _fold_here(task.threaded(threads), report, checkpoint)
        return _fold_threads(task, _within_memory(task, threads, limit), report)
    with _session(kind, argument, limit) as opened:
        if opened.worker_limit is not None:
            _within_memory(task, 1, opened.worker_limit)
        return _fold_dask(task, opened.client, report, checkpoint)


@contextmanager
def session(scheduler: Any = None, memory_limit: int | str | None = None) -> Iterator[Any]:
    """A scheduler for several folds: worker processes are started, and addresses called, once."""
    kind, argument = _parse_scheduler(scheduler)
    if kind == "threads":
        yield scheduler
        return
    with _session(kind, argument, parse_bytes(memory_limit)) as opened:
        yield opened


def one_thread() -> Any:
    """Context in which BLAS has one thread: more would change bits with the number of cores."""
    return _libraries().limit(limits=1)


@cache
def _libraries() -> ThreadpoolController:
    """Looking for them takes milliseconds: once is enough, with SciPy's among them."""
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()


def workers(scheduler: Any = None) -> int:
    """How many blocks a scheduler works on at a time."""
    kind, argument = _parse_scheduler(scheduler)
    if kind in ("threads", "local"):
        return argument or available_cpus()
    with _session(kind, argument, None) as opened:
        return sum(opened.client.nthreads().values()) or 1


def available_cpus() -> int:
    """Processors this process may use: affinity mask and container quota."""
    from dask.system import cpu_count

    return max(1, int(cpu_count()))


def parse_bytes(size: int | str | None) -> int | None:
    """Bytes of ``1500000000``, ``"1.5GB"`` or ``"800 MiB"``.

    Raises
    ------
    OptionError
        If the text is no size.
    """
    if size is None or isinstance(size, int):
        return size
    from dask.utils import parse_bytes as parse

    try:
        return int(parse(size))
    except ValueError as error:
        raise OptionError(f"memory limit {size!r} is not a size such as 2GB") from error


def _parse_scheduler(scheduler: Any) -> tuple[str, Any]:
    if scheduler is None:
        client = _active_client()
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


def _active_client() -> Any:
    """The client of an active Dask cluster, without importing distributed to find out."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


# ---------------------------------------------------------------- the tree


def _run(task: Task, first: int, last: int) -> Any:
    """The merged state of blocks first..last−1; O(log) states alive."""
    if last - first == 1:
        return task.state(first)
    middle = first + (1 << (last - first - 1).bit_length() - 1)
    left = _run(task, first, middle)
    return task.merge(left, _run(task, middle, last))


class _Tree:
    """Merges the states of runs as they come, in any order, always in the same shape.

    What a checkpoint holds are nodes of runs of one block, as those of a `PairTask` are.
    """

    def __init__(self, task: Any, length: int, checkpoint: Checkpoint | None = None) -> None:
        self._task = task
        self._runs = -(-task.blocks // length)
        self._waiting: dict[tuple[int, int], Any] = {}
        self._checkpoint = checkpoint
        if checkpoint is not None:
            for node, arrays in checkpoint.load().items():
                self._waiting[node] = task.unpack(arrays)

    def todo(self) -> list[int]:
        """The runs that are not in the tree yet."""
        done: set[int] = set()
        for level, index in self._waiting:
            done.update(range(index << level, min((index + 1) << level, self._runs)))
        return [run for run in range(self._runs) if run not in done]

    def add(self, run: int, state: Any) -> None:
        level = 0
        while (1 << level) < self._runs:
            sibling = run ^ 1
            if (sibling << level) < self._runs:  # else: the last node rises alone
                other = self._waiting.pop((level, sibling), None)
                if other is None:
                    break
                pair = (other, state) if sibling < run else (state, other)
                state = self._task.merge(*pair)
            level, run = level + 1, run >> 1
        self._waiting[level, run] = state
        if self._checkpoint is not None and self._checkpoint.due():
            self.save()

    def save(self) -> None:
        """Write what is in the tree to the checkpoint, if there is one."""
        if self._checkpoint is None:
            return
        self._checkpoint.save({n: self._task.pack(state) for n, state in self._waiting.items()})

    def result(self) -> Any:
        (state,) = self._waiting.values()
        return state


def _run_length(task: Task, workers: int) -> int:
    """Blocks sent out together: a power of two that leaves every worker a dozen runs.

    One, where blocks are long.
    """
    length = 1
    longest = 1 if hasattr(task, "threaded") else _LONGEST_RUN
    while length < longest and task.blocks // (2 * length) >= 12 * workers:
        length *= 2
    return length


def _runs(task: Task, length: int) -> list[tuple[int, int]]:
    return [(a, min(a + length, task.blocks)) for a in range(0, task.blocks, length)]


# ---------------------------------------------------------------- one process


def _within_memory(task: Task, workers: int, limit: int | None) -> int:
    workers = min(workers, task.blocks)
    if limit is None:
        return workers
    depth = task.blocks.bit_length() + 1
    used = resident_bytes()
    while workers > 0:
        peak = used + workers * (task.block_bytes + task.state_bytes) + depth * task.state_bytes
        if peak <= limit:
            return workers
        workers -= 1
    raise OptionError(
        f"memory limit {limit / 1e6:.0f} MB cannot hold one block: the process has "
        f"{used / 1e6:.0f} MB, a block needs {task.block_bytes / 1e6:.0f} MB and its states "
        f"{(depth + 1) * task.state_bytes / 1e6:.0f} MB"
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
    tree = _Tree(task, 1, checkpoint)
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
    length = _run_length(task, workers)
    runs = _runs(task, length)
    tree = _Tree(task, length)
    todo = iter(range(len(runs)))
    done = 0
    failed: tuple[int, Exception] | None = None
    with one_thread(), ThreadPoolExecutor(workers, "calibscale") as pool:
        pending: dict[Future, int] = {}
        try:
            while True:
                while len(pending) <= workers and (run := next(todo, None)) is not None:
                    pending[pool.submit(_run, task, *runs[run])] = run
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


# ---------------------------------------------------------------- Dask


@dataclass(frozen=True)
class Session:
    """A Dask client, and the bytes that a worker process may use if we started it."""

    client: Any
    worker_limit: int | None = None


@contextmanager
def _session(kind: str, argument: Any, limit: int | None) -> Iterator[Session]:
    if kind in ("session", "client"):
        yield argument if kind == "session" else Session(argument)
        return
    from distributed import Client, LocalCluster

    if kind == "local":
        workers = argument or available_cpus()
        share = None if limit is None else limit // workers
        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                memory_limit=share or 0,
            ) as cluster,
            Client(cluster) as client,
        ):
            yield Session(client, share)
        return
    try:
        client = Client(**{("scheduler_file" if kind == "file" else "address"): argument})
    except (OSError, TimeoutError) as error:
        raise OptionError(f"no Dask scheduler answers at {argument}: {error}") from error
    with client:
        yield Session(client)


def _hold(shared: Any) -> Any:
    return shared


def _run_remote(part: Task, shared: Any, first: int, last: int) -> Any:
    with one_thread():
        return _run(part.joined(shared), first, last)


def _fold_dask(task: Task, client: Any, report: Progress, checkpoint: Checkpoint | None) -> Any:
    from distributed import as_completed

    threads = sum(client.nthreads().values()) or 1
    length = _run_length(task, threads)
    runs = _runs(task, length)
    tree = _Tree(task, length, checkpoint)
    token = os.urandom(6).hex()
    todo = iter(tree.todo())
    left = len(tree.todo())
    done = task.blocks - sum(runs[run][1] - runs[run][0] for run in tree.todo())
    report(done, task.blocks)
    running: dict[str, tuple[int, Any]] = {}
    # as a task, not scattered: a worker that is lost takes nothing with it
    shared = client.submit(_hold, task.shared, key=f"calibscale-{token}", pure=False)

    def submit() -> Any:
        run = next(todo, None)
        if run is None:
            return None
        first, last = runs[run]
        key = f"calibscale-{token}-{first}-{last}"
        future = client.submit(
            _run_remote, task.part(first, last), shared, first, last, key=key, pure=False
        )
        running[key] = (run, future)
        return future

    window = [submit() for _ in range(min(2 * threads, left))]
    completed = as_completed(window, loop=client.loop)
    failed: tuple[int, Exception] | None = None
    try:
        for future in completed:
            run, _ = running.pop(future.key)
            try:
                tree.add(run, future.result())
            except Exception as error:
                todo = iter(())
                if failed is None or run < failed[0]:
                    failed = (run, error)
                continue
            done += runs[run][1] - runs[run][0]
            report(done, task.blocks)
            following = submit()
            if following is not None:
                completed.add(following)
    finally:
        client.cancel([shared, *(future for _, future in running.values())])
        tree.save()
    if failed is not None:
        raise failed[1]
    return tree.result()
