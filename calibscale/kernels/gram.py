"""Gram matrices of feature maps, and products with kernel matrices that are not stored."""

from __future__ import annotations

import numpy as np

from calibscale.kernels import full_width, inlined, kernel
from calibscale.kernels.elementary import exp

UNROLL = 5  # the number of classes is padded to a multiple of it
BLAS_CLASSES, BLAS_ROWS = 64, 128  # from 64 classes on BLAS multiplies, 128 rows at a time


@full_width
def whole(x):
    """x rounded down to a multiple of 16; LLVM then generates no remainder loops."""
    return (x >> 4) << 4


@inlined()
def aligned(rows, W, like):
    """Scratch (rows, W) aligned to a cache line: loads that straddle two lines cost double."""
    raw = np.empty(rows * W + 16, like.dtype)
    skip = (-(raw.ctypes.data // raw.itemsize)) % 16
    return raw[skip : skip + rows * W].reshape((rows, W))


@inlined("contract")
def side_by_side(Q, j0, j1, scale):
    """Copy of the columns' predictions (K, W), contiguous and times a factor."""
    columns = aligned(Q.B.shape[0], j1 - j0, Q.B)
    for k in range(columns.shape[0]):
        theirs, mine = Q.B[k][j0:j1], columns[k]
        for j in range(mine.size):
            mine[j] = scale * theirs[j]
    return columns


@inlined("contract")
def gram(A, i, B, G):
    """G ← A[i : i + 4] B.

    axes: A (S, K); B (K, W), K a multiple of 5; G (4, W)
    """
    K, W = B.shape[0], whole(B.shape[1])
    for k in range(0, K, 5):  # four rows by five classes fill the registers
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
    """A[i : i + 4] B; i runs from i0 to i1 − 1 in steps of 4, and G comes from `strip_room`."""
    first = (i - i0) % G.shape[0]
    if G.shape[0] == 4:
        gram(A, i, B, G)
    elif first == 0:
        rows = min(G.shape[0], i1 - i)
        np.dot(A[i : i + rows], B, G[:rows])
    return G[first : first + 4]


# ---------------------------------------------------------------- Attention


@kernel
def shifted_exp(tile, bias, top):
    """tile ← exp(tile + bias − top), with top the maximum of each row; 0 where top is −∞.

    axes: tile (queries, keys); bias (keys,); top (queries,)
    """
    queries, keys = tile.shape
    for i in range(queries):
        high = -np.inf
        for j in range(keys):
            x = tile[i, j] + bias[j]
            tile[i, j] = x
            high = x if x > high else high
        top[i] = high
        if high == -np.inf:
            tile[i, :] = 0.0
            continue
        for j in range(keys):
            tile[i, j] = exp(tile[i, j] - high)
