"""Kernels of elementary scores against loops over rows and thresholds."""

from __future__ import annotations

import numpy as np
import pytest

from calibscale.compiled import threshold_scores

pytestmark = pytest.mark.kernels

THETA = np.array([-1.0, 0.0, 0.5, 2.0])


@pytest.fixture
def columns(rng):
    """Predictions of two models, outcomes and weights (c,), some of which equal a threshold."""
    numbers = np.round(2.0 * rng.normal(size=(3, 40))) / 2.0
    return (*numbers, rng.uniform(0.5, 2.0, 40))


def _score(x, y, theta, too_high, too_low):
    if y <= theta < x:
        return too_high * abs(y - theta)
    return too_low * abs(y - theta) if x <= theta < y else 0.0


def _scores(x, y, by_distance=True):
    out = np.zeros((len(x), len(THETA)))
    threshold_scores.set_scores(x, y, THETA, 0.5, 1.5, by_distance, out)
    return out


def test_set_scores__has_the_score_of_each_side(columns):
    x, _, y, _ = columns
    expected = [
        [_score(*row, theta, 0.5, 1.5) for theta in THETA] for row in zip(x, y, strict=True)
    ]
    np.testing.assert_array_equal(_scores(x, y), expected)


def test_set_scores__without_distances_are_the_factors(columns):
    x, _, y, _ = columns
    between = (np.minimum(x, y)[:, None] <= THETA) & (np.maximum(x, y)[:, None] > THETA)
    expected = between * np.where(y < x, 0.5, 1.5)[:, None]
    np.testing.assert_array_equal(_scores(x, y, by_distance=False), expected)


def test_add_differences__are_the_sums_of_powers(columns):
    a, b, y, w = columns
    first, second = _scores(a, y), _scores(b, y)
    sums, products = np.ones((7, 4)), np.ones((4, 4))
    threshold_scores.add_differences(first, second, w, sums, products)
    d = first - second
    wd = w[:, None] * d
    expected = [
        w @ d,
        w**2 @ d,
        w**3 @ d,
        w**3 @ d**2,
        w**3 @ d**3,
        w @ (d != 0),
        w**2 @ (d != 0),
    ]
    # Sums of 40 numbers of order 1, in another order.
    np.testing.assert_allclose(sums - 1.0, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(products - 1.0, wd.T @ wd, rtol=1e-12, atol=1e-12)
