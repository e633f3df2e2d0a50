"""Landmarks of Nyström features, and conjugate gradients."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import scipy  # `scipy.linalg` is slow to import, and imported with its first use

from calibscale.array_types import Floats
from calibscale.compiled import elementary, random_draws
from calibscale.engine.checkpoint import Checkpoint
from calibscale.errors import OptionError
from calibscale.kernels.features import frequencies

_MAX_ITERATIONS = 200  # of conjugate gradients
Product = Callable[[Floats, int], Floats]  # (vectors (n, r), number of earlier calls) → A vectors


class Solution(NamedTuple):
    """X with A X ≈ B, the residual B − A X, the iterations, and ‖B − A X‖_F / ‖B‖_F."""

    X: Floats
    residual: Floats
    iterations: int
    relative_residual: float


@dataclass
class _State:
    """Solution X, residual B − A X = Q C with orthonormal Q, and search directions P.

    Every iteration keeps this equation, with fewer columns of Q where the residuals lose rank.
    """

    X: Floats
    Q: Floats
    P: Floats
    C: Floats
    iterations: int


def solve(
    product: Product, B: Floats, tolerance: float, checkpoint: Checkpoint | None = None
) -> Solution:
    """Solve A X = B (n, K) for a positive definite A, all columns of B in one Krylov space.

    Residuals are stored as an orthonormal basis times small coefficients, which stays stable where
    columns are, or become, dependent (Dubrulle 2001, ETNA 12, the variant BCGrQ).  B may have
    deficient rank, because the residuals q − e_y of a row sum to zero.  `product` is a function of
    vectors (n, r) and the number of earlier calls that returns A times the vectors.  The iteration
    stops at ‖B − A X‖_F / ‖B‖_F ≤ `tolerance`.  The checkpoint is written after each iteration.
    """
    norm = float(np.linalg.norm(B))
    if norm == 0:
        return Solution(np.zeros_like(B), np.zeros_like(B), 0, 0.0)
    state = _restored(checkpoint) or _start(B)
    while float(np.linalg.norm(state.C)) > tolerance * norm and state.iterations < _MAX_ITERATIONS:
        AP = product(state.P, state.iterations)
        try:
            curvature = state.P.T @ AP
            xi = np.linalg.inv(0.5 * (curvature + curvature.T))
        except np.linalg.LinAlgError:
            break  # no search direction is left, and the residual below says how good X is
        state.X += state.P @ (xi @ state.C)
        Q, S = scipy.linalg.qr(state.Q - AP @ xi, mode="economic")
        state.C = S @ state.C
        state.P = Q + state.P @ S.T
        state.Q = Q
        state.iterations += 1
        if checkpoint is not None:
            arrays = {name: np.asarray(value) for name, value in vars(state).items()}
            checkpoint.save({(0, 0): arrays})
    # The recursion drifts from the true residual where A is ill-conditioned.
    residual = B - product(state.X, state.iterations)
    relative = float(np.linalg.norm(residual)) / norm
    return Solution(state.X, residual, state.iterations, relative)


def _start(B: Floats) -> _State:
    """State of X = 0, with a basis of the columns of B."""
    U, sigma, Vt = np.linalg.svd(B, full_matrices=False)
    rank = int((sigma > sigma[0] * max(B.shape) * np.finfo(float).eps).sum())
    Q = np.ascontiguousarray(U[:, :rank])
    return _State(np.zeros_like(B), Q, Q.copy(), sigma[:rank, None] * Vt[:rank], 0)


def _restored(checkpoint: Checkpoint | None) -> _State | None:
    nodes: dict[Any, Any] = {} if checkpoint is None else checkpoint.load()
    if not nodes:
        return None
    (arrays,) = nodes.values()
    X, Q, P, C = (np.array(arrays[name]) for name in ("X", "Q", "P", "C"))
    return _State(X, Q, P, C, int(arrays["iterations"]))


# ---------------------------------------------------------------- Landmarks


_PIVOT_FLOOR = 1e-14  # residuals of k(x, x) = 1 below this are rounding
_BLOCK = 64  # pivots that are drawn together, and share one evaluation of the kernel


@dataclass(frozen=True)
class Kernel(ABC):
    """Positive definite kernel with k(x, x) = 1."""

    bandwidth: float = 2**-0.5
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < np.inf:
            raise OptionError(f"bandwidth must be positive and finite, not {self.bandwidth}")

    @abstractmethod
    def __call__(self, X: Floats, Z: Floats) -> Floats:
        """k(x, z) for all rows of X and Z, (rows of X, rows of Z)."""


@dataclass(frozen=True)
class Gaussian(Kernel):
    """k(x, z) = exp(−‖x − z‖²/(2·bandwidth²)).

    The default bandwidth, 1/√2, is γ = 1 in the code of [GB].
    """

    name: ClassVar[str] = "gaussian"

    def __call__(self, X: Floats, Z: Floats) -> Floats:
        if X.shape[1] == 1:
            # ‖x‖² + ‖z‖² − 2xᵀz would lose digits of small distances.
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
        from scipy.spatial.distance import cdist  # slow to import

        out = cdist(X, Z)
        out *= -1.0 / self.bandwidth
        elementary.exp_inplace(out.reshape(-1))
        return out


class PointFeatures(Protocol):
    """Feature map φ: points → R^m with ⟨φ(x), φ(z)⟩ ≈ k(x, z)."""

    @property
    def m(self) -> int: ...

    def __call__(self, points: Floats) -> Floats:
        """φ of each point, (c, m)."""

    def describe(self) -> dict[str, object]:
        """Settings of the map, for results."""


@dataclass(frozen=True)
class Landmarks:
    """Nyström features φ(x) = L⁻¹ k(Z, x), where L is the pivoted Cholesky factor of k(Z, Z).

    Where the residual k(x, x) − |φ(x)|² vanishes, the kernel is reproduced to rounding.
    """

    kernel: Kernel
    identity: str
    points: Floats = field(compare=False, repr=False)
    factor: Floats = field(compare=False, repr=False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Arrays that arrive in a message may lie at any address, and NumPy multiplies unaligned
        # arrays by other loops, with other last digits.  Copies are aligned.
        for name, value in state.items():
            copied = np.array(value) if isinstance(value, np.ndarray) else value
            object.__setattr__(self, name, copied)

    @property
    def m(self) -> int:
        return len(self.points)

    def __call__(self, points: Floats) -> Floats:
        columns = self.kernel(points, self.points).T
        return scipy.linalg.solve_triangular(
            self.factor, columns, lower=True, overwrite_b=True, check_finite=False
        ).T

    def describe(self) -> dict[str, object]:
        return {
            "map": "landmarks",
            "kernel": self.kernel.name,
            "bandwidth": self.kernel.bandwidth,
            "rank": self.m,
        }


@dataclass(frozen=True)
class FourierFeatures:
    """φ(x) = [cos Ωx, sin Ωx]/√F for the Gaussian kernel, where `seed` determines Ω (F, e)."""

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
            "map": "random",
            "kernel": self.kernel.name,
            "bandwidth": self.kernel.bandwidth,
            "rank": self.m,
            "seed": self.seed,
        }


def choose_landmarks(
    kernel: Kernel, candidates: Floats, limit: int, tolerance: float, seed: int = 0
) -> Landmarks:
    """Choose at most `limit` landmarks among candidate points (c, e) by block RPCholesky.

    Blocks of pivots are drawn with probability proportional to the residual of the diagonal, and
    thinned by pivoted Cholesky within the block, until the mean residual k(x, x) − |φ(x)|² over the
    candidates is below `tolerance` (Chen, Epperly, Tropp & Webber, arXiv 2207.06503, and Epperly,
    Tropp & Webber, arXiv 2410.03969).
    """
    n = len(candidates)
    limit = min(limit, n)
    residual = np.ones(n)
    # Invariant: residual = k(x, x) − |φ(x)|² for φ of the landmarks chosen so far, which are the
    # first len(chosen) rows of `rows`.
    rows = np.empty((limit, n))
    chosen: list[int] = []
    uniforms = iter(random_draws.table(1, 2 * n, seed, random_draws.LANDMARKS).reshape(-1))
    while len(chosen) < limit and residual.sum() > tolerance * n and residual.max() > _PIVOT_FLOOR:
        m = len(chosen)
        cumulative = np.cumsum(residual)
        u = np.fromiter(uniforms, float, min(_BLOCK, limit - m))
        if not len(u):
            break
        block = np.unique(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
        block = block[block < n]
        block = block[residual[block] > _PIVOT_FLOOR]
        if not len(block):
            continue
        columns = kernel(candidates[block], candidates)
        # Subtract the part of the kernel that the landmarks before this block reproduce.
        columns -= rows[:m, block].T @ rows[:m]
        pivots, lower = _thin(columns[:, block])
        block = block[pivots]
        features = scipy.linalg.solve_triangular(
            lower, columns[pivots], lower=True, check_finite=False
        )
        rows[m : m + len(block)] = features
        residual -= np.einsum("ij,ij->j", features, features)
        np.maximum(residual, 0.0, out=residual)
        residual[block] = 0.0  # exactly, so that rounding cannot choose a landmark twice
        chosen.extend(block.tolist())
    points = np.ascontiguousarray(candidates[chosen])
    factor = np.tril(rows[: len(chosen), chosen].T)
    digest = hashlib.sha256(points.tobytes() + factor.tobytes()).hexdigest()[:16]
    return Landmarks(kernel, digest, points, factor)


def _thin(A: Floats) -> tuple[list[int], Floats]:
    """Pivots of the pivoted Cholesky decomposition of a small matrix, and their factor."""
    A = A.copy()
    start = A.diagonal().max()
    pivots: list[int] = []
    columns: list[Floats] = []
    while len(pivots) < len(A):
        pivot = int(np.argmax(A.diagonal()))
        size = A[pivot, pivot]
        if size <= max(_PIVOT_FLOOR, 1e-3 * start):
            break  # a later block may draw the points that are left
        column = A[:, pivot] / np.sqrt(size)
        pivots.append(pivot)
        columns.append(column)
        A -= np.outer(column, column)
        np.fill_diagonal(A, np.maximum(A.diagonal(), 0.0))
        A[pivots, pivots] = 0.0
    return pivots, np.tril(np.array(columns)[:, pivots].T)


@lru_cache(maxsize=16)
def unit_interval_landmarks(kernel: Kernel, limit: int, seed: int = 0) -> Landmarks:
    """Landmarks for scalar predictions, chosen on a grid of [0, 1] independently of the data."""
    cells = int(np.clip(np.ceil(8 / kernel.bandwidth), 512, 8192))
    grid = np.linspace(0.0, 1.0, cells + 1)[:, None]
    return choose_landmarks(kernel, grid, limit, _PIVOT_FLOOR, seed)
