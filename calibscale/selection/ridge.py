"""Kernel ridge regressions of the residuals: kkr and ukkr [GB §4.2]."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy.linalg import eigh

from calibscale.array_types import Floats, Ints
from calibscale.errors import OptionError
from calibscale.kernels.landmarks import FourierFeatures, PointFeatures
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import CLASSES, FORECASTS, FUNCTIONALS
from calibscale.predictions.notions import NotionView, problems, views, width
from calibscale.results.estimate import Approximation
from calibscale.selection.families import (
    Bilinear,
    Errors,
    FamilyProfile,
    FoldPart,
    FoldScores,
    GridFamily,
    PairSums,
)
from calibscale.selection.point_ranks import RankedFeatures
from calibscale.statistics.score_sums import from_left_out
from calibscale.statistics.statistic import Statistic

_SIZE_FLOOR = 1e-3  # directions with a smaller share of the largest |r̂| are not used


class _Latest:
    """Cache of the features of the last view, which several fits use in turn."""

    def __init__(self, features: PointFeatures) -> None:
        self.features = features
        self._last: tuple[Floats, Floats] | None = None

    def __call__(self, view: NotionView) -> Floats:
        if self._last is None or view.points is not self._last[0]:
            self._last = view.points, self.features(view.points)
        return self._last[1]

    def forget(self) -> None:
        self._last = None


class Basis:
    """S and C of a training set in the eigenbasis of S, problem by problem.

    `sigma` (J, m) and `U` (J, m, m) are the eigenvalues and eigenvectors, and `G` = UᵀCᵀ (J, m, e).
    `weight` and `effective` are Σw and (Σw)²/Σw² of the training rows.
    """

    def __init__(
        self,
        features: PointFeatures,
        train: Sequence[FoldPart],
        index: Index | None,
        latest: _Latest | None = None,
    ) -> None:
        self.features, self.index = features, index
        self.latest = latest or _Latest(features)
        self.weight = sum(float(part.residuals.weight) for part in train)
        weight2 = sum(float(part.residuals.weight2) for part in train)
        self.effective = self.weight**2 / weight2
        states = [_restricted(part.states[0], index) for part in train]
        S, C = (np.sum(arrays, axis=0) for arrays in zip(*states, strict=True))
        pairs = [eigh(matrix, check_finite=False) for matrix in S]
        self.sigma = np.maximum([sigma for sigma, _ in pairs], 0.0)
        self.U = np.array([U for _, U in pairs])
        self.G = self.U.transpose(0, 2, 1) @ C.transpose(0, 2, 1)
        # In the null space of S, G is rounding error.
        floor = np.finfo(float).eps * self.sigma.max(axis=1, keepdims=True)
        self.G[self.sigma <= floor] = 0.0
        self._rotated: dict[int, tuple[FeatureState, FeatureState]] = {}

    def moments(self, part: FoldPart) -> FeatureState:
        """Moments S and C of another part in this basis."""
        state = part.states[0]
        if id(state) not in self._rotated:
            S, C = _restricted(state, self.index)
            rotated = FeatureState(self.U.transpose(0, 2, 1) @ S @ self.U, C @ self.U)
            # Storing the state keeps its id from being used again.
            self._rotated[id(state)] = state, rotated
        return self._rotated[id(state)][1]

    def forget(self) -> None:
        """Release the moments of other parts, as predictions need U, σ and G only."""
        self._rotated.clear()
        self.latest.forget()

    def phi(self, j: int, view: NotionView) -> Floats:
        """Features in the basis of problem j, (c, m)."""
        phi = self.features(view.points)
        if self.index is not None:
            phi = phi[:, self.index[0]] * self.index[1]
        return phi @ self.U[j]


@dataclass(frozen=True)
class Ridge(GridFamily):
    """Base class of the two kernel ridge regressions, with values of `reg` as their `grid`.

    By default the selection gives the feature map, and the published code of [GB] the grid.
    """

    features: PointFeatures | None = None
    hyperparameter: ClassVar[str] = "reg"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, FORECASTS, *FUNCTIONALS)
    fitted: ClassVar[type[_FittedRidge]]

    def resolve(self, profile: FamilyProfile) -> Self:
        resolved = replace(super().resolve(profile), features=self.features or profile.features)
        if profile.ranks is None:
            return resolved
        if isinstance(resolved.map, FourierFeatures):
            raise OptionError(
                f"{self.name}: random features are for classes and predictive distributions; use "
                "features='landmarks'"
            )
        # One column of ranks is a scalar in [0, 1], for which scalar notions have a grid.
        grid = self.published("positive") if self.grid is None else self.grid
        features = RankedFeatures(resolved.map, profile.ranks)
        return replace(resolved, grid=grid, features=features)

    @property
    def map(self) -> PointFeatures:
        """Feature map of a resolved family."""
        assert self.features is not None
        return self.features

    @property
    def needs(self) -> tuple[Statistic, ...]:  # type: ignore[override]
        return (FeatureMoments(self.map, self.notion),)

    @property
    def needs_features(self) -> bool:  # type: ignore[override]
        return self.features is None

    def described_features(self, parts: Sequence[FoldPart]) -> dict[str, Any]:
        return {**self.map.describe(), "trace_residual": trace_residual(parts)}

    def fit(self, train: Sequence[FoldPart], profile: FamilyProfile, excluded: int) -> _FittedRidge:
        latest = profile.shared.setdefault(self.map, _Latest(self.map))
        key = (self.map, excluded)  # kkr and ukkr share a basis
        if key not in profile.shared:
            profile.shared[key] = Basis(self.map, train, None, latest)
        return self.fitted(profile.shared[key], np.array(self.values))

    def smaller_fits(
        self, train: Sequence[FoldPart], evaluated: Sequence[FoldPart]
    ) -> Iterator[_FittedRidge]:
        for index in replicates(self.map, [*train, *evaluated]):
            yield self.fitted(Basis(self.map, train, index), np.array(self.values))

    def approximations(
        self, scores: Sequence[FoldScores], fits: Sequence[_FittedRidge], parts: Sequence[FoldPart]
    ) -> Sequence[Errors]:
        maps = [index for index, _ in replicates(self.map, parts)]
        # The error is explained by the part of the kernel that the features miss.
        residuals = np.array([trace_residual(parts, index) for index in (None, *maps)])
        full = np.array([(fold.risk, fold.estimate) for fold in scores])  # (k, 2, H)
        smaller = np.array([fold.smaller for fold in scores])  # (k, replicates, 2, H)

        def error(i: int, h: int) -> Approximation:
            values = full[:, i, h], smaller[:, :, i, h]
            return feature_error(self.map, *values, residuals, fits[0].damping(h))

        return [(error(0, h), error(1, h)) for h in range(fits[0].size)]


class _FittedRidge(Bilinear):
    """Fit with coefficients in the eigenbasis of S."""

    def __init__(self, basis: Basis, grid: Floats) -> None:
        self.basis, self.grid = basis, grid
        self.size = len(grid)

    def pick(self, h: int) -> _FittedRidge:
        return type(self)(self.basis, self.grid[h : h + 1])

    @abstractmethod
    def damping(self, h: int) -> float:
        """Share of the weight below which eigenvalues are damped."""

    @abstractmethod
    def weights(self, j: int, h: int) -> Floats:
        """Coefficients W of r̂ = Wᵀφ in the eigenbasis, (m, e)."""

    def residuals(self, j: int, view: NotionView) -> Floats:
        phi = self.basis.latest(view)
        return np.stack([phi @ (self.basis.U[j] @ self.weights(j, h)) for h in range(self.size)])

    @abstractmethod
    def _values(self, j: int, h: int, phi: Floats) -> Floats:
        """h(p, p) of rows of problem j from their features in the eigenbasis, (c,)."""

    @abstractmethod
    def _trace(self, j: int, h: int, S: Floats) -> float:
        """tr(B S) of problem j."""

    def diagonal(self, rows: Sequence[NotionView]) -> Floats:
        features = (self.basis.phi(j, view) for j, view in enumerate(rows))
        return np.array(
            [[self._values(j, h, phi) for h in range(self.size)] for j, phi in enumerate(features)]
        )

    def estimates(self, part: FoldPart) -> Floats:
        out = np.zeros(self.size)
        for j, S in enumerate(self.basis.moments(part).S):
            out += [self._trace(j, h, S) for h in range(self.size)]
        return out / float(part.residuals.weight)

    def gains(self, part: FoldPart, h: int) -> tuple[float, float]:
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

    def _values(self, j: int, h: int, phi: Floats) -> Floats:
        r = phi @ self.weights(j, h)
        return np.einsum("ce,ce->c", r, r)

    def _trace(self, j: int, h: int, S: Floats) -> float:
        W = self.weights(j, h)
        return float(np.vdot(W, S @ W))

    def pair_sums(self, part: FoldPart, rows: Sequence[NotionView], complete: bool) -> PairSums:
        sums = PairSums.zero(self.size, rows)
        S, C = self.basis.moments(part)
        for j, view in enumerate(rows):
            phi = self.basis.phi(j, view)
            for h in range(self.size):
                W = self.weights(j, h)
                # With B = WWᵀ, tr(C B Cᵀ) = ‖CW‖²_F and tr(S B S B) = ‖WᵀSW‖²_F.
                r, cross, square = phi @ W, C[j] @ W, W.T @ S[j] @ W
                sums.cross[h] += np.sum(cross**2)
                sums.square[h] += np.sum(square**2)
                sums.diagonal[j, h] = np.einsum("ce,ce->c", r, r)
                sums.first[h] += np.einsum("ce,ce->c", r @ square - 2.0 * view.delta @ cross, r)
        return sums


class _FittedKKR(_FittedRidge):
    def matrix(self, j: int, h: int) -> Floats:
        """Matrix B in the eigenbasis, (m, m)."""
        sigma, G = self.basis.sigma[j], self.basis.G[j]
        damping = self.grid[h] * self.basis.weight**2 * self.basis.effective**-0.5  # λn²
        # GB eq. 28 and 29 in the eigenbasis of S.
        return (G @ G.T) / (np.outer(sigma, sigma) + damping)

    def damping(self, h: int) -> float:
        return float(self.grid[h] * self.basis.effective**-0.5)  # λ, as the largest σ/n is about 1

    def weights(self, j: int, h: int) -> Floats:
        """Coefficients W of the r̂ = Wᵀφ whose products ⟨r̂(p), r̂(p')⟩ are the fitted φᵀBφ'.

        With R = E[r̂r̂ᵀ], the mean of φᵀBφ'·δ' over p' is R r̂(p), and the mean of δ·φᵀBφ'·δ'ᵀ over
        both points is R².  Hence R² comes from sums, and r̂ is R⁻¹ times the first mean.
        """
        G, weight = self.basis.G[j], self.basis.weight
        coefficients = self.matrix(j, h) @ G / weight  # of R r̂, (m, e)
        squares, V = eigh(G.T @ coefficients / weight, check_finite=False)  # of R², increasing
        sizes = np.sqrt(np.maximum(squares, 0.0))
        # Small directions of R are noise, which its inverse would magnify.
        used = sizes > _SIZE_FLOOR * sizes[-1]
        inverse = (V[:, used] / sizes[used]) @ V[:, used].T
        return coefficients @ inverse

    def _values(self, j: int, h: int, phi: Floats) -> Floats:
        return np.einsum("cm,cm->c", phi @ self.matrix(j, h), phi)

    def _trace(self, j: int, h: int, S: Floats) -> float:
        return float(np.vdot(S, self.matrix(j, h)))

    def pair_sums(self, part: FoldPart, rows: Sequence[NotionView], complete: bool) -> PairSums:
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
                if complete and len(phi) < len(B):
                    # The matrix of all pairs of rows is smaller than B.
                    pairs = image @ phi.T
                    square = pairs**2 @ view.weights
                    sums.square[h] += view.weights @ square
                else:
                    # tr(S B S B) from products of (m, m) matrices.
                    SB = S[j] @ B
                    square = np.einsum("cm,cm->c", image @ S[j], image)
                    sums.square[h] += np.vdot(SB, SB.T)
                sums.first[h] += square - np.einsum("cm,cm->c", score, image)
        return sums


@dataclass(frozen=True)
class UKKR(Ridge):
    """Kernel ridge regression of δ: h(p, p') = ⟨r̂(p), r̂(p')⟩ with r̂(p) = Wᵀφ(p) [GB eq. 32].

    W = (S + λnI)⁻¹Cᵀ with λ = reg·n^(−1/4) and n training rows.

    See Also
    --------
    KKR : Kernel ridge regression of pairs.
    KDE : Kernel density ratios for a grid of bandwidths.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import UKKR, from_arrays, select
    >>> p = np.linspace(0.5, 1, 500)
    >>> source = from_arrays(probabilities=np.c_[p, 1 - p], labels=np.arange(500) % 5 == 0)
    >>> select(source, estimators=[UKKR((0.1, 0.01))]).selected.estimator
    'ukkr'
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
    """Kernel ridge regression of ⟨δ, δ'⟩ on pairs: h(p, p') = φᵀBφ' [GB eq. 28, 29].

    B = U[(GGᵀ)_ab/(σ_aσ_b + λn²)]Uᵀ with S = UσUᵀ, G = UᵀCᵀ, λ = reg·n^(−1/2), n training rows.

    See Also
    --------
    UKKR : Kernel ridge regression of the residuals.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import KKR, from_arrays, select
    >>> p = np.linspace(0.5, 1, 500)
    >>> source = from_arrays(probabilities=np.c_[p, 1 - p], labels=np.arange(500) % 5 == 0)
    >>> select(source, estimators=[KKR((0.1, 0.01))]).selected.estimator
    'kkr'
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
    columns, factor = index
    S = state.S[:, columns[:, None], columns] * factor**2
    return FeatureState(S, state.C[:, :, columns] * factor)


Index = tuple[Ints, float]  # positions of some of the features, and their scale factor

_GROUPS = 10  # groups of frequencies that are left out together
_ROUNDING = 1e-12  # trace residual of landmarks that reproduce the kernel
# Constants of `feature_error` that cover 95 % of the risks and estimates of networks on CIFAR-10
# and CIFAR-100, with ranks from 50 to 400.
_UNIT, _POWER, _SAFETY, _MAX_RATIO = 1e-3, 1.25, 2.5, 4.0


def replicates(features: PointFeatures, parts: Sequence[FoldPart]) -> list[Index]:
    """Smaller feature maps: half and three quarters of the landmarks, or all but one group.

    Empty where landmarks reproduce the kernel to rounding on the rows of the parts, or are few.
    """
    if not isinstance(features, FourierFeatures):
        if trace_residual(parts) < _ROUNDING or features.m < 4:
            return []
        return [(np.arange(quarters * features.m // 4), 1.0) for quarters in (2, 3)]
    F = features.n_features
    out = []
    for group in np.array_split(np.arange(F), min(F, _GROUPS)):
        included = np.setdiff1d(np.arange(F), group)
        if not len(included):
            continue
        # The cosine and the sine of a frequency are left out together.  Features have the factor
        # 1/√F, which the scale turns into 1/√(remaining frequencies).
        positions = np.concatenate([included, F + included])
        out.append((positions, float(np.sqrt(F / len(included)))))
    return out


def trace_residual(parts: Sequence[FoldPart], index: Ints | None = None) -> float:
    """Mean of k(p, p) − |φ(p)|² with all features, or with the features in `index`."""
    total = weight = 0.0
    for part in parts:
        S = part.states[0].S
        diagonal = np.einsum("jmm->jm", S)
        total += float(diagonal.sum() if index is None else diagonal[:, index].sum()) / len(S)
        weight += float(part.residuals.weight)
    return max(0.0, 1.0 - total / weight)  # k(p, p) = 1


def feature_error(
    features: PointFeatures, full: Floats, smaller: Floats, residuals: Floats, damping: float
) -> Approximation:
    """Error of the mean over folds of a risk or estimate, from its values with smaller maps.

    Random features: jackknife over groups of frequencies (`from_left_out`).  Landmarks: the error
    is assumed to be proportional to g = (x/(1 + x))^(5/4), with x the ratio of trace residual and
    ridge up to a constant.  The root mean square over folds of the step from a smaller map then
    gives the error step·min(g/(g_smaller − g), 4).  The result is 2.5 times the geometric mean of
    these errors for half and three quarters of the landmarks.

    Parameters
    ----------
    full : (k,)
        Values with all features, by fold.
    smaller : (k, replicates)
    residuals : (1 + replicates,)
        Trace residuals of all features and of the smaller maps.
    damping : float
        Ridge as a share of the weight of the rows.
    """
    if isinstance(features, FourierFeatures):
        if smaller.shape[1] < 2:
            return Approximation("random_features", None)
        return from_left_out(float(full.mean()), smaller.mean(axis=0), abs(float(full.mean())))
    if residuals[0] < _ROUNDING:
        return Approximation("low_rank", 0.0)
    if not smaller.shape[1]:
        return Approximation("landmarks", None)
    missing = (_UNIT * residuals / (_UNIT * residuals + damping)) ** _POWER
    # Step from each smaller map to all features, which the model of errors extends to an infinite
    # map.
    steps = np.sqrt(np.mean((smaller - full[:, None]) ** 2, axis=0))
    left = missing[0] / np.maximum(missing[1:] - missing[0], missing[0] / _MAX_RATIO)
    return Approximation("landmarks", _SAFETY * float(np.sqrt(np.prod(steps * left))))


class FeatureState(NamedTuple):
    """S = Σwφφᵀ (J, m, m) and C = Σwδφᵀ (J, e, m)."""

    S: Floats
    C: Floats


@dataclass(frozen=True)
class FeatureMoments(Statistic):
    """Second moments of the features of a kernel with the residuals of a notion."""

    features: PointFeatures
    notion: str

    def size(self, classes: int) -> int:
        return self.features.m

    def zero(self, classes: int) -> FeatureState:
        J = problems(self.notion, classes)
        e = width(self.notion, classes)
        m = self.features.m
        return FeatureState(np.zeros((J, m, m)), np.zeros((J, e, m)))

    def accumulate(self, state: FeatureState, chunk: Chunk) -> FeatureState:
        for j, view in enumerate(views(chunk, self.notion)):
            phi = self.features(view.points)
            root = np.sqrt(view.weights)[:, None]
            phi = np.ascontiguousarray(phi * root)
            state.S[j] += phi.T @ phi
            state.C[j] += (view.delta * root).T @ phi
        return state
