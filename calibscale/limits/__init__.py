"""Confidence limits in closed form or by inversion of tests, where a jackknife collapses.

A jackknife's standard error comes from the observed residuals: it is zero on confident predictions
none of which failed.  The limits of this module use the variance that each hypothesis implies, so
that the variance under calibration is that of the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc, betaincinv, gammaincc, gammaincinv, ndtr, ndtri

from calibscale.data import Floats
from calibscale.errors import OptionError

_HALVINGS = 8  # bisections of the interval of a limit's factor: to 0.4 %
_FARTHEST = 2.0**20  # largest factor that is searched
FEW = 3.0  # expected number of events below which their variance cannot be estimated


class Limits(NamedTuple):
    """Ends of an interval, and the method that computed them."""

    low: float
    high: float
    method: str


# ---------------------------------------------------------------- proportions and counts


def clopper_pearson(successes: float, trials: float, tail: float) -> tuple[float, float]:
    """Limits of a proportion, each exceeded with probability at most `tail`.

    The quantiles of Beta(x, n − x + 1) and Beta(x + 1, n − x) [Clopper & Pearson, Biometrika 26
    (1934)]; x and n need not be integers.
    """
    failures = max(trials - successes, 0.0)
    low = float(betaincinv(successes, failures + 1.0, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1.0, failures, 1.0 - tail)) if failures > 0 else 1.0
    return low, high


def share_limits(sums: Any, total: Any, confidence_level: float) -> Limits:
    """Limits of the share `total`/Σw by `clopper_pearson` with (Σw)²/Σw² rows."""
    rows = float(sums.weight**2 / sums.weight2)
    share, tail = float(total / sums.weight), (1.0 - confidence_level) / 2.0
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


# ---------------------------------------------------------------- frequencies of bins


def wilson_interval(
    frequency: ArrayLike, count: ArrayLike, confidence_level: float = 0.95
) -> tuple[Floats, Floats]:
    """Score interval of a proportion: all θ with (f − θ)² ≤ z² θ (1 − θ)/n.

    The ends are (f + z²/2n ± z √(f (1 − f)/n + z²/4n²))/(1 + z²/n) [Wilson 1927; Brown, Cai &
    DasGupta 2001, eq. 4].  Different probabilities of the rows of a bin make f less noisy than the
    binomial distribution that the formula assumes.

    Parameters
    ----------
    frequency : (B,)
        Observed proportions f.
    count : (B,)
        Numbers of rows n, positive; with weights (Σw)²/Σw².
    confidence_level : float
        Confidence level; z is the normal quantile of (1 + level)/2.

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
    lower, upper = (centre - spread) / (1.0 + z2 / n), (centre + spread) / (1.0 + z2 / n)
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
        Numbers of rows n; with weights (Σw)²/Σw², for which the binomial distribution function is
        interpolated between integers, the ends are rounded outwards, and the level is approximate.
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


# ---------------------------------------------------------------- along a ray of hypotheses


def lowest_factor(above: Callable[[float], float], tail: float) -> float:
    """Largest factor s below which all hypotheses are rejected; 0 if calibration is not.

    Under hypothesis s ≥ 0 deviations from calibration are s times those of a direction;
    ``above(s)`` is the probability of a statistic at least as large as the observed one.
    """
    return 0.0 if above(0.0) > tail else _bisect(lambda s: above(s) <= tail, 0.0, 1.0)[0]


def highest_factor(below: Callable[[float], float], tail: float) -> float:
    """Smallest factor s above which all hypotheses are rejected; 0 if calibration is rejected.

    ``below(s)`` is the probability of a statistic at most as large as the observed one.
    """
    if below(0.0) <= tail:
        return 0.0
    first, last = 0.0, 1.0
    while below(last) > tail and last < _FARTHEST:
        first, last = last, 2.0 * last
    return _bisect(lambda s: below(s) > tail, first, last)[1]


def _bisect(condition: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Interval in which a condition turns from true to false."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if condition(middle) else (low, middle)
    return low, high


class Noise(NamedTuple):
    """Moments tr Σ, tr Σ² and uᵀΣu of the covariance Σ of a sum of vectors v, u = v/|v|."""

    trace: float
    square: float
    along: float


def noise_of(vectors: Floats, direction: Floats) -> Noise:
    """Noise of independent draws of mean 0 (B, m): means of ⟨a, a⟩, of ⟨a, b⟩² and of ⟨a, u⟩²."""
    gram = vectors @ vectors.T
    return noise_of_gram(gram, vectors @ direction)


def noise_of_gram(gram: Floats, along: Floats) -> Noise:
    """Noise from inner products of draws with each other (B, B), and with u (B,)."""
    B = len(gram)
    own = np.diag(gram)
    square = float((np.vdot(gram, gram) - own @ own) / (B * (B - 1)))
    return Noise(float(own.mean()), square, float(np.mean(along**2)))


_NODES = (np.arange(256) + 0.5) / 256
_MAX_SKEWNESS = 4.0


def quadratic_limits(
    size: float,
    calibrated: Noise,
    observed: Noise,
    tail: float,
    events: tuple[float, float] = (np.inf, np.inf),
) -> Limits:
    """Limits of |E v|² from |v|² = `size`, where v is a sum over rows.

    Under hypothesis s the mean is s·v and the covariance lies between that of a calibrated model (s
    = 0) and the observed one (s = 1), extrapolated beyond where noise grows with the deviation.
    |v*|² is then (s|v| + √(uᵀΣu)·z)² + c·χ²_ν: u = v/|v|, z has mean 0, variance 1 and the skewness
    of a Poisson count, and the χ² has the mean and variance of the part orthogonal to u
    [Satterthwaite, Biometrics Bulletin 2 (1946)].  For the upper limit, a |v|² below its mean under
    calibration is replaced by this mean, as in `bin_limits`.  `events` are the numbers of rows of
    the rarer outcome, expected of a calibrated model, and observed.
    """
    if not (size > 0 and calibrated.trace > 0):
        return Limits(0.0, max(size, calibrated.trace), "quadratic_form")
    length = math.sqrt(size)
    raised = max(size, calibrated.trace)

    def spread(s: float) -> tuple[float, float, float]:
        """uᵀΣu, c and ν under hypothesis s."""
        trace, square, along = (
            max(a + s * (b - a), max(a, b) if s > 1.0 else 0.0)
            for a, b in zip(calibrated, observed, strict=True)
        )
        along = min(along, 0.999 * trace)
        rest = max(trace - along, 1e-300)
        across = min(max(square - along * along, rest * rest / 200.0), rest * rest)
        return along, across / rest, rest * rest / across

    def above(s: float, value: float) -> float:
        along, c, nu = spread(s)
        z = _skewed(_skewness(events, s))
        left = value - (s * length + math.sqrt(along) * z) ** 2
        beyond = gammaincc(nu / 2.0, np.maximum(left, 0.0) / (2.0 * c))
        return float(np.mean(np.where(left <= 0.0, 1.0, beyond)))

    low = lowest_factor(lambda s: above(s, size), tail)
    high = highest_factor(lambda s: 1.0 - above(s, raised), tail)
    return Limits(low * low * size, high * high * size, "quadratic_form")


def _skewness(events: tuple[float, float], s: float) -> float:
    """Skewness of the number of rarer outcomes, signed by the observed direction."""
    expected, observed = events
    if not math.isfinite(expected):
        return 0.0
    count = max(expected + s * (observed - expected), _MAX_SKEWNESS**-2)
    return math.copysign(count**-0.5, observed - expected)


def _skewed(skewness: float) -> Floats:
    """Quantiles of the Pearson type III distribution of mean 0 and variance 1."""
    if abs(skewness) < 1e-3:
        return ndtri(_NODES)
    shape = 4.0 / skewness**2
    z = (gammaincinv(shape, _NODES) - shape) / math.sqrt(shape)
    return z if skewness > 0 else -z
