"""Changes of the scores of rows by a recalibration, from one pass over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.derived_sources import DerivedSource
from calibscale.data.source import ArraySource
from calibscale.estimators.base import Estimator
from calibscale.estimators.scores import Accuracy
from calibscale.evaluation.group_sessions import by_groups
from calibscale.formatting import number_texts
from calibscale.inference.multiple_testing import holm
from calibscale.intervals.mean_limits import skewed_limits
from calibscale.predictions.blocks import Block
from calibscale.predictions.functionals.means import MeanPrediction
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.results.audit_results import GroupChange, ScoreChange
from calibscale.results.levels import Level
from calibscale.session import Session
from calibscale.statistics.row_moments import RowMoments, RowMomentState, moment_sums
from calibscale.statistics.statistic import Statistic, added, weights_of

_HALVINGS = 60  # of the interval of a p-value, down to the precision of its logarithm
_SMALLEST = 1e-15  # p-value, below which quantiles lose their digits
_ENOUGH_ROWS = 2**17  # for a variance
_MOST_STEPS = 16  # at least one block of so many has all scores
_LARGEST = float(np.finfo(np.float64).max)  # stands for an infinite score, as columns are finite


@dataclass(frozen=True, eq=False, repr=False)
class _RowScores(DerivedSource):
    """Scores of rows before a change and by `versions` after it, as covariates of the rows.

    The columns are each score before the change, then each score of each version, and then the
    covariates at `positions`.  Scores of a second version are ∞ outside of a sample of blocks.  If
    the versions change the source before them, it is read only once.
    """

    versions: tuple[ArraySource, ...] = field(kw_only=True)
    scores: Sequence[Any] = field(kw_only=True)
    checks: Rules = field(kw_only=True)  # of the rows before the change
    step: int = 1  # of the blocks that have the scores of a second version
    changing: tuple[DerivedSource, ...] = ()  # the versions, if they change the source before them
    positions: tuple[int, ...] = ()  # of covariates before the change, the last columns

    @property
    def row_bytes(self) -> int:
        return self.before.row_bytes + sum(version.row_bytes for version in self.versions)

    def describe(self) -> dict[str, Any]:
        return {**self.before.describe(), "name": self.name}

    def part(self, start: int, stop: int, covariates: bool = False) -> Self:
        # Covariates of this source are scores, and not those of the source before the change.
        part = super().part(start, stop, False)
        if not self.changing:
            versions = tuple(version.part(start, stop) for version in self.versions)
            object.__setattr__(part, "versions", versions)
        return part

    @property
    def _reads_covariates(self) -> bool:
        return bool(self.positions) or any(version._reads_covariates for version in self.changing)

    def read(self, start: int, stop: int, covariates: bool = False) -> Block:
        block = self.before.read(start, stop, self._reads_covariates)
        columns = [self._scores(block, self.checks)]
        for position, version in enumerate(self.versions):
            if position and not self._is_sampled(block):
                columns.append(np.full_like(columns[0], np.inf))
                continue
            if self.changing:
                after = self.changing[position]._changed(block)
            else:
                after = version.read(start, stop)
            # The rows before the change have been checked.
            columns.append(self._scores(after, version.rules("drop", self.checks.tolerance)))
        scores = np.hstack(columns)
        # Rows that are invalid or unlabelled in one version count in none, without an error.
        missing = np.any(np.isnan(scores), axis=1)
        scores[missing] = 0.0
        scores = scores.clip(-_LARGEST, _LARGEST)
        if self.positions:
            assert block.covariates is not None
            scores = np.hstack([scores, block.covariates[:, list(self.positions)]])
        return block._replace(
            values=np.zeros(len(scores)),
            labels=np.where(missing, np.nan, 0.0),
            covariates=scores if covariates else None,
        )

    def _is_sampled(self, block: Block) -> bool:
        """Whether rows of a block have the scores of a second version after the change."""
        # Its distance from the first one is a variance, which a part of many rows determines.
        return block.start // len(block.labels) % self.step == 0

    def _scores(self, block: Block, rules: Rules) -> Floats:
        """Scores of each row of a block, NaN without a valid prediction and label (c, scores)."""
        out = np.full((len(block.labels), len(self.scores)), np.nan)
        for chunk, _ in chunks(block, rules):
            for column, score in enumerate(self.scores):
                out[chunk.rows - block.start, column] = _of_chunk(chunk, score)
        return out


def _of_chunk(chunk: Any, score: Any) -> Any:
    """Score of each row of a chunk (c,)."""
    if chunk.target.has_classes:
        # A column of chunks of classes.
        return chunk.hit if score.name == Accuracy.name else getattr(chunk, score.name)
    column, *_ = score.rows(chunk.target, chunk.values, chunk.outcomes)
    return column


class ChangeState(NamedTuple):
    """Sums of s scores before and after a change.

    `totals` has Σw·score before and after the change of rows with finite scores (2, s), and
    `infinite` the number of rows with infinite ones (2, s).  Rows of weight 0 are not counted.  The
    next five are the sums of a `RowMomentState` of each score's differences, with the scores on the
    first axis.  `distance` has Σw², Σw²d and Σw²d² of the differences d between both versions after
    the change (s, 3), in the rows with the finite score of a second version.
    """

    totals: Floats
    infinite: Floats
    total: Floats
    weight: Floats
    second: Floats
    third: Floats
    fourth: Floats
    distance: Floats

    def moments(self, number: int) -> RowMomentState:
        """Moments of the differences of a score."""
        fields = (self.total, self.weight, self.second, self.third, self.fourth)
        return RowMomentState(*(field[number] for field in fields))


@dataclass(frozen=True)
class ChangeSums(Statistic):
    """Sums of the scores of `_RowScores` with one or two `versions`, and of their differences."""

    scores: int
    versions: int = 1
    powers: ClassVar[tuple[int, ...]] = (1, 0, *RowMoments.powers, 2)

    def zero(self, classes: int) -> ChangeState:
        s = self.scores
        shapes = ((2, s), (2, s), (s,), (s,), (s, 3), (s, 4), (s, 5), (s, 3))
        return ChangeState(*map(np.zeros, shapes))

    def accumulate(self, state: ChangeState, chunk: Any) -> ChangeState:
        w = weights_of(chunk)
        columns = chunk.covariates[:, : (1 + self.versions) * self.scores]
        scores = columns.T.reshape(1 + self.versions, self.scores, len(chunk)).copy()
        infinite = np.abs(scores) >= _LARGEST
        scores[infinite] = 0.0
        infinite &= w > 0  # a row of weight 0 adds 0, even if its score is infinite
        before, after = scores[:2]
        moments = [moment_sums(difference, w) for difference in after - before]
        by_field = (np.stack(sums) for sums in zip(*moments, strict=True))
        distances = scores[-1] - after
        # Rows outside of the sample of blocks have no score of a second version.
        squares = np.where(infinite[-1], 0.0, w * w)
        distance = np.array(
            [[w2.sum(), w2 @ d, w2 @ d**2] for w2, d in zip(squares, distances, strict=True)]
        )
        return added(state, scores[:2] @ w, infinite[:2].sum(axis=2), *by_field, distance)


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
    """
    session, columns = by_groups(before, group_by)
    versions = (after,) if exchanged is None else (after, exchanged)
    sums = ChangeSums(len(scores), len(versions))
    rows = _row_scores(before, session, versions, scores, columns)
    # Groups may be missing in a row, and scores may not.
    names = rows.covariate_names[: (1 + len(versions)) * len(scores)]
    results = [
        session.on(rows).scan([sums], covariates=names, group_by=column)
        for column in columns or (None,)
    ]
    total = results[0].groups[None][sums]
    changes = tuple(
        _score_change(score.name, results[0].counts.used, total, number, confidence_level)
        for number, score in enumerate(scores)
    )
    by_group = {
        (column, group): (result.group_counts[group], states[sums])
        for column, result in zip(columns, results, strict=False)
        for group, states in result.groups.items()
        # The states of all rows are not those of a group.
        if group is not None
    }
    weight = float(total.weight[0])
    groups = _group_changes(scores[0].name, by_group, weight, 1.0 - confidence_level)
    return Changes(changes, groups)


def _row_scores(
    before: Session,
    grouped: Session,
    versions: tuple[ArraySource, ...],
    scores: Sequence[Estimator],
    columns: Sequence[str],
) -> _RowScores:
    """Scores before and after, and columns of the `grouped` session of the same rows."""
    source, mean = before.source, MeanPrediction()
    whens = ("before the change", "after the change", "after the exchanged change")
    names = [f"{score.name} {when}" for when in whens[: 1 + len(versions)] for score in scores]
    changing = tuple(
        version
        for version in versions
        if isinstance(version, DerivedSource) and version.before is source
    )
    return _RowScores.of(
        grouped.source,
        kind=mean.name,
        forecast=mean,
        binary=False,
        class_names=None,
        columns={},
        covariate_names=(*names, *columns),
        categories={k: v for k, v in grouped.source.categories.items() if k in columns},
        times={k: v for k, v in grouped.source.times.items() if k in columns},
        versions=versions,
        # The score of a kind may depend on its settings, such as the level of a quantile.
        scores=before.run(scores).fitting,
        checks=source.rules(before.rules.on_invalid, before.rules.tolerance),
        step=max(1, min(_MOST_STEPS, source.rows // _ENOUGH_ROWS)),
        # Groups are further covariates, which the change does not read.
        changing=changing if len(changing) == len(versions) else (),
        positions=tuple(grouped.source.covariate(column) for column in columns),
    )


def _group_changes(
    name: str,
    by_group: dict[tuple[str, Any], tuple[int, ChangeState]],
    weight: float,
    error: float,
) -> tuple[GroupChange, ...]:
    """Changes of the first score by covariate and group, with intervals that hold at once.

    `by_group` has the number of rows and the sums of each group, and `weight` is Σw of all rows.
    """
    # A group with too few rows or an infinite score has no interval at any level.
    judged = sum(
        _score_change(name, rows, state, 0, 1.0 - error, weight).low is not None
        for rows, state in by_group.values()
    )
    level = 1.0 - error / max(1, judged)
    changes = [
        _score_change(name, rows, state, 0, level, weight) for rows, state in by_group.values()
    ]
    adjusted = holm([change.p_value for change in changes])
    return tuple(
        GroupChange(
            covariate=column,
            group=group.name if isinstance(group, Level) else number_texts.number(group, 10),
            n=change.n,
            before=change.before,
            after=change.after,
            change=change.change,
            low=change.low,
            high=change.high,
            p_value=change.p_value,
            adjusted=corrected,
        )
        for (column, group), change, corrected in zip(by_group, changes, adjusted, strict=True)
    )


def _score_change(
    name: str,
    rows: int,
    state: ChangeState,
    number: int,
    confidence_level: float,
    weight: float | None = None,
) -> ScoreChange:
    """Change of one score from the sums of all, in rows of which all have the `weight` Σw."""
    moments = state.moments(number)
    means: list[float | None] = [
        float(total / moments.weight) if infinite == 0 else None
        for total, infinite in zip(state.totals[:, number], state.infinite[:, number], strict=True)
    ]
    change = ScoreChange(score=name, n=rows, before=means[0], after=means[1])
    if None in means:
        return change
    change = replace(change, change=float(moments.total / moments.weight))
    share = 1.0 if weight is None else float(moments.weight) / weight
    dependence = share * _dependence(state.distance[number], float(moments.second[0]))
    limits = skewed_limits(moments, confidence_level, dependence)
    if limits is None:
        return change
    low, high = float(limits.low), float(limits.high)
    # Rows with the same change, as of one score and one label, do not say how much it varies.
    if low == high != 0.0:
        return change
    if name == Accuracy.name:
        low, high = max(low, -1.0), min(high, 1.0)
    return replace(change, low=low, high=high, p_value=_p_value(moments, dependence))


def _dependence(distance: Floats, squared_weight: float) -> float:
    """Variance of Σw·change that the dependence of cross-fits by halves adds to that of the rows.

    The fit to a half A has coefficients a = θ − H⁻¹u, with the mean u of the scores of its rows and
    the second derivatives H, and so has the fit to B with v.  The change in A is judged by B's fit,
    with the error ⟨b − θ, u⟩ = −uᵀH⁻¹v besides that of θ, and the change in B has the same error:
    the covariance of both is E[(uᵀH⁻¹v)²].  The losses of both fits in a row differ by d with the
    variance E[(u − v)ᵀH⁻¹(u − v)], from which it follows that half of Σw²(d − mean d)² is to be
    added.  In a group with a share of the rows it is this share of the group's sum.  Of scores that
    the fits do not minimise, it is an approximation.

    `squared_weight` is Σw² of all rows, and the distance d is known in some of them.
    """
    known, total, squares = distance
    if known == 0.0:
        return 0.0
    variance = max(0.0, float(squares / known - (total / known) ** 2))
    return 0.5 * squared_weight * variance


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
