"""Results as data frames, files, plots, and pages of notebooks."""

from __future__ import annotations

import codecs
import csv
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from calibscale.addresses import shown_address
from calibscale.atomic_files import replacing, write_json
from calibscale.errors import OptionError, require
from calibscale.formatting.number_texts import plural
from calibscale.output.documents.articles import document
from calibscale.output.documents.elements import Figure, Table
from calibscale.output.pictures import FORMATS, add_legend, save_picture
from calibscale.output.plots.prediction_plots import plot_reliability
from calibscale.output.plots.style import add_remark, legend_entries
from calibscale.output.plots.style import axes as new_axes
from calibscale.output.report import as_page, save_report
from calibscale.results.exported import Shown

_BATCH = 2**16  # rows converted at a time
_LISTED = 16  # rows of a table in a notebook
_CLOSING = ("rows", "notes", "terms", "settings")  # sections that end every document


def to_frame(result: Any, library: str) -> Any:
    """Tidy table of a result as a data frame, see `Tabular.to_frame`."""
    require(library in ("pandas", "polars"), "library must be pandas or polars", library)
    try:
        frames = import_module(library)
    except ImportError as error:
        raise OptionError(f"{library} is not installed: pip install {library}") from error
    table = _arrow(result)
    return table.to_pandas() if library == "pandas" else frames.from_arrow(table)


def _arrow(result: Any) -> Any:
    """Tidy table in Arrow's memory: NaN is null, columns of numbers and texts are texts."""
    import pyarrow as pa

    def column(values: Any) -> Any:
        if hasattr(values, "dtype"):
            return pa.array(values, from_pandas=True)
        # Arrow columns have one type, and a group may have a number or a name.
        kinds = {isinstance(value, str) for value in values if value is not None}
        if len(kinds) > 1:
            values = [value if value is None else str(value) for value in values]
        return pa.array(values, None if kinds else pa.float64())

    return pa.table({name: column(values) for name, values in result.columns().items()})


def save_csv(result: Any, path: str | Path) -> None:
    """Write the tidy table as CSV, with booleans as 0 and 1.  ``-`` is standard output."""
    table = _arrow(result)
    opened: Any = nullcontext(sys.stdout) if path == "-" else replacing(path)
    with opened as file:
        text = file if path == "-" else codecs.getwriter("utf-8")(file)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.column_names)
        for batch in table.to_batches(_BATCH):
            for row in zip(*(column.to_pylist() for column in batch), strict=True):
                # Programs for tables read 0 and 1 as numbers, and True as text.
                writer.writerow([int(value) if isinstance(value, bool) else value for value in row])


def _save_parquet(result: Any, path: str | Path) -> None:
    from pyarrow import parquet

    with replacing(path) as file:
        parquet.write_table(_arrow(result), file)


_TABLES: dict[str, Callable[[Any, str | Path], None]] = {
    ".json": lambda result, path: write_json(path, result.to_dict()),
    ".csv": save_csv,
    ".parquet": _save_parquet,
}
_PICTURES: dict[str, Callable[[Any, str | Path, str], None]] = {
    ".html": lambda result, path, axes: save_report([result.to_dict()], path, axes=axes),
    **dict.fromkeys(FORMATS, save_picture),
}


def save(result: Any, path: str | Path, axes: str | None) -> None:
    """Write a result in the format that the suffix names, see `Tabular.save`."""
    pictures = _PICTURES if isinstance(result, Shown) else {}  # others have no report
    suffix, shown = Path(path).suffix, shown_address(path)
    if suffix in pictures:
        pictures[suffix](result, path, axes or "linear")
    elif suffix not in _TABLES:
        endings = ", ".join([*_TABLES, *pictures])
        raise OptionError(f"{shown}: names of files of {type(result).__name__} end in {endings}")
    elif axes is not None:
        raise OptionError(f"{shown}: axes={axes!r} is for pages and pictures, not for tables")
    else:
        _TABLES[suffix](result, path)


def plot(result: Any, ax: Any, axes: str) -> Any:
    """Draw the first plot of the report of a result, see `Plottable.plot`."""
    first = next(iter(document(result).figures), None)
    if first is None:
        raise OptionError("there is nothing to draw: the result has no estimates with a value")
    if ax is not None or getattr(result, "judged", "") == "each class":
        if hasattr(result, "judged"):
            return plot_reliability(result, ax=ax, axes=axes)
        return _drawn(first, ax, axes)
    ax = _drawn(first, new_axes(None, first.height + 50), axes)
    entries = legend_entries(ax)
    # Long names need the whole width of the figure.
    add_legend(ax.figure, entries, 1 if max(map(len, entries), default=0) > 30 else 2)
    return ax


def _drawn(figure: Figure, ax: Any, axes: str) -> Any:
    """Axes with a plot and its remark."""
    ax = figure.draw_on(ax, axes)
    if figure.remark:
        add_remark(ax, figure.remark)
    return ax


def notebook_page(result: Any) -> str:
    """HTML of the verdict, the first table and the first plot of a result, without scripts."""
    article = document(result)
    plots = article.figures[:1]
    tables = (
        block
        for section in article.sections
        if section.name not in _CLOSING
        for block in section.blocks
        if isinstance(block, Table)
    )
    # A document without a table still has the numbers of its plot.
    table = next(tables, plots[0].numbers if plots else None)
    listed = None if table is None else _listed(table)
    return as_page("notebook.html", article=article, table=listed, plots=plots)


def _listed(table: Table) -> Table:
    """First rows of a table, without its optional columns."""
    columns = [k for k, column in enumerate(table.head) if not column.optional]
    rows = tuple(tuple(row[k] for k in columns) for row in table.rows[:_LISTED])
    more = len(table.rows) - len(rows)
    notes = table.notes
    if more:
        notes = (f"{plural(more, 'more row')} in to_frame().", *notes)
    return replace(table, head=tuple(table.head[k] for k in columns), rows=rows, notes=notes)
