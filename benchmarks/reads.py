"""Evaluation of bins only, relative to the speed at which zarr reads the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from measure import Report, Settings, measure

CLASSES = 100
THREADS = (1, 2, 4)


def run(settings: Settings) -> Report:
    report = Report("reads", settings)
    rows = settings.rows(1_000_000)
    store = settings.store(rows, CLASSES)
    result = measure("reads:both", store, runs=5 if settings.runs > 1 else 1)
    size = rows * CLASSES * 4 / 1e9
    plain = {t: max(size / run["plain"][str(t)] for run in result.values) for t in THREADS}
    speeds = sorted(size / run["bins"] for run in result.values)
    ours = speeds[len(speeds) // 2]
    for threads, speed in plain.items():
        report.row(what=f"zarr, {threads} threads, best", gb_per_second=speed)
    report.row(what="bins, median", gb_per_second=ours)
    share = ours / max(plain.values())
    report.check("bins, share of the best read speed", share, 0.5, at_least=True, full_only=True)
    report.check("rows not counted", max(run["lost"] for run in result.values), 0)
    return report


def both(store: str) -> Callable[[], Any]:
    """Plain reads with 1, 2 and 4 threads, and the binned estimators, one after the other."""
    import zarr

    from calibscale import ECE, MCE, TCE2, Accuracy, TCE2Debiased, evaluate

    logits = zarr.open_group(store, mode="r")["logits"]
    estimators = [ECE(), MCE(), TCE2(), TCE2Debiased(), Accuracy()]
    rows = logits.shape[0]
    starts = range(0, rows, logits.chunks[0])

    def read(start: int) -> int:
        return len(logits[start : start + logits.chunks[0]])

    def plain(threads: int) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            assert sum(pool.map(read, starts)) == rows
        return time.perf_counter() - started

    def bins() -> tuple[float, int]:
        started = time.perf_counter()
        result = evaluate(store, estimators)
        seconds = time.perf_counter() - started
        counted = sum(row["count"] for row in result["ece"].details["bins"])
        return seconds, rows - counted

    def work() -> dict[str, Any]:
        seconds, lost = bins()
        return {"plain": {t: plain(t) for t in THREADS}, "bins": seconds, "lost": lost}

    work()
    return work
