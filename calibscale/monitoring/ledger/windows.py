"""Estimates and tests of windows of days, from cached sums of their records.

Blocks have 8, 16, 32, … calendar days.  The sum of a block adds the sums of its two halves, and a
block of 8 days adds its days in order.  The first night that needs the sum of a past block (of 16
days or more for replicates, which are large) writes it to a file.  The name of the file has a hash
of the records, so that an outdated sum is never read.  The terms and their order, and therefore the
digits, depend only on the days.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable
from urllib.parse import quote

import google_crc32c
import numpy as np

from calibscale.array_types import Floats
from calibscale.atomic_files import write_whole
from calibscale.engine.dask_connection import available_cpus
from calibscale.engine.threads import mapped, one_thread
from calibscale.errors import StoreError
from calibscale.estimators.base import BoundEstimator
from calibscale.inference.monte_carlo import result_of
from calibscale.intervals.interval_estimates import has_limits, with_interval
from calibscale.intervals.parts_of_rows import Parts
from calibscale.intervals.resampling import Resampling, frozen_by
from calibscale.monitoring.ledger.day_ledger import STATES, SUMS, Ledger
from calibscale.monitoring.ledger.day_parts import SECTION as PARTS_SECTION
from calibscale.monitoring.ledger.day_parts import STRATA, Strata, parts_of_days
from calibscale.monitoring.ledger.group_keys import GroupKey
from calibscale.monitoring.ledger.index import Entry
from calibscale.monitoring.ledger.recipe import Recipe
from calibscale.results.cluster_results import Clusters
from calibscale.results.estimate import Estimate
from calibscale.results.inference_results import TestResult
from calibscale.statistics.bins import BinCounts
from calibscale.statistics.null_distributions import DrawsCells
from calibscale.statistics.one_pass import States
from calibscale.statistics.score_sums import with_variances
from calibscale.statistics.statistic import Statistic

_MIN_LEVEL = 3  # log2 of the days of the smallest block
_MAX_LEVEL = 21  # log2 of the days of a block that contains the calendar
_CHECKSUM_BYTES = 4  # CRC32C
MAX_RUNS = 20  # runs of consecutive days in a window
_SPLIT_DATES = 100  # a window of at least so many dates has calendar blocks as runs


@dataclass(frozen=True)
class WindowDays:
    """Run of consecutive days, and its number of rows."""

    days: tuple[str, ...]
    n: int


@dataclass(frozen=True, eq=False)
class Window:
    """Merged state of a range of days.

    Attributes
    ----------
    estimates : tuple of Estimate
        Estimates with intervals from the variation of rows within days, in closed form or by the
        jackknife of parts of days.  If the ledger has no parts, the jackknife is over runs of days.
    parts : tuple of Parts
        Values of each estimate with runs of days left out.  They are NaN where a window that is not
        `compared` does not need them.
    within : tuple of float
        Variance of each estimate from rows within days, NaN if unknown.
    bins : tuple of (runs, 5, B) or None
        Bins of binned estimates, by run.
    runs : tuple of WindowDays
    tests : tuple of TestResult
        Tests of the window, empty unless every day has replicates.
    states : dict
        Sums over the days, by statistic.
    damaged : tuple of str
        Error messages of days that could not be read.
    """

    estimators: tuple[BoundEstimator, ...]
    estimates: tuple[Estimate, ...]
    parts: tuple[Parts, ...]
    within: tuple[float, ...]
    bins: tuple[Floats | None, ...]
    runs: tuple[WindowDays, ...]
    tests: tuple[TestResult, ...] = ()
    states: States = field(default_factory=dict, repr=False, compare=False)
    damaged: tuple[str, ...] = ()

    @property
    def days(self) -> tuple[str, ...]:
        """Days in the window."""
        return tuple(day for run in self.runs for day in run.days)

    @property
    def n(self) -> int:
        """Number of rows."""
        return sum(run.n for run in self.runs)

    @property
    def by_days(self) -> list[str]:
        """Names of the estimators with intervals that are based on the variation between days."""
        pairs = zip(self.estimates, self.within, strict=True)
        return [e.estimator for e, within in pairs if e.interval and np.isnan(within)]


def window(
    ledger: Ledger,
    first: str,
    last: str,
    model: str | None = None,
    group: GroupKey | None = None,
    confidence_level: float = 0.95,
    only: Collection[str] | None = None,
    compared: bool = True,
) -> Window:
    """Estimates of a range of days, ends included, or of `only` some of its days.

    A window that is not `compared` with others, for drift or ranks, leaves runs of days out only
    for intervals that are based on them.

    Raises
    ------
    StoreError
        If no day has rows, or no day can be read.
    """
    recipe = ledger.recipe
    selected = ledger.select(first, last, model, group)
    entries = [e for e in selected if e.n and (only is None or e.day in only)]
    days_of_runs = map(set, runs_of(sorted({entry.day for entry in entries})))
    by_run = [[e for e in entries if e.day in days] for days in days_of_runs]
    summed = _summed(ledger, by_run, STATES)
    damaged = [message for run in summed for message in run.damaged]
    summed = [run for run in summed if run.entries]
    read = [run.entries for run in summed]
    if not read:
        when = f"from {first} to {last}"
        if first == last:
            when = f"on {last}"
        if first == date.min.isoformat():  # the window of all days
            when = f"up to {last}"
        if not damaged:
            raise StoreError(f"no labelled rows {when}")
        details = "".join(f"; {message}" for message in damaged[:3])
        raise StoreError(f"{ledger.path}: no day {when} can be read{details}")
    sums = [run.vector for run in summed]
    runs = tuple(
        WindowDays(tuple(sorted({e.day for e in run})), sum(e.n for e in run)) for run in read
    )
    states = recipe.states(np.sum(sums, axis=0))
    jackknife = recipe.jackknife(confidence_level)
    with one_thread():
        # Values that depend on the rows, such as λ, follow from the whole window.  Estimates that
        # leave a run out use the same values.
        frozen = tuple(frozen_by(e, *(states[s] for s in e.needs)) for e in recipe.estimators)
        strata: Strata | None = None
        tests: tuple[TestResult, ...] = ()
        with _noted(damaged):
            strata = _strata(ledger, read)
        needed = [compared or not (has_limits(e, jackknife) or _for(e, strata)) for e in frozen]
        parts = _without_runs(recipe, frozen, states, sums, needed)
        bins = _bins_by_run(recipe, frozen, sums if compared and not recipe.cluster else [])
        pairs = zip(frozen, parts, strict=True)
        estimates = [_estimate(e, states, strata, p, jackknife, recipe.classes) for e, p in pairs]
        with _noted(damaged):
            tests = _tests(ledger, frozen, states, [entry for run in read for entry in run])
    return Window(
        frozen,
        tuple(estimate for estimate, _ in estimates),
        parts,
        tuple(within for _, within in estimates),
        bins,
        runs,
        tests,
        states if recipe.cluster else with_variances(states),
        tuple(damaged),
    )


@runtime_checkable
class MeanGap(Protocol):
    """Estimator that is a mean over bins of |conf_b − acc_b| or of its square.

    Bins are weighted by their shares of the rows.  Windows of it are compared bin by bin.
    """

    @property
    def gap_power(self) -> int:
        """Power of the gaps, 1 or 2."""
        ...

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics of the estimator, the bins first."""
        ...

    @property
    def unbiased(self) -> bool:
        """Whether the expectation does not depend on n."""
        ...


def runs_of(days: Sequence[str]) -> list[list[str]]:
    """Split ordered days into at most `MAX_RUNS` runs of about equal length.

    Runs of a long window are calendar blocks of 2^k days, because the ledger caches their sums.  A
    run at either end that is shorter than half its neighbour is merged with it.
    """
    if not days:
        return []
    numbers = [date.fromisoformat(day[:10]).toordinal() for day in days]
    if numbers[-1] - numbers[0] < _SPLIT_DATES:
        return [run.tolist() for run in np.array_split(np.array(days), min(len(days), MAX_RUNS))]
    # The smallest blocks with at most MAX_RUNS of them in the window.
    level = 0
    while (numbers[-1] >> level) - (numbers[0] >> level) >= MAX_RUNS:
        level += 1
    blocks: dict[int, list[str]] = {}
    for day, number in zip(days, numbers, strict=True):
        blocks.setdefault(number >> level, []).append(day)
    runs = list(blocks.values())
    for end, neighbour in ((0, 1), (-1, -2)):  # the first two runs, then the last two
        if len(runs) > 2 and len(runs[end]) < len(runs[neighbour]) / 2:
            runs[neighbour] = sorted(runs[neighbour] + runs[end])
            del runs[end]
    return runs


def has_bins(e: BoundEstimator) -> TypeGuard[MeanGap]:
    """Whether windows of an estimator are compared by the bins of their runs."""
    return isinstance(e, MeanGap) and isinstance(e.needs[0], BinCounts)


def _without_runs(
    recipe: Recipe,
    estimators: Sequence[BoundEstimator],
    states: States,
    sums: list[Floats],
    needed: Sequence[bool],
) -> tuple[Parts, ...]:
    """Value of each estimator, and its values without each run of days (NaN if not needed)."""
    left_out = np.full((len(estimators), len(sums)), np.nan)
    remainders = _left_out(sums) if len(sums) > 1 and any(needed) else ()
    for g, remainder in enumerate(remainders):
        without = recipe.states(remainder)
        for k, e in enumerate(estimators):
            if needed[k]:
                left_out[k, g] = e.value(*(without[s] for s in e.needs))
    values = [e.value(*(states[s] for s in e.needs)) for e in estimators]
    return tuple(Parts(value, part) for value, part in zip(values, left_out, strict=True))


def _bins_by_run(
    recipe: Recipe, estimators: Sequence[BoundEstimator], sums: list[Floats]
) -> tuple[Floats | None, ...]:
    """Bins (runs, 5, B) of each run of days, for estimators that have bins."""
    by_run = [recipe.states(part) for part in sums] if any(map(has_bins, estimators)) else []
    return tuple(
        np.array([part[e.needs[0]].sums for part in by_run]) if by_run and has_bins(e) else None
        for e in estimators
    )


@contextmanager
def _noted(messages: list[str]) -> Iterator[None]:
    """Collect the message of a part of a window that cannot be read or kept."""
    try:
        yield
    except StoreError as error:
        messages.append(str(error))


def _strata(ledger: Ledger, runs: Sequence[Sequence[Entry]]) -> Strata | None:
    """Parts of the rows of runs of days, and the shares of the runs.

    None is returned if a day has no parts.
    """
    recipe = ledger.recipe
    if not recipe.parted or not all(PARTS_SECTION in e.sections for run in runs for e in run):
        return None
    # Clusters are the same on all days, which are therefore one stratum.
    count = 1 if recipe.cluster else min(len(runs), STRATA)
    # Neighbouring runs share a stratum.
    of_run = np.arange(len(runs)) * count // len(runs)
    sums = [np.zeros(recipe.sizes[PARTS_SECTION]) for _ in range(count)]
    for k, total in zip(of_run, _summed(ledger, runs, PARTS_SECTION), strict=True):
        if total.damaged:
            raise StoreError(total.damaged[0])
        sums[k] += total.vector
    unpacked = (recipe.unpack(PARTS_SECTION, total) for total in sums)
    rows = np.bincount(of_run, [sum(e.n for e in run) for run in runs])
    parts = [dict(zip(recipe.parted, fields, strict=True)) for fields in unpacked]
    return Strata(parts, (rows / rows.sum()).tolist())


def _for(e: BoundEstimator, strata: Strata | None) -> Strata | None:
    """The strata, if they have parts of all statistics that an estimator needs."""
    return strata if strata and all(s in strata.parts[0] for s in e.needs) else None


def _estimate(
    e: BoundEstimator,
    states: States,
    strata: Strata | None,
    runs: Parts,
    resampling: Resampling,
    classes: int,
) -> tuple[Estimate, float]:
    """Estimate with its interval, and its variance within days (NaN if unknown).

    A single day has an interval here only if the estimator has closed-form limits.  Otherwise the
    record of the day has the interval.
    """
    estimate = e.finalize(*(states[s] for s in e.needs))
    # Limits in closed form need no values without parts.
    several = len(runs.left_out) > 1
    limited = has_limits(e, resampling)
    if not np.isfinite(runs.value) or not (several or limited):
        return estimate, float("nan")
    parts: Parts | None = None
    strata = _for(e, strata)
    if not limited:
        clustered = resampling.clustered
        parts = runs if strata is None else parts_of_days(e, runs.value, states, strata, clustered)
    estimate = with_interval(e, estimate, resampling, states, classes, parts=lambda: parts)
    # The jackknife over runs has the variation between days as well, so that the variance within
    # days is unknown.
    if estimate.interval is None or not (limited or strata):
        return estimate, float("nan")
    return estimate, estimate.interval.standard_error**2


def _summed(ledger: Ledger, runs: Sequence[Sequence[Entry]], section: str) -> list[Sum]:
    """Sums of a section over runs of days, up to four at a time."""
    return mapped(lambda run: sum_of(ledger, run, section), runs, min(4, available_cpus()))


def _left_out(sums: list[Floats]) -> Iterator[Floats]:
    """Sum of all vectors but one, for each vector.

    The sums are added up from both ends, because differences from the total would lose digits.
    """
    after = [np.zeros_like(sums[0])]
    for part in reversed(sums[1:]):
        after.append(after[-1] + part)
    before = np.zeros_like(sums[0])
    for part, following in zip(sums, reversed(after), strict=True):
        yield before + following
        before = before + part


def _tests(
    ledger: Ledger, frozen: tuple[BoundEstimator, ...], states: States, entries: Sequence[Entry]
) -> tuple[TestResult, ...]:
    """Tests of a sum of days.  Its replicates are the sums of the replicates of the days."""
    recipe = ledger.recipe
    replicated = recipe.replicated()
    tested = [e for e in frozen if recipe.replicates and e.name in recipe.tested]
    all_states: States = dict(states)
    if replicated and recipe.keep and all("replicates" in e.sections for e in entries):
        drawn = sum_of(ledger, entries, "replicates")
        if drawn.damaged:
            raise StoreError(drawn.damaged[0])
        sums = recipe.unpack("replicates", drawn.vector)
        all_states.update(zip(replicated.values(), sums, strict=True))
    else:  # only statistics of cells can be drawn again from their states
        tested = [e for e in tested if isinstance(e, DrawsCells)]
    certain = sum(int(e.info.get("certain", 0)) for e in entries)
    # Without clusters the days have draws of their own, from hashes of the recipe's seed.
    null = recipe.null() if recipe.cluster else replace(recipe.null(), seed=recipe.seed)
    clusters = None
    if recipe.cluster is not None:
        clusters = Clusters.of_days((e.n, e.info.get("clusters") or {}) for e in entries)
    return tuple(
        result_of(e, all_states, replicated, null, recipe.replicates, certain, clusters)
        for e in tested
    )


# ---------------------------------------------------------------- cached sums


@dataclass
class Sum:
    """Sum of records, its entries, and error messages of damaged records that it leaves out."""

    vector: Floats
    entries: list[Entry] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def add(self, part: Sum) -> None:
        self.vector = self.vector + part.vector
        self.entries += part.entries
        self.damaged += part.damaged


def sum_of(ledger: Ledger, entries: Iterable[Entry], section: str) -> Sum:
    """Sum of a section of ordered entries.  Damaged entries are left out."""
    total = Sum(np.zeros(ledger.recipe.sizes[section]))
    series: dict[tuple[str, GroupKey | None], list[Entry]] = {}
    for entry in entries:
        series.setdefault((entry.model, entry.group), []).append(entry)
    for in_series in series.values():
        days = [date.fromisoformat(entry.date).toordinal() for entry in in_series]
        total.add(_block(ledger, section, in_series, days, _MAX_LEVEL))
    return total


def _block(
    ledger: Ledger, section: str, entries: Sequence[Entry], days: Sequence[int], level: int
) -> Sum:
    """Sum of the entries of one block of 2^level days."""
    # Days of the same block have ordinals that agree in all but the last `level` bits.
    while level > _MIN_LEVEL and days[0] >> level - 1 == days[-1] >> level - 1:
        level -= 1  # all entries are in the same half
    path = _path(ledger, section, entries, days[0], level)
    if path is not None:
        stored = load(path, ledger.recipe.sizes[section])
        if stored is not None:
            return Sum(stored, list(entries))
    total = Sum(np.zeros(ledger.recipe.sizes[section]))
    if level > _MIN_LEVEL:
        half = (days[-1] >> level - 1) << level - 1  # first day of the second half
        split = next(k for k, day in enumerate(days) if day >= half)
        for part in (slice(0, split), slice(split, None)):
            total.add(_block(ledger, section, entries[part], days[part], level - 1))
    else:
        for entry in entries:
            try:
                total.add(Sum(ledger.read(entry, section), [entry]))
            except StoreError as error:
                total.damaged.append(str(error))
    if path is not None and ledger.writable and not total.damaged:
        store(path, total.vector)
    return total


def _path(
    ledger: Ledger, section: str, entries: Sequence[Entry], day: int, level: int
) -> Path | None:
    """Path of the sum of a block, or None if the block is not past or has other entries."""
    model = entries[0].model
    group = entries[0].group
    number = day >> level
    last = ledger.select(None, None, model, group)[-1].date
    # Sums of eight days of replicates would save less reading than their files take.  The last
    # block may still grow.
    small = level == _MIN_LEVEL and section == "replicates"
    if small or len(entries) < 2 or number == date.fromisoformat(last).toordinal() >> level:
        return None
    first_ordinal = max(number << level, 1)  # block 0 begins before the calendar does
    last_ordinal = max((number + 1 << level) - 1, 1)
    selected = ledger.select(
        date.fromordinal(first_ordinal).isoformat(),
        date.fromordinal(last_ordinal).isoformat(),
        model,
        group,
    )
    in_block = [entry for entry in selected if entry.n and section in entry.sections]
    if len(in_block) != len(entries):  # a window of `only` some days has another sum
        return None
    records = hashlib.sha256(json.dumps([[e.day, e.revision] for e in entries]).encode())
    return place(ledger, model, group, f"{section}-{level}-{number}", records.hexdigest())


# ---------------------------------------------------------------- files


def place(ledger: Ledger, model: str, group: GroupKey | None, content: str, records: str) -> Path:
    """File of numbers computed from the records with the hash `records`."""
    series = quote(model, safe="")
    if isinstance(group, str):  # a name may be longer than the names of files
        series += f"-{hashlib.sha256(group.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    elif group is not None:
        series += f"-{group!r}"
    return ledger.path / SUMS / f"{series}-{content}-{records[:16]}.sum"


def store(path: Path, vector: Floats) -> None:
    """Write numbers to their file, and remove outdated files of the same days."""
    body = vector.astype("<f8").tobytes()
    checksum = google_crc32c.value(body).to_bytes(_CHECKSUM_BYTES, "little")
    write_whole(path, body + checksum)
    begin = path.name.rpartition("-")[0]
    for file in path.parent.glob(f"{begin}-*.sum"):
        if file != path:
            with suppress(OSError):
                file.unlink()


def load(path: Path, size: int) -> Floats | None:
    """Numbers of a file, or None if it does not exist or is damaged."""
    try:
        stored = np.fromfile(path, np.uint8)
    except OSError:
        return None
    body = stored[:-_CHECKSUM_BYTES]
    checksum = stored[-_CHECKSUM_BYTES:]
    if len(body) != 8 * size:
        return None
    if google_crc32c.value(body.tobytes()) != int.from_bytes(checksum.tobytes(), "little"):
        return None
    return body.view("<f8")
