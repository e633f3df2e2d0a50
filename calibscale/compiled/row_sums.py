"""Scores of rows of logits or probabilities, and sums of rows in bins and cells of the simplex."""

from __future__ import annotations

import math

import numpy as np

from calibscale.compiled.elementary import exp
from calibscale.compiled.jit import inlined, kernel

# Status of a row: the first rule that it violates.
OK = 0
UNLABELLED = 1
NOT_FINITE = 2
LABEL_RANGE = 3
NEGATIVE = 4
OFF_SIMPLEX = 5
BAD_WEIGHT = 6
NO_GROUP = 7
BAD_COVARIATE = 8
NO_CLUSTER = 9
BAD_SHARES = 13  # the numbers 10 to 12, and 15, belong to forecasts
ABOVE_ONE = 14

SMALLEST = 2.0**-500  # smallest number that is multiplied: subnormal products are slow

_SIGN_LESS = np.int64(0x7FFFFFFFFFFFFFFF)
_INFINITY = np.int64(0x7FF0000000000000)


@inlined()
def extent_of(row):
    """(smallest, largest, whether all are finite or −∞, but some finite), by the order of the bits.

    LLVM vectorises integer maxima, but none of Numba's floating-point maxima.  Flipping the bits
    of negative numbers gives them the order of the numbers.  Infinities and NaN lie at the ends.
    """
    low = _SIGN_LESS
    high = ~_SIGN_LESS
    for k in range(row.size):
        bits = np.float64(row[k]).view(np.int64)
        key = bits ^ ((bits >> 63) & _SIGN_LESS)
        low = min(low, key)
        high = max(high, key)
    smallest = np.int64(low ^ ((low >> 63) & _SIGN_LESS)).view(np.float64)
    largest = np.int64(high ^ ((high >> 63) & _SIGN_LESS)).view(np.float64)
    return smallest, largest, high < _INFINITY and low >= ~_INFINITY and high > ~_INFINITY


@inlined("nsz", "reassoc", "contract")
def _sums(row, top):
    """Σq and Σq² without the top label.  Squares that underflow are omitted."""
    total = 0.0
    squares = 0.0
    for k in range(row.size):
        p = 0.0 if k == top else np.float64(row[k])
        total += p
        p = p if p >= SMALLEST else 0.0
        squares += p * p
    return total, squares


@inlined("nsz", "reassoc", "contract")
def _exponential_sums(row, largest, top):
    """Σe and Σe² of e = exp(x − max x) without the top label.  Tiny squares are omitted."""
    total = 0.0
    squares = 0.0
    for k in range(row.size):
        e = exp(np.float64(row[k]) - largest)
        e = 0.0 if k == top else e
        total += e
        e = e if e >= SMALLEST else 0.0
        squares += e * e
    return total, squares


@inlined()
def _first_equal(row, value):
    # A minimum over all columns is vectorised, unlike a loop that ends at the first match.
    first = row.size - 1
    for k in range(row.size - 1):
        first = min(first, k if row[k] == value else row.size - 1)
    return first


@inlined()
def _complaint(finite, y, K):
    if not finite:
        return NOT_FINITE
    if y < -1 or y >= K:
        return LABEL_RANGE
    return OK if y >= 0 else UNLABELLED


@inlined()
def _brier(squares, p, complement, label_p, hit):
    """Σ_k (q_k − e_k)² from Σq² without the top label, p = max q, 1 − p, and q of the label.

    A label on top is not among the terms of Σq², so that small scores keep their digits.
    """
    complement = complement if abs(complement) >= SMALLEST else 0.0
    label_p = label_p if label_p >= SMALLEST else 0.0
    if hit:
        return squares + complement * complement
    return squares - label_p * label_p + p * p + (1.0 - label_p) * (1.0 - label_p)


@kernel
def score_logits(x, labels, top, confidence, complement, brier, nll, status):
    """Top label, max q, 1 − max q, Brier score and −log q_y of each row.

    `softmax` computes q itself.  A logit of −∞ is a probability of 0.

    Axes:
        x (rows, K) float32 or float64
        all else (rows,)
    """
    rows, K = x.shape
    for i in range(rows):
        row = x[i]
        y = labels[i]
        _, largest, finite = extent_of(row)
        status[i] = _complaint(finite, y, K)
        if status[i] > UNLABELLED:
            continue
        t = _first_equal(row, largest)
        # The sums leave out the dominant top label, so that 1 − max q keeps its digits.
        sum_below, squares = _exponential_sums(row, largest, t)
        p = 1.0 / (1.0 + sum_below)
        shifted = np.float64(row[max(y, 0)]) - largest
        top[i] = t
        confidence[i] = p
        complement[i] = sum_below * p
        label_p = 0.0 if t == y else exp(shifted) * p
        brier[i] = _brier(squares * p * p, p, complement[i], label_p, t == y)
        nll[i] = math.log1p(sum_below) - shifted


@kernel
def score_two_logits(x, labels, top, confidence, complement, brier, nll, status):
    """Scores of `score_logits` for two classes, with the same bits in a third of the time.

    The larger class and the label of a row are random, so that a processor would guess branches
    wrongly.  This kernel has none.  Scores of rows that are not valid are 0.

    Axes:
        x (rows, 2) float32 or float64
        all else (rows,)
    """
    # The exponentials have loops of their own, which LLVM vectorises.
    for i in range(labels.size):
        first = np.float64(x[i, 0])
        second = np.float64(x[i, 1])
        gap = 0.0 if first == second else -abs(second - first)  # ∞ − ∞ is NaN
        complement[i] = gap if gap > -np.inf else -np.inf  # also NaN, for which `exp` is undefined
    for i in range(labels.size):
        complement[i] = exp(complement[i])
    for i in range(labels.size):
        first = np.float64(x[i, 0])
        second = np.float64(x[i, 1])
        y = labels[i]
        is_second = second > first
        largest = second if is_second else first
        # Comparisons with NaN are false.
        finite = (first < np.inf) & (second < np.inf) & (largest > -np.inf)
        status[i] = _complaint(finite, y, 2)
        scored = status[i] <= UNLABELLED
        e = complement[i]
        p = 1.0 / (1.0 + e)
        normal = e if e >= SMALLEST else 0.0
        # As in `score_logits`, the first class takes the place of a missing label.
        largest_is_label = (y == 1) == is_second
        label_p = p if largest_is_label else e * p
        score = _brier(normal * normal * p * p, p, e * p, label_p, y == is_second)
        loss = math.log1p(e) + (0.0 if largest_is_label else abs(second - first))
        top[i] = is_second if scored else 0
        confidence[i] = p if scored else 0.0
        complement[i] = e * p if scored else 0.0
        brier[i] = score if scored else 0.0
        nll[i] = loss if scored else 0.0


@kernel
def softmax(x, confidence, q):
    """q = e^(x − max x) · max q, or 0 where the product is below SMALLEST.

    Axes:
        x (rows, K) float32 or float64
        confidence (rows,)
        q (rows, K) float64
    """
    rows, K = x.shape
    for i in range(rows):
        _, largest, _ = extent_of(x[i])
        for k in range(K):
            p = exp(np.float64(x[i, k]) - largest) * confidence[i]
            q[i, k] = p if p >= SMALLEST else 0.0


@kernel
def score_probabilities(x, labels, tolerance, top, confidence, complement, brier, nll, status):
    """Scores of `score_logits` from probabilities, which are checked but not normalised.

    Axes:
        x (rows, K) float32 or float64
        all else (rows,), except the number `tolerance`: row sums are 1 ± tolerance
    """
    rows, K = x.shape
    for i in range(rows):
        row = x[i]
        y = labels[i]
        smallest, p, finite = extent_of(row)
        status[i] = _complaint(finite and smallest > -np.inf, y, K)
        if status[i] > UNLABELLED:
            continue
        t = _first_equal(row, p)
        sum_below, squares = _sums(row, t)
        if smallest < 0.0:
            status[i] = NEGATIVE
        elif abs(sum_below + p - 1.0) > tolerance:
            status[i] = OFF_SIMPLEX
        label_p = np.float64(row[max(y, 0)])
        top[i] = t
        confidence[i] = p
        complement[i] = 1.0 - p
        brier[i] = _brier(squares, p, 1.0 - p, label_p, t == y)
        nll[i] = -math.log(label_p) if label_p > 0.0 else np.inf


@kernel
def score_two_probabilities(x, labels, tolerance, top, confidence, complement, brier, nll, status):
    """Scores of `score_probabilities` for two classes, with the same bits in half of the time.

    See `score_two_logits`.

    Axes:
        x (rows, 2) float32 or float64
        all else (rows,), except the number `tolerance`: row sums are 1 ± tolerance
    """
    for i in range(labels.size):
        first = np.float64(x[i, 0])
        second = np.float64(x[i, 1])
        y = labels[i]
        is_second = second > first
        p = second if is_second else first
        least = first if is_second else second
        complaint = _complaint((abs(first) < np.inf) & (abs(second) < np.inf), y, 2)
        scored = complaint <= UNLABELLED
        negative = least < 0.0
        fault = NEGATIVE if negative else OFF_SIMPLEX
        faulty = negative | (abs(least + p - 1.0) > tolerance)
        status[i] = fault if scored & faulty else complaint
        normal = least if least >= SMALLEST else 0.0
        label_p = second if y == 1 else first
        score = _brier(normal * normal, p, 1.0 - p, label_p, y == is_second)
        loss = -math.log(label_p) if label_p > 0.0 else np.inf
        top[i] = is_second if scored else 0
        confidence[i] = p if scored else 0.0
        complement[i] = 1.0 - p if scored else 0.0
        brier[i] = score if scored else 0.0
        nll[i] = loss if scored else 0.0


# ---------------------------------------------------------------- Sums in bins


_MANTISSA_BITS = 9  # a cell of the fine histogram spans 2^-9 of its distance to the nearer end
_EXPONENTS = 64  # down to 2^-64, as smaller distances share one cell
FINE_HALF = _EXPONENTS << _MANTISSA_BITS
FINE_CELLS = 2 * FINE_HALF
_SQUARE = 8  # rows and columns, a line of the cache of 64 bytes
_BINNED_ROWS = 256  # rows that get their bins together
_COUNTED_EDGES = 128  # most inner edges that are all compared with a prediction


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
    fours = np.full((inner.size + 3) // 4 * 4, np.nan)
    fours[: inner.size] = inner
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
            sums[k, bins[i, k]] += weights[i] * (q[i, k] * max(1.0 - q[i, k], 0.0))


@kernel
def add_upper_rows(products, sums):
    """sums += the first rows of a symmetric matrix, of which the upper triangle is given.

    Axes:
        products (m, m)
        sums (K, m), K ≤ m
    """
    K, m = sums.shape
    for i in range(K):
        for j in range(i, m):
            sums[i, j] += products[i, j]
    # Squares of the lower triangle read and write whole lines of the cache.
    for i0 in range(0, K, _SQUARE):
        for j0 in range(0, i0 + 1, _SQUARE):
            for i in range(i0, min(i0 + _SQUARE, K)):
                for j in range(j0, min(j0 + _SQUARE, i)):
                    sums[i, j] += products[j, i]


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
            out[i] = first[position]
        else:
            out[i] = second[position - first.shape[0]]


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
            out[i] = first[position]
        else:
            out[i, :width] = heads[position - first.shape[0]]
            out[i, width:] = q[position - first.shape[0]]


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
    """Cell of each point of the simplex.

    Axes:
        q (rows, K)
        thirds (2,)
        out (rows,)
    """
    for i in range(out.size):
        out[i] = _simplex_cell(q[i], thirds)


@kernel
def simplex_cells(q, thirds, delta, weights, totals, sums):
    """Σw and Σwδ of each cell of three intervals per class.

    Axes:
        q, delta (rows, K)
        thirds (2,)
        weights (rows,) or empty
        totals (cells,)
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
