"""A pass over few blocks, in which the replicates of a null are shared among several units of work.

Hundreds of replicates of ten thousand rows take seconds, but the rows are one block, and one thread
would compute them while all others wait.  Each unit of a `SharedReplicates` reads its block and
draws a part of the replicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from calibscale.engine.execution import Execution
from calibscale.statistics.one_pass import PassResult, Scan, finished, scan
from calibscale.statistics.statistic import Replicates, Statistic

_MOST_PARTS = 4  # parts of the replicates of a block; each part computes the features of the rows
_FEWEST_ROWS = 4096  # below, units of work cost more than they save
_FEWEST_REPLICATES = 16  # replicates of a part, which take longer than the features of the rows


def scan_in_parts(task: Scan, execution: Execution) -> PassResult:
    """Run `calibscale.statistics.one_pass.scan`, with parts of the replicates where it pays."""
    parts = parts_of(task)
    if parts == 1:
        return scan(task, execution)
    shared = SharedReplicates.of(task, parts)
    return finished(task, shared.joint_result(task, execution.fold(shared)))


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

    States are lists with a result of each part, or None for parts of other units.
    """

    scans: tuple[Scan, ...]  # of the parts
    arities: ClassVar[tuple[int, ...]] = Scan.arities

    @classmethod
    def of(cls, task: Scan, parts: int) -> SharedReplicates:
        """Task of a pass whose replicates are shared among so many parts."""
        statistics: list[list[Statistic]] = [[] for _ in range(parts)]
        for statistic in task.statistics:
            shares = _shares(statistic, parts) if isinstance(statistic, Replicates) else [statistic]
            for part, share in zip(statistics, shares, strict=False):
                part.append(share)
        return cls(tuple(replace(task, statistics=tuple(part)) for part in statistics))

    @property
    def blocks(self) -> int:
        return self.scans[0].blocks * len(self.scans)

    @property
    def block_bytes(self) -> int:
        return max(scan.block_bytes for scan in self.scans)

    @property
    def state_bytes(self) -> int:
        return max(scan.state_bytes for scan in self.scans)

    @property
    def in_order(self) -> bool:
        return self.scans[0].in_order

    def state(self, block: int) -> list[PassResult | None]:
        results: list[PassResult | None] = [None] * len(self.scans)
        part = block % len(self.scans)
        results[part] = self.scans[part].state(block // len(self.scans))
        return results

    def merge(
        self, a: list[PassResult | None], b: list[PassResult | None]
    ) -> list[PassResult | None]:
        merged = []
        for task, first, second in zip(self.scans, a, b, strict=True):
            if first is None or second is None:
                merged.append(first or second)
            else:
                merged.append(task.merge(first, second))
        return merged

    def part(self, first: int, last: int) -> SharedReplicates:
        parts = len(self.scans)
        blocks = first // parts, -(-last // parts)
        return replace(self, scans=tuple(scan.part(*blocks) for scan in self.scans))

    @property
    def shared(self) -> list[tuple[Statistic, ...]]:
        return [scan.shared for scan in self.scans]

    def joined(self, shared: list[tuple[Statistic, ...]]) -> SharedReplicates:
        scans = (scan.joined(part) for scan, part in zip(self.scans, shared, strict=True))
        return replace(self, scans=tuple(scans))

    def parked(self, results: list[PassResult | None]) -> list[PassResult | None]:
        return [r and scan.parked(r) for scan, r in zip(self.scans, results, strict=True)]

    def resumed(self, results: list[PassResult | None]) -> list[PassResult | None]:
        return [r and scan.resumed(r) for scan, r in zip(self.scans, results, strict=True)]

    def joint_result(self, task: Scan, results: Sequence[PassResult | None]) -> PassResult:
        """Result of the pass without parts, from the merged results of all parts."""
        complete = [r for r in results if r is not None]
        counted = complete[0]
        if None not in counted.groups:  # no row is used
            return counted
        states_of_parts = [
            dict(zip(part.statistics, result.groups[None], strict=True))
            for part, result in zip(self.scans, complete, strict=True)
        ]
        joint = []
        for statistic in task.statistics:
            if isinstance(statistic, Replicates):
                shares = _shares(statistic, len(self.scans))
                drawn = [
                    states[share] for share, states in zip(shares, states_of_parts, strict=True)
                ]
                joint.append(tuple(np.concatenate(fields) for fields in zip(*drawn, strict=True)))
            else:
                joint.append(states_of_parts[0][statistic])
        return counted._replace(groups={None: joint})


def _shares(replicates: Replicates, parts: int) -> list[Replicates]:
    """Consecutive replicates of each part, from an even number on, as random numbers are pairs."""
    half = len(replicates) / 2
    starts = [replicates.first + 2 * round(half * part / parts) for part in range(parts)]
    ends = [*starts[1:], replicates.last]
    return [
        replace(replicates, first=start, last=end) for start, end in zip(starts, ends, strict=True)
    ]
