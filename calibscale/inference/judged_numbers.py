"""The numbers that a judgement follows from, with their adjusted p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibscale.inference.evidence import Indication
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import Diagram
from calibscale.results.source_rows import ImpossibleRows


@dataclass(frozen=True, eq=False)
class JudgedNumbers:
    """Numbers of a result, and what else a judgement follows from.

    p-values are multiplied by the number of numbers (Bonferroni); those with a joint null count as
    one.  With groups, all rows and the groups have half of the level each.
    """

    evidence: Sequence[Indication]
    rows: int
    alpha: float
    negligible: float
    impossible: ImpossibleRows | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    diagram: Diagram | None = None
    estimates: Sequence[Estimate] = ()
    least: float | None = None  # smallest p-value of the joint tests
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """Number of numbers looked at."""
        return len(self.evidence)

    @property
    def overall(self) -> list[Indication]:
        return [one for one in self.evidence if one.group is None]

    @property
    def groups(self) -> list[Indication]:
        return [one for one in self.evidence if one.group is not None]

    def looks(self, one: Indication) -> int:
        """Number by which the p-value of a number is multiplied."""
        family = self.overall if one.group is None else self.groups
        joint = any(other.joint for other in family)
        units = sum(not other.joint for other in family) + joint
        both = bool(self.overall) and bool(self.groups)
        return units * (2 if both else 1)

    def adjusted(self, one: Indication) -> float:
        """p-value adjusted for the other numbers."""
        return min(1.0, one.p_value * self.looks(one))

    def strongest(self, one: Indication) -> tuple[float, float]:
        """Key that is smallest for the strongest evidence; p-values by draws are often equal."""
        return self.adjusted(one), -one.surprise

    def is_limited(self, one: Indication) -> bool:
        """Whether more draws could give a smaller p-value, and this one is not small enough."""
        of_joint = one.joint and self.least is not None and one.p_value <= self.least * (1 + 1e-9)
        return (one.least or of_joint) and self.adjusted(one) > self.alpha

    @property
    def found(self) -> list[Indication]:
        """Numbers that chance does not explain, though many were looked at."""
        return [one for one in self.evidence if self.adjusted(one) <= self.alpha]

    @property
    def directed(self) -> Indication | None:
        """Evidence of the gap, or of the coverage of forecasts."""
        return next((one for one in self.overall if one.directed), None)
