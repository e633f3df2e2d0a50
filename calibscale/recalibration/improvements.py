"""Whether recalibration helped: scores before and after on rows that the fit has not used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.covariates import ClusterIds, cluster_ids
from calibscale.data.derived_sources import DerivedSource, Fold, part_of, units_of
from calibscale.data.groups import listed_groups
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError
from calibscale.estimators.scores import Accuracy
from calibscale.formatting import number_texts
from calibscale.formatting.naming import grouped_column
from calibscale.predictions.blocks import Block
from calibscale.recalibration import recalibration_texts
from calibscale.recalibration.order_changes import order_change
from calibscale.recalibration.recalibrated_sources import recalibrated, recalibrated_kind
from calibscale.recalibration.recalibration_texts import OrderChange
from calibscale.recalibration.recalibrator import FittedRecalibrator, RecalibrationMethod
from calibscale.recalibration.score_changes import score_changes
from calibscale.results.audit_results import Improvement, ScoreChange
from calibscale.session import Session, listed

_SEED = 2**63  # of the folds, which no estimator with bandwidth_share= has by default
NOT_JUDGED = "not judged on rows that a fit has not used"  # beginning of a note
_UNLIKE = 0.1  # share of rows above which fits to halves do not stand for the fit to all rows
_MAX_CATEGORIES = 64  # of a covariate whose categories are groups by default


@dataclass(frozen=True, eq=False, repr=False)
class _CrossFitted(DerivedSource):
    """Recalibrated predictions of each row by the fit to the rows outside of its fold.

    `fits` are by number of the fold that the fit has not used.
    """

    fits: tuple[FittedRecalibrator, ...] = field(kw_only=True)
    clusters: ClusterIds | None = None  # all rows of a cluster are in one fold

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
    def exchanged(self) -> ArraySource | None:
        """Recalibrated predictions of two folds by the fit to the same rows, None of more folds."""
        return replace(self, fits=self.fits[::-1]) if len(self.fits) == 2 else None

    @property
    def _reads_covariates(self) -> bool:
        return self.clusters is not None or any(fit.covariates for fit in self.fits)

    def _changed(self, block: Block) -> Block:
        return self.changed_rows(block, slice(None))

    def changed_rows(self, block: Block, rows: Ints | slice) -> Block:
        # The fold of a row depends on its number in the source.
        numbers = units_of(block, self.clusters)[rows]
        block = block.take(rows, block.start)
        of_rows = folds_of(len(self.fits))[0].numbers(numbers)
        values: Floats | None = None
        for fold, version in enumerate(self._versions):
            held = np.flatnonzero(of_rows == fold)
            if not len(held):
                continue
            changed = version._changed(block.take(held, block.start)).values
            if values is None:
                values = np.empty((len(numbers), *changed.shape[1:]))
            values[held] = changed
        if values is None:  # there is no row
            values = np.empty((0, *block.values.shape[1:]))
        return block._replace(values=values)


def folds_of(count: int) -> tuple[Fold, ...]:
    """Folds of the rows by which recalibrations are cross-fitted."""
    return tuple(Fold(number, count, _SEED) for number in range(count))


def cross_fitted(
    session: Session,
    method: RecalibrationMethod,
    folds: int = 2,
    near: FittedRecalibrator | None = None,
    cluster: str | None = None,
) -> ArraySource:
    """Source of a session with each row recalibrated by the fit to the rows outside of its fold.

    `near` is the fit to all rows, if it is known, at which the other fits start.  All rows with an
    equal value of the covariate `cluster` are in one fold.  The errors of `RecalibrationMethod.fit`
    are raised if the rows without a fold do not determine the fit.
    """
    data = session.source
    fits = tuple(
        method.fit(session.on(part_of(data, fold, held=False, cluster=cluster)), near=near)
        for fold in folds_of(folds)
    )
    clusters = None if cluster is None else cluster_ids(data, cluster)
    name = f"{data.name}, cross-fitted by {method.name}"
    changes: dict[str, Any] = {**recalibrated_kind(data), "name": name}
    return _CrossFitted.of(data, **changes, fits=fits, clusters=clusters)


def improvement_of(
    before: Session,
    after: ArraySource,
    judged: str,
    keeps_order: bool,
    cluster: str | None = None,
    group_by: Any = None,
) -> Improvement:
    """Changes of scores from a session's predictions to recalibrated ones of the same rows.

    `keeps_order` says that the recalibration of two classes is an increasing function.  Without
    `group_by`, the groups are the values of each categorical covariate.
    """
    target = before.source.target
    scores = listed(target.recalibration_scores)
    if group_by is None:
        # Categories are known without a pass, as quantiles of numbers are not.  A cluster is no
        # group to judge.
        group_by = [name for name in _categorical(before.source) if name != cluster]
    judging = [*scores, Accuracy()] if target.has_classes else scores
    exchanged: ArraySource | None = None
    folds: tuple[Fold, ...] = ()
    if isinstance(after, _CrossFitted):
        exchanged, folds = after.exchanged, folds_of(len(after.fits))
    changes, groups = score_changes(
        before, after, judging, group_by, exchanged=exchanged, cluster=cluster
    )
    accuracy: ScoreChange | None = None
    if len(judging) > len(scores):
        changes, accuracy = changes[:-1], changes[-1]
    order: OrderChange | None = None
    if target.has_single_labels and before.source.classes == 2:
        area = order_change(before, after, folds, keeps_order, cluster, exchanged=exchanged)
        of_sample = area.n < changes[0].n
        order = OrderChange(area, keeps_order, in_halves=bool(folds), of_sample=of_sample)
    return Improvement(
        judged=judged,
        n=changes[0].n,
        changes=changes,
        sentence=recalibration_texts.improvement(changes, judged),
        accuracy=accuracy,
        auc=None if order is None else order.area,
        groups=groups,
        costs=recalibration_texts.costs(changes[0].score, order, accuracy, groups),
    )


def _categorical(source: ArraySource) -> list[str]:
    """Categorical covariates of a source that are few enough to list their categories."""
    return [name for name, names in source.categories.items() if len(names) <= _MAX_CATEGORIES]


def improvement_by_cross_fits(
    session: Session,
    fit: FittedRecalibrator,
    after: ArraySource | None = None,
    group_by: Any = None,
    cluster: str | None = None,
) -> Improvement | str:
    """Improvement for each half of the rows by the fit to the other, or why there is none.

    `fit` is the fit to all rows, which the halves must stand for.  `after` are the predictions that
    were cross-fitted by halves, if they are known.  Intervals by more folds would be too short:
    their fits share most rows, which makes their errors alike.
    """
    try:
        if after is None:
            after = cross_fitted(session, fit.method, near=fit, cluster=cluster)
        fits = after.fits if isinstance(after, _CrossFitted) else ()
        keeps_order = bool(fits) and all(half.keeps_order for half in fits)
        improvement = improvement_of(session, after, "cross_fitted", keeps_order, cluster, group_by)
        reason = _unlike(session, fits, improvement, fit, cluster)
    except OptionError as error:
        reason = str(error).split(";")[0].rstrip(".")
    return improvement if reason is None else f"{NOT_JUDGED}: {reason}"


def _unlike(
    session: Session,
    fits: Sequence[FittedRecalibrator],
    improvement: Improvement,
    fitted: FittedRecalibrator,
    cluster: str | None,
) -> str | None:
    """Why fits to halves do not stand for the fit to all rows, or None if they do."""
    share = max((fitted.share_unlike(fit) for fit in fits), default=0.0)
    if share > _UNLIKE:
        cause = ""
        if cluster in fitted.covariates:
            cause = f", because all rows with one value of {cluster!r}, a cluster, are in one half"
        return (
            f"a fit to half of the rows lacks the {fitted.parts} that the fit to all rows has for "
            f"{number_texts.percent(share)} of them{cause}: judge it on other rows (validate=)"
        )
    if not all(change.is_negligible for change in improvement.changes):
        return None
    # The halves change no prediction, which says nothing of a fit that does.
    scores = listed(session.source.target.recalibration_scores)
    changes = score_changes(session, recalibrated(session.source, fitted), scores).scores
    if all(change.is_negligible for change in changes):
        return None
    return (
        "the fits to halves of the rows keep the predictions, and the fit to all rows does not: "
        "judge it on other rows (validate=)"
    )


def require_groups(source: ArraySource, group_by: Any, cluster: str | None = None) -> None:
    """Raise an OptionError for groups or clusters of an unknown covariate, before any fit."""
    if cluster is not None:
        source.covariate(cluster)
    for grouping in listed_groups(group_by):
        if isinstance(grouping, str):
            source.covariate(grouped_column(grouping))


def improvement_on(
    session: Session,
    fitted: FittedRecalibrator,
    cluster: str | None = None,
    group_by: Any = None,
) -> Improvement:
    """Improvement for the rows of a session, which the fit has not used."""
    after = recalibrated(session.source, fitted)
    return improvement_of(session, after, "other_rows", fitted.keeps_order, cluster, group_by)
