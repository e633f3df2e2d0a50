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


SETS = 5  # data sets of functionals; the table has the values of the first


def arrays(name: str, number: int = 0) -> tuple[Any, Any]:
    """Predictions and outcomes, such as probabilities and labels, of each kind of `CALLS`."""
    rng = np.random.default_rng(number)
    if name == "means":
        return _means(rng, number)
    if name == "intervals":
        return _intervals(rng, number)
    if name == "sets":
        least = (0.3, 0.1, 0.5, 0.3, 0.2)[number]
        member = rng.random((ROWS, 8)) < rng.uniform(least, 0.9, (ROWS, 1))
        member[~member.any(axis=1), 0] = True
        # Four in five labels are drawn from the set, and the others from all classes.
        inside = member & (rng.random((ROWS, 1)) < (0.8, 0.9, 0.5, 1.0, 0.0)[number])
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


def _means(rng: np.random.Generator, number: int) -> tuple[Any, Any]:
    """Positive predictions of means: of several tails, with ties, and of little noise."""
    p = (
        rng.gamma(2.0, 1.0, ROWS) + 0.1,
        rng.lognormal(0.0, 1.0, ROWS),
        np.round(rng.gamma(2.0, 1.0, ROWS), 1) + 0.1,
        rng.uniform(100.0, 101.0, ROWS),
        rng.pareto(2.5, ROWS) + 0.5,
    )[number]
    shape = (3.0, 1.0, 0.5, 1e5, 2.0)[number]
    return p, 1.1 * p * rng.gamma(shape, 1 / shape, ROWS) + 0.01


def _intervals(rng: np.random.Generator, number: int) -> tuple[Any, Any]:
    """Intervals that are right, too narrow, shifted, of heavy tails, and far from 0."""
    width = rng.gamma(3.0, 1.0, ROWS)
    centre = (0.0, 0.0, 0.5, 0.0, 1000.0)[number] + np.zeros(ROWS)
    noise = rng.standard_t(2, ROWS) if number == 3 else rng.normal(size=ROWS)
    spread = (0.6, 1.5, 0.6, 0.6, 0.6)[number] * np.sqrt(3 * width)
    outcomes = (1000.0 if number == 4 else 0.0) + spread * noise
    return np.column_stack([centre - width, centre + width]), outcomes


class Row(NamedTuple):
    """A number of a package, and the call of calibscale that is equal to it."""

    data: str
    package: str
    call: str  # of the names of its module, and y, p, and t = torch.from_numpy
    ours: str
    tolerance: float | None = 1e-9  # relative; None: another quantity


PROBMETRICS = 'Metrics.from_names(["{0}"]).compute_all_from_labels_probs(t(y), t(p))["{0}"]'
# A threshold that is near the middle of the outcomes, and equal to none of them: packages differ
# about outcomes that equal it.
ETA = "1.0001 * sorted(y)[10_000]"
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
    Row(
        "binary",
        "scikit-learn",
        "roc_auc_score(y, p)",
        '(1 + g("concentration_index") / g("ideal_gini")) / 2',
    ),
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
    *(
        Row(
            "means",
            "model-diagnostics",
            f"decompose(y, p, scoring_function={score})[{part!r}][0]",
            f'd("{part}", {power})',
        )
        for score, power in (("SquaredError()", 0.0), ("PoissonDeviance()", 1.0))
        for part in ("miscalibration", "discrimination", "uncertainty")
    ),
    *(
        Row(
            "means",
            "model-diagnostics",
            f"decompose(y, p, scoring_function={score})[{part!r}][0]",
            f'{factor}f("{part}", "{forecast}")',
        )
        for score, factor, forecast in (
            ("PinballLoss(level=0.7)", "", "quantile(level=0.7)"),
            ("HomogeneousExpectileScore(level=0.7)", "2 * ", "expectile(level=0.7)"),
        )
        for part in ("miscalibration", "discrimination", "uncertainty")
    ),
    *(
        Row(
            "means",
            "model-diagnostics",
            f'ElementaryScore({ETA}, functional="{name}", level=0.7)(y, p)',
            f'e({ETA}, "{forecast}")',
        )
        for name, forecast in (
            ("mean", "mean"),
            ("expectile", "expectile(level=0.7)"),
            ("quantile", "quantile(level=0.7)"),
        )
    ),
    *(
        Row(
            "means",
            "scikit-learn",
            f"d2_tweedie_score(y, p, power={power:g})",
            f'1 - d("score", {power}) / d("uncertainty", {power})',
        )
        for power in (0.0, 1.0)
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
    "model-diagnostics": ("model_diagnostics.calibration", "model_diagnostics.scoring"),
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

    def values(data: str, text: str) -> list[float]:
        found = []
        for number in range(SETS if data in ("means", "intervals", "sets") else 1):
            p, y = arrays(data, number)
            functions = _functions(p, y) if package == "calibscale" else {}
            found.append(float(eval(text, names | functions | {"p": p, "y": y})))
        return found

    return lambda: {
        "version": installed(package),
        "values": [values(*arguments) for arguments in wanted],
    }


def _functions(p: Any, y: Any) -> dict[str, Any]:
    """Functions of the calls of calibscale.

    They are `v` of outcomes, `d` and `f` of parts of scores of means and of other functionals, `e`
    of elementary scores, `g` of Gini indices of events, and `s` of sets.
    """
    import calibscale as cs

    def value(source: Any, estimator: str) -> float:
        return cs.evaluate(source, estimator).estimates[0].value

    def of_outcomes(estimator: str, forecast: str) -> float:
        return value(cs.from_arrays(predictions=p, forecast=forecast, labels=y), estimator)

    def of_decomposition(part: str, power: float) -> float:
        source = cs.from_arrays(predictions=p, forecast="mean", labels=y)
        return part_of(source, cs.Decomposition(power), part)

    def of_functional(part: str, forecast: str) -> float:
        source = cs.from_arrays(predictions=p, forecast=forecast, labels=y)
        return part_of(source, cs.Decomposition(), part)

    def part_of(source: Any, decomposition: Any, part: str) -> float:
        (estimate,) = cs.evaluate(source, decomposition).estimates
        return estimate.value if part == "miscalibration" else estimate.details[part]

    def of_threshold(threshold: float, forecast: str) -> float:
        source = cs.from_arrays(predictions=p, forecast=forecast, labels=y)
        return cs.murphy_diagram(source, thresholds=[threshold]).curves[0].score[0]

    def of_concentration(name: str) -> float:
        source = cs.from_arrays(probabilities=p, labels=y, binary=True)
        return getattr(cs.concentration_curve(source), name).value

    def of_sets(estimator: str) -> float:
        return value(cs.from_sets(p, y, coverage=0.9), estimator)

    return {
        "v": of_outcomes,
        "d": of_decomposition,
        "f": of_functional,
        "e": of_threshold,
        "g": of_concentration,
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
        for row, (values, version) in zip(
            rows, _measured(package, "call", rows, python), strict=True
        ):
            equal = ours[row][0]
            first = None if values is None else values[0]
            report.row(**row._asdict(), value=first, version=version, equal=equal[0])
            if values is not None and row.tolerance is not None:
                error = float(np.max(np.abs(np.subtract(values, equal)) / np.abs(equal)))
                report.check(f"{package}, {row.call}", error, row.tolerance)
    return report


def _measured(package: str, field: str, rows: Sequence[Row], python: str) -> list[tuple[Any, Any]]:
    """Values by data set and version of each row, or None where the package is not installed."""
    wanted = [[row.data, getattr(row, field)] for row in rows]
    try:
        result = measure("conventions:calls", package, wanted, runs=1, python=python).value
    except NotInstalled:
        return [(None, None)] * len(rows)
    return [(values, result["version"]) for values in result["values"]]
