"""Cholesky factors of second moments of features with a ridge."""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor

from calibscale.array_types import Floats


def damped_factor(S: Floats, ridge: float | Floats) -> Floats:
    """Factor of S + diag(ridge) for `solve_factored`, from the upper triangle of S (m, m).

    A LinAlgError is raised if the sum is singular up to rounding.
    """
    damped = S.copy()
    np.einsum("ii->i", damped)[...] += ridge
    # The transpose is in the order of LAPACK, which factorises it in place.
    factor, _ = cho_factor(damped.T, lower=True, overwrite_a=True, check_finite=False)
    # The squared diagonal of the factor is at least the smallest eigenvalue.  Where it is small
    # beside the trace, the matrix is singular up to rounding.
    if not (np.diag(factor) ** 2 > rounding(S) * np.trace(S)).all():
        raise LinAlgError("the matrix is too close to singular")
    return factor


def rounding(S: Floats) -> float:
    """Relative size below which eigenvalues of S consist of rounding errors."""
    return len(S) * float(np.finfo(float).eps)
