"""Levels, power and interval coverage for means, quantiles, expectiles, events, intervals and sets.

Predictions are calibrated by the laws of this module.  Laws of the command line are not used.
Tests are those of `cs.calibration_test` by default, and intervals those of the default estimators.
`PARTS` can be run alone: ``python benchmarks/levels.py functionals --part exact_levels``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from scipy import integrate, optimize, special, stats
from scipy.stats import binom
from simulated import SEED, shared, within

import calibscale as cs

ALPHA, REPLICATES = 0.05, 199
COVERAGE, LEVEL, EXPECTILE, THRESHOLD = 0.9, 0.9, 0.8, 1.0
EXACT_SETS = 10  # times the sets of an asymptotic cell, for nulls without an approximation
TEST_ROWS = (100, 500)
INTERVAL_ROWS = (300, 10_000)
ROWS_OF_TRUTH = 10_000_000
EXCESS, BANDWIDTH = 1.2, 0.5  # factor of wrong predictions, and bandwidth of their kernel error
NODES = 2000  # of the integral that the kernel error is
# Squared errors of these laws have no variance, so that no interval of their mean is known to hold.
NO_VARIANCE = ("Student t(3)", "Pareto(3)")
SQUARED = ("squared_error", "expectile_loss")
# Exact levels, with few replicates so that many data sets are cheap.
EXACT_ROWS, EXACT_REPLICATES = 200, 99


# ---------------------------------------------------------------- laws of outcomes


@dataclass(frozen=True)
class OutcomeLaw:
    """Law of outcomes given their mean x: x·e, or x + e with `added` errors.

    `error` is the continuous law of e, apart from the share `zeros` of outcomes that are 0.
    """

    error: Any
    zeros: float = 0.0
    added: bool = False

    def means(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.normal(size=n) if self.added else rng.lognormal(0.0, 0.5, n)

    def mean_quantiles(self, shares: np.ndarray) -> np.ndarray:
        normal = special.ndtri(shares)
        return normal if self.added else np.exp(0.5 * normal)

    def outcomes(self, rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
        e = self.error.rvs(size=len(x), random_state=rng)
        if self.zeros:
            e = np.where(rng.random(len(x)) < self.zeros, 0.0, e / (1.0 - self.zeros))
        return x + e if self.added else x * e

    def located(self, x: np.ndarray, number: float) -> np.ndarray:
        """Functional of the outcomes whose functional for e is a number."""
        return x + number if self.added else x * number

    def exceeding(self, x: np.ndarray, threshold: Any) -> np.ndarray:
        """P(outcome > threshold)."""
        e = threshold - x if self.added else threshold / x
        return (1.0 - self.zeros) * self.error.sf(e * (1.0 - self.zeros))

    def quantile(self, level: float) -> float:
        """Quantile of e, above the zeros."""
        return float(self.error.ppf((level - self.zeros) / (1.0 - self.zeros)) / (1.0 - self.zeros))

    def expected_above(self, limit: float) -> float:
        """E max(e − limit, 0), the integral of P(e > t) above the limit."""
        tail, _ = integrate.quad(self.error.sf, limit * (1.0 - self.zeros), np.inf)
        return float(tail)

    @cache  # noqa: B019  (laws are constants of this module)
    def expectile(self, level: float) -> float:
        """Root of level·E max(e − t, 0) − (1 − level)·E max(t − e, 0)."""
        mean = 0.0 if self.added else 1.0

        def imbalance(t: float) -> float:
            above = self.expected_above(t)
            return level * above - (1.0 - level) * (above - mean + t)

        return float(optimize.brentq(imbalance, mean - 5.0, mean + 20.0))


_SIGMA = 1.0  # of logarithms of the outcomes, whose skewness is 6.2
LAWS: dict[str, OutcomeLaw] = {
    "gamma": OutcomeLaw(stats.gamma(2.0, scale=0.5)),
    "lognormal": OutcomeLaw(stats.lognorm(_SIGMA, scale=np.exp(-0.5 * _SIGMA**2))),
    "exponential": OutcomeLaw(stats.expon()),
    "normal": OutcomeLaw(stats.norm(), added=True),
    "Student t(3)": OutcomeLaw(stats.t(3), added=True),
    "Pareto(3)": OutcomeLaw(stats.pareto(3.0, scale=2.0 / 3.0)),
    "zero-inflated": OutcomeLaw(stats.gamma(2.0, scale=0.5), zeros=0.7),
}
POISSON = "Poisson, exposure"


def _counts(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rates, exposures, and counts divided by the exposure."""
    rate, exposure = 0.3 * rng.lognormal(0.0, 0.5, n), rng.uniform(0.2, 2.0, n)
    return rate, exposure, rng.poisson(rate * exposure) / exposure


def _expectile_of_counts(mean: np.ndarray, level: float) -> np.ndarray:
    """Expectiles of Poisson counts by bisection, as E max(N − t, 0) has a closed form."""
    low, high = np.zeros_like(mean), mean + 20.0 * np.sqrt(mean) + 20.0
    for _ in range(60):
        t = 0.5 * (low + high)
        k = np.floor(t)
        # Σ_{n>k} n·P(n) = mean·P(N ≥ k), and P(N ≥ k) = pdtrc(k − 1, mean) for k ≥ 1.
        at_least = np.where(k >= 1, special.pdtrc(np.maximum(k - 1.0, 0.0), mean), 1.0)
        above = mean * at_least - t * special.pdtrc(k, mean)
        rises = level * above > (1.0 - level) * (above - mean + t)
        low, high = np.where(rises, t, low), np.where(rises, high, t)
    return 0.5 * (low + high)


# ---------------------------------------------------------------- predictions

CONTINUOUS = tuple(name for name, law in LAWS.items() if not law.zeros)
KINDS: dict[str, tuple[str, ...]] = {
    "mean": (*LAWS, POISSON),
    "expectile": (*LAWS, POISSON),
    "quantile": CONTINUOUS,
    "exceedance": CONTINUOUS,
    "interval": CONTINUOUS,
    "set": ("gamma",),  # outcomes are events, whatever the law
}
ASYMPTOTIC = ("mean", "expectile")
# Errors that are 0 for calibrated predictions, and missed on one side only.
KERNEL_ERRORS = ("kce", "klce", "jkce", "jkce_biased", "ckce", "ckce_centred", "cmmd")
# Every estimator with an interval, and laws of outcomes of six shapes.
SIX_LAWS = ("gamma", "lognormal", "zero-inflated", "normal", POISSON, "Student t(3)")
INTERVALS: dict[str, tuple[str, ...]] = {
    "mean": ("bias", "squared_error", "deviance", *KERNEL_ERRORS),
    "expectile": ("bias", "expectile_loss", "kce"),
    "quantile": ("bias", "pinball_loss", "kce", "klce"),
    "exceedance": ("bias", "squared_error", "kce", "klce"),
    "set": ("coverage", "bias", "size_stratified_coverage", "kce", "klce"),
    "interval": ("coverage", "bias", "interval_score", "size_stratified_coverage"),
}


def drawn(
    rng: np.random.Generator, kind: str, law_name: str, n: int, factor: float = 1.0, **columns: Any
) -> cs.ArraySource:
    """Source of `n` rows, with predictions times a factor (plus its logarithm for added errors)."""
    if law_name == POISSON:
        rate, exposure, y = _counts(rng, n)
        x = rate
        if kind == "expectile":
            x = _expectile_of_counts(rate * exposure, EXPECTILE) / exposure
        forecast = "mean" if kind == "mean" else f"expectile(level={EXPECTILE})"
        return cs.from_arrays(
            predictions=factor * x, forecast=forecast, labels=y, weights=exposure, **columns
        )
    if kind == "set":
        sizes = rng.integers(1, 9, n)
        covered = (rng.random(n) < COVERAGE).astype(float)
        return cs.from_arrays(
            predictions=sizes, forecast=f"set(coverage={COVERAGE})", labels=covered, **columns
        )
    law = LAWS[law_name]
    mean = law.means(rng, n)
    y = law.outcomes(rng, mean)
    if kind == "interval":
        ends = [law.located(mean, law.quantile(0.5 + s * COVERAGE / 2.0)) for s in (-1, 1)]
        return cs.from_arrays(intervals=tuple(ends), coverage=COVERAGE, labels=y, **columns)
    if kind == "exceedance":
        p = law.exceeding(mean, THRESHOLD)
        forecast = f"exceedance(threshold={THRESHOLD})"
        return cs.from_arrays(predictions=p, forecast=forecast, labels=y, **columns)
    forecast, number = {
        "mean": lambda: ("mean", 0.0 if law.added else 1.0),
        "expectile": lambda: (f"expectile(level={EXPECTILE})", law.expectile(EXPECTILE)),
        "quantile": lambda: (f"quantile(level={LEVEL})", law.quantile(LEVEL)),
    }[kind]()
    x = law.located(mean, number)
    shown = x + np.log(factor) if law.added else factor * x
    return cs.from_arrays(predictions=shown, forecast=forecast, labels=y, **columns)


# ---------------------------------------------------------------- levels


def levels(report: Report, pool: Executor, count: int) -> None:
    """Shares of calibrated data sets that the default test rejects at 5 %, by every kind."""
    default_exact_levels(report, pool, EXACT_SETS * count)
    asymptotic_levels(report, pool, count)


def default_exact_levels(report: Report, pool: Executor, count: int) -> None:
    """Shares that the default test rejects for kinds with an exact null, in a binomial band."""
    cells = [(kind, n) for kind in KINDS if kind not in ASYMPTOTIC for n in _test_rows(report)]
    tail = 0.01 / len(cells) / 2.0  # Bonferroni, two-sided
    low, high = (100 * binom.ppf(q, count, ALPHA) / count for q in (tail, 1.0 - tail))
    for kind, n in cells:
        _level(report, pool, count, (kind, "gamma", n), low, high)


def asymptotic_levels(report: Report, pool: Executor, count: int) -> None:
    """Shares that the default test rejects for kinds with an asymptotic null, for every law."""
    for n in _test_rows(report):
        low, high = (4.0, 6.5) if n >= 500 else (3.0, 8.0)
        for kind in ASYMPTOTIC:
            for law in KINDS[kind]:
                _level(report, pool, count, (kind, law, n), low, high)


def _test_rows(report: Report) -> tuple[int, ...]:
    return TEST_ROWS[:1] if report.settings.small else TEST_ROWS


def _level(
    report: Report,
    pool: Executor,
    count: int,
    cell: tuple[str, str, int],
    low: float,
    high: float,
) -> None:
    """Row of a kind, a law and a number of rows, whose level must lie within limits in percent."""
    kind, law, n = cell
    rejected = _counted(pool, count, _rejections, kind, law, n, REPLICATES)
    report.row(what="level", kind=kind, law=law, n=n, sets=count, **_percent(rejected, count))
    title = f"{kind}, {law}, n = {n}, rejected"
    within(report, title, 100 * rejected["joint"] / count, low, high, full_only=True)


def _counted(pool: Executor, sets: int, work: Callable[..., Any], *arguments: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in shared(pool, sets, work, *arguments):
        total.update(counts)
    return total


def _percent(counts: Counter[str], sets: int) -> dict[str, float]:
    return {name: round(100 * number / sets, 2) for name, number in counts.items()}


_TIES_AT_RANDOM = ", ties at random"


def exact_levels(report: Report, pool: Executor, count: int) -> None:
    """Shares of calibrated data sets that exact tests reject, with one band of all cells.

    Counts of outcomes that are events have ties, which a p-value counts against a rejection.  The
    single statistics may therefore reject less often than 5 %, and never more often.  With ties
    broken at random, they must reject in 5 %, which shows that ties explain all of the difference.
    """
    cells = {}
    for kind in (kind for kind in KINDS if kind not in ASYMPTOTIC):
        rejected = _counted(pool, count, _rejections, kind, "gamma", EXACT_ROWS, EXACT_REPLICATES)
        shares = _percent(rejected, count)
        report.row(what="exact level", kind=kind, n=EXACT_ROWS, sets=count, **shares)
        cells |= {(kind, name): value for name, value in shares.items()}
    cells = {cell: value for cell, value in cells.items() if cell[1] not in ("flagged", "refused")}
    tail = 0.01 / len(cells) / 2.0  # Bonferroni, two-sided
    low, high = (100 * binom.ppf(q, count, ALPHA) / count for q in (tail, 1.0 - tail))
    report.note(f"99 % band of {len(cells)} cells: {low:.2f} to {high:.2f} %")
    for (kind, name), value in cells.items():
        title = f"{kind}, {name}, n = {EXACT_ROWS}, rejected"
        if name == "joint" or name.endswith(_TIES_AT_RANDOM):
            within(report, title, value, low, high, full_only=True)
        else:
            report.check(title, value, high, "%", full_only=True)


def _rejections(
    kind: str, law: str, n: int, replicates: int, first: int, last: int
) -> Counter[str]:
    """Data sets first … last − 1 that the joint test rejects, that each member does, and flags."""
    rejected: Counter[str] = Counter(joint=0, flagged=0)
    for number in range(first, last):
        rng = np.random.default_rng([SEED, number, n, *map(ord, kind + law)])
        result = _count(rejected, drawn(rng, kind, law, n), number, replicates)
        for test in result.results:
            if test.p_value is not None:
                name = test.statistic + _TIES_AT_RANDOM
                rejected[name] += _p_value_with_random_ties(test, rng.random()) <= ALPHA
    return rejected


def _p_value_with_random_ties(test: Any, u: float) -> float:
    """P-value that is uniform under an exact null, with u uniform: ties have a random order."""
    values = np.asarray(test.null_values)
    greater, equal = np.sum(values > test.value), np.sum(values == test.value)
    return float((greater + u * (equal + 1)) / (len(values) + 1))


def _count(
    rejected: Counter[str],
    source: cs.ArraySource,
    seed: int,
    replicates: int = REPLICATES,
    **options: Any,
) -> Any:
    """Test a data set, count its rejections, and return the result."""
    result = cs.calibration_test(
        source, n_replicates=replicates, seed=seed, scheduler="serial", **options
    )
    judged = result.judgement is not None and result.judgement.p_value is not None
    rejected["joint"] += judged and result.judgement.p_value <= ALPHA
    rejected["refused"] += not judged
    notes = [note for test in result.results for note in test.details.get("notes", ())]
    flagged = any(note.startswith("a few large residuals") for note in notes)
    rejected["flagged"] += flagged
    for test in result.results:
        rejected[test.statistic] += test.p_value is not None and test.p_value <= ALPHA
    return result


# ---------------------------------------------------------------- power

WRONG = ("one of five groups +10 %", "one of five groups −10 %", "a tenth covered by 80 %")


def power(report: Report, pool: Executor, count: int) -> None:
    """Shares of wrong data sets that the default test with the covariate rejects."""
    sets = max(1, count // 4)
    for name in WRONG:
        rejected = _counted(pool, sets, _powers, name)
        shares = _percent(rejected, sets)
        report.row(what="power", kind=name, law="gamma", n=5000, sets=sets, **shares)
        percent = 100 * rejected["joint"] / sets
        report.check(f"{name}, rejected", percent, 80, "%", at_least=True, full_only=True)


def _powers(name: str, first: int, last: int) -> Counter[str]:
    rejected: Counter[str] = Counter(joint=0)
    law = LAWS["gamma"]
    for number in range(first, last):
        rng = np.random.default_rng([SEED, number, *map(ord, name)])
        mean = law.means(rng, 5000)
        y = law.outcomes(rng, mean)
        if name.startswith("one"):
            group = rng.integers(0, 5, 5000)
            shown = np.where(group == 2, mean * (1.1 if "+" in name else 0.9), mean)
            source = cs.from_arrays(
                predictions=shown,
                forecast="mean",
                labels=y,
                covariates=group[:, None],
                covariate_names=["group"],
            )
            _count(rejected, source, number, covariates="group")
            continue
        x = rng.random(5000)
        covered = np.where((x > 0.6) & (x < 0.7), 0.8, COVERAGE)
        ends = [mean * law.error.ppf(0.5 + sign * covered / 2.0) for sign in (-1, 1)]
        source = cs.from_arrays(
            intervals=tuple(ends),
            coverage=COVERAGE,
            labels=y,
            covariates=x[:, None],
            covariate_names=["x"],
        )
        _count(rejected, source, number, covariates="x")
    return rejected


# ---------------------------------------------------------------- coverage of intervals


def coverage(report: Report, pool: Executor, count: int) -> None:
    """Shares of 95 % intervals of the default estimators that cover the population's value."""
    sizes = INTERVAL_ROWS[:1] if report.settings.small else INTERVAL_ROWS
    _coverage(
        report, pool, count, [(k, law, n, None) for k in KINDS for law in KINDS[k] for n in sizes]
    )


def every_interval(report: Report, pool: Executor, count: int) -> None:
    """Shares of 95 % intervals of all estimators at the largest n that cover the population's."""
    n = INTERVAL_ROWS[0] if report.settings.small else INTERVAL_ROWS[-1]
    cases: list[Case] = []
    for kind, names in INTERVALS.items():
        for law in (law for law in SIX_LAWS if law in KINDS[kind]):
            # Outcomes below 0 have no deviance.
            with_deviance = law == POISSON or not LAWS[law].added
            fitting = tuple(name for name in names if name != "deviance" or with_deviance)
            cases.append((kind, law, n, fitting))
    _coverage(report, pool, count, cases)


# Kind, law, number of rows, and names of the estimators, by default those of the kind
Case = tuple[str, str, int, tuple[str, ...] | None]


def _coverage(report: Report, pool: Executor, count: int, cases: list[Case]) -> None:
    for kind, law, n, chosen in cases:
        truths = truths_of(kind, law, report.settings.rows(ROWS_OF_TRUTH), chosen)
        values = np.concatenate(shared(pool, count, intervals, kind, law, n, chosen))
        for k, (name, truth) in enumerate(truths.items()):
            value, low, high = values[:, k].T
            covered = float(100 * np.mean((low <= truth) & (truth <= high)))
            report.row(
                what="coverage",
                kind=kind,
                law=law,
                n=n,
                estimator=name,
                covered=covered,
                above=float(100 * np.mean(low > truth)),
                below=float(100 * np.mean(high < truth)),
                truth=truth,
                length=float(np.mean(high - low)),
                deviation=float(value.std()),
            )
            title = f"{name}, {kind}, {law}, n = {n}, covered"
            if name in (*KERNEL_ERRORS, "size_stratified_coverage"):
                # A squared error of 0 is missed on one side only, and the strata by Bonferroni.
                report.check(title, covered, 93, "%", at_least=True, full_only=True)
            elif name in SQUARED and law == "lognormal":
                within(report, title, covered, 90, 97, full_only=True)
            elif not (name in SQUARED and law in NO_VARIANCE):
                within(report, title, covered, 93, 97, full_only=True)


def kernel_coverage(report: Report, pool: Executor, count: int) -> None:
    """Shares of intervals of the kernel error of wrong predictions that cover its value."""
    for kind in ("mean", "quantile"):
        for law in ("gamma", "lognormal", "normal"):
            truth = kernel_error(kind, law)
            for n in INTERVAL_ROWS[: 1 if report.settings.small else 2]:
                ends = np.concatenate(shared(pool, count, kernel_intervals, kind, law, n))
                low, high = ends.T
                covered = float(100 * np.mean((low <= truth) & (truth <= high)))
                report.row(
                    what="coverage, wrong",
                    kind=kind,
                    law=law,
                    n=n,
                    estimator="kce",
                    covered=covered,
                    truth=truth,
                )
                title = f"kce, {kind}, {law}, n = {n}, wrong, covered"
                report.check(title, covered, 93, "%", at_least=True, full_only=True)


def kernel_error(kind: str, law_name: str) -> float:
    """Squared kernel error of wrong predictions, by a sum over the quantiles of the means."""
    law = LAWS[law_name]
    mean = law.mean_quantiles((np.arange(NODES) + 0.5) / NODES)
    number = law.quantile(LEVEL) if kind == "quantile" else 0.0 if law.added else 1.0
    right = law.located(mean, number)
    shown = right + np.log(EXCESS) if law.added else EXCESS * right
    residual = shown - right  # the mean is the prediction that is right
    if kind == "quantile":
        residual = 1.0 - LEVEL - law.exceeding(mean, shown)
    kernel = np.exp(-0.5 * ((shown[:, None] - shown) / BANDWIDTH) ** 2)
    return float(residual @ kernel @ residual / NODES**2)


def kernel_intervals(kind: str, law: str, n: int, first: int, last: int) -> Any:
    """Ends of the intervals of the kernel error (data set, 2)."""
    estimator = cs.KCE(prediction_bandwidth=BANDWIDTH)
    ends = []
    for number in range(first, last):
        rng = np.random.default_rng([SEED, 8, number, n, *map(ord, kind + law)])
        source = drawn(rng, kind, law, n, EXCESS)
        result = cs.evaluate(source, estimator, interval="jackknife", scheduler="serial")
        interval = result["kce"].interval
        ends.append((interval.low, interval.high))
    return np.array(ends)


@cache
def truths_of(
    kind: str, law: str, rows: int, chosen: tuple[str, ...] | None = None
) -> dict[str, float]:
    """Value of every estimator for the population: 0 for errors, and means of losses."""
    rng = np.random.default_rng([SEED, *map(ord, kind + law)])
    names = chosen or [e.estimator for e in cs.evaluate(drawn(rng, kind, law, 100)).estimates]
    truths = {name: COVERAGE if "coverage" in name else 0.0 for name in names}
    errors = ("bias", *KERNEL_ERRORS)
    scores = [name for name in names if name not in errors and "coverage" not in name]
    step = min(rows, 1_000_000)
    parts = -(-rows // step)
    for _ in range(parts if scores else 0):
        means = cs.evaluate(drawn(rng, kind, law, step), scores)
        for name in scores:
            truths[name] += means[name].value / parts
    return truths


def intervals(
    kind: str, law: str, n: int, chosen: tuple[str, ...] | None, first: int, last: int
) -> Any:
    """Value and interval of every estimator (data set, estimator, 3)."""
    out = []
    for number in range(first, last):
        rng = np.random.default_rng([SEED, 7, number, n, *map(ord, kind + law)])
        source = drawn(rng, kind, law, n)
        result = cs.evaluate(source, chosen, interval="jackknife", scheduler="serial")
        out.append([(e.value, e.interval.low, e.interval.high) for e in result.estimates])
    return np.array(out)


def run(report: Report, pool: Executor, laws: tuple[Law, ...], count: int) -> None:
    """Simulate levels, power and coverage, with `count` data sets of an asymptotic test."""
    levels(report, pool, count)
    power(report, pool, count)
    coverage(report, pool, max(1, count // 2))
    kernel_coverage(report, pool, max(1, count // 2))


# Parts that the command line may run alone, each with `count` data sets of a cell
PARTS: dict[str, Callable[[Report, Executor, int], None]] = {
    "levels": levels,
    "default_exact_levels": default_exact_levels,
    "asymptotic_levels": asymptotic_levels,
    "exact_levels": exact_levels,
    "power": power,
    "coverage": coverage,
    "every_interval": every_interval,
    "kernel_coverage": kernel_coverage,
}
