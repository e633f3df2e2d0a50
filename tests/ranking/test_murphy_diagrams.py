"""Murphy diagrams against dense elementary scores, and bands of differences of models."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import integrate

import calibscale as cs

THETA = (0.12, 0.3, 1.0, 1.7, 2.5, 4.0)
# Sums of some thousand numbers of order 1, in another order.
CLOSE = dict(rtol=1e-12, atol=1e-14)


def of_expectile(x, y, theta, level):
    """Twice the elementary score of Ehm et al. (2016, eq. 12)."""
    positive = np.maximum(y - theta, 0.0) - np.maximum(x - theta, 0.0)
    return 2.0 * np.abs((y < x) - level) * (positive - (y - x) * (theta < x))


def of_quantile(x, y, theta, level):
    """Elementary score of Ehm et al. (2016, eq. 10)."""
    return ((y < x) - level) * ((theta < x) * 1.0 - (theta < y) * 1.0)


@pytest.fixture
def outcomes(rng):
    """Predictions of two models (n,), and outcomes around the first.  Some are equal."""
    mean = np.round(rng.gamma(2.0, size=6000), 1)
    return mean, 1.5 * mean**0.5, np.round(mean * rng.exponential(size=6000), 1)


def _source(x, y, forecast="mean", **columns):
    return cs.from_arrays(predictions=x, forecast=forecast, labels=y, **columns)


CASES = {
    "mean": (of_expectile, 0.5, "mean"),
    "expectile": (of_expectile, 0.8, "expectile(level=0.8)"),
    "quantile": (of_quantile, 0.7, "quantile(level=0.7)"),
    "median": (of_quantile, 0.5, "median"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_scores__are_those_of_each_row(rng, outcomes, case, weighted):
    score, level, forecast = CASES[case]
    x, _, y = outcomes
    w = rng.uniform(0.5, 2.0, len(x)) if weighted else None
    diagram = cs.murphy_diagram(_source(x, y, forecast, weights=w), thresholds=THETA)
    expected = [np.average(score(x, y, theta, level), weights=w) for theta in THETA]
    np.testing.assert_allclose(diagram.curves[0].score, expected, **CLOSE)


def test_scores__of_second_moments_and_exceedances_are_those_of_their_responses(outcomes):
    x, _, y = outcomes
    p = x / (1.0 + x)
    for forecast, claim, response in (
        ("second_moment", x, y * y),
        ("exceedance(threshold=1.05)", p, (y > 1.05) * 1.0),
    ):
        theta = (0.2, 0.5, 0.9)
        diagram = cs.murphy_diagram(_source(claim, y, forecast), thresholds=theta)
        expected = [of_expectile(claim, response, t, 0.5).mean() for t in theta]
        np.testing.assert_allclose(diagram.curves[0].score, expected, **CLOSE)


def test_scores__of_two_classes_are_those_of_the_estimator_murphy(rng):
    p = np.round(rng.random(800), 2)
    y = (rng.random(800) < p**1.3).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    curve = cs.evaluate(source, "murphy")["murphy"].details["murphy"]
    diagram = cs.murphy_diagram(source, thresholds=curve["threshold"])
    np.testing.assert_allclose(diagram.curves[0].score, curve["score"], **CLOSE)


def test_scores__integrate_to_half_the_squared_error(outcomes):
    x, _, y = outcomes
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    theta = np.linspace(low, high, 1000)
    score = cs.murphy_diagram(_source(x, y), thresholds=theta).curves[0].score
    # Scores have jumps, so that the error of the trapezoidal rule is of the order of a step.
    assert 2.0 * integrate.trapezoid(score, theta) == pytest.approx(np.mean((x - y) ** 2), rel=0.01)


def test_scores__do_not_depend_on_blocks_and_workers(outcomes):
    a, b, y = outcomes
    models = {"a": _source(a, y), "b": _source(b, y)}
    serial, threads = (
        cs.murphy_diagram(models, thresholds=THETA, block_rows=100, scheduler=scheduler)
        for scheduler in ("serial", "threads:2")
    )
    whole = cs.murphy_diagram(models, thresholds=THETA)
    for first, second, third in zip(
        serial.differences, threads.differences, whole.differences, strict=True
    ):
        np.testing.assert_array_equal(first.band_low, second.band_low)
        np.testing.assert_allclose(first.difference, third.difference, **CLOSE)


# ---------------------------------------------------------------- thresholds


def test_thresholds__are_quantiles_of_predictions(outcomes):
    few = slice(0, 900)  # all of these rows are in the sample
    a, b, y = (column[few] for column in outcomes)
    levels = (np.arange(10) + 0.5) / 10
    diagram = cs.murphy_diagram({"a": _source(a, y), "b": _source(b, y)}, thresholds=10)
    expected = np.unique(np.quantile(np.concatenate([a, b]), levels))
    np.testing.assert_array_equal(diagram.thresholds, expected)
    constant = cs.murphy_diagram(_source(np.full(900, 2.0), y), thresholds=10)
    np.testing.assert_array_equal(constant.thresholds, np.unique(np.quantile(y, levels)))


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [(0, "in 1..1000, not 0"), ([], "1 to 1000 finite"), ([1.0, np.nan], "1 to 1000 finite")],
)
def test_thresholds__that_are_impossible_are_refused(outcomes, thresholds, message):
    x, _, y = outcomes
    with pytest.raises(cs.OptionError, match=message):
        cs.murphy_diagram(_source(x, y), thresholds=thresholds)


# ---------------------------------------------------------------- differences


@pytest.mark.parametrize("weighted", [False, True])
def test_difference__has_the_covariances_of_independent_rows(rng, outcomes, weighted):
    a, b, y = outcomes
    w = rng.uniform(0.5, 2.0, len(y)) if weighted else np.ones(len(y))
    models = {
        name: _source(x, y, weights=w if weighted else None) for name, x in (("a", a), ("b", b))
    }
    (pair,) = cs.murphy_diagram(models, thresholds=THETA).differences
    d = np.array([of_expectile(a, y, t, 0.5) - of_expectile(b, y, t, 0.5) for t in THETA]).T
    mean = w @ d / w.sum()
    np.testing.assert_allclose(pair.difference, mean, **CLOSE)
    rows = w.sum() ** 2 / (w @ w)
    centred = w[:, None] * (d - mean)
    error = np.sqrt((centred**2).sum(axis=0)) / w.sum() * np.sqrt(rows / (rows - 1.0))
    skewness = (centred**3).sum(axis=0) / (centred**2).sum(axis=0) ** 1.5
    unequal = np.abs(d) > 1e-12  # sums of the formula round
    effective = (w @ unequal) ** 2 / ((w * w) @ unequal)
    np.testing.assert_allclose(pair.effective_rows, effective, rtol=1e-12)
    judged = effective >= 200
    assert 1 < judged.sum() < len(THETA)  # the case has both kinds of thresholds
    np.testing.assert_array_equal(pair.judged, judged)
    # One side has Student's quantile, and the other is longer by the skewness.
    from scipy.stats import norm
    from scipy.stats import t as student

    z = pair.critical_value
    quantile = student.ppf(norm.cdf(z), effective - 1.0)
    shift = skewness * (2.0 * z**2 + 1.0) / 6.0
    low = mean - error * (quantile + np.maximum(-shift, 0.0))
    high = mean + error * (quantile + np.maximum(shift, 0.0))
    np.testing.assert_allclose(pair.band_low[judged], low[judged], rtol=1e-9)
    np.testing.assert_allclose(pair.band_high[judged], high[judged], rtol=1e-9)
    assert np.isnan(pair.band_low[~judged]).all()
    assert np.isnan(pair.low[~judged]).all()


def test_band__of_one_threshold_is_the_pointwise_interval(outcomes):
    a, b, y = outcomes
    models = {"a": _source(a, y), "b": _source(b, y)}
    (pair,) = cs.murphy_diagram(models, thresholds=[1.7]).differences
    # The quantile of 20,000 draws has a standard error of 0.5 %, and is at least the exact one.
    assert pair.critical_value == pytest.approx(1.96, rel=0.03)
    assert pair.band_low[0] <= pair.low[0] < pair.difference[0] < pair.high[0] <= pair.band_high[0]


def test_bands__of_more_pairs_are_wider(outcomes):
    a, b, y = outcomes
    models = {"a": _source(a, y), "b": _source(b, y), "c": _source(a + 0.3, y)}
    two = cs.murphy_diagram({"a": models["a"], "b": models["b"]}, thresholds=THETA)
    three = cs.murphy_diagram(models, thresholds=THETA)
    assert [(d.first, d.second) for d in three.differences] == [("a", "b"), ("a", "c"), ("b", "c")]
    np.testing.assert_array_equal(three.differences[0].difference, two.differences[0].difference)
    assert three.differences[0].critical_value > two.differences[0].critical_value


def test_verdict__follows_from_the_band(rng):
    n = 4000
    mean = rng.gamma(2.0, size=n)
    y = mean * rng.exponential(size=n)
    flat = np.full(n, 2.0)
    noisy, equally_noisy = mean * np.exp(0.2 * rng.normal(size=(2, n)))

    def verdict(a, b, theta):
        models = {"a": _source(a, y), "b": _source(b, y)}
        return cs.murphy_diagram(models, thresholds=theta)

    clear = verdict(mean, flat, [1.0, 1.5, 2.5])
    assert clear.differences[0].first_smaller.all()
    assert clear.verdict == (
        "a has a smaller mean elementary score than b at all 3 thresholds from 1 to 2.50, by the "
        "simultaneous 95 % band."
    )
    assert verdict(flat, mean, [1.0, 1.5, 2.5]).verdict.startswith("b has a smaller mean")
    unclear = verdict(noisy, equally_noisy, [1.0, 1.5])
    assert not unclear.differences[0].first_smaller.any()
    assert unclear.verdict.startswith("No model has a smaller mean elementary score at any of")
    # Both have noise at low predictions, and one of them is too high at high predictions.
    too_high = np.where(mean < 2.0, equally_noisy, 1.6 * mean)
    some = verdict(noisy, too_high, [0.9, 1.2, 3.5, 4.0])
    (pair,) = some.differences
    assert (pair.first_smaller.sum(), pair.second_smaller.sum()) == (2, 0)
    assert some.verdict == (
        "Of 4 thresholds from 0.900 to 4, a has the smaller mean elementary score at 2, and 2 are "
        "undecided, by the simultaneous 95 % band."
    )
    assert verdict(mean, mean, [1.0]).verdict.startswith("Too few rows have different scores")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [1.0, 0.4])
def test_band__covers_all_expectations_as_often_as_it_says(shape):
    """Expectations are means over 10 million rows, whose error is far below a standard error."""
    theta = np.linspace(0.2, 6.0, 40)

    def rows(seed, n):
        rng = np.random.default_rng(seed)
        mean = rng.gamma(2.0, size=n)
        y = mean * rng.gamma(shape, 1.0 / shape, size=n)
        return mean * np.exp(0.2 * rng.normal(size=n)), 1.3 * mean**0.7, y

    def difference(a, b, y):
        models = {"a": _source(a, y), "b": _source(b, y)}
        return cs.murphy_diagram(models, thresholds=theta).differences[0]

    truth = np.mean([difference(*rows(1000 + i, 10**6)).difference for i in range(10)], axis=0)
    misses = 0
    trials = 400
    for seed in range(trials):
        pair = difference(*rows(seed, 3000))
        assert pair.judged.sum() > 5
        outside = (truth < pair.band_low) | (truth > pair.band_high)
        misses += bool(outside[pair.judged].any())
    # 5 % are expected, with a standard error of 1.1 %.  Skewed rows may add a percent.
    assert misses / trials < 0.05 + 0.01 + 3 * np.sqrt(0.05 * 0.95 / trials)


# ---------------------------------------------------------------- inputs and outputs


def test_models__of_other_rows_or_functionals_are_refused(outcomes):
    a, b, y = outcomes
    for other, message in (
        (_source(b[1:], y[1:]), "b has 5,999 rows and a has 6,000"),
        (_source(b, y, "median"), "predict different functionals"),
        (_source(b, y, weights=np.ones(len(y))), "one of a and b has weights"),
    ):
        with pytest.raises(cs.OptionError, match=message):
            cs.murphy_diagram({"a": _source(a, y), "b": other})
    changed = y.copy()
    changed[7] += 1.0
    with pytest.raises(cs.InvalidDataError, match=r"row 7 has the label .* the same rows"):
        cs.murphy_diagram({"a": _source(a, y), "b": _source(b, changed)})


def test_predictions__without_elementary_scores_are_refused(rng):
    y = rng.integers(0, 3, 50)
    classes = cs.from_arrays(probabilities=rng.dirichlet(np.ones(3), 50), labels=y)
    forecasts = cs.from_arrays(
        predictions=(np.zeros(50), np.ones(50)), forecast="normal", labels=rng.normal(size=50)
    )
    intervals = cs.from_arrays(
        intervals=(np.zeros(50), np.ones(50)), coverage=0.8, labels=rng.random(50)
    )
    for source, message in (
        (classes, "murphy_diagram is for predictions of a functional.*3 classes"),
        (forecasts, "forecasts .normal."),
        (intervals, "have no elementary scores: give means, expectiles, quantiles"),
    ):
        with pytest.raises(cs.OptionError, match=message):
            cs.murphy_diagram(source)


def test_invalid_rows__of_any_model_are_named_or_dropped(outcomes):
    a, b, y = outcomes
    bad = b.copy()
    bad[3] = np.nan
    models = {"a": _source(a, y), "b": _source(bad, y)}
    with pytest.raises(cs.InvalidDataError, match=r"row 3.*in b, its prediction is nan"):
        cs.murphy_diagram(models)
    kept = np.arange(len(y)) != 3
    dropped = cs.murphy_diagram(models, thresholds=THETA, on_invalid="drop")
    without = cs.murphy_diagram(
        {"a": _source(a[kept], y[kept]), "b": _source(b[kept], y[kept])}, thresholds=THETA
    )
    assert dropped.n == len(y) - 1
    for first, second in zip(dropped.curves, without.curves, strict=True):
        np.testing.assert_allclose(first.score, second.score, **CLOSE)


def test_rows__without_labels_leave_no_scores():
    unknown = [np.nan, np.nan]
    models = {name: _source([1.0, x], unknown) for name, x in (("a", 2.0), ("b", 3.0))}
    diagram = cs.murphy_diagram(models)
    assert (diagram.n, diagram.n_unlabelled, diagram.differences) == (0, 2, ())
    assert diagram.verdict == "There are no rows with a positive weight."
    json.dumps(diagram.to_dict(), allow_nan=False)


def test_rows__without_a_label_in_one_model_are_unlabelled(outcomes):
    a, b, y = outcomes
    unknown = y.copy()
    unknown[:5] = np.nan
    diagram = cs.murphy_diagram({"a": _source(a, y), "b": _source(b, unknown)}, thresholds=THETA)
    assert (diagram.n, diagram.n_unlabelled) == (len(y) - 5, 5)


def test_result__is_restored_from_json(outcomes):
    a, b, y = outcomes
    diagram = cs.murphy_diagram({"a": _source(a, y), "b": _source(b, y)}, thresholds=THETA)
    value = json.loads(json.dumps(diagram.to_dict(), allow_nan=False))
    restored = cs.MurphyDiagram.from_dict(value)
    assert restored.verdict == diagram.verdict
    assert str(restored) == str(diagram)
    np.testing.assert_array_equal(restored.differences[0].band_low, diagram.differences[0].band_low)
    assert max(map(len, str(diagram).splitlines())) <= 80
    frame = diagram.to_frame()
    assert len(frame) == 3 * len(THETA)
    assert frame[frame.minus == "b"].score.tolist() == diagram.differences[0].difference.tolist()


def test_plot__draws_a_line_for_each_model(outcomes):
    a, b, y = outcomes
    diagram = cs.murphy_diagram({"a": _source(a, y), "b": _source(b, y)}, thresholds=THETA)
    drawn = [line.get_ydata().tolist() for line in diagram.plot().lines]
    assert drawn == [curve.score.tolist() for curve in diagram.curves]


@pytest.mark.parametrize("label", [2, -5])
def test_labels_of_no_class__are_named_or_dropped(label):
    p = np.random.default_rng(0).random(300)
    labels = (p > 0.5).astype(int)
    labels[7] = label
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=labels)
    for curve in (cs.murphy_diagram, cs.concentration_curve):
        with pytest.raises(cs.InvalidDataError, match=f"row 7.*'labels' is {label}, outside 0..1"):
            curve(source)
        assert curve(source, on_invalid="drop").n == 299


@pytest.mark.parametrize("thresholds", ["10", 10.0, None, ["a"]])
def test_thresholds__must_be_numbers(thresholds):
    source = cs.from_arrays(predictions=[1.0, 2.0], forecast="mean", labels=[1.0, 3.0])
    with pytest.raises(cs.OptionError, match="finite numbers"):
        cs.murphy_diagram(source, thresholds=thresholds)
