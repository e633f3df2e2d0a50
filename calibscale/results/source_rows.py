"""Sources of results, and the numbers of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from calibscale.results.declarations import (
    Bounds,
    Computed,
    Count,
    Declared,
    Finite,
    Json,
    Later,
    Object,
    Omitted,
)

_PART = Object("PartOfSource", share=Finite, seed=Count, held=bool)
_SOURCE = Object(
    "Source",
    "Description of a source; `parts` and `recalibrated` say how its rows were derived.",
    name=str,
    kind=str,  # logits, probabilities, or a kind of outcomes, which other packages may add
    rows=Count,
    classes=Omitted[Annotated[int, Bounds(ge=2)]],
    binary=Omitted[bool],
    weighted=bool,
    parts=Omitted[list[_PART]],  # type: ignore[valid-type]
    recalibrated=Omitted[list[Json]],
    class_names=Omitted[list[str]],
    forecast=Omitted[Json],
    claim=Omitted[str],
    categories=Omitted[dict[str, list[str]]],
    event=Omitted[Json],
)
Source = Annotated[Json, _SOURCE]


@dataclass(frozen=True)
class ImpossibleRows(Declared):
    """Rows with a label or an outcome that has the predicted probability 0.

    Such a row refutes calibration, whatever the other rows are.

    Attributes
    ----------
    count, first_row : int
        Number of such rows, and number of the first of them in the source.
    decimals : int or None
        Number of decimals of all predicted probabilities, if it is 2 to 4: these seem rounded.
    """

    count: Count
    first_row: Count
    decimals: Later[Omitted[Count | None]] = None


def rounding_advice(decimals: int) -> str:
    """Sentence about probabilities of so few decimals that a probability of 0 may be rounded.

    >>> rounding_advice(4)
    'No predicted probability has more than 4 decimals, so that 0 may be a rounded probability ...'
    """
    largest = f"{0.5 * 10.0**-decimals:.{decimals + 1}f}"
    return (
        f"No predicted probability has more than {decimals} decimals, so that 0 may be a rounded "
        f"probability of at most {largest}: provide unrounded probabilities."
    )


@dataclass(frozen=True, kw_only=True)
class SourceRows(Declared):
    """Source of a result, and the numbers of its rows.

    Attributes
    ----------
    n, n_dropped, n_unlabelled : int
        Numbers of rows used (of positive weight), dropped as invalid (in `dropped` by column and
        fault, such as ``score is missing``), and not yet labelled.
    impossible : ImpossibleRows or None
        Rows with a label that has the predicted probability 0, or None if there are none.
    """

    source: Source
    n: Count
    n_unlabelled: Count
    dropped: dict[str, Count]
    impossible: Later[Omitted[ImpossibleRows | None]] = None

    @property
    def n_dropped(self) -> Computed[Count]:
        return sum(self.dropped.values())
