"""Sums of functions of PIT values, over all rows and with the rank of the forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.polynomial.legendre import legvander
from scipy.special import factorial

from calibscale.array_types import Floats
from calibscale.compiled import normal_quantiles, polynomials
from calibscale.statistics.statistic import Replicates, Statistic, added, weights_of

WAVES = 8  # Legendre polynomials of PIT values, of degree 1 to 8
SCORES = 4  # Hermite polynomials of normal scores, of degree 1 to 4
_RANKS = 2  # Legendre polynomials of the rank of a forecast, of degree 1 and 2


def _recurrence(norms: Floats, slopes: Floats, terms: Floats) -> tuple[Floats, Floats]:
    """Slopes and terms (H,) of polynomials p_d·norm_d, from the recurrence of polynomials p_d."""
    before = np.append(1.0, norms[:-2])
    return norms[1:] / norms[:-1] * slopes, norms[1:] / before * terms


# ∫ P_d(2u − 1)² du = 1/(2d + 1), and P_{d+1} = ((2d + 1)xP_d − dP_{d−1})/(d + 1)
_WAVE_DEGREES = np.arange(float(WAVES))
_LEGENDRE = _recurrence(
    np.sqrt(2.0 * np.arange(WAVES + 1) + 1.0),
    (2.0 * _WAVE_DEGREES + 1.0) / (_WAVE_DEGREES + 1.0),
    _WAVE_DEGREES / (_WAVE_DEGREES + 1.0),
)
# E He_d(z)² = d!, and He_{d+1} = zHe_d − dHe_{d−1}
_HERMITE = _recurrence(
    1.0 / np.sqrt(factorial(np.arange(SCORES + 1))), np.ones(SCORES), np.arange(float(SCORES))
)
_FARTHEST = 1e-12  # distance of PIT values to 0 and 1 at which normal scores end


class PITMomentState(NamedTuple):
    """Σ1, Σw, Σw², Σw²gg′ (G, G), and Σw h g of functions h of PIT and g of rank (H, G)."""

    n: Floats
    weight: Floats
    weight2: Floats
    ranks: Floats
    sums: Floats


@dataclass(frozen=True)
class PITMoments(Statistic):
    """Sums over rows of h(u)·g(r): each h has mean 0 and variance 1 for uniform u.

    The functions h are Legendre polynomials of the PIT value u, and Hermite polynomials of its
    normal score.  The functions g are 1, and Legendre polynomials of the ranks of the forecast's
    median and of its width among `medians` and `widths`, which are quantiles of a sample of
    forecasts.
    """

    medians: tuple[float, ...]
    widths: tuple[float, ...]
    drawn: ClassVar[tuple[str, ...]] = ("sums",)
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 2, 1)
    columns: ClassVar[int] = 1 + 2 * _RANKS

    def zero(self, classes: int) -> PITMomentState:
        n, weight, weight2 = (np.zeros(()) for _ in range(3))
        ranks = np.zeros((self.columns, self.columns))
        return PITMomentState(n, weight, weight2, ranks, np.zeros((WAVES + SCORES, self.columns)))

    def accumulate(self, state: PITMomentState, chunk: Any) -> PITMomentState:
        w, g = weights_of(chunk), self._ranks(chunk)
        weighted = g * w[:, None]
        sums = functions_of(self._pit(chunk)) @ weighted
        return added(state, len(w), w.sum(), w @ w, weighted.T @ weighted, sums)

    def draw(self, sums: tuple[Floats, ...], chunk: Any, replicates: Replicates) -> None:
        (out,) = sums
        weighted = self._ranks(chunk) * weights_of(chunk)[:, None]
        if replicates.null.of_labels:
            for b, u in enumerate(replicates.pit_values(chunk, placed=True)):
                out[b] += functions_of(u) @ weighted
            return
        # Replicates of the residual 1 are factors that all functions of a row share.
        values = functions_of(self._pit(chunk))
        units = np.ones(len(chunk))
        for b, sign in enumerate(replicates.scalars("forecast", chunk.units, units, units)):
            out[b] += (values * sign) @ weighted

    def _pit(self, chunk: Any) -> Floats:
        return chunk.forecast.pit(chunk.values, chunk.outcomes, chunk.rows)

    def _ranks(self, chunk: Any) -> Floats:
        """Functions g of each forecast (c, G)."""
        middle, width = chunk.forecast.spread(chunk.values, chunk.outcomes)
        of_median = _functions_of_rank(middle, self.medians)
        of_width = _functions_of_rank(width, self.widths)
        return np.hstack([np.ones((len(chunk), 1)), of_median, of_width])


def _functions_of_rank(x: Floats, quantiles: tuple[float, ...]) -> Floats:
    """Polynomials of the rank of x in a sample of forecasts, half of the ties below x (c, 2)."""
    sample = np.array(quantiles)
    below, upto = np.searchsorted(sample, x, "left"), np.searchsorted(sample, x, "right")
    rank = (below + upto) / (2.0 * len(sample))
    return np.asarray(legvander(2.0 * rank - 1.0, _RANKS)[:, 1:], np.float64)


def functions_of(u: Floats) -> Floats:
    """Orthonormal functions of uniform numbers u (c,), (H, c)."""
    inside = np.clip(u, 0.0, 1.0)
    functions = np.empty((WAVES + SCORES, len(u)))
    z = normal_quantiles.quantiles(np.clip(inside, _FARTHEST, 1.0 - _FARTHEST))
    polynomials.recurrence(2.0 * inside - 1.0, *_LEGENDRE, functions[:WAVES])
    polynomials.recurrence(z, *_HERMITE, functions[WAVES:])
    return functions
