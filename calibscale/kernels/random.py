"""Counter-based random numbers: a draw depends on (seed, stream, row, index) alone.

Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import numpy as np

from calibscale.kernels._jit import inlined, kernel

_MASK = np.uint64(0xFFFFFFFF)
_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)
_32 = np.uint64(32)
_ROUNDS = 10
_UNIT = 1.0 / 4503599627370496.0  # 2^-52: with one more bit, u + ½ could round to 1


@inlined()
def philox(c0, c1, c2, c3, k0, k1):
    """Four 32-bit words (in uint64) from a counter of four words and a key of two."""
    for _ in range(_ROUNDS):
        a = _M0 * c0
        b = _M1 * c2
        c0, c1, c2, c3 = (b >> _32) ^ c1 ^ k0, b & _MASK, (a >> _32) ^ c3 ^ k1, a & _MASK
        k0 = (k0 + _W0) & _MASK
        k1 = (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@inlined()
def uniforms(seed, stream, row, index):
    """Two independent uniforms on (0, 1), never 0 or 1."""
    a, b, c, d = philox(
        np.uint64(row) & _MASK,
        np.uint64(row) >> _32,
        np.uint64(index) & _MASK,
        np.uint64(stream) & _MASK,
        np.uint64(seed) & _MASK,
        np.uint64(seed) >> _32,
    )
    first = np.float64(((a << _32) | b) >> np.uint64(12))
    second = np.float64(((c << _32) | d) >> np.uint64(12))
    return (first + 0.5) * _UNIT, (second + 0.5) * _UNIT


@kernel
def uniform_rows(seed, stream, start, out):
    """A pair of uniforms for each row and index.

    axes: out (rows, count, 2); row i of `out` is row start + i of the stream
    """
    rows, count, _ = out.shape
    for i in range(rows):
        for j in range(count):
            u, v = uniforms(seed, stream, start + i, j)
            out[i, j, 0] = u
            out[i, j, 1] = v


@kernel
def uniform_at(seed, stream, rows, out):
    """One uniform for each of the numbered rows.

    axes: rows, out (rows,)
    """
    for i in range(rows.size):
        out[i], _ = uniforms(seed, stream, rows[i], 0)


# Streams: one for each purpose, so that equal seeds never mean equal draws.
FREQUENCIES = 1
SAMPLE = 2
PREDICTIONS = 3
LABELS = 4
COVARIATES = 5
SPLIT = 6
SUBSET = 7
LANDMARKS = 8
PAIRS = 9
HOLD_OUT = 10
KEPT = 11
REPLICATES = 12
PERMUTATIONS = 13
GROUPS = 14
