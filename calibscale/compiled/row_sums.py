"""Sums of rows in bins, by label, and in cells of the simplex."""

from __future__ import annotations

import numpy as np

from calibscale.compiled.jit import inlined, kernel

_MANTISSA_BITS = 9  # a cell of the fine histogram spans 2^-9 of its distance to the nearer end
_EXPONENTS = 64  # down to 2^-64, as smaller distances share one cell
FINE_HALF = _EXPONENTS << _MANTISSA_BITS
FINE_CELLS = 2 * FINE_HALF
_BINNED_ROWS = 256  # rows that get their bins together
_COUNTED_EDGES = 128  # most inner edges that are all compared with a prediction


@inlined()
def _copy(values, out):
    """Copy values to the start of an array, which must be long enough.

    Numba compiles the assignment of an array together with the text of an error about its shape,
    which takes two seconds.
    """
    for k in range(values.size):
        out[k] = values[k]


@inlined()
def _find_bins(p, edges, left_closed, out):
    """Index b with edges[b] < p ≤ edges[b+1], or edges[b] ≤ p < edges[b+1] if `left_closed`.

    Predictions beyond the edges join the bins at the ends.

    Axes:
        p, out (rows,)
        edges (B+1,)
    """
    if edges.size - 2 > _COUNTED_EDGES:
        for i in range(p.size):
            out[i] = _bin(p[i], edges, left_closed)
        return
    # The index is the number of inner edges below p, and at p if bins are closed on the left.
    # Comparing a row with four edges at a time, without branches, is faster than a search.  The
    # edges are filled up with NaN, which no prediction reaches.
    inner = edges[1:-1]
    fours = np.empty((inner.size + 3) // 4 * 4)
    _copy(inner, fours)
    fours[inner.size :] = np.nan
    out[:] = 0
    for k in range(0, fours.size, 4):
        a, b, c, d = fours[k], fours[k + 1], fours[k + 2], fours[k + 3]
        if left_closed:
            for i in range(p.size):
                x = p[i]
                # Without the JIT, the sum of two booleans of NumPy would be their disjunction.
                out[i] += int(x >= a) + int(x >= b) + int(x >= c) + int(x >= d)
        else:
            for i in range(p.size):
                x = p[i]
                out[i] += int(x > a) + int(x > b) + int(x > c) + int(x > d)


@inlined()
def _bin(p, edges, left_closed):
    """Bin of one prediction, see `_find_bins`."""
    B = edges.size - 1
    # The guess is right up to rounding for equal widths.  The loops correct it for any edges.
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


@inlined()
def _add_to_bin(sums, b, w, p, delta):
    """Add a row to Σ1, Σw, Σw², Σwp, Σwδ of bin b, sums (5, B)."""
    sums[0, b] += 1.0
    sums[1, b] += w
    sums[2, b] += w * w
    sums[3, b] += w * p
    sums[4, b] += w * delta


@kernel
def bin_column(p, delta, weights, edges, left_closed, sums):
    """Σ1, Σw, Σw², Σwp, Σwδ of each bin, for one column of predictions.

    Axes:
        p, delta (rows,)
        weights (rows,) or empty for w = 1
        edges (B+1,)
        sums (5, B)
    """
    weighted = weights.size > 0
    bins = np.empty(_BINNED_ROWS, np.int64)
    for start in range(0, p.size, _BINNED_ROWS):
        part = p[start : start + _BINNED_ROWS]
        _find_bins(part, edges, left_closed, bins[: part.size])
        for i in range(start, start + part.size):
            b = bins[i - start]
            w = weights[i] if weighted else 1.0
            _add_to_bin(sums, b, w, p[i], delta[i])


@kernel
def bin_numbers(p, edges, left_closed, out):
    """Bin of each prediction.

    Axes:
        p, out (rows,)
        edges (B+1,)
    """
    for start in range(0, p.size, _BINNED_ROWS):
        part = slice(start, start + _BINNED_ROWS)
        _find_bins(p[part], edges, left_closed, out[part])


@kernel
def count_numbers(numbers, out):
    """Add the number of rows with each number, without a copy of the numbers.

    Axes:
        numbers (rows,) uint16
        out (largest number + 1,)
    """
    for i in range(numbers.size):
        out[numbers[i]] += 1.0


@kernel
def bin_classes(q, delta, weights, bins, sums):
    """The sums of `bin_column` for every class at once.

    Axes:
        q, delta, bins (rows, K)
        weights (rows,) or empty
        sums (K, B, 5)
    """
    weighted = weights.size > 0
    rows, K = q.shape
    for i in range(rows):
        w = weights[i] if weighted else 1.0
        for k in range(K):  # sums of different classes do not wait for each other
            _add_to_bin(sums[k].T, bins[i, k], w, q[i, k], delta[i, k])


@kernel
def add_to_class_bins(values, weights, bins, sums):
    """sums[k, bin] += Σ weight·value over the rows of the bin of each class.

    Axes:
        values, bins (rows, K)
        weights (rows,)
        sums (K, B)
    """
    rows, K = values.shape
    for i in range(rows):
        for k in range(K):
            sums[k, bins[i, k]] += weights[i] * values[i, k]


@kernel
def add_class_variances(q, weights, bins, sums):
    """sums[k, bin] += Σ weight·q(1 − q) over the rows of the bin of each class.

    Axes:
        q, bins (rows, K)
        weights (rows,)
        sums (K, B)
    """
    rows, K = q.shape
    for i in range(rows):
        for k in range(K):
            p = q[i, k]
            variance = p * max(1.0 - p, 0.0)
            sums[k, bins[i, k]] += weights[i] * variance


@kernel
def subtract_by_label(rows, weights, labels, sums):
    """sums[label] −= weight·row for each row.

    Axes:
        rows (c, m)
        weights (c,) or empty for 1
        labels (c,)
        sums (K, m)
    """
    weighted = weights.size > 0
    for i in range(labels.size):
        w = weights[i] if weighted else 1.0
        of_label, row = sums[labels[i]], rows[i]
        for j in range(row.size):
            of_label[j] -= w * row[j]


@kernel
def take_rows(first, second, positions, out):
    """Copy rows at positions of `first` followed by `second`.

    Axes:
        first (a, m)
        second (b, m)
        positions (c,) in 0..a + b − 1
        out (c, m)
    """
    for i in range(positions.size):
        position = positions[i]
        if position < first.shape[0]:
            _copy(first[position], out[i])
        else:
            _copy(second[position - first.shape[0]], out[i])


@kernel
def take_predictions(first, heads, q, positions, out):
    """Copy rows at positions of `first` followed by rows of `heads` beside `q`.

    Axes:
        first (a, h + K)
        heads (b, h)
        q (b, K)
        positions (c,) in 0..a + b − 1
        out (c, h + K)
    """
    width = heads.shape[1]
    for i in range(positions.size):
        position = positions[i]
        if position < first.shape[0]:
            _copy(first[position], out[i])
        else:
            _copy(heads[position - first.shape[0]], out[i])
            _copy(q[position - first.shape[0]], out[i, width:])


@inlined()
def fine_cell(p):
    """Cell of p in the fine histogram: leading bits of p below ½, of 1 − p above."""
    # The leading bits of a floating-point number, exponent first, grow with its logarithm.
    upper = p > 0.5
    distance = np.float64(1.0 - p if upper else p)
    bits = distance.view(np.int64) >> (52 - _MANTISSA_BITS)
    cell = int(bits) - ((1023 - _EXPONENTS) << _MANTISSA_BITS)
    cell = min(max(cell, 0), FINE_HALF - 1)
    return 2 * FINE_HALF - 1 - cell if upper else cell


@kernel
def fine_histogram(p, delta, weights, sums):
    """`bin_column` on 2^16 cells, which are narrower the closer they are to 0 or 1.

    Axes:
        p, delta (rows,)
        weights (rows,) or empty
        sums (5, FINE_CELLS)
    """
    weighted = weights.size > 0
    for i in range(p.size):
        c = fine_cell(p[i])
        w = weights[i] if weighted else 1.0
        _add_to_bin(sums, c, w, p[i], delta[i])


@kernel
def fine_cells(p, out):
    """Fine-histogram cell of each prediction.

    Axes:
        p, out (rows,)
    """
    for i in range(p.size):
        out[i] = fine_cell(p[i])


@kernel
def divide_rows(p, strengths, sizes, sums):
    """Strengths of rows, divided between the two points next to p of regular grids of [0, 1].

    Axes:
        p (rows,)
        strengths (B, rows)
        sizes (grids,), numbers of intervals
        sums (B, points)
    """
    start = 0
    for size in sizes:
        for b in range(strengths.shape[0]):
            left = np.zeros(size + 1)
            right = np.zeros(size + 1)
            for i in range(p.size):
                place = p[i] * size
                j = min(max(int(place), 0), size - 1)
                share = (place - j) * strengths[b, i]
                left[j] += strengths[b, i] - share
                right[j + 1] += share
            for j in range(size + 1):
                sums[b, start + j] += left[j]
                sums[b, start + j] += right[j]
        start += size + 1


@inlined()
def _simplex_cell(q, thirds):
    """Cell of a point of the simplex, by the intervals (0, ⅓], (⅓, ⅔], (⅔, 1] of each class.

    At most one class lies above ⅔ and at most two above ⅓, so that a cell is one of: none above ⅓
    (0), k in the middle (1 + k), k on top (1 + K + k), or the pair a < b in the middle.  Where the
    tolerance of a row's sum allows three classes above ⅓, all three are near ⅓, and the cell is 0.
    `thirds` are ⅓ and ⅔ in the precision of q.
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
    """Cell of each point of the simplex, of three intervals for each class.

    Axes:
        q (rows, K)
        thirds (2,)
        out (rows,)
    """
    for i in range(out.size):
        out[i] = _simplex_cell(q[i], thirds)


@kernel
def simplex_cells(numbers, delta, weights, totals, sums):
    """Σw and Σwδ of each cell of the simplex.

    Axes:
        numbers (rows,), see `simplex_numbers`
        delta (rows, K)
        weights (rows,) or empty
        totals (cells,)
        sums (cells, K)
    """
    weighted = weights.size > 0
    rows, K = delta.shape
    for i in range(rows):
        cell = numbers[i]
        w = weights[i] if weighted else 1.0
        totals[cell] += w
        for k in range(K):
            sums[cell, k] += w * delta[i, k]


@kernel
def simplex_variances(numbers, q, weights, totals, sums, variances):
    """Σw², Σwq and Σw²q(1 − q) of each cell of the simplex.

    Axes:
        numbers (rows,), see `simplex_numbers`
        q (rows, K)
        weights (rows,) or empty
        totals (cells,)
        sums, variances (cells, K)
    """
    weighted = weights.size > 0
    rows, K = q.shape
    for i in range(rows):
        cell = numbers[i]
        w = weights[i] if weighted else 1.0
        totals[cell] += w * w
        for k in range(K):
            p = q[i, k]
            sums[cell, k] += w * p
            variances[cell, k] += w * w * (p * (1.0 - p))


@kernel
def event_sums(p, complement, event, weights, sums):
    """Σ of w, w², a, b, a², ab, b² with a = wp and b = w(1 − p).

    The second column has the share `event` of each row, and the first column has the rest.

    Axes:
        p, complement (rows,), 1 − p as the complement
        event (rows,), in 0..1
        weights (rows,) or empty
        sums (7, 2)
    """
    weighted = weights.size > 0
    for i in range(p.size):
        w = weights[i] if weighted else 1.0
        a, b = w * p[i], w * complement[i]
        for column in range(2):
            share = event[i] if column == 1 else 1.0 - event[i]
            sums[0, column] += share * w
            sums[1, column] += share * w * w
            sums[2, column] += share * a
            sums[3, column] += share * b
            sums[4, column] += share * a * a
            sums[5, column] += share * a * b
            sums[6, column] += share * b * b
