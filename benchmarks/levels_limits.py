"""Limits of ece, tce2_debiased and mce by data set, where errors are in few bins and where smooth.

The limits are computed from the sums of bins, as estimators compute them, without a pass over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
from laws import Law
from measure import Report
from scipy.special import expit, logit
from simulated import SEED, shared

LEVEL = 0.95
MOST_BEYOND = 4.0  # percent of data sets with a limit beyond the population's value; nominal 2.5
LEAST_COVERED = 94.0
SAMPLE = 4_000_000  # rows that population values come from
NAMES = ("ece", "tce2_debiased", "mce")


def _bin(p: Any, bins: int) -> Any:
    return np.clip(np.ceil(p * bins).astype(np.int64) - 1, 0, bins - 1)  # (lo, hi]


def _half_zero(rng: np.random.Generator, n: int) -> Any:
    return np.where(rng.random(n) < 0.5, 0.0, rng.random(n))


def _events_at_zero(p: Any) -> Any:
    return np.where(p == 0.0, 0.03, p)


def _at_both_ends(rng: np.random.Generator, n: int) -> Any:
    """Beta(0.8, 1.6) with 30 % exactly 0 and 20 % exactly 1."""
    u = rng.random(n)
    return np.where(u < 0.3, 0.0, np.where(u < 0.5, 1.0, rng.beta(0.8, 1.6, n)))


def _wrong_at_both_ends(p: Any) -> Any:
    return np.where(p == 0.0, 0.02, np.where(p == 1.0, 0.95, p))


def _rare(rng: np.random.Generator, n: int) -> Any:
    return rng.beta(0.5, 30.0, n)


def _wrong_tail(p: Any) -> Any:
    return np.where(p > 0.1, np.clip(p + 0.1, 0.0, 1.0), p)


def _confident(rng: np.random.Generator, n: int) -> Any:
    return 1.0 - rng.beta(0.5, 8.0, n)


def _too_confident(p: Any) -> Any:
    return np.where(p > 0.98, p - 0.04, p)


def _bump(p: Any) -> Any:
    return p + 0.1 * np.exp(-(((p - 0.5) / 0.05) ** 2))


def _wrong_at_seven_tenths(p: Any) -> Any:
    return np.where(np.abs(p - 0.7) < 0.01, 0.55, p)


def _two_of_fifty(p: Any) -> Any:
    wrong = np.isin(_bin(p, 50), (3, 40))
    return np.where(wrong, p + np.where(p < 0.5, 0.2, -0.2), p)


def _wave(p: Any) -> Any:
    return np.clip(p + 0.08 * np.sin(12.0 * np.pi * p), 0.0, 1.0)


def _inner(rng: np.random.Generator, n: int) -> Any:
    return 0.05 + 0.9 * rng.random(n)


def _shift(p: Any) -> Any:
    return np.clip(p - 0.05, 0.0, 1.0)


class _OneBin(NamedTuple):
    """Frequency of one bin, too large by 0.15."""

    bins: int
    wrong: int

    def __call__(self, p: Any) -> Any:
        return np.where(_bin(p, self.bins) == self.wrong, np.clip(p + 0.15, 0.0, 1.0), p)


class _Temperature(NamedTuple):
    """Predictions of log-odds multiplied by a factor."""

    factor: float

    def __call__(self, p: Any) -> Any:
        with np.errstate(divide="ignore"):
            return expit(logit(p) / self.factor)


class Case(NamedTuple):
    """Law of predictions and of frequencies of the event, numbers of rows and bins.

    Without `frequency`, `predictions` is a `Law`, which draws both.
    """

    name: str
    predictions: Any
    frequency: Callable[[Any], Any] | None
    rows: int
    bins: int

    def probabilities(self, rng: np.random.Generator, rows: int) -> tuple[Any, Any]:
        """Predictions, and frequencies of the event given them."""
        if self.frequency is None:
            true, shown = self.predictions.probabilities(rng, rows)
            return shown, true
        p = self.predictions(rng, rows)
        return p, self.frequency(p)

    def sample(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Predictions and events of a data set."""
        p, frequency = self.probabilities(rng, self.rows)
        return p, rng.random(self.rows) < frequency


def _case_of(law: Law) -> Case:
    return Case(str(law), law, None, 2000, 15)


def _uniform(rng: np.random.Generator, n: int) -> Any:
    return rng.random(n)


def _tenths(rng: np.random.Generator, n: int) -> Any:
    return np.round(rng.random(n), 1)


SPARSE = (
    Case("events at 0", _half_zero, _events_at_zero, 1000, 15),
    Case("events at 0", _half_zero, _events_at_zero, 5000, 30),
    Case("events at 0", _half_zero, _events_at_zero, 20_000, 15),
    Case("events at 0", _half_zero, _events_at_zero, 1000, 30),
    Case("one bin", _uniform, _OneBin(15, 7), 1000, 15),
    Case("one bin", _uniform, _OneBin(15, 7), 5000, 15),
    Case("one bin", _uniform, _OneBin(50, 25), 20_000, 50),
    Case("wrong at 0 and 1", _at_both_ends, _wrong_at_both_ends, 2000, 20),
    Case("rare events, wrong tail", _rare, _wrong_tail, 5000, 10),
    Case("two of fifty bins", _uniform, _two_of_fifty, 500, 50),
    Case("eleven scores, one wrong", _tenths, _wrong_at_seven_tenths, 1000, 11),
    Case("bump", _uniform, _bump, 10_000, 40),
    Case("confident, wrong end", _confident, _too_confident, 3000, 15),
)
SMOOTH = (
    Case("temperature 1.6", _uniform, _Temperature(1.6), 500, 15),
    Case("temperature 1.6", _uniform, _Temperature(1.6), 2000, 15),
    Case("temperature 1.3", _uniform, _Temperature(1.3), 10_000, 15),
    Case("temperature 1.6", _uniform, _Temperature(1.6), 5000, 50),
    Case("confident, temperature 1.5", _confident, _Temperature(1.5), 2000, 15),
    Case("shift", _inner, _shift, 2000, 15),
    Case("wave", _uniform, _wave, 5000, 15),
)
CALIBRATED = (
    Case("calibrated, uniform", _uniform, _Temperature(1.0), 1000, 15),
    Case("calibrated, rare events", _rare, _Temperature(1.0), 1000, 15),
    Case("calibrated, 0 and 1", _at_both_ends, _Temperature(1.0), 500, 50),
)


def run(report: Report, pool: Executor, laws: Sequence[Law], count: int) -> None:
    """Judge shares of limits beyond the population's value, and coverage of the pairs."""
    small = report.settings.small
    cases: Sequence[Case] = tuple(_case_of(law) for law in laws)
    if not laws:
        cases = (*SPARSE, *SMOOTH, *CALIBRATED)
        weighted(report, pool, count)
    for case in cases[:2] if small else cases:
        truth = population(case, 50_000 if small else SAMPLE)
        values = np.concatenate(shared(pool, count, limits, case))
        for k, name in enumerate(NAMES):
            observed, low, high = values[:, k].T
            above = float(100 * np.mean(low > truth[k] + 1e-9))
            below = float(100 * np.mean(high < truth[k] - 1e-9))
            title = f"{name}, {case.name}, n = {case.rows}, {case.bins} bins"
            report.row(
                what="limits",
                law=case.name,
                n=case.rows,
                bins=case.bins,
                estimator=name,
                above=above,
                below=below,
                truth=float(truth[k]),
                mean=float(observed.mean()),
                low=float(low.mean()),
                high=float(high.mean()),
            )
            for side, beyond in (("lower limits above", above), ("upper limits below", below)):
                report.check(f"{title}, {side}", beyond, MOST_BEYOND, "%", full_only=True)
            covered = 100.0 - above - below
            question = f"{title}, covered"
            report.check(question, covered, LEAST_COVERED, "%", at_least=True, full_only=True)


def population(case: Case, rows: int) -> tuple[float, float, float]:
    """Mean of |gap| and gap² over bins, and the largest |gap|, of very many rows."""
    counts, gaps = np.zeros((2, case.bins))
    rng = np.random.default_rng((SEED, 5))
    for start in range(0, rows, 500_000):
        p, frequency = case.probabilities(rng, min(500_000, rows - start))
        b = _bin(p, case.bins)
        counts += np.bincount(b, minlength=case.bins)
        gaps += np.bincount(b, p - frequency, case.bins)
    full = counts > 0
    share, gap = counts[full] / rows, np.abs(gaps[full] / counts[full])
    return float(share @ gap), float(share @ gap**2), float(gap.max())


def limits(case: Case, first: int, last: int) -> Any:
    """Values and limits (data set, estimator, 3)."""
    from calibscale.intervals.gap_limits import (
        BinGaps,
        bin_limits,
        debiased_squares,
        largest_gap_limits,
    )

    tail = (1.0 - LEVEL) / 2.0
    out = np.empty((last - first, len(NAMES), 3))
    for row, number in zip(out, range(first, last), strict=True):
        rng = np.random.default_rng((SEED, 6, case.rows, case.bins, number))
        p, y = case.sample(rng)
        b = _bin(p, case.bins)
        counts = np.bincount(b, minlength=case.bins).astype(np.float64)
        full = counts > 0
        sums = np.bincount(b, p, case.bins), np.bincount(b, p - y, case.bins)
        mean_p, gap = (total[full] / counts[full] for total in sums)
        bins = BinGaps(counts[full] / case.rows, counts[full], mean_p, gap)
        of_mean = bin_limits(bins, 1, tail)
        of_squares = bin_limits(bins, 2, tail, at_least_mean=True)
        largest = largest_gap_limits(bins, tail)
        row[0] = bins.share @ np.abs(gap), of_mean.low, of_mean.mean_at_high
        row[1] = bins.share @ debiased_squares(bins)(gap), of_squares.low, of_squares.high
        row[2] = np.abs(gap).max(), largest.low, largest.high
    return out


# ---------------------------------------------------------------- weights that follow confidence

WEIGHTS = ("1/(1 − c + 0.001)", "1/(1 − c + 0.01)", "c/(1 − c + 0.003)", "1/√(c(1 − c))", "c⁴")
WEIGHTED_ROWS = 3000
LONGEST = 20.0  # percent by which the median length may differ from the linearised one


def weighted(report: Report, pool: Executor, count: int) -> None:
    """Judge the limits of the mean gap of calibrated data beside the linearised interval."""
    for weights in WEIGHTS:
        ratios, covered, linearised = np.concatenate(
            shared(pool, count, weighted_limits, weights)
        ).T
        longer, percent = 100.0 * (np.median(ratios) - 1.0), 100.0 * covered.mean()
        report.row(
            what="weights",
            weights=weights,
            n=WEIGHTED_ROWS,
            longer=float(longer),
            mean_longer=float(100.0 * (ratios.mean() - 1.0)),
            covered=float(percent),
            linearised=float(100.0 * linearised.mean()),
        )
        title = f"confidence_gap, weights {weights}"
        report.check(f"{title}, longer", float(abs(longer)), LONGEST, "%", full_only=True)
        report.check(f"{title}, covered", float(percent), 93.0, "%", at_least=True, full_only=True)


def weighted_limits(weights: str, first: int, last: int) -> Any:
    """Length in linearised lengths, and whether both intervals cover 0 (data set, 3)."""
    from calibscale.intervals.excess import excess_limits

    out = np.empty((last - first, 3))
    for row, number in zip(out, range(first, last), strict=True):
        rng = np.random.default_rng((SEED, 7, WEIGHTS.index(weights), number))
        p = rng.random(WEIGHTED_ROWS)
        c = np.maximum(p, 1.0 - p)
        w = {
            WEIGHTS[0]: 1.0 / (1.0 - c + 0.001),
            WEIGHTS[1]: 1.0 / (1.0 - c + 0.01),
            WEIGHTS[2]: c / (1.0 - c + 0.003),
            WEIGHTS[3]: 1.0 / np.sqrt(c * (1.0 - c)),
            WEIGHTS[4]: c**4,
        }[weights]
        w /= w.sum()
        y = rng.random(WEIGHTED_ROWS) < p
        a, b = w * p, w * (1.0 - p)
        terms = np.stack([a, b, a * a, a * b, b * b])
        low, high = excess_limits(terms @ ~y, terms @ y, (1.0 - LEVEL) / 2.0)
        excess = w @ (y - p)
        half = 1.959964 * np.sqrt(np.sum((w * (y - p - excess)) ** 2))
        row[:] = (high - low) / (2.0 * half), low <= 0.0 <= high, abs(excess) <= half
    return out
