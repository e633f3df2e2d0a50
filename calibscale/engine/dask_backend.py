"""Folds on Dask: worker processes of this machine, or a running cluster.

Before any work is sent, all machines must have the same versions of the packages that numbers
depend on.  A worker checks that its source files of calibscale are the same, as a checkout may have
other files in the same version.  It also checks that it sees the same content at the paths in a
task.  Zarr reads a missing chunk file as a chunk that was never written, so that a machine that
cannot see a store would silently read it as empty.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from calibscale.engine import dask_connection, merge_tree
from calibscale.engine.checkpoint import Checkpoint
from calibscale.errors import CalibscaleError, ClusterError, OptionError, StoreError

_log = logging.getLogger(__name__)

_POLL_SECONDS = 2.0  # time without a result after which the cluster is checked


@contextmanager
def connect(kind: str, argument: Any, limit: int | None) -> Iterator[dask_connection.Connection]:
    """Open the Dask connection of a parsed scheduler, where `kind` is the meaning of `argument`."""
    if kind == "connection":
        yield argument
        return
    with dask_connection.dask_works():
        import distributed  # noqa: F401
    dask_connection.leave_slot()
    if kind == "local":
        with dask_connection.started_processes(argument, limit) as opened:
            yield opened
    elif kind == "client":
        yield _ready(dask_connection.usable(argument))
    else:
        with dask_connection.client_of(argument) as client:
            yield _ready(client)


def _ready(client: Any) -> dask_connection.Connection:
    """Wait for a first worker, and check the versions of all machines."""
    where = dask_connection.address_of(client)
    with dask_connection.reaching(where):
        if not dask_connection.worker_threads(client):
            _await_worker(client, where)
        check_worker_versions(client)
        return dask_connection.Connection(client, dask_connection.least_memory_limit(client))


def _await_worker(client: Any, where: str) -> None:
    """Wait for the first worker, which a batch system may start late."""
    seconds = dask_connection.worker_timeout()
    _log.warning("no worker at %s yet, waiting up to %.0f s", where, seconds)
    # Some clusters start workers on demand, when there is a task.
    probe = client.submit(os.getpid, pure=False)
    try:
        probe.result(timeout=seconds)
    except Exception as error:
        if dask_connection.is_lost(client):
            raise dask_connection.scheduler_lost(where) from error
        raise dask_connection.no_workers(where) from error
    finally:
        dask_connection.cancel(client, [probe])


def check_worker_versions(client: Any) -> None:
    """Refuse versions on a cluster that may give other numbers or cannot read our tasks."""
    reported = client.get_versions(packages=list(PACKAGES))
    machines = {"the scheduler": reported["scheduler"]}
    machines |= {f"worker {address}": report for address, report in reported["workers"].items()}
    expected = versions()
    remote = {}
    for machine, report in machines.items():
        packages = report["packages"]
        remote[machine] = {name: packages.get(name) for name in expected}
        # Dask reports the full version of Python, and the patch does not matter.
        remote[machine]["python"] = minor(packages["python"])
    check_versions(remote, expected)


def check_worker_sources(client: Any) -> None:
    """Refuse workers with other source files of calibscale."""
    digests = client.run(source_version, on_error="ignore")
    machines = {f"worker {address}": {_SOURCE: digest} for address, digest in digests.items()}
    check_versions(machines, {_SOURCE: source_version()})


# ---------------------------------------------------------------- Checks


PACKAGES = ("calibscale", "numpy", "scipy", "numba", "zarr", "finufft")  # numbers depend on them
_SOURCE = "calibscale source"  # name of the version of the source files

_NAMED = 5  # maximum number of differences in an error
_METADATA = ("zarr.json", ".zarray", ".zgroup")  # identify a folder of arrays

Versions = Mapping[str, str | None]  # by name of package, or python; None: not installed


@cache
def installed(name: str) -> str | None:
    """Version of a package, or None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> Versions:
    """Versions in this process."""
    return {name: installed(name) for name in PACKAGES} | {"python": minor(sys.version)}


@cache
def source_version() -> str:
    """Version of the imported calibscale, with a digest of its source files.

    Public names are imported from the modules that stubs (.pyi) name, so that these are source
    files as well.
    """
    package = sys.modules["calibscale"]
    root = Path(package.__path__[0])
    digest = hashlib.sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.pyi")]):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))  # of checkouts on Windows
    return f"{package.__version__} (digest {digest.hexdigest()[:8]})"


def minor(python: str) -> str:
    """Shorten ``"3.11.2.final.0"`` to ``"3.11"``."""
    return ".".join(python.split(".")[:2])


def check_versions(machines: Mapping[str, Versions], expected: Versions) -> None:
    """Raise an OptionError that names machines with other versions, with both versions."""
    differences = []
    for machine, machine_versions in machines.items():
        for name, expected_version in expected.items():
            machine_version = machine_versions.get(name)
            if machine_version == expected_version:
                continue
            present = f"{name} {machine_version}" if machine_version else f"no {name}"
            expected_text = expected_version or "none"
            differences.append(f"{machine} has {present}, not {expected_text}")
    if differences:
        more = ""
        if len(differences) > _NAMED:
            more = f"; and {len(differences) - _NAMED} more"
        raise OptionError(
            f"versions differ: {'; '.join(differences[:_NAMED])}{more}. Install the same "
            "versions on every machine of the cluster"
        )


@dataclass(frozen=True)
class Terms:
    """Conditions that a worker checks before it runs a fold, once for each fold.

    `versions` are (package, version), `places` (path, identity of its content).
    """

    fold: str
    versions: tuple[tuple[str, str | None], ...]
    places: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, fold: str, sent: Any) -> Terms:
        """Collect the versions of this process and the existing paths in `sent`."""
        identities = {path: _identity(path) for path in _Paths.within(sent)}
        # Workers need not see a path that this process does not see.
        places = [(path, identity) for path, identity in identities.items() if identity is not None]
        local_versions = {**versions(), _SOURCE: source_version()}
        return cls(fold, tuple(local_versions.items()), tuple(sorted(places)))


@lru_cache(maxsize=256)
def check_terms(terms: Terms, worker: str) -> None:
    """Refuse work on a worker that has other versions or sees another content at a path."""
    check_versions({worker: {**versions(), _SOURCE: source_version()}}, dict(terms.versions))
    for path, expected in terms.places:
        identity = _identity(path)
        if identity != expected:
            fault = "does not see" if identity is None else "sees something else at"
            raise StoreError(
                f"{worker} {fault} {path}: workers must see the path of a store. Put it on a file "
                "system that all machines share, or pass a URL"
            )


def _identity(path: str) -> str | None:
    """Identity of the content of a path, or None if it does not exist."""
    for name in _METADATA:
        with suppress(OSError):
            return hashlib.sha256(Path(path, name).read_bytes()).hexdigest()[:16]
    return "other" if Path(path).exists() else None


class _Paths(pickle.Pickler):
    """Collect the paths in an object to be sent."""

    def __init__(self) -> None:
        # Buffers out of band are not pickled, so that the content of arrays is not copied.
        super().__init__(io.BytesIO(), protocol=5, buffer_callback=lambda buffer: None)
        self.paths: set[str] = set()

    @classmethod
    def within(cls, sent: Any) -> set[str]:
        pickler = cls()
        # Some objects are pickled by Dask alone.  Paths inside them are not checked.
        with suppress(pickle.PicklingError, AttributeError, TypeError):
            pickler.dump(sent)
        return pickler.paths

    def persistent_id(self, obj: Any) -> None:
        if isinstance(obj, Path):
            self.paths.add(str(obj))
        elif _in_memory(obj):
            raise StoreError(
                "workers must see the store, and memory:// is visible to this process alone. Use "
                "a path on a file system that all machines share, or another URL"
            )


def _in_memory(obj: Any) -> bool:
    """Whether an object is fsspec's file system inside one process."""
    memory = sys.modules.get("fsspec.implementations.memory")
    return memory is not None and isinstance(obj, memory.MemoryFileSystem)


# ---------------------------------------------------------------- Folds


def _hold(shared: Any) -> Any:
    return shared


def _run_remote(part: merge_tree.Task, shared: Any, first: int, last: int, terms: Terms) -> Any:
    from distributed import get_worker

    check_terms(terms, f"worker {get_worker().address}")
    return merge_tree.run_blocks(part.joined(shared), first, last)


class _Work:
    """Runs of one fold on the workers.

    Twice as many runs are in flight as the workers execute at a time, so that none waits for work.
    """

    def __init__(self, task: merge_tree.Task, client: Any, where: str, threads: int) -> None:
        self._task = task
        self._client = client
        self._where = where
        self._window = 2 * threads
        self._token = os.urandom(6).hex()
        self._finished: SimpleQueue[Any] = SimpleQueue()
        self._running: dict[str, tuple[int, Any]] = {}
        self._terms: Terms | None = None
        self._idle_since: float | None = None  # time since which no worker works
        # Dask computes a task again if its worker is lost, but cannot recover scattered data.
        self._shared = client.submit(
            _hold, task.shared, key=f"calibscale-{self._token}", pure=False
        )

    def outcomes(
        self, runs: merge_tree.Runs, add: merge_tree.Add, stopped: Callable[[], bool]
    ) -> merge_tree.Outcomes:
        """Add the states of runs in the order of completion, and yield runs and failures."""
        left = iter(runs.items())
        for run, blocks in islice(left, self._window):
            self._send(run, *blocks)
        while self._running:
            run, future = self._next()
            state, error = self._outcome(future)
            if error is None:
                try:
                    add(run, state)
                except Exception as failure:
                    error = failure
            yield run, error
            if not stopped() and (following := next(left, None)):
                self._send(following[0], *following[1])

    def abandon(self) -> None:
        """Cancel the runs that are still in flight."""
        dask_connection.cancel(
            self._client, [self._shared, *(future for _, future in self._running.values())]
        )

    def _explained(self, error: Exception) -> Exception:
        """Error of a failed run, as ours if the cluster caused it."""
        from distributed.scheduler import KilledWorker, NoValidWorkerError

        if isinstance(error, CalibscaleError):
            return error
        if isinstance(error, NoValidWorkerError):
            return self._without_work()
        if isinstance(error, KilledWorker):
            return CalibscaleError(
                f"{error.allowed_failures + 1} workers of {self._where} died on the same blocks; "
                "see their logs: the usual cause is too little memory"
            )
        with suppress(ClusterError), dask_connection.reaching(self._where):
            check_worker_versions(self._client)  # of workers that joined later
            check_worker_sources(self._client)  # which may lack what a task needs
        return error

    def _send(self, run: int, first: int, last: int) -> None:
        part = self._task.part(first, last)
        if self._terms is None:
            self._terms = Terms.of(self._token, (part, self._task.shared))
        key = f"calibscale-{self._token}-{first}-{last}"
        with dask_connection.reaching(self._where):
            future = self._client.submit(
                _run_remote, part, self._shared, first, last, self._terms, key=key, pure=False
            )
        self._running[key] = (run, future)
        future.add_done_callback(self._finished.put)

    def _next(self) -> tuple[int, Any]:
        while True:
            try:
                future = self._finished.get(timeout=_POLL_SECONDS)
            except Empty:
                self._check_cluster()
            else:
                self._idle_since = None
                return self._running.pop(future.key)

    def _outcome(self, future: Any) -> tuple[Any, Exception | None]:
        """Fetch a state, which Dask computes again if its worker is lost meanwhile."""
        import asyncio  # slow to import

        pending = asyncio.run_coroutine_threadsafe(
            self._client.gather([future], asynchronous=True), self._client.loop.asyncio_loop
        )
        while not wait([pending], _POLL_SECONDS).done:
            self._check_cluster()
        try:
            return pending.result()[0], None
        except Exception as error:
            if future.status != "error":  # the run succeeded, but its result did not arrive
                raise dask_connection.scheduler_lost(self._where) from error
            return None, self._explained(error)

    def _check_cluster(self) -> None:
        """Raise if the scheduler is lost, or if no worker has worked for too long."""
        if dask_connection.is_lost(self._client):
            raise dask_connection.scheduler_lost(self._where)
        with dask_connection.reaching(self._where):
            # Paused workers may still execute a task, which can take longer than the limit.
            working = dask_connection.can_work(self._client)
        now = time.monotonic()
        if working:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > dask_connection.worker_timeout():
            raise self._without_work()

    def _without_work(self) -> ClusterError:
        """Error of a cluster whose workers are paused, or that has none."""
        with dask_connection.reaching(self._where):
            present = dask_connection.worker_threads(self._client)
            paused = present and not dask_connection.can_work(self._client)
        if paused:
            return dask_connection.workers_paused(self._where)
        return dask_connection.no_workers(self._where)


def fold(
    task: merge_tree.Task,
    opened: dask_connection.Connection,
    report: merge_tree.Progress,
    checkpoint: Checkpoint | None,
) -> Any:
    """Compute the merged state of all blocks on the workers of a connection."""
    where = dask_connection.address_of(opened.client)
    with dask_connection.reaching(where):
        threads = opened.threads
        work = _Work(task, opened.client, where, threads)
    try:
        length = merge_tree.run_length(task, threads)
        return merge_tree.merged(task, length, work.outcomes, report, checkpoint)
    finally:
        work.abandon()
