"""Folds on Dask: processes of this machine, or a cluster that runs already.

Every machine is known to have the packages that numbers come from before any work goes out, and
to see the paths that the work names before it reads there.  No wait is without end: workers that
do not come, and a scheduler that goes, are errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from calibscale.agreement import PACKAGES, Terms, check_terms, check_versions, minor, versions
from calibscale.blocks import (
    LONGEST_REMOTE_RUN,
    Progress,
    Task,
    Tree,
    run_blocks,
    run_length,
    runs_of,
)
from calibscale.checkpoint import Checkpoint
from calibscale.errors import CalibscaleError, ClusterError, OptionError

_PATIENCE = "60s"  # for workers, where Dask's configuration does not say
_GLANCE = 2.0  # seconds without a result after which the cluster is looked at
_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_FAREWELL = 5.0  # seconds for saying goodbye to a scheduler

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """A Dask client, and the bytes that a worker process may use if we started it."""

    client: Any
    worker_limit: int | None = None

    @property
    def threads(self) -> int:
        """How many blocks the workers take at a time."""
        return _threads(self.client) or 1


@contextmanager
def session(kind: str, argument: Any, limit: int | None) -> Iterator[Session]:
    """The Dask half of a parsed scheduler, ready to work: `kind` says what `argument` is."""
    if kind == "session":
        yield argument
        return
    with _dask_works():
        import distributed  # noqa: F401
    _leave_slot()
    if kind == "client":
        _make_ready(_usable(argument))
        yield Session(argument)
        return
    if kind == "local":
        with _processes(argument, limit) as opened:
            yield opened
        return
    with _connected(_address_in(argument) if kind == "file" else argument) as client:
        _make_ready(client)
        yield Session(client)


@contextmanager
def _dask_works() -> Iterator[None]:
    """Around an import of Dask, which looks at the machine."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # of psutil
        raise CalibscaleError(f"Dask does not work here ({error}): is /proc mounted?") from error


@contextmanager
def _processes(workers: int | None, limit: int | None) -> Iterator[Session]:
    """Worker processes of this machine, which share a memory limit."""
    from distributed import Client

    if multiprocessing.current_process().daemon:
        raise OptionError(
            "scheduler local:N: this process is a daemon, such as a Dask worker, and may start no "
            "others; give scheduler='threads:N', or the client of the cluster"
        )
    workers = workers or available_cpus()
    share = None if limit is None else limit // workers
    with ExitStack() as stack:
        with _undisturbed(), _blocked():
            cluster = stack.enter_context(_started(workers, share))
            client = stack.enter_context(Client(cluster, set_as_default=False))
            client.run(_leave_quietly)
        stack.push(_quiet_end)
        yield Session(client, share)


def _started(workers: int, share: int | None) -> Any:
    from distributed import LocalCluster

    log = logging.getLogger("distributed.nanny")
    level = log.level
    log.setLevel(logging.CRITICAL)  # our error says what fails
    try:
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ":0"},  # else it tells that 8787 is taken
            memory_limit=share or 0,
        )
    except (OSError, RuntimeError) as error:  # no /dev/shm, no room, no more processes
        raise CalibscaleError(
            f"worker processes cannot be started ({_first(error)}); give scheduler='threads', and "
            "see whether there is memory, and a /dev/shm"
        ) from error
    finally:
        log.setLevel(level)


def _first(error: BaseException) -> BaseException:
    """What an error began with."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back until the end: Dask cannot close a cluster that is half built."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda which, _: heard.append(which))
        for number in _ENDING
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])


@contextmanager
def _blocked() -> Iterator[None]:
    """Let threads that start now, and all processes that they start, hear no signal to end.

    A terminal or a batch system sends it to every process of a group; that we end is enough.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_quietly() -> None:
    """In a worker: do not tell at length that our scheduler is gone, or work cut short.

    Nor hear of an interrupt: multiprocessing's tracker of resources lets SIGINT through again.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    words = ("during heartbeat", "ended with CancelledError")
    for name in ("distributed.worker", "distributed.worker.state_machine"):
        logging.getLogger(name).addFilter(
            lambda record: not any(word in record.getMessage() for word in words)
        )


def _quiet_end(kind: Any, *_: Any) -> None:
    """After an interrupt: do not tell that workers which are at work have to be killed."""
    if kind is not None and not issubclass(kind, Exception):
        logging.getLogger("distributed.nanny").setLevel(logging.CRITICAL)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    from distributed import Client
    from distributed.comm.registry import get_backend

    try:
        get_backend(address.partition("://")[0])  # a client would be a minute in coming to an end
        client = Client(address, set_as_default=False)  # one that fails would be the default
    except ValueError as error:
        page = address.startswith(("http://", "https://"))
        raise OptionError(
            f"{address} is no address of a Dask scheduler: {error}"
            + "; http is that of its dashboard, the scheduler's is like tcp://host:8786" * page
        ) from error
    except OSError as error:
        raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from error
    try:
        yield client
    finally:
        with _hushed(_lost(client)), suppress(TimeoutError):  # of a scheduler that hangs
            client.close(timeout=_FAREWELL)


@contextmanager
def _hushed(lost: bool) -> Iterator[None]:
    """Keep Dask from logging how it gives up a scheduler: our error says that it is lost."""
    log = logging.getLogger("distributed.client")
    level = log.level
    log.setLevel(logging.CRITICAL if lost else level)
    try:
        yield
    finally:
        log.setLevel(level)


def _address_in(path: str) -> str:
    """What a scheduler file says; it may be in the making."""
    for left in reversed(range(5)):
        try:
            return str(json.loads(Path(path).read_text())["address"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if not left:
                raise OptionError(
                    f"{path} is no scheduler file, such as dask scheduler --scheduler-file writes"
                ) from error
            time.sleep(0.1)
    raise AssertionError


def _usable(client: Any) -> Any:
    """Refuse what is no client, or one whose answers would be coroutines."""
    from distributed import Client

    if not isinstance(client, Client):
        raise OptionError(
            f"a scheduler is a text, a path or a distributed.Client, not {type(client).__name__}"
        )
    if client.asynchronous:
        raise OptionError(
            "the Dask client is asynchronous, and this call would block its event loop: call from "
            "another thread, as with `await asyncio.to_thread(...)`, or give scheduler='threads' "
            "to work here"
        )
    return client


def in_task() -> bool:
    """Whether this is called by a task of a Dask worker."""
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


def _leave_slot() -> None:
    """In a task of a Dask worker: let others have its slot, as our work may have to go there."""
    if in_task():
        from distributed import secede

        with suppress(KeyError, AttributeError):  # it has left before, or has none
            secede()


def active_client() -> Any:
    """The client of an active Dask cluster, without importing distributed to find out."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def available_cpus() -> int:
    """Processors this process may use: affinity mask and container quota."""
    try:
        from dask.system import cpu_count

        return max(1, int(cpu_count()))
    except Exception:  # of psutil, where there is no /proc
        return os.cpu_count() or 1


def parse_bytes(size: int | str | None) -> int | None:
    """Bytes of ``1500000000``, ``"1.5GB"`` or ``"800 MiB"``.

    Raises
    ------
    OptionError
        If the text is no size.
    """
    if size is None or isinstance(size, int):
        return size
    with _dask_works():
        from dask.utils import parse_bytes as parse

    try:
        return int(parse(size))
    except (ValueError, OverflowError) as error:
        raise OptionError(f"memory limit {size!r} is not a size such as 2GB") from error


# ---------------------------------------------------------------- workers, and what they have


def _make_ready(client: Any) -> None:
    where = _where(client)
    with _reaching(where):
        if not _threads(client):
            _await_worker(client, where)
        _check_versions(client)


def _await_worker(client: Any, where: str) -> None:
    """Wait for the first worker: a batch system may take its time."""
    patience = _patience()
    _log.warning("no worker at %s yet, waiting up to %.0f s", where, patience)
    # a task, as some clusters start workers only where there is work
    probe = client.submit(os.getpid, pure=False)
    try:
        probe.result(timeout=patience)
    except Exception as error:
        if _lost(client):
            raise _gone(where) from error
        raise _none_left(where, patience) from error
    finally:
        _cancel(client, [probe])


def _check_versions(client: Any) -> None:
    """Refuse a cluster whose numbers may differ from ours, or that cannot read our tasks."""
    found = client.get_versions(packages=list(PACKAGES))
    machines = {"the scheduler": found["scheduler"]}
    machines |= {f"worker {address}": there for address, there in found["workers"].items()}
    theirs = {machine: there["packages"] for machine, there in machines.items()}
    mine = versions()
    check_versions(
        {
            machine: {**{name: there.get(name) for name in mine}, "python": minor(there["python"])}
            for machine, there in theirs.items()
        },
        mine,
    )


# ---------------------------------------------------------------- waits that end


def _where(client: Any) -> str:
    return str(getattr(client.scheduler, "address", None) or "its address")


def _patience() -> float:
    """Seconds that a cluster may be without workers, or its scheduler without an answer."""
    import dask
    from dask.utils import parse_timedelta

    asked = dask.config.get("distributed.scheduler.no-workers-timeout", None)
    return float(parse_timedelta(asked or _PATIENCE))


def _threads(client: Any) -> int:
    """Threads of all workers, now."""
    counted = client.sync(client.scheduler.ncores, workers=None, callback_timeout=_patience())
    return sum(counted.values())


def _lost(client: Any) -> bool:
    return client.status != "running"


def _gone(where: str) -> ClusterError:
    return ClusterError(
        f"the Dask scheduler at {where} was lost, or does not answer; when it does, run the same "
        "again (pairs go on from their checkpoint, if there is one)"
    )


def _none_left(where: str, patience: float) -> ClusterError:
    return ClusterError(
        f"the Dask scheduler at {where} had no worker for {patience:.0f} s: start workers, look "
        "why their jobs wait, or be more patient (DASK_DISTRIBUTED__SCHEDULER__"
        "NO_WORKERS_TIMEOUT=10min)"
    )


@contextmanager
def _reaching(where: str) -> Iterator[None]:
    """What Dask raises where a scheduler does not answer, as our error."""
    from distributed.client import ClosedClientError

    try:
        yield
    except (OSError, ClosedClientError) as error:
        raise _gone(where) from error


def _cancel(client: Any, futures: list[Any]) -> None:
    """Let go of work that nobody waits for; without a scheduler there is none."""
    if not _lost(client):
        with suppress(Exception):
            client.cancel(futures)


# ---------------------------------------------------------------- the work


def _hold(shared: Any) -> Any:
    return shared


def _run_remote(part: Task, shared: Any, first: int, last: int, terms: Terms) -> Any:
    from distributed import get_worker

    check_terms(terms, f"worker {get_worker().address}")
    return run_blocks(part.joined(shared), first, last)


class _Work:
    """The runs of one fold at the workers: twice as many as they take at a time."""

    def __init__(self, task: Task, client: Any, where: str, threads: int) -> None:
        self._task = task
        self._client = client
        self._where = where
        self._window = 2 * threads
        self._token = os.urandom(6).hex()
        self._finished: SimpleQueue[Any] = SimpleQueue()
        self._running: dict[str, tuple[int, Any]] = {}
        self._terms: Terms | None = None
        self._stopped = False
        self._alone: float | None = None  # since when there are no workers
        # as a task, not scattered: a worker that is lost takes nothing with it
        self._shared = client.submit(
            _hold, task.shared, key=f"calibscale-{self._token}", pure=False
        )

    def results(
        self, todo: list[int], runs: list[tuple[int, int]]
    ) -> Iterator[tuple[int, Any, Exception | None]]:
        """Run, state and failure, as they come."""
        left = iter(todo)
        for run in islice(left, self._window):
            self._send(run, *runs[run])
        while self._running:
            run, future = self._next()
            yield run, *self._outcome(future)
            following = None if self._stopped else next(left, None)
            if following is not None:
                self._send(following, *runs[following])

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def abandon(self) -> None:
        """Let go of what nobody waits for; without a scheduler there is nothing."""
        _cancel(self._client, [self._shared, *(future for _, future in self._running.values())])

    def explained(self, error: Exception) -> Exception:
        """What became of a run, in our words if it is the cluster's doing."""
        from distributed.scheduler import KilledWorker, NoValidWorkerError

        if isinstance(error, CalibscaleError):
            return error
        if isinstance(error, NoValidWorkerError):
            return _none_left(self._where, _patience())
        if isinstance(error, KilledWorker):
            return CalibscaleError(
                f"{error.allowed_failures + 1} workers of {self._where} died at the same blocks; "
                "their logs say why, and often it is memory: give them more"
            )
        with suppress(ClusterError), _reaching(self._where):
            _check_versions(self._client)  # of workers that came later
        return error

    def _send(self, run: int, first: int, last: int) -> None:
        part = self._task.part(first, last)
        if self._terms is None:
            self._terms = Terms.of(self._token, (part, self._task.shared))
        key = f"calibscale-{self._token}-{first}-{last}"
        with _reaching(self._where):
            future = self._client.submit(
                _run_remote, part, self._shared, first, last, self._terms, key=key, pure=False
            )
        self._running[key] = (run, future)
        future.add_done_callback(self._finished.put)

    def _next(self) -> tuple[int, Any]:
        while True:
            try:
                future = self._finished.get(timeout=_GLANCE)
            except Empty:
                self._look()
            else:
                self._alone = None
                return self._running.pop(future.key)

    def _outcome(self, future: Any) -> tuple[Any, Exception | None]:
        """Fetch a state; it may have to be made again, where a worker is lost meanwhile."""
        coming = asyncio.run_coroutine_threadsafe(
            self._client.gather([future], asynchronous=True), self._client.loop.asyncio_loop
        )
        while not wait([coming], _GLANCE).done:
            self._look()
        try:
            return coming.result()[0], None
        except Exception as error:
            if future.status != "error":  # not the run's own, but on its way here
                raise _gone(self._where) from error
            return None, error

    def _look(self) -> None:
        """Nothing has come for a while: is there a cluster to wait for?"""
        if _lost(self._client):
            raise _gone(self._where)
        with _reaching(self._where):
            threads = _threads(self._client)
        now = time.monotonic()
        self._alone = None if threads else self._alone or now
        if self._alone is not None and now - self._alone > _patience():
            raise _none_left(self._where, _patience())


def fold(task: Task, opened: Session, report: Progress, checkpoint: Checkpoint | None) -> Any:
    """The merged state of all blocks, worked on by the workers of a session."""
    where = _where(opened.client)
    with _reaching(where):
        threads = opened.threads
        work = _Work(task, opened.client, where, threads)
    length = run_length(task, threads, LONGEST_REMOTE_RUN)
    runs = runs_of(task, length)
    failed: tuple[int, Exception] | None = None
    try:
        tree = Tree(task, length, checkpoint)
        todo = tree.todo()
        done = task.blocks - sum(runs[run][1] - runs[run][0] for run in todo)
        report(done, task.blocks)
        try:
            for run, state, error in work.results(todo, runs):
                if error is not None:
                    # Earlier runs are at work and may fail, too; the first bad row is named.
                    work.stop()
                    if failed is None or run < failed[0]:
                        failed = (run, error)
                    continue
                tree.add(run, state)
                done += runs[run][1] - runs[run][0]
                report(done, task.blocks)
        finally:
            tree.save()
    finally:
        work.abandon()
    if failed is not None:
        raise work.explained(failed[1])
    return tree.result()
