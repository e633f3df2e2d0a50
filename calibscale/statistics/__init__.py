"""Base classes of mergeable statistics, their replicates of a null, and passes over a source.

A statistic is a frozen dataclass: statistics of equal parameters are computed once.  A state is a
NamedTuple of float64 arrays that are additive over rows, unless `merge` is overridden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale import engine
from calibscale.data import Chunk, Floats, Ints, RowCounts, Rules, chunks
from calibscale.data.derived_sources import TEST, Split
from calibscale.data.levels import missing_last
from calibscale.data.source import ArraySource
from calibscale.errors import CalibscaleError, OptionError
from calibscale.kernel_sums import NotionRows
from calibscale.statistics.parked_states import parked, resumed

_DRAWN = 2**21  # draws of a chunk at a time: 16 MB


class Statistic(ABC):
    """Mergeable statistic of rows.

    ``zero`` is the state of no rows, ``accumulate`` adds a chunk, and ``merge`` joins two states.
    `large_chunks` is true if each chunk has a fixed cost.  `drawn` names the fields of a state that
    depend on the labels; without them there are no tests.  `powers` has, for each field, the power
    of the weights in its sum; without them there are no bootstrap intervals.  `shared` names large
    fields that depend hardly or not at all on labels: a part of the rows has about its share of
    them.
    """

    large_chunks: ClassVar[bool] = False
    drawn: ClassVar[tuple[str, ...]] = ()
    powers: ClassVar[tuple[int, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()

    def size(self, classes: int) -> int:
        """Number of features computed for a row."""
        return 0

    @abstractmethod
    def zero(self, classes: int) -> Any:
        """New state of no rows for K classes."""

    def nbytes(self, classes: int) -> int:
        """Bytes of a state."""
        return sum(field.nbytes for field in self.zero(classes))

    @abstractmethod
    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        """State with the chunk's rows added; may modify and return `state`."""

    def merge(self, a: Any, b: Any) -> Any:
        """State of both sets of rows; may modify and return `a`."""
        for x, y in zip(a, b, strict=True):
            np.add(x, y, out=x)
        return a

    def zero_drawn(self, classes: int, count: int) -> tuple[Any, ...]:
        """Zeros of the fields `drawn` for `count` replicates of a null."""
        zero = self.zero(classes)
        fields = (getattr(zero, name) for name in self.drawn)
        return tuple(np.zeros((count, *field.shape), field.dtype) for field in fields)

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        """Add a chunk with residuals drawn from a null to the sums of `zero_drawn`."""
        raise NotImplementedError(type(self).__name__)

    def with_drawn(self, state: Any, sums: tuple[Any, ...], index: int) -> Any:
        """State with the observed fields replaced by those of a replicate."""
        return state._replace(
            **{name: field[index] for name, field in zip(self.drawn, sums, strict=True)}
        )

    def weighted_total(self, parts: Any, weights: Floats) -> Any:
        """Merged state of stacked parts of the rows, whose weights are multiplied by (G,)."""
        return type(parts)(
            *(
                np.tensordot(_power(weights, power), field, 1)
                for power, field in zip(self.powers, parts, strict=True)
            )
        )


@dataclass(frozen=True)
class Replicates(Statistic):
    """Label-dependent part of a statistic's state, for replicates of a null.

    A state is a tuple of arrays whose first axis is the replicates; `Statistic.with_drawn`
    substitutes one of them for the observed part; `null` is a `calibscale.inference.nulls.Null`.
    """

    statistic: Statistic
    null: Any
    first: int
    last: int

    @property
    def large_chunks(self) -> bool:  # type: ignore[override]
        return self.statistic.large_chunks

    def size(self, classes: int) -> int:
        return self.statistic.size(classes)

    def zero(self, classes: int) -> Any:
        return self.statistic.zero_drawn(classes, self.last - self.first)

    def nbytes(self, classes: int) -> int:
        drawn = self.statistic.zero_drawn(classes, 1)
        return (self.last - self.first) * sum(field.nbytes for field in drawn)

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        # a statistic with `large_chunks` draws the replicates in parts itself
        step = len(chunk) if self.large_chunks else max(256, _DRAWN // len(self))
        for low in range(0, len(chunk), step):
            part = chunk if step >= len(chunk) else chunk.take(slice(low, low + step))
            self.statistic.draw(state, part, self)
        return state

    def __len__(self) -> int:
        return self.last - self.first

    def draws_labels(self, chunk: Chunk) -> bool:
        """Whether residuals are those of labels drawn from the predictions of a chunk."""
        return self.null.of_labels and chunk.forecast is chunk.soft is None

    @property
    def moves(self) -> bool:
        return self.null.moves

    def labels(self, chunk: Chunk) -> NDArray[np.int32]:
        """Drawn labels (B, c), cached on the chunk."""
        key = f"labels drawn with {self.null.seed}: {self.first}..{self.last}"
        if key not in chunk.views:
            chunk.views[key] = self.null.labels(chunk.rows, chunk.q, self.first, self.last)
        return chunk.views[key]

    def scalars(
        self, notion: str, rows: Ints, p: Floats, delta: Floats, start: Floats | None = None
    ) -> Floats:
        """δ* of a scalar notion (B, c); `start`: see `Null.scalars`."""
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

    def pit_values(self, chunk: Any, *, placed: bool) -> Iterator[Floats]:
        """PIT values (c,) of the outcomes drawn from forecasts, replicate by replicate.

        With `placed` they are those of `Forecast.placed`, otherwise of the outcomes themselves.
        """
        forecast = chunk.forecast
        sampler = forecast.pit_sampler if placed else forecast.cdf_sampler
        pit = sampler(chunk.values, chunk.outcomes, chunk.rows)
        return map(pit, self.null.uniforms(chunk.units, self.first, self.last))

    def some_scalars(
        self, notion: str, rows: NotionRows, most: int
    ) -> Iterator[tuple[slice, Floats]]:
        """δ* of a scalar notion, at most `most` replicates at a time, with their indices."""
        p, delta = rows.points[:, 0], rows.delta[:, 0]
        for low in range(self.first, self.last, most):
            high = min(self.last, low + most)
            indices = slice(low - self.first, high - self.first)
            drawn = self.null.scalars(notion, rows.rows, p, delta, low, high, rows.starts)
            yield indices, drawn

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
    """Power of the weights; 0⁰ is 0, as rows of weight 0 do not count."""
    return weights**power if power else (weights > 0).astype(np.float64)


def weights_of(chunk: Chunk) -> Floats:
    """Weights of a chunk, ones if it has none."""
    return chunk.weights if len(chunk.weights) else np.ones(len(chunk))


def weighted_sum(values: Floats, weights: Floats) -> float:
    """Σ w·v, or Σ v without weights; a row of weight 0 adds 0, even to an infinite value."""
    if len(weights) == 0:
        return float(values.sum())
    return float(weights @ np.where(weights > 0, values, 0.0))


def added(state: Any, *values: Any) -> Any:
    """Return a state after values have been added to its first fields."""
    for total, value in zip(state, values, strict=False):
        total[...] += value
    return state


# ---------------------------------------------------------------- One pass


States = dict[Statistic, Any]

MAX_GROUPS = 1000


class PassResult(NamedTuple):
    """Result of a pass: row counts, and by group (None: all rows) the state of each statistic.

    During the pass states are lists in the order of the statistics, so that statistics, some of
    which contain large arrays, are not sent along.  `scan` returns `States`.
    """

    counts: RowCounts
    groups: dict[float | None, Any]
    group_counts: dict[float | None, int]


class MoreGroupsError(CalibscaleError):
    """Error of a pass over more groups than memory was planned for."""


@dataclass(frozen=True, eq=False)
class Scan:
    """Engine task of one pass; memory is planned for `groups` groups."""

    source: ArraySource
    statistics: tuple[Statistic, ...]
    rules: Rules
    block_rows: int
    blocks: int
    split: Split | None = None
    groups: int = 1
    # a flat tree: with large states, such as those of replicates, the waiting ones are the memory;
    # 8 blocks are a run of a remote worker
    arities: ClassVar[tuple[int, ...]] = (8, 128)

    @cached_property
    def state_bytes(self) -> int:
        copies = self.groups if self.split is None else self.split.k + 1
        return copies * sum(s.nbytes(self.rules.classes) for s in self.statistics)

    @property
    def block_bytes(self) -> int:
        # the block as stored and as decoded, and a chunk with its features
        K, m = self.rules.classes, self.rules.features
        rows = min(self.rules.compute_rows, self.block_rows)
        work = 8 * rows * (4 * K + 3 * m + 20) + self.state_bytes
        return 2 * self.source.row_bytes * self.block_rows + work

    def part(self, first: int, last: int) -> Scan:
        start = first * self.block_rows
        stop = min(last * self.block_rows, self.source.rows)
        split = None if self.split is None else self.split.part(start, stop)
        if not self.source.in_memory:
            return replace(self, split=split, statistics=())
        source = self.source.part(start, stop, covariates=self.rules.reads_covariates)
        return replace(self, source=source, split=split, statistics=())

    @property
    def in_order(self) -> bool:
        return self.source.in_order

    @property
    def shared(self) -> tuple[Statistic, ...]:
        return self.statistics

    def joined(self, shared: tuple[Statistic, ...]) -> Scan:
        return replace(self, statistics=shared)

    def state(self, block: int) -> PassResult:
        start = block * self.block_rows - self.source.first_row
        stop = min(start + self.block_rows, self.source.rows)
        rows = self.source.read(start, stop, covariates=self.rules.reads_covariates)
        result = PassResult(RowCounts(), {}, {})
        for chunk, counts in chunks(rows, self.rules):
            result = self.add(result, chunk, counts)
        return result

    def add(self, result: PassResult, chunk: Chunk, counts: RowCounts) -> PassResult:
        """Result with the chunk's rows added, which shares its states."""
        for key, part in self._split(chunk):
            self._accumulate(result, key, part)
        return result._replace(counts=result.counts + counts)

    def merge(self, a: PassResult, b: PassResult) -> PassResult:
        for key, states in b.groups.items():
            if key in a.groups:
                mine = a.groups[key]
                for i, statistic in enumerate(self.statistics):
                    mine[i] = statistic.merge(mine[i], states[i])
            else:
                a.groups[key] = states
            a.group_counts[key] = a.group_counts.get(key, 0) + b.group_counts[key]
        self._check_groups(a)
        return a._replace(counts=a.counts + b.counts)

    def parked(self, result: PassResult) -> PassResult:
        """Result that needs less memory while it waits for its neighbour."""
        groups = {key: [parked(state) for state in each] for key, each in result.groups.items()}
        return result._replace(groups=groups)

    def resumed(self, result: PassResult) -> PassResult:
        """Result before it was parked."""
        groups = {key: [resumed(state) for state in each] for key, each in result.groups.items()}
        return result._replace(groups=groups)

    def _split(self, chunk: Chunk) -> list[tuple[float | None, Chunk]]:
        if self.split is not None:
            folds = self.split.of(chunk.rows)
            return [
                (float(k), replace(chunk.take(folds == k), fold=int(k)))
                for k in np.unique(folds)
                if k >= TEST
            ]
        if self.rules.group is None:
            return [(None, chunk)] if len(chunk) else []
        assert chunk.covariates is not None
        column = chunk.covariates[:, self.rules.group]
        keys, inverse = np.unique(column, return_inverse=True)
        if len(keys) > MAX_GROUPS:
            raise _too_many(len(keys))
        return [(float(key), chunk.take(inverse == g)) for g, key in enumerate(keys)]

    def _accumulate(self, result: PassResult, key: float | None, chunk: Chunk) -> None:
        if key not in result.groups:
            result.groups[key] = [s.zero(self.rules.classes) for s in self.statistics]
            result.group_counts[key] = 0
            self._check_groups(result)
        states = result.groups[key]
        for i, statistic in enumerate(self.statistics):
            states[i] = statistic.accumulate(states[i], chunk)
        result.group_counts[key] += len(chunk)

    def _check_groups(self, result: PassResult) -> None:
        count = len(result.groups)
        if count > MAX_GROUPS:
            raise _too_many(count)
        if self.rules.group is not None and count > self.groups:
            raise MoreGroupsError


def _too_many(count: int) -> OptionError:
    return OptionError(
        f"the group column has {count} or more values, above {MAX_GROUPS}; group by a column "
        "with few values, or cut it, such as age:5 or age:[18,30,65]"
    )


def scan_of(
    source: ArraySource,
    statistics: tuple[Statistic, ...],
    rules: Rules,
    block_rows: int | None = None,
    *,
    group_by: str | None = None,
    covariates: tuple[str, ...] = (),
    split: Split | None = None,
) -> Scan:
    """Task of one pass; see `scan`."""
    rules = replace(
        rules,
        features=max((s.size(source.classes) for s in statistics), default=0),
        group=None if group_by is None else source.covariate(group_by),
        covariates=tuple(source.covariate(name) for name in covariates),
        large_chunks=any(s.large_chunks for s in statistics),
    )
    size = block_rows or source.block_rows
    return Scan(source, statistics, rules, size, -(-source.rows // size), split)


def scan(task: Scan, execution: engine.Execution) -> PassResult:
    """Read the source once and return the state of every statistic.

    With a group column there is a state for each of its values; they are merged into the state of
    all rows, which exists even if no row is used, in increasing order of the values, those of
    missing values last.  With a split
    there is a state for each fold, and none of all rows.  Chunks carry all covariates if some must
    be finite.
    """
    grouped = task.rules.group is not None
    return finished(task, _fold_groups(task, execution) if grouped else execution.fold(task))


def finished(task: Scan, result: PassResult) -> PassResult:
    """Result of `scan` from that of a fold, whose states it may modify."""
    source, statistics, group = task.source, task.statistics, task.rules.group
    groups: dict[Any, States] = {
        key: dict(zip(statistics, states, strict=True)) for key, states in result.groups.items()
    }
    total: States = {s: s.zero(source.classes) for s in statistics}
    if group is None:
        if task.split is None:
            groups.setdefault(None, total)
        return result._replace(groups=groups)
    name = source.covariate_names[group]
    levels = {source.level(name, key): states for key, states in groups.items()}
    groups = {level: levels[level] for level in sorted(levels, key=missing_last)}
    for states in groups.values():
        for statistic in statistics:
            total[statistic] = statistic.merge(total[statistic], states[statistic])
    counts = {key: result.group_counts[key] for key in groups}
    return PassResult(result.counts, {None: total, **groups}, {None: result.counts.used, **counts})


def _fold_groups(task: Scan, execution: engine.Execution) -> PassResult:
    """Fold with memory for as many groups as fit, doubled while the data have more groups."""
    name = task.source.covariate_names[task.rules.group or 0]
    task = replace(task, groups=MAX_GROUPS)
    while task.groups > 1 and not engine.roomy(task, execution.scheduler, execution.memory_limit):
        task = replace(task, groups=task.groups // 2)
    while True:
        try:
            return execution.fold(task)
        except MoreGroupsError:
            task = replace(task, groups=2 * task.groups)
        except engine.NoRoomError as error:
            if task.groups == 1:
                raise
            raise OptionError(f"{error}; this is for {task.groups} groups of {name}") from error
