"""python benchmarks/compare_plots.py [RESULTS [FOLDER]]: draw time and memory of `compare`.

A picture per task, by default into docs/_static.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from compare_contestants import TASKS
from compare_data import size_in_bytes
from compare_tables import Rows, duration, limits
from measure import RESULTS

FOLDER = Path(__file__).parent.parent / "docs" / "_static"
# Lines of calibscale are blue, so that the others are told apart from them at a glance.  Its lines
# after the first are dashed, so that lines below them are visible.
OURS = (("#2f66a3", "-"), ("#6f9bcb", (0, (5, 2))), ("#173a63", (0, (2, 1.5))))
OTHERS = ("#c96a00", "#1f8a5b", "#b0418f", "#7d7a12", "#6b5bc0", "#b3311c")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
MUTED = "#8b97a8"  # of lines that belong to no contestant
COLUMN_POINTS = 60.0  # of a power of ten of rows
PANEL_POINTS = 190.0  # height
LEGEND_POINTS = 190.0
NARROWEST = 460.0  # points of a picture
DOTS_PER_INCH = 110
PICTURE_COLOURS = 128
MEGABYTES = (30, 100, 300, 1000, 3000)  # ticks
SMALLEST_INPUT = 100.0  # MB from which the size of the predictions is drawn
SIDE = 0.25  # powers of ten of rows beside the first and the last number of rows
STEP = 0.12  # powers of ten of rows between arrows at the same number of rows


class Quantity(NamedTuple):
    """What a row of panels shows.

    Attributes
    ----------
    key : str
        Name in the rows of results.
    name : str
        Name of the axis.
    state : str
        State of a contestant that exceeded the limit of the quantity.
    limit : float
        Largest value of a run.
    limit_name : str
    """

    key: str
    name: str
    state: str
    limit: float
    limit_name: str


def _quantities(rows: Rows) -> tuple[Quantity, Quantity]:
    most = limits(rows)
    seconds, megabytes = most["seconds"], most["bytes"] / 1e6
    return (
        Quantity("seconds", "time", "time limit", seconds, f"limit {seconds:g} s"),
        Quantity(
            "peak_mb", "peak memory", "memory limit", megabytes, f"limit {megabytes / 1000:g} GB"
        ),
    )


def draw(task: str, rows: Rows, path: Path) -> None:
    """Draw times and peak memory of a task over rows, a column for each number of classes."""
    from matplotlib.figure import Figure

    from calibscale.output.plots import style

    runs = [row for row in rows if row["what"] == "run" and row["task"] == task]
    # Panels are as wide as their numbers of rows need, at the same scale.
    columns = {
        classes: _range_of_rows(row["rows"] for row in runs if row["classes"] == classes)
        for classes in sorted({row["classes"] for row in runs})
    }
    widths = [math.log10(last / first) for first, last in columns.values()]
    with style.own_style():
        width = max(COLUMN_POINTS * sum(widths) + LEGEND_POINTS, NARROWEST)
        figure = Figure(figsize=(width / 72, 2 * PANEL_POINTS / 72), layout="constrained")
        panels = figure.subplots(
            2,
            len(columns),
            sharex="col",
            sharey="row",
            squeeze=False,
            width_ratios=widths,
        )
        for quantity, of_quantity in zip(_quantities(rows), panels, strict=True):
            for (classes, ends), ax in zip(columns.items(), of_quantity, strict=True):
                style.axes(ax).set(xscale="log", yscale="log", xlim=ends)
                style.framed(ax)
                of_classes = [row for row in runs if row["classes"] == classes]
                _draw_lines(ax, task, quantity, of_classes)
                if quantity.key == "peak_mb":
                    _draw_input_size(ax, of_classes)
            _finish_row(of_quantity, quantity, runs)
        for classes, ax in zip(columns, panels[0], strict=True):
            style.framed(ax, y_name=f"{classes:,} classes")
        for ax in panels[-1]:
            ax.set_xlabel("rows", loc="right", fontsize=style.TEXT, color=style.COLOURS.muted)
        entries = {}
        for ax in panels.flat:
            entries |= style.legend_entries(ax)
        if {quantity.state for quantity in _quantities(rows)} & {row["state"] for row in runs}:
            entries["beyond the limit of a run"] = _arrow_of_legend()
        figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside right upper",
            frameon=False,
            fontsize=10,
            handlelength=3.0,
        )
        _save(figure, path)


def _range_of_rows(counts: Iterable[int]) -> tuple[float, float]:
    ordered = sorted(counts)
    return ordered[0] / 10**SIDE, ordered[-1] * 10**SIDE


def _finish_row(panels: Any, quantity: Quantity, runs: Rows) -> None:
    """Give a row of panels its axis, and its limit if a contestant exceeded it."""
    from calibscale.output.plots import style

    first = panels[0]
    if quantity.key == "peak_mb":
        largest = max((row["peak_mb"] for row in runs if "peak_mb" in row), default=MEGABYTES[0])
        first.set_yticks(MEGABYTES)
        first.set_ylim(MEGABYTES[0], 1.5 * max(largest, MEGABYTES[1]))
    if any(row["state"] == quantity.state for row in runs):
        for ax in panels:
            ax.axhline(quantity.limit, color=MUTED, linewidth=1.0, linestyle="-.")
        low, high = first.get_ylim()
        # Arrows beyond the limit need some room.
        first.set_ylim(low, max(high, 5.0 * quantity.limit))
        style.write(
            first,
            first.get_xlim()[0],
            quantity.limit,
            quantity.limit_name,
            "muted",
            xytext=(3.0, 9.0),
        )
    first.set_ylabel(quantity.name, fontsize=style.TEXT, color=style.COLOURS.muted)
    first.yaxis.set_major_formatter(_seconds if quantity.key == "seconds" else _megabytes)
    for ax in panels:
        ax.xaxis.set_major_formatter(_short_count)
        ax.minorticks_off()


def _save(figure: Any, path: Path) -> None:
    """Save a picture with few colours, in a third of the bytes."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, facecolor="white")
    Image.open(drawn).convert("RGB").quantize(PICTURE_COLOURS).save(path, optimize=True)


def _draw_lines(ax: Any, task: str, quantity: Quantity, runs: Rows) -> None:
    """Draw a line per contestant, and an arrow where it exceeded the limit."""
    ours, others = list(OURS), list(OTHERS)
    contestants = TASKS[task].contestants
    arrows: Counter[int] = Counter()  # by number of rows
    for contestant, marker in zip(contestants, MARKERS[: len(contestants)], strict=True):
        colour, dashes = ours.pop(0) if contestant.is_ours else (others.pop(0), "-")
        own = [row for row in runs if row["by"] == contestant.name]
        measured = [row for row in own if row["state"] == "measured"]
        if all(row["state"] == "not installed" for row in own):
            continue
        ax.plot(
            [row["rows"] for row in measured],
            [row[quantity.key] for row in measured],
            color=colour,
            linestyle=dashes,
            marker=marker,
            markersize=4.5,
            linewidth=1.8 if contestant.is_ours else 1.2,
            zorder=3 if contestant.is_ours else 2,
            label=contestant.name,
        )
        for row in own:
            if row["state"] == quantity.state:
                # Arrows at the same number of rows are beside each other.
                place = row["rows"] * 10 ** (STEP * arrows[row["rows"]])
                _draw_arrow(ax, place, quantity.limit, colour, marker)
                arrows[row["rows"]] += 1


def _draw_arrow(ax: Any, place: float, limit: float, colour: str, marker: str) -> None:
    """Draw a hollow marker at the limit, and an arrow to the unknown value above it."""
    ax.plot(place, limit, color=colour, marker=marker, markersize=4.5, markerfacecolor="white")
    ax.annotate(
        "",
        (place, 3.0 * limit),
        (place, limit),
        arrowprops={"arrowstyle": "->", "color": colour, "shrinkA": 3.0, "shrinkB": 0.0},
    )


def _arrow_of_legend() -> Any:
    """Return the arrow that stands for all arrows in the legend."""
    from matplotlib.lines import Line2D
    from matplotlib.path import Path as Outline

    shaft, head = [(0.0, -1.0), (0.0, 1.0)], [(-0.4, 0.4), (0.0, 1.0), (0.4, 0.4)]
    lines = [Outline.MOVETO, Outline.LINETO, Outline.MOVETO, Outline.LINETO, Outline.LINETO]
    arrow = Outline([*shaft, *head], lines)
    return Line2D(
        [], [], color=MUTED, linestyle="none", marker=arrow, markersize=10, fillstyle="none"
    )


def _draw_input_size(ax: Any, runs: Rows) -> None:
    """Draw a line of the bytes of the predictions, below which no contestant with arrays can be."""
    sizes = sorted({(row["rows"], row["classes"]) for row in runs})
    megabytes = [size_in_bytes(*size) / 1e6 for size in sizes]
    # The memory of Python and of libraries hides smaller predictions.
    if megabytes[-1] < SMALLEST_INPUT:
        return
    ax.plot(
        [rows for rows, _ in sizes],
        megabytes,
        color=MUTED,
        linestyle="--",
        linewidth=1.0,
        label="size of the predictions",
    )


def _seconds(value: float, _: Any) -> str:
    return duration(value).replace(".0 ", " ")


def _megabytes(value: float, _: Any) -> str:
    return f"{value / 1000:g} GB" if value >= 1000 else f"{value:g} MB"


def _short_count(value: float, _: Any) -> str:
    from calibscale.output.plots.style import short_count

    return short_count(value)


def main(results: Path = RESULTS, folder: Path = FOLDER) -> None:
    rows = json.loads((results / "compare.json").read_text())["table"]
    for task in TASKS:
        if any(row.get("task") == task for row in rows):
            draw(task, rows, folder / f"compare_{task}.png")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
