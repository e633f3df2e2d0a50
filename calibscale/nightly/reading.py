"""A day's predictions become the day's record."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calibscale import engine
from calibscale.chunk import Floats, RowCounts
from calibscale.errors import InvalidDataError, OptionError
from calibscale.estimators import KLCE, Estimator
from calibscale.evaluation import Run, prepared, versions
from calibscale.intervals import (
    Grouped,
    Intervals,
    has_limits,
    interval_statistics,
    parts_of,
    total,
    with_interval,
)
from calibscale.ledger.days import Ledger, Record
from calibscale.ledger.parts import PARTS, gathered, parted
from calibscale.ledger.recipe import Recipe, open_ended
from calibscale.ledger.windows import learned_bets
from calibscale.results import Estimate
from calibscale.scan import States
from calibscale.source import ArraySource
from calibscale.statistics import Statistic
from calibscale.trials import CERTAIN, TestResult, batch_of, count_replicates, trial_of
from calibscale.wagers import Wagers

if TYPE_CHECKING:
    from calibscale.nightly.job import Job

_GROUPED_BYTES = 2**26  # of a state for each group of rows; larger ones give a day no intervals


@dataclass(frozen=True)
class Reading:
    """What reading a day gave: the recipe, made by it or followed by it, and the day's records."""

    recipe: Recipe
    records: dict[float | None, Record]


def read_day(
    job: Job, source: ArraySource, day: str, ledger: Ledger | None,
    progress: engine.Progress | None = None,
) -> Reading:  # fmt: skip
    """One pass over a day's rows, or two where there are groups.

    Raises
    ------
    InvalidDataError
        If the rows are bad, all left out as invalid, or not as those that the ledger was made of.
    """
    asked: Iterable[Estimator] = ()
    if ledger is None:
        asked = [_scalar(e, source.classes) for e in job.built_estimators()]
    else:
        _check_same(source, ledger.recipe)
    with ExitStack() as stack:
        run = stack.enter_context(
            prepared(
                source, asked, on_invalid=job.source.on_invalid, tolerance=job.source.tolerance,
                scheduler=job.run.scheduler, memory_limit=job.run.memory_limit, progress=progress,
            )
        )  # fmt: skip
        recipe = _begun(job, run) if ledger is None else _testing(job, ledger.recipe)
        groups = () if recipe.group_by is None else (recipe.group_by,)
        run = replace(run, chosen=recipe.estimators, also_finite=groups)
        return _Reader(job, run, day, ledger, recipe).read()


def _scalar(estimator: Estimator, classes: int) -> Estimator:
    """KCE and KLCE of the top label, if no notion is asked for: only scalars have series."""
    if isinstance(estimator, KLCE) and estimator.notion is None and classes > 2:
        return replace(estimator, notion="top_label")
    return estimator


def _begun(job: Job, run: Run) -> Recipe:
    """The recipe of a new ledger, but for what the first day's rows freeze."""
    estimators = tuple(open_ended(e) for e in run.fitting)
    for e in estimators:
        for s in e.needs:
            if type(s).merge is not Statistic.merge:
                raise OptionError(f"{e.name} has no state that merges: not for a ledger")
    column = None if job.group_by is None else run.data.covariate(job.group_by)
    notions: tuple[str, ...] = ()
    if job.alarms is not None:
        notions = job.alarms.notions or (("positive",) if run.data.classes == 2 else ("top_label",))
    recipe = Recipe(
        classes=run.data.classes,
        estimators=estimators,
        wagers=tuple(Wagers(notion, column=column) for notion in notions),
        covariates=run.data.covariate_names,
        group_by=job.group_by,
        seed=job.seed,
        parted=parted(estimators, run.data.classes),
    )
    return replace(_testing(job, recipe), keep=job.test is not None and job.test.keep)


def _testing(job: Job, recipe: Recipe) -> Recipe:
    """The recipe with the job's tests, which may change where replicates are not kept."""
    if recipe.keep:
        return recipe
    if job.test is None:
        return replace(recipe, tested=(), replicates=0)
    tested = tuple(job.test.statistics or ())
    return replace(recipe, tested=tested, replicates=job.test.replicates)


def _check_same(source: ArraySource, recipe: Recipe) -> None:
    if source.classes != recipe.classes:
        raise InvalidDataError(
            f"{source.name}: {source.classes} classes, but the ledger is of {recipe.classes}"
        )
    if source.covariate_names != recipe.covariates:
        names, known = ", ".join(source.covariate_names), ", ".join(recipe.covariates)
        raise InvalidDataError(
            f"{source.name}: the covariates are {names or 'none'}, but the ledger is of "
            f"{known or 'none'}, in that order"
        )


@dataclass
class _Reader:
    """The passes over a day, with what each of them gives."""

    job: Job
    run: Run
    day: str
    ledger: Ledger | None
    recipe: Recipe

    def read(self) -> Reading:
        asked = Intervals(level=self.job.confidence)
        needed: dict[Statistic, Statistic] = {s: s for s in self.recipe.statistics}
        needed.update(self._by_part())
        intervals: list[Statistic] = []
        if self._state_bytes() * asked.groups <= _GROUPED_BYTES:
            for e in self.recipe.estimators:
                intervals += interval_statistics(e, asked, self.recipe.classes)
            needed.update({g.statistic: g for g in intervals if isinstance(g, Grouped)})
        wagers = bets_of(self.job, self.recipe, self.ledger, self.day)
        batch = self._batch()
        drawn = self.recipe.replicated(self.day, batch)
        alone = () if self.recipe.group_by else wagers
        found = self.run.scan([*needed.values(), *intervals, *drawn.values(), *alone, CERTAIN])
        if not found.counts.used:
            self._refuse_invalid(found.counts)
            empty = empty_record(self.recipe, wagers)
            empty.info.update(self._facts(found.counts))
            return Reading(self.recipe, {None: empty})
        states = found.groups[None]
        merged = _merged(needed, states)
        certain = int(states[CERTAIN][0][0])
        with engine.one_thread():
            self.recipe = replace(self.recipe, estimators=tuple(_frozen(self.recipe, merged)))
            estimates = [self._estimate(e, asked, states, merged) for e in self.recipe.estimators]
        tests = self._tests(merged | states, batch, certain)
        vectors = self._vectors(needed, states, merged)
        if alone:
            vectors["wagers"] = self.recipe.pack(states[w] for w in alone)
        if drawn and self.recipe.keep:
            vectors["replicates"] = self.recipe.pack(states[r] for r in drawn.values())
        info = {
            **self._facts(found.counts),
            "bets": _told(wagers),
            "certain": certain,
            "estimates": [_brief(e) for e in estimates],
            "tests": [test.to_dict() for test in tests],
        }
        records: dict[float | None, Record] = {None: Record(found.counts.used, vectors, info)}
        if self.recipe.group_by:
            records |= self._groups(wagers)
        return Reading(self.recipe, records)

    def _by_part(self) -> dict[Statistic, Statistic]:
        """What gives the parts of a day's rows that the ledger keeps."""
        return {s: Grouped(s, PARTS) for s in self.recipe.parted}

    def _vectors(
        self, needed: dict[Statistic, Statistic], states: States, merged: States
    ) -> dict[str, Floats]:
        """What is kept of the day's rows, or of a group of them."""
        recipe = self.recipe
        vectors = {"states": recipe.pack(merged[s] for s in recipe.statistics)}
        if recipe.parted:
            vectors["parts"] = recipe.pack(gathered(s, states[needed[s]]) for s in recipe.parted)
        return vectors

    def _refuse_invalid(self, counts: RowCounts) -> None:
        """A day that has rows, of which not one is valid, has no record."""
        if counts.dropped and not counts.unlabelled:
            whys = (f"{count:,} {why.replace('_', ' ')}" for why, count in counts.dropped.items())
            raise InvalidDataError(
                f"{self.run.data.name}: all {sum(counts.dropped.values()):,} rows are invalid "
                f"({', '.join(whys)}), and none is left to judge the day by; "
                "on_invalid = 'raise' names the first"
            )

    def _facts(self, counts: RowCounts) -> dict[str, Any]:
        return {
            "n_unlabelled": counts.unlabelled,
            "dropped": counts.dropped,
            "source": self.run.data.describe(),
            "versions": versions(),
        }

    def _state_bytes(self) -> int:
        classes = self.recipe.classes
        zeros = [s.zero(classes) for s in self.recipe.statistics]
        return sum(field.nbytes for zero in zeros for field in zero)

    def _estimate(
        self, e: Estimator, asked: Intervals, states: States, merged: States
    ) -> Estimate:  # fmt: skip
        found = e.finalize(*(merged[s] for s in e.needs))
        value = found.value
        if value is None or not (has_limits(e) or all(g in states for g in asked.needs(e))):
            return found
        return with_interval(
            e, found, asked, merged | states, self.recipe.classes,
            lambda: parts_of(e, asked, states, None, value),
        )  # fmt: skip

    def _batch(self) -> int:
        """How many replicates a pass draws: all, where they are kept and so must be held."""
        recipe = self.recipe
        if recipe.keep or not recipe.replicated():
            return recipe.replicates
        return min(recipe.replicates, batch_of(replace(self.run, chosen=tuple(recipe.under_test))))

    def _tests(self, states: States, batch: int, certain: int) -> list[TestResult]:
        if not batch:
            return []
        null = self.recipe.null(self.day)
        with engine.one_thread():
            trials = [trial_of(e, None, states) for e in self.recipe.under_test]
        count_replicates(self.run, trials, null, self.recipe.replicates, batch, states)
        return [trial.result(null.kind, null.seed, certain) for trial in trials]

    def _groups(self, wagers: tuple[Wagers, ...]) -> dict[float | None, Record]:
        """A second pass: the states of each group, without intervals and replicates."""
        recipe = self.recipe
        run = replace(self.run, group_by=recipe.group_by)
        needed: dict[Statistic, Statistic] = {s: s for s in recipe.statistics}
        needed.update(self._by_part())
        found = run.scan([*needed.values(), *wagers])
        records: dict[float | None, Record] = {}
        for group, states in found.groups.items():
            if group is None:
                continue
            merged = _merged(needed, states)
            vectors = self._vectors(needed, states, merged)
            if wagers:
                vectors["wagers"] = recipe.pack(states[w] for w in wagers)
            with engine.one_thread():
                estimates = [
                    _brief(e.finalize(*(merged[s] for s in e.needs))) for e in recipe.estimators
                ]
            n = found.group_counts[group]
            records[group] = Record(n, vectors, {"estimates": estimates})
        return records


def bets_of(job: Job, recipe: Recipe, ledger: Ledger | None, day: str) -> tuple[Wagers, ...]:
    """The bets of a day: those it had, or what earlier days teach."""
    if ledger is None or job.alarms is None:
        return recipe.wagers
    for entry in ledger.entries:
        if (entry.day, entry.model, entry.group) == (day, job.model, None) and entry.info["bets"]:
            return tuple(
                replace(w, learned=tuple((group, tuple(shifts)) for group, shifts in learned))
                for w, learned in zip(recipe.wagers, entry.info["bets"], strict=True)
            )
    return learned_bets(ledger, day, job.model, job.alarms.learn_days)


def _told(wagers: tuple[Wagers, ...]) -> list[list[Any]]:
    return [[[group, list(shifts)] for group, shifts in w.learned] for w in wagers]


def empty_record(recipe: Recipe, wagers: tuple[Wagers, ...]) -> Record:
    """That of a day without one row that counts."""
    info = {
        "n_unlabelled": 0, "dropped": {}, "certain": 0, "source": None, "tests": [],
        "versions": versions(), "bets": _told(wagers),
        "estimates": [[None] * 4 for _ in recipe.estimators],
    }  # fmt: skip
    return Record(0, {name: np.zeros(size) for name, size in recipe.sizes.items()}, info)


def _merged(needed: dict[Statistic, Statistic], states: States) -> States:
    return {s: states[g] if g is s else total(states[g]) for s, g in needed.items()}


def _frozen(recipe: Recipe, states: States) -> Iterable[Estimator]:
    return (e.frozen(*(states[s] for s in e.needs)) for e in recipe.estimators)


def _brief(estimate: Estimate) -> list[float | str | None]:
    """Value, interval, standard error and method of an estimate; None where there is none."""
    value, interval = estimate.value, estimate.interval
    if value is None or not np.isfinite(value):
        return [None, None, None, None]
    if interval is None:
        return [value, None, None, None]
    return [value, interval.low, interval.high, interval.standard_error, interval.method]
