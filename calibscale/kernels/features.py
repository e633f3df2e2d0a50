"""Feature maps of predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtri

from calibscale.array_types import Floats, Ints
from calibscale.compiled import elementary, random_draws
from calibscale.compiled.kept_arrays import kept_rows
from calibscale.errors import OptionError, require
from calibscale.kernels.data_profile import DataProfile, pooled_distance
from calibscale.predictions.chunk import Chunk

_PART_NUMBERS = 2**17  # features of a part of the rows: a megabyte, to stay in the cache of a core
_KEPT_MAPS = 2  # maps of which a chunk keeps the features, such as those of estimates and of tests


class PartOfFeatures(NamedTuple):
    """Positions of features (m,) in a larger map, and the factors between both (m,)."""

    positions: Ints
    factors: Floats


class FeatureMap(Protocol):
    """Features of the predictions.

    Attributes
    ----------
    begins_with_predictions : bool
        Whether the first K features are `Chunk.factors`.
    in_parts : bool
        Whether `parts` computes features when they are taken, so that a chunk need not hold them.
    """

    @property
    def begins_with_predictions(self) -> bool: ...

    @property
    def in_parts(self) -> bool: ...

    def resolve(self, *setups: DataProfile, notion: str = "canonical") -> FeatureMap:
        """Copy of the map with every default replaced by its value for all of several models."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Settings as written to results."""

    def size(self, classes: int) -> int:
        """Number m of features."""

    def __call__(self, chunk: Chunk) -> Floats:
        """φ(q) for each row (c, m), which callers do not modify."""

    def parts(self, chunk: Chunk) -> Iterator[tuple[slice, Floats]]:
        """Slices of the rows of a chunk in their order, each with its features (r, m).

        The first slice starts at 0.  The features are equal to `__call__`, up to rounding.  Callers
        use them before they take another part of any map in the same thread, which may overwrite
        them.
        """

    def part_bytes(self, classes: int, rows: int) -> int:
        """Bytes of the largest part of a chunk of `rows`, with what is needed to compute it."""

    def part_of(self, larger: FeatureMap, classes: int) -> PartOfFeatures | None:
        """Features of this map in a larger map, or None if the larger map has other features."""

    def squared_norms(self, chunk: Chunk) -> Floats:
        """|φ(q)|² for each row (c,)."""


@dataclass(frozen=True)
class RandomFourier:
    """φ = [q, cos(Ωq)/√F, sin(Ωq)/√F] for the kernel k(p, q) = pᵀq + exp(−‖p−q‖²/(2·bandwidth²)).

    The F rows of Ω are N(0, bandwidth⁻² I), drawn by counter from `seed` [MS, App. B].

    Parameters
    ----------
    n_features : int
        Number F of frequencies, where m = K + 2F.
    bandwidth : float, optional
        Bandwidth of the Gaussian, by default the median of the positive distances between 1,000
        predictions.

    Examples
    --------
    >>> RandomFourier(100, bandwidth=0.5).size(classes=10)
    210
    """

    begins_with_predictions: ClassVar[bool] = True
    in_parts: ClassVar[bool] = True

    n_features: int = 100
    bandwidth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.n_features >= 1, "n_features must be at least 1", self.n_features)
        if self.bandwidth is not None and not 0 < self.bandwidth < np.inf:
            raise OptionError(f"bandwidth must be positive and finite, not {self.bandwidth}")
        require(0 <= self.seed < 2**64, "seed must be in 0..2^64−1", self.seed)

    def resolve(self, *setups: DataProfile, notion: str = "canonical") -> RandomFourier:
        for setup in setups:
            target = setup.source.target
            if not target.has_linear_kernel:
                raise OptionError(
                    f"the linear kernel is not for {target.in_words}; use kce or klce"
                )
        if self.bandwidth is not None:
            return self
        if len(setups) == 1:
            return replace(self, bandwidth=setups[0].median_distance(notion))
        samples = [setup.sample(notion).points for setup in setups]
        return replace(self, bandwidth=pooled_distance(samples))

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "kernel": "linear+gaussian",
            "features": self.n_features,
            "bandwidth": self.bandwidth,
            "seed": self.seed,
        }

    def size(self, classes: int) -> int:
        return classes + 2 * self.n_features

    def __call__(self, chunk: Chunk) -> Floats:
        # Several statistics of a pass need the same features.
        kept = _kept_features(chunk)
        if self not in kept:
            if len(kept) == _KEPT_MAPS:
                del kept[next(iter(kept))]
            phi = np.empty((len(chunk), self.size(chunk.n_features)))
            for rows in self._slices(chunk):
                self._write(chunk.factors[rows], phi[rows])
            kept[self] = _KeptFeatures(phi, None)
        return kept[self].of_all()

    def parts(self, chunk: Chunk) -> Iterator[tuple[slice, Floats]]:
        kept = _kept_features(chunk).get(self)
        for rows in self._slices(chunk):
            if kept is not None:
                yield rows, kept.of(rows)
                continue
            q = chunk.factors[rows]
            phi = kept_rows(len(q), self.size(chunk.n_features))
            self._write(q, phi)
            yield rows, phi

    def part_bytes(self, classes: int, rows: int) -> int:
        # The features of a row, and the angles of its frequencies.
        return 8 * min(self._part_rows(classes), rows) * (self.size(classes) + self.n_features)

    def part_of(self, larger: FeatureMap, classes: int) -> PartOfFeatures | None:
        if not isinstance(larger, RandomFourier) or larger.n_features < self.n_features:
            return None
        if replace(larger, n_features=self.n_features) != self:
            return None
        # The first frequencies are the same, and divided by the root of another number.
        cosines = classes + np.arange(self.n_features)
        positions = np.concatenate([np.arange(classes), cosines, cosines + larger.n_features])
        factors = np.full(len(positions), np.sqrt(larger.n_features / self.n_features))
        factors[:classes] = 1.0
        return PartOfFeatures(positions, factors)

    def squared_norms(self, chunk: Chunk) -> Floats:
        # The squares cos² and sin² of a frequency add up to 1/F.
        return 1.0 + np.einsum("ij,ij->i", chunk.factors, chunk.factors)

    def _slices(self, chunk: Chunk) -> Iterator[slice]:
        """Parts of the rows.  Each but the last has at least as many rows as features.

        Products of fewer rows would take less time than reading and writing their sums.
        """
        step = self._part_rows(chunk.n_features)
        for start in range(0, len(chunk), step):
            yield slice(start, start + step)

    def _part_rows(self, classes: int) -> int:
        m = self.size(classes)
        return max(_PART_NUMBERS // m, m)

    def _write(self, q: Floats, phi: Floats) -> None:
        """Write the features of predictions (r, K) into phi (r, m)."""
        assert self.bandwidth is not None, "call resolve() first"
        K = q.shape[1]
        phi[:, :K] = q
        angles = q @ _directions(self.n_features, K, self.seed, self.bandwidth)
        elementary.fourier_features(angles, 1.0 / np.sqrt(self.n_features), phi)


class _KeptFeatures(NamedTuple):
    """Features of the rows of a chunk, or of a larger chunk with the positions of the rows."""

    phi: Floats
    positions: Ints | None

    def of_all(self) -> Floats:
        return self.phi if self.positions is None else self.phi[self.positions]

    def of(self, rows: slice) -> Floats:
        """Features of a slice of the rows, which the next `kept_rows` may overwrite."""
        if self.positions is None:
            return self.phi[rows]
        taken = self.positions[rows]
        out = kept_rows(len(taken), self.phi.shape[1])
        # With mode="raise", `take` would first write to new memory.
        return np.take(self.phi, taken, axis=0, out=out, mode="clip")


def _kept_features(chunk: Chunk) -> dict[RandomFourier, _KeptFeatures]:
    """Random features that a chunk keeps, by their map."""
    kept: dict[RandomFourier, _KeptFeatures] = chunk.views.setdefault(RandomFourier, {})
    return kept


def share_features(chunk: Chunk, part: Chunk, index: Ints) -> None:
    """Let a part of a chunk, its rows `index`, take the random features that the chunk keeps."""
    for features, kept in _kept_features(chunk).items():
        positions = index if kept.positions is None else kept.positions[index]
        _kept_features(part)[features] = _KeptFeatures(kept.phi, positions)


@lru_cache(maxsize=8)
def frequencies(n_features: int, classes: int, seed: int) -> Floats:
    """Standard normal frequencies (F, K).  Row j does not depend on F."""
    u = random_draws.table(n_features, classes, seed, random_draws.FREQUENCIES)
    frequencies = ndtri(u[:, :, 0])
    frequencies.setflags(write=False)
    return frequencies


@lru_cache(maxsize=2)
def _directions(n_features: int, classes: int, seed: int, bandwidth: float) -> Floats:
    """Frequencies of a kernel with a bandwidth (K, F).  Their products with q are angles."""
    directions = frequencies(n_features, classes, seed).T / bandwidth
    directions.setflags(write=False)
    return directions


@dataclass(frozen=True)
class OneHot:
    """Indicator φ(q) of q among finitely many `points`, for the kernel 1{p = q}.

    The map is for predictors that take few values (votes, trees, tables).  A prediction that is
    none of the points is an error.

    Examples
    --------
    >>> from calibscale import CKCE, OneHot, evaluate, from_arrays
    >>> source = from_arrays(probabilities=[[0.5, 0.5]] * 8, labels=[0, 1] * 4)
    >>> round(evaluate(source, CKCE(OneHot(((0.5, 0.5),)), ridge=0.0))["ckce"].value, 12)
    0.0
    """

    begins_with_predictions: ClassVar[bool] = False
    in_parts: ClassVar[bool] = False

    points: tuple[tuple[float, ...], ...]

    def resolve(self, *setups: DataProfile, notion: str = "canonical") -> OneHot:
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        return {"kernel": "indicator", "points": len(self.points)}

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

    def parts(self, chunk: Chunk) -> Iterator[tuple[slice, Floats]]:
        yield slice(0, len(chunk)), self(chunk)

    def part_bytes(self, classes: int, rows: int) -> int:
        return 0  # the chunk holds the features, which are counted by its rows

    def part_of(self, larger: FeatureMap, classes: int) -> PartOfFeatures | None:
        return None

    def squared_norms(self, chunk: Chunk) -> Floats:
        return self(chunk).sum(axis=1)
