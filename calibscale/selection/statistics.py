"""What selection sums over the rows of a fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from calibscale.chunk import Chunk, Floats
from calibscale.kernels import bins as kernel_bins
from calibscale.kernels import random
from calibscale.landmarks import PointFeatures
from calibscale.splits import TEST
from calibscale.statistics import Statistic
from calibscale.views import View, problems, views, width


class ResidualState(NamedTuple):
    """n, Σw, Σw², each a 0-d array; D = Σwδδᵀ (J, e, e); quartic = Σw²|δ|⁴ (J,)."""

    n: Floats
    weight: Floats
    weight2: Floats
    D: Floats
    quartic: Floats


@dataclass(frozen=True)
class Residuals(Statistic):
    """Moments of δ alone: what the risk of every estimator has in common."""

    notion: str

    def zero(self, classes: int) -> ResidualState:
        J, e = problems(self.notion, classes), width(self.notion, classes)
        n, weight, weight2 = (np.zeros(()) for _ in range(3))
        return ResidualState(n, weight, weight2, np.zeros((J, e, e)), np.zeros(J))

    def accumulate(self, state: ResidualState, chunk: Chunk) -> ResidualState:
        state.n[...] += len(chunk)
        for j, view in enumerate(views(chunk, self.notion)):
            w = view.weights
            if j == 0:
                state.weight[...] += w.sum()
                state.weight2[...] += w @ w
            state.D[j] += view.delta.T @ (w[:, None] * view.delta)
            state.quartic[j] += (w * view.squares) @ (w * view.squares)
        return state


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
        J, e, m = problems(self.notion, classes), width(self.notion, classes), self.features.m
        return FeatureState(np.zeros((J, m, m)), np.zeros((J, e, m)))

    def accumulate(self, state: FeatureState, chunk: Chunk) -> FeatureState:
        for j, view in enumerate(views(chunk, self.notion)):
            phi = self.features(view.points)
            root = np.sqrt(view.weights)[:, None]
            phi = np.ascontiguousarray(phi * root)
            state.S[j] += phi.T @ phi
            state.C[j] += (view.delta * root).T @ phi
        return state


class BinMomentState(NamedTuple):
    """By problem and bin: Σ1, Σw, Σw², Σwp, Σwδ (J, 5, B) and Σw²δ² (J, B)."""

    sums: Floats
    squares: Floats


@dataclass(frozen=True)
class BinMoments(Statistic):
    """Rows of scalar problems counted into equal-width bins (lo, hi]."""

    notion: str
    bins: int

    def zero(self, classes: int) -> BinMomentState:
        J = problems(self.notion, classes)
        return BinMomentState(np.zeros((J, 5, self.bins)), np.zeros((J, self.bins)))

    def accumulate(self, state: BinMomentState, chunk: Chunk) -> BinMomentState:
        edges = np.linspace(0.0, 1.0, self.bins + 1)
        second = np.empty((5, self.bins))
        for j, view in enumerate(views(chunk, self.notion)):
            p = np.ascontiguousarray(view.points[:, 0])
            delta, w = np.ascontiguousarray(view.delta[:, 0]), view.weights
            kernel_bins.bin_column(p, delta, w, edges, False, state.sums[j])
            second[...] = 0.0
            kernel_bins.bin_column(p, delta * delta, w * w, edges, False, second)
            state.squares[j] += second[4]
        return state


class SubsetState(NamedTuple):
    """The views of the kept rows, field by field, each with a leading axis J."""

    rows: Any
    points: Floats
    compositions: Floats
    logs: Floats
    delta: Floats
    weights: Floats

    @property
    def views(self) -> list[View]:
        return [View(*parts) for parts in zip(*self, strict=True)]


@dataclass(frozen=True)
class Subset(Statistic):
    """Rows kept in memory: those whose counter hash is below `share`; all of them if it is 1."""

    notion: str
    share: float
    seed: int = 0

    def zero(self, classes: int) -> SubsetState:
        J, e = problems(self.notion, classes), width(self.notion, classes)
        d = max(e, 2)
        return SubsetState(
            np.zeros((J, 0), np.int64), np.zeros((J, 0, e)), np.zeros((J, 0, d)),
            np.zeros((J, 0, d)), np.zeros((J, 0, e)), np.zeros((J, 0)),
        )  # fmt: skip

    def accumulate(self, state: SubsetState, chunk: Chunk) -> SubsetState:
        u = np.empty(len(chunk))
        random.uniform_at(np.uint64(self.seed), np.uint64(random.SUBSET), chunk.rows, u)
        found = views(chunk.take(u < self.share), self.notion)
        fresh = SubsetState(*(np.stack(parts) for parts in zip(*found, strict=True)))
        return self.merge(state, fresh)

    def merge(self, a: SubsetState, b: SubsetState) -> SubsetState:
        return SubsetState(*(np.concatenate(pair, axis=1) for pair in zip(a, b, strict=True)))


class RowSumState(NamedTuple):
    """Sums that need fitted functions; H, P: hyper-parameters of all families, of plug-in ones.

    diagonal = Σw²(|δ|² − h_ii)² (H,); for plug-in functions A = Σwδr̂ᵀ and R = Σwr̂r̂ᵀ
    (P, J, e, e), and on the test part, by training set, estimates = Σwh_ii and products =
    Σw⟨δ, r̂⟩ (k, P).
    """

    diagonal: Floats
    A: Floats
    R: Floats
    estimates: Floats
    products: Floats


@dataclass(frozen=True)
class RowSums(Statistic):
    """The fitted functions at rows that they did not see.

    Rows of a fold meet the functions fitted without it, rows of the test part all of them.
    `fits` has a tuple of fitted families for each fold left out.
    """

    notion: str
    name: str
    fits: Sequence[Sequence[Any]] = field(compare=False, repr=False)

    def zero(self, classes: int) -> RowSumState:
        J, e = problems(self.notion, classes), width(self.notion, classes)
        H = sum(fit.size for fit in self.fits[0])
        P = sum(fit.size for fit in self.fits[0] if fit.plug_in)
        A, R = np.zeros((2, P, J, e, e))
        return RowSumState(np.zeros(H), A, R, *np.zeros((2, len(self.fits), P)))

    def accumulate(self, state: RowSumState, chunk: Chunk) -> RowSumState:
        if not len(chunk):
            return state
        assert chunk.fold is not None, "a pass by folds"
        rows = views(chunk, self.notion)
        if chunk.fold == TEST:
            return self.add_test(state, rows)
        return self.add_fold(state, chunk.fold, rows)

    def add_test(self, state: RowSumState, rows: Sequence[View]) -> RowSumState:
        """The state with rows of the test part added."""
        for v, fits in enumerate(self.fits):
            p = 0
            for fit in fits:
                if not fit.plug_in:
                    continue
                mine = slice(p, p + fit.size)
                for j, view in enumerate(rows):
                    r = fit.residuals(j, view)
                    w = view.weights
                    state.estimates[v, mine] += np.einsum("hce,hce->hc", r, r) @ w
                    state.products[v, mine] += np.einsum("hce,ce->hc", r, view.delta) @ w
                p += fit.size
        return state

    def add_fold(self, state: RowSumState, fold: int, rows: Sequence[View]) -> RowSumState:
        """The state with rows of a fold added."""
        h = p = 0
        for fit in self.fits[fold]:
            if fit.plug_in:
                diagonal = np.empty((len(rows), fit.size, len(rows[0].rows)))
                for j, view in enumerate(rows):
                    r = fit.residuals(j, view)
                    weighted = view.weights[:, None] * r
                    state.A[p : p + fit.size, j] += view.delta.T @ weighted
                    state.R[p : p + fit.size, j] += r.transpose(0, 2, 1) @ weighted
                    diagonal[j] = np.einsum("hce,hce->hc", r, r)
                p += fit.size
            else:
                diagonal = fit.diagonal(rows)
            for j, view in enumerate(rows):
                gap = view.weights * (view.squares - diagonal[j])
                state.diagonal[h : h + fit.size] += np.einsum("hc,hc->h", gap, gap)
            h += fit.size
        return state
