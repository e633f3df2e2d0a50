"""Confidence limits of the squared norm of a mean vector."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincc, gammaincinv, ndtri

from calibscale.array_types import Floats
from calibscale.intervals.inversion import highest_factor, lowest_factor
from calibscale.intervals.proportions import Limits


class Quadratic(NamedTuple):
    """Sum over rows v = Σ w δ⊗φ (m,) with a squared norm that estimates a squared error · `scale`.

    `scale` is (Σw)².  `own` is Σw²|δ|²|φ|², the part of |v|² due to pairs of a row with itself.
    `squares` is Σw²|δ|².
    """

    vector: Floats
    own: float
    squares: float
    scale: float


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
    squared_norms = np.diag(gram)
    square = float((np.vdot(gram, gram) - squared_norms @ squared_norms) / (B * (B - 1)))
    return Noise(float(squared_norms.mean()), square, float(np.mean(along**2)))


_NODES = (np.arange(256) + 0.5) / 256  # midpoints of a rule for integrals over quantiles of z
_MAX_SKEWNESS = 4.0  # of a count of 1/16 events.  Fewer events say nothing about the distribution


def quadratic_limits(
    size: float,
    calibrated: Noise,
    observed: Noise,
    tail: float,
    events: tuple[float, float] = (np.inf, np.inf),
) -> Limits:
    """Limits of |E v|² from |v|² = `size`, where v is a sum over rows.

    Under hypothesis s the mean is s·v.  The covariance lies between the covariance of a calibrated
    model (s = 0) and the observed covariance (s = 1), extrapolated beyond where noise grows with
    the deviation.  Then |v*|² is (s|v| + √(uᵀΣu)·z)² + c·χ²_ν with u = v/|v|.  Here z has mean 0,
    variance 1 and the skewness of a Poisson count, and the χ² has the mean and variance of the part
    orthogonal to u [Satterthwaite, Biometrics Bulletin 2 (1946)].  `events` are the numbers of rows
    of the rarer outcome, expected of a calibrated model, and observed.

    For the upper limit, a |v|² below its mean under calibration is replaced by this mean, as in
    `bin_limits`.  The direction of such a v says little, and a v of 0 has none.  The smaller |v|²
    is, the more the hypotheses have the direction of the most noise, which hides an error best: the
    share of the mean that |v|² lacks moves uᵀΣu towards √tr Σ², which no eigenvalue of Σ exceeds.
    """
    if not calibrated.trace > 0:
        return Limits(0.0, size, "quadratic_form")
    raised = max(size, calibrated.trace)

    def spread(s: float, lack: float) -> tuple[float, float, float]:
        """uᵀΣu, c and ν under hypothesis s, where |v|² lacks this share of its mean."""
        trace, square, along = (
            max(a + s * (b - a), max(a, b) if s > 1.0 else 0.0)
            for a, b in zip(calibrated, observed, strict=True)
        )
        along += lack * max(math.sqrt(max(square, 0.0)) - along, 0.0)
        # tr Σ − uᵀΣu and tr Σ² − (uᵀΣu)² belong to the part orthogonal to u.  The latter lies
        # between the squares of one large and of 200 equal eigenvalues.
        along = min(along, 0.999 * trace)
        across_trace = max(trace - along, 1e-300)
        across_square = min(
            max(square - along * along, across_trace * across_trace / 200.0),
            across_trace * across_trace,
        )
        return along, across_square / across_trace, across_trace * across_trace / across_square

    def above(s: float, value: float) -> float:
        """Probability of |v*|² ≥ `value` under hypothesis s, where |v|² counts as `value`."""
        along, c, nu = spread(s, 1.0 - size / value)
        z = _skewed(_skewness(events, s))
        left = value - (s * math.sqrt(value) + math.sqrt(along) * z) ** 2
        beyond = gammaincc(nu / 2.0, np.maximum(left, 0.0) / (2.0 * c))
        return float(np.mean(np.where(left <= 0.0, 1.0, beyond)))

    low = lowest_factor(lambda s: above(s, size), tail) if size > 0 else 0.0
    high = highest_factor(lambda s: 1.0 - above(s, raised), tail)
    return Limits(low * low * size, high * high * raised, "quadratic_form")


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
