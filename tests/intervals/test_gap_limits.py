"""Limits of mean and largest gaps: where errors are in few bins, and where rows are dependent."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom, binomtest, norm

import calibscale as cs
from calibscale.intervals.gap_limits import (
    bin_limits,
    debiased_sizes,
    largest_gap_limits,
    largest_step,
    level_limits,
    low_limit,
    low_limit_of_groups,
)
from calibscale.statistics.bin_gaps import BinGaps

TAIL = 0.025
BOTH = "the population and the expectation at this n"


def _cells(p, bins):
    return np.clip(np.ceil(p * bins).astype(int) - 1, 0, bins - 1)


def _half_zero(rng, n):
    return np.where(rng.random(n) < 0.5, 0.0, rng.random(n))


def _three_percent_at_zero(p):
    return np.where(p == 0, 0.03, p)


def _one_of_fifteen(p):
    return np.where(_cells(p, 15) == 7, p + 0.15, p)


def _wave(p):
    return np.clip(p + 0.08 * np.sin(12 * np.pi * p), 0, 1)


def _two_periods(p):
    return np.clip(p + 0.08 * np.sin(4 * np.pi * p), 0, 1)


def _three_periods(p):
    return np.clip(p + 0.08 * np.sin(6 * np.pi * p), 0, 1)


def _calibrated(p):
    return p


def _sharper(p):
    return expit(logit(p) / 1.6)


def _uniform(rng, n):
    return rng.random(n)


def _bins(p, y, count):
    b = _cells(p, count)
    rows = np.bincount(b, minlength=count).astype(float)
    full = rows > 0
    mean_p, gap = (np.bincount(b, v, count)[full] / rows[full] for v in (p, p - y))
    return BinGaps(rows[full] / len(p), rows[full], mean_p, gap)


def _truth(draw, frequency, count, power=1):
    p = draw(np.random.default_rng(99), 2_000_000)
    b = _cells(p, count)
    rows = np.maximum(np.bincount(b, minlength=count), 1)
    gap = np.bincount(b, p - frequency(p), count) / rows
    return float(np.sum(rows * np.abs(gap) ** power) / len(p)), float(np.abs(gap).max())


def _samples(draw, frequency, n, count, sets):
    for k in range(sets):
        rng = np.random.default_rng((n, count, k))
        p = draw(rng, n)
        yield _bins(p, rng.random(n) < frequency(p), count)


# ---------------------------------------------------------------- lower limits


@pytest.mark.parametrize("rows", [5, 20, 100, 1000])
@pytest.mark.parametrize("p", [0.003, 0.03, 0.3, 0.5])
def test_debiased_sizes__have_expectations_of_at_most_the_gap(rows, p):
    """The function that the lower limit sums, for every frequency of a bin, exactly."""
    events = np.arange(rows + 1)
    gaps = p - events / rows
    draws = binom.pmf(events, rows, p)
    # 10^6 copies of the outcomes in proportion to their probabilities
    calibrated = np.repeat(gaps, np.rint(draws * 1e6).astype(int))[:, None]
    debiased = debiased_sizes(np.array([np.sqrt(p * (1 - p) / rows)]), calibrated)
    for f in np.linspace(0, 1, 101):
        expectation = binom.pmf(events, rows, f) @ debiased(gaps[:, None])[:, 0]
        noise = np.sqrt(p * (1 - p) / rows)
        assert expectation <= abs(p - f) + 0.05 * noise, f  # 5 % of the noise of one bin


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "frequency", "n", "count"),
    [
        pytest.param(_half_zero, _three_percent_at_zero, 1000, 15, id="events at 0"),
        pytest.param(
            *(_half_zero, _three_percent_at_zero, 5000, 30),
            id="events at 0, 30 bins",
            marks=pytest.mark.slow,
        ),
        pytest.param(_uniform, _one_of_fifteen, 5000, 15, id="one bin"),
        pytest.param(_uniform, _two_periods, 1000, 15, id="wave"),
        pytest.param(_uniform, _calibrated, 1000, 15, id="calibrated", marks=pytest.mark.slow),
        pytest.param(_half_zero, _calibrated, 500, 50, id="calibrated, at 0"),
    ],
)
def test_low__is_below_the_truth_wherever_errors_are(draw, frequency, n, count):  # S1
    sets = 30
    for power in (1, 2):
        truth, _ = _truth(draw, frequency, count, power)
        above = sum(
            bin_limits(bins, power, TAIL, power == 2).low > truth
            for bins in _samples(draw, frequency, n, count, sets)
        )
        assert above <= binom.isf(1e-4, sets, TAIL)  # fails once in ten thousand


@pytest.mark.long
@pytest.mark.parametrize(
    ("frequency", "n", "count", "least"),
    [(_sharper, 2000, 15, 0.5), (_wave, 20_000, 15, 0.6), (_one_of_fifteen, 20_000, 15, 0.55)],
    ids=["temperature", "wave", "one bin"],
)
def test_low__is_a_large_part_of_an_error_beyond_its_noise(frequency, n, count, least):
    truth, _ = _truth(_uniform, frequency, count)
    samples = _samples(_uniform, frequency, n, count, 12)
    assert np.mean([bin_limits(bins, 1, TAIL).low for bins in samples]) > least * truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frequency", "along_gaps"),
    [
        pytest.param(_two_periods, 0.02348, id="two periods"),
        pytest.param(_three_periods, 0.01796, id="three periods", marks=pytest.mark.slow),
    ],
)
def test_low__of_waves_is_near_the_limit_along_the_gaps(frequency, along_gaps):
    """Mean limits beside limits of hypotheses along the observed gaps, for the same data sets.

    The limits along the gaps are not valid where one bin has the whole error.
    """
    lows = []
    for k in range(100):
        rng = np.random.default_rng((20261121, 6, 1000, 15, k))
        p = rng.random(1000)
        bins = _bins(p, rng.random(1000) < frequency(p), 15)
        lows.append(bin_limits(bins, 1, TAIL).low)
    assert np.mean(lows) > 0.65 * along_gaps


def _dense_contrasts(share, mean_p):
    """Coefficients, factors and bins of contrasts, one at a time.  Sums over all bins have none."""
    B = len(share)
    middle = np.cumsum(share) - share / 2
    weight = (mean_p * (1 - mean_p)) ** -0.75
    weight = 2.5 * weight * share.sum() / np.sum(weight * share)
    contrasts = [(np.ones(B), 0.85, None)]
    for last in range(B - 1):
        contrasts.append((np.where(np.arange(B) <= last, 1.0, -1.0), 0.95, None))
    for half_periods in range(1, 7):
        for phase in range(4):
            wave = weight * np.sin(np.pi * (half_periods * middle + phase / 4))
            contrasts.append((np.clip(wave, -1, 1), 0.9, None))
    for b in range(B):
        contrasts.append((np.eye(B)[b], 1.3, b))
    return [(sign * c, factor, b) for c, factor, b in contrasts for sign in (1.0, -1.0)]


def _dense_low_limit(bins, noise):
    """Limit from normal noise, with a loop over contrasts, and over bins that have the error.

    Returns the limits of both steps.
    """
    rows = []
    for c, factor, b in _dense_contrasts(bins.share, bins.mean_p):
        weights = c * bins.share
        deviations = noise @ weights
        deviations = deviations - deviations.mean()
        least = bins.share / bins.rows
        least = least.max() if b is None else least[b]
        size = factor * np.sqrt(deviations.var() + least**2)
        rows.append((weights @ bins.gap, size, deviations / size, c))
    values, sizes, steps, coefficients = (np.array(column) for column in zip(*rows, strict=True))
    multiple = np.quantile(steps.max(axis=0), 1 - TAIL, method="higher")
    first = max(0.0, np.max(values - multiple * sizes))
    multiples = []
    for b in range(len(bins.gap)):
        for sign in (1.0, -1.0):
            lag = first * (1 - sign * coefficients[:, b]) / sizes
            largest = (steps - lag[:, None]).max(axis=0)
            multiples.append(np.quantile(largest, 1 - TAIL, method="higher"))
    return first, max(0.0, np.max(values - max(multiples) * sizes))


@pytest.mark.parametrize("frequency", [_sharper, _two_periods, _one_of_fifteen])
def test_low_limit__of_normal_noise_is_the_one_of_loops_over_contrasts_and_bins(frequency):
    (bins,) = _samples(_uniform, frequency, 4000, 15, 1)
    rng = np.random.default_rng(5)
    deviation = np.sqrt(bins.mean_p * (1 - bins.mean_p) / bins.rows)
    noise = rng.standard_normal((999, len(bins.gap))) * deviation
    first, second = _dense_low_limit(bins, noise)

    def nothing(gaps):
        return np.zeros_like(gaps)

    low = low_limit(bins, nothing, (noise, noise), TAIL, random_shares=False)
    assert low == pytest.approx(second, rel=1e-9)
    assert second > first > 0


@pytest.mark.parametrize("tail", [0.002, 0.025, 0.2, 0.4])
def test_largest_step__is_the_largest_quantile_over_hypotheses(tail):
    rng = np.random.default_rng(2)
    half = rng.standard_normal((999, 20)) @ rng.standard_normal((20, 40)) / np.sqrt(20)
    noise = np.hstack([half, -half])
    lags = rng.exponential(2.0, (7, 80))
    lags[:, ::3] = 0.0
    quantiles = [np.quantile((noise - lag).max(axis=1), 1 - tail, method="higher") for lag in lags]
    assert largest_step(noise, lags, tail) == max(quantiles)
    without = np.quantile(noise.max(axis=1), 1 - tail, method="higher")
    assert largest_step(noise, np.zeros((1, 80)), tail) == without
    # Beyond large lags, the search ends at a larger multiple, at which the limits hold as well.
    assert max(quantiles) <= largest_step(noise, lags + 0.5, tail) + 0.5 <= without + 0.5


def test_low__of_a_single_gap_is_that_of_a_normal_mean():
    bins = BinGaps(np.ones(1), np.array([1e5]), np.array([0.5]), np.array([0.02]))
    error = 0.5 / np.sqrt(1e5)
    for power in (1, 2):
        low = bin_limits(bins, power, TAIL).low ** (1 / power)
        # A contrast and the single bin are the same number.  The limit of the mean has the quantile
        # of one sign, of which 999 draws leave some noise, and the limit of the square of two.
        most = norm.isf(TAIL) if power == 1 else norm.isf(TAIL / 2)
        assert low == pytest.approx(0.02 - most * error, abs=0.15 * error)


def test_low__is_zero_where_nothing_is_known():
    assert bin_limits(BinGaps(*np.zeros((4, 0))), 1, TAIL).low == 0
    certain = BinGaps(np.array([0.4, 0.6]), np.array([4.0, 6.0]), np.array([0.0, 1.0]), np.zeros(2))
    assert bin_limits(certain, 1, TAIL).low == 0
    wrong = certain._replace(gap=np.array([-0.25, 0.0]))  # one event in four rows of p = 0
    assert 0 <= bin_limits(wrong, 1, TAIL).low < 0.1


@pytest.mark.slow
def test_low__of_more_bins_than_contrasts_is_below_the_mean():
    rng = np.random.default_rng(3)
    p = rng.random(40_000)
    bins = _bins(p, rng.random(40_000) < _sharper(p), 1000)
    low = bin_limits(bins, 1, TAIL).low
    assert 0.03 < low < _truth(_uniform, _sharper, 1000)[0]


# ---------------------------------------------------------------- the largest gap


def test_largest_gap__of_one_bin_is_clopper_pearsons():
    for events, p in ((0, 0.1), (3, 0.5), (20, 0.4), (60, 0.9)):
        gap = p - events / 60
        bins = BinGaps(np.ones(1), np.array([60.0]), np.array([p]), np.array([gap]))
        limits = largest_gap_limits(bins, TAIL)
        ends = binomtest(events, 60).proportion_ci(0.95, method="exact")
        assert limits.method == "clopper_pearson"
        assert limits.low == pytest.approx(max(ends.low - p, p - ends.high, 0.0), abs=1e-9)
        assert limits.high == pytest.approx(max(ends.high - p, p - ends.low), abs=1e-9)


def test_largest_gap__is_covered_where_one_bin_is_wrong():
    _, truth = _truth(_uniform, _one_of_fifteen, 15)
    sets = 200
    limits = [
        largest_gap_limits(bins, TAIL)
        for bins in _samples(_uniform, _one_of_fifteen, 3000, 15, sets)
    ]
    most = binom.isf(0.001, sets, TAIL)
    assert sum(limit.low > truth for limit in limits) <= most
    assert sum(limit.high < truth for limit in limits) <= most
    assert np.mean([limit.low for limit in limits]) > 0.2 * truth


def test_mce__has_an_interval_of_independent_rows_alone():
    rng = np.random.default_rng(0)
    p = rng.random(600)
    source = cs.from_arrays(
        probabilities=p,
        labels=(rng.random(600) < p).astype(int),
        binary=True,
        covariates=np.repeat(np.arange(60.0), 10)[:, None],
        covariate_names=["id"],
    )
    for method in ("jackknife", "bootstrap"):
        mce = cs.evaluate(source, "mce", interval=method)["mce"]
        assert mce.interval.low == 0 < mce.value < mce.interval.high
        assert (mce.interval.method, mce.interval.covers) == ("clopper_pearson", BOTH)
    clustered = cs.evaluate(source, "mce", interval=True, cluster="id")["mce"]
    assert clustered.interval is None
    assert "not smooth" in clustered.details["notes"][0]


# ---------------------------------------------------------------- levels of forecasts


@pytest.mark.long
@pytest.mark.parametrize("spread", [1.0, 1.3])
def test_level_limits__cover_the_mean_distance(spread):
    levels = np.arange(1, 20) / 20
    truth = np.abs(norm.cdf(norm.ppf(levels) / spread) - levels).mean()
    sets, n, above, below = 100, 400, 0, 0
    for k in range(sets):
        pit = np.sort(norm.cdf(spread * np.random.default_rng(k).standard_normal(n)))
        shares = np.searchsorted(pit, levels, side="right") / n
        low, high, *_ = level_limits(levels, shares, float(n), TAIL)
        above, below = above + (low > truth + 1e-12), below + (high < truth)
        assert low <= np.abs(shares - levels).mean() <= high
    most = binom.isf(0.001, sets, TAIL)
    assert above <= most
    assert below <= most


def test_quantile_ece__has_an_interval():  # S11
    rng = np.random.default_rng(1)
    mean = rng.standard_normal(800)
    for spread, detected in ((1.0, False), (1.6, True)):
        source = cs.from_arrays(
            predictions=np.column_stack([mean, np.ones(800)]),
            forecast="normal",
            labels=mean + spread * rng.standard_normal(800),
        )
        interval = cs.evaluate(source, "quantile_ece", interval=True)["quantile_ece"].interval
        assert (interval.low > 0) == detected
        assert interval.covers == BOTH


# ---------------------------------------------------------------- clusters and soft labels


def _clustered(rng, clusters, size, effect, frequency=lambda p: p):
    """Calibrated on average: the labels of a cluster share a part of their noise."""
    p = rng.random(clusters * size)
    common = np.repeat(rng.standard_normal(clusters), size)
    noise = effect * common + np.sqrt(1 - effect**2) * rng.standard_normal(len(p))
    y = norm.cdf(noise) < frequency(p)
    ids = np.repeat(np.arange(float(clusters)), size)
    return cs.from_arrays(
        probabilities=p,
        labels=y.astype(int),
        binary=True,
        covariates=ids[:, None],
        covariate_names=["id"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("edges", ["equal-width", "equal-mass"])
def test_clusters__leave_the_interval_one_of_the_population(edges):  # V11
    sets, above = 8, 0
    for k in range(sets):
        source = _clustered(np.random.default_rng(k), 60, 10, 0.9)
        (ece,) = cs.evaluate(
            source, cs.ECE(edges=edges), interval=True, cluster="id", scheduler="serial"
        ).estimates
        assert ece.interval.covers == BOTH
        above += ece.interval.low > 0
    assert above <= binom.isf(1e-4, sets, TAIL)


def test_clusters__leave_large_errors_visible():
    source = _clustered(np.random.default_rng(5), 300, 10, 0.3, lambda p: 0.25 + 0.5 * p)
    for name in ("ece", "tce2"):
        estimate = cs.evaluate(source, name, interval=True, cluster="id")[name]
        assert 0 < estimate.interval.low < estimate.value < estimate.interval.high


def test_soft_labels__have_an_interval_of_the_population():
    rng = np.random.default_rng(2)
    p = rng.random(2000)
    shown = np.clip(p + 0.2 * (p - 0.5), 0.01, 0.99)
    soft = np.clip(p + 0.05 * rng.standard_normal(2000), 0, 1)
    for q, wrong in ((p, False), (shown, True)):
        source = cs.from_arrays(
            probabilities=np.column_stack([1 - q, q]), labels=np.column_stack([1 - soft, soft])
        )
        interval = cs.evaluate(source, "ece", interval=True)["ece"].interval
        assert interval.covers == BOTH
        assert (interval.low > 0.02) == wrong


def test_low_limit_of_groups__uses_no_bin_that_few_groups_fill():
    """A gap that is the same in all rows of one group has no spread between groups."""
    weights = np.full((20, 2), 10.0)
    weights[1:, 1] = 0.0
    residuals = np.zeros((20, 2))
    residuals[0, 1] = 9.0  # a gap of 0.9 in the second bin
    bins = BinGaps(
        weights.sum(0) / weights.sum(), weights.sum(0), np.array([0.5, 0.95]), np.array([0.0, 0.9])
    )
    assert low_limit_of_groups(bins, weights, residuals, TAIL) == 0
    assert low_limit_of_groups(bins, weights[:4], residuals[:4], TAIL) == 0  # too few groups
