"""Time in which a client sends tasks to Dask workers and receives their states, by a trial."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from calibscale.engine import dask_backend, dask_connection

_TASKS = 16  # tasks of a trial
_TRIALS = 2  # of which the quickest counts
_PAUSE = 0.005  # seconds of a task, so that messages are not sent together as if tasks were free
_LARGE = 2**22  # bytes of a state whose time is its transport


class DaskTimes(NamedTuple):
    """Processor seconds of a client for a task with a small state, and for each byte of a state.

    States travel by TCP within this machine.
    """

    task: float
    byte: float


@dataclass(frozen=True)
class _TransportTask:
    """Engine task that waits and computes nothing: every block has the same state."""

    content: Any
    blocks: int = _TASKS
    block_bytes: int = 0
    state_bytes: int = 0

    def state(self, block: int) -> Any:
        time.sleep(_PAUSE)
        return self.content

    def merge(self, a: Any, b: Any) -> Any:
        return a

    def part(self, first: int, last: int) -> _TransportTask:
        return _TransportTask(None)

    @property
    def shared(self) -> Any:
        return self.content

    def joined(self, shared: Any) -> _TransportTask:
        return _TransportTask(shared)


def dask_times() -> DaskTimes | None:
    """Measure tasks and the transport of states with a scheduler and a worker in this process.

    Processor time counts, so that pauses and other processes do not.  Client, scheduler and worker
    are threads of this process, so that the share of the worker, which another process would have,
    is included.  Other threads of this process would count as well, and Dask leaves threads and
    changes its loggers, so that a plan runs the trial in a process of its own.  None if a cluster
    cannot start, as without Dask.
    """
    try:
        with _cluster_in_process() as client:
            connection = dask_connection.Connection(client)
            _seconds(connection, b"")  # the first task checks versions and paths
            small, large = _seconds(connection, b""), _seconds(connection, bytes(_LARGE))
    except (ImportError, OSError, RuntimeError):  # no Dask, or no free port or thread
        return None
    return DaskTimes(small, max(0.0, large - small) / _LARGE)


@contextmanager
def _cluster_in_process() -> Iterator[Any]:
    """Client of a scheduler and one worker that are threads of this process."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="tcp://",  # as between processes, while threads would share objects
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ":0"},
            memory_limit=0,
            silence_logs="CRITICAL",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def _seconds(connection: dask_connection.Connection, state: Any) -> float:
    """Processor time of one task with a state, in the quickest trial."""
    trials = []
    for _ in range(_TRIALS):
        started = time.process_time()
        dask_backend.fold(_TransportTask(state), connection, _silent, None)
        trials.append((time.process_time() - started) / _TASKS)
    return min(trials)


def _silent(done: int, total: int) -> None:
    """Report no progress."""
