"""Reliability diagrams with the names that their plots, tables and captions share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibscale.formatting import terms
from calibscale.formatting.number_texts import number
from calibscale.results.declarations import Json
from calibscale.results.evaluation_results import (
    Diagram,
    GroupCurve,
    Reliability,
    ReliabilityBin,
    ReliabilityCurve,
)


@dataclass(frozen=True)
class DrawnDiagram:
    """Reliability curve with all that its diagram shows.

    Attributes
    ----------
    notion : str
        Notion that is judged.
    level : float
        Level of the intervals.
    curve : ReliabilityCurve
        Bins of the rows.
    class_name : str or int
        Name or number of the class whose probability is judged.
    response, order : str
        For functionals, names of the observed quantity and of the quantity on the other axis.
    of_means : bool
        For functionals, whether responses are numbers, and not events.
    """

    notion: str
    level: float
    curve: ReliabilityCurve
    class_name: str | int = 1
    response: str = ""
    order: str = ""
    of_means: bool = False

    @classmethod
    def of(cls, result: Reliability | Diagram, source: Json | None = None) -> DrawnDiagram:
        """Diagram of all rows of a result.  A `Diagram` comes with the source of its rows."""
        if isinstance(result, Diagram):
            return cls(result.notion, result.level, result.curve, _class_name(source or {}, 1))
        if "response" in result.parameters:
            return cls._of_responses(result, result.overall)
        return cls(
            result.notion,
            result.level,
            result.overall,
            # The notion `positive` judges class 1.
            _class_name(result.source, 1 if result.class_index is None else result.class_index),
        )

    @classmethod
    def of_group(cls, result: Reliability, group: GroupCurve) -> DrawnDiagram:
        """Diagram of one group of a result, or of one class if each class is judged."""
        if "response" in result.parameters:
            return cls._of_responses(result, group.curve)
        if judges_each_class(result):
            class_name = _class_name(result.source, int(group.value or 0))
        else:
            class_name = cls.of(result).class_name
        return cls(result.notion, result.level, group.curve, class_name)

    @classmethod
    def _of_responses(cls, result: Reliability, curve: ReliabilityCurve) -> DrawnDiagram:
        """Diagram of predictions of a functional."""
        words = result.parameters
        return cls(
            result.notion,
            result.level,
            curve,
            response=str(words["response"]),
            order=str(words["order"]),
            of_means=not words["is_share"],
        )

    @property
    def drawn(self) -> list[ReliabilityBin]:
        """Bins that have a point."""
        return [b for b in self.curve.filled if b.mean_p is not None]

    @property
    def of_levels(self) -> bool:
        """Whether the points are quantile levels of forecasts, above a PIT histogram."""
        return bool(self.curve.pit)

    @property
    def unit(self) -> str:
        """Name of the parts of the diagram: each point is a level or a bin."""
        return "level" if self.notion == "pit" else "bin"

    @property
    def outcome(self) -> str:
        """Name of the observed quantity."""
        if self.response:
            return self.response
        return terms.outcome(self.notion)

    @property
    def prediction(self) -> str:
        """Name of the predicted quantity."""
        if self.response:
            return self.order
        if self.notion == "pit":
            return "quantile level"
        if self.notion == "top_label":
            return "confidence"
        return f"predicted P(y = {self.class_name})"

    @property
    def ece(self) -> str:
        """ECE with its noise floor, or an empty text without an ECE."""
        if self.curve.ece is None:
            return ""
        name = {"pit": "quantile ECE", "prediction": "mean |bias| of bins"}.get(self.notion, "ECE")
        text = f"{name} {number(self.curve.ece, 3)}"
        floor = self.curve.floor
        if floor is None:
            return text
        within = "within noise" if self.curve.ece <= floor.high else "noise"
        high = f"{100 * floor.level:g} % {number(floor.high, 3)}"
        return f"{text}, {within} (mean {number(floor.mean, 3)}; {high})"


def judges_each_class(result: Reliability) -> bool:
    """Whether the groups of a result are the classes, each judged by its own probability."""
    return result.notion == "class_wise" and result.class_index is None


def _class_name(source: Json, number: int) -> str | int:
    """Name of a class of a source, or its number without names."""
    names: Sequence[str] = source.get("class_names") or ()
    return names[number] if names else number
