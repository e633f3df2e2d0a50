"""Train, validate, test: the choice of a calibration estimator by its risk [GB §3.2.2]."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from calibscale import engine
from calibscale.errors import OptionError
from calibscale.evaluation import describe_scheduler, versions
from calibscale.landmarks import (
    FourierFeatures,
    Gaussian,
    Kernel,
    PointFeatures,
    choose_landmarks,
    unit_interval_landmarks,
)
from calibscale.scan import MAX_GROUPS, scan
from calibscale.selection.bins import Bins, DebiasedBins
from calibscale.selection.candidates import compare, hyperparameters
from calibscale.selection.error import trace_residual
from calibscale.selection.families import Family, Fitted, Part, Setting
from calibscale.selection.judge import (
    FoldTask,
    Judge,
    Verdict,
    fit_families,
)
from calibscale.selection.kde import KDE, LeaveOneOutKDE
from calibscale.selection.results import Candidate, Selection
from calibscale.selection.ridge import KKR, UKKR, Ridge
from calibscale.selection.statistics import Residuals, RowSums, RowSumState, Subset, SubsetState
from calibscale.selection.temperature import Temperature
from calibscale.source import ArraySource
from calibscale.splits import TEST, Split, given_split
from calibscale.statistics import Statistic
from calibscale.store import as_source
from calibscale.views import View, problems, width

FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (Bins, DebiasedBins, KDE, LeaveOneOutKDE, KKR, UKKR, Temperature)
}

SUBSET_ROWS = 20_000
_SUBSET_BYTES = 2**28


class _Choice(NamedTuple):
    """All candidates, the position of the best, and what the features miss of k(p, p)."""

    candidates: tuple[Candidate, ...]
    best: int
    ensemble: tuple[Fitted, ...]
    features: dict[str, object]


class _Steps:
    """Progress over all passes: blocks read, and folds fitted and judged."""

    def __init__(self, progress: engine.Progress | None, total: int) -> None:
        self._progress = progress or (lambda done, total: None)
        self._total = total
        self._done = 0

    def stage(self) -> engine.Progress:
        """The callback of the next stage."""
        before = self._done

        def report(done: int, total: int) -> None:
            self._done = before + done
            self._progress(self._done, max(self._done, self._total))

        return report


@dataclass(frozen=True)
class _Pass:
    """How every pass over the source is made."""

    source: ArraySource
    split: Split
    options: dict[str, Any]
    steps: _Steps

    def __call__(self, statistics: Sequence[Statistic]) -> tuple[dict[int, dict], Any]:
        found = scan(
            self.source,
            tuple(statistics),
            split=self.split,
            progress=self.steps.stage(),
            **self.options,
        )
        return {int(key or 0): states for key, states in found.groups.items()}, found


def select(
    source: Any,
    notion: str = "top_label",
    estimators: Iterable[str | Family] | None = None,
    *,
    folds: Any = 5,
    test_fraction: float = 0.2,
    seed: int = 0,
    kernel: Kernel | None = None,
    features: str | PointFeatures = "landmarks",
    rank: int = 1000,
    trace_tolerance: float = 1e-13,
    subset_rows: int = SUBSET_ROWS,
    nested: bool = False,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    block_rows: int | None = None,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> Selection:
    """Fit calibration estimators, choose by validated risk, estimate on rows set aside [GB §3.2.2].

    Every hyper-parameter of every family is fitted on the rows of all folds but one and judged by
    its risk (eq. 20) on that fold.  The one of smallest mean risk estimates the squared
    calibration error on the test part (eq. 21), as the mean of its k fits.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
    notion : {"top_label", "canonical", "class_wise", "positive"}
        Class-wise: one hyper-parameter for all classes; risks and estimates are summed.
    estimators : iterable of str or Family, optional
        Names (``bins``, ``bins_debiased``, ``kde``, ``kde_loo``, ``kkr``, ``ukkr``,
        ``temperature``) or families with settings, such as ``Bins((10, 15))``.  Default: all but
        ``bins_debiased`` and ``kde_loo``; binning is not for the canonical notion.
    folds : int or (n,) integers
        k, or the fold of each row: −1 is the test part, 0..k−1 are the folds.
    test_fraction : float
    seed : int
        Of the split, of the rows kept in memory, of landmarks and frequencies.
    kernel : Kernel, optional
        Of kkr and ukkr; default `Gaussian` with bandwidth 1/√2.
    features : {"landmarks", "random"} or PointFeatures
        How the kernel is reproduced: by landmarks (exact to rounding where `rank` of them
        suffice), or by `rank`/2 random frequencies.
    rank : int
        Largest number of features m.
    trace_tolerance : float
        Landmarks are added until the mean of k(p, p) − |φ(p)|² is below; those of scalars go on
        to rounding, or to `rank`.
    subset_rows : int
        Rows kept in memory (all, if the source has no more): candidates for landmarks, queries of
        the canonical KDE, and what standard errors are computed from.
    nested : bool
        Choose k times more, each fold being the test part once; `nested_estimate` is the mean.
    on_invalid, tolerance, block_rows, scheduler, memory_limit, progress
        As for `evaluate`.

    Raises
    ------
    OptionError
        If a setting does not fit the data: an estimator that is not for the notion, an empty
        fold, a grid with a value that is not positive.
    InvalidDataError, StoreError
        As for `evaluate`.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(size=1000)
    >>> y = (rng.uniform(size=1000) < p**2).astype(int)
    >>> source = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
    >>> found = calibscale.select(source, "positive", ["bins", "ukkr"])
    >>> 0.02 < found.selected.estimate < 0.05
    True
    """
    started = time.perf_counter()
    data = as_source(source)
    problems(notion, data.classes)
    split = (
        Split(_count(folds), test_fraction, seed)
        if np.ndim(folds) == 0
        else given_split(folds, data.rows)
    )
    if split.folds > max(2, data.rows // 2):
        raise OptionError(f"{split.folds} folds of {data.rows} rows leave folds empty")
    if nested and split.folds < 3:
        raise OptionError("a nested run needs three folds or more")
    if rank < 1 or subset_rows < 2:
        raise OptionError("rank must be at least 1 and subset_rows at least 2")
    if not 0 <= seed < 2**64:
        raise OptionError(f"seed must be in 0..2^64−1, not {seed}")
    if split.folds >= MAX_GROUPS:
        raise OptionError(f"folds must be below {MAX_GROUPS}, not {split.folds}")
    if not 0 <= trace_tolerance < 1:
        raise OptionError(f"trace_tolerance must be in [0, 1), not {trace_tolerance}")
    chosen = _families(estimators, notion)
    blocks = -(-data.rows // (block_rows or data.block_rows))
    passes = 2 if data.rows <= subset_rows else 3
    choices = 1 + split.folds * nested
    total = blocks + choices * ((passes - 1) * blocks + 2 * split.folds)
    with engine.one_thread(), engine.session(scheduler, memory_limit) as opened:
        options = dict(
            on_invalid=on_invalid, tolerance=tolerance, block_rows=block_rows, scheduler=opened,
            memory_limit=memory_limit,
        )  # fmt: skip
        walk = _Pass(data, split, options, _Steps(progress, total))
        subset, counts = _subset(walk, notion, subset_rows, seed)
        made = None
        if any(isinstance(family, Ridge) and family.features is None for family in chosen):
            gram = kernel or Gaussian()
            made = _features(features, gram, notion, subset, rank, trace_tolerance, seed)
        setting = Setting(
            notion=notion,
            classes=data.classes,
            features=made,
            subset=subset,
            folds=split.of(subset[0].rows),
            whole=counts.used == len(subset[0].rows),
        )
        families = tuple(family.resolve(setting) for family in chosen)
        choice = _choose(walk, setting, families)
        nested_estimates: list[float] = []
        for outer in range(split.folds) if nested else ():
            inner = replace(split, outer=outer)
            again = replace(setting, folds=inner.of(subset[0].rows), shared={})
            without = _choose(replace(walk, split=inner), again, families)
            nested_estimates.append(without.candidates[without.best].estimate)
    return Selection(
        notion=notion,
        candidates=choice.candidates,
        best=choice.best,
        ensemble=choice.ensemble,
        nested_estimates=tuple(nested_estimates),
        n=counts.used,
        n_unlabelled=counts.unlabelled,
        dropped=counts.dropped,
        source=data.describe(),
        features=choice.features,
        seconds=time.perf_counter() - started,
        versions=versions(),
        parameters={
            "folds": split.folds,
            "test_fraction": None if split.given is not None else test_fraction,
            "seed": seed,
            "nested": nested,
            "rank": rank,
            "trace_tolerance": trace_tolerance,
            "subset_rows": len(subset[0].rows),
            "on_invalid": on_invalid,
            "tolerance": tolerance,
            "block_rows": block_rows or data.block_rows,
            "scheduler": describe_scheduler(scheduler),
            "memory_limit": engine.parse_bytes(memory_limit),
        },
    )


def _count(folds: Any) -> int:
    try:
        return operator.index(folds)
    except TypeError:
        raise OptionError(
            f"folds must be a number or one integer for each row, not {folds!r}"
        ) from None


def default_families(notion: str) -> tuple[str, ...]:
    """Names of the estimators that a notion is tried with."""
    names = ("bins", "kde", "kkr", "ukkr", "temperature")
    return names[1:] if notion == "canonical" else names


# ---------------------------------------------------------------- before the passes


def _families(estimators: Iterable[str | Family] | None, notion: str) -> tuple[Family, ...]:
    if estimators is None:
        estimators = default_families(notion)
    chosen = []
    for estimator in [estimators] if isinstance(estimators, str | Family) else estimators:
        if isinstance(estimator, str):
            if estimator not in FAMILIES:
                raise OptionError(
                    f"there is no estimator {estimator!r}; known: {', '.join(FAMILIES)}"
                )
            estimator = FAMILIES[estimator]()
        chosen.append(estimator)
    if not chosen:
        raise OptionError("name at least one estimator")
    names = [family.name for family in chosen]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"{name} is named twice; give it one grid")
    return tuple(chosen)


def _subset(walk: _Pass, notion: str, limit: int, seed: int) -> tuple[Sequence[View], Any]:
    """The rows kept in memory, as each problem of the notion sees them, and the row counts."""
    data = walk.source
    e = width(notion, data.classes)
    row_bytes = 8 * problems(notion, data.classes) * (2 + 2 * e + 2 * max(e, 2))
    limit = max(2, min(limit, _SUBSET_BYTES // row_bytes))
    wanted = Subset(notion, min(1.0, limit / data.rows), seed)
    groups, found = walk([wanted])
    kept = sum(len(states[wanted].rows[0]) for states in groups.values())
    if kept < min(limit, found.counts.used) // 2:  # most rows are not labelled: once more
        wanted = Subset(notion, min(1.0, limit / found.counts.used), seed)
        groups, found = walk([wanted])
    folds = range(TEST, walk.split.folds)
    empty = [k for k in folds if k not in groups]
    if empty:
        what = "the test part" if empty[0] == TEST else f"fold {empty[0]}"
        raise OptionError(
            f"{what} has no labelled rows with a positive weight ({found.counts.used} in all); "
            "give fewer folds, or another seed"
        )
    state = wanted.zero(data.classes)
    for k in folds:
        state = wanted.merge(state, groups[k][wanted])
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
    return views, found.counts


def _features(
    features: str | PointFeatures,
    kernel: Kernel,
    notion: str,
    subset: Sequence[View],
    rank: int,
    tolerance: float,
    seed: int,
) -> PointFeatures:
    if not isinstance(features, str):
        return features
    e = subset[0].points.shape[1]
    if features == "random":
        if not isinstance(kernel, Gaussian):
            raise OptionError("random features are for the Gaussian kernel; use landmarks")
        return FourierFeatures(kernel, max(1, rank // 2), e, seed)
    if features != "landmarks":
        raise OptionError(f"features must be 'landmarks' or 'random', not {features!r}")
    if e == 1:
        return unit_interval_landmarks(kernel, rank, seed)
    kept = len(subset[0].rows)  # in the order of the source: take them from all of it
    spread = np.unique(np.linspace(0, kept - 1, min(kept, 8 * rank)).astype(np.int64))
    return choose_landmarks(kernel, subset[0].points[spread], rank, tolerance, seed)


# ---------------------------------------------------------------- passes and folds


def _choose(walk: _Pass, setting: Setting, families: Sequence[Family]) -> _Choice:
    k = walk.split.k
    residuals = Residuals(setting.notion)
    needed = dict.fromkeys([residuals, *(s for family in families for s in family.needs)])
    groups, _ = walk(tuple(needed))

    def part(fold: int, family: Family) -> Part:
        states = groups[fold]
        return Part(states[residuals], tuple(states[s] for s in family.needs))

    fitted: list[tuple[Fitted, ...]] = engine.fold(
        FoldTask(k, lambda fold: fit_families(fold, k, families, part, setting)),
        "threads",
        progress=walk.steps.stage(),
    )
    streamed = _streamed(setting, families)
    sums: dict[int, RowSumState] = {}
    if streamed:
        fits = [[fits[f] for f in streamed] for fits in fitted]
        rows = RowSums(setting.notion, "rows", fits)
        sums = {fold: states[rows] for fold, states in walk([rows])[0].items()}
    judge = Judge(setting, families, part, fitted, streamed, sums)
    verdicts: list[list[Verdict]] = engine.fold(
        FoldTask(k, judge), "threads", progress=walk.steps.stage()
    )
    candidates, best = compare(setting, families, part, fitted, verdicts)
    ridge = next((family for family in families if isinstance(family, Ridge)), None)
    described: dict[str, object] = {}
    if ridge is not None and ridge.features is not None:
        residual = trace_residual([part(fold, ridge) for fold in range(TEST, k)])
        described = {**ridge.features.describe(), "trace_residual": residual}
    for basis in setting.shared.values():
        basis.forget()
    f, h = hyperparameters(fitted[0])[best]
    return _Choice(candidates, best, tuple(fits[f].pick(h) for fits in fitted), described)


def _streamed(setting: Setting, families: Sequence[Family]) -> list[int]:
    """Families whose functions a second pass meets at every row."""
    if setting.whole:
        return []
    if setting.notion == "canonical":  # φᵀBφ at every row would cost more than all the moments
        return [f for f, family in enumerate(families) if isinstance(family, Temperature)]
    exact = [isinstance(family, KDE) and not family.compressed for family in families]
    return [f for f in range(len(families)) if not exact[f]]
