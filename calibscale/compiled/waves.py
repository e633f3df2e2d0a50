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
TAPS = 10  # points of a grid to which `spread_rows` adds a row
DEGREE = 11  # degree of the polynomials of its weights
_ROWS_PER_INTERVAL = 16  # rows that are sorted at a time, for each interval of the grid
_TOGETHER, _COLUMNS = 64, 128  # rows and columns of a product, whose factors stay in cache
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
    """Values (TAPS, ≥ c) at x (c,) of polynomials with these coefficients, by Horner's rule."""
    for k in range(TAPS):
        c = coefficients[:, k]
        c0, c1, c2, c3, c4, c5 = c[0], c[1], c[2], c[3], c[4], c[5]
        c6, c7, c8, c9, c10, c11 = c[6], c[7], c[8], c[9], c[10], c[11]
        row = values[k]
        # The coefficients stay in registers, where a loop over them would store each step.
        for i in range(x.size):
            value = c0 * x[i] + c1
            value = value * x[i] + c2
            value = value * x[i] + c3
            value = value * x[i] + c4
            value = value * x[i] + c5
            value = value * x[i] + c6
            value = value * x[i] + c7
            value = value * x[i] + c8
            value = value * x[i] + c9
            value = value * x[i] + c10
            row[i] = value * x[i] + c11


@inlined()
def _locate(points, G, intervals, fractions, signs):
    """Interval of the grid of each point, the position within it, and the sign of its period."""
    for i in range(points.size):
        # Waves with frequencies d + ½ change their sign from one period to the next.
        periods = points[i] / (2.0 * np.pi)
        past = np.floor(periods)
        signs[i] = 1.0 - 2.0 * (past - 2.0 * np.floor(0.5 * past))
        x = (periods - past) * G
        intervals[i] = int(x)
        fractions[i] = x - intervals[i]


@inlined()
def _sort(intervals, ends, places):
    """Place of each point in the order of their intervals, and the end of each interval.

    Axes:
        intervals, places (c,)
        ends (G + 1,)
    """
    ends[:] = 0
    for i in range(intervals.size):
        ends[intervals[i]] += 1
    total = 0
    for g in range(ends.size):
        count = ends[g]
        ends[g] = total
        total += count
    # The end of each interval starts at its first point and moves to its last.
    for i in range(intervals.size):
        g = intervals[i]
        places[i] = ends[g]
        ends[g] += 1


@inlined()
def _add_by_interval(rows, order, ends, weights, low, members, sums):
    """sums[g + k] += Σ weights[i, k] rows[order[i]] over the places i of interval g.

    The sums are those of the columns from `low` on, as many as `members` has.

    Axes:
        rows (c, m)
        order (≥ c,)
        ends (G + 1,)
        weights (≥ c, TAPS)
        members (_TOGETHER, W), W a multiple of 16
        sums (G + TAPS, m)
    """
    # A part of a row is contiguous, unlike a part of the columns of a matrix.
    high = low + members.shape[1]
    added = np.empty((TAPS, members.shape[1]))
    place = 0
    for g in range(ends.size):
        while place < ends[g]:
            size = min(_TOGETHER, ends[g] - place)
            for i in range(size):
                _copy(rows[order[place + i]][low:high], members[i])
            np.dot(weights[place : place + size].T, members[:size], added)
            for k in range(TAPS):
                _add(added[k], sums[g + k][low:high])
            place += size


@inlined()
def _copy(row, out):
    for k in range(whole(out.size)):
        out[k] = row[k]


@inlined()
def _add(row, out):
    for k in range(whole(out.size)):
        out[k] += row[k]


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

    Each of the B replicates has its own points.  They are sorted by their interval, so that a
    product of matrices adds the rows of an interval.  All replicates add a block of rows while it
    is in the cache.

    Axes:
        points (B, c)
        coefficients (DEGREE + 1, TAPS), of the highest power first
        table (c, G + TAPS) waves of the grid in the direction of each row
        rows (c, m), m a multiple of 16
        sums (B, G + TAPS, m)
        products (B, c)
    """
    B, c = points.shape
    G = sums.shape[1] - TAPS
    most = min(_ROWS_PER_INTERVAL * G, c)
    intervals, places = np.empty(most, np.int64), np.empty(most, np.int64)
    fractions, signs, weights = np.empty(most), np.empty(most), np.empty((TAPS, most))
    # The position of a point just below 0 is rounded to the end of its period, and interval G.
    ends, order = np.empty((B, G + 1), np.int64), np.empty((B, most), np.int64)
    ordered_weights = np.empty((B, most, TAPS))
    for start in range(0, c, most):
        size = min(most, c - start)
        block = rows[start : start + size]
        for b in range(B):
            _locate(points[b, start : start + size], G, intervals, fractions, signs)
            _sort(intervals[:size], ends[b], places)
            for i in range(size):
                order[b, places[i]] = i
            _polynomials(fractions[:size], coefficients, weights)
            for i in range(size):
                waves, ordered = table[start + i][intervals[i] :], ordered_weights[b, places[i]]
                product = 0.0
                for k in range(TAPS):
                    weight = signs[i] * weights[k, i]
                    ordered[k] = weight
                    product += weight * waves[k]
                products[b, start + i] = product
        for low in range(0, rows.shape[1], _COLUMNS):
            members = np.empty((_TOGETHER, min(_COLUMNS, rows.shape[1] - low)))
            for b in range(B):
                _add_by_interval(
                    block, order[b], ends[b], ordered_weights[b], low, members, sums[b]
                )
