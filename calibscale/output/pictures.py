"""Pictures of results in files: the plots of a report on a grid, with one legend."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibscale.addresses import shown_address
from calibscale.atomic_files import replacing
from calibscale.errors import require
from calibscale.formatting.number_texts import unbroken
from calibscale.output.documents.articles import document
from calibscale.output.plots.prediction_plots import RELIABILITY_HEIGHT, plot_reliability
from calibscale.output.plots.style import (
    COLOURS,
    TEXT,
    WIDTH,
    Legend,
    add_remark,
    legend_entries,
    library,
)

FORMATS = (".png", ".svg", ".pdf")
_COLUMNS = {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 6: 3}  # number of columns by number of plots, else 4
_DPI = 110
_LETTERS = 62  # of a line across one plot
_LINE = 15.0  # height of a line of the title


def check_format(path: str | Path) -> None:
    """Check the ending of a path before the picture is computed.

    Raises
    ------
    OptionError
        If the ending is not png, svg or pdf.
    """
    require(
        Path(path).suffix in FORMATS,
        f"{shown_address(path)}: names of pictures end in {', '.join(FORMATS)}",
    )


def plot_result(result: Any, axes: str = "linear") -> Any:
    """Draw all plots of the report of a result on a grid, with one legend.

    Parameters
    ----------
    result : Evaluation, Reliability, CalibrationTests, Selection, BiasMap, Ranking, Audit or Power
    axes : {"linear", "logit", "auto"}
        Axes of reliability diagrams, see `plot_reliability`.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, reliability
    >>> p = np.linspace(0.01, 0.99, 200)
    >>> result = reliability(from_arrays(probabilities=p, labels=p > 0.4, binary=True))
    >>> len(plot_result(result).subfigs)  # the title, and the diagram
    2
    """
    library()
    from matplotlib.figure import Figure

    article = document(result)
    plots = article.figures
    # Few plots are larger, many form a grid.
    columns = _COLUMNS.get(len(plots), 4)
    lines = [plots[i : i + columns] for i in range(0, len(plots), columns)]
    heights = [max(plot.height for plot in line) + 24.0 for line in lines]
    entries: Legend = {}
    remarks = {plot.remark for plot in plots if plot.remark and plot.remark not in article.verdict}
    title: list[tuple[dict[str, str], str]] = []
    for text, style in (
        (article.title, {"color": COLOURS.ink, "fontweight": "bold"}),
        (article.subtitle, {"color": COLOURS.muted}),
        (article.verdict, {"color": COLOURS.ink}),
    ):
        wrapped = textwrap.wrap(unbroken(text), _LETTERS * columns)
        title += [(style, line) for line in wrapped]
    top = _LINE * len(title) + 10.0
    size = (columns * (WIDTH + 10) / 72, (top + sum(heights) + 60.0) / 72)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(
        max(len(lines), 1) + 1, columns, height_ratios=[top, *(heights or [1])]
    )
    header = figure.add_subfigure(grid[0, :])
    for k, (look, text) in enumerate(title):
        height = 1 - ((k + 0.5) * _LINE + 4.0) / top
        header.text(
            0.02 / columns, height, text, look, fontsize=TEXT, va="center", parse_math=False
        )
    for k, line in enumerate(lines):
        for i, plot in enumerate(line):
            part = figure.add_subfigure(grid[k + 1, i])
            ax = part.subplots()
            drawn = plot.draw_on(ax, axes)
            if any(neighbour.remark in remarks for neighbour in line):  # plots in a line are level
                add_remark(drawn, unbroken(plot.remark) if plot.remark in remarks else "")
            entries |= legend_entries(ax)
            heading = plot.title or plot.label * (len(plots) > 1)
            part.suptitle(
                "\n".join(textwrap.wrap(unbroken(heading), _LETTERS)),
                fontsize=TEXT,
                x=0.02,
                ha="left",
                color=COLOURS.ink,
                parse_math=False,
            )
    add_legend(figure, {unbroken(name): handle for name, handle in entries.items()}, 2 * columns)
    return figure


def add_legend(figure: Any, entries: Legend, columns: int) -> None:
    """Add a legend of the given artists below the plots of a figure."""
    if entries:
        columns = _legend_columns(list(entries), columns, 72 * figure.get_figwidth())
        legend = figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=columns,
            fontsize=0.9 * TEXT,
            frameon=False,
            labelcolor=COLOURS.ink,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)


def _legend_columns(names: Sequence[str], columns: int, width: float) -> int:
    """Largest number of columns of a legend that fit a width in points."""
    for count in range(min(columns, len(names)), 1, -1):
        lines = -(-len(names) // count)
        parts = [names[i : i + lines] for i in range(0, len(names), lines)]
        # A column has a sample with its margins, and letters of 0.52 em.
        needed = sum(38.0 + 0.52 * 0.9 * TEXT * max(map(len, part)) for part in parts)
        if needed <= width:
            return count
    return 1


def save_picture(result: Any, path: str | Path, axes: str = "linear") -> None:
    """Write `plot_result` to a png, svg or pdf file, atomically and reproducibly.

    Raises
    ------
    OptionError
        If the path has another ending.
    """
    check_format(path)
    _write(plot_result(result, axes), path)


def save_comparison(
    results: Sequence[Any], names: Sequence[str], path: str | Path, axes: str = "linear"
) -> None:
    """Write the reliability diagram of several models, as `save_picture` does."""
    library()
    from matplotlib.figure import Figure

    check_format(path)
    size = (WIDTH * 1.2 / 72, RELIABILITY_HEIGHT * 1.2 / 72)
    ax = Figure(figsize=size, layout="constrained").subplots()
    _write(plot_reliability(results, ax=ax, names=names, axes=axes).figure, path)


def _write(figure: Any, path: str | Path) -> None:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    form = Path(path).suffix[1:]
    reproducible = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with (
        replacing(path) as file,
        rc_context({"svg.hashsalt": "calibscale"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as a box
        figure.draw_without_rendering()  # the layout needs the place of the labels of axes within
        figure.savefig(file, format=form, dpi=_DPI, metadata=reproducible.get(form))
