"""Changes of the scores of rows by a recalibration, as a source of their means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.derived_sources import DerivedSource
from calibscale.data.source import ArraySource
from calibscale.intervals.mean_limits import skewed_limits
from calibscale.predictions.blocks import Block
from calibscale.predictions.functionals.means import MeanPrediction
from calibscale.predictions.validation import chunks
from calibscale.session import Session
from calibscale.statistics.row_moments import RowMoments, RowMomentState

_HALVINGS = 60  # of the interval of a p-value, down to the precision of its logarithm
_SMALLEST = 1e-15  # p-value, below which quantiles lose their digits


class ChangeLimits(NamedTuple):
    """Limits of the mean change of a score, and the p-value of no change."""

    low: float
    high: float
    p_value: float


@dataclass(frozen=True, eq=False, repr=False)
class _ScorePairs(DerivedSource):
    """Scores of rows `after` a change as predictions of their scores before it, the outcomes."""

    after: ArraySource = field(kw_only=True)
    score: Any = field(kw_only=True)

    @property
    def row_bytes(self) -> int:
        return self.before.row_bytes + self.after.row_bytes

    def describe(self) -> dict[str, Any]:
        return {**self.before.describe(), "name": self.name}

    def part(self, start: int, stop: int, covariates: bool = False) -> Self:
        part = super().part(start, stop, covariates)
        object.__setattr__(part, "after", self.after.part(start, stop))
        return part

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        block = self.before.read(start, stop, covariates)
        before = self._scores(self.before, block)
        after = self._scores(self.after, self.after.read(start, stop))
        # Rows that are invalid or unlabelled in one version count in neither, without an error.
        both = np.isfinite(before) & np.isfinite(after)
        return block._replace(
            values=np.where(both, after, 0.0), labels=np.where(both, before, np.nan)
        )

    def _scores(self, source: ArraySource, block: Block) -> Floats:
        """Score of each row of a block, NaN without one (c,)."""
        out = np.full(len(block.labels), np.nan)
        for chunk, _ in chunks(block, source.rules("drop")):
            out[chunk.rows - block.start] = self._of_chunk(chunk)
        return out

    def _of_chunk(self, chunk: Any) -> Any:
        if chunk.target.has_classes:
            return getattr(chunk, self.score.name)  # a column of chunks of classes
        column, *_ = self.score.rows(chunk.target, chunk.values, chunk.outcomes)
        return column


@dataclass(frozen=True)
class _Differences:
    """Differences of predictions and outcomes, whose moments are those of the changes of scores."""

    def rows(self, target: Any, values: Floats, outcomes: Floats) -> Sequence[Floats]:
        return [values[:, 0] - outcomes]


def change_limits(
    before: Session, after: ArraySource, score: Any, confidence_level: float = 0.95
) -> ChangeLimits | None:
    """Limits of the mean change of a score from a session's predictions to those of `after`.

    Changes of rows are paired and may be skewed, see `skewed_limits`.  None is returned if there
    are too few rows.
    """
    mean = MeanPrediction()
    # The score of a kind may depend on its settings, such as the level of a quantile.
    (bound,) = before.run([score]).fitting
    pairs = _ScorePairs.of(
        before.source,
        kind=mean.name,
        forecast=mean,
        binary=False,
        class_names=None,
        columns={},
        after=after,
        score=bound,
    )
    moments = RowMoments(_Differences())
    state: RowMomentState = before.on(pairs).scan([moments]).groups[None][moments]
    limits = skewed_limits(state, confidence_level)
    if limits is None:
        return None
    return ChangeLimits(float(limits.low), float(limits.high), _p_value(state))


def _p_value(state: RowMomentState) -> float:
    """Smallest level of significance at which the limits exclude a mean of 0."""
    low, high = np.log(_SMALLEST), 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        limits = skewed_limits(state, 1.0 - float(np.exp(middle)))
        assert limits is not None  # as at any other level
        if limits.low > 0 or limits.high < 0:
            high = middle
        else:
            low = middle
    return float(np.exp(high))
