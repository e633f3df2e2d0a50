"""Histogram binning beside sorted rows, its limits beside SciPy's, and its guarantee."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import beta, binom, binomtest

import calibscale as cs
from calibscale.auditing.audit import audit
from calibscale.recalibration.histogram_binning import HistogramBinning
from calibscale.recalibration.score_ranks import (
    FIRST_DIGITS,
    BoundedBins,
    PositiveScores,
    parts_of_scores,
)


def source(p, y, **further):
    return cs.from_arrays(probabilities=p, labels=y, binary=True, **further)


def fitted_to(p, y, method="histogram", **options):
    return cs.recalibrate(source(p, y), method, validate=False, **options)


def rows(rng, count, decimals=None):
    p = rng.beta(0.6, 0.9, count)
    y = (rng.random(count) < expit(0.6 * logit(p) - 0.3)).astype(int)
    return (p if decimals is None else np.round(p, decimals)), y


def naive(p, y, bins):
    """Bounds by sorting, and rows and events of each part by comparisons of all rows."""
    ranks = [math.ceil(b * (len(p) + 1) / bins) for b in range(1, bins)]
    bounds = np.unique(np.sort(p)[np.array(ranks, int) - 1])
    edges = np.concatenate([[-1.0], bounds, [2.0]])
    counted = []
    for i in range(len(edges) - 1):
        between = (p > edges[i]) & (p < edges[i + 1])
        counted.append((between.sum(), y[between].sum()))
        at = p == edges[i + 1]
        counted.append((at.sum(), y[at].sum()))
    return bounds, np.array(counted[:-1])


@pytest.mark.parametrize("decimals", [None, 2, 1])
@pytest.mark.parametrize("bins", [1, 2, 7, 40])
def test_bins__are_those_of_sorted_rows(rng, decimals, bins):
    p, y = rows(rng, 500, decimals)
    fit = fitted_to(p, y, f"histogram(bins={bins})").fit
    bounds, counted = naive(p, y, bins)
    np.testing.assert_array_equal(fit.bounds, bounds)
    np.testing.assert_array_equal(fit.rows, counted[:, 0])
    np.testing.assert_array_equal(fit.events, counted[:, 1])


def test_bounds__are_exact_for_scores_of_all_sizes(rng):
    small = 10.0 ** -rng.uniform(0, 320, 300)
    near_one = 1.0 - 2.0 ** -rng.integers(1, 54, 200)
    p = rng.permutation(np.concatenate([small, near_one, [0.0, 0.0, 1.0, 1.0]]))
    y = rng.integers(0, 2, len(p))
    bounds, _ = naive(p, y, 30)
    np.testing.assert_array_equal(fitted_to(p, y, "histogram(bins=30)").fit.bounds, bounds)


def test_values__are_frequencies_between_the_bounds(rng):
    p, y = rows(rng, 400)
    fitted = fitted_to(p, y, "histogram(bins=4)")
    bounds, _ = naive(p, y, 4)
    inside = (p > bounds[0]) & (p < bounds[1])
    middle = (bounds[0] + bounds[1]) / 2
    # A bound of continuous scores has no claim, and the value of the bin above.
    expected = [y[inside].mean()] * 2
    np.testing.assert_allclose(fitted.transform([middle, bounds[0]]), expected, rtol=1e-15)
    np.testing.assert_array_equal(fitted.interval([bounds[0]]), [[0.0, 1.0]])


def test_epsilon__is_that_of_the_paper_for_continuous_scores(rng):
    """Theorem 3 has ⌊n/B⌋ − 1 rows, the fewest of a bin."""
    p, y = rows(rng, 1000)
    for bins in (5, 8, 20):
        estimates = fitted_to(p, y, f"histogram(bins={bins},alpha=0.1)").estimates
        fewest = 1000 // bins - 1
        expected = math.sqrt(math.log(2 * bins / 0.1) / (2 * fewest))
        assert estimates["bins"] == bins
        if fewest == fitted_to(p, y, f"histogram(bins={bins})").fit.rows[::2].min():
            assert estimates["epsilon"] == pytest.approx(expected, rel=1e-12)
        assert estimates["epsilon"] <= expected * (1 + 1e-12)


@pytest.mark.parametrize("decimals", [None, 1])
def test_limits__are_exact_and_within_epsilon(rng, decimals):
    p, y = rows(rng, 600, decimals)
    fit = fitted_to(p, y).fit
    count = int(fit.claimed.sum())
    for part in np.flatnonzero(fit.claimed):
        test = binomtest(int(fit.events[part]), int(fit.rows[part]))
        level = 1.0 - fit.method.alpha / count
        expected = test.proportion_ci(level, "exact")
        # Both invert the same beta law numerically.
        np.testing.assert_allclose(fit.limits[part], expected, atol=1e-9)
        assert np.abs(fit.limits[part] - fit.values[part]).max() <= fit.epsilon
    np.testing.assert_array_equal(fit.limits[~fit.claimed], [[0.0, 1.0]] * (~fit.claimed).sum())


def test_bins_without_events__have_the_rule_of_succession(rng):
    p = rng.random(300)
    y = (p > 0.5).astype(int)
    fitted = fitted_to(p, y, "histogram(bins=6)")
    m = int(fitted.fit.rows[0])
    np.testing.assert_allclose(fitted.transform([0.0, 1.0]), [1 / (m + 2), 50 / 51], rtol=1e-12)
    assert cs.recalibrate(source(p, y), "histogram(bins=6)").improvement.changes[0].after < 0.2


def test_scores_of_few_values__are_bins_of_their_own(rng):
    p = rng.choice([0.1, 0.4, 0.8], 600)
    y = (rng.random(600) < p).astype(int)
    fitted = fitted_to(p, y, "histogram(bins=9)")
    expected = [y[p == value].mean() for value in (0.1, 0.4, 0.8)]
    np.testing.assert_allclose(fitted.transform([0.1, 0.4, 0.8]), expected, rtol=1e-15)
    assert fitted.estimates["bins"] == 3
    assert fitted.estimates["unclaimed"] == 0.0
    # Between the values there are no rows: the value of the bin below, and no claim.
    np.testing.assert_allclose(fitted.transform([0.2, 0.05]), [expected[0]] * 2, rtol=1e-15)
    np.testing.assert_array_equal(fitted.interval([0.2]), [[0.0, 1.0]])


def test_repeated_scores__have_a_note_if_rows_are_without_a_claim(rng):
    p, y = rows(rng, 2000, 3)
    fitted = fitted_to(p, y)
    at = np.isin(p, fitted.fit.bounds[~fitted.fit.claimed[1::2]])
    assert fitted.estimates["unclaimed"] == pytest.approx(at.mean(), abs=1e-12)
    assert any("nothing is claimed" in note for note in fitted.notes)
    continuous = fitted_to(*rows(rng, 2000))
    (note,) = continuous.notes
    assert "with probability at least 95 %" in note
    assert f"each of {continuous.estimates['bins']} bins" in note


def test_guarantee__is_in_the_text_and_the_file(rng, tmp_path):
    p, y = rows(rng, 500, 2)
    fitted = fitted_to(p, y)
    text = " ".join(cs.as_text(fitted).split())
    assert "epsilon = " in text
    assert "with probability at least 95 %" in text
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    assert loaded.estimates == fitted.estimates
    np.testing.assert_array_equal(loaded.interval(p), fitted.interval(p))
    np.testing.assert_array_equal(loaded.transform(p), fitted.transform(p))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bounds", [0.9, 0.1], "bounds must increase"),
        ("rows", [3], "rows must have"),
        ("events", [10**6], "events must have"),
        ("bins", 1, "bounds must be fewer than bins"),
    ],
)
def test_files__that_are_damaged_are_refused(rng, key, value, message):
    document = fitted_to(*rows(rng, 100), "histogram(bins=3)").to_dict()
    damaged = {**document, "state": {**document["state"], key: value}}
    with pytest.raises(cs.OptionError, match=message):
        cs.FittedRecalibration.from_dict(damaged)


def test_blocks_and_threads__give_the_same_fit(rng):
    p, y = rows(rng, 3000, 3)
    whole = fitted_to(p, y)
    for options in ({"block_rows": 100}, {"block_rows": 100, "scheduler": "threads:2"}):
        assert fitted_to(p, y, **options).state == whole.state


def test_logits__have_the_bins_of_their_probabilities(rng):
    z = rng.normal(size=400)
    y = (rng.random(400) < expit(z)).astype(int)
    data = cs.from_arrays(logits=z, labels=y, binary=True)
    fitted = cs.recalibrate(data, "histogram(bins=5)", validate=False)
    expected = fitted_to(expit(z), y, "histogram(bins=5)")
    # Sigmoids of two programs may differ in the last place.
    np.testing.assert_allclose(fitted.fit.bounds, expected.fit.bounds, rtol=1e-15)
    np.testing.assert_array_equal(fitted.fit.events, expected.fit.events)


def test_default_bins__are_the_cube_root_of_the_rows():
    counts = [HistogramBinning().bins_of(n) for n in (2, 3, 8, 1000, 1001, 10**7, 10**12)]
    assert counts == [1, 1, 2, 10, 11, 216, 1024]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("histogram(bins=0)", "bins must be from 1 to 1,024"),
        ("histogram(bins=51)", "100 rows are too few for 51 bins of at least two; use at most 50"),
        ("histogram(alpha=1)", r"alpha must be in \(0, 1\)"),
    ],
)
def test_settings__are_checked(rng, method, message):
    with pytest.raises(cs.OptionError, match=message):
        fitted_to(*rows(rng, 100), method)


def test_weights__are_refused(rng):
    p, y = rows(rng, 100)
    weighted = source(p, y, weights=rng.uniform(0.5, 2.0, 100))
    with pytest.raises(cs.OptionError, match="histogram: rows with weights are not exchangeable"):
        cs.recalibrate(weighted, "histogram")
    q = rng.dirichlet(np.ones(3), 90)
    many = cs.from_arrays(probabilities=q, labels=np.arange(90) % 3, weights=np.full(90, 2.0))
    with pytest.raises(cs.OptionError, match="histogram: rows with weights are not exchangeable"):
        cs.recalibrate(many, "one_vs_rest(method=histogram)")


@pytest.mark.long
def test_audit_of_all_methods__leaves_it_out_with_weights(rng):
    p, y = rows(rng, 300)
    weighted = source(p, y, weights=rng.uniform(0.5, 2.0, 300), covariates=rng.normal(size=300))
    result = audit(weighted, ["x0"], recalibrate="all", n_replicates=19)
    assert "histogram" not in [scores.name for scores in result.recalibration]
    assert any("histogram left out, with no guarantee" in note for note in result.notes)
    with pytest.raises(cs.OptionError, match="rows with weights are not exchangeable"):
        audit(weighted, ["x0"], recalibrate="histogram", n_replicates=19)


def test_digits__merge_to_the_counts_of_all_rows(rng):
    p, y = rows(rng, 300, 2)
    digits, bins = FIRST_DIGITS, BoundedBins(PositiveScores(), ((0.2, 0.5),))
    with cs.Session.open(source(p, y), block_rows=70) as session:
        states = session.scan([digits, bins]).groups[None]
    assert states[digits].counts.sum() == 300
    np.testing.assert_array_equal(states[bins].rows, naive_parts(p, [0.2, 0.5]))


def naive_parts(p, bounds):
    first, second = bounds
    parts = [p < first, p == first, (p > first) & (p < second), p == second, p > second]
    return [part.sum() for part in parts]


# ---------------------------------------------------------------- guarantee


def continuous_law():
    """Scores of a beta law, with a wavy probability of an event that differs from the score."""

    def probability(p):
        return 0.5 + 0.45 * np.sin(9.0 * p)

    # Integrals by the quantile function, which has no infinite density.  The error of a bin with
    # 1 % of the rows is below 1e-7.
    shares = np.linspace(0.0, 1.0, 100_001)
    scores = beta.ppf(shares, 0.7, 1.2)
    height = probability(scores)
    integral = np.append(0.0, np.cumsum((height[1:] + height[:-1]) / 2)) / 100_000

    def truth(low, high, at):
        # Continuous scores are never at a bound.
        assert not at
        ends = np.interp([low, high], scores, shares)
        first, last = np.interp(ends, shares, integral)
        return (last - first) / (ends[1] - ends[0])

    return (lambda rng, n: rng.beta(0.7, 1.2, n)), probability, truth


def discrete_law(values, shares, probabilities):
    """Scores of a list of values."""

    def draw(rng, n):
        return rng.choice(values, n, p=shares)

    def probability(p):
        return probabilities[np.searchsorted(values, p)]

    def truth(low, high, at):
        inside = values == low if at else (values > low) & (values < high)
        return float(shares[inside] @ probabilities[inside] / shares[inside].sum())

    return draw, probability, truth


def many_values():
    values = np.arange(1, 100) / 100
    shares = beta.pdf(values, 0.8, 1.5)
    return discrete_law(values, shares / shares.sum(), 0.5 + 0.45 * np.sin(40 * values))


def few_values():
    shares = np.array([0.05, 0.4, 0.2, 0.3, 0.05])
    return discrete_law(np.arange(1, 6) / 6, shares, np.array([0.3, 0.5, 0.1, 0.6, 0.9]))


def fails(fit, truth):
    """Whether a claim is wrong, by ε and by exact limits."""
    edges = np.concatenate([[0.0], fit.bounds, [1.0 + 1e-9]])
    beyond, outside = False, False
    for part in np.flatnonzero(fit.claimed):
        at = part % 2 == 1
        low = edges[(part + 1) // 2] if at else edges[part // 2]
        # The first interval includes the score 0.
        low = -1e-9 if part == 0 and not at else low
        mean = truth(low, edges[part // 2 + 1], at)
        beyond |= abs(mean - fit.values[part]) > fit.epsilon
        outside |= not fit.limits[part, 0] <= mean <= fit.limits[part, 1]
    return beyond, outside


@pytest.mark.slow
@pytest.mark.parametrize("law", [continuous_law, many_values, few_values])
@pytest.mark.parametrize("settings", ["bins=5", "bins=20"])
def test_guarantee__holds_in_all_bins_at_once(law, settings):
    """At α = 0.2, at most 20 % of the fits have a bin that is off, for any law."""
    draw, probability, truth = law()
    repeats, wrong = 400, np.zeros(2)
    rng = np.random.default_rng(11)
    for _ in range(repeats):
        p = draw(rng, 300)
        y = (rng.random(300) < probability(p)).astype(int)
        fit = fitted_to(p, y, f"histogram({settings},alpha=0.2)").fit
        wrong += fails(fit, truth)
    # A rate of exactly α exceeds this bound in one of a thousand simulations.
    assert (wrong <= binom.ppf(0.999, repeats, 0.2)).all()
    # The exact limits are not so wide that they could not fail.
    assert wrong[1] >= 1


def test_parts__of_scores_at_and_between_bounds():
    parts = parts_of_scores(np.array([0.2, 0.5]), np.array([0.0, 0.2, 0.3, 0.5, 1.0]))
    np.testing.assert_array_equal(parts, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("bounds", [[], [0.0, 1.0], [0.1, 0.1 + 1e-15, 0.25, 0.7]])
def test_parts__of_many_scores_equal_counts_of_bounds(rng, bounds):
    scores = np.concatenate([rng.random(5000), bounds, [0.0, 1.0]])
    parts = parts_of_scores(np.array(bounds, np.float64), scores)
    expected = [sum(b < s for b in bounds) + sum(b <= s for b in bounds) for s in scores]
    np.testing.assert_array_equal(parts, expected)
