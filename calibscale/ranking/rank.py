"""`rank`, which orders models by a calibration error, with the certainty of the order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol, Unpack, runtime_checkable

import numpy as np

from calibscale.engine.execution import Stages
from calibscale.engine.threads import one_thread
from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.inference.bandwidth_settings import shared
from calibscale.inference.verdict_sentences import sentence_of_ranking
from calibscale.intervals.resampling import Jackknife, Resampling, frozen_by
from calibscale.kernels.pairwise import Pairwise
from calibscale.ranking.model_estimates import (
    DRAWS,
    EstimatedModel,
    approximation_notes,
    differences,
    effective_rows,
    estimate_models,
    model_notes,
    named_models,
    rank_probabilities,
    ranks,
)
from calibscale.ranking.subset_rankings import SubsetPlan, agreement, per_pass, subset_values
from calibscale.results.comparison_results import Agreement, Difference, Ranking
from calibscale.results.estimate import POPULATION, THIS_N
from calibscale.session import Run, Session, SessionOptions, listed, verb, versions
from calibscale.statistics.score_sums import from_left_out


@verb
def rank(
    sources: Mapping[str, Any] | Sequence[Any],
    by: Estimator | None = None,
    *,
    subset_size: int | Sequence[int] | None = None,
    trials: int = 1000,
    confidence_level: float = 0.95,
    groups: int = 20,
    seed: int = 0,
    cluster: str | None = None,
    **options: Unpack[SessionOptions],
) -> Ranking:
    """Rank models by calibration, the best first, and state how certain the ranking is.

    All models share one bandwidth and one ridge λ, the λ of the model with the fewest rows.
    Differences of models with the same rows and labels are paired, as both models leave out the
    same groups of rows.  Each model takes one pass, and at least one more for subsets.

    Estimates that are biased at this n (ECE, CKCE, …) keep their bias, which differs between
    calibrated models of different sharpness.  CKCECentred, JKCE and TCE2Debiased have no bias.

    Parameters
    ----------
    sources : mapping of names, or sequence
        Models, each as in `evaluate`.  The models of a sequence are named
        after their files.
    by : Estimator
        Estimator to rank by, any but Accuracy and ConfidenceGap.  The smallest estimate is the
        best.  Default: ``CKCECentred()``, and ``KCE()`` for means, quantiles, expectiles,
        intervals and sets.
    subset_size : int or sequence of int, optional
        Approximate number of rows of random subsets, which are ranked, too, as in [MS, §5.1.2].
        The result states how often they agree with the ranking of all rows.  λ follows from the
        size of a subset.
    trials : int
        Number of subsets of each size.
    confidence_level : float
        Confidence level of the intervals, and of the claims that two models differ.
    groups : int
        Number of groups of rows, left out one at a time.
    seed : int
        Seed of groups, subsets and draws of ranks.
    cluster : str, optional
        Name of a covariate of every model.  Rows with equal values are one cluster, see `evaluate`.
        Groups and subsets consist of whole clusters.
    **options
        See `evaluate`.

    Returns
    -------
    Ranking
        Models with estimates that are equal up to rounding share a rank.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        If a row of a model is invalid, if the models have different numbers of classes, if a
        setting is invalid, or if a store cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(2000, 3))
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(1)
    >>> models = {
    ...     name: calibscale.from_arrays(logits=factor * z, labels=y)
    ...     for name, factor in {"bold": 3.0, "true": 1.0}.items()
    ... }
    >>> calibscale.rank(models).names
    ('true', 'bold')
    """
    started = time.perf_counter()
    jackknife = Jackknife(confidence_level, groups, seed, clustered=cluster is not None)
    sizes = [subset_size] if isinstance(subset_size, int | np.integer) else list(subset_size or ())
    _check_subsets(sizes, trials)
    named = named_models(sources)
    with ExitStack() as stack:
        sessions: list[Session] = []
        for source in named.values():
            opened = stack.enter_context(Session.open(source, **options))
            opened.source.need_integer_labels("rank")
            sessions.append(opened.by_cluster(cluster))
            execution = sessions[0].execution  # opened once
            # Further sessions use the scheduler and the progress bar of the first.
            options |= {"scheduler": execution.scheduler, "progress": execution.progress}
        _check_classes(list(named), sessions)
        _check_functionals(list(named), sessions)
        target = sessions[0].source.target
        estimator, *further = listed(target.ranked_by if by is None else by)
        require(not further, "rank by exactly one estimator")
        _check(estimator)
        # Errors of different bandwidths or λ are not comparable.
        common = shared(estimator, [session.profile for session in sessions])
        runs = [session.run(common) for session in sessions]
        jackknife = replace(jackknife, draws_responses=target.draws_responses)
        passes = len(runs) * _passes(runs[0], jackknife, len(sizes), trials)
        stages = Stages(execution.progress, passes)
        models = estimate_models(list(named), runs, jackknife, stages)
        order = sorted(range(len(runs)), key=lambda i: models[i].place)
        runs, models = [runs[i] for i in order], [models[i] for i in order]
        defined = [model for model in models if model.estimate.value is not None]
        agreements = tuple(
            _agreement(runs, models, size, trials, seed, stages) for size in sizes if defined
        )
    parts = [model.parts for model in defined if model.parts is not None]
    chances = None
    if defined and len(parts) == len(defined):
        with one_thread():
            chances = rank_probabilities(parts, _row_sets(defined), seed)
    probabilities, p_order = chances or (np.empty((0, 0)), None)
    (bound,) = runs[0].fitting
    compared = _compare_models(defined, jackknife, bound)
    # A cluster that is too large leaves no valid p-values, see `calibration_test`.
    refusals = [m.clusters.refusal for m in models if m.clusters and m.clusters.refusal]
    if refusals:
        probabilities, p_order = np.empty((0, 0)), None
        compared = tuple(
            replace(d, t=None, p_value=None, p_adjusted=None, distinguishable=False)
            for d in compared
        )
    places = ranks([model.value for model in defined])
    ranked = tuple(
        model.ranked(
            places[place] if place < len(places) else None,
            tuple(probabilities[place].tolist()) if place < len(probabilities) else (),
            run,
        )
        for place, (model, run) in enumerate(zip(models, runs, strict=True))
    )
    return Ranking(
        estimator=estimator.name,
        notion=models[0].estimate.notion,
        verdict=sentence_of_ranking(estimator.name, ranked, compared),
        models=ranked,
        differences=compared,
        agreement=agreements,
        p_order=p_order,
        common=_common_settings(models),
        clusters=models[0].clusters,
        paired=len({model.key for model in models}) == 1,
        notes=(
            *model_notes(models),
            *approximation_notes(compared),
            *(f"differences have no p-values: {refusal}" for refusal in dict.fromkeys(refusals)),
        ),
        parameters={
            "level": confidence_level,
            "groups": groups,
            "seed": seed,
            "draws": DRAWS,
            "on_invalid": runs[0].rules.on_invalid,
            "tolerance": runs[0].rules.tolerance,
            "block_rows": {
                model.name: run.block_rows for model, run in zip(models, runs, strict=True)
            },
            **execution.describe(),
        },
        seconds=time.perf_counter() - started,
        versions=versions(),
    )


@runtime_checkable
class Rankable(Protocol):
    """Settings of an estimator that say whether models can be ranked by it.

    `rank` asks for it.  Without it, the model with the smallest value is the best.
    """

    @property
    def smaller_is_better(self) -> bool:
        """Whether the model with the smallest value is the best."""
        ...


def _check_subsets(sizes: list[int], trials: int) -> None:
    if any(size < 2 for size in sizes):
        raise OptionError(f"a subset must have at least 2 rows, not {min(sizes)}")
    require(trials >= 1, "trials must be at least 1", trials)


def _check(estimator: Estimator) -> None:
    if isinstance(estimator, Rankable) and not estimator.smaller_is_better:
        raise OptionError(
            f"{estimator.name} is not a calibration error; models cannot be ranked by it"
        )


def _check_classes(names: list[str], sessions: list[Session]) -> None:
    classes = {s.source.n_features: name for name, s in zip(names, sessions, strict=True)}
    if len(classes) > 1:
        counts = ", ".join(f"{name} has {K}" for K, name in classes.items())
        raise OptionError(f"models with different numbers of classes cannot be ranked: {counts}")


def _check_functionals(names: list[str], sessions: list[Session]) -> None:
    """Raise an OptionError if models predict different functionals, such as a mean and a median."""
    kinds: dict[str, str] = {}
    for name, session in zip(names, sessions, strict=True):
        if session.source.target.response is not None:
            kinds[str(session.source.target.described)] = f"{name}: {session.source.kind}"
    if len(kinds) > 1:
        listed = ", ".join(kinds.values())
        raise OptionError(f"models of different predictions cannot be ranked ({listed})")


def _passes(run: Run, resampling: Resampling, n_sizes: int, trials: int) -> int:
    """Number of passes over one model."""
    (estimator,) = run.fitting
    if not n_sizes:
        return 1 + isinstance(estimator, Pairwise)
    if not resampling.needs(estimator):
        raise OptionError(
            f"{estimator.name} with this method cannot be computed on subsets; use another method "
            "(features or spectral), or leave subset_size out"
        )
    return 1 + n_sizes * -(-trials // per_pass(estimator, run))


def _compare_models(
    models: list[EstimatedModel], resampling: Resampling, estimator: BoundEstimator
) -> tuple[Difference, ...]:
    """Differences of all pairs of models, with the errors of their approximations."""
    by_name = {model.name: model for model in models}
    return tuple(
        replace(d, approximation_error=_approximation_error(by_name[d.better], by_name[d.worse]))
        for d in differences(
            list(by_name),
            [model.parts for model in models],
            [model.value for model in models],
            _row_sets(models),
            resampling,
            POPULATION if estimator.unbiased else THIS_N,
        )
    )


def _row_sets(models: list[EstimatedModel]) -> list[int]:
    """A number for each model, equal for models with the same rows, labels and weights."""
    keys = [model.key for model in models]
    return [keys.index(key) for key in keys]


def _approximation_error(a: EstimatedModel, b: EstimatedModel) -> float | None:
    """Approximation error of a difference.

    Errors of the same random frequencies mostly cancel.
    """
    if a.coarse is not None and b.coarse is not None:
        return from_left_out(b.value - a.value, b.coarse - a.coarse).error
    first, second = a.estimate.approximation.error, b.estimate.approximation.error
    return None if first is None or second is None else float(np.hypot(first, second))


def _agreement(
    runs: list[Run],
    models: list[EstimatedModel],
    size: int,
    trials: int,
    seed: int,
    stages: Stages,
) -> Agreement:
    """Agreement of the rankings of subsets of about `size` rows with the ranking of all rows."""
    smallest = min((model.totals for model in models), key=effective_rows)
    n = float(smallest.n)
    require(size <= n, f"a subset of {size} rows is larger than the data ({n:.0f} rows)")
    values = []
    for run, model in zip(runs, models, strict=True):
        if model.estimate.value is None:
            continue
        (estimator,) = run.fitting
        plan = SubsetPlan(size, size / n, trials, per_pass(estimator, run), seed)
        # λ of a subset follows from its effective rows, for which its expected weights stand.
        weight = smallest.weight * plan.share
        weight2 = smallest.weight2 * plan.share
        estimator = frozen_by(estimator, smallest._replace(weight=weight, weight2=weight2))
        values.append(subset_values(estimator, plan, run, stages))
    defined = [model for model in models if model.estimate.value is not None]
    return agreement(
        size, [m.name for m in defined], np.column_stack(values), [m.value for m in defined]
    )


def _common_settings(models: list[EstimatedModel]) -> dict[str, Any]:
    """Settings that are equal in all estimates."""
    first, *further = (model.estimate.parameters for model in models)
    return {
        name: value
        for name, value in first.items()
        if all(name in settings and settings[name] == value for settings in further)
    }
