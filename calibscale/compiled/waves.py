"""Means of the waves cos ωy and sin ωy over distributions, at equally spaced frequencies ω.

Row i of `out` (c, 2D) is [r_d C(ω_d)], then [r_d S(ω_d)], with C and S the means of cos and sin,
ω_d = d + ½ in units of the step of the frequencies, and r_d one of the `roots` (D,).
"""

from __future__ import annotations

import numpy as np

from calibscale.compiled.elementary import exp, sincos
from calibscale.compiled.jit import inlined, kernel
from calibscale.compiled.tile_strips import whole

_LOWEST = -300.0  # exponent: smaller factors would have subnormal squares, which are slow
TAPS = 10  # points of a grid to which `spread_rows` adds a row, even
_ROWS = 256  # rows with weights that stay in cache
_NARROW = 1e-6  # half a width below which sin x / x is 1


@inlined("contract")
def _powers(angle, cosines, sines):
    """Cosines and sines of (d + ½)·angle.

    The numbers for d < k give the numbers for k ≤ d < 2k by the formulas for a sum of angles.
    """
    D = cosines.size
    s, c = sincos(0.5 * angle)
    cosines[0], sines[0] = c, s
    size = 1
    while size < D:
        s, c = 2.0 * s * c, (c - s) * (c + s)  # of known·angle
        for d in range(min(size, D - size)):
            cosines[size + d] = cosines[d] * c - sines[d] * s
            sines[size + d] = cosines[d] * s + sines[d] * c
        size *= 2


@inlined("contract")
def _polynomials(x, coefficients, values):
    """Values (TAPS, c) at x (c,) of polynomials with these coefficients, by Horner's rule."""
    for k in range(TAPS):
        row = values[k]
        for i in range(x.size):
            row[i] = coefficients[0, k]
        for j in range(1, coefficients.shape[0]):
            for i in range(x.size):
                row[i] = row[i] * x[i] + coefficients[j, k]


@inlined("contract")
def _add_multiples(row, a, first, b, second):
    for k in range(whole(row.size)):
        first[k] += a * row[k]
        second[k] += b * row[k]


@kernel
def point_waves(points, roots, out):
    """Waves of points.

    Axes:
        points (c,)
        roots (D,)
        out (c, 2D)
    """
    D = roots.size
    for i in range(points.size):
        row = out[i]
        _powers(points[i], row[:D], row[D:])
        for d in range(D):
            row[d] *= roots[d]
            row[D + d] *= roots[d]


@kernel
def normal_waves(weights, means, scales, roots, out):
    """Waves of mixtures of m normal distributions.  A distribution of scale 0 is a point.

    Axes:
        weights, means, scales (c, m)
        roots (D,)
        out (c, 2D)
    """
    D = roots.size
    cosines, sines, damping = np.empty(D), np.empty(D), np.ones(D)
    for i in range(means.shape[0]):
        row = out[i]
        row[:] = 0.0
        for j in range(means.shape[1]):
            _powers(means[i, j], cosines, sines)
            # The mean of exp(iωy) over a normal distribution is exp(iωμ − ω²σ²/2).
            w, half = weights[i, j], -0.5 * scales[i, j] ** 2
            if half < 0.0:
                for d in range(D):
                    damping[d] = exp(max(half * (d + 0.5) ** 2, _LOWEST))
                for d in range(D):
                    cosines[d] *= damping[d]
                    sines[d] *= damping[d]
            for d in range(D):
                row[d] += w * cosines[d]
                row[D + d] += w * sines[d]
        for d in range(D):
            row[d] *= roots[d]
            row[D + d] *= roots[d]


@kernel
def uniform_waves(shares, edges, roots, out):
    """Waves of distributions that are uniform between consecutive edges.

    Axes:
        shares (c, B)
        edges (c, B + 1)
        roots (D,)
        out (c, 2D)
    """
    D = roots.size
    cosines, sines, unused, halves = np.empty(D), np.empty(D), np.empty(D), np.empty(D)
    for i in range(edges.shape[0]):
        row = out[i]
        row[:] = 0.0
        for b in range(shares.shape[1]):
            low, high = edges[i, b], edges[i, b + 1]
            half = 0.5 * (high - low)
            # The mean of exp(iωy) over an interval is exp(iω·middle) sin(ω·half)/(ω·half).
            _powers(0.5 * (low + high), cosines, sines)
            _powers(half, unused, halves)
            for d in range(D):
                x = half * (d + 0.5)
                w = shares[i, b] * (halves[d] / x if x > _NARROW else 1.0)
                row[d] += w * cosines[d]
                row[D + d] += w * sines[d]
        for d in range(D):
            row[d] *= roots[d]
            row[D + d] *= roots[d]


@kernel
def spread_rows(points, coefficients, table, rows, sums, products):
    """Rows added to the points of a grid next to theirs, and their products with its waves.

    The waves of a point are nearly a sum over the points g, g + 1, … of an equally spaced grid (a
    nonuniform fast Fourier transform), with weights that are polynomials of the position between
    g and g + 1.  One period has G intervals, after which the waves repeat with the opposite sign.

    Axes:
        points (c,)
        coefficients (J, TAPS), of the highest power first
        table (c, G + TAPS) waves of the grid in the direction of each row
        rows (c, m), m a multiple of 16
        sums (G + TAPS, m)
        products (c,)
    """
    places = np.empty((2, _ROWS))
    weights = np.empty((TAPS, _ROWS))
    for start in range(0, points.size, _ROWS):
        stop = min(start + _ROWS, points.size)
        x, signs = places[0, : stop - start], places[1, : stop - start]
        first = np.empty(stop - start, np.int64)
        for i in range(stop - start):
            # Waves with frequencies d + ½ change their sign from one period to the next.
            periods = points[start + i] / (2.0 * np.pi)
            past = np.floor(periods)
            signs[i] = 1.0 - 2.0 * (past - 2.0 * np.floor(0.5 * past))
            x[i] = (periods - past) * (sums.shape[0] - TAPS)
            first[i] = int(x[i])
            x[i] -= first[i]
        _polynomials(x, coefficients, weights)
        for i in range(stop - start):
            g, row, product = first[i], rows[start + i], 0.0
            for k in range(TAPS):
                product += weights[k, i] * table[start + i, g + k]
            products[start + i] = signs[i] * product
            for k in range(0, TAPS, 2):
                a, b = signs[i] * weights[k, i], signs[i] * weights[k + 1, i]
                _add_multiples(row, a, sums[g + k], b, sums[g + k + 1])
