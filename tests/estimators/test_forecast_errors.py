"""Kernel calibration errors of forecasts, their tests, and what else takes forecasts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import kstest

import calibscale as cs
from calibscale.predictions.kinds import forecast_of
from calibscale.predictions.validation import chunks
from calibscale.statistics.null_distributions import DrawnLabels
from tests.support import naive

N, BANDWIDTH, TARGET = 70, 0.4, 1.3
ANY = dict(bandwidth=TARGET, centre=0.5, frequencies=24)
rng = np.random.default_rng(20)
MEAN, SCALE = rng.normal(size=N), np.exp(0.4 * rng.normal(size=N))
Y = MEAN + 1.5 * SCALE * rng.normal(size=N) + 0.3
X = np.column_stack([rng.normal(size=N), rng.integers(0, 3, N)])
W = rng.exponential(size=N)


def gaussian(d, s, *_):
    return np.exp(-(d**2) / (2 * BANDWIDTH**2))


def laplace(d, s, *_):
    return np.exp(-d / BANDWIDTH)


def linear(d, s, *_):
    return s + gaussian(d, s)


def local(d, s, i, j):
    if X[i, 1] != X[j, 1]:
        return 0.0
    return gaussian(d, s) * np.exp(-((X[i, 0] - X[j, 0]) ** 2) / (2 * 0.7**2))


def normal(weights=None, **settings):
    return cs.from_arrays(
        predictions=(MEAN, SCALE),
        forecast=cs.NormalForecast(**{**ANY, **settings}),
        labels=Y,
        covariates=X,
        covariate_names=["x", "group"],
        weights=weights,
    )


def kinds(n=300, seed=0):
    """Source of calibrated forecasts of each kind."""
    rng = np.random.default_rng(seed)
    m, s = 1.5 * rng.normal(size=n), np.exp(0.4 * rng.normal(size=n))
    x = m + rng.normal(size=n)
    levels = cs.QuantileForecast((0.1, 0.25, 0.5, 0.75, 0.9))
    bins = cs.HistogramForecast((-6.0, -2.0, -1.0, 0.0, 1.0, 2.0, 6.0))
    members = m[:, None] + s[:, None] * rng.normal(size=(n, 21))
    quantiles = m[:, None] + s[:, None] * ndtri(np.array(levels.levels))
    shares, parts = rng.dirichlet(np.ones(6), n), rng.dirichlet(np.ones(2), n)
    mixture = np.hstack([parts, m[:, None] + [[-1.0, 1.0]], s[:, None] * [[0.5, 1.0]]])
    ordered = rng.dirichlet(np.ones(4), n)
    unit = rng.random(n)

    def source(forecast, values, labels=None):
        forecast = forecast_of(forecast)
        y = forecast.drawn(np.asarray(values), m, unit) if labels is None else labels
        return cs.from_arrays(
            predictions=values, forecast=forecast, labels=y, covariates=x, covariate_names=["x"]
        )

    return {
        "normal": source("normal", np.column_stack([m, s])),
        "mixture": source("mixture", mixture),
        "ensemble": source("ensemble", members[:, :20], members[:, 20]),
        "quantiles": source(levels, quantiles),
        "histogram": source(bins, shares),
        "ordinal": source(cs.OrdinalForecast(4), ordered),
    }


KINDS = kinds()


@pytest.mark.parametrize("weights", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    ("estimator", "kernel"),
    [
        (cs.KCE(prediction_bandwidth=BANDWIDTH, method="tiles"), gaussian),
        (
            cs.KCE(prediction_bandwidth=BANDWIDTH, prediction_kernel="laplace", method="tiles"),
            laplace,
        ),
        (cs.JKCE(cs.RandomFourier(bandwidth=BANDWIDTH), method="tiles"), linear),
        (cs.JKCE(cs.RandomFourier(bandwidth=BANDWIDTH), method="blocks", block=2 * N), linear),
        (
            cs.KLCE(
                ("x", "group"),
                prediction_bandwidth=BANDWIDTH,
                categorical=("group",),
                covariate_bandwidth={"x": 0.7},
                method="tiles",
            ),
            local,
        ),
    ],
    ids=["kce", "laplace", "jkce", "blocks", "klce"],
)
def test_tiles__of_normal_forecasts_are_the_closed_form(estimator, kernel, weights):
    value = cs.evaluate(normal(weights), estimator).estimates[0].value
    forecasts = list(zip(MEAN, SCALE, strict=True))
    expected = naive.normal_skce(forecasts, Y, kernel, TARGET, weights)
    assert value == pytest.approx(expected, rel=1e-10)  # rounding of 5,000 terms


@pytest.mark.parametrize("kind", KINDS)
def test_tiles__are_sums_of_products_of_embeddings(kind):
    source = KINDS[kind].part(0, 40, covariates=True).with_target()
    forecast, values = source.forecast, source.values
    y = np.asarray(source.labels, float)
    q = forecast.embedded(values, y)
    delta = q - forecast.of_outcomes(forecast.placed(values, y, np.arange(len(y))))
    expected = naive.vector_skce(q, delta, gaussian)
    kce = cs.KCE(prediction_bandwidth=BANDWIDTH, method="tiles")
    value = cs.evaluate(source, kce).estimates[0].value
    # the closed form of normal forecasts has the Gaussian itself in place of 16 waves
    assert value == pytest.approx(expected, rel=1e-4 if kind == "normal" else 1e-10)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("estimator", ["jkce", "ckce", "cmmd", "kce", "klce(covariates=['x'])"])
def test_estimates__do_not_depend_on_blocks_and_workers(kind, estimator):
    serial = cs.evaluate(KINDS[kind], estimator, scheduler="serial").estimates[0].value
    threaded = cs.evaluate(KINDS[kind], estimator, scheduler="threads:2").estimates[0].value
    cut = cs.evaluate(KINDS[kind], estimator, block_rows=77).estimates[0].value
    assert serial == threaded
    assert cut == pytest.approx(serial, rel=1e-9, abs=1e-15)


@pytest.mark.long
@pytest.mark.parametrize(
    ("features", "exact"),
    [
        (lambda seed: cs.JKCE(cs.RandomFourier(seed=seed)), cs.JKCE(method="tiles")),
        (lambda seed: cs.KCE(method="features", n_features=100, seed=seed), cs.KCE(method="tiles")),
    ],
    ids=["jkce", "kce"],
)
def test_features__cover_the_closed_form(features, exact):
    source = cs.from_arrays(
        predictions=(np.tile(MEAN, 8), np.tile(SCALE, 8)),
        forecast="normal",
        labels=np.tile(MEAN, 8) + 1.2 * np.tile(SCALE, 8) * rng.normal(size=8 * N),
    )
    expected = cs.evaluate(source, exact).estimates[0].value
    covered = 0
    for seed in range(100):
        estimate = cs.evaluate(source, features(seed)).estimates[0]
        covered += abs(estimate.value - expected) <= estimate.approximation.error
    assert covered >= 92  # of 95 expected; fewer have a probability of 6 % at 95 %


@pytest.mark.parametrize(("count", "reach", "error"), [(16, 17.0, 1.1e-5), (32, 33.0, 5e-7)])
def test_waves__are_the_gaussian_kernel(count, reach, error):
    forecast = cs.NormalForecast(bandwidth=2.0, centre=1.0, frequencies=count)
    y = np.linspace(-reach, reach, 500)
    products = forecast.of_outcomes(y) @ forecast.of_outcomes(y).T
    distances = np.subtract.outer(y, y) / 2.0  # up to `reach` bandwidths
    assert abs(products - np.exp(-0.5 * distances**2)).max() < error


def test_replicates__are_residuals_of_drawn_outcomes():
    source = normal().with_target()
    features = cs.RandomFourier(20, bandwidth=BANDWIDTH)
    jkce = cs.JKCE(features, kernel="gaussian")
    test = cs.calibration_test(source, jkce, n_replicates=5, seed=3).results[0]
    null = DrawnLabels(3)
    (chunk, _), *_ = chunks(source.read(0, N), source.rules())
    phi = features(chunk)[:, chunk.n_features :]
    norms = np.einsum("ij,ij->i", phi, phi)
    values = []
    for delta in null.vectors(chunk, 0, 5):
        C = delta.T @ phi
        values.append((np.vdot(C, C) - norms @ (delta**2).sum(axis=1)) / (N * (N - 1)))
    assert test.null_values == pytest.approx(np.array(values), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_level__is_exact(kind):
    statistics = ["jkce", "ckce", "kce", "klce(covariates=['x'])"]
    sets = 400
    rejected = np.zeros(len(statistics))
    for seed in range(sets):
        source = kinds(200, seed)[kind]
        tests = cs.calibration_test(source, statistics, n_replicates=19, seed=seed)
        rejected += [test.p_value <= 0.05 for test in tests.results]
    assert (rejected <= 36).all()  # 20 expected; 4 standard deviations
    assert (rejected >= 5).all()


@pytest.mark.long
def test_errors_that_cancel__are_seen_by_kernels_and_not_by_pit():
    rng = np.random.default_rng(1)
    n = 5000
    mean, turn = rng.normal(size=n), rng.choice([-1.0, 1.0], n)
    half, scales = np.full((n, 2), 0.5), np.ones((n, 2))
    source = cs.from_arrays(
        predictions=np.hstack([half, np.column_stack([mean, mean + turn]), scales]),
        forecast="mixture",
        labels=mean + rng.normal(size=n),
        covariates=turn,
        covariate_names=["turn"],
    )
    pit = source.forecast.pit(source.values, source.labels, np.arange(n))
    assert kstest(pit, "uniform").pvalue > 0.05
    tests = cs.calibration_test(source, ["ckce", "klce(covariates=['turn'])"], n_replicates=99)
    assert [test.p_value for test in tests.results] == [0.01, 0.01]


@pytest.mark.long
@pytest.mark.parametrize("scale", [0.05, 1e-3, 1e-5, 0.0])
def test_p_values__of_sharp_forecasts_are_those_of_exact_residuals(scale, monkeypatch):
    rng = np.random.default_rng(8)
    mean = rng.normal(size=400)
    members = mean[:, None] + scale * rng.normal(size=(400, 6))
    source = cs.from_arrays(predictions=members[:, :5], forecast="ensemble", labels=members[:, 5])
    names = ["jkce", "kce(method='features', n_features=20)"]
    drawn = cs.calibration_test(source, names, n_replicates=99)
    monkeypatch.setattr(cs.EnsembleForecast, "of_waves", False)  # residuals of each outcome
    exact = cs.calibration_test(source, names, n_replicates=99)
    assert [t.p_value for t in drawn.results] == [t.p_value for t in exact.results]


# ---------------------------------------------------------------- what else takes forecasts


def test_forecast_events__have_the_probability_of_a_level_or_a_threshold():
    source = normal()
    z = (Y - MEAN) / SCALE
    brier = cs.evaluate(cs.forecast_events(source, level=0.8), "brier")["brier"].value
    assert brier == pytest.approx(2 * np.mean((0.8 - (ndtr(z) <= 0.8)) ** 2))
    p = ndtr((0.5 - MEAN) / SCALE)
    brier = cs.evaluate(cs.forecast_events(source, threshold=0.5), "brier")["brier"].value
    assert brier == pytest.approx(2 * np.mean((p - (Y <= 0.5)) ** 2))


def test_forecast_events__at_thresholds_between_two_have_the_bias_of_the_mean():
    rng, n, low, high = np.random.default_rng(5), 4000, -5.0, 6.0
    x = rng.choice([-1.0, 1.0], n)
    source = cs.from_arrays(
        predictions=(np.zeros(n), np.ones(n)),
        forecast="normal",
        labels=rng.normal(size=n) + 0.5 * (x > 0),
        covariates=x,
        covariate_names=["x"],
    )
    klce = cs.KLCE(["x"], categorical=["x"], prediction_kernel="none")
    events = cs.forecast_events(source, threshold=(low, high))
    bias = cs.local_bias(events, klce, at=(None, [[-1.0], [1.0]]))
    # four standard errors of 2,000 events with a mean variance of 0.05
    np.testing.assert_allclose(
        (high - low) * bias.bias, [0.0, -0.5], atol=4 * 11 * (0.05 / 2000) ** 0.5
    )


@pytest.mark.parametrize(
    "threshold", [np.nan, (), "1", (1.0, 0.0), (0.0, np.inf), (0, 1, 2), [[0, 1]]]
)
def test_forecast_events__refuse_impossible_thresholds(threshold):
    with pytest.raises(cs.OptionError, match=r"a finite number or \(low, high\)"):
        cs.forecast_events(normal(), threshold=threshold)


@pytest.mark.parametrize("kind", KINDS)
def test_forecast_events__of_calibrated_forecasts_happen_as_often_as_predicted(kind):
    for settings in (dict(level=0.3), dict(threshold=1.0), dict(threshold=(-0.5, 2.0))):
        events = cs.forecast_events(KINDS[kind], **settings)
        test = cs.calibration_test(events, "ece(bins=1, notion=positive)", n_replicates=199)
        assert test.results[0].p_value > 0.005


@pytest.mark.long
def test_power__finds_fewer_rows_for_a_larger_bias():
    source = KINDS["normal"]
    few, many = (
        cs.power(source, cs.Miscalibration(**bias), trials=20, n_replicates=19, max_rows=2000).rows
        for bias in (dict(shift=0.3), dict(temperature=1.8))
    )
    assert few < many


def test_power__refuses_ensembles():
    with pytest.raises(cs.OptionError, match="ensembles have no distribution"):
        cs.power(KINDS["ensemble"], cs.Miscalibration(shift=0.3))


@pytest.mark.long
def test_select__estimates_the_squared_error_of_embeddings():
    rng = np.random.default_rng(3)
    mean = rng.normal(size=3000)
    values = [
        cs.select(
            cs.from_arrays(
                predictions=(mean, np.ones(3000)),
                forecast=cs.NormalForecast(bandwidth=1.0),
                labels=mean + bias + rng.normal(size=3000),
            )
        ).selected.estimate
        for bias in (0.0, 1.0)
    ]
    # |E ψ(Z) − E ψ(Z + 1)|² = 2 (1 − exp(−1/6)) / √3, of variances 1 + 1 + 1
    assert values[0] < 0.002
    assert values[1] == pytest.approx(2 * (1 - np.exp(-1 / 6)) / np.sqrt(3), rel=0.1)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: cs.evaluate(s, "ece"),
        lambda s: cs.evaluate(s, cs.KCE(notion="top_label")),
        lambda s: cs.evaluate(s, cs.KCE(method="tiles", precision="float32")),
        lambda s: cs.audit(s, ["x"]),
        lambda s: cs.local_bias(s, ["x"]),
        lambda s: cs.recalibrate(s, "platt"),
        lambda s: cs.select(s, "top_label"),
        lambda s: cs.select(s, estimators=["kde"]),
        lambda s: cs.calibration_test(s, "kce", null="hoeffding"),
    ],
)
def test_what_is_for_classes__says_so(call):
    with pytest.raises(cs.OptionError, match="for predictions of classes"):
        call(normal())


def test_interval__of_a_calibrated_model_includes_0():
    estimate = cs.evaluate(KINDS["normal"], "jkce", interval=True)["jkce"]
    assert estimate.interval.low == 0.0 < estimate.interval.high


@pytest.mark.parametrize("null", ["wild", "residual"])
def test_other_nulls__take_the_residuals_of_forecasts(null):
    mean = np.concatenate([MEAN, MEAN])
    source = cs.from_arrays(
        predictions=(mean, np.ones(2 * N)),
        forecast="normal",
        labels=mean + rng.normal(size=2 * N) * 3.0,
    )
    test = cs.calibration_test(source, "ckce", null=null, n_replicates=39)
    assert test.results[0].p_value <= 0.05


MANY = 3500  # rows above which the default method needs no sums over pairs


def many(kind, outcomes_scale=1.0, weighted=False):
    """Forecasts of `MANY` rows of a kind, with outcomes of another scale than predicted."""
    rng = np.random.default_rng(11)
    mean, scale = rng.normal(size=MANY), np.exp(0.3 * rng.normal(size=MANY))
    y = mean + outcomes_scale * scale * rng.normal(size=MANY)
    predictions = np.column_stack([mean, scale])
    if kind == "ensemble":
        predictions = mean[:, None] + scale[:, None] * rng.normal(size=(MANY, 4))
    return cs.from_arrays(
        predictions=predictions,
        forecast=kind,
        labels=y,
        weights=rng.exponential(size=MANY) if weighted else None,
    )


@pytest.mark.long
@pytest.mark.parametrize("normalization", ["pairs", "kernel_sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_landmarks__equal_the_sum_over_all_pairs(normalization, weighted):
    """The default method of many rows is by landmarks, and its error covers the difference.

    Tiles of normal forecasts have the exact kernel on targets.  The kernel of 16 waves differs from
    it by 1e-5 at most.
    """
    source = many("normal", 1.2, weighted)
    estimator = cs.SKCE(normalization=normalization)
    default, exact = (
        cs.evaluate(source, [dataclasses.replace(estimator, method=method)], interval="jackknife")
        for method in ("auto", "tiles")
    )
    default, exact = default.estimates[0], exact.estimates[0]
    if normalization == "kernel_sum":  # which needs all pairs
        assert default.value == exact.value
        return
    assert default.approximation.kind == "low_rank"
    assert abs(default.value - exact.value) <= default.approximation.error + 1e-5 * exact.value
    assert default.approximation.error < 1e-3 * exact.value
    # Both intervals have the same form.  The noise of groups is wider than the noise of rows.
    assert default.interval.method == exact.interval.method
    length, shortest = (
        estimate.interval.high - estimate.interval.low for estimate in (default, exact)
    )
    assert 0.7 * shortest < length < 2.0 * shortest


@pytest.mark.long
def test_landmarks__that_do_not_reproduce_the_kernel_are_not_the_default():
    source = many("ensemble")
    assert cs.evaluate(source, "kce")["kce"].approximation.kind == "exact"
    with pytest.raises(cs.OptionError, match="do not reproduce the kernel for all rows"):
        cs.evaluate(source, "kce(method=landmarks)")


@pytest.mark.long
@pytest.mark.parametrize("count", [4, 10])
def test_landmarks__are_judged_by_all_rows(count):
    """A sample of rows may lack the few rows that have most of the weight."""
    rng = np.random.default_rng(count)
    mean = np.zeros(MANY + 500)
    mean[:count] = np.linspace(2.0, 8.0, count)
    weights = np.ones(len(mean))
    weights[:count] = 2000.0
    y = mean + rng.normal(size=len(mean))
    y[:count] += 3.0
    predictions = np.column_stack([mean, np.ones(len(mean))])
    source = cs.from_arrays(predictions=predictions, forecast="normal", labels=y, weights=weights)
    estimate = cs.evaluate(source, "kce")["kce"]
    exact = cs.evaluate(source, "kce(method=tiles)")["kce"]
    assert abs(estimate.value - exact.value) <= 1e-4 * abs(exact.value)


@pytest.mark.long
@pytest.mark.parametrize("invalid", [False, True])
def test_landmarks__with_covariates_are_within_the_stated_error(invalid):
    """One column with few values beside the two parameters of a forecast."""
    rng = np.random.default_rng(5)
    source = many("normal", 1.2)
    x = rng.integers(0, 2, MANY).astype(float)
    if invalid:
        x[17] = np.nan
    table = cs.from_arrays(
        predictions=source.values,
        forecast="normal",
        labels=source.labels,
        covariates=x,
        covariate_names=["x"],
    )
    options = {"on_invalid": "drop"}
    for kernel in ("klce(covariates=['x'])", "klce(covariates=['x'],categorical=['x'])"):
        exact = f"{kernel[:-1]},method=tiles)"
        default = cs.evaluate(table, kernel, **options).estimates[0]
        value = cs.evaluate(table, exact, **options).estimates[0].value
        assert abs(default.value - value) <= default.approximation.error + 1e-5 * value


@pytest.mark.long
def test_landmarks__of_some_models_only_are_used_for_none():
    """Ranking compares models by one method, in any order of the models."""
    models = {"normal": many("normal"), "ensemble": many("ensemble")}
    for names in (["normal", "ensemble"], ["ensemble", "normal"]):
        ranking = cs.rank({name: models[name] for name in names}, "kce")
        assert ranking.probabilities.size == 4


@pytest.mark.slow
@pytest.mark.process
def test_landmarks__give_the_bits_of_any_workers():
    source = many("normal")
    options = {"interval": "jackknife", "block_rows": 512}
    results = [
        cs.evaluate(source, "kce", scheduler=scheduler, **options)["kce"]
        for scheduler in ("serial", "threads:2", "local:2")
    ]
    assert results[0] == results[1] == results[2]
