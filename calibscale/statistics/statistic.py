"""Base classes of mergeable statistics, and their replicates of a null.

A statistic is a frozen dataclass, so that statistics of equal parameters are computed once.  A
state is a NamedTuple of float64 arrays that are additive over rows, unless `merge` is overridden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.kernels.notion_rows import NotionRows
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.outcomes import OutcomeChunk
from calibscale.predictions.rules import DRAWN_LABELS

_DRAWN = 2**18  # draws of a part of a chunk: 2 MB, which stay in the cache of a core
_MIN_ROWS_PER_SUM = 4  # rows of a part for each sum of a replicate


class Statistic(ABC):
    """Mergeable statistic of rows.

    ``zero`` is the state of no rows, ``accumulate`` adds a chunk, and ``merge`` joins two states.
    `large_chunks` is true if each chunk has a fixed cost.  `drawn` names the fields of a state that
    depend on the labels.  Without such fields there are no tests.  `powers` has, for each field,
    the power of the weights in its sum.  Without powers there are no bootstrap intervals.  `shared`
    names large fields that depend hardly or not at all on labels, so that a part of the rows has
    about its share of them.  `keeps_arrays` is true if a chunk may keep arrays of the statistic,
    such as features of the rows, that statistics after it can use.
    """

    large_chunks: ClassVar[bool] = False
    keeps_arrays: ClassVar[bool] = False
    drawn: ClassVar[tuple[str, ...]] = ()
    powers: ClassVar[tuple[int, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()

    @property
    def condensable(self) -> bool:
        """Whether sums of signed residuals hardly change if a row stands for similar rows."""
        return False

    @property
    def countable(self) -> bool:
        """Whether sums of drawn events need only the number of events among similar rows."""
        return self.condensable

    @property
    def kernel_widths(self) -> dict[int, float]:
        """Bandwidth of a kernel on each covariate by its position, and on predictions at −1."""
        return {}

    def size(self, classes: int) -> int:
        """Number of features that a chunk holds for each of its rows, see `accumulate`.

        It is 0 where `accumulate` computes the features of some rows at a time.
        """
        return 0

    def drawn_size(self, classes: int) -> int:
        """Number of features that a chunk holds for each of its rows, see `draw`."""
        return self.size(classes)

    def work_bytes(self, classes: int, rows: int) -> int:
        """Bytes of the arrays, beside its state, that a thread uses for each chunk of `rows`."""
        return 0

    @abstractmethod
    def zero(self, classes: int) -> Any:
        """New state of no rows for K classes."""

    def nbytes(self, classes: int) -> int:
        """Bytes of a state."""
        return sum(field.nbytes for field in self.zero(classes))

    def nbytes_of_groups(self, classes: int, groups: int) -> int:
        """Bytes of the states of disjoint groups of the rows, all together."""
        return groups * self.nbytes(classes)

    @abstractmethod
    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        """State with the rows of the chunk added.  It may be the modified `state`."""

    def merge(self, a: Any, b: Any) -> Any:
        """State of both sets of rows.  It may be the modified `a`."""
        for x, y in zip(a, b, strict=True):
            np.add(x, y, out=x)  # in place, as states may be large
        return a

    def zero_drawn(self, classes: int, count: int) -> tuple[Any, ...]:
        """Zeros of the fields `drawn` for `count` replicates of a null."""
        zero = self.zero(classes)
        fields = (getattr(zero, name) for name in self.drawn)
        return tuple(np.zeros((count, *field.shape), field.dtype) for field in fields)

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        """Add a chunk with residuals drawn from a null to the sums of `zero_drawn`."""
        raise NotImplementedError(type(self).__name__)

    def drawn_part(self, larger: Statistic, sums: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Sums of this statistic from the sums of a larger one, or None if these do not suffice."""
        return None

    def with_drawn(self, state: Any, sums: tuple[Any, ...], index: int) -> Any:
        """State with the fields of a replicate instead of the observed fields."""
        return state._replace(
            **{name: field[index] for name, field in zip(self.drawn, sums, strict=True)}
        )

    def weighted_total(self, parts: Any, weights: Floats) -> Any:
        """Merged state of stacked parts of the rows, with their weights multiplied by (G,)."""
        return type(parts)(
            *(
                np.tensordot(_power(weights, power), field, 1)
                for power, field in zip(self.powers, parts, strict=True)
            )
        )


@dataclass(frozen=True)
class Replicates(Statistic):
    """Label-dependent part of a statistic's state, for replicates of a null.

    A state is a tuple of arrays with the replicates on the first axis.  `Statistic.with_drawn`
    substitutes a replicate for the observed part.  `null` is a
    `calibscale.statistics.null_distributions.Null`.
    """

    statistic: Statistic
    null: Any
    first: int
    last: int
    keeps_arrays: ClassVar[bool] = True

    @property
    def large_chunks(self) -> bool:  # type: ignore[override]
        return self.statistic.large_chunks

    def size(self, classes: int) -> int:
        return self.statistic.drawn_size(classes)

    def zero(self, classes: int) -> Any:
        return self.statistic.zero_drawn(classes, self.last - self.first)

    def nbytes(self, classes: int) -> int:
        drawn = self.statistic.zero_drawn(classes, 1)
        return (self.last - self.first) * sum(field.nbytes for field in drawn)

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        # A statistic with `large_chunks` draws the replicates in parts itself.  Other statistics
        # get parts of a chunk, so that the draws of many replicates stay in the cache.  A part has
        # enough rows that adding it to the sums takes little of its time.
        if self.large_chunks:
            step = len(chunk)
        elif self.draws_labels(chunk):
            step = max(256, DRAWN_LABELS // len(self))
        else:
            sums = sum(field[0].size for field in state)
            step = max(256, _DRAWN // len(self), _MIN_ROWS_PER_SUM * sums)
        for low in range(0, len(chunk), step):
            part = chunk if step >= len(chunk) else chunk.take(slice(low, low + step))
            self.statistic.draw(state, part, self)
        return state

    def __len__(self) -> int:
        return self.last - self.first

    def draws_labels(self, chunk: Chunk) -> bool:
        """Whether residuals come from labels that are drawn from the predictions of a chunk."""
        return self.null.of_labels and chunk.target.has_single_labels

    @property
    def draws(self) -> int:
        """Number of sets of labels that are drawn for a chunk."""
        return len(self)

    @property
    def segment_rows(self) -> int | None:
        """Rows of a segment whose sums are computed together, or None if chunks may end anywhere.

        The number of a row divided by it is the number of its segment.
        """
        return None

    @property
    def moves(self) -> bool:
        return self.null.moves

    def labels(self, chunk: Chunk) -> NDArray[np.int32]:
        """Drawn labels (B, c), cached on the chunk."""
        # Statistics of one pass test the same draws, so that their joint p-value is exact.
        key = f"labels drawn with {self.null.seed}: {self.first}..{self.last}"
        if key not in chunk.views:
            chunk.views[key] = self.null.labels(chunk.rows, chunk.q, self.first, self.last)
        return chunk.views[key]

    def scalars(
        self, notion: str, rows: Ints, p: Floats, delta: Floats, start: Floats | None = None
    ) -> Floats:
        """δ* of a scalar notion (B, c), see `Null.scalars` about `start`."""
        return self.null.scalars(notion, rows, p, delta, self.first, self.last, start)

    def events(self, chunk: Chunk, notion: str) -> Floats:
        """δ* of a scalar notion (B, c), from the drawn labels that all statistics share."""
        p, _, delta, _ = chunk.event(notion)
        if not self.draws_labels(chunk):
            return self.scalars(notion, chunk.units, p, delta)
        return p - (self.labels(chunk) == self.predicted(chunk, notion))

    @staticmethod
    def predicted(chunk: Chunk, notion: str) -> Ints:
        """Label that a scalar notion predicts (c,)."""
        return np.ones(len(chunk), np.int64) if notion == "positive" else chunk.top

    def pit_values(self, chunk: OutcomeChunk, *, placed: bool) -> Iterator[Floats]:
        """PIT values (c,) of the outcomes drawn from forecasts, replicate by replicate.

        With `placed` they are values of `Forecast.placed`, otherwise of the outcomes themselves.
        """
        forecast = chunk.forecast
        sampler = forecast.pit_sampler if placed else forecast.cdf_sampler
        pit = sampler(chunk.values, chunk.outcomes, chunk.rows)
        return map(pit, self.null.uniforms(chunk.units, self.first, self.last))

    def some_scalars(
        self, notion: str, rows: NotionRows, most: int
    ) -> Iterator[tuple[slice, Floats]]:
        """δ* of a scalar notion, at most `most` replicates at a time, with their indices."""
        p, delta = rows.event_probabilities, rows.delta[:, 0]
        for low in range(self.first, self.last, most):
            high = min(self.last, low + most)
            indices = slice(low - self.first, high - self.first)
            drawn = self.null.scalars(notion, rows.rows, p, delta, low, high, rows.starts)
            yield indices, drawn

    def squares(self, rows: NotionRows, strengths: Floats) -> Floats:
        """Σw²δ*² of rows (B,), from wδ* of a scalar notion (B, c)."""
        return self.null.squares(rows, strengths)

    def moved(self, notion: str, rows: NotionRows) -> Iterator[tuple[int, NotionRows]]:
        """Rows of each replicate, of a null that changes predictions."""
        return enumerate(self.null.moved(notion, rows, self.first, self.last))

    def vectors(self, rows: Chunk | NotionRows) -> Iterator[tuple[int, Floats]]:
        """δ* (c, K) of each replicate."""
        return enumerate(self.null.vectors(rows, self.first, self.last))

    def products(
        self, rows: Chunk | NotionRows, phi: Floats
    ) -> Iterator[tuple[int, tuple[Floats, Floats]]]:
        """δ*ᵀφ (K, m) and |δ*|² (c,) of each replicate."""
        return enumerate(self.null.products(rows, phi, self.first, self.last))


def redraws(statistic: Statistic) -> bool:
    """Whether the statistic depends on the labels."""
    return type(statistic).draw is not Statistic.draw


class PairStatistic(Statistic):
    """Statistic from which a sum over pairs of rows follows, exactly or approximately.

    `approximation` is the kind of the error of `pair_total`.
    """

    approximation: ClassVar[str]

    @abstractmethod
    def pair_total(self, state: Any) -> tuple[float, float]:
        """Σ_{i≠j} w_i w_j ⟨δ_i, δ_j⟩ κ_ij, and its error."""


def _power(weights: Floats, power: int) -> Floats:
    """Power of the weights, where 0⁰ is 0, as rows of weight 0 do not count."""
    return weights**power if power else (weights > 0).astype(np.float64)


def bytes_of_rows(classes: int, rows: int) -> int:
    """Bytes of a chunk of rows: predictions, residuals and what is computed from them."""
    return 8 * rows * (4 * classes + 20)


def weights_of(chunk: Chunk) -> Floats:
    """Weights of a chunk, ones if it has none."""
    return chunk.weights if len(chunk.weights) else np.ones(len(chunk))


def weighted_sum(values: Floats, weights: Floats) -> float:
    """Σ w·v, or Σ v without weights.  A row of weight 0 adds 0, even if its value is infinite."""
    if len(weights) == 0:
        return float(values.sum())
    return float(weights @ np.where(weights > 0, values, 0.0))


def with_fields(sums: Any, fields: Iterable[Any]) -> Any:
    """Sums of replicates of the type of `sums`, a tuple or a NamedTuple, with other fields."""
    return sums._make(fields) if hasattr(sums, "_make") else tuple(fields)


def added(state: Any, *values: Any) -> Any:
    """Return a state after values have been added to its first fields."""
    for total, value in zip(state, values, strict=False):
        total[...] += value
    return state
