"""Noise floors compared with the estimates of labels drawn from the same predictions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from simulated import SEED, shared

LAWS = {"sharp": (10, 0.1), "flat": (3, 1.0), "binary": (2, 0.7), "rare": (5, 0.03)}  # K, Dirichlet
ROWS = (100, 2000, 100_000)
KERNELS = ("ckce", "cmmd", "jkce_biased")
NAMES = (
    "ece",
    "mce",
    "tce2",
    "brier_decomposition",
    "nll_decomposition",
    "cwce2",
    "simplex_ece",
    "ecce_mad",
    "ecce_range",
    "corp",
    "ici",
    "atb",
    "smooth_ece",
    *KERNELS,
)
BEYOND = 3.0  # standard errors of the simulated mean and quantile that a difference may have


def run(report: Report, pool: Executor, laws: Sequence[Law], count: int) -> None:
    """Judge mean and 95 % quantile of every floor, for the laws of this module."""
    for law in LAWS:
        for n in ROWS[:1] if report.settings.small else ROWS:
            values = np.concatenate(shared(pool, count, estimates, law, n))
            floors = [e.floor for e in _evaluated(law, n, 0, floor=True)]
            for k, (name, floor) in enumerate(zip(NAMES, floors, strict=True)):
                drawn = values[:, k]
                resampled = np.random.default_rng(SEED).choice(drawn, (200, count))
                of_draws = drawn.mean(), np.quantile(drawn, 0.95)
                errors = np.mean(resampled, 1).std(), np.quantile(resampled, 0.95, axis=1).std()
                row: dict[str, float] = {}
                for quantity, value, expected, error in zip(
                    ("mean", "quantile"), (floor.mean, floor.high), of_draws, errors, strict=True
                ):
                    row[quantity], row[f"{quantity}_error"] = (
                        value / expected - 1.0,
                        error / expected,
                    )
                    beyond = max(abs(row[quantity]) - BEYOND * row[f"{quantity}_error"], 0.0)
                    title = f"{name}, {law}, n = {n}, {quantity} of the floor"
                    report.check(title, 100 * beyond, 2, "%", full_only=True)
                report.row(what="floor", law=law, n=n, estimator=name, **row)


def estimates(law: str, n: int, first: int, last: int) -> Any:
    """Estimates for each drawing of the labels (drawing, estimator)."""
    drawings = range(first, last)
    return np.array([[e.value for e in _evaluated(law, n, k, floor=False)] for k in drawings])


def _evaluated(law: str, n: int, drawing: int, floor: bool) -> Any:
    import calibscale as cs

    classes, alpha = LAWS[law]
    q = np.random.default_rng((SEED, n)).dirichlet([alpha] * classes, n)
    u = np.random.default_rng((SEED, n, drawing)).random((n, 1))
    labels = np.minimum((q.cumsum(axis=1) < u).sum(axis=1), classes - 1)
    source = cs.from_arrays(probabilities=q, labels=labels)
    names = [f"{name}(bandwidth=0.3)" if name in KERNELS else name for name in NAMES]
    return cs.evaluate(source, names, floor=floor, scheduler="serial").estimates
