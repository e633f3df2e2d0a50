"""Kernel ridge regression of the residuals: kkr and ukkr [GB §4.2]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from scipy.linalg import eigh

from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.landmarks import PointFeatures
from calibscale.selection.error import Index
from calibscale.selection.families import Bilinear, Family, Part, Setting, check_grid
from calibscale.selection.statistics import FeatureMoments, FeatureState
from calibscale.statistics import Statistic
from calibscale.views import View


class _Basis(NamedTuple):
    """Eigenvectors U of one problem's S, its eigenvalues σ, and G = UᵀCᵀ."""

    U: Floats
    sigma: Floats
    G: Floats


@dataclass(frozen=True)
class Ridge(Family):
    """What both ridge regressions share.

    Parameters
    ----------
    grid : sequence of float, optional
        Values of `reg`; the published grids by default (λ below).
    features : PointFeatures, optional
        Feature map of the kernel; default: that of the selection.
    """

    grid: Sequence[float] | None = None
    features: PointFeatures | None = None
    notion: str = "top_label"
    fitted: ClassVar[type[_FittedRidge]]

    def __post_init__(self) -> None:
        if self.grid is not None:
            object.__setattr__(self, "grid", check_grid(self.name, self.grid))

    def resolve(self, setting: Setting) -> Self:
        super().resolve(setting)
        return replace(
            self,
            grid=self.published(setting.notion) if self.grid is None else self.grid,
            features=self.features or setting.features,
            notion=setting.notion,
        )

    @staticmethod
    def published(notion: str) -> tuple[float, ...]:
        """The grid of [GB]'s code."""
        raise NotImplementedError

    @property
    def needs(self) -> tuple[Statistic, ...]:
        assert self.features is not None
        return (FeatureMoments(self.features, self.notion),)

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        assert self.grid is not None
        return [{"reg": reg} for reg in self.grid]

    def fit(self, train: Sequence[Part], setting: Setting, excluded: int) -> _FittedRidge:
        return self.fit_part(train, None)

    def fit_part(self, train: Sequence[Part], index: Index | None) -> _FittedRidge:
        """The fit from some of the features only: what a coarser map would have given."""
        assert self.features is not None
        weight = sum(float(part.residuals.weight) for part in train)
        weight2 = sum(float(part.residuals.weight2) for part in train)
        if not weight > 0:
            raise OptionError("a training set has no rows with a positive weight")
        states = [_restricted(part.states[0], index) for part in train]
        S = np.sum([state.S for state in states], axis=0)
        C = np.sum([state.C for state in states], axis=0)
        bases = []
        for j in range(len(S)):
            sigma, U = eigh(S[j], check_finite=False)
            bases.append(_Basis(U, np.maximum(sigma, 0.0), U.T @ C[j].T))
        assert self.grid is not None
        return self.fitted(
            self.features, index, bases, np.array(self.grid), weight, weight**2 / weight2
        )


class _FittedRidge(Bilinear):
    """Coefficients in the eigenbasis of S; `matrix` is B there, by problem and hyper-parameter."""

    def __init__(
        self,
        features: PointFeatures,
        index: Index | None,
        bases: Sequence[_Basis],
        grid: Floats,
        weight: float,
        effective: float,
    ) -> None:
        self.features, self.index, self.bases, self.grid = features, index, bases, grid
        self.weight, self.effective = weight, effective
        self.size = len(grid)

    def pick(self, h: int) -> _FittedRidge:
        return type(self)(
            self.features, self.index, self.bases, self.grid[h : h + 1], self.weight, self.effective
        )

    def phi(self, j: int, view: View) -> Floats:
        """Features in the eigenbasis of problem j, (c, m)."""
        phi = self.features(view.points)
        if self.index is not None:
            phi = phi[:, self.index[0]] * self.index[1]
        return phi @ self.bases[j].U

    def moments(self, part: Part, j: int) -> tuple[Floats, Floats]:
        """S (m, m) and C (e, m) of a part in the eigenbasis of problem j."""
        state = _restricted(part.states[0], self.index)
        U = self.bases[j].U
        return U.T @ state.S[j] @ U, state.C[j] @ U


class _FittedUKKR(_FittedRidge):
    def weights(self, j: int, h: int) -> Floats:
        """W with h(p, p') = ⟨Wᵀφ, Wᵀφ'⟩, (m, e)."""
        _, sigma, G = self.bases[j]
        damping = self.grid[h] * self.weight * self.effective**-0.25  # λn
        return G / (sigma + damping)[:, None]

    def diagonal(self, rows: Sequence[View]) -> Floats:
        out = np.empty((len(rows), self.size, len(rows[0].rows)))
        for j, view in enumerate(rows):
            phi = self.phi(j, view)
            for h in range(self.size):
                r = phi @ self.weights(j, h)
                out[j, h] = np.einsum("ce,ce->c", r, r)
        return out

    def cross_and_square(self, part: Part) -> tuple[Floats, Floats]:
        cross, square = np.zeros((2, self.size))
        for j in range(len(self.bases)):
            S, C = self.moments(part, j)
            for h in range(self.size):
                W = self.weights(j, h)
                cross[h] += np.sum((C @ W) ** 2)
                square[h] += np.sum((W.T @ S @ W) ** 2)
        return cross, square

    def estimates(self, part: Part) -> Floats:
        out = np.zeros(self.size)
        for j in range(len(self.bases)):
            S, _ = self.moments(part, j)
            for h in range(self.size):
                W = self.weights(j, h)
                out[h] += np.vdot(W, S @ W)
        return out / float(part.residuals.weight)

    def projections(self, part: Part, rows: Sequence[View]) -> Floats:
        out = np.zeros((self.size, len(rows[0].rows)))
        for j, view in enumerate(rows):
            S, C = self.moments(part, j)
            phi = self.phi(j, view)
            for h in range(self.size):
                W = self.weights(j, h)
                r = phi @ W
                out[h] += np.einsum("ce,ce->c", r @ (W.T @ S @ W), r)
                out[h] -= 2.0 * np.einsum("ce,ce->c", view.delta @ (C @ W), r)
        return out


class _FittedKKR(_FittedRidge):
    def matrix(self, j: int, h: int) -> Floats:
        """B in the eigenbasis, (m, m)."""
        _, sigma, G = self.bases[j]
        damping = self.grid[h] * self.weight**2 * self.effective**-0.5  # λn²
        return (G @ G.T) / (np.outer(sigma, sigma) + damping)

    def diagonal(self, rows: Sequence[View]) -> Floats:
        out = np.empty((len(rows), self.size, len(rows[0].rows)))
        for j, view in enumerate(rows):
            phi = self.phi(j, view)
            for h in range(self.size):
                out[j, h] = np.einsum("cm,cm->c", phi @ self.matrix(j, h), phi)
        return out

    def cross_and_square(self, part: Part) -> tuple[Floats, Floats]:
        cross, square = np.zeros((2, self.size))
        for j in range(len(self.bases)):
            S, C = self.moments(part, j)
            gram = C.T @ C
            for h in range(self.size):
                B = self.matrix(j, h)
                SB = S @ B
                cross[h] += np.vdot(gram, B)
                square[h] += np.vdot(SB, SB.T)
        return cross, square

    def estimates(self, part: Part) -> Floats:
        out = np.zeros(self.size)
        for j in range(len(self.bases)):
            S, _ = self.moments(part, j)
            for h in range(self.size):
                out[h] += np.vdot(S, self.matrix(j, h))
        return out / float(part.residuals.weight)

    def projections(self, part: Part, rows: Sequence[View]) -> Floats:
        out = np.zeros((self.size, len(rows[0].rows)))
        for j, view in enumerate(rows):
            S, C = self.moments(part, j)
            phi = self.phi(j, view)
            score = view.delta @ C
            for h in range(self.size):
                image = phi @ self.matrix(j, h)
                out[h] += np.einsum("cm,cm->c", image @ S - 2.0 * score, image)
        return out


@dataclass(frozen=True)
class UKKR(Ridge):
    """r̂(p) = Wᵀφ(p), W = (S + λnI)⁻¹Cᵀ; h(p, p') = ⟨r̂(p), r̂(p')⟩ [GB eq. 32].

    λ = reg·n^(−1/4), n the training rows.
    """

    name: ClassVar[str] = "ukkr"
    fitted: ClassVar[type[_FittedRidge]] = _FittedUKKR

    @staticmethod
    def published(notion: str) -> tuple[float, ...]:
        if notion == "canonical":
            return tuple(10.0 ** (4 - i / 2) for i in range(18))
        return tuple(10.0**-i for i in range(1, 10))


@dataclass(frozen=True)
class KKR(Ridge):
    """h(p, p') = φᵀBφ', B = U[(GGᵀ)_ab/(σ_aσ_b + λn²)]Uᵀ, S = UσUᵀ, G = UᵀCᵀ [GB eq. 28, 29].

    λ = reg·n^(−1/2), n the training rows.
    """

    name: ClassVar[str] = "kkr"
    fitted: ClassVar[type[_FittedRidge]] = _FittedKKR

    @staticmethod
    def published(notion: str) -> tuple[float, ...]:
        if notion == "canonical":
            return tuple(10.0 ** (8 - i) for i in range(18))
        return tuple(10.0 ** -(2 * i - 1) for i in range(1, 10))


def _restricted(state: FeatureState, index: Index | None) -> FeatureState:
    if index is None:
        return state
    kept, factor = index
    S = state.S[:, kept[:, None], kept] * factor**2
    return FeatureState(S, state.C[:, :, kept] * factor)
