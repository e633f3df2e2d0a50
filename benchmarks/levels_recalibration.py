"""Rejections by `audit` of recalibrated predictions with a truth in the family of the method.

Predictions are the truth transformed by the inverse of each method, so that the method can correct
them. The remaining error is the noise of its fit, which the p-values must take into account.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from scipy.special import expit, log_softmax, logit
from scipy.stats import binom
from simulated import SEED, shared, within

ROWS, REPLICATES, LEVEL, HALF = 1000, 99, 0.05, 0.5  # 99 can say 5 % exactly
TEMPERATURE, SHIFT, CLASSES = 1.5, 0.5, 10
METHODS = ("temperature", "platt", "isotonic")
LAWS = (Law("uniform"), Law("sigmoid of a normal"), Law("conf"))


def run(report: Report, pool: Executor, laws: tuple[Law, ...] = (), count: int = 600) -> None:
    """Rejections at 5 % by p-values of the audit, and from drawn labels alone."""
    if report.settings.small:
        count = min(count, 4)
    low, high = (binom.ppf(q, count, LEVEL) / count for q in (0.01, 0.99))
    report.note(
        f"{count} data sets of {ROWS} rows, half held out, {REPLICATES} replicates; 98 % "
        f"of exact levels are within {100 * low:.1f} and {100 * high:.1f} %"
    )
    cells = [(law, method) for law in laws or LAWS for method in METHODS]
    cells += [] if laws else [(None, "temperature")]
    for law, method in cells:
        counts = np.concatenate(shared(pool, count, _p_values, law, method))
        counted, alone = (100 * np.mean(counts[:, k] <= LEVEL + 1e-12) for k in (0, 1))
        title = f"{CLASSES} classes" if law is None else law.name
        seconds, of_test = (float(v) for v in np.median(counts[:, 2:], axis=0))
        report.row(
            law=title,
            method=method,
            rejected=float(counted),
            labels_alone=float(alone),
            at_1_percent=float(100 * np.mean(counts[:, 0] <= 0.01 + 1e-12)),
            cpu_seconds=seconds,
            cpu_seconds_of_a_test=of_test,
        )
        within(report, f"{title}, {method}, rejected", float(counted), 3.5, 6.5, full_only=True)


def _p_values(law: Law | None, method: str, first: int, last: int) -> Any:
    """p-values of the audit and of labels alone, and seconds of the audit and of the latter."""
    from calibscale import KLCE, calibration_test
    from calibscale.auditing.audit import Recalibration, audit
    from calibscale.data.derived_sources import HoldOut, part_of
    from calibscale.recalibration.method_registry import METHODS
    from calibscale.recalibration.recalibrator import recalibrated

    out = np.empty((last - first, 4))
    for row, number in zip(out, range(first, last), strict=True):
        source = _data(law, method, number)
        settings: dict[str, Any] = {
            "n_replicates": REPLICATES,
            "seed": number,
            "scheduler": "serial",
        }
        started = time.process_time()
        result = audit(source, ["x0"], recalibrate=Recalibration(method, HALF), **settings)
        row[2] = time.process_time() - started
        _, after = result.recalibration
        row[0] = after.p_value
        used = after.test.parameters
        (part,) = after.fitted["source"]["parts"]
        halves = [
            part_of(source, HoldOut(HALF, part["seed"]), held_out) for held_out in (False, True)
        ]
        model = recalibrated(halves[1], METHODS[method]().fit(halves[0], scheduler="serial"))
        estimator = KLCE(
            ("x0",),
            used["prediction_bandwidth"],
            used["covariate_bandwidth"],
            notion=after.test.notion,
        )
        started = time.process_time()
        row[1] = calibration_test(model, estimator, **settings)["klce"].p_value
        row[3] = time.process_time() - started
    return out


def _data(law: Law | None, method: str, number: int) -> Any:
    """Predictions that the method can correct, and a correlated covariate."""
    from calibscale import from_arrays

    rng = np.random.default_rng((SEED, 5, METHODS.index(method), number))
    if law is None:
        z = log_softmax(1.5 * rng.standard_normal((ROWS, CLASSES)), axis=1)
        labels = (np.exp(z).cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1)
        covariates = 2 * np.exp(z.max(axis=1)) + rng.standard_normal(ROWS)
        return from_arrays(
            logits=TEMPERATURE * z, labels=labels.clip(0, CLASSES - 1), covariates=covariates
        )
    true, _ = law.probabilities(rng, ROWS)
    with np.errstate(divide="ignore"):
        z = logit(true)
    shift = {"temperature": 0.0, "platt": SHIFT, "isotonic": 0.3 * np.sin(2 * np.clip(z, -99, 99))}
    return from_arrays(
        probabilities=expit(TEMPERATURE * z + shift[method]),
        binary=True,
        labels=(rng.random(ROWS) < true).astype(np.int64),
        covariates=2 * true + rng.standard_normal(ROWS),
    )
