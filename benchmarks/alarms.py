"""Alarms over time: false alarm rates of calibrated models, and delays after drifts."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace

import alarm_delays
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
LATE_YEARS, LATE_ROWS = 200, 500
LATEST = 30  # nights that the labels of half the rows may take


def run(settings: Settings) -> Report:
    report = Report("alarms", settings)
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        calibrated(report, pool)
        late_labels(report, pool)
        for temperature in DRIFTS:
            drifting(report, pool, temperature)
        within_tolerance(report, pool)
        delays(report, pool)
    return report


def within_tolerance(report: Report, pool: Executor) -> None:
    """The share of years within the tolerance in which the evidence ever reaches 1/level."""
    from calibscale.inference.e_process import RESOLUTION

    years, nights = (6, 15) if report.settings.small else (YEARS, NIGHTS)
    for law in alarm_delays.YEARS:
        alarms = alarm_delays.alarms_in_years(pool, law, RESOLUTION, years, nights)
        report.row(
            what=law.name,
            years=years,
            nights=nights,
            rows=law.rows,
            alarms=alarms,
            **_band(alarms, years),
        )
        report.check(
            f"years that ever alarm: {law.name}",
            100 * alarms / years,
            _largest_share(report, years),
            "%",
        )


def delays(report: Report, pool: Executor) -> None:
    """Nights from the first with an error to the alarm, with the bets of earlier ledgers too."""
    from calibscale.inference.e_process import RESOLUTION

    series, longest = (2, 8) if report.settings.small else (SERIES, alarm_delays.LONGEST)
    for law in alarm_delays.DELAYS:
        medians = {}
        for key, resolution in (("earlier", alarm_delays.OF_EARLIER_LEDGERS), ("now", RESOLUTION)):
            nights = alarm_delays.delays(pool, law, resolution, series, longest)
            medians[key] = _finite(np.median(nights))
        of_new = _finite(np.percentile(nights, 90, method="inverted_cdf"))
        report.row(
            what="delay",
            law=law.name,
            rows=law.rows * law.groups,
            series=series,
            tolerance=law.tolerance,
            longest=longest,
            p90=of_new,
            **medians,
        )
        if law.bound is not None:
            tolerance = "no tolerance" if law.tolerance is None else f"tolerance {law.tolerance}"
            name = f"{law.name}, {tolerance}, median delay"
            median = longest + 1 if medians["now"] is None else medians["now"]
            report.check(name, median, law.bound, "nights", full_only=True)


def _finite(nights: float) -> float | None:
    """A number of nights, or None for ∞."""
    return float(nights) if np.isfinite(nights) else None


def calibrated(report: Report, pool: Executor) -> None:
    """The share of calibrated years in which the evidence ever reaches 1/level."""
    years, nights = (10, 20) if report.settings.small else (YEARS, NIGHTS)
    values = _shared(pool, years, nights, ROWS, nights, 1.0)
    alarms = sum(night is not None for night in values)
    report.row(
        what="calibrated",
        years=years,
        nights=nights,
        rows=ROWS,
        alarms=alarms,
        **_band(alarms, years),
    )
    report.check(
        "calibrated years that ever alarm", 100 * alarms / years, _largest_share(report, years), "%"
    )


def late_labels(report: Report, pool: Executor) -> None:
    """The same with half of the labels late, judged by the last value, as in a night.

    Also the share if a night judged every day that late labels have changed.
    """
    years, nights = (6, 20) if report.settings.small else (LATE_YEARS, NIGHTS)
    values = np.array(list(pool.map(_late_year, range(years), [nights] * years, chunksize=2)))
    last, path = values.sum(axis=0).tolist()
    report.row(
        what="late labels",
        years=years,
        nights=nights,
        rows=LATE_ROWS,
        alarms=last,
        **_band(last, years),
        of_any_day=path,
    )
    report.check(
        "calibrated years of late labels that ever alarm",
        100 * last / years,
        _largest_share(report, years),
        "%",
    )


def _largest_share(report: Report, years: int) -> float:
    """Largest share of alarms, in percent: the level, or what a few years at the level may have."""
    if report.settings.small:
        return float(100 * binom.ppf(0.999, years, LEVEL) / years)
    return 100 * LEVEL


def _band(alarms: int, years: int) -> dict[str, float]:
    """95 % range of the share in repetitions, in percent, if it were the true one."""
    low, high = (100 * binom.ppf(q, years, alarms / years) / years for q in (0.025, 0.975))
    return {"low": low, "high": high}


def drifting(report: Report, pool: Executor, temperature: float) -> None:
    """Nights from the first drifted one, counted as 1, to the alarm."""
    rows, after, bound = DRIFTS[temperature]
    series = 4 if report.settings.small else SERIES
    if report.settings.small:
        rows = min(rows, 5000)
    values = _shared(pool, series, FIRST_DRIFTED + after, rows, FIRST_DRIFTED, temperature)
    false = sum(night is not None and night < FIRST_DRIFTED for night in values)
    delays = [n - FIRST_DRIFTED + 1 for n in values if n is not None and n >= FIRST_DRIFTED]
    missed = series - false - len(delays)
    middle = float(np.median(delays)) if delays else float("inf")
    spread = {f"p{q}": float(np.percentile(delays, q)) for q in (10, 90, 100)} if delays else {}
    report.row(
        what="drift",
        temperature=temperature,
        rows=rows,
        series=series,
        before=false,
        missed=missed,
        median=middle,
        **spread,
    )
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
    """With the bets of a ledger: fixed ones, and those learned from the last 28 nights."""
    from calibscale import from_arrays
    from calibscale.inference.e_process import RESOLUTION, BettingEProcess, advance
    from calibscale.session import Session

    rng = np.random.default_rng([SEED, rows, round(100 * temperature), series])
    fixed = BettingEProcess("top_label", resolution=RESOLUTION)
    logs, sums = [], []
    for night in range(nights):
        log_p, labels = _calibrated_rows(rng, rows)
        sharper = temperature if night >= drifted else 1.0
        source = from_arrays(logits=sharper * log_p, labels=labels)
        shifts = fixed.learned_from(sums[-LEARN_DAYS:])
        bets = replace(fixed, learned=((None, shifts),) if any(shifts) else ())
        with Session.open(source, scheduler="serial") as session:
            result = session.scan([bets]).groups[None][bets]
        logs.append(result.logs)
        sums.append(result.sums)
        evidence = advance(np.array(logs))[0] if night >= drifted or night == nights - 1 else []
        reached = np.flatnonzero(np.asarray(evidence) >= np.log(1 / LEVEL))
        if len(reached):
            return int(reached[0])
    return None


def _late_year(series: int, nights: int) -> tuple[bool, bool]:
    """Whether the last value, and the value of any day, ever raised an alarm."""
    from calibscale import from_arrays
    from calibscale.inference.e_process import RESOLUTION, BettingEProcess, advance
    from calibscale.session import Session

    rng = np.random.default_rng([SEED, LATE_ROWS, series])
    fixed = BettingEProcess("top_label", resolution=RESOLUTION)
    shape = (nights, LATEST + 1)  # by day, and by the nights that labels took
    logs = np.zeros((*shape, len(fixed.zero(CLASSES).logs)))
    sums = np.zeros((*shape, *fixed.zero(CLASSES).sums.shape))
    last = path = False
    for night in range(nights):
        arrived = np.arange(night + 1)[:, None] + np.arange(LATEST + 1) <= night
        first = max(0, night - LEARN_DAYS)
        shown = np.where(arrived[first:night, :, None, None], sums[first:night], 0.0)
        shifts = fixed.learned_from(list(shown.sum(axis=1)))
        bets = replace(fixed, learned=((None, shifts),) if any(shifts) else ())
        log_p, labels = _calibrated_rows(rng, LATE_ROWS)
        late = rng.integers(1, LATEST + 1, LATE_ROWS) * (rng.random(LATE_ROWS) < 0.5)
        source = from_arrays(
            logits=log_p, labels=labels, covariates=late[:, None], covariate_names=("late",)
        )
        with Session.open(source, scheduler="serial") as session:
            result = session.scan([bets], group_by="late").groups
        for key, states in result.items():
            if key is not None:
                logs[night, int(key)], sums[night, int(key)] = states[bets].logs, states[bets].sums
        evidence, _ = advance(np.where(arrived[:, :, None], logs[: night + 1], 0.0).sum(axis=1))
        last |= bool(evidence[-1] >= np.log(1 / LEVEL))
        path |= bool(evidence.max() >= np.log(1 / LEVEL))
    return last, path


def _calibrated_rows(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """log p and labels drawn from p."""
    truth = np.maximum(rng.dirichlet(np.full(CLASSES, CONCENTRATION), rows), 1e-300)
    labels = (truth.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(0, CLASSES - 1)
    return np.log(truth), labels
