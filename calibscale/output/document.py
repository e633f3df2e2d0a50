"""Elements of a document: sections of paragraphs, tables and figures, for text and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Attributes
    ----------
    text : str
    state : str
        ``breached``, ``fine``, ``faint``, ``strong`` or empty; the text also expresses the state.
    share : float or None
        Probability that determines the shade of the cell.
    """

    text: str
    state: str = ""
    share: float | None = None


@dataclass(frozen=True)
class TableColumn:
    """Header of a column; numbers are right-aligned, `optional` columns left out of narrow text."""

    title: str
    numbers: bool = True
    optional: bool = False


Row: TypeAlias = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """Table whose first column names the rows."""

    kind: ClassVar[str] = "table"
    caption: str
    head: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Plot with its caption and numbers.

    Attributes
    ----------
    draw : callable
        Function that draws on axes, passed as ``ax``.
    height : float
        Height of the plot in points.
    label : str
        Alternative text.
    title : str
        Heading above the plot.
    in_text : bool
        Whether the numbers are printed where there are no plots.
    """

    kind: ClassVar[str] = "figure"
    draw: Callable[..., Any]
    height: float
    label: str
    caption: str
    numbers: Table
    title: str = ""
    in_text: bool = False


@dataclass(frozen=True)
class Figures:
    """Plots side by side if there is room, under one legend."""

    kind: ClassVar[str] = "figures"
    items: tuple[Figure, ...]


@dataclass(frozen=True)
class Paragraph:
    """Paragraph of text."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Listing:
    """List of sentences, or of terms with their definitions."""

    kind: ClassVar[str] = "listing"
    items: tuple[str, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Facts:
    """Key numbers, as (name, number, remark)."""

    kind: ClassVar[str] = "facts"
    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Folded:
    """Blocks that are collapsed until the reader opens them."""

    kind: ClassVar[str] = "folded"
    summary: str
    blocks: tuple[Block, ...]


Block: TypeAlias = Table | Figures | Paragraph | Listing | Facts | Folded


@dataclass(frozen=True)
class Section:
    """Blocks under a title; those of `detail` are in reports only."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    detail: bool = False


@dataclass(frozen=True)
class Article:
    """Document of one result.

    Attributes
    ----------
    state : str
        ``fine``, ``breached``, ``alarm``, or empty if the result has no status.
    verdict : str
        Conclusion in one sentence.
    reasons : tuple of str
        Sentences that support the verdict.
    duration : str
        Computing time; empty if unknown.  It is not shown in pictures, which are reproducible.
    """

    title: str
    subtitle: str
    verdict: str
    state: str = ""
    reasons: tuple[str, ...] = ()
    sections: tuple[Section, ...] = field(default=())
    duration: str = ""

    @property
    def heading(self) -> str:
        """Subtitle and computing time."""
        return f"{self.subtitle}, {self.duration}" if self.duration else self.subtitle


def table(
    caption: str, head: Sequence[str | TableColumn], rows: Sequence[Row], note: str = ""
) -> Table:
    """Make a table of texts; by default the first column is text, the others are numbers."""
    columns = tuple(
        h if isinstance(h, TableColumn) else TableColumn(h, numbers=i > 0)
        for i, h in enumerate(head)
    )
    cells = tuple(
        tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows
    )
    return Table(caption, columns, cells, note)


def section(name: str, title: str, *blocks: Block | None, detail: bool = False) -> Section | None:
    """Make a section, or None if all blocks are None."""
    present = tuple(block for block in blocks if block is not None)
    return Section(name, title, present, detail) if present else None
