"""Windows of days: their estimates, how they differ from others, and evidence over time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

import numpy as np

from calibscale import engine
from calibscale.chunk import Floats
from calibscale.errors import StoreError
from calibscale.estimators import ECE, TCE2, Estimator, TCE2Debiased, TCE2Kumar
from calibscale.intervals import Intervals, Parts, has_limits, with_interval
from calibscale.ledger.days import STATES, Entry, Ledger
from calibscale.ledger.parts import SECTION as PARTS_SECTION
from calibscale.ledger.parts import STRATA, Strata, parts_of_days
from calibscale.ledger.recipe import Recipe
from calibscale.ledger.sums import sums_of
from calibscale.nulls import Null
from calibscale.results import Estimate
from calibscale.scan import States
from calibscale.statistics import BinCounts
from calibscale.trials import TestResult, result_of
from calibscale.wagers import STRENGTHS, Wagers, learn, log_evidence, places, shares

MAX_RUNS = 20  # of consecutive days, that are told apart
_READ_AHEAD = 8  # records in memory at a time
_BINNED = (ECE, TCE2, TCE2Debiased, TCE2Kumar)


@dataclass(frozen=True)
class Run:
    """Consecutive days, and their rows."""

    days: tuple[str, ...]
    n: int


@dataclass(frozen=True, eq=False)
class Window:
    """The merged state of a range of days.

    Attributes
    ----------
    first, last : str
    days : tuple of str
        Those that are in it.
    n : int
        Rows.
    estimates : tuple of Estimate
        With intervals of what rows within days leave open: in closed form, or by the jackknife of
        parts of days; of how up to 20 runs of days differ where the ledger has no parts.
    parts : tuple of Parts
        Of each estimate, with runs of days left out.
    within : tuple of float
        The variance of each estimate that rows within days explain; NaN where it is not known.
    bins : tuple of (runs, 5, B) or None
        Of binned estimates, by run.
    runs : tuple of Run
    tests : tuple of TestResult
        Where every day has replicates.
    states : dict
        Of the statistics: their sums over the days.
    damaged : tuple of str
        Days that could not be read, and why.
    """

    first: str
    last: str
    days: tuple[str, ...]
    n: int
    estimators: tuple[Estimator, ...]
    estimates: tuple[Estimate, ...]
    parts: tuple[Parts, ...]
    within: tuple[float, ...]
    bins: tuple[Floats | None, ...]
    runs: tuple[Run, ...]
    tests: tuple[TestResult, ...] = ()
    states: States = field(default_factory=dict, repr=False, compare=False)
    damaged: tuple[str, ...] = ()

    @property
    def by_days(self) -> list[str]:
        """Names of the estimators whose intervals follow from how days differ."""
        known = zip(self.estimates, self.within, strict=True)
        return [e.estimator for e, within in known if e.interval and np.isnan(within)]


def window(
    ledger: Ledger,
    first: str,
    last: str,
    model: str | None = None,
    group: float | None = None,
    level: float = 0.95,
    only: Collection[str] | None = None,
) -> Window:
    """The estimates of a range of days, its ends among them, or of some of its days.

    Raises
    ------
    StoreError
        If no day of it has rows, or none can be read.
    """
    recipe = ledger.recipe
    selected = ledger.select(first, last, model, group)
    entries = [e for e in selected if e.n and (only is None or e.day in only)]
    days = sorted({entry.day for entry in entries})
    runs = np.array_split(np.array(days), min(len(days), MAX_RUNS)) if days else []
    run_of = {day: g for g, run in enumerate(runs) for day in run.tolist()}
    sums = [np.zeros(recipe.sizes.get("states", 0)) for _ in runs]
    read: list[Entry] = []
    damaged = []
    for entry, vector in _vectors(ledger, entries, STATES):
        if isinstance(vector, StoreError):
            damaged.append(str(vector))
        else:
            sums[run_of[entry.day]] += vector
            read.append(entry)
    if not read:
        when = f"on {last}" if first == last else f"from {first} to {last}"
        when = f"up to {last}" if first == date.min.isoformat() else when  # "all"
        if not damaged:
            raise StoreError(f"no labelled rows {when}")
        raise StoreError(f"{ledger.path}: no day {when} can be read{_told(damaged)}")
    there = sorted({run_of[entry.day] for entry in read})
    sums = [sums[g] for g in there]
    found_runs = tuple(_run([e for e in read if run_of[e.day] == g]) for g in there)
    states = recipe.states(np.sum(sums, axis=0))
    asked = Intervals(level=level)
    with engine.one_thread():
        frozen = tuple(e.frozen(*(states[s] for s in e.needs)) for e in recipe.estimators)
        parts, bins = _by_run(recipe, frozen, states, sums)
        strata = None
        try:
            strata = _strata(ledger, read, found_runs)
        except StoreError as error:
            damaged.append(str(error))
        pairs = zip(frozen, parts, strict=True)
        estimates = [_estimate(e, states, strata, p, asked, recipe.classes) for e, p in pairs]
        try:
            tests = _tests(ledger, frozen, states, read)
        except StoreError as error:
            tests = ()
            damaged.append(str(error))
    return Window(
        first, last, tuple(sorted({entry.day for entry in read})), sum(e.n for e in read), frozen,
        tuple(found for found, _ in estimates), parts, tuple(within for _, within in estimates),
        bins, found_runs, tests, states, tuple(damaged),
    )  # fmt: skip


def _run(entries: Sequence[Entry]) -> Run:
    return Run(tuple(sorted({e.day for e in entries})), sum(e.n for e in entries))


def has_bins(e: Estimator) -> bool:
    """Whether windows of an estimator are compared by the bins of their runs."""
    return isinstance(e, _BINNED) and isinstance(e.needs[0], BinCounts)


def _by_run(
    recipe: Recipe, estimators: Sequence[Estimator], states: States, sums: list[Floats]
) -> tuple[tuple[Parts, ...], tuple[Floats | None, ...]]:
    """Of each estimator, its values without each run of days, and its bins by run."""
    left_out = np.full((len(estimators), len(sums)), np.nan)
    for g, rest in enumerate(_left_out(sums) if len(sums) > 1 else ()):
        without = recipe.states(rest)
        for k, e in enumerate(estimators):
            left_out[k, g] = e.value(*(without[s] for s in e.needs))
    values = [e.value(*(states[s] for s in e.needs)) for e in estimators]
    by_run = [recipe.states(part) for part in sums] if any(map(has_bins, estimators)) else []
    bins = tuple(
        np.array([part[e.needs[0]].sums for part in by_run]) if has_bins(e) else None
        for e in estimators
    )
    parts = (Parts(v, rest, np.empty(0)) for v, rest in zip(values, left_out, strict=True))
    return tuple(parts), bins


def _strata(ledger: Ledger, entries: Sequence[Entry], runs: Sequence[Run]) -> Strata | None:
    """The parts of the rows of runs of days, and the runs' shares; None where a day has none."""
    recipe = ledger.recipe
    if not recipe.parted or not all(PARTS_SECTION in e.sections for e in entries):
        return None
    count = min(len(runs), STRATA)
    of = {day: k * count // len(runs) for k, run in enumerate(runs) for day in run.days}
    sums = np.zeros((count, recipe.sizes[PARTS_SECTION]))
    for entry, vector in _vectors(ledger, entries, PARTS_SECTION):
        if isinstance(vector, StoreError):
            raise vector
        sums[of[entry.day]] += vector
    unpacked = (recipe.unpack(PARTS_SECTION, total) for total in sums)
    total_rows = sum(run.n for run in runs)
    rows = np.bincount([of[run.days[0]] for run in runs], [run.n for run in runs]) / total_rows
    parts = [dict(zip(recipe.parted, fields, strict=True)) for fields in unpacked]
    return Strata(parts, rows.tolist())


def _estimate(
    e: Estimator, states: States, strata: Strata | None, runs: Parts, asked: Intervals, classes: int
) -> tuple[Estimate, float]:
    """The estimate with its interval, and its variance within days, NaN where it is not known.

    One day has an interval here if the estimator has limits; else it is the day's own.
    """
    found = e.finalize(*(states[s] for s in e.needs))
    if not np.isfinite(runs.value):
        return found, float("nan")
    parts: Parts | None = None
    limited = has_limits(e)
    known = strata is not None and all(s in strata.parts[0] for s in e.needs)
    if not limited and len(runs.left_out) > 1:
        known_strata = strata if known else None
        parts = runs if known_strata is None else parts_of_days(e, runs.value, states, known_strata)
    found = with_interval(e, found, asked, states, classes, lambda: parts)
    if found.interval is None or not (limited or known):
        return found, float("nan")
    return found, found.interval.standard_error**2


def _told(damaged: list[str]) -> str:
    return "".join(f"; {message}" for message in damaged[:3])


def _vectors(
    ledger: Ledger, entries: Sequence[Entry], section: str
) -> Iterator[tuple[Entry, Floats | StoreError]]:
    """Each entry with a section of it, a few at a time."""

    def read(entry: Entry) -> Floats | StoreError:
        try:
            return ledger.read(entry, section)
        except StoreError as error:
            return error

    with ThreadPoolExecutor(min(4, engine.available_cpus()), "calibscale") as pool:
        for at in range(0, len(entries), _READ_AHEAD):
            some = entries[at : at + _READ_AHEAD]
            yield from zip(some, pool.map(read, some), strict=True)


def _left_out(sums: list[Floats]) -> Iterator[Floats]:
    """The sum of all but one, for each; of what is kept, for a difference would lose digits."""
    after = [np.zeros_like(sums[0])]
    for part in reversed(sums[1:]):
        after.append(after[-1] + part)
    before = np.zeros_like(sums[0])
    for part, rest in zip(sums, reversed(after), strict=True):
        yield before + rest
        before = before + part


def _tests(
    ledger: Ledger, frozen: tuple[Estimator, ...], states: States, entries: Sequence[Entry]
) -> tuple[TestResult, ...]:
    """The tests of a sum of days, whose replicates are the sums of theirs."""
    recipe = ledger.recipe
    replicated = recipe.replicated()
    if not (replicated and recipe.keep and all("replicates" in e.sections for e in entries)):
        return ()
    drawn = np.zeros(recipe.sizes["replicates"])
    for vector in sums_of(ledger, entries):
        drawn += vector
    sums = zip(replicated.values(), recipe.unpack("replicates", drawn), strict=True)
    known: States = dict(states)
    known.update(sums)
    certain = sum(int(e.info.get("certain", 0)) for e in entries)
    tested = [e for e in frozen if e.name in recipe.tested]
    null = Null("labels", recipe.seed)  # of which the seed of each day is a hash
    return tuple(result_of(e, known, replicated, null, certain) for e in tested)


@dataclass(frozen=True)
class Process:
    """A process of e-values: log E after each of the days, and its weight among all of them."""

    notion: str
    group: float | None
    log_evidence: Floats
    weight: float


@dataclass(frozen=True)
class Evidence:
    """Every calendar day from the first to the last of a model, its processes, what is damaged."""

    days: list[str]
    processes: list[Process]
    damaged: list[str]


def first_nights(ledger: Ledger, model: str, start: str) -> dict[float, int]:
    """The night from `start` on that each group of a model came on, by the days that are there."""
    first = date.fromisoformat(start)
    found: dict[float, int] = {}
    for entry in sorted(ledger.entries, key=lambda e: e.day):
        if entry.model == model and entry.date >= start and entry.group is not None:
            found.setdefault(entry.group, (date.fromisoformat(entry.date) - first).days)
    return found


def evidence(
    ledger: Ledger, model: str, start: str, weights: Mapping[float, float] | None = None
) -> Evidence:
    """The processes of all notions and groups, from a day on.

    Days without rows have the factor 1, so that a day that comes late, or in another order, moves
    neither the bets nor the restarts of others.  Where there are groups, their processes are there
    with the given weights, by default those of groups that nobody has met before, and not that of
    all rows.
    """
    recipe = ledger.recipe
    first = date.fromisoformat(start)
    entries = [e for e in ledger.entries if e.model == model and e.date >= start]
    if not entries or not recipe.wagers:
        return Evidence([], [], [])
    last = date.fromisoformat(max(e.date for e in entries))
    days = [(first + timedelta(k)).isoformat() for k in range((last - first).days + 1)]
    share_of: Mapping[float | None, float] = {None: 1.0}
    if recipe.group_by is not None:
        first_of = first_nights(ledger, model, start)
        weights = shares(places({}, first_of)) if weights is None else weights
        share_of = {group: weight for group, weight in weights.items() if group in first_of}
    found, damaged = [], []
    for group, weight in sorted(share_of.items(), key=_by_group):
        logs = [np.zeros((len(days), len(w.bets) + len(STRENGTHS))) for w in recipe.wagers]
        for entry in entries:
            if entry.group != group or "wagers" not in entry.sections:
                continue
            try:
                states = recipe.unpack("wagers", ledger.read(entry, "wagers"))
            except StoreError as error:
                damaged.append(str(error))
                continue
            night = (date.fromisoformat(entry.date) - first).days
            for total, state in zip(logs, states, strict=True):
                total[night] += state.logs
        for wagers, total in zip(recipe.wagers, logs, strict=True):
            share = weight / len(recipe.wagers)
            found.append(Process(wagers.notion, group, log_evidence(total), share))
    return Evidence(days, found, damaged)


def _by_group(found: tuple[float | None, float]) -> float:
    return -np.inf if found[0] is None else found[0]


def learned_bets(ledger: Ledger, day: str, model: str, days: int) -> tuple[Wagers, ...]:
    """The bets of a day, learned from what the ledger has of the days before it."""
    recipe = ledger.recipe
    until = date.fromisoformat(day[:10])
    first, last = (until - timedelta(days)).isoformat(), (until - timedelta(1)).isoformat()
    groups = {e.group for e in ledger.entries if e.model == model}
    if recipe.group_by is not None:
        groups.discard(None)
    learned: list[list[tuple[float | None, tuple[float, ...]]]] = [[] for _ in recipe.wagers]
    for group in sorted(groups, key=lambda g: -np.inf if g is None else g):
        sums = [np.zeros_like(w.zero(recipe.classes).sums) for w in recipe.wagers]
        for entry in ledger.select(first, last, model, group):
            if "wagers" not in entry.sections:
                continue
            try:
                states = recipe.unpack("wagers", ledger.read(entry, "wagers"))
            except StoreError:  # `evidence` tells of it; a bet needs not every day
                continue
            for total, state in zip(sums, states, strict=True):
                total += state.sums
        for known, total in zip(learned, sums, strict=True):
            shifts = learn(total)
            if any(shifts):
                known.append((group, shifts))
    return tuple(
        replace(w, learned=tuple(known)) for w, known in zip(recipe.wagers, learned, strict=True)
    )
