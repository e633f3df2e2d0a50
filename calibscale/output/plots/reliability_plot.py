"""Reliability diagrams."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from calibscale.output.plots.style import COLOURS, DASHED, axes, framed, short_count, write

RELIABILITY_HEIGHT = 456.0
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


def plot_reliability(result: Any, reference: Any = None, ax: Any = None) -> Any:
    """Draw the observed frequency against the prediction, and the number of rows of each bin.

    A point is the frequency of a bin at its mean prediction, with its confidence interval.  The
    stem is the gap to the diagonal; both are red if the point lies outside the shaded band that
    is expected of a calibrated model.

    Parameters
    ----------
    result : Reliability or dict
        Result of `calibscale.reliability`, or its JSON object.
    reference : dict, optional
        Diagram of all rows, drawn as a grey line behind the diagram of a group.
    ax : matplotlib.axes.Axes, optional
        Axes that the diagram and its counts divide.  Default: axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, reliability
    >>> p = np.linspace(0.01, 0.99, 200)
    >>> result = reliability(from_arrays(probabilities=p, labels=p > 0.4, binary=True))
    >>> bool(plot_reliability(result).get_xlim()[1] > 1)
    True
    """
    diagram = result if isinstance(result, dict) else result.to_dict()
    bins = diagram["bins"]
    filled = [b for b in bins if b["frequency"] is not None and b["mean_p"] is not None]
    level = "interval" if diagram["level"] is None else f"{100 * diagram['level']:g} % interval"
    highest = max((v for b in filled for v in _values(b)), default=1.0)
    end = 1.05 * highest if 0 < highest < _ZOOM else 1.0
    ax = axes(ax, RELIABILITY_HEIGHT)
    ax.set(xlim=(-0.02 * end, 1.02 * end), ylim=(-0.02 * end, 1.02 * end))
    ax.locator_params(nbins=6)
    for empty, run in groupby(bins, key=lambda b: b["frequency"] is None or not b["consistency"]):
        if not empty:
            _band(ax, list(run), end)
    ax.plot([0, end], [0, end], color=COLOURS["muted"], linewidth=1, linestyle=DASHED,
            label="calibrated")  # fmt: skip
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
    framed(ax, "", outcome(diagram["notion"]), base=False)
    ax.grid(axis="x", color=COLOURS["line"], linewidth=0.7)
    ax.tick_params(labelbottom=False)
    counts = axes(ax.inset_axes((0.0, -0.26, 1.0, 0.18), sharex=ax))
    _counts(counts, bins, end)
    framed(counts, prediction(diagram), "rows")
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
