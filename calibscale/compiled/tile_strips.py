"""Inputs of tiles of pairs of rows, Gram products, and sums over strips of a tile.

All constants have the precision of the panels and are arguments: a literal is a float64, which
would convert whole loops over float32 numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibscale.compiled.elementary import exp2, exp2_within, registers
from calibscale.compiled.jit import full_width, inlined

GAUSSIAN, LAPLACE, MATERN32, MATERN52 = range(4)
LANES = 16  # rows of panels and columns of sub-tiles are multiples of it
UNROLL = 5  # the number of classes is padded to a multiple of it
BLAS_CLASSES, BLAS_ROWS = 64, 128  # from 64 classes on BLAS multiplies, 128 rows at a time


class Panel(NamedTuple):
    """Rows of one block, all floats of one precision.

    Padding rows have s = u = 0.  Arrays that the kernel does not need are empty.

    Axes:
        X (d, S) scaled coordinates
        A (S, K) and B (K, S) the predictions, K a multiple of 5
        h (S,) the part of a Gaussian's exponent that depends on one row, f (S,) = s·2^h
        reach = max −h
        s (S,) strengths
        u (S,) weights
        labels, codes (S,) int32, sorted by label
    """

    X: Any
    A: Any
    B: Any
    h: Any
    s: Any
    u: Any
    labels: Any
    codes: Any
    f: Any
    reach: float


class KernelForm(NamedTuple):
    """Product kernel: radial factors on columns of X, one on the predictions, 1{equal codes}.

    `linear` adds qᵀq' to the only factor, or to the Gaussian of `cross`.  `plane` means a single
    Gaussian in three columns of X, without labels.  All arrays have the precision of the panels.

    Axes:
        factors (f, 3) of (kind, first column, last column + 1)
        cross (1,) the factor of qᵀq' in the Gaussian's exponent, empty without it
        constants (5,) = 0, 1, ln 2, 1/3 and the size below which products are 0
        exp2 (13,) the coefficients for `registers`
    """

    factors: Any
    cross: Any
    linear: bool
    plane: bool
    constants: Any
    exp2: Any


# ---------------------------------------------------------------- Gram products


@full_width
def whole(x):
    """x rounded down to a multiple of 16, so that LLVM generates no remainder loops."""
    return (x >> 4) << 4


@inlined()
def aligned(rows, W, like):
    """Scratch (rows, W) aligned to a cache line, because a load from two lines costs double."""
    raw = np.empty(rows * W + 16, like.dtype)
    skip = (-(raw.ctypes.data // raw.itemsize)) % 16
    return raw[skip : skip + rows * W].reshape((rows, W))


@inlined("contract")
def side_by_side(Q, j0, j1, scale):
    """Copy of the columns' predictions (K, W), contiguous and times a factor."""
    columns = aligned(Q.B.shape[0], j1 - j0, Q.B)
    for k in range(columns.shape[0]):
        source, column = Q.B[k][j0:j1], columns[k]
        for j in range(column.size):
            column[j] = scale * source[j]
    return columns


@inlined("contract")
def gram(A, i, B, G):
    """G ← A[i : i + 4] B.

    Axes:
        A (S, K)
        B (K, W), K a multiple of 5
        G (4, W)
    """
    K, W = B.shape[0], whole(B.shape[1])
    # Four rows by five classes fill the registers.  The first five classes overwrite G, which
    # saves setting it to 0.
    for k in range(0, K, 5):
        a0, a1, a2, a3, a4 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3], A[i, k + 4]
        i += 1
        b0, b1, b2, b3, b4 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3], A[i, k + 4]
        i += 1
        c0, c1, c2, c3, c4 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3], A[i, k + 4]
        i += 1
        d0, d1, d2, d3, d4 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3], A[i, k + 4]
        i -= 3
        if k == 0:
            for j in range(W):
                x0, x1, x2, x3, x4 = B[0, j], B[1, j], B[2, j], B[3, j], B[4, j]
                G[0, j] = a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3 + a4 * x4
                G[1, j] = b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3 + b4 * x4
                G[2, j] = c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3 + c4 * x4
                G[3, j] = d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3 + d4 * x4
        else:
            for j in range(W):
                x0, x1, x2, x3, x4 = B[k, j], B[k + 1, j], B[k + 2, j], B[k + 3, j], B[k + 4, j]
                G[0, j] = G[0, j] + a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3 + a4 * x4
                G[1, j] = G[1, j] + b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3 + b4 * x4
                G[2, j] = G[2, j] + c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3 + c4 * x4
                G[3, j] = G[3, j] + d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3 + d4 * x4


@inlined()
def strip_room(P, W):
    """Scratch for `strip_products`: four rows, or as many as BLAS multiplies at a time."""
    return aligned(BLAS_ROWS if P.A.shape[1] >= BLAS_CLASSES else 4, W, P.s)


@inlined()
def strip_products(A, i, i0, i1, B, G):
    """A[i : i + 4] B, for i from i0 to i1 − 1 in steps of 4, with G from `strip_room`."""
    first = (i - i0) % G.shape[0]
    # BLAS multiplies many rows in the first of several calls, and the next calls find them in G.
    if G.shape[0] == 4:
        gram(A, i, B, G)
    elif first == 0:
        rows = min(G.shape[0], i1 - i)
        np.dot(A[i : i + rows], B, G[:rows])
    return G[first : first + 4]


# ---------------------------------------------------------------- Strips


@inlined()
def or_zero(x, smallest, zero):
    """x, or 0 where it is so small that products with it may be subnormal."""
    return x if abs(x) >= smallest else zero


@inlined()
def label_runs(labels, starts):
    """Write the starts of the runs of equal labels and their end, and return the number of runs."""
    runs = 0
    for j in range(labels.size):
        if j == 0 or labels[j] != labels[j - 1]:
            starts[runs] = j
            runs += 1
    starts[runs] = labels.size
    return runs


@inlined("contract")
def product_offsets(P, i, columns, labels, starts, runs, unit, scale, offsets):
    """offsets ← a·⟨q_i, q_j⟩ − a·⟨δ_i, δ_j⟩, for four rows.

    This is a (q_j[y_i] + q_i[y_j] − 1{y_i = y_j}), where q_i[y_j] is constant over a run of
    columns of one label.

    Axes:
        columns (K, W) = a q_j
        offsets (4, W)
    """
    for k in range(runs):
        first, last = starts[k], starts[k + 1]
        label = labels[first]
        for r in range(4):
            row_label = P.labels[i + r]
            shared = P.A[i + r, label]
            if row_label == label:
                shared -= unit
            shared *= scale
            column_p, out = columns[row_label][first:last], offsets[r][first:last]
            for j in range(out.size):
                out[j] = column_p[j] + shared


@inlined("contract")
def canonical_strip(P, i, form, G, offsets, sums):
    """sums[j] += Σ_r f_r (G_rj − offset_rj) 2^G_rj over a strip of four rows.

    With G = a·⟨q_r, q_j⟩ and exponents G + h_r + h_j this is Σ_r s_r ⟨δ_r, δ_j⟩ κ_rj of the
    Gaussian, up to the factor 2^h_j / a.

    Axes:
        G, offsets (4, W)
    """
    W = whole(sums.size)
    c = registers(form.exp2)
    for r in range(0, 4, 2):
        s, t = P.f[i + r], P.f[i + r + 1]
        G0, G1, o0, o1 = G[r], G[r + 1], offsets[r], offsets[r + 1]
        for j in range(W):
            v = sums[j] + s * ((G0[j] - o0[j]) * exp2_within(G0[j], c))
            sums[j] = v + t * ((G1[j] - o1[j]) * exp2_within(G1[j], c))


@inlined("contract")
def residual_rows(P, first, last, unit, residuals):
    """residuals ← δ of rows of one label, padded by rows of 0 to a multiple of four (returned)."""
    count = last - first
    stop = (count + 3) // 4 * 4
    residuals[count:stop] = 0
    label = P.labels[first]
    for i in range(count):
        # An assignment of slices would take three seconds to compile.
        for k in range(P.A.shape[1]):
            residuals[i, k] = P.A[first + i, k]
        residuals[i, label] -= unit
    return stop


@inlined("contract")
def one_label_weights(f, probabilities, factor, shift, c, out):
    """out ← f 2^(factor·probabilities − shift), each (n,)."""
    for j in range(out.size):
        out[j] = f[j] * exp2_within(factor * probabilities[j] - shift, c)


@inlined("contract")
def one_label_strip(weights, i, G, g, c, sums):
    """sums[j] += Σ_r w_r G_rj 2^G_rj over the rows i to i + 3 of the weights, g to g + 3 of G."""
    W = whole(sums.size)
    s0, s1, s2, s3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
    for j in range(W):
        v = sums[j] + s0 * (G[g, j] * exp2_within(G[g, j], c))
        v += s1 * (G[g + 1, j] * exp2_within(G[g + 1, j], c))
        v += s2 * (G[g + 2, j] * exp2_within(G[g + 2, j], c))
        sums[j] = v + s3 * (G[g + 3, j] * exp2_within(G[g + 3, j], c))


@inlined("contract")
def near_plane_strip(P, i0, i1, Q, j0, form, sums):
    """sums[j] += Σ_i f_i 2^(2⟨x_i, x_j⟩): up to 2^h_j the Gaussian of three coordinates.

    The exponents must be small.  Inner products then take fewer operations than differences, and
    no range checks.
    """
    W = whole(sums.size)
    c = registers(form.exp2)
    x, y, z = Q.X[0][j0 : j0 + W], Q.X[1][j0 : j0 + W], Q.X[2][j0 : j0 + W]
    X, Y, Z, S = P.X[0][i0:i1], P.X[1][i0:i1], P.X[2][i0:i1], P.f[i0:i1]
    for i in range(0, i1 - i0, 4):
        x0, y0, z0, s0 = X[i] + X[i], Y[i] + Y[i], Z[i] + Z[i], S[i]
        i += 1
        x1, y1, z1, s1 = X[i] + X[i], Y[i] + Y[i], Z[i] + Z[i], S[i]
        i += 1
        x2, y2, z2, s2 = X[i] + X[i], Y[i] + Y[i], Z[i] + Z[i], S[i]
        i += 1
        x3, y3, z3, s3 = X[i] + X[i], Y[i] + Y[i], Z[i] + Z[i], S[i]
        for j in range(W):
            v = sums[j] + s0 * exp2_within(x[j] * x0 + y[j] * y0 + z[j] * z0, c)
            v += s1 * exp2_within(x[j] * x1 + y[j] * y1 + z[j] * z1, c)
            v += s2 * exp2_within(x[j] * x2 + y[j] * y2 + z[j] * z2, c)
            sums[j] = v + s3 * exp2_within(x[j] * x3 + y[j] * y3 + z[j] * z3, c)


@inlined("contract")
def plane_strip(P, i0, i1, Q, j0, form, sums):
    """sums[j] += Σ_i s_i κ(x_i, x_j), a Gaussian in three coordinates, over rows i0 .. i1 − 1."""
    W = whole(sums.size)
    c = registers(form.exp2)
    x, y, z = Q.X[0][j0 : j0 + W], Q.X[1][j0 : j0 + W], Q.X[2][j0 : j0 + W]
    X, Y, Z, S = P.X[0][i0:i1], P.X[1][i0:i1], P.X[2][i0:i1], P.s[i0:i1]
    for i in range(0, i1 - i0, 4):
        x0, y0, z0, s0 = X[i], Y[i], Z[i], S[i]
        x1, y1, z1, s1 = X[i + 1], Y[i + 1], Z[i + 1], S[i + 1]
        x2, y2, z2, s2 = X[i + 2], Y[i + 2], Z[i + 2], S[i + 2]
        x3, y3, z3, s3 = X[i + 3], Y[i + 3], Z[i + 3], S[i + 3]
        for j in range(W):
            d, e, f = x[j] - x0, y[j] - y0, z[j] - z0
            v = sums[j] + s0 * exp2(-(d * d) - e * e - f * f, c)
            d, e, f = x[j] - x1, y[j] - y1, z[j] - z1
            v += s1 * exp2(-(d * d) - e * e - f * f, c)
            d, e, f = x[j] - x2, y[j] - y2, z[j] - z2
            v += s2 * exp2(-(d * d) - e * e - f * f, c)
            d, e, f = x[j] - x3, y[j] - y3, z[j] - z3
            sums[j] = v + s3 * exp2(-(d * d) - e * e - f * f, c)


@inlined("contract")
def kernel_row(P, i, Q, j0, form, g, power, poly, v):
    """v[j] ← κ(row i, row j0 + j) of any product kernel.

    Axes:
        g (W,) the row's Gram product, if needed
        power, poly (W,) scratch
    """
    W = whole(v.size)
    zero, unit = form.constants[0], form.constants[1]
    ln2, third, smallest = form.constants[2], form.constants[3], form.constants[4]
    c = registers(form.exp2)
    if form.factors.shape[0] == 0 and form.cross.size and P.codes.size == 0:
        cross, linear = form.cross[0], unit if form.linear else zero
        row_h, h = P.h[i], Q.h[j0 : j0 + W]
        for j in range(W):
            x = linear * or_zero(g[j], smallest, zero)
            v[j] = x + exp2(cross * g[j] + (h[j] + row_h), c)
        return
    # The kernel is poly · 2^power: every factor adds to the exponent, and Matérn factors multiply
    # the polynomial.  One evaluation of exp2 serves all factors.
    for j in range(W):
        power[j] = 0
        poly[j] = 1
    for f in range(form.factors.shape[0]):
        kind, first, last = form.factors[f]
        for j in range(W):
            v[j] = 0
        for d in range(first, last):
            x, row_x = Q.X[d][j0 : j0 + W], P.X[d, i]
            for j in range(W):
                v[j] += (x[j] - row_x) * (x[j] - row_x)
        if kind == GAUSSIAN:
            for j in range(W):
                power[j] -= v[j]
            continue
        for j in range(W):
            r = np.sqrt(v[j])
            power[j] -= r
            v[j] = r * ln2
        if kind == MATERN32:
            for j in range(W):
                poly[j] *= unit + v[j]
        elif kind == MATERN52:
            for j in range(W):
                poly[j] *= unit + v[j] + v[j] * v[j] * third
    if form.cross.size == 0:
        for j in range(W):
            v[j] = poly[j] * exp2(power[j], c)
        if form.linear:  # its Gaussian is the only factor
            for j in range(W):
                v[j] += or_zero(g[j], smallest, zero)
    else:
        cross, row_h, h = form.cross[0], P.h[i], Q.h[j0 : j0 + W]
        for j in range(W):
            v[j] = poly[j] * exp2(power[j] + (cross * g[j] + (h[j] + row_h)), c)
        if form.linear:
            for j in range(W):
                v[j] += poly[j] * or_zero(g[j], smallest, zero) * exp2(power[j], c)
    if P.codes.size:
        code, codes = P.codes[i], Q.codes[j0 : j0 + W]
        for j in range(W):
            if codes[j] != code:
                v[j] = 0
