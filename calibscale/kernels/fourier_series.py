"""Kernel sums in O(n): Fourier series of kernels on a box, summed by FINUFFT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, poch, stdtrit

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require

Complexes = NDArray[np.complex128]

# Accuracies requested from FINUFFT.
_LARGEST_EPS = 1e-4  # beyond it FINUFFT's error is a larger multiple of the tolerance
_SMALLEST_EPS = 4e-15  # reached by FINUFFT's widest spreading kernel without a warning
_COARSE_EPS = 2e-10  # reached on the coarser of its two grids
_MANY_MODES = 2**18  # modes above which the FFT dominates the time
_LARGEST_EXTENT = 1e300  # in bandwidths, so that no number of modes overflows
_OUTSIDE = 1e-9  # share of extent + bandwidth by which rounding may move a point out of its box


class NoSeries(OptionError):
    """A kernel, or data, without a short Fourier series.

    `remedy` has the placeholder ``{pairs}`` for the name of the method that sums over all pairs.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(self.advice("tiles"))

    def advice(self, pairs: str) -> str:
        """Message that calls the method that sums over all pairs `pairs`."""
        return f"{self.reason}: {self.remedy.format(pairs=pairs)}" if self.remedy else self.reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.reason, self.remedy)


class _Kernel(NamedTuple):
    """Radial kernel κ(r) of bandwidth 1, κ(0) = 1.

    The transform divided by (2π)^D is a density.  Its marginals are the same for every D.
    """

    profile: Callable[[float], float]  # κ(r)
    quantile: Callable[[float], float]  # of one coordinate of the density
    transform: Callable[[Floats, int], Floats]  # ∫ κ(|z|) exp(−i⟨ω, z⟩) dz of |ω|² and D


_ROOT5 = math.sqrt(5.0)
_KERNELS = {
    "gaussian": _Kernel(
        lambda r: math.exp(-0.5 * r * r),
        ndtri,
        lambda squares, D: (2 * math.pi) ** (D / 2) * np.exp(-0.5 * squares),
    ),
    "matern52": _Kernel(  # Student's density of 5 degrees of freedom
        lambda r: (1.0 + _ROOT5 * r + 5 * r * r / 3) * math.exp(-_ROOT5 * r),
        lambda p: stdtrit(5, p),
        lambda squares, D: (
            (0.8 * math.pi) ** (D / 2) * poch(2.5, D / 2) * (1.0 + squares / 5) ** (-(5 + D) / 2)
        ),
    ),
}


@dataclass(frozen=True)
class Factor:
    """Factor of a product kernel, a function of r = ‖(z − z')/bandwidths‖ alone.

    `kernel` is "gaussian", exp(−r²/2), or "matern52", (1 + √5r + 5r²/3) exp(−√5r).  All points lie
    in the box [low, high].  The tuples have one number for each dimension of the factor.
    """

    kernel: str
    bandwidths: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.kernel not in _KERNELS:
            raise NoSeries(
                f"the kernel {self.kernel!r} has no short Fourier series",
                f'use method="{{pairs}}", or one of {", ".join(_KERNELS)}',
            )
        if not 0 < len(self.bandwidths) == len(self.low) == len(self.high):
            raise OptionError("bandwidths, low and high need one number for each dimension")
        for bandwidth, low, high in zip(self.bandwidths, self.low, self.high, strict=True):
            if not 0 < bandwidth < math.inf:
                raise NoSeries(f"bandwidth must be positive and finite, not {bandwidth}")
            if not -math.inf < low <= high < math.inf:
                raise NoSeries(f"a box needs finite low <= high, not [{low}, {high}]")

    def widened(self) -> Factor:
        """Factor with a box extended on either side by half of its range plus three bandwidths."""
        box = np.array([self.low, self.high])
        margins = (box[1] - box[0]) / 2 + 3 * np.array(self.bandwidths)
        low, high = (tuple(ends.tolist()) for ends in (box[0] - margins, box[1] + margins))
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class FourierSeries:
    """κ(z − z') = Σ_ω κ̂(ω) exp(i⟨ω, z − z'⟩) for points of a box, κ the product of `factors`.

    In units of the bandwidth κ is repeated with period T = extent + R, κ(R) being small.  It has
    the coefficients κ̂(ω) = ∫ κ(z) exp(−i⟨ω, z⟩) dz / ΠT at ω = 2πk/T, cut off at |k| ≤ TW/(2π).
    The total error is below tolerance · Σ|e| in Σ_i e_i κ(z_i − z) and below
    tolerance · n² mean(e²) in Σ_ij e_i e_j κ(z_i − z_j).
    """

    factors: tuple[Factor, ...]
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        require(1e-14 <= self.tolerance <= 1e-1, "tolerance must be in 1e-14..0.1", self.tolerance)
        if not 1 <= self._dimensions <= 3:
            raise NoSeries(
                f"a Fourier series has 1 to 3 dimensions, not {self._dimensions}",
                'use method="{pairs}", or fewer covariates',
            )

    @property
    def _dimensions(self) -> int:
        return sum(len(f.low) for f in self.factors)

    @cached_property
    def _box(self) -> Floats:
        """Low, high and bandwidth of each dimension, (3, d)."""
        return np.hstack([(f.low, f.high, f.bandwidths) for f in self.factors]).astype(np.float64)

    @property
    def box(self) -> tuple[Floats, Floats]:
        """Lowest and highest coordinates (d,)."""
        return self._box[0], self._box[1]

    @cached_property
    def _periods(self) -> tuple[float, ...]:
        """Period T of each dimension in units of its bandwidth."""
        from scipy.optimize import brentq

        # The two nearest images of each dimension add an error of tolerance/8 in total.  Farther
        # images are negligible.
        image_error = self.tolerance / (16 * self._dimensions)

        def excess(r: float, profile: Callable[[float], float]) -> float:
            return profile(r) - image_error

        periods = []
        for f in self.factors:
            # The distance at which κ has fallen to this error.
            margin = float(brentq(excess, 0.0, 1e3, args=(_KERNELS[f.kernel].profile,)))
            for bandwidth, low, high in zip(f.bandwidths, f.low, f.high, strict=True):
                extent = (float(high) - float(low)) / float(bandwidth)
                periods.append(min(extent, _LARGEST_EXTENT) + margin)
        return tuple(periods)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of modes of each dimension, 2·max|k| + 1."""
        # Each dimension cuts off two tails of the marginal, tolerance/2 over all dimensions.
        tail = self.tolerance / (4 * self._dimensions)
        cutoffs = [-float(_KERNELS[f.kernel].quantile(tail)) for f in self.factors for _ in f.low]
        pairs = zip(self._periods, cutoffs, strict=True)
        return tuple(2 * math.ceil(T * W / (2 * math.pi)) + 1 for T, W in pairs)

    @property
    def modes(self) -> int:
        """Number of coefficients, without allocating an array."""
        return math.prod(self.shape)

    @cached_property
    def coefficients(self) -> Floats:
        """Coefficients κ̂, of `shape`."""
        # Squared frequencies ω² = (2πk/T)² of each dimension.
        squares: list[Any] = [
            (2 * math.pi / T * np.arange(-(size // 2), size // 2 + 1)) ** 2
            for T, size in zip(self._periods, self.shape, strict=True)
        ]
        out: Floats = np.array(1.0 / math.prod(self._periods))
        # The transforms of the factors are multiplied.  The transform of a radial factor depends on
        # |ω|² of its D dimensions alone.
        for f in self.factors:
            D = len(f.low)
            total: Floats = reduce(np.add.outer, squares[:D])
            out = np.multiply.outer(out, _KERNELS[f.kernel].transform(total, D))
            del squares[:D]
        out.setflags(write=False)
        return out

    def transform(self, points: Floats, strengths: Floats) -> Complexes:
        """F_s(ω) = Σ_i strengths[s, i] exp(i⟨ω, z_i − centre of the box⟩), (s, *shape).

        The strengths (s, c) are real, and the points are (c, d).
        """
        s = len(strengths)
        out = np.zeros((s, *self.shape), dtype=np.complex128)
        if not strengths.size:
            return out
        # A transform of complex numbers costs as much as a transform of real ones, so that two
        # vectors of strengths e and g share one as e + ig.
        scale = _powers_of_two(strengths)
        packed = np.zeros(((s + 1) // 2, len(points)), dtype=np.complex128)
        packed.real = strengths[0::2] / scale[0::2]
        packed.imag[: s // 2] = strengths[1::2] / scale[1::2]
        P = self._sums(1, points, packed)
        # F(−ω) is the conjugate of F(ω) for real strengths, which separates e and g.
        pairs = s // 2
        Q = np.conj(P[(slice(pairs), *[slice(None, None, -1)] * self._dimensions)])
        out[0 : 2 * pairs : 2] = 0.5 * (P[:pairs] + Q)
        out[1::2] = -0.5j * (P[:pairs] - Q)
        out[2 * pairs :] = P[pairs:]
        out *= scale.reshape(-1, *[1] * self._dimensions)
        return out

    def evaluate(self, F: Complexes, points: Floats) -> Floats:
        """Σ_ω κ̂(ω) F_s(ω) exp(−i⟨ω, z⟩) = Σ_i e_i κ(z_i − z) at each of the points (c, d), (s, c).

        `F` (s, *shape) are sums of transforms of real strengths.
        """
        s = len(F)
        out = np.zeros((s, len(points)))
        if not out.size:
            return out
        # The sums are real, so that two of them share one transform as above.
        G = self.coefficients * F
        scale = _powers_of_two(G.reshape(s, -1))
        G *= 1.0 / scale.reshape(-1, *[1] * self._dimensions)
        packed = G[0::2].copy()
        packed[: s // 2] += 1j * G[1::2]
        values = self._sums(2, points, packed)
        out[0::2] = values.real
        out[1::2] = values.imag[: s // 2]
        out *= scale
        return out

    def quadratic(self, F: Complexes, G: Complexes) -> float:
        """Σ_ω κ̂(ω) Re(F(ω) conj G(ω)) = Σ_ij e_i g_j κ(z_i − z_j), for F and G of `shape`."""
        products = F.real * G.real
        products += F.imag * G.imag
        products *= self.coefficients
        return float(products.sum())

    def _sums(self, kind: int, points: Floats, data: Complexes) -> Complexes:
        """Transforms of b arrays of `data` between the points (c, d) and the modes.

        `kind` 1 sums (b, c) over the points with the exponent +i, and returns (b, *shape).  `kind`
        2 sums (b, *shape) over the modes with the exponent −i, and returns (b, c).
        """
        import finufft  # takes a tenth of a second, which a run without modes saves

        # The images and the tails have 5/8 of the tolerance, see `_periods` and `shape`.
        eps = min(max(self.tolerance / 4, _SMALLEST_EPS), _LARGEST_EPS)
        # Where the FFT dominates, the coarser grid is faster.  65,536 points take 21 ms instead of
        # 49 with 801² modes, and 126 instead of 233 with 101³, but 77 instead of 30 with 35³.  The
        # choice depends on the series alone, so that the transforms of parts of the rows add up to
        # the transform of all rows, but for rounding.
        coarse = self.modes > _MANY_MODES and eps >= _COARSE_EPS
        options = {"nthreads": 1, "modeord": 0, "upsampfac": 1.25 if coarse else 2.0}
        isign = +1 if kind == 1 else -1
        # Each call makes a plan, because threads must not share a plan.  A plan takes 0.02–0.6 ms,
        # and the sums take at least 2 ms in one dimension, 5 ms in two and 28 ms in three.
        plan = finufft.Plan(kind, self.shape, len(data), eps, isign, "complex128", **options)
        plan.setpts(*self._phases(points))
        return plan.execute(data)

    def _phases(self, points: Floats) -> Floats:
        """Coordinates from the centre of the box in units where the period is 2π, (d, c)."""
        low, high, bandwidth = self._box
        slack = _OUTSIDE * (high - low + bandwidth)
        inside = (points.min(axis=0) >= low - slack) & (points.max(axis=0) <= high + slack)
        if not inside.all():
            d = int(np.argmin(inside))
            raise OptionError(
                f"dimension {d} has points outside its box [{low[d]:g}, {high[d]:g}], or not "
                "finite: the box must contain all points"
            )
        phases = np.subtract(points.T, (low + (high - low) / 2)[:, None], order="C")
        phases *= (2 * math.pi / (bandwidth * self._periods))[:, None]
        return phases


def _powers_of_two(vectors: NDArray[Any]) -> Floats:
    """Scale of each vector, (s, 1), so that pairs of vectors are packed without loss of digits."""
    peak = np.abs(vectors).max(axis=1, keepdims=True)
    # A vector of zeros has the smallest scale, which makes its partner's rounding negligible.
    return np.ldexp(1.0, np.where(peak > 2.0**-1000, np.frexp(peak)[1], -1000))
