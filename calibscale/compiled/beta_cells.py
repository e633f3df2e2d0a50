"""Measures on [0, π/2] compressed cell by cell, and sums of Beta and Dirichlet kernels.

A cell stores its points while there are few, and Chebyshev moments once there are many: the
integral of a function that is smooth on the cell stays the same.
"""

from __future__ import annotations

import math

import numpy as np

from calibscale.compiled.elementary import exp
from calibscale.compiled.jit import inlined, kernel

NODES = 16  # points or nodes of a cell; the nodes integrate polynomials of degree < 16 exactly
GRADED = 6  # halvings of the first and of the last cell towards the end of the interval
_STEEP = 14.0  # a kernel that falls by more than e^14 across a cell is too steep for its nodes
_CUT = 45.0  # e^−45 = 3e-20 of the largest term: 10^9 omitted rows still add only rounding


@inlined()
def _cell(theta, edges, width):
    """Cell that contains theta.  All cells but the graded ones are `width` wide."""
    last = edges.size - 2
    # The guess is right up to rounding among cells of equal width.  The loops correct it there,
    # and find the cell among the graded ones.
    c = min(max(int(theta / width) + GRADED, 0), last)
    while c > 0 and theta < edges[c]:
        c -= 1
    while c < last and theta >= edges[c + 1]:
        c += 1
    return c


@inlined()
def _keep(theta, first, second, c, counts, points, masses):
    """Add a point to the list of a cell.  A count of −1 marks a list that has overflowed."""
    count = counts[c]
    if count < 0:
        return
    for k in range(count):
        if points[c, k] == theta:
            masses[c, k, 0] += first
            masses[c, k, 1] += second
            return
    if count == NODES:
        counts[c] = -1
        return
    points[c, count] = theta
    masses[c, count, 0] = first
    masses[c, count, 1] = second
    counts[c] = count + 1


@kernel
def add_points(theta, mass, node, edges, width, moments, counts, points, masses):
    """Add points with two masses each to the moments and lists of their cells.

    A node of another measure stands for many points, so that it ends the list of its cell.

    Axes:
        theta (rows,)
        mass (rows, 2)
        node (rows,), or empty if all are points
        edges (cells+1,)
        moments, masses (cells, NODES, 2)
        counts (cells,)
        points (cells, NODES)
    """
    for i in range(theta.size):
        c = _cell(theta[i], edges, width)
        if node.size > 0 and node[i]:
            counts[c] = -1
        _keep(theta[i], mass[i, 0], mass[i, 1], c, counts, points, masses)
        t = 2.0 * (theta[i] - edges[c]) / (edges[c + 1] - edges[c]) - 1.0
        # The recurrence T_k+1 = 2t·T_k − T_k−1 of Chebyshev polynomials starts at T_−1 = T_1, T_0.
        before, now = t, 1.0
        for k in range(NODES):
            moments[c, k, 0] += mass[i, 0] * now
            moments[c, k, 1] += mass[i, 1] * now
            before, now = now, 2.0 * t * now - before


@kernel
def merge_points(counts, points, masses, from_counts, from_points, from_masses):
    """Add the lists of other cells.

    Axes:
        counts (cells,)
        points (cells, NODES)
        masses (cells, NODES, 2)
    """
    for c in range(counts.size):
        if from_counts[c] < 0:
            counts[c] = -1
        for k in range(from_counts[c]):
            _keep(
                from_points[c, k],
                from_masses[c, k, 0],
                from_masses[c, k, 1],
                c,
                counts,
                points,
                masses,
            )


@inlined("contract")
def _exponent(i, f, bias, a, b):
    return f[i] * a + (1.0 - f[i]) * b + bias[i]


@inlined("reassoc", "contract", "nsz")
def _window(first, last, top, f, bias, mass, a, b):
    total = 0.0
    events = 0.0
    for i in range(first, last):
        k = exp(f[i] * a + (1.0 - f[i]) * b + bias[i] - top)
        total += k * mass[i, 0]
        events += k * mass[i, 1]
    return total, events


@kernel
def beta_ratios(logs, f, bias, mass, cell, h, out):
    """Σ m₁k/Σ m₀k, log k = (f log p + (1 − f) log(1 − p))/h + bias, for each p.

    This is the ratio of the kernel density estimate with a Beta kernel (GB eq. 11).  As a function
    of f, log k is concave: the terms above the cut-off are neighbours, and bisection finds them.
    Far from all points the kernel is too steep for the nodes of the nearest cell, and the ratio is
    the share of events in that cell.

    Axes:
        logs (rows, 2)
        f, bias (N,) in the order of f
        mass, cell (N, 2) as `take_nodes` returns them
        out (rows,)
    """
    N = f.size
    for r in range(out.size):
        a = logs[r, 0] / h
        b = logs[r, 1] / h
        low = 0
        high = N - 1
        while low < high:  # the first i with a smaller successor
            i = (low + high) // 2
            if _exponent(i + 1, f, bias, a, b) < _exponent(i, f, bias, a, b):
                high = i
            else:
                low = i + 1
        peak = low
        top = _exponent(peak, f, bias, a, b)
        # Left of the peak the terms increase, so that bisection finds the first above the cut-off.
        low = 0
        high = peak
        while low < high:
            i = (low + high) // 2
            if _exponent(i, f, bias, a, b) < top - _CUT:
                low = i + 1
            else:
                high = i
        first = low
        # Right of the peak they decrease, and bisection finds the end of those above it.
        low = peak + 1
        high = N
        while low < high:
            i = (low + high) // 2
            if _exponent(i, f, bias, a, b) < top - _CUT:
                high = i
            else:
                low = i + 1
        node = int(cell[peak, 1])
        if node >= 0:
            at_first, at_last = (
                _exponent(node, f, bias, a, b),
                _exponent(node + NODES - 1, f, bias, a, b),
            )
            if abs(at_first - at_last) > _STEEP:
                out[r] = cell[peak, 0]
                continue
        total, events = _window(first, low, top, f, bias, mass, a, b)
        out[r] = min(max(events / total, 0.0), 1.0) if total > 0.0 else cell[peak, 0]


@kernel
def interpolated_ratios(theta, edges, width, coefficients, trusted, out, known):
    """Ratios from Chebyshev series of their cells, where these are trusted.

    Axes:
        theta (rows,)
        edges (cells+1,), width: as in `add_points`
        coefficients (cells, NODES)
        trusted (cells,)
        out, known (rows,): the ratio, and whether it is computed
    """
    for i in range(theta.size):
        c = _cell(theta[i], edges, width)
        known[i] = trusted[c]
        if not trusted[c]:
            continue
        t = 2.0 * (theta[i] - edges[c]) / (edges[c + 1] - edges[c]) - 1.0
        # The recurrence of Clenshaw for the sum of a Chebyshev series.
        later = now = 0.0
        for k in range(NODES - 1, 0, -1):
            later, now = now, coefficients[c, k] + 2.0 * t * now - later
        ratio = coefficients[c, 0] + t * now - later
        out[i] = min(max(ratio, 0.0), 1.0)


@kernel
def take_nodes(counts, points, masses, moments, edges, transform, theta, mass, cell):
    """Write the points and nodes of all cells in order, and return their number.

    Axes:
        counts, points, masses, moments, edges: as in `add_points`
        transform (NODES, NODES) from moments to masses of nodes
        theta (cells·NODES,), mass (cells·NODES, 2)
        cell (cells·NODES, 2): share of events in the cell, and index of its first node, −1 if
            the cell stores points
    """
    N = 0
    for c in range(counts.size):
        if counts[c] >= 0:
            order = np.argsort(points[c, : counts[c]])
            for k in range(counts[c]):
                theta[N] = points[c, order[k]]
                mass[N, 0] = masses[c, order[k], 0]
                mass[N, 1] = masses[c, order[k], 1]
                cell[N, 0] = moments[c, 0, 1] / moments[c, 0, 0]
                cell[N, 1] = -1.0
                N += 1
            continue
        # Masses at the Chebyshev points of the cell have the moments of its points.
        middle = 0.5 * (edges[c] + edges[c + 1])
        half = 0.5 * (edges[c + 1] - edges[c])
        for k in range(NODES):
            theta[N] = middle - half * math.cos(math.pi * (k + 0.5) / NODES)
            first = 0.0
            second = 0.0
            for d in range(NODES):
                first += transform[k, d] * moments[c, d, 0]
                second += transform[k, d] * moments[c, d, 1]
            mass[N, 0] = first
            mass[N, 1] = second
            cell[N, 0] = moments[c, 0, 1] / moments[c, 0, 0]
            cell[N, 1] = N - k
            N += 1
    return N


@kernel
def shifted_exp(tile, bias, top):
    """tile ← exp(tile + bias − top), with top the maximum of each row, or 0 where top is −∞.

    Axes:
        tile (queries, keys)
        bias (keys,)
        top (queries,)
    """
    queries, keys = tile.shape
    for i in range(queries):
        high = -np.inf
        for j in range(keys):
            x = tile[i, j] + bias[j]
            tile[i, j] = x
            high = x if x > high else high
        top[i] = high
        if high == -np.inf:
            tile[i, :] = 0.0
            continue
        for j in range(keys):
            tile[i, j] = exp(tile[i, j] - high)
