"""Normal effects of groups: their covariance by empirical Bayes, and their posterior modes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibscale.array_types import Floats

# Smallest diagonal of the Cholesky factor.  Effects of this size change no probability, and a
# covariance of full rank has an inverse.
LEAST_DEVIATION = 1e-5
# Largest entry of the Cholesky factor, in units of the scales of the effects.  The likelihood has
# no maximum if the labels of each group are separated.
_LARGEST_DEVIATION = 10.0
FIRST_FACTOR = 0.5 * np.eye(2)  # at which the first search starts
_ENTRIES = np.tril_indices(2)  # of a Cholesky factor
_PRECISION = 1e-9  # of the gradient of the mean log likelihood of a group


class Expansion(NamedTuple):
    """Quadratic log likelihood ⟨s, u⟩ − ½⟨u, Hu⟩ of the effects u of each group.

    `scores` s are (g, 2).  `curvatures` (g, 3) are the entries H₀₀, H₀₁ and H₁₁.
    """

    scores: Floats
    curvatures: Floats

    @property
    def matrices(self) -> Floats:
        """H of each group (g, 2, 2)."""
        return self.curvatures[:, [0, 1, 1, 2]].reshape(-1, 2, 2)

    @property
    def determinants(self) -> Floats:
        """Determinant of H of each group (g,), 0 of a single row but for rounding."""
        first, mixed, second = self.curvatures.T
        return np.maximum(first * second - mixed * mixed, 0.0)


class Posterior(NamedTuple):
    """Modes of the effects (g, 2), their covariances (g, 2, 2), and |I + ΣH| (g,)."""

    modes: Floats
    covariances: Floats
    determinants: Floats


def posterior(expansion: Expansion, factor: Floats) -> Posterior:
    """Posterior of effects with the prior N(0, Σ), given the Cholesky factor of Σ (2, 2).

    The covariance A = (Σ⁻¹ + H)⁻¹ of 2×2 matrices is (Σ + |Σ| adj H)/|I + ΣH|, also if Σ or H is
    singular, with |I + ΣH| = 1 + tr ΣH + |Σ||H|.
    """
    H, covariance = expansion.matrices, factor @ factor.T
    size = (factor[0, 0] * factor[1, 1]) ** 2
    # Rounding may make the trace of a product of singular matrices negative.
    traces = np.maximum(np.einsum("ij,gji->g", covariance, H), 0.0)
    determinants = 1.0 + traces + size * expansion.determinants
    posteriors = (covariance + size * _adjugates(H)) / determinants[:, None, None]
    modes = np.einsum("gij,gj->gi", posteriors, expansion.scores)
    return Posterior(modes, posteriors, determinants)


def factor_of_effects(expansion: Expansion, scales: Floats, first: Floats = FIRST_FACTOR) -> Floats:
    """Cholesky factor of the covariance Σ of effects with the largest marginal likelihood (2, 2).

    The log likelihood of a group is −½ log|I + ΣH| + ½⟨s, As⟩ with A of `posterior`, without
    terms that do not depend on Σ.  The rows of the factor have entries of at most ten `scales`
    (2,), and the search starts at the factor `first`.
    """
    from scipy.optimize import minimize  # slow to import

    groups = len(expansion.scores)

    def loss(entries: Floats) -> tuple[float, Floats]:
        factor = np.zeros((2, 2))
        factor[_ENTRIES] = entries
        of_effects = posterior(expansion, factor)
        explained = np.einsum("gi,gi->g", expansion.scores, of_effects.modes)
        value = 0.5 * (np.log(of_effects.determinants) - explained).sum() / groups
        # Σ = LLᵀ, so that the derivatives by L are twice the ones by Σ, times L.
        by_factor = 2.0 * _slope(expansion, of_effects, factor) @ factor / groups
        return float(value), by_factor[_ENTRIES]

    largest = _LARGEST_DEVIATION * scales[_ENTRIES[0]]
    least = np.where(_ENTRIES[0] == _ENTRIES[1], LEAST_DEVIATION, -largest)
    bounds = np.column_stack([least, largest])
    options = {"gtol": _PRECISION, "ftol": 0.0}
    search = minimize(
        loss, first[_ENTRIES], jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    factor = np.zeros((2, 2))
    factor[_ENTRIES] = search.x
    return factor


def _slope(expansion: Expansion, of_effects: Posterior, factor: Floats) -> Floats:
    """Derivative of the negative log likelihood of all groups by Σ (2, 2), symmetric."""
    H, covariance = expansion.matrices, factor @ factor.T
    # z = (I + HΣ)⁻¹s, and K = H(I + ΣH)⁻¹ by the formula of A, with Σ and H exchanged.
    z = expansion.scores - np.einsum("gij,gj->gi", H, of_effects.modes)
    K = H + expansion.determinants[:, None, None] * _adjugates(covariance[None])
    K = K / of_effects.determinants[:, None, None]
    return np.asarray(0.5 * (K.sum(axis=0) - z.T @ z))


def _adjugates(matrices: Floats) -> Floats:
    """Adjugates of symmetric matrices (g, 2, 2)."""
    adjugates = -matrices
    adjugates[:, 0, 0] = matrices[:, 1, 1]
    adjugates[:, 1, 1] = matrices[:, 0, 0]
    return adjugates
