"""Properties of data from which the bandwidths of kernels follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled import elementary
from calibscale.data.covariates import ColumnSummary, summarise
from calibscale.data.derived_sources import HoldOut
from calibscale.data.source import ArraySource
from calibscale.kernels.notion_rows import NotionRows
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks

_MODELS = 10  # models whose samples of predictions are used in full


def pooled_distance(samples: Sequence[Floats]) -> float:
    """Median of the positive distances within the samples (c, e) of all models.

    It is 1 if no distance is positive.  With more than 10 models, only a part of each sample is
    used.
    """
    step = -(-len(samples) // _MODELS)
    distances = np.concatenate([elementary.distances_within(p[::step]) for p in samples])
    positive = distances[distances > 1e-12]  # smaller distances are rounding
    return float(np.median(positive)) if positive.size else 1.0


BANDWIDTH_ROWS = 1000  # rows with half a million distances, of which the median is the bandwidth
_MAX_SAMPLED = 64_000  # rows sampled if most have weight 0


@dataclass(frozen=True)
class DataProfile:
    """Properties of a source that estimators need before the pass, computed once, on first use."""

    source: ArraySource
    rules: Rules
    scheduler: Any = None

    @property
    def classes(self) -> int:
        return self.source.classes

    @property
    def n_features(self) -> int:
        return self.source.n_features

    @property
    def rows(self) -> int:
        return self.source.rows

    @property
    def is_stream(self) -> bool:
        """Whether rows are seen once, so that sums over pairs need a mergeable state."""
        return False

    @property
    def slack(self) -> float:
        """Allowed deviation of a prediction from [0, 1]."""
        return 0.0 if self.source.kind == "logits" else self.rules.tolerance

    def median_distance(self, notion: str) -> float:
        """Median of the positive distances between 1,000 predictions, or 1 without any.

        The value is cached.
        """
        distances: dict[str, float] = self.__dict__.setdefault("_distances", {})
        if notion not in distances:
            distances[notion] = pooled_distance([self.sample(notion).points])
        return distances[notion]

    @cached_property
    def prediction_range(self) -> tuple[float, float]:
        """Ends of the scalar predictions, by one pass over them unless they are probabilities.

        Valid probabilities may deviate from [0, 1] by the tolerance of the rules.
        """
        target: Any = self.source.target
        if target.has_classes:
            return -self.slack, 1.0 + self.slack
        low, high = np.inf, -np.inf
        size = self.source.block_rows
        rows = self.source.rows  # a stream has its first rows as the source
        for start in range(0, rows, size):
            block = self.source.read(start, min(start + size, rows), False)
            values = block.values.astype(np.float64).reshape(len(block.values), -1)
            with np.errstate(invalid="ignore", divide="ignore"):  # invalid rows are left out
                points = target.embedded(values, block.labels.astype(np.float64))[:, 0]
            points = points[np.isfinite(points)]
            low, high = points.min(initial=low), points.max(initial=high)
        return (float(low), float(high)) if low <= high else (0.0, 0.0)

    @cached_property
    def _chunks(self) -> list[Chunk]:
        sample = self._sampled(BANDWIDTH_ROWS)
        count = sum(map(len, sample))
        if self.source.weights is not None and 2 * count < BANDWIDTH_ROWS < self.source.rows:
            # Most rows have weight 0.  A larger sample has about 1,000 of the other rows.
            sample = self._sampled(min(_MAX_SAMPLED, BANDWIDTH_ROWS**2 // max(count, 1)))
        return sample

    def _sampled(self, count: int) -> list[Chunk]:
        rules = replace(self.rules, on_invalid="drop")
        blocks = (rules.target.without_labels(block) for block in self.source.sample(count))
        return [chunk for block in blocks for chunk, _ in chunks(block, rules)]

    def sample(self, notion: str) -> NotionRows:
        """Sample of 1,000 rows of positive weight by a counter hash, labelled or not.

        Labels and residuals of the sample are meaningless.
        """
        return NotionRows.join([NotionRows.of(chunk, notion) for chunk in self._chunks])

    def labelled_sample(self, max_rows: int) -> list[Chunk]:
        """Labelled rows of positive weight in a sample of about `max_rows` rows, by a counter hash.

        Invalid rows are left out.  A pass over all rows judges them.
        """
        blocks = list(self.source.read_sample(max_rows))
        if not blocks:
            return []
        # The blocks of a sample have a few rows each.  Together, they are a few chunks.
        weighted = blocks[0].weights is not None
        joined = Block(
            0,
            np.concatenate([block.values for block in blocks]),
            np.concatenate([block.labels for block in blocks]),
            np.concatenate([np.asarray(b.weights) for b in blocks]) if weighted else None,
            None,
        )
        rules = replace(self.rules, on_invalid="drop", covariates=(), group=None, cluster=None)
        return [chunk for chunk, _ in chunks(joined, rules) if len(chunk)]

    def held_out(
        self, notion: str, hold_out: HoldOut, columns: tuple[int, ...], max_rows: int
    ) -> NotionRows:
        """About `max_rows` of the labelled held-out rows, those with the smallest hashes.

        They take one pass.  Rows with `columns` that are not finite are excluded.
        """
        rules = replace(self.rules, covariates=columns)
        size = self.source.block_rows
        sample = hold_out.some(max_rows / self.source.rows)
        parts: list[NotionRows] = []
        for start in range(0, self.source.rows, size):
            stop = min(start + size, self.source.rows)
            for chunk, _ in chunks(self.source.read(start, stop, rules.reads_covariates), rules):
                parts.append(NotionRows.of(chunk.take(sample.holds(chunk.rows)), notion))
        return NotionRows.join(parts)

    def narrowed(self) -> DataProfile:
        """Profile for passes in which other covariates must be finite.

        Summaries are kept if no row was left out of them.
        """
        summaries = self.__dict__.get("_columns", {}).values()
        if all(summary.rows == self.rows for summary in summaries):
            return self
        return replace(self)

    def columns(self, names: tuple[str, ...]) -> dict[str, ColumnSummary]:
        """Summaries of the named covariates, by one pass.  They are cached."""
        summaries: dict[str, ColumnSummary] = self.__dict__.setdefault("_columns", {})
        missing = tuple(name for name in dict.fromkeys(names) if name not in summaries)
        if missing:
            summaries |= summarise(self.source, missing, self.rules.on_invalid, self.scheduler)
        return {name: summaries[name] for name in names}
