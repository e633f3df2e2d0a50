"""Kernel ridge regression of the residuals: kkr and ukkr [GB §4.2]."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from scipy.linalg import eigh

from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.landmarks import PointFeatures
from calibscale.selection.error import Index
from calibscale.selection.families import (
    Bilinear,
    Family,
    PairSums,
    Part,
    Setting,
    check_grid,
)
from calibscale.selection.statistics import FeatureMoments, FeatureState
from calibscale.statistics import Statistic
from calibscale.views import View

_SIZE_FLOOR = 1e-3  # of r̂ in a direction of its values, as a share of the largest


class _Latest:
    """Features of the view that was met last: several fits meet the same one in turn."""

    def __init__(self, features: PointFeatures) -> None:
        self.features = features
        self._last: tuple[Floats, Floats] | None = None

    def __call__(self, view: View) -> Floats:
        if self._last is None or view.points is not self._last[0]:
            self._last = view.points, self.features(view.points)
        return self._last[1]

    def forget(self) -> None:
        self._last = None


class Basis:
    """S and C of a training set in the eigenvectors of S, problem by problem.

    Attributes
    ----------
    sigma : (J, m)
        Eigenvalues σ.
    U : (J, m, m)
        Eigenvectors.
    G : (J, m, e)
        UᵀCᵀ.
    weight, effective : float
        Σw and (Σw)²/Σw² of the training rows.
    """

    def __init__(
        self,
        features: PointFeatures,
        train: Sequence[Part],
        index: Index | None,
        latest: _Latest | None = None,
    ) -> None:
        self.features, self.index = features, index
        self.latest = latest or _Latest(features)
        self.weight = sum(float(part.residuals.weight) for part in train)
        weight2 = sum(float(part.residuals.weight2) for part in train)
        if not self.weight > 0:
            raise OptionError("a training set has no rows with a positive weight")
        self.effective = self.weight**2 / weight2
        states = [_restricted(part.states[0], index) for part in train]
        S = np.sum([state.S for state in states], axis=0)
        C = np.sum([state.C for state in states], axis=0)
        pairs = [eigh(matrix, check_finite=False) for matrix in S]
        self.sigma = np.maximum([sigma for sigma, _ in pairs], 0.0)
        self.U = np.array([U for _, U in pairs])
        self.G = self.U.transpose(0, 2, 1) @ C.transpose(0, 2, 1)
        # directions that the rows do not reach: what G has there is rounding
        floor = np.finfo(float).eps * self.sigma.max(axis=1, keepdims=True)
        self.G[self.sigma <= floor] = 0.0
        self._rotated: list[tuple[FeatureState, FeatureState]] = []

    def moments(self, part: Part) -> FeatureState:
        """S and C of another part in this basis."""
        for known, rotated in self._rotated:
            if known is part.states[0]:
                return rotated
        state = _restricted(part.states[0], self.index)
        S = self.U.transpose(0, 2, 1) @ state.S @ self.U
        self._rotated.append((part.states[0], FeatureState(S, state.C @ self.U)))
        return self._rotated[-1][1]

    def forget(self) -> None:
        """Let go of the moments of other parts: predictions need U, σ and G only."""
        self._rotated.clear()
        self.latest.forget()

    def phi(self, j: int, view: View) -> Floats:
        """Features in the basis of problem j, (c, m)."""
        phi = self.features(view.points)
        if self.index is not None:
            phi = phi[:, self.index[0]] * self.index[1]
        return phi @ self.U[j]


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
    @abstractmethod
    def published(notion: str) -> tuple[float, ...]:
        """The grid of [GB]'s code."""

    @property
    def needs(self) -> tuple[Statistic, ...]:
        assert self.features is not None
        return (FeatureMoments(self.features, self.notion),)

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        assert self.grid is not None
        return [{"reg": reg} for reg in self.grid]

    def fit(self, train: Sequence[Part], setting: Setting, excluded: int) -> _FittedRidge:
        assert self.features is not None
        key = (self.features, excluded)  # kkr and ukkr share it
        if key not in setting.shared:
            latest = _Latest(self.features)
            for known, basis in setting.shared.items():
                latest = basis.latest if known[0] == self.features else latest
            setting.shared[key] = Basis(self.features, train, None, latest)
        return self.fitted(setting.shared[key], np.array(self.grid))

    def fit_part(self, train: Sequence[Part], index: Index | None = None) -> _FittedRidge:
        """The fit from some of the features only: what a smaller map would have given."""
        assert self.features is not None
        return self.fitted(Basis(self.features, train, index), np.array(self.grid))


class _FittedRidge(Bilinear):
    """Coefficients in the eigenbasis of S."""

    def __init__(self, basis: Basis, grid: Floats) -> None:
        self.basis, self.grid = basis, grid
        self.size = len(grid)

    def pick(self, h: int) -> _FittedRidge:
        return type(self)(self.basis, self.grid[h : h + 1])

    @abstractmethod
    def damping(self, h: int) -> float:
        """The share of the weight below which eigenvalues are damped."""

    @abstractmethod
    def weights(self, j: int, h: int) -> Floats:
        """W in the eigenbasis with r̂ = Wᵀφ, (m, e)."""

    def residuals(self, j: int, view: View) -> Floats:
        phi = self.basis.latest(view)
        return np.stack([phi @ (self.basis.U[j] @ self.weights(j, h)) for h in range(self.size)])

    def gains(self, part: Part, h: int) -> tuple[float, float]:
        product = size = 0.0
        for j, (S, C) in enumerate(zip(*self.basis.moments(part), strict=True)):
            W = self.weights(j, h)
            product += float(np.vdot(C.T, W))
            size += float(np.vdot(W, S @ W))
        weight = float(part.residuals.weight)
        return product / weight, size / weight


class _FittedUKKR(_FittedRidge):
    def damping(self, h: int) -> float:
        return float(self.grid[h] * self.basis.effective**-0.25)  # λ

    def weights(self, j: int, h: int) -> Floats:  # h(p, p') = ⟨Wᵀφ, Wᵀφ'⟩
        shrunk = self.basis.sigma[j] + self.damping(h) * self.basis.weight
        return self.basis.G[j] / shrunk[:, None]

    def diagonal(self, rows: Sequence[View]) -> Floats:
        out = np.empty((len(rows), self.size, len(rows[0].rows)))
        for j, view in enumerate(rows):
            phi = self.basis.phi(j, view)
            for h in range(self.size):
                r = phi @ self.weights(j, h)
                out[j, h] = np.einsum("ce,ce->c", r, r)
        return out

    def judge(self, part: Part, rows: Sequence[View], whole: bool) -> PairSums:
        sums = PairSums.zero(self.size, rows)
        S, C = self.basis.moments(part)
        for j, view in enumerate(rows):
            phi = self.basis.phi(j, view)
            for h in range(self.size):
                W = self.weights(j, h)
                r, cross, square = phi @ W, C[j] @ W, W.T @ S[j] @ W
                sums.cross[h] += np.sum(cross**2)
                sums.square[h] += np.sum(square**2)
                sums.diagonal[j, h] = np.einsum("ce,ce->c", r, r)
                sums.first[h] += np.einsum("ce,ce->c", r @ square - 2.0 * view.delta @ cross, r)
        return sums

    def estimates(self, part: Part) -> Floats:
        out = np.zeros(self.size)
        for j, S in enumerate(self.basis.moments(part).S):
            for h in range(self.size):
                W = self.weights(j, h)
                out[h] += np.vdot(W, S @ W)
        return out / float(part.residuals.weight)


class _FittedKKR(_FittedRidge):
    def matrix(self, j: int, h: int) -> Floats:
        """B in the eigenbasis, (m, m)."""
        sigma, G = self.basis.sigma[j], self.basis.G[j]
        damping = self.grid[h] * self.basis.weight**2 * self.basis.effective**-0.5  # λn²
        return (G @ G.T) / (np.outer(sigma, sigma) + damping)

    def damping(self, h: int) -> float:
        return float(self.grid[h] * self.basis.effective**-0.5)  # λ: σ' beside the largest σ ~ 1

    def weights(self, j: int, h: int) -> Floats:
        """W of the r̂ whose products h are: E[h(p, p')δ'] = R r(p), E[δhδ'ᵀ] = R², R = E[rrᵀ]."""
        G, n = self.basis.G[j], self.basis.weight
        image = self.matrix(j, h) @ G / n
        squares, V = eigh(G.T @ image / n, check_finite=False)
        sizes = np.sqrt(np.maximum(squares, 0.0))
        used = sizes > _SIZE_FLOOR * max(sizes[-1], 1e-300)
        return (image @ V[:, used] / sizes[used]) @ V[:, used].T

    def diagonal(self, rows: Sequence[View]) -> Floats:
        out = np.empty((len(rows), self.size, len(rows[0].rows)))
        for j, view in enumerate(rows):
            phi = self.basis.phi(j, view)
            for h in range(self.size):
                out[j, h] = np.einsum("cm,cm->c", phi @ self.matrix(j, h), phi)
        return out

    def judge(self, part: Part, rows: Sequence[View], whole: bool) -> PairSums:
        sums = PairSums.zero(self.size, rows)
        S, C = self.basis.moments(part)
        for j, view in enumerate(rows):
            phi = self.basis.phi(j, view)
            gram, score = C[j].T @ C[j], 2.0 * view.delta @ C[j]
            for h in range(self.size):
                B = self.matrix(j, h)
                image = phi @ B
                sums.cross[h] += np.vdot(gram, B)
                sums.diagonal[j, h] = np.einsum("cm,cm->c", image, phi)
                if whole and len(phi) < len(B):  # S = ΦᵀWΦ has a smaller rank than rows
                    pairs = image @ phi.T
                    mine = pairs**2 @ view.weights
                    sums.square[h] += view.weights @ mine
                else:
                    SB = S[j] @ B
                    mine = np.einsum("cm,cm->c", image @ S[j], image)
                    sums.square[h] += np.vdot(SB, SB.T)
                sums.first[h] += mine - np.einsum("cm,cm->c", score, image)
        return sums

    def estimates(self, part: Part) -> Floats:
        out = np.zeros(self.size)
        for j, S in enumerate(self.basis.moments(part).S):
            for h in range(self.size):
                out[h] += np.vdot(S, self.matrix(j, h))
        return out / float(part.residuals.weight)


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
