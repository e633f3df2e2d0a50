"""Venn–Abers predictors: isotonic regression with the new row as either label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from calibscale.array_types import Floats
from calibscale.compiled.isotonic_corners import set_upper_values
from calibscale.errors import require
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Read,
    RecalibrationMethod,
    Share,
    StoredFit,
    increasing,
)
from calibscale.statistics.bins import FineHistogram
from calibscale.statistics.score_histogram import MAX_SCORES, OccupiedCells, ScoreHistogram

_SCORES = ScoreHistogram("positive")
_CELLS = FineHistogram("positive")
_ROUNDING = 1e-9


class LabelBounds(NamedTuple):
    """Limits of the interval at each score (k,): values with the new row as 0, and as 1."""

    low: Floats
    high: Floats


@dataclass(frozen=True)
class VennAbers(RecalibrationMethod):
    """Interval of two isotonic regressions, and the probability between its ends.

    For two classes, in one pass.  The inductive Venn–Abers predictor adds the new row to the rows
    of the fit, once with the label 0 and once with 1.  The isotonic regressions have the values p0
    and p1 at its score, and p' = p1/(1 − p0 + p1), which is between them and never 0 or 1 [Vovk &
    Petej, UAI (2014); Vovk, Petej & Fedorova, NeurIPS (2015)].

    If the new row is exchangeable with the rows of the fit, the interval is valid: the end that
    belongs to the label of the row, p1 for an event and p0 for none, is perfectly calibrated,
    E[y | p_y] = p_y, for any number of rows and any scores.  The label is not known, and p' itself
    has no guarantee.  The model must not have been fitted to the rows.

    Up to 65,536 different scores are kept apart, and the values are exact.  More scores are
    replaced by their cells of `FineHistogram`, which do not depend on the rows: the values are
    exact for these coarser scores.  With weights, the row that is added has the weight Σw²/Σw, and
    there is no guarantee, as in clusters of dependent rows.
    """

    name: ClassVar[str] = "venn_abers"

    @classmethod
    def fit_class(cls) -> type[VennAbersFit]:
        return VennAbersFit

    def _fit(self, setup: DataProfile, read: Read) -> VennAbersFit:
        result = read(_SCORES)
        state = result.groups[None][_SCORES].sorted()
        positive = state.sums[1] > 0
        # Keys of cells count from the end, because keys of scores are at least 0.
        keys = state.keys[positive] + (0.0 if state.exact else MAX_SCORES)
        cells = OccupiedCells.of(state.sums)
        events, unit = cells.events, cells.unit
        if setup.source.weights is None:
            # Without weights, sums are numbers of rows, which have no rounding errors.
            events, unit = np.rint(events), 1.0
        bounds = interval_bounds(cells.weight, events, unit)
        widths = bounds.high - bounds.low
        notes: tuple[str, ...] = ()
        if setup.source.weights is not None:
            notes = ("rows with weights are not exchangeable: the interval has no guarantee",)
        # Scores beside which a limit does not change are left out.
        first = np.flatnonzero(np.diff(bounds.low, prepend=0.0))
        last = np.flatnonzero(np.diff(bounds.high, append=1.0))
        return VennAbersFit(
            low_from=keys[first],
            low=bounds.low[first],
            high_until=keys[last],
            high=bounds.high[last],
            in_cells=not state.exact,
            scores=len(keys),
            mean_width=float(widths @ cells.share),
            largest_width=float(widths.max()),
            method=self,
            classes=setup.classes,
            counts=result.counts,
            passes=1,
            notes=notes,
        )


def interval_bounds(weights: Floats, events: Floats, unit: float) -> LabelBounds:
    """Limits at each of the increasing scores, with weights (k,) and weights of events (k,)."""
    high = _upper(weights, events, unit)
    # The lower limit is the upper one of the other label with the scores in the other order.
    low = 1.0 - _upper(weights[::-1], (weights - events)[::-1], unit)[::-1]
    # Slopes of the same edge may differ by rounding.
    return LabelBounds(np.maximum.accumulate(low), np.maximum.accumulate(high))


def _upper(weights: Floats, events: Floats, unit: float) -> Floats:
    """Value at each score with one more event there."""
    count = len(weights)
    values, x, y = np.empty(count), np.empty(count + 2), np.empty(count + 2)
    corners = np.empty(count + 2, np.int64)
    columns = (np.ascontiguousarray(column) for column in (weights, events))
    set_upper_values(*columns, unit, x, y, corners, values)
    return np.clip(values, 0.0, 1.0)


# Scores are numbers from 0 to 1, or numbers of cells.
_Scores = Annotated[
    list[Annotated[float, Field(ge=0.0, le=float(MAX_SCORES))]], Field(max_length=MAX_SCORES)
]
_Limits = Annotated[list[Share], Field(max_length=MAX_SCORES)]


class StoredVennAbers(StoredFit):
    """State of `VennAbersFit`."""

    low_from: _Scores
    low: _Limits
    high_until: _Scores
    high: _Limits
    in_cells: bool
    scores: Annotated[int, Field(ge=1, le=MAX_SCORES)]
    mean_width: Share
    largest_width: Share

    @model_validator(mode="after")
    def _is_interval(self) -> Self:
        for scores, limits in (("low_from", "low"), ("high_until", "high")):
            numbers, values = getattr(self, scores), getattr(self, limits)
            require(len(numbers) == len(values), f"{scores} and {limits} must be equally many")
            require(increasing(numbers), f"{scores} must increase")
            require(increasing(values, strictly=False), f"{limits} must not decrease")
            if not self.in_cells:
                require(not numbers or numbers[-1] <= 1.0, f"{scores} must be at most 1")
        steps = _Steps(*(np.array(getattr(self, name)) for name in _Steps._fields))
        # Between two changes both limits are constant.
        bounds = steps.at(np.append(steps.low_from, steps.high_until))
        require((bounds.low <= bounds.high + _ROUNDING).all(), "low must be at most high")
        return self


class _Steps(NamedTuple):
    """Step functions: `low` from each score on, and `high` up to and including each score."""

    low_from: Floats
    low: Floats
    high_until: Floats
    high: Floats

    def at(self, scores: Floats) -> LabelBounds:
        """Limits at scores (c,): 0 below all steps of the lower one, 1 above all of the upper."""
        # The regression with a new 0 below a score is that of the score, and so with a 1 above it.
        lower = np.searchsorted(self.low_from, scores, "right")
        upper = np.searchsorted(self.high_until, scores, "left")
        return LabelBounds(np.append(0.0, self.low)[lower], np.append(self.high, 1.0)[upper])


@dataclass(frozen=True, eq=False, kw_only=True)
class VennAbersFit(FittedRecalibrator):
    """Limits of intervals as step functions of the score, or of its cell if `in_cells`.

    `scores` is the number of different scores or cells of the rows of the fit, and `mean_width` and
    `largest_width` are of the intervals at them.
    """

    low_from: Floats
    low: Floats
    high_until: Floats
    high: Floats
    in_cells: bool
    scores: int
    mean_width: float
    largest_width: float
    stored: ClassVar[type[StoredFit]] = StoredVennAbers

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "scores": self.scores,
            "mean_width": self.mean_width,
            "largest_width": self.largest_width,
        }

    def intervals(self, chunk: Chunk) -> Floats:
        p = chunk.event("positive").p
        scores = _CELLS.numbers(p).astype(np.float64) if self.in_cells else p
        steps = _Steps(*(getattr(self, name) for name in _Steps._fields))
        return np.column_stack(steps.at(scores))

    def predictions(self, chunk: Chunk) -> Floats:
        low, high = self.intervals(chunk).T
        # This probability has the smallest possible regret of the log loss over both labels.
        total = 1.0 - low + high
        return np.column_stack([(1.0 - low) / total, high / total])
