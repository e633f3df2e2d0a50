"""Sums over drawn labels: by class and feature, by cell, by bin.

The sums of a replicate start from the sums of the observed labels.  Rows with another label then
move their terms, so that a replicate that repeats the observed labels has the same bits.  All sums
are in double precision.  If predictions take few values, many replicates are tied with the data,
and rounding of single precision would break ties that an exact test has to count.
"""

from __future__ import annotations

import numpy as np

from calibscale.compiled.jit import inlined, kernel

_ROWS = 256  # rows whose features stay in cache while all replicates add them
_CHANGED_ROWS = 1024  # rows whose changes of labels stay in cache for hundreds of replicates
_TILE_FEATURES = 256  # features of these rows that are added at once
_GROUPED_LABELS = 64  # most labels for which rows are grouped
_GROUPED_FEATURES = 256  # features from which rows are grouped by label before they are added


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


def move_features(drawn, labels, phi, out):
    """out[b, y] += φ and out[b, y*] −= φ for rows with a drawn label y* other than y.

    The sums of two labels change by opposite amounts.  A product of matrices is then faster than
    loops over the changed rows.

    axes: drawn (B, c) int32, labels (c,), phi (c, m) with weights, out (B, K, m)
    """
    if out.shape[1] != 2:
        _move_features_of_labels(drawn, labels, phi, out)
        return
    for low in range(0, len(labels), _CHANGED_ROWS):
        rows = slice(low, low + _CHANGED_ROWS)
        changes = np.subtract(drawn[:, rows], labels[rows], dtype=np.float64) @ phi[rows]
        out[:, 0] += changes
        out[:, 1] -= changes


@kernel
def _move_features_of_labels(drawn, labels, phi, out):
    """`move_features` by loops over the rows with another label.

    With many features, rows are grouped by label, so that four rows are added per store.  With few
    features, grouping the rows takes longer than adding them, and with many labels groups are
    small.

    axes: drawn (B, c) int32, labels (c,), phi (c, m) with weights, out (B, K, m)
    """
    if phi.shape[1] < _GROUPED_FEATURES or out.shape[1] > _GROUPED_LABELS:
        _move_row_by_row(drawn, labels, phi, out)
    else:
        _move_by_label(drawn, labels, phi, out)


@inlined()
def _move_row_by_row(drawn, labels, phi, out):
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


@inlined()
def _move_by_label(drawn, labels, phi, out):
    rows, m = phi.shape
    B, K = out.shape[:2]
    moved = np.empty(_ROWS, np.int64)
    grouped = np.empty((B, 2 * _ROWS), np.int64)
    ends = np.empty((B, 2 * K), np.int64)
    tile = np.empty((_ROWS, _TILE_FEATURES))  # contiguous copy of a part of φ, to stay in cache
    for start in range(0, rows, _ROWS):
        size = min(_ROWS, rows - start)
        for b in range(B):
            count = _find_moved(drawn[b], labels, start, moved)
            _group_by_label(drawn[b], labels, start, moved[:count], grouped[b], ends[b])
        for low in range(0, m, _TILE_FEATURES):
            high = min(low + _TILE_FEATURES, m)
            for i in range(size):
                for j in range(high - low):
                    tile[i, j] = phi[start + i, low + j]
            for b in range(B):
                first = 0
                for group in range(2 * K):
                    sign = 1.0 if group < K else -1.0
                    members = grouped[b, first : ends[b, group]]
                    _add_rows(tile, members, sign, out[b, group % K][low:high])
                    first = ends[b, group]


@inlined()
def _group_by_label(drawn, labels, start, moved, grouped, ends):
    """Sort the positions of moved rows within a block by their old label, then by their new one.

    axes: drawn and labels (c,), moved (r,), grouped (≥ 2r,), ends of the groups (2K,)
    """
    K = ends.size // 2
    ends[:] = 0
    for i in moved:
        ends[labels[i]] += 1
        ends[K + drawn[i]] += 1
    total = 0
    for group in range(2 * K):
        count = ends[group]
        ends[group] = total
        total += count
    # The end of each group starts at its first position and moves to its last.
    for i in moved:
        for group in (labels[i], K + drawn[i]):
            grouped[ends[group]] = i - start
            ends[group] += 1


@inlined()
def _add_rows(tile, members, sign, total):
    """total += sign · Σ tile[i] over the members i, four rows at a time.

    axes: tile (r, ≥ m), members (g,), total (m,)
    """
    fours = members.size // 4 * 4
    for g in range(0, fours, 4):
        first, second = tile[members[g]], tile[members[g + 1]]
        third, fourth = tile[members[g + 2]], tile[members[g + 3]]
        for j in range(total.size):
            total[j] += sign * ((first[j] + second[j]) + (third[j] + fourth[j]))
    for g in range(fours, members.size):
        row = tile[members[g]]
        for j in range(total.size):
            total[j] += sign * row[j]


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
