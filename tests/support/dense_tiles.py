"""Dense references for the loops over sub-tiles, and the same rows and kernels as panels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from calibscale.compiled import elementary, tile_strips, tiles
from calibscale.compiled.tile_strips import GAUSSIAN, LAPLACE, MATERN32, MATERN52

LOG2E = np.log2(np.e)
RANGE = {np.float32: (-60, 127), np.float64: (-510, 1023)}
COEFFICIENTS = {np.float32: elementary.EXP2_SINGLE, np.float64: elementary.EXP2_DOUBLE}

both_precisions = pytest.mark.parametrize("dtype", [np.float32, np.float64])

# ---------------------------------------------------------------- dense references

RADIAL = {  # of the distance in units of the length scale
    GAUSSIAN: lambda r: np.exp(-(r**2) / 2),
    LAPLACE: lambda r: np.exp(-r),
    MATERN32: lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    MATERN52: lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
}
SCALE = {  # from those distances to the exponents of two in panels
    GAUSSIAN: np.sqrt(LOG2E / 2),
    LAPLACE: LOG2E,
    MATERN32: np.sqrt(3) * LOG2E,
    MATERN52: np.sqrt(5) * LOG2E,
}
CATEGORIES = np.eye(3)


@dataclass(frozen=True)
class DenseKernel:
    """Factors (kind, first column, last column + 1, length scale), and the Gaussian width on q."""

    factors: tuple = ()
    width: float | None = None
    linear: bool = False
    categories: bool = False

    @property
    def coordinates(self):
        return max((last for _, _, last, _ in self.factors), default=0)


@dataclass(frozen=True)
class DenseRows:
    x: np.ndarray
    q: np.ndarray
    y: np.ndarray
    codes: np.ndarray
    s: np.ndarray
    u: np.ndarray


def random_rows(rng, n, classes=3, coordinates=4):
    """Random rows with sorted labels, as panels require."""
    return DenseRows(
        rng.random((n, coordinates)) * 2,
        rng.dirichlet(np.full(classes, 0.4), n),
        np.sort(rng.integers(0, classes, n)),
        rng.integers(0, len(CATEGORIES), n),
        rng.normal(size=n),
        rng.uniform(0.2, 2.0, n),
    )


def dense_kernel(kernel, P, Q):
    """Kernel value of every pair."""
    gram = P.q @ Q.q.T
    kappa = np.ones_like(gram)
    for kind, first, last, length in kernel.factors:
        gap = P.x[:, None, first:last] - Q.x[None, :, first:last]
        kappa *= RADIAL[kind](np.sqrt((gap**2).sum(-1)) / length)
    if kernel.width is not None:
        squared = ((P.q[:, None] - Q.q[None]) ** 2).sum(-1)
        kappa *= np.exp(-squared / (2 * kernel.width**2)) + (gram if kernel.linear else 0.0)
    if kernel.categories:
        kappa *= CATEGORIES[P.codes][:, Q.codes]
    return kappa


def residuals_of(P):
    return P.q - np.eye(P.q.shape[1])[P.y]


def pair_terms(kernel, P, Q, vectors):
    """Terms s_i s_j A_ij κ_ij and u_i u_j κ_ij of every pair, and the scales of their roundings."""
    kappa = dense_kernel(kernel, P, Q)
    A = residuals_of(P) @ residuals_of(Q).T if vectors else 1.0
    s = np.outer(P.s, Q.s)
    u = np.outer(P.u, Q.u)
    # ⟨δ, δ'⟩ is a difference of numbers up to 2: rounding is relative to those
    return s * A * kappa, u * kappa, np.abs(s) * (2 if vectors else 1) * kappa, u * kappa


# ---------------------------------------------------------------- panels


def panel_of(kernel, rows, dtype, vectors, shift=0, far=False):
    """Panel of rows. With `far`, exponents are too large for loops without a part of each row."""
    n, K = rows.q.shape
    predictions = vectors or kernel.width is not None
    A = np.zeros((n, -(-K // tile_strips.UNROLL) * tile_strips.UNROLL if predictions else 0), dtype)
    if predictions:
        A[:, :K] = rows.q
    cross = 0.0 if kernel.width is None else LOG2E / kernel.width**2
    X = np.zeros((kernel.coordinates, n))
    for kind, first, last, length in kernel.factors:
        X[first:last] = (rows.x[:, first:last].T + shift) * SCALE[kind] / length
    exponents = -(X**2).sum(0) if kernel.width is None else -cross / 2 * (rows.q**2).sum(1)
    return tile_strips.Panel(
        X.astype(dtype),
        A,
        np.ascontiguousarray(A.T),
        exponents.astype(dtype),
        rows.s.astype(dtype),
        rows.u.astype(dtype),
        (rows.y if vectors else np.empty(0)).astype(np.int32),
        (rows.codes if kernel.categories else np.empty(0)).astype(np.int32),
        (rows.s * 2.0**exponents).astype(dtype),
        np.inf if far else float(-exponents.min()),
    )


def form_of(kernel, dtype, plane=False):
    factors = [(kind, first, last) for kind, first, last, _ in kernel.factors]
    cross = [] if kernel.width is None else [LOG2E / kernel.width**2]
    return tile_strips.KernelForm(
        np.array(factors, np.int64).reshape(-1, 3),
        np.array(cross, dtype),
        kernel.linear,
        plane,
        np.array([0, 1, np.log(2), 1 / 3, 2.0 ** RANGE[dtype][0]], dtype),
        COEFFICIENTS[dtype],
    )


def cuts_of(n, step):
    return [(a, min(n, a + step)) for a in range(0, n, step)]


def rectangle(n, m, height, width):
    """Sub-tiles that cover all pairs of two panels."""
    grid = [(*i, *j, 0) for i in cuts_of(n, height) for j in cuts_of(m, width)]
    return np.array(grid, np.int64)


def triangle(n, side, width):
    """Sub-tiles that cover the pairs i < j of one panel."""
    grid = []
    for a, b in cuts_of(n, side):
        grid.append((a, b, a, b, 1))
        grid += [(a, b, b + c, b + d, 0) for c, d in cuts_of(n - b, width)]
    return np.array(grid, np.int64)


def pair_sums(P, Q, form, grid, kernel_sums):
    out = np.full((len(grid), 2), np.nan)  # every entry must be written
    tiles.pair_sums(P, Q, form, grid, kernel_sums, out)
    return out


def row_sums(P, Q, form, strips, symmetric, V, U):
    into_rows = np.zeros((len(strips), len(V), P.s.size), P.s.dtype)
    into_columns = np.full((len(V), Q.s.size), np.nan, P.s.dtype)
    tiles.row_sums(P, Q, form, np.array(strips, np.int64), symmetric, V, U, into_rows, into_columns)
    return into_rows.sum(0), into_columns


def rounding_of(dtype, scale):
    """Bound of the rounding of Σ terms with the magnitudes `scale`.

    The worst case is 98 eps: FLUSH additions of eps/2, coordinates, exponents and predictions up
    to 20 rounded in making the panel (30 eps), exp2 (4 eps).  Roundings are random, so that 8 are
    allowed. Measured over all tests of tiles: 1.5.
    """
    return 8 * np.finfo(dtype).eps * np.sum(scale)


def assert_sums(out, dense, dtype, kernel_sums=True):
    terms, kernels, scale, kernel_scale = dense
    assert abs(out[:, 0].sum() - terms.sum()) <= rounding_of(dtype, scale)
    if kernel_sums:
        assert abs(out[:, 1].sum() - kernels.sum()) <= rounding_of(dtype, kernel_scale)


def upper(dense):
    return [np.triu(part, 1) for part in dense]


KERNELS = {
    "constant": DenseKernel(),
    "categories_alone": DenseKernel(categories=True),
    "gaussian": DenseKernel(((GAUSSIAN, 0, 3, 0.8),)),
    "laplace": DenseKernel(((LAPLACE, 0, 2, 1.1),)),
    "matern32": DenseKernel(((MATERN32, 0, 1, 0.6),)),
    "matern52": DenseKernel(((MATERN52, 0, 2, 0.9),)),
    "product": DenseKernel(
        ((GAUSSIAN, 0, 1, 1.5), (MATERN52, 1, 2, 1.2), (LAPLACE, 2, 3, 2.0), (MATERN32, 3, 4, 1.0))
    ),
    "categories": DenseKernel(((LAPLACE, 0, 1, 1.0),), categories=True),
    "cross": DenseKernel(width=0.7),
    "cross_linear": DenseKernel(width=0.7, linear=True),
    "cross_categories": DenseKernel(width=0.9, categories=True),
    "all": DenseKernel(((MATERN52, 0, 2, 0.9), (GAUSSIAN, 2, 3, 1.0)), 0.8, True, True),
}
PLANE = KERNELS["gaussian"]
