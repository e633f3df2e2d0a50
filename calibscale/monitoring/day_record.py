"""The record of a day for the ledger, computed from the day's predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.source import ArraySource
from calibscale.engine.threads import mapped, one_thread
from calibscale.errors import InvalidDataError, OptionError
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.estimators.estimator_texts import labels
from calibscale.evaluation.later_rows import open_ended
from calibscale.inference.default_tests import default_tests
from calibscale.inference.e_process import CLAIMED, RESOLUTION, BettingEProcess
from calibscale.inference.evidence import evidence_of_tests
from calibscale.inference.floors import floor_statistics, noise_of, with_floor
from calibscale.inference.monte_carlo import (
    Looks,
    batch_of,
    count_in_looks,
    refused,
    replicates_of_first_pass,
    trial_of,
)
from calibscale.inference.multiple_testing import adjusted_tests
from calibscale.inference.nulls import CERTAIN, recombined, replicates_of
from calibscale.inference.residual_skewness import (
    MEAN_RESIDUALS,
    correct_skewness,
    corrects_skewness,
)
from calibscale.inference.testable import for_test
from calibscale.inference.tolerant_e_process import TolerantEProcess
from calibscale.inference.verdict import ALPHA
from calibscale.inference.verdict_sentences import described_test
from calibscale.intervals.interval_estimates import has_limits, interval_statistics, with_interval
from calibscale.intervals.resampling import Grouped, Resampling, frozen_by, total
from calibscale.monitoring.job.job_tables import Alarms, Job
from calibscale.monitoring.ledger.alarms import learned_bets
from calibscale.monitoring.ledger.day_ledger import Ledger, Record
from calibscale.monitoring.ledger.day_parts import PARTS, gathered, parted
from calibscale.monitoring.ledger.group_keys import DayGroups, GroupKey, LedgerGroups
from calibscale.monitoring.ledger.recipe import Recipe
from calibscale.monitoring.night_challenge import NightChallenge
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.claims import CLASSES, includes
from calibscale.predictions.target import Target
from calibscale.recalibration.score_duels import DuelState
from calibscale.results.cluster_results import Clusters
from calibscale.results.estimate import Estimate
from calibscale.results.inference_results import AdjustedTest, TestResult
from calibscale.results.night_results import DayTests
from calibscale.session import Run, Session, impossible_rows, versions
from calibscale.statistics.cluster_sums import ClusterRows
from calibscale.statistics.null_distributions import Null
from calibscale.statistics.one_pass import States
from calibscale.statistics.score_sums import FirstImpossible
from calibscale.statistics.statistic import Replicates, Statistic

Reading = tuple[Recipe, dict[GroupKey | None, Record]]


@runtime_checkable
class Mergeable(Protocol):
    """Estimator with settings whose states do not merge.

    New ledgers ask for it, because they add the states of days.
    """

    def mergeable(self, classes: int) -> Estimator:
        """Return the estimator with states that merge, if settings that are open allow it."""
        ...


_GROUPED_BYTES = 2**26  # maximum size of grouped states, beyond which a day has no intervals


def read_day(
    job: Job,
    session: Session,
    day: str,
    ledger: Ledger | None,
    challenge: NightChallenge | None = None,
) -> Reading:
    """Read a day's rows in one pass, or in two if there are groups.

    A champion and challengers of recalibration are compared in the same pass.  Returns the recipe
    of the ledger, new or existing, and the records of the day by group.

    Raises
    ------
    InvalidDataError
        If rows are invalid, if all of them were dropped as invalid, or if the classes or covariates
        differ from the ledger.
    """
    run, recipe, groups = prepared(job, session, ledger)
    return _Reader(job, run, day, ledger, recipe, groups, challenge).read()


def prepared(
    job: Job, session: Session, ledger: Ledger | None
) -> tuple[Run, Recipe, DayGroups | None]:
    """Run of a day's passes, the recipe of the ledger, new or existing, and the day's groups.

    This does all that can fail before rows are read for the record.  A plan of a night does it too.
    """
    session = session.by_cluster(job.cluster)
    requested: Iterable[Estimator] = ()
    if ledger is None:
        requested = _mergeable(job.built_estimators(), session)
    else:
        _check_same(session.source, ledger.recipe)
        if not session.source.target.has_classes:  # with the kernel on targets of the first day
            session = session.on(replace(session.source, forecast=ledger.recipe.forecast))
    names = session.source.covariate_names
    ledger_groups = ledger.recipe.groups if ledger is not None else _new_groups(job, session)
    groups = None
    if ledger_groups is not None:
        groups = ledger_groups.of_day(session.source, session.execution.scheduler)
        if groups.source is not session.source:
            session = session.on(groups.source)
    run = session.run(requested)
    if ledger is not None:
        recipe = _with_tests(job, ledger.recipe)
    else:
        recipe = _new_recipe(job, run, names, ledger_groups, groups)
    # Ledgers of earlier versions have finite numbers as groups.  The groups of new ledgers include
    # a group of missing values.
    finite = () if recipe.group_by is None or groups is not None else (recipe.group_by,)
    return replace(run, chosen=recipe.estimators, also_finite=finite), recipe, groups


def _mergeable(estimators: Iterable[Estimator], session: Session) -> list[Estimator]:
    """Estimators by methods with states that merge.

    Estimators of classes stay as they are for forecasts, which have other notions.
    """
    source = session.source
    requested = []
    for estimator in estimators:
        same_notion = source.target.has_classes or not includes(estimator.judges, CLASSES)
        if same_notion and isinstance(estimator, Mergeable):
            estimator = estimator.mergeable(source.n_features)
        requested.append(estimator)
    return requested


def _new_groups(job: Job, session: Session) -> LedgerGroups | None:
    """Grouping of a new ledger."""
    if job.group_by is None:
        return None
    scheduler = session.execution.scheduler
    return LedgerGroups.of_first_day(session.source, job.group_by, scheduler)


def _new_recipe(
    job: Job,
    run: Run,
    covariates: tuple[str, ...],
    ledger_groups: LedgerGroups | None,
    groups: DayGroups | None,
) -> Recipe:
    """Recipe of a new ledger, before the first day's rows fix bandwidths, λ and edges."""
    estimators = tuple(map(open_ended, run.fitting))
    for e in estimators:
        # A day is added to a window by the sum of states, which a statistic with a merge of its own
        # does not have.
        for s in e.needs:
            if type(s).merge is not Statistic.merge:
                raise OptionError(f"{e.name} has no mergeable state and cannot be kept in a ledger")
    # The wagers of a group see the group by the position of its column.
    column = None if groups is None else run.source.covariate(groups.column)
    notions: tuple[str, ...] = ()
    process: Callable[[str], BettingEProcess] = BettingEProcess
    if job.alarms is not None and _has_wagers(job.alarms, run.source.target):
        notions = job.alarms.notions or (_default_notion(run.source.target),)
        certainty = job.alarms.certainty_tolerance
        process = partial(
            BettingEProcess, column=column, resolution=RESOLUTION, certainty=certainty
        )
        if job.alarms.tolerance is not None:
            process = partial(
                TolerantEProcess,
                column=column,
                resolution=RESOLUTION,
                certainty=certainty,
                tolerance=job.alarms.tolerance,
            )
    recipe = Recipe(
        classes=run.source.n_features,
        estimators=estimators,
        wagers=tuple(process(notion) for notion in notions),
        covariates=covariates,
        group_by=job.group_by,
        seed=job.seed,
        parted=parted(
            estimators,
            run.source.n_features,
            clustered=job.cluster is not None,
            draws_responses=run.source.target.draws_responses,
        ),
        cluster=job.cluster,
        forecast=run.source.forecast,
        groups=ledger_groups,
    )
    return replace(_with_tests(job, recipe), keep=job.test is not None and job.test.keep)


def _has_wagers(alarms: Alarms, target: Target) -> bool:
    """Whether predictions give events a probability, so that bets on events are possible.

    An OptionError is raised for settings of bets that are not.
    """
    if target.has_classes:
        return True
    if alarms.notions:
        raise OptionError(f"{target.in_words} have no notions for alarms")
    if not target.claims_event and (alarms.tolerance is not None or alarms.certainty_tolerance):
        raise OptionError(
            f"alarms of {target.in_words} are by tests= alone, not tolerance= or "
            "certainty_tolerance="
        )
    return target.claims_event


def _default_notion(target: Target) -> str:
    if not target.has_classes:
        return CLAIMED
    return "positive" if target.n_features == 2 else "top_label"


def _with_tests(job: Job, recipe: Recipe) -> Recipe:
    """Recipe with the job's tests, which may change if the ledger keeps no replicates."""
    if recipe.keep:
        return recipe
    if job.test is None:
        return replace(recipe, tested=(), replicates=0)
    tested = tuple(job.test.statistics or ())
    return replace(recipe, tested=tested, replicates=job.test.replicates)


def _check_same(source: ArraySource, recipe: Recipe) -> None:
    """Raise an InvalidDataError if a day's predictions are not of the kind in the ledger."""
    expected = recipe.target.name
    if source.target.name != expected:
        raise InvalidDataError(
            f"{source.name}: predictions of kind {source.kind}, but the ledger has {expected}"
        )
    # Kernels are those of the first day, and may differ.
    claims = source.target.claim_in_words, recipe.target.claim_in_words
    if claims[0] != claims[1]:
        raise InvalidDataError(
            f"{source.name}: predictions of kind {claims[0]}, but the ledger has {claims[1]}"
        )
    if source.n_features != recipe.classes:
        raise InvalidDataError(
            f"{source.name}: {source.n_features} classes, but the ledger has {recipe.classes}"
        )
    if source.covariate_names != recipe.covariates:
        names = ", ".join(source.covariate_names) or "none"
        expected = ", ".join(recipe.covariates) or "none"
        raise InvalidDataError(
            f"{source.name}: the covariates are {names}, but the ledger has {expected}, in that "
            "order"
        )


@dataclass
class _Reader:
    """The passes over the rows of a day, and the records made from them."""

    job: Job
    run: Run
    day: str
    ledger: Ledger | None
    recipe: Recipe
    groups: DayGroups | None = None
    challenge: NightChallenge | None = None

    def read(self) -> Reading:
        resampling = self.recipe.jackknife(self.job.confidence)
        if self.recipe.replicates:
            resampling = replace(resampling, test_seed=self.recipe.null(self.day).seed)
        needed = self._needed()
        classes = self.recipe.classes
        statistic_sets = (
            interval_statistics(e, resampling, classes) for e in self.recipe.estimators
        )
        intervals = [*dict.fromkeys(s for statistics in statistic_sets for s in statistics)]
        grouped = {g.statistic: g for g in intervals if isinstance(g, Grouped)}
        # The jackknife needs a state for each group of rows, and each worker has a few of them.
        if sum(s.nbytes(classes) for s in grouped) * resampling.groups > _GROUPED_BYTES:
            intervals, grouped = [], {}
        needed |= grouped
        bets = bets_of(self.job, self.recipe, self.ledger, self.day)
        # Rows have the day's numbers of groups, records the keys of the ledger.
        wagers = self._by_value(bets)
        duels = None if self.challenge is None else self.challenge.statistic
        if (wagers or duels is not None) and self.recipe.cluster:
            (counts,) = self.run.scan([ClusterRows()]).groups[None][ClusterRows()]
            wagers = tuple(replace(w, clusters=counts) for w in wagers)
            duels = None if duels is None else replace(duels, clusters=counts)
        defaults = self._default_tests()
        moments = self._moments_of_skewness()
        batch = self._batch([*defaults, *moments])
        first_null = self._first_null(defaults)
        drawn = self._replicates(batch, first_null)
        overall = () if self.recipe.group_by else wagers  # wagers on all rows together
        further: list[Statistic] = [
            *intervals,
            *drawn.values(),
            *overall,
            CERTAIN,
            *self.run.cluster_sums,
        ]
        beside_recipe = [*defaults, *moments]
        further += [s for e in beside_recipe for s in e.needs]
        further += replicates_of(beside_recipe, first_null, 0, batch).values()
        if duels is not None:
            further.append(duels)
        for e in self.recipe.estimators:
            further += floor_statistics(e, noise_of(self.run.rules), classes)
        passed = self.run.scan([*needed.values(), *further])
        counts = passed.counts
        if not counts.used:
            empty = empty_record(self.recipe, bets)
            empty.info.update(self._facts(counts) | self._challenged(None))
            return self.recipe, {None: empty}
        states = passed.groups[None]
        vectors, merged = self._vectors(needed, states, overall)
        certain = 0
        if not self.recipe.cluster:
            (certain_rows,) = states[CERTAIN]  # (1,)
            certain = int(certain_rows[0])
        clusters = self.run.clusters(passed)
        with one_thread():
            # Bandwidths, λ and edges are fixed by the first day, so that later states can be added.
            frozen = (frozen_by(e, *(merged[s] for s in e.needs)) for e in self.recipe.estimators)
            self.recipe = replace(self.recipe, estimators=tuple(frozen))
        estimates = mapped(
            lambda e: self._estimate(e, resampling, states, merged, clusters),
            self.recipe.estimators,
            self.run.execution.threads,
        )
        if drawn and self.recipe.keep:
            vectors["replicates"] = self.recipe.pack(states[r] for r in drawn.values())
        tested = [*self.recipe.under_test, *defaults]
        tests = self._tests(
            tested, moments, merged | states, batch, first_null, certain=certain, clusters=clusters
        )
        # Default tests are about the day alone.  Windows have only the tests of the recipe.
        first_default = len(tests) - len(defaults)
        tests, of_defaults = tests[:first_default], tests[first_default:]
        info = {
            **self._facts(counts),
            "bets": [w.learned for w in bets],
            "certain": certain,
            "estimates": [_brief(e) for e in estimates],
            "floors": [e.floor and e.floor.to_dict() for e in estimates],
            "tests": [test.to_dict() for test in tests],
            **self._challenged(None if duels is None else states[duels]),
        }
        if defaults:
            named = labels(e.settings for e in defaults)
            info["calibration"] = together(named, of_defaults).to_dict()
        if clusters is not None:
            info["clusters"] = clusters.to_dict()
        records: dict[GroupKey | None, Record] = {None: Record(counts.used, vectors, info)}
        if self.recipe.group_by:
            records |= self._groups(wagers)
        return self.recipe, records

    def _challenged(self, state: DuelState | None) -> dict[str, Any]:
        """Comparison of the champion and the challengers, if the job has them."""
        if self.challenge is None:
            return {}
        return {"recalibration": self.challenge.record(state)}

    def _by_value(self, bets: tuple[BettingEProcess, ...]) -> tuple[BettingEProcess, ...]:
        """Bets by the day's values of the group column in place of the keys of the ledger."""
        if self.groups is None:
            return bets
        return tuple(replace(bet, learned=self.groups.by_value(bet.learned)) for bet in bets)

    def _needed(self) -> dict[Statistic, Statistic]:
        """Statistics of the pass, grouped if the ledger keeps parts of the rows."""
        # Parts of a day's rows are the groups that the jackknife of a window leaves out.
        parted = {s: Grouped(s, PARTS) for s in self.recipe.parted}
        return {s: s for s in self.recipe.statistics} | parted

    def _vectors(
        self,
        needed: dict[Statistic, Statistic],
        states: States,
        wagers: tuple[BettingEProcess, ...],
    ) -> tuple[dict[str, Floats], States]:
        """Vectors by section for the day's rows, or for a group of them, and merged states."""
        recipe = self.recipe
        merged = {s: states[g] if g is s else total(states[g]) for s, g in needed.items()}
        vectors = {"states": recipe.pack(merged[s] for s in recipe.statistics)}
        if recipe.parted:
            vectors["parts"] = recipe.pack(gathered(s, states[needed[s]]) for s in recipe.parted)
        if wagers:
            vectors["wagers"] = recipe.pack(states[w] for w in wagers)
        return vectors, merged

    def _facts(self, counts: RowCounts) -> dict[str, Any]:
        impossible = impossible_rows(counts)
        return {
            "n_unlabelled": counts.unlabelled,
            "dropped": counts.dropped,
            "impossible": None
            if impossible is None
            else [value for value in astuple(impossible) if value is not None],
            "source": self.run.source.describe(),
            "versions": versions(),
        }

    def _estimate(
        self,
        e: BoundEstimator,
        resampling: Resampling,
        states: States,
        merged: States,
        clusters: Clusters | None,
    ) -> Estimate:
        estimate = e.finalize(*(merged[s] for s in e.needs))
        classes = self.recipe.classes
        estimate = with_floor(
            e, estimate, merged | states, noise_of(self.run.rules), classes, clusters
        )
        if not (has_limits(e, resampling) or all(g in states for g in resampling.needs(e))):
            return estimate
        return with_interval(e, estimate, resampling, merged | states, self.recipe.classes)

    def _default_tests(self) -> list[BoundEstimator]:
        """Default statistics of a test of the day.  The ledger keeps no states of them."""
        target = self.run.rules.target
        if not self.recipe.replicates or (target.has_classes and not target.draws_responses):
            return []
        profile = self.run.profile
        bound = (test.bind(profile) for test in default_tests(self.run))
        return [for_test(test, profile) for test in bound]

    def _moments_of_skewness(self) -> tuple[BoundEstimator, ...]:
        """Tests by which the others are corrected for skewed residuals, none without random signs.

        The ledger keeps no states of them, so that the tests of windows have no correction.
        """
        recipe = self.recipe
        if not recipe.replicates:
            return ()
        is_corrected = corrects_skewness(recipe.null(self.day), self.run.rules.target)
        return MEAN_RESIDUALS if is_corrected else ()

    def _first_null(self, defaults: Iterable[BoundEstimator]) -> Null:
        """Null at which the tests of the day look first.

        Replicates that the ledger keeps have labels of their own, as tests of windows look once.
        """
        recipe = self.recipe
        null = recipe.null(self.day)
        if recipe.keep:
            return null
        tested = (*recipe.under_test, *defaults)
        return recombined(null, tested, self.run.source.rows, recipe.replicates)

    def _replicates(self, batch: int, null: Null) -> dict[Statistic, Replicates]:
        """Replicates of the tests of the job that the pass draws beside the day's values."""
        recipe = self.recipe
        if recipe.keep or not batch:
            return recipe.replicated(self.day, batch)
        return replicates_of_first_pass(recipe.under_test, null, batch)

    def _batch(self, defaults: Iterable[BoundEstimator]) -> int:
        """Number of replicates that a pass draws: all of them if the ledger keeps them."""
        recipe = self.recipe
        tested = (*recipe.under_test, *defaults)
        # Replicates that the ledger keeps are added over days, and all must be drawn.
        if recipe.keep or not replicates_of(tested, recipe.null(self.day), 0, 1):
            return recipe.replicates
        return batch_of(replace(self.run, chosen=tested), recipe.replicates)

    def _tests(
        self,
        estimators: Iterable[BoundEstimator],
        moments: Sequence[BoundEstimator],
        states: States,
        batch: int,
        first_null: Null,
        *,
        certain: int,
        clusters: Clusters | None,
    ) -> list[TestResult]:
        """Results of tests, corrected for skewed residuals if there are `moments`."""
        if not batch:
            return []
        null, count = self.recipe.null(self.day), self.recipe.replicates
        with one_thread():
            unclustered = [trial_of(e, None, states) for e in (*estimators, *moments)]
            trials = [refused(trial, clusters) for trial in unclustered]
        count_in_looks(self.run, trials, Looks(first_null, null), count, batch, states)
        if moments:
            *trials, mean, symmetric_mean = trials
            with one_thread():
                correct_skewness(trials, mean, symmetric_mean)
        return [trial.result(null.name, null.seed, certain) for trial in trials]

    def _groups(self, wagers: tuple[BettingEProcess, ...]) -> dict[GroupKey | None, Record]:
        """Records of the groups from a second pass, without intervals and replicates."""
        recipe, groups = self.recipe, self.groups
        run = replace(self.run, group_by=recipe.group_by if groups is None else groups.column)
        needed = self._needed()
        passed = run.scan([*needed.values(), *wagers, FirstImpossible()])
        records: dict[GroupKey | None, Record] = {}
        for value, states in passed.groups.items():
            if value is None:
                continue
            vectors, merged = self._vectors(needed, states, wagers)
            with one_thread():
                estimates = [
                    _brief(e.finalize(*(merged[s] for s in e.needs))) for e in recipe.estimators
                ]
            # Ledgers of earlier versions have numbers as keys.
            key = float(value) if groups is None else groups.key(value)
            impossible = states[FirstImpossible()]
            info = {
                "estimates": estimates,
                "impossible": [int(impossible.n), int(impossible.first)] if impossible.n else None,
            }
            records[key] = Record(passed.group_counts[value], vectors, info)
        return records


def together(names: Iterable[str], tests: Iterable[TestResult]) -> DayTests:
    """Tests of all rows of a day, with the p-value of all of them together."""
    # Two tests may have the same statistic with different settings.
    named = [replace(test, statistic=name) for name, test in zip(names, tests, strict=True)]
    adjusted = adjusted_tests(named)
    joint = [evidence for evidence in evidence_of_tests(named, ALPHA, adjusted) if evidence.joint]
    strongest = min(
        joint, key=lambda evidence: (evidence.p_value, -evidence.surprise), default=None
    )
    p_value = statistic = finding = None
    if strongest is not None:
        p_value = strongest.p_value
        statistic = strongest.label
        finding = described_test(strongest, None) or None
    pairs = zip(named, adjusted, strict=True)
    results = tuple(AdjustedTest(test, p) for test, p in pairs)
    return DayTests(p_value, statistic, finding, results)


def bets_of(
    job: Job, recipe: Recipe, ledger: Ledger | None, day: str
) -> tuple[BettingEProcess, ...]:
    """Bets of a day, from its existing record or learned from earlier days."""
    if ledger is None or job.alarms is None:
        return recipe.wagers
    # Bets are made before the labels are seen: a day that is read again keeps its bets.
    for entry in ledger.day(day, job.model)[:1]:
        if entry.group is None and entry.info["bets"]:
            return tuple(
                replace(w, learned=tuple((group, tuple(shifts)) for group, shifts in learned))
                for w, learned in zip(recipe.wagers, entry.info["bets"], strict=True)
            )
    return learned_bets(ledger, day, job.model, job.alarms.learn_days)


def empty_record(recipe: Recipe, wagers: tuple[BettingEProcess, ...]) -> Record:
    """Record of a day without labelled valid rows."""
    info = {
        "n_unlabelled": 0,
        "dropped": {},
        "certain": 0,
        "source": None,
        "tests": [],
        "versions": versions(),
        "bets": [w.learned for w in wagers],
        "estimates": [[None] * 4 for _ in recipe.estimators],
    }
    return Record(0, {name: np.zeros(size) for name, size in recipe.sizes.items()}, info)


def _brief(estimate: Estimate) -> list[float | str | None]:
    """Value, ends of the interval, standard error and method, with None for a missing number."""
    value, interval = estimate.value, estimate.interval
    if value is None or not np.isfinite(value):
        return [None, None, None, None]
    if interval is None:
        return [value, None, None, None]
    return [value, interval.low, interval.high, interval.standard_error, interval.method]
