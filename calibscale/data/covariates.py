"""Covariates: their values, groups, ranges and quantiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.hashes import mixed
from calibscale.data.source import LAZY, ArraySource
from calibscale.engine.fold import fold
from calibscale.errors import InvalidDataError, require
from calibscale.predictions.blocks import Block
from calibscale.predictions.invalid_rows import CLUSTER_OF, DROP_REMEDY, covariate_fault, place_of
from calibscale.results.group_results import Where

MAX_LEVELS = 64  # distinct values above which a column of numbers has ranges instead
_QUIET = np.errstate(over="ignore", invalid="ignore")
_FIRST_VALUES = 1000  # values by which columns with many distinct ones are recognised early


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of one covariate over all `rows` with finite covariates.

    `position` is the position among the source's covariates.  `levels` are the sorted distinct
    values, or None if there are more than 64.
    """

    name: str
    position: int
    mean: float
    deviation: float
    low: float
    high: float
    levels: tuple[float, ...] | None
    rows: int = 0


class _State(NamedTuple):
    """Number n of rows, and the mean, Σ(x − mean)², least and largest value of each column (d,).

    `levels` are the distinct values of each column, None if there are many.
    """

    n: int
    mean: Floats
    squares: Floats
    low: Floats
    high: Floats
    levels: list[Floats | None]


@dataclass(frozen=True, eq=False)
class _Task:
    """Task of one pass over the covariates alone."""

    source: ArraySource
    positions: tuple[int, ...]
    on_invalid: str
    block_rows: int
    blocks: int
    most: int = MAX_LEVELS  # distinct values that are kept

    @property
    def state_bytes(self) -> int:
        return 8 * len(self.positions) * (self.most + 4)

    @property
    def block_bytes(self) -> int:
        return 3 * 8 * self.block_rows * len(self.source.covariate_names)

    @property
    def in_order(self) -> bool:
        return self.source.in_order

    shared = None

    def joined(self, shared: None) -> _Task:
        return self

    def part(self, first: int, last: int) -> _Task:
        if not self.source.in_memory:
            return self
        # Arrays in memory travel to a worker with its task, as the rows of its blocks alone.
        start = first * self.block_rows
        stop = min(last * self.block_rows, self.source.rows)
        return replace(self, source=self.source.part(start, stop, covariates=True))

    @_QUIET  # `summarise` reports overflows at the end
    def state(self, block: int) -> _State:
        start = block * self.block_rows - self.source.first_row
        stop = min(start + self.block_rows, self.source.rows)
        x = self.source.read_covariates(start, stop)[:, self.positions].astype(np.float64)
        finite = np.isfinite(x).all(axis=1)
        if not finite.all():
            if self.on_invalid == "raise":
                raise self._complaint(x, finite, start)
            x = x[finite]
        # Centred squares keep their digits where the mean is far from 0.
        mean = x.sum(axis=0) / max(1, len(x))
        return _State(
            len(x),
            mean,
            ((x - mean) ** 2).sum(axis=0),
            x.min(axis=0, initial=np.inf),
            x.max(axis=0, initial=-np.inf),
            [_few(column, self.most) for column in x.T],
        )

    def _complaint(self, x: Floats, finite: Any, start: int) -> InvalidDataError:
        i = int(np.argmin(finite))
        row = self.source.first_row + start + i
        d = int(np.argmin(np.isfinite(x[i])))
        name = self.source.covariate_names[self.positions[d]]
        return InvalidDataError(
            f"{place_of(row, self.source.name, self.source.named_chunk_rows)}: "
            f"{covariate_fault(name, float(x[i, d]))}. {DROP_REMEDY}",
            row,
        )

    @_QUIET
    def merge(self, a: _State, b: _State) -> _State:
        """State of both parts, with centred squares (Chan, Golub and LeVeque 1983)."""
        if a.n == 0 or b.n == 0:
            return b if a.n == 0 else a
        n = a.n + b.n
        step = b.mean - a.mean
        return _State(
            n,
            a.mean + step * (b.n / n),
            a.squares + b.squares + step * step * (a.n * b.n / n),
            np.minimum(a.low, b.low),
            np.maximum(a.high, b.high),
            [
                None if x is None or y is None else _few(np.concatenate([x, y]), self.most)
                for x, y in zip(a.levels, b.levels, strict=True)
            ],
        )


def _few(values: Floats, most: int) -> Floats | None:
    """Sorted distinct values, or None if there are more than `most`."""
    # A column of many distinct values is not sorted as a whole.
    if len(np.unique(values[: most + _FIRST_VALUES])) > most:
        return None
    levels = np.unique(values)
    return None if len(levels) > most else levels


def summarise(
    source: ArraySource,
    names: tuple[str, ...],
    on_invalid: str = "raise",
    scheduler: Any = None,
) -> dict[str, ColumnSummary]:
    """Read the covariates once and return their summaries by name.

    Raises
    ------
    OptionError
        If a covariate does not exist or is named twice.
    InvalidDataError
        If a value is NaN or infinite and `on_invalid` is "raise", if no row is left, or if values
        exceed 1e154, so that their squares overflow.
    """
    require(len(set(names)) == len(names), f"a covariate is named twice: {', '.join(names)}")
    columns = _summaries(source, names, on_invalid, scheduler)
    if not columns:
        raise InvalidDataError(f"{source.name}: no row has finite covariates {', '.join(names)}")
    for column in columns.values():
        if not np.isfinite(column.deviation):
            raise InvalidDataError(
                f"the values of the covariate {column.name!r}, {column.low:.3g} to "
                f"{column.high:.3g}, are too large for distances between them: rescale it"
            )
    return columns


def finite_summary(
    source: ArraySource, name: str, scheduler: Any = None, most: int = MAX_LEVELS
) -> ColumnSummary | None:
    """Summary of the finite values of a covariate with up to `most` levels, or None if all lack."""
    return _summaries(source, (name,), "drop", scheduler, most).get(name)


def _summaries(
    source: ArraySource,
    names: tuple[str, ...],
    on_invalid: str,
    scheduler: Any,
    most: int = MAX_LEVELS,
) -> dict[str, ColumnSummary]:
    """Summaries by name of the rows with finite covariates alone, or none without such rows."""
    positions = tuple(source.covariate(name) for name in names)
    size = source.block_rows
    task = _Task(source, positions, on_invalid, size, -(-source.rows // size), most)
    total: _State = fold(task, scheduler)
    if not total.n:
        return {}
    deviation = np.sqrt(total.squares / total.n)
    columns = {}
    for i, name in enumerate(names):
        levels = total.levels[i]
        low = float(total.low[i])
        high = float(total.high[i])
        named = None if levels is None else tuple(source.level(name, value) for value in levels)
        columns[name] = ColumnSummary(
            name, positions[i], float(total.mean[i]), float(deviation[i]), low, high, named, total.n
        )
    return columns


# ---------------------------------------------------------------- Ranges


# A covariate of numbers with at most so many distinct values is grouped by value, not by range.
MAX_GROUPED_LEVELS = 10
PREDICTION = -1  # position of an axis of the predicted probability, which is no covariate
PARTS = 5  # default number of ranges of a column with more than MAX_LEVELS values


@dataclass(frozen=True)
class Axis:
    """A covariate cut into parts: its `levels`, or the intervals between inner `edges`."""

    name: str
    position: int
    levels: tuple[float, ...] | None = None
    edges: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.edges) + 1 if self.levels is None else len(self.levels)

    def codes(self, column: Floats) -> Ints:
        """Number of the part of each value (c,)."""
        return np.searchsorted(np.array(self.edges if self.levels is None else self.levels), column)

    def known(self, column: Floats) -> Ints:
        """Number of the part of each value (c,); the number of parts for values in no part."""
        codes = self.codes(column)
        if self.levels is None:
            return np.where(np.isnan(column), len(self), codes)
        # Codes of values above all levels point to NaN, which is unequal to every value.
        levels = np.append(self.levels, np.nan)
        return np.where(levels[codes] == column, codes, len(self))

    def where(self, part: int) -> Where:
        """Condition that defines a part."""
        if self.levels is not None:
            return Where(self.name, value=self.levels[part])
        ends = (None, *self.edges, None)
        return Where(self.name, above=ends[part], up_to=ends[part + 1])


def axis_of(column: ColumnSummary, categorical: bool, sample: Floats, bins: int) -> Axis:
    """Cut a covariate at its levels if they are few, else at rounded quantiles of a sample."""
    if column.levels is not None and (categorical or len(column.levels) <= MAX_GROUPED_LEVELS):
        return Axis(column.name, column.position, column.levels)
    sample = sample[np.isfinite(sample)]
    if not len(sample):
        return Axis(column.name, column.position)
    cuts = np.unique(np.quantile(sample, np.arange(1, bins) / bins))
    gaps = np.diff(cuts)
    # Edges have two digits more than the finest scale.  With heavy tails, gaps between quantiles
    # may be far below the deviation.  Gaps at the level of rounding errors do not count.
    scales = [column.deviation, *10 * gaps[gaps > 1e-9 * np.abs(cuts).max()]]
    digits = [2 - math.floor(math.log10(scale)) for scale in scales if 0 < scale < math.inf]
    edges = {float(cut) for cut in cuts}
    if digits:
        edges = {round(edge, max(digits)) for edge in edges}
    # Rounding can move an edge beyond all values, where it would leave a part empty.
    inside = sorted(edge for edge in edges if column.low <= edge < column.high)
    return Axis(column.name, column.position, None, tuple(inside))


def cells_of(column: ColumnSummary, sample: Floats, count: int) -> Axis:
    """Cut a covariate into an interval for each of its values if they are few, else at quantiles.

    There are about `count` cells of nearly equal weight, or at most 64 cells with one value each.
    """
    if column.levels is not None:
        return Axis(column.name, column.position, None, column.levels[:-1])
    sample = sample[np.isfinite(sample)]
    cuts = np.unique(np.quantile(sample, np.arange(1, count) / count)) if len(sample) else sample
    # Each edge is rounded to an eighth of the larger of the two cells beside it.
    gaps = np.diff(cuts, prepend=cuts[:1], append=cuts[-1:])
    edges = set()
    for cut, gap in zip(cuts.tolist(), np.maximum(gaps[1:], gaps[:-1]).tolist(), strict=True):
        edges.add(round(cut, math.ceil(-math.log10(gap / 4))) if 0 < gap < math.inf else cut)
    inside = sorted(edge for edge in edges if column.low <= edge < column.high)
    return Axis(column.name, column.position, None, tuple(inside))


def prediction_cells(name: str, sample: Floats, count: int) -> Axis:
    """Cells of predicted probabilities, by a sample of them, see `cells_of`."""
    values = np.unique(sample[np.isfinite(sample)])
    if not len(values):
        return Axis(name, PREDICTION)
    # Predictions of few values, such as shares of votes, have a cell for each value.
    few = tuple(values.tolist()) if len(values) <= MAX_LEVELS else None
    column = ColumnSummary(
        name,
        PREDICTION,
        float(sample.mean()),
        float(sample.std()),
        float(values[0]),
        float(values[-1]),
        few,
    )
    return cells_of(column, sample, count)


@dataclass(frozen=True, eq=False)
class ClusterIds:
    """Hashes of the clusters that a covariate names.

    `hashes` are the hashes of the names of a categorical covariate.
    """

    name: str
    position: int
    hashes: Floats | None = None

    def codes(self, column: Any) -> Floats:
        """Hash of each id as an integer below 2⁵³ (c,), NaN for an empty name."""
        if self.hashes is not None:
            return self.hashes[np.where(np.isfinite(column), column, 0).astype(np.int64)]
        if np.any(column > 2**53) or np.any(column < -(2**53)):
            raise InvalidDataError(
                f"{self.name!r} has ids beyond ±2^53, which are rounded; give them as texts"
            )
        bits = (column.astype(np.float64) + 0.0).view(np.uint64)  # −0 + 0 is 0, with equal bits
        # Integers of 53 bits are exact in float64, the type of covariates.
        return (mixed(bits) >> np.uint64(11)).astype(np.float64)

    def units(self, block: Block) -> Ints:
        """Hash of the cluster of each row of a block with covariates (c,), −1 for an empty name."""
        assert block.covariates is not None
        column = block.covariates[:, self.position].astype(np.float64)
        codes = np.where(np.isnan(column), np.nan, self.codes(column))
        return np.nan_to_num(codes, nan=-1.0).astype(np.int64)


def cluster_ids(source: ArraySource, column: str) -> ClusterIds:
    """Hashes of the clusters that a covariate of a source names.

    The hash depends on the id alone: the text of a category, else the number.
    """
    names = source.categories.get(column)
    hashes = None
    if names is not None:
        digests = (blake2b(n.encode(), digest_size=8).digest() for n in names)
        bits = np.frombuffer(b"".join(digests), "<u8") >> np.uint64(11)
        hashes = np.where([bool(name.strip()) for name in names], bits.astype(np.float64), np.nan)
    return ClusterIds(column, source.covariate(column), hashes)


def clustered(source: ArraySource, column: str) -> tuple[ArraySource, int]:
    """Source with hashes of the clusters as last covariate, and the position of this covariate."""
    ids = cluster_ids(source, column)
    other_categories = {
        name: levels for name, levels in source.categories.items() if name != column
    }
    return extended(source, ids, f"{CLUSTER_OF}{column}", other_categories), len(
        source.covariate_names
    )


class Coder(Protocol):
    """Numbers made of the covariate at a position."""

    @property
    def position(self) -> int: ...

    def codes(self, column: Floats) -> Any: ...


def extended(
    source: ArraySource, axis: Coder, name: str, categories: Mapping[str, tuple[str, ...]]
) -> ArraySource:
    """Source with the codes of a covariate as a further covariate, and with other categories."""
    names = (*source.covariate_names, name)
    cut = _Cut(source.covariates, axis)
    return source.with_covariates(cut, names, categories)


@dataclass(frozen=True, eq=False)
class _Cut:
    """Covariates (n, d) with one more column: the `codes` of the column at `axis.position`."""

    array: Any
    axis: Coder

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape[0], self[:0].shape[1]

    @property
    def dtype(self) -> Any:
        return np.dtype(np.float64)

    def __getitem__(self, rows: slice) -> Floats:
        columns = self.array[rows]
        # The caller is parallel already.
        if hasattr(columns, "compute"):  # dask and xarray
            columns = columns.compute(scheduler="synchronous")
        x = np.asarray(columns).reshape(len(columns), -1)
        column = x[:, self.axis.position]
        parts = np.where(np.isnan(column), np.nan, self.axis.codes(column))
        return np.column_stack([x.astype(np.float64), parts])

    def __getattr__(self, name: str) -> Any:
        # A source asks its columns for these attributes to learn whether workers can read them.
        if name in LAZY:
            return getattr(self.array, name)
        raise AttributeError(name)
