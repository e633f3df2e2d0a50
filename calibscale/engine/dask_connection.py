"""Connections to Dask schedulers and to worker processes of this machine.

No wait is without limit: missing workers and a lost scheduler are errors.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibscale.addresses import raise_from, shown_address, without_secrets
from calibscale.engine import control_groups, memory
from calibscale.errors import CalibscaleError, ClusterError, OptionError, causes, missing_package
from calibscale.signals import ENDING, undisturbed

_WORKER_TIMEOUT = "60s"  # where Dask's configuration has none
_CONNECT_TIMEOUT = 20.0  # seconds for the first answer of a scheduler
_CLOSE_TIMEOUT = 5.0  # seconds for closing a client, which waits for ever if a scheduler hangs


@dataclass(frozen=True)
class Connection:
    """A Dask client, and the memory of its workers.

    Attributes
    ----------
    client : distributed.Client
    worker_limit : int or None
        Least memory limit of a worker in bytes, or None if no worker has a limit.
    started : bool
        Whether the workers are processes that we started on this machine.
    worker_bytes : int
        Memory in bytes that such a process has before any work.
    """

    client: Any
    worker_limit: int | None = None
    started: bool = False
    worker_bytes: int = 0

    @property
    def threads(self) -> int:
        """Number of blocks that the workers execute at a time."""
        return worker_threads(self.client) or 1

    def room(self) -> memory.Room:
        """Memory for blocks and states in a worker, without a claim if its limit is not known."""
        if self.started and self.worker_limit is None:
            return memory.room_here(None)
        return memory.room_of_worker(self.worker_limit, self.worker_bytes, self.started)


def room_of_process(workers: int | None, limit: int | None) -> memory.Room:
    """Memory of each of several processes that are not started yet."""
    if limit is None:
        return memory.room_here(None)
    share = _share(workers or available_cpus(), limit)
    return memory.room_of_worker(share, memory.resident_bytes(), True)


def _share(workers: int, limit: int | None) -> int | None:
    """Memory limit of each of several processes that share a limit."""
    return None if limit is None else limit // workers


@contextmanager
def dask_works() -> Iterator[None]:
    """Context of an import of Dask, which is optional, inspects the machine and may fail."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package("a scheduler other than threads", "distributed", "cluster") from error
    except ImportError:  # a library that cannot be loaded, as in too little memory
        raise
    except Exception as error:  # raised by psutil
        raise CalibscaleError(f"Dask does not work here ({error}): is /proc mounted?") from error


@contextmanager
def client_of(address: str) -> Iterator[Any]:
    """Client of the scheduler at an address."""
    from distributed import Client

    where = shown_address(address)
    _check_address(address)
    try:
        _await_greeting(address)
        # A client that fails would remain the default client.
        client = Client(address, set_as_default=False, timeout=_CONNECT_TIMEOUT)
    except Exception as error:
        reason = without_secrets(str(error), address) or f"no answer for {_CONNECT_TIMEOUT:.0f} s"
        if isinstance(error, OSError):  # also a lost connection, and the limit of time
            failure: CalibscaleError = ClusterError(
                f"no Dask scheduler answers at {where}: {reason}"
            )
        else:  # a server of another kind answers
            failure = OptionError(f"{where} is not the address of a Dask scheduler: {reason}")
        raise_from(failure, error, address)
    try:
        yield client
    finally:
        # Our error already reports a lost scheduler, and a scheduler that hangs must not delay it.
        hushed = _hushed("client") if is_lost(client) else nullcontext()
        with hushed, suppress(TimeoutError):
            client.close(timeout=_CLOSE_TIMEOUT)


def _check_address(address: str) -> None:
    """Raise an OptionError for an address that a client would try for a minute."""
    from distributed.comm.addressing import get_address_host_port
    from distributed.comm.registry import get_backend

    scheme = address.partition("://")[0]
    try:
        get_backend(scheme)
        if scheme in ("tcp", "tls"):
            get_address_host_port(address, strict=True)
    except ValueError as error:
        reason = without_secrets(str(error), address)
        if scheme in ("http", "https"):
            reason += "; http:// addresses are dashboards, use one such as tcp://host:8786"
        wrong = f"{shown_address(address)} is not the address of a Dask scheduler: {reason}"
        raise_from(OptionError(wrong), error, address)


def _await_greeting(address: str) -> None:
    """Wait for the greeting of a scheduler, for which a client waits without limit."""
    import asyncio  # slow to import

    from distributed import Security
    from distributed.comm import connect

    settings = Security().get_connection_args("client")

    async def greeting() -> None:
        connecting = connect(address, timeout=_CONNECT_TIMEOUT, **settings)
        connection = await asyncio.wait_for(connecting, _CONNECT_TIMEOUT)
        connection.abort()

    with ThreadPoolExecutor(1) as pool:  # the calling thread may have an event loop
        pool.submit(asyncio.run, greeting()).result()


@contextmanager
def _hushed(name: str) -> Iterator[None]:
    """Silence a log of Dask where our error reports the failure."""
    log = logging.getLogger(f"distributed.{name}")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def address_in(path: str) -> str:
    """Address in a scheduler file, which may still be being written."""
    for left in reversed(range(5)):
        try:
            return str(json.loads(Path(path).read_text())["address"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if not left:  # the last attempt
                raise OptionError(
                    f"{path} is not a scheduler file, as dask scheduler --scheduler-file writes"
                ) from error
            time.sleep(0.1)
    raise AssertionError


def usable(client: Any) -> Any:
    """Check that a client is one of Dask and not asynchronous."""
    from distributed import Client

    if not isinstance(client, Client):
        raise OptionError(
            f"a scheduler is a string, a path or a distributed.Client, not {type(client).__name__}"
        )
    if client.asynchronous:
        raise OptionError(
            "the Dask client is asynchronous, and this call would block its event loop: call from "
            "another thread, as with `await asyncio.to_thread(...)`, or pass scheduler='threads'"
        )
    return client


def _present(function: str) -> Any:
    """Result of a function of distributed.

    It is None if the function finds nothing.  If nothing has imported distributed, there is no
    client or worker to find, and the import would take a second.
    """
    if sys.modules.get("distributed") is None:
        return None
    import distributed

    try:
        return getattr(distributed, function)()
    except ValueError:
        return None


def in_task() -> bool:
    """Whether the caller runs in a task of a Dask worker."""
    return _present("get_worker") is not None


def leave_slot() -> None:
    """In a task of a Dask worker, free its slot, which our own work may need."""
    if in_task():
        from distributed import secede

        with suppress(KeyError, AttributeError):  # left already, or no slot
            secede()


def active_client() -> Any:
    """Client of the active Dask cluster, if any."""
    return _present("default_client")


def address_of(client: Any) -> str:
    return shown_address(getattr(client.scheduler, "address", None) or "its address")


def worker_timeout() -> float:
    """Maximum seconds without workers, or without an answer of the scheduler."""
    import dask
    from dask.utils import parse_timedelta

    timeout = dask.config.get("distributed.scheduler.no-workers-timeout", None)
    return float(parse_timedelta(timeout or _WORKER_TIMEOUT))


def worker_threads(client: Any) -> int:
    """Present number of threads of all workers."""
    threads = client.sync(client.scheduler.ncores, workers=None, callback_timeout=worker_timeout())
    return sum(threads.values())


def can_work(client: Any) -> bool:
    """Whether any worker starts tasks, or executes one.

    A worker whose memory is nearly full is paused: it ends its tasks, but starts none.
    """
    timeout = worker_timeout()
    if client.sync(client.scheduler.ncores_running, workers=None, callback_timeout=timeout):
        return True
    # Workers report their tasks to the scheduler, which answers while they do not.
    identity = client.sync(client.scheduler.identity, callback_timeout=timeout)
    return any(worker["metrics"].get("executing") for worker in identity["workers"].values())


def least_memory_limit(client: Any) -> int | None:
    """Least memory limit of the workers in bytes, or None if no worker reports a limit."""
    limits = client.run(_memory_limit, on_error="ignore").values()
    return min((limit for limit in limits if limit), default=None)


def _memory_limit(dask_worker: Any) -> int | None:
    return dask_worker.memory_manager.memory_limit


def is_lost(client: Any) -> bool:
    return client.status != "running"


def scheduler_lost(where: str) -> ClusterError:
    return ClusterError(
        f"the Dask scheduler at {where} was lost or does not answer; run again when it is back "
        "(sums over pairs resume from their checkpoint, if any)"
    )


def no_workers(where: str) -> ClusterError:
    return ClusterError(
        f"the Dask scheduler at {where} had no worker for {worker_timeout():.0f} s: start "
        "workers, check why their jobs wait, or allow more time "
        "(DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT=10min)"
    )


def workers_paused(where: str) -> ClusterError:
    return ClusterError(
        f"the workers of {where} have been paused for {worker_timeout():.0f} s, as Dask does with "
        "workers whose memory is nearly full: give them more memory, or free what other work "
        "holds there (client.restart())"
    )


@contextmanager
def reaching(where: str) -> Iterator[None]:
    """Convert Dask's errors of an unreachable scheduler to ours."""
    import distributed

    closed = getattr(distributed.client, "ClosedClientError", OSError)  # not in the oldest version
    try:
        yield
    except (OSError, closed) as error:
        raise scheduler_lost(where) from error


def cancel(client: Any, futures: list[Any]) -> None:
    """Cancel futures, unless the scheduler is lost."""
    if not is_lost(client):
        with suppress(Exception):
            client.cancel(futures)


@contextmanager
def started_processes(workers: int | None, limit: int | None) -> Iterator[Connection]:
    """Start worker processes on this machine, which share a memory limit."""
    import multiprocessing  # slow to import, as in `_blocked`

    from distributed import Client

    if multiprocessing.current_process().daemon:
        raise OptionError(
            "scheduler local:N: this process is a daemon, such as a Dask worker, and cannot start "
            "processes; pass scheduler='threads:N' or the client of the cluster"
        )
    workers = workers or available_cpus()
    share = _share(workers, limit)
    with ExitStack() as stack:
        with undisturbed(), _blocked():  # Dask cannot close a partly started cluster
            cluster = stack.enter_context(_started(workers, share))
            client = stack.enter_context(Client(cluster, set_as_default=False))
            client.run(_leave_quietly)
            used = client.run(memory.resident_bytes)
        stack.push(_quiet_end)
        yield Connection(client, share, started=True, worker_bytes=max(used.values()))


def _started(workers: int, share: int | None) -> Any:
    from distributed import LocalCluster

    try:
        with _hushed("nanny"):
            return LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": ":0"},  # avoids a warning if 8787 is taken
                memory_limit=share or 0,
            )
    except (OSError, RuntimeError) as error:  # no /dev/shm, no memory, too many processes
        raise CalibscaleError(
            f"worker processes cannot be started ({_first(error)}); pass scheduler='threads', or "
            "check free memory and /dev/shm"
        ) from error


def _first(error: BaseException) -> BaseException:
    """First error of a chain."""
    return [error, *causes(error)][-1]


@contextmanager
def _blocked() -> Iterator[None]:
    """Block termination signals in threads started inside, and in their processes.

    A terminal or a batch system signals every process of a group.  The workers ignore the signal,
    and this process ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_quietly() -> None:
    """In a worker, silence the log of a lost scheduler and of cancelled work, and ignore SIGINT."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    words = ("during heartbeat", "ended with CancelledError")
    for name in ("distributed.worker", "distributed.worker.state_machine"):
        logging.getLogger(name).addFilter(
            lambda record: not any(word in record.getMessage() for word in words)
        )


def _quiet_end(kind: Any, *_: Any) -> None:
    """After an interrupt, silence the log of workers that have to be killed."""
    if kind is not None and not issubclass(kind, Exception):
        logging.getLogger("distributed.nanny").setLevel(logging.CRITICAL)


def available_cpus() -> int:
    """Number of processors that this process may use, by affinity mask and container quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    # Some systems have no affinity masks.
    cpus = len(affinity(0)) if affinity else (os.cpu_count() or 1)
    quota = control_groups.cpu_quota()
    return max(1, cpus if quota is None else min(cpus, quota))
