"""The fused row kernels: one sweep from logits (or probabilities) and labels to row scores."""

from __future__ import annotations

import math

import numpy as np

from calibscale.kernels._jit import inlined, kernel
from calibscale.kernels.elementary import exp

# What a row is; the first broken rule counts.
OK = 0
UNLABELLED = 1
NOT_FINITE = 2
LABEL_RANGE = 3
NEGATIVE = 4
OFF_SIMPLEX = 5
BAD_WEIGHT = 6
NO_GROUP = 7

_EXPONENT = 0x7FF0000000000000


@inlined("nnan", "ninf", "nsz", "reassoc")
def _maximum(row):
    largest = row[0]
    for k in range(1, row.size):
        largest = max(largest, row[k])
    return largest


@inlined("nsz", "reassoc", "contract")
def _sums(row):
    total = 0.0
    squares = 0.0
    for k in range(row.size):
        total += row[k]
        squares += row[k] * row[k]
    return total, squares


@inlined()
def _all_finite(row):
    bad = 0
    for k in range(row.size):  # all exponent bits set: inf or NaN
        bad |= int((np.float64(row[k]).view(np.int64) & _EXPONENT) == _EXPONENT)
    return bad == 0


@inlined()
def _first_equal(row, value):
    for k in range(row.size):
        if row[k] == value:
            return k
    return 0


@kernel
def softmax_rows(x, labels, top, scale, confidence, brier, nll, status):
    """Per row: e^(x − max x) in place, 1/Σ (so q = x·scale), top label, its q, Brier, −log q_y.

    axes: x (rows, K) float64 logits in, exponentials out; all else (rows,)
    """
    rows, K = x.shape
    for i in range(rows):
        row = x[i]
        if not _all_finite(row):
            status[i] = NOT_FINITE
            continue
        y = labels[i]
        if y < -1 or y >= K:
            status[i] = LABEL_RANGE
            continue
        largest = _maximum(row)
        shifted = row[max(y, 0)] - largest
        top[i] = _first_equal(row, largest)
        for k in range(K):
            row[k] = exp(row[k] - largest)
        total, squares = _sums(row)
        inverse = 1.0 / total
        scale[i] = inverse
        confidence[i] = inverse  # e^0 · scale
        status[i] = OK
        if y < 0:
            status[i] = UNLABELLED
            continue
        p = row[y] * inverse
        brier[i] = squares * inverse * inverse - p * p + (1.0 - p) * (1.0 - p)
        nll[i] = math.log(total) - shifted


@kernel
def probability_rows(x, labels, tolerance, top, scale, confidence, brier, nll, status):
    """The same scores from probabilities, which are checked and left as they are.

    axes: x (rows, K) float64; all else (rows,); a row may miss 1 by at most `tolerance`
    """
    rows, K = x.shape
    for i in range(rows):
        row = x[i]
        if not _all_finite(row):
            status[i] = NOT_FINITE
            continue
        y = labels[i]
        if y < -1 or y >= K:
            status[i] = LABEL_RANGE
            continue
        smallest = row[0]
        for k in range(1, K):
            smallest = min(smallest, row[k])
        if smallest < 0.0:
            status[i] = NEGATIVE
            continue
        total, squares = _sums(row)
        if abs(total - 1.0) > tolerance:
            status[i] = OFF_SIMPLEX
            continue
        largest = _maximum(row)
        top[i] = _first_equal(row, largest)
        scale[i] = 1.0
        confidence[i] = largest
        status[i] = OK
        if y < 0:
            status[i] = UNLABELLED
            continue
        p = row[y]
        brier[i] = squares - p * p + (1.0 - p) * (1.0 - p)
        nll[i] = -math.log(p) if p > 0.0 else np.inf
