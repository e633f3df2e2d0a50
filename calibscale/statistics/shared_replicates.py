"""A pass over few blocks, in which the replicates of a null are shared among several units of work.

Hundreds of replicates of ten thousand rows take seconds, but the rows are one block, and one thread
would compute them while all others wait.  Each unit of a `SharedReplicates` reads its block and
draws a part of the replicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from calibscale.engine.execution import Execution
from calibscale.statistics.one_pass import PassResult, Scan, finished, scan
from calibscale.statistics.recombined_draws import RecombinedReplicates
from calibscale.statistics.statistic import Replicates, Statistic, with_fields

_MOST_PARTS = 4  # parts of the replicates of a block; each part computes the features of the rows
_FEWEST_ROWS = 4096  # below, units of work cost more than they save
_FEWEST_REPLICATES = 16  # replicates of a part, which take longer than the features of the rows


def scan_in_parts(task: Scan, execution: Execution) -> PassResult:
    """Run `calibscale.statistics.one_pass.scan`, with parts of the replicates where it pays."""
    parts = parts_of(task)
    if parts == 1:
        return scan(task, execution)
    shared = SharedReplicates.of(task, parts)
    return finished(task, shared.joint_result(execution.fold(shared)))


def parts_of(task: Scan) -> int:
    """Number of parts in which a pass draws its replicates.

    The number does not depend on the workers, so that results do not.  The units of all blocks are
    children of one node of the merge tree, which then merges the states of each part as the pass
    without parts merges its states.
    """
    if task.split is not None or task.rules.group is not None or task.source.rows < _FEWEST_ROWS:
        return 1
    drawn = [len(s) for s in task.statistics if isinstance(s, Replicates)]
    most = max(drawn, default=0) // _FEWEST_REPLICATES
    return max(1, min(_MOST_PARTS, Scan.arities[0] // max(task.blocks, 1), most))


@dataclass(frozen=True, eq=False)
class SharedReplicates:
    """Engine task of a pass, whose unit u is the part u mod P of the block u // P.

    States are lists with a result of each part, or None for parts of other units.  `statistics` are
    the statistics of each part: the first part has all statistics that are not replicates.
    """

    scan: Scan
    statistics: tuple[tuple[Statistic, ...], ...]
    arities: ClassVar[tuple[int, ...]] = Scan.arities

    @classmethod
    def of(cls, task: Scan, parts: int) -> SharedReplicates:
        """Task of a pass whose replicates are shared among so many parts."""
        statistics: list[list[Statistic]] = [[] for _ in range(parts)]
        for statistic in task.statistics:
            if not isinstance(statistic, Replicates):
                statistics[0].append(statistic)
                continue
            for part, share in zip(statistics, _shares(statistic, parts), strict=True):
                part.append(share)
        return cls(task, tuple(map(tuple, statistics)))

    @property
    def scans(self) -> list[Scan]:
        """Pass of each part."""
        return [replace(self.scan, statistics=statistics) for statistics in self.statistics]

    @property
    def blocks(self) -> int:
        return self.scan.blocks * len(self.statistics)

    @property
    def block_bytes(self) -> int:
        return max(scan.block_bytes for scan in self.scans)

    @property
    def state_bytes(self) -> int:
        return max(scan.state_bytes for scan in self.scans)

    @property
    def in_order(self) -> bool:
        return self.scan.in_order

    def state(self, block: int) -> list[PassResult | None]:
        parts = len(self.statistics)
        results: list[PassResult | None] = [None] * parts
        results[block % parts] = self.scans[block % parts].state(block // parts)
        return results

    def merge(
        self, a: list[PassResult | None], b: list[PassResult | None]
    ) -> list[PassResult | None]:
        merged = []
        for part, first, second in zip(self.scans, a, b, strict=True):
            if first is None:
                merged.append(second)
            elif second is None:
                merged.append(first)
            else:
                merged.append(part.merge(first, second))
        return merged

    def part(self, first: int, last: int) -> SharedReplicates:
        parts = len(self.statistics)
        scan = self.scan.part(first // parts, -(-last // parts))
        return SharedReplicates(scan, ())

    @property
    def shared(self) -> tuple[tuple[Statistic, ...], ...]:
        return self.statistics

    def joined(self, shared: tuple[tuple[Statistic, ...], ...]) -> SharedReplicates:
        return replace(self, statistics=shared)

    def parked(self, results: list[PassResult | None]) -> list[PassResult | None]:
        return [r and part.parked(r) for part, r in zip(self.scans, results, strict=True)]

    def resumed(self, results: list[PassResult | None]) -> list[PassResult | None]:
        return [r and part.resumed(r) for part, r in zip(self.scans, results, strict=True)]

    def joint_result(self, results: Sequence[PassResult | None]) -> PassResult:
        """Result of the pass without parts, from the merged results of all parts."""
        complete = [r for r in results if r is not None]
        counted = complete[0]
        if None not in counted.groups:  # no row is used
            return counted
        states_of_parts = [
            dict(zip(statistics, result.groups[None], strict=True))
            for statistics, result in zip(self.statistics, complete, strict=True)
        ]
        joint = []
        for statistic in self.scan.statistics:
            if isinstance(statistic, Replicates):
                shares = _shares(statistic, len(self.statistics))
                drawn = [
                    states[share] for share, states in zip(shares, states_of_parts, strict=True)
                ]
                joint.append(_joined(statistic, drawn))
            else:
                joint.append(states_of_parts[0][statistic])
        return counted._replace(groups={None: joint})


def _joined(replicates: Replicates, drawn: list[Any]) -> Any:
    """Sums of all replicates from the sums of each part, see `_shares`."""
    if isinstance(replicates, RecombinedReplicates):
        return reduce(replicates.merge, drawn)
    return with_fields(drawn[0], map(np.concatenate, zip(*drawn, strict=True)))


def _shares(replicates: Replicates, parts: int) -> Sequence[Replicates]:
    """Replicates of each part.

    Recombined replicates have few draws, which all replicates need, so that each part has some of
    the segments of the rows.  Other parts have consecutive replicates, from an even number on, as
    random numbers are pairs.
    """
    if isinstance(replicates, RecombinedReplicates):
        return [replace(replicates, part=part, parts=parts) for part in range(parts)]
    half = len(replicates) / 2
    starts = [replicates.first + 2 * round(half * part / parts) for part in range(parts)]
    ends = [*starts[1:], replicates.last]
    return [
        replace(replicates, first=start, last=end) for start, end in zip(starts, ends, strict=True)
    ]
