"""Excess of observed over predicted events: confidence limits and standard-normal deviate."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv, ndtr, ndtri

from calibscale.array_types import Floats
from calibscale.statistics.ratios import ratio

_MIRRORED = [1, 0, 4, 3, 2]  # order of the sums after p and r = 1 − p change places
_MIN_SKEWNESS = 1e-5  # below it Φ is more accurate than a gamma function of shape 4e10
_MAX_SKEWNESS = 1e4  # skewness of events of probability 1e-8
_LARGE_SHAPE = 400.0  # shape from which gamma quantiles are computed by an expansion
_MIN_TAIL = 1e-290  # smaller tails are close to the smallest normal number, and lose their digits
_MOST_WEIGHTS = 2.0  # most mean weights of many observed events that a further event may have
_SURPRISE = 2.0  # factor by which a predicted variance may exceed the observed one by chance
_ENOUGH_EVENTS = 100.0  # effective number of events from which this factor is less than doubled


# ---------------------------------------------------------------- limits


def excess_limits(non_events: Floats, events: Floats, tail: float) -> tuple[Floats, Floats]:
    """Limits of Σw(E[y] − p), each exceeded with a probability of about `tail` or less.

    Let p′ = p + s(1 − p), s ≥ 0 such that Σwp′ = Σwy.  (If Σwy < Σwp, 1 − y and 1 − p take the
    places of y and p.)  U = Σwy(1 − p′) sums events and D = Σw(1 − y)p′ non-events, each weighted
    by its improbability.  U = D, but the E[y] may differ from p′.  Both are sums of weighted
    counts, with limits by `weighted_count_limits`.  The difference has the limits
    [Zou & Donner, Statistics in Medicine 27 (2008), after Newcombe]

    ``Σw(y − p) − √((U − U_low)² + (D_high − D)²)`` and
    ``Σw(y − p) + √((U_high − U)² + (D − D_low)²)``,

    clipped to E[y] in [0, 1].  With Poisson counts U − D has the variance
    Σw²(q(1 − q) + (q − p′)²) where E[y] = q.  This is the variance of independent labels if p′ = q,
    else more.  Where every p′ is near 0, D hardly varies and the limits agree with the limits of a
    Poisson count.

    Parameters
    ----------
    non_events, events : (5, …)
        Σ of wp, wr, w²p², w²pr, w²r², where r = 1 − p, of rows without and with the event.
    tail : float
        Tail probability of each limit.

    Returns
    -------
    low, high : (…)

    Examples
    --------
    >>> p, y = np.full(50, 0.02), np.zeros(50)
    >>> rows = np.stack([p, 1 - p, p**2, p * (1 - p), (1 - p) ** 2])
    >>> low, high = excess_limits(rows @ (1 - y), rows @ y, 0.025)
    >>> float(low.round(6)), float(high.round(6))
    (-1.0, 2.688879)
    """
    fewer = events[1] < non_events[0]
    first = np.where(fewer, events[_MIRRORED], non_events)
    second = np.where(fewer, non_events[_MIRRORED], events)
    excess = second[1] - first[0]
    total = first + second
    s = ratio(excess, total[1])
    (_, up), (down, _) = _moved(second, s), _moved(first, s)
    next_down, next_up = (ratio(b, a) for a, b in _moved(total, s))
    # Variance of the predictions that is too large to be absent from the observed events by chance.
    unseen = np.maximum(total[3] - _SURPRISE * (up[1] + down[1]), 0.0)
    next_up = _next_weight(up, next_up, unseen)
    next_down = _next_weight(down, next_down, unseen)
    up_low, up_high = weighted_count_limits(*up, next_up, tail)
    down_low, down_high = weighted_count_limits(*down, next_down, tail)
    # The formulas of the docstring.
    low = excess - np.hypot(up[0] - up_low, down_high - down[0])
    high = excess + np.hypot(up_high - up[0], down[0] - down_low)
    low, high = np.maximum(low, -total[0]), np.minimum(high, total[1])  # 0 ≤ E[y] ≤ 1
    return np.where(fewer, 0.0 - high, low), np.where(fewer, 0.0 - low, high)


def _next_weight(observed: tuple[Floats, Floats], following: Floats, unseen: Floats) -> Floats:
    """Weight of a further event: `following`, or a multiple of the mean weight of those seen.

    `following` is a mean over all rows.  Where weights increase with confidence, it is the weight
    of rows that hardly ever are events, whereas the observed events have the weights of rows that
    often are.  `unseen` is the variance Σw²p(1 − p) of the predictions beyond twice the variance of
    the observed events.  It comes from rows of large weight that were not events by chance.  The
    multiple is so large that few events, and weights that are nearly equal, leave `following` as it
    is.
    """
    total, squares = observed[0], observed[1] + unseen
    seen = ratio(squares, total)
    most = (_MOST_WEIGHTS + _ENOUGH_EVENTS * ratio(squares, total * total)) * seen
    return np.where(total > 0, np.minimum(following, most), following)


def _moved(sums: Floats, s: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Σwp′ and Σw²p′², then Σw(1 − p′) and Σw²(1 − p′)², where p′ = p + s(1 − p)."""
    p, r, pp, pr, rr = sums
    return (p + s * r, pp + 2 * s * pr + s * s * rr), ((1 - s) * r, (1 - s) ** 2 * rr)


def weighted_count_limits(
    total: Any, squares: Any, following: Any, tail: float
) -> tuple[Floats, Floats]:
    """Limits (…) of the mean of T = Σwx, where x are Poisson counts, by the gamma distribution.

    The lower limit is a quantile of the gamma distribution of mean T and variance V = Σw²x, the
    upper limit a quantile for mean T + w₊ and variance V + w₊², where w₊ is the weight of a further
    event [Fay & Feuer, Statistics in Medicine 16 (1997)].  With the largest weight as w₊, as there,
    simulations have shown no miss rate above `tail`.  `excess_limits` takes Σw²/Σw, which needs
    only sums and lies between the mean and the largest weight [Tiwari, Clegg & Zou, Statistical
    Methods in Medical Research 15 (2006)].  Where many events were observed, it takes at most a
    multiple of their mean weight.  For equal weights the limits are exact [Garwood, Biometrika 28
    (1936)].
    """
    total, squares, following = (np.asarray(a, np.float64) for a in (total, squares, following))
    low = _gamma_quantile(total, squares, tail, upper=False)
    high = _gamma_quantile(total + following, squares + following**2, tail, upper=True)
    return low, high


def _gamma_quantile(mean: Floats, variance: Floats, tail: float, upper: bool) -> Floats:
    """Quantile of one tail of a gamma distribution, or the mean where the variance is 0."""
    scale = ratio(variance, mean)  # also 0 where squares underflow
    shape = ratio(mean, scale)
    inverse = gammainccinv if upper else gammaincinv
    few = shape < _LARGE_SHAPE
    out = np.empty(shape.shape)
    out[few] = inverse(shape[few], tail)
    out[~few] = _expansion(shape[~few], -ndtri(tail) if upper else ndtri(tail))
    return np.where(scale > 0, scale * out, mean)


def _expansion(shape: Floats, z: float) -> Floats:
    """Quantile of a gamma distribution to 1e-5 of its deviation [Cornish & Fisher 1938]."""
    root = np.sqrt(shape)
    first, second = (z * z - 1) / 3, (z**3 - 7 * z) / 36
    third = (3 * z**4 + 7 * z * z - 16) / 810
    return shape + z * root + first + second / root - third / shape


# ---------------------------------------------------------------- deviates


def upper_tail(z: Floats, skewness: Floats) -> Floats:
    """P(Z ≥ z) for Pearson type III variables of mean 0, variance 1 and skewness ≥ 0 (…)."""
    skewness = np.minimum(skewness, _MAX_SKEWNESS)
    plain = skewness < _MIN_SKEWNESS
    shape = 4.0 / np.where(plain, 1.0, skewness) ** 2
    tail = gammaincc(shape, np.maximum(shape + z * np.sqrt(shape), 0.0))
    return np.where(plain, ndtr(-z), tail)


def excess_deviate(excess: Floats, variance: Floats, third: Floats) -> Floats:
    """Deviate z of the excess S = Σw(y − p) under E[y] = p, with 2Φ(−|z|) = P(|S*| ≥ |S|).

    z has the sign of S.  S* is the excess of labels drawn from the predictions, with the Pearson
    type III distribution of mean 0, `variance` Σw²p(1 − p) and `third` moment Σw³p(1 − p)(1 − 2p).
    Where events are rare, S/√variance is far from normal.  Beyond 37 standard errors z is the
    signed root of the likelihood ratio of this distribution.

    Parameters
    ----------
    excess, variance, third : (…)

    Returns
    -------
    (…)
        ±∞ where the variance is 0 and the excess is not.

    Examples
    --------
    >>> excess_deviate(np.array([10.0, 3.0, -3.0]), np.array([100.0, 1.0, 1.0]),
    ...                np.array([0.0, 1.0, 1.0])).round(2)
    array([ 1.  ,  2.56, -2.56])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.sqrt(variance)
        size = np.where(excess == 0, 0.0, np.abs(excess) / deviation)
        skewness = np.where(deviation > 0, np.abs(third) / (variance * deviation), 0.0)
    skewness = np.minimum(skewness, _MAX_SKEWNESS)
    plain = (skewness < _MIN_SKEWNESS) | ~np.isfinite(size)
    z = size.copy()
    z[~plain] = _deviate(size[~plain], skewness[~plain])
    return np.where(excess < 0, -z, z)


def _deviate(size: Floats, skewness: Floats) -> Floats:
    """Deviate z of both tails beyond ± size, for positive skewness."""
    # A Pearson type III variable is (G − a)/√a with G of the gamma distribution of shape a = 4/s².
    # G has the mean a, the variance a, and the skewness s = 2/√a.
    shape = 4.0 / skewness**2
    root = np.sqrt(shape)
    high = shape + size * root
    low = np.maximum(shape - size * root, 0.0)  # G is not negative
    tails = gammaincc(shape, high) + gammainc(shape, low)
    # Tails that underflow are replaced by the likelihood ratio, which grows like −log of the tail.
    z = -ndtri(np.clip(tails, _MIN_TAIL, 1.0) / 2)
    far = tails < _MIN_TAIL
    above = (high - shape)[far]
    z[far] = np.sqrt(2 * (above - shape[far] * np.log1p(above / shape[far])))
    return z
