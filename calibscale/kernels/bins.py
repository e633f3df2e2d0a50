"""Counting rows into bins, cells and fine histograms."""

from __future__ import annotations

import numpy as np

from calibscale.kernels._jit import inlined, kernel

_MANTISSA_BITS = 9  # a cell of the fine histogram spans 2^-9 of its distance to the nearer end
_EXPONENTS = 64  # down to 2^-64; closer to the end is one cell
FINE_HALF = _EXPONENTS << _MANTISSA_BITS
FINE_CELLS = 2 * FINE_HALF


@inlined()
def _bin(p, edges, left_closed):
    """The b with edges[b] < p ≤ edges[b+1] (or ≤ … <); what lies beyond joins the end bins."""
    B = edges.size - 1
    low = edges[0]
    b = int((p - low) / (edges[B] - low) * B)
    b = min(max(b, 0), B - 1)
    if left_closed:
        while b > 0 and p < edges[b]:
            b -= 1
        while b < B - 1 and p >= edges[b + 1]:
            b += 1
    else:
        while b > 0 and p <= edges[b]:
            b -= 1
        while b < B - 1 and p > edges[b + 1]:
            b += 1
    return b


@kernel
def bin_column(p, delta, weights, edges, left_closed, sums):
    """Per bin: Σ1, Σw, Σw², Σwp, Σwδ of one column of predictions.

    axes: p, delta (rows,); weights (rows,) or empty for w = 1; edges (B+1,); sums (5, B)
    """
    weighted = weights.size > 0
    for i in range(p.size):
        b = _bin(p[i], edges, left_closed)
        w = weights[i] if weighted else 1.0
        sums[0, b] += 1.0
        sums[1, b] += w
        sums[2, b] += w * w
        sums[3, b] += w * p[i]
        sums[4, b] += w * delta[i]


@kernel
def bin_numbers(p, edges, left_closed, out):
    """The bin of each prediction.

    axes: p, out (rows,); edges (B+1,)
    """
    for i in range(p.size):
        out[i] = _bin(p[i], edges, left_closed)


@kernel
def bin_classes(q, delta, weights, edges, left_closed, sums):
    """`bin_column` for every class at once.

    axes: q, delta (rows, K); weights (rows,) or empty; edges (B+1,); sums (K, B, 5)
    """
    weighted = weights.size > 0
    rows, K = q.shape
    for i in range(rows):
        w = weights[i] if weighted else 1.0
        for k in range(K):
            p = q[i, k]
            b = _bin(p, edges, left_closed)
            sums[k, b, 0] += 1.0
            sums[k, b, 1] += w
            sums[k, b, 2] += w * w
            sums[k, b, 3] += w * p
            sums[k, b, 4] += w * delta[i, k]


@inlined()
def fine_cell(p):
    """Cell of p in the fine histogram: the leading bits of p below ½, of 1 − p above."""
    upper = p > 0.5
    distance = np.float64(1.0 - p if upper else p)
    bits = distance.view(np.int64) >> (52 - _MANTISSA_BITS)
    cell = int(bits) - ((1023 - _EXPONENTS) << _MANTISSA_BITS)
    cell = min(max(cell, 0), FINE_HALF - 1)
    return 2 * FINE_HALF - 1 - cell if upper else cell


@kernel
def fine_histogram(p, delta, weights, sums):
    """`bin_column` on 2^16 cells whose width shrinks with the distance to 0 and 1.

    axes: p, delta (rows,); weights (rows,) or empty; sums (5, FINE_CELLS)
    """
    weighted = weights.size > 0
    for i in range(p.size):
        c = fine_cell(p[i])
        w = weights[i] if weighted else 1.0
        sums[0, c] += 1.0
        sums[1, c] += w
        sums[2, c] += w * w
        sums[3, c] += w * p[i]
        sums[4, c] += w * delta[i]


@kernel
def fine_cells(p, out):
    """The cell of the fine histogram of each prediction.

    axes: p, out (rows,)
    """
    for i in range(p.size):
        out[i] = fine_cell(p[i])


@inlined()
def _simplex_cell(q, thirds):
    """The cell of a point of the simplex, by the intervals (0, ⅓], (⅓, ⅔], (⅔, 1] per axis.

    At most one class lies above ⅔ and at most two above ⅓, so a cell is one of: none (0),
    k in the middle (1 + k), k on top (1 + K + k), or the pair a < b in the middle.  Three above ⅓,
    by the tolerance of a row's sum, are all ⅓.  `thirds` are ⅓ and ⅔ in the precision of q.
    """
    K = q.size
    first = -1
    second = -1
    for k in range(K):
        if q[k] > thirds[1]:
            return 1 + K + k
        if q[k] > thirds[0]:
            if second >= 0:
                return 0
            if first < 0:
                first = k
            else:
                second = k
    if first < 0:
        return 0
    if second < 0:
        return 1 + first
    return 1 + 2 * K + first * (2 * K - first - 1) // 2 + (second - first - 1)


@kernel
def simplex_numbers(q, thirds, out):
    """The cell of each point of the simplex.

    axes: q (rows, K); thirds (2,); out (rows,)
    """
    for i in range(out.size):
        out[i] = _simplex_cell(q[i], thirds)


@kernel
def simplex_cells(q, thirds, delta, weights, totals, sums):
    """Σw and Σwδ for each cell of three intervals per axis.

    axes: q, delta (rows, K); thirds (2,); weights (rows,) or empty; totals (cells,);
    sums (cells, K)
    """
    weighted = weights.size > 0
    rows, K = q.shape
    for i in range(rows):
        cell = _simplex_cell(q[i], thirds)
        w = weights[i] if weighted else 1.0
        totals[cell] += w
        for k in range(K):
            sums[cell, k] += w * delta[i, k]
