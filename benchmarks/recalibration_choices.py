"""Log loss of the recalibration that `recalibrate` chooses, and of the improvement that it states.

Both are parts of the topic ``recalibration`` of `levels`.  Log-odds or logits are drawn, and the
true ones are a function of them, so that expected losses are known without noise of labels.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from measure import Report
from scipy.special import expit, log_softmax, ndtri, rel_entr
from scipy.stats import binom
from simulated import SEED, shared, within

SPREAD = 1.7  # standard deviation of log-odds
NEW = 40_000  # new rows, of which the expected log loss is compared
SIZES = (500, 2000, 5000, 50_000)
FULL = 2000  # rows up to which there are as many data sets as asked for
NEAR = 0.002  # nats, by which a choice may be above the best method and above no recalibration
NAMED = ("identity", "temperature", "platt", "beta", "spline", "isotonic", "histogram", "auto")
NAMED_OF_MORE = ("identity", "temperature", "vector", "matrix", "auto")
MOST_OF_MATRIX = 20  # classes, as in the choice


class Curve(NamedTuple):
    """True log-odds or logits as a function of the stated ones, of a number of classes."""

    true: Callable[[Any], Any]
    classes: int = 2
    middle: float = 0.0  # of the stated log-odds

    def drawn(self, rng: np.random.Generator, rows: int) -> Any:
        """Stated log-odds (rows,), or logits (rows, K) with one class above the others."""
        if self.classes == 2:
            return self.middle + SPREAD * rng.standard_normal(rows)
        z = rng.standard_normal((rows, self.classes))
        z[np.arange(rows), rng.integers(0, self.classes, rows)] += 4.0
        return z

    def probabilities(self, z: Any) -> Any:
        """True probabilities of the classes (rows, K)."""
        if self.classes == 2:
            p = expit(self.true(z))
            return np.column_stack([1.0 - p, p])
        return np.exp(log_softmax(self.true(z), axis=1))

    def labels(self, z: Any, rng: np.random.Generator) -> Any:
        p = self.probabilities(z)
        if self.classes == 2:
            return (rng.random(len(z)) < p[:, 1]).astype(np.int64)
        last = self.classes - 1
        return (p.cumsum(axis=1) < rng.random((len(z), 1))).sum(axis=1).clip(0, last)

    def source(self, z: Any, labels: Any) -> Any:
        from calibscale import from_arrays

        return from_arrays(logits=z, labels=labels, binary=self.classes == 2)


def _by_class(z: Any) -> Any:
    """Slopes and intercepts that differ between classes."""
    classes = z.shape[1]
    return 0.6 * np.linspace(0.7, 1.3, classes) * z + np.linspace(-0.6, 0.6, classes)


CURVES = {
    "calibrated": Curve(lambda z: z),
    "temperature": Curve(lambda z: 0.6 * z),
    "platt": Curve(lambda z: 0.7 * z - 0.4),
    "tanh": Curve(lambda z: 0.1 + 0.5 * z + 0.6 * np.tanh(2.0 * z)),
    "two slopes": Curve(lambda z: np.where(z > 0, 0.4, 1.1) * z),
    "wave": Curve(lambda z: z + 0.4 * np.sin(2.0 * z)),
    "step": Curve(lambda z: np.where(z > 0, 1.0, -1.2)),
    "underconfident": Curve(lambda z: 1.5 * z),
    # Within the family of beta calibration: a·log p − b·log(1 − p).
    "beta": Curve(lambda z: 0.4 * np.logaddexp(0.0, z) - 1.3 * np.logaddexp(0.0, -z)),
    "rare events": Curve(lambda z: 0.8 * z - 0.5, middle=-4.0),
    "10 classes, calibrated": Curve(lambda z: z, 10),
    "10 classes, temperature": Curve(lambda z: 0.5 * z, 10),
    "10 classes, by class": Curve(_by_class, 10),
    "100 classes, temperature": Curve(lambda z: 0.5 * z, 100),
}
CALIBRATED = ("calibrated", "10 classes, calibrated")


# ---------------------------------------------------------------- the choice


def choice(report: Report, pool: Executor, count: int) -> None:
    """Expected log loss of new rows above that of the true probabilities, in units of 1e-4.

    The choice is judged by cell, a law and a number of rows: `regret` is its mean loss above the
    smallest mean of any one method, with a standard error.  Set by set, `near_best` is the
    percentage of data sets in which the choice is within `NEAR` of the best method for these rows,
    and `above_identity` the largest loss above no recalibration.  No rule knows the best method for
    a few hundred rows, so that these two are printed and not checked.  `kept` says how often the
    predictions were kept.
    """
    cells: list[_Cell] = []
    for name, curve in CURVES.items():
        methods = _methods(curve)
        for rows in SIZES:
            # Losses of larger samples vary less.
            repeats = max(2, min(count, count * FULL // rows))
            results = np.concatenate(shared(pool, repeats, _excess_losses, name, rows))
            losses, is_kept = results[:, :-1], results[:, -1]
            cell = _Cell.of(name, rows, losses, is_kept)
            cells.append(cell)
            means = {
                method: float(1e4 * mean) if np.isfinite(mean) else None
                for method, mean in zip(methods, losses.mean(axis=0), strict=True)
            }
            report.row(
                curve=name,
                rows=rows,
                fits=repeats,
                **means,
                regret=1e4 * cell.regret,
                error_of_regret=1e4 * cell.error,
                mean_above_identity=1e4 * cell.mean_above,
                near_best=cell.near_best,
                above_identity=1e4 * cell.largest_above,
                kept=cell.kept,
            )
    for rows in SIZES:
        of_size = [cell for cell in cells if cell.rows == rows]
        report.row(
            rows=rows,
            cells_near_best=float(100 * np.mean([cell.regret <= NEAR for cell in of_size])),
            regret=1e4 * max(cell.regret for cell in of_size),
            mean_above_identity=1e4 * max(cell.mean_above for cell in of_size),
            near_best=float(np.mean([cell.near_best for cell in of_size])),
            above_identity=1e4 * max(cell.largest_above for cell in of_size),
        )
    title = f"cells of {len(cells)} with a mean within {NEAR} of the best method"
    share = float(100 * np.mean([cell.regret <= NEAR for cell in cells]))
    report.check(title, share, 90.0, "%", at_least=True, full_only=True)
    title = "largest mean log loss of a cell above no recalibration"
    report.check(title, max(cell.mean_above for cell in cells), NEAR, "nats", full_only=True)
    for name in CALIBRATED:
        title = f"{name}, predictions kept"
        kept = min(cell.kept for cell in cells if cell.law == name)
        report.check(title, kept, 80.0, "%", at_least=True, full_only=True)


class _Cell(NamedTuple):
    """Losses of the choice for data sets of one law and one number of rows."""

    law: str
    rows: int
    regret: float  # mean above the smallest mean of any one method
    error: float  # standard error of that mean
    mean_above: float  # mean above no recalibration
    near_best: float  # percentage of data sets within NEAR of their best method
    largest_above: float  # of any data set, above no recalibration
    kept: float  # percentage of data sets with the predictions as they are

    @classmethod
    def of(cls, law: str, rows: int, losses: Any, is_kept: Any) -> _Cell:
        """Cell from the losses (sets, methods), the first of no recalibration, the last chosen."""
        chosen, named = losses[:, -1], losses[:, :-1]
        above = chosen - losses[:, 0]
        above_best = chosen - named[:, named.mean(axis=0).argmin()]
        return cls(
            law,
            rows,
            regret=float(above_best.mean()),
            error=float(above_best.std(ddof=1) / np.sqrt(len(above_best))),
            mean_above=float(above.mean()),
            near_best=float(100 * np.mean(chosen <= named.min(axis=1) + NEAR)),
            largest_above=float(above.max()),
            kept=float(100 * is_kept.mean()),
        )


def _methods(curve: Curve) -> tuple[str, ...]:
    if curve.classes == 2:
        return NAMED
    if curve.classes <= MOST_OF_MATRIX:
        return NAMED_OF_MORE
    return tuple(name for name in NAMED_OF_MORE if name != "matrix")


def _excess_losses(name: str, rows: int, first: int, last: int) -> Any:
    """Kullback–Leibler divergences from the true probabilities by method, and whether none is used.

    The last method is the choice.
    """
    from calibscale import OptionError, recalibrate

    curve = CURVES[name]
    new = curve.drawn(np.random.default_rng((SEED, 8)), NEW)
    truth = curve.probabilities(new)
    # Both classes of two, because 1 − p loses the digits of a small probability.
    columns = np.column_stack([np.zeros(NEW), new]) if curve.classes == 2 else new
    methods = _methods(curve)
    out = np.empty((last - first, len(methods) + 1))
    for row, number in zip(out, range(first, last), strict=True):
        rng = np.random.default_rng((SEED, 9, rows, number))
        z = curve.drawn(rng, rows)
        source = curve.source(z, curve.labels(z, rng))
        for i, method in enumerate(methods):
            try:
                fitted = recalibrate(source, method, validate=False, scheduler="serial")
            except OptionError:  # rows that do not determine the fit
                row[i] = np.inf
                continue
            row[i] = rel_entr(truth, fitted.transform(logits=columns)).sum(axis=1).mean()
        row[-1] = fitted.method == "identity"
    return out


# ---------------------------------------------------------------- the improvement

ROWS = 600
POINTS = 100_000  # quantiles of the log-odds, or drawn rows of more classes
LAWS = (
    "calibrated",
    "temperature",
    "two slopes",
    "wave",
    "rare events",
    "10 classes, temperature",
)
# Folds of the rows of the fit, each judged by a fit to the others.
FOLDS = {"cross-fitted": 2, "cross-fitted by fifths": 5}
JUDGED = (*FOLDS, "chosen", "other rows")


def improvement(report: Report, pool: Executor, count: int) -> None:
    """How often the interval of the change of the log loss covers the change for new rows.

    The fit is Platt scaling, or a temperature of more classes, or the choice where it recalibrates.
    Each half or fifth of the rows judges a fit to the others, or as many other rows do.
    """
    # Coverages of 93 and 97 % are exceeded in one of a hundred simulations.
    low, high = (
        float(100 * binom.ppf(q, count, p) / count) for q, p in ((0.01, 0.93), (0.99, 0.97))
    )
    report.note(
        f"{count} data sets of {ROWS} rows; coverages from 93 to 97 % are within {low:.1f} and "
        f"{high:.1f} %"
    )
    for name in LAWS:
        for judged in JUDGED:
            parts = shared(pool, count, _changes, name, judged)
            change, lower, upper, truth = np.concatenate(parts).T
            used = np.isfinite(lower)
            if not used.any():
                continue
            covered = float(100 * np.mean((lower <= truth)[used] & (truth <= upper)[used]))
            report.row(
                law=name,
                judged=judged,
                intervals=int(used.sum()),
                covered=covered,
                too_low=float(100 * np.mean((upper < truth)[used])),
                too_high=float(100 * np.mean((lower > truth)[used])),
                change=float(1e4 * change[used].mean()),
                truth=float(1e4 * truth[used].mean()),
            )
            # The choice sees the rows that judge it, which makes its improvement too good.  Fits to
            # four fifths share most rows, which makes intervals too short.
            if judged not in ("chosen", "cross-fitted by fifths"):
                within(report, f"{name}, {judged}, covered", covered, low, high, full_only=True)


def _changes(name: str, judged: str, first: int, last: int) -> Any:
    """Change of the log loss, its limits, and the expected change for new rows, by data set."""
    from calibscale.recalibration.choice import chosen_method
    from calibscale.recalibration.improvements import (
        cross_fitted,
        improvement_by_cross_fits,
        improvement_on,
    )
    from calibscale.recalibration.method_registry import method_of
    from calibscale.results.audit_results import Improvement
    from calibscale.session import Session

    curve = CURVES[name]
    out = np.full((last - first, 4), np.nan)
    for row, number in zip(out, range(first, last), strict=True):
        rng = np.random.default_rng((SEED, 10, number))
        z = curve.drawn(rng, ROWS)
        source = curve.source(z, curve.labels(z, rng))
        method = method_of("platt" if curve.classes == 2 else "temperature")
        with Session.open(source, scheduler="serial") as session:
            if judged == "other rows":
                other = curve.drawn(rng, ROWS)
                judging = curve.source(other, curve.labels(other, rng))
                fits = [method.fit(session)]
                stated = improvement_on(session.on(judging), fits[0])
                shares = [1.0]
            else:
                if judged == "chosen":
                    method = chosen_method(session).method
                if method.name == "identity":
                    continue
                after = cross_fitted(session, method, FOLDS.get(judged, 2))
                fits = list(after.fits)
                shares = _shares_of_folds(len(fits))
                stated = improvement_by_cross_fits(session, fits[0], after)
        if not isinstance(stated, Improvement) or stated.changes[0].low is None:
            continue
        nll = stated.changes[0]
        truth = sum(w * _expected_change(name, fit) for w, fit in zip(shares, fits, strict=True))
        row[:] = nll.change, nll.low, nll.high, truth
    return out


@lru_cache(maxsize=2)
def _shares_of_folds(count: int) -> list[float]:
    """Shares of the rows that the cross-fits judge."""
    from calibscale.recalibration.improvements import folds_of

    return [float(fold.holds(np.arange(ROWS)).mean()) for fold in folds_of(count)]


@lru_cache(maxsize=1)
def _population(name: str) -> tuple[Any, Any]:
    """Source of rows that stand for all, and their true probabilities."""
    curve = CURVES[name]
    if curve.classes == 2:
        z = curve.middle + SPREAD * ndtri((np.arange(POINTS) + 0.5) / POINTS)
    else:
        z = curve.drawn(np.random.default_rng((SEED, 11)), POINTS)
    return curve.source(z, np.zeros(POINTS, np.int64)), curve.probabilities(z)


def _expected_change(name: str, fit: Any) -> float:
    """Expected change of the log loss by a fit."""
    from calibscale.recalibration.recalibrated_sources import recalibrated

    source, truth = _population(name)
    z = np.asarray(source.read(0, POINTS).values, np.float64)
    if CURVES[name].classes == 2:
        z = z.reshape(POINTS, -1)
        log_odds = z[:, -1] - (z[:, 0] if z.shape[1] == 2 else 0.0)
        z = np.column_stack([np.zeros(POINTS), log_odds])
    before = log_softmax(z, axis=1)
    after = np.log(recalibrated(source, fit).read(0, POINTS).values)
    return float(np.sum(truth * (before - after), axis=1).mean())
