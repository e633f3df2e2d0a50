"""Feature maps φ: q → R^m, frozen before the pass that uses them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
from scipy.special import ndtri

from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.kernels import elementary, random

if TYPE_CHECKING:
    from calibscale.covariates import Column
    from calibscale.products import HoldOut, Rows
    from calibscale.source import ArraySource


class Setup(Protocol):
    """What an estimator may ask of the data before the pass."""

    @property
    def source(self) -> ArraySource: ...

    @property
    def classes(self) -> int: ...

    @property
    def median_distance(self) -> float: ...

    def median_distance_of(self, notion: str) -> float: ...

    def columns(self, names: tuple[str, ...]) -> dict[str, Column]: ...

    def sample(self, notion: str) -> Rows: ...

    def held_out(
        self, notion: str, hold_out: HoldOut, columns: tuple[int, ...], most: int
    ) -> Rows: ...

    @property
    def rows(self) -> int: ...

    @property
    def slack(self) -> float: ...


class FeatureMap(Protocol):
    """Features of the predictions, and how their kernel splits into parts."""

    def resolve(self, setup: Setup) -> FeatureMap:
        """The same map with every default replaced by its value."""

    def size(self, classes: int) -> int:
        """The number m of features."""

    def __call__(self, chunk: Chunk) -> Floats:
        """φ(q) for each row, (c, m)."""


@dataclass(frozen=True)
class RandomFourier:
    """φ = [q, cos(Ωq)/√F, sin(Ωq)/√F] for the kernel k(p, q) = pᵀq + exp(−‖p−q‖²/(2·bandwidth²)).

    The F rows of Ω are N(0, bandwidth⁻² I), drawn by counter from `seed` [MS, App. B].

    Parameters
    ----------
    n_features : int
        F, the number of frequencies; m = K + 2F.
    bandwidth : float, optional
        Default: the median of the positive distances between 1,000 predictions.
    seed : int
    """

    n_features: int = 100
    bandwidth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_features < 1:
            raise OptionError(f"n_features must be at least 1, not {self.n_features}")
        if self.bandwidth is not None and not 0 < self.bandwidth < np.inf:
            raise OptionError(f"bandwidth must be positive and finite, not {self.bandwidth}")
        if not 0 <= self.seed < 2**64:
            raise OptionError(f"seed must be in 0..2^64−1, not {self.seed}")

    def resolve(self, setup: Setup) -> RandomFourier:
        if self.bandwidth is not None:
            return self
        return replace(self, bandwidth=setup.median_distance)

    def size(self, classes: int) -> int:
        return classes + 2 * self.n_features

    def __call__(self, chunk: Chunk) -> Floats:
        assert self.bandwidth is not None, "resolve() first"
        phi = np.empty((len(chunk), self.size(chunk.classes)))
        phi[:, : chunk.classes] = chunk.factors
        z = chunk.factors @ frequencies(self.n_features, chunk.classes, self.seed).T
        z /= self.bandwidth
        elementary.fourier_features(z, 1.0 / np.sqrt(self.n_features), phi)
        return phi


@lru_cache(maxsize=8)
def frequencies(n_features: int, classes: int, seed: int) -> Floats:
    """Standard normal (F, K); row j does not depend on F."""
    u = np.empty((n_features, classes, 2))
    random.uniform_rows(np.uint64(seed), np.uint64(random.FREQUENCIES), np.uint64(0), u)
    frequencies = ndtri(u[:, :, 0])
    frequencies.setflags(write=False)
    return frequencies


@dataclass(frozen=True)
class OneHot:
    """φ(q) = the indicator of q among finitely many `points`, for the kernel 1{p = q}.

    For predictors that take few values (votes, trees, tables); a row that is none of the points
    is an error.
    """

    points: tuple[tuple[float, ...], ...]

    def resolve(self, setup: Setup) -> OneHot:
        return self

    def size(self, classes: int) -> int:
        return len(self.points)

    def __call__(self, chunk: Chunk) -> Floats:
        equal = (chunk.q[:, None, :] == np.array(self.points)[None]).all(axis=2)
        if not equal.any(axis=1).all():
            row = int(chunk.rows[np.argmin(equal.any(axis=1))])
            raise OptionError(
                f"the prediction of row {row} is none of the {len(self.points)} points"
            )
        return equal.astype(np.float64)
