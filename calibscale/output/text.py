"""Documents and tables as text that fits the width of a terminal."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape as markup
from rich.segment import Segment
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from calibscale.estimators.known_estimators import short_summary
from calibscale.formatting.escapes import one_line, printable
from calibscale.formatting.fault_texts import dropped_text
from calibscale.formatting.number_texts import plural, rounded, seconds, signed, size, unbroken
from calibscale.formatting.terms import plain
from calibscale.output.documents import elements as doc
from calibscale.output.documents.articles import document
from calibscale.results.declarations import Json

if TYPE_CHECKING:
    from calibscale.results.estimate import Estimate
    from calibscale.results.evaluation_results import ClusterCost, Evaluation, Plan
    from calibscale.results.night_results import LedgerDay

_NAME = 12  # minimum width of a column of names before they wrap, halved if there is no room
BETWEEN = 2  # spaces between columns
_UNBROKEN = 10_000  # line width of files and pipes
_MAX_ROWS = 100  # of a table, while the JSON output has all rows
_COLOURS = {
    "breached": "bold red",
    "alarm": "bold red",
    "refuted": "bold red",
    "miscalibrated": "bold red",
    "incomplete": "bold yellow",
    "small": "bold yellow",
    "unclear": "bold yellow",
    "few_rows": "bold yellow",
    "fine": "bold green",
    "within_chance": "bold green",
    "faint": "yellow",
    "strong": "bold",
}
_SPAN = re.compile(r"(?<=\d) … (?=[\d−])")  # of an interval


# ---------------------------------------------------------------- documents


def as_text(result: Any, max_lines: int | None = None) -> str:
    """Return the document of a result as text without colours, as commands print it.

    After `max_lines` lines, if given, a line states how much is left.  `print` shows 24 lines.

    Examples
    --------
    >>> from calibscale import from_arrays, as_text, evaluate
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> "accuracy" in as_text(evaluate(source, "accuracy"))
    True
    """
    out = StringIO()
    print_result(
        result,
        console=SafeConsole(file=out, color_system=None, highlight=False, force_jupyter=False),
    )
    lines = out.getvalue().rstrip("\n").split("\n")
    if max_lines is not None and len(lines) > max_lines + 1:
        more = f"… {len(lines) - max_lines:,} more lines: calibscale.as_text(result)"
        lines[max_lines:] = [more]
    return "\n".join(lines)


def print_result(
    result: Any, max_groups: int | None = None, console: Console | None = None
) -> None:
    """Print the document of a result, with at most `max_groups` groups and regions."""
    print_article(document(result), console or terminal(), max_groups)


def print_article(article: doc.Article, console: Console, max_groups: int | None = None) -> None:
    """Print a document, without plots and the sections that only reports have."""
    _print(console, f"{article.title}: {article.heading}", "bold")
    _print(console, f"{article.verdict}.", _COLOURS.get(article.state, "bold"))
    for reason in article.reasons:
        _print(console, reason)
    sections = [
        (section, blocks)
        for section in article.sections
        if not section.detail and (blocks := [b for b in section.blocks if _printed(b)])
    ]
    for i, (section, blocks) in enumerate(sections):
        console.print()
        if i:
            _print(console, section.title, "bold underline")
        # A result may have thousands of groups.  Its other tables are short.
        limit = max_groups if section.name in ("groups", "curves") else None
        for k, block in enumerate(blocks):
            if k and isinstance(block, doc.Table):
                console.print()
            _print_block(console, block, limit)


def _printed(block: doc.Block) -> bool:
    if isinstance(block, doc.Figures):
        return any(figure.in_text for figure in block.items)
    return not isinstance(block, doc.Folded)


def _print_block(console: Console, block: doc.Block, max_rows: int | None) -> None:
    if isinstance(block, doc.Table):
        _print_table(console, block, max_rows)
    elif isinstance(block, doc.Figures):
        for figure in block.items:
            if figure.in_text:
                _print_table(console, figure.numbers, max_rows)
    elif isinstance(block, doc.Paragraph):
        _print(console, block.text)
    elif isinstance(block, doc.Listing):
        for item in block.items:
            _print(console, item, "dim")
    elif isinstance(block, doc.Facts):
        for name, value, remark in block.items:
            line = f"{name}: {value} ({remark})" if remark else f"{name}: {value}"
            _print(console, line)


def _print(console: Console, text: str, style: str = "") -> None:
    """Print text without line breaks between a number and its unit."""
    bound = unbroken(text)
    lines = textwrap.wrap(bound, console.width, break_on_hyphens=False)
    if any(cell_len(line) > console.width for line in lines):  # wide letters
        lines = [bound]
    console.print(Text("\n".join(lines).replace("\u00a0", " "), style=style))


def _print_table(console: Console, table: doc.Table, max_rows: int | None) -> None:
    """Print a table, with its optional columns only if they fit."""
    shown = table.rows[: _MAX_ROWS if max_rows is None else max_rows]
    # A column without any value is left out, except the names of the rows.
    shown_columns = [
        k
        for k, column in enumerate(table.head)
        if k == 0 or any(row[k].text not in ("", "–") for row in shown)
    ]
    cells = [[cell.text.replace("\u00a0", " ") for cell in row] for row in shown]
    widths = {
        k: max(map(cell_len, (*table.head[k].title.split(" "), *(row[k] for row in cells))))
        for k in shown_columns
    }
    while width_of(widths[k] for k in shown_columns) > console.width:
        # Columns are dropped from the right, until the table fits or none is optional.
        optional = [k for k in shown_columns if table.head[k].optional]
        if not optional:
            # Without spaces, intervals may still fit.
            cells = [[_SPAN.sub("…", text) for text in row] for row in cells]
            break
        shown_columns.remove(optional[-1])
    rich = RichTable(box=None, pad_edge=False)
    for k in shown_columns:
        column = table.head[k]
        rich.add_column(
            Text(column.title.replace("\u00a0", " ")),
            justify="right" if column.numbers else "left",
            overflow="ellipsis" if column.numbers else "fold",
            no_wrap=column.numbers,
            style="dim" if column.optional else "",
        )
    for row, texts in zip(shown, cells, strict=True):
        rich.add_row(*(Text(texts[k], _COLOURS.get(row[k].state, "")) for k in shown_columns))
    show(
        console,
        rich,
        keys=_key_columns([table.head[k] for k in shown_columns], shown, shown_columns),
    )
    if len(shown) < len(table.rows):
        # A table of a terminal ends here, so that nothing is cut silently.
        more = plural(len(table.rows) - len(shown), "more row")
        _print(console, f"and {more}, in the JSON output", "dim")
    for line in replace(table, head=tuple(table.head[k] for k in shown_columns)).legend:
        _print(console, line, "dim")


def _key_columns(
    head: Sequence[doc.TableColumn], rows: Sequence[Sequence[doc.Cell]], positions: Sequence[int]
) -> int:
    """Number of the first columns of texts that tell rows apart, such as estimator and window."""
    count = 1
    # Columns of texts are added until no two rows have equal keys.
    while count < len(head) and not head[count].numbers:
        if len({tuple(row[k].text for k in positions[:count]) for row in rows}) == len(rows):
            break
        count += 1
    return count


# ---------------------------------------------------------------- tables


class SafeConsole(Console):
    """Console that escapes control and direction characters in everything it prints."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # Names come from files: control characters could move the cursor or hide text.
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def terminal() -> Console:
    """Console on standard output.  Lines wrap in files and pipes only if COLUMNS is set."""
    console = SafeConsole(highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Programs read lines of files and pipes, which must not depend on a terminal.
        console.width = _UNBROKEN
    return console


def escape(text: str) -> str:
    """Escape a name for markup, early enough that columns are as wide as the escaped text."""
    return markup(one_line(text))


def number(value: float | None) -> str:
    """Format a value with five digits, or as a dash if it is missing."""
    return "–" if value is None else rounded(value, 5)


def grid(*texts: str, numbers: Iterable[str] = (), **style: Any) -> RichTable:
    """Table without borders, with columns of texts and then of numbers.  The last text wraps."""
    table = RichTable(box=None, pad_edge=False, **style)
    for k, name in enumerate(texts):
        last = 0 < k == len(texts) - 1
        table.add_column(name, overflow="fold" if last else "ellipsis", no_wrap=not last)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def show(console: Console, table: RichTable, keys: int = 1) -> None:
    """Print a table.  If it is too wide, each of its parts repeats the first `keys` columns.

    Numbers are never truncated.  Only columns with ``overflow="fold"`` are narrowed, to `_NAME`.
    """
    all_columns = list(range(len(table.columns)))
    if width_of(_min_width(console, column) for column in table.columns) <= console.width:
        console.print(_folded(console, table, all_columns))
        return
    widths = [_min_width(console, column, narrow=True) for column in table.columns]
    parts = _parts(widths, keys, console.width)
    # Names are made as wide as possible without more parts.
    longest = [_longest(console, column) for column in table.columns]
    for most in range(max(longest), min(widths), -1):
        roomy = [
            max(width, min(most, long)) if column.overflow == "fold" else width
            for width, long, column in zip(widths, longest, table.columns, strict=True)
        ]
        wide = _parts(roomy, keys, console.width)
        if len(wide) == len(parts):
            parts = wide
            break
    for k, part in enumerate(parts):
        if k:
            console.print()
        console.print(_folded(console, table, part, widths), crop=False)


def _parts(widths: Sequence[int], keys: int, width: int) -> list[list[int]]:
    """Columns of each part of a table.  Each part repeats the first `keys` columns."""
    parts = [list(range(keys))]
    for i in range(keys, len(widths)):
        if len(parts[-1]) > keys and width_of(widths[k] for k in [*parts[-1], i]) > width:
            parts.append(list(range(keys)))
        parts[-1].append(i)
    return parts


def _folded(
    console: Console, table: RichTable, chosen: Sequence[int], widths: Sequence[int] | None = None
) -> RichTable:
    """Copy of the chosen columns, with wrapped names that break after a separator, not in a word.

    With `widths`, the copy is wider than the console only if its columns need it.
    """
    old = [table.columns[i] for i in chosen]
    columns = [column.copy() for column in old]
    names = [k for k, column in enumerate(old) if column.overflow == "fold"]
    width = None
    if widths is not None:
        for k, (i, column) in enumerate(zip(chosen, columns, strict=True)):
            # Numbers keep their width, which would otherwise be shared with the names.
            column.width = None if k in names else widths[i]
            column.overflow, column.no_wrap = "fold", False
        least = [
            column.width or min(widths[i], _NAME // 2)
            for i, column in zip(chosen, columns, strict=True)
        ]
        width = width_of(least) if width_of(least) > console.width else None
    room = (width or console.width) - width_of(
        0 if k in names else column.width or _min_width(console, old[k])
        for k, column in enumerate(columns)
    )
    # Short columns come first.  The others share the width that remains.
    longest = [_longest(console, column) for column in old]
    for n, k in enumerate(sorted(names, key=longest.__getitem__)):
        columns[k].width = share = min(longest[k], max(1, room // (len(names) - n)))
        room -= share
    folded = RichTable(
        *columns,
        box=None,
        pad_edge=False,
        show_header=table.show_header,
        header_style=table.header_style,
        width=width or table.width,
    )
    cells = [
        [_broken(console, cell, columns[k].width or 1) if k in names else cell for cell in c.cells]
        for k, c in enumerate(old)
    ]
    for row, texts in zip(table.rows, zip(*cells, strict=True), strict=True):
        folded.add_row(*texts, style=row.style)
    return folded


def _longest(console: Console, column: Column) -> int:
    cells = (_text(console, cell) for cell in (column.header, *column.cells))
    return max(cell_len(line) for cell in cells for line in cell.plain.split("\n"))


def _text(console: Console, cell: Any) -> Text:
    return cell if isinstance(cell, Text) else console.render_str(str(cell))


_SEPARATED = re.compile(r"(?<=[-_/:=])|(?<=[.,])(?!\d)")  # a number is not broken


def _broken(console: Console, cell: Any, width: int) -> Any:
    text = _text(console, cell)
    lines: list[str] = []
    for line in text.plain.split("\n"):
        lines.append("")
        for word in re.split(r"(?<= )", line):
            # A word that fits a line stays whole.
            pieces = [word] if cell_len(word.rstrip()) <= width else _SEPARATED.split(word)
            for piece in pieces:
                if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
                    lines.append("")
                lines[-1] += piece
    return cell if len(lines) == 1 else Text("\n".join(map(str.rstrip, lines)), style=text.style)


def width_of(columns: Iterable[int]) -> int:
    return sum(width + BETWEEN for width in columns) - BETWEEN


def _min_width(console: Console, column: Column, narrow: bool = False) -> int:
    """Minimum width of a column.  If `narrow`, its header wraps after every word."""
    head, *cells = (_text(console, cell) for cell in (column.header, *column.cells))
    width = max(text.cell_len for text in (*(head.split(" ") if narrow else [head]), *cells))
    return min(width, _NAME) if column.overflow == "fold" else width


def left_out(unlabelled: int, dropped: dict[str, int]) -> Iterator[Text]:
    """Lines about rows without labels and dropped rows."""
    if unlabelled:
        verb = "was" if unlabelled == 1 else "were"
        yield Text(f"{plural(unlabelled, 'row')} without a label yet {verb} left out")
    if dropped:
        yield Text(dropped_text(dropped), style="yellow")


def info_table(info: Json) -> None:
    """Print a JSON object as a table of two columns."""
    table = grid("", "", show_header=False)
    for key, value in info.items():
        lines = [f"{k}: {plain(v)}" for k, v in value.items()] if isinstance(value, dict) else []
        short = f"{value:,}" if type(value) is int else plain(value)
        text = "\n".join(map(escape, lines or [short]))
        table.add_row(Text(key.replace("_", " "), "bold"), text)
    show(terminal(), table)


def days_table(days: Sequence[LedgerDay]) -> None:
    """Print the days of a ledger."""
    counts = ("rows", "without a label", "left out")
    table = grid("day", "model", numbers=counts, header_style="bold")
    for d in days:
        cells = (f"{n:,}" for n in (d.n, d.n_unlabelled, d.n_dropped))
        table.add_row(d.day, escape(d.model), *cells)
    show(terminal(), table, keys=2)


def plan_table(plan: Plan) -> None:
    """Print the cost of a run."""
    console = terminal()
    source = plan.source
    like = "" if plan.rows == source["rows"] else "a store like "
    unit = "core" if plan.cluster is None else "worker"
    head = f"{like}{source['name']}: {doc.rows_of(plan.rows, source)}, {plural(plan.workers, unit)}"
    if not plan.parallel:  # else a table has the times of more than the work below
        head += f": about {seconds(plan.seconds)}"
    _print(console, head, "bold")
    table = grid("work", "method", numbers=("pairs", "time", "memory", "read"))
    for cost in plan.costs:
        pairs = f"{cost.pairs:.3g}" if cost.pairs else ""
        amounts = (seconds(cost.seconds), size(cost.memory), size(cost.bytes_read))
        table.add_row(cost.work, cost.method, pairs, *amounts)
    show(console, table)
    for name, reason in plan.left_out.items():
        _print(console, f"There would be no value of {name}: {reason}.")
    if plan.cluster is not None:
        _cluster_table(console, plan.cluster)
    if plan.parallel:
        _times_table(console, plan)
    for remark in plan.remarks:
        _print(console, remark)


def _times_table(console: Console, plan: Plan) -> None:
    """Print the expected times with several workers, and what limits them."""
    times = plan.parallel
    table = grid("expected time", numbers=[time.name for time in times])
    for step in times[0].steps.by_name():
        amounts = [time.steps.by_name()[step] for time in times]
        if any(amounts):
            table.add_row(step, *map(seconds, amounts))
    table.add_row("total", *(seconds(time.seconds) for time in times))
    table.add_row("speed-up", *(f"{times[0].seconds / time.seconds:.2g}" for time in times))
    console.print()
    show(console, table)
    console.print()
    for time in times:
        _print(console, time.sentence)


def _cluster_table(console: Console, cost: ClusterCost) -> None:
    table = grid("quantity", numbers=("amount",), show_header=False)
    rows = [
        ("blocks", f"{cost.blocks:,}"),
        ("tasks", f"{cost.tasks:,}"),
        ("merge levels", str(cost.merge_depth)),
        ("sent per task of the pass", size(cost.task_bytes)),
        ("returned per task of the pass", size(cost.state_bytes)),
        ("total transfer", size(cost.bytes_moved)),
        ("memory per worker", f"{size(cost.worker_memory)} + 200 MB"),
        ("memory of the client", f"{size(cost.client_memory)} + 200 MB"),
        ("time per worker", seconds(cost.worker_seconds)),
        ("time of the client", seconds(cost.client_seconds)),
    ]
    if cost.panel_pairs:
        rows.append(("pairs of panels", f"{cost.panel_pairs:,}"))
        rows.append(("tail of the last pairs", seconds(cost.pair_tail)))
    for quantity, amount in rows:
        table.add_row(quantity, amount)
    console.print()
    show(console, table)


def demo_table(result: Evaluation, truth: Sequence[Estimate]) -> None:
    """Print the estimates of `calibscale demo` beside their true values."""
    console = terminal()
    head = f"An overconfident classifier, simulated: {result.n:,} rows of "
    head += f"{result.source['classes']} classes, evaluated in {result.seconds:.2f} s."
    _print(console, head, "bold")
    rows = []
    for exact in truth:
        value = result[exact.estimator].value
        if value is not None and exact.value is not None:
            cells = (number(value), number(exact.value), signed(value - exact.value, 2))
            rows.append((exact.estimator, *cells, short_summary(exact.estimator)))
    truth_column = doc.TableColumn(
        "truth", legend="the same estimators with every label replaced by its probability"
    )
    description = doc.TableColumn("description", numbers=False, optional=True)
    columns = ("estimator", "estimate", truth_column, "difference", description)
    _print_table(console, doc.table("Estimates", columns, rows), None)
