"""Alarms over time: how often calibrated models raise one, and how soon drifts do."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace

import numpy as np
from measure import Report, Settings
from scipy.stats import binom

SEED = 20261121  # of every night of this file, fixed before the first run
PROCESSES = 2
CLASSES, CONCENTRATION, LEVEL, LEARN_DAYS = 10, 0.1, 0.05, 28
NIGHTS, ROWS, YEARS = 365, 2000, 400
DRIFTS = {  # temperature: rows a night, nights after the first drifted one, largest median delay
    1.3: (2000, 60, 4),
    1.05: (20_000, 60, 6),
}
FIRST_DRIFTED, SERIES = 40, 100


def run(settings: Settings) -> Report:
    report = Report("alarms", settings)
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        calibrated(report, pool)
        for temperature in DRIFTS:
            drifting(report, pool, temperature)
    return report


def calibrated(report: Report, pool: Executor) -> None:
    """The share of calibrated years in which the evidence ever reaches 1/level."""
    years, nights = (20, 40) if report.settings.small else (YEARS, NIGHTS)
    found = _shared(pool, years, nights, ROWS, nights, 1.0)
    alarms = sum(night is not None for night in found)
    low, high = (100 * binom.ppf(q, years, alarms / years) / years for q in (0.025, 0.975))
    report.row(
        what="calibrated", years=years, nights=nights, rows=ROWS, alarms=alarms, low=low, high=high
    )
    report.check("calibrated years that ever alarm", 100 * alarms / years, 100 * LEVEL, "%")


def drifting(report: Report, pool: Executor, temperature: float) -> None:
    """Nights from the first drifted one, counted as 1, to the alarm."""
    rows, after, bound = DRIFTS[temperature]
    series = 4 if report.settings.small else SERIES
    if report.settings.small:
        rows = min(rows, 5000)
    found = _shared(pool, series, FIRST_DRIFTED + after, rows, FIRST_DRIFTED, temperature)
    false = sum(night is not None and night < FIRST_DRIFTED for night in found)
    delays = [n - FIRST_DRIFTED + 1 for n in found if n is not None and n >= FIRST_DRIFTED]
    missed = series - false - len(delays)
    middle = float(np.median(delays)) if delays else float("inf")
    spread = {f"p{q}": float(np.percentile(delays, q)) for q in (10, 90, 100)} if delays else {}
    report.row(
        what="drift", temperature=temperature, rows=rows, series=series, before=false,
        missed=missed, median=middle, **spread,
    )  # fmt: skip
    name = f"temperature {temperature}, {rows:,} rows a night"
    report.check(f"{name}, median delay", middle, bound, "nights", full_only=True)
    report.check(f"{name}, missed in {after} nights", missed, 0, full_only=True)


def _shared(
    pool: Executor, series: int, nights: int, rows: int, drifted: int, temperature: float
) -> list[int | None]:
    """The night of the first alarm of every series, from 0."""
    jobs = [(s, nights, rows, drifted, temperature) for s in range(series)]
    return list(pool.map(_first_alarm, *zip(*jobs, strict=True), chunksize=2))


def _first_alarm(
    series: int, nights: int, rows: int, drifted: int, temperature: float
) -> int | None:
    """With the bets of a ledger: fixed ones, and those that the last 28 nights taught."""
    from calibscale import from_arrays
    from calibscale.scan import scan
    from calibscale.wagers import Wagers, learn, log_evidence

    rng = np.random.default_rng([SEED, rows, round(100 * temperature), series])
    fixed = Wagers("top_label")
    logs, sums = [], []
    for night in range(nights):
        truth = np.maximum(rng.dirichlet(np.full(CLASSES, CONCENTRATION), rows), 1e-300)
        labels = (truth.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(0, CLASSES - 1)
        sharper = temperature if night >= drifted else 1.0
        source = from_arrays(logits=sharper * np.log(truth), labels=labels)
        shifts = learn(np.sum(sums[-LEARN_DAYS:], axis=0)) if sums else ()
        bets = replace(fixed, learned=((None, shifts),) if any(shifts) else ())
        found = scan(source, (bets,), scheduler="serial").groups[None][bets]
        logs.append(found.logs)
        sums.append(found.sums)
        evidence = log_evidence(np.array(logs)) if night >= drifted or night == nights - 1 else []
        reached = np.flatnonzero(np.asarray(evidence) >= np.log(1 / LEVEL))
        if len(reached):
            return int(reached[0])
    return None
