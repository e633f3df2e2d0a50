"""python benchmarks/compare_plots.py [RESULTS [FOLDER]]: draw time and memory of `compare`.

A picture per task, by default into docs/_static.
"""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from compare_contestants import TASKS
from compare_data import size_in_bytes
from compare_tables import Rows, duration, limits
from measure import RESULTS

FOLDER = Path(__file__).parent.parent / "docs" / "_static"
# Lines of calibscale are blue, so that the others are told apart from them at a glance.
OURS = ("#2f66a3", "#6f9bcb", "#1c2026")
OTHERS = ("#c96a00", "#1f8a5b", "#b0418f", "#7d7a12", "#6b5bc0", "#b3311c")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
PANEL_POINTS = 190.0
LEGEND_POINTS = 150.0
DOTS_PER_INCH = 110
PICTURE_COLOURS = 128
MEGABYTES = (30, 100, 300, 1000, 3000)  # ticks
QUANTITIES = (("seconds", "seconds"), ("peak_mb", "peak memory"))


def draw(task: str, rows: Rows, path: Path) -> None:
    """Draw times and peak memory of a task over rows, a column for each number of classes."""
    from matplotlib.figure import Figure

    from calibscale.output.plots import style

    runs = [row for row in rows if row["what"] == "run" and row["task"] == task]
    classes = sorted({row["classes"] for row in runs})
    with style.own_style():
        width = PANEL_POINTS * len(classes) + LEGEND_POINTS
        figure = Figure(figsize=(width / 72, 2 * PANEL_POINTS / 72), layout="constrained")
        panels = figure.subplots(2, len(classes), sharex=True, sharey="row", squeeze=False)
        for (key, name), of_quantity in zip(QUANTITIES, panels, strict=True):
            for number, (count, ax) in enumerate(zip(classes, of_quantity, strict=True)):
                style.axes(ax).set(xscale="log", yscale="log")
                of_classes = [row for row in runs if row["classes"] == count]
                _draw_lines(ax, task, key, of_classes, rows)
                title = f"{count:,} classes"
                style.framed(ax, y_name=f"{name}, {title}" if number == 0 else title)
                if key == "peak_mb":
                    _draw_input_size(ax, of_classes)
                    ax.set_yticks(MEGABYTES)
                    ax.set_ylim(MEGABYTES[0], 1.3 * limits(rows)["bytes"] / 1e6)
                ax.yaxis.set_major_formatter(_seconds if key == "seconds" else _megabytes)
                ax.xaxis.set_major_formatter(_short_count)
                ax.minorticks_off()
        for ax in panels[-1]:
            ax.set_xlabel("rows", loc="right", fontsize=style.TEXT, color=style.COLOURS.muted)
        handles, labels = panels[-1][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=10)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    """Save a picture with few colours, in a third of the bytes."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, facecolor="white")
    Image.open(drawn).convert("RGB").quantize(PICTURE_COLOURS).save(path, optimize=True)


def _draw_lines(ax: Any, task: str, key: str, runs: Rows, rows: Rows) -> None:
    """A line per contestant, with a cross at the limit where it exceeded one."""
    most = limits(rows)
    ours, others = list(OURS), list(OTHERS)
    for contestant, marker in zip(TASKS[task].contestants, MARKERS, strict=False):
        colour = (ours if contestant.is_ours else others).pop(0)
        own = [row for row in runs if row["by"] == contestant.name]
        measured = [row for row in own if row["state"] == "measured"]
        if all(row["state"] == "not installed" for row in own):
            continue
        x = [row["rows"] for row in measured]
        y = [row[key] for row in measured]
        ax.plot(
            x,
            y,
            color=colour,
            marker=marker,
            markersize=4.5,
            linewidth=2.0 if contestant.is_ours else 1.2,
            zorder=3 if contestant.is_ours else 2,
            label=contestant.name,
        )
        limit = "time limit" if key == "seconds" else "memory limit"
        height = most["seconds"] if key == "seconds" else most["bytes"] / 1e6
        for row in own:
            if row["state"] == limit:
                ends = [*x[-1:], row["rows"]], [*y[-1:], height]
                ax.plot(*ends, color=colour, linestyle=":", linewidth=1.2)
                ax.plot(row["rows"], height, color=colour, marker="x", markersize=7)


def _draw_input_size(ax: Any, runs: Rows) -> None:
    """A line of the bytes of the predictions, below which no contestant with arrays can be."""
    sizes = sorted({(row["rows"], row["classes"]) for row in runs})
    ax.plot(
        [rows for rows, _ in sizes],
        [size_in_bytes(*size) / 1e6 for size in sizes],
        color="#8b97a8",
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
