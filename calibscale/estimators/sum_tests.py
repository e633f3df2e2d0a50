"""Base class of test statistics that are functions of a few sums, and so are their replicates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from calibscale.array_types import Floats
from calibscale.estimators.base import TEST_STATISTIC, SimpleEstimator, bound_notion
from calibscale.results.estimate import Estimate


class Sums(NamedTuple):
    """Number of rows, the part that does not depend on labels, and the sums that do (…)."""

    rows: int
    fixed: Any
    drawn: Floats


class SumTest(SimpleEstimator):
    """Base class of test statistics of one state, with replicates that are computed at once."""

    testable: ClassVar[bool] = True
    by_default: ClassVar[bool] = False
    no_interval: ClassVar[str | None] = TEST_STATISTIC
    no_floor: ClassVar[str | None] = TEST_STATISTIC

    def finalize(self, *states: Any) -> Estimate:
        (state,) = states
        rows, fixed, sums = self.split(state)
        if reason := self.undefined(fixed):
            return Estimate(self.name, bound_notion(self), None, n=rows, reason=reason)
        value = float(self.sizes(fixed, sums[None])[0])
        return Estimate(
            self.name, bound_notion(self), value, n=rows, details=self.finding(fixed, sums)
        )

    def drawn_values(
        self, states: Sequence[Any], sums: Sequence[tuple[Any, ...] | None], count: int
    ) -> Iterable[float]:
        _, fixed, observed = self.split(states[0])
        assert sums[0] is not None
        drawn = sums[0][0]
        return self.sizes(fixed, drawn.reshape(len(drawn), *observed.shape)).tolist()

    @abstractmethod
    def split(self, state: Any) -> Sums:
        """Parts of a state."""

    @abstractmethod
    def undefined(self, fixed: Any) -> str | None:
        """Reason why the sums of a state have no value, or None if they have one."""

    @abstractmethod
    def sizes(self, fixed: Any, sums: Floats) -> Floats:
        """Value for each of B sets of sums (B, …)."""

    def finding(self, fixed: Any, sums: Floats) -> dict[str, Any]:
        """Description of the error by the sums, for the details of an estimate."""
        return {}
