"""Functions of all benchmarks: fresh processes, peak memory, verdicts, JSON.

As a script it is the child process: it prepares a piece of work and runs it at each request.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_SAMPLE_SECONDS = 0.005
_PACKAGES = ("calibscale", "numpy", "scipy", "numba", "zarr", "dask", "distributed")


class NotInstalled(Exception):
    """The child lacks a package."""


class OverLimit(Exception):
    """A run exceeded a limit, and its process has ended. The message is ``time`` or ``memory``."""


# ---------------------------------------------------------------- fresh processes


@dataclass(frozen=True)
class Measurement:
    """Runs of one piece of work in one fresh process. Bytes are resident, children included."""

    seconds: list[float]
    cpu_seconds: list[float]  # of all threads of the process, not of its children
    values: list[Any]
    before: int  # just before the first run: interpreter, imports, data, compiled code
    peak: int  # during the runs

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu_seconds)

    @property
    def value(self) -> Any:
        return self.values[-1]


class Run(NamedTuple):
    """One run of a piece of work. Bytes are resident, children included."""

    seconds: float
    cpu_seconds: float  # of all threads of the process, not of its children
    value: Any
    before: int  # just before the run
    peak: int  # during the run


@dataclass(frozen=True)
class Limits:
    """Most seconds and resident bytes of one run."""

    seconds: float = math.inf
    memory: float = math.inf


NO_LIMITS = Limits()


def measure(
    prepare: str,
    *arguments: Any,
    runs: int = 3,
    python: str = sys.executable,
    environment: dict[str, str] | None = None,
) -> Measurement:
    """Call ``module:function`` with JSON arguments in a fresh process, and time its result.

    The function imports, loads and compiles. The callable it returns is the work, which runs
    `runs` times and returns a JSON value.

    Raises
    ------
    NotInstalled
        If the function needs a package that is missing.
    RuntimeError
        If the child fails. The message is its standard error.
    """
    piece = (prepare, *arguments)
    (result,) = measure_in_turn({prepare: piece}, runs, python, environment).values()
    return result


def measure_in_turn(
    pieces: dict[str, tuple[Any, ...]],
    runs: int = 3,
    python: str = sys.executable,
    environment: dict[str, str] | None = None,
) -> dict[str, Measurement]:
    """`measure` of several pieces (function, arguments …), each in a process of its own.

    Every round runs each of them once, so that ratios are of adjacent runs.
    """
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(piece, python, environment))
            for name, piece in pieces.items()
        }
        runs_of: dict[str, list[Run]] = {name: [] for name in workers}
        for _ in range(runs):
            for name, worker in workers.items():
                runs_of[name].append(worker.run())
        return {name: _measurement(of_worker) for name, of_worker in runs_of.items()}


def _measurement(runs: list[Run]) -> Measurement:
    return Measurement(
        seconds=[run.seconds for run in runs],
        cpu_seconds=[run.cpu_seconds for run in runs],
        values=[run.value for run in runs],
        before=runs[0].before,
        peak=max(run.peak for run in runs),
    )


class Worker:
    """A fresh process that has prepared a piece of work, and runs it on request.

    Parameters
    ----------
    piece : tuple
        ``module:function`` and its JSON arguments, see `measure`.
    limits : Limits
        A run beyond a limit ends the process.

    Raises
    ------
    NotInstalled, RuntimeError
        See `measure`.
    """

    def __init__(
        self,
        piece: tuple[Any, ...],
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._piece, self._limits = piece, limits
        self._open = ExitStack()
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (the stack closes it)
        self._errors = self._open.enter_context(errors)
        self._process = self._open.enter_context(
            subprocess.Popen(
                [python, __file__, piece[0], json.dumps(piece[1:])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        )
        ready = self._answer()
        if ready != "ready":
            self._open.close()
            raise NotInstalled(ready)

    def _answer(self) -> Any:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise self._failure()
        return json.loads(line)

    def _request(self, arguments: tuple[Any, ...]) -> None:
        requests = self._process.stdin
        try:
            requests.write(json.dumps(arguments) + "\n")  # type: ignore[union-attr]
            requests.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            # The process has died since its last run.
            raise self._failure() from None

    def _failure(self) -> RuntimeError:
        """Return the error of a process that has ended, with its standard error."""
        self._process.wait()
        self._errors.seek(0)
        return RuntimeError(f"{self._piece} failed:\n{self._errors.read()}")

    def run(self, *arguments: Any, limits: Limits | None = None) -> Run:
        """Run the work once, with JSON arguments, within other limits if they are given.

        Raises
        ------
        OverLimit
            If the run exceeds a limit.
        RuntimeError
            If the work fails, or the process has ended since the last run.
        """
        with _Sampler(self._process, limits or self._limits) as sampler:
            before = sampler.peak
            try:
                self._request(arguments)
                answer = self._answer()
            except RuntimeError:
                # A process that the sampler has ended answers nothing.
                if sampler.exceeded:
                    raise OverLimit(sampler.exceeded) from None
                raise
        if answer == "MemoryError":
            self._process.kill()
            raise OverLimit("memory")
        seconds, cpu_seconds, value, peak_of_process = answer
        # The sampler sees children as well, but no memory that is held for a shorter time.
        return Run(seconds, cpu_seconds, value, before, max(sampler.peak, peak_of_process))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        # A request that was not read is written again, to a process that may have died.
        with suppress(BrokenPipeError):
            self._open.close()


class _Sampler(threading.Thread):
    """Follows the resident memory of a process and all its children until the context ends.

    It ends a process that exceeds a limit, and says in `exceeded` which one.
    """

    def __init__(self, process: subprocess.Popen[str], limits: Limits) -> None:
        import psutil

        super().__init__(daemon=True)
        self._gone = psutil.Error
        self._process, self._limits = process, limits
        self._ended = threading.Event()
        self.exceeded = ""
        self.peak = self._resident(self._family())

    def _family(self) -> list[Any]:
        """Return the process and its children, or none of them if the process has ended."""
        import psutil

        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except self._gone:
            return []

    def _resident(self, family: list[Any]) -> int:
        total = 0
        for process in family:
            try:
                total += process.memory_info().rss
            except self._gone:
                continue
        return total

    def run(self) -> None:
        started = looked = time.monotonic()
        family = self._family()
        while not self._ended.wait(_SAMPLE_SECONDS):
            now = time.monotonic()
            if now - looked > 0.5:  # looking for children is slow
                family, looked = self._family(), now
            self.peak = max(self.peak, self._resident(family))
            if self.peak > self._limits.memory:
                self.exceeded = "memory"
            elif now - started > self._limits.seconds:
                self.exceeded = "time"
            if self.exceeded:
                self._process.kill()
                return

    def __enter__(self) -> _Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def _serve(prepare: str, arguments: str) -> None:
    """The child: answers go to the real standard output, prints of libraries elsewhere."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, name = prepare.partition(":")
    try:
        work = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    except ModuleNotFoundError as error:
        print(json.dumps(f"{error.name} is not installed"), file=channel)
        return
    print(json.dumps("ready"), file=channel)
    for request in sys.stdin:
        _reset_peak()
        started, cpu_started = time.perf_counter(), time.process_time()
        try:
            value = work(*json.loads(request))
        except MemoryError:
            print(json.dumps("MemoryError"), file=channel)
            return
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        print(json.dumps([seconds, cpu_seconds, value, _peak()]), file=channel)


def _reset_peak() -> None:
    """Let Linux measure the peak of the resident memory of this process from now on."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Peak of the resident memory since `_reset_peak` in bytes, or 0 if the system has none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


# ---------------------------------------------------------------- the machine


def describe_environment() -> dict[str, Any]:
    """Processor, cores in use, load, and the versions that numbers depend on."""
    return {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in _PACKAGES},
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


# ---------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class Settings:
    """Where and at what size benchmarks run."""

    folder: Path
    small: bool = False
    results: Path = RESULTS
    peers_python: str = sys.executable
    largest: bool = True
    # Of the benchmark `compare`.
    compare_rows: int = 10_000_000
    input_bytes: int = 400_000_000
    limits: Limits = Limits(seconds=20.0, memory=6e9)
    tasks: tuple[str, ...] = ()  # empty: all

    def rows(self, rows: int) -> int:
        return max(1000, rows // 100) if self.small else rows

    @property
    def runs(self) -> int:
        return 1 if self.small else 3

    def store(self, rows: int, classes: int) -> str:
        """A simulated store, made once."""
        from calibscale import LogitStore, StoreError
        from calibscale.simulation import simulate

        url = str(self.folder / f"{rows}x{classes}.zarr")
        try:
            complete = LogitStore.open(url).rows == rows
        except StoreError:
            complete = False
        if not complete:
            simulate(url, rows=rows, classes=classes, overwrite=True)
        return url


@dataclass
class Report:
    """The lines of one benchmark, printed as they come and written as JSON at the end."""

    name: str
    settings: Settings
    checks: list[dict[str, Any]] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=describe_environment)

    def check(
        self,
        title: str,
        value: float,
        bound: float,
        unit: str = "",
        *,
        at_least: bool = False,
        full_only: bool = False,
    ) -> None:
        """Check a number. At small size, skip what is `full_only`, a time or a size of memory."""
        met = None
        if not (self.settings.small and (full_only or unit in ("s", "MB"))):
            met = bool(value >= bound if at_least else value <= bound)
        self.checks.append(
            {
                "what": title,
                "value": value if math.isfinite(value) else None,
                "bound": bound,
                "unit": unit,
                "at_least": at_least,
                "met": met,
            }
        )
        verdict = {True: "met", False: "MISSED", None: "unjudged"}[met]
        sense = "at least" if at_least else "at most"
        print(
            f"{self.name:8} {verdict:8} {title}: {value:.4g} {unit}".rstrip()
            + f" ({sense} {bound:g})",
            flush=True,
        )

    def row(self, **cells: Any) -> None:
        """A row of the benchmark's table."""
        self.table.append(cells)
        shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in cells.items())
        print(f"{self.name:8} {'':8} {', '.join(shown)}", flush=True)

    def note(self, text: str) -> None:
        print(f"{self.name:8} {'':8} {text}", flush=True)

    @property
    def missed(self) -> int:
        return sum(check["met"] is False for check in self.checks)

    def write(self) -> None:
        self.settings.results.mkdir(parents=True, exist_ok=True)
        content = {
            "name": self.name,
            "small": self.settings.small,
            "environment": self.environment,
            "checks": self.checks,
            "table": self.table,
        }
        path = self.settings.results / f"{self.name}.json"
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
