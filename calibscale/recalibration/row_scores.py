"""Scores of each row before and after a recalibration, as covariates of the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.derived_sources import DerivedSource, Fold
from calibscale.data.source import ArraySource
from calibscale.estimators.scores import Accuracy
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.functionals.means import MeanPrediction
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.session import Session

LARGEST = float(np.finfo(np.float64).max)  # stands for an infinite score, as columns are finite


class ChunkColumn(ABC):
    """Column of the rows of classes that is no score, such as a predicted probability."""

    name: ClassVar[str]

    @abstractmethod
    def of(self, chunk: Chunk) -> Floats:
        """Value of each row of a chunk (c,)."""


@dataclass(frozen=True, eq=False, repr=False)
class RowScores(DerivedSource):
    """Scores of rows before a change and by `versions` after it, as covariates of the rows.

    The columns are each score before the change, then each score of each version, and then the
    covariates at `positions`.  Scores of a second version are ∞ outside of the rows `compared`.  If
    the versions change the source before them, it is read only once.
    """

    versions: tuple[Any, ...] = field(kw_only=True)  # sources
    scores: Sequence[Any] = field(kw_only=True)
    checks: Rules = field(kw_only=True)  # of the rows before the change
    # Rows that have scores, and those of them that have the scores of a second version.  None has
    # all rows.
    scored: Fold | None = None
    compared: Fold | None = None
    reads_once: bool = False  # whether the versions change the blocks of the source before them
    positions: tuple[int, ...] = ()  # of covariates before the change, the last columns

    @property
    def block_rows(self) -> int:
        # Blocks of predictions of many classes are in memory, although a score is one number.
        return self.before.block_rows

    @property
    def row_bytes(self) -> int:
        return self.before.row_bytes + sum(version.row_bytes for version in self.versions)

    def describe(self) -> dict[str, Any]:
        return {**self.before.describe(), "name": self.name}

    def part(self, start: int, stop: int, covariates: bool = False) -> Self:
        # Covariates of this source are scores, and not those of the source before the change.
        versions = tuple(version.part(start, stop) for version in self.versions)
        return replace(super().part(start, stop, False), versions=versions)

    @property
    def _reads_covariates(self) -> bool:
        if self.positions:
            return True
        return self.reads_once and any(version._reads_covariates for version in self.versions)

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        block = self.before.read(start, stop, self._reads_covariates)
        # A row is drawn by its number in the whole source, of which a worker may have a part.
        numbers = block.rows
        places = _drawn(self.scored, numbers)
        scored = block.take(places, block.start)
        parts = [self._scores(scored, self.checks)]
        for position, version in enumerate(self.versions):
            drawn, changed = slice(None), places
            if position and self.compared is not None:
                drawn = _drawn(self.compared, numbers[places])
                changed = np.arange(len(numbers))[places][drawn]
            if self.reads_once:
                after = version.changed_rows(block, changed)
            else:
                after = version.read(start, stop).take(changed, block.start)
            # The rows before the change have been checked.
            scores = self._scores(after, version.rules("drop", self.checks.tolerance))
            parts.append(np.full_like(parts[0], np.inf))
            parts[-1][:, drawn] = scores
        columns = np.concatenate(parts)
        # Rows that are invalid or unlabelled in one version count in none, without an error.
        unusable = np.asarray(np.isnan(columns).any(axis=0))
        columns[:, unusable] = 0.0
        columns.clip(-LARGEST, LARGEST, out=columns)
        if self.positions:
            assert scored.covariates is not None
            columns = np.vstack([columns, scored.covariates[:, list(self.positions)].T])
        return scored._replace(
            values=np.zeros(len(unusable)),
            labels=np.where(unusable, np.nan, 0.0),
            # A score is contiguous, because statistics read one after another.
            covariates=columns.T if covariates else None,
            numbers=numbers[places],
            # Rows outside of a part have no score, and so no label.
            left_out=None,
        )

    def _scores(self, block: Block, rules: Rules) -> Floats:
        """Scores of each row of a block, NaN without a valid prediction and label (scores, c)."""
        out = np.full((len(self.scores), len(block.labels)), np.nan)
        for chunk, _ in chunks(block, rules):
            places = _consecutive(chunk.rows - block.start)
            for column, score in zip(out, self.scores, strict=True):
                column[places] = _of_chunk(chunk, score)
        return out


def _drawn(fold: Fold | None, numbers: Ints) -> Any:
    """Index of the rows with the numbers (c,) that are in a fold, of which None has all rows."""
    return slice(None) if fold is None else np.flatnonzero(fold.holds(numbers))


def _consecutive(places: Ints) -> Any:
    """Index of increasing places (c,), a slice if they are consecutive."""
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _of_chunk(chunk: Any, score: Any) -> Any:
    """Score of each row of a chunk (c,)."""
    if isinstance(score, ChunkColumn):
        return score.of(chunk)
    if chunk.target.has_classes:
        # A column of chunks of classes.
        return chunk.hit if score.name == Accuracy.name else getattr(chunk, score.name)
    column, *_ = score.rows(chunk.target, chunk.values, chunk.outcomes)
    return column


def row_scores(
    before: Session,
    grouped: Session,
    versions: tuple[ArraySource, ...],
    scores: Sequence[Any],
    columns: Sequence[str],
    cluster: str | None,
    scored: Fold | None = None,
    compared: Fold | None = None,
) -> Session:
    """Session of the scores before and after a change.

    `scores` are estimators that are bound to the session `before`, or columns of its rows.  The
    `grouped` session has the same rows, and the further covariates `columns`, which follow the
    scores.  The hashes of the clusters are the last covariate.  Rows outside of `scored` have no
    scores, and those outside of `compared` have no scores of a second version.
    """
    source, mean = before.source, MeanPrediction()
    # Names of categories, which a source with the hashes of clusters does not have.
    categories, times = grouped.source.categories, grouped.source.times
    with_clusters = grouped.by_cluster(cluster)
    positions = [with_clusters.source.covariate(column) for column in columns]
    further = list(columns)
    if cluster is not None:
        last = len(with_clusters.source.covariate_names) - 1
        positions.append(last)
        further.append(with_clusters.source.covariate_names[last])
    whens = ("before the change", "after the change", "after the exchanged change")
    names = [f"{score.name} {when}" for when in whens[: 1 + len(versions)] for score in scores]
    rows = RowScores.of(
        with_clusters.source,
        kind=mean.name,
        forecast=mean,
        binary=False,
        class_names=None,
        columns={},
        covariate_names=(*names, *further),
        categories={name: levels for name, levels in categories.items() if name in columns},
        times={name: kind for name, kind in times.items() if name in columns},
        versions=versions,
        scores=scores,
        checks=source.rules(before.rules.on_invalid, before.rules.tolerance),
        scored=scored,
        compared=compared,
        # Groups are further covariates, which the change does not read.
        reads_once=all(
            isinstance(version, DerivedSource) and version.before is source for version in versions
        ),
        positions=tuple(positions),
    )
    session = before.on(rows)
    position = None if cluster is None else len(names) + len(further) - 1
    return replace(session, rules=replace(session.rules, cluster=position))
