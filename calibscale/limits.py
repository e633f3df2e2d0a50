"""Confidence limits in closed form or by inversion, where errors of a jackknife collapse.

A jackknife's standard error comes from the residuals that were seen: on confident predictions, of
which not one failed, it is zero.  The limits of this module take the variance that each
hypothesis implies, so that the hypothesis of a calibrated model has that of its predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, gammaincc, gammaincinv, ndtr, ndtri

from calibscale.chunk import Floats

_SEED = 20261122  # of the simulated bins: equal sums have equal limits
_DRAWS = 399  # simulated data sets a hypothesis; 10 of 400 are 2.5 %
_MOST_DRAWS = 3999
_HALVINGS = 8  # of the interval that holds a limit's factor: to 0.4 %
_FARTHEST = 2.0**20  # factor beyond which no limit is looked for
FEW = 3.0  # rarer events than this say nothing about their variance


class Limits(NamedTuple):
    """Ends of an interval, and the method they come from."""

    low: float
    high: float
    method: str


# ---------------------------------------------------------------- proportions and counts


def clopper_pearson(successes: float, trials: float, tail: float) -> tuple[float, float]:
    """Limits of a proportion, each missed with probability at most `tail`.

    The quantiles of Beta(x, n − x + 1) and Beta(x + 1, n − x) [Clopper & Pearson, Biometrika 26
    (1934)]; x and n need not be whole.
    """
    failures = max(trials - successes, 0.0)
    low = float(betaincinv(successes, failures + 1.0, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1.0, failures, 1.0 - tail)) if failures > 0 else 1.0
    return low, high


def bounded_low(x: float, level: float) -> float:
    """Lower limit for the mean m ≥ 0 of a normal number x of variance 1.

    Of all intervals [a, b] of probability `level` under m, one accepts the x of the largest
    likelihood ratio against the best m' ≥ 0: a = b − b²/(2m) where that is below 0, else 2m − b
    [Feldman & Cousins, Phys. Rev. D 57 (1998), §IV.B].  The limit is above 0 from the one-sided
    quantile of `level` on, and becomes x less the two-sided one.
    """
    two_sided = float(ndtri(0.5 + level / 2.0))
    if x >= 2.0 * two_sided:
        return x - two_sided

    def excess(m: float) -> float:
        return float(ndtr(x - m) - ndtr(x - x * x / (2.0 * m) - m)) - level

    nearest = 1e-12
    return float(brentq(excess, nearest, x / 2.0)) if excess(nearest) > 0 else 0.0


# ---------------------------------------------------------------- along a ray of hypotheses


def lowest_factor(above: Callable[[float], float], tail: float) -> float:
    """The largest factor s below which all hypotheses are rejected; 0 if calibration is not.

    Hypothesis s ≥ 0 says that deviations from calibration are s times those of a direction;
    ``above(s)`` is its probability of a statistic at least as large as the one observed.
    """
    return 0.0 if above(0.0) > tail else _bisect(lambda s: above(s) <= tail, 0.0, 1.0)[0]


def highest_factor(below: Callable[[float], float], tail: float) -> float:
    """The smallest factor s beyond which all hypotheses are rejected; 0 if calibration is.

    ``below(s)`` is the probability of a statistic at most as large as the one observed.
    """
    if below(0.0) <= tail:
        return 0.0
    first, last = 0.0, 1.0
    while below(last) > tail and last < _FARTHEST:
        first, last = last, 2.0 * last
    return _bisect(lambda s: below(s) > tail, first, last)[1]


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """An interval in which a condition stops to hold."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


class BinGaps(NamedTuple):
    """Occupied bins: share of the weight, effective rows, mean prediction and gap, (B,) each."""

    share: Floats
    rows: Floats
    mean_p: Floats
    gap: Floats


class GapLimits(NamedTuple):
    """Limits of a statistic of gaps.

    Attributes
    ----------
    low, high : float
        Of the statistic of the expected gaps.
    mean_at_high : float
        Upper limit of the statistic's own mean, which has the noise of the rows.
    """

    low: float
    high: float
    mean_at_high: float


def bin_limits(
    bins: BinGaps,
    statistic: Callable[[Floats], Floats],
    tail: float,
    at_least_mean: bool = False,
) -> GapLimits:
    """Limits of a statistic of the gaps of bins, by tests of hypotheses along a direction.

    Under hypothesis s the frequency of events in bin b is f_b = p̄_b − s·d_b, cut to [0, 1], and
    their number binomial.  Tail probabilities are those of 399 simulated data sets
    (p = (1 + #)/400), always of the same seed.  At s = 0 this is the exact test of calibration by
    drawn labels for rows of one prediction a bin, and conservative for others.

    The lower limit is along the observed gaps, d = g.  The upper is the larger one of two
    directions: that, and noise towards 1/2, |d_b| = √(f̃(1 − f̃)/n_b), where f̃ is the frequency
    observed with one row at p̄_b more.  Of bins without an event the first can say nothing: they
    cannot have fewer.

    Inverting a family of tests gives limits of any level [Lehmann & Romano, Testing Statistical
    Hypotheses, §3.5]; that the family has one dimension is the approximation.

    Parameters
    ----------
    statistic
        Values (draws,) of gaps (draws, B); homogeneous and larger for larger gaps.
    tail
        The probability to miss on either side.
    at_least_mean
        Whether an observed statistic below its mean under calibration counts as that for the upper
        limit [power-constrained limits, Cowan et al., arXiv 1105.3166].  Otherwise the upper limit
        is the observed value in a share `tail` of calibrated data.
    """
    if not len(bins.gap):
        return GapLimits(0.0, 0.0, 0.0)
    draws = int(min(max(_DRAWS, math.ceil(10.0 / tail) - 1), _MOST_DRAWS))
    whole = np.maximum(np.rint(bins.rows), 1.0).astype(np.int64)

    def gaps(direction: Floats, s: float) -> Floats:
        return bins.mean_p - np.clip(bins.mean_p - s * direction, 0.0, 1.0)

    def simulated(expected: Floats) -> Floats:
        f = np.clip(bins.mean_p - expected, 0.0, 1.0)
        events = np.random.default_rng(_SEED).binomial(whole, f, (draws, len(f)))
        return statistic(expected + (f - events / whole) * np.sqrt(whole / bins.rows))

    observed = float(statistic(bins.gap[None])[0])
    least = observed
    if at_least_mean:
        least = max(observed, float(simulated(np.zeros_like(bins.gap)).mean()))

    def above(s: float) -> float:
        values = simulated(gaps(bins.gap, s))
        return float(1 + np.sum(values >= observed * (1 - 1e-9))) / (draws + 1)

    low = lowest_factor(above, tail)
    high = mean = observed if not at_least_mean else 0.0
    for direction in (bins.gap, _noise_of_bins(bins)):

        def below(s: float, direction: Floats = direction) -> float:
            values = simulated(gaps(direction, s))
            return float(1 + np.sum(values <= least * (1 + 1e-9))) / (draws + 1)

        if s := highest_factor(below, tail):
            expected = gaps(direction, s)
            high = max(high, float(statistic(expected[None])[0]))
            mean = max(mean, float(simulated(expected).mean()))
    return GapLimits(float(statistic(low * bins.gap[None])[0]), high, mean)


def _noise_of_bins(bins: BinGaps) -> Floats:
    """Standard errors of the frequencies of bins, signed so that frequencies go towards 1/2."""
    seen = np.clip(bins.mean_p - bins.gap, 0.0, 1.0)
    f = (bins.rows * seen + bins.mean_p) / (bins.rows + 1.0)
    return np.sqrt(f * (1.0 - f) / bins.rows) * np.where(bins.mean_p < 0.5, -1.0, 1.0)


class Noise(NamedTuple):
    """Covariance Σ of a sum of vectors v: tr Σ, tr Σ², and uᵀΣu where u = v/|v|."""

    trace: float
    square: float
    along: float


def noise_of(vectors: Floats, direction: Floats) -> Noise:
    """From independent draws of mean 0 (B, m): means of ⟨a, a⟩, of ⟨a, b⟩² and of ⟨a, u⟩²."""
    gram = vectors @ vectors.T
    return noise_of_gram(gram, vectors @ direction)


def noise_of_gram(gram: Floats, along: Floats) -> Noise:
    """The same from inner products (B, B) of draws, and theirs with u (B,)."""
    B = len(gram)
    own = np.diag(gram)
    square = float((np.vdot(gram, gram) - own @ own) / (B * (B - 1)))
    return Noise(float(own.mean()), square, float(np.mean(along**2)))


_NODES = (np.arange(256) + 0.5) / 256
_MOST_SKEWED = 4.0


def quadratic_limits(
    size: float,
    calibrated: Noise,
    observed: Noise,
    tail: float,
    events: tuple[float, float] = (np.inf, np.inf),
) -> Limits:
    """Limits of |E v|² from |v|² = `size`, where v is a sum over rows.

    Under hypothesis s the mean is s·v and the covariance lies between that of a calibrated model
    (s = 0) and the one observed (s = 1), continued beyond where noise grows with the deviation.
    |v*|² is then (s|v| + √(uᵀΣu)·z)² + c·χ²_ν: u = v/|v|, z has mean 0, variance 1 and the skewness
    of a Poisson count, and the χ² has the mean and variance of what is across u [Satterthwaite,
    Biometrics Bulletin 2 (1946)].  For the upper limit |v|² counts as its mean under calibration
    where it is less, as in `bin_limits`.

    Parameters
    ----------
    events
        Rows of the rarer outcome: expected of a calibrated model, and observed.
    """
    if not (size > 0 and calibrated.trace > 0):
        return Limits(0.0, max(size, calibrated.trace), "quadratic_form")
    length = math.sqrt(size)
    least = max(size, calibrated.trace)

    def spread(s: float) -> tuple[float, float, float]:
        """uᵀΣu, c and ν."""
        trace, square, along = (
            max(a + s * (b - a), max(a, b) if s > 1.0 else 0.0)
            for a, b in zip(calibrated, observed, strict=True)
        )
        along = min(along, 0.999 * trace)
        rest = max(trace - along, 1e-300)
        across = min(max(square - along * along, rest * rest / 200.0), rest * rest)
        return along, across / rest, rest * rest / across

    def above(s: float, than: float) -> float:
        along, c, nu = spread(s)
        z = _skewed(_skewness(events, s))
        left = than - (s * length + math.sqrt(along) * z) ** 2
        beyond = gammaincc(nu / 2.0, np.maximum(left, 0.0) / (2.0 * c))
        return float(np.mean(np.where(left <= 0.0, 1.0, beyond)))

    low = lowest_factor(lambda s: above(s, size), tail)
    high = highest_factor(lambda s: 1.0 - above(s, least), tail)
    return Limits(low * low * size, high * high * size, "quadratic_form")


def _skewness(events: tuple[float, float], s: float) -> float:
    """Of the number of rarer outcomes in the direction that was observed."""
    expected, seen = events
    if not math.isfinite(expected):
        return 0.0
    count = max(expected + s * (seen - expected), _MOST_SKEWED**-2)
    return math.copysign(count**-0.5, seen - expected)


def _skewed(skewness: float) -> Floats:
    """Quantiles of Pearson's type III distribution of mean 0 and variance 1."""
    if abs(skewness) < 1e-3:
        return ndtri(_NODES)
    shape = 4.0 / skewness**2
    z = (gammaincinv(shape, _NODES) - shape) / math.sqrt(shape)
    return z if skewness > 0 else -z
