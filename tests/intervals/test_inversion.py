"""Limits against exact distributions, and where a jackknife's interval collapses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom, binomtest, chi2, ncx2, norm

import calibscale as cs
from calibscale.intervals.gap_limits import bin_limits
from calibscale.intervals.inversion import highest_factor, lowest_factor
from calibscale.intervals.proportions import bounded_low, clopper_pearson
from calibscale.intervals.squared_norms import Noise, noise_of, quadratic_limits
from calibscale.statistics.bin_gaps import BinGaps

TAIL = 0.025


def _intervals(p, y, *estimators, method="jackknife", **options):
    source = cs.from_arrays(probabilities=p, labels=y, binary=True, **options)
    evaluation = cs.evaluate(source, estimators, interval=method, scheduler="serial")
    return {e.estimator: e for e in evaluation}


# ---------------------------------------------------------------- proportions


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (970, 1000)])
def test_clopper_pearson__is_scipys_exact_interval(k, n):
    expected = binomtest(k, n).proportion_ci(0.95, method="exact")
    assert clopper_pearson(k, n, TAIL) == pytest.approx((expected.low, expected.high), abs=1e-12)


# ---------------------------------------------------------------- a mean that is not negative


def test_bounded_low__accepts_by_the_ratio_of_likelihoods():
    """Acceptance regions are filled cell by cell in the order of decreasing ratio."""
    x = np.linspace(-8, 12, 200_001)
    best = np.maximum(x, 0.0)
    for m in (0.05, 0.3, 1.0, 1.9, 2.5, 4.0):
        ratio = np.exp(-((x - m) ** 2 - (x - best) ** 2) / 2)
        order = np.argsort(-ratio)
        inside = order[np.cumsum(norm.pdf(x[order] - m) * 1e-4) <= 0.95]
        largest = x[inside].max()  # the largest x that does not exclude m
        # cells of 1e-4, and probabilities that are too small by as much
        assert bounded_low(largest - 1e-3, 0.95) < m < bounded_low(largest + 2e-3, 0.95)


def test_bounded_low__is_zero_up_to_the_one_sided_quantile():
    z = norm.ppf(0.95)
    assert bounded_low(-3.0, 0.95) == bounded_low(0.0, 0.95) == bounded_low(z, 0.95) == 0
    assert 0 < bounded_low(z + 1e-3, 0.95) < 1e-2
    assert bounded_low(6.0, 0.95) == pytest.approx(6.0 - norm.ppf(0.975), rel=1e-12)


# ---------------------------------------------------------------- confident data


@pytest.mark.long
@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
def test_intervals__of_fifty_correct_and_confident_rows_are_not_points(method):
    """A calibrated model of q = 0.97 is correct 50 times in 50 with probability 0.22."""
    p, y = np.full(50, 0.97), np.ones(50, int)
    binned = (cs.Accuracy(), cs.ConfidenceGap(), cs.ECE(), cs.TCE2(), cs.TCE2Debiased())
    pairwise = (cs.JKCE(), cs.JKCEBiased(), cs.KCE(), cs.CKCE())
    estimates = _intervals(p, y, *binned, *pairwise, method=method)
    for name, truth in {"accuracy": 0.97, "confidence_gap": 0.0}.items():
        interval = estimates[name].interval
        assert interval.low < truth < interval.high
    for name in ("ece", "tce2", "tce2_debiased", "jkce", "jkce_biased", "kce", "ckce"):
        assert estimates[name].interval.low == 0 < estimates[name].interval.high, name


@pytest.mark.long
@pytest.mark.parametrize("law", ["narrow", "atoms"])
def test_intervals__of_squared_errors_are_never_below_zero(law):
    rng = np.random.default_rng(4)
    estimators = (cs.JKCE(), cs.KCE(), cs.KLCE(("x",)), cs.TCE2Debiased(1), cs.TCE2Debiased(3))
    negative = 0
    for _ in range(6):
        p = np.clip(rng.normal(0.5, 0.05, 200), 0, 1)
        if law == "atoms":
            u = rng.random(200)
            p = np.where(u < 0.2, 0.0, np.where(u < 0.35, 1.0, rng.beta(0.8, 1.6, 200)))
        y = (rng.random(200) < p).astype(int)
        source = cs.from_arrays(
            probabilities=p,
            labels=y,
            binary=True,
            covariates=rng.random((200, 1)),
            covariate_names=["x"],
        )
        for e in cs.evaluate(source, estimators, interval="jackknife", scheduler="serial"):
            assert 0 <= e.interval.low <= e.interval.high
            if e.value < 0:
                negative += 1
                assert any("negative by chance" in note for note in e.details["notes"])
    assert negative > 3  # else the test is vacuous


# ---------------------------------------------------------------- gaps of bins


@pytest.mark.long
def test_bin_limits__of_one_bin_at_calibration_are_a_binomial_test():
    """One bin of a single p: |g| is significant exactly where the binomial test is."""
    n, p = 60, 0.3
    for k in range(n + 1):
        gaps = BinGaps(np.ones(1), np.array([float(n)]), np.array([p]), np.array([p - k / n]))
        limits = bin_limits(gaps, 1, TAIL)
        far = np.abs(np.arange(n + 1) / n - p) >= abs(p - k / n) - 1e-12
        exact = binom.pmf(np.arange(n + 1)[far], n, p).sum()
        if not 0.012 < exact < 0.045:  # 399 draws: a deviation of 0.0078 at 0.025
            assert (limits.low > 0) == (exact < TAIL), k


def test_bin_limits__cover_an_interval_of_the_gap():
    """For many rows in one bin, limits of g² are limits of a non-central χ²."""
    n, p, g = 40_000.0, 0.5, 0.03
    gaps = BinGaps(np.ones(1), np.array([n]), np.array([p]), np.array([g]))
    limits = bin_limits(gaps, 2, TAIL)
    v = 0.25 / n
    assert ncx2.sf(g**2 / v, 1, limits.low / v) == pytest.approx(TAIL, abs=0.02)
    assert ncx2.cdf(g**2 / v, 1, limits.high / v) == pytest.approx(TAIL, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("sharpness", [1.0, 1.6])
def test_bin_limits__cover_where_most_bins_hold_a_row_or_no_event(sharpness):
    """0.9·Beta(2, 200) + 0.1·Beta(50, 5), 100 rows: two rows of the rarer outcome are expected."""
    rng, n, sets = np.random.default_rng(5), 100, 40
    edges = np.linspace(0, 1, 16)[1:-1]

    def drawn(rows):
        p = np.where(rng.random(rows) < 0.9, rng.beta(2, 200, rows), rng.beta(50, 5, rows))
        return p, expit(sharpness * logit(p))

    true, shown = drawn(10**6)
    b = np.searchsorted(edges, shown)
    population = np.sum(np.bincount(b, shown - true) ** 2 / np.maximum(np.bincount(b), 1)) / 10**6
    evaluations = []
    for _ in range(sets):
        true, shown = drawn(n)
        y = (rng.random(n) < true).astype(int)
        estimators = cs.ECE(15, notion="positive"), cs.TCE2Debiased(15, notion="positive")
        evaluations.append(_intervals(shown, y, *estimators))
    mean = np.mean([e["ece"].value for e in evaluations])
    for name, truth in {"ece": mean, "tce2_debiased": population}.items():
        covered = sum(e[name].interval.low <= truth <= e[name].interval.high for e in evaluations)
        assert covered >= binom.ppf(1e-4, sets, 0.95), name  # fails once in ten thousand


def test_bin_limits__do_not_depend_on_the_scale_of_weights():
    rng = np.random.default_rng(1)
    p, w = rng.random(300), rng.uniform(0.5, 2, 300)
    y = (rng.random(300) < p).astype(int)
    a, b = (_intervals(p, y, cs.ECE(), cs.TCE2Debiased(), weights=s * w) for s in (1.0, 1e6))
    for name in a:
        assert a[name].interval.low == pytest.approx(b[name].interval.low, rel=1e-9)
        assert a[name].interval.high == pytest.approx(b[name].interval.high, rel=1e-9)


def test_factors__invert_monotone_tails():
    # to a 256th of the interval that contains the factor: 0 to 1, 8 to 16
    assert lowest_factor(lambda s: s / 10, 0.05) == pytest.approx(0.5, abs=1 / 256)
    assert highest_factor(lambda s: 1 - s / 10, 0.05) == pytest.approx(9.5, abs=8 / 256)
    assert lowest_factor(lambda s: 0.5, 0.05) == highest_factor(lambda s: 0.01, 0.05) == 0


# ---------------------------------------------------------------- squared norms


@pytest.mark.long
def test_noise_of__estimates_traces():
    rng = np.random.default_rng(2)
    deviations = np.array([3.0, 1.0, 0.5])
    noise = noise_of(rng.standard_normal((4000, 3)) * deviations, np.array([0.0, 1.0, 0.0]))
    expected = (deviations**2).sum(), (deviations**4).sum(), 1.0
    assert tuple(noise) == pytest.approx(expected, rel=0.15)


def test_quadratic_limits__of_one_direction_are_those_of_a_normal_mean():
    noise = Noise(1.0, 1.0, 1.0)
    low, high, *_ = quadratic_limits(25.0, noise, noise, TAIL)
    assert np.sqrt(low) == pytest.approx(5 - 1.96, abs=0.05)
    assert np.sqrt(high) == pytest.approx(5 + 1.96, abs=0.05)


def test_quadratic_limits__at_calibration_are_a_chi_square_test():
    nu = 12.0
    noise = Noise(nu, nu, 1.0)
    critical = chi2.isf(TAIL, nu)
    assert quadratic_limits(critical * 0.97, noise, noise, TAIL).low == 0
    assert quadratic_limits(critical * 1.03, noise, noise, TAIL).low > 0


@pytest.mark.parametrize("size", [0.0, 1e-33, 1e-6])
def test_quadratic_limits__of_a_vanishing_vector_are_those_of_the_direction_of_most_noise(size):
    # All noise has one direction, and a vector that vanishes has any.
    noise = Noise(1.0, 1.0, 1e-9)
    limits = quadratic_limits(size, noise, noise, TAIL)
    assert limits.low == 0.0
    # |v|² counts as its mean 1, so that the limit is that of a normal mean observed at 1.
    assert np.sqrt(limits.high) == pytest.approx(1 + 1.96, abs=0.05)


@pytest.mark.parametrize("size", [1e-33, 1e-6, 1e-3])
def test_quadratic_limits__do_not_extrapolate_noise_by_a_vanishing_vector(size):
    # The observed noise is larger, by chance or not.  A hypothesis at a multiple of a vanishing
    # vector would have this multiple of the difference as noise.
    calibrated, observed = Noise(1.0, 0.1, 0.05), Noise(1.2, 0.15, 0.08)
    of_zero = quadratic_limits(0.0, calibrated, observed, TAIL)
    limits = quadratic_limits(size, calibrated, observed, TAIL)
    assert limits.low == 0.0
    assert limits.high == pytest.approx(of_zero.high, rel=0.01)
    assert limits.high > quadratic_limits(1.0, calibrated, observed, TAIL).high > 1.0


@pytest.mark.parametrize("expected", [3, 12])
def test_jkce__of_as_many_events_as_expected_has_the_limit_of_a_poisson_count(expected):
    # The residuals cancel, which says nothing about the direction of an error.
    p = expected / 3000
    q, y = np.full((3000, 2), [1 - p, p]), np.zeros(3000, int)
    y[np.random.default_rng(0).permutation(3000)[:expected]] = 1
    source = cs.from_arrays(probabilities=q, labels=y)
    interval = cs.evaluate(source, "jkce(bandwidth=0.5)", interval=True)["jkce"].interval
    most = chi2.isf(TAIL, 2 * (expected + 1)) / 2  # events, of which so few are observed
    gap = most / 3000 - p
    # The squared length of the mean residual (−gap, gap), times the kernel |q|² + 1 ≈ 2.
    assert interval.low == 0.0
    # The noise of the events comes from 20 groups of rows, and is known to a third.
    assert 0.7 < interval.high / (4 * gap**2) < 2


def test_tce2_debiased__is_unbiased_in_wide_bins_and_kumars_is_not():
    """Beta(.2, .2) in one bin: p varies, so that acc (1 − acc)/(n − 1) overcorrects."""
    rng = np.random.default_rng(7)
    p = rng.beta(0.2, 0.2, (3000, 200))
    y = rng.random(p.shape) < p
    d, f = p - y, y.mean(1)
    ours = (d.sum(1) ** 2 - (d**2).sum(1)) / (200 * 199)
    kumars = d.mean(1) ** 2 - f * (1 - f) / 199
    estimates = _intervals(
        p[0],
        y[0].astype(int),
        cs.TCE2Debiased(1, notion="positive"),
        cs.TCE2Kumar(1, notion="positive"),
    )
    assert estimates["tce2_debiased"].value == pytest.approx(ours[0], rel=1e-12)
    assert estimates["tce2_kumar"].value == pytest.approx(kumars[0], rel=1e-12)
    assert abs(ours.mean()) < 4 * ours.std() / np.sqrt(3000)
    assert kumars.mean() < -1.5 * kumars.std()


@pytest.mark.parametrize("edges", ["equal-width", "equal-mass", "netcal"])
def test_tce2_debiased__equals_pairs_of_rows_with_weights(edges):
    rng = np.random.default_rng(8)
    p, w = rng.random(120), rng.uniform(0.2, 3, 120)
    y = (rng.random(120) < p).astype(int)
    estimator = cs.TCE2Debiased(5, edges=edges, notion="positive")
    source = cs.from_arrays(probabilities=p, labels=y, weights=w, binary=True)
    (estimate,) = cs.evaluate(source, estimator, scheduler="serial").estimates
    cuts = [row["lower"] for row in estimate.details["bins"]][1:]
    bins = np.searchsorted(cuts, p, side="right" if edges == "netcal" else "left")
    expected = 0.0
    for b in np.unique(bins):
        here = bins == b
        d, v = (p - y)[here], w[here]
        pairs = np.outer(v * d, v * d), np.outer(v, v)
        off = ~np.eye(here.sum(), dtype=bool)
        if here.sum() > 1:
            expected += v.sum() / w.sum() * pairs[0][off].sum() / pairs[1][off].sum()
    assert estimate.value == pytest.approx(expected, rel=1e-10)


def test_ece__of_exactly_no_gap_has_an_upper_limit():
    """Rounding does not make data with an observed gap of 0 certain."""
    y = np.ones(100, int)
    y[:4] = 0
    interval = _intervals(np.full(100, 0.96), y, cs.ECE())["ece"].interval
    _, most = clopper_pearson(4, 100, TAIL)  # probability of label 0
    assert interval.low == 0.0
    # one step of bisection of the limit's factor, and the simulated tail probability
    assert interval.high == pytest.approx(most - 0.04, rel=0.1)
