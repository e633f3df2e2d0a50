"""python examples/recalibration_arena.py: which recalibration comes nearest to the truth?

For laws with a known probability of each class, methods of calibscale and of other packages are
fitted to the same simulated rows and judged on the same fresh rows without noise of labels: the
excess of the log loss is the Kullback–Leibler divergence of the recalibrated from the true
probabilities.  The calibration error is the root of the mean squared difference between predictions
and the mean true probabilities of the rows that share them.  For the networks in the directory that
CALIBSCALE_DATA names, half of the rows fits, and the labels of the other half judge.

Each method and number of rows has a process of its own: it fits a small data set first, so that
compilation is not timed.  A method of a package that is not installed is left out with a note;
``--python`` names the interpreter that has the other packages.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import expit, log_softmax, rel_entr

FRESH_ROWS = 20_000
Rng = np.random.Generator


# ---------------------------------------------------------------- laws


@dataclass(frozen=True)
class Law:
    """Logits (n, K) or log-odds (n,) that a model states, and the logits of the truth."""

    name: str
    stated: Callable[[Rng, int], np.ndarray]
    true: Callable[[np.ndarray], np.ndarray]

    def drawn(self, rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Stated logits (n, K) and true log-probabilities (n, K)."""
        z = self.stated(rng, n)
        truth = self.true(z)
        if z.ndim == 1:
            z, truth = (np.column_stack([0.0 * part, part]) for part in (z, truth))
        return z, log_softmax(truth, axis=1)


def _spread(rng: Rng, n: int) -> np.ndarray:
    return 1.7 * rng.standard_normal(n)


def _rare(rng: Rng, n: int) -> np.ndarray:
    return -4.5 + rng.standard_normal(n)


def _of_classes(classes: int) -> Callable[[Rng, int], np.ndarray]:
    def logits(rng: Rng, n: int) -> np.ndarray:
        z = rng.standard_normal((n, classes))
        z[np.arange(n), rng.integers(0, classes, n)] += 4.0
        return z

    return logits


def _by_class(slope: float, classes: int) -> Callable[[np.ndarray], np.ndarray]:
    """Slopes and intercepts that differ between classes."""
    slopes = slope * np.linspace(0.7, 1.3, classes)
    shifts = np.linspace(-0.6, 0.6, classes)
    return lambda z: slopes * z + shifts


TWO_CLASSES = (
    Law("calibrated", _spread, lambda z: z),
    Law("overconfident", _spread, lambda z: 0.6 * z),
    Law("underconfident", _spread, lambda z: 1.5 * z),
    Law("shifted", _spread, lambda z: 0.7 * z - 0.4),
    Law("two slopes", _spread, lambda z: np.where(z > 0, 0.4, 1.1) * z),
    Law("tanh", _spread, lambda z: 0.1 + 0.5 * z + 0.6 * np.tanh(2.0 * z)),
    Law("waves", _spread, lambda z: z + 0.4 * np.sin(2.0 * z)),
    Law("a step", _spread, lambda z: np.where(z > 0, 1.0, -1.2)),
    Law("rare events", _rare, lambda z: 0.8 * z - 0.5),
)
MORE_CLASSES = (
    Law("10 classes calibrated", _of_classes(10), lambda z: z),
    Law("10 classes overconfident", _of_classes(10), lambda z: 0.5 * z),
    Law("10 classes by class", _of_classes(10), _by_class(0.6, 10)),
    Law("100 classes overconfident", _of_classes(100), lambda z: 0.5 * z),
)
LAWS = {law.name: law for law in (*TWO_CLASSES, *MORE_CLASSES)}
NETWORKS = ("cifar10_resnet50", "cifar10_densenet121", "cifar100_resnet110")


# ---------------------------------------------------------------- methods

# A method takes logits (n, K) and labels of the fit, and new logits, and returns probabilities.
Method = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def _ours(name: str) -> Method:
    from calibscale import from_arrays, recalibrate

    def probabilities(z: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
        if z.shape[1] > 2:
            source = from_arrays(logits=z, labels=y)
        else:
            source = from_arrays(logits=z[:, 1] - z[:, 0], labels=y, binary=True)
        return recalibrate(source, name, validate=False).transform(logits=new)

    return probabilities


def _two_columns(p: np.ndarray) -> np.ndarray:
    p = np.asarray(p, float).reshape(len(p), -1)[:, -1]
    return np.column_stack([1.0 - p, p])


def _sklearn(name: str) -> Method:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Logits(ClassifierMixin, BaseEstimator):
        """Classifier with the logits as its features."""

        def fit(self, X: Any, y: Any) -> Any:
            self.classes_ = np.unique(y)
            return self

        def decision_function(self, X: Any) -> Any:
            return X[:, 1] - X[:, 0] if X.shape[1] == 2 else X

        def predict(self, X: Any) -> Any:
            return self.classes_[X.argmax(axis=1)]

    def probabilities(z: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
        classes = np.arange(z.shape[1])
        model = FrozenEstimator(Logits().fit(z, classes))
        fitted = CalibratedClassifierCV(model, method=name).fit(z, y)
        # Classes without rows have the probability 0.
        result = np.zeros((len(new), z.shape[1]))
        result[:, fitted.classes_] = fitted.predict_proba(new)
        return result

    return probabilities


def _netcal(kind: str, **settings: Any) -> Method:
    from netcal import binning, scaling

    def probabilities(z: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
        method = getattr(scaling, kind, None) or getattr(binning, kind)
        fitted = method(**settings)
        if z.shape[1] == 2:
            p, q = (expit(part[:, 1] - part[:, 0]) for part in (z, new))
            fitted.fit(p, y)
            return _two_columns(fitted.transform(q))
        p, q = (np.exp(log_softmax(part, axis=1)) for part in (z, new))
        fitted.fit(p, y)
        return np.asarray(fitted.transform(q))

    return probabilities


def _betacal() -> Method:
    from betacal import BetaCalibration

    def probabilities(z: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
        p, q = (expit(part[:, 1] - part[:, 0]) for part in (z, new))
        return _two_columns(BetaCalibration("abm").fit(p[:, None], y).predict(q[:, None]))

    return probabilities


def _venn_abers() -> Method:
    from venn_abers import VennAbers

    def probabilities(z: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
        p, q = (_two_columns(expit(part[:, 1] - part[:, 0])) for part in (z, new))
        fitted = VennAbers()
        fitted.fit(p, y)
        return np.asarray(fitted.predict_proba(q)[0])

    return probabilities


def _probmetrics(name: str) -> Method:
    from probmetrics.calibrators import get_calibrator

    def probabilities(z: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
        p, q = (np.exp(log_softmax(part, axis=1)) for part in (z, new))
        return np.asarray(get_calibrator(name).fit(p, y).predict_proba(q))

    return probabilities


OURS_OF_TWO = (
    *("identity", "temperature", "platt", "beta", "spline", "isotonic", "venn_abers", "bbq"),
    *("histogram", "ensemble_temperature", "auto"),
)
OURS_OF_MORE = (
    *("identity", "temperature", "ensemble_temperature", "vector", "matrix", "dirichlet"),
    *("structured", "one_vs_rest", "top_label_histogram", "auto"),
)


def _classes_of(name: str) -> str:
    """Numbers of classes that a method of calibscale is for."""
    if name not in OURS_OF_MORE:
        return "two"
    return "both" if name in OURS_OF_TWO else "more"


# Makers of methods by name, with the numbers of classes that they are for: two, more, or both.
METHODS: dict[str, tuple[Callable[[], Method], str]] = {
    **{
        f"calibscale {name}": (partial(_ours, name), _classes_of(name))
        for name in dict.fromkeys((*OURS_OF_TWO, *OURS_OF_MORE))
    },
    "scikit-learn sigmoid": (partial(_sklearn, "sigmoid"), "both"),
    "scikit-learn isotonic": (partial(_sklearn, "isotonic"), "both"),
    "scikit-learn temperature": (partial(_sklearn, "temperature"), "both"),
    "netcal temperature": (partial(_netcal, "TemperatureScaling"), "both"),
    "netcal beta": (partial(_netcal, "BetaCalibration"), "two"),
    "netcal histogram": (partial(_netcal, "HistogramBinning", bins=10), "two"),
    "netcal BBQ": (partial(_netcal, "BBQ"), "two"),
    "betacal": (_betacal, "two"),
    "venn-abers": (_venn_abers, "two"),
    "probmetrics logistic": (partial(_probmetrics, "logistic"), "both"),
    "probmetrics svs": (partial(_probmetrics, "svs"), "more"),
}


def _suits(method: str, law: str) -> bool:
    """Whether a method is for the number of classes of a law or a network."""
    _, classes = METHODS[method]
    is_binary = law in LAWS and LAWS[law] in TWO_CLASSES
    return classes == "both" or (classes == "two") == is_binary


# ---------------------------------------------------------------- one method, in its process


def _data(name: str, rows: int, seed: int) -> tuple[np.ndarray, ...]:
    """Logits and labels of the fit, new logits, and their true log-probabilities or labels."""
    if name in LAWS:
        law, rng = LAWS[name], np.random.default_rng((list(LAWS).index(name), rows, seed))
        z, log_p = law.drawn(rng, rows)
        uniforms = rng.random((rows, 1))
        y = (np.exp(log_p).cumsum(axis=1) < uniforms).sum(axis=1).clip(0, z.shape[1] - 1)
        new, truth = law.drawn(np.random.default_rng(seed + 10**6), FRESH_ROWS)
        return z, y, new, truth
    with np.load(Path(os.environ["CALIBSCALE_DATA"]) / "data" / f"{name}.npz") as file:
        z, y = file["logits"].astype(float), file["labels"].astype(int)
    order = np.random.default_rng(seed).permutation(len(y))
    fit, new = order[: min(rows, len(y) // 2)], order[len(y) // 2 :]
    return z[fit], y[fit], z[new], y[new]


def _judged(p: np.ndarray, truth: np.ndarray) -> tuple[float, float | None]:
    """Excess log loss and calibration error, or the log loss of labels."""
    with np.errstate(divide="ignore"):
        if truth.ndim == 1:
            return float(-np.log(p[np.arange(len(p)), truth]).mean()), None
        q = np.exp(truth)
        excess = float(rel_entr(q, p).sum(axis=1).mean())
    # Steps give many rows the same prediction up to rounding.
    shared, groups = np.unique(p.round(12), axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    sizes = np.bincount(groups)
    means = np.column_stack([np.bincount(groups, column) / sizes for column in q.T])
    squares = ((means - shared) ** 2).sum(axis=1)
    return excess, float(np.sqrt(squares @ sizes / len(p)))


def run_method(name: str, cases: list[tuple[str, int, int]]) -> Iterator[dict[str, Any]]:
    """Results of one method for data by name, rows and seed."""
    method = METHODS[name][0]()
    warmed: set[int] = set()
    for law, rows, seed in cases:
        z, y, new, truth = _data(law, rows, seed)
        result: dict[str, Any] = {"method": name, "law": law, "rows": rows, "seed": seed}
        try:
            if z.shape[1] not in warmed:
                method(*_data(law, max(200, 20 * z.shape[1]), 10**5)[:2], new[:10])
                warmed.add(z.shape[1])
            start = time.perf_counter()
            p = method(z, y, new)
            result["seconds"] = time.perf_counter() - start
            result["loss"], result["error"] = _judged(p, truth)
        except Exception as failure:  # a method that cannot fit a law is a result, too
            result["failure"] = f"{type(failure).__name__}: {failure}".splitlines()[0]
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield result


# ---------------------------------------------------------------- all methods, and the table


def measured(
    python: str, method: str, cases: list[tuple[str, int, int]], limit: float
) -> Iterator[dict[str, Any]]:
    """Results of a method in a process of the first interpreter that has its package.

    There are none, and a note says so, after `limit` seconds.
    """
    for interpreter in dict.fromkeys((sys.executable, python)):
        command = [interpreter, __file__, "--child", method]
        settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": limit}
        try:
            process = subprocess.run(command, input=json.dumps(cases), **settings)
        except subprocess.TimeoutExpired:
            reason = f"it takes more than {limit:g} seconds"
            break
        if process.returncode == 0:
            for line in process.stdout.splitlines():
                if line.startswith("{"):
                    yield json.loads(line)
            return
        *_, reason = ["no message", *process.stderr.splitlines()]
    click.echo(f"{method} is left out: {reason}", err=True)


def tables(results: list[dict[str, Any]]) -> Iterator[str]:
    """Tables for each number of rows and kind of data, with the smallest values in bold."""
    loss, error = "10⁴ × excess log loss", "10³ × calibration error"
    two, more = ([law.name for law in laws] for laws in (TWO_CLASSES, MORE_CLASSES))
    for rows in sorted({result["rows"] for result in results}):
        for title, names, judged, key, unit, digits in (
            ("two classes", two, loss, "loss", 1e4, 1),
            ("two classes", two, error, "error", 1e3, 1),
            ("more classes", more, loss, "loss", 1e4, 0),
            ("more classes", more, error, "error", 1e3, 1),
            ("networks", list(NETWORKS), "log loss", "loss", 1.0, 4),
        ):
            here = [r for r in results if r["rows"] == rows and r["law"] in names]
            laws = [name for name in names if any(r["law"] == name for r in here)]
            if laws:
                yield f"\n## {rows:,} rows, {title}: {judged}\n"
                yield from _table(here, laws, key, unit, digits)


def _table(
    results: list[dict[str, Any]], laws: list[str], key: str, unit: float, digits: int
) -> Iterator[str]:
    """Rows of a table: medians over the seeds of each method and law, and of seconds."""
    methods = list(dict.fromkeys(result["method"] for result in results))
    by_seed: dict[tuple[str, str], list[float]] = {}
    for result in results:
        at = result["method"], result["law"]
        by_seed.setdefault(at, []).append(result.get(key, np.nan))
    values = {at: float(np.median(numbers)) for at, numbers in by_seed.items()}
    # 0 is added, because a rounded −0 has a minus sign.
    texts = {
        at: "–" if np.isnan(value) else f"{round(unit * value, digits) + 0.0:.{digits}f}"
        for at, value in values.items()
    }
    best = {}
    for law in laws:
        of_law = [at for at in values if at[1] == law and not np.isnan(values[at])]
        if of_law:
            best[law] = texts[min(of_law, key=lambda at: values[at])]
    yield "| method | " + " | ".join(laws) + " | seconds | MB |"
    yield "|" + "---|" * (len(laws) + 3)
    for method in methods:
        cells = []
        for law in laws:
            text = texts.get((method, law), "–")
            cells.append(f"**{text}**" if text == best.get(law) else text)
        own = [r for r in results if r["method"] == method]
        times = [r["seconds"] for r in own if "seconds" in r]
        seconds = np.median(times) if times else np.nan
        memory = max(r["peak_mb"] for r in own)
        yield f"| {method} | " + " | ".join(cells) + f" | {seconds:.2g} | {memory:.0f} |"


def _numbers(context: Any, option: Any, text: str) -> list[int]:
    """Numbers of an option that are separated by commas."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} has no whole numbers") from None


@click.command(help=__doc__)
@click.option("--laws", help="Laws and networks, comma-separated.  [default: all laws]")
@click.option(
    "--sizes",
    default="1000",
    show_default=True,
    callback=_numbers,
    help="Numbers of rows of the fits, comma-separated.",
)
@click.option(
    "--seeds", default=1, show_default=True, help="Number of data sets of each law and size."
)
@click.option("--methods", help="Methods, comma-separated.  [default: all]")
@click.option("--python", default=sys.executable, help="Interpreter with the other packages.")
@click.option(
    "--limit", default=600.0, show_default=True, help="Seconds for a method and a number of rows."
)
@click.option("--json", "path", type=click.Path(), help="File of all results, one a line.")
@click.option("--child", hidden=True)
def main(
    laws: str | None,
    sizes: list[int],
    seeds: int,
    methods: str | None,
    python: str,
    limit: float,
    path: str | None,
    child: str | None,
) -> None:
    if child:
        warnings.simplefilter("ignore")
        for result in run_method(child, json.loads(sys.stdin.read())):
            print(json.dumps(result), flush=True)
        return
    names = laws.split(",") if laws else list(LAWS)
    unknown = [name for name in names if name not in (*LAWS, *NETWORKS)]
    if unknown:
        raise click.BadParameter(f"there is no law {unknown[0]!r}: {', '.join(LAWS)}")
    results: list[dict[str, Any]] = []
    for method in methods.split(",") if methods else METHODS:
        if method not in METHODS:
            raise click.BadParameter(f"there is no method {method!r}: {', '.join(METHODS)}")
        suited = [name for name in names if _suits(method, name)]
        if not suited:
            continue
        click.echo(f"{method}, {len(suited)} laws", err=True)
        for rows in sizes:
            cases = [(name, rows, seed) for name in suited for seed in range(seeds)]
            results += measured(python, method, cases, limit)
        failures = {r["failure"] for r in results if r["method"] == method and "failure" in r}
        for failure in sorted(failures):
            click.echo(f"  {failure}", err=True)
    if path:
        Path(path).write_text("".join(json.dumps(result) + "\n" for result in results))
    click.echo("\n".join(tables(results)))


if __name__ == "__main__":
    main()
