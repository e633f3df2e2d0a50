"""Selection of a calibration estimator: training, validation and testing [GB §3.2.2]."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from calibscale import engine
from calibscale.data import Floats, NotionView, chunks, problems, views, width
from calibscale.data.derived_sources import TEST, Split, given_split
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError, OptionError, require
from calibscale.kernel_sums.landmarks import (
    FourierFeatures,
    Gaussian,
    Kernel,
    Laplacian,
    PointFeatures,
    choose_landmarks,
    unit_interval_landmarks,
)
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
from calibscale.selection.kde import KDE, LeaveOneOutKDE
from calibscale.selection.ridge import KKR, UKKR
from calibscale.selection.risk import FoldScorer, FoldScores, by_fold
from calibscale.selection.score_families import CubeRootBins, IsotonicCurve, SmoothCurve, SweepBins
from calibscale.selection.simple_families import Bins, DebiasedBins, Temperature
from calibscale.session import Session, SessionOptions, classes_only, verb
from calibscale.statistics import MAX_GROUPS, Statistic

__all__ = ["Bins", "Gaussian", "KernelFeatures", "Laplacian", "Temperature", "select"]

FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (Bins, DebiasedBins, CubeRootBins, SweepBins, IsotonicCurve, SmoothCurve, KDE,
                   LeaveOneOutKDE, KKR, UKKR, Temperature)
}  # fmt: skip

SUBSET_ROWS = 20_000
_SUBSET_BYTES = 2**28


class _Choice(NamedTuple):
    """All candidates, the position and fits of the best, and a description of the features."""

    candidates: tuple[Candidate, ...]
    best: int
    ensemble: tuple[FittedFamily, ...]
    features: dict[str, object]


@dataclass(frozen=True)
class _Pass:
    """A pass over the source by folds."""

    session: Session
    split: Split
    stages: engine.Stages

    def __call__(self, statistics: Sequence[Statistic]) -> tuple[dict[int, dict], Any]:
        session = self.session.reporting(self.stages.next())
        result = session.scan(statistics, split=self.split)
        return {int(key or 0): states for key, states in result.groups.items()}, result


@dataclass(frozen=True)
class KernelFeatures:
    """Settings of a feature map of the kernel of kkr and ukkr.

    Parameters
    ----------
    kind : {"landmarks", "random"}
        Landmarks (exact to rounding if `rank` of them suffice), or `rank`/2 random frequencies.
    kernel : Kernel, optional
        Default: `Gaussian` with bandwidth 1/√2.
    rank : int
        Maximum number of features m.
    trace_tolerance : float
        Landmarks are added until the mean of k(p, p) − |φ(p)|² is below this value; for scalar
        notions, until rounding or `rank` is reached.
    """

    kind: str = "landmarks"
    kernel: Kernel = Gaussian()  # noqa: RUF009  (frozen)
    rank: int = 1000
    trace_tolerance: float = 1e-13

    def __post_init__(self) -> None:
        if self.kind not in ("landmarks", "random"):
            raise OptionError(f"features must be 'landmarks' or 'random', not {self.kind!r}")
        if self.kind == "random" and not isinstance(self.kernel, Gaussian):
            raise OptionError("random features need the Gaussian kernel; use landmarks")
        require(self.rank >= 1, "rank must be at least 1", self.rank)
        if not 0 <= self.trace_tolerance < 1:
            raise OptionError(f"trace_tolerance must be in [0, 1), not {self.trace_tolerance}")

    def of(self, subset: Sequence[NotionView], seed: int) -> PointFeatures:
        """Feature map for the predictions of some rows, in the order of the source."""
        e = subset[0].points.shape[1]
        if self.kind == "random":
            assert isinstance(self.kernel, Gaussian)
            return FourierFeatures(self.kernel, max(1, self.rank // 2), e, seed)
        if e == 1:
            return unit_interval_landmarks(self.kernel, self.rank, seed)
        n = len(subset[0].rows)  # candidates are spread over all rows
        spread = np.unique(np.linspace(0, n - 1, min(n, 8 * self.rank)).astype(np.int64))
        points = subset[0].points[spread]
        return choose_landmarks(self.kernel, points, self.rank, self.trace_tolerance, seed)


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
        Default: ``top_label``; of forecasts ``canonical``, with ``kkr`` and ``ukkr`` only.
    estimators : iterable of str or Family, optional
        Names (``bins``, ``bins_debiased``, ``bins_cube_root``, ``bins_sweep``, ``isotonic``,
        ``smooth_ece``, ``kde``, ``kde_loo``, ``kkr``, ``ukkr``, ``temperature``) or families with
        settings, such as ``Bins((10, 15))``.  Default: those of [GB], ``bins``, ``kde``, ``kkr``,
        ``ukkr`` and ``temperature``.  The first six do not support the canonical notion.
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
        Repeat the selection k times with each fold as the test part; `nested_estimate` is the
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
    with Session.open(source, **options) as session, engine.one_thread():
        data = session.source
        data.need_integer_labels("select")
        notion = notion or ("top_label" if data.forecast is None else "canonical")
        problems(notion, data.classes)
        if notion != "canonical":
            classes_only(f"notion {notion!r}", data)
        split = _split(folds, test_fraction, seed, nested, data.rows)
        require(subset_rows >= 2, "subset_rows must be at least 2", subset_rows)
        if estimators is None and data.forecast is not None:
            estimators = [name for name, family in FAMILIES.items() if family.of_forecasts]
        chosen = _families(estimators, notion)
        for family in chosen:
            if not family.of_forecasts:
                classes_only(family.name, data)
        passes = 2 if data.rows <= subset_rows else 3
        choices = 1 + split.folds * nested
        stages = engine.Stages(session.execution.progress, 1 + choices * (passes + 1))
        walk = _Pass(session, split, stages)
        subset, counts = _subset(walk, notion, subset_rows, seed)
        default_map: PointFeatures | None = None
        if any(family.needs_features for family in chosen):
            default_map = (
                features.of(subset, seed) if isinstance(features, KernelFeatures) else features
            )
        profile = FamilyProfile(
            notion=notion,
            classes=data.classes,
            features=default_map,
            subset=subset,
            folds=split.of(subset[0].rows),
            complete=counts.used == len(subset[0].rows),
        )
        families = tuple(family.resolve(profile) for family in chosen)
        choice = _choose(walk, profile, families)
        nested_estimates: list[float] = []
        for outer in range(split.folds) if nested else ():
            inner = replace(split, outer=outer)
            inner_profile = replace(profile, folds=inner.of(subset[0].rows), shared={})
            nested_choice = _choose(replace(walk, split=inner), inner_profile, families)
            nested_estimates.append(nested_choice.candidates[nested_choice.best].estimate)
    return Selection(
        notion=notion,
        candidates=choice.candidates,
        best=choice.best,
        pointwise=Pointwise(choice.ensemble, notion, data.classes),
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


def default_families(notion: str) -> tuple[str, ...]:
    """Names of the default estimators of a notion."""
    names = ("bins", "kde", "kkr", "ukkr", "temperature")
    return names[1:] if notion == "canonical" else names


def _families(estimators: Iterable[str | Family] | None, notion: str) -> tuple[Family, ...]:
    if estimators is None:
        estimators = default_families(notion)
    chosen = []
    for estimator in [estimators] if isinstance(estimators, str | Family) else estimators:
        if isinstance(estimator, str):
            known = ", ".join(FAMILIES)
            require(estimator in FAMILIES, f"unknown estimator {estimator!r}; available: {known}")
            estimator = FAMILIES[estimator]()
        chosen.append(estimator)
    require(chosen, "select at least one estimator")
    names = [family.name for family in chosen]
    for name in names:
        require(names.count(name) <= 1, f"{name} is listed twice; combine its grids")
    return tuple(chosen)


def _subset(walk: _Pass, notion: str, limit: int, seed: int) -> tuple[Sequence[NotionView], Any]:
    """Views of the rows kept in memory, one for each problem, and the row counts."""
    data = walk.session.source
    e = width(notion, data.classes)
    row_bytes = 8 * problems(notion, data.classes) * (2 + 2 * e + 2 * max(e, 2))
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
        what = "the test part" if empty[0] == TEST else f"fold {empty[0]}"
        raise OptionError(
            f"{what} has no labelled rows with a positive weight ({result.counts.used} in all); "
            "use fewer folds or another seed"
        )
    state = statistic.zero(data.classes)
    for k in folds:
        state = statistic.merge(state, groups[k][statistic])
    order = np.argsort(state.rows[0], kind="stable")
    views = SubsetState(*(np.take(part, order, axis=1) for part in state)).views
    for k in folds:
        rows = views[0].take(walk.split.of(views[0].rows) == k)
        if np.count_nonzero(rows.weights) < 2:
            what = "the test part" if k == TEST else f"fold {k}"
            raise OptionError(
                f"{what} has {np.count_nonzero(rows.weights)} rows with a positive weight among "
                f"the {len(views[0].rows)} kept in memory; at least two are needed"
            )
    return views, result.counts


def _choose(walk: _Pass, profile: FamilyProfile, families: Sequence[Family]) -> _Choice:
    k = walk.split.k
    residuals = FoldResiduals(profile.notion)
    statistics = dict.fromkeys([residuals, *(s for family in families for s in family.needs)])
    groups, _ = walk(tuple(statistics))

    def part(fold: int, family: Family) -> FoldPart:
        states = groups[fold]
        return FoldPart(states[residuals], tuple(states[s] for s in family.needs))

    def fit(excluded: int) -> tuple[FittedFamily, ...]:
        train = [fold for fold in range(k) if fold != excluded]
        return tuple(f.fit([part(v, f) for v in train], profile, excluded) for f in families)

    fitted: list[tuple[FittedFamily, ...]] = by_fold(k, fit, walk.stages.next())
    streamed = [
        f for f, family in enumerate(families)
        if not profile.complete and family.streamed(profile.notion)
    ]  # fmt: skip
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


@dataclass(frozen=True)
class Pointwise:
    """Squared calibration error at each prediction: h(p, p), the mean over the k `fits`.

    The mean over rows is the estimate for these rows [GB eq. 21].  Class-wise values are summed
    over classes.
    """

    fits: tuple[FittedFamily, ...]
    notion: str
    classes: int

    def __call__(self, probabilities: Floats) -> Floats:
        """Return the error (c,) at predictions (c, K), or (c,) with P(y = 1) of two classes.

        Raises
        ------
        OptionError
            If the canonical KDE was selected, which is defined at the rows kept in memory only.
        InvalidDataError
            If a row is not a probability vector, or has a different number of classes.
        """
        q, K = np.asarray(probabilities, dtype=np.float64), self.classes
        if q.shape[1:] not in ((K,), ()) or (q.ndim == 1 and K != 2):
            raise InvalidDataError(f"probabilities must be (c, {K}), not of shape {q.shape}")
        if not all(fit.anywhere for fit in self.fits):
            raise OptionError("this estimator is only defined at the rows it was fitted for")
        labels = np.zeros(len(q), np.int64)
        rows = ArraySource(
            "probabilities", q, labels, binary=q.ndim == 1, rows=len(q), name="the source"
        )
        values = [
            np.mean([fit.diagonal(seen)[:, 0].sum(axis=0) for fit in self.fits], axis=0)
            for chunk, _ in chunks(rows.read(0, len(q)), rows.rules())
            for seen in [views(chunk, self.notion)]
        ]
        return np.concatenate(values) if values else np.empty(0)
