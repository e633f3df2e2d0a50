"""The same quantity in several packages, on the same arrays: which setting gives which number.

Each call runs in a process of the interpreter that has the package (``--python``), and beside it
the call of calibscale that gives the same number.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from measure import NotInstalled, Report, Settings, installed, measure

ROWS = 20_000


def arrays(name: str) -> tuple[Any, Any]:
    """Predictions and outcomes, such as probabilities and labels, of each kind of `CALLS`."""
    rng = np.random.default_rng(0)
    if name == "means":
        p = rng.gamma(2.0, 1.0, ROWS) + 0.1
        return p, 1.1 * p * rng.gamma(3.0, 1 / 3.0, ROWS) + 0.01
    if name == "intervals":
        width = rng.gamma(3.0, 1.0, ROWS)
        return np.column_stack([-width, width]), 0.6 * np.sqrt(3 * width) * rng.normal(size=ROWS)
    if name == "sets":
        member = rng.random((ROWS, 8)) < rng.uniform(0.3, 0.9, (ROWS, 1))
        member[~member.any(axis=1), 0] = True
        # Four in five labels are drawn from the set, and the others from all classes.
        inside = member & (rng.random((ROWS, 1)) < 0.8)
        return member, (inside + rng.random((ROWS, 8))).argmax(axis=1)
    if name == "ties":
        p = np.where(np.arange(ROWS) % 2, 1.0, 0.9)
        return p, (rng.random(ROWS) < np.where(p == 1, 0.9, 1.0)).astype(np.int64)
    if name == "binary":
        p = rng.beta(0.7, 2.0, ROWS)
        return p, (rng.random(ROWS) < p**1.2).astype(np.int64)
    logits = rng.normal(size=(ROWS, 3)) * 2
    q, p = (np.exp(logits / t) for t in (1.3, 1.0))
    q, p = q / q.sum(1, keepdims=True), p / p.sum(1, keepdims=True)
    return p, (q.cumsum(1) < rng.random((ROWS, 1))).sum(1)


class Row(NamedTuple):
    """A number of a package, and the call of calibscale that is equal to it."""

    data: str
    package: str
    call: str  # of the names of its module, and y, p, and t = torch.from_numpy
    ours: str
    tolerance: float | None = 1e-9  # relative; None: another quantity


PROBMETRICS = 'Metrics.from_names(["{0}"]).compute_all_from_labels_probs(t(y), t(p))["{0}"]'
FLOAT32 = 1e-4
EQUAL_MASS = 1e-3  # a row may fall in the next bin
CALLS = (
    Row("ties", "calibscale", "m.ece(y, p, bins=10)", "m.ece(y, p, bins=10)"),
    Row("ties", "uncertainty-calibration", "get_ece(p, y, num_bins=10)", "m.ece(y, p, bins=10)"),
    Row(
        "ties",
        "torchmetrics",
        "binary_calibration_error(t(p), t(y), n_bins=10)",
        'm.ece(y, p, bins=10, edges="torchmetrics")',
    ),
    Row("ties", "netcal", "ECE(10).measure(p, y)", 'm.ece(y, p, bins=10, edges="netcal")'),
    Row("ties", "mapie", "expected_calibration_error(y, p, num_bins=10)", "m.ece(y, p, bins=9)"),
    Row("binary", "scikit-learn", "brier_score_loss(y, p)", "m.brier(y, p) / 2"),
    Row("binary", "scikit-learn", "log_loss(y, p)", "m.nll(y, p)"),
    Row("binary", "netcal", "ECE(15).measure(p, y)", "m.ece(y, p)"),
    Row("binary", "netcal", "MCE(15).measure(p, y)", "m.mce(y, p)"),
    Row(
        "binary",
        "torchmetrics",
        'binary_calibration_error(t(p), t(y), norm="l2")',
        "m.tce2(y, p) ** 0.5",
    ),
    Row("binary", "mapie", "expected_calibration_error(y, p)", "m.ece(y, p, bins=49)"),
    Row("binary", "probcal", "ece(y, p)", 'm.ece(y, p, edges="equal-mass")'),
    Row("binary", "probcal", 'ece(y, p, strategy="width")', "m.ece(y, p)"),
    Row("binary", "probcal", "smooth_ece(y, p)", "m.smooth_ece(y, p)", None),
    Row(
        "binary",
        "probcal",
        "skce(y[:2000], p[:2000], bandwidth=0.2)",
        '2 * m.kce(y[:2000], p[:2000], prediction_kernel="laplace", prediction_bandwidth=0.2)',
    ),
    Row("three", "scikit-learn", "log_loss(y, p)", "m.nll(y, p)"),
    Row(
        "three",
        "torchmetrics",
        "multiclass_calibration_error(t(p), t(y), num_classes=3)",
        "m.ece(y, p)",
        FLOAT32,
    ),
    Row("three", "netcal", "ECE(15).measure(p, y)", "m.ece(y, p)"),
    Row("three", "probmetrics", PROBMETRICS.format("ece-15"), "m.ece(y, p)", FLOAT32),
    Row("three", "probmetrics", PROBMETRICS.format("rmsce-15"), "m.tce2(y, p) ** 0.5", FLOAT32),
    Row("three", "probmetrics", PROBMETRICS.format("brier"), "m.brier(y, p)"),
    Row(
        "three",
        "uncertainty-calibration",
        'get_calibration_error(p, y, debias=False, mode="top-label")',
        'm.tce2(y, p, edges="equal-mass") ** 0.5',
        EQUAL_MASS,
    ),
    Row("three", "mapie", "top_label_ece(y, p, num_bins=15)", "m.ece(y, p)", None),
    Row("means", "model-diagnostics", 'compute_bias(y, p)["bias_mean"][0]', 'v("bias", "mean")'),
    Row(
        "means",
        "model-diagnostics",
        'compute_bias(y, p, functional="quantile", level=0.7)["bias_mean"][0]',
        'v("bias", "quantile(level=0.7)")',
    ),
    Row(
        "means",
        "model-diagnostics",
        'compute_bias(y, p, functional="expectile", level=0.7)["bias_mean"][0]',
        'v("bias", "expectile(level=0.7)")',
    ),
    Row("means", "scikit-learn", "mean_squared_error(y, p)", 'v("squared_error", "mean")'),
    Row("means", "scikit-learn", "mean_poisson_deviance(y, p)", 'v("deviance(power=1)", "mean")'),
    Row("means", "scikit-learn", "mean_gamma_deviance(y, p)", 'v("deviance(power=2)", "mean")'),
    Row(
        "means",
        "scikit-learn",
        "mean_tweedie_deviance(y, p, power=1.5)",
        'v("deviance(power=1.5)", "mean")',
    ),
    Row(
        "means",
        "scikit-learn",
        "mean_pinball_loss(y, p, alpha=0.7)",
        'v("pinball_loss", "quantile(level=0.7)")',
    ),
    Row("intervals", "mapie", "regression_coverage_score(y, p).item()", 'v("coverage", INTERVAL)'),
    Row(
        "intervals",
        "mapie",
        "regression_mwi_score(y, p[:, :, None], 0.9)",
        'v("interval_score", INTERVAL)',
    ),
    Row(
        "intervals",
        "mapie",
        "regression_ssc_score(y, p, num_bins=2).item()",
        'v(f"size_stratified_coverage(edges=[{MEDIAN(p[:, 1] - p[:, 0])!r}])", INTERVAL)',
    ),
    Row("sets", "mapie", "classification_coverage_score(y, p).item()", 's("coverage")'),
    Row(
        "sets",
        "mapie",
        "classification_ssc_score(y, p, num_bins=3).item()",
        's("size_stratified_coverage(edges=[2, 5])")',
    ),
)
# Modules of each package, with the functions that the calls name.
MODULES = {
    "calibscale": ("calibscale.metrics",),
    "mapie": (
        "mapie.metrics.calibration",
        "mapie.metrics.classification",
        "mapie.metrics.regression",
    ),
    "model-diagnostics": ("model_diagnostics.calibration",),
    "netcal": ("netcal.metrics",),
    "probcal": ("probcal.metrics",),
    "probmetrics": ("probmetrics.metrics",),
    "scikit-learn": ("sklearn.metrics",),
    "torchmetrics": ("torchmetrics.functional.classification",),
    "uncertainty-calibration": ("calibration",),
}


def calls(package: str, wanted: list[list[str]]) -> Callable[[], Any]:
    """Calls of one package, each with the name of its arrays."""
    modules = [importlib.import_module(name) for name in MODULES[package]]
    names: dict[str, Any] = {"m": modules[0]}
    for module in modules:
        names |= vars(module)
    if package in ("probmetrics", "torchmetrics"):
        from torch import from_numpy

        names["t"] = from_numpy

    def value(data: str, text: str) -> float:
        p, y = arrays(data)
        functions = _functions(p, y) if package == "calibscale" else {}
        return float(eval(text, names | functions | {"p": p, "y": y}))

    return lambda: {
        "version": installed(package),
        "values": [value(*arguments) for arguments in wanted],
    }


def _functions(p: Any, y: Any) -> dict[str, Any]:
    """Functions that the calls of calibscale use: `v` of outcomes, and `s` of sets of classes."""
    import calibscale as cs

    def value(source: Any, estimator: str) -> float:
        return cs.evaluate(source, estimator).estimates[0].value

    def of_outcomes(estimator: str, forecast: str) -> float:
        return value(cs.from_arrays(predictions=p, forecast=forecast, labels=y), estimator)

    def of_sets(estimator: str) -> float:
        return value(cs.from_sets(p, y, coverage=0.9), estimator)

    return {
        "v": of_outcomes,
        "s": of_sets,
        "INTERVAL": "interval(coverage=0.9)",
        "MEDIAN": lambda widths: float(np.median(widths)),
    }


def run(settings: Settings) -> Report:
    report = Report("conventions", settings)
    ours = dict(zip(CALLS, _measured("calibscale", "ours", CALLS, sys.executable), strict=True))
    for package, package_rows in groupby(
        sorted(CALLS, key=lambda row: row.package), lambda r: r.package
    ):
        rows = list(package_rows)
        python = sys.executable if package == "calibscale" else settings.peers_python
        for row, (value, version) in zip(
            rows, _measured(package, "call", rows, python), strict=True
        ):
            equal = ours[row][0]
            report.row(**row._asdict(), value=value, version=version, equal=equal)
            if value is not None and row.tolerance is not None:
                error = abs(value - equal) / abs(equal)
                report.check(f"{package}, {row.call}", error, row.tolerance)
    return report


def _measured(package: str, field: str, rows: Sequence[Row], python: str) -> list[tuple[Any, Any]]:
    """Value and version of each row, or None where the package is not installed."""
    wanted = [[row.data, getattr(row, field)] for row in rows]
    try:
        result = measure("conventions:calls", package, wanted, runs=1, python=python).value
    except NotInstalled:
        return [(None, None)] * len(rows)
    return [(value, result["version"]) for value in result["values"]]
