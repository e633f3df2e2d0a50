"""Windows of days: their estimates, how they differ from others, and evidence over time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

import numpy as np
from scipy.stats import t as student

from calibscale import engine
from calibscale.chunk import Floats
from calibscale.errors import OptionError, StoreError
from calibscale.estimators import Estimator
from calibscale.intervals import Intervals, Parts
from calibscale.ledger.days import Entry, Ledger
from calibscale.ledger.sums import sums_of
from calibscale.nulls import Null
from calibscale.results import POPULATION, THIS_N, Estimate
from calibscale.scan import States
from calibscale.trials import TestResult, result_of
from calibscale.wagers import STRENGTHS, Wagers, learn, log_evidence, shares

MAX_GROUPS = 20  # of consecutive days, that an interval leaves out one at a time
_READ_AHEAD = 8  # records in memory at a time


@dataclass(frozen=True)
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
        With intervals where there are two days or more: days are the groups of the jackknife, up to
        20 runs of consecutive ones.
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
    estimates: tuple[Estimate, ...]
    parts: tuple[Parts, ...]
    tests: tuple[TestResult, ...] = ()
    states: States = field(default_factory=dict, repr=False, compare=False)
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drift:
    """How an estimate differs between two windows that share no day.

    Attributes
    ----------
    difference : float
        The later value less the earlier.
    low, high : float
        Interval of the level asked for.
    p_value : float
        Two-sided, by Welch's t.
    """

    estimator: str
    difference: float
    low: float
    high: float
    p_value: float


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
    runs = np.array_split(np.array(days), min(len(days), MAX_GROUPS)) if days else []
    run_of = {day: g for g, run in enumerate(runs) for day in run.tolist()}
    sums = [np.zeros(recipe.sizes.get("states", 0)) for _ in runs]
    read: list[Entry] = []
    damaged = []
    for entry, vector in _vectors(ledger, entries):
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
    there = {run_of[entry.day] for entry in read}
    sums = [part for g, part in enumerate(sums) if g in there]
    states = recipe.states(np.sum(sums, axis=0))
    asked = Intervals(level=level)
    with engine.one_thread():
        frozen = tuple(e.frozen(*(states[s] for s in e.needs)) for e in recipe.estimators)
        left_out = np.full((len(frozen), len(sums)), np.nan)
        for g, rest in enumerate(_left_out(sums) if len(sums) > 1 else ()):
            found = recipe.states(rest)
            for k, e in enumerate(frozen):
                left_out[k, g] = e.value(*(found[s] for s in e.needs))
        estimates, parts = [], []
        for e, without in zip(frozen, left_out, strict=True):
            estimate = e.finalize(*(states[s] for s in e.needs))
            value = float("nan") if estimate.value is None else estimate.value
            part = Parts(value, without, np.empty(0))
            covers = POPULATION if e.unbiased else THIS_N
            estimates.append(replace(estimate, interval=part.interval(asked, covers)))
            parts.append(part)
        try:
            tests = _tests(ledger, frozen, states, read)
        except StoreError as error:
            tests = ()
            damaged.append(str(error))
    return Window(
        first, last, tuple(sorted({entry.day for entry in read})), sum(e.n for e in read),
        tuple(estimates), tuple(parts), tests, states, tuple(damaged),
    )  # fmt: skip


def _told(damaged: list[str]) -> str:
    return "".join(f"; {message}" for message in damaged[:3])


def _vectors(
    ledger: Ledger, entries: Sequence[Entry]
) -> Iterator[tuple[Entry, Floats | StoreError]]:
    """Each entry with its states, a few at a time."""

    def read(entry: Entry) -> Floats | StoreError:
        try:
            return ledger.read(entry)
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


def drifts(later: Window, earlier: Window, level: float = 0.95) -> tuple[Drift, ...]:
    """How the estimates of two windows differ; none where one of them has no interval.

    Raises
    ------
    OptionError
        If the windows share a day.
    """
    shared = sorted(set(later.days) & set(earlier.days))
    if shared:
        raise OptionError(f"the windows share days: {', '.join(shared[:3])}")
    found = []
    pairs = zip(later.estimates, later.parts, earlier.parts, strict=True)
    for estimate, a, b in pairs:
        errors = np.array([a.standard_error, b.standard_error])
        counts = np.array([np.isfinite(p.left_out).sum() for p in (a, b)])
        difference = a.value - b.value
        if not (np.isfinite(errors).all() and np.isfinite(difference) and (counts > 1).all()):
            continue
        squares = errors**2
        error = float(np.sqrt(squares.sum()))
        if error == 0:
            continue
        freedom = float(squares.sum() ** 2 / np.sum(squares**2 / (counts - 1)))
        half = float(student.ppf(0.5 + level / 2, freedom)) * error
        p_value = 2 * float(student.sf(abs(difference) / error, freedom))
        name = estimate.estimator
        found.append(Drift(name, difference, difference - half, difference + half, p_value))
    return tuple(found)


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


def evidence(ledger: Ledger, model: str, start: str) -> Evidence:
    """The processes of all notions and groups, from a day on.

    Days without rows have the factor 1, so that a day that comes late, or in another order, moves
    neither the bets nor the restarts of others.  Where there are groups, their processes are there
    and not that of all rows.
    """
    recipe = ledger.recipe
    first = date.fromisoformat(start)
    entries = [e for e in ledger.entries if e.model == model and e.date >= start]
    if not entries or not recipe.wagers:
        return Evidence([], [], [])
    last = date.fromisoformat(max(e.date for e in entries))
    days = [(first + timedelta(k)).isoformat() for k in range((last - first).days + 1)]
    groups: list[float | None] = [None]
    weights = np.ones(1)
    if recipe.group_by is not None:
        seen: dict[float | None, int] = {}
        for entry in sorted(entries, key=lambda e: e.day):
            if entry.group is not None:
                night = (date.fromisoformat(entry.date) - first).days
                seen.setdefault(entry.group, night)
        groups, weights = list(seen), shares(list(seen.values())) if seen else np.ones(0)
    found, damaged = [], []
    for group, weight in sorted(zip(groups, weights.tolist(), strict=True), key=_by_group):
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
