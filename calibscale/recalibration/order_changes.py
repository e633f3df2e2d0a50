"""Change of the area under the ROC curve by a recalibration of two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
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
from calibscale.statistics.bins import FineHistogram, fine_borders
from calibscale.statistics.row_moments import RowMomentState, moment_sums
from calibscale.statistics.score_histogram import ScoreHistogram, ScoreState
from calibscale.statistics.statistic import Statistic, added, weights_of

_HISTOGRAM = ScoreHistogram("positive")
_ENOUGH_ROWS = 2**20  # for the area of a map that may change the order
_SEED = 2**62  # of the rows that are drawn from more
# Columns of the rows: the probability before the change and the event, and both after the change
# and after the exchanged one.
_BEFORE, _EVENT, _AFTER, _EXCHANGED = 0, 1, 2, 4
_SPACING = 2.0**-53  # of the numbers from ½ to 1
# Area that ties by rounding may cost, below which an increasing map is said to keep the area.
_NEGLIGIBLE = 1e-6


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
    `error` limits what the cells have changed of the area, and `ties` what rounding of the scores
    near 0 and 1 may have changed.
    """

    keys: Floats | None
    influences: Floats
    events: float
    others: float
    area: float
    error: float
    ties: float

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
            return cls(keys, np.zeros((2, len(weight))), *total, float("nan"), 0.0, 0.0)
        area = float(events @ others_below) / pairs
        # Shares of the other rows on the right side, less the area, of other rows and of events.
        influences = np.stack([events_above, others_below]) / pairs
        influences -= area / np.array([[total[1]], [total[0]]])
        half_of_pairs = 0.5 * events * others / pairs
        rounding = _rounding_of_cells()
        if state.exact:
            error = 0.0
            rounding = rounding[FineHistogram("").numbers(state.keys)]
        else:
            # Rows of a cell of one number have the same score, so that they are equal indeed.
            error = float(half_of_pairs[rounding < 1.0].sum())
        # The first cell has 0 and many small numbers, and its sums do not tell them apart.
        is_zero = state.keys[0] <= 0.0 if state.exact else True
        ties = float(half_of_pairs @ rounding + is_zero * half_of_pairs[0])
        return cls(keys, influences, *total, area, error, ties)

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


@cache
def _rounding_of_cells() -> Floats:
    """Share of two scores of a cell of `FineHistogram` that are equal by rounding (2^16,).

    It is 1 for cells of one number, and 0 below ½, where numbers are denser than cells.
    """
    half = FineHistogram.CELLS // 2
    # Cells above ½ mirror those below, whose borders are exact.
    widths = np.diff(fine_borders()[: half + 1])[::-1]
    # The cells next to ½ have no width and no scores but ½.
    shares = np.divide(_SPACING, widths, out=np.ones(half), where=widths > 0)
    return np.concatenate([np.zeros(half), np.minimum(shares, 1.0)])


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
    columns: tuple[int, int] = (_BEFORE, _AFTER)  # of the influences

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

    def has_changes(self, state: RowMomentState) -> bool:
        """Whether a row has an influence on the change of the area."""
        return bool(state.second[2] > 0)


class ClusterInfluenceState(NamedTuple):
    """Number of rows and the sum of their influence by cell of clusters (cells,).

    `size` is the sum of the absolute influence of all rows, 0-d.
    """

    rows: Floats
    influence: Floats
    size: Floats


@dataclass(frozen=True)
class ClusterInfluences(Statistic):
    """Sums of the influence of rows on the change of the area, by cell of their cluster.

    The influence of a cluster is the sum over its rows [Obuchowski, Biometrics 53 (1997)].
    """

    influences: AreaInfluences = field(compare=False, repr=False)
    columns: tuple[int, int] = (_BEFORE, _AFTER)  # of the influences

    def zero(self, classes: int) -> ClusterInfluenceState:
        return ClusterInfluenceState(np.zeros(CLUSTER_CELLS), np.zeros(CLUSTER_CELLS), np.zeros(()))

    def accumulate(self, state: ClusterInfluenceState, chunk: Any) -> ClusterInfluenceState:
        cells = chunk.units % CLUSTER_CELLS
        influence = self.influences.of(chunk)
        return added(
            state,
            np.bincount(cells, minlength=CLUSTER_CELLS).astype(float),
            np.bincount(cells, influence, CLUSTER_CELLS),
            np.abs(influence).sum(),
        )

    def moments(self, state: ClusterInfluenceState) -> RowMomentState:
        """Moments of the pseudo-values of independent units, which are the cells with rows."""
        influence = state.influence[state.rows > 0]
        values = self.influences.change + len(influence) * influence
        return moment_sums(values, np.ones(len(influence)))

    def has_changes(self, state: ClusterInfluenceState) -> bool:
        """Whether a row has an influence on the change of the area."""
        return bool(state.size > 0)


# ---------------------------------------------------------------- the change


class _RankedRows(NamedTuple):
    """Areas of rows by fold and version: before the change, after it, and after the exchange."""

    session: Session
    covariates: tuple[str, ...]
    folds: tuple[Fold | None, ...]
    ranks: tuple[tuple[RanksOfScores, ...], ...]
    rows: int

    @classmethod
    def of(
        cls,
        before: Session,
        versions: tuple[ArraySource, ...],
        folds: tuple[Fold | None, ...],
        cluster: str | None,
        scored: Fold | None,
    ) -> _RankedRows:
        """Ranks from a pass over the rows `scored`, None for all."""
        session = row_scores(before, before, versions, _COLUMNS, (), cluster, scored=scored)
        names = session.source.covariate_names[: (1 + len(versions)) * len(_COLUMNS)]
        columns = (_BEFORE, _AFTER, _EXCHANGED)[: 1 + len(versions)]
        statistics = [[RankedScores(column, fold) for column in columns] for fold in folds]
        listed = [statistic for of_fold in statistics for statistic in of_fold]
        result = session.scan(listed, covariates=names)
        states = result.groups[None]
        ranks = tuple(
            tuple(RanksOfScores.of(states[statistic]) for statistic in of_fold)
            for of_fold in statistics
        )
        return cls(session, names, folds, ranks, result.counts.used)

    @property
    def pairs(self) -> Floats:
        """Weight of the pairs of each fold."""
        return np.array([before.pairs for before, *_ in self.ranks])

    @property
    def shares(self) -> Floats:
        """Share of each fold in the pairs."""
        return self.pairs / self.pairs.sum()

    @property
    def areas(self) -> Floats:
        """Mean area of the folds by version."""
        of_folds = np.array([[ranks.area for ranks in versions] for versions in self.ranks])
        return np.asarray(self.shares @ of_folds)

    @property
    def error(self) -> float:
        """Largest error of the change of the area by cells."""
        of_folds = [before.error + after.error for before, after, *_ in self.ranks]
        return float(self.shares @ np.array(of_folds))

    @property
    def exact(self) -> bool:
        """Whether no area is of cells."""
        return all(ranks.exact for versions in self.ranks for ranks in versions)

    @property
    def makes_ties(self) -> bool:
        """Whether an increasing map may have changed the area by ties, which rounding makes."""
        before, after, *_ = self.areas
        if self.exact:
            return bool(before != after)
        of_folds = [max(ranks.ties for ranks in versions) for versions in self.ranks]
        return float(self.shares @ np.array(of_folds)) > _NEGLIGIBLE

    def influences(self, change: float, columns: tuple[int, int]) -> AreaInfluences:
        """Influence of rows on a change between the areas of two columns."""
        first, second = (column // len(_COLUMNS) for column in columns)
        ranks = tuple((versions[first], versions[second]) for versions in self.ranks)
        return AreaInfluences(
            self.folds, ranks, tuple(self.shares.tolist()), change, self.rows, columns
        )


def order_change(
    before: Session,
    after: ArraySource,
    folds: Sequence[Fold] = (),
    keeps_order: bool = False,
    cluster: str | None = None,
    confidence_level: float = 0.95,
    exchanged: ArraySource | None = None,
) -> ScoreChange:
    """Change of the area under the ROC curve from a session's predictions to those of `after`.

    One pass gives both areas, and a second one the error of their difference.  From 2.1 million
    rows on, 1 to 1.6 million random rows stand for all of them, with the same share of the rows of
    either label.  With up to 65,536 different scores the areas are exact.  More scores are in
    cells, which count as equal, and the limits are wider by the largest error of this.

    An increasing map moves no score beyond another, so that the area is that before the change if
    few scores are so near to 0 or 1 that rounding may make them equal.  It is then that of all
    rows, for which many rows have a second pass.

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
    exchanged : ArraySource, optional
        If a fit to each of two folds changes the other one, the same rows after the change by the
        fit to their own fold.  Then the errors of both folds are alike, and half of the squares of
        the distances of the influences of both versions are added to the variance, see
        `calibscale.recalibration.score_changes`.
    """
    parts: tuple[Fold | None, ...] = tuple(folds) or (None,)
    versions = (after,) if keeps_order or exchanged is None else (after, exchanged)
    scored = None
    if before.source.rows >= 2 * _ENOUGH_ROWS:
        scored = Fold(0, before.source.rows // _ENOUGH_ROWS, _SEED)
    ranked = _RankedRows.of(before, versions, parts, cluster, scored)
    if keeps_order and scored is not None and np.all(ranked.pairs > 0):
        if not ranked.makes_ties:
            # The map need not be computed for all rows, whose area is that before the change.
            ranked = _RankedRows.of(before, (), parts, cluster, None)
            return _unchanged(float(ranked.areas[0]), ranked.rows)
        if ranked.exact:
            # Few different scores have an exact area of all rows.
            scored = None
            ranked = _RankedRows.of(before, versions, parts, cluster, scored)
    if not np.all(ranked.pairs > 0):
        # A fold without an event, or with events alone, has no order to judge.
        return ScoreChange(score=AREA, n=ranked.rows, before=None, after=None)
    first, second = ranked.areas[:2].tolist()
    if keeps_order and not ranked.makes_ties:
        return _unchanged(first, ranked.rows)
    change = second - first
    # Limits and p-value are those of the smallest change that the cells allow, and the limits then
    # move by the largest error.
    error = ranked.error
    least = float(np.sign(change)) * max(abs(change) - error, 0.0)
    judged = ScoreChange(score=AREA, n=ranked.rows, before=first, after=second, change=change)
    judged = _with_limits_of(judged, ranked, least, cluster, confidence_level, len(versions) > 1)
    if scored is not None:
        note = f"of a random sample of {ranked.rows:,} rows"
        judged = replace(judged, note="; ".join(text for text in (note, judged.note) if text))
    if judged.low is None or judged.high is None or error == 0.0:
        return judged
    moved = change - least
    low, high = max(judged.low + moved - error, -1.0), min(judged.high + moved + error, 1.0)
    return replace(judged, low=low, high=high)


def _with_limits_of(
    judged: ScoreChange,
    ranked: _RankedRows,
    least: float,
    cluster: str | None,
    confidence_level: float,
    is_crossed: bool,
) -> ScoreChange:
    """Change of the area with the limits of its smallest value `least`, from a pass.

    With `is_crossed` there is the exchanged version, which shows the dependence of both folds.
    """
    units = "rows" if cluster is None else "clusters"
    of_units = InfluenceMoments if cluster is None else ClusterInfluences
    between = [(_BEFORE, _AFTER)]
    if is_crossed:
        between.append((_AFTER, _EXCHANGED))
    statistics: list[Any] = [
        of_units(ranked.influences(value, columns), columns)
        for value, columns in zip((least, 0.0), between, strict=False)
    ]
    states = ranked.session.scan(statistics, covariates=ranked.covariates).groups[None]
    sums, *distances = statistics
    dependence = 0.0
    for distance in distances:
        dependence = 0.5 * float(distance.moments(states[distance]).second[2])
    return with_limits(
        judged,
        sums.moments(states[sums]),
        confidence_level,
        dependence,
        units,
        has_changes=sums.has_changes(states[sums]),
    )


def _unchanged(area: float, rows: int) -> ScoreChange:
    """An area that is the same before and after a change."""
    return ScoreChange(
        score=AREA, n=rows, before=area, after=area, change=0.0, low=0.0, high=0.0, p_value=1.0
    )
