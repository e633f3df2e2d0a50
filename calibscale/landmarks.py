"""Kernels on predictions, and feature maps that reproduce them: landmarks and random features."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist

from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.features import frequencies
from calibscale.kernels import elementary, random

_PIVOT_FLOOR = 1e-14  # residuals of k(x, x) = 1 below this are rounding
_BLOCK = 64


@dataclass(frozen=True)
class Kernel(ABC):
    """A positive definite kernel with k(x, x) = 1; a frozen dataclass, as it is an identity."""

    bandwidth: float = 2**-0.5
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < np.inf:
            raise OptionError(f"bandwidth must be positive and finite, not {self.bandwidth}")

    @abstractmethod
    def __call__(self, X: Floats, Z: Floats) -> Floats:
        """k(x, z), (rows of X, rows of Z)."""


@dataclass(frozen=True)
class Gaussian(Kernel):
    """k(x, z) = exp(−‖x − z‖²/(2·bandwidth²)); the default 1/√2 is γ = 1 of [GB]'s code."""

    name: ClassVar[str] = "gaussian"

    def __call__(self, X: Floats, Z: Floats) -> Floats:
        if X.shape[1] == 1:
            out = X - Z.T
            out *= out
        else:
            out = X @ Z.T
            out *= -2.0
            out += np.einsum("ij,ij->i", X, X)[:, None]
            out += np.einsum("ij,ij->i", Z, Z)
            np.maximum(out, 0.0, out=out)
        out *= -0.5 / self.bandwidth**2
        elementary.exp_inplace(out.reshape(-1))
        return out


@dataclass(frozen=True)
class Laplacian(Kernel):
    """k(x, z) = exp(−‖x − z‖/bandwidth)."""

    name: ClassVar[str] = "laplacian"

    def __call__(self, X: Floats, Z: Floats) -> Floats:
        out = cdist(X, Z)
        out *= -1.0 / self.bandwidth
        elementary.exp_inplace(out.reshape(-1))
        return out


class PointFeatures(Protocol):
    """φ: points → R^m with ⟨φ(x), φ(z)⟩ ≈ k(x, z)."""

    @property
    def m(self) -> int: ...

    def __call__(self, points: Floats) -> Floats:
        """φ of each point, (c, m)."""

    def describe(self) -> dict[str, object]:
        """Its settings, for results."""


@dataclass(frozen=True)
class Landmarks:
    """Nyström features φ(x) = L⁻¹ k(Z, x), where L is the pivoted Cholesky factor of k(Z, Z).

    Where the residual k(x, x) − |φ(x)|² vanishes the kernel is reproduced to rounding.
    """

    kernel: Kernel
    identity: str
    points: Floats = field(compare=False, repr=False)
    factor: Floats = field(compare=False, repr=False)

    @property
    def m(self) -> int:
        return len(self.points)

    def __call__(self, points: Floats) -> Floats:
        columns = self.kernel(points, self.points).T
        return solve_triangular(
            self.factor, columns, lower=True, overwrite_b=True, check_finite=False
        ).T

    def describe(self) -> dict[str, object]:
        return {
            "map": "landmarks", "kernel": self.kernel.name, "bandwidth": self.kernel.bandwidth,
            "rank": self.m,
        }  # fmt: skip


@dataclass(frozen=True)
class FourierFeatures:
    """φ(x) = [cos Ωx, sin Ωx]/√F for the Gaussian kernel; F rows of Ω from `seed`."""

    kernel: Gaussian
    n_features: int
    width: int
    seed: int = 0

    @property
    def m(self) -> int:
        return 2 * self.n_features

    def __call__(self, points: Floats) -> Floats:
        z = points @ frequencies(self.n_features, self.width, self.seed).T
        z /= self.kernel.bandwidth
        phi = np.empty((len(points), self.m))
        elementary.fourier_features(z, self.n_features**-0.5, phi)
        return phi

    def describe(self) -> dict[str, object]:
        return {
            "map": "random", "kernel": self.kernel.name, "bandwidth": self.kernel.bandwidth,
            "rank": self.m, "seed": self.seed,
        }  # fmt: skip


def choose_landmarks(
    kernel: Kernel, candidates: Floats, limit: int, tolerance: float, seed: int = 0
) -> Landmarks:
    """Landmarks among candidate points by block RPCholesky.

    Blocks of pivots are drawn with probability proportional to the residual of the diagonal, and
    thinned by pivoted Cholesky within the block, until the mean residual is below `tolerance` or
    there are `limit` landmarks (Chen, Epperly, Tropp & Webber, arXiv 2207.06503; Epperly, Tropp &
    Webber, arXiv 2410.03969).

    Parameters
    ----------
    kernel : Kernel
    candidates : (c, e)
    limit : int
    tolerance : float
        Of the mean of k(x, x) − |φ(x)|² over the candidates.
    seed : int
    """
    n = len(candidates)
    limit = min(limit, n)
    residual = np.ones(n)
    rows = np.empty((limit, n))  # φ of every candidate, feature by feature
    chosen: list[int] = []
    draws = np.empty((1, 2 * n, 2))
    random.uniform_rows(np.uint64(seed), np.uint64(random.LANDMARKS), np.uint64(0), draws)
    uniforms = iter(draws.reshape(-1))
    while len(chosen) < limit and residual.sum() > tolerance * n and residual.max() > _PIVOT_FLOOR:
        m = len(chosen)
        cumulative = np.cumsum(residual)
        u = np.fromiter(uniforms, float, min(_BLOCK, limit - m))
        if not len(u):
            break
        block = np.unique(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
        block = block[(block < n)]
        block = block[residual[block] > _PIVOT_FLOOR]
        if not len(block):
            continue
        columns = kernel(candidates[block], candidates)
        columns -= rows[:m, block].T @ rows[:m]
        kept, lower = _thin(columns[:, block])
        block = block[kept]
        fresh = solve_triangular(lower, columns[kept], lower=True, check_finite=False)
        rows[m : m + len(block)] = fresh
        residual -= np.einsum("ij,ij->j", fresh, fresh)
        np.maximum(residual, 0.0, out=residual)
        residual[block] = 0.0
        chosen.extend(block.tolist())
    points = np.ascontiguousarray(candidates[chosen])
    factor = np.tril(rows[: len(chosen), chosen].T)
    digest = hashlib.sha256(points.tobytes() + factor.tobytes()).hexdigest()[:16]
    return Landmarks(kernel, digest, points, factor)


def _thin(A: Floats) -> tuple[list[int], Floats]:
    """Pivoted Cholesky of a small matrix: the rows kept, and the factor of those."""
    A = A.copy()
    start = A.diagonal().max()
    kept: list[int] = []
    columns: list[Floats] = []
    while len(kept) < len(A):
        pivot = int(np.argmax(A.diagonal()))
        size = A[pivot, pivot]
        if size <= max(_PIVOT_FLOOR, 1e-3 * start):  # a later block reaches what is left
            break
        column = A[:, pivot] / np.sqrt(size)
        kept.append(pivot)
        columns.append(column)
        A -= np.outer(column, column)
        np.fill_diagonal(A, np.maximum(A.diagonal(), 0.0))
        A[kept, kept] = 0.0
    return kept, np.tril(np.array(columns)[:, kept].T)


@lru_cache(maxsize=16)
def unit_interval_landmarks(kernel: Kernel, limit: int, seed: int = 0) -> Landmarks:
    """Landmarks for scalar predictions: chosen on a grid of [0, 1], whatever the data."""
    cells = int(np.clip(np.ceil(8 / kernel.bandwidth), 512, 8192))
    grid = np.linspace(0.0, 1.0, cells + 1)[:, None]
    return choose_landmarks(kernel, grid, limit, _PIVOT_FLOOR, seed)
