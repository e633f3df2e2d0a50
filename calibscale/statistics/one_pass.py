"""One pass over a source, which computes the states of all statistics together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.data.derived_sources import TEST, Split
from calibscale.data.source import ArraySource
from calibscale.engine.execution import Execution
from calibscale.engine.schedulers import NoRoomError, roomy
from calibscale.errors import CalibscaleError, OptionError
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.results.levels import missing_last
from calibscale.statistics.parked_states import parked, resumed
from calibscale.statistics.statistic import Replicates, Statistic, bytes_of_rows

States = dict[Statistic, Any]
MAX_GROUPS = 1000  # each group has states of its own in memory


class PassResult(NamedTuple):
    """Row counts of a pass, and the state of each statistic by group (None: all rows).

    During the pass states are lists in the order of the statistics, so that statistics, which may
    contain large arrays, are not sent along.  `scan` returns `States`.
    """

    counts: RowCounts
    groups: dict[float | None, Any]
    group_counts: dict[float | None, int]


class MoreGroupsError(CalibscaleError):
    """Error of a pass over more groups than memory was planned for."""


@dataclass(frozen=True, eq=False)
class Scan:
    """Engine task of one pass.  Memory is planned for `groups` groups."""

    source: ArraySource
    statistics: tuple[Statistic, ...]
    rules: Rules
    block_rows: int
    blocks: int
    split: Split | None = None
    groups: int = 1
    # The tree is flat, because large states, such as states of replicates, take most memory while
    # they wait.  A run of a remote worker has 8 blocks.
    arities: ClassVar[tuple[int, ...]] = (8, 128)

    @cached_property
    def state_bytes(self) -> int:
        copies = self.groups if self.split is None else self.split.k + 1
        features = self.rules.target.n_features
        return sum(s.nbytes_of_groups(features, copies) for s in self.statistics)

    @property
    def block_bytes(self) -> int:
        # The block as stored and as decoded, and a chunk with its features: those of two maps, of a
        # third map that parts of the chunk still use, and those with weights.
        K, m = self.rules.target.n_features, self.rules.features
        rows = min(self.rules.compute_rows, self.block_rows)
        work = bytes_of_rows(K, rows) + 8 * rows * 4 * m + self.state_bytes
        if self.split is not None or self.rules.group is not None:
            work += bytes_of_rows(K, rows)  # the rows of a fold or group
        work += max((s.work_bytes(K, rows) for s in self.statistics), default=0)
        return 2 * self.source.row_bytes * self.block_rows + work

    def part(self, first: int, last: int) -> Scan:
        start = first * self.block_rows
        stop = min(last * self.block_rows, self.source.rows)
        split = None if self.split is None else self.split.part(start, stop)
        if not self.source.in_memory:  # the worker reads its rows from the store
            return replace(self, split=split, statistics=())
        source = self.source.part(start, stop, covariates=self.rules.reads_covariates)
        return replace(self, source=source, split=split, statistics=())

    @property
    def in_order(self) -> bool:
        return self.source.in_order

    @property
    def shared(self) -> tuple[Statistic, ...]:
        return self.statistics

    def joined(self, shared: tuple[Statistic, ...]) -> Scan:
        return replace(self, statistics=shared)

    def state(self, block: int) -> PassResult:
        start = block * self.block_rows - self.source.first_row
        stop = min(start + self.block_rows, self.source.rows)
        rows = self.source.read(start, stop, covariates=self.rules.reads_covariates)
        result = PassResult(RowCounts(), {}, {})
        for chunk, counts in chunks(rows, self.rules):
            result = self.add(result, chunk, counts)
        return result

    def add(self, result: PassResult, chunk: Chunk, counts: RowCounts) -> PassResult:
        """Result with the chunk's rows added, which shares its states."""
        for key, part in self._split(chunk):
            self._accumulate(result, key, part)
        return result._replace(counts=result.counts + counts)

    def merge(self, a: PassResult, b: PassResult) -> PassResult:
        for key, states in b.groups.items():
            if key in a.groups:
                merged = a.groups[key]
                for i, statistic in enumerate(self.statistics):
                    merged[i] = statistic.merge(merged[i], states[i])
            else:
                a.groups[key] = states
            a.group_counts[key] = a.group_counts.get(key, 0) + b.group_counts[key]
        self._check_groups(a)
        return a._replace(counts=a.counts + b.counts)

    def parked(self, result: PassResult) -> PassResult:
        """Result that needs less memory while it waits for its neighbour."""
        groups = {key: [parked(state) for state in states] for key, states in result.groups.items()}
        return result._replace(groups=groups)

    def resumed(self, result: PassResult) -> PassResult:
        """Result before it was parked."""
        groups = {
            key: [resumed(state) for state in states] for key, states in result.groups.items()
        }
        return result._replace(groups=groups)

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

    def _accumulate(self, result: PassResult, key: float | None, chunk: Chunk) -> None:
        if key not in result.groups:
            result.groups[key] = [s.zero(self.rules.target.n_features) for s in self.statistics]
            result.group_counts[key] = 0
            self._check_groups(result)
        states = result.groups[key]
        for i, statistic in enumerate(self.statistics):
            states[i] = statistic.accumulate(states[i], chunk)
        result.group_counts[key] += len(chunk)

    def _check_groups(self, result: PassResult) -> None:
        count = len(result.groups)
        if count > MAX_GROUPS:
            raise _too_many(count)
        if self.rules.group is not None and count > self.groups:  # caught by `_fold_groups`
            raise MoreGroupsError


def _too_many(count: int) -> OptionError:
    return OptionError(
        f"the group column has {count} or more values, above {MAX_GROUPS}; group by a column "
        "with few values, or cut it, such as age:5 or age:[18,30,65]"
    )


def scan_of(
    source: ArraySource,
    statistics: tuple[Statistic, ...],
    rules: Rules,
    block_rows: int | None = None,
    *,
    group_by: str | None = None,
    covariates: tuple[str, ...] = (),
    optional: str | None = None,
    split: Split | None = None,
) -> Scan:
    """Task of one pass, see `scan`."""
    # Statistics that keep arrays on a chunk come first, so that the others find these.
    statistics = tuple(sorted(statistics, key=lambda statistic: not statistic.keeps_arrays))
    drawn = [s for s in statistics if isinstance(s, Replicates)]
    rules = replace(
        rules,
        features=max((s.size(source.n_features) for s in statistics), default=0),
        group=None if group_by is None else source.covariate(group_by),
        covariates=tuple(source.covariate(name) for name in covariates),
        optional=None if optional is None else source.covariate(optional),
        large_chunks=any(s.large_chunks for s in statistics),
        replicates=max((s.draws for s in drawn), default=0),
        segment_rows=next((s.segment_rows for s in drawn if s.segment_rows), None),
    )
    size = block_rows or source.block_rows
    return Scan(source, statistics, rules, size, -(-source.rows // size), split)


def scan(task: Scan, execution: Execution) -> PassResult:
    """Read the source once and return the state of every statistic.

    With a group column there is a state for each of its values.  These states are merged into the
    state of all rows, in increasing order of the values, with missing values last.  The state of
    all rows exists even if no row is used.  With a split there is a state for each fold, and no
    state of all rows.  Chunks carry all covariates if a covariate must be finite or is optional.
    """
    grouped = task.rules.group is not None
    return finished(task, _fold_groups(task, execution) if grouped else execution.fold(task))


def finished(task: Scan, result: PassResult) -> PassResult:
    """Result of `scan` from the result of a fold.  States of the fold may be modified."""
    source = task.source
    statistics = task.statistics
    group = task.rules.group
    groups: dict[Any, States] = {
        key: dict(zip(statistics, states, strict=True)) for key, states in result.groups.items()
    }
    total: States = {s: s.zero(source.n_features) for s in statistics}
    if group is None:
        if task.split is None:
            groups.setdefault(None, total)
        return result._replace(groups=groups)
    name = source.covariate_names[group]
    levels = {source.level(name, key): states for key, states in groups.items()}
    groups = {level: levels[level] for level in sorted(levels, key=missing_last)}
    for states in groups.values():
        for statistic in statistics:
            total[statistic] = statistic.merge(total[statistic], states[statistic])
    counts = {key: result.group_counts[key] for key in groups}
    return PassResult(result.counts, {None: total, **groups}, {None: result.counts.used, **counts})


def _fold_groups(task: Scan, execution: Execution) -> PassResult:
    """Fold with memory for as many groups as fit, doubled while the data have more groups."""
    name = task.source.covariate_names[task.rules.group or 0]
    task = replace(task, groups=MAX_GROUPS)
    # The number of groups is unknown before the pass.  A pass that finds more groups than planned
    # stops, and is repeated with a plan for twice as many.
    while task.groups > 1 and not roomy(task, execution.scheduler, execution.memory_limit):
        task = replace(task, groups=task.groups // 2)
    while True:
        try:
            return execution.fold(task)
        except MoreGroupsError:
            task = replace(task, groups=2 * task.groups)
        except NoRoomError as error:
            if task.groups == 1:
                raise
            raise OptionError(f"{error}; this is for {task.groups} groups of {name}") from error
