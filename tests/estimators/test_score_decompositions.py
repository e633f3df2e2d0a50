"""Decompositions of scores of means: naive isotonic regression, cells, and parts of the score."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import xlogy

import calibscale as cs
from calibscale.statistics import ordered_sums
from calibscale.statistics.ordered_sums import keys_of


def naive_isotonic(x, y, w):
    """Isotonic regression of y on x by pooling neighbours, at each row (n,)."""
    blocks = []  # weight, weighted sum, rows
    for value in np.unique(x):
        rows = np.flatnonzero(x == value)
        blocks.append([w[rows].sum(), (w * y)[rows].sum(), list(rows)])
        while len(blocks) > 1 and blocks[-2][1] / blocks[-2][0] >= blocks[-1][1] / blocks[-1][0]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    fit = np.empty(len(x))
    for weight, total, rows in blocks:
        fit[rows] = total / weight
    return fit


def deviance(y, x, power):
    """Unit deviance of the Tweedie family, from its definition."""
    if power == 0:
        return (y - x) ** 2
    if power == 1:
        return 2 * (xlogy(y, y) - xlogy(y, x) - y + x)
    if power == 2:
        return 2 * (np.log(x / y) + y / x - 1)
    a, b = 1 - power, 2 - power
    of_fit = np.where(y == 0, 0.0, y * np.where(x == 0, 1.0, x) ** a)
    return 2 * (y**b / (a * b) - of_fit / a + x**b / b)


def rows(power, n=400, decimals=1, seed=0):
    """Predictions with ties, outcomes, some of which are 0, and weights (n,)."""
    rng = np.random.default_rng([seed, n])
    mean = rng.gamma(2.0, 1.0, n)
    x = np.round(mean**1.3 + 0.1, decimals)
    y = mean * rng.gamma(2.0, 0.5, n)
    if power < 2:
        y[rng.random(n) < 0.3] = 0.0
    return x, y, rng.uniform(0.5, 2.0, n)


def source_of(x, y, w=None, forecast="mean"):
    return cs.from_arrays(predictions=x, forecast=forecast, labels=y, weights=w)


@pytest.mark.parametrize("power", [0, 1, 1.5, 2, 3])
def test_parts__are_those_of_naive_isotonic_regression(power):
    x, y, w = rows(power)
    found = cs.evaluate(source_of(x, y, w), cs.Decomposition(power))["decomposition"]
    fit, mean = naive_isotonic(x, y, w), np.full(len(y), np.average(y, weights=w))
    score, recalibrated, constant = (
        np.average(deviance(y, claimed, power), weights=w) for claimed in (x, fit, mean)
    )
    assert found.value == pytest.approx(score - recalibrated, rel=1e-9)
    assert found.details["discrimination"] == pytest.approx(constant - recalibrated, rel=1e-9)
    assert found.details["uncertainty"] == pytest.approx(constant, rel=1e-9)
    assert found.details["score"] == pytest.approx(score, rel=1e-9)
    assert found.approximation.error == 0
    steps = found.details["steps"]
    expected = [fit[np.argmin(abs(x - low))] for low in steps["low"]]
    np.testing.assert_allclose(steps["observed"], expected, rtol=1e-9)
    assert np.sum(steps["weight"]) == pytest.approx(w.sum())


@pytest.mark.parametrize("power", [0, 1, 1.5])
def test_outcomes__that_are_all_0_have_no_uncertainty(power):
    source = source_of([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    found = cs.evaluate(source, cs.Decomposition(power))["decomposition"]
    for part in ("discrimination", "uncertainty"):
        assert found.details[part] == pytest.approx(0.0, abs=1e-12)
    assert found.value == pytest.approx(found.details["score"], rel=1e-12)


def test_squared_error__keeps_its_digits_far_from_0():
    """Squares of outcomes near 1e9 have no digits left for their distances."""
    x, y, w = rows(0)
    near, far = (
        cs.evaluate(source_of(x + shift, y + shift, w), "decomposition")["decomposition"]
        for shift in (0.0, 2.0**30)
    )
    # Predictions near 2³⁰ are rounded to 2⁻²².
    assert far.value == pytest.approx(near.value, rel=1e-5)
    assert far.details["discrimination"] == pytest.approx(near.details["discrimination"], rel=1e-5)


def test_probabilities_of_exceedances__have_the_parts_of_the_brier_score(rng):
    p = np.round(rng.beta(1.0, 2.0, 2000), 2)
    y = np.where(rng.random(2000) < p**1.2, 3.0, 1.0)
    found = cs.evaluate(source_of(p, y, forecast="exceedance(threshold=2)"), "decomposition")
    of_events = cs.from_arrays(probabilities=p, labels=(y > 2).astype(int), binary=True)
    corp = cs.evaluate(of_events, "corp")["corp"]
    assert found["decomposition"].value == pytest.approx(corp.value, rel=1e-9)
    for part in ("discrimination", "uncertainty", "score"):
        assert found["decomposition"].details[part] == pytest.approx(corp.details[part], rel=1e-9)


@pytest.mark.parametrize("power", [0, 1])
def test_cells__have_an_error_that_covers_the_exact_parts(power, monkeypatch):
    x, y, w = rows(power, n=20_000, decimals=9)
    exact = cs.evaluate(source_of(x, y, w), cs.Decomposition(power))["decomposition"]
    monkeypatch.setattr(ordered_sums, "MOST_KEYS", 4000)
    whole = cs.evaluate(source_of(x, y, w), cs.Decomposition(power))["decomposition"]
    blocks = cs.evaluate(source_of(x, y, w), cs.Decomposition(power), block_rows=1000)
    assert exact.approximation.error == 0
    assert 0 < whole.approximation.error < 0.02 * exact.value
    assert abs(whole.value - exact.value) <= whole.approximation.error
    assert blocks["decomposition"].value == pytest.approx(whole.value, rel=1e-9)
    for part in ("discrimination", "uncertainty"):
        difference = whole.details[part] - exact.details[part]
        assert abs(difference) <= whole.approximation.error


def test_parts__are_printed_below_the_table():
    x, y, _ = rows(0)
    printed = " ".join(str(cs.evaluate(source_of(x, y), "decomposition")).split())
    assert "decomposition: score " in printed
    assert " miscalibration − " in printed


def test_keys__are_in_the_order_of_numbers():
    x = np.array([-np.inf, -1e300, -2.5, -1e-310, -0.0, 0.0, 5e-324, 1e-9, 1.0, 1.5, 1e308])
    keys = keys_of(x)
    assert keys[4] == keys[5]
    assert (np.diff(np.delete(keys, 5)) > 0).all()
    # Cells of 2⁻¹², relative to the number.
    assert (keys_of(np.array([1.0, 1.0 + 2.0**-13])) >> 40 == keys_of(np.array([1.0])) >> 40).all()


def test_predictions__that_are_not_positive_have_no_deviance():
    source = source_of([-1.0, 2.0], [1.0, 2.0])
    with pytest.raises(cs.OptionError, match="deviance needs positive predictions"):
        cs.evaluate(source, "decomposition(power=1)")
    with pytest.raises(cs.OptionError, match="power must be 0 or at least 1"):
        cs.Decomposition(0.5)
    classes = cs.from_arrays(probabilities=[0.5, 0.5], labels=[0, 1], binary=True)
    with pytest.raises(cs.OptionError, match="is for predictions of means"):
        cs.evaluate(classes, "decomposition")
