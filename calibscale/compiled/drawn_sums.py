"""Sums over drawn labels: by class and feature, by cell, by bin.

The sums of a replicate start from the sums of the observed labels.  Rows with another label then
move their terms, so that a replicate that repeats the observed labels has the same bits.  All sums
are in double precision.  If predictions take few values, many replicates are tied with the data,
and rounding of single precision would break ties that an exact test has to count.
"""

from __future__ import annotations

import numpy as np

from calibscale.compiled.jit import inlined, kernel
from calibscale.compiled.label_groups import add_by_label

_ROWS = 256  # rows whose features stay in cache while all replicates add them
_SQUARES = 8192  # squares of residuals, which stay in cache
_REPLICATES = 128  # replicates that add to bins in turn, as each has a copy of its sums
_MOST_CELLS_PER_ROW = 2  # bins of all labels, up to which all rows are added to them
_CHANGED_ROWS = 1024  # rows whose changes of labels stay in cache for hundreds of replicates
_MOST_SHARE_BY_ROW = 0.2  # share of rows with another label, below which they are added one by one
_MOST_GROUPED_LABELS = 64  # labels up to which rows are grouped, as each has a group with few rows


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


def expected_changes(q, labels):
    """Expected number of rows with a drawn label other than y, Σ(1 − q_y).

    axes: q (c, K), labels (c,)
    """
    return float(np.sum(1.0 - q[np.arange(len(labels)), labels]))


def add_features(drawn, labels, phi, changing, sums, out):
    """out[b] += Σ δ*φᵀ with the drawn labels, from `sums` = Σ δφᵀ with the observed labels.

    A row with another drawn label y* adds its features to the sum of y, and subtracts them from the
    sum of y*.  `changing` is the expected number of these rows, see `expected_changes`.

    axes: drawn (B, c) int32, labels (c,), phi (c, m) with weights, sums (K, m), out (B, K, m)
    """
    K = len(sums)
    if K == 2:
        out += sums
        _change_two_sums(drawn, labels, phi, out)
    elif changing < _MOST_SHARE_BY_ROW * len(labels) or K > _MOST_GROUPED_LABELS:
        out += sums
        _move_features(drawn, labels, phi, out)
    else:
        add_by_label(drawn, labels, phi, sums, out)


def _change_two_sums(drawn, labels, phi, out):
    """Change the sums of two labels by opposite amounts, which products of matrices add.

    axes: as `add_features`
    """
    for low in range(0, len(labels), _CHANGED_ROWS):
        rows = slice(low, low + _CHANGED_ROWS)
        changes = np.subtract(drawn[:, rows], labels[rows], dtype=np.float64) @ phi[rows]
        out[:, 0] += changes
        out[:, 1] -= changes


@kernel
def _move_features(drawn, labels, phi, out):
    """out[b, y] += φ and out[b, y*] −= φ for rows with a drawn label y* other than y, row by row.

    axes: as `add_features`
    """
    rows, m = phi.shape
    moved = np.empty(_ROWS, np.int64)
    for start in range(0, rows, _ROWS):
        for b in range(drawn.shape[0]):
            for position in range(_find_moved(drawn[b], labels, start, moved)):
                i = moved[position]
                old, new, features = out[b, labels[i]], out[b, drawn[b, i]], phi[i]
                for j in range(m):
                    old[j] += features[j]
                    new[j] -= features[j]


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
    size = max(_SQUARES // K, 1)
    squares = np.empty((size, K))  # |δ*|² of some rows for every label
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        for i in range(start, stop):
            top = 0
            for k in range(1, K):
                top = k if q[i, k] > q[i, top] else top
            without_top = 0.0
            for k in range(K):
                without_top += q[i, k] * q[i, k] if k != top else 0.0
            sum_of_both = 1.0 + without_top + q[i, top] * q[i, top]  # |q|² + |e_y|²
            for k in range(K):
                squares[i - start, k] = sum_of_both - 2.0 * q[i, k]
            squares[i - start, top] = without_top + (1.0 - q[i, top]) ** 2
        for b in range(drawn.shape[0]):
            by_a = by_t = 0.0
            for i in range(start, stop):
                square = squares[i - start, drawn[b, i]]
                by_a += a[i] * square
                by_t += t[i] * square
            out[0, b] += by_a
            out[1, b] += by_t


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


def move_bins(drawn, labels, bins, weights, out):
    """out[b, y, bin of q_y] += w, and −= w for y*, for rows with a drawn label y* other than y.

    Axes:
        drawn (B, c) int32
        labels (c,)
        bins (c, K)
        weights (c,)
        out (B, K, bins)
    """
    # Sums over all rows have no branches, but many cells take longer to add than few rows.
    if out[0].size > _MOST_CELLS_PER_ROW * len(labels):
        _move_between_bins(drawn, labels, bins, weights, out)
        return
    for low in range(0, len(out), _REPLICATES):
        part = slice(low, low + _REPLICATES)
        _add_all_to_bins(drawn[part], labels, bins, weights, out[part])


@kernel
def _add_all_to_bins(drawn, labels, bins, weights, out):
    """`move_bins` by sums over all rows by y and by y*, which have the same bits if y* = y."""
    (B, K, n_bins), rows = out.shape, weights.size
    cells = np.empty((_ROWS, K), np.int32)
    sums = np.zeros((1 + B, K * n_bins))  # by y, then by y* of each replicate
    for start in range(0, rows, _ROWS):
        part = slice(start, min(start + _ROWS, rows))
        for i in range(part.start, part.stop):
            for k in range(K):
                cells[i - start, k] = k * n_bins + bins[i, k]
        _add_to_cells(labels[part], cells, weights[part], sums[0])
        for b in range(B):
            _add_to_cells(drawn[b, part], cells, weights[part], sums[1 + b])
    for b in range(B):
        for k in range(K):
            for j in range(n_bins):
                out[b, k, j] += sums[0, k * n_bins + j] - sums[1 + b, k * n_bins + j]


@inlined()
def _add_to_cells(labels, cells, weights, sums):
    for i in range(labels.size):
        sums[cells[i, labels[i]]] += weights[i]


@kernel
def _move_between_bins(drawn, labels, bins, weights, out):
    """`move_bins` by rows with another label alone."""
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


@kernel
def add_chosen(sums, chosen, out):
    """out[b] += sums[chosen[b]].

    Axes:
        sums (S, d)
        chosen (B,)
        out (B, d)
    """
    for b in range(chosen.size):
        added = sums[chosen[b]]
        for i in range(added.size):
            out[b, i] += added[i]
