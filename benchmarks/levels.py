"""Tests and intervals: levels, power, coverage, their time and memory, and KiTE's p-values.

``python benchmarks/levels.py TOPIC … [--law NAME] [--miscalibration T] [--count N]`` simulates one
of the topics below, for any law of predictions: a name of `laws.BINARY`, ``module:function`` of
``(rng, n)``, or the path of a store of two classes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
from laws import BINARY, Law
from measure import Report, Settings, measure
from pair_work import BANDWIDTH, binary, dirichlet, klce
from scipy.special import expit, logit
from scipy.stats import binom
from simulated import SEED, processes, shared, within

# ---- tests
ROWS, REPLICATES, LEVEL = 200, 199, 0.05
LAW_NAMES = ("uniform", "Beta(0.2, 0.2)", "sigmoid of a normal", "rare events, Beta(0.3, 9)")
LAWS = {name: BINARY[name] for name in LAW_NAMES}
STATISTICS = ("klce", "kce", "jkce", "ckce", "ece", "tce2", "cwce2")
NULLS = ("labels", "wild", "residual", "permute", "hoeffding")
BOUNDED = ("klce", "kce", "jkce")  # what Hoeffding's inequality is for
SHARPNESS, BIAS = 1.5, 0.5  # of the alternative: log-odds times, and plus so much times x

# ---- intervals
MANY_ROWS, BINS, CLASSES = 2000, 15, 10
METHODS = ("jackknife", "bootstrap")


# ---- topics of the command line, with their numbers of data sets
TOPICS = {
    "intervals": 1000,
    "maps": 300,
    "selection": 200,
    "ranking": 300,
    "recalibration": 600,
    "windows": 400,
    "floors": 2000,
    "forecasts": 10_000,
    "verdicts": 1000,
    "limits": 1000,
    "default_tests": 1000,
    "ranges": 1000,
    "functionals": 2000,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "topics", nargs="+", choices=TOPICS, metavar="TOPIC", help=", ".join(TOPICS)
    )
    parser.add_argument("--law", action="append", default=[], help="default: those of the topic")
    parser.add_argument(
        "--miscalibration",
        action="append",
        default=[],
        help="'calibrated', a factor of the log-odds, or module:function; default: calibrated",
    )
    parser.add_argument(
        "--part", action="append", default=[], help="PARTS of the topic; default: its usual ones"
    )
    parser.add_argument("--count", type=int, help="data sets of a cell; default: of the topic")
    parser.add_argument("--small", action="store_true", help="few data sets; nothing is judged")
    parser.add_argument("--results", type=Path, help="folder of the JSON; default: none is written")
    parsed = parser.parse_args(arguments)
    ways = parsed.miscalibration or ["calibrated"]
    laws = tuple(Law(name, way) for name in parsed.law for way in ways)
    for law in laws:
        law.sample(np.random.default_rng(0), 10)  # an unknown one is named at once
    missed = 0
    with tempfile.TemporaryDirectory() as folder, processes() as pool:
        for topic in parsed.topics:
            settings = Settings(Path(folder), parsed.small, parsed.results or Path(folder))
            report = Report(f"levels_{topic}", settings)
            count = parsed.count or (4 if parsed.small else TOPICS[topic])
            module = importlib.import_module(f"levels_{topic}")
            parts = getattr(module, "PARTS", {})
            if unknown := [part for part in parsed.part if part not in parts]:
                parser.error(f"{topic} has no part {unknown[0]!r}, but: {', '.join(parts)}")
            for part in parsed.part:
                parts[part](report, pool, count)
            if not parsed.part:
                module.run(report, pool, laws, count)
            report.write()
            missed += report.missed
    print(f"{missed} bounds missed" if missed else "no bound missed")
    return int(missed > 0)


def run(settings: Settings) -> Report:
    report = Report("levels", settings)
    with processes() as pool:
        for simulated in (levels, power, coverage):
            simulated(report, pool)
    times(report)
    kite(report)
    return report


# ---------------------------------------------------------------- levels and power of tests


def levels(report: Report, pool: Executor) -> None:
    """How often calibrated data are rejected: 5 % with `labels`, with one bound for all cells."""
    count = 20 if report.settings.small else 2000
    cells = len(LAWS) * len(STATISTICS)
    tail = 0.01 / cells / 2  # Bonferroni, two-sided
    low, high = (100 * binom.ppf(q, count, LEVEL) / count for q in (tail, 1 - tail))
    report.note(f"{count} data sets; 99 % band of {cells} cells: {low:.2f} to {high:.2f} %")
    for law, rejected, ties in _by_law(report, pool, False, count):
        for s, statistic in enumerate(STATISTICS):
            _row(report, "level", law, statistic, rejected[s], ties=100 * ties[s])
            percent = 100 * rejected[s, 0]
            within(report, f"{law}, {statistic}, labels, rejected", percent, low, high)


def power(report: Report, pool: Executor) -> None:
    """How often predictions are rejected that are over-confident and biased along x."""
    count = 5 if report.settings.small else 200
    for law, rejected, _ in _by_law(report, pool, True, count):
        for s, statistic in enumerate(STATISTICS):
            _row(report, "power", law, statistic, rejected[s])


def _row(report: Report, title: str, law: str, statistic: str, rejected: Any, **more: Any) -> None:
    """Shares of rejections in percent by null. `labels_at_random`: ties broken at random."""
    names = (*NULLS, "labels_at_random")
    by_name = {n: float(100 * r) for n, r in zip(names, rejected, strict=True) if np.isfinite(r)}
    report.row(what=title, law=law, statistic=statistic, **by_name, **more)


def _by_law(
    report: Report, pool: Executor, miscalibrated: bool, count: int
) -> Iterator[tuple[str, Any, Any]]:
    """Shares of data sets rejected (statistics, nulls + 1), and of replicates that tie."""
    replicates = 19 if report.settings.small else REPLICATES  # both can say 5 % exactly
    for law in LAWS:
        values = np.concatenate(shared(pool, count, _p_values, law, miscalibrated, replicates))
        p, ties = values[..., :-1], values[..., -1]
        rejected = np.where(np.isnan(p), np.nan, p <= LEVEL + 1e-12)
        yield law, rejected.mean(axis=0), ties.mean(axis=0)


def _p_values(law: str, miscalibrated: bool, replicates: int, first: int, last: int) -> Any:
    """Of data sets first..last−1: (data set, statistic, null), ties broken at random, and ties."""
    from calibscale import CKCE, CWCE2, ECE, JKCE, KCE, KLCE, TCE2, calibration_test

    statistics = (
        KLCE(("x0",)),
        KCE(),
        JKCE(),
        CKCE(),
        ECE(notion="positive"),
        TCE2(notion="positive"),
        CWCE2(),
    )
    assert tuple(s.name for s in statistics) == STATISTICS
    out = np.full((last - first, len(STATISTICS), len(NULLS) + 2), np.nan)
    for number, outcome in zip(range(first, last), out, strict=True):
        rng = np.random.default_rng((SEED, list(LAWS).index(law), miscalibrated, number))
        source = _data(rng, law, ROWS, miscalibrated)
        seed = int(rng.integers(2**63))
        for k, null in enumerate(NULLS):
            bounded = null == "hoeffding"
            requested = [s for s in statistics if not bounded or s.name in BOUNDED]
            results = calibration_test(
                source, requested, null=null, n_replicates=replicates, seed=seed, scheduler="serial"
            ).results
            for result in results:
                row = outcome[STATISTICS.index(result.statistic)]
                row[k] = result.p_value
                if null == "labels":
                    row[-2], row[-1] = _by_lot(result, rng)
    return out


def _by_lot(result: Any, rng: np.random.Generator) -> tuple[float, float]:
    """Exact p-value, ties broken at random, and the share of ties."""
    values = result.null_values
    near = np.abs(values - result.value) <= 1e-9 * np.maximum(np.abs(values), abs(result.value))
    ties = int(near.sum())
    above = result.exceedances - ties
    return (1 + above + rng.integers(ties + 1)) / (len(values) + 1), ties / len(values)


def _data(rng: np.random.Generator, law: str, n: int, miscalibrated: bool) -> Any:
    """Binary predictions, and a covariate that is correlated with them.

    Calibrated: labels drawn from predictions.  Else predictions exaggerate the distribution
    of labels, shifted along the covariate.
    """
    from calibscale import from_arrays

    p = LAWS[law](rng, n)
    z = rng.standard_normal(n)
    true, shown = p, p
    if miscalibrated:
        true, shown = expit(logit(p) + BIAS * z), _sharpened(p)
    labels = (rng.random(n) < true).astype(np.int64)
    covariates = (p + 0.3 * z)[:, None]
    return from_arrays(probabilities=shown, labels=labels, covariates=covariates, binary=True)


def _sharpened(p: Any) -> Any:
    return expit(SHARPNESS * logit(p))


# ---------------------------------------------------------------- coverage of intervals


def coverage(report: Report, pool: Executor) -> None:
    """How often 95 % intervals cover their target."""
    count, resamples = (8, 49) if report.settings.small else (1000, 999)
    truths = {law: _binned_error(law, report.settings.rows(20_000_000)) for law in LAWS}
    over, under, ckce, limit = _limits(report.settings.rows(2_000_000))
    binned, joint = (
        np.concatenate(shared(pool, count, work, resamples), axis=1)
        for work in (_binned_intervals, _joint_intervals)
    )
    for law, result in zip(LAWS, binned, strict=True):
        for method, percent, _ in _covered(report, f"TCE2, debiased, {law}", result, truths[law]):
            title = f"TCE2, debiased, {law}, {method}, covered"
            within(report, title, percent, 92, 99, full_only=True)
    cases = (("JKCE, unbiased", over), ("JKCE, difference of two models", over - under))
    for (name, truth), result in zip(cases, joint[:2], strict=True):
        for method, percent, length in _covered(report, name, result, truth):
            title = f"{name}, {method}"
            report.check(f"{title}, covered", percent, 93, "%", at_least=True, full_only=True)
            report.check(f"{title}, mean length / 3.92 deviations", length, 1.5, full_only=True)
    for target, truth in (
        ("its expectation at this n", joint[2][:, 0].mean()),
        ("its limit at this ridge", ckce),
        ("its value of very many rows, their ridge", limit),
    ):
        list(_covered(report, f"CKCE, {target}", joint[2], truth, METHODS[:1]))


def _covered(
    report: Report, title: str, result: Any, truth: float, methods: tuple[str, ...] = METHODS
) -> Iterator[tuple[str, float, float]]:
    """Percentage of intervals that cover the truth, and mean length in 3.92 deviations."""
    values = result[:, 0]
    for k, method in enumerate(methods):
        low, high = result[:, 1 + 2 * k], result[:, 2 + 2 * k]
        percent = float(100 * np.mean((low <= truth) & (truth <= high)))
        length = float(np.mean(high - low) / (3.92 * values.std(ddof=1)))
        report.row(
            what=title,
            method=method,
            covered=percent,
            length=length,
            truth=float(truth),
            mean=float(values.mean()),
            deviation=float(values.std(ddof=1)),
        )
        yield method, percent, length


def _binned_error(law: str, rows: int) -> float:
    """Σ_b P(b) E[p − P(y=1) | b]² of exaggerated predictions, from a sample."""
    rng = np.random.default_rng((SEED, list(LAWS).index(law)))
    edges = np.linspace(0, 1, BINS + 1)
    counts, gaps = np.zeros(BINS), np.zeros(BINS)
    for start in range(0, rows, 1_000_000):
        true = LAWS[law](rng, min(1_000_000, rows - start))
        p = _sharpened(true)
        b = np.clip(np.searchsorted(edges, p) - 1, 0, BINS - 1)  # (lo, hi]
        counts += np.bincount(b, minlength=BINS)
        gaps += np.bincount(b, p - true, minlength=BINS)
    full = counts > 0
    return float(np.sum(gaps[full] ** 2 / counts[full]) / rows)


def _binned_intervals(resamples: int, first: int, last: int) -> Any:
    """Value, jackknife's interval, bootstrap's: (law, repetition, 5)."""
    from calibscale import TCE2Debiased, evaluate, from_arrays
    from calibscale.intervals.resampling import resampling

    out = np.empty((len(LAWS), last - first, 5))
    for k, law in enumerate(LAWS):
        for row, number in zip(out[k], range(first, last), strict=True):
            rng = np.random.default_rng((SEED, k, 2, number))
            true = LAWS[law](rng, MANY_ROWS)
            labels = (rng.random(MANY_ROWS) < true).astype(np.int64)
            source = from_arrays(probabilities=_sharpened(true), labels=labels, binary=True)
            for m, method in enumerate(METHODS):
                (result,) = evaluate(
                    source,
                    [TCE2Debiased(BINS, notion="positive")],
                    scheduler="serial",
                    interval=resampling(method, resamples=resamples),
                ).estimates
                row[0], row[1 + 2 * m : 3 + 2 * m] = result.value, _ends(result.interval)
    return out


def _joint_intervals(resamples: int, first: int, last: int) -> Any:
    """The same of JKCE, of its difference of two models, and of CKCE: (3, repetition, 5)."""
    from calibscale import CKCE, JKCE, Bootstrap, Jackknife
    from calibscale.intervals.resampling import resampling

    out = np.empty((3, last - first, 5))
    for i, number in enumerate(range(first, last)):
        over, under = (_many_classes(name, number, MANY_ROWS) for name in ("ms-over", "ms-under"))
        requested = Bootstrap(resamples=resamples)
        # CKCE's jackknife alone: resamples are slow
        joint, conditional = _parts(
            over, {JKCE(_features()): requested, CKCE(_features()): Jackknife()}
        )
        (underconfident,) = _parts(under, {JKCE(_features()): requested})
        for row, parts in zip(out[:, i], (joint, joint - underconfident, conditional), strict=True):
            row[0] = parts.value
            for m, method in enumerate(METHODS):
                row[1 + 2 * m : 3 + 2 * m] = _ends(parts.interval(resampling(method), ""))
    return out


def _parts(source: Any, estimators: dict[Any, Any]) -> list[Any]:
    """Values of parts of the rows for intervals, by estimator and resampling."""
    from calibscale.engine.threads import one_thread
    from calibscale.intervals.parts_of_rows import parts_of
    from calibscale.intervals.resampling import total
    from calibscale.session import Session

    with Session.open(source, scheduler="serial") as session:
        opened = session.run(estimators)
        requested = list(zip(opened.fitting, estimators.values(), strict=True))
        states = opened.scan([s for e, how in requested for s in how.needs(e)]).groups[None]
        collected = []
        with one_thread():
            for e, how in requested:
                value = e.value(*(total(states[s]) for s in how.needs(e)))
                collected.append(parts_of(e, how, states, None, value))
    return collected


def _ends(interval: Any) -> tuple[float, float]:
    return interval.low, interval.high


def _features() -> Any:
    """Of one bandwidth, so that every sample estimates the same number."""
    from calibscale import RandomFourier

    return RandomFourier(bandwidth=BANDWIDTH)


def _many_classes(name: str, seed: int, rows: int) -> Any:
    """Dirichlet(0.1) of 10 classes, over- or underconfident. Rows of a seed are the same."""
    from calibscale import from_arrays
    from calibscale.simulation import configured, draws

    parts = list(draws(configured(name, CLASSES, None, seed), seed, 0, rows))
    return from_arrays(
        logits=np.concatenate([part.logits for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )


def _limits(rows: int) -> tuple[float, float, float, float]:
    """Limits at very many rows: JKCE of both models, CKCE at the ridge of MANY_ROWS and its own."""
    from calibscale import CKCE, JKCE, evaluate

    over = [JKCE(_features()), CKCE(_features(), ridge=MANY_ROWS**-0.25), CKCE(_features())]
    scores = evaluate(_many_classes("ms-over", SEED, rows), over).estimates
    (under,) = evaluate(_many_classes("ms-under", SEED, rows), over[:1]).estimates
    return scores[0].value, under.value, scores[1].value, scores[2].value


# ---------------------------------------------------------------- time and memory


def times(report: Report) -> None:
    n = report.settings.rows(1_000_000)
    m = measure("levels:klce_test", n, 999, runs=1)
    title = f"KLCE test, prediction and one covariate, {n:,} rows, 999 replicates"
    report.row(
        what=title,
        seconds=m.median,
        cpu_seconds=m.cpu_median,
        peak_mb=m.peak / 1e6,
        before_mb=m.before / 1e6,
        **m.value,
    )
    report.check(title, m.median, 480.0, "s")
    report.check(f"{title}, peak memory", m.peak / 1e6, 2000.0, "MB")
    m = measure("levels:ckce_test", n, CLASSES, 199, runs=report.settings.runs)
    title = f"CKCE test, {n:,} x {CLASSES}, 199 replicates"
    report.row(
        what=title,
        seconds=m.median,
        cpu_seconds=m.cpu_median,
        peak_mb=m.peak / 1e6,
        before_mb=m.before / 1e6,
        **m.value,
    )
    report.check(title, m.median, 60.0, "s")


def klce_test(n: int, replicates: int) -> Callable[[], Any]:
    return _test(klce(1), binary(n, 1), binary(20_000, 1), replicates)


def ckce_test(n: int, classes: int, replicates: int) -> Callable[[], Any]:
    from calibscale import CKCE

    return _test(CKCE(), dirichlet(n, classes), dirichlet(1000, classes), replicates)


def _test(statistic: Any, source: Any, few: Any, replicates: int) -> Callable[[], Any]:
    """The test, compiled on few rows."""
    from calibscale import calibration_test

    calibration_test(few, [statistic], n_replicates=19, scheduler="threads:2")

    def work() -> dict[str, Any]:
        (result,) = calibration_test(
            source, [statistic], n_replicates=replicates, scheduler="threads:2"
        ).results
        return {"value": result.value, "p_value": result.p_value}

    return work


# ---------------------------------------------------------------- KiTE's p-values


def kite(report: Report) -> None:
    """Real data with KiTE's normalisation and permutations."""
    from calibscale import KLCE, calibration_test, from_arrays

    folder = os.environ.get("CALIBSCALE_DATA")
    if not folder:
        report.note("no real data: CALIBSCALE_DATA names no folder with data/ and golden/")
        return
    golden = json.loads((Path(folder) / "golden" / "klce.json").read_text())
    cases = {"heart_lr": 999, "compas_rf": 199, "homeownership_lr": 199}
    for name, replicates in cases.items():
        if report.settings.small and name != "heart_lr":
            continue
        expected = golden[name]
        with np.load(Path(folder) / "data" / f"{name}.npz") as data:
            names = tuple(map(str, data["x_names"]))
            source = from_arrays(
                probabilities=data["p"],
                labels=data["y"].astype(np.int64),
                covariates=data["x"],
                covariate_names=names,
                binary=True,
            )
        # exp(−((p − p')/w)²)·exp(−gamma·|x − x'|²)
        widths = expected["prob_width"] / np.sqrt(2), 1 / np.sqrt(2 * expected["gamma"])
        statistic = KLCE(names, *widths, normalization="kernel_sum")
        (result,) = calibration_test(
            source, [statistic], null="permute", n_replicates=replicates, seed=0
        ).results
        report.row(
            what=f"{name}, KiTE",
            value=result.value,
            p_value=result.p_value,
            replicates=replicates,
            kite_p=expected["kite_p"],
        )
        if name == "heart_lr":
            report.check(f"{name}, value, distance from 0.0033", abs(result.value - 0.0033), 5e-5)
            within(report, f"{name}, p", result.p_value, 0.22, 0.31, "")
        else:
            report.check(f"{name}, p", result.p_value, 1 / replicates)


if __name__ == "__main__":
    sys.exit(main())
