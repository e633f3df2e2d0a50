"""Reference values: exact to 1e-10, random features within their bounds and reported errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from measure import Report, Settings

from calibscale import (
    CKCE,
    CWCE2,
    ECE,
    JKCE,
    NLL,
    TCE2,
    Accuracy,
    Brier,
    JKCEBiased,
    RandomFourier,
    TCE2Kumar,
    evaluate,
    from_arrays,
)
from calibscale.data.source import ArraySource

ROWS = 2000
EXACT = {
    "accuracy": Accuracy(),
    "brier": Brier(),
    "nll": NLL(),
    "ece_15": ECE(bins=15),
    "tce2_squared_15": TCE2(bins=15),
    "tce2_squared_15_debiased": TCE2Kumar(bins=15),
    "cwce2_squared_15_sum": CWCE2(bins=15),
}
KERNEL = {"ckce": CKCE, "jkce_unbiased": JKCE, "jkce_biased": JKCEBiased}
WITHIN = {"ckce": 0.02, "jkce_unbiased": 0.06}


def run(settings: Settings) -> Report:
    report = Report("golden", settings)
    folder = os.environ.get("CALIBSCALE_DATA")
    if not folder:
        report.note("not run: CALIBSCALE_DATA names no folder with data/ and golden/")
        return report
    golden = json.loads((Path(folder) / "golden" / "first_2000_rows.json").read_text())
    names = ["cifar10_resnet50"] if settings.small else list(golden)
    for name in names:
        with np.load(Path(folder) / "data" / f"{name}.npz") as data:
            source = from_arrays(logits=data["logits"][:ROWS], labels=data["labels"][:ROWS])
        _exact(report, name, source, golden[name])
        _within(report, name, source, golden[name], seeds=1 if settings.small else 10)
        _stated_error(report, name, source, golden[name], seeds=40 if settings.small else 100)
    return report


def _exact(report: Report, name: str, source: ArraySource, golden: dict[str, float]) -> None:
    outcome = evaluate(source, EXACT.values()).estimates
    errors = [abs(e.value / golden[key] - 1) for e, key in zip(outcome, EXACT, strict=True)]
    report.check(f"{name}, scores and bins, largest relative error", max(errors), 1e-10)


def _kernel_values(
    source: ArraySource, features: RandomFourier
) -> tuple[dict[str, float], dict[str, float]]:
    """Values and stated errors of the kernel estimators, all from one pass."""
    scores = evaluate(source, [kind(features=features) for kind in KERNEL.values()]).estimates
    values = {key: e.value for key, e in zip(KERNEL, scores, strict=True)}
    return values, {key: e.approximation.error for key, e in zip(KERNEL, scores, strict=True)}


def _within(
    report: Report, name: str, source: ArraySource, golden: dict[str, float], seeds: int
) -> None:
    rows = [_kernel_values(source, RandomFourier(1000, 1.0, seed))[0] for seed in range(seeds)]
    for key, bound in WITHIN.items():
        worst = max(abs(values[key] / golden[key] - 1) for values in rows)
        title = f"{name}, {key}, F = 1000, worst of {seeds} seeds"
        report.check(title, 100 * worst, 100 * bound, "%")


def _stated_error(
    report: Report, name: str, source: ArraySource, golden: dict[str, float], seeds: int
) -> None:
    rows = [_kernel_values(source, RandomFourier(100, 1.0, seed)) for seed in range(seeds)]
    for key in KERNEL:
        error = np.array([values[key] for values, _ in rows]) - golden[key]
        stated = np.array([errors[key] for _, errors in rows])
        covered = 100 * np.mean(np.abs(error) <= stated)
        title = f"{name}, {key}, stated error covers"
        report.check(title, covered, 90, f"% of {seeds} seeds", at_least=True)
        rms = np.sqrt(np.mean(error**2))
        report.check(f"{name}, {key}, median stated error / true RMS", np.median(stated) / rms, 3.0)
