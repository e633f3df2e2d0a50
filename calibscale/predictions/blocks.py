"""Rows as read from a source, and the numbers of rows in a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Bools, Ints


class Block(NamedTuple):
    """Rows as read from a source, unchecked.

    `values` are (rows, K), or (rows,) if binary.  `faults` explain rows that were invalid before a
    derived source changed them, by row number.  `numbers` are the row numbers (rows,) if they are
    not those from `start` on.  `left_out` says of each row (rows,) whether it is outside of the
    part of a source: such rows need not be scored, and count as unlabelled.
    """

    start: int
    values: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[Any] | None
    covariates: NDArray[Any] | None
    name: str = "the source"
    faults: Mapping[int, str] = {}
    numbers: Ints | None = None
    left_out: Bools | None = None

    @property
    def rows(self) -> Ints:
        """Row numbers (rows,)."""
        if self.numbers is not None:
            return self.numbers
        return np.arange(self.start, self.start + len(self.labels))

    def take(self, index: NDArray[Any] | slice, start: int) -> Block:
        """Rows selected by `index`, numbered from `start` on unless they have numbers."""

        def of(column: Any) -> Any:
            return None if column is None else column[index]

        return self._replace(
            start=start,
            values=self.values[index],
            labels=self.labels[index],
            weights=of(self.weights),
            covariates=of(self.covariates),
            numbers=of(self.numbers),
            left_out=of(self.left_out),
        )

    def of_part(self) -> Block:
        """Rows that are not left out, with their numbers.

        If all are left out, the first of them remains, so that there is a row without a label.
        """
        if self.left_out is None:
            return self
        kept = np.flatnonzero(~self.left_out)
        numbered = self._replace(numbers=self.rows, left_out=None)
        return numbered.take(kept if len(kept) else slice(0, 1), self.start)


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
