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
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_SAMPLE_SECONDS = 0.005
_PACKAGES = ("calibscale", "numpy", "scipy", "numba", "zarr", "dask", "distributed")


class NotInstalled(Exception):
    """The child lacks a package."""


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
        children = {
            name: stack.enter_context(_Child(piece, python, environment))
            for name, piece in pieces.items()
        }
        for _ in range(runs):
            for child in children.values():
                child.run()
        return {name: child.measurement for name, child in children.items()}


class _Child:
    """A fresh process that has prepared a piece of work, and runs it on request."""

    def __init__(
        self, piece: tuple[Any, ...], python: str, environment: dict[str, str] | None
    ) -> None:
        self._piece = piece
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
        self._found: list[Any] = []
        self._before, self._peak = 0, 0
        ready = self._answer()
        if ready != "ready":
            self._open.close()
            raise NotInstalled(ready)

    def _answer(self) -> Any:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"{self._piece} failed:\n{self._errors.read()}")
        return json.loads(line)

    def run(self) -> None:
        with _Sampler(self._process.pid) as sampler:
            self._before = self._before or sampler.peak
            self._process.stdin.write("go\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            self._found.append(self._answer())
        self._peak = max(self._peak, sampler.peak)

    @property
    def measurement(self) -> Measurement:
        seconds, cpu_seconds, values = map(list, zip(*self._found, strict=True))
        return Measurement(seconds, cpu_seconds, values, self._before, self._peak)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


class _Sampler(threading.Thread):
    """Follows the resident memory of a process and all its children until the context ends."""

    def __init__(self, pid: int) -> None:
        import psutil

        super().__init__(daemon=True)
        self._gone = psutil.Error
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self.peak = self._resident(self._family())

    def _family(self) -> list[Any]:
        return [self._root, *self._root.children(recursive=True)]

    def _resident(self, family: list[Any]) -> int:
        total = 0
        for process in family:
            try:
                total += process.memory_info().rss
            except self._gone:
                continue
        return total

    def run(self) -> None:
        family, looked = self._family(), time.monotonic()
        while not self._ended.wait(_SAMPLE_SECONDS):
            if time.monotonic() - looked > 0.5:  # looking for children is slow
                family, looked = self._family(), time.monotonic()
            self.peak = max(self.peak, self._resident(family))

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
    for _ in sys.stdin:
        started, cpu_started = time.perf_counter(), time.process_time()
        value = work()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        print(json.dumps([seconds, cpu_seconds, value]), file=channel)


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
