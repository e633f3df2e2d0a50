"""Sums of residuals times features of product kernels, from which sums over pairs follow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import gammaincinv, ndtri

from calibscale.array_types import Floats, Ints
from calibscale.compiled import drawn_sums, elementary, random_draws
from calibscale.data.covariates import PREDICTION
from calibscale.kernels.notion_rows import NotionRows
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.notions import width
from calibscale.statistics.statistic import PairStatistic, Replicates, added

if TYPE_CHECKING:
    from calibscale.kernels.landmarks import Landmarks
    from calibscale.kernels.product_kernel import ProductKernel


class FeatureSums(PairStatistic):
    """Base of statistics with sums Σ wδφᵀ of features φ, where ⟨φ, φ'⟩ ≈ κ.

    The states have at least the fields of `LocalFeatureState`.
    """

    kernel: ProductKernel
    notion: str
    drawn: ClassVar[tuple[str, ...]] = ("squares", "sums")

    @property
    def condensable(self) -> bool:
        # Rows are held out by a hash of their number, which condensed rows do not have.
        return self.kernel.hold_out is None

    @property
    def kernel_widths(self) -> dict[int, float]:
        kernel = self.kernel
        widths = dict(zip(kernel.columns, kernel.bandwidths, strict=True))
        if kernel.prediction != "none":
            widths[PREDICTION] = kernel.prediction_bandwidth
        return widths

    @abstractmethod
    def features(self, rows: NotionRows) -> Floats:
        """Features of rows (c, size)."""

    def zero_sums(self, classes: int) -> Floats:
        """Sums Σ wδφᵀ of no rows (C, e, size)."""
        shape = (self.kernel.n_codes, width(self.notion, classes), self.size(classes))
        return np.zeros(shape)

    def add_sums(self, sums: Floats, rows: NotionRows, phi: Floats) -> None:
        """Add Σ wδφᵀ of rows to the sums by combination of categories."""
        strengths = rows.delta * rows.weights[:, None]
        codes = self.kernel.codes(rows.covariates)
        for code, members in self._combinations(codes):
            sums[code] += strengths[members].T @ phi[members]

    def _combinations(self, codes: Ints) -> Iterator[tuple[int, Any]]:
        """Each combination of categories that occurs, and the rows that have it."""
        for code in np.unique(codes):
            # A slice, unlike a mask, does not copy the features.
            yield code, codes == code if self.kernel.n_codes > 1 else slice(None)

    def features_of(self, chunk: Chunk, rows: NotionRows) -> Floats:
        """Features of the rows of a chunk (c, size), cached on the chunk."""
        if self not in chunk.views:
            chunk.views[self] = self.features(rows)
        return chunk.views[self]

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        squares, out = sums
        rows = NotionRows.of(chunk, self.notion, self.kernel.hold_out)
        codes = self.kernel.codes(rows.covariates)
        phi = self.features_of(chunk, rows)
        w = rows.weights
        if out.shape[2] == 1:
            p, delta = rows.event_probabilities, rows.delta[:, 0]
            if replicates.moves:  # features of each replicate would take as long as a pass
                moved = replicates.moved(self.notion, rows)
                drawn = np.stack([replicate.delta[:, 0] for _, replicate in moved]) * w
            else:
                drawn = replicates.scalars(self.notion, rows.rows, p, delta, rows.starts) * w
            squares += replicates.squares(rows, drawn)
            for code, members in self._combinations(codes):
                out[:, code, 0] += drawn[:, members] @ phi[members]
            return
        weighted = phi if (w == 1.0).all() else phi * w[:, None]
        if replicates.draws_labels(chunk):
            self._move(squares, out, rows, codes, weighted, replicates)
            return
        for code, members in self._combinations(codes):
            squared_weights = w[members] * w[members]
            products = replicates.products(rows.take(members), weighted[members])
            for b, (product, d2) in products:
                squares[b] += squared_weights @ d2
                out[b, code] += product

    def _move(
        self,
        squares: Floats,
        out: Floats,
        rows: NotionRows,
        codes: Ints,
        phi: Floats,
        replicates: Replicates,
    ) -> None:
        """Add the sums of drawn labels: the observed sums, changed by rows with another label."""
        w, (B, combinations, K, m) = rows.weights, out.shape
        sums = np.zeros((combinations * K, m))
        for code, members in self._combinations(codes):
            sums[code * K : (code + 1) * K] = rows.delta[members].T @ phi[members]
        drawn = replicates.null.labels(rows.units, rows.q, replicates.first, replicates.last)
        norms = np.zeros((2, B))
        drawn_sums.label_sums(drawn, rows.q, w * w, np.zeros(len(rows)), norms)
        squares += norms[0]
        observed = (rows.q - rows.delta).argmax(axis=1)  # q − δ is the unit vector of the label
        changing = drawn_sums.expected_changes(rows.q, observed)
        # The labels of each combination of categories have sums of their own.
        first_labels = codes * K
        drawn_sums.add_features(
            drawn + first_labels.astype(np.int32),
            observed + first_labels,
            phi,
            changing,
            sums,
            out.reshape(B, combinations * K, m),
        )


# ---------------------------------------------------------------- random features


class LocalFeatureState(NamedTuple):
    """n, Σw, Σw², Σw²|δ|² (0-d), and Σ wδφᵀ by combination of categories, (C, e, 2F)."""

    n: Floats
    weight: Floats
    weight2: Floats
    squares: Floats
    sums: Floats


@dataclass(frozen=True)
class LocalFeatures(FeatureSums):
    """Random Fourier features of a product kernel: F frequencies of its spectral measure.

    Gaussian frequencies divided by the root of the mean of 2ν squared normals give a Matérn
    kernel.  The Laplace kernel has ν = 1/2.
    """

    kernel: ProductKernel
    notion: str
    n_features: int = 1000
    seed: int = 0
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 2, 1)
    approximation: ClassVar[str] = "random_features"

    def open_ended(self) -> LocalFeatures:
        """Statistic for unseen categories."""
        return replace(self, kernel=self.kernel.open_ended())

    def size(self, classes: int) -> int:
        return 2 * self.n_features

    def zero(self, classes: int) -> LocalFeatureState:
        n, weight, weight2, squares = (np.zeros(()) for _ in range(4))
        return LocalFeatureState(n, weight, weight2, squares, self.zero_sums(classes))

    def frequencies(self, predictions: int) -> Floats:
        """Frequencies Ω (F, e + d) in units of the bandwidths."""
        counts = [
            0 if self.kernel.prediction == "none" else predictions,
            len(self.kernel.columns),
        ]
        columns = sum(counts) + 2
        u = random_draws.table(self.n_features, columns, self.seed, random_draws.FREQUENCIES)
        normal = ndtri(u[:, : sum(counts), 0])
        parts = np.split(normal, [counts[0]], axis=1)
        names = (self.kernel.prediction, self.kernel.covariate)
        for f, (part, name) in enumerate(zip(parts, names, strict=True)):
            degrees = {"laplace": 1, "matern32": 3, "matern52": 5}.get(name)
            if degrees is not None:
                uniform = u[:, sum(counts) + f, :1]
                # A quantile of χ² divided by its degrees of freedom.
                part /= np.sqrt(2 * gammaincinv(degrees / 2, uniform) / degrees)
        return np.hstack(parts)

    def accumulate(self, state: LocalFeatureState, chunk: Chunk) -> LocalFeatureState:
        rows = NotionRows.of(chunk, self.notion, self.kernel.hold_out)
        w = rows.weights
        for total, value in zip(state[:3], (len(rows), w.sum(), w @ w), strict=True):
            total += value
        strengths = rows.delta * w[:, None]
        state.squares[...] += np.vdot(strengths, strengths)
        self.add_sums(state.sums, rows, self.features_of(chunk, rows))
        return state

    def features(self, rows: NotionRows) -> Floats:
        """Cosines, then sines (c, 2F)."""
        z = self.kernel.coordinates(rows) @ self.frequencies(rows.points.shape[1]).T
        phi = np.empty((len(rows), 2 * self.n_features))
        elementary.fourier_features(z, 1.0, phi)
        return phi

    def by_frequency(self, state: LocalFeatureState) -> Floats:
        """Estimates of Σ_ij over all pairs by single frequencies (F,).  Their mean is unbiased."""
        squares = np.einsum("cef,cef->f", state.sums, state.sums)
        return squares[: self.n_features] + squares[self.n_features :]

    def pair_total(self, state: LocalFeatureState) -> tuple[float, float]:
        values = self.by_frequency(state)
        # As many standard errors as for the jackknife over frequencies (`from_left_out`).
        error = 2.3 * float(values.std(ddof=1)) / np.sqrt(len(values))
        return float(values.mean()) - float(state.squares), error


# ---------------------------------------------------------------- landmarks


class LandmarkState(NamedTuple):
    """Sums of 0 dimensions, and Σ wδφᵀ by combination of categories, (C, e, m).

    The sums are n, Σw, Σw², Σw²|δ|², Σw²|δ|²|φ|² of the pairs of a row with itself, and Σw|δ|√r.

    The residual of a row is r = κ(z, z) − |φ|².
    """

    n: Floats
    weight: Floats
    weight2: Floats
    squares: Floats
    diagonal: Floats
    left: Floats
    sums: Floats


@dataclass(frozen=True)
class LandmarkFeatures(FeatureSums):
    """Nyström features of a product kernel, with a bound of the error for all rows of a pass.

    The kernel has a single radial part, gaussian or laplace, so that κ(z, z) = 1.  Landmarks are
    in coordinates divided by their bandwidths.
    """

    kernel: ProductKernel
    notion: str
    landmarks: Landmarks
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 2, 2, 1, 1)
    approximation: ClassVar[str] = "low_rank"

    def size(self, classes: int) -> int:
        return self.landmarks.m

    def zero(self, classes: int) -> LandmarkState:
        n, weight, weight2, squares, diagonal, left = (np.zeros(()) for _ in range(6))
        sums = self.zero_sums(classes)
        return LandmarkState(n, weight, weight2, squares, diagonal, left, sums)

    def accumulate(self, state: LandmarkState, chunk: Chunk) -> LandmarkState:
        rows = NotionRows.of(chunk, self.notion, self.kernel.hold_out)
        if not len(rows):
            return state
        phi = self.features_of(chunk, rows)
        w, norms = rows.weights, np.sqrt(np.einsum("ij,ij->i", rows.delta, rows.delta))
        lengths = np.einsum("ij,ij->i", phi, phi)
        # Rounding can make the residual of a row at a landmark slightly negative.
        residuals = np.maximum(1.0 - lengths, 0.0)
        strengths = w * norms
        squares = strengths * strengths
        left = strengths @ np.sqrt(residuals)
        added(state, len(rows), w.sum(), w @ w, squares.sum(), squares @ lengths, left)
        self.add_sums(state.sums, rows, phi)
        return state

    def features(self, rows: NotionRows) -> Floats:
        return self.landmarks(self.kernel.coordinates(rows))

    def vector(self, sums: Floats) -> Floats:
        """Sums as a vector with the squared norm Σ_ij w_i w_j ⟨δ_i, δ_j⟩ ⟨φ_i, φ_j⟩."""
        return sums.ravel()

    def pair_total(self, state: LandmarkState) -> tuple[float, float]:
        # Without the pairs of a row with itself, the sum is 0 on average at calibration.
        total = float(np.vdot(state.sums, state.sums)) - float(state.diagonal)
        # The residual κ − ⟨φ, φ'⟩ is positive definite, so that |κ_ij − ⟨φ_i, φ_j⟩| ≤ √(r_i r_j),
        # and its sum over pairs is at most (Σ w|δ|√r)².
        return total, float(state.left) ** 2
