"""Reliability diagrams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from calibscale.errors import OptionError
from calibscale.formatting import base, number
from calibscale.output.plots.style import (
    COLOURS,
    DASHED,
    LINES,
    TEXT,
    WIDTH,
    axes,
    framed,
    short_count,
    write,
)

RELIABILITY_HEIGHT = 456.0
MAX_DIAGRAMS = 12  # of groups or classes
_ZOOM = 0.4  # if all values are below this, the axes end below 1


def outcome(notion: str | None) -> str:
    """Name of the observed quantity of a reliability diagram."""
    return "accuracy" if notion in (None, "top_label") else "observed frequency"


def prediction(diagram: dict[str, Any]) -> str:
    """Name of the predicted quantity of a reliability diagram."""
    if diagram["notion"] in (None, "top_label"):
        return "confidence"
    k = 1 if diagram.get("class") is None else diagram["class"]
    names = (diagram.get("source") or {}).get("class_names")
    return f"predicted P(y = {names[k] if names else k})"


def plot_reliability(
    result: Any, reference: Any = None, ax: Any = None, names: Sequence[str] | None = None
) -> Any:
    """Draw the observed frequency against the prediction, and the number of rows of each bin.

    A point is the frequency of a bin at its mean prediction, with its confidence interval.  The
    stem is the gap to the diagonal; both are red if the point lies outside the shaded band that
    is expected of a calibrated model.  Several models are lines with intervals on the same axes; if
    each class is judged, the axes are divided among the classes (at most 12, of largest ECE).

    Parameters
    ----------
    result : Reliability or dict, or list of these
        Result of `calibscale.reliability`, or its JSON object; a list of them for several models.
    reference : dict, optional
        Diagram of all rows, drawn as a grey line behind the diagram of a group.
    ax : matplotlib.axes.Axes, optional
        Axes with room below for the number of rows, as ``layout="constrained"`` leaves.  Default:
        those of a new figure.
    names : sequence of str, optional
        Names of several models.  Default: the names of their sources.

    Raises
    ------
    OptionError
        If the number of names is not that of the models.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, reliability
    >>> p = np.linspace(0.01, 0.99, 200)
    >>> result = reliability(from_arrays(probabilities=p, labels=p > 0.4, binary=True))
    >>> bool(plot_reliability(result).get_xlim()[1] > 1)
    True
    """
    if isinstance(result, list | tuple):
        return _several([_json(one) for one in result], names, ax)
    diagram = _json(result)
    if diagram["notion"] == "class_wise" and diagram.get("class") is None:
        return _classes(diagram, ax)
    bins = diagram["bins"]
    filled = _filled(diagram)
    level = "interval" if diagram["level"] is None else f"{100 * diagram['level']:g} % interval"
    ax, end = _square(ax, filled)
    for empty, run in groupby(bins, key=lambda b: b["frequency"] is None or not b["consistency"]):
        if not empty:
            _band(ax, list(run), end)
    _diagonal(ax, end)
    if reference is not None:
        all_rows = [b for b in reference["bins"] if b["frequency"] is not None]
        ax.plot([b["mean_p"] for b in all_rows], [b["frequency"] for b in all_rows],
                color=COLOURS["other"], linewidth=2.5, alpha=0.45, label="all rows")  # fmt: skip
    ax.plot([b["mean_p"] for b in filled], [b["frequency"] for b in filled],
            color=COLOURS["accent"], linewidth=0.8)  # fmt: skip
    what = f"{outcome(diagram['notion'])} with its {level}"
    for role, outside, name in (("accent", False, what), ("alert", True, "outside the band")):
        _points(ax, [b for b in filled if bool(b["outside"]) is outside], role, name,
                small=len(filled) > 25)  # fmt: skip
    if not filled:
        write(ax, 0.5 * end, 0.25 * end, "no rows", "muted", ha="center")
    _counts(_below(ax, diagram), bins, end)
    return ax


def _json(result: Any) -> dict[str, Any]:
    return result if isinstance(result, dict) else result.to_dict()


def _filled(diagram: dict[str, Any]) -> list[dict[str, Any]]:
    return [b for b in diagram["bins"] if b["frequency"] is not None and b["mean_p"] is not None]


def _square(ax: Any, filled: Sequence[dict[str, Any]]) -> tuple[Any, float]:
    """Axes from 0 to 1, or to a lower end if all values are low, and this end."""
    highest = max((v for b in filled for v in _values(b)), default=1.0)
    end = 1.05 * highest if 0 < highest < _ZOOM else 1.0
    ax = axes(ax, RELIABILITY_HEIGHT)
    ax.set(xlim=(-0.02 * end, 1.02 * end), ylim=(-0.02 * end, 1.02 * end))
    ax.locator_params(nbins=6)
    return ax, end


def _diagonal(ax: Any, end: float) -> None:
    ax.plot([0, end], [0, end], color=COLOURS["muted"], linewidth=1, linestyle=DASHED,
            label="calibrated")  # fmt: skip


def _below(ax: Any, diagram: dict[str, Any]) -> Any:
    """Frame a diagram; axes for the numbers of rows below it."""
    framed(ax, "", outcome(diagram["notion"]), base=False)
    ax.grid(axis="x", color=COLOURS["line"], linewidth=0.7)
    ax.tick_params(labelbottom=False)
    counts = axes(ax.inset_axes((0.0, -0.26, 1.0, 0.18), sharex=ax))
    framed(counts, prediction(diagram), "rows")
    return counts


def _several(diagrams: list[dict[str, Any]], names: Sequence[str] | None, ax: Any) -> Any:
    """Draw the bins of several models as lines with intervals, and their numbers of rows."""
    if names is None:
        names = [base((one.get("source") or {}).get("name") or "predictions") for one in diagrams]
    if len(names) != len(diagrams) or not diagrams:
        raise OptionError(f"{len(diagrams)} results need as many names, not {len(names)}")
    ax, end = _square(ax, [b for one in diagrams for b in _filled(one)])
    _diagonal(ax, end)
    counts = _below(ax, diagrams[0])
    for k, (diagram, name) in enumerate(zip(diagrams, names, strict=True)):
        role, dashes = LINES[k % len(LINES)]
        bins = _filled(diagram)
        x = [b["mean_p"] for b in bins]
        limits = [(b["mean_p"], *b["interval"]) for b in bins if b["interval"]]
        if limits:
            ax.vlines(*zip(*limits, strict=True), color=COLOURS[role], linewidth=1, alpha=0.6)
        ece = "" if diagram["ece"] is None else f", ECE {number(diagram['ece'], 3)}"
        ax.plot(x, [b["frequency"] for b in bins], "os^D"[k // len(LINES) % 4], linestyle=dashes,
                color=COLOURS[role], markersize=5, mew=0, label=f"{name}{ece}")  # fmt: skip
        counts.plot(x, [b["count"] for b in bins], linestyle=dashes, color=COLOURS[role])
    counts.set_ylim(bottom=0)
    counts.locator_params(axis="y", nbins=3)
    counts.yaxis.set_major_formatter(short_count)
    legend = ax.legend(loc="best", fontsize=0.9 * TEXT, frameon=False, labelcolor=COLOURS["ink"])
    for text in legend.get_texts():
        text.set_parse_math(False)
    return ax


def worst_classes(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Curves of classes in their order, or by decreasing ECE if they are too many to draw."""
    if len(values) <= MAX_DIAGRAMS:
        return values
    return sorted(values, key=lambda one: -(one["ece"] or 0.0))


def _classes(diagram: dict[str, Any], ax: Any) -> Any:
    """Divide the axes among the diagrams of the classes."""
    curves = worst_classes(diagram["groups"]["values"])[:MAX_DIAGRAMS]
    columns = min(len(curves), 4 if len(curves) > 6 else 3)
    lines = -(-len(curves) // columns)
    ax = axes(ax, 0.85 * RELIABILITY_HEIGHT * lines, 0.8 * WIDTH * columns)
    ax.set_axis_off()
    for i, curve in enumerate(curves):
        line, column = divmod(i, columns)
        box = ((column + 0.1) / columns, 1 - (line + 0.7) / lines, 0.85 / columns, 0.6 / lines)
        one = {**diagram, **curve, "class": int(curve["value"])}
        plot_reliability(one, ax=ax.inset_axes(box))
    return ax


def _values(b: dict[str, Any]) -> list[float]:
    ends = (v for name in ("interval", "consistency") for v in b[name] or ())
    return [b["mean_p"], b["frequency"], *ends]


def _points(ax: Any, bins: list[dict[str, Any]], role: str, name: str, small: bool) -> None:
    """Draw frequencies with their intervals, and stems from the diagonal."""
    if not bins:
        return
    x, y = [b["mean_p"] for b in bins], [b["frequency"] for b in bins]
    ax.vlines(x, x, y, color=COLOURS[role], linewidth=2 if small else 4, alpha=0.3)
    limits = [(b["mean_p"], *b["interval"]) for b in bins if b["interval"]]
    if limits:
        ax.vlines(*zip(*limits, strict=True), color=COLOURS[role], linewidth=1.1)
    ax.plot(x, y, "o", color=COLOURS[role], markersize=3.5 if small else 6, mew=0, label=name,
            clip_on=False, zorder=3)  # fmt: skip


def _band(ax: Any, run: list[dict[str, Any]], end: float) -> None:
    """Draw the consistency intervals of adjacent bins, extended along the diagonal at both ends."""
    first, last = run[0], run[-1]
    points = [(b["mean_p"], *b["consistency"]) for b in run]
    points.insert(0, _moved(first, min(max(first["lower"], 0.0), first["mean_p"])))
    points.append(_moved(last, max(min(last["upper"], end), last["mean_p"])))
    ax.fill_between(*zip(*points, strict=True), color=COLOURS["band"], linewidth=0,
                    label="range of bins if calibrated")  # fmt: skip


def _moved(b: dict[str, Any], x: float) -> tuple[float, float, float]:
    low, high = (min(max(edge + x - b["mean_p"], 0.0), 1.0) for edge in b["consistency"])
    return x, low, high


def _counts(ax: Any, bins: list[dict[str, Any]], end: float) -> None:
    """Draw the number of rows of each bin, on a logarithmic scale if the ratio exceeds 100."""
    counts = np.array([b["count"] for b in bins if b["count"] > 0] or [1])
    left = np.array([min(max(b["lower"], 0.0), end) for b in bins if b["count"] > 0] or [0.0])
    right = np.array([min(b["upper"], end) for b in bins if b["count"] > 0] or [0.0])
    width = np.maximum(right - left, 0.0)
    if counts.max() > 100 * counts.min():
        ax.set_yscale("log")
        ax.set_ylim(0.5, 2 * counts.max())
        ax.minorticks_off()
        ax.locator_params(axis="y", numticks=4)
    else:
        ax.set_ylim(0, 1.05 * counts.max())
        ax.locator_params(axis="y", nbins=3, integer=True)
    ax.bar(left + 0.03 * width, counts, 0.94 * width, align="edge", color=COLOURS["rows"],
           label="rows of each bin")  # fmt: skip
    ax.yaxis.set_major_formatter(short_count)
