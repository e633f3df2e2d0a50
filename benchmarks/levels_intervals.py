"""Coverage of 95 % intervals of binary predictions, one data set at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from simulated import SEED, shared, within

LAWS = tuple(
    Law(name, miscalibration)
    for name in ("conf99", "bimix", "rare", "narrow", "atoms", "tenths")
    for miscalibration in ("calibrated", "1.6")
)
ROWS = (100, 500, 2000, 10_000)
NAMES = ("accuracy", "confidence_gap", "tce2_debiased", "jkce", "ece")
FEWEST = 3  # expected misses below which an interval need only be conservative
BINS = 15
SAMPLE = 2_000_000  # rows that population values come from


def run(report: Report, pool: Executor, laws: Sequence[Law], count: int) -> None:
    """Judge coverage of the population's value, and of ece's expectation at this n."""
    small = report.settings.small
    for law in laws or LAWS:
        truth = population(law, 50_000 if small else SAMPLE)
        for n in ROWS[:2] if small else ROWS:
            values = np.concatenate(shared(pool, count, intervals, law, n))
            truths = [*truth[:4], values[:, 4, 0].mean()]
            misses = n * truth[4]
            for k, name in enumerate(NAMES):
                value, low, high = values[:, k].T
                covered = float(100 * np.mean((low <= truths[k]) & (truths[k] <= high)))
                report.row(
                    what="coverage",
                    law=str(law),
                    n=n,
                    estimator=name,
                    covered=covered,
                    above=float(100 * np.mean(low > truths[k])),
                    truth=truths[k],
                    length=float(np.mean(high - low)),
                    deviation=float(value.std()),
                )
                title = f"{name}, {law}, n = {n}, covered"
                least = 90 if name == "ece" else 92
                if misses < FEWEST:
                    report.check(title, covered, least, "%", at_least=True, full_only=True)
                else:
                    within(report, title, covered, least, 99, full_only=True)
            squares = values[:, 2:4, 2]
            title = f"{law}, n = {n}, intervals of squares wholly below 0"
            report.check(title, float(100 * np.mean(squares < 0)), 0, "%", full_only=True)


def estimators(bandwidth: float) -> list[Any]:
    """With one bandwidth, so that every sample estimates the same number."""
    import calibscale as cs

    features = cs.RandomFourier(bandwidth=bandwidth)
    return [
        cs.Accuracy(),
        cs.ConfidenceGap("top_label"),
        cs.TCE2Debiased(BINS, notion="positive"),
        cs.JKCE(features),
        cs.ECE(BINS, notion="positive"),
    ]


def bandwidth_of(law: Law) -> float:
    """Median distance of 1,000 predictions of two classes."""
    shown, _ = law.sample(np.random.default_rng(SEED), 1000)
    distances = np.sqrt(2) * np.abs(shown[:, None] - shown)
    positive = distances[distances > 1e-12]
    return float(np.median(positive)) if len(positive) else 1.0


def population(law: Law, rows: int) -> tuple[float, float, float, float, float]:
    """Accuracy, confidence gap, TCE₂, JKCE, and the probability of the rarer outcome of a row."""
    from calibscale.kernels.features import RandomFourier, frequencies

    features = RandomFourier(bandwidth=bandwidth_of(law))
    omega = frequencies(features.n_features, 2, features.seed) / features.bandwidth
    rng = np.random.default_rng((SEED, 1))
    counts, gaps, hit, gap, joint = np.zeros(BINS), np.zeros(BINS), 0.0, 0.0, 0.0
    remaining = rows
    while remaining > 0:
        true, shown = law.probabilities(rng, step := min(remaining, 100_000))
        remaining -= step
        top = np.where(shown > 0.5, true, 1.0 - true)
        hit, gap = hit + top.sum(), gap + (np.maximum(shown, 1.0 - shown) - top).sum()
        bins = np.clip(np.ceil(shown * BINS).astype(int) - 1, 0, BINS - 1)  # (lo, hi]
        counts += np.bincount(bins, minlength=BINS)
        gaps += np.bincount(bins, shown - true, BINS)
        q = np.column_stack([1.0 - shown, shown])
        phases = q @ omega.T
        wave = np.hstack([np.cos(phases), np.sin(phases)]) / np.sqrt(features.n_features)
        joint = joint + (shown - true) @ np.hstack([q, wave])
    full = counts > 0
    tce2 = float(np.sum(gaps[full] ** 2 / counts[full]) / rows)
    jkce = 2.0 * float(np.sum((joint / rows) ** 2))
    if law.miscalibration == "calibrated":
        gap = 0.0
    accuracy = float(hit / rows)
    return accuracy, float(gap / rows), tce2, jkce, min(accuracy, 1.0 - accuracy)


def intervals(law: Law, n: int, first: int, last: int) -> Any:
    """Value and interval of every estimator (data set, estimator, 3)."""
    from calibscale import evaluate, from_arrays

    wanted = estimators(bandwidth_of(law))
    out = np.empty((last - first, len(wanted), 3))
    for row, number in zip(out, range(first, last), strict=True):
        p, y = law.sample(np.random.default_rng((SEED, 3, n, number)), n)
        source = from_arrays(probabilities=p, labels=y, binary=True)
        results = evaluate(source, wanted, interval="jackknife", scheduler="serial").estimates
        for cell, e in zip(row, results, strict=True):
            cell[:] = e.value, e.interval.low, e.interval.high
    return out
