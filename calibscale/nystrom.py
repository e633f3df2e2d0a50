"""Landmarks for product kernels, and a sample of rows that corrects what they miss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.chunk import Chunk, Floats, Ints
from calibscale.errors import OptionError
from calibscale.features import Setup
from calibscale.kernels import random
from calibscale.landmarks import Gaussian, Kernel, Landmarks, Laplacian, choose_landmarks
from calibscale.local import check_size
from calibscale.products import ProductKernel, Rows
from calibscale.statistics import Statistic
from calibscale.views import width

KEPT_ROWS = 2000
_RANK_TOLERANCE = 1e-12
_WIDTH = 2.8  # standard errors: 2 would do were the variance known and the law normal


class NystromState(NamedTuple):
    """n, Σw, Σw², Σw²|δ|²|φ|² (0-d); Σ wδφᵀ by combination of categories (C, e, m); kept rows.

    Of kept rows, those of smallest hash: coordinates (s, d), wδ (s, e), codes and hashes (s,).
    """

    n: Floats
    weight: Floats
    weight2: Floats
    squares: Floats
    sums: Floats
    points: Floats
    strengths: Floats
    codes: Ints
    hashes: Floats


@dataclass(frozen=True)
class Nystrom(Statistic):
    """Nyström features φ of a product kernel, and a seeded sample of rows.

    κ = ⟨φ, φ⟩ + a residual.  The pairs of the first part are summed exactly; those of the residual
    are estimated from all pairs of the kept rows, unbiased, with a standard error.

    Parameters
    ----------
    kernel : ProductKernel
        Of one radial kernel, gaussian or laplace.
    notion : str
    landmarks : Landmarks
        In coordinates divided by their bandwidths.
    kept : int
        Rows that are kept.
    seed : int
    """

    kernel: ProductKernel
    notion: str
    landmarks: Landmarks
    kept: int = KEPT_ROWS
    seed: int = 0

    def size(self, classes: int) -> int:
        return self.landmarks.m

    def zero(self, classes: int) -> NystromState:
        e = width(self.notion, classes)
        n, weight, weight2, squares = (np.zeros(()) for _ in range(4))
        d = self.landmarks.points.shape[1]
        return NystromState(
            n, weight, weight2, squares, np.zeros((self.kernel.n_codes, e, self.landmarks.m)),
            np.empty((0, d)), np.empty((0, e)), np.empty(0, np.int64), np.empty(0),
        )  # fmt: skip

    def accumulate(self, state: NystromState, chunk: Chunk) -> NystromState:
        if self.kernel.hold_out is not None:
            chunk = self.kernel.hold_out.rest(chunk)
        rows = Rows.of(chunk, self.notion)
        w = rows.weights
        d2 = np.einsum("ij,ij->i", rows.delta, rows.delta)
        points = coordinates(self.kernel, rows)
        strengths = rows.delta * w[:, None]
        codes = self.kernel.codes(rows.covariates)
        if len(rows):
            phi = self.landmarks(points)
            diagonal = (w * w * d2) @ np.einsum("ij,ij->i", phi, phi)
            sums = (len(rows), w.sum(), w @ w, diagonal)
            for total, value in zip(state[:4], sums, strict=True):
                total += value
            for code in np.unique(codes):
                here = codes == code
                state.sums[code] += strengths[here].T @ phi[here]
        u = np.empty(len(rows))
        random.uniform_at(np.uint64(self.seed), np.uint64(random.KEPT), chunk.rows, u)
        return self._keep(state, (points, strengths, codes, u))

    def merge(self, a: NystromState, b: NystromState) -> NystromState:
        for x, y in zip(a[:5], b[:5], strict=True):
            np.add(x, y, out=x)
        return self._keep(a, b[5:])

    def _keep(self, state: NystromState, more: tuple[Any, ...]) -> NystromState:
        """The rows of smallest hash among those kept and more."""
        kept = [np.concatenate(pair) for pair in zip(state[5:], more, strict=True)]
        if len(kept[-1]) > self.kept:
            order = np.sort(np.argpartition(kept[-1], self.kept)[: self.kept])
            kept = [array[order] for array in kept]
        return NystromState(*state[:5], *kept)

    def value(self, state: NystromState) -> tuple[float, float]:
        """Σ_{i≠j} w_i w_j ⟨δ_i, δ_j⟩ κ_ij and the error of what the sample adds."""
        n, s = float(state.n), len(state.points)
        low_rank = float(np.vdot(state.sums, state.sums)) - float(state.squares)
        if s < min(n, 4):
            return low_rank, float("nan")
        phi = self.landmarks(state.points)
        g = self.landmarks.kernel(state.points, state.points) - phi @ phi.T
        g *= state.codes[:, None] == state.codes
        g *= state.strengths @ state.strengths.T
        np.fill_diagonal(g, 0.0)
        by_row = g.sum(axis=1)
        if s >= n:  # every row is kept: nothing is estimated
            return low_rank + float(by_row.sum()), 0.0
        # the variance of a U-statistic of order two, both of its parts estimated without bias
        pairs = s * (s - 1)
        mean = by_row.sum() / pairs
        second = float(np.vdot(g, g)) / pairs
        first = (by_row @ by_row - second * pairs) / (pairs * (s - 2)) - mean**2
        variance = (1 - s / n) * (4 * max(first, 0.0) / s + 2 * second / pairs)
        scale = n * (n - 1)
        return low_rank + scale * float(mean), _WIDTH * scale * float(np.sqrt(variance))


def coordinates(kernel: ProductKernel, rows: Rows) -> Floats:
    """Predictions and covariates in bandwidths, side by side (c, e + d)."""
    parts = [kernel.continuous(rows.covariates)]
    if kernel.prediction != "none":
        parts.insert(0, rows.points / kernel.prediction_bandwidth)
    return np.hstack(parts)


def nystrom_statistic(
    setup: Setup, notion: str, kernel: ProductKernel, limit: int, seed: int
) -> Nystrom:
    """Landmarks chosen among a sample of the data.

    Raises
    ------
    OptionError
        If the kernel is not gaussian or laplace, or a product of different ones.
    """
    names = {kernel.prediction} - {"none"} | ({kernel.covariate} if kernel.columns else set())
    kinds: dict[str, type[Kernel]] = {"gaussian": Gaussian, "laplace": Laplacian}
    alone = names == {"gaussian"} or (len(names) == 1 and not kernel.columns)
    (name, *others) = sorted(names) or [""]
    if others or name not in kinds or not (alone or kernel.prediction == "none"):
        raise OptionError(
            "method 'nystrom' is for gaussian kernels, or one laplace kernel; use 'tiles' or "
            "'features'"
        )
    sample = setup.sample(notion)
    points = coordinates(kernel, sample)
    points = points[np.isfinite(points).all(axis=1)]
    landmarks = choose_landmarks(kinds[name](1.0), points, limit, _RANK_TOLERANCE, seed)
    check_size(setup, notion, kernel, landmarks.m)
    return Nystrom(kernel, notion, landmarks, seed=seed)
