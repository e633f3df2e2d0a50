"""Validity and scores of rows of logits or probabilities."""

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

_STRIP = 512  # numbers in a strip of rows, at least one, to stay in the fastest cache
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
def _exponential_sums(exponentials, top):
    """Σe and Σe² of e = exp(x − max x) without the top label.  Tiny squares are omitted."""
    total = 0.0
    squares = 0.0
    for k in range(exponentials.size):
        e = 0.0 if k == top else exponentials[k]
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
def _subtract(row, largest, out):
    for k in range(row.size):
        out[k] = np.float64(row[k]) - largest


@inlined()
def _exponentiate(rows):
    """x ← e^x for contiguous rows (r, K).

    A loop over each row would end with single numbers that do not fill a vector, which take as
    long as several vectors.  One loop over all numbers has one such end.
    """
    numbers = rows.reshape(-1)
    for j in range(numbers.size):
        numbers[j] = exp(numbers[j])


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
    step = max(_STRIP // K, 1)
    exponentials = np.empty((step, K))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        for i in range(start, stop):
            _, largest, finite = extent_of(x[i])
            status[i] = _complaint(finite, labels[i], K)
            if status[i] <= UNLABELLED:
                confidence[i] = largest  # kept here until the exponentials are there
                _subtract(x[i], largest, exponentials[i - start])
            else:
                exponentials[i - start] = 0.0  # `exp` is undefined for NaN
        _exponentiate(exponentials[: stop - start])
        for i in range(start, stop):
            if status[i] > UNLABELLED:
                continue
            y = labels[i]
            largest = confidence[i]
            e = exponentials[i - start]
            t = _first_equal(x[i], largest)
            # The sums leave out the dominant top label, so that 1 − max q keeps its digits.
            sum_below, squares = _exponential_sums(e, t)
            p = 1.0 / (1.0 + sum_below)
            top[i] = t
            confidence[i] = p
            complement[i] = sum_below * p
            label_p = 0.0 if t == y else e[max(y, 0)] * p
            brier[i] = _brier(squares * p * p, p, complement[i], label_p, t == y)
            nll[i] = math.log1p(sum_below) - (np.float64(x[i, max(y, 0)]) - largest)


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

    Rows that are not valid get arbitrary numbers.

    Axes:
        x (rows, K) float32 or float64
        confidence (rows,)
        q (rows, K) float64
    """
    rows, K = x.shape
    step = max(_STRIP // K, 1)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        for i in range(start, stop):
            _, largest, _ = extent_of(x[i])
            _subtract(x[i], largest, q[i])
        _exponentiate(q[start:stop])
        for i in range(start, stop):
            for k in range(K):
                p = q[i, k] * confidence[i]
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
