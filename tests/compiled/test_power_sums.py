"""Kernel of sums of powers against sums by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from calibscale.statistics.row_moments import moment_sums

pytestmark = pytest.mark.kernels


def test_moment_sums__are_sums_of_powers_of_the_scores_and_weights(rng):
    scores, w = rng.normal(1.0, 3.0, (2, 500)), rng.gamma(2.0, size=500)
    # A row of weight 0 adds nothing, even with an infinite score.
    w[7] = 0.0
    scores[:, 7] = np.inf
    sums = moment_sums(scores, w)
    s, positive = np.delete(scores, 7, axis=1), np.delete(w, 7)
    np.testing.assert_allclose(sums.total, s @ positive, rtol=1e-12)
    np.testing.assert_allclose(sums.weight, positive.sum(), rtol=1e-12)
    for power, by_power in zip((2, 3, 4), (sums.second, sums.third, sums.fourth), strict=True):
        expected = [(positive**power * s**k).sum(axis=1) for k in range(power + 1)]
        np.testing.assert_allclose(by_power, np.transpose(expected), rtol=1e-12)
    of_first = moment_sums(scores[0], w)
    for field, of_both in zip(of_first, sums, strict=True):
        np.testing.assert_array_equal(field, of_both[0])


def test_moment_sums__without_weights_are_those_of_weights_of_1(rng):
    scores = rng.normal(size=100)
    for first, second in zip(
        moment_sums(scores, np.empty(0)), moment_sums(scores, np.ones(100)), strict=True
    ):
        np.testing.assert_array_equal(first, second)
