"""Functions of benchmarks with simulated data sets: seeds, processes, verdicts."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from measure import Report

SEED = 20261121  # of every data set, fixed before the first run
PROCESSES = os.cpu_count() or 1


def processes() -> ProcessPoolExecutor:
    """Fresh processes that import calibscale themselves."""
    return ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"))


def shared(pool: Executor, count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Results of `work(*arguments, first, last)` on parts of 0..count−1, one part a process."""
    step = max(1, min(20, count // PROCESSES))
    cuts = [(a, min(a + step, count)) for a in range(0, count, step)]
    return [f.result() for f in [pool.submit(work, *arguments, *cut) for cut in cuts]]


def within(
    report: Report,
    title: str,
    value: float,
    low: float,
    high: float,
    unit: str = "%",
    full_only: bool = False,
) -> None:
    """Check a number against the nearer of two bounds."""
    below = bool(value < (low + high) / 2)
    report.check(title, value, low if below else high, unit, at_least=below, full_only=full_only)
