"""Test statistics of PIT values, against naive sums over rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

import calibscale as cs


def normal(mean, scale, y, **options):
    q = np.column_stack([mean, scale])
    return cs.from_arrays(predictions=q, forecast="normal", labels=y, **options)


def test_normal_scores__of_normal_forecasts_are_standardised_outcomes():
    rng = np.random.default_rng(0)
    mean, scale = rng.normal(size=200), np.exp(rng.normal(size=200))
    y = mean + 1.3 * scale * rng.normal(size=200)
    z = (y - mean) / scale
    result = cs.evaluate(normal(mean, scale, y), "normal_scores")["normal_scores"]
    expected = (z.sum() ** 2 + (z**2 - 1).sum() ** 2 / 2) / 200
    assert result.value == pytest.approx(expected, rel=1e-9)
    assert result.details["mean_score"] == pytest.approx(z.mean(), rel=1e-9)
    assert result.details["dispersion"] == pytest.approx(np.sqrt((z**2).mean()), rel=1e-9)


def test_pit_smooth__is_a_sum_of_squared_legendre_scores():
    rng = np.random.default_rng(1)
    y, w = rng.normal(size=150), rng.exponential(size=150)
    source = normal(np.zeros(150), np.ones(150), y, weights=w)
    u = 2 * norm.cdf(y) - 1
    total = 0.0
    for degree in range(1, 9):
        polynomial = np.polynomial.legendre.Legendre.basis(degree)
        total += (2 * degree + 1) * (w @ polynomial(u)) ** 2
    value = cs.evaluate(source, "pit_smooth")["pit_smooth"].value
    assert value == pytest.approx(total / (w @ w), rel=1e-9)


ERRORS = {
    "normal_scores": lambda rng, m: 1.4 * rng.normal(size=len(m)),
    "pit_smooth": lambda rng, m: rng.exponential(size=len(m)) - 1.0,
    "pit_by_forecast": lambda rng, m: np.exp(0.5 * m - 0.25) * rng.normal(size=len(m)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_default_test__finds_what_a_member_finds(name):
    rng = np.random.default_rng(2)
    m = rng.normal(size=400)
    source = normal(m, np.ones(400), m + ERRORS[name](rng, m))
    result = cs.calibration_test(source, n_replicates=99)
    assert result[name].p_value == 0.01
    assert result.judgement.state == "miscalibrated"


def test_default_test__of_other_kinds_of_forecasts_runs():
    rng = np.random.default_rng(3)
    members = rng.normal(size=(80, 10))
    source = cs.from_arrays(predictions=members, forecast="ensemble", labels=rng.normal(size=80))
    assert all(
        member.p_value is not None
        for member in cs.calibration_test(source, n_replicates=19).results
    )


def test_replicates__of_any_blocks_and_workers_are_the_same():
    rng = np.random.default_rng(4)
    m = rng.normal(size=500)
    source = normal(m, np.ones(500), m + rng.normal(size=500))
    first = cs.calibration_test(source, "pit_by_forecast", n_replicates=19, scheduler="serial")
    second = cs.calibration_test(
        source, "pit_by_forecast", n_replicates=19, block_rows=64, scheduler="threads:2"
    )
    a, b = first.results[0].null_values, second.results[0].null_values
    np.testing.assert_allclose(a, b, rtol=1e-12)
