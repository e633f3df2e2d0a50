"""Sums over pairs of rows, by sub-tiles of a pair of panels.

The values of a sub-tile have the precision of its panels.  Across rows they are summed in float64.

Subnormal numbers take many processors a hundred times longer, so the loops avoid them.  Panels hold
no small numbers but 0, and kernel values and products below `KernelForm.constants[4]` are 0.
"""

from __future__ import annotations

import numpy as np

from calibscale.compiled.elementary import exp, registers
from calibscale.compiled.jit import inlined, kernel
from calibscale.compiled.tile_strips import (
    BLAS_CLASSES,
    aligned,
    canonical_strip,
    gram,
    kernel_row,
    label_runs,
    near_plane_strip,
    one_label_strip,
    one_label_weights,
    or_zero,
    plane_strip,
    product_offsets,
    residual_rows,
    side_by_side,
    strip_products,
    strip_room,
    whole,
)

# Largest reach for which s·2^h, and its product with the exponential of a pair, are normal numbers.
REACH_SINGLE, REACH_DOUBLE = 60.0, 500.0
# Largest factor a of Gram products for which s·2^h·2^(−3a) is a normal number.
CROSS_SINGLE, CROSS_DOUBLE = 16.0, 128.0
REACH_PLANE = 20.0  # in float32, where the exponential of a pair may be as small as 2^(−2·reach)
MANY = 16  # vectors from which `many_row_sums` is faster than `row_sums`
MANY_ROWS = 128  # rows of a kernel matrix that stay in cache until they are multiplied
FLUSH = 128  # rows summed in the precision of the panel before they are added in float64


@inlined("contract")
def _weigh(values, strengths):
    """Return Σ_j values[j]·strengths[j] in float64, and set the values to 0."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0  # four independent chains of additions
    for j in range(0, whole(values.size), 4):
        a += np.float64(values[j]) * np.float64(strengths[j])
        b += np.float64(values[j + 1]) * np.float64(strengths[j + 1])
        c += np.float64(values[j + 2]) * np.float64(strengths[j + 2])
        d += np.float64(values[j + 3]) * np.float64(strengths[j + 3])
    values[:] = 0
    return (a + b) + (c + d)


@inlined("contract")
def _plane_tile(P, Q, form, i0, i1, j0, j1, near):
    """Σ s_i s_j κ_ij over a sub-tile, κ a Gaussian in three coordinates."""
    sums = aligned(1, j1 - j0, P.s)[0]
    sums[:] = 0
    total = 0.0
    for i in range(i0, i1, FLUSH):
        if near:
            near_plane_strip(P, i, min(i1, i + FLUSH), Q, j0, form, sums)
            total += _weigh(sums, Q.f[j0:j1])
        else:
            plane_strip(P, i, min(i1, i + FLUSH), Q, j0, form, sums)
            total += _weigh(sums, Q.s[j0:j1])
    return total


@inlined("contract")
def _alike_tile(P, Q, form, i0, i1, j0, j1):
    """Σ s_i s_j ⟨δ_i, δ_j⟩ κ_ij over a sub-tile with columns of a single label m.

    With G = a⟨δ_i, δ_j⟩ and a row's label l the exponent of κ_ij is G + (h_i + a q_i[m]) +
    (h_j + a q_j[l]) − a·1{l = m}, so that a pair costs its product and G 2^G.
    """
    W, K, label = j1 - j0, P.A.shape[1], Q.labels[j0]
    zero, unit, cross = form.constants[0], form.constants[1], form.cross[0]
    c = registers(form.exp2)
    columns = side_by_side(Q, j0, j1, cross)
    for j in range(W):
        columns[label, j] -= cross
    blas = K >= BLAS_CLASSES
    G, scratch = strip_room(P, W), aligned(2, W, P.s)
    sums, shares = scratch[0], scratch[1]
    sums[:] = 0
    residuals, row_weights = aligned(FLUSH, K, P.s), aligned(1, FLUSH, P.s)[0]
    row_weights[:] = 0
    total = 0.0
    first = i0
    # Rows first .. last − 1 have one label too, so that the exponent of a pair is its product up
    # to a summand of the row and a summand of the column.
    while first < i1:
        row_label = P.labels[first]
        last = first + 1
        while last < min(i1, first + FLUSH) and P.labels[last] == row_label:
            last += 1
        stop = residual_rows(P, first, last, unit, residuals)
        shift = cross if row_label == label else zero
        q, out = P.B[label][first:last], row_weights[: last - first]
        one_label_weights(P.f[first:last], q, cross, shift, c, out)
        row_weights[last - first : stop] = 0
        if blas:
            np.dot(residuals[:stop], columns, G[:stop])
        for i in range(0, stop, 4):
            if not blas:
                gram(residuals, i, columns, G)
            one_label_strip(row_weights, i, G, i if blas else 0, c, sums)
        one_label_weights(Q.f[j0:j1], Q.B[row_label][j0:j1], cross, zero, c, shares)
        total += _weigh(sums, shares)
        first = last
    return total / np.float64(cross)


@inlined("contract")
def _canonical_tile(P, Q, form, i0, i1, j0, j1):
    """Σ s_i s_j ⟨δ_i, δ_j⟩ κ_ij over a sub-tile, κ a Gaussian on the predictions alone."""
    W = j1 - j0
    cross, unit = form.cross[0], form.constants[1]
    columns = side_by_side(Q, j0, j1, cross)
    products, offsets, sums = strip_room(P, W), aligned(4, W, P.s), aligned(1, W, P.s)[0]
    sums[:] = 0
    labels, starts = Q.labels[j0:j1], np.empty(W + 1, np.int64)
    runs = label_runs(labels, starts)
    total = 0.0
    for i in range(i0, i1, 4):
        G = strip_products(P.A, i, i0, i1, columns, products)
        product_offsets(P, i, columns, labels, starts, runs, unit, cross, offsets)
        canonical_strip(P, i, form, G, offsets, sums)
        if (i - i0) % FLUSH == FLUSH - 4 or i + 4 >= i1:
            total += _weigh(sums, Q.f[j0:j1])
    return total / np.float64(cross)


@inlined("contract")
def _own(P, i0, i1):
    """Terms of rows with themselves, κ_ii = 1: Σ s_i²|δ_i|², or Σ s_i² without labels."""
    total = 0.0
    for i in range(i0, i1):
        square = 1.0
        if P.labels.size:
            for k in range(P.A.shape[1]):
                d = np.float64(P.A[i, k]) - (1.0 if k == P.labels[i] else 0.0)
                square = square + d * d if k else d * d
        total += np.float64(P.s[i]) ** 2 * square
    return total


@inlined("contract")
def _any_tile(P, Q, form, i0, i1, j0, j1, diagonal, kernel_sums):
    """Σ s_i s_j A_ij κ_ij and Σ u_i u_j κ_ij over a sub-tile, or over its pairs i < j.

    A_ij is ⟨δ_i, δ_j⟩ with labels, else 1.  `diagonal` restricts the sums to i < j.
    """
    W = j1 - j0
    zero, unit, smallest = form.constants[0], form.constants[1], form.constants[4]
    columns = side_by_side(Q, j0, j1, unit)
    products, offsets, scratch = strip_room(P, W), aligned(4, W, P.s), aligned(5, W, P.s)
    G = products[:4]
    power, poly, v, sums, kernels = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    scratch[3:] = 0
    vectors = P.labels.size > 0
    labels, starts = Q.labels[j0:j1], np.empty(W + 1, np.int64)
    runs = label_runs(labels, starts)
    total = 0.0
    kernel_total = 0.0
    for i in range(i0, i1, 4):
        if P.A.shape[1]:
            G = strip_products(P.A, i, i0, i1, columns, products)
        if vectors:
            product_offsets(P, i, columns, labels, starts, runs, unit, unit, offsets)
        for r in range(4):
            kernel_row(P, i + r, Q, j0, form, G[r], power, poly, v)
            start = max(0, i + r + 1 - j0) if diagonal else 0
            if kernel_sums:
                u = P.u[i + r]
                for j in range(start, W):
                    kernels[j] += u * v[j]
            if vectors:
                for j in range(W):
                    v[j] *= or_zero(G[r, j] - offsets[r, j], smallest, zero)
            s = P.s[i + r]
            for j in range(start, W):
                sums[j] += s * v[j]
        if (i - i0) % FLUSH == FLUSH - 4 or i + 4 >= i1:
            total += _weigh(sums, Q.s[j0:j1])
            if kernel_sums:
                kernel_total += _weigh(kernels, Q.u[j0:j1])
    return total, kernel_total


@kernel
def _plane_sums(P, Q, form, tiles, near, out):
    """Σ s_i s_j κ_ij of each sub-tile, out (t,).  See `pair_sums`."""
    for t in range(tiles.shape[0]):
        i0, i1, j0, j1, diagonal = tiles[t]
        total = _plane_tile(P, Q, form, i0, i1, j0, j1, near)
        out[t] = 0.5 * (total - _own(P, i0, i1)) if diagonal else total


@kernel
def _canonical_sums(P, Q, form, tiles, alike, out):
    """Σ s_i s_j ⟨δ_i, δ_j⟩ κ_ij of each sub-tile, out (t,).  See `pair_sums`.

    With `alike`, sub-tiles with columns of one label take the faster loop for them.
    """
    for t in range(tiles.shape[0]):
        i0, i1, j0, j1, diagonal = tiles[t]
        if alike and Q.labels[j0] == Q.labels[j1 - 1]:  # labels are sorted
            total = _alike_tile(P, Q, form, i0, i1, j0, j1)
        else:
            total = _canonical_tile(P, Q, form, i0, i1, j0, j1)
        out[t] = 0.5 * (total - _own(P, i0, i1)) if diagonal else total


@kernel
def _any_sums(P, Q, form, tiles, kernel_sums, out):
    """Both sums of each sub-tile, out (t, 2).  See `pair_sums`."""
    for t in range(tiles.shape[0]):
        i0, i1, j0, j1, diagonal = tiles[t]
        out[t, 0], out[t, 1] = _any_tile(P, Q, form, i0, i1, j0, j1, diagonal != 0, kernel_sums)


def pair_sums(P, Q, form, tiles, kernel_sums, out):
    """Two sums of each sub-tile: out[t, 0] with residuals, out[t, 1] of kernel values alone.

    The forms of kernels have compiled functions of their own.  One function for all of them would
    run out of registers, and a program waits for the compilation of the forms that it uses alone.

    Axes:
        tiles (t, 5) int64 of first row, end, first column, end, whether on the diagonal
        out (t, 2) float64
    """
    single = P.s.itemsize == 4
    reach = max(P.reach, Q.reach)
    near = reach <= (REACH_SINGLE if single else REACH_DOUBLE)
    alone = P.labels.size > 0 and form.cross.size > 0 and len(form.factors) + P.codes.size == 0
    canonical = alone and near and not form.linear
    # On the diagonal the fast loops sum all pairs and subtract rows with themselves, except in
    # float64, where sums may be smaller than the rounding of these terms.
    is_fast = np.full(len(tiles), not kernel_sums and (form.plane or canonical))
    if not single:
        is_fast &= tiles[:, 4] == 0
    if is_fast.any():
        fast = np.empty(np.count_nonzero(is_fast))
        if form.plane:
            _plane_sums(P, Q, form, tiles[is_fast], single and reach <= REACH_PLANE, fast)
        else:
            alike = bool(form.cross[0] <= (CROSS_SINGLE if single else CROSS_DOUBLE))
            _canonical_sums(P, Q, form, tiles[is_fast], alike, fast)
        out[is_fast, 0], out[is_fast, 1] = fast, 0.0
    if not is_fast.all():
        sums = np.empty((np.count_nonzero(~is_fast), 2))
        _any_sums(P, Q, form, tiles[~is_fast], bool(kernel_sums), sums)
        out[~is_fast] = sums


@inlined("contract")
def _overlap(t, variance):
    """Mean of the Gaussian exp(−(t + x)²/2) over x of mean 0 and a variance."""
    return exp(-0.5 * t * t / (1.0 + variance)) / np.sqrt(1.0 + variance)


@kernel
def normal_products(mean, variance, y, means, variances, ys, targets, shared):
    """⟨δ, δ'⟩ and ⟨q, q'⟩ of normal forecasts, for the kernel exp(−(y − y')²/2) on targets.

    Axes:
        mean, variance, y (c,)
        means, variances, ys (c',)
        targets, shared (c, c')
    """
    for i in range(mean.size):
        for j in range(means.size):
            # ⟨δ, δ'⟩ = ℓ(y, y') − E ℓ(Z, y') − E ℓ(y, Z') + E ℓ(Z, Z') for draws Z, Z' of the
            # two forecasts.  A point has variance 0.
            forecasts = _overlap(mean[i] - means[j], variance[i] + variances[j])
            shared[i, j] = forecasts
            mixed = _overlap(mean[i] - ys[j], variance[i]) + _overlap(means[j] - y[i], variances[j])
            targets[i, j] = _overlap(y[i] - ys[j], 0.0) - mixed + forecasts


@inlined("contract", "reassoc", "nsz")
def _dots(block, v, out):
    """out[r] += Σ_j block[r, j] v[j] for four rows."""
    a, b, c, d = out[0], out[1], out[2], out[3]
    for j in range(v.size):
        a += block[0, j] * v[j]
        b += block[1, j] * v[j]
        c += block[2, j] * v[j]
        d += block[3, j] * v[j]
    out[0], out[1], out[2], out[3] = a, b, c, d


@inlined("contract")
def _spread(block, V, i, out):
    """out[e, j] += Σ_r block[r, j] V[e, i + r] for four rows."""
    W = whole(block.shape[1])
    for e in range(V.shape[0]):
        a, b, c, d = V[e, i], V[e, i + 1], V[e, i + 2], V[e, i + 3]
        sums = out[e]
        for j in range(W):
            sums[j] += block[0, j] * a + block[1, j] * b + block[2, j] * c + block[3, j] * d


@inlined()
def _copy(source, out):
    """out ← source, (rows, columns)."""
    # Numba takes three seconds to compile an assignment of slices, mostly its error message.
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = source[i, j]


@inlined()
def _add(source, out):
    """out += source, (rows, columns)."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] += source[i, j]


@kernel
def row_sums(P, Q, form, strips, symmetric, V, U, into_rows, into_columns):
    """K U for the rows of P and, if `symmetric`, Kᵀ V for the rows of Q.

    K is the kernel between the rows of P and of Q.  The share of each strip of columns in the sums
    of rows is added to its slot of `into_rows`, and `into_columns` is overwritten.

    Axes:
        strips (t, 2) int64 of first column and end
        V (e, S), U (e, S')
        into_rows (t, e, S), into_columns (e, S')
    """
    for t in range(strips.shape[0]):
        j0, j1 = strips[t]
        W = j1 - j0
        columns = side_by_side(Q, j0, j1, form.constants[1])
        products, block, scratch = strip_room(P, W), aligned(4, W, P.s), aligned(2, W, P.s)
        G = products[:4]
        sums = aligned(V.shape[0], W, P.s)
        sums[:] = 0
        for i in range(0, P.s.size, 4):
            if P.A.shape[1]:
                G = strip_products(P.A, i, 0, P.s.size, columns, products)
            for r in range(4):
                kernel_row(P, i + r, Q, j0, form, G[r], scratch[0], scratch[1], block[r])
            for e in range(U.shape[0]):
                _dots(block, U[e, j0:j1], into_rows[t, e, i : i + 4])
            if symmetric:
                _spread(block, V, i, sums)
        if symmetric:
            _copy(sums, into_columns[:, j0:j1])


@kernel
def many_row_sums(P, Q, form, strips, symmetric, V, U, into_rows, into_columns):
    """K U for the rows of P and, if `symmetric`, Kᵀ V for the rows of Q, for many vectors.

    As `row_sums`, with products by BLAS of `MANY_ROWS` rows of K at a time.  `into_rows` is
    overwritten.

    Axes:
        strips (t, 2) int64 of first column and end
        V (S, e), U (S', e)
        into_rows (t, S, e), into_columns (S', e)
    """
    e = U.shape[1]
    block_rows = np.empty((MANY_ROWS, e), P.s.dtype)
    for t in range(strips.shape[0]):
        j0, j1 = strips[t]
        W = j1 - j0
        columns = side_by_side(Q, j0, j1, form.constants[1])
        products, scratch = strip_room(P, W), aligned(2, W, P.s)
        block = aligned(MANY_ROWS, W, P.s)
        block_columns = np.empty((W, e), P.s.dtype)
        G = products[:4]
        into_columns[j0:j1] = 0
        for i0 in range(0, P.s.size, MANY_ROWS):
            i1 = min(i0 + MANY_ROWS, P.s.size)
            for i in range(i0, i1, 4):
                if P.A.shape[1]:
                    G = strip_products(P.A, i, 0, P.s.size, columns, products)
                for r in range(4):
                    row = block[i - i0 + r]
                    kernel_row(P, i + r, Q, j0, form, G[r], scratch[0], scratch[1], row)
            n = i1 - i0
            np.dot(block[:n], U[j0:j1], block_rows[:n])
            _copy(block_rows[:n], into_rows[t, i0:i1])
            if symmetric:
                np.dot(block[:n].T, V[i0:i1], block_columns)
                _add(block_columns, into_columns[j0:j1])
