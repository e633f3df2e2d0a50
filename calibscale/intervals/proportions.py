"""Confidence limits of proportions, of frequencies of bins, and of bounded means."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc, betaincinv, ndtr, ndtri

from calibscale.array_types import Floats
from calibscale.errors import OptionError

FEW = 3.0  # expected number of events below which their variance cannot be estimated


class Limits(NamedTuple):
    """Ends of an interval, and the method that computed them.

    `of_population` says that limits of a biased estimator do not cover its expectation at this n.
    `note` says where the limits are doubtful.
    """

    low: float
    high: float
    method: str
    of_population: bool = False
    note: str = ""


def clopper_pearson(successes: float, trials: float, tail: float) -> tuple[float, float]:
    """Limits of a proportion, each exceeded with probability at most `tail`.

    They are the quantiles of Beta(x, n − x + 1) and Beta(x + 1, n − x) [Clopper & Pearson,
    Biometrika 26 (1934)].  The numbers x and n need not be integers.
    """
    failures = max(trials - successes, 0.0)
    low = float(betaincinv(successes, failures + 1.0, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1.0, failures, 1.0 - tail)) if failures > 0 else 1.0
    return low, high


def share_limits(sums: Any, total: Any, confidence_level: float) -> Limits:
    """Limits of the share `total`/Σw by `clopper_pearson` with (Σw)²/Σw² rows."""
    rows = float(sums.weight**2 / sums.weight2)
    share = float(total / sums.weight)
    tail = (1.0 - confidence_level) / 2.0
    return Limits(*clopper_pearson(rows * share, rows, tail), "clopper_pearson")


def bounded_low(x: float, confidence_level: float) -> float:
    """Lower limit for the mean m ≥ 0 of a normal variable x of variance 1.

    The acceptance interval [a, b] of probability `confidence_level` under m has the x of largest
    likelihood ratio against the best m' ≥ 0: a = b − b²/(2m) where this is below 0, else 2m − b
    [Feldman & Cousins, Phys. Rev. D 57 (1998), §IV.B].  The limit is positive for x above the
    one-sided quantile of `confidence_level`, and equals x minus the two-sided quantile for large x.
    """
    from scipy.optimize import brentq  # slow to import

    two_sided = float(ndtri(0.5 + confidence_level / 2.0))
    if x >= 2.0 * two_sided:
        return x - two_sided

    def excess(m: float) -> float:
        return float(ndtr(x - m) - ndtr(x - x * x / (2.0 * m) - m)) - confidence_level

    nearest = 1e-12
    return float(brentq(excess, nearest, x / 2.0)) if excess(nearest) > 0 else 0.0


def wilson_interval(
    frequency: ArrayLike, count: ArrayLike, confidence_level: float = 0.95
) -> tuple[Floats, Floats]:
    """Score interval of a proportion: all θ with (f − θ)² ≤ z² θ (1 − θ)/n.

    The ends are (f + z²/2n ± z √(f (1 − f)/n + z²/4n²))/(1 + z²/n) [Wilson 1927, and Brown, Cai
    & DasGupta 2001, eq. 4].  Different probabilities of the rows of a bin make f less noisy than
    the binomial distribution that the formula assumes.

    Parameters
    ----------
    frequency : (B,)
        Observed proportions f.
    count : (B,)
        Numbers of rows n, positive, with weights (Σw)²/Σw².
    confidence_level : float
        Confidence level, where z is the normal quantile of (1 + level)/2.

    Returns
    -------
    lower, upper : (B,) float64

    Raises
    ------
    OptionError
        If the level is not in (0, 1).

    Examples
    --------
    >>> from calibscale import wilson_interval
    >>> low, high = wilson_interval(0.5, 100)
    >>> round(float(low), 3), round(float(high), 3)
    (0.404, 0.596)
    """
    check_level(confidence_level)
    f, n = np.asarray(frequency, np.float64), np.asarray(count, np.float64)
    z2 = ndtri((1.0 + confidence_level) / 2.0) ** 2
    centre = f + z2 / (2.0 * n)
    spread = np.sqrt(z2 * (f * (1.0 - f) / n + z2 / (4.0 * n * n)))
    lower = (centre - spread) / (1.0 + z2 / n)
    upper = (centre + spread) / (1.0 + z2 / n)
    return np.clip(lower, 0.0, f), np.clip(upper, f, 1.0)


def consistency_interval(
    mean_p: ArrayLike,
    effective_count: ArrayLike,
    confidence_level: float = 0.95,
    *,
    whole: ArrayLike = True,
) -> tuple[Floats, Floats]:
    """Range of the observed frequency, with a probability, if the predictions are right.

    The ends are the binomial quantiles (1 ∓ level)/2 at the mean prediction, divided by n.  The
    number of events of rows with different p is Poisson-binomial, which is narrower: it lies
    between these quantiles with probability at least `confidence_level`, for levels of at least 1/2
    [Hoeffding 1956, theorem 5].  The ranges correspond to the consistency bars of Bröcker & Smith
    (2007), without resampling.

    Parameters
    ----------
    mean_p : (B,)
        Mean predictions.
    effective_count : (B,)
        Numbers of rows n.  With weights they are (Σw)²/Σw².  The binomial distribution function is
        then interpolated between integers, the ends are rounded outwards, and the level is
        approximate.
    confidence_level : float
        Probability of the range.
    whole : (B,) bool
        Whether n is a number of rows of equal weight, so that frequencies are multiples of 1/n.

    Returns
    -------
    lower, upper : (B,) float64

    Raises
    ------
    OptionError
        If the level is not in (0, 1).

    Examples
    --------
    >>> from calibscale import consistency_interval
    >>> low, high = consistency_interval(0.5, 100)
    >>> bool(low < 0.41 < 0.59 < high)
    True
    """
    check_level(confidence_level)
    p = np.clip(np.asarray(mean_p, np.float64), 0.0, 1.0)
    n = np.asarray(effective_count, np.float64)
    low, high = (
        _quantile(n, p, q) for q in ((1.0 - confidence_level) / 2.0, (1.0 + confidence_level) / 2.0)
    )
    lower = np.where(whole, np.ceil(low), low)
    upper = np.where(whole, np.ceil(high), high + 1.0)
    return np.clip(lower, 0.0, n) / n, np.clip(upper, 0.0, n) / n


def _quantile(n: Floats, p: Floats, q: float) -> Floats:
    """Real k at which the binomial P(X ≤ k) = 1 − I_p(k + 1, n − k) reaches q, by bisection."""
    low, high = np.full_like(n, -1.0), n + 0.0
    for _ in range(64):
        k = (low + high) / 2.0
        below = (betaincc(k + 1.0, n - k, p) < q) & (k < n)
        low, high = np.where(below, k, low), np.where(below, high, k)
    return low


def check_level(confidence_level: float) -> None:
    if not 0.0 < confidence_level < 1.0:
        raise OptionError(f"confidence_level must be between 0 and 1, not {confidence_level}")
