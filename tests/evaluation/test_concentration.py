"""Concentration curves against sorted rows, and bounds of errors of cells."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import integrate, stats

import calibscale as cs

CLOSE = dict(rtol=1e-12, atol=1e-13)  # sums of some thousand numbers in another order


def _source(x, y, weights=None, forecast="mean"):
    return cs.from_arrays(predictions=x, forecast=forecast, labels=y, weights=weights)


def naive_curve(order, amount, w):
    """Corners of the curve of the shares of w·amount, with rows of equal order on one piece."""
    share, height = [0.0], [0.0]
    for value in np.unique(order):
        rows = order == value
        share.append(share[-1] + w[rows].sum() / w.sum())
        height.append(height[-1] + (w * amount)[rows].sum() / (w @ amount))
    return np.array(share), np.array(height)


def fast_curve(order, amount, w):
    """The same for rows with different orders."""
    rows = np.argsort(order)
    share, height = np.cumsum(w[rows]), np.cumsum((w * amount)[rows])
    return np.append(0.0, share / share[-1]), np.append(0.0, height / height[-1])


def area(curve):
    return integrate.trapezoid(curve[1], curve[0])


@pytest.mark.parametrize("weighted", [False, True])
def test_curves__are_those_of_sorted_rows(rng, weighted):
    x = np.round(rng.gamma(2.0, size=700), 1)
    y = rng.poisson(x).astype(float)
    w = rng.uniform(0.5, 2.0, 700) if weighted else np.ones(700)
    result = cs.concentration_curve(_source(x, y, w if weighted else None))
    concentration, lorenz, ideal = (
        naive_curve(*columns, w) for columns in ((x, y), (x, x), (y, y))
    )
    for name, curve in (("concentration", concentration), ("lorenz", lorenz), ("ideal", ideal)):
        at_shares = np.interp(result.share, *curve)
        np.testing.assert_allclose(getattr(result, name), at_shares, **CLOSE)
    assert result.exact
    assert result.curve_error == 0.0
    numbers = {
        "abc": area(concentration) - area(lorenz),
        "gini": 1.0 - 2.0 * area(lorenz),
        "concentration_index": 1.0 - 2.0 * area(concentration),
        "ideal_gini": 1.0 - 2.0 * area(ideal),
    }
    for name, expected in numbers.items():
        number = getattr(result, name)
        assert number.error == 0.0
        np.testing.assert_allclose(number.value, expected, **CLOSE)
    low, high = result.abc_interval
    measured = {name: getattr(result, name).value for name in numbers}
    assert result.metrics() == {**measured, "abc/low": low, "abc/high": high}
    # The area is a ratio of sums, whose variance follows by the delta method.
    ranks = np.array(
        [
            np.interp(0.5, [0, 1], concentration[0][k : k + 2])
            for k in np.searchsorted(np.unique(x), x)
        ]
    )
    factors = (1.0 - ranks - area(concentration)) / (w @ y)
    residuals = y - x * (w @ y) / (w @ x)
    error = np.sqrt(np.sum((w * factors * residuals) ** 2))
    n = w.sum() ** 2 / (w @ w)
    half = stats.t.ppf(0.975, n - 1.0) * error * np.sqrt(n / (n - 1.0))
    np.testing.assert_allclose((low + high) / 2.0, result.abc.value, **CLOSE)
    np.testing.assert_allclose((high - low) / 2.0, half, rtol=1e-9)


def test_curves__are_equal_where_predictions_are_the_outcomes(rng):
    y = rng.gamma(2.0, size=300)
    result = cs.concentration_curve(_source(y, y))
    np.testing.assert_allclose(result.concentration, result.ideal, **CLOSE)
    assert result.abc.value == pytest.approx(0.0, abs=1e-13)


@pytest.mark.long
@pytest.mark.parametrize("case", ["smooth", "heavy", "unordered"])
def test_errors__of_cells_cover_the_exact_values(rng, case):
    n = 100_000  # more than the 65,536 predictions that are kept
    x = rng.gamma(2.0, size=n) if case == "smooth" else rng.pareto(1.5, n) + 1e-3
    y = x * rng.exponential(size=n)
    if case == "unordered":
        x = 1.0 + 1e-4 * rng.random(n)  # all predictions are in few cells
    w = rng.uniform(0.5, 2.0, n)
    result = cs.concentration_curve(_source(x, y, w))
    assert not result.exact
    concentration, lorenz, ideal = (fast_curve(*columns, w) for columns in ((x, y), (x, x), (y, y)))
    for name, expected in (
        ("abc", area(concentration) - area(lorenz)),
        ("gini", 1.0 - 2.0 * area(lorenz)),
        ("concentration_index", 1.0 - 2.0 * area(concentration)),
        ("ideal_gini", 1.0 - 2.0 * area(ideal)),
    ):
        number = getattr(result, name)
        assert number.error > 0.0
        assert abs(number.value - expected) <= number.error + 1e-12, name
    for name, curve in (("concentration", concentration), ("lorenz", lorenz), ("ideal", ideal)):
        off = np.abs(getattr(result, name) - np.interp(result.share, *curve)).max()
        assert off <= result.curve_error + 1e-12
    if case != "unordered":
        assert result.abc.error < 1e-4


@pytest.mark.parametrize("scheduler", ["serial", "threads:2"])
def test_curves__do_not_depend_on_workers(rng, scheduler):
    x = rng.gamma(2.0, size=2000)
    source = _source(x, rng.poisson(x))
    whole = cs.concentration_curve(source)
    parts = cs.concentration_curve(source, block_rows=300, scheduler=scheduler)
    np.testing.assert_allclose(parts.concentration, whole.concentration, **CLOSE)
    again = cs.concentration_curve(source, block_rows=300, scheduler="serial")
    np.testing.assert_array_equal(parts.concentration, again.concentration)


def test_probabilities__of_two_classes_are_means(rng):
    p = rng.uniform(0.1, 0.9, 400)
    y = (rng.random(400) < p).astype(int)
    of_classes = cs.concentration_curve(cs.from_arrays(probabilities=p, labels=y, binary=True))
    of_means = cs.concentration_curve(_source(p, y.astype(float)))
    np.testing.assert_array_equal(of_classes.concentration, of_means.concentration)


def test_negative_numbers__and_sums_of_zero_are_refused(rng):
    x = rng.gamma(2.0, size=50)
    y = rng.exponential(size=50)
    for predictions, outcomes, message in (
        (np.append(x, 1.0), np.append(y, -2.5), "outcomes that are at least 0.*is -2.5"),
        (np.append(x, -1.0), np.append(y, 1.0), "predictions that are at least 0.*is -1"),
        (x, np.zeros(50), "the sum of the outcomes is 0"),
        (np.zeros(50), y, "the sum of the predictions is 0"),
    ):
        with pytest.raises(cs.OptionError, match=message):
            cs.concentration_curve(_source(predictions, outcomes))


def test_other_predictions__are_refused(rng):
    y = rng.random(50)
    classes = cs.from_arrays(
        probabilities=rng.dirichlet(np.ones(3), 50), labels=rng.integers(0, 3, 50)
    )
    for source, message in (
        (_source(y, y, forecast="median"), "is for predictions of means.*median"),
        (classes, "concentration_curve is for predictions of a functional"),
    ):
        with pytest.raises(cs.OptionError, match=message):
            cs.concentration_curve(source)


def test_result__is_restored_from_json_and_drawn(rng):
    x = rng.gamma(2.0, size=300)
    result = cs.concentration_curve(_source(x, rng.poisson(x)))
    value = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    restored = cs.ConcentrationCurve.from_dict(value)
    np.testing.assert_array_equal(restored.concentration, result.concentration)
    assert restored.abc == result.abc
    assert str(restored) == str(result)
    assert max(map(len, str(result).splitlines())) <= 80
    assert len(result.to_frame()) == len(result.share)
    drawn = [line.get_ydata().tolist() for line in result.plot().lines]
    assert result.concentration.tolist() in drawn


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, 0.7])
def test_interval__covers_the_area_of_the_expected_outcomes(power):
    """Predictions are calibrated with the power 1, and too near to each other with 0.7."""
    misses = 0
    trials = 600
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        mean = rng.gamma(2.0, size=1500)
        x = 2.0 * mean**power
        low, high = cs.concentration_curve(
            _source(x, mean * rng.exponential(size=1500))
        ).abc_interval
        misses += not low <= cs.concentration_curve(_source(x, mean)).abc.value <= high
    # 5 % are expected, with a standard error of 0.9 %.  Residuals of wrong predictions are larger
    # than the noise, so that their intervals are wider than necessary.
    assert misses / trials < 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials)
    assert misses > 0
