"""`select`: training, validation and test of calibration estimators by folds [GB §3.2.2]."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from calibscale.data.derived_sources import TEST, Split, given_split
from calibscale.engine.execution import Stages
from calibscale.engine.threads import one_thread
from calibscale.errors import OptionError, require
from calibscale.kernels.landmarks import PointFeatures
from calibscale.predictions.claims import FUNCTIONALS, includes
from calibscale.predictions.notions import NotionView, problems, width
from calibscale.results.comparison_results import Candidate, Selection
from calibscale.selection.comparison import compare, hyperparameters
from calibscale.selection.families import (
    Family,
    FamilyProfile,
    FittedFamily,
    FoldPart,
    FoldResiduals,
    RowSums,
    RowSumState,
    Subset,
    SubsetState,
)
from calibscale.selection.kernel_features import KernelFeatures
from calibscale.selection.known_families import default_families, families_named
from calibscale.selection.point_ranks import PointRanks
from calibscale.selection.pointwise import Pointwise
from calibscale.selection.risk import FoldScorer, FoldScores, by_fold
from calibscale.session import Session, SessionOptions, classes_only, verb
from calibscale.statistics.one_pass import MAX_GROUPS
from calibscale.statistics.statistic import Statistic

SUBSET_ROWS = 20_000  # rows kept in memory for families that need rows more than once
_SUBSET_BYTES = 2**28  # memory of these rows


class _Choice(NamedTuple):
    """All candidates, the position and fits of the best, and a description of the features."""

    candidates: tuple[Candidate, ...]
    best: int
    ensemble: tuple[FittedFamily, ...]
    features: dict[str, object]


@dataclass(frozen=True)
class FoldPass:
    """A pass over the source by folds."""

    session: Session
    split: Split
    stages: Stages

    def __call__(self, statistics: Sequence[Statistic]) -> tuple[dict[int, dict], Any]:
        session = self.session.reporting(self.stages.next())
        result = session.scan(statistics, split=self.split)
        return {int(key or 0): states for key, states in result.groups.items()}, result


@verb
def select(
    source: Any,
    notion: str | None = None,
    estimators: Iterable[str | Family] | None = None,
    *,
    folds: Any = 5,
    test_fraction: float = 0.2,
    seed: int = 0,
    features: int | str | KernelFeatures | PointFeatures = 1000,
    subset_rows: int = SUBSET_ROWS,
    nested: bool = False,
    **options: Unpack[SessionOptions],
) -> Selection:
    """Select a calibration estimator by its validated risk and apply it to test rows [GB §3.2.2].

    Every hyper-parameter of every family is fitted on the rows of all folds but one and evaluated
    by its risk (eq. 20) on that fold.  The candidate with the smallest mean risk estimates the
    squared calibration error on the test part (eq. 21), as the mean of its k fits.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    notion : {"top_label", "canonical", "class_wise", "positive"}, optional
        ``class_wise`` uses one hyper-parameter for all classes and sums risks and estimates.
        Default: ``top_label``.  Predictive distributions, means, quantiles and other functionals
        have ``canonical``, which is the calibration of the prediction.
    estimators : iterable of str or Family, optional
        Names (``bins``, ``bins_debiased``, ``bins_cube_root``, ``bins_sweep``, ``isotonic``,
        ``smooth_ece``, ``kde``, ``kde_loo``, ``kkr``, ``ukkr``, ``temperature``) or families with
        settings, such as ``Bins((10, 15))``.  Default: the estimators of [GB], ``bins``, ``kde``,
        ``kkr``, ``ukkr`` and ``temperature``.  The first six do not support the canonical notion
        of classes.  Predictive distributions, intervals and sets have ``kkr`` and ``ukkr``, and
        means, quantiles and expectiles also ``bins``.
    folds : int or (n,) integers
        Number of folds k, or the fold of each row: −1 for the test part, 0..k−1 for the folds.
    test_fraction : float
        Share of the rows in the test part.
    seed : int
        Seed of the split, the rows kept in memory, landmarks and frequencies.
    features : int, {"landmarks", "random"}, KernelFeatures or PointFeatures
        Feature map of the kernel of kkr and ukkr, or the maximum number of its features, or its
        kind.
    subset_rows : int
        Maximum number of rows kept in memory: candidates for landmarks, queries of the canonical
        KDE, and the sample for standard errors.
    nested : bool
        Repeat the selection k times with each fold as the test part.  `nested_estimate` is the
        mean.

    Raises
    ------
    OptionError
        If a setting is invalid for the data: an estimator that does not support the notion, an
        empty fold, a grid with a value that is not positive.
    InvalidDataError, StoreError
        See `evaluate`.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(size=1000)
    >>> y = (rng.uniform(size=1000) < p**2).astype(int)
    >>> source = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
    >>> selection = calibscale.select(source, "positive", ["bins", "ukkr"])
    >>> 0.02 < selection.selected.estimate < 0.05
    True
    """
    started = time.perf_counter()
    if isinstance(features, int):
        features = KernelFeatures(rank=features)
    elif isinstance(features, str):
        features = KernelFeatures(features)
    settings = features if isinstance(features, KernelFeatures) else KernelFeatures()
    with Session.open(source, **options) as session, one_thread():
        data = session.source
        data.need_integer_labels("select")
        notion = notion or ("top_label" if data.target.has_classes else "canonical")
        problems(notion, data.n_features)
        if notion != "canonical":
            classes_only(f"notion {notion!r}", data)
        claim = data.target.claim
        if estimators is None:
            estimators = default_families(data, notion)
        split = _split(folds, test_fraction, seed, nested, data.rows)
        require(subset_rows >= 2, "subset_rows must be at least 2", subset_rows)
        chosen = families_named(estimators)
        for family in chosen:
            if not includes(family.judges, claim):
                classes_only(family.name, data)
        # Progress has a stage for the subset.  For each choice it has stages for one or two passes,
        # for the fits, and for the scores.
        passes = 2 if data.rows <= subset_rows else 3
        choices = 1 + split.folds * nested
        stages = Stages(session.execution.progress, 1 + choices * (passes + 1))
        walk = FoldPass(session, split, stages)
        subset, counts = _subset(walk, notion, subset_rows, seed)
        ranks: PointRanks | None = None
        if claim in FUNCTIONALS:
            ranks = PointRanks.of(subset[0].points, subset[0].weights)
        default_map: PointFeatures | None = None
        if any(family.needs_features for family in chosen):
            default_map = (
                features.of(subset, seed, ranks)
                if isinstance(features, KernelFeatures)
                else features
            )
        profile = FamilyProfile(
            notion=notion,
            classes=data.n_features,
            features=default_map,
            subset=subset,
            folds=split.of(subset[0].rows),
            complete=counts.used == len(subset[0].rows),
            ranks=ranks,
        )
        families = tuple(family.resolve(profile) for family in chosen)
        choice = _choose(walk, profile, families)
        # Nested cross-validation chooses again without each outer fold.  The estimate of the chosen
        # candidate on that fold does not depend on the choice.
        nested_estimates: list[float] = []
        for outer in range(split.folds) if nested else ():
            inner = replace(split, outer=outer)
            inner_profile = replace(profile, folds=inner.of(subset[0].rows), shared={})
            nested_choice = _choose(replace(walk, split=inner), inner_profile, families)
            nested_estimates.append(nested_choice.candidates[nested_choice.best].estimate)
    return Selection(
        notion=data.target.named_notion(notion),
        candidates=choice.candidates,
        best=choice.best,
        pointwise=Pointwise(choice.ensemble, notion, data.target),
        nested_estimates=tuple(nested_estimates),
        features=choice.features,
        **session.outcome(
            counts,
            started,
            folds=split.folds,
            test_fraction=None if split.given is not None else test_fraction,
            seed=seed,
            nested=nested,
            rank=settings.rank,
            trace_tolerance=settings.trace_tolerance,
            subset_rows=len(subset[0].rows),
        ),
    )


def _split(folds: Any, test_fraction: float, seed: int, nested: bool, rows: int) -> Split:
    if np.ndim(folds) > 0:
        split = given_split(folds, rows, seed)
    else:
        try:
            split = Split(operator.index(folds), test_fraction, seed)
        except TypeError:
            raise OptionError(
                f"folds must be a number or one integer for each row, not {folds!r}"
            ) from None
    require(split.folds <= max(2, rows // 2), f"{split.folds} folds are too many for {rows} rows")
    require(not nested or split.folds >= 3, "a nested run needs at least three folds")
    require(split.folds < MAX_GROUPS, f"folds must be below {MAX_GROUPS}", split.folds)
    return split


def _subset(walk: FoldPass, notion: str, limit: int, seed: int) -> tuple[Sequence[NotionView], Any]:
    """Views of the rows kept in memory, one for each problem, and the row counts."""
    data = walk.session.source
    e = width(notion, data.n_features)
    row_bytes = 8 * problems(notion, data.n_features) * (2 + 2 * e + 2 * max(e, 2))
    limit = max(2, min(limit, _SUBSET_BYTES // row_bytes))
    statistic = Subset(notion, min(1.0, limit / data.rows), seed)
    groups, result = walk([statistic])
    n_kept = sum(len(states[statistic].rows[0]) for states in groups.values())
    if n_kept < min(limit, result.counts.used) // 2:  # many unlabelled rows
        statistic = Subset(notion, min(1.0, limit / result.counts.used), seed)
        groups, result = walk([statistic])
    folds = range(TEST, walk.split.folds)
    empty = [k for k in folds if k not in groups]
    if empty:
        part = "the test part" if empty[0] == TEST else f"fold {empty[0]}"
        raise OptionError(
            f"{part} has no labelled rows with a positive weight ({result.counts.used} in all); "
            "use fewer folds or another seed"
        )
    state = statistic.zero(data.n_features)
    for k in folds:
        state = statistic.merge(state, groups[k][statistic])
    order = np.argsort(state.rows[0], kind="stable")
    views = SubsetState(*(np.take(part, order, axis=1) for part in state)).views
    for k in folds:
        rows = views[0].take(walk.split.of(views[0].rows) == k)
        if np.count_nonzero(rows.weights) < 2:
            part = "the test part" if k == TEST else f"fold {k}"
            raise OptionError(
                f"{part} has {np.count_nonzero(rows.weights)} rows with a positive weight among "
                f"the {len(views[0].rows)} kept in memory; at least two are needed"
            )
    return views, result.counts


def _choose(walk: FoldPass, profile: FamilyProfile, families: Sequence[Family]) -> _Choice:
    k = walk.split.k
    residuals = FoldResiduals(profile.notion)
    statistics = dict.fromkeys([residuals, *(s for family in families for s in family.needs)])
    groups, _ = walk(tuple(statistics))

    def part(fold: int, family: Family) -> FoldPart:
        states = groups[fold]
        return FoldPart(states[residuals], tuple(states[s] for s in family.needs))

    def fit(excluded: int) -> tuple[FittedFamily, ...]:
        # The rows of the excluded fold judge the fit, which is made from the other folds.
        train = [fold for fold in range(k) if fold != excluded]
        return tuple(f.fit([part(v, f) for v in train], profile, excluded) for f in families)

    fitted: list[tuple[FittedFamily, ...]] = by_fold(k, fit, walk.stages.next())
    # Scores of these families are means over rows.  The subset in memory gives them if it has all
    # rows.  Otherwise one more pass does.
    streamed = [
        f
        for f, family in enumerate(families)
        if not profile.complete and family.streamed(profile.notion)
    ]
    sums: dict[int, RowSumState] = {}
    if streamed:
        fits = [[fits[f] for f in streamed] for fits in fitted]
        rows = RowSums(profile.notion, "rows", fits)
        sums = {fold: states[rows] for fold, states in walk([rows])[0].items()}
    scorer = FoldScorer(profile, families, part, fitted, streamed, sums)
    scores: list[list[FoldScores]] = by_fold(k, scorer, walk.stages.next())
    candidates, best = compare(profile, families, part, fitted, scores)
    described = (
        family.described_features([part(fold, family) for fold in range(TEST, k)])
        for family in families
    )
    features: dict[str, object] = next(filter(None, described), {})
    for shared in profile.shared.values():
        shared.forget()
    f, h = hyperparameters(fitted[0])[best]
    return _Choice(candidates, best, tuple(fits[f].pick(h) for fits in fitted), features)
