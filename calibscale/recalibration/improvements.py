"""Whether recalibration helped: scores before and after on rows that the fit has not used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.derived_sources import DerivedSource, Fold, part_of
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.formatting import number_texts
from calibscale.predictions.blocks import Block
from calibscale.ranking.rank import rank
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    RecalibrationMethod,
    recalibrated,
    recalibrated_kind,
)
from calibscale.recalibration.score_changes import score_changes
from calibscale.results.audit_results import Improvement, ScoreChange
from calibscale.session import Session, listed

_SEED = 2**63  # of the folds, which no estimator with bandwidth_share= has by default
NOT_JUDGED = "not judged on rows that a fit has not used"  # beginning of a note
_BEFORE, _AFTER = "before", "after"  # names of the two models of a comparison
# Names of scores in sentences.
IN_WORDS = {
    "nll": "log loss",
    "crps": "CRPS",
    "interval_score": "interval score",
    "pinball_loss": "pinball loss",
    "squared_error": "squared error",
}


@dataclass(frozen=True, eq=False, repr=False)
class _CrossFitted(DerivedSource):
    """Recalibrated predictions of each row by the fit to the rows outside of its fold.

    `fits` are by number of the fold that the fit has not used.
    """

    fits: tuple[FittedRecalibrator, ...] = field(kw_only=True)

    @cached_property
    def _versions(self) -> list[Any]:
        """Source before the change, recalibrated by each fit."""
        return [recalibrated(self.before, fit) for fit in self.fits]

    @property
    def row_bytes(self) -> int:
        return sum(version.row_bytes for version in self._versions)

    def describe(self) -> dict[str, Any]:
        description = {**self.before.describe(), "name": self.name, "kind": self.kind}
        return description | ({"binary": False} if self.target.has_classes else {})

    def sample(self, count: int, seed: int = 0) -> Iterator[Block]:
        # Scores do not depend on a sample, and either version may stand for both.
        return self._versions[0].sample(count, seed)

    @property
    def _reads_covariates(self) -> bool:
        return any(fit.covariates for fit in self.fits)

    def _changed(self, block: Block) -> Block:
        numbers = np.arange(block.start, block.start + len(block.labels))
        values: Floats | None = None
        for fold, version in zip(folds_of(len(self.fits)), self._versions, strict=True):
            rows = np.flatnonzero(fold.holds(numbers))
            if not len(rows):
                continue
            changed = version._changed(block.take(rows, block.start)).values
            if values is None:
                values = np.empty((len(numbers), *changed.shape[1:]))
            values[rows] = changed
        assert values is not None  # every row is in a fold
        return block._replace(values=values)


def folds_of(count: int) -> tuple[Fold, ...]:
    """Folds of the rows by which recalibrations are cross-fitted."""
    return tuple(Fold(number, count, _SEED) for number in range(count))


def cross_fitted(session: Session, method: RecalibrationMethod, folds: int = 2) -> ArraySource:
    """Source of a session with each row recalibrated by the fit to the rows outside of its fold.

    The errors of `RecalibrationMethod.fit` are raised if the rows without a fold do not determine
    the fit.
    """
    data = session.source
    fits = tuple(
        method.fit(session.on(part_of(data, fold, held=False))) for fold in folds_of(folds)
    )
    name = f"{data.name}, cross-fitted by {method.name}"
    changes: dict[str, Any] = {**recalibrated_kind(data), "name": name}
    return _CrossFitted.of(data, **changes, fits=fits)


def improvement_of(
    before: Session, after: ArraySource, judged: str, cluster: str | None = None
) -> Improvement:
    """Changes of scores from a session's predictions to recalibrated ones of the same rows."""
    scores = listed(before.source.target.recalibration_scores)
    if cluster is None:
        changes = score_changes(before, after, scores)
    else:
        changes = tuple(_change_by_clusters(before, after, score, cluster) for score in scores)
    return Improvement(judged, changes[0].n, changes, _sentence(changes[0], judged))


def improvement_by_cross_fits(
    session: Session, method: RecalibrationMethod, after: ArraySource | None = None
) -> Improvement | str:
    """Improvement for each half of the rows by the fit to the other, or why there is none.

    `after` are the predictions that were cross-fitted by halves, if they are known.  Intervals by
    more folds would be too short: their fits share most rows, which makes their errors alike.
    """
    try:
        after = cross_fitted(session, method) if after is None else after
        return improvement_of(session, after, "cross_fitted")
    except OptionError as error:
        reason = str(error).split(";")[0].rstrip(".")
        return f"{NOT_JUDGED}: {reason}"


def improvement_on(
    session: Session, fitted: FittedRecalibrator, cluster: str | None = None
) -> Improvement:
    """Improvement for the rows of a session, which the fit has not used."""
    return improvement_of(session, recalibrated(session.source, fitted), "other_rows", cluster)


def _change_by_clusters(
    before: Session, after: ArraySource, score: Estimator, cluster: str
) -> ScoreChange:
    """Change of a score, with a paired interval from clusters of rows."""
    ranking = rank({_BEFORE: before, _AFTER: before.on(after)}, score, cluster=cluster)
    models = {model.name: model for model in ranking.models}
    values = {name: model.estimate.value for name, model in models.items()}
    change = ScoreChange(
        score=score.name,
        n=models[_BEFORE].n,
        before=values[_BEFORE],
        after=values[_AFTER],
    )
    # A model with an infinite score has no difference from the other one.
    if not ranking.differences:
        return change
    (difference,) = ranking.differences
    # A difference is the worse model's value minus the better one's.
    sign = 1.0 if difference.worse == _AFTER else -1.0
    change = replace(change, change=sign * difference.value, p_value=difference.p_value)
    interval = difference.interval
    # Clusters that are too large leave no p-value, and no claim about the change.
    if interval is None or difference.p_value is None:
        return change
    low, high = sorted((sign * interval.low, sign * interval.high))
    return replace(change, low=low, high=high)


def _sentence(score: ScoreChange, judged: str) -> str:
    """What the change of the first score says, which is infinite at a label of probability 0."""
    noun = IN_WORDS[score.score]
    rows = "rows that the fit has not used"
    if judged == "cross_fitted":
        rows = "rows that the fit has not used (each half of the rows by a fit to the other)"
    if score.before is None and score.after is not None:
        return (
            f"Recalibration makes the {noun} of {rows} finite "
            f"({number_texts.number(score.after)}). Before, a label has the probability 0."
        )
    if score.before is not None and score.after is None:
        return (
            f"Recalibration makes the {noun} of {rows} infinite, as a label gets the probability "
            "0: keep the predictions as they are."
        )
    if score.change is None or score.low is None or score.high is None:
        return (
            f"It is not known whether recalibration helps on {rows}: the {noun} is infinite, or "
            "there are too few rows or clusters for an interval."
        )
    size = number_texts.number(abs(score.change), 2)
    low, high = (number_texts.number(end, 2) for end in (score.low, score.high))
    interval = f"(95 % interval of the change: {low} to {high})"
    if score.high < 0:
        return f"Recalibration lowers the {noun} of {rows} by {size} {interval}."
    if score.low > 0:
        return (
            f"Recalibration raises the {noun} of {rows} by {size} {interval}: keep the "
            "predictions as they are."
        )
    return (
        f"It is not known whether recalibration helps: the {noun} of {rows} changes by "
        f"{number_texts.signed(score.change)} {interval}."
    )
