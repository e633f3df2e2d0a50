"""Branch-free float64 exp and sin/cos that LLVM vectorises (Numba's own stay scalar)."""

from __future__ import annotations

import numpy as np

from calibscale.kernels._jit import inlined, kernel

_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 to 33 bits, so that k·_LN2_HIGH is exact
_LN2_LOW = 1.90821492927058770002e-10
_TWO_OVER_PI = 0.6366197723675814
_PI_2_HIGH = 1.57079632673412561417e00  # π/2 in three pieces of 33 bits
_PI_2_MIDDLE = 6.07710050630396597660e-11
_PI_2_LOW = 2.02226624879595063154e-21


@inlined("contract")
def exp(x):
    """e^x to 1.5 ulp of float64 (2 where the result is subnormal); 0 below −746."""
    x = max(x, -746.0)
    k = np.rint(x * _LOG2E)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    # Taylor to degree 12: |r| ≤ ln(2)/2, the remainder is below 2e-16 of the result
    p = 1.0 / 39916800.0 + r * (1.0 / 479001600.0)
    p = 1.0 / 3628800.0 + r * p
    p = 1.0 / 362880.0 + r * p
    p = 1.0 / 40320.0 + r * p
    p = 1.0 / 5040.0 + r * p
    p = 1.0 / 720.0 + r * p
    p = 1.0 / 120.0 + r * p
    p = 1.0 / 24.0 + r * p
    p = 1.0 / 6.0 + r * p
    p = 0.5 + r * p
    p = 1.0 + r * p
    p = 1.0 + r * p
    # 2^k as two factors, so that neither leaves the normal range
    whole = np.int32(k)
    half = whole >> 1
    first = np.int64((np.int64(half) + 1023) << 52).view(np.float64)
    second = np.int64((np.int64(whole) - np.int64(half) + 1023) << 52).view(np.float64)
    return p * first * second


@inlined("contract")
def sincos(x):
    """(sin x, cos x), absolute error below 3e-16 for |x| ≤ 1e5, growing as |x|·1e-21 beyond."""
    k = np.rint(x * _TWO_OVER_PI)
    r = ((x - k * _PI_2_HIGH) - k * _PI_2_MIDDLE) - k * _PI_2_LOW
    z = r * r
    s = -1.0 / 1307674368000.0 + z * (1.0 / 355687428096000.0)
    s = 1.0 / 6227020800.0 + z * s
    s = -1.0 / 39916800.0 + z * s
    s = 1.0 / 362880.0 + z * s
    s = -1.0 / 5040.0 + z * s
    s = 1.0 / 120.0 + z * s
    s = -1.0 / 6.0 + z * s
    s = r + r * (z * s)
    c = 1.0 / 20922789888000.0 + z * (-1.0 / 6402373705728000.0)
    c = -1.0 / 87178291200.0 + z * c
    c = 1.0 / 479001600.0 + z * c
    c = -1.0 / 3628800.0 + z * c
    c = 1.0 / 40320.0 + z * c
    c = -1.0 / 720.0 + z * c
    c = 1.0 / 24.0 + z * c
    c = -0.5 + z * c
    c = 1.0 + z * c
    quadrant = np.int64(k) & 3
    odd = (quadrant & 1) != 0
    sine = c if odd else s
    cosine = s if odd else c
    sine = -sine if quadrant >= 2 else sine
    cosine = -cosine if (quadrant == 1 or quadrant == 2) else cosine
    return sine, cosine


@kernel
def exp_inplace(x):
    """x ← e^x, flat."""
    for i in range(x.size):
        x[i] = exp(x[i])


@kernel
def fourier_features(z, scale, phi):
    """[cos z, sin z]·scale into the last 2F columns of phi.

    axes: z (rows, F) float64; phi (rows, m), m ≥ 2F
    """
    rows, F = z.shape
    first = phi.shape[1] - 2 * F
    for i in range(rows):
        for j in range(F):
            sine, cosine = sincos(z[i, j])
            phi[i, first + j] = cosine * scale
            phi[i, first + F + j] = sine * scale
