"""Quantiles of the standard normal distribution, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibscale.compiled import normal_quantiles

pytestmark = pytest.mark.kernels


def test_quantiles__are_those_of_scipy():
    rng = np.random.default_rng(0)
    tails = 10.0 ** -np.linspace(1.0, 300.0, 200)  # both rational functions of a tail
    p = np.concatenate([rng.random(600), tails, 1.0 - tails[tails > 1e-15]])
    expected = stats.norm.ppf(p)
    np.testing.assert_allclose(normal_quantiles.quantiles(p), expected, rtol=2e-15)


@pytest.mark.parametrize("p", [0.425, 0.575, 0.075, 0.925, np.exp(-25.0)])
def test_quantiles__have_no_jump_between_two_formulas(p):
    around = np.array([np.nextafter(p, 0.0), p, np.nextafter(p, 1.0)])
    np.testing.assert_allclose(
        normal_quantiles.quantiles(around), stats.norm.ppf(around), rtol=2e-15
    )


def test_quantiles__of_0_and_1_are_infinite():
    ends = normal_quantiles.quantiles(np.array([0.0, 0.5, 1.0, np.nan]))
    np.testing.assert_array_equal(ends, [-np.inf, 0.0, np.inf, np.nan])
