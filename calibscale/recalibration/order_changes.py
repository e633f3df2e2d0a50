"""Change of the area under the ROC curve by a recalibration of two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.derived_sources import Fold
from calibscale.data.source import ArraySource
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.row_scores import ChunkColumn, row_scores
from calibscale.recalibration.score_changes import AREA, CLUSTER_CELLS, with_limits
from calibscale.results.audit_results import ScoreChange
from calibscale.session import Session
from calibscale.statistics.bins import FineHistogram
from calibscale.statistics.row_moments import RowMomentState, moment_sums
from calibscale.statistics.score_histogram import ScoreHistogram, ScoreState
from calibscale.statistics.statistic import Statistic, added, weights_of

_HISTOGRAM = ScoreHistogram("positive")
_ENOUGH_ROWS = 2**20  # for the area of a map that may change the order
_SEED = 2**62  # of the rows that are drawn from more
# Columns of the rows: the probability before the change and the event, and both after the change.
_BEFORE, _EVENT, _AFTER = 0, 1, 2


class _EventProbability(ChunkColumn):
    """Predicted probability of the event of two classes, as a column of rows."""

    name = "probability of the event"

    def of(self, chunk: Chunk) -> Floats:
        return np.ascontiguousarray(chunk.q[:, 1])


class _Event(ChunkColumn):
    """Whether the event has occurred, 0 or 1, as a column of rows."""

    name = "event"

    def of(self, chunk: Chunk) -> Floats:
        return (chunk.labels == 1).astype(np.float64)


_COLUMNS = (_EventProbability(), _Event())


# ---------------------------------------------------------------- the areas


@dataclass(frozen=True)
class RankedScores(Statistic):
    """Weights of events and of other rows by the probability in a column, in a fold of the rows.

    The state is that of `ScoreHistogram`, with Σw·event for −Σwδ, and 0 for Σwp and for the
    variance.
    """

    column: int
    fold: Fold | None = None
    large_chunks: ClassVar[bool] = True  # a merge of many scores takes a time that is constant

    def zero(self, classes: int) -> ScoreState:
        return _HISTOGRAM.zero(classes)

    def accumulate(self, state: ScoreState, chunk: Any) -> ScoreState:
        held = _held(self.fold, chunk)
        scores, events = _column(chunk, self.column, held), _column(chunk, _EVENT, held)
        weights = chunk.weights[held] if len(chunk.weights) else chunk.weights
        if not state.exact:
            state = state.in_cells()
            FineHistogram("").add(scores, -events, weights, state.sums[:5])
        else:
            w = weights if len(weights) else np.ones(len(scores))
            zero = np.zeros(len(w))
            sums = np.array([np.ones(len(w)), w, w * w, zero, -w * events, zero])
            state = self.merge(state, ScoreState(scores, sums))
        # Without Σwp, sums of the same rows have the same bits before and after the change.
        state.sums[3] = 0.0
        return state

    def merge(self, a: ScoreState, b: ScoreState) -> ScoreState:
        return _HISTOGRAM.merge(a, b)


def _held(fold: Fold | None, chunk: Any) -> Any:
    """Index of the rows of a chunk in a fold, of which None has all rows."""
    if fold is None:
        return slice(None)
    if fold not in chunk.views:
        chunk.views[fold] = np.flatnonzero(fold.holds(chunk.units))
    return chunk.views[fold]


def _column(chunk: Any, column: int, held: Any) -> Floats:
    """A column of some rows of a chunk."""
    return np.ascontiguousarray(chunk.covariates[:, column][held])


class RanksOfScores(NamedTuple):
    """Area under the curve of the scores of some rows, and the influence of each score on it.

    `keys` are the scores in increasing order (c,), or None of cells, which are numbered from 0.
    `influences` has w(V − area)/Σw of rows with w = 1 by event and score (2, c), see `influence`.
    """

    keys: Floats | None
    influences: Floats
    events: float
    others: float
    area: float
    error: float

    @classmethod
    def of(cls, state: ScoreState) -> RanksOfScores:
        """Ranks from the weights by score, see `RankedScores`.

        The area is the probability that an event has a larger score than another row, where equal
        scores count half [Hanley & McNeil, Radiology 143 (1982)].  Rows of one cell count as equal,
        and the error of this is at most half of the share of their pairs.
        """
        state = state.sorted() if state.exact else state.in_cells()
        weight, events = state.sums[1], -state.sums[4]
        others = weight - events
        others_below = np.cumsum(others) - 0.5 * others
        events_above = events.sum() - (np.cumsum(events) - 0.5 * events)
        total = (float(events.sum()), float(others.sum()))
        pairs = total[0] * total[1]
        keys = state.keys if state.exact else None
        if not pairs > 0:
            return cls(keys, np.zeros((2, len(weight))), *total, float("nan"), 0.0)
        area = float(events @ others_below) / pairs
        # Shares of the other rows on the right side, less the area, of other rows and of events.
        influences = np.stack([events_above, others_below]) / pairs
        influences -= area / np.array([[total[1]], [total[0]]])
        error = 0.0 if state.exact else 0.5 * float(events @ others) / pairs
        return cls(keys, influences, *total, area, error)

    @property
    def exact(self) -> bool:
        """Whether every score is kept."""
        return self.keys is not None

    @property
    def pairs(self) -> float:
        """Weight of the pairs of an event and another row."""
        return self.events * self.others

    def influence(self, scores: Floats, event: Ints, w: Floats) -> Floats:
        """Influence of rows on the area (c,), whose squares sum to its variance.

        It is w(V − area)/Σw with the sum over the rows with the same event, and with the share V of
        the weight of the rows with the other event that a row is on the right side of [DeLong,
        DeLong & Clarke-Pearson, Biometrics 44 (1988)].
        """
        if self.keys is None:
            places = FineHistogram("").numbers(scores)
        else:
            places = np.searchsorted(self.keys, scores)
        return w * self.influences[event, places]


# ---------------------------------------------------------------- the error of their difference


@dataclass(frozen=True)
class AreaInfluences:
    """Influence of rows on the mean change of the area over the folds.

    `ranks` has those before and after the change by fold, and `shares` the weights of the folds.
    """

    folds: tuple[Fold | None, ...]
    ranks: tuple[tuple[RanksOfScores, RanksOfScores], ...]
    shares: tuple[float, ...]
    change: float
    rows: int
    columns: tuple[int, int] = (_BEFORE, _AFTER)

    def of(self, chunk: Any) -> Floats:
        """Influence of the rows of a chunk (c,)."""
        w, out = weights_of(chunk), np.zeros(len(chunk))
        for fold, (before, after), share in zip(self.folds, self.ranks, self.shares, strict=True):
            held = _held(fold, chunk)
            event = (_column(chunk, _EVENT, held) == 1.0).astype(np.int64)
            out[held] = share * (
                after.influence(_column(chunk, self.columns[1], held), event, w[held])
                - before.influence(_column(chunk, self.columns[0], held), event, w[held])
            )
        return out


@dataclass(frozen=True)
class InfluenceMoments(Statistic):
    """Moments of the pseudo-values of rows, of which the change of the area is the mean.

    The pseudo-value of one of n rows with the influence ψ is change + nψ, as Σψ = 0.
    """

    influences: AreaInfluences = field(compare=False, repr=False)

    def zero(self, classes: int) -> RowMomentState:
        return RowMomentState(np.zeros(()), np.zeros(()), np.zeros(3), np.zeros(4), np.zeros(5))

    def accumulate(self, state: RowMomentState, chunk: Any) -> RowMomentState:
        influences = self.influences
        values = influences.change + influences.rows * influences.of(chunk)
        # The influence of a row contains its weight.
        return added(state, *moment_sums(values, np.ones(len(chunk))))

    def moments(self, state: RowMomentState) -> RowMomentState:
        """Moments of the pseudo-values of independent units, which are rows."""
        return state


class ClusterInfluenceState(NamedTuple):
    """Number of rows, and the sum of their influence, by cell of clusters (cells,)."""

    rows: Floats
    influence: Floats


@dataclass(frozen=True)
class ClusterInfluences(Statistic):
    """Sums of the influence of rows on the change of the area, by cell of their cluster.

    The influence of a cluster is the sum over its rows [Obuchowski, Biometrics 53 (1997)].
    """

    influences: AreaInfluences = field(compare=False, repr=False)

    def zero(self, classes: int) -> ClusterInfluenceState:
        return ClusterInfluenceState(np.zeros(CLUSTER_CELLS), np.zeros(CLUSTER_CELLS))

    def accumulate(self, state: ClusterInfluenceState, chunk: Any) -> ClusterInfluenceState:
        cells = chunk.units % CLUSTER_CELLS
        influence = np.bincount(cells, self.influences.of(chunk), CLUSTER_CELLS)
        return added(state, np.bincount(cells, minlength=CLUSTER_CELLS).astype(float), influence)

    def moments(self, state: ClusterInfluenceState) -> RowMomentState:
        """Moments of the pseudo-values of independent units, which are the cells with rows."""
        influence = state.influence[state.rows > 0]
        values = self.influences.change + len(influence) * influence
        return moment_sums(values, np.ones(len(influence)))


# ---------------------------------------------------------------- the change


def order_change(
    before: Session,
    after: ArraySource,
    folds: Sequence[Fold] = (),
    keeps_order: bool = False,
    cluster: str | None = None,
    confidence_level: float = 0.95,
) -> ScoreChange:
    """Change of the area under the ROC curve from a session's predictions to those of `after`.

    One pass gives both areas, and a second one the error of their difference.  Of more than two
    million rows, about a million are drawn for both.  With up to 65,536
    different scores the areas are exact.  More scores are in cells, which count as equal, and the
    limits are wider by the largest error of this.  An increasing map of so many scores takes one
    pass over the predictions before the change alone, because it moves no score beyond another.

    Parameters
    ----------
    before : Session
        Session of the predictions of two classes before the change.
    after : ArraySource
        The same rows after the change.
    folds : sequence of Fold
        Folds that different maps have changed.  Then the area is the probability for pairs of rows
        of the same fold, because scores of different maps have no common order.
    keeps_order : bool
        Whether the map is increasing.  Then the area changes by ties alone.
    cluster : str, optional
        Covariate whose equal values are one cluster of dependent rows.
    confidence_level : float
        Level of the interval.
    """
    if keeps_order:
        kept = _area_of_cells(before)
        if kept is not None:
            return kept
    scored, note = None, ""
    if before.source.rows >= 2 * _ENOUGH_ROWS:
        scored = Fold(0, before.source.rows // _ENOUGH_ROWS, _SEED)
        note = "of a random sample of the rows"
    session = row_scores(before, before, (after,), _COLUMNS, (), cluster, scored=scored)
    names = session.source.covariate_names[: 2 * len(_COLUMNS)]
    parts: tuple[Fold | None, ...] = tuple(folds) or (None,)
    statistics = {
        (fold, column): RankedScores(column, fold) for fold in parts for column in (_BEFORE, _AFTER)
    }
    result = session.scan(statistics.values(), covariates=names)
    states = result.groups[None]
    ranks = tuple(
        (
            RanksOfScores.of(states[statistics[fold, _BEFORE]]),
            RanksOfScores.of(states[statistics[fold, _AFTER]]),
        )
        for fold in parts
    )
    rows = result.counts.used
    pairs = np.array([first.pairs for first, _ in ranks])
    if not np.all(pairs > 0):
        # A fold without an event, or with events alone, has no order to judge.
        return ScoreChange(score=AREA, n=rows, before=None, after=None)
    shares = pairs / pairs.sum()
    areas = shares @ np.array([(first.area, second.area) for first, second in ranks])
    errors = shares @ np.array([(first.error, second.error) for first, second in ranks])
    exact = all(first.exact and second.exact for first, second in ranks)
    if keeps_order and areas[0] == areas[1]:
        return _unchanged(float(areas[0]), rows)
    change = float(areas[1] - areas[0])
    # Limits and p-value are those of the smallest change that the cells allow, and the limits then
    # move by the largest error.
    error = float(errors.sum())
    least = float(np.sign(change)) * max(abs(change) - error, 0.0)
    influences = AreaInfluences(parts, ranks, tuple(shares.tolist()), least, rows)
    sums: InfluenceMoments | ClusterInfluences = InfluenceMoments(influences)
    units = "rows"
    if cluster is not None:
        sums, units = ClusterInfluences(influences), "clusters"
    moments = sums.moments(session.scan([sums], covariates=names).groups[None][sums])
    judged = ScoreChange(
        score=AREA, n=rows, before=float(areas[0]), after=float(areas[1]), change=change
    )
    judged = with_limits(judged, moments, confidence_level, units=units)
    judged = replace(judged, note="; ".join(text for text in (note, judged.note) if text))
    if judged.low is None or judged.high is None or exact:
        return judged
    moved = change - least
    low, high = max(judged.low + moved - error, -1.0), min(judged.high + moved + error, 1.0)
    return replace(judged, low=low, high=high)


def _area_of_cells(before: Session) -> ScoreChange | None:
    """Change of the area by an increasing map of many scores, which is 0, or None of few scores.

    In cells, the areas before and after would differ by their errors.
    """
    result = before.scan([_HISTOGRAM])
    state: ScoreState = result.groups[None][_HISTOGRAM]
    if state.exact:
        return None
    sums = state.sums.copy()
    sums[4] -= sums[3]  # −Σw·event, as δ = p − event
    ranks = RanksOfScores.of(state._replace(sums=sums))
    return _unchanged(ranks.area, result.counts.used) if ranks.pairs > 0 else None


def _unchanged(area: float, rows: int) -> ScoreChange:
    """An area that is the same before and after a change."""
    return ScoreChange(
        score=AREA, n=rows, before=area, after=area, change=0.0, low=0.0, high=0.0, p_value=1.0
    )
