"""What tests draw for many replicates of each row, and how it is summed.

A draw depends on (seed, row, replicate) alone.  Replicates 2j and 2j + 1 share a counter.
"""

from __future__ import annotations

import numpy as np

from calibscale.kernels._jit import inlined, kernel
from calibscale.kernels.random import PERMUTATIONS, REPLICATES, philox, uniforms

_MASK = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_FEISTEL_ROUNDS = 8
_ROWS = 256  # whose features stay in cache while all replicates add them


@kernel
def events(seed, rows, p, first, out):
    """δ* = p − event, of events that have probability p.

    axes: rows, p (c,); out (B, c), replicates from `first` on
    """
    B = out.shape[0]
    for j in range(first // 2, (first + B + 1) // 2):
        a, b = 2 * j - first, 2 * j + 1 - first
        for i in range(p.size):
            u, v = uniforms(seed, REPLICATES, rows[i], j)
            if a >= 0:
                out[a, i] = p[i] - 1.0 if u < p[i] else p[i]
            if b < B:
                out[b, i] = p[i] - 1.0 if v < p[i] else p[i]


@inlined()
def _class(u, cumulative):
    """The class in whose share of [0, total) u·total falls; never one of probability 0."""
    K = cumulative.size
    x = u * cumulative[K - 1]
    k = 0
    if K <= 32:
        for c in range(K - 1):
            k += 1 if cumulative[c] <= x else 0
    else:
        high = K - 1
        while k < high:
            middle = (k + high) // 2
            if cumulative[middle] <= x:
                k = middle + 1
            else:
                high = middle
    while k > 0 and cumulative[k] == cumulative[k - 1]:  # rounding put x at the very end
        k -= 1
    return k


@kernel
def labels(seed, rows, q, first, out):
    """Labels drawn from the predictions.

    axes: rows (c,); q (c, K); out (B, c) int32, replicates from `first` on
    """
    B = out.shape[0]
    K = q.shape[1]
    cumulative = np.empty(K)
    for i in range(rows.size):
        total = 0.0
        for k in range(K):
            total += q[i, k]
            cumulative[k] = total
        for j in range(first // 2, (first + B + 1) // 2):
            a, b = 2 * j - first, 2 * j + 1 - first
            u, v = uniforms(seed, REPLICATES, rows[i], j)
            if a >= 0:
                out[a, i] = _class(u, cumulative)
            if b < B:
                out[b, i] = _class(v, cumulative)


@kernel
def signs(seed, rows, first, out):
    """Independent signs of probability one half.

    axes: rows (c,); out (B, c) float64, replicates from `first` on
    """
    for i in range(rows.size):
        row = np.uint64(rows[i])
        block = np.int64(-1)
        low = np.uint64(0)
        high = np.uint64(0)
        for r in range(out.shape[0]):
            replicate = first + r
            if replicate // 128 != block:
                block = replicate // 128
                a, b, c, d = philox(
                    row & _MASK, row >> _32, np.uint64(block), np.uint64(REPLICATES),
                    np.uint64(seed) & _MASK, np.uint64(seed) >> _32,
                )  # fmt: skip
                low, high = (a << _32) | b, (c << _32) | d
            bit = np.uint64(replicate % 64)
            word = low if replicate % 128 < 64 else high
            out[r, i] = 1.0 if (word >> bit) & np.uint64(1) else -1.0


@kernel
def resampled(seed, rows, first, n, out):
    """Positions among n, with replacement.

    axes: rows (c,); out (B, c) int64, replicates from `first` on
    """
    B = out.shape[0]
    for j in range(first // 2, (first + B + 1) // 2):
        a, b = 2 * j - first, 2 * j + 1 - first
        for i in range(rows.size):
            u, v = uniforms(seed, REPLICATES, rows[i], j)
            if a >= 0:
                out[a, i] = min(np.int64(u * n), n - 1)
            if b < B:
                out[b, i] = min(np.int64(v * n), n - 1)


@kernel
def permuted(seed, ranks, first, n, out):
    """Where n positions go under a permutation of its own for each replicate.

    A Feistel network on the next power of four, 256 or more as smaller ones favour some
    permutations, walked until it is back among n.

    axes: ranks (c,) in 0..n−1; out (B, c) int64, replicates from `first` on
    """
    half = 4
    while (np.int64(1) << (2 * half)) < n:
        half += 1
    mask = (np.uint64(1) << np.uint64(half)) - np.uint64(1)
    shift = np.uint64(half)
    for r in range(out.shape[0]):
        for i in range(ranks.size):
            x = np.uint64(ranks[i])
            while True:
                left, right = x >> shift, x & mask
                for turn in range(_FEISTEL_ROUNDS):
                    word, _, _, _ = philox(
                        right, np.uint64(turn), np.uint64(first + r), np.uint64(PERMUTATIONS),
                        np.uint64(seed) & _MASK, np.uint64(seed) >> _32,
                    )  # fmt: skip
                    left, right = right, left ^ (word & mask)
                x = (left << shift) | right
                if x < np.uint64(n):
                    break
            out[r, i] = np.int64(x)


# ---------------------------------------------------------------- sums over drawn labels
# They start from the sums of the observed labels, and follow the rows that change.


@kernel
def move_features(drawn, labels, phi, out):
    """out[b, y] += φ and out[b, y*] −= φ for the rows whose drawn label y* is another.

    axes: drawn (B, c) int32; labels (c,); phi (c, m) with weights; out (B, K, m)
    """
    rows, m = phi.shape
    for start in range(0, rows, _ROWS):
        stop = min(rows, start + _ROWS)
        for b in range(drawn.shape[0]):
            for i in range(start, stop):
                if drawn[b, i] == labels[i]:
                    continue
                old, new, mine = out[b, labels[i]], out[b, drawn[b, i]], phi[i]
                for j in range(m):
                    old[j] += mine[j]
                    new[j] -= mine[j]


@kernel
def label_sums(drawn, q, a, t, out):
    """out[0, b] += Σ a|δ*|², out[1, b] += Σ t|δ*|², with |q − e_y|² = |q|² + 1 − 2 q_y.

    That of the largest q_y apart, as it loses its digits where q_y is nearly 1.

    axes: drawn (B, c) int32; q (c, K); a, t (c,); out (2, B)
    """
    rows, K = q.shape
    for i in range(rows):
        top = 0
        for k in range(1, K):
            top = k if q[i, k] > q[i, top] else top
        others = 0.0
        for k in range(K):
            others += q[i, k] * q[i, k] if k != top else 0.0
        square = 1.0 + others + q[i, top] * q[i, top]
        least = others + (1.0 - q[i, top]) ** 2
        for b in range(drawn.shape[0]):
            y = drawn[b, i]
            d = least if y == top else square - 2.0 * q[i, y]
            out[0, b] += a[i] * d
            out[1, b] += t[i] * d


@kernel
def move_cells(drawn, labels, cells, weights, out):
    """out[b, cell, y] += w and out[b, cell, y*] −= w for the rows whose drawn label is another.

    axes: drawn (B, c) int32; labels, cells, weights (c,); out (B, cells, K)
    """
    for b in range(drawn.shape[0]):
        for i in range(cells.size):
            if drawn[b, i] != labels[i]:
                out[b, cells[i], labels[i]] += weights[i]
                out[b, cells[i], drawn[b, i]] -= weights[i]


@kernel
def move_bins(drawn, labels, bins, weights, out):
    """out[b, y, bin of q_y] += w, and −= w for y*, of the rows whose drawn label is another.

    axes: drawn (B, c) int32; labels (c,); bins (c, K); weights (c,); out (B, K, bins)
    """
    for b in range(drawn.shape[0]):
        for i in range(weights.size):
            y, z = labels[i], drawn[b, i]
            if y != z:
                out[b, y, bins[i, y]] += weights[i]
                out[b, z, bins[i, z]] -= weights[i]


@kernel
def add_bins(values, bins, out):
    """out[b, bin] += Σ values over the rows of a bin.

    axes: values (B, c); bins (c,); out (B, bins)
    """
    for b in range(values.shape[0]):
        for i in range(bins.size):
            out[b, bins[i]] += values[b, i]
