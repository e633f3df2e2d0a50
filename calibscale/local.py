"""What local calibration needs: product kernels from data, and their one-pass statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import gammaincinv, ndtri

from calibscale.chunk import Chunk, Floats
from calibscale.covariates import Column
from calibscale.errors import OptionError
from calibscale.features import Setup
from calibscale.kernels import elementary, random
from calibscale.products import HoldOut, ProductKernel, Rows, combine, radial
from calibscale.spectral import Complexes, Factor, FourierSeries, modes_needed
from calibscale.statistics import Statistic
from calibscale.views import width

if TYPE_CHECKING:
    from calibscale.nulls import Replicates

FEW_LEVELS = 16  # a continuous column of no more values is summed value by value
MAX_COMBINATIONS = 1024
MAX_NUMBERS = 2**23  # modes of all combinations of levels: 256 MB a state
_DRAWN = 2**22  # residuals of replicates drawn at a time: 32 MB


def local_kernel(
    setup: Setup,
    notion: str,
    covariates: tuple[str, ...],
    categorical: tuple[str, ...],
    prediction: str,
    prediction_bandwidth: float | None,
    covariate: str,
    covariate_bandwidth: float | Mapping[str, float] | None,
) -> tuple[ProductKernel, list[str]]:
    """The kernel with its defaults from the data, and what a user should know of it."""
    columns = setup.columns(covariates)
    continuous = [columns[name] for name in covariates if name not in categorical]
    sample = setup.sample(notion)
    if prediction_bandwidth is None:
        prediction_bandwidth = _median(sample.points)
    levels = []
    for name in categorical:
        values = columns[name].levels
        if values is None:
            raise OptionError(
                f"categorical covariate {name!r} has more than 64 values; treat it as continuous, "
                "or merge some of them"
            )
        levels.append(values)
    kernel = ProductKernel(
        prediction,
        prediction_bandwidth,
        covariate,
        tuple(c.position for c in continuous),
        _bandwidths(continuous, sample, covariate_bandwidth),
        tuple(c.mean for c in continuous),
        tuple(columns[name].position for name in categorical),
        tuple(levels),
    )
    notes = []
    for c in continuous:
        if c.levels is not None and len(c.levels) == 1:
            notes.append(f"{c.name} is constant: it changes nothing")
        elif c.levels is not None and len(c.levels) <= FEW_LEVELS:
            notes.append(
                f"{c.name} has {len(c.levels)} values; categorical=({c.name!r},) would compare "
                "equal values alone"
            )
    return kernel, notes


def _bandwidths(
    continuous: list[Column], sample: Rows, given: float | Mapping[str, float] | None
) -> tuple[float, ...]:
    """One for each column: as given, or its deviation times the median standardised distance."""
    spread = np.array([c.deviation if c.deviation > 0 else 1.0 for c in continuous])
    if isinstance(given, Mapping):
        strange = set(given) - {c.name for c in continuous}
        if strange:
            raise OptionError(
                f"a bandwidth is given for {', '.join(sorted(strange))}, which is not a "
                "continuous covariate of the estimator"
            )
    elif given is not None:
        return tuple(float(given) for _ in continuous)
    chosen = dict(given or {})
    if len(chosen) < len(continuous):
        scaled = sample.covariates[:, [c.position for c in continuous]] / spread
        scaled = scaled[np.isfinite(scaled).all(axis=1)]
        median = _median(scaled)
        for c, deviation in zip(continuous, spread, strict=True):
            chosen.setdefault(c.name, float(deviation * median))
    return tuple(float(chosen[c.name]) for c in continuous)


def _median(points: Floats) -> float:
    from calibscale.evaluation import median_distance

    return median_distance(points)


class NoSeries(OptionError):
    """The kernel or the data are not for a Fourier series."""


def check_size(setup: Setup, notion: str, kernel: ProductKernel, features: int) -> None:
    """Refuse features of more combinations of categories than memory holds.

    Raises
    ------
    OptionError
    """
    needed = kernel.n_codes * width(notion, setup.classes) * features
    if needed > MAX_NUMBERS:
        raise OptionError(
            f"features of {kernel.n_codes:,} combinations of categories would need {needed:.3g} "
            f"numbers, above {MAX_NUMBERS:.3g}; use method='tiles'"
        )


# ---------------------------------------------------------------- Fourier modes


class ModeState(NamedTuple):
    """n, Σw, Σw², Σw²δ² (0-d); Fourier modes of wδ and of w by combination of levels."""

    n: Floats
    weight: Floats
    weight2: Floats
    squares: Floats
    residuals: Complexes
    weights: Complexes


@dataclass(frozen=True)
class Modes(Statistic):
    """F(ω) = Σ_i w_i δ_i exp(i⟨ω, z_i⟩) of predictions and covariates, a type-1 NUFFT.

    Columns of few values, and categories, have modes of their own for each combination c of them;
    Σ_ij e_i e_j κ(z_i, z_j) is Σ_cc' L_cc' Σ_ω κ̂(ω) F_c(ω) conj F_c'(ω) (design.md, section 4).

    Parameters
    ----------
    notion : {"positive", "top_label"}
    series : FourierSeries
        Of the prediction, unless its kernel is 1, and of the columns.
    predictions : bool
        Whether the prediction is the first dimension.
    columns : tuple of int
        Positions of the covariates that the series is over.
    discrete : tuple of int
        Positions of the covariates with few values.
    levels : tuple of tuples
        Their values.
    couplings : tuple of tuples
        The kernel between the values of each of them, row by row.
    hold_out : HoldOut, optional
        Rows that are left out.
    clipped : bool
        Points beyond the series' box count as at its edge, instead of being an error.
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
    large_chunks: ClassVar[bool] = True
    drawn: ClassVar[tuple[str, ...]] = ("squares", "residuals")
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 2, 1, 1)

    @property
    def combinations(self) -> int:
        return int(np.prod([len(values) for values in self.levels], dtype=np.int64))

    @cached_property
    def coupling(self) -> Floats:
        """L (C, C) between combinations of levels."""
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
            return np.zeros((len(points), 1))  # nothing continuous
        return np.clip(points, *self.series.box) if self.clipped else points

    def codes(self, covariates: Floats) -> Any:
        """The combination of levels of each row (c,)."""
        return combine(covariates, self.discrete, self.levels)

    def accumulate(self, state: ModeState, chunk: Chunk) -> ModeState:
        rows = Rows.of(chunk, self.notion, self.hold_out)
        w, delta = rows.weights, rows.delta[:, 0]
        sums = (len(rows), w.sum(), w @ w, (w * delta) @ (w * delta))
        for total, value in zip(state[:4], sums, strict=True):
            total += value
        points = self.points(rows.points, rows.covariates)
        strengths = np.stack([w * delta, w])
        codes = self.codes(rows.covariates)
        for code in np.unique(codes):
            here = codes == code if self.combinations > 1 else slice(None)
            found = self.series.transform(points[here], strengths[:, here])
            state.residuals[code] += found[0]
            state.weights[code] += found[1]
        return state

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        squares, residuals = sums
        rows = Rows.of(chunk, self.notion, self.hold_out)
        codes = self.codes(rows.covariates)
        if replicates.null.moves:
            for b, moved in replicates.moved(self.notion, rows):
                strengths = moved.weights * moved.delta[:, 0]
                squares[b] += strengths @ strengths
                points = self.points(moved.points, moved.covariates)
                self._add(residuals[b, None], points, codes, strengths[None])
            return
        points = self.points(rows.points, rows.covariates)
        p, delta = rows.points[:, 0], rows.delta[:, 0]
        most = max(2, _DRAWN // max(1, len(rows)) // 2 * 2)
        for here, drawn in replicates.some_scalars(self.notion, rows.rows, p, delta, most):
            drawn *= rows.weights
            squares[here] += np.einsum("ij,ij->i", drawn, drawn)
            self._add(residuals[here], points, codes, drawn)

    def _add(self, sums: Complexes, points: Floats, codes: Any, strengths: Floats) -> None:
        """Add the modes of strengths (B, c) to sums by combination of levels, (B, C, *shape)."""
        for code in np.unique(codes):
            here = codes == code if self.combinations > 1 else slice(None)
            sums[:, code] += self.series.transform(points[here], strengths[:, here])

    def couple(self, F: Complexes) -> Complexes:
        """Σ_c' L_cc' F_c', what a point of combination c sees."""
        if self.combinations == 1:
            return F
        return (self.coupling @ F.reshape(len(F), -1)).reshape(F.shape)

    def quadratic(self, F: Complexes) -> float:
        """Σ_ij over all pairs, a row with itself among them."""
        G = self.couple(F)
        return sum(self.series.quadratic(f, g) for f, g in zip(F, G, strict=True))

    def vector(self, F: Complexes) -> Floats:
        """√(L κ̂)·F as real numbers, whose squared norm is `quadratic`."""
        values, vectors = np.linalg.eigh(self.coupling)
        roots = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        G = (roots @ F.reshape(len(F), -1)).reshape(F.shape)
        G *= np.sqrt(np.maximum(self.series.coefficients, 0.0))
        return G.ravel().view(np.float64)


def spectral_statistic(
    setup: Setup, notion: str, kernel: ProductKernel, names: tuple[str, ...], tolerance: float
) -> Modes:
    """The modes that a product kernel needs on the box of the data.

    Raises
    ------
    NoSeries
        If the kernel or the data are not for a Fourier series; says what is.
    """
    try:
        return _spectral(setup, notion, kernel, names, tolerance)
    except OptionError as error:
        raise NoSeries(str(error)) from error


def _spectral(
    setup: Setup, notion: str, kernel: ProductKernel, names: tuple[str, ...], tolerance: float
) -> Modes:
    if width(notion, setup.classes) > 1:
        raise OptionError(
            "a Fourier series is for scalar predictions; use method='tiles' or 'features', or "
            "notion='top_label'"
        )
    by_position = {c.position: c for c in setup.columns(names).values()}
    discrete, levels, couplings = [], [], []
    for position, values in zip(kernel.categorical, kernel.levels, strict=True):
        discrete.append(position)
        levels.append(values)
        couplings.append(tuple(np.eye(len(values)).ravel()))
    columns, bandwidths = [], []
    for position, bandwidth in zip(kernel.columns, kernel.bandwidths, strict=True):
        few = by_position[position].levels
        # a radial kernel of several columns is a product of theirs only if it is Gaussian
        alone = kernel.covariate == "gaussian" or len(kernel.columns) == 1
        if few is not None and len(few) <= FEW_LEVELS and alone:
            distances = np.abs(np.subtract.outer(few, few)) / bandwidth
            discrete.append(position)
            levels.append(few)
            couplings.append(tuple(radial(kernel.covariate, distances).ravel()))
        else:
            columns.append(position)
            bandwidths.append(bandwidth)
    factors = []
    if kernel.prediction != "none":
        low, high = -setup.slack, 1 + setup.slack
        bandwidth = kernel.prediction_bandwidth
        factors.append(Factor(kernel.prediction, (bandwidth,), (low,), (high,)))
    if columns:
        boxes = [(by_position[position].low, by_position[position].high) for position in columns]
        lows, highs = zip(*boxes, strict=True)
        factors.append(Factor(kernel.covariate, tuple(bandwidths), lows, highs))
    if not factors:  # nothing continuous: a series of one term on a box of no extent
        factors.append(Factor("gaussian", (1.0,), (0.0,), (0.0,)))
    combinations = int(np.prod([len(values) for values in levels], dtype=np.int64))
    needed = modes_needed(tuple(factors), tolerance) * combinations
    if combinations > MAX_COMBINATIONS or needed > MAX_NUMBERS:
        raise OptionError(
            f"the Fourier series would need {needed:.3g} numbers, above {MAX_NUMBERS:.3g}: widen "
            "the bandwidths, raise the tolerance, or use method='tiles'"
        )
    return Modes(
        notion, FourierSeries(tuple(factors), tolerance), kernel.prediction != "none",
        tuple(columns), tuple(discrete), tuple(levels), tuple(couplings), kernel.hold_out,
    )  # fmt: skip


# ---------------------------------------------------------------- random features


class LocalFeatureState(NamedTuple):
    """n, Σw, Σw², Σw²|δ|² (0-d); Σ wδφᵀ by combination of categories, (C, e, 2F)."""

    n: Floats
    weight: Floats
    weight2: Floats
    squares: Floats
    sums: Floats


@dataclass(frozen=True)
class LocalFeatures(Statistic):
    """Random Fourier features of a product kernel: F frequencies of its spectral measure.

    The radial kernels are mixtures: Gaussian frequencies divided by the root of a mean of 2ν
    squared normals give a Matérn kernel, of which the Laplace kernel is ν = 1/2.
    """

    kernel: ProductKernel
    notion: str
    n_features: int = 1000
    seed: int = 0
    drawn: ClassVar[tuple[str, ...]] = ("squares", "sums")
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 2, 1)

    def size(self, classes: int) -> int:
        return 2 * self.n_features

    def zero(self, classes: int) -> LocalFeatureState:
        n, weight, weight2, squares = (np.zeros(()) for _ in range(4))
        shape = (self.kernel.n_codes, width(self.notion, classes), 2 * self.n_features)
        return LocalFeatureState(n, weight, weight2, squares, np.zeros(shape))

    def frequencies(self, predictions: int) -> Floats:
        """Ω (F, e + d) in units of the bandwidths."""
        counts = [
            0 if self.kernel.prediction == "none" else predictions,
            len(self.kernel.columns),
        ]
        u = np.empty((self.n_features, sum(counts) + 2, 2))
        random.uniform_rows(np.uint64(self.seed), np.uint64(random.FREQUENCIES), np.uint64(0), u)
        normal = ndtri(u[:, : sum(counts), 0])
        parts = np.split(normal, [counts[0]], axis=1)
        names = (self.kernel.prediction, self.kernel.covariate)
        for f, (part, name) in enumerate(zip(parts, names, strict=True)):
            degrees = {"laplace": 1, "matern32": 3, "matern52": 5}.get(name)
            if degrees is not None:
                uniform = u[:, sum(counts) + f, :1]
                part /= np.sqrt(2 * gammaincinv(degrees / 2, uniform) / degrees)  # χ² / degrees
        return np.hstack(parts)

    def accumulate(self, state: LocalFeatureState, chunk: Chunk) -> LocalFeatureState:
        rows = Rows.of(chunk, self.notion, self.kernel.hold_out)
        w = rows.weights
        for total, value in zip(state[:3], (len(rows), w.sum(), w @ w), strict=True):
            total += value
        strengths = rows.delta * w[:, None]
        state.squares[...] += np.vdot(strengths, strengths)
        codes, phi = self.kernel.codes(rows.covariates), self._features(rows)
        for code in np.unique(codes):
            here = codes == code
            state.sums[code] += strengths[here].T @ phi[here]
        return state

    def _features(self, rows: Rows) -> Floats:
        """Cosines, then sines, (c, 2F)."""
        kernel = self.kernel
        parts = [kernel.continuous(rows.covariates)]
        if kernel.prediction != "none":
            parts.insert(0, rows.points / kernel.prediction_bandwidth)
        z = np.hstack(parts) @ self.frequencies(rows.points.shape[1]).T
        phi = np.empty((len(rows), 2 * self.n_features))
        elementary.fourier_features(z, 1.0, phi)
        return phi

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        squares, out = sums
        rows = Rows.of(chunk, self.notion, self.kernel.hold_out)
        codes, phi = self.kernel.codes(rows.covariates), self._features(rows)
        w = rows.weights
        if out.shape[2] == 1:
            p, delta = rows.points[:, 0], rows.delta[:, 0]
            if replicates.null.moves:  # features of each would take the time of a pass of its own
                moved = replicates.moved(self.notion, rows)
                drawn = np.stack([one.delta[:, 0] for _, one in moved]) * w
            else:
                drawn = replicates.scalars(self.notion, rows.rows, p, delta) * w
            squares += np.einsum("ij,ij->i", drawn, drawn)
            for code in np.unique(codes):
                here = codes == code
                out[:, code, 0] += drawn[:, here] @ phi[here]
            return
        for b, vectors in replicates.vectors_of(rows.rows, rows.points, rows.delta):
            strengths = vectors * w[:, None]
            squares[b] += np.vdot(strengths, strengths)
            for code in np.unique(codes):
                here = codes == code
                out[b, code] += strengths[here].T @ phi[here]

    def by_frequency(self, state: LocalFeatureState) -> Floats:
        """Each frequency's estimate of Σ_ij over all pairs (F,); their mean is unbiased."""
        squares = np.einsum("cef,cef->f", state.sums, state.sums)
        return squares[: self.n_features] + squares[self.n_features :]
