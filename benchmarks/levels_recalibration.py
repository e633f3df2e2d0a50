"""Rejections by `audit` of recalibrated predictions with a truth in the family of the method.

Predictions are the truth transformed by the inverse of each method, so that the method can correct
them. The remaining error is the noise of its fit, which the p-values must take into account.
The part ``choice`` compares the log loss of methods and of the chosen one. The part ``improvement``
counts the intervals of the change of the log loss that cover it. The part ``guarantee`` counts the
fits of histogram binning that claim something wrong in any bin, and ``top_labels`` those of the
same for each predicted class.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any

import numpy as np
from laws import BINARY, Law
from measure import Report
from recalibration_choices import choice, improvement
from scipy.special import expit, log_softmax, logit
from scipy.stats import binom
from simulated import SEED, shared, within

ROWS, REPLICATES, LEVEL, HALF = 1000, 99, 0.05, 0.5  # 99 can say 5 % exactly
TEMPERATURE, SHIFT, CLASSES = 1.5, 0.5, 10
METHODS = ("temperature", "platt", "isotonic")
# ---- claims of histogram binning
ERROR, SAMPLE = 0.1, 4_000_000  # level of all claims, and scores that population values come from
SCORES = ("uniform", "Beta(0.2, 0.2)", "rare", "atoms", "tenths")
DECIMALS = (None, 2)  # of the scores
BINS = (5, 10, 40)
TOP_BINS = (2, 5, 20)  # of each predicted class

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
    from calibscale.recalibration.recalibrated_sources import recalibrated

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


# ---------------------------------------------------------------- claims of histogram binning


def guarantee(report: Report, pool: Executor, count: int) -> None:
    """Share of fits that are wrong in any bin, by ε and by exact limits: at most `ERROR`.

    Events have a probability that is no monotone function of the score.
    """
    # Right code exceeds this share in one of a thousand cells.
    most = 100 * float(binom.ppf(0.999, count, ERROR)) / count
    report.note(f"{count} fits to {ROWS} rows; at most {100 * ERROR:g} % may be wrong in any bin")
    # Scores with a decimal have no more digits to round.
    cells = [(name, d) for name in SCORES for d in DECIMALS if d is None or name != "tenths"]
    for name, decimals in cells:
        for bins in BINS:
            parts = shared(pool, count, _wrong_claims, name, decimals, bins)
            title = name if decimals is None else f"{name}, {decimals} decimals"
            _report_claims(report, title, bins, np.concatenate(parts), most)


def _report_claims(report: Report, title: str, bins: int, fits: Any, most: float) -> None:
    """Report and check the claims of fits (count, 5), of which at most `most` % may be wrong."""
    beyond, outside, claims, unclaimed, epsilon = fits.T
    report.row(
        scores=title,
        bins=bins,
        beyond_epsilon=float(100 * beyond.mean()),
        outside_limits=float(100 * outside.mean()),
        claims=float(claims.mean()),
        unclaimed=float(100 * unclaimed.mean()),
        epsilon=float(epsilon.mean()),
    )
    for kind, wrong in (("beyond ε", beyond), ("outside the limits", outside)):
        rate = float(100 * wrong.mean())
        report.check(f"{title}, {bins} bins, {kind}", rate, most, "%", full_only=True)


def _event_probability(scores: Any) -> Any:
    return 0.5 + 0.45 * np.sin(9.0 * scores)


def _scores(name: str, decimals: int | None, rng: np.random.Generator, n: int) -> Any:
    p = BINARY[name](rng, n)
    return p if decimals is None else np.round(p, decimals)


@lru_cache(maxsize=1)
def _population(name: str, decimals: int | None) -> tuple[Any, Any]:
    """Many scores in increasing order, and sums of the probabilities of events up to each."""
    scores = np.sort(_scores(name, decimals, np.random.default_rng((SEED, 6)), SAMPLE))
    return scores, np.append(0.0, np.cumsum(_event_probability(scores)))


def _wrong_claims(name: str, decimals: int | None, bins: int, first: int, last: int) -> Any:
    """Whether a bin is beyond ε and outside its limits, claims, rows without a claim, and ε."""
    from calibscale import from_arrays
    from calibscale.recalibration.histogram_binning import HistogramBinning

    population, totals = _population(name, decimals)
    out = np.empty((last - first, 5))
    for row, number in zip(out, range(first, last), strict=True):
        rng = np.random.default_rng((SEED, 7, number))
        p = _scores(name, decimals, rng, ROWS)
        y = (rng.random(ROWS) < _event_probability(p)).astype(np.int64)
        source = from_arrays(probabilities=p, labels=y, binary=True)
        fit = HistogramBinning(bins, ERROR).fit(source, scheduler="serial")
        # Cuts below and above each bound, between which are the parts of the fit.
        cuts = [np.searchsorted(population, fit.bounds, side) for side in ("left", "right")]
        cuts = np.concatenate([[0], np.column_stack(cuts).ravel(), [SAMPLE]])
        truth = np.diff(totals[cuts]) / np.maximum(np.diff(cuts), 1)
        claimed = fit.claimed
        low, high = fit.limits[claimed].T
        row[0] = (np.abs(truth - fit.values)[claimed] > fit.epsilon).any()
        row[1] = ((truth[claimed] < low) | (truth[claimed] > high)).any()
        row[2:] = claimed.sum(), fit.unclaimed, fit.epsilon
    return out


# ---------------------------------------------------------------- claims of predicted classes


def top_labels(report: Report, pool: Executor, count: int) -> None:
    """Share of fits that are wrong in any bin of any predicted class, by ε and by exact limits.

    Predicted classes are right with a probability that is no monotone function of the confidence
    and differs between the classes.
    """
    most = 100 * float(binom.ppf(0.999, count, ERROR)) / count
    report.note(f"{count} fits to {ROWS} rows; at most {100 * ERROR:g} % may be wrong in any bin")
    for decimals in DECIMALS:
        for bins in TOP_BINS:
            parts = shared(pool, count, _wrong_top_labels, decimals, bins)
            title = "3 classes" if decimals is None else f"3 classes, {decimals} decimals"
            _report_claims(report, title, bins, np.concatenate(parts), most)


def _top_label_rows(rng: np.random.Generator, n: int, decimals: int | None) -> Any:
    """Predictions of three classes, and the probability that the predicted class is right."""
    q = rng.dirichlet([0.6, 0.9, 0.3], n)
    if decimals is not None:
        q = np.round(q, decimals)
        q /= q.sum(axis=1, keepdims=True)
    top, confidence = q.argmax(axis=1), q.max(axis=1)
    return q, top, confidence, _event_probability(confidence + 0.2 * top)


@lru_cache(maxsize=1)
def _top_label_population(decimals: int | None) -> list[tuple[Any, Any]]:
    """Increasing confidences of each predicted class, and sums of probabilities up to each."""
    _, top, confidence, right = _top_label_rows(
        np.random.default_rng((SEED, 8)), SAMPLE // 2, decimals
    )
    order = np.argsort(confidence)
    top, confidence, right = top[order], confidence[order], right[order]
    return [
        (confidence[top == label], np.append(0.0, np.cumsum(right[top == label])))
        for label in range(3)
    ]


def _wrong_top_labels(decimals: int | None, bins: int, first: int, last: int) -> Any:
    """Whether a bin is beyond ε and outside its limits, claims, rows without a claim, and ε."""
    from calibscale import from_arrays
    from calibscale.recalibration.top_label_histogram import TopLabelHistogram

    out = np.zeros((last - first, 5))
    for row, number in zip(out, range(first, last), strict=True):
        rng = np.random.default_rng((SEED, 9, number))
        q, top, _, right = _top_label_rows(rng, ROWS, decimals)
        other = (top + rng.integers(1, 3, ROWS)) % 3
        labels = np.where(rng.random(ROWS) < right, top, other)
        source = from_arrays(probabilities=q, labels=labels)
        fit = TopLabelHistogram(bins, ERROR).fit(source, scheduler="serial")
        for label, (population, totals) in enumerate(_top_label_population(decimals)):
            binned, limits, epsilon = fit.by_class[label], fit.limits[label], fit.epsilons[label]
            if binned is None or limits is None or epsilon is None:
                continue
            cuts = [np.searchsorted(population, binned.bounds, side) for side in ("left", "right")]
            cuts = np.concatenate([[0], np.column_stack(cuts).ravel(), [len(population)]])
            truth = np.diff(totals[cuts]) / np.maximum(np.diff(cuts), 1)
            claimed = binned.claimed
            low, high = limits[claimed].T
            row[0] += (np.abs(truth - binned.values)[claimed] > epsilon).any()
            row[1] += ((truth[claimed] < low) | (truth[claimed] > high)).any()
        row[:2] = row[:2] > 0
        row[2:] = fit.claims, fit.unclaimed, fit.parameters["epsilon"]
    return out


PARTS = {
    "choice": choice,
    "guarantee": guarantee,
    "improvement": improvement,
    "top_labels": top_labels,
}
