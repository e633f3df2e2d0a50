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
    """Numbers of a result, and the other facts that a judgement follows from.

    p-values are multiplied by the number of numbers (Bonferroni).  Numbers with a joint null count
    as a single number.  With groups, all rows and the groups have half of the level each.
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
        return [indication for indication in self.evidence if indication.group is None]

    @property
    def groups(self) -> list[Indication]:
        return [indication for indication in self.evidence if indication.group is not None]

    def looks(self, indication: Indication) -> int:
        """Number by which the p-value of a number is multiplied."""
        family = self.overall if indication.group is None else self.groups
        joint = any(member.joint for member in family)
        # Bonferroni over the numbers of the family, where a joint null counts once, and over the
        # families.
        units = sum(not member.joint for member in family) + joint
        families = bool(self.overall) + bool(self.groups)
        return units * families

    def adjusted(self, indication: Indication) -> float:
        """p-value adjusted for the other numbers."""
        return min(1.0, indication.p_value * self.looks(indication))

    def strongest_of(self, indications: Sequence[Indication]) -> Indication:
        """Indication with the smallest p-value, of which p-values by draws often have several."""
        return min(indications, key=lambda number: (self.adjusted(number), -number.surprise))

    def is_limited(self, indication: Indication) -> bool:
        """Whether more draws could give a smaller p-value, and this one is not small enough."""
        # p-values of joint tests are shares of the draws, with the least share 1/(draws + 1).
        least_of_joint = (
            indication.joint
            and self.least is not None
            and indication.p_value <= self.least * (1 + 1e-9)
        )
        limited = indication.least or least_of_joint
        return limited and self.adjusted(indication) > self.alpha

    @property
    def unexplained(self) -> list[Indication]:
        """Numbers that chance does not explain, though many were looked at."""
        return [number for number in self.evidence if self.adjusted(number) <= self.alpha]

    @property
    def directed(self) -> Indication | None:
        """Evidence of the gap, or of the coverage of forecasts."""
        return next((indication for indication in self.overall if indication.directed), None)
