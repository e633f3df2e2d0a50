"""Estimators that need sums over pairs of rows.

The sums themselves are in `pair_sums`, which most runs do not import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from calibscale.kernels.pair_sums import Pairs
    from calibscale.kernels.pair_tasks import PairSum, PairWork
    from calibscale.results.estimate import Estimate


@runtime_checkable
class Pairwise(Protocol):
    """Estimator that needs sums over pairs of rows, and has no states that merge.

    Evaluations, tests and rankings give it `Pairs` of the rows, and plans count its pairs.
    """

    def solve(self, pairs: Pairs) -> Estimate:
        """Estimate from sums over pairs of rows."""
        ...

    def pair_work(self, rows: int, classes: int) -> PairWork:
        """Pairs that `solve` visits."""
        ...


@runtime_checkable
class PairSummed(Pairwise, Protocol):
    """Estimator with a value that follows from one sum over all pairs.

    Tests compute it for replicates of the residuals, and intervals without each row.
    """

    @property
    def pair_sum(self) -> PairSum:
        """Sum over pairs of `from_sums`."""
        ...

    def from_sums(self, all_pairs: float, diagonal: Any, state: Any) -> float:
        """Value from the sums over all pairs (i, j) and over the pairs (i, i)."""
        ...

    def undefined(self, state: Any) -> str | None:
        """Reason why a state has too few rows for `from_sums`, or None if it has enough."""
        ...

    @property
    def sum_scaled(self) -> bool:
        """Whether the sum is divided by n(n−1) or n², not by a sum of kernels."""
        ...

    @property
    def rows_left_out(self) -> bool:
        """Whether `from_sums` gives the value without each row."""
        ...
