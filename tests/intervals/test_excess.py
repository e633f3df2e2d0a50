"""Limits and deviates of an excess of events, against SciPy's distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import gamma, norm, pearson3

from calibscale.intervals.excess import (
    excess_deviate,
    excess_limits,
    upper_tail,
    weighted_count_limits,
)


def test_upper_tail__is_the_pearson_distribution():
    z, skewness = np.meshgrid([-3.0, -0.4, 0.0, 1.0, 6.0], [0.0, 1e-3, 0.1, 2.0, 30.0])
    expected = [pearson3.sf(a, b) for a, b in zip(z.ravel(), skewness.ravel(), strict=True)]
    # the shape 4e6 of a skewness of 0.001 costs the gamma function digits
    np.testing.assert_allclose(upper_tail(z, skewness).ravel(), expected, rtol=1e-8)


def test_deviate__is_as_likely_as_the_size_of_the_excess():
    size, skewness = (a.ravel() for a in np.meshgrid([0.1, 1.0, 3.0, 8.0], [0.02, 0.5, 4.0]))
    tails = pearson3.sf(size, skewness) + pearson3.cdf(-size, skewness)
    for sign in (1.0, -1.0):
        z = excess_deviate(sign * 3 * size, np.full(12, 9.0), 27 * skewness)
        np.testing.assert_allclose(2 * norm.sf(sign * z), tails, rtol=1e-7)
        np.testing.assert_allclose(
            excess_deviate(3 * size, np.full(12, 9.0), -27 * skewness), sign * z, rtol=1e-12
        )


def test_deviate__is_unbounded_and_normal_without_skewness():
    far = excess_deviate(np.array([30.0, 60.0, 200.0]), np.ones(3), np.full(3, 0.1))
    assert (np.diff(far) > 0).all()
    assert np.isfinite(far).all()
    size = np.arange(40.0, 80.0, 0.1)  # from tails that float64 represents to smaller ones
    steps = np.diff(excess_deviate(size, np.ones(size.size), np.full(size.size, 0.1)))
    assert 0.0 < steps.min() < steps.max() < 0.1
    plain = excess_deviate(np.array([-50.0, 0.0, 2.0]), np.ones(3), np.zeros(3))
    np.testing.assert_array_equal(plain, [-50.0, 0.0, 2.0])
    certain = excess_deviate(np.array([-1.0, 0.0, 1.0]), np.zeros(3), np.zeros(3))
    np.testing.assert_array_equal(certain, [-np.inf, 0.0, np.inf])


@pytest.mark.parametrize("tail", [0.025, 1e-4])
def test_limits__of_many_counts_are_quantiles_too(tail):
    total = np.array([3.0, 399.0, 401.0, 1e4, 1e8])  # on both sides of the change to an expansion
    low, high = weighted_count_limits(total, total, np.ones(5), tail)
    deviation = np.sqrt(total)
    assert np.abs(low - gamma.ppf(tail, total)).max() < 1e-4 * deviation.max()
    assert (np.abs(low - gamma.ppf(tail, total)) < 1e-4 * deviation).all()
    assert (np.abs(high - gamma.isf(tail, total + 1)) < 1e-4 * deviation).all()


def test_limits__of_many_groups_are_those_of_each(rng):
    non_events, events = rng.exponential(size=(2, 5, 30))
    low, high = excess_limits(non_events, events, 0.025)
    single = [excess_limits(non_events[:, i], events[:, i], 0.025) for i in range(30)]
    np.testing.assert_allclose(np.stack([low, high], 1), single, rtol=1e-12)


@pytest.mark.parametrize("weights", ["inverse", "odds"])
def test_excess_limits__of_weights_that_follow_confidence_are_as_short_as_linearised(weights):  # S6
    """Weights 1/(1 − p + 0.001): a further failure is not in a row with p near 1."""
    lengths, covered, sets = [], 0, 200
    for k in range(sets):
        rng = np.random.default_rng((6, k))
        p = rng.random(3000)
        confidence = np.maximum(p, 1 - p)
        w = 1 / (1 - confidence + 0.001) * (confidence if weights == "odds" else 1.0)
        w /= w.sum()
        y = (rng.random(3000) < p).astype(float)
        terms = np.stack(
            [w * p, w * (1 - p), (w * p) ** 2, w * w * p * (1 - p), (w * (1 - p)) ** 2]
        )
        low, high = excess_limits(terms @ (1 - y), terms @ y, 0.025)
        excess = w @ (y - p)
        linearised = 3.92 * np.sqrt(np.sum((w * (y - p - excess)) ** 2))
        lengths.append((high - low) / linearised)
        covered += low <= 0 <= high
    assert 0.9 < np.median(lengths) < 1.2
    assert 0.93 - 3 * np.sqrt(0.05 * 0.95 / sets) < covered / sets


def test_excess_limits__keep_rows_of_large_weight_without_an_event():
    """Most of the weight is in few rows of p = 0.1. None of them was an event, but may be."""
    p = np.append(np.full(2990, 0.01), np.full(10, 0.1))
    y = np.append(np.ones(30), np.zeros(2970))
    w = np.append(np.full(2990, 1e-4), np.ones(10))
    terms = np.stack([w * p, w * (1 - p), (w * p) ** 2, w * w * p * (1 - p), (w * (1 - p)) ** 2])
    low, high = excess_limits(terms @ (1 - y), terms @ y, 0.025)
    # no event in ten rows: the frequency may be as high as 0.3
    assert high / w.sum() > 0.15
    assert low / w.sum() > -0.11
