"""Coverage of prediction intervals: what a calibrated forecast has, and its test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import calibscale as cs
from calibscale.errors import OptionError
from calibscale.estimators.forecast_scores import Coverage
from calibscale.monitoring.ledger.recipe import decode, encode
from calibscale.statistics.forecast_totals import ForecastTotals
from tests.support.forecast_rows import FORECASTS, source


def _ensemble(n, m, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1)) + rng.normal(size=(n, m + 1))
    members, y = x[:, :m], x[:, m]
    return cs.from_arrays(predictions=spread * members, forecast="ensemble", labels=y)


def _classes(n, k=11, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(k, 2.0), n)
    y = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    forecast = cs.OrdinalForecast(classes=k)
    return cs.from_arrays(predictions=p, forecast=forecast, labels=np.minimum(y, k - 1))


def _rain(n, seed=0):
    """Quantiles of rain, with 0 for the lower ones, and outcomes drawn from them."""
    rng = np.random.default_rng(seed)
    levels = tuple((np.arange(1, 20) / 20).tolist())
    dry, amount = rng.uniform(0.1, 0.7, (n, 1)), rng.uniform(1.0, 9.0, (n, 1))
    excess = np.maximum(np.array(levels) - dry, 0.0) / (1.0 - dry)
    q = -amount * np.log1p(-excess)
    forecast = cs.QuantileForecast(levels)
    y = forecast.quantile(q, rng.random(n))
    return cs.from_arrays(predictions=q, forecast=forecast, labels=y)


# ---------------------------------------------------------------- V7: the expectation


def test_coverage__of_five_members_is_expected_to_be_four_sixths():
    """V7: an ensemble of 5 covers 0.665, not 0.9."""
    estimate = cs.evaluate(_ensemble(4000, 5), "coverage")["coverage"]
    assert estimate.details["expected"] == pytest.approx(4 / 6, abs=1e-12)
    assert estimate.details["level"] == estimate.parameters["level"] == 0.9
    # four standard errors of a share of 4,000 rows with the variance 4/6 · 2/6 = 2/9
    assert estimate.value == pytest.approx(4 / 6, abs=4 * (2 / 9 / 4000) ** 0.5)


@pytest.mark.parametrize("make", [_classes, _rain, lambda n: _ensemble(n, 30)])
def test_coverage__of_calibrated_forecasts_is_near_its_expectation(make):
    estimate = cs.evaluate(make(4000), "coverage")["coverage"]
    expected = estimate.details["expected"]
    assert abs(estimate.value - expected) < 4 * (expected * (1 - expected) / 4000) ** 0.5


def test_expected__exceeds_the_level_where_values_have_probabilities():
    """V7: 11 ordered classes covered 0.975, precipitation with zeros 0.952."""
    for data in (_classes(2000), _rain(2000)):
        assert cs.evaluate(data, "coverage")["coverage"].details["expected"] > 0.93


def test_expected__of_ordered_classes_is_the_sum_of_the_probabilities_in_the_interval():
    data = _classes(50)
    expected = []
    for p in data.values:
        F = p.cumsum()
        low, high = np.searchsorted(F, 0.05), np.searchsorted(F, 0.95)
        expected.append(p[low : high + 1].sum())
    estimate = cs.evaluate(data, "coverage")["coverage"]
    assert estimate.details["expected"] == pytest.approx(np.mean(expected), abs=1e-12)


@pytest.mark.parametrize("kind", ["normal", "mixture", "quantiles", "histogram"])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_expected__of_continuous_distributions_is_the_level(kind, level):
    estimate = cs.evaluate(source(kind, 80), f"coverage(level={level})")["coverage"]
    assert estimate.details["expected"] == pytest.approx(level, abs=1e-10)


def test_expected__is_weighted():
    data = _classes(60)
    weights = np.random.default_rng(2).exponential(size=60)
    ends = data.forecast.interval(data.values, 0.9)
    _, shares = data.forecast.covered_part(data.values, data.labels.astype(float), 0.9, ends)
    weighted = cs.from_arrays(
        predictions=data.values, forecast=data.forecast, labels=data.labels, weights=weights
    )
    estimate = cs.evaluate(weighted, "coverage")["coverage"]
    assert estimate.details["expected"] == pytest.approx(np.average(shares, weights=weights))


def test_text__has_the_level_and_the_expectation():
    result = cs.evaluate(_ensemble(1000, 5), "coverage", interval="jackknife")
    value = result["coverage"].value
    text = " ".join(cs.as_text(result).split())
    assert f"coverage of 90 %: {100 * value:.1f} % (expected 66.7 %)" in text


def test_text__of_groups_has_the_expectation_of_each():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6))
    x[:300, 2:5] = np.nan
    data = cs.from_arrays(
        predictions=x[:, :5],
        forecast="ensemble",
        labels=x[:, 5],
        covariates=np.repeat(["few", "many"], 300),
        covariate_names=["members"],
    )
    groups = cs.evaluate(data, "coverage", group_by="members").groups
    expected = [group[0].details["expected"] for group in groups.values()]
    np.testing.assert_allclose(expected, [1 / 3, 4 / 6])
    text = cs.as_text(cs.evaluate(data, "coverage", group_by="members"))
    assert "expected 0.333" in text
    assert "expected 0.667" in text


# ---------------------------------------------------------------- V7: the test


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda s: _ensemble(150, 5, s), lambda s: _rain(150, s)])
def test_test__has_its_level_on_calibrated_forecasts(make):
    p = [
        cs.calibration_test(make(seed), "coverage", n_replicates=99, seed=seed).results[0].p_value
        for seed in range(200)
    ]
    # binomial with 200 trials of 0.05, of 0.2: exceeded with probability 0.002
    assert np.sum(np.array(p) <= 0.05) <= stats.binom.ppf(0.998, 200, 0.05)
    assert np.sum(np.array(p) <= 0.2) <= stats.binom.ppf(0.998, 200, 0.2)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_test__finds_intervals_that_are_too_narrow_and_too_wide(spread):
    test = cs.calibration_test(_ensemble(500, 20, spread=spread), "coverage", n_replicates=99)
    assert test["coverage"].p_value == 0.01


def test_test__of_equal_probabilities_is_binomial():
    data = source("normal", 300)
    estimate = cs.evaluate(data, "coverage")["coverage"]
    test = cs.calibration_test(data, "coverage", n_replicates=1999)["coverage"]
    gap = abs(estimate.value - 0.9)
    assert test.value == pytest.approx(gap, abs=1e-12)
    assert test.parameters["coverage"] == estimate.value
    k = np.arange(301)
    exact = stats.binom.pmf(k, 300, 0.9)[np.abs(k / 300 - 0.9) >= gap - 1e-9].sum()
    # four standard errors of a share of 2,000 draws
    assert test.p_value == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 2000) ** 0.5 + 1e-3)


def test_test__knows_clusters_and_random_signs():
    rng = np.random.default_rng(4)
    x = np.repeat(rng.normal(size=(60, 9)), 10, axis=0)  # each row ten times
    data = cs.from_arrays(
        predictions=x[:, :8],
        forecast="ensemble",
        labels=x[:, 8],
        covariates=np.repeat(np.arange(60.0), 10),
        covariate_names=["station"],
    )
    rows, clusters = (
        cs.calibration_test(data, "coverage", n_replicates=499, **options)["coverage"]
        for options in ({"null": "wild"}, {"cluster": "station"})
    )
    # the deviation of 60 clusters of 10 equal rows is √10 times that of 600 rows
    ratio = np.std(clusters.null_values) / np.std(rows.null_values)
    assert ratio == pytest.approx(10**0.5, rel=0.2)


@pytest.mark.parametrize("null", ["residual", "permute"])
def test_test__refuses_nulls_of_other_residuals(null):
    with pytest.raises(OptionError, match=r"coverage has one number for each row; use null='lab"):
        cs.calibration_test(_ensemble(50, 5), "coverage", null=null)


# ---------------------------------------------------------------- ledgers


def test_ledgers__of_coverage_without_an_expectation_are_read():
    stored = {"kind": "Coverage", "settings": {"level": 0.8}}  # as written before
    estimator = decode(stored)
    (statistic,) = estimator.needs
    assert isinstance(statistic, ForecastTotals)
    state = statistic.zero(2)
    for name, total in (("n", 4.0), ("weight", 4.0), ("weight2", 4.0)):
        getattr(state, name)[...] = total
    state.totals[...] = [3.0, 8.0]
    estimate = estimator.finalize(state)
    assert (estimate.value, estimate.details) == (0.75, {"level": 0.8, "mean_width": 2.0})
    assert estimator.limits(0.9, state).low > 0.2
    bound = Coverage(0.8).bind(None)
    assert decode(encode(bound)) == bound


@pytest.mark.parametrize("kind", FORECASTS)
def test_accumulator__has_the_expectation(kind):
    data = source(kind, 200)
    accumulator = cs.Accumulator("coverage", forecast=FORECASTS[kind])
    for part in (slice(0, 90), slice(90, 200)):
        accumulator.update(predictions=data.values[part], labels=data.labels[part])
    expected = cs.evaluate(data, "coverage")["coverage"].details["expected"]
    assert accumulator.compute()["coverage"].details["expected"] == pytest.approx(expected)
