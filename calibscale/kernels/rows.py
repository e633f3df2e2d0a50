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


@inlined()
def _brier(squares, p, rest, own, hit):
    """Σ_k (q_k − e_k)², from Σq² without the top label, its p and 1 − p, and q of the label."""
    if hit:
        return squares + rest * rest
    return squares - own * own + p * p + (1.0 - own) * (1.0 - own)


@kernel
def softmax_rows(x, labels, top, scale, confidence, rest, brier, nll, status):
    """Per row: e^(x − max x) in place, 1/Σ (q = x·scale), top label, its q, 1 − q, Brier, −log q_y.

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
        t = _first_equal(row, largest)
        top[i] = t
        for k in range(K):
            row[k] = exp(row[k] - largest)
        # without the top label, which is nearly all: what is left to 1 keeps its digits
        row[t] = 0.0
        others, squares = _sums(row)
        row[t] = 1.0  # e^0
        inverse = 1.0 / (1.0 + others)
        scale[i] = inverse
        confidence[i] = inverse
        rest[i] = others * inverse
        own = row[max(y, 0)] * inverse
        brier[i] = _brier(squares * inverse * inverse, inverse, rest[i], own, t == y)
        nll[i] = math.log1p(others) - shifted
        status[i] = OK if y >= 0 else UNLABELLED


@kernel
def probability_rows(x, labels, tolerance, top, scale, confidence, rest, brier, nll, status):
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
        largest = _maximum(row)
        t = _first_equal(row, largest)
        row[t] = 0.0
        others, squares = _sums(row)
        row[t] = largest
        if abs(others + largest - 1.0) > tolerance:
            status[i] = OFF_SIMPLEX
            continue
        own = row[max(y, 0)]
        top[i] = t
        scale[i] = 1.0
        confidence[i] = largest
        rest[i] = 1.0 - largest
        status[i] = OK if y >= 0 else UNLABELLED
        brier[i] = _brier(squares, largest, 1.0 - largest, own, t == y)
        nll[i] = -math.log(own) if own > 0.0 else np.inf
