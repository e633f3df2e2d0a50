"""Rows as read from a source, and the numbers of rows in a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from calibscale.array_types import Ints


class Block(NamedTuple):
    """Rows as read from a source, unchecked.

    `values` are (rows, K), or (rows,) if binary.  `faults` explain rows that were invalid before a
    derived source changed them, by row number.
    """

    start: int
    values: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[Any] | None
    covariates: NDArray[Any] | None
    name: str = "the source"
    faults: Mapping[int, str] = {}

    def take(self, index: NDArray[Any] | slice, start: int) -> Block:
        """Rows selected by `index`, numbered from `start` on."""
        columns: list[Any] = [None if c is None else c[index] for c in self[1:5]]
        return Block._make([start, *columns, self.name, self.faults])


class RowCounts(NamedTuple):
    """Numbers of rows in a pass: used, not yet labelled, and dropped by column and fault.

    `impossible` is the number of used rows with a label or outcome of predicted probability 0,
    and `first_impossible` the row number of the first such row.  Rows of weight 0 are not counted.
    `decimals` is the number of decimals of the predicted probabilities, see `decimals_of`.
    """

    used: int = 0
    unlabelled: int = 0
    dropped: dict[str, int] = {}  # noqa: RUF012  (never mutated)
    impossible: int = 0
    first_impossible: int | None = None
    decimals: int = 0

    def __add__(self, later: RowCounts) -> RowCounts:  # type: ignore[override]
        # Sorted, so that results do not depend on the order in which faults occur.
        dropped = dict(sorted((Counter(self.dropped) + Counter(later.dropped)).items()))
        rows = [c.first_impossible for c in (self, later) if c.first_impossible is not None]
        return RowCounts(
            self.used + later.used,
            self.unlabelled + later.unlabelled,
            dropped,
            self.impossible + later.impossible,
            min(rows, default=None),
            max(self.decimals, later.decimals),
        )

    def with_impossible(self, rows: Ints, decimals: int) -> RowCounts:
        """Counts of a chunk with the numbers of the rows with a label of probability 0."""
        counts = self._replace(decimals=decimals)
        if not len(rows):
            return counts
        return counts._replace(impossible=len(rows), first_impossible=int(rows[0]))
