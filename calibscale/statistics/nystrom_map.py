"""Nyström features of product kernels, and a sample of rows that corrects their residual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws
from calibscale.errors import OptionError
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.landmarks import Gaussian, Kernel, Landmarks, Laplacian, choose_landmarks
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.notions import width
from calibscale.predictions.validation import chunks
from calibscale.statistics.feature_sums import LandmarkFeatures
from calibscale.statistics.fourier_modes import check_size
from calibscale.statistics.statistic import PairStatistic, added

KEPT_ROWS = 2000  # rows of the sample, as a matrix of all their pairs has 32 MB
_RANK_TOLERANCE = 1e-12
# Largest bound of the error of landmarks as a share of Σw²|δ|².  The noise of a calibrated model is
# about this sum divided by the root of the dimension of the residuals, at most a hundred or so.
_SHARE_OF_NOISE = 1e-3
# Standard errors of an error: above 2, as the variance is estimated and the law is not normal.
_WIDTH = 2.8


class NystromState(NamedTuple):
    """Sums n, Σw, Σw², Σw²|δ|²|φ|² (0-d), Σ wδφᵀ by combination of categories, and a sample.

    The sums by combination are (C, e, m).  The sample has the rows of smallest hash: coordinates
    (s, d), wδ (s, e), codes and hashes (s,).
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
class Nystrom(PairStatistic):
    """Nyström features φ of a product kernel, and a seeded sample of `kept` rows.

    κ = ⟨φ, φ⟩ + a residual.  The pairs of the first part are summed exactly.  The sum for the
    residual is an unbiased estimate from all pairs of the sample, with a standard error.  The
    kernel has a single radial part, gaussian or laplace.  Landmarks are in coordinates divided by
    their bandwidths.
    """

    kernel: ProductKernel
    notion: str
    landmarks: Landmarks
    kept: int = KEPT_ROWS
    seed: int = 0
    approximation: ClassVar[str] = "nystrom"

    def size(self, classes: int) -> int:
        return self.landmarks.m

    def zero(self, classes: int) -> NystromState:
        e = width(self.notion, classes)
        n, weight, weight2, squares = (np.zeros(()) for _ in range(4))
        d = self.landmarks.points.shape[1]
        return NystromState(
            n,
            weight,
            weight2,
            squares,
            np.zeros((self.kernel.n_codes, e, self.landmarks.m)),
            np.empty((0, d)),
            np.empty((0, e)),
            np.empty(0, np.int64),
            np.empty(0),
        )

    def accumulate(self, state: NystromState, chunk: Chunk) -> NystromState:
        if self.kernel.hold_out is not None:
            chunk = self.kernel.hold_out.rest(chunk)
        rows = NotionRows.of(chunk, self.notion)
        w = rows.weights
        d2 = np.einsum("ij,ij->i", rows.delta, rows.delta)
        points = self.kernel.coordinates(rows)
        strengths = rows.delta * w[:, None]
        codes = self.kernel.codes(rows.covariates)
        if len(rows):
            phi = self.landmarks(points)
            # Terms Σw²|δ|²|φ|² of rows with themselves, which `pair_total` subtracts.
            diagonal = (w * w * d2) @ np.einsum("ij,ij->i", phi, phi)
            added(state, len(rows), w.sum(), w @ w, diagonal)
            for code in np.unique(codes):
                members = codes == code
                state.sums[code] += strengths[members].T @ phi[members]
        u = random_draws.of_rows(chunk.rows, self.seed, random_draws.KEPT)
        return self._keep(state, (points, strengths, codes, u))

    def merge(self, a: NystromState, b: NystromState) -> NystromState:
        for x, y in zip(a[:5], b[:5], strict=True):
            np.add(x, y, out=x)
        return self._keep(a, b[5:])

    def _keep(self, state: NystromState, more: tuple[Any, ...]) -> NystromState:
        """State with the rows of smallest hash among its sample and more rows."""
        sample = [np.concatenate(pair) for pair in zip(state[5:], more, strict=True)]
        if len(sample[-1]) > self.kept:
            order = np.sort(np.argpartition(sample[-1], self.kept)[: self.kept])
            sample = [array[order] for array in sample]
        return NystromState(*state[:5], *sample)

    def pair_total(self, state: NystromState) -> tuple[float, float]:
        n, s = float(state.n), len(state.points)
        # Σ_{i≠j} of ⟨φ, φ⟩ follows from ‖Σ wδφᵀ‖²_F without the diagonal.
        low_rank = float(np.vdot(state.sums, state.sums)) - float(state.squares)
        if s < min(n, 4):
            return low_rank, float("nan")
        phi = self.landmarks(state.points)
        g = self.landmarks.kernel(state.points, state.points) - phi @ phi.T
        g *= state.codes[:, None] == state.codes
        g *= state.strengths @ state.strengths.T
        np.fill_diagonal(g, 0.0)
        by_row = g.sum(axis=1)
        if s >= n:  # the sample has all rows: the sum is exact
            return low_rank + float(by_row.sum()), 0.0
        # Variance of a U-statistic of order two, with unbiased estimates of both of its parts.
        pairs = s * (s - 1)
        mean = by_row.sum() / pairs
        second = float(np.vdot(g, g)) / pairs
        first = (by_row @ by_row - second * pairs) / (pairs * (s - 2)) - mean**2
        variance = (1 - s / n) * (4 * max(first, 0.0) / s + 2 * second / pairs)
        scale = n * (n - 1)
        return low_rank + scale * float(mean), _WIDTH * scale * float(np.sqrt(variance))


def nystrom_statistic(
    setup: DataProfile, notion: str, kernel: ProductKernel, limit: int, seed: int
) -> Nystrom:
    """Nyström statistic with landmarks chosen among a sample of the data.

    An OptionError is raised if the kernel is not gaussian or laplace, or a product of different
    ones.
    """
    landmarks = _landmarks(setup, notion, kernel, limit, seed)
    check_size(setup, notion, kernel, landmarks.m)
    return Nystrom(kernel, notion, landmarks, seed=seed)


def _landmarks(
    setup: DataProfile, notion: str, kernel: ProductKernel, limit: int, seed: int
) -> Landmarks:
    names = {kernel.prediction} - {"none"} | ({kernel.covariate} if kernel.columns else set())
    kinds: dict[str, type[Kernel]] = {"gaussian": Gaussian, "laplace": Laplacian}
    alone = names == {"gaussian"} or (len(names) == 1 and not kernel.columns)
    (name, *different) = sorted(names) or [""]
    if different or name not in kinds or not (alone or kernel.prediction == "none"):
        raise OptionError(
            "methods 'nystrom' and 'landmarks' need gaussian kernels, or one laplace kernel; use "
            "'tiles' or 'features'"
        )
    points = kernel.coordinates(setup.sample(notion))
    points = points[np.isfinite(points).all(axis=1)]
    return choose_landmarks(kinds[name](1.0), points, limit, _RANK_TOLERANCE, seed)


def landmark_statistic(
    setup: DataProfile, notion: str, kernel: ProductKernel, limit: int, seed: int
) -> LandmarkFeatures | None:
    """Features of landmarks that reproduce the kernel for all rows, or None without such landmarks.

    They are judged by one pass over the rows, as a sample of rows may lack a few that are far from
    all others, or have most of the weight.  The result is cached on the profile.

    Raises
    ------
    OptionError
        If the kernel is not gaussian or laplace, or a product of different ones.
    """
    cached: dict[Any, LandmarkFeatures | None] = setup.__dict__.setdefault("_landmarks", {})
    key = (notion, kernel, limit, seed)
    if key not in cached:
        landmarks = _landmarks(setup, notion, kernel, limit, seed)
        statistic = LandmarkFeatures(kernel, notion, landmarks)
        few = 0 < landmarks.m < limit
        if few:
            check_size(setup, notion, kernel, landmarks.m)
        cached[key] = statistic if few and _reproduces(setup, statistic) else None
    return cached[key]


def _reproduces(setup: DataProfile, statistic: LandmarkFeatures) -> bool:
    """Whether the bound of the error is far below the noise of the sum over all rows."""
    kernel, state = statistic.kernel, statistic.zero(setup.n_features)
    rules = replace(setup.rules, covariates=(*kernel.columns, *kernel.categorical))
    size = setup.source.block_rows
    for start in range(0, setup.rows, size):
        stop = min(start + size, setup.rows)
        block = setup.source.read(start, stop, rules.reads_covariates)
        for chunk, _ in chunks(block, rules):
            state = statistic.accumulate(state, chunk)
    _, error = statistic.pair_total(state)
    return error <= _SHARE_OF_NOISE * float(state.squares)
