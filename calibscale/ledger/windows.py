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
from calibscale.results import POPULATION, THIS_N, Estimate
from calibscale.scan import States
from calibscale.testing import TestResult, result_of
from calibscale.wagers import STRENGTHS, Wagers, WagerState, learn, log_evidence, shares

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
        why = "can be read" if damaged else "has rows"
        raise StoreError(f"{ledger.path}: no day from {first} to {last} {why}{_told(damaged)}")
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
        tests = _tests(ledger, frozen, states, read)
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
    try:
        for vector in sums_of(ledger, entries):
            drawn += vector
    except StoreError:
        return ()
    sums = zip(replicated.values(), recipe.unpack("replicates", drawn), strict=True)
    known = {**states, **dict(sums)}
    null = next(iter(replicated.values())).null
    return tuple(result_of(e, known, replicated, null) for e in frozen if e.name in recipe.tested)


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
class Evidence:
    """A process of e-values: log E after each of the days, and its weight among all of them."""

    notion: str
    group: float | None
    log_evidence: Floats
    weight: float

    def since(self, days: Sequence[str], bound: float) -> str | None:
        """The first of the days after which log E was at least the bound."""
        return first_reached(days, self.log_evidence, bound)


def first_reached(days: Sequence[str], logs: Floats, bound: float) -> str | None:
    """The first of the days after which log E was at least the bound."""
    reached = np.flatnonzero(logs >= bound)
    return days[reached[0]] if len(reached) else None


def evidence(
    ledger: Ledger, last: str, model: str | None = None, since: str | None = None
) -> tuple[list[str], list[Evidence]]:
    """Every calendar day from the first to the last, and the processes of all notions and groups.

    Days without rows have the factor 1, so that what comes late, or in another order, changes
    neither bets nor restarts of others: a process that ever reaches 1/α does so by chance with
    probability at most α.  Where there are groups, their processes are there and not that of all.
    """
    recipe = ledger.recipe
    entries = ledger.select(since, last, model)
    if not entries or not recipe.wagers:
        return [], []
    start = date.fromisoformat(since or entries[0].date)
    days = [
        (start + timedelta(k)).isoformat()
        for k in range((date.fromisoformat(last[:10]) - start).days + 1)
    ]
    seen: dict[float, int] = {}
    for entry in sorted(ledger.entries, key=lambda e: e.day):
        if entry.group is not None and entry.n and model in (None, entry.model):
            night = (date.fromisoformat(entry.date) - start).days
            if start.isoformat() <= entry.date <= last[:10]:
                seen.setdefault(entry.group, night)
    groups: list[float | None] = [None]
    weights = np.ones(1)
    if recipe.group_by is not None:
        groups, weights = list(seen), shares(list(seen.values())) if seen else np.ones(0)
    found = []
    for group, weight in sorted(zip(groups, weights.tolist(), strict=True), key=_by_group):
        logs = [np.zeros((len(days), len(w.bets) + len(STRENGTHS))) for w in recipe.wagers]
        for entry in ledger.select(since, last, model, group):
            night = (date.fromisoformat(entry.date) - start).days
            for total, state in zip(logs, _wagers(ledger, entry), strict=False):
                total[night] += state.logs
        for wagers, total in zip(recipe.wagers, logs, strict=True):
            share = weight / len(recipe.wagers)
            found.append(Evidence(wagers.notion, group, log_evidence(total), share))
    return days, found


def _wagers(ledger: Ledger, entry: Entry) -> list[WagerState]:
    """What the bets of an entry gained; nothing of one that is damaged, which its window tells."""
    if "wagers" not in entry.sections:
        return []
    try:
        return ledger.recipe.unpack("wagers", ledger.read(entry, "wagers"))
    except StoreError:
        return []


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
            for total, state in zip(sums, _wagers(ledger, entry), strict=False):
                total += state.sums
        for known, total in zip(learned, sums, strict=True):
            shifts = learn(total)
            if any(shifts):
                known.append((group, shifts))
    return tuple(
        replace(w, learned=tuple(known)) for w, known in zip(recipe.wagers, learned, strict=True)
    )
