"""The fused row kernels: one sweep from logits or probabilities and labels to row scores."""

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
BAD_COVARIATE = 8

SMALLEST = 2.0**-500  # of numbers that are multiplied: subnormal products are slow

_SIGN_LESS = np.int64(0x7FFFFFFFFFFFFFFF)
_INFINITY = np.int64(0x7FF0000000000000)


@inlined()
def _extent(row):
    """(smallest, largest, whether all are finite) by the order of the bits as integers.

    LLVM vectorises integer maxima, but no floating-point ones that Numba can write.  Flipping the
    bits of negative numbers orders them as the numbers are; infinities and NaN lie at the ends.
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
    return smallest, largest, high < _INFINITY and low > ~_INFINITY


@inlined("nsz", "reassoc", "contract")
def _sums(row, top):
    """Σq and Σq² without the top label, but for squares that underflow."""
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
    """Σe^(x − max x) and its squares without the top label, but for squares that underflow."""
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
def _brier(squares, p, rest, own, hit):
    """Σ_k (q_k − e_k)², from Σq² without the top label, its p and 1 − p, and q of the label."""
    rest = rest if abs(rest) >= SMALLEST else 0.0
    own = own if own >= SMALLEST else 0.0
    if hit:
        return squares + rest * rest
    return squares - own * own + p * p + (1.0 - own) * (1.0 - own)


@kernel
def score_logits(x, labels, top, confidence, rest, brier, nll, status):
    """Per row: top label, max q, 1 − max q, Brier, −log q_y; q itself is left to `softmax`.

    axes: x (rows, K) float32 or float64; all else (rows,)
    """
    rows, K = x.shape
    for i in range(rows):
        row = x[i]
        y = labels[i]
        _, largest, finite = _extent(row)
        status[i] = _complaint(finite, y, K)
        if status[i] > UNLABELLED:
            continue
        t = _first_equal(row, largest)
        # without the top label, which is nearly all: what is left to 1 keeps its digits
        others, squares = _exponential_sums(row, largest, t)
        p = 1.0 / (1.0 + others)
        shifted = np.float64(row[max(y, 0)]) - largest
        top[i] = t
        confidence[i] = p
        rest[i] = others * p
        own = 0.0 if t == y else exp(shifted) * p
        brier[i] = _brier(squares * p * p, p, rest[i], own, t == y)
        nll[i] = math.log1p(others) - shifted


@kernel
def softmax(x, confidence, q):
    """q = e^(x − max x) · max q.

    axes: x (rows, K) float32 or float64; confidence (rows,); q (rows, K) float64
    """
    rows, K = x.shape
    for i in range(rows):
        _, largest, _ = _extent(x[i])
        for k in range(K):
            q[i, k] = exp(np.float64(x[i, k]) - largest) * confidence[i]


@kernel
def score_probabilities(x, labels, tolerance, top, confidence, rest, brier, nll, status):
    """The same scores from probabilities, which are checked and left as they are.

    axes: x (rows, K) float32 or float64; all else (rows,); rows may miss 1 by `tolerance`
    """
    rows, K = x.shape
    for i in range(rows):
        row = x[i]
        y = labels[i]
        smallest, p, finite = _extent(row)
        status[i] = _complaint(finite, y, K)
        if status[i] > UNLABELLED:
            continue
        t = _first_equal(row, p)
        others, squares = _sums(row, t)
        if smallest < 0.0:
            status[i] = NEGATIVE
        elif abs(others + p - 1.0) > tolerance:
            status[i] = OFF_SIMPLEX
        own = np.float64(row[max(y, 0)])
        top[i] = t
        confidence[i] = p
        rest[i] = 1.0 - p
        brier[i] = _brier(squares, p, 1.0 - p, own, t == y)
        nll[i] = -math.log(own) if own > 0.0 else np.inf
