"""Change of the area under the ROC curve by a recalibration of two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
# Columns of the rows: the probability before the change and the event, and both after the change.
_BEFORE, _EVENT, _AFTER = 0, 1, 2


class _EventProbability(ChunkColumn):
    """Predicted probability of the event of two classes, as a column of rows."""

    name = "probability of the event"

    def of(self, chunk: Chunk) -> Floats:
        return chunk.event("positive").p


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

    def zero(self, classes: int) -> ScoreState:
        return _HISTOGRAM.zero(classes)

    def accumulate(self, state: ScoreState, chunk: Any) -> ScoreState:
        held = _held(self.fold, chunk)
        scores = chunk.covariates[held, self.column]
        w = weights_of(chunk)[held]
        zero = np.zeros(len(w))
        # Without Σwp, sums of the same rows have the same bits before and after the change.
        events = w * chunk.covariates[held, _EVENT]
        sums = np.array([np.ones(len(w)), w, w * w, zero, -events, zero])
        return self.merge(state, ScoreState(scores, sums))

    def merge(self, a: ScoreState, b: ScoreState) -> ScoreState:
        return _HISTOGRAM.merge(a, b)


def _held(fold: Fold | None, chunk: Any) -> Any:
    """Whether each row of a chunk is in a fold (c,), of which None has all rows."""
    return np.ones(len(chunk), bool) if fold is None else fold.holds(chunk.units)


class RanksOfScores(NamedTuple):
    """Ranks of scores among the events and among the other rows.

    `keys` are the scores in increasing order, or numbers of cells (c,).  `others_below` has the
    weight of other rows with a smaller score and half of the weight with the same one, and
    `events_above` the weight of events with a larger score and half of those with the same one.
    """

    keys: Floats
    exact: bool
    others_below: Floats
    events_above: Floats
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
        state = state.sorted()
        has_rows = state.sums[1] > 0
        weight, events = state.sums[1, has_rows], -state.sums[4, has_rows]
        others = weight - events
        others_below = np.cumsum(others) - 0.5 * others
        events_above = events.sum() - (np.cumsum(events) - 0.5 * events)
        total = (float(events.sum()), float(others.sum()))
        pairs = total[0] * total[1]
        area = float(events @ others_below) / pairs if pairs > 0 else float("nan")
        error = 0.5 * float(events @ others) / pairs if pairs > 0 and not state.exact else 0.0
        return cls(
            state.keys[has_rows], state.exact, others_below, events_above, *total, area, error
        )

    @property
    def pairs(self) -> float:
        """Weight of the pairs of an event and another row."""
        return self.events * self.others

    def influence(self, scores: Floats, event: Any, w: Floats) -> Floats:
        """Influence of rows on the area (c,), whose squares sum to its variance.

        It is w(V − area)/Σw with the sum over the rows with the same event, and with the share V of
        the weight of the rows with the other event that a row is on the right side of [DeLong,
        DeLong & Clarke-Pearson, Biometrics 44 (1988)].
        """
        if self.exact:
            place: Ints = np.searchsorted(self.keys, scores)
        else:
            # Cells of a `ScoreState` have negative keys.
            cells = FineHistogram("").numbers(scores) - FineHistogram.CELLS
            place = np.searchsorted(self.keys, cells)
        right = np.where(
            event, self.others_below[place] / self.others, self.events_above[place] / self.events
        )
        return w * (right - self.area) / np.where(event, self.events, self.others)


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
            rows = chunk.covariates[held]
            event, weights = rows[:, _EVENT] == 1.0, w[held]
            out[held] = share * (
                after.influence(rows[:, self.columns[1]], event, weights)
                - before.influence(rows[:, self.columns[0]], event, weights)
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

    One pass gives both areas, and a second one the error of their difference.  With up to 65,536
    different scores the areas are exact.  More scores are in cells, which count as equal, and the
    limits are wider by the largest error of this.

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
    session = row_scores(before, before, (after,), _COLUMNS, (), cluster, step=1)
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
    if keeps_order and (not exact or areas[0] == areas[1]):
        # The same order has the same area.  In cells, it would differ by their errors.
        area = float(areas[0])
        return ScoreChange(
            score=AREA, n=rows, before=area, after=area, change=0.0, low=0.0, high=0.0, p_value=1.0
        )
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
    if judged.low is None or judged.high is None or exact:
        return judged
    moved = change - least
    low, high = max(judged.low + moved - error, -1.0), min(judged.high + moved + error, 1.0)
    return replace(judged, low=low, high=high)
