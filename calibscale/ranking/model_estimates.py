"""Estimates of models with shared settings, their names and notes, and their differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, count
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from scipy.special import stdtr

from calibscale.addresses import HIDDEN, shown_address
from calibscale.array_types import Floats
from calibscale.data.source import ArraySource
from calibscale.data.store import LogitStore
from calibscale.engine.execution import Stages
from calibscale.engine.threads import one_thread
from calibscale.errors import require
from calibscale.estimators.base import BoundEstimator
from calibscale.estimators.settings import build
from calibscale.inference.floors import floor_statistics, noise_of, with_floor
from calibscale.inference.multiple_testing import holm
from calibscale.intervals.interval_estimates import interval_statistics, with_interval
from calibscale.intervals.parts_of_rows import Parts, parts_of
from calibscale.intervals.resampling import Resampling, frozen_by, merged, total
from calibscale.kernels.features import FeatureMap, RandomFourier
from calibscale.kernels.pairwise import Pairwise
from calibscale.predictions.blocks import RowCounts
from calibscale.results.cluster_results import Clusters
from calibscale.results.comparison_results import Difference, RankedModel
from calibscale.results.estimate import Estimate
from calibscale.session import Run, impossible_rows
from calibscale.statistics.score_sums import Fingerprint, Totals, TotalsState, from_left_out


def named_models(sources: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Models by name.  The models of a sequence are named after their files."""
    if isinstance(sources, Mapping):
        models = {str(name): source for name, source in sources.items()}
    else:
        single = isinstance(sources, str | Path | ArraySource | LogitStore)
        unnamed = [sources] if single else list(sources)
        models = dict(zip(distinct_names([_name(m) for m in unnamed]), unnamed, strict=True))
    require(models, "there is no model to rank")
    return models


def _name(source: Any) -> str:
    if isinstance(source, ArraySource):
        return source.name
    return source.url if isinstance(source, LogitStore) else str(source)


def _named(path: str) -> str:
    """Path or URL without its secrets and the endings that name no model."""
    return shown_address(path).removesuffix(f"?{HIDDEN}").removesuffix("/").removesuffix(".zarr")


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Last part of each path, with more parts or numbers where names would repeat."""
    parts = [PurePath(_named(path)).parts for path in paths]
    longest = max((len(p) for p in parts), default=1)
    names = ["/".join(p[-1:]) for p in parts]
    for length in range(2, longest + 1):
        # Only names that stand for several paths get more parts.
        n_paths = Counter(name for name, _ in set(zip(names, parts, strict=True)))
        names = [
            name if n_paths[name] == 1 else str(PurePath(*p[-length:]))
            for name, p in zip(names, parts, strict=True)
        ]
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name} ({i})" if i > 1 else name for i in count(1))
        distinct.append(next(unused for unused in numbered if unused not in distinct))
    return distinct


# ---------------------------------------------------------------- Notes


def model_notes(models: list[EstimatedModel]) -> tuple[str, ...]:
    """Notes on different rows, on models without a rank and on missing intervals."""
    notes = []
    first = models[0]
    for model in models[1:]:
        if model.estimate.value is None or model.key == first.key:
            continue
        rows, first_rows = model.counts.used, first.counts.used
        if rows != first_rows:
            why = f"{rows:,} and {first_rows:,} rows are used"
        else:
            why = "their labels or weights differ, or are in another order"
        notes.append(
            f"{model.name} and {first.name} do not have the same rows ({why}): their difference "
            "is that of independent samples"
        )
    for model in models:
        if model.estimate.value is None:
            notes.append(f"{model.name} has no rank: {model.estimate.reason}")
    no_parts = [
        model for model in models if model.estimate.value is not None and model.parts is None
    ]
    if any(model.few for model in no_parts):
        notes.append("intervals and probabilities of ranks need more rows")
    if not all(model.few for model in no_parts):
        notes.append("this method gives no intervals, so there are no probabilities of ranks")
    return tuple(notes)


def approximation_notes(differences: Sequence[Difference]) -> list[str]:
    """Note on significant differences that are smaller than the approximation error."""
    close = [
        f"{d.better} and {d.worse}"
        for d in differences
        if d.distinguishable and d.value < (d.approximation_error or 0.0)
    ]
    if not close:
        return []
    return [
        f"{', '.join(close)} differ by less than the error of the approximation: raise the number "
        "of features"
    ]


# ---------------------------------------------------------------- Estimates


_ROWS, _TOTALS = Fingerprint(predictions=False), Totals()


@dataclass(frozen=True, eq=False)
class EstimatedModel:
    """One model after its pass."""

    name: str
    estimate: Estimate
    parts: Parts | None
    few: bool  # too few rows for an interval from `parts`
    coarse: Floats | None  # values with one group of random frequencies left out
    key: tuple[int, int]  # equal only for models with the same rows, labels and weights
    totals: TotalsState
    counts: RowCounts
    clusters: Clusters | None = None
    scores: Mapping[str, float] = field(default_factory=dict)  # proper scores of `Target.scores`

    @property
    def value(self) -> float:
        assert self.estimate.value is not None
        return self.estimate.value

    @property
    def place(self) -> float:
        """Sort key of the models.  Models without a value come last."""
        return float("inf") if self.estimate.value is None else self.estimate.value

    def ranked(self, rank: int | None, probabilities: tuple[float, ...], run: Run) -> RankedModel:
        crps = self.scores.get("crps")
        further = {name: score for name, score in self.scores.items() if name != "crps"}
        by_class: dict[str, float] = {}
        weight = float(self.totals.weight)
        if run.source.target.has_classes and weight > 0:
            totals = self.totals
            sums = {"accuracy": totals.hit, "brier": totals.brier, "nll": totals.nll}
            by_class = {name: float(s) / weight for name, s in sums.items()}
        return RankedModel(
            self.name,
            rank,
            replace(self.estimate, details={}),
            probabilities,
            **by_class,
            crps=crps,
            scores=further or None,
            n=self.counts.used,
            n_unlabelled=self.counts.unlabelled,
            dropped=self.counts.dropped,
            source=run.source.describe(),
            impossible=impossible_rows(self.counts),
        )


@runtime_checkable
class HasFrequencies(Protocol):
    """Estimator with features that may be random, and then approximate a kernel.

    `rank` asks for it, as models with the same frequencies share a part of the error.
    """

    @property
    def features(self) -> FeatureMap:
        """Features of the predictions."""
        ...

    def bare(self, *states: Any) -> Estimate:
        """Estimate without the error of its approximation."""
        ...

    def without_frequencies(self, *states: Any) -> Floats:
        """Value without each group of random frequencies (groups,)."""
        ...


def estimate_models(
    names: list[str], runs: list[Run], resampling: Resampling, stages: Stages
) -> list[EstimatedModel]:
    """Estimate every model with the settings of the model with the fewest rows.

    The states of all models may not fit into memory together, so a second pass is made where λ
    depends on unequal numbers of rows.
    """
    models = [
        _estimate_model(*model, resampling, stages, None) for model in zip(names, runs, strict=True)
    ]
    smallest = min((model.totals for model in models), key=effective_rows)
    (estimator,) = runs[0].fitting
    if not smallest.weight > 0:
        return models
    common = frozen_by(estimator, smallest)
    if all(m.totals.weight == 0 or frozen_by(estimator, m.totals) == common for m in models):
        return models
    return [
        _estimate_model(*model, resampling, stages, smallest)
        for model in zip(names, runs, strict=True)
    ]


def effective_rows(totals: TotalsState) -> float:
    """Effective number of rows (Σw)²/Σw², 0 without weight."""
    return float(totals.weight**2 / totals.weight2) if totals.weight2 > 0 else 0.0


def _estimate_model(
    name: str, run: Run, resampling: Resampling, stages: Stages, smallest: TotalsState | None
) -> EstimatedModel:
    (estimator,) = run.fitting
    grouped = resampling.needs(estimator)
    extra = interval_statistics(estimator, resampling, run.source.n_features)
    noise = noise_of(run.rules)
    floors = floor_statistics(estimator, noise, run.source.n_features)
    scorers = [build(name, {}).bind(run.profile) for name in run.source.target.scores]
    needed = [*(grouped or estimator.needs), *extra, *floors, *run.cluster_sums]
    needed += [s for scorer in scorers for s in scorer.needs]
    result = run.reporting(stages.next()).scan([*needed, _ROWS, _TOTALS])
    states = result.groups[None]
    rows, totals = states[_ROWS], states[_TOTALS]
    # Settings that depend on the number of rows, such as λ, are the same for all models.
    fewest = smallest or totals
    if fewest.weight > 0:
        estimator = frozen_by(estimator, fewest)
    # Sums over pairs of rows need the rows again.
    pairs = None
    if isinstance(estimator, Pairwise):
        pairs = run.reporting(stages.next()).pairs()
    parts, few, coarse = None, False, None
    with one_thread():
        if isinstance(estimator, Pairwise):
            assert pairs is not None
            estimate = estimator.solve(pairs)
        else:
            summed = [total(states[s]) for s in grouped] or [states[s] for s in estimator.needs]
            estimate, coarse = _estimate(estimator, summed)
        if estimate.value is not None and not np.isfinite(estimate.value):
            # JSON has no number for it, and it cannot be ranked.
            estimate = replace(estimate, value=None, reason=f"the value is {estimate.value}")
        clusters = run.clusters(result)
        sums = merged(states, grouped)
        estimate = with_floor(estimator, estimate, sums, noise, run.source.n_features, clusters)
        if estimate.value is not None:
            parts = parts_of(estimator, resampling, states, pairs, estimate.value)
        if parts is not None:
            few = parts.interval(resampling, "") is None
            estimate = with_interval(
                estimator, estimate, resampling, states, run.source.n_features, parts=lambda: parts
            )
            parts = None if few else parts
    key = int(rows.n), int(rows.hashes[0])
    counts = result.counts
    scores = {}
    for scorer in scorers:
        score = scorer.finalize(*(states[s] for s in scorer.needs)).value
        if score is not None and np.isfinite(score):  # JSON has no infinity
            scores[scorer.name] = score
    return EstimatedModel(name, estimate, parts, few, coarse, key, totals, counts, clusters, scores)


def _estimate(estimator: BoundEstimator, states: list[Any]) -> tuple[Estimate, Floats | None]:
    """The estimate, and its values with each group of random frequencies left out, or None."""
    if not _has_random_features(estimator):
        return estimator.finalize(*states), None
    estimate = estimator.bare(*states)
    if estimate.value is None:
        return estimate, None
    # The values serve twice: for the error of this estimate, and for the error of differences of
    # models, which share their frequencies.
    coarse = estimator.without_frequencies(*states)
    return replace(estimate, approximation=from_left_out(estimate.value, coarse)), coarse


def _has_random_features(estimator: BoundEstimator) -> TypeGuard[HasFrequencies]:
    """Whether an estimator has at least two random frequencies."""
    if not isinstance(estimator, HasFrequencies):
        return False
    return isinstance(estimator.features, RandomFourier) and estimator.features.n_features >= 2


# ---------------------------------------------------------------- Differences


DRAWS = 100_000  # draws of the estimates: probabilities are accurate to 0.002
TIE = 1e-9  # relative difference up to which estimates count as equal

_BATCH = 10_000  # draws at a time
# Share of the largest deviation that blurs ties, as roots of singular covariances err by 1e-8.
_BLUR = 1e-6


def ranks(values: Sequence[float]) -> list[int]:
    """Ranks 1, 2, … of increasing values.  Values that are equal up to rounding share a rank."""
    places: list[int] = []
    for i, value in enumerate(values):
        tie = i > 0 and _equal(values[i - 1], value)
        places.append(places[-1] if tie else i + 1)
    return places


def _equal(low: float, high: float) -> bool:
    return high - low <= TIE * max(abs(low), abs(high))


def differences(
    names: Sequence[str],
    parts: Sequence[Parts | None],
    values: Sequence[float],
    rows: Sequence[int],
    resampling: Resampling,
    covers: str,
) -> tuple[Difference, ...]:
    """Difference of every pair of models, in the order of their ranks.

    Models with equal numbers in `rows` have the same rows.
    """
    models = zip(names, values, parts, rows, strict=True)
    pairs = [_difference(a, b, resampling, covers) for a, b in combinations(models, 2)]
    return _adjusted(pairs, 1 - resampling.confidence_level)


_Compared = tuple[str, float, Parts | None, int]  # name, value and parts of a model, and its rows


def _difference(a: _Compared, b: _Compared, resampling: Resampling, covers: str) -> Difference:
    (better, low, first, rows) = a
    (worse, high, second, second_rows) = b
    value = high - low
    difference = Difference(better, worse, value, rows == second_rows)
    if first is None or second is None:
        return difference
    if rows == second_rows:
        parts = second - first
    else:
        # Independent samples, with the degrees of freedom of Welch and Satterthwaite.
        pair = (first, second)
        squares = [part.standard_error**2 for part in pair]
        scale = sum(s * s / max(part.count - 1, 1) for s, part in zip(squares, pair, strict=True))
        freedom = sum(squares) ** 2 / scale if scale > 0 else None
        left_out = min(pair, key=lambda part: part.count).left_out
        parts = Parts(value, left_out, error=float(np.sqrt(sum(squares))), freedom=freedom)
    interval = parts.interval(resampling, covers)
    if interval is None:
        return difference
    if _equal(low, high):
        t, p = 0.0, 1.0
    else:
        error = interval.standard_error
        t = value / error if error > 0 else float("inf")
        p = 2 * float(stdtr(parts.freedom or parts.count - 1, -t))
    return replace(difference, interval=interval, t=t, p_value=p)


def _adjusted(pairs: list[Difference], alpha: float) -> tuple[Difference, ...]:
    """Add p-values that are adjusted for all pairs."""
    return tuple(
        d if p is None else replace(d, p_adjusted=p, distinguishable=p <= alpha)
        for d, p in zip(pairs, holm([d.p_value for d in pairs]), strict=True)
    )


def rank_probabilities(
    parts: Sequence[Parts], rows: Sequence[int], seed: int
) -> tuple[Floats, float] | None:
    """P(rank) of models in the order of their ranks (M, M), and P(this order, up to ties).

    The uncertainty of the estimates is modelled by a multivariate t with the jackknife's covariance
    of models on the same rows and its degrees of freedom.  For two models, P(first) follows from
    the one-sided t-test.  Unlike resampling of groups, the draws need no more than an interval
    does, add no bias to a biased estimate, and have tails that reflect the number of groups.  None
    where a covariance is not defined.
    """
    values = np.array([part.value for part in parts])
    M = len(values)
    roots = []
    for number in dict.fromkeys(rows):
        models = [i for i in range(M) if rows[i] == number]
        left_out = np.array([parts[i].left_out for i in models])
        left_out = left_out[:, np.isfinite(left_out).all(axis=0)]
        G = left_out.shape[1]
        if G < 2:
            return None
        # The jackknife's covariance is (G − 1)/G Σ (θ₋g − θ̄)², and `cov` divides by G − 1.
        covariance = (G - 1) ** 2 / G * np.atleast_2d(np.cov(left_out))
        roots.append((models, _root(covariance), parts[models[0]].freedom or G - 1))
    spread = max(float(np.abs(root).max()) for _, root, _ in roots)
    jitter = max(_BLUR * spread, TIE * float(np.abs(values).max()))
    shared = np.array(ranks(values.tolist()))
    rng = np.random.default_rng(seed)
    counts, ordered = np.zeros((M, M)), 0
    for _ in range(DRAWS // _BATCH):
        drawn = np.empty((_BATCH, M))
        for models, root, freedom in roots:
            # A multivariate t is a normal vector divided by the root of χ²/freedom.
            shrunk = np.sqrt(rng.chisquare(freedom, (_BATCH, 1)) / freedom)
            drawn[:, models] = rng.standard_normal((_BATCH, len(models))) @ root / shrunk
        drawn += values + jitter * rng.random((_BATCH, M))  # equal models get random ranks
        order = np.argsort(drawn, axis=1)
        for place in range(M):
            counts[:, place] += np.bincount(order[:, place], minlength=M)
        ordered += int((shared[order] == shared).all(axis=1).sum())
    return counts / DRAWS, ordered / DRAWS


def _root(covariance: Floats) -> Floats:
    """Symmetric square root of a covariance matrix, which is unique."""
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(eigenvalues, 0.0))) @ vectors.T
