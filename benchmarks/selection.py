"""Selection by risk: reference values, time and memory up to 10^7 rows, identical results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import Measurement, Report, Settings, measure

from calibscale import KDE, KKR, UKKR, from_arrays, select
from calibscale.results.comparison_results import Selection

# file, rows, notion, golden file → estimator: (key there, smallest hyper-parameter, tolerance)
GOLDEN = {
    ("cifar10_resnet110", 2000, "top_label"): "tce",
    ("cifar10_resnet50", 2000, "top_label"): "tce",
    ("cifar10_resnet50", 10_000, "top_label"): "tce",
    ("cifar10_resnet50", 2000, "canonical"): "cce",
    ("cifar100_resnet110", 2000, "canonical"): "cce",
}
TOP_LABEL = {
    "bins": ("bin", 0.0),
    "kde": ("kde", 0.0),
    "ukkr": ("ukkr", 9e-8),
    "kkr": ("kkr", 9e-6),
}
TOLERANCES = {"bins": 1e-12, "kde": 1e-9}
# work, rows, bound in seconds, in MB; canonical and large ones are run once: minutes long
TIMES = (
    ("top_label", 2000, 1.0, None),
    ("top_label", 10_000, 3.0, None),
    ("top_label", 1_000_000, 60.0, 1500.0),
    ("canonical", 2000, 8.0, None),
    ("canonical", 1_000_000, 600.0, 2000.0),
)


def run(settings: Settings) -> Report:
    report = Report("selection", settings)
    folder = os.environ.get("CALIBSCALE_DATA")
    if folder:
        _golden(report, Path(folder), settings)
    else:
        report.note("no reference values: CALIBSCALE_DATA names no folder with data/ and golden/")
    for notion, full_rows, seconds, megabytes in TIMES:
        rows = settings.rows(full_rows) if full_rows > 10_000 else full_rows
        heavy = notion == "canonical" and full_rows > 10_000
        families = ["kkr", "ukkr"] if notion == "canonical" else None
        warm = settings.store(2000, 10)
        m = measure(
            "selection:chosen",
            settings.store(rows, 10),
            warm,
            notion,
            families,
            100 if settings.small else 1000,
            runs=1 if heavy else settings.runs,
        )
        title = f"{rows:,} x 10, {notion}, {'kkr + ukkr' if families else 'five estimators'}"
        _row(report, title, m, seconds, megabytes)
    if folder and not settings.small:
        m = measure("selection:network", str(Path(folder) / "data/cifar100_resnet110.npz"), runs=1)
        _row(report, "cifar100_resnet110, 10,000 x 100, canonical, rank 2,000", m, 300.0, None)
    _linear(report, settings)
    _compressed(report, settings)
    _same_bits(report, settings)
    return report


def _row(
    report: Report, title: str, m: Measurement, seconds: float, megabytes: float | None
) -> None:
    peak = m.peak / 1e6
    report.row(what=title, seconds=m.median, cpu_seconds=m.cpu_median, peak_mb=peak, **m.value)
    report.check(title, m.median, seconds, "s")
    if megabytes:
        report.check(f"{title}, peak memory", peak, megabytes, "MB")


# ---------------------------------------------------------------- reference values


def published_split(rows: int) -> np.ndarray:
    """Folds of the reference values: −1 for the last fifth of a seeded permutation."""
    order = np.random.RandomState(0).choice(rows, rows, replace=False)
    folds = np.full(rows, -1)
    for fold, part in enumerate(np.array_split(order[: int(0.8 * rows)], 5)):
        folds[part] = fold
    return folds


def _golden(report: Report, folder: Path, settings: Settings) -> None:
    for (name, rows, notion), kind in GOLDEN.items():
        if settings.small and (rows, name[:8]) != (2000, "cifar10_"):
            continue
        with np.load(folder / "data" / f"{name}.npz") as data:
            source = from_arrays(
                logits=data["logits"][:rows].astype(np.float64), labels=data["labels"][:rows]
            )
        if kind == "tce":
            golden = json.loads((folder / f"golden/{name}_{rows}_tce.json").read_text())
            selection = select(source, notion, folds=published_split(rows))
            keys = TOP_LABEL
        else:
            stem = f"{folder}/golden/{name}_{rows}_cce"
            golden = json.loads(Path(f"{stem}_matched_labels.json").read_text())
            golden["kde"] = json.loads(Path(f"{stem}_kde_float64.json").read_text())["kde"]
            families = [KDE(), KKR([float(reg) for reg in golden["kkr"]["grid"]]), UKKR()]
            selection = select(source, notion, families, folds=published_split(rows), features=rows)
            keys = {"kde": ("kde", 0.0), "kkr": ("kkr", 0.0), "ukkr": ("ukkr", 0.0)}
        for estimator, (key, smallest) in keys.items():
            tolerance = 1e-6 if rows > 2000 else 1e-8
            if kind == "tce":
                tolerance = TOLERANCES.get(estimator, tolerance)
            error = _largest_error(selection, golden[key]["grid"], estimator, smallest)
            title = f"{name}, {rows} rows, {notion}, {estimator}, risk and estimate"
            report.check(title, error, tolerance)


def _largest_error(
    selection: Selection, grid: dict[str, list[float]], estimator: str, smallest: float
) -> float:
    """Largest relative error of risks and estimates over the grid."""
    worst = 0.0
    values = np.array([float(key) for key in grid])
    for candidate in selection.candidates:
        if candidate.estimator != estimator:
            continue
        (value,) = candidate.hyperparameter.values()
        if value < smallest:
            continue
        nearest = int(np.argmin(np.abs(np.log(values / value))))
        assert abs(values[nearest] / value - 1) < 1e-6
        risk, estimate = list(grid.values())[nearest]
        worst = max(worst, abs(candidate.risk / risk - 1), abs(candidate.estimate / estimate - 1))
    return worst


# ---------------------------------------------------------------- laws


def _linear(report: Report, settings: Settings) -> None:
    times = []
    for full_rows in (1_000_000, 10_000_000):
        store, warm = settings.store(settings.rows(full_rows), 10), settings.store(2000, 10)
        m = measure(
            "selection:chosen", store, warm, "top_label", ["kkr", "ukkr"], 1000, runs=settings.runs
        )
        times.append(m.median)
        report.row(
            what=f"{settings.rows(full_rows):,} x 10, top_label, kkr + ukkr",
            seconds=m.median,
            cpu_seconds=m.cpu_median,
            peak_mb=m.peak / 1e6,
        )
    exponent = math.log10(times[1] / times[0])
    report.check("kkr + ukkr, exponent of the time in n", exponent, 1.1, full_only=True)


def _compressed(report: Report, settings: Settings) -> None:
    """The KDE over cells against exact tiles."""
    rows = settings.rows(20_000) if settings.small else 20_000
    selection = select(settings.store(rows, 10), "top_label", ["kde"])
    exact = select(settings.store(rows, 10), "top_label", [KDE(exact=True)])
    pairs = list(zip(selection.candidates, exact.candidates, strict=True))
    risk = max(abs(a.risk / b.risk - 1) for a, b in pairs)
    estimate = max(abs(a.estimate / b.estimate - 1) for a, b in pairs)
    report.check(f"kde over cells against exact tiles, {rows:,} rows, risk", risk, 1e-6)
    report.check(f"kde over cells against exact tiles, {rows:,} rows, estimate", estimate, 1e-6)


def _same_bits(report: Report, settings: Settings) -> None:
    store = settings.store(settings.rows(1_000_000), 10)
    schedulers = ("serial", "threads:2", "local:1", "local:2")
    results = {}
    for scheduler in schedulers:
        selection = select(
            store, "top_label", ["bins", "kkr", "ukkr", "temperature"], scheduler=scheduler
        )
        results[scheduler] = json.dumps([c.to_dict() for c in selection.candidates])
    differing = sum(results[s] != results["serial"] for s in schedulers)
    report.check("results that differ in any bit by scheduler", differing, 0)


# ---------------------------------------------------------------- the work, in fresh processes


def chosen(
    store: str, warm: str, notion: str, families: list[str] | None, rank: int
) -> Callable[[], Any]:
    """A selection from a store."""
    select(warm, notion, families, features=100)

    def work() -> dict[str, Any]:
        return _summary(select(store, notion, families, features=rank))

    return work


def network(path: str) -> Callable[[], Any]:
    """Canonical calibration of a network with 100 classes, 2,000 landmarks."""
    with np.load(path) as data:
        source = from_arrays(logits=data["logits"], labels=data["labels"])
        few = from_arrays(logits=data["logits"][:500], labels=data["labels"][:500])
    select(few, "canonical", ["kkr", "ukkr"], features=50)

    def work() -> dict[str, Any]:
        return _summary(select(source, "canonical", ["kkr", "ukkr"], features=2000))

    return work


def _summary(selection: Selection) -> dict[str, Any]:
    best = selection.selected
    return {
        "rank": selection.features["rank"],
        "trace_residual": selection.features["trace_residual"],
        "selected": best.estimator,
        "hyperparameter": best.hyperparameter,
        "risk": best.risk,
        "estimate": best.estimate,
        "approximation": best.approximation.error,
    }
