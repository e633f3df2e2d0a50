"""Sources made of other sources: parts of the rows, folds, changed predictions or labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Bools, Floats, Ints
from calibscale.compiled import random_draws, scored_rows
from calibscale.data.covariates import ClusterIds, cluster_ids
from calibscale.data.source import ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.errors import InvalidDataError, OptionError, require
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import Chunk

TEST = -1  # fold of the rows of the test part


@dataclass(frozen=True)
class Split:
    """Folds of row numbers: −1 is the test part, 0..k−1 are the folds of the cross-validation.

    Folds are drawn by a counter hash of the row number, and so do not depend on blocks or chunks.
    Alternatively they are `given`, one integer for each row of the source.  `test_fraction` is the
    expected share of rows in the test part, in (0, 1).  In nested cross-validation, `outer` is the
    fold that serves as the test part, and the test part itself is left out.
    """

    folds: int = 5
    test_fraction: float = 0.2
    seed: int = 0
    given: NDArray[Any] | None = field(default=None, compare=False)
    outer: int | None = None
    first_row: int = 0

    def __post_init__(self) -> None:
        require(self.folds >= 2, "folds must be at least 2", self.folds)
        require(0 < self.test_fraction < 1, "test_fraction must be in (0, 1)", self.test_fraction)
        require(0 <= self.seed < 2**64, "seed must be in 0..2^64−1", self.seed)

    @property
    def k(self) -> int:
        """Number of folds of the cross-validation, without the outer fold of a nested run."""
        return self.folds - (self.outer is not None)

    def of(self, rows: Ints) -> Ints:
        """Fold of each row (c,); −2 for rows that a nested run leaves out."""
        if self.given is not None:
            fold = self.given[rows - self.first_row].astype(np.int64)
        else:
            # The lowest share of the draws is the test part, and the others are cut into equal
            # folds.
            u = random_draws.of_rows(rows, self.seed, random_draws.SPLIT)
            fold = np.floor((u - self.test_fraction) / (1 - self.test_fraction) * self.folds)
            fold = np.clip(fold, TEST, self.folds - 1).astype(np.int64)
        if self.outer is None:
            return fold
        # The other folds are numbered without a gap, and the test part is left out (−2).
        nested = np.where(fold > self.outer, fold - 1, fold)
        return np.where(fold == self.outer, TEST, np.where(fold == TEST, TEST - 1, nested))

    def part(self, start: int, stop: int) -> Split:
        """Split of rows start..stop−1 alone, to be sent to a worker."""
        if self.given is None:
            return self
        return replace(self, given=self.given[start:stop], first_row=start)


def given_split(folds: Any, rows: int, seed: int = 0) -> Split:
    """Split described by an array of one fold −1..k−1 per row, none of them empty."""
    numbers = np.asarray(folds)
    if numbers.shape != (rows,) or numbers.dtype.kind not in "iu":
        raise OptionError(
            f"folds must be {rows} integers, one per row (−1: test), not {numbers.dtype} of shape "
            f"{numbers.shape}"
        )
    low, high = int(numbers.min()), int(numbers.max())
    if low < TEST or high >= 1000:
        raise OptionError(f"folds must be −1 (test) or 0..k−1, k ≤ 1000, not {low}..{high}")
    counts = np.zeros(max(high + 2, 3), np.int64)  # of the test part, and of at least two folds
    # In pieces, as given folds may be a memory map of many rows.
    for start in range(0, rows, 2**20):
        piece = numbers[start : start + 2**20].astype(np.int64) + 1
        counts += np.bincount(piece, minlength=len(counts))
    if not counts.all():
        empty = int(np.argmin(counts > 0)) - 1
        part = "the test part (−1)" if empty == TEST else f"fold {empty}"
        raise OptionError(f"folds: {part} has no rows")
    return Split(folds=high + 1, seed=seed, given=numbers)


@dataclass(frozen=True)
class HoldOut:
    """Share of rows held out of estimates, drawn by a counter hash of the row numbers.

    These rows select a kernel or fit a recalibration, which is then applied to the other rows.
    """

    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 < self.share < 1, "a held-out share must be in (0, 1)", self.share)

    def holds(self, rows: Ints) -> Any:
        """Whether each row is held out (c,)."""
        return random_draws.of_rows(rows, self.seed, random_draws.HOLD_OUT) < self.share

    def some(self, share: float) -> HoldOut:
        """Subset with the smallest hashes, of about `share` of all rows."""
        # Equal seeds give equal hashes, so that a smaller share is a subset of a larger one.
        return HoldOut(min(self.share, share), self.seed)

    def rest(self, chunk: Chunk) -> Chunk:
        """Rows of a chunk that are not held out."""
        return chunk.take(~self.holds(chunk.rows))


@dataclass(frozen=True)
class Fold:
    """One of `count` folds of about equal size, drawn by a counter hash of the row numbers.

    Two folds of a seed are the rows of ``HoldOut(0.5, seed)`` and all others.
    """

    number: int
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.count >= 2, "the count of folds must be at least 2", self.count)
        require(
            0 <= self.number < self.count,
            f"the number of a fold must be in 0..{self.count - 1}",
            self.number,
        )

    def holds(self, rows: Ints) -> Any:
        """Whether each row is in the fold (c,)."""
        return self.numbers(rows) == self.number

    def numbers(self, rows: Ints) -> Floats:
        """Number of the fold of each row, among folds of this count and seed (c,)."""
        draws: Floats = random_draws.of_rows(rows, self.seed, random_draws.HOLD_OUT)
        return np.floor(draws * self.count)


# ---------------------------------------------------------------- Changed rows


_PIECE = 2**20  # row numbers hashed together


@dataclass(frozen=True, eq=False, repr=False)
class DerivedSource(ArraySource):
    """Source that changes the blocks of the source `before`, and shares its columns."""

    before: ArraySource = field(kw_only=True)

    @property
    def in_memory(self) -> bool:
        return self.before.in_memory

    @classmethod
    def of(cls, before: ArraySource, **changes: Any) -> Self:
        """Derive a source from another one, with its fields besides `changes`."""
        shared = {field.name: getattr(before, field.name) for field in fields(ArraySource)}
        return cls(**{**shared, **changes}, before=before)

    def with_covariates(
        self,
        covariates: Any,
        names: tuple[str, ...],
        categories: Mapping[str, tuple[str, ...]],
    ) -> Self:
        # Rows are read from the source before the change, which must have the columns, too.
        before = self.before.with_covariates(covariates, names, categories)
        return replace(super().with_covariates(covariates, names, categories), before=before)

    def part(self, start: int, stop: int, covariates: bool = False) -> Self:
        before = self.before.part(start, stop, covariates or self._reads_covariates)
        names = ("values", "labels", "covariates", "weights", "rows", "first_row")
        return replace(self, before=before, **{name: getattr(before, name) for name in names})

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        """Read rows start..stop−1, changed, and covariates only on request."""
        # Covariates that only the change needs are dropped again below.
        block = self.before.read(start, stop, covariates or self._reads_covariates)
        block = self._changed(block)
        return block if covariates else block._replace(covariates=None)

    @property
    def _reads_covariates(self) -> bool:
        return False

    def _changed(self, block: Block) -> Block:
        """Block with the changes of this source."""
        raise NotImplementedError

    def changed_rows(self, block: Block, rows: Ints | slice) -> Block:
        """Some rows of a block, with the changes of this source.

        Their numbers are those from the start of the block on, unless the block has numbers.
        """
        return self._changed(block.take(rows, block.start))


# ---------------------------------------------------------------- parts


@dataclass(frozen=True, eq=False, repr=False)
class _Part(DerivedSource):
    """Rows that are held out, or the remaining ones.  Rows of the other part have no label.

    With `clusters`, all rows of a cluster are in the same part.
    """

    hold_out: HoldOut | Fold = field(kw_only=True)
    held: bool = field(kw_only=True)
    clusters: ClusterIds | None = None

    def describe(self) -> dict[str, Any]:
        source = self.before.describe()
        part = {**asdict(self.hold_out), "held": self.held}
        if self.clusters is not None:
            part["cluster"] = self.clusters.name
        return {**source, "parts": [*source.get("parts", []), part]}

    @property
    def _reads_covariates(self) -> bool:
        return self.clusters is not None

    def keeps(self, block: Block) -> Any:
        """Whether each row of a block is in the part (c,)."""
        return self.hold_out.holds(units_of(block, self.clusters)) == self.held

    def sample(self, count: int, seed: int = 0) -> Iterator[Block]:
        """Sample rows of all parts: choices by a sample never depend on labels."""
        return self.before.sample(count, seed)

    def _changed(self, block: Block) -> Block:
        out = ~self.keeps(block)
        # Rows outside of an earlier part are outside of this one too.
        left_out = out if block.left_out is None else out | block.left_out
        block = block._replace(left_out=left_out)
        if not self.target.has_classes:
            return self._without_outcomes(block, out)
        labels = block.labels
        if labels.dtype == np.uint64:
            # A conversion of larger numbers to int64 would make them negative, hence "not known".
            labels = np.minimum(labels, np.uint64(2**63 - 1))
        labels = labels.astype(np.int64)
        labels[out] = -1
        # Rows of the other part must not be invalid, whatever their values.
        values = _filled(block.values, out, 0.0)
        if self.kind == "probabilities":  # 1 for one class, a sum that is exact in every type
            values.reshape(len(labels), -1)[out, 0] = 1.0
        return block._replace(
            values=values,
            labels=labels,
            weights=_filled(block.weights, out, 1.0),
            covariates=_filled(block.covariates, out, 0.0),
        )

    def _without_outcomes(self, block: Block, out: Bools) -> Block:
        """Block of predictions of numbers without the outcomes of the rows `out` (c,)."""
        target: Any = self.target
        labels = _filled(block.labels.astype(np.float64), out, np.nan)
        values = block.values.astype(np.float64).reshape(len(labels), -1)
        invalid = target.status(values, labels) > scored_rows.UNLABELLED
        # Rows of the other part must not be invalid: any valid prediction stands in for theirs.
        if (invalid & out).any() and not invalid.all():
            values[invalid & out] = values[np.argmin(invalid)]
            block = block._replace(values=values.reshape(block.values.shape))
        return block._replace(
            labels=labels,
            weights=_filled(block.weights, out, 1.0),
            covariates=_filled(block.covariates, out, 0.0),
        )


def units_of(block: Block, clusters: ClusterIds | None) -> Ints:
    """Numbers of the units that are drawn together (c,): hashes of clusters, else row numbers."""
    if clusters is not None:
        return clusters.units(block)
    return block.rows


def _filled(column: Any, where: Any, value: float) -> Any:
    """Copy of a column, if any, with some rows replaced."""
    if column is None:
        return None
    column = np.array(column)
    column[where] = value
    return column


def part_of(
    source: Any, hold_out: HoldOut | Fold, held: bool = True, cluster: str | None = None
) -> ArraySource:
    """Restrict a source to the rows held out, or to all others.  Row numbers do not change.

    The part of a row depends on its number, or on its cluster, and the seed alone.  Rows of the
    other part are treated and counted as rows without a label, and `left_out` counts them
    separately.  They are never invalid, except for covariates that an estimator uses: the range of
    covariates and default bandwidths are computed from all rows.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
    hold_out : HoldOut or Fold
        Its seed should differ from the seed of an estimator with ``bandwidth_share=``, which holds
        out rows by the same draw.
    held : bool
        Whether to take the rows held out, or all others.
    cluster : str, optional
        Name of a covariate.  Rows with equal values are in the same part.

    Raises
    ------
    OptionError, StoreError
        If the source cannot be read, or has no such covariate.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.data.derived_sources import HoldOut
    >>> from calibscale.data.derived_sources import left_out, part_of
    >>> data = calibscale.from_arrays(
    ...     probabilities=np.full(100, 0.5), labels=np.zeros(100, int), binary=True
    ... )
    >>> parts = [part_of(data, HoldOut(0.3), held) for held in (True, False)]
    >>> sum(left_out(part) for part in parts)
    100
    """
    data = as_source(source)
    data.need_integer_labels("part_of")
    clusters = None if cluster is None else cluster_ids(data, cluster)
    return _Part.of(data, hold_out=hold_out, held=held, clusters=clusters)


def left_out(source: ArraySource) -> int:
    """Number of rows of a source outside the parts to which it was restricted.

    Results count these rows as unlabelled.
    """
    parts, before = [], source
    while isinstance(before, DerivedSource):
        if isinstance(before, _Part):
            parts.append(before)
        before = before.before
    if not parts:
        return 0
    count = 0
    by_clusters = any(part.clusters is not None for part in parts)
    for low in range(0, source.rows, _PIECE):
        high = min(low + _PIECE, source.rows)
        if by_clusters:
            block = before.read(low, high, covariates=True)
        else:
            # Parts depend on the numbers of rows alone, so that no row is read.
            empty = np.zeros(high - low)
            block = Block(source.first_row + low, empty, empty, None, None)
        count += int((~np.logical_and.reduce([part.keeps(block) for part in parts])).sum())
    return count


# ---------------------------------------------------------------- predictions of another model


@dataclass(frozen=True, eq=False, repr=False)
class _Predicted(DerivedSource):
    """Predictions of one source with the labels, weights and covariates of another, by row."""

    predictions: ArraySource = field(kw_only=True)

    @property
    def in_memory(self) -> bool:
        return self.predictions.in_memory or self.before.in_memory

    def describe(self) -> dict[str, Any]:
        # The result is about the predictions; the labels and weights are shared by both models.
        return {**self.predictions.describe(), "weighted": self.before.weights is not None}

    def part(self, start: int, stop: int, covariates: bool = False) -> Self:
        part = super().part(start, stop, covariates)
        predictions = self.predictions.part(start, stop)
        return replace(part, predictions=predictions, values=predictions.values)

    def _changed(self, block: Block) -> Block:
        start = block.start - self.first_row
        predicted = self.predictions.read(start, start + len(block.labels))
        labelled = (block.labels >= 0) & (predicted.labels >= 0)
        differ = np.flatnonzero(labelled & (block.labels != predicted.labels))
        if len(differ):
            row = block.start + int(differ[0])
            raise InvalidDataError(
                f"row {row} has label {block.labels[differ[0]]} in {self.before.name}, "
                f"{predicted.labels[differ[0]]} in {self.predictions.name}: "
                "both models need the same rows, in the same order",
                row,
            )
        return block._replace(values=predicted.values, name=predicted.name)


def predicted(predictions: ArraySource, columns: ArraySource) -> ArraySource:
    """Source of a second model's predictions for the rows of `columns`.

    The sources must have equal numbers of rows and classes.  Reading a row is an error if both
    sources have a label for it, and the labels differ.
    """
    if predictions.rows != columns.rows or predictions.classes != columns.classes:
        raise OptionError(
            f"{predictions.name} has {predictions.rows:,} rows of {predictions.classes} classes, "
            f"{columns.name} {columns.rows:,} of {columns.classes}: a comparison needs the same "
            "rows"
        )
    of_predictions = ("kind", "values", "binary", "name")
    changes = {name: getattr(predictions, name) for name in of_predictions}
    return _Predicted.of(columns, predictions=predictions, **changes)
