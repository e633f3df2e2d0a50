"""Quantiles of the standard normal distribution."""

from __future__ import annotations

import math

import numpy as np

from calibscale.compiled.jit import inlined, kernel

_ROWS = 256  # probabilities that stay in cache
_CENTRAL = 0.425  # distance from ½ up to which one rational function is the quantile
_FAR = 5.0  # root of −log of a probability beyond which another rational function is the quantile


@inlined("contract")
def _central(p):
    """Quantile of a probability within `_CENTRAL` of ½ [Wichura 1988, PPND16]."""
    q = p - 0.5
    r = 0.180625 - q * q
    a = 3.3430575583588128105e4 + r * 2.5090809287301226727e3
    a = 6.7265770927008700853e4 + r * a
    a = 4.5921953931549871457e4 + r * a
    a = 1.3731693765509461125e4 + r * a
    a = 1.9715909503065514427e3 + r * a
    a = 1.3314166789178437745e2 + r * a
    a = 3.3871328727963666080 + r * a
    b = 2.8729085735721942674e4 + r * 5.2264952788528545610e3
    b = 3.9307895800092710610e4 + r * b
    b = 2.1213794301586595867e4 + r * b
    b = 5.3941960214247511077e3 + r * b
    b = 6.8718700749205790830e2 + r * b
    b = 4.2313330701600911252e1 + r * b
    b = 1.0 + r * b
    return q * a / b


@inlined("contract")
def _near_tail(r):
    """Quantile of the probability 1 − exp(−r²), for r up to `_FAR` [Wichura 1988, PPND16]."""
    r -= 1.6
    a = 2.27238449892691845833e-2 + r * 7.74545014278341407640e-4
    a = 2.41780725177450611770e-1 + r * a
    a = 1.27045825245236838258 + r * a
    a = 3.64784832476320460504 + r * a
    a = 5.76949722146069140550 + r * a
    a = 4.63033784615654529590 + r * a
    a = 1.42343711074968357734 + r * a
    b = 5.47593808499534494600e-4 + r * 1.05075007164441684324e-9
    b = 1.51986665636164571966e-2 + r * b
    b = 1.48103976427480074590e-1 + r * b
    b = 6.89767334985100004550e-1 + r * b
    b = 1.67638483018380384940 + r * b
    b = 2.05319162663775882187 + r * b
    b = 1.0 + r * b
    return a / b


@inlined("contract")
def _far_tail(r):
    """Quantile of the probability 1 − exp(−r²), for r beyond `_FAR` [Wichura 1988, PPND16]."""
    r -= 5.0
    a = 2.71155556874348757815e-5 + r * 2.01033439929228813265e-7
    a = 1.24266094738807843860e-3 + r * a
    a = 2.65321895265761230930e-2 + r * a
    a = 2.96560571828504891230e-1 + r * a
    a = 1.78482653991729133580 + r * a
    a = 5.46378491116411436990 + r * a
    a = 6.65790464350110377720 + r * a
    b = 1.42151175831644588870e-7 + r * 2.04426310338993978564e-15
    b = 1.84631831751005468180e-5 + r * b
    b = 7.86869131145613259100e-4 + r * b
    b = 1.48753612908506148525e-2 + r * b
    b = 1.36929880922735805310e-1 + r * b
    b = 5.99832206555887937690e-1 + r * b
    b = 1.0 + r * b
    return a / b


@inlined()
def _in_tail(p):
    """Quantile of a probability that is not within `_CENTRAL` of ½."""
    sign, tail = (-1.0, p) if p < 0.5 else (1.0, 1.0 - p)
    if tail <= 0.0:
        return sign * math.inf
    r = math.sqrt(-math.log(tail))
    return sign * (_near_tail(r) if r <= _FAR else _far_tail(r))


@kernel
def normal_quantiles(p, out):
    """Quantiles of the standard normal distribution, to a relative error of 1e-15.

    Axes:
        p (c,) probabilities
        out (c,)
    """
    tails = np.empty(_ROWS, np.int64)
    for start in range(0, p.size, _ROWS):
        part, quantiles = p[start : start + _ROWS], out[start : start + _ROWS]
        # Most probabilities are central, and LLVM vectorises the loop over their formula.
        for i in range(part.size):
            quantiles[i] = _central(part[i])
        count = 0
        for i in range(part.size):
            # Every position is written, and kept only if the count moves on: there is no branch.
            tails[count] = i
            count += 1 if abs(part[i] - 0.5) > _CENTRAL else 0
        for k in range(count):
            quantiles[tails[k]] = _in_tail(part[tails[k]])


def quantiles(p):
    """Quantiles of the standard normal distribution at probabilities (c,)."""
    out = np.empty(len(p))
    normal_quantiles(np.ascontiguousarray(p), out)
    return out
