"""One and two workers, threads and Dask processes: speed-up, and equal bits."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from measure import Report, Settings, measure

CLASSES = 10
MANY_BLOCKS = 1024  # rows; so small that every worker gets some of a small store


def run(settings: Settings) -> Report:
    report = Report("scaling", settings)
    store = settings.store(settings.rows(10_000_000), CLASSES)
    warm = settings.store(100_000, CLASSES)
    block_rows = MANY_BLOCKS if settings.small else None
    result = measure("scaling:all_ways", store, warm, block_rows, runs=settings.runs)
    seconds = {
        way: statistics.median(run["seconds"][way] for run in result.values)
        for way in result.value["seconds"]
    }
    for way, time_taken in seconds.items():
        report.row(what=way, seconds=time_taken)
    for kind in ("threads", "processes"):
        ratio = seconds[f"1 {kind}"] / seconds[f"2 {kind}"]
        report.check(f"2 {kind} against 1", ratio, 1.7, "times", at_least=True, full_only=True)
    different = len({results for run in result.values for results in run["results"]}) - 1
    report.check("results that differ in any bit", different, 0)
    return report


def all_ways(store: str, warm: str, block_rows: int | None) -> Callable[[], Any]:
    """Evaluation with every scheduler in turn. Clusters are started first, one at a time."""
    from calibscale import evaluate

    def results(source: str, scheduler: Any, block_rows: int | None) -> str:
        result = evaluate(source, scheduler=scheduler, block_rows=block_rows)
        return json.dumps(result.to_dict()["results"])

    def work() -> dict[str, Any]:
        seconds, result = {}, set()
        for kind, opened in (("threads", threads), ("processes", processes)):
            for workers in (1, 2):
                with opened(workers) as scheduler:
                    results(warm, scheduler, MANY_BLOCKS)
                    started = time.perf_counter()
                    result.add(results(store, scheduler, block_rows))
                    seconds[f"{workers} {kind}"] = time.perf_counter() - started
        return {"seconds": seconds, "results": sorted(result)}

    return work


@contextmanager
def threads(workers: int) -> Iterator[str]:
    yield f"threads:{workers}"


@contextmanager
def processes(workers: int) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
