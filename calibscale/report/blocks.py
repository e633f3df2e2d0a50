"""What a report is built of: sections of sentences, tables and figures, as templates write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from calibscale.report.drawing import Picture


@dataclass(frozen=True)
class Cell:
    """Text of a table that stands out.

    Attributes
    ----------
    state : str
        ``breached``, ``fine``, ``faint`` or ``strong``; the words say the same as the colour.
    share : float or None
        A probability that shades the cell.
    """

    text: str
    state: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Column:
    """The head of a column; numbers stand on the right."""

    title: str
    numbers: bool = True


Row: TypeAlias = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """Rows under their heads; the first column names the row."""

    kind: ClassVar[str] = "table"
    caption: str
    head: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows in words, and its numbers.

    Attributes
    ----------
    label : str
        For those who do not see it.
    legend : tuple of (mark, text)
        Marks are classes of the style sheet.
    title : str
        Above the picture.
    """

    kind: ClassVar[str] = "figure"
    picture: Picture
    label: str
    caption: str
    numbers: Table
    legend: tuple[tuple[str, str], ...] = ()
    title: str = ""


@dataclass(frozen=True)
class Figures:
    """Pictures side by side where there is room, under one legend."""

    kind: ClassVar[str] = "figures"
    items: tuple[Figure, ...]

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Of all of them."""
        return tuple(dict.fromkeys(entry for item in self.items for entry in item.legend))


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    kind: ClassVar[str] = "words"
    text: str


@dataclass(frozen=True)
class Listing:
    """Sentences one below the other; with terms, a list of what they mean."""

    kind: ClassVar[str] = "listing"
    items: tuple[str, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Facts:
    """Key numbers: what, number, remark."""

    kind: ClassVar[str] = "facts"
    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Folded:
    """Blocks that are opened by those who want them."""

    kind: ClassVar[str] = "folded"
    summary: str
    blocks: tuple[Block, ...]


Block: TypeAlias = Table | Figures | Words | Listing | Facts | Folded


@dataclass(frozen=True)
class Section:
    """Blocks under a title."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Article:
    """The report of one result.

    Attributes
    ----------
    state : str
        ``fine``, ``breached``, ``alarm``, or empty where nothing is judged.
    verdict : str
        A sentence.
    reasons : tuple of str
        What it rests on.
    """

    title: str
    subtitle: str
    verdict: str
    state: str = ""
    reasons: tuple[str, ...] = ()
    sections: tuple[Section, ...] = field(default=())


def table(caption: str, head: Sequence[str | Column], rows: Sequence[Row], note: str = "") -> Table:
    """A table of texts; the first column is words, the others are numbers."""
    columns = tuple(
        h if isinstance(h, Column) else Column(h, numbers=i > 0) for i, h in enumerate(head)
    )
    cells = tuple(
        tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows
    )
    return Table(caption, columns, cells, note)


def section(name: str, title: str, *blocks: Block | None) -> Section | None:
    """A section, unless there is nothing in it."""
    found = tuple(block for block in blocks if block is not None)
    return Section(name, title, found) if found else None
