"""Predictions of means, quantiles, expectiles, exceedances and intervals, end to end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import beta, gamma, t
from sklearn.metrics import mean_pinball_loss, mean_squared_error, mean_tweedie_deviance

import calibscale as cs

N = 1500
SHAPE = 2.0  # of the gamma distributions of outcomes


class Law(NamedTuple):
    """Means, and outcomes with gamma distributions of these means (n,)."""

    mean: np.ndarray
    outcomes: np.ndarray

    def quantile(self, level):
        return self.mean * gamma.ppf(level, SHAPE, scale=1 / SHAPE)

    def predictions(self, forecast):
        """True functional of each row, (n,) or (n, 2)."""
        if forecast.startswith("interval"):
            return np.column_stack([self.quantile(0.1), self.quantile(0.9)])
        name, _, setting = forecast.rstrip(")").partition("=")
        match name.partition("(")[0]:
            case "quantile":
                return self.quantile(float(setting))
            case "median":
                return self.quantile(0.5)
            case "second_moment":
                return self.mean**2 * (1 + 1 / SHAPE)
            case "exceedance":
                return gamma.sf(float(setting), SHAPE, scale=self.mean / SHAPE)
        return self.mean


def drawn(seed=0, rows=N):
    rng = np.random.default_rng(seed)
    mean = rng.gamma(2.0, 1.0, rows)
    return Law(mean, mean * rng.gamma(SHAPE, 1 / SHAPE, rows))


KINDS = (
    "mean",
    "mean(scale=log)",
    "median",
    "quantile(level=0.9)",
    "expectile(level=0.5)",
    "second_moment",
    "exceedance(threshold=2)",
    "interval(coverage=0.8)",
)


def source_of(forecast, law=None, factor=1.0, **columns):
    law = law or drawn()
    x = law.predictions(forecast) * factor
    if forecast.startswith("exceedance"):
        x = np.minimum(x, 1.0)
    return cs.from_arrays(predictions=x, forecast=forecast, labels=law.outcomes, **columns)


def residuals_of(forecast, x, y):
    """Identification functions as the literature states them, one row at a time."""
    out = []
    for prediction, outcome in zip(x, y, strict=True):
        match forecast.partition("(")[0]:
            case "mean" | "expectile":  # the expectile of level 0.5 is the mean
                out.append(prediction - outcome)
            case "median":
                out.append((outcome <= prediction) - 0.5)
            case "quantile":
                out.append((outcome <= prediction) - 0.9)
            case "second_moment":
                out.append(prediction - outcome**2)
            case "exceedance":
                out.append(prediction - (outcome > 2))
            case "interval":
                low, high = prediction
                out.append((low <= outcome <= high) - 0.8)
    return np.array(out)


@pytest.mark.parametrize("forecast", KINDS)
def test_kernel_errors__equal_the_sum_over_pairs(forecast):
    law = drawn(rows=300)
    x = law.predictions(forecast)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 300)
    source = source_of(forecast, law, weights=weights)
    value = cs.evaluate(source, cs.KCE(prediction_bandwidth=0.7))["kce"].value
    delta = weights * residuals_of(forecast, x, law.outcomes)
    points = np.log(x) if "log" in forecast else x
    points = points.reshape(300, -1)
    distances = ((points[:, None] - points) ** 2).sum(axis=2)
    terms = np.outer(delta, delta) * np.exp(-distances / (2 * 0.7**2))
    scale = weights.sum() ** 2 - (weights**2).sum()
    expected = (terms.sum() - np.trace(terms)) / scale
    assert value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("forecast", KINDS)
def test_bias__is_the_mean_residual(forecast):
    law = drawn()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, N)
    estimate = cs.evaluate(source_of(forecast, law, weights=weights), "bias")["bias"]
    residuals = residuals_of(forecast, law.predictions(forecast), law.outcomes)
    assert estimate.value == pytest.approx(np.average(residuals, weights=weights), abs=1e-12)
    details = estimate.details
    assert estimate.value == pytest.approx(details["predicted"] - details["observed"], abs=1e-12)


def test_intervals_of_bias__are_student_s_and_those_of_clopper_and_pearson():
    law = drawn()
    forecast = "exceedance(threshold=2)"
    interval = cs.evaluate(source_of(forecast, law), "bias", interval=True)["bias"].interval
    residuals = law.predictions(forecast) - (law.outcomes > 2)
    error = residuals.std(ddof=1) / np.sqrt(N)
    ends = residuals.mean() + np.array([-1, 1]) * t.ppf(0.975, N - 1) * error
    assert (interval.low, interval.high) == pytest.approx(tuple(ends), rel=1e-9)
    source = source_of("quantile(level=0.9)", law)
    interval = cs.evaluate(source, "bias", interval=True)["bias"].interval
    below = int((law.outcomes <= law.quantile(0.9)).sum())
    low = beta.ppf(0.025, below, N - below + 1) - 0.9
    high = beta.ppf(0.975, below + 1, N - below) - 0.9
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-9)


def test_scores__equal_those_of_scikit_learn():
    law = drawn()
    x, y = 1.1 * law.mean, law.outcomes
    weights = np.random.default_rng(1).uniform(0.5, 2.0, N)
    source = source_of("mean", law, factor=1.1, weights=weights)
    scores = cs.evaluate(
        source, ["squared_error", cs.Deviance(1), cs.Deviance(2), cs.Deviance(1.5)]
    )
    expected = [mean_squared_error(y, x, sample_weight=weights)]
    for power in (1, 2, 1.5):
        expected.append(mean_tweedie_deviance(y, x, power=power, sample_weight=weights))
    assert [e.value for e in scores.estimates] == pytest.approx(expected, rel=1e-9)
    source = source_of("quantile(level=0.9)", law, weights=weights)
    loss = cs.evaluate(source, "pinball_loss")["pinball_loss"].value
    expected = mean_pinball_loss(y, law.quantile(0.9), alpha=0.9, sample_weight=weights)
    assert loss == pytest.approx(expected, rel=1e-9)


def test_interval_score__is_winkler_s():
    law = drawn()
    result = cs.evaluate(source_of("interval(coverage=0.8)", law), ["interval_score", "coverage"])
    low, high = law.quantile(0.1), law.quantile(0.9)
    score = high - low
    score = score + 2 / 0.2 * np.where(law.outcomes < low, low - law.outcomes, 0)
    score = score + 2 / 0.2 * np.where(law.outcomes > high, law.outcomes - high, 0)
    assert result["interval_score"].value == pytest.approx(score.mean(), rel=1e-9)
    covered = (low <= law.outcomes) & (law.outcomes <= high)
    assert result["coverage"].value == pytest.approx(covered.mean(), rel=1e-12)
    assert result["coverage"].details["expected"] == pytest.approx(0.8)
    assert result["coverage"].details["mean_width"] == pytest.approx((high - low).mean())


def test_expectile_loss__is_asymmetric():
    law = drawn()
    forecast = cs.ExpectilePrediction(0.8)
    source = cs.from_arrays(predictions=law.mean, forecast=forecast, labels=law.outcomes)
    below = law.outcomes <= law.mean
    expected = (np.abs(below - 0.8) * (law.mean - law.outcomes) ** 2).mean()
    assert cs.evaluate(source, "expectile_loss").estimates[0].value == pytest.approx(expected)
    expected = (2 * np.abs(below - 0.8) * (law.mean - law.outcomes)).mean()
    assert cs.evaluate(source, "bias").estimates[0].value == pytest.approx(expected)


@pytest.mark.long
@pytest.mark.parametrize("forecast", KINDS)
def test_verdicts__tell_calibrated_predictions_from_wrong_ones(forecast):
    assert cs.check(source_of(forecast), n_replicates=99).judgement.state != "miscalibrated"
    # Intervals that are shifted upwards by half of themselves cover nearly as many outcomes.
    factor = 0.5 if forecast.startswith("interval") else 1.5
    wrong = cs.check(source_of(forecast, factor=factor), n_replicates=199)
    assert wrong.judgement.state == "miscalibrated"
    assert "points too" not in wrong.judgement.sentence  # outcomes are in units of their own


def test_sentences__name_the_response():
    means = cs.evaluate(source_of("mean", factor=1.5), "bias", interval=True)
    assert "the mean outcome is 2.0" in means.judgement.sentence
    assert "and 2.993 is predicted" in means.judgement.sentence
    quantiles = cs.evaluate(source_of("quantile(level=0.9)", factor=0.6), "bias", interval=True)
    assert "the share of outcomes above is" in quantiles.judgement.sentence
    assert "10.0 % is predicted" in quantiles.judgement.sentence
    intervals = cs.check(source_of("interval(coverage=0.8)", factor=0.8), n_replicates=199)
    assert "lie in the 80 % intervals" in intervals.judgement.sentence


def test_signs_of_bias__are_positive_for_predictions_that_are_too_high():
    for forecast in KINDS:
        high, low = (cs.evaluate(source_of(forecast, factor=f), "bias") for f in (1.5, 0.6))
        if forecast.startswith("interval"):
            low = cs.evaluate(source_of(forecast, factor=0.3), "bias")
            assert low.estimates[0].value < 0
            continue
        assert high.estimates[0].value > 0 > low.estimates[0].value, forecast


@pytest.mark.parametrize(
    "forecast", ["median", "exceedance(threshold=2)", "interval(coverage=0.8)"]
)
def test_draws_of_events__have_the_claimed_probabilities(forecast):
    law = drawn(rows=400)
    source = source_of(forecast, law)
    test = cs.calibration_test(source, "bias", n_replicates=2000).results[0]
    assert test.null == "labels"
    values = np.array(test.null_values)
    p = {"median": 0.5, "interval(coverage=0.8)": 0.2}.get(forecast, law.predictions(forecast))
    # E|mean of n independent residuals| of a nearly normal sum, by its variance.
    deviation = np.sqrt(np.sum(p * (1 - p) * np.ones(400))) / 400
    # 2,000 draws of a half-normal value have a relative standard error of 1.7 %.
    assert values.mean() == pytest.approx(deviation * np.sqrt(2 / np.pi), rel=0.06)


def test_kernel_tests_of_events__draw_the_same_residuals_by_pairs_and_by_series():
    law = drawn(rows=400)
    source = source_of("quantile(level=0.9)", law)
    tests = [
        cs.calibration_test(source, cs.KCE(prediction_bandwidth=1.0, method=m), n_replicates=19)
        for m in ("tiles", "spectral")
    ]
    by_pairs, by_series = (test.results[0].null_values for test in tests)
    np.testing.assert_allclose(by_pairs, by_series, rtol=1e-6, atol=1e-9)


@pytest.mark.long
def test_sources__have_the_same_estimates(tmp_path):
    law = drawn()
    for forecast in ("mean", "interval(coverage=0.8)"):
        source = source_of(forecast, law)
        expected = cs.evaluate(source)
        path = tmp_path / f"{forecast.partition('(')[0]}.zarr"
        store = cs.LogitStore.create(path, forecast=forecast)
        with store.writer() as writer:
            writer.append(law.predictions(forecast), law.outcomes)
        for found, estimate in zip(cs.evaluate(path).estimates, expected.estimates, strict=True):
            assert found.value == pytest.approx(estimate.value, rel=1e-12)
        accumulator = cs.Accumulator(forecast=forecast)
        for rows in np.array_split(np.arange(N), 4):
            x = law.predictions(forecast)[rows]
            accumulator.update(predictions=x, labels=law.outcomes[rows])
        batches = accumulator.compute()
        for name in [estimate.estimator for estimate in expected.estimates][:2]:
            assert batches[name].value == pytest.approx(expected[name].value, rel=1e-9)
        # The bandwidth is that of the first rows, and features of intervals err by some percent.
        assert batches["kce"].value is not None


def test_open_sides__are_infinite():
    rng = np.random.default_rng(0)
    y = rng.normal(size=N)
    high = np.full(N, 1.2815515655446004)  # the quantile of level 0.9
    intervals = np.column_stack([np.full(N, -np.inf), high])
    source = cs.from_arrays(predictions=intervals, forecast="interval(coverage=0.9)", labels=y)
    result = cs.evaluate(source, interval=True)
    assert result["coverage"].value == pytest.approx((y <= high).mean())
    assert result["interval_score"].value is None or np.isinf(result["interval_score"].value)
    assert cs.check(source, n_replicates=99).judgement.state != "miscalibrated"


FAULTS = {
    "interval(coverage=0.8)": (
        [[0.0, 1.0], [2.0, 1.0]],
        "its interval ends at 1, below its start 2",
    ),
    "mean(scale=log)": ([1.0, 0.0], "its prediction is 0, not positive"),
    "exceedance(threshold=1)": ([0.5, 1.2], "its probability is 1.2, above 1"),
    "mean": ([0.5, np.nan], "not a number|missing|NaN"),
}


@pytest.mark.parametrize("forecast", FAULTS)
def test_invalid_predictions__are_named_or_dropped(forecast):
    predictions, message = FAULTS[forecast]
    source = cs.from_arrays(predictions=predictions, forecast=forecast, labels=[1.0, 2.0])
    with pytest.raises(cs.InvalidDataError, match=message):
        cs.evaluate(source, "bias")
    assert cs.evaluate(source, "bias", on_invalid="drop").n_dropped == 1


@pytest.mark.parametrize(
    ("forecast", "message"),
    [
        ("quantile(level=1.5)", "level must be in"),
        ("interval(coverage=90)", "coverage must be in"),
        ("expectile(level=0)", "level must be in"),
        ("mean(scale=square)", "scale must be one of identity, log"),
        ("exceedance(threshold=inf)", "threshold must be finite"),
    ],
)
def test_impossible_settings__are_refused(forecast, message):
    with pytest.raises(cs.OptionError, match=message):
        cs.from_arrays(predictions=[1.0], forecast=forecast, labels=[1.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: cs.evaluate(s, "ece"), "ece is for predictions of classes, and these are mean"),
        (lambda s: cs.evaluate(s, "crps"), "crps is for predictions of forecasts"),
        (lambda s: cs.calibration_test(s, null="labels"), "do not say how outcomes vary"),
        (lambda s: cs.select(s, "top_label"), "notion 'top_label' is for predictions of classes"),
        (lambda s: cs.evaluate(s, "interval_score"), "is for predictions of intervals"),
        (lambda s: cs.evaluate(s, "coverage"), "is for predictions of forecasts or intervals"),
        (lambda s: cs.power(s, cs.Miscalibration(0.1)), "power is for predictions of classes or"),
        (lambda s: cs.forecast_events(s, level=0.5), r"no forecasts but predictions \(mean\)"),
        (lambda s: cs.audit(s, ["a"]), "do not say how outcomes vary"),
        (lambda s: cs.evaluate(s, cs.Deviance(2)), "needs outcomes positive"),
    ],
)
def test_features_for_other_claims__say_so(call, message):
    source = cs.from_arrays(predictions=[1.0, 2.0], forecast="mean", labels=[0.0, 2.0])
    with pytest.raises(cs.OptionError, match=message):
        call(source)


def test_few_effective_residuals__are_noted():
    rng = np.random.default_rng(0)
    mean = rng.lognormal(0.0, 1.0, 300)
    outcomes = mean * rng.lognormal(-2.0, 2.0, 300)
    source = cs.from_arrays(predictions=mean, forecast="mean", labels=outcomes)
    test = cs.calibration_test(source, "smooth_test", n_replicates=99).results[0]
    assert "as if there were" in " ".join(test.details["notes"])
    even = cs.from_arrays(predictions=mean, forecast="mean", labels=mean + rng.normal(size=300))
    assert (
        "notes" not in cs.calibration_test(even, "smooth_test", n_replicates=99).results[0].details
    )


def test_reliability__has_the_means_of_bins():
    law = drawn()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, N)
    result = cs.reliability(source_of("mean", law, factor=1.2, weights=weights), bins=6)
    for b in result.bins:
        x = 1.2 * law.mean
        # The outer bins are open.
        low = -np.inf if b is result.bins[0] else b.lower
        high = np.inf if b is result.bins[-1] else b.upper
        rows = (low < x) & (x <= high)
        assert b.count == rows.sum()
        assert b.mean_p == pytest.approx(np.average(x[rows], weights=weights[rows]))
        assert b.frequency == pytest.approx(np.average(law.outcomes[rows], weights=weights[rows]))
        delta, w = (x - law.outcomes)[rows], weights[rows]
        n = w.sum() ** 2 / (w**2).sum()
        squares = (w**2 * (delta - np.average(delta, weights=w)) ** 2).sum()
        half = t.ppf(0.975, n - 1) * np.sqrt(squares * n / (n - 1)) / w.sum()
        low, high = b.interval
        assert (high - low) / 2 == pytest.approx(half, rel=1e-9)
    gaps = [b.weight * abs(b.mean_p - b.frequency) for b in result.bins]
    assert result.overall.ece == pytest.approx(sum(gaps) / weights.sum())


@pytest.mark.parametrize("forecast", ["mean", "quantile(level=0.9)", "interval(coverage=0.8)"])
def test_reliability__is_shown_as_a_table_and_a_plot(forecast):
    result = cs.reliability(source_of(forecast, factor=0.7), bins=5)
    response = {"mean": "mean outcome"}.get(forecast, "share of outcomes")
    assert response.split()[0] in str(result)
    ax = result.plot()
    assert response in ax.get_title(loc="left") + ax.get_ylabel() + str(ax.texts)
    restored = cs.Reliability.from_dict(result.to_dict())
    assert restored.bins == result.bins


@pytest.mark.slow
@pytest.mark.parametrize("shape", [2.0, 0.5])
def test_default_tests_of_means__have_their_level(shape):
    rejected = 0
    for seed in range(400):
        rng = np.random.default_rng([seed, 500])
        mean = rng.lognormal(0.0, 0.5, 500)
        outcomes = mean * rng.gamma(shape, 1 / shape, 500)
        source = cs.from_arrays(predictions=mean, forecast="mean", labels=outcomes)
        result = cs.calibration_test(source, n_replicates=199, seed=seed)
        rejected += result.judgement.p_value <= 0.05
    # 400 sets of level 6.5 % have at most 9.5 % of rejections in 99 % of such runs.
    assert rejected / 400 <= 0.095
