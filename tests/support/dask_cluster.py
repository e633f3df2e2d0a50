"""A Dask cluster of real processes, and faults at a moment of a fold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT = 60.0  # maximum seconds for the start of a process or the report of a fault


class Cluster:
    """A scheduler and its workers, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        # a free port of this machine alone
        self.scheduler = self._start(
            sys.executable, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"
        )
        wait_for(lambda: self.file.exists() and self.file.read_text())
        self.address = json.loads(self.file.read_text())["address"]

    def worker(
        self, python: str = sys.executable, threads: int = 1, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it has joined."""
        # a scheduler knows a worker some time after its process has started
        before = self.count()
        process = self.slow_worker(python, threads, **environment)
        wait_for(lambda: self.count() > before)
        return process

    def slow_worker(
        self, python: str = sys.executable, threads: int = 1, **environment: str
    ) -> subprocess.Popen[bytes]:
        # without a nanny, which would start a killed worker again
        options = ("--nthreads", str(threads), "--no-nanny", "--no-dashboard")
        place = ("--local-directory", str(self.folder))
        return self._start(python, "worker", *options, *place, **environment)

    def count(self) -> int:
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            return len(client.nthreads())

    def stop_workers(self) -> None:
        """Kill all workers, and wait until the scheduler has none."""
        for process in self.processes:
            if process is not self.scheduler:
                process.kill()
                process.wait()
        wait_for(lambda: not self.count())

    def _start(self, python: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        # a pipe that nobody reads would fill up
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [python, "-m", "dask", *arguments, "--scheduler-file", str(self.file)],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def wait_for(holds: Any) -> None:
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class At:
    """Progress callback that acts once, after a third of a long fold."""

    def __init__(self, act: Any) -> None:
        self.act = act
        self.acted = 0.0  # time of the action

    def __call__(self, count: int, total: int) -> None:
        # folds of few blocks are over before a fault takes effect
        if not self.acted and total > 5 and count > total // 3:
            self.act()
            self.acted = time.monotonic()
