"""Sums over drawn labels: by class and feature, by cell, by bin.

The sums of a replicate start from the sums of the observed labels.  Rows with another label then
move their terms, so that a replicate that repeats the observed labels has the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibscale.kernels import inlined, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]

_ROWS = 256  # rows with features that stay in cache while all replicates add them
# With few labels and enough rows and features, a matrix product is faster than adding the rows
# that moved, although most of its factors are zeros.  On a processor with 512-bit registers, 1,000
# features of 10 classes take a fifth of the time.
_PRODUCT_LABELS = 32
_PRODUCT_ROWS = 256
_PRODUCT_FEATURES = 64
# Rows of a product in single precision, which is then added to sums in double precision.  Its
# terms have mean 0, being differences of two draws.  Each addition rounds a partial sum by 2^-24
# of it, so that the noise of a replicate has a relative error of about 2^-24·√2048 = 3e-6.
_BLOCK_ROWS = 2048


@inlined()
def _find_moved(drawn, labels, start, moved):
    """Write the positions, from `start` on, where the drawn label differs, and return their number.

    A loop over these positions alone has no branch that the processor fails to predict.
    """
    count = 0
    # Every position is written, and kept only if the count moves on: there is no branch here.
    for i in range(start, min(start + moved.size, labels.size)):
        moved[count] = i
        count += 1 if drawn[i] != labels[i] else 0
    return count


def move_features(drawn: Ints, labels: Ints, phi: Floats, weights: Floats, out: Floats) -> None:
    """out[b, y] += wφ and out[b, y*] −= wφ for rows with a drawn label y* other than y.

    Axes:
        drawn (B, c) int32
        labels, weights (c,)
        phi (c, m)
        out (B, K, m)
    """
    rows, m = phi.shape
    few_labels = out.shape[1] <= _PRODUCT_LABELS
    if few_labels and rows >= _PRODUCT_ROWS and m >= _PRODUCT_FEATURES:
        _move_by_products(drawn, labels, phi, weights, out)
    else:
        _move_row_by_row(drawn, labels, phi, weights, out)


def _move_by_products(drawn: Ints, labels: Ints, phi: Floats, weights: Floats, out: Floats) -> None:
    """Move features by matrix products of the moves of rows and the features of rows."""
    B, K, m = out.shape
    largest = float(weights.max(initial=0.0))
    if largest == 0.0:
        return
    relative = weights / largest  # so that no product overflows in single precision
    for start in range(0, len(labels), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        features = phi[block].astype(np.float32)
        moves = np.zeros((B, K - 1, len(features)), np.float32)
        _write_moves(drawn[:, block], labels[block], relative[block], moves)
        product = moves.reshape(B * (K - 1), -1) @ features
        _add_product(product.reshape(B, K - 1, m), largest, out)


@kernel
def _write_moves(drawn, labels, weights, moves):
    """moves[b, y, i] = w and moves[b, y*, i] = −w, without the last class.

    The moves of a row sum to 0 over the classes, which determines the last one.

    Axes:
        drawn (B, c) int32
        labels, weights (c,)
        moves (B, K − 1, c) float32, zeros at first
    """
    B, last_class, rows = moves.shape
    for b in range(B):
        for i in range(rows):
            old, new = labels[i], drawn[b, i]
            if old != new:
                if old < last_class:
                    moves[b, old, i] = weights[i]
                if new < last_class:
                    moves[b, new, i] = -weights[i]


@kernel
def _add_product(product, scale, out):
    """out += scale · product, and the last class loses the sum of these changes.

    Axes:
        product (B, K − 1, m) float32
        out (B, K, m)
    """
    B, last_class, m = product.shape
    for b in range(B):
        last = out[b, last_class]
        for k in range(last_class):
            moved, total = product[b, k], out[b, k]
            for j in range(m):
                change = scale * np.float64(moved[j])
                total[j] += change
                last[j] -= change


@kernel
def _move_row_by_row(drawn, labels, phi, weights, out):
    """Move features by additions, as `move_features`."""
    rows, m = phi.shape
    moved = np.empty(_ROWS, np.int64)
    for start in range(0, rows, _ROWS):
        for b in range(drawn.shape[0]):
            for position in range(_find_moved(drawn[b], labels, start, moved)):
                i = moved[position]
                old, new, features = out[b, labels[i]], out[b, drawn[b, i]], phi[i]
                weight = weights[i]
                for j in range(m):
                    old[j] += weight * features[j]
                    new[j] -= weight * features[j]


@kernel
def label_sums(drawn, q, a, t, out):
    """out[0, b] += Σ a|δ*|², out[1, b] += Σ t|δ*|², with |q − e_y|² = |q|² + 1 − 2 q_y.

    The square for the largest q_y is computed apart: the formula loses digits where q_y ≈ 1.

    Axes:
        drawn (B, c) int32
        q (c, K)
        a, t (c,)
        out (2, B)
    """
    rows, K = q.shape
    for i in range(rows):
        top = 0
        for k in range(1, K):
            top = k if q[i, k] > q[i, top] else top
        without_top = 0.0
        for k in range(K):
            without_top += q[i, k] * q[i, k] if k != top else 0.0
        square = 1.0 + without_top + q[i, top] * q[i, top]
        at_top = without_top + (1.0 - q[i, top]) ** 2
        for b in range(drawn.shape[0]):
            y = drawn[b, i]
            d = at_top if y == top else square - 2.0 * q[i, y]
            out[0, b] += a[i] * d
            out[1, b] += t[i] * d


@kernel
def move_cells(drawn, labels, cells, weights, out):
    """out[b, cell, y] += w and out[b, cell, y*] −= w for rows with a drawn label other than y.

    Axes:
        drawn (B, c) int32
        labels, cells, weights (c,)
        out (B, cells, K)
    """
    moved = np.empty(_ROWS, np.int64)
    for start in range(0, cells.size, _ROWS):
        for b in range(drawn.shape[0]):
            for position in range(_find_moved(drawn[b], labels, start, moved)):
                i = moved[position]
                out[b, cells[i], labels[i]] += weights[i]
                out[b, cells[i], drawn[b, i]] -= weights[i]


@kernel
def move_bins(drawn, labels, bins, weights, out):
    """out[b, y, bin of q_y] += w, and −= w for y*, for rows with a drawn label y* other than y.

    Axes:
        drawn (B, c) int32
        labels (c,)
        bins (c, K)
        weights (c,)
        out (B, K, bins)
    """
    moved = np.empty(_ROWS, np.int64)
    for start in range(0, weights.size, _ROWS):
        for b in range(drawn.shape[0]):
            for position in range(_find_moved(drawn[b], labels, start, moved)):
                i = moved[position]
                y, z = labels[i], drawn[b, i]
                out[b, y, bins[i, y]] += weights[i]
                out[b, z, bins[i, z]] -= weights[i]


@kernel
def move_hits(drawn, hits, predicted, bins, weights, out):
    """out[b, bin] += w (hit − hit*) for rows where y or y*, but not both, is the predicted label.

    Axes:
        drawn (B, c) int32
        hits (c,), 1 where y is the predicted label
        predicted, bins, weights (c,)
        out (B, bins)
    """
    for b in range(drawn.shape[0]):
        sums = out[b]
        for i in range(bins.size):
            hit = 1.0 if drawn[b, i] == predicted[i] else 0.0
            # The product is 0 for most rows.  Adding it is faster than a branch around it.
            sums[bins[i]] += (hits[i] - hit) * weights[i]


@kernel
def add_bins(values, bins, out):
    """out[b, bin] += Σ values over the rows of the bin.

    Axes:
        values (B, c)
        bins (c,)
        out (B, bins)
    """
    for b in range(values.shape[0]):
        for i in range(bins.size):
            out[b, bins[i]] += values[b, i]
