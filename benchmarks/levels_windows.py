"""Windows of days: thresholds, drifts between windows, and delays until drifts are detected."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from simulated import SEED, shared, within

LAWS = tuple(Law(name) for name in ("uniform", "conf", "conf99", "rare"))
ROWS = (30, 100, 500)  # a day
MANY_ROWS = 2000  # rows at which a drifted day alone is detected
BOUNDS = {"ece": (0.0, 0.01), "tce2_debiased": (0.0,)}
WEEK, MONTH = 7, 30
DRIFT, DRIFTED, WAIT = 1.6, 7, 7  # temperature, its first day, nights to find it
CORRELATIONS, EFFECT = (0.0, 0.7, 0.9), 0.03  # of days, and the deviation of their effects
FIRST = date(2026, 1, 1)
FEWEST = 3  # rarer outcomes of a week, in expectation, below which a test need only be conservative


def run(report: Report, pool: Executor, laws: tuple[Law, ...], count: int) -> None:
    for law in laws or LAWS:
        for rows in ROWS:
            thresholds(report, pool, law, rows, count)
            levels(report, pool, law, rows, count)
    for correlation in CORRELATIONS:
        effects(report, pool, (laws or LAWS)[0], correlation, count)
    delays(report, pool, (laws or LAWS)[0].name, count)


def thresholds(report: Report, pool: Executor, law: Law, rows: int, count: int) -> None:
    """How often the lower bound of a week exceeds a number above the error."""
    values = np.concatenate(shared(pool, count, _lows, law, rows))
    for at, (name, bounds) in enumerate(BOUNDS.items()):
        for bound in bounds:
            percent = float(100 * np.mean(values[:, at] > bound))
            title = f"{law}, {rows} rows a day, {name}.low > {bound:g} over 7 days"
            report.row(
                what="threshold",
                law=str(law),
                rows=rows,
                estimator=name,
                bound=bound,
                breached=percent,
            )
            report.check(title, percent, 5.0, "%", full_only=True)


def levels(report: Report, pool: Executor, law: Law, rows: int, count: int) -> None:
    """How often a stable model has a drift with p <= 5 %, 7 days against 30."""
    values = np.concatenate(shared(pool, count, _p_values, law, rows, None))
    share = float(law.probabilities(np.random.default_rng(SEED), 100_000)[0].mean())
    events = rows * WEEK * min(share, 1.0 - share)
    for name, percent in zip(NAMES, 100 * np.mean(values <= 0.05, axis=0), strict=True):
        report.row(
            what="drift",
            law=str(law),
            rows=rows,
            estimator=name,
            rejected=float(percent),
            events=events,
        )
        title = f"{law}, {rows} rows a day, drift of {name}"
        if events < FEWEST:
            report.check(title, percent, 7, "%", full_only=True)
        else:
            within(report, title, percent, 2, 7, full_only=True)


def effects(report: Report, pool: Executor, law: Law, correlation: float, count: int) -> None:
    """The same with correlated differences between days."""
    rows = ROWS[-1]
    values = np.concatenate(shared(pool, count, _p_values, law, rows, correlation))
    for name, percent in zip(NAMES, 100 * np.mean(values <= 0.05, axis=0), strict=True):
        report.row(
            what="days that differ",
            law=str(law),
            rows=rows,
            correlation=correlation,
            deviation=EFFECT,
            estimator=name,
            rejected=float(percent),
        )
        if name == "confidence_gap":
            title = f"{law}, drift of {name}, days of correlation {correlation:g}"
            report.check(title, percent, 10.0, "%", full_only=True)


def delays(report: Report, pool: Executor, name: str, count: int) -> None:
    """Nights from the first overconfident one until the lower bound of a week is above 0."""
    for rows in (ROWS[-1], MANY_ROWS):
        values = np.concatenate(shared(pool, count, _delays, name, rows))
        for k, estimator in enumerate(BOUNDS):
            percent = float(100 * np.mean(values[:, k] <= 3))
            report.row(
                what="delay",
                law=name,
                rows=rows,
                temperature=DRIFT,
                estimator=estimator,
                median=float(np.median(values[:, k])),
                within_3_nights=percent,
            )
            title = f"{name}, {rows} rows a day, temperature {DRIFT:g}, {estimator}, in 3 nights"
            if rows == MANY_ROWS:
                report.check(title, percent, 90.0, "%", at_least=True, full_only=True)


# ---------------------------------------------------------------- a ledger in memory


NAMES = ("ece", "tce2_debiased", "confidence_gap")


@dataclass
class Days:
    """What `window` reads of a ledger."""

    recipe: Any
    entries: list[Any]
    records: list[dict[str, Any]]
    path: Path = Path("days")
    writable: bool = False

    def select(self, first: str | None, last: str | None, *_: Any) -> list[Any]:
        return [e for e in self.entries if (first or "") <= e.day <= (last or "9")]

    def read(self, entry: Any, section: str = "states") -> Any:
        return self.records[entry.slot][section]


def _name(k: int) -> str:
    return (FIRST + timedelta(k)).isoformat()


def _days(p: Any, labels: Any) -> Days:
    """A ledger of (days, rows) predictions and labels."""
    from calibscale import ECE, ConfidenceGap, TCE2Debiased, from_arrays
    from calibscale.intervals.resampling import Grouped, total
    from calibscale.monitoring.ledger.day_parts import PARTS, gathered, parted
    from calibscale.monitoring.ledger.index import Entry
    from calibscale.monitoring.ledger.recipe import Recipe
    from calibscale.session import Session

    estimators = (
        ECE(notion="positive"),
        TCE2Debiased(notion="positive"),
        ConfidenceGap("top_label"),
    )
    recipe = Recipe(2, estimators, parted=parted(estimators, 2))
    needed = {s: Grouped(s, PARTS) if s in recipe.parted else s for s in recipe.statistics}
    day = np.repeat(np.arange(len(p), dtype=np.float64), p.shape[1])[:, None]
    source = from_arrays(
        probabilities=p.ravel(),
        labels=labels.ravel(),
        binary=True,
        covariates=day,
        covariate_names=("day",),
    )
    with Session.open(source, scheduler="serial") as session:
        opened = session.run(estimators, group_by="day")
        result = opened.scan([*needed.values()]).groups
    entries, records = [], []
    for k in range(len(p)):
        states = result[float(k)]
        merged = (states[g] if g is s else total(states[g]) for s, g in needed.items())
        parts = (gathered(s, states[needed[s]]) for s in recipe.parted)
        sections = {"states": recipe.pack(merged), "parts": recipe.pack(parts)}
        entries.append(Entry(_name(k), "v1", k, None, p.shape[1], tuple(sections)))
        records.append(sections)
    return Days(recipe, entries, records)


def _sampled(rng: np.random.Generator, law: Law, days: int, rows: int, shift: Any = 0.0) -> Days:
    """Days of a law, with true probabilities that are shifted by day."""
    true, shown = law.probabilities(rng, days * rows)
    true = np.clip(true.reshape(days, rows) + shift, 0.0, 1.0)
    labels = (rng.random(true.shape) < true).astype(np.int64)
    return _days(shown.reshape(days, rows), labels)


def _streams(purpose: int, law: Law, rows: int, first: int, last: int) -> Iterator[Any]:
    text = [ord(letter) for letter in str(law)]
    return (np.random.default_rng((SEED, purpose, rows, *text, k)) for k in range(first, last))


def _week_lows(days: Days, last: int) -> list[float]:
    """Lower bounds of the week up to a day."""
    from calibscale.monitoring.ledger.windows import window

    result = window(days, _name(last - WEEK + 1), _name(last))  # type: ignore[arg-type]
    return [e.interval.low for e in result.estimates[: len(BOUNDS)]]  # type: ignore[union-attr]


def _lows(law: Law, rows: int, first: int, last: int) -> Any:
    streams = _streams(0, law, rows, first, last)
    return np.array([_week_lows(_sampled(rng, law, WEEK, rows), WEEK - 1) for rng in streams])


def _p_values(law: Law, rows: int, correlation: float | None, first: int, last: int) -> Any:
    """Of the drift of every estimator, (data set, estimator)."""
    from calibscale.monitoring.ledger.drifts import drifts
    from calibscale.monitoring.ledger.windows import window

    out = np.full((last - first, len(NAMES)), np.nan)
    for row, rng in zip(out, _streams(1, law, rows, first, last), strict=True):
        shift: Any = 0.0
        if correlation is not None:
            shift = EFFECT * _autoregression(rng, correlation, MONTH + WEEK)[:, None]
        days = _sampled(rng, law, MONTH + WEEK, rows, shift)
        later = window(days, _name(MONTH), _name(MONTH + WEEK - 1))  # type: ignore[arg-type]
        earlier = window(days, _name(0), _name(MONTH - 1))  # type: ignore[arg-type]
        for result in drifts(later, earlier):
            row[NAMES.index(result.estimator)] = result.p_value
    return out


def _autoregression(rng: np.random.Generator, correlation: float, count: int) -> Any:
    """Normal numbers of variance 1 with correlated neighbours."""
    e = rng.standard_normal(count)
    for t in range(1, count):
        e[t] = correlation * e[t - 1] + np.sqrt(1 - correlation**2) * e[t]
    return e


def _delays(name: str, rows: int, first: int, last: int) -> Any:
    """Nights until the bound of each estimator is above 0, or one more if it never is."""
    out = np.full((last - first, len(BOUNDS)), WAIT + 1.0)
    drifted = Law(name, str(DRIFT))
    for row, rng in zip(out, _streams(2, drifted, rows, first, last), strict=True):
        total = DRIFTED + WAIT
        true, shown = drifted.probabilities(rng, total * rows)
        true, shown = true.reshape(total, rows), shown.reshape(total, rows)
        shown[:DRIFTED] = true[:DRIFTED]
        days = _days(shown, (rng.random(true.shape) < true).astype(np.int64))
        for night in range(WAIT, 0, -1):
            above = np.array(_week_lows(days, DRIFTED + night - 1)) > 0
            row[above] = night
    return out
