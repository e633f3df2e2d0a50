"""Fourier modes of product kernels with defaults from the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.covariates import PREDICTION
from calibscale.data.derived_sources import HoldOut
from calibscale.errors import OptionError
from calibscale.kernels.bandwidths import FEW_LEVELS
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.fourier_series import Complexes, Factor, FourierSeries, NoSeries
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.product_kernel import ProductKernel, combine, radial, with_unseen
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.notions import width
from calibscale.statistics.statistic import PairStatistic, Replicates, added

MAX_COMBINATIONS = 1024
MAX_NUMBERS = 2**23  # modes of all combinations of levels: 256 MB per state
_DRAWN = 2**22  # residuals of replicates drawn at once: 32 MB


def check_size(setup: DataProfile, notion: str, kernel: ProductKernel, features: int) -> None:
    """Raise an OptionError unless features of all combinations of categories fit into memory."""
    needed = kernel.n_codes * width(notion, setup.n_features) * features
    if needed > MAX_NUMBERS:
        raise OptionError(
            f"features of {kernel.n_codes:,} combinations of categories would need {needed:.3g} "
            f"numbers, above {MAX_NUMBERS:.3g}; use method='tiles'"
        )


# ---------------------------------------------------------------- Fourier modes


class ModeState(NamedTuple):
    """n, Σw, Σw², Σw²δ² (0-d), and Fourier modes of wδ and of w by combination of levels."""

    n: Floats
    weight: Floats
    weight2: Floats
    squares: Floats
    residuals: Complexes
    weights: Complexes


@dataclass(frozen=True)
class Modes(PairStatistic):
    """Fourier modes F(ω) = Σ_i w_i δ_i exp(i⟨ω, z_i⟩) of predictions and covariates (a NUFFT).

    This is VF eq. 4 in O(n).  Each combination c of categories and of values of discrete columns
    has separate modes, and Σ_ij e_i e_j κ(z_i, z_j) is Σ_cc' L_cc' Σ_ω κ̂(ω) F_c(ω) conj F_c'(ω).
    The dimensions of the series are the prediction, if `predictions`, and the covariates at the
    positions `columns`.  `discrete` are the positions of covariates with few values, `levels` are
    these values, and `couplings` the kernel between them, row by row.  Held-out rows are omitted.
    If `clipped`, points outside the series' box are moved to its edge, instead of being an error.
    `is_bounded` says that predictions cannot leave their box, as probabilities cannot.
    """

    notion: str
    series: FourierSeries
    predictions: bool
    columns: tuple[int, ...]
    discrete: tuple[int, ...] = ()
    levels: tuple[tuple[float, ...], ...] = ()
    couplings: tuple[tuple[float, ...], ...] = ()
    hold_out: HoldOut | None = None
    clipped: bool = False
    is_bounded: bool = True
    large_chunks: ClassVar[bool] = True
    drawn: ClassVar[tuple[str, ...]] = ("squares", "residuals")
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 2, 1, 1)
    approximation: ClassVar[str] = "spectral"

    def open_ended(self) -> Modes:
        """Statistic for values beyond the box of the series, and for unseen levels."""
        first, *covariate_factors = self.series.factors
        factors = (
            first if self.predictions and self.is_bounded else first.widened(),
            *(f.widened() for f in covariate_factors),
        )
        return replace(
            self,
            series=replace(self.series, factors=factors),
            levels=with_unseen(self.levels),
            couplings=tuple(map(_with_unlike, self.couplings)),
            clipped=True,
        )

    @property
    def condensable(self) -> bool:
        return self.hold_out is None  # rows are held out by a hash of their number

    @property
    def kernel_widths(self) -> dict[int, float]:
        positions = [PREDICTION] if self.predictions else []
        positions += self.columns
        by_dimension = [b for factor in self.series.factors for b in factor.bandwidths]
        # A series without dimensions has one of no extent.
        return dict(zip(positions, by_dimension, strict=False))

    @property
    def combinations(self) -> int:
        return math.prod(map(len, self.levels))

    @property
    def numbers(self) -> int:
        """Number of modes of all combinations, without allocating an array."""
        return self.combinations * self.series.modes

    @cached_property
    def coupling(self) -> Floats:
        """Kernel L (C, C) between combinations of levels."""
        # Combinations are numbered with the last column fastest, in the order of a Kronecker
        # product.
        L = np.ones((1, 1))
        for values, coupling in zip(self.levels, self.couplings, strict=True):
            L = np.kron(L, np.array(coupling).reshape(len(values), len(values)))
        return L

    def zero(self, classes: int) -> ModeState:
        shape = (self.combinations, *self.series.shape)
        n, weight, weight2, squares = (np.zeros(()) for _ in range(4))
        return ModeState(
            n, weight, weight2, squares, np.zeros(shape, complex), np.zeros(shape, complex)
        )

    def points(self, predictions: Floats, covariates: Floats) -> Floats:
        """Predictions (c, 1) and covariates (c, d) as points of the series' box."""
        parts = [predictions] if self.predictions else []
        points = np.hstack([*parts, covariates[:, self.columns]])
        if not points.shape[1]:
            return np.zeros((len(points), 1))  # no continuous column
        return np.clip(points, *self.series.box) if self.clipped else points

    def levelled(self, covariates: Floats) -> Iterator[tuple[int, Any]]:
        """Each combination of levels that occurs, and the rows that have it."""
        codes = combine(covariates, self.discrete, self.levels)
        for code in np.unique(codes):
            yield code, codes == code if self.combinations > 1 else slice(None)

    def accumulate(self, state: ModeState, chunk: Chunk) -> ModeState:
        rows = NotionRows.of(chunk, self.notion, self.hold_out)
        w, delta = rows.weights, rows.delta[:, 0]
        added(state, len(rows), w.sum(), w @ w, (w * delta) @ (w * delta))
        points = self.points(rows.points, rows.covariates)
        # The residuals give the sums over pairs, and the weights the sums of kernel values.
        strengths = np.stack([w * delta, w])
        for code, members in self.levelled(rows.covariates):
            residuals, weights = self.series.transform(points[members], strengths[:, members])
            state.residuals[code] += residuals
            state.weights[code] += weights
        return state

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        squares, residuals = sums
        rows = NotionRows.of(chunk, self.notion, self.hold_out)
        if replicates.moves:
            for b, moved in replicates.moved(self.notion, rows):
                strengths = moved.weights * moved.delta[:, 0]
                squares[b] += strengths @ strengths
                points = self.points(moved.points, moved.covariates)
                self._add(residuals[b, None], points, rows.covariates, strengths[None])
            return
        points = self.points(rows.points, rows.covariates)
        # An even number of replicates: a transform packs two of them in a complex number.
        max_count = max(2, _DRAWN // max(1, len(rows)) // 2 * 2)
        for part, drawn in replicates.some_scalars(self.notion, rows, max_count):
            drawn *= rows.weights
            squares[part] += replicates.squares(rows, drawn)
            self._add(residuals[part], points, rows.covariates, drawn)

    def _add(self, sums: Complexes, points: Floats, covariates: Floats, strengths: Floats) -> None:
        """Add the modes of strengths (B, c) to sums by combination of levels, (B, C, *shape)."""
        for code, members in self.levelled(covariates):
            sums[:, code] += self.series.transform(points[members], strengths[:, members])

    def couple(self, F: Complexes) -> Complexes:
        """Modes Σ_c' L_cc' F_c' that act on a point of combination c."""
        if self.combinations == 1:
            return F
        return (self.coupling @ F.reshape(len(F), -1)).reshape(F.shape)

    def quadratic(self, F: Complexes) -> float:
        """Σ_ij over all pairs, including rows with themselves."""
        G = self.couple(F)
        return sum(self.series.quadratic(f, g) for f, g in zip(F, G, strict=True))

    def pair_total(self, state: ModeState) -> tuple[float, float]:
        squares = float(state.squares)
        error = self.series.tolerance * float(state.n) * squares
        return self.quadratic(state.residuals) - squares, error

    def vector(self, F: Complexes) -> Floats:
        """√(L κ̂)·F as real numbers, a vector with the squared norm `quadratic`."""
        values, vectors = np.linalg.eigh(self.coupling)
        roots = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        G = (roots @ F.reshape(len(F), -1)).reshape(F.shape)
        G *= np.sqrt(np.maximum(self.series.coefficients, 0.0))
        return G.ravel().view(np.float64)


def _with_unlike(flat: tuple[float, ...]) -> tuple[float, ...]:
    """Kernel matrix between levels (flattened), with one more level that is unlike all others."""
    size = math.isqrt(len(flat))
    out = np.eye(size + 1)
    out[:size, :size] = np.reshape(flat, (size, size))
    return tuple(out.ravel().tolist())


def spectral_statistic(
    setup: DataProfile, notion: str, kernel: ProductKernel, names: tuple[str, ...], tolerance: float
) -> Modes:
    """Modes of a product kernel on the box of the data.

    NoSeries is raised, with a remedy, if the kernel or the data do not allow a Fourier series.
    """
    target = setup.source.target
    is_scalar = width(notion, setup.n_features) == 1 and target.has_scalar_points
    if kernel.prediction != "none" and not is_scalar:
        remedy = ", or notion='top_label'" if target.has_classes else ""
        raise NoSeries(
            "a Fourier series is for scalar predictions",
            f"use method='{{pairs}}' or 'features'{remedy}",
        )
    discrete, columns = _discrete_and_continuous(setup, kernel, names)
    series = FourierSeries(_factors_of(setup, kernel, columns), tolerance)
    combinations = int(np.prod([len(column.levels) for column in discrete], dtype=np.int64))
    needed = series.modes * combinations
    if combinations > MAX_COMBINATIONS or needed > MAX_NUMBERS:
        raise NoSeries(
            f"the Fourier series would need {needed:.3g} numbers, above {MAX_NUMBERS:.3g}",
            "widen the bandwidths, raise the tolerance, or use method='{pairs}'",
        )
    return Modes(
        notion,
        series,
        predictions=kernel.prediction != "none",
        columns=tuple(column.position for column in columns),
        discrete=tuple(column.position for column in discrete),
        levels=tuple(column.levels for column in discrete),
        couplings=tuple(column.coupling for column in discrete),
        hold_out=kernel.hold_out,
        is_bounded=target.has_classes,
    )


class _DiscreteColumn(NamedTuple):
    """Position and values of a covariate, and the kernel between the values, row by row."""

    position: int
    levels: tuple[float, ...]
    coupling: tuple[float, ...]


class _ContinuousColumn(NamedTuple):
    """Position and bandwidth of a covariate, and its range in the data."""

    position: int
    bandwidth: float
    low: float
    high: float


def _discrete_and_continuous(
    setup: DataProfile, kernel: ProductKernel, names: tuple[str, ...]
) -> tuple[list[_DiscreteColumn], list[_ContinuousColumn]]:
    """Covariates with separate modes by value, and covariates that are dimensions of the series.

    The first are the categorical covariates, and the numeric ones that have few values.
    """
    by_position = {column.position: column for column in setup.columns(names).values()}
    discrete, continuous = [], []
    for position, values in zip(kernel.categorical, kernel.levels, strict=True):
        # Categories are equal or unlike.
        discrete.append(_DiscreteColumn(position, values, tuple(np.eye(len(values)).ravel())))
    # Only the Gaussian of several columns is a product of the columns' kernels.
    is_product = kernel.covariate == "gaussian" or len(kernel.columns) == 1
    for position, bandwidth in zip(kernel.columns, kernel.bandwidths, strict=True):
        column = by_position[position]
        levels = column.levels
        if levels is not None and len(levels) <= FEW_LEVELS and is_product:
            distances = np.abs(np.subtract.outer(levels, levels)) / bandwidth
            coupling = tuple(radial(kernel.covariate, distances).ravel())
            discrete.append(_DiscreteColumn(position, levels, coupling))
        else:
            continuous.append(_ContinuousColumn(position, bandwidth, column.low, column.high))
    return discrete, continuous


def _factors_of(
    setup: DataProfile, kernel: ProductKernel, columns: list[_ContinuousColumn]
) -> tuple[Factor, ...]:
    """Factors of the series, for predictions and for the continuous columns."""
    factors = []
    if kernel.prediction != "none":
        bandwidth = kernel.prediction_bandwidth
        low, high = setup.prediction_range
        factors.append(Factor(kernel.prediction, (bandwidth,), (low,), (high,)))
    if columns:
        bandwidths = tuple(column.bandwidth for column in columns)
        lows = tuple(column.low for column in columns)
        highs = tuple(column.high for column in columns)
        factors.append(Factor(kernel.covariate, bandwidths, lows, highs))
    if not factors:  # no continuous column: a series of one term on a box of no extent
        factors.append(Factor("gaussian", (1.0,), (0.0,), (0.0,)))
    return tuple(factors)
