"""Coverage of the intervals and reported errors of `select`."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from scipy.special import softmax
from scipy.stats import binom
from simulated import SEED, shared, within

LAWS = (Law("uniform"), Law("uniform", "1.6"))
ROWS = (2000, 10_000)  # of miscalibrated laws both, of calibrated ones the first
CLASSES, ALPHA = 10, 0.1
SHARPNESS = (1.0, 1.6)  # of Dirichlet(0.1) with 10 classes, canonical
KERNELS = ["kkr", "ukkr", "temperature"]
NETWORKS = ("cifar100_resnet110", "cifar10_resnet50")
NETWORK_ROWS, RANKS, SEEDS = 600, (50, 100, 200, 400), 5
ROUNDING = 1e-6  # of a value; what the smallest ridges magnify rounding of landmarks to


def run(report: Report, pool: Executor, laws: tuple[Law, ...] = (), count: int = 0) -> None:
    small = report.settings.small
    count = count or (4 if small else 200)
    for law in laws or LAWS:
        sizes = ROWS[:1] if small or law.miscalibration == "calibrated" else ROWS
        for n in sizes:
            values = np.concatenate(shared(pool, count, _binary, law, n))
            _report(report, f"{law}, n = {n:,}, positive", values, _binary_truth(law))
    for sharpness in () if laws else SHARPNESS[:1] if small else SHARPNESS:
        values = np.concatenate(shared(pool, count, _classes, sharpness, 2000))
        name = f"Dirichlet({ALPHA}) of {CLASSES} classes, log P × {sharpness:g}, n = 2,000"
        _report(report, f"{name}, canonical", values, _classes_truth(sharpness))
    folder = os.environ.get("CALIBSCALE_DATA")
    if laws or small:
        return
    if not folder:
        report.note("no real data: CALIBSCALE_DATA names no folder with data/")
        return
    for network in NETWORKS:
        for features in ("landmarks", "random"):
            _features(report, pool, Path(folder) / "data" / f"{network}.npz", features)


# ---------------------------------------------------------------- intervals


def _report(report: Report, title: str, result: Any, truth: float) -> None:
    """Coverage of the intervals of the selected and other candidates, and their cost."""
    estimate, low, high, others_low, others_high = result.T
    covered = 100 * np.mean((low <= truth) & (truth <= high))
    turn_covered = 100 * np.mean((others_low <= truth) & (truth <= others_high))
    report.row(
        what=title,
        truth=truth,
        estimate=float(estimate.mean()),
        covered=float(covered),
        missed_below=float(100 * np.mean(high < truth)),
        length=float(np.median(high - low)),
        median_high=float(np.median(high)),
        another_estimator=float(turn_covered),
        data_sets=len(result),
    )
    low, high = (
        float(100 * binom.ppf(q, len(result), p) / len(result))
        for q, p in ((0.01, 0.88), (0.99, 0.97))
    )
    within(report, f"{title}, truth within the interval", float(covered), low, high)


def _binary_truth(law: Law) -> float:
    true, shown = law.probabilities(np.random.default_rng(SEED), 2_000_000)
    return float(np.mean((true - shown) ** 2))


def _binary(law: Law, n: int, first: int, last: int) -> Any:
    from calibscale import from_arrays

    def source(number: int) -> Any:
        shown, labels = law.sample(np.random.default_rng((SEED, n, number)), n)
        return from_arrays(probabilities=shown, labels=labels, binary=True)

    return _intervals(source, "positive", None, 1000, first, last)


def _dirichlet(sharpness: float, seed: int, rows: int) -> Any:
    from calibscale.simulation import Dirichlet

    return Dirichlet("", CLASSES, ALPHA, sharpness).draw(seed, 0, rows)


def _classes_truth(sharpness: float) -> float:
    drawn = _dirichlet(sharpness, SEED, 200_000)
    gap = softmax(drawn.logits, axis=1) - np.exp(drawn.log_p)
    return 0.0 if sharpness == 1 else float(np.mean(np.sum(gap**2, axis=1)))


def _classes(sharpness: float, n: int, first: int, last: int) -> Any:
    from calibscale import from_arrays

    def source(number: int) -> Any:
        drawn = _dirichlet(sharpness, SEED + 1 + number, n)
        return from_arrays(logits=drawn.logits, labels=drawn.labels)

    return _intervals(source, "canonical", KERNELS, 150, first, last)


def _intervals(
    source: Any, notion: str, families: Any, rank: int, first: int, last: int
) -> np.ndarray:
    """Estimate and limits of the selected candidate, and limits of an estimator in turn."""
    from calibscale import select

    rows = []
    for number in range(first, last):
        selection = select(
            source(number), notion, families, seed=number, features=rank, scheduler="serial"
        )
        in_turn = selection.best_of(selection.estimators[number % len(selection.estimators)])
        limits = [(c.interval.low, c.interval.high) for c in (selection.selected, in_turn)]
        rows.append((selection.selected.estimate, *limits[0], *limits[1]))
    return np.array(rows)


# ---------------------------------------------------------------- finitely many features


def _features(report: Report, pool: Executor, path: Path, features: str) -> None:
    """Risks and estimates of kkr and ukkr against risks and estimates with the kernel itself."""
    (exact,) = shared(pool, 1, _values, str(path), "landmarks", NETWORK_ROWS)
    exact = exact[0, :2]
    for rank in RANKS:
        values = np.concatenate(shared(pool, SEEDS, _values, str(path), features, rank))
        for i, quantity in enumerate(("risk", "estimate")):
            miss, stated = values[:, i] - exact[i], values[:, 2 + i]
            rounding = ROUNDING * np.abs(exact[i])
            covered = 100 * np.mean(np.abs(miss) <= stated + rounding)
            judged = np.sqrt(np.mean(miss**2, axis=0)) > rounding
            idle = np.median(stated, axis=0)[judged] / np.sqrt(np.mean(miss**2, axis=0))[judged]
            name = f"{path.stem}, {features}, rank {rank}, {quantity}"
            size = float(np.median(idle)) if len(idle) else 0.0
            report.row(
                what=name,
                covered=float(covered),
                stated_over_rms=size,
                largest=float(np.max(np.abs(miss / exact[i]))),
            )
            report.check(
                f"{name}, cells of the grid covered", float(covered), 95.0, "%", at_least=True
            )
            report.check(f"{name}, median stated error over RMS error", size, 3.0)


def _values(path: str, features: str, rank: int, first: int, last: int) -> Any:
    """Of seeds first..last−1: risks, estimates, and their stated errors (seed, 4, grid)."""
    from calibscale import KKR, UKKR, from_arrays, select
    from calibscale.selection.kernel_features import KernelFeatures

    with np.load(path) as data:
        source = from_arrays(
            logits=data["logits"][:NETWORK_ROWS].astype(float), labels=data["labels"][:NETWORK_ROWS]
        )
    folds = np.random.default_rng(0).permutation(np.arange(NETWORK_ROWS) % 6) - 1
    families = [
        KKR([10.0 ** (8 - i) for i in range(0, 18, 2)]),
        UKKR([10.0 ** (4 - i / 2) for i in range(0, 18, 2)]),
    ]
    out = []
    for seed in range(first, last):
        selection = select(
            source,
            "canonical",
            families,
            folds=folds,
            seed=seed,
            features=KernelFeatures(features, rank=rank),
            scheduler="serial",
        ).candidates
        rows = [
            (c.risk, c.estimate, c.risk_approximation.error, c.approximation.error)
            for c in selection
        ]
        out.append(np.array(rows, float).T)
    return np.array(out)
