"""Products of kernels on predictions, covariates and categories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.derived_sources import HoldOut
from calibscale.errors import require
from calibscale.kernels.notion_rows import NotionRows

RADIAL = ("gaussian", "laplace", "matern32", "matern52")
PREDICTION_KERNELS = (*RADIAL, "linear+gaussian", "none")


@dataclass(frozen=True)
class ProductKernel:
    """Kernel k(f, f')·l(x, x')·1{c = c'} on predictions, covariates and categories [VF, §3.1].

    With r the distance in bandwidths, the factors are gaussian exp(−r²/2), laplace exp(−r),
    matern32 (1 + √3r) exp(−√3r), matern52 (1 + √5r + 5r²/3) exp(−√5r), linear+gaussian pᵀq +
    gaussian, and none 1.

    `prediction` is the kernel on predictions.  `covariate` is the kernel on all continuous
    covariates together, at the positions `columns`, each divided by one of the `bandwidths`.
    `centres` only save the digits of large offsets.  Covariates at the positions `categorical` must
    be equal.  `levels` are their sorted values.  The rows of `hold_out`, on which the bandwidths
    were chosen, are omitted.
    """

    prediction: str = "gaussian"
    prediction_bandwidth: float = 1.0
    covariate: str = "gaussian"
    columns: tuple[int, ...] = ()
    bandwidths: tuple[float, ...] = ()
    centres: tuple[float, ...] = ()
    categorical: tuple[int, ...] = ()
    levels: tuple[tuple[float, ...], ...] = ()
    hold_out: HoldOut | None = None

    def __post_init__(self) -> None:
        for name, names in ((self.prediction, PREDICTION_KERNELS), (self.covariate, RADIAL)):
            require(name in names, f"kernel must be one of {', '.join(names)}", name)
        for bandwidth in (self.prediction_bandwidth, *self.bandwidths):
            require(0 < bandwidth < np.inf, "a bandwidth must be positive and finite", bandwidth)

    def open_ended(self) -> ProductKernel:
        """Kernel with one more category for values that are not among the levels."""
        return replace(self, levels=with_unseen(self.levels))

    @property
    def linear(self) -> bool:
        return self.prediction == "linear+gaussian"

    @property
    def n_codes(self) -> int:
        """Number of combinations of categories."""
        return int(np.prod([len(levels) for levels in self.levels], dtype=np.int64))

    def codes(self, covariates: Floats) -> Ints:
        """Combination of categories of each row (…)."""
        return combine(covariates, self.categorical, self.levels)

    def continuous(self, covariates: Floats) -> Floats:
        """Continuous covariates relative to their centres, in bandwidths (…, d)."""
        x = covariates[..., self.columns]
        return (x - np.array(self.centres)) / np.array(self.bandwidths) if self.columns else x

    def coordinates(self, rows: NotionRows) -> Floats:
        """Predictions and continuous covariates in bandwidths, side by side (c, e + d)."""
        parts = [self.continuous(rows.covariates)]
        if self.prediction != "none":
            parts.insert(0, rows.points / self.prediction_bandwidth)
        return np.hstack(parts)

    def diagonal(self, rows: NotionRows) -> Floats:
        """κ of each row with itself (c,)."""
        if self.linear:
            return 1.0 + np.einsum("ij,ij->i", rows.points, rows.points)
        return np.ones(len(rows))

    def of_predictions(self, distances: Floats, products: Callable[[], Floats]) -> Floats:
        """Kernel on predictions from their distances, and their inner products if it has them."""
        r = distances / self.prediction_bandwidth
        if self.linear:
            return products() + radial("gaussian", r)
        return np.ones_like(r) if self.prediction == "none" else radial(self.prediction, r)

    def between(self, a: NotionRows, b: NotionRows) -> Floats:
        """κ of the i-th row of `a` and the i-th of `b` (c,)."""
        distances = np.linalg.norm(a.points - b.points, axis=1)
        products = partial(np.einsum, "ij,ij->i", a.points, b.points)
        values = self.of_predictions(distances, products)
        return self.times_covariates(values, a.covariates, b.covariates)

    def times_covariates(self, values: Floats, a: Floats, b: Floats) -> Floats:
        """Kernel on predictions (…), multiplied by that on covariates (…, d)."""
        if self.columns:
            x = self.continuous(a) - self.continuous(b)
            values *= radial(self.covariate, np.linalg.norm(x, axis=-1))
        if self.categorical:
            values *= self.codes(a) == self.codes(b)
        return values


def radial(kernel: str, r: Floats) -> Floats:
    """Radial kernel of distances in bandwidths."""
    if kernel == "gaussian":
        return np.exp(-0.5 * r * r)
    if kernel == "laplace":
        return np.exp(-r)
    s = r * np.sqrt(3.0 if kernel == "matern32" else 5.0)
    return (1 + s + (s * s / 3 if kernel == "matern52" else 0.0)) * np.exp(-s)


def with_unseen(levels: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    """Levels of each column with a last level of infinity, which stands for all other values."""
    return tuple((*values, np.inf) for values in levels)


def combine(
    covariates: Floats, columns: tuple[int, ...], levels: tuple[tuple[float, ...], ...]
) -> Ints:
    """Position of each row's values among all combinations of the columns' levels (…).

    A last level of infinity stands for all values that are not among the other levels.
    """
    code = np.zeros(covariates.shape[:-1], np.int64)
    for column, values in zip(columns, levels, strict=True):
        level, x = np.array(values), covariates[..., column]
        position = np.searchsorted(level, x)
        if np.isinf(level[-1]):
            position[level[position] != x] = len(level) - 1
        code *= len(values)
        code += position
    return code
