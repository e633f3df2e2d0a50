"""Planned times of a pass beside real ones, with threads and with Dask workers of this machine.

``python benchmarks/planned_times.py STORE ece,brier 1 2 4`` takes a store, estimators and numbers
of workers.  On a machine with other work, elapsed times say little.  Processor times are therefore
printed as well: of the thread with most of them, which is the elapsed time on a free core for each
thread, and of the client for the tasks of Dask workers.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

import calibscale as cs
from calibscale.engine.dask_connection import available_cpus
from calibscale.evaluation.pass_estimates import needed_statistics
from calibscale.session import Session
from calibscale.statistics.one_pass import Scan, scan_of

RUNS = 5
IDLE = 3.0  # seconds
ROW = "{:<16}{:>12}{:>12}{:>12}{:>12}"


@dataclass(frozen=True, eq=False)
class TimedScan(Scan):
    """Pass that adds the processor time of blocks and merges to their thread."""

    def state(self, block: int) -> Any:
        started = time.thread_time()
        state = super().state(block)
        SECONDS[threading.get_ident()] += time.thread_time() - started
        return state

    def merge(self, a: Any, b: Any) -> Any:
        started = time.thread_time()
        state = super().merge(a, b)
        SECONDS[threading.get_ident()] += time.thread_time() - started
        return state


SECONDS: Counter[int] = Counter()


def pass_of(session: Session, names: list[str], kind: type[Scan]) -> Scan:
    """Task of the pass of an evaluation with these estimators."""
    run = session.run(names)
    needs = tuple(dict.fromkeys(needed_statistics(run, None, None)))
    task = scan_of(run.source, needs, run.rules, session.block_rows)
    return kind(**{field.name: getattr(task, field.name) for field in fields(task)})


def on_threads(store: str, names: list[str], count: int) -> tuple[float, float]:
    """Elapsed time of a pass on threads, and processor time of the busiest thread."""
    elapsed, busiest = [], []
    with Session.open(store, scheduler=f"threads:{count}") as session:
        task = pass_of(session, names, TimedScan)
        task.state(0)
        for _ in range(RUNS):
            SECONDS.clear()
            started = time.perf_counter()
            session.execution.fold(task)
            elapsed.append(time.perf_counter() - started)
            busiest.append(max(SECONDS.values()))
    return statistics.median(elapsed), statistics.median(busiest)


def on_dask(store: str, names: list[str], count: int) -> tuple[float, float]:
    """Elapsed time of a pass on Dask workers, and processor time of the client for it."""
    elapsed, client = [], []
    with Session.open(store, scheduler=f"local:{count}") as session:
        task = pass_of(session, names, Scan)
        session.execution.fold(replace(task, blocks=min(task.blocks, 2 * count)))  # imports
        # The scheduler is a thread of this process, and talks with workers without any task.
        started = time.process_time()
        time.sleep(IDLE)
        idle = (time.process_time() - started) / IDLE
        for _ in range(RUNS):
            started = time.perf_counter(), time.process_time()
            session.execution.fold(task)
            elapsed.append(time.perf_counter() - started[0])
            client.append(time.process_time() - started[1] - idle * elapsed[-1])
    return statistics.median(elapsed), statistics.median(client)


def main(store: str, names: str, *counts: str) -> None:
    listed = names.split(",")
    print(f"{available_cpus()} cores")
    print(ROW.format("pass", "planned s", "elapsed s", "processor s", "client plan"))
    for count in map(int, counts):
        planned = cs.plan(store, listed, workers=count)
        for expected in planned.parallel:
            if expected.workers != count:
                continue
            steps = expected.steps
            whole = steps.reading + steps.computing + steps.merging + steps.transport
            measure = on_dask if expected.kind == "dask" else on_threads
            elapsed, processor = measure(store, listed, count)
            # The client of Dask workers overlaps with their work.
            assert planned.cluster is not None
            client = f"{planned.cluster.client_seconds:.3g}" if expected.kind == "dask" else ""
            texts = [f"{value:.3g}" for value in (whole, elapsed, processor)]
            print(ROW.format(expected.name, *texts, client), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
