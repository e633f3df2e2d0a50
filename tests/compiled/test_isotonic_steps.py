"""Kernel of isotonic fits against the isotonic regression of SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from calibscale.compiled import isotonic_steps

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("rows_of_group", [1, 3])
def test_steps_of_means__are_the_thresholds_below_the_isotonic_fit(rng, rows_of_group):
    n = 60
    y = np.linspace(0.0, 1.0, n) + rng.normal(0.0, 0.5, n)
    weights = rng.uniform(0.5, 2.0, n)
    thresholds = np.linspace(-2.0, 3.0, 41)
    ends = np.arange(rows_of_group, n + 1, rows_of_group)
    ranks = np.searchsorted(thresholds, y)
    steps = np.empty(len(ends), np.int64)
    # The expectile of level 1/2 is the mean.
    isotonic_steps.set_steps(ends, y, ranks, weights, thresholds, 0.5, True, steps)
    by_group = weights.reshape(-1, rows_of_group).sum(axis=1)
    means = (weights * y).reshape(-1, rows_of_group).sum(axis=1) / by_group
    fit = isotonic_regression(means, weights=by_group).x
    np.testing.assert_array_equal(steps, np.searchsorted(thresholds, fit))
