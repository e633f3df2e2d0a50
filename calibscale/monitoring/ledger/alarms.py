"""Evidence against calibration over the days, the bets that it is based on, and its alarms."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.atomic_files import write_whole
from calibscale.errors import OptionError, StoreError
from calibscale.inference.e_process import BettingEProcess, advance, log_e_value, places
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.group_keys import GroupKey, order
from calibscale.monitoring.ledger.index import DAMAGE, Entry, check_key
from calibscale.monitoring.ledger.sealed_json import sealed, unsealed
from calibscale.monitoring.ledger.windows import load, place, store

BLOCK = 16  # nights with a common file, so that a night reads few files and computes few nights
_SECTION = "wagers"


@dataclass(frozen=True)
class Process:
    """A process of e-values: log E after each day, and its weight among all processes.

    With a tolerance, `of_sizes` has log E by day and size of the error, (days, sizes).
    """

    notion: str
    group: GroupKey | None
    log_evidence: Floats
    weight: float
    sizes: tuple[float, ...] = ()
    of_sizes: Floats | None = None

    def lower(self, threshold: float) -> list[float] | None:
        """Lower confidence sequence, the largest refuted size of each day or else 0."""
        if self.of_sizes is None:
            return None
        return np.max(np.where(self.of_sizes >= threshold, self.sizes, 0.0), axis=1).tolist()


@dataclass(frozen=True)
class Impossible:
    """Number and first row of the labels that had the predicted probability 0 on a day."""

    day: str
    group: GroupKey | None
    count: int
    first_row: int


@dataclass(frozen=True)
class Evidence:
    """Calendar days, the processes over these days, and messages about damaged records."""

    days: list[str]
    processes: list[Process]
    damaged: list[str]


def first_nights(ledger: Ledger, model: str, start: str) -> dict[GroupKey, int]:
    """First night of each group of a model, counted from `start`, by the days in the ledger."""
    nights: dict[GroupKey, int] = {}
    for group in ledger.groups(model):
        entries = ledger.select(start, None, model, group)
        if entries:
            nights[group] = _night(entries[0], date.fromisoformat(start))
    return nights


def evidence(
    ledger: Ledger,
    model: str,
    start: str,
    weights: Mapping[GroupKey, float],
    nights: int,
    tests: Sequence[str] = (),
) -> Evidence:
    """Processes of all notions, groups and `tests` since `start`, over the last `nights`.

    Days without rows have the factor 1, so that a day that comes late, or in another order, changes
    neither the bets nor the restarts of other days.  If there are groups, each group has a process
    with its weight, and there is no process of all rows.  A label of probability 0 makes the
    evidence of its rows infinite, unless the bets tolerate it.
    """
    recipe = ledger.recipe
    first = date.fromisoformat(start)
    entries = {
        group: ledger.select(start, None, model, group) for group in (None, *ledger.groups(model))
    }
    if not any(entries.values()):
        return Evidence([], [], [])
    last_entries = [of_group[-1] for of_group in entries.values() if of_group]
    night_count = 1 + max(_night(entry, first) for entry in last_entries)
    shown = range(max(0, night_count - nights), night_count)
    share_of: Mapping[GroupKey | None, float] = {None: 1.0}
    if recipe.group_by is not None:
        share_of = {
            group: weights[group] for group in sorted(weights, key=order) if entries.get(group)
        }
    # The weights of all processes sum to at most 1, so that the weighted mean of their e-values is
    # an e-value.
    process_count = len(recipe.wagers) + len(tests)
    processes: list[Process] = []
    damaged: list[str] = []
    groups = list(share_of) if recipe.wagers else []
    for group in groups:
        walk = _Walk(ledger, model, group, first, entries[group])
        logs = walk.over(shown)
        damaged += walk.damaged
        weight = share_of[group] / process_count
        for wagers, log in zip(recipe.wagers, logs, strict=True):
            if wagers.sizes:
                # The first size is the tolerance.
                process = Process(wagers.notion, group, log[:, 0], weight, wagers.sizes, log)
            else:
                process = Process(wagers.notion, group, log, weight)
            processes.append(process)
    for name in tests:
        log = _log_evidence_of_test(ledger, name, entries[None], first, night_count)
        processes.append(Process(name, None, log[shown.start :], 1.0 / process_count))
    days = [(first + timedelta(night)).isoformat() for night in shown]
    return Evidence(days, processes, damaged)


def _log_evidence_of_test(
    ledger: Ledger, name: str, entries: Sequence[Entry], first: date, night_count: int
) -> Floats:
    """log E of a test of all rows after each night since `first` (night_count,)."""
    # log e-value of each night, 0 without rows.  The test is the only bet of its process.
    increments = np.zeros((night_count, 1))
    for entry in entries:
        night = _night(entry, first)
        # The parts of a day have different rows, so that their e-values are multiplied.
        for test in entry.info["tests"]:
            if test["statistic"] == name and test["p_value"] is not None:
                increments[night] += log_e_value(test["p_value"])
        # A label of probability 0 refutes calibration with certainty.
        if impossible_labels(ledger, entry) is not None:
            increments[night] = np.inf
    log_evidence, _ = advance(increments)
    return log_evidence


def impossible_labels(ledger: Ledger, entry: Entry) -> Impossible | None:
    """Labels of the rows of an entry that have the predicted probability 0.

    Groups in ledgers of earlier versions have the labels of all rows of their day.
    """
    group = entry.group
    if group is not None and "impossible" not in entry.info:
        group = None
        entry = ledger.day(entry.day, entry.model)[0]  # the first entry of a day has all rows
    labels = entry.info.get("impossible")
    if labels is None:
        return None
    count, first_row = labels
    return Impossible(entry.day, group, count, first_row)


def first_impossible(
    ledger: Ledger, model: str, start: str, group: GroupKey | None
) -> Impossible | None:
    """First labels of probability 0 of a group, or of all rows, since a day."""
    for entry in ledger.select(start, None, model, group):
        labels = impossible_labels(ledger, entry)
        if labels is not None:
            return labels
    return None


def _night(entry: Entry, first: date) -> int:
    return (date.fromisoformat(entry.date) - first).days


class _BlockEvidence(NamedTuple):
    """State of each notion after a block of nights, and log E after each of its nights.

    Arrays by notion: `running` (bets,) and `logs` (nights,), or with a tolerance (sizes, bets) and
    (nights, sizes).
    """

    running: list[Floats]
    logs: list[Floats]


class _Walk:
    """Processes of a group, computed by blocks of nights."""

    def __init__(
        self,
        ledger: Ledger,
        model: str,
        group: GroupKey | None,
        first: date,
        entries: Sequence[Entry],
    ) -> None:
        self.ledger = ledger
        self.recipe = ledger.recipe
        self.model = model
        self.group = group
        self.first = first
        self.damaged: list[str] = []
        # By notion: the shape (bets,), or (sizes, bets) with a tolerance, of the gains of a night.
        self.shapes = [wagers.shape for wagers in self.recipe.wagers]
        self._entries: dict[int, list[Entry]] = {}  # by block
        for entry in entries:
            if _SECTION in entry.sections:
                self._entries.setdefault(_night(entry, first) // BLOCK, []).append(entry)

    def over(self, shown: range) -> list[Floats]:
        """log E of each notion after each night of a range that ends with the last night."""
        first = shown.start // BLOCK
        last = (shown.stop - 1) // BLOCK
        names = self._names(last)
        parts = self._stored(range(first, last), names)
        # The first block to compute needs the state after the block before it.
        if parts:
            start, running = first + len(parts), parts[-1].running
        else:
            # The block before `first` is computed even if it is stored, so that a record in it that
            # was damaged afterwards is reported and left out.
            start, running = self._resumed(max(first - 1, 0), names)
        for block in range(start, last + 1):
            nights = min(BLOCK, shown.stop - block * BLOCK)
            computed = self._block(block, nights, running)
            running = computed.running
            if block >= first:
                parts.append(computed)
            # The last block grows with each night.  A damaged record may be written again.
            if block < last and self.ledger.writable and not self.damaged:
                vector = np.concatenate([array.ravel() for array in itertools.chain(*computed)])
                store(self._place(block, names[block]), vector)
        by_notion = zip(*(part.logs for part in parts), strict=True)
        hidden = shown.start - first * BLOCK  # nights of the first block before the range
        return [np.concatenate(logs)[hidden:] for logs in by_notion]

    def _stored(self, blocks: range, names: list[str]) -> list[_BlockEvidence]:
        """Stored evidence of blocks, up to the first block without it."""
        stored = []
        for block in blocks:
            loaded = self._load(block, names[block])
            if loaded is None:
                break
            stored.append(loaded)
        return stored

    def _resumed(self, block: int, names: list[str]) -> tuple[int, list[Floats]]:
        """Last block, up to `block`, with a known state before it, and this state.

        The state of a notion is an array of its shape.  It is log 0 = −∞ before the first night, as
        no process has started.
        """
        while block > 0:
            loaded = self._load(block - 1, names[block - 1])
            if loaded is not None:
                return block, loaded.running
            block -= 1
        return 0, [np.full(shape, -np.inf) for shape in self.shapes]

    def _names(self, blocks: int) -> list[str]:
        """Hash of all records up to the end of each block."""
        # The state after a block depends on all earlier blocks, and so does its name.
        records = hashlib.sha256()
        names = []
        for block in range(blocks):
            for entry in self._entries.get(block, ()):
                records.update(f"{entry.day} {entry.revision}\n".encode())
            names.append(records.hexdigest())
        return names

    def _place(self, block: int, name: str) -> Path:
        content = f"evidence-{self.first.isoformat()}-{block}"
        return place(self.ledger, self.model, self.group, content, name)

    def _load(self, block: int, name: str) -> _BlockEvidence | None:
        """Stored evidence of a block, or None if its file is missing or damaged."""
        # The file has the states of all notions, then their log E after each night of the block,
        # where the bets, the last axis of a state, are mixed.
        shapes_of_logs = [(BLOCK, *shape[:-1]) for shape in self.shapes]
        shapes = [*self.shapes, *shapes_of_logs]
        sizes = [math.prod(shape) for shape in shapes]
        vector = load(self._place(block, name), sum(sizes))
        if vector is None:
            return None
        split = np.split(vector, np.cumsum(sizes)[:-1])
        parts = [part.reshape(shape) for part, shape in zip(split, shapes, strict=True)]
        notions = len(self.shapes)
        return _BlockEvidence(running=parts[:notions], logs=parts[notions:])

    def _block(self, block: int, nights: int, running: list[Floats]) -> _BlockEvidence:
        """Evidence of the first `nights` of a block, from the state before it."""
        # Σ log(g_y/q_y) of each night and bet, by notion.
        increments = [np.zeros((nights, *shape)) for shape in self.shapes]
        for entry in self._entries.get(block, ()):
            try:
                states = self.recipe.unpack(_SECTION, self.ledger.read(entry, _SECTION))
            except StoreError as error:
                self.damaged.append(str(error))
                continue
            night = _night(entry, self.first) - block * BLOCK
            refuted = impossible_labels(self.ledger, entry) is not None
            for wagers, gains, state in zip(self.recipe.wagers, increments, states, strict=True):
                gains[night] += wagers.gains(state)
                if refuted and wagers.refutable:
                    gains[night] = np.inf
        after = _BlockEvidence(running=[], logs=[])
        for wagers, before, gains in zip(self.recipe.wagers, running, increments, strict=True):
            log, state = advance(gains, before, block * BLOCK, wagers.weights)
            after.running.append(state)
            after.logs.append(log)
        return after


def learned_bets(ledger: Ledger, day: str, model: str, days: int) -> tuple[BettingEProcess, ...]:
    """Bets of a day, learned from the `days` before it in the ledger."""
    recipe = ledger.recipe
    until = date.fromisoformat(day[:10])  # the date of a day or of a part of it
    first = (until - timedelta(days)).isoformat()
    last = (until - timedelta(1)).isoformat()
    groups: list[GroupKey | None] = [*ledger.groups(model)]
    if recipe.group_by is None:  # with groups there is no process of all rows
        groups.insert(0, None)
    # By notion: pairs of a group and the parameters of its learned bets.
    learned: list[list[tuple[Any, tuple[float, ...]]]] = [[] for _ in recipe.wagers]
    for group in groups:
        sums: list[list[Floats]] = [[] for _ in recipe.wagers]  # by notion and day
        for entry in ledger.select(first, last, model, group):
            if _SECTION not in entry.sections:
                continue
            try:
                states = recipe.unpack(_SECTION, ledger.read(entry, _SECTION))
            except StoreError:  # reported by `evidence`, and bets do not need every day
                continue
            for of_days, state in zip(sums, states, strict=True):
                of_days.append(state.sums)
        for wagers, by_group, of_days in zip(recipe.wagers, learned, sums, strict=True):
            shifts = wagers.learned_from(of_days)
            if any(shifts):
                by_group.append((group, shifts))
    return tuple(
        replace(wagers, learned=tuple(by_group))
        for wagers, by_group in zip(recipe.wagers, learned, strict=True)
    )


# ---------------------------------------------------------------- Alarms


_NAME = "alarms.json"


class AlarmBook:
    """Alarms of a ledger, first days of the evidence of models, and places of their groups.

    The weights of groups follow from their places.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._path = ledger.path / _NAME
        self._data = b""
        try:
            self._data = self._path.read_bytes()
            book = unsealed(json.loads(self._data))
            self._starts: dict[str, str] = dict(book["starts"])
            self._raised: list[dict[str, Any]] = list(book["raised"])
            _check(self._starts, self._raised, book.get("groups", ()))
            self._places = {
                (str(table["model"]), table["since"]): {
                    _key(group): int(place) for group, place in table["places"]
                }
                for table in book.get("groups", ())
            }
        except FileNotFoundError:
            self._starts, self._raised, self._places = {}, [], {}
        except (OSError, OptionError, *DAMAGE) as error:
            reason = str(error) or type(error).__name__
            raise StoreError(
                f"{self._path}: the alarms raised so far cannot be read: {reason}. Restore "
                "the file, or delete it to forget past alarms"
            ) from error

    def start(self, model: str, first: str) -> str:
        """First day of the evidence of a model.  The first call sets it to `first`."""
        return self._starts.setdefault(model, first)

    def since(self, reached: bool, day: str, **process: Any) -> str | None:
        """Day on which a process raised an alarm, a recorded day or else `day` if reached."""
        for alarm in self._raised:
            if alarm == {**process, "day": alarm["day"]}:
                return str(alarm["day"])
        if not reached:
            return None
        self._raised.append({**process, "day": day})
        return day

    def places(
        self, model: str, since: str | None, first: Mapping[GroupKey, int]
    ) -> dict[GroupKey, int]:
        """Recorded places of groups, and the next free places for new groups.

        `first` has the first night of each group, by the days that are in the ledger now.
        """
        updated = places(self._places.get((model, since), {}), first)
        if updated:
            self._places[model, since] = updated
        return updated

    def save(self) -> None:
        """Write changes.  Call within `writing`."""
        groups = [
            {"model": model, "since": since, "places": [*map(list, by_group.items())]}
            for (model, since), by_group in self._places.items()
        ]
        book = {"starts": self._starts, "raised": self._raised, "groups": groups}
        data = json.dumps(sealed(book), indent=1).encode()
        if data != self._data:  # most nights raise no alarm, and leave the file as it is
            write_whole(self._path, data)


_KINDS: dict[str, Any] = {
    "model": str,
    "since": str | None,
    "level": float,
    "notion": str | None,
    "group": float | int | str | None,
    "day": str,
}


def _key(group: Any) -> GroupKey:
    return group if isinstance(group, str) else float(group)


def _check(starts: dict[str, str], raised: list[Any], groups: Any) -> None:
    """Raise an error that names an invalid alarm or first day of a model."""
    for model, day in starts.items():
        _check_day(day, f"the first day of {model}")
    for number, alarm in enumerate(raised, 1):
        where = f"alarm {number}"
        if not isinstance(alarm, dict) or alarm.keys() != _KINDS.keys():
            raise ValueError(f"{where} is {alarm!r}")
        for name, kind in _KINDS.items():
            if not isinstance(alarm[name], kind):
                raise ValueError(f"{where} has the {name} {alarm[name]!r}")
        _check_day(alarm["day"], where)
    for table in groups:
        if table["since"] is not None:
            _check_day(table["since"], f"the groups of {table['model']}")


def _check_day(day: Any, where: str) -> None:
    try:
        check_key(day)
    except OptionError as error:
        raise ValueError(f"{where}: {error}") from error
