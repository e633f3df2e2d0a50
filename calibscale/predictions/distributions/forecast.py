"""Base class of predictive distributions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import index
from typing import Any, ClassVar, Self

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from numpy.polynomial.legendre import leggauss
from numpy.polynomial.polynomial import polyfit

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws, waves
from calibscale.compiled.tile_strips import LANES
from calibscale.errors import OptionError, require
from calibscale.predictions.claims import FORECASTS
from calibscale.predictions.outcomes import OutcomeChunk, OutcomeTarget
from calibscale.predictions.target import KERNEL_ERROR, Draws

_FARTHEST = 1e9  # angle, beyond which sines lose their digits
_INTERVALS = 4  # intervals of the grid of outcomes for each frequency
_TOGETHER = 4  # replicates that add the rows of a block while these are in the cache
_SHARP = 1e-4  # expected squared residual below which errors of 1e-10 would matter
ResidualProducts = Callable[[Floats], tuple[Floats, Floats]]


@cache
def _lattice(frequencies: int) -> tuple[float, Floats]:
    """Step of the frequencies in units of 1/bandwidth, and the roots of their weights.

    The sum over half-integer multiples of the step approximates the integral over all frequencies,
    by which the Gaussian kernel is a mean of cosines (Bochner's theorem).  The more frequencies
    there are, the finer is their step and the farther they reach.
    """
    step = (2.0 + frequencies ** (1 / 3)) / frequencies
    weights = np.exp(-0.5 * (step * (np.arange(frequencies) + 0.5)) ** 2)
    return step, np.sqrt(weights / weights.sum())


@cache
def _grid(frequencies: int) -> tuple[Floats, Floats]:
    """Coefficients for `waves.spread_rows`, and the waves (G + T, 2D) of its grid.

    A point at distance x, in half widths of `TAPS` points, has the weight exp(β(√(1 − x²) − 1)) of
    Barnett, Magland and af Klinteberg (2019), up to its Fourier transform.
    """
    beta = 0.97 * np.pi * waves.TAPS * (1.0 - 1.0 / _INTERVALS)
    half = 0.5 * waves.TAPS

    def weight(x: Floats) -> Any:
        return np.exp(beta * (np.sqrt(np.maximum(1.0 - x * x, 0.0)) - 1.0))

    # The weights at `TAPS` points around a value are polynomials of its position in its interval.
    taps = 1.0 - half + np.arange(waves.TAPS)
    fractions = 0.5 + 0.5 * chebpts1(40)
    values = weight((taps - fractions[:, None]) / half)
    coefficients = np.ascontiguousarray(polyfit(fractions, values, 11)[::-1])
    intervals = _INTERVALS * frequencies
    interval = 2.0 * np.pi / intervals
    points = interval * (taps[0] + np.arange(intervals + waves.TAPS))
    grid = np.empty((len(points), 2 * frequencies))
    waves.point_waves(points, _lattice(frequencies)[1], grid)
    # The Fourier transform of the weight, by which the waves of the grid are divided.
    x, shares = leggauss(64)
    omega = np.arange(frequencies) + 0.5
    transform = half * (shares * weight(x)) @ np.cos(np.outer(half * interval * x, omega))
    return coefficients, grid / np.tile(transform, 2)


@dataclass(frozen=True)
class Forecast(OutcomeTarget):
    """Base class of predictive distributions μ, one for each row, of a target Y.

    The kernel on the target is ℓ(y, y') = exp(−(y − y')²/(2·bandwidth²)), as a sum of waves:
    ⟨ψ(y), ψ(y')⟩ with ψ(y) = [√a_d cos ω_d(y − centre), √a_d sin ω_d(y − centre)], D equally spaced
    frequencies ω_d and a_d in proportion to exp(−ω_d²·bandwidth²/2).  A prediction is its mean
    embedding q = E ψ(Z), Z ~ μ, and its residual δ = q − ψ(y).

    Parameters
    ----------
    bandwidth : float, optional
        In the units of the target.  Default: median of the distances between 1,000 outcomes.
    centre : float, optional
        Origin of the waves, near the outcomes.  Default: their median.
    frequencies : int
        Number D of frequencies, at least 2.  With 16, ⟨ψ(y), ψ(y')⟩ equals ℓ to 1e-5 where
        |y − y'| is below 17 bandwidths.  With 32, it equals ℓ to 4e-7 below 33 bandwidths, and with
        64 to 4e-9 below 60.

    See Also
    --------
    NormalForecast, MixtureForecast, EnsembleForecast : Kinds of distributions.
    QuantileForecast, HistogramForecast, OrdinalForecast : Kinds with probabilities of ranges.

    Examples
    --------
    >>> import calibscale as cs
    >>> isinstance(cs.NormalForecast(frequencies=64), cs.Forecast)
    True
    """

    bandwidth: float | None = field(default=None, kw_only=True)
    centre: float | None = field(default=None, kw_only=True)
    frequencies: int = field(default=16, kw_only=True)
    claim: ClassVar[str] = FORECASTS
    kernel_error: ClassVar[str] = "kce"
    targets: ClassVar[str] = "numbers"
    of_waves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # Plain numbers, as settings are written as JSON.
        for name in ("bandwidth", "centre"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))
        object.__setattr__(self, "frequencies", index(self.frequencies))
        if self.bandwidth is not None and not 0 < self.bandwidth < np.inf:
            raise OptionError(f"bandwidth must be positive and finite, not {self.bandwidth}")
        require(np.isfinite(self.centre or 0), "centre must be finite", self.centre)
        require(2 <= self.frequencies <= 4096, "frequencies must be in 2..4096", self.frequencies)

    # ---------------------------------------------------------------- layout

    @property
    def n_features(self) -> int:
        """Length 2D of an embedding."""
        return 2 * self.frequencies

    # ---------------------------------------------------------------- affine maps

    def crps_of_members(self, values: Floats, y: Floats) -> Floats:
        """CRPS of the predictions (c,), of ensembles with the members as the distribution."""
        return self.crps(values, y)

    def moved(self, values: Floats, shift: float, slope: float, spread: float) -> Floats:
        """Predictions of shift + slope·m + spread·(Z − m), for Z with the mean m and spread > 0.

        An OptionError is raised for kinds whose outcomes are in fixed ranges.
        """
        raise OptionError(f"{self.in_words} are of fixed outcomes, which cannot be moved")

    # ---------------------------------------------------------------- kernel on targets

    @property
    def bound(self) -> bool:  # type: ignore[override]
        """Whether the kernel on targets has no defaults left."""
        return None not in (self.bandwidth, self.centre)

    def with_target(self, outcomes: Floats) -> Self:
        """Forecast with the defaults of the kernel on targets, from a sample of outcomes (m,)."""
        if self.bound:
            return self
        outcomes = np.sort(outcomes[np.isfinite(outcomes)])
        bandwidth, centre = self.bandwidth, self.centre
        if bandwidth is None:
            # The median heuristic, without ties, which would make the bandwidth 0.
            distances = np.abs(np.subtract.outer(outcomes, outcomes))
            positive = distances[distances > 0]
            bandwidth = float(np.median(positive)) if positive.size else 1.0
        if centre is None:
            centre = float(outcomes[len(outcomes) // 2]) if len(outcomes) else 0.0
        return replace(self, bandwidth=bandwidth, centre=centre)

    def angles(self, y: Floats) -> Floats:
        """Outcomes relative to the centre, in units of the step of the frequencies."""
        assert self.centre is not None
        with np.errstate(over="ignore"):
            far = (y - self.centre) * self._per_unit
        return np.ascontiguousarray(np.clip(far, -_FARTHEST, _FARTHEST))

    @property
    def roots(self) -> Floats:
        """Roots √a_d of the weights of the frequencies (D,)."""
        return _lattice(self.frequencies)[1]

    @property
    def _per_unit(self) -> float:
        assert self.bandwidth is not None, "call with_target() first"
        return float(_lattice(self.frequencies)[0] / self.bandwidth)

    def _waves(self, weights: Floats, means: Floats, scales: Floats) -> Floats:
        """Mean embeddings of mixtures (c, m) of normal distributions, (c, 2D)."""
        out = np.empty((len(means), self.n_features))
        weights = np.ascontiguousarray(np.broadcast_to(weights, means.shape))
        scales = np.ascontiguousarray(np.broadcast_to(scales * self._per_unit, means.shape))
        waves.normal_waves(weights, self.angles(means), scales, self.roots, out)
        return out

    def placed(self, values: Floats, y: Floats, rows: Ints) -> Floats:
        """Outcomes (c,) that follow the predictive distributions if all their statements are true.

        They are the outcomes themselves, except for predictions that state the probabilities of
        ranges alone.  An outcome then has a place within its range that is drawn from the
        distribution, by row number.
        """
        return y

    def residuals(self, rows: OutcomeChunk) -> Floats:
        """q − ψ(y) with the outcome as placed within its piece, if there are pieces (c, 2D)."""
        return rows.q - self.of_outcomes(self.placed(rows.values, rows.outcomes, rows.rows))

    def of_outcomes(self, y: Floats) -> Floats:
        """ψ of outcomes (c,), (c, 2D)."""
        out = np.empty((len(y), self.n_features))
        waves.point_waves(self.angles(y), self.roots, out)
        return out

    def residual_variance(self, rows: OutcomeChunk) -> Floats:
        return 1.0 - np.einsum("ij,ij->i", rows.q, rows.q)  # |ψ|² is 1

    def residual_products(self, q: Floats, phi: Floats) -> ResidualProducts:
        """Function from outcomes y (B, c) to (q − ψ(y))ᵀφ (B, 2D, m) and |q − ψ(y)|² (B, c).

        For many rows that are not all certain, a nonuniform Fourier transform computes them.  Its
        residuals err by less than 1e-9.
        """
        lengths = np.einsum("ij,ij->i", q, q)

        def of_residuals(outcomes: Floats) -> tuple[Floats, Floats]:
            products = np.empty((len(outcomes), q.shape[1], phi.shape[1]))
            squares = np.empty(outcomes.shape)
            for b, y in enumerate(outcomes):
                delta = q - self.of_outcomes(y)
                products[b], squares[b] = delta.T @ phi, np.einsum("ij,ij->i", delta, delta)
            return products, squares

        # For few rows the grid would cost more than the waves of the rows themselves.
        few = len(q) <= _INTERVALS * self.frequencies
        if few or not self.of_waves or np.mean(1.0 - lengths) < _SHARP:
            return of_residuals
        coefficients, grid = _grid(self.frequencies)
        total, table, m = q.T @ phi, q @ grid.T, phi.shape[1]
        # Kernels add vectors of `LANES` numbers.
        padded = np.pad(phi, ((0, 0), (0, -m % LANES)))

        def of_grid(outcomes: Floats) -> tuple[Floats, Floats]:
            angles, squares = np.empty(outcomes.shape), np.empty(outcomes.shape)
            for b, y in enumerate(outcomes):
                angles[b] = self.angles(y)
            sums = np.zeros((len(outcomes), len(grid), padded.shape[1]))
            waves.spread_rows(angles, coefficients, table, padded, sums, squares)
            # |q − ψ|² = |q|² + |ψ|² − 2⟨q, ψ⟩, and |ψ|² is 1.
            squares *= -2.0
            squares += 1.0 + lengths
            return np.stack([total - grid.T @ spread[:, :m] for spread in sums]), squares

        return of_grid

    # ---------------------------------------------------------------- draws under the null

    def _drawn_outcomes(self, rows: Any, draws: Draws, first: int, last: int) -> Iterator[Floats]:
        """Outcomes drawn from the predictions (c,), replicate by replicate."""
        values, y = rows.parameters[:, :-1], rows.parameters[:, -1]
        outcomes = self.placed_sampler(values, y, rows.rows)
        return map(outcomes, draws.uniforms(rows.units, first, last))

    def drawn_residuals(self, rows: Any, draws: Draws, first: int, last: int) -> Iterator[Floats]:
        for y in self._drawn_outcomes(rows, draws, first, last):
            yield rows.q - self.of_outcomes(y)

    def drawn_products(
        self, rows: Any, phi: Floats, draws: Draws, first: int, last: int
    ) -> Iterator[tuple[Floats, Floats]]:
        products = self.residual_products(rows.q, phi)
        outcomes = self._drawn_outcomes(rows, draws, first, last)
        for start in range(first, last, _TOGETHER):
            drawn = np.empty((min(_TOGETHER, last - start), len(phi)))
            for replicate, y in zip(drawn, outcomes, strict=False):
                replicate[...] = y
            yield from zip(*products(drawn), strict=True)

    def drawn_embeddings(self, rows: Any, count: int, stream: int) -> Floats:
        sampler = self.sampler(rows.values, rows.outcomes)
        u = (random_draws.of_rows(rows.rows, 1 + d, stream) for d in range(count))
        return np.stack([self.of_outcomes(sampler(levels)) for levels in u], axis=1)

    @property
    def scores(self) -> tuple[str, ...]:
        return ("crps",)

    @property
    def default_tests(self) -> tuple[str, ...]:
        return ("normal_scores", "pit_smooth", "pit_by_forecast", KERNEL_ERROR)

    @property
    def sizes(self) -> tuple[str, ...]:
        return ("quantile_ece", "pit_kuiper", KERNEL_ERROR, "coverage")

    # ---------------------------------------------------------------- distributions

    @abstractmethod
    def cdf(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        """P(Z < y) and P(Z ≤ y) (c,)."""

    def scalar_residuals(self, values: Floats, y: Floats) -> Floats:
        """PIT values in the middle of their jumps, minus ½ (c,)."""
        below, at_most = self.cdf(values, y)
        return 0.5 * (below + at_most) - 0.5

    def pit(self, values: Floats, y: Floats, rows: Ints) -> Floats:
        """Probability integral transform: P(Z < y) + v P(Z = y), v uniform by row number (c,)."""
        below, at_most = self.cdf(values, y)
        return below + random_draws.of_rows(rows, 0, random_draws.PIT) * (at_most - below)

    def event_probability(self, values: Floats, y: Floats, thresholds: Floats) -> Floats:
        """Predicted probability of an outcome of at most the threshold of each row (c,).

        It is calibrated given itself if the prediction is calibrated.
        """
        return self.cdf(values, thresholds)[1]

    @abstractmethod
    def quantile(self, values: Floats, level: Any) -> Floats:
        """Quantiles of the predictions at a level, or one level for each row (c,)."""

    def interval(self, values: Floats, level: float) -> tuple[Floats, Floats]:
        """Ends of the central prediction interval of a level, between two quantiles (c,)."""
        low, high = (self.quantile(values, 0.5 + half * level) for half in (-0.5, 0.5))
        return low, high

    def spread(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Middle and width of the central half of each prediction (c,).

        For a calibrated prediction they do not depend on the PIT value of the outcome.
        """
        low, high = self.interval(values, 0.5)
        return (low + high) / 2, high - low

    def covered_part(
        self, values: Floats, y: Floats, level: float, interval: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats]:
        """PIT value from which outcomes lie in the `interval`, and their probability, each (c,).

        A calibrated prediction covers the outcome with this probability, the probability of the
        closed interval.  It exceeds the level where an end has a probability of its own.
        """
        low, high = interval
        start = self.cdf(values, low)[0]
        return start, self.cdf(values, high)[1] - start

    def sampler(self, values: Floats, y: Floats) -> Callable[[Floats], Floats]:
        """Function from uniform numbers (c,) to outcomes drawn from the predictions (c,)."""
        return partial(self.quantile, values)

    def drawn(self, values: Floats, y: Floats, u: Floats) -> Floats:
        """Outcomes drawn from the predictions, by uniform numbers (c,)."""
        return self.sampler(values, y)(u)

    def pit_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        """Function from uniform numbers (c,) to the PIT values of the outcomes of `sampler` (c,).

        The position of an outcome within its probability is the position of the row, as in `pit`.
        Kinds with continuous outcomes that increase with the numbers return the numbers themselves.
        """
        outcomes = self.sampler(values, y)
        return lambda u: self.pit(values, outcomes(u), rows)

    def cdf_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        """Function as `pit_sampler`, for outcomes where they are and not as `placed`."""
        return self.pit_sampler(values, y, rows)

    def placed_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        """Function from uniform numbers (c,) to outcomes of `sampler` as `placed` (c,)."""
        return self.sampler(values, y)

    @abstractmethod
    def mean(self, values: Floats) -> Floats:
        """Mean of each prediction (c,)."""

    @abstractmethod
    def crps(self, values: Floats, y: Floats) -> Floats:
        """Continuous ranked probability score ∫(F(t) − 1{y ≤ t})² dt (c,)."""

    @property
    def has_density(self) -> bool:
        """Whether predictions have densities, and so a log score."""
        return type(self).log_score is not Forecast.log_score

    def log_score(self, values: Floats, y: Floats) -> Floats:
        """−log of the density at the outcome (c,).  An OptionError if there is no density."""
        raise OptionError(f"predictions of kind {self.name} have no density")
