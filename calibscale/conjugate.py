"""Block conjugate gradients on kernel matrices that are never formed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import qr

from calibscale.checkpoint import Checkpoint
from calibscale.chunk import Floats

Product = Callable[[Floats, int], Floats]  # (vectors (n, r), how many came before) → A vectors


class Solution(NamedTuple):
    """X with A X ≈ B, the true residual B − A X, iterations, and ‖B − A X‖_F / ‖B‖_F."""

    X: Floats
    residual: Floats
    iterations: int
    relative_residual: float


@dataclass
class _State:
    """X, and B − A X = Q C with orthonormal Q; P holds the search directions."""

    X: Floats
    Q: Floats
    P: Floats
    C: Floats
    iterations: int


def solve(
    product: Product,
    B: Floats,
    tolerance: float,
    most: int = 200,
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Solve A X = B for a positive definite A, all columns of B in one Krylov space.

    Residuals are kept as an orthonormal basis times small coefficients, which stays sound where
    columns are, or become, dependent (Dubrulle 2001, ETNA 12, the variant BCGrQ).  B may be of
    deficient rank: residuals q − e_y of a row sum to zero.

    Parameters
    ----------
    product : callable
        (n, r) vectors and a count of earlier calls → A times them.
    B : (n, K)
    tolerance : float
        Of ‖B − A X‖_F / ‖B‖_F.
    most : int
        Iterations.
    checkpoint : Checkpoint, optional
        Written after each iteration.
    """
    norm = float(np.linalg.norm(B))
    if norm == 0:
        return Solution(np.zeros_like(B), np.zeros_like(B), 0, 0.0)
    state = _restored(checkpoint) or _start(B)
    while float(np.linalg.norm(state.C)) > tolerance * norm and state.iterations < most:
        AP = product(state.P, state.iterations)
        try:
            xi = np.linalg.inv(_symmetric(state.P.T @ AP))
        except np.linalg.LinAlgError:  # no direction is left: the residual says how good X is
            break
        state.X += state.P @ (xi @ state.C)
        Q, S = qr(state.Q - AP @ xi, mode="economic")
        state.C = S @ state.C
        state.P = Q + state.P @ S.T
        state.Q = Q
        state.iterations += 1
        if checkpoint is not None:
            arrays = {name: np.asarray(value) for name, value in vars(state).items()}
            checkpoint.save({(0, 0): arrays})
    # the recursion drifts from it where A is ill-conditioned
    residual = B - product(state.X, state.iterations)
    relative = float(np.linalg.norm(residual)) / norm
    return Solution(state.X, residual, state.iterations, relative)


def _start(B: Floats) -> _State:
    """From X = 0, with a basis of the columns of B."""
    U, sigma, Vt = np.linalg.svd(B, full_matrices=False)
    rank = int((sigma > sigma[0] * max(B.shape) * np.finfo(float).eps).sum())
    Q = np.ascontiguousarray(U[:, :rank])
    return _State(np.zeros_like(B), Q, Q.copy(), sigma[:rank, None] * Vt[:rank], 0)


def _symmetric(A: Floats) -> Floats:
    return 0.5 * (A + A.T)


def _restored(checkpoint: Checkpoint | None) -> _State | None:
    nodes: dict[Any, Any] = {} if checkpoint is None else checkpoint.load()
    if not nodes:
        return None
    (arrays,) = nodes.values()
    X, Q, P, C = (np.array(arrays[name]) for name in ("X", "Q", "P", "C"))
    return _State(X, Q, P, C, int(arrays["iterations"]))
