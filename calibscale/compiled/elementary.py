"""Branch-free exp, exp2 and sin/cos that LLVM vectorises, and distances between rows.

Numba calls the scalar functions of the C library for `math.exp` and its like, and does not
vectorise a loop that contains them.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from calibscale.compiled.jit import inlined, kernel

_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 to 33 bits, so that k·_LN2_HIGH is exact
_LN2_LOW = 1.90821492927058770002e-10
_TWO_OVER_PI = 0.6366197723675814
_PI_2_HIGH = 1.57079632673412561417e00  # π/2 in three pieces of 33 bits
_PI_2_MIDDLE = 6.07710050630396597660e-11
_PI_2_LOW = 2.02226624879595063154e-21
_TO_INTEGER = 1.5 * 2.0**52  # the lowest bits of a sum with it are an integer, up to 2^51
_SIGN_SHIFT = np.int64(62)  # from the bit of 2 to the sign of a float64
_DISTANCES = 128  # distances of a row that are summed side by side


@inlined("contract")
def exp(x):
    """e^x to 1.5 ulp of float64, for x up to 709.7.  The result is 0 below −690.

    The cut-off makes every result other than 0 a normal number, as are its products with numbers
    that are not tiny.  Subnormal numbers take many processors a hundred times longer, and are
    flushed to 0 in some processes.
    """
    vanishes = x < -690.0
    x = 0.0 if vanishes else x
    # e^x = 2^k e^r with |r| ≤ ln(2)/2.  The subtraction of k·ln 2 in two pieces keeps the digits
    # of r.
    k = np.rint(x * _LOG2E)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    # The remainder of the Taylor polynomial of degree 12 is below 2e-16 of the result.
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
    # The product with 2^k adds k to the exponent bits of p.
    bits = np.int64(np.float64(p).view(np.int64) + np.int64(np.int64(k) << 52))
    return np.int64(0 if vanishes else bits).view(np.float64)


# Constants of `exp2`: minimax polynomials of 2^f for |f| ≤ 1/2 that are 1 at 0.  Degree 5 has a
# relative error of 1.1e-7.  It is minimal in ulp, each coefficient being fitted to the rounded ones
# before it.  Degree 11 has a relative error of 3e-18.  The last constant is 1.5·2^23 or 1.5·2^52.
# A sum with it is rounded to an integer, which is in the lowest bits of the sum.
EXP2_SINGLE = np.array(
    [
        1.0, 0.6931468, 0.24022238, 0.05550896,
        0.009671721, 0.0013224551, 0.0, 0.0,
        0.0, 0.0, 0.0, 0.0, 1.5 * 2.0**23,
    ],
    np.float32,
)  # fmt: skip
EXP2_DOUBLE = np.array(
    [
        1.0, 0.6931471805599453, 0.24022650695910155, 0.055504108664819925,
        0.009618129107588335, 0.0013333558146789923, 0.00015403530462514432, 1.5252733489988525e-05,
        1.32154330896764e-06, 1.0178198021671931e-07, 7.074105613508143e-09, 4.435282706957277e-10,
        _TO_INTEGER,
    ],
)  # fmt: skip
_23, _NONE = np.int32(23), np.int32(0)
# Smallest exponents of `exp2`: the product of two such powers of two is a normal number.
LOWEST_SINGLE, LOWEST_DOUBLE = np.float32(-60.0), -510.0


@inlined()
def registers(c):
    """Constants as scalars: LLVM reads global arrays from memory in every iteration."""
    return c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10], c[11], c[12]


@inlined("contract")
def _bits_single(t, c):
    """Bits of 2^t = 2^k 2^f, where k is t rounded to an integer, in the lowest bits of `k`."""
    k = np.float32(t + c[12])
    f = t - (k - c[12])
    p = c[4] + f * c[5]
    p = c[3] + f * p
    p = c[2] + f * p
    p = c[1] + f * p
    p = np.float32(c[0] + f * p)
    # The shift drops all bits of k but the integer, which is added to the exponent of p.
    return np.int32(p.view(np.int32) + np.int32(k.view(np.int32) << _23))


@inlined("contract")
def _bits_double(t, c):
    """Bits of 2^t, as in `_bits_single`."""
    k = np.float64(t + c[12])
    f = t - (k - c[12])
    p = c[10] + f * c[11]
    p = c[9] + f * p
    p = c[8] + f * p
    p = c[7] + f * p
    p = c[6] + f * p
    p = c[5] + f * p
    p = c[4] + f * p
    p = c[3] + f * p
    p = c[2] + f * p
    p = c[1] + f * p
    p = c[0] + f * p
    return np.int64(np.float64(p).view(np.int64) + np.int64(k.view(np.int64) << 52))


def exp2_within(t, c):
    """2^t in the precision of t, to 2 ulp, for t in −126..127 (float32), −1022..1023 (float64).

    The result is undefined for other t.  c are the `registers` of EXP2_SINGLE or EXP2_DOUBLE.
    """
    if isinstance(t, np.float32):
        return np.int32(_bits_single(t, c)).view(np.float32)
    return np.int64(_bits_double(t, c)).view(np.float64)


@overload(exp2_within, jit_options={"error_model": "numpy", "fastmath": {"contract"}})
def _choose_within(t, c):
    if t is types.float32:
        return lambda t, c: np.int32(_bits_single(t, c)).view(np.float32)
    return lambda t, c: np.int64(_bits_double(t, c)).view(np.float64)


@inlined("contract")
def _exp2_single(t, c):
    return np.int32(_bits_single(t, c) if t >= LOWEST_SINGLE else _NONE).view(np.float32)


@inlined("contract")
def _exp2_double(t, c):
    return np.int64(_bits_double(t, c) if t >= LOWEST_DOUBLE else 0).view(np.float64)


def exp2(t, c):
    """2^t as in `exp2_within`, but 0 below 2^−60 (float32) or 2^−510 (float64).

    The cut-off makes the product of two numbers of at least this size a normal number.  Subnormal
    numbers take many processors a hundred times longer.
    """
    return _exp2_single(t, c) if isinstance(t, np.float32) else _exp2_double(t, c)


@overload(exp2, jit_options={"error_model": "numpy", "fastmath": {"contract"}})
def _choose_exp2(t, c):
    if t is types.float32:
        return lambda t, c: _exp2_single(t, c)
    return lambda t, c: _exp2_double(t, c)


@inlined("contract")
def sincos(x):
    """(sin x, cos x), absolute error below 3e-16 for |x| ≤ 1e5.

    Beyond 1e6, the error grows as |x|·1e-16 on processors that round products before they are
    added, and stays below 3e-16 to 1e14 on others.  Neighbouring floating-point numbers above 3e15
    are half a radian apart, and their results are arbitrary within ±1.
    """
    # x = k·π/2 + r with |r| ≤ π/4.  Above 5e14, k may be the integer beside, and |r| up to 1.3.
    k = np.rint(x * _TWO_OVER_PI)
    r = ((x - k * _PI_2_HIGH) - k * _PI_2_MIDDLE) - k * _PI_2_LOW
    r = 0.0 if abs(r) > 1.5 else r  # above 3e15, where powers of r could be huge; NaN remains NaN
    z = r * r
    # Minimax polynomials of (sin r − r)/r³ and (cos r − 1 + r²/2)/r⁴ in r² ≤ (π/4)², by which sine
    # and cosine err by less than 5e-18.
    s = -2.5050758384194565e-08 + z * 1.5896811786611497e-10
    s = 2.7557313693571795e-06 + z * s
    s = -1.9841269829812378e-04 + z * s
    s = 8.3333333333224191e-03 + z * s
    s = -1.6666666666666632e-01 + z * s
    s = r + r * (z * s)
    c = 2.0875723478832306e-09 + z * -1.1359658833783758e-11
    c = -2.7557314353787657e-07 + z * c
    c = 2.4801587289487009e-05 + z * c
    c = -1.3888888888874131e-03 + z * c
    c = 4.1666666666666600e-02 + z * c
    c = -0.5 + z * c
    c = 1.0 + z * c
    # A quarter turn exchanges sine and cosine, and changes one of the signs.  The two lowest bits
    # of the sum are k modulo 4, and a conversion of k to an integer would take longer.
    quadrant = np.float64(k + _TO_INTEGER).view(np.int64)
    odd = (quadrant & 1) != 0
    sine = np.float64(c if odd else s).view(np.int64)
    cosine = np.float64(s if odd else c).view(np.int64)
    sine = np.int64(sine ^ ((quadrant & 2) << _SIGN_SHIFT))
    cosine = np.int64(cosine ^ (((quadrant + 1) & 2) << _SIGN_SHIFT))
    return sine.view(np.float64), cosine.view(np.float64)


@kernel
def exp_inplace(x):
    """x ← e^x for a flat array."""
    for i in range(x.size):
        x[i] = exp(x[i])


@kernel
def exp2_inplace(x, coefficients):
    """x ← 2^x for a flat array, in the precision of x and the coefficients."""
    c = registers(coefficients)
    for i in range(x.size):
        x[i] = exp2(x[i], c)


@kernel
def fourier_features(z, scale, phi):
    """Write [cos z, sin z]·scale into the last 2F columns of phi.

    Axes:
        z (rows, F) float64
        phi (rows, m), m ≥ 2F
    """
    rows, F = z.shape
    first = phi.shape[1] - 2 * F
    for i in range(rows):
        # LLVM vectorises a loop over contiguous slices, but not one over columns of a matrix.
        _write_waves(z[i], scale, phi[i, first : first + F], phi[i, first + F :])


@inlined()
def _write_waves(z, scale, cosines, sines):
    for j in range(z.size):
        sine, cosine = sincos(z[j])
        cosines[j] = cosine * scale
        sines[j] = sine * scale


@kernel
def row_distances(columns, out):
    """Euclidean distances of the pairs of rows i < j, in the order of ``np.triu_indices``.

    Axes:
        columns (e, n), out (n(n − 1)/2,)
    """
    width, n = columns.shape
    totals = np.empty(_DISTANCES)
    # The rows j of a strip stay in the cache, and their distances are summed side by side.
    for start in range(0, n, _DISTANCES):
        stop = min(start + _DISTANCES, n)
        for i in range(stop - 1):
            first = max(i + 1, start)
            sums = totals[: stop - first]
            sums[:] = 0.0
            for k in range(width):
                x = columns[k, i]
                others = columns[k, first:stop]
                for j in range(sums.size):
                    difference = x - others[j]
                    sums[j] += difference * difference
            # The pairs (i, i + 1), (i, i + 2), … follow those of smaller i.
            at = i * (2 * n - i - 1) // 2 + first - i - 1
            for j in range(sums.size):
                out[at + j] = np.sqrt(sums[j])


def distances_within(rows):
    """Euclidean distances of all pairs of rows (n, e), as `scipy.spatial.distance.pdist` has them.

    SciPy's module takes longer to import than the distances of 1,000 rows.
    """
    out = np.empty(len(rows) * (len(rows) - 1) // 2)
    row_distances(np.ascontiguousarray(rows.T, np.float64), out)
    return out
