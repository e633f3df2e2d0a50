"""A ledger of a year: size, windows, memory, and the time of a new day."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from measure import Report, Settings, measure

DAYS, ROWS, CLASSES = 365, 10**6, 10
REAL_DAYS = 15  # read from rows; the others are copies with noise
YOUNG, OLD, AGE_ROWS = 10, 1000, 2000  # nights that are compared, and rows of their days
AROUND = 3  # nights before, and after, of which the median is taken; at small size 1
FEW = """[
    "ece", "tce2_debiased", "cwce2", "brier", "nll",
    {name = "ckce", features = 50}, {name = "jkce", features = 50},
]"""
FIRST = date(2026, 1, 1)
ESTIMATORS = """[
    "ece", "tce2_debiased", "cwce2", "brier", "nll", "jkce", "ckce",
    {name = "klce", covariates = ["age"]},
]"""
JOB = """
ledger = "{ledger}"
estimators = {estimators}
windows = ["day", "7d", "30d", "all"]
[source]
path = "{stores}/{{date}}.zarr"
[test]
statistics = ["ckce", "klce", "tce2_debiased"]
replicates = 199
keep = {keep}
[drift]
window = "7d"
baseline = "30d"
[[thresholds]]
estimator = "tce2_debiased"
bound = "low"
window = "7d"
above = 0.01
[alarms]
notions = ["top_label", "canonical"]
[outputs]
json = "out/{{date}}.json"
prometheus = "out/calibscale.prom"
junit = "out/{{date}}.xml"
history = "out/history.csv"
report = "out/report.html"
"""


def run(settings: Settings) -> Report:
    report = Report("nightly", settings)
    rows, days = settings.rows(ROWS), 10 if settings.small else DAYS
    real = 3 if settings.small else REAL_DAYS
    for keep, bound in ((False, 1e9), (True, 4e9)):
        folder = settings.folder / f"nightly-{keep}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        job = _job(settings.folder, folder, keep)
        variant = "with 199 replicates" if keep else "without replicates"
        measure("nightly:days_read", str(job), str(settings.folder), rows, 0, real, runs=1)
        if not keep:
            _compare_with_one_pass(report, job, settings.folder)
        _fill(folder / "ledger", real, days - 1)
        new = measure(
            "nightly:days_read",
            str(job),
            str(settings.folder),
            rows,
            days - 1,
            days,
            runs=settings.runs,
        )
        _judge_windows(report, job, days, variant)  # with the sums that nights cache
        report.row(what="a new day", ledger=variant, seconds=new.seconds, peak=new.peak)
        report.check(f"a new day of {rows:,} rows, {variant}", max(new.seconds), 60, "s")
        report.check(f"the same, peak memory, {variant}", new.peak / 1e6, 1000, "MB")
        size = _bytes(folder / "ledger") / 1e9
        report.check(f"ledger of {days} days, {variant}", size, bound / 1e9, "GB")
        page = (folder / "out" / "report.html").stat().st_size / 1e3
        report.check(f"report, {variant}", page, 3000, "kB")
    _compare_ages(report, settings)
    return report


def _compare_ages(report: Report, settings: Settings) -> None:
    """Nights of a young and an old ledger, in turn: neither time nor output grows."""
    folder = settings.folder / "nightly-age"
    young_nights, old_nights = (5, 12) if settings.small else (YOUNG, OLD)
    shutil.rmtree(folder, ignore_errors=True)
    young, old = (_small_job(folder / name, folder / "days") for name in ("young", "old"))
    around = 1 if settings.small else AROUND
    first = young_nights - around - 2
    measure("nightly:days_read", str(young), str(folder), AGE_ROWS, 0, first, runs=1)
    shutil.copytree(young.parent / "ledger", old.parent / "ledger")
    first_old = old_nights - around - 2
    _fill(old.parent / "ledger", first, first_old)
    nights = [[str(young), first], [str(old), first_old]]
    measured = measure("nightly:nights_in_turn", nights, str(folder), AGE_ROWS, around, runs=1)
    seconds = [float(np.median(durations)) for durations in measured.value]
    for k, median in zip((young_nights, old_nights), seconds, strict=True):
        report.note(f"night {k} of {AGE_ROWS:,} rows: {median:.3g} s")
    ratio = seconds[1] / seconds[0]
    report.check(f"night {old_nights} against night {young_nights}", ratio, 1.3, full_only=True)
    size = max(path.stat().st_size for path in (old.parent / "out").glob("*.json")) / 1e3
    report.check(f"result of night {old_nights}", size, 150, "kB")


def _small_job(folder: Path, stores: Path) -> Path:
    folder.mkdir(parents=True)
    job = folder / "job.toml"
    text = JOB.format(ledger=folder / "ledger", estimators=FEW, stores=stores, keep="false")
    text = text.replace('"ckce", "klce", "tce2_debiased"', '"ece"').replace("= 199", "= 39")
    job.write_text(text)
    return job


def _job(stores: Path, folder: Path, keep: bool) -> Path:
    job = folder / "job.toml"
    text = JOB.format(
        ledger=folder / "ledger",
        estimators=ESTIMATORS,
        stores=stores / "days",
        keep=str(keep).lower(),
    )
    job.write_text(text)
    return job


def _day(k: int) -> str:
    return (FIRST + timedelta(k)).isoformat()


# ---------------------------------------------------------------- in the child


def days_read(job: str, folder: str, rows: int, first: int, last: int) -> Callable[[], Any]:
    """Nights of days written before timing starts. Each call runs them again."""
    from calibscale.monitoring.night import night

    for k in range(first, last):
        _make(Path(folder) / "days" / f"{_day(k)}.zarr", rows, k)

    def work() -> list[str]:
        return [night(job, _day(k), force=True).status for k in range(first, last)]

    if last - first == 1:
        work()  # compiles
    return work


def nights_in_turn(
    jobs: list[tuple[str, int]], folder: str, rows: int, around: int
) -> Callable[[], Any]:
    """Seconds per night from a day on, by job, with the jobs in turn."""
    from calibscale.monitoring.night import night

    count = 2 * around + 1
    for _, first in jobs:
        for k in range(first, first + 1 + count):
            _make(Path(folder) / "days" / f"{_day(k)}.zarr", rows, k)
    for job, first in jobs:
        night(job, _day(first))  # compiles, and adds up days that were copied

    def work() -> list[list[float]]:
        seconds: list[list[float]] = [[] for _ in jobs]
        for k in range(1, 1 + count):
            for durations, (job, first) in zip(seconds, jobs, strict=True):
                start = time.perf_counter()
                night(job, _day(first + k))
                durations.append(time.perf_counter() - start)
        return seconds

    return work


def window_values(job: str, name: str, last: int) -> Callable[[], Any]:
    from calibscale.monitoring.job.job_days import window_days
    from calibscale.monitoring.job.job_reader import read_job
    from calibscale.monitoring.ledger.windows import window
    from calibscale.monitoring.night import open_ledger

    result = read_job(job)
    ledger = open_ledger(result)
    assert ledger is not None
    ends = window_days(name, _day(last - 1))
    window(ledger, _day(last - 1), _day(last - 1))  # compiles

    def work() -> list[Any]:
        merged = window(ledger, *ends)
        return [len(merged.days), len(merged.tests), *(e.value for e in merged.estimates)]

    return work


def one_pass_apart(job: str, folder: str, days: int) -> Callable[[], Any]:
    """Relative differences of a window from one pass over its rows, by estimator."""
    from dataclasses import replace

    from calibscale import from_arrays
    from calibscale.data.source_arguments import as_source
    from calibscale.monitoring.job.job_reader import read_job
    from calibscale.monitoring.ledger.windows import window
    from calibscale.monitoring.night import open_ledger
    from calibscale.session import Session

    ledger = open_ledger(read_job(job))
    assert ledger is not None

    def work() -> dict[str, list[float]]:
        scores = window(ledger, _day(0), _day(days - 1)).estimates
        sources = [as_source(Path(folder) / "days" / f"{_day(k)}.zarr") for k in range(days)]
        blocks = [source.read(0, source.rows, covariates=True) for source in sources]
        joined = from_arrays(
            logits=np.concatenate([block.values for block in blocks]),
            labels=np.concatenate([block.labels for block in blocks]),
            covariates=np.concatenate([block.covariates for block in blocks]),
            covariate_names=("age",),
        )
        with Session.open(joined) as session:
            run = session.run(())
            run = replace(run, chosen=ledger.recipe.estimators)
            states = run.scan(s for e in run.fitting for s in e.needs).groups[None]
            values = [e.finalize(*(states[s] for s in e.needs)).value for e in run.fitting]
        return {
            a.estimator: [b, abs(a.value - b) / abs(b)] for a, b in zip(scores, values, strict=True)
        }

    return work


def _make(path: Path, rows: int, k: int) -> None:
    """Predictions of Dirichlet(0.1), labels drawn from them, an age."""
    from calibscale import LogitStore

    if path.exists():
        return
    rng = np.random.default_rng([7, k])
    store = LogitStore.create(
        str(path), classes=CLASSES, covariate_names=("age",), expected_rows=rows
    )
    with store.writer() as writer:
        for start in range(0, rows, 100_000):
            n = min(100_000, rows - start)
            f = np.maximum(rng.dirichlet(np.full(CLASSES, 0.1), n), 1e-30)
            labels = (f.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, CLASSES - 1)
            age = rng.uniform(20, 80, (n, 1))
            writer.append(np.log(f).astype(np.float32), labels, covariates=age)


# ---------------------------------------------------------------- the year


def _fill(path: Path, real: int, days: int) -> None:
    """Noisy copies of the days read: as many numbers, which compress as badly."""
    from calibscale.monitoring.ledger.day_ledger import Ledger, Record

    ledger = Ledger.open(path)
    rng = np.random.default_rng(3)
    entries = ledger.select()[:real]
    with ledger.writing():
        for k in range(real, days):
            entry = entries[k % real]
            vectors = {s: ledger.read(entry, s) for s in entry.sections}
            noisy = {
                s: v * (1 + 1e-6 * rng.standard_normal(len(v))) if s != "wagers" else v
                for s, v in vectors.items()
            }
            ledger.write(_day(k), entry.model, {None: Record(entry.n, noisy, entry.info)})


def _judge_windows(report: Report, job: Path, days: int, variant: str) -> None:
    names = ("day", "all", "7d", "30d", f"{_day(days // 4)}/{_day(days // 2)}")
    for name in names[: 2 if report.settings.small else None]:
        measured = measure("nightly:window_values", str(job), name, days, runs=report.settings.runs)
        report.row(
            what=f"window {name}",
            ledger=variant,
            days=measured.value[0],
            tests=measured.value[1],
            seconds=measured.seconds,
            peak=measured.peak,
        )
        report.check(f"window {name}, {variant}", measured.median, 2, "s")


def _compare_with_one_pass(report: Report, job: Path, folder: Path) -> None:
    measured = measure("nightly:one_pass_apart", str(job), str(folder), 3, runs=1)
    for name, (value, apart) in measured.value.items():
        report.check(f"3 days against one pass, {name} of {value:.3g}, relative", apart, 1e-12)


def _bytes(folder: Path) -> int:
    """On disk."""
    return sum(
        os.stat(Path(root) / name).st_blocks * 512
        for root, _, names in os.walk(folder)
        for name in names
    )
