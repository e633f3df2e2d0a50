"""`rank`: one pass over each model, then the comparison."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from calibscale import engine
from calibscale.chunk import Floats, RowCounts
from calibscale.errors import OptionError
from calibscale.estimators import Accuracy, CKCECentred, ConfidenceGap, Estimator
from calibscale.estimators.moments import frequencies_left_out, from_left_out
from calibscale.evaluation import Run, describe_scheduler, listed, prepared, versions
from calibscale.features import RandomFourier
from calibscale.intervals import (
    Intervals,
    Parts,
    interval_statistics,
    parts_of,
    total,
    with_interval,
)
from calibscale.ranking.orders import DRAWS, differences, rank_probabilities, ranks
from calibscale.ranking.pool import LabelledRows, RowState, alike
from calibscale.ranking.results import Agreement, Difference, RankedModel, Ranking
from calibscale.ranking.subsets import Plan, agreement, per_pass, subset_values
from calibscale.results import POPULATION, THIS_N, Estimate
from calibscale.source import ArraySource
from calibscale.statistics import Totals, TotalsState
from calibscale.store import LogitStore

_ROWS, _TOTALS = LabelledRows(), Totals()


def rank(
    sources: Mapping[str, Any] | Sequence[Any],
    by: Estimator | None = None,
    *,
    subset_size: int | Sequence[int] | None = None,
    trials: int = 1000,
    level: float = 0.95,
    groups: int = 20,
    seed: int = 0,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    block_rows: int | None = None,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> Ranking:
    """Rank models by calibration, the best first, and say how sure that is.

    All models have one bandwidth and, where there is one, one ridge λ: that of the model with the
    fewest rows.  On the same rows and labels, differences are paired: both models leave out the
    same groups of rows.  One pass over each model, and one or more over each for subsets.

    Estimates that are biased at this n (ECE, CKCE, …) keep their bias, which two calibrated models
    of unlike sharpness do not share; CKCECentred, JKCE and TCE2Debiased have none.

    Parameters
    ----------
    sources : mapping of names, or sequence
        Models, each a path, URL, LogitStore or ArraySource.  In a sequence they are called after
        their files.
    by : Estimator
        What the models are ranked by, the smallest first: any but Accuracy and ConfidenceGap.
        Default: ``CKCECentred()``.
    subset_size : int or several, optional
        Also rank random subsets of about so many rows, as [MS, §5.1.2] do, and say how often they
        agree with the ranking of all rows.  λ is that of so many rows.
    trials : int
        Subsets of each size.
    level : float
        Of intervals, and of the claims that two models differ.
    groups : int
        Of rows, left out one at a time.
    seed : int
        Of groups, subsets and the draws of ranks.
    on_invalid, tolerance, block_rows, scheduler, memory_limit, progress
        See `evaluate`.

    Returns
    -------
    Ranking
        Models of equal estimates, but for rounding, share a rank.

    Raises
    ------
    InvalidDataError
        At the first bad row of a model.
    OptionError, StoreError
        If the models have different numbers of classes, a setting does not fit, or a store cannot
        be read.

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
    >>> calibscale.ranking.rank(models).names
    ('true', 'bold')
    """
    started = time.perf_counter()
    estimator, *others = listed(CKCECentred() if by is None else by)
    if others:
        raise OptionError("models are ranked by one estimator")
    asked = Intervals("jackknife", level, groups, seed=seed)
    sizes = [subset_size] if isinstance(subset_size, int | np.integer) else list(subset_size or ())
    _check(estimator, sizes, trials)
    named = _named(sources)
    with ExitStack() as stack:
        opened = stack.enter_context(engine.session(scheduler, memory_limit))
        runs = [
            stack.enter_context(
                prepared(
                    source, (), on_invalid=on_invalid, tolerance=tolerance, block_rows=block_rows,
                    scheduler=opened, memory_limit=memory_limit,
                )
            )
            for source in named.values()
        ]  # fmt: skip
        _check_classes(list(named), runs)
        common = alike(estimator, [run.setup for run in runs])
        runs = [replace(run, chosen=(common.resolve(run.setup),)) for run in runs]
        steps = _Steps(progress, len(runs) * _passes(runs[0], asked, len(sizes), trials))
        judged = _judged(list(named), runs, asked, steps)
        order = sorted(range(len(runs)), key=lambda i: judged[i].place)
        runs, judged = [runs[i] for i in order], [judged[i] for i in order]
        defined = [model for model in judged if model.estimate.value is not None]
        agreements = tuple(
            _agreement(runs, judged, size, trials, seed, steps) for size in sizes if defined
        )
    probabilities, p_order = _probabilities(defined, seed)
    compared = _compared(defined, asked, _covers(estimator))
    places = ranks([model.value for model in defined])
    return Ranking(
        estimator=estimator.name,
        notion=judged[0].estimate.notion,
        models=tuple(
            model.ranked(
                places[place] if place < len(places) else None,
                tuple(probabilities[place].tolist()) if place < len(probabilities) else (),
                run,
            )
            for place, (model, run) in enumerate(zip(judged, runs, strict=True))
        ),
        differences=compared,
        agreement=agreements,
        p_order=p_order,
        common=_common(judged),
        paired=len({model.rows.key for model in judged}) == 1,
        notes=(*_notes(judged), *_coarse(compared)),
        parameters={
            "level": level,
            "groups": groups,
            "seed": seed,
            "draws": DRAWS,
            "on_invalid": on_invalid,
            "tolerance": tolerance,
            "block_rows": {
                model.name: run.block_rows or run.data.block_rows
                for model, run in zip(judged, runs, strict=True)
            },
            "scheduler": describe_scheduler(scheduler),
            "memory_limit": engine.parse_bytes(memory_limit),
        },
        seconds=time.perf_counter() - started,
        versions=versions(),
    )


# ---------------------------------------------------------------- what is asked for


def _check(estimator: Estimator, sizes: list[int], trials: int) -> None:
    if isinstance(estimator, Accuracy | ConfidenceGap):
        raise OptionError(f"{estimator.name} is not the size of a miscalibration: no ranking by it")
    if any(size < 2 for size in sizes):
        raise OptionError(f"a subset must have at least 2 rows, not {min(sizes)}")
    if trials < 1:
        raise OptionError(f"trials must be at least 1, not {trials}")


def _check_classes(names: list[str], runs: list[Run]) -> None:
    classes = {run.data.classes: name for name, run in zip(names, runs, strict=True)}
    if len(classes) > 1:
        found = ", ".join(f"{name} has {K}" for K, name in classes.items())
        raise OptionError(f"models of different numbers of classes have no ranking: {found}")


def _named(sources: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """The models by name; a sequence's are called after their files."""
    if isinstance(sources, Mapping):
        found = {str(name): source for name, source in sources.items()}
    else:
        single = isinstance(sources, str | Path | ArraySource | LogitStore)
        models = [sources] if single else list(sources)
        found = dict(zip(distinct_names([_name(m) for m in models]), models, strict=True))
    if not found:
        raise OptionError("there is no model to rank")
    return found


def _name(source: Any) -> str:
    if isinstance(source, ArraySource):
        return source.name
    return source.url if isinstance(source, LogitStore) else str(source)


def distinct_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, more parts where unlike paths share it, then numbers."""
    parts = [PurePath(path.removesuffix("/").removesuffix(".zarr")).parts for path in paths]
    longest = max((len(p) for p in parts), default=1)
    names = ["/".join(p[-1:]) for p in parts]
    for length in range(2, longest + 1):
        unlike = Counter(name for name, _ in set(zip(names, parts, strict=True)))
        names = [
            name if unlike[name] == 1 else str(PurePath(*p[-length:]))
            for name, p in zip(names, parts, strict=True)
        ]
    found: list[str] = []
    for name in names:
        numbered = (f"{name} ({i})" if i > 1 else name for i in count(1))
        found.append(next(unused for unused in numbered if unused not in found))
    return found


def _passes(run: Run, asked: Intervals, sizes: int, trials: int) -> int:
    """How many passes one model takes."""
    (estimator,) = run.fitting
    if not sizes:
        return 1 + estimator.pairwise
    if not asked.needs(estimator):
        raise OptionError(
            f"{estimator.name} by this method has no states of subsets; use another method "
            "(features or spectral), or leave subset_size out"
        )
    return 1 + sizes * -(-trials // per_pass(estimator, run))


class _Steps:
    """Progress of many passes as that of one, in hundredths of a pass."""

    def __init__(self, progress: engine.Progress | None, count: int) -> None:
        self._progress = progress
        self._count = count
        self._done = 0

    def next(self, run: Run) -> Run:
        """The run, ready for one more pass."""
        first, report = 100 * self._done, self._progress
        self._done += 1
        self._count = max(self._count, self._done)
        whole = 100 * self._count
        if report is None:
            return run

        def part(done: int, total: int) -> None:
            report(first + 100 * done // max(total, 1), whole)

        return replace(run, where={**run.where, "progress": part})


# ---------------------------------------------------------------- one model


@dataclass(frozen=True, eq=False)
class _Judged:
    """What the pass over one model found."""

    name: str
    estimate: Estimate
    parts: Parts | None
    few: bool  # so few rows that parts have no interval
    coarse: Floats | None  # values without groups of random frequencies
    rows: RowState
    totals: TotalsState
    counts: RowCounts

    @property
    def value(self) -> float:
        assert self.estimate.value is not None
        return self.estimate.value

    @property
    def place(self) -> float:
        """What models are sorted by; those without a value come last."""
        return float("inf") if self.estimate.value is None else self.estimate.value

    def ranked(self, rank: int | None, probabilities: tuple[float, ...], run: Run) -> RankedModel:
        weight = float(self.totals.weight)
        scores = (self.totals.hit, self.totals.brier, self.totals.nll)
        accuracy, brier, nll = (float(s) / weight if weight > 0 else None for s in scores)
        return RankedModel(
            self.name, rank, self.estimate, probabilities, accuracy, brier, nll,
            self.counts.used, self.counts.unlabelled, self.counts.dropped, run.data.describe(),
        )  # fmt: skip


def _judged(names: list[str], runs: list[Run], asked: Intervals, steps: _Steps) -> list[_Judged]:
    """The estimates, all with the settings that the model of fewest rows has.

    States of all models at once could be more than memory holds, so where λ follows from unequal
    numbers of rows, there is a second pass.
    """
    found = [_judge(*model, asked, steps, None) for model in zip(names, runs, strict=True)]
    least = min((model.rows for model in found), key=lambda rows: rows.effective)
    (estimator,) = runs[0].fitting
    if not least.effective > 0:
        return found
    known = estimator.frozen(least)
    if all(m.rows.effective == 0 or estimator.frozen(m.rows) == known for m in found):
        return found
    return [_judge(*model, asked, steps, least) for model in zip(names, runs, strict=True)]


def _judge(name: str, run: Run, asked: Intervals, steps: _Steps, least: RowState | None) -> _Judged:
    (estimator,) = run.fitting
    grouped = asked.needs(estimator)
    some = interval_statistics(estimator, asked, run.data.classes)
    found = steps.next(run).scan([*(grouped or estimator.needs), *some, _ROWS, _TOTALS])
    states = found.groups[None]
    rows, totals = states[_ROWS], states[_TOTALS]
    fewest = least or rows
    if fewest.effective > 0:
        estimator = estimator.frozen(fewest)
    pairs = steps.next(run).pairs() if estimator.pairwise else None
    parts, few, coarse = None, False, None
    with engine.one_thread():
        if pairs is not None:
            estimate = estimator.solve(pairs)
        else:
            whole = [total(states[s]) for s in grouped] or [states[s] for s in estimator.needs]
            estimate, coarse = _estimate(estimator, whole)
        if estimate.value is not None and not np.isfinite(estimate.value):
            estimate = replace(estimate, value=None, reason=f"the value is {estimate.value}")
        if estimate.value is not None:
            parts = parts_of(estimator, asked, states, pairs, estimate.value)
        if parts is not None:
            few = parts.interval(asked, "") is None
            estimate = with_interval(
                estimator, estimate, asked, states, run.data.classes, lambda: parts
            )
            parts = None if few else parts
    return _Judged(name, estimate, parts, few, coarse, rows, totals, found.counts)


def _estimate(estimator: Estimator, states: list[Any]) -> tuple[Estimate, Floats | None]:
    """The estimate, and its values without groups of random frequencies, if it has any."""
    features = getattr(estimator, "features", None)
    if not isinstance(features, RandomFourier) or features.n_features < 2:
        return estimator.finalize(*states), None
    found = estimator.bare(*states)
    if found.value is None:
        return found, None
    moments, *noise = states
    coarse = frequencies_left_out(features, moments, estimator.value, *noise)
    return replace(found, approximation=from_left_out(found.value, coarse)), coarse


def _covers(estimator: Estimator) -> str:
    return POPULATION if estimator.unbiased else THIS_N


# ---------------------------------------------------------------- all models


def _compared(defined: list[_Judged], asked: Intervals, covers: str) -> tuple[Difference, ...]:
    keys = [model.rows.key for model in defined]
    found = differences(
        [model.name for model in defined],
        [model.parts for model in defined],
        [model.value for model in defined],
        [keys.index(key) for key in keys],
        asked,
        covers,
    )
    models = {model.name: model for model in defined}
    return tuple(
        replace(d, approximation_error=_approximation_error(models[d.better], models[d.worse]))
        for d in found
    )


def _approximation_error(a: _Judged, b: _Judged) -> float | None:
    """Of a difference: the same random frequencies err alike, so much of it cancels."""
    if a.coarse is not None and b.coarse is not None:
        return from_left_out(b.value - a.value, b.coarse - a.coarse).error
    first, second = a.estimate.approximation.error, b.estimate.approximation.error
    return None if first is None or second is None else float(np.hypot(first, second))


def _probabilities(defined: list[_Judged], seed: int) -> tuple[Floats, float | None]:
    parts = [model.parts for model in defined if model.parts is not None]
    if not defined or len(parts) < len(defined):
        return np.empty((0, 0)), None
    keys = [model.rows.key for model in defined]
    with engine.one_thread():
        found = rank_probabilities(parts, [keys.index(key) for key in keys], seed)
    return (np.empty((0, 0)), None) if found is None else found


def _agreement(
    runs: list[Run], judged: list[_Judged], size: int, trials: int, seed: int, steps: _Steps
) -> Agreement:
    least = min((model.rows for model in judged), key=lambda rows: rows.effective)
    n = float(least.n)
    if size > n:
        raise OptionError(f"a subset of {size} rows is more than the {n:.0f} rows there are")
    values = []
    for run, model in zip(runs, judged, strict=True):
        if model.estimate.value is None:
            continue
        (estimator,) = run.fitting
        plan = Plan(size, size / n, trials, per_pass(estimator, run), seed)
        estimator = estimator.frozen(least.share(plan.share))
        values.append(subset_values(estimator, plan, partial(steps.next, run)))
    defined = [model for model in judged if model.estimate.value is not None]
    return agreement(
        size, [m.name for m in defined], np.column_stack(values), [m.value for m in defined]
    )


def _common(judged: list[_Judged]) -> dict[str, Any]:
    """Settings that are equal in all estimates."""
    first, *others = (model.estimate.parameters for model in judged)
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _notes(judged: list[_Judged]) -> tuple[str, ...]:
    """What a reader must know before trusting the ranking."""
    notes = []
    first = judged[0]
    for model in judged[1:]:
        if model.estimate.value is None or model.rows.key == first.rows.key:
            continue
        mine, theirs = model.counts, first.counts
        if mine.used != theirs.used:
            why = f"{mine.used:,} and {theirs.used:,} rows are used"
        else:
            why = "their labels or weights differ, or stand in another order"
        notes.append(
            f"{model.name} and {first.name} are not of the same rows ({why}): their difference "
            "is that of independent samples"
        )
    for model in judged:
        if model.estimate.value is None:
            notes.append(f"{model.name} has no rank: {model.estimate.reason}")
    bare = [model for model in judged if model.estimate.value is not None and model.parts is None]
    if any(model.few for model in bare):
        notes.append("intervals and probabilities of ranks need more rows")
    if not all(model.few for model in bare):
        notes.append("there are no intervals by this method, so no probabilities of ranks")
    return tuple(notes)


def _coarse(compared: Sequence[Difference]) -> list[str]:
    """Differences that chance does not explain, but the approximation might."""
    close = [
        f"{d.better} and {d.worse}"
        for d in compared
        if d.distinguishable and d.value < (d.approximation_error or 0.0)
    ]
    if not close:
        return []
    return [
        f"{', '.join(close)} differ by less than the error of the approximation: raise the number "
        "of features"
    ]
