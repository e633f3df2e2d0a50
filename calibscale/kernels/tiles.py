"""Sums over pairs of rows, by sub-tiles of a pair of panels.

A panel is a run of rows laid out for these loops.  Exponents are in powers of two and coordinates
are scaled in advance, so that a pair costs its distance and one exp2.  The values of a sub-tile
have the precision of its panels; across rows they are summed in float64.

Subnormal numbers take many processors a hundred times longer, so none comes up: panels hold no
small numbers but 0, and kernel values and products below `Form.constants[4]` are 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from calibscale.kernels._jit import inlined, kernel, parallel
from calibscale.kernels.elementary import exp2, exp2_within, registers
from calibscale.kernels.gram import aligned, side_by_side, strip_products, strip_room, whole

GAUSSIAN, LAPLACE, MATERN32, MATERN52 = range(4)
LANES = 16  # rows of panels and columns of sub-tiles come in multiples of it
# up to which reach s·2^h, and its product with the exponential of a pair, are normal numbers
REACH_SINGLE, REACH_DOUBLE = 60.0, 500.0
REACH_PLANE = 20.0  # float32, where that exponential may be as small as 2^(−2·reach)
FLUSH = 128  # rows summed in the precision of the panel before float64 takes over


class Panel(NamedTuple):
    """Rows of one block; all floats of one precision.  Padding rows have s = u = 0.

    axes: X (d, S) scaled coordinates; A (S, K) and B (K, S) the predictions, K a multiple of 5;
    h (S,) the part of a Gaussian's exponent that is of one row, f (S,) = s·2^h; reach = max −h;
    s (S,) strengths; u (S,) weights; labels, codes (S,) int32, sorted by label; empty where not
    needed
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


class Form(NamedTuple):
    """A product kernel: radial factors on columns of X, one on the predictions, 1{equal codes}.

    axes: factors (f, 3) of (kind, first column, last column + 1); cross (1,) the factor of qᵀq' in
    the Gaussian's exponent, empty without it; constants (5,) = 0, 1, ln 2, 1/3 and what products
    are 0 below, exp2 (12,) its coefficients, in the precision of the panels.  `linear` adds qᵀq' to
    the only kernel there is, or to the Gaussian of `cross`; `plane` says that there is one Gaussian
    in three columns of X and nothing else, no labels either
    """

    factors: Any
    cross: Any
    linear: bool
    plane: bool
    constants: Any
    exp2: Any


# ---------------------------------------------------------------- a strip of rows against columns


@inlined()
def _or_zero(x, least, zero):
    """x, or 0 where it is so small that products with it may be subnormal."""
    return x if abs(x) >= least else zero


@inlined()
def _runs(labels, starts):
    """Starts of the runs of equal labels, then the end; how many there are."""
    runs = 0
    for j in range(labels.size):
        if j == 0 or labels[j] != labels[j - 1]:
            starts[runs] = j
            runs += 1
    starts[runs] = labels.size
    return runs


@inlined("contract")
def _offsets(P, i, columns, labels, starts, runs, one, scale, offsets):
    """What a·⟨q_i, q_j⟩ exceeds a·⟨δ_i, δ_j⟩ by, for four rows.

    a (q_j[y_i] + q_i[y_j] − 1{y_i = y_j}); axes: columns (K, W) = a q_j, offsets (4, W);
    q_i[y_j] is constant over a run of columns of one label
    """
    for k in range(runs):
        first, last = starts[k], starts[k + 1]
        label = labels[first]
        for r in range(4):
            mine = P.labels[i + r]
            shared = P.A[i + r, label]
            if mine == label:
                shared -= one
            shared *= scale
            theirs, out = columns[mine][first:last], offsets[r][first:last]
            for j in range(out.size):
                out[j] = theirs[j] + shared


@inlined("contract")
def _canonical(P, i, form, G, offsets, sums):
    """sums[j] += Σ_r f_r (G_rj − offset_rj) 2^G_rj over a strip of four rows.

    With G = a·⟨q_r, q_j⟩ and exponents a·⟨q_r, q_j⟩ + h_r + h_j this is, but for 2^h_j / a,
    Σ_r s_r ⟨δ_r, δ_j⟩ κ_rj of the Gaussian; axes: G, offsets (4, W)
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
def _canonical_alike(P, i, form, label, one, columns, G, sums):
    """The same over columns of one label: what depends on it is a constant of the row."""
    W = whole(sums.size)
    c = registers(form.exp2)
    cross = form.cross[0]
    for r in range(0, 4, 2):
        s, t = P.f[i + r], P.f[i + r + 1]
        first, second = P.labels[i + r], P.labels[i + r + 1]
        a, b = P.A[i + r, label], P.A[i + r + 1, label]
        if first == label:
            a -= one
        if second == label:
            b -= one
        a *= cross
        b *= cross
        G0, G1, o0, o1 = G[r], G[r + 1], columns[first], columns[second]
        for j in range(W):
            v = sums[j] + s * ((G0[j] - o0[j] - a) * exp2_within(G0[j], c))
            sums[j] = v + t * ((G1[j] - o1[j] - b) * exp2_within(G1[j], c))


@inlined("contract")
def _near_plane(P, i0, i1, Q, j0, form, sums):
    """sums[j] += Σ_i f_i 2^(2⟨x_i, x_j⟩): but for 2^h_j the Gaussian of three coordinates.

    Fewer operations than differences, and no bounds to keep, where exponents are small.
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
def _plane(P, i0, i1, Q, j0, form, sums):
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
def _kernel_row(P, i, Q, j0, form, g, power, poly, v):
    """v[j] ← κ(row i, row j0 + j): any product kernel.

    axes: g (W,) the row's Gram product, if there is one; power, poly (W,) scratch
    """
    W = whole(v.size)
    zero, one = form.constants[0], form.constants[1]
    ln2, third, least = form.constants[2], form.constants[3], form.constants[4]
    c = registers(form.exp2)
    if form.factors.shape[0] == 0 and form.cross.size and P.codes.size == 0:
        cross, linear = form.cross[0], one if form.linear else zero
        mine, h = P.h[i], Q.h[j0 : j0 + W]
        for j in range(W):
            x = linear * _or_zero(g[j], least, zero)
            v[j] = x + exp2(cross * g[j] + (h[j] + mine), c)
        return
    for j in range(W):
        power[j] = 0
        poly[j] = 1
    for f in range(form.factors.shape[0]):
        kind, first, last = form.factors[f]
        for j in range(W):
            v[j] = 0
        for d in range(first, last):
            x, mine = Q.X[d][j0 : j0 + W], P.X[d, i]
            for j in range(W):
                v[j] += (x[j] - mine) * (x[j] - mine)
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
                poly[j] *= one + v[j]
        elif kind == MATERN52:
            for j in range(W):
                poly[j] *= one + v[j] + v[j] * v[j] * third
    if form.cross.size == 0:
        for j in range(W):
            v[j] = poly[j] * exp2(power[j], c)
        if form.linear:  # whose Gaussian is a factor, and the only one
            for j in range(W):
                v[j] += _or_zero(g[j], least, zero)
    else:
        cross, mine, h = form.cross[0], P.h[i], Q.h[j0 : j0 + W]
        for j in range(W):
            v[j] = poly[j] * exp2(power[j] + (cross * g[j] + (h[j] + mine)), c)
        if form.linear:
            for j in range(W):
                v[j] += poly[j] * _or_zero(g[j], least, zero) * exp2(power[j], c)
    if P.codes.size:
        mine, codes = P.codes[i], Q.codes[j0 : j0 + W]
        for j in range(W):
            if codes[j] != mine:
                v[j] = 0


# ---------------------------------------------------------------- sub-tiles


@inlined("contract")
def _weigh(values, strengths):
    """Σ_j values[j]·strengths[j] in float64, and the values set back to 0."""
    total = 0.0
    for j in range(values.size):
        total += np.float64(values[j]) * np.float64(strengths[j])
        values[j] = 0
    return total


@inlined("contract")
def _plane_tile(P, Q, form, i0, i1, j0, j1, near):
    """Σ s_i s_j κ_ij over a sub-tile, κ a Gaussian in three coordinates."""
    sums = aligned(1, j1 - j0, P.s)[0]
    sums[:] = 0
    total = 0.0
    for i in range(i0, i1, FLUSH):
        if near:
            _near_plane(P, i, min(i1, i + FLUSH), Q, j0, form, sums)
            total += _weigh(sums, Q.f[j0:j1])
        else:
            _plane(P, i, min(i1, i + FLUSH), Q, j0, form, sums)
            total += _weigh(sums, Q.s[j0:j1])
    return total


@inlined("contract")
def _canonical_tile(P, Q, form, i0, i1, j0, j1):
    """Σ s_i s_j ⟨δ_i, δ_j⟩ κ_ij over a sub-tile, κ a Gaussian on the predictions alone."""
    W = j1 - j0
    cross, one = form.cross[0], form.constants[1]
    columns = side_by_side(Q, j0, j1, cross)
    products, offsets, sums = strip_room(P, W), aligned(4, W, P.s), aligned(1, W, P.s)[0]
    sums[:] = 0
    labels, starts = Q.labels[j0:j1], np.empty(W + 1, np.int64)
    runs = _runs(labels, starts)
    total = 0.0
    for i in range(i0, i1, 4):
        G = strip_products(P.A, i, i0, i1, columns, products)
        if runs == 1:
            _canonical_alike(P, i, form, labels[0], one, columns, G, sums)
        else:
            _offsets(P, i, columns, labels, starts, runs, one, cross, offsets)
            _canonical(P, i, form, G, offsets, sums)
        if (i - i0) % FLUSH == FLUSH - 4 or i + 4 >= i1:
            total += _weigh(sums, Q.f[j0:j1])
    return total / np.float64(cross)


@inlined("contract")
def _own(P, i0, i1):
    """Σ s_i²|δ_i|², or Σ s_i² where there are no vectors: rows with themselves, κ_ii = 1."""
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
    """Σ s_i s_j A_ij κ_ij and Σ u_i u_j κ_ij over a sub-tile; over i < j if it is on the diagonal.

    A_ij is ⟨δ_i, δ_j⟩ where there are labels, else 1.
    """
    W = j1 - j0
    zero, one, least = form.constants[0], form.constants[1], form.constants[4]
    columns = side_by_side(Q, j0, j1, one)
    products, offsets, scratch = strip_room(P, W), aligned(4, W, P.s), aligned(5, W, P.s)
    G = products[:4]
    power, poly, v, sums, kernels = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    scratch[3:] = 0
    vectors = P.labels.size > 0
    labels, starts = Q.labels[j0:j1], np.empty(W + 1, np.int64)
    runs = _runs(labels, starts)
    total = 0.0
    kernel_total = 0.0
    for i in range(i0, i1, 4):
        if P.A.shape[1]:
            G = strip_products(P.A, i, i0, i1, columns, products)
        if vectors:
            _offsets(P, i, columns, labels, starts, runs, one, one, offsets)
        for r in range(4):
            _kernel_row(P, i + r, Q, j0, form, G[r], power, poly, v)
            start = max(0, i + r + 1 - j0) if diagonal else 0
            if kernel_sums:
                u = P.u[i + r]
                for j in range(start, W):
                    kernels[j] += u * v[j]
            if vectors:
                for j in range(W):
                    v[j] *= _or_zero(G[r, j] - offsets[r, j], least, zero)
            s = P.s[i + r]
            for j in range(start, W):
                sums[j] += s * v[j]
        if (i - i0) % FLUSH == FLUSH - 4 or i + 4 >= i1:
            total += _weigh(sums, Q.s[j0:j1])
            if kernel_sums:
                kernel_total += _weigh(kernels, Q.u[j0:j1])
    return total, kernel_total


def _pair_sums(P, Q, form, tiles, kernel_sums, out):
    """out[t] = the two sums of sub-tile t.

    axes: tiles (t, 5) int64 of first and last row, first and last column, on the diagonal;
    out (t, 2) float64
    """
    single = P.s.itemsize == 4
    reach = max(P.reach, Q.reach)
    near = reach <= (REACH_SINGLE if single else REACH_DOUBLE)
    vectors = P.labels.size > 0
    alone = vectors and form.cross.size > 0 and form.factors.shape[0] + P.codes.size == 0
    canonical = alone and near and not form.linear
    for t in prange(tiles.shape[0]):
        i0, i1, j0, j1, diagonal = tiles[t]
        # two forms have loops of their own; inlined into one another all would lose registers.
        # On the diagonal they sum all pairs, and take off rows with themselves: not in float64,
        # which keeps sums smaller than the rounding of those
        if kernel_sums or not (form.plane or canonical) or (diagonal and not single):
            out[t, 0], out[t, 1] = _any_tile(P, Q, form, i0, i1, j0, j1, diagonal != 0, kernel_sums)
            continue
        if form.plane:
            total = _plane_tile(P, Q, form, i0, i1, j0, j1, reach <= REACH_PLANE and single)
        else:
            total = _canonical_tile(P, Q, form, i0, i1, j0, j1)
        out[t, 0] = 0.5 * (total - _own(P, i0, i1)) if diagonal else total
        out[t, 1] = 0.0


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


def _row_sums(P, Q, form, strips, both, V, U, into_rows, into_columns):
    """K U for the rows of P and, if `both`, Kᵀ V for the rows of Q; K the kernel between them.

    Each strip of columns has a slot for its share of the rows' sums, which is added to what is
    there; the columns' sums are overwritten.

    axes: strips (t, 2) int64 first and last column; V (e, S), U (e, S');
    into_rows (t, e, S), into_columns (e, S')
    """
    for t in prange(strips.shape[0]):
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
                _kernel_row(P, i + r, Q, j0, form, G[r], scratch[0], scratch[1], block[r])
            for e in range(U.shape[0]):
                _dots(block, U[e, j0:j1], into_rows[t, e, i : i + 4])
            if both:
                _spread(block, V, i, sums)
        if both:
            into_columns[:, j0:j1] = sums


pair_sums = kernel(_pair_sums)
pair_sums_parallel = parallel(_pair_sums)
row_sums = kernel(_row_sums)
row_sums_parallel = parallel(_row_sums)
