"""Documents of results as text: tables that fit the width of a terminal."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from calibscale.formatting import plural
from calibscale.output.document import (
    Article,
    Block,
    Facts,
    Figures,
    Folded,
    Listing,
    Paragraph,
    Table,
)
from calibscale.output.documents import document
from calibscale.output.text.tables import SafeConsole, show, terminal, width_of

_MAX_ROWS = 100  # of a table; the JSON output has all rows
_COLOURS = {
    "breached": "bold red", "alarm": "bold red", "fine": "bold green", "faint": "yellow",
    "strong": "bold",
}  # fmt: skip
_TYPOGRAPHY = str.maketrans({"\u00a0": " ", "−": "-"})  # numbers that can be copied


def as_text(result: Any) -> str:
    """Return the document of a result as text without colours, as `print` shows it."""
    out = StringIO()
    print_result(
        result, console=SafeConsole(file=out, color_system=None, highlight=False,
                                  force_jupyter=False),
    )  # fmt: skip
    return out.getvalue().rstrip("\n")


def print_result(
    result: Any, max_groups: int | None = None, console: Console | None = None
) -> None:
    """Print the document of a result, with at most `max_groups` groups and regions."""
    print_article(document(result), console or terminal(), max_groups)


def print_article(article: Article, console: Console, max_groups: int | None = None) -> None:
    """Print a document, without plots and the sections that only reports have."""
    _print(console, f"{article.title}: {article.heading}", "bold")
    _print(console, f"{article.verdict}.", _COLOURS.get(article.state, "bold"))
    for reason in article.reasons:
        _print(console, reason)
    sections = [
        (section, blocks) for section in article.sections
        if not section.detail and (blocks := [b for b in section.blocks if _printed(b)])
    ]  # fmt: skip
    for i, (section, blocks) in enumerate(sections):
        console.print()
        if i:
            _print(console, section.title, "bold underline")
        limit = max_groups if section.name in ("groups", "curves") else None
        for block in blocks:
            _print_block(console, block, limit)


def _printed(block: Block) -> bool:
    if isinstance(block, Figures):
        return any(figure.in_text for figure in block.items)
    return not isinstance(block, Folded)


def _print_block(console: Console, block: Block, max_rows: int | None) -> None:
    if isinstance(block, Table):
        _print_table(console, block, max_rows)
    elif isinstance(block, Figures):
        for figure in block.items:
            if figure.in_text:
                _print_table(console, figure.numbers, max_rows)
    elif isinstance(block, Paragraph):
        _print(console, block.text)
    elif isinstance(block, Listing):
        for item in block.items:
            _print(console, item, "dim")
    elif isinstance(block, Facts):
        for name, value, remark in block.items:
            _print(console, f"{name}: {value}{' (' * bool(remark)}{remark}{')' * bool(remark)}")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text.replace("\u00a0", " "), style=style))


def _print_table(console: Console, table: Table, max_rows: int | None) -> None:
    """Print a table; its optional columns only if they fit."""
    shown = table.rows[: _MAX_ROWS if max_rows is None else max_rows]
    kept = [
        k for k, column in enumerate(table.head)
        if k == 0 or any(row[k].text not in ("", "–") for row in shown)
    ]  # fmt: skip
    widths = {
        k: max(cell_len(text) for text in (table.head[k].title, *(row[k].text for row in shown)))
        for k in kept
    }
    while width_of(widths[k] for k in kept) > console.width:
        optional = [k for k in kept if table.head[k].optional]
        if not optional:
            break
        kept.remove(optional[-1])
    rich = RichTable(box=None, pad_edge=False)
    for k in kept:
        column = table.head[k]
        rich.add_column(
            Text(column.title.translate(_TYPOGRAPHY)),
            justify="right" if column.numbers else "left",
            overflow="ellipsis" if column.numbers else "fold", no_wrap=column.numbers,
            style="dim" if column.optional else "",
        )  # fmt: skip
    for row in shown:
        rich.add_row(
            *(Text(row[k].text.translate(_TYPOGRAPHY), _COLOURS.get(row[k].state, ""))
              for k in kept)
        )  # fmt: skip
    show(console, rich, keys=1)
    if len(shown) < len(table.rows):
        more = plural(len(table.rows) - len(shown), "more row")
        _print(console, f"and {more}, in the JSON output", "dim")
    if table.note:
        _print(console, table.note, "dim")
