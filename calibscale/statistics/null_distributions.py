"""Null distributions: labels or residuals drawn under calibration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws as kernel_draws
from calibscale.errors import OptionError, require
from calibscale.kernels.notion_rows import NotionRows
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.notions import SCALAR_NOTIONS, views, width
from calibscale.registry import Registry, RegistryEntry
from calibscale.statistics.statistic import Statistic

MAX_POOL = 2**27  # residuals in memory: 1 GB

Labels = NDArray[np.int32]


class Pool(NamedTuple):
    """Row numbers (n,) and residuals (n, e) of all rows, in the order of the rows."""

    rows: Ints
    delta: Floats


@dataclass(frozen=True)
class PooledResiduals(Statistic):
    """Residuals of all rows of a notion, from which the nulls residual and permute draw."""

    notion: str

    def zero(self, classes: int) -> Pool:
        return Pool(np.empty(0, np.int64), np.empty((0, width(self.notion, classes))))

    def accumulate(self, state: Pool, chunk: Chunk) -> Pool:
        (view,) = views(chunk, self.notion)
        return self.merge(state, Pool(view.rows, view.delta))

    def merge(self, a: Pool, b: Pool) -> Pool:
        pool = Pool(*(np.concatenate(pair) for pair in zip(a, b, strict=True)))
        if pool.delta.size > MAX_POOL:
            raise OptionError(
                f"the nulls 'residual' and 'permute' keep all residuals in memory, and there are "
                f"more than {MAX_POOL:,}; use null='labels'"
            )
        return pool


class TestedEstimator(Protocol):
    """Members of a bound estimator by which a null says whether it supports it."""

    @property
    def name(self) -> str:
        """Name in texts and results."""
        ...

    @property
    def notion(self) -> str | None:
        """Notion of calibration that is judged."""
        ...

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the covariates that are read."""
        ...


@runtime_checkable
class DrawsCells(Protocol):
    """Estimator with replicates from labels drawn for the cells of its states, not for rows.

    Only nulls that draw labels support it.  Tests get their replicates from it.
    """

    def cell_values(self, states: Sequence[Any], seed: int, replicates: range) -> Iterable[float]:
        """Value of each replicate."""
        ...


@runtime_checkable
class SharesCells(DrawsCells, Protocol):
    """Estimator with draws that serve all estimators with the same statistics.

    A test draws them once for all of these.
    """

    def drawn_cells(self, states: Sequence[Any], seed: int, replicates: range) -> Iterator[Any]:
        """Drawn cells of each replicate."""
        ...

    def drawn_value(self, drawn: Any) -> float:
        """Value of a replicate from its drawn cells."""
        ...


@runtime_checkable
class PairMean(Protocol):
    """Estimator that is a mean over pairs of rows of bounded terms ⟨δ_i, δ_j⟩ k_ij.

    Hoeffding's inequality bounds its p-value, and intervals for clusters leave out pairs of rows in
    the same group of clusters.
    """

    @property
    def largest_term(self) -> float | None:
        """Bound of the terms, or None if the mean includes pairs of a row with itself."""
        ...

    @property
    def sum_scaled(self) -> bool:
        """Whether the sum over pairs is divided by n(n−1), not by a sum of kernels."""
        ...


def largest_term(estimator: object) -> float | None:
    """Bound of the terms of a mean over pairs, or None for other estimators."""
    return estimator.largest_term if isinstance(estimator, PairMean) else None


@dataclass(frozen=True)
class Null:
    """Base class of null distributions.

    A draw depends only on (seed, row, replicate), and on the states of `needs`.

    Attributes
    ----------
    draws : bool
        Whether replicates are drawn.
    of_labels : bool
        Whether replicates are labels drawn from the predictions.
    moves : bool
        Whether replicates also have their own predictions, returned by `moved`.
    centred : bool
        Whether estimators with `centred_null` are compared with centred replicates.
    signed : bool
        Whether replicates have a random sign for each cluster, see `SignsClusters`.
    max_replicates : int or None
        Number of available replicates, None if unlimited.
    """

    seed: int = 0
    name: ClassVar[str]
    draws: ClassVar[bool] = True
    of_labels: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    centred: ClassVar[bool] = False
    signed: ClassVar[bool] = False

    @property
    def max_replicates(self) -> int | None:
        return None

    def unsupported(self, estimator: TestedEstimator) -> str | None:
        """Reason why the null does not support an estimator, or None if it does."""
        if not isinstance(estimator, DrawsCells) or (self.of_labels and not self.moves):
            return None
        return f"{estimator.name} keeps cells of the score, not rows; use null='labels'"

    def needs(self, notions: Collection[str]) -> tuple[Statistic, ...]:
        """Statistics of all rows that the draws for these notions are taken from."""
        return ()

    def with_states(self, states: Mapping[Statistic, Any]) -> Self:
        """Return the null with the states of `needs`."""
        return self

    def labels(self, rows: Ints, q: Floats, first: int, last: int) -> Labels:
        """Drawn labels (B, c)."""
        out = np.empty((last - first, len(rows)), np.int32)
        kernel_draws.labels(np.uint64(self.seed), rows, q, first, out)
        return out

    def scalars(
        self,
        notion: str,
        rows: Ints,
        p: Floats,
        delta: Floats,
        first: int,
        last: int,
        start: Floats | None = None,
    ) -> Floats:
        """δ* of a scalar notion (B, c), from predictions and residuals (c,).

        `start` is the probability of the labels before the predicted one (c,), see `Chunk.starts`.
        With it the events agree with the labels that `labels` draws.
        """
        raise NotImplementedError(self.name)

    def vectors(self, rows: Chunk | NotionRows, first: int, last: int) -> Iterator[Floats]:
        """δ* (c, K), replicate by replicate."""
        raise NotImplementedError(self.name)

    def products(
        self, rows: Chunk | NotionRows, phi: Floats, first: int, last: int
    ) -> Iterator[tuple[Floats, Floats]]:
        """δ*ᵀφ (K, m) with features φ (c, m), and |δ*|² (c,), replicate by replicate."""
        for delta in self.vectors(rows, first, last):
            yield delta.T @ phi, np.einsum("ij,ij->i", delta, delta)

    def squares(self, rows: NotionRows, strengths: Floats) -> Floats:
        """Σw²δ*² of rows (B,), from wδ* of a scalar notion (B, c)."""
        return np.einsum("ij,ij->i", strengths, strengths)

    def residuals(self, notion: str, rows: NotionRows, first: int, last: int) -> Floats:
        """δ* of rows of any notion (n, B, e)."""
        if rows.delta.shape[1] == 1:
            p, delta = rows.event_probabilities, rows.delta[:, 0]
            drawn = self.scalars(notion, rows.rows, p, delta, first, last, rows.starts)
            return drawn.T[:, :, None]
        return np.stack(list(self.vectors(rows, first, last)), axis=1)

    def moved(self, notion: str, rows: NotionRows, first: int, last: int) -> Iterator[NotionRows]:
        """Rows of each replicate, with its predictions and residuals."""
        raise NotImplementedError(self.name)


@dataclass(frozen=True)
class DrawnLabels(Null):
    """Labels or outcomes drawn from the predictions, y* ~ Cat(q): the exact null distribution."""

    name: ClassVar[str] = "labels"
    of_labels: ClassVar[bool] = True

    def scalars(
        self,
        notion: str,
        rows: Ints,
        p: Floats,
        delta: Floats,
        first: int,
        last: int,
        start: Floats | None = None,
    ) -> Floats:
        out = np.empty((last - first, len(rows)))
        starts = np.zeros(len(rows)) if start is None else start
        self._draw_events(rows, p, starts, first, out)
        return out

    def _draw_events(self, rows: Ints, p: Floats, starts: Floats, first: int, out: Floats) -> None:
        """Write the residuals δ* of events with the probabilities p (c,) to `out` (B, c)."""
        kernel_draws.events(np.uint64(self.seed), rows, p, starts, first, out)

    def vectors(self, rows: Chunk | NotionRows, first: int, last: int) -> Iterator[Floats]:
        return rows.target.drawn_residuals(rows, self, first, last)

    def products(
        self, rows: Chunk | NotionRows, phi: Floats, first: int, last: int
    ) -> Iterator[tuple[Floats, Floats]]:
        return rows.target.drawn_products(rows, phi, self, first, last)

    def uniforms(self, rows: Ints, first: int, last: int) -> Iterator[Floats]:
        """Uniform numbers (c,) by which outcomes are drawn, replicate by replicate."""
        # Random numbers come in pairs, for the replicates 2j and 2j + 1.
        u = np.empty((2, len(rows)))
        for j in range(first // 2, (last + 1) // 2):
            kernel_draws.uniform_pairs(np.uint64(self.seed), rows, j, u)
            for b in range(max(first, 2 * j), min(last, 2 * j + 2)):
                yield u[b % 2]


@dataclass(frozen=True)
class DrawnCounts(DrawnLabels):
    """Numbers of events drawn for rows that stand for several rows with one claimed probability.

    The number of events k among n rows is binomial.  The residual of a condensed row is the mean
    p − k/n of the residuals of its rows, and its weight is n.

    Parameters
    ----------
    counts : (m,) array of int
        Number of rows of each condensed row.
    """

    counts: Ints = field(default_factory=lambda: np.empty(0, np.int64), compare=False, repr=False)

    def _draw_events(self, rows: Ints, p: Floats, starts: Floats, first: int, out: Floats) -> None:
        # A condensed row has no predicted class of its own, and so no start.
        kernel_draws.mean_events(np.uint64(self.seed), rows, self.counts[rows], p, first, out)

    def squares(self, rows: NotionRows, strengths: Floats) -> Floats:
        # k events have δ = p − 1 and n − k rows have δ = p.  With s = Σδ = np − k, the sum of
        # squares k(1 − p)² + (n − k)p² is np(1 − p) − (1 − 2p)s.
        p = rows.event_probabilities
        expected = self.counts[rows.rows] @ (p * (1.0 - p))
        return expected - strengths @ (1.0 - 2.0 * p)


@dataclass(frozen=True)
class RandomSigns(Null):
    """Residuals with random signs, δ* = ±δ."""

    name: ClassVar[str] = "wild"

    def _signs(self, rows: Ints, first: int, last: int) -> Floats:
        out = np.empty((last - first, len(rows)))
        kernel_draws.signs(np.uint64(self.seed), rows, first, out)
        return out

    def scalars(
        self,
        notion: str,
        rows: Ints,
        p: Floats,
        delta: Floats,
        first: int,
        last: int,
        start: Floats | None = None,
    ) -> Floats:
        return self._signs(rows, first, last) * delta

    def vectors(self, rows: Chunk | NotionRows, first: int, last: int) -> Iterator[Floats]:
        for sign in self._signs(rows.units, first, last):
            yield rows.delta * sign[:, None]


@dataclass(frozen=True)
class ClusterSigns(RandomSigns):
    """Residuals with one random sign per cluster.  Its `rows` are the hashes of the clusters."""

    name: ClassVar[str] = "wild_cluster"
    signed: ClassVar[bool] = True


@dataclass(frozen=True)
class ResampledResiduals(Null):
    """Residuals drawn with replacement from all rows, `pools` by notion [VF, Algorithm 1]."""

    pools: dict[str, Pool] = field(default_factory=dict, compare=False, repr=False)
    name: ClassVar[str] = "residual"

    def unsupported(self, estimator: TestedEstimator) -> str | None:
        if estimator.notion == "forecast":
            return (
                f"null={self.name!r} draws residuals of whole predictions, and {estimator.name} "
                "has one number for each row; use null='labels' or 'wild'"
            )
        return super().unsupported(estimator)

    def needs(self, notions: Collection[str]) -> tuple[Statistic, ...]:
        # Class-wise residuals are the columns of the canonical ones.
        pooled = {n if n in SCALAR_NOTIONS else "canonical" for n in notions}
        return tuple(map(PooledResiduals, sorted(pooled)))

    def with_states(self, states: Mapping[Statistic, Any]) -> Self:
        pools = {s.notion: pool for s, pool in states.items() if isinstance(s, PooledResiduals)}
        return replace(self, pools=pools)

    def _positions(self, pool: Pool, rows: Ints, first: int, last: int) -> Ints:
        """Position in the pool of the residual drawn for each row (B, c)."""
        out = np.empty((last - first, len(rows)), np.int64)
        kernel_draws.resampled(np.uint64(self.seed), rows, first, len(pool.rows), out)
        return out

    def scalars(
        self,
        notion: str,
        rows: Ints,
        p: Floats,
        delta: Floats,
        first: int,
        last: int,
        start: Floats | None = None,
    ) -> Floats:
        pool = self.pools[notion]
        return pool.delta[:, 0][self._positions(pool, rows, first, last)]

    def vectors(self, rows: Chunk | NotionRows, first: int, last: int) -> Iterator[Floats]:
        pool = self.pools["canonical"]
        for positions in self._positions(pool, rows.units, first, last):
            yield pool.delta[positions]


@dataclass(frozen=True)
class PermutedResiduals(ResampledResiduals):
    """Permuted residuals (KiTE)."""

    name: ClassVar[str] = "permute"
    centred: ClassVar[bool] = True

    def _positions(self, pool: Pool, rows: Ints, first: int, last: int) -> Ints:
        out = np.empty((last - first, len(rows)), np.int64)
        # The permutation acts on positions among the valid rows, so that chunks do not matter.
        ranks = np.searchsorted(pool.rows, rows)
        kernel_draws.permuted(np.uint64(self.seed), ranks, first, len(pool.rows), out)
        return out


@dataclass(frozen=True)
class HoeffdingBound(Null):
    """Bound of the p-value by Hoeffding's inequality, without draws."""

    name: ClassVar[str] = "hoeffding"
    draws: ClassVar[bool] = False

    def unsupported(self, estimator: TestedEstimator) -> str | None:
        mean = largest_term(estimator) is not None
        return None if mean else "null='hoeffding' is for jkce, kce and klce"


NULLS: Registry[type[Null]] = Registry(
    "null",
    [
        RegistryEntry(kind.name, f"{__name__}:{kind.__name__}", summary)
        for kind, summary in (
            (DrawnLabels, "labels drawn from the predictions, exact"),
            (RandomSigns, "residuals with a random sign for each row"),
            (ClusterSigns, "residuals with a random sign for each cluster"),
            (ResampledResiduals, "residuals drawn with replacement from all rows, approximate"),
            (PermutedResiduals, "permuted residuals, approximate"),
            (HoeffdingBound, "a bound of the p-value without draws"),
        )
    ],
    group="calibscale.nulls",
    base=f"{__name__}:Null",
)


def null_of(null: str | Null, seed: int) -> Null:
    """Null of the given name and seed.  A `Null` is returned as it is.

    An OptionError is raised if the name is unknown, or the seed is out of range.
    """
    if isinstance(null, Null):
        return null
    if null not in NULLS:
        require(False, f"null must be one of {', '.join(NULLS)}", null)
    require(0 <= seed < 2**64, "seed must be in 0..2^64−1", seed)
    return NULLS[null](seed)
