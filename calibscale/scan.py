"""One pass over a source: the states of many statistics, for all rows or group by group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from calibscale import engine
from calibscale.chunk import Chunk, RowCounts, Rules, chunks
from calibscale.errors import CalibscaleError, OptionError
from calibscale.source import ArraySource
from calibscale.splits import TEST, Split
from calibscale.statistics import Statistic

States = dict[Statistic, Any]

MAX_GROUPS = 1000


class Pass(NamedTuple):
    """What a pass found: row counts, and by group (None: all rows) the state of each statistic.

    On its way states are lists in the order of the statistics, which stay where they are: some
    hold much data.  `scan` returns `States`.
    """

    counts: RowCounts
    groups: dict[float | None, Any]
    group_counts: dict[float | None, int]


class MoreGroupsError(CalibscaleError):
    """A pass found more groups than memory was planned for."""


@dataclass(frozen=True, eq=False)
class Scan:
    """The task of one pass, as the engine runs it; memory is planned for so many groups."""

    source: ArraySource
    statistics: tuple[Statistic, ...]
    rules: Rules
    block_rows: int
    blocks: int
    split: Split | None = None
    groups: int = 1

    @property
    def state_bytes(self) -> int:
        copies = self.groups if self.split is None else self.split.k + 1
        return copies * self._zero_bytes

    @cached_property
    def _zero_bytes(self) -> int:
        zeros = [s.zero(self.rules.classes) for s in self.statistics]
        return sum(array.nbytes for state in zeros for array in state)

    @property
    def block_bytes(self) -> int:
        # as stored, decoded, and the chunk at work with its features
        K, m = self.rules.classes, self.rules.features
        rows = min(self.rules.compute_rows, self.block_rows)
        work = 8 * rows * (4 * K + 3 * m + 20) + self.state_bytes
        return 2 * self.source.row_bytes * self.block_rows + work

    def part(self, first: int, last: int) -> Scan:
        start = first * self.block_rows
        stop = min(last * self.block_rows, self.source.rows)
        split = None if self.split is None else self.split.part(start, stop)
        if not self.source.in_memory:
            return replace(self, split=split, statistics=())
        held = self.source.part(start, stop, covariates=self.rules.reads_covariates)
        return replace(self, source=held, split=split, statistics=())

    @property
    def shared(self) -> tuple[Statistic, ...]:
        return self.statistics

    def joined(self, shared: tuple[Statistic, ...]) -> Scan:
        return replace(self, statistics=shared)

    def state(self, block: int) -> Pass:
        start = block * self.block_rows - self.source.first_row
        stop = min(start + self.block_rows, self.source.rows)
        read = self.source.read(start, stop, covariates=self.rules.reads_covariates)
        found = Pass(RowCounts(), {}, {})
        for chunk, counts in chunks(read, self.rules):
            found = found._replace(counts=found.counts + counts)
            for key, part in self._split(chunk):
                self._accumulate(found, key, part)
        return found

    def merge(self, a: Pass, b: Pass) -> Pass:
        for key, states in b.groups.items():
            if key in a.groups:
                mine = a.groups[key]
                for i, statistic in enumerate(self.statistics):
                    mine[i] = statistic.merge(mine[i], states[i])
            else:
                a.groups[key] = states
            a.group_counts[key] = a.group_counts.get(key, 0) + b.group_counts[key]
        self._check_groups(a)
        return a._replace(counts=a.counts + b.counts)

    def _split(self, chunk: Chunk) -> list[tuple[float | None, Chunk]]:
        if self.split is not None:
            folds = self.split.of(chunk.rows)
            return [
                (float(k), replace(chunk.take(folds == k), fold=int(k)))
                for k in np.unique(folds)
                if k >= TEST
            ]
        if self.rules.group is None:
            return [(None, chunk)] if len(chunk) else []
        assert chunk.covariates is not None
        column = chunk.covariates[:, self.rules.group]
        keys, inverse = np.unique(column, return_inverse=True)
        if len(keys) > MAX_GROUPS:
            raise _too_many(len(keys))
        return [(float(key), chunk.take(inverse == g)) for g, key in enumerate(keys)]

    def _accumulate(self, found: Pass, key: float | None, chunk: Chunk) -> None:
        if key not in found.groups:
            found.groups[key] = [s.zero(self.rules.classes) for s in self.statistics]
            found.group_counts[key] = 0
            self._check_groups(found)
        states = found.groups[key]
        for i, statistic in enumerate(self.statistics):
            states[i] = statistic.accumulate(states[i], chunk)
        found.group_counts[key] += len(chunk)

    def _check_groups(self, found: Pass) -> None:
        count = len(found.groups)
        if count > MAX_GROUPS:
            raise _too_many(count)
        if self.rules.group is not None and count > self.groups:
            raise MoreGroupsError


def _too_many(count: int) -> OptionError:
    return OptionError(
        f"the group column has {count} or more values, above {MAX_GROUPS}; group by a column "
        "with few values"
    )


def scan(
    source: ArraySource,
    statistics: tuple[Statistic, ...],
    *,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    group_by: str | None = None,
    covariates: tuple[str, ...] = (),
    split: Split | None = None,
    block_rows: int | None = None,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> Pass:
    """Read the source once and return the state of every statistic.

    With `group_by`, states are kept by value of that covariate and merged into the state of all
    rows, in increasing order of the values.  With `split`, they are kept by fold and not merged.
    Chunks carry all covariates if some are named: in `covariates`, those that must be finite.
    """
    if on_invalid not in ("raise", "drop"):
        raise OptionError(f"on_invalid must be 'raise' or 'drop', not {on_invalid!r}")
    if not 0 <= tolerance < 1:
        raise OptionError(f"tolerance must be in [0, 1), not {tolerance}")
    if block_rows is not None and block_rows < 1:
        raise OptionError(f"block_rows must be at least 1, not {block_rows}")
    rules = Rules(
        kind=source.kind,
        classes=source.classes,
        chunk_rows=max(source.chunk_rows, 1),
        features=max((s.size(source.classes) for s in statistics), default=0),
        tolerance=tolerance,
        on_invalid=on_invalid,
        group=None if group_by is None else source.covariate(group_by),
        covariates=tuple(source.covariate(name) for name in covariates),
        large_chunks=any(s.large_chunks for s in statistics),
    )
    size = block_rows or source.block_rows
    task = Scan(source, statistics, rules, size, -(-source.rows // size), split)
    if group_by is None:
        found = engine.fold(task, scheduler, memory_limit, progress)
    else:
        found = _fold_groups(task, group_by, scheduler, memory_limit, progress)
    groups = {
        key: dict(zip(statistics, states, strict=True)) for key, states in found.groups.items()
    }
    if group_by is None:  # or by fold
        return found._replace(groups=groups)
    groups = {source.level(group_by, key): groups[key] for key in sorted(groups)}
    total: States = {s: s.zero(source.classes) for s in statistics}
    for states in groups.values():
        for statistic in statistics:
            total[statistic] = statistic.merge(total[statistic], states[statistic])
    counts = {key: found.group_counts[key] for key in groups}
    return Pass(found.counts, {None: total, **groups}, {None: found.counts.used, **counts})


def _fold_groups(
    task: Scan, group_by: str, scheduler: Any, memory_limit: Any, progress: engine.Progress | None
) -> Pass:
    """Fold with memory for as many groups as all workers can hold, or for as many as there are."""
    task = replace(task, groups=MAX_GROUPS)
    while task.groups > 1 and not engine.roomy(task, scheduler, memory_limit):
        task = replace(task, groups=task.groups // 2)
    while True:
        try:
            return engine.fold(task, scheduler, memory_limit, progress)
        except MoreGroupsError:
            task = replace(task, groups=2 * task.groups)
        except engine.NoRoomError as error:
            if task.groups == 1:
                raise
            raise OptionError(f"{error}; this is for {task.groups} groups of {group_by}") from error
