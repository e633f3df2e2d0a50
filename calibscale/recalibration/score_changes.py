"""Changes of the scores of rows by a recalibration, from one pass over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.derived_sources import Fold
from calibscale.data.source import ArraySource
from calibscale.estimators.base import Estimator
from calibscale.estimators.scores import Accuracy
from calibscale.evaluation.group_sessions import by_groups
from calibscale.formatting import number_texts
from calibscale.inference.multiple_testing import holm
from calibscale.intervals.mean_limits import skewed_limits
from calibscale.recalibration.recalibration_texts import NO_INTERVAL
from calibscale.recalibration.row_scores import LARGEST, row_scores
from calibscale.results.audit_results import GroupChange, ScoreChange
from calibscale.results.cluster_results import Clusters
from calibscale.results.levels import Level
from calibscale.session import Session
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.row_moments import RowMoments, RowMomentState, moment_sums
from calibscale.statistics.statistic import Statistic, added, weights_of

_HALVINGS = 60  # of the interval of a p-value, down to the precision of its logarithm
_SMALLEST = 1e-15  # p-value, below which quantiles lose their digits
_ENOUGH_ROWS = 2**17  # for a variance
_MOST_FOLDS = 16  # at least one row of so many has the scores of a second version
_SEED = 2**61  # of the rows that have them
_ROUNDING = 1e-9  # relative difference of two sums of the same weights
_ENOUGH_OF_GROUP = 100.0  # effective rows of a group with scores of both versions
AREA = "auc"  # name of the area under the ROC curve
_SHARES = (Accuracy.name, AREA)  # scores from 0 to 1
# Sums of clusters are kept in cells by their hash.  Clusters of one cell count as one, which costs
# degrees of freedom only.
CLUSTER_CELLS = 2**10
# A group is named by its covariate and its value, instead of the score.
_SHARED_FIELDS = [field for field in fields(ScoreChange) if field.name != "score"]


class ChangeState(NamedTuple):
    """Sums of s scores before and after a change.

    `totals` has Σw·score before and after the change of rows with finite scores (2, s), and
    `infinite` the number of rows with infinite ones (2, s).  Rows of weight 0 are not counted.  The
    next five are the sums of a `RowMomentState` of each score's differences, with the scores on the
    first axis.  `size` has Σw|d| of the differences of rows, also where clusters take their place
    (s,).  `distance` has Σw², Σw²d and Σw²d² of the differences d between both versions after
    the change (s, 3), in the rows with the finite score of a second version.
    """

    totals: Floats
    infinite: Floats
    total: Floats
    weight: Floats
    second: Floats
    third: Floats
    fourth: Floats
    size: Floats
    distance: Floats

    def moments(self, number: int) -> RowMomentState:
        """Moments of the differences of a score."""
        fields = (self.total, self.weight, self.second, self.third, self.fourth)
        return RowMomentState(*(field[number] for field in fields))


@dataclass(frozen=True)
class ChangeSums(Statistic):
    """Sums of the scores of `RowScores` with one or two `versions`, and of their differences."""

    scores: int
    versions: int = 1
    powers: ClassVar[tuple[int, ...]] = (1, 0, *RowMoments.powers, 1, 2)

    def zero(self, classes: int) -> ChangeState:
        s = self.scores
        shapes = ((2, s), (2, s), (s,), (s,), (s, 3), (s, 4), (s, 5), (s,), (s, 3))
        return ChangeState(*map(np.zeros, shapes))

    def accumulate(self, state: ChangeState, chunk: Any) -> ChangeState:
        w = weights_of(chunk)
        scores, infinite = _scores_of(chunk, self.versions, self.scores)
        before, after = scores[:2]
        # Most of many rows have no score of a second version.
        squares = np.where(infinite[-1], 0.0, w * w)
        return added(
            state,
            scores[:2] @ w,
            infinite[:2].sum(axis=2),
            *moment_sums(after - before, w),
            np.abs(after - before) @ w,
            _distance_sums(scores[-1] - after, squares),
        )


class ClusterChangeState(NamedTuple):
    """Sums of s scores before and after a change, by cell of clusters.

    `totals` and `infinite` (2, s) are as in `ChangeState`.  The others have Σw of each cell
    (cells,), and Σwd of the differences d of each score (s, cells), from before to after the change
    and from the first version after the change to the second.  `size` has Σw|d| of all rows (s,).
    """

    totals: Floats
    infinite: Floats
    weight: Floats
    changes: Floats
    distances: Floats
    size: Floats


@dataclass(frozen=True)
class ClusterChangeSums(Statistic):
    """Sums of the scores of `RowScores` by cells of the hash of the cluster of a row."""

    scores: int
    versions: int = 1

    def zero(self, classes: int) -> ClusterChangeState:
        s = self.scores
        of_cells = (s, CLUSTER_CELLS)
        shapes = ((2, s), (2, s), (CLUSTER_CELLS,), of_cells, of_cells, (s,))
        return ClusterChangeState(*map(np.zeros, shapes))

    def accumulate(self, state: ClusterChangeState, chunk: Any) -> ClusterChangeState:
        w, cells = weights_of(chunk), chunk.units % CLUSTER_CELLS
        scores, infinite = _scores_of(chunk, self.versions, self.scores)
        before, after = scores[:2]
        changes, distances = (
            np.array([np.bincount(cells, w * column, CLUSTER_CELLS) for column in differences])
            for differences in (after - before, scores[-1] - after)
        )
        return added(
            state,
            scores[:2] @ w,
            infinite[:2].sum(axis=2),
            np.bincount(cells, w, CLUSTER_CELLS),
            changes,
            distances,
            np.abs(after - before) @ w,
        )

    def total(self, state: ClusterChangeState) -> ChangeState:
        """Sums of clusters in place of rows: each has its weight, and its mean as the score."""
        has_rows = state.weight > 0
        w = state.weight[has_rows]
        changes, distances = (
            sums[:, has_rows] / np.maximum(w, np.finfo(np.float64).tiny)
            for sums in (state.changes, state.distances)
        )
        squares = np.broadcast_to(w * w, distances.shape)
        return ChangeState(
            state.totals,
            state.infinite,
            *moment_sums(changes, w),
            state.size,
            _distance_sums(distances, squares),
        )


def _scores_of(chunk: Any, versions: int, count: int) -> tuple[Floats, Any]:
    """Scores (1 + versions, count, c) of the rows of `RowScores`, and whether each is infinite.

    Infinite scores are 0.
    """
    columns = chunk.covariates[:, : (1 + versions) * count]
    scores = columns.T.reshape(1 + versions, count, len(chunk)).copy()
    infinite = np.abs(scores) >= LARGEST
    scores[infinite] = 0.0
    # A row of weight 0 adds 0, even if its score is infinite.
    infinite &= weights_of(chunk) > 0
    return scores, infinite


def _distance_sums(distances: Floats, squares: Any) -> Floats:
    """Σw², Σw²d and Σw²d² (s, 3) of distances d and squared weights (s, c)."""
    return np.array(
        [[w2.sum(), w2 @ d, w2 @ d**2] for w2, d in zip(squares, distances, strict=True)]
    )


class Changes(NamedTuple):
    """Changes of scores in all rows, and of the first score in each group."""

    scores: tuple[ScoreChange, ...]
    groups: tuple[GroupChange, ...]


def score_changes(
    before: Session,
    after: ArraySource,
    scores: Sequence[Estimator],
    group_by: Any = None,
    confidence_level: float = 0.95,
    exchanged: ArraySource | None = None,
    cluster: str | None = None,
) -> Changes:
    """Changes of mean scores from a session's predictions to those of `after`.

    Changes of rows are paired and may be skewed, see `skewed_limits`.  Scores of rows of weight w
    count w times.  There are no limits if there are too few rows, and there is no change of a score
    that is infinite before or after.  All scores have one pass, with the groups of one covariate,
    and the groups of each further one have another pass.

    Parameters
    ----------
    before : Session
        Session of the predictions before the change.
    after : ArraySource
        The same rows after the change.
    scores : sequence of Estimator
        Scores of rows.
    group_by : str or sequence of str, optional
        Groups, as of `calibscale.evaluate`.
    confidence_level : float
        Level of each interval of a score, and of all intervals of the groups at once.
    exchanged : ArraySource, optional
        If a fit to each half of the rows changes the other half, the same rows after the change by
        the fit to their own half.  Then the errors of both halves are alike: see `_dependence`.
    cluster : str, optional
        Covariate whose equal values are one cluster of dependent rows.  Then clusters take the
        place of rows in the limits, each with the sum of its weights and its mean change.
    """
    grouped, columns = by_groups(before, group_by)
    versions = (after,) if exchanged is None else (after, exchanged)
    sums: ChangeSums | ClusterChangeSums = ChangeSums(len(scores), len(versions))
    compared: Fold | None = None
    parts = min(_MOST_FOLDS, before.source.rows // _ENOUGH_ROWS)
    if cluster is not None:
        # A sum over a cluster needs the scores of all of its rows.
        sums = ClusterChangeSums(len(scores), len(versions))
    elif parts > 1:
        # The dependence of both halves is a variance, which a random part of many rows determines.
        compared = Fold(0, parts, _SEED)
    # The score of a kind may depend on its settings, such as the level of a quantile.
    bound = before.run(scores).fitting
    session = row_scores(before, grouped, versions, bound, columns, cluster, compared=compared)
    # Groups may be missing in a row, and scores may not.
    names = session.source.covariate_names[: (1 + len(versions)) * len(scores)]
    results = [
        session.scan([sums], covariates=names, group_by=column) for column in columns or (None,)
    ]
    total = _JudgedRows.of(sums, results[0], None)
    changes = tuple(
        _score_change(score.name, total, number, confidence_level, total)
        for number, score in enumerate(scores)
    )
    by_group = {
        (column, group): _JudgedRows.of(sums, result, group)
        for column, result in zip(columns, results, strict=False)
        for group in result.groups
        # The states of all rows are not those of a group.
        if group is not None
    }
    groups = _group_changes(scores[0].name, by_group, total, 1.0 - confidence_level)
    return Changes(changes, groups)


class _JudgedRows(NamedTuple):
    """Number of rows, their sums, their units, and why there is no interval, if there is none."""

    rows: int
    sums: ChangeState
    units: str
    refusal: str | None

    @classmethod
    def of(
        cls, statistic: ChangeSums | ClusterChangeSums, result: PassResult, group: Any
    ) -> _JudgedRows:
        """Rows of a group of a pass, None for all rows."""
        state = result.groups[group][statistic]
        count = result.counts.used if group is None else result.group_counts[group]
        if isinstance(statistic, ChangeSums):
            return cls(count, state, "rows", None)
        return cls(count, statistic.total(state), "clusters", _refusal(state.weight))


def _refusal(weight: Floats) -> str | None:
    """Why clusters in cells with the weights (cells,) give no interval, or None if they do."""
    w = weight[weight > 0]
    if not len(w):
        return None
    share = w / w.sum()
    clusters = Clusters(
        column="",
        count=len(w),
        exact=True,
        largest_share=float(share.max()),
        intraclass_correlation=None,
        design_effect=None,
        effective_count=1.0 / float(share @ share),
    )
    if clusters.refusal is None:
        return None
    return (
        f"{NO_INTERVAL}one cluster has {100.0 * clusters.largest_share:.0f} % of the weight, and "
        "the others are few"
    )


def _group_changes(
    name: str, by_group: dict[tuple[str, Any], _JudgedRows], total: _JudgedRows, error: float
) -> tuple[GroupChange, ...]:
    """Changes of the first score by covariate and group, with intervals that hold at once."""
    judged = sum(_has_interval(name, part, total) for part in by_group.values())
    level = 1.0 - error / max(1, judged)
    changes = [_score_change(name, part, 0, level, total) for part in by_group.values()]
    adjusted = holm([change.p_value for change in changes])
    return tuple(
        GroupChange(
            covariate=column,
            group=group.name if isinstance(group, Level) else number_texts.number(group, 10),
            **{field.name: getattr(change, field.name) for field in _SHARED_FIELDS},
            adjusted=corrected,
        )
        for (column, group), change, corrected in zip(by_group, changes, adjusted, strict=True)
    )


def _has_interval(name: str, part: _JudgedRows, total: _JudgedRows) -> bool:
    """Whether the first score has an interval, as it has at every level or at none."""
    return _score_change(name, part, 0, 0.5, total, with_p_value=False).low is not None


def _score_change(
    name: str,
    part: _JudgedRows,
    number: int,
    confidence_level: float,
    total: _JudgedRows,
    with_p_value: bool = True,
) -> ScoreChange:
    """Change of one score in a part of the `total` rows, from the sums of all scores."""
    moments = part.sums.moments(number)
    means: list[float | None] = [
        float(score / moments.weight) if infinite == 0 else None
        for score, infinite in zip(
            part.sums.totals[:, number], part.sums.infinite[:, number], strict=True
        )
    ]
    change = ScoreChange(score=name, n=part.rows, before=means[0], after=means[1])
    if None in means:
        return change
    change = replace(change, change=float(moments.total / moments.weight))
    if part.refusal is not None:
        return replace(change, note=part.refusal)
    dependence = _dependence(part.sums, total.sums, number)
    has_changes = bool(part.sums.size[number] > 0)
    return with_limits(
        change, moments, confidence_level, dependence, part.units, has_changes, with_p_value
    )


def with_limits(
    change: ScoreChange,
    moments: RowMomentState,
    confidence_level: float,
    dependence: float = 0.0,
    units: str = "rows",
    has_changes: bool = False,
    with_p_value: bool = True,
) -> ScoreChange:
    """Change of a score with its limits and p-value, see `skewed_limits`, if there are any.

    `has_changes` says that a row changes.  Then there is no interval of length 0.  The p-value
    takes as long as the limits at 60 levels.
    """
    limits = skewed_limits(moments, confidence_level, dependence, units)
    if limits is None:
        return replace(change, note=f"{NO_INTERVAL}{_lacking(moments, units)}")
    low, high = float(limits.low), float(limits.high)
    # Rows with the same change, as of one score and one label, do not say how much it varies.
    if low == high != 0.0:
        reason = f"equal changes of all {units} do not say how much a change varies"
        return replace(change, note=f"{NO_INTERVAL}{reason}")
    if low == high and has_changes:
        return replace(change, note=f"{NO_INTERVAL}the changes of rows cancel in all {units}")
    if change.score in _SHARES:
        low, high = max(low, -1.0), min(high, 1.0)
    change = replace(change, low=low, high=high, note=limits.note)
    return replace(change, p_value=_p_value(moments, dependence)) if with_p_value else change


def _lacking(moments: RowMomentState, units: str) -> str:
    """Why changes with these sums have no limits, see `skewed_limits`."""
    sums = np.concatenate([np.ravel(field) for field in moments])
    if not np.isfinite(sums).all():
        return "the squares of the changes are too large for a number"
    return f"there are too few {units}"


def _dependence(part: ChangeState, total: ChangeState, number: int) -> float:
    """Variance of Σw·change that the dependence of cross-fits by halves adds to that of the rows.

    The fit to a half A has coefficients a = θ − H⁻¹u, with the mean u of the scores of its rows and
    the second derivatives H, and so has the fit to B with v.  The change in A is judged by B's fit,
    with the error ⟨b − θ, u⟩ = −uᵀH⁻¹v besides that of θ, and the change in B has the same error:
    the covariance of both is E[(uᵀH⁻¹v)²].  The losses of both fits in a row differ by d with the
    variance E[(u − v)ᵀH⁻¹(u − v)], from which it follows that half of Σw²(d − mean d)² is to be
    added.  In a part of the rows it is the sum over the part, times its share of the weight of the
    `total` rows.  Of scores that the fits do not minimise, it is an approximation.  The same holds
    for clusters in place of rows.  The distance d of the score with this `number` is known in some
    of the rows.
    """
    weight = float(part.weight[number])
    if weight == 0.0:
        return 0.0
    share = weight / float(total.weight[number])
    squared_weight_of_part = float(part.second[number, 0])
    squared_weight_known = float(part.distance[number, 0])
    # Few rows of a small group are known, and the distance in all rows then stands in for theirs.
    known_rows = squared_weight_known * (weight / squared_weight_of_part) ** 2
    # Both sums have rounding errors of their own, also where all rows are known.
    is_sample = squared_weight_known < (1.0 - _ROUNDING) * squared_weight_of_part
    sums = total if is_sample and known_rows < _ENOUGH_OF_GROUP else part
    squared_weight, first, second = sums.distance[number]
    if squared_weight == 0.0:
        return 0.0
    variance = max(0.0, float(second / squared_weight - (first / squared_weight) ** 2))
    return 0.5 * share * squared_weight_of_part * variance


def _p_value(state: RowMomentState, dependence: float) -> float:
    """Smallest level of significance at which the limits exclude a mean of 0."""
    low, high = np.log(_SMALLEST), 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        limits = skewed_limits(state, 1.0 - float(np.exp(middle)), dependence)
        assert limits is not None  # as at any other level
        if limits.low > 0 or limits.high < 0:
            high = middle
        else:
            low = middle
    return float(np.exp(high))
