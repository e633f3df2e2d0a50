"""Means of waves over distributions, and products of normal forecasts, against quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from calibscale.compiled import tiles, waves
from tests.support import naive

pytestmark = pytest.mark.kernels

ROOTS = np.array([1.0, 0.5, 0.25, 2.0, 0.125])  # not a power of 2: the last doubling is cut short
OMEGA = np.arange(len(ROOTS)) + 0.5
POINTS = np.array([0.0, 0.3, -2.0, 7.5])


def waves_at(y):
    """Definition of a row of `point_waves`."""
    return np.concatenate([ROOTS * np.cos(OMEGA * y), ROOTS * np.sin(OMEGA * y)])


def mean_wave(density, low, high):
    """Integral of the waves times a density between two bounds."""
    return integrate.quad_vec(lambda y: density(y) * waves_at(y), low, high, epsabs=1e-12)[0]


def test_point_waves__are_cosines_and_sines():
    out = np.empty((len(POINTS), 2 * len(ROOTS)))
    waves.point_waves(POINTS, ROOTS, out)
    np.testing.assert_allclose(out, [waves_at(y) for y in POINTS], atol=1e-14)


def test_normal_waves__are_means_over_mixtures():
    weights = np.array([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]])
    means = np.array([[0.0, 1.5], [-2.0, 9.0], [0.4, -0.4]])
    scales = np.array([[0.5, 1.2], [2.0, 1.0], [0.8, 0.0]])  # the last component is a point
    out = np.empty((3, 2 * len(ROOTS)))
    waves.normal_waves(weights, means, scales, ROOTS, out)

    def component(mean, scale):
        law = stats.norm(mean, scale).pdf
        return mean_wave(law, mean - 12 * scale, mean + 12 * scale) if scale else waves_at(mean)

    expected = [
        sum(w * component(m, s) for w, m, s in zip(*row, strict=True))
        for row in zip(weights, means, scales, strict=True)
    ]
    np.testing.assert_allclose(out, expected, atol=1e-10)  # that of the quadrature


def test_normal_waves__of_a_wide_forecast_are_0():
    out = np.empty((1, 2 * len(ROOTS)))
    waves.normal_waves(np.ones((1, 1)), np.zeros((1, 1)), np.full((1, 1), 1e100), ROOTS, out)
    assert np.all(np.abs(out) < 1e-100)


def test_uniform_waves__are_means_over_pieces():
    shares = np.array([[0.2, 0.8], [0.6, 0.4]])
    edges = np.array([[-1.0, 0.5, 2.0], [0.25, 0.25, 3.0]])  # the third piece is a point
    out = np.empty((2, 2 * len(ROOTS)))
    waves.uniform_waves(shares, edges, ROOTS, out)

    def piece(low, high):
        width = high - low
        return mean_wave(lambda y: 1.0 / width, low, high) if width else waves_at(low)

    expected = [
        sum(p * piece(a, b) for p, a, b in zip(row, at[:-1], at[1:], strict=True))
        for row, at in zip(shares, edges, strict=True)
    ]
    np.testing.assert_allclose(out, expected, atol=1e-10)  # that of the quadrature


def test_normal_products__are_the_closed_form():
    rng = np.random.default_rng(3)
    mean, variance, y = rng.normal(size=3), rng.uniform(0.1, 2.0, 3), rng.normal(size=3)
    means, variances, ys = rng.normal(size=4), rng.uniform(0.1, 2.0, 4), rng.normal(size=4)
    targets, shared = np.empty((2, 3, 4))
    tiles.normal_products(mean, variance, y, means, variances, ys, targets, shared)
    for i in range(3):
        for j in range(4):
            forecasts = naive.normal_overlap(mean[i] - means[j], variance[i] + variances[j], 1.0)
            crossed = naive.normal_overlap(mean[i] - ys[j], variance[i], 1.0)
            crossed += naive.normal_overlap(means[j] - y[i], variances[j], 1.0)
            product = naive.normal_overlap(y[i] - ys[j], 0.0, 1.0) - crossed + forecasts
            np.testing.assert_allclose(
                [targets[i, j], shared[i, j]], [product, forecasts], rtol=1e-13
            )


@pytest.mark.long
@pytest.mark.parametrize("width", [16, 144])  # in one product of matrices, and in two
def test_spread_rows__adds_rows_to_the_points_next_to_theirs(width):
    rng = np.random.default_rng(4)
    G, coefficients = 6, np.zeros((waves.DEGREE + 1, waves.TAPS))
    coefficients[-2:, :2] = [[-1.0, 1.0], [1.0, 0.0]]  # 1 − x and x: linear interpolation
    c = 230  # more than two blocks of 16 rows for each interval
    points, rows = rng.uniform(-20.0, 20.0, (2, c)), rng.normal(size=(c, width))
    points[1, :80] = 1.5  # more rows than a product of matrices takes at once
    points[0, 0] = -1e-20  # its position in its period is rounded to the end
    table, sums, products = (
        rng.normal(size=(c, G + waves.TAPS)),
        np.zeros((2, G + waves.TAPS, width)),
        np.empty((2, c)),
    )
    waves.spread_rows(points, coefficients, table, rows, sums, products)
    for b in range(2):
        expected = np.zeros_like(sums[b])
        for i, point in enumerate(points[b]):
            past = np.floor(point / (2 * np.pi))
            x = (point / (2 * np.pi) - past) * G
            sign = -1.0 if past % 2 else 1.0
            shares = np.zeros(G + waves.TAPS)
            shares[int(x)], shares[int(x) + 1] = sign * (1 - x % 1), sign * (x % 1)
            expected += np.outer(shares, rows[i])
            np.testing.assert_allclose(products[b, i], shares @ table[i], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(sums[b], expected, atol=1e-11)


@pytest.mark.long
def test_spread_rows__does_not_depend_on_the_other_replicates():
    rng = np.random.default_rng(5)
    G, c, m = 8, 300, 32
    coefficients = rng.normal(size=(waves.DEGREE + 1, waves.TAPS))
    points, table, rows = (
        rng.normal(size=(3, c)),
        rng.normal(size=(c, G + waves.TAPS)),
        rng.normal(size=(c, m)),
    )

    def spread(angles):
        sums, products = np.zeros((len(angles), G + waves.TAPS, m)), np.empty((len(angles), c))
        waves.spread_rows(angles, coefficients, table, rows, sums, products)
        return sums, products

    together = spread(points)
    for b in range(3):
        for joint, alone in zip(together, spread(points[b : b + 1]), strict=True):
            np.testing.assert_array_equal(joint[b], alone[0])
