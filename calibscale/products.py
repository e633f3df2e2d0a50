"""Product kernels k(f, f')·l(x, x') on predictions and covariates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.chunk import Chunk, Floats, Ints
from calibscale.errors import OptionError
from calibscale.kernels import random
from calibscale.views import views

RADIAL = ("gaussian", "laplace", "matern32", "matern52")
PREDICTION_KERNELS = (*RADIAL, "linear+gaussian", "none")


class Rows(NamedTuple):
    """What pair sums know of rows.

    Attributes
    ----------
    points : (c, e)
        The prediction: q, or the scalar p.
    delta : (c, e)
    labels : (c,) int64
    weights : (c,)
    covariates : (c, d)
        All columns of the source, or none.
    rows : (c,) int64
        Row numbers in the source.
    """

    points: Floats
    delta: Floats
    labels: Ints
    weights: Floats
    covariates: Floats
    rows: Ints

    def __len__(self) -> int:
        return len(self.points)

    def take(self, index: Any) -> Rows:
        """The rows that `index` names."""
        return Rows(*(array[index] for array in self))

    @staticmethod
    def of(chunk: Chunk, notion: str, hold_out: HoldOut | None = None) -> Rows:
        """A chunk as the one problem of a notion sees it, less the rows held out."""
        if hold_out is not None:
            chunk = hold_out.rest(chunk)
        (view,) = views(chunk, notion)
        covariates = chunk.covariates if chunk.covariates is not None else np.empty((len(chunk), 0))
        return Rows(view.points, view.delta, chunk.labels, view.weights, covariates, chunk.rows)

    @staticmethod
    def join(parts: list[Rows]) -> Rows:
        """Several of them, one after another."""
        return Rows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


@dataclass(frozen=True)
class HoldOut:
    """A share of the rows, drawn by a counter hash of their numbers, that chose a kernel.

    Estimates with that kernel leave them out.
    """

    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise OptionError(f"a held-out share must be in (0, 1), not {self.share}")

    def holds(self, rows: Ints) -> Any:
        """Whether each of the numbered rows is held out (c,)."""
        u = np.empty(len(rows))
        random.uniform_at(np.uint64(self.seed), np.uint64(random.HOLD_OUT), rows, u)
        return u < self.share

    def some(self, share: float) -> HoldOut:
        """A part of it, of about that share of all rows: those of smallest hash."""
        return HoldOut(min(self.share, share), self.seed)

    def rest(self, chunk: Chunk) -> Chunk:
        """The rows that are not."""
        return chunk.take(~self.holds(chunk.rows))


@dataclass(frozen=True)
class ProductKernel:
    """k(f, f')·l(x, x')·1{c = c'} [VF, §3.1]: predictions, continuous covariates, categories.

    With r the distance in bandwidths: gaussian exp(−r²/2), laplace exp(−r), matern32
    (1 + √3r) exp(−√3r), matern52 (1 + √5r + 5r²/3) exp(−√5r); linear+gaussian is pᵀq + gaussian;
    none is 1.

    Parameters
    ----------
    prediction : str
        Kernel on predictions.
    prediction_bandwidth : float
    covariate : str
        Kernel on all continuous covariates together, each in its own bandwidth.
    columns : tuple of int
        Positions of the continuous covariates.
    bandwidths, centres : tuples of float
        One for each; centres only save the digits of large offsets.
    categorical : tuple of int
        Positions of covariates that must be equal.
    levels : tuple of tuples
        The sorted values of each of those.
    hold_out : HoldOut, optional
        Rows that are left out, as the bandwidths were chosen on them.
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
        for name, known in ((self.prediction, PREDICTION_KERNELS), (self.covariate, RADIAL)):
            if name not in known:
                raise OptionError(f"kernel must be one of {', '.join(known)}, not {name!r}")
        for bandwidth in (self.prediction_bandwidth, *self.bandwidths):
            if not 0 < bandwidth < np.inf:
                raise OptionError(f"a bandwidth must be positive and finite, not {bandwidth}")

    @property
    def linear(self) -> bool:
        return self.prediction == "linear+gaussian"

    @property
    def n_codes(self) -> int:
        """How many combinations of categories there are."""
        return int(np.prod([len(levels) for levels in self.levels], dtype=np.int64))

    def codes(self, covariates: Floats) -> Ints:
        """The combination of categories of each row (c,)."""
        return combine(covariates, self.categorical, self.levels)

    def continuous(self, covariates: Floats) -> Floats:
        """Continuous covariates from their centres, in bandwidths (c, d)."""
        x = covariates[:, self.columns]
        return (x - np.array(self.centres)) / np.array(self.bandwidths) if self.columns else x

    def diagonal(self, rows: Rows) -> Floats:
        """κ of each row with itself (c,)."""
        if self.linear:
            return 1.0 + np.einsum("ij,ij->i", rows.points, rows.points)
        return np.ones(len(rows))

    def between(self, a: Rows, b: Rows) -> Floats:
        """κ of the i-th row of `a` and the i-th of `b` (c,)."""
        r = np.linalg.norm(a.points - b.points, axis=1) / self.prediction_bandwidth
        if self.linear:
            value = np.einsum("ij,ij->i", a.points, b.points) + radial("gaussian", r)
        else:
            value = np.ones(len(r)) if self.prediction == "none" else radial(self.prediction, r)
        if self.columns:
            x = self.continuous(a.covariates) - self.continuous(b.covariates)
            value *= radial(self.covariate, np.linalg.norm(x, axis=1))
        if self.categorical:
            value *= self.codes(a.covariates) == self.codes(b.covariates)
        return value


def radial(kernel: str, r: Floats) -> Floats:
    """A radial kernel of distances in bandwidths."""
    if kernel == "gaussian":
        return np.exp(-0.5 * r * r)
    if kernel == "laplace":
        return np.exp(-r)
    s = r * np.sqrt(3.0 if kernel == "matern32" else 5.0)
    return (1 + s + (s * s / 3 if kernel == "matern52" else 0.0)) * np.exp(-s)


def combine(
    covariates: Floats, columns: tuple[int, ...], levels: tuple[tuple[float, ...], ...]
) -> Ints:
    """The position of each row's values among all combinations of the columns' levels (c,).

    A last level of infinity is that of all values that are none of the others.
    """
    code = np.zeros(len(covariates), np.int64)
    for column, values in zip(columns, levels, strict=True):
        known, found = np.array(values), covariates[:, column]
        position = np.searchsorted(known, found)
        if np.isinf(known[-1]):
            position[known[position] != found] = len(known) - 1
        code *= len(values)
        code += position
    return code
