"""Plots over predictions: reliability diagrams, and maps and curves of local bias."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from calibscale.errors import OptionError
from calibscale.formatting import (
    NO_LEVEL,
    base,
    ece,
    missing_name,
    number,
    outcome,
    prediction,
    short,
)
from calibscale.output.plots.histograms import draw_counts, draw_pit, pit_shares
from calibscale.output.plots.style import (
    COLOURS,
    DASHED,
    LINES,
    TEXT,
    WIDTH,
    axes,
    floats,
    framed,
    named_ticks,
    short_count,
    write,
)

RELIABILITY_HEIGHT = 456.0
MAX_DIAGRAMS = 12  # of groups or classes
_ZOOM = 0.4  # if all values are below this, the axes end below 1


def plot_reliability(
    result: Any, reference: Any = None, ax: Any = None, names: Sequence[str] | None = None
) -> Any:
    """Draw the observed frequency against the prediction, and the number of rows of each bin.

    Of forecasts, draw the share of outcomes below each quantile, and the PIT histogram.

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
        return _several(result, names, ax)
    diagram = result if isinstance(result, dict) else result.to_dict()
    if diagram["notion"] == "class_wise" and diagram.get("class") is None:
        return _classes(diagram, ax)
    bins = diagram["bins"]
    filled = _filled(diagram)
    level = "interval" if diagram["level"] is None else f"{100 * diagram['level']:g} % interval"
    ax, end = _square(ax, filled, pit := diagram.get("pit"))
    for empty, run in groupby(bins, key=lambda b: b["frequency"] is None or not b["consistency"]):
        if not empty:
            _band(ax, list(run), end)
    if reference is not None:
        ax.plot(*_means(_filled(reference)), color=COLOURS["other"], linewidth=2.5, alpha=0.45,
                label="all rows")  # fmt: skip
    ax.plot(*_means(filled), color=COLOURS["accent"], linewidth=0.8)
    what = level if pit else f"{outcome(diagram['notion'])} with its {level}"
    for role, outside, name in (("accent", False, what), ("alert", True, "outside the band")):
        _points(ax, [b for b in filled if bool(b["outside"]) is outside], role, name,
                small=len(filled) > 25)  # fmt: skip
    if not filled:
        write(ax, 0.5 * end, 0.25 * end, "no rows", "muted", ha="center")
    if diagram.get("floor"):
        write(ax, 0.0, end, ece(diagram).replace(", ", "\n"), "muted", va="top")
    if pit:
        draw_pit(_below(ax, diagram), pit)
    else:
        draw_counts(_below(ax, diagram), bins, end)
    return ax


def _filled(diagram: dict[str, Any]) -> list[dict[str, Any]]:
    return [b for b in diagram["bins"] if b["frequency"] is not None and b["mean_p"] is not None]


def _means(bins: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Mean predictions and frequencies of bins."""
    return [b["mean_p"] for b in bins], [b["frequency"] for b in bins]


def _intervals(ax: Any, bins: Sequence[dict[str, Any]], **style: Any) -> None:
    """Draw the intervals of the frequencies."""
    limits = [(b["mean_p"], *b["interval"]) for b in bins if b["interval"]]
    if limits:
        ax.vlines(*zip(*limits, strict=True), **style)


def _square(ax: Any, filled: Sequence[dict[str, Any]], pit: Any) -> tuple[Any, float]:
    """Axes of a diagram; with PIT values, above the room for their histogram."""
    if pit:
        ax = axes(ax, RELIABILITY_HEIGHT)
        ax.set_axis_off()
        return diagonal(ax.inset_axes((0.0, 0.4, 1.0, 0.6)), 1.0)
    return diagonal(ax, max((v for b in filled for v in _values(b)), default=1.0))


def diagonal(ax: Any, highest: float) -> tuple[Any, float]:
    """Axes with the diagonal, from 0 to 1 or to a lower end if all values are low; this end."""
    end = 1.05 * highest if 0 < highest < _ZOOM else 1.0
    ax = axes(ax, RELIABILITY_HEIGHT)
    ax.set(xlim=(-0.02 * end, 1.02 * end), ylim=(-0.02 * end, 1.02 * end))
    ax.locator_params(nbins=6)
    ax.plot([0, end], [0, end], color=COLOURS["muted"], linewidth=1, linestyle=DASHED,
            label="calibrated")  # fmt: skip
    return ax, end


def _below(ax: Any, diagram: dict[str, Any]) -> Any:
    """Frame a diagram; axes for the numbers of rows below it."""
    framed(ax, "", outcome(diagram["notion"]), base=False)
    ax.grid(axis="x", color=COLOURS["line"], linewidth=0.7)
    ax.tick_params(labelbottom=False)
    pit = diagram.get("pit")
    box = (0.0, -0.65, 1.0, 0.5) if pit else (0.0, -0.26, 1.0, 0.18)
    counts = axes(ax.inset_axes(box, sharex=ax))
    framed(counts, prediction(diagram), "outcomes by PIT value, 1 if calibrated" if pit else "rows")
    return counts


def _several(results: Sequence[Any], names: Sequence[str] | None, ax: Any) -> Any:
    """Draw the bins of several models as lines with intervals, and their numbers of rows."""
    diagrams = [one if isinstance(one, dict) else one.to_dict() for one in results]
    if names is None:
        names = [base((one.get("source") or {}).get("name") or "predictions") for one in diagrams]
    if len(names) != len(diagrams) or not diagrams:
        raise OptionError(f"{len(diagrams)} results need as many names, not {len(names)}")
    pit = diagrams[0].get("pit")
    ax, _ = _square(ax, [b for one in diagrams for b in _filled(one)], pit)
    counts = _below(ax, diagrams[0])
    for k, (diagram, name) in enumerate(zip(diagrams, names, strict=True)):
        role, dashes = LINES[k % len(LINES)]
        bins = _filled(diagram)
        x, frequency = _means(bins)
        _intervals(ax, bins, color=COLOURS[role], linewidth=1, alpha=0.6)
        error = "" if diagram["ece"] is None else f", ECE {number(diagram['ece'], 3)}"
        ax.plot(x, frequency, "os^D"[k // len(LINES) % 4], linestyle=dashes,
                color=COLOURS[role], markersize=5, mew=0, label=f"{name}{error}")  # fmt: skip
        if pit:
            edges, heights = pit_shares(diagram["pit"], "frequency")
            counts.stairs(heights, edges, linestyle=dashes, color=COLOURS[role], baseline=None)
        else:
            counts.plot(x, [b["count"] for b in bins], linestyle=dashes, color=COLOURS[role])
            counts.yaxis.set_major_formatter(short_count)
    counts.set_ylim(bottom=0)
    counts.locator_params(axis="y", nbins=3)
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
    x, y = _means(bins)
    ax.vlines(x, x, y, color=COLOURS[role], linewidth=2 if small else 4, alpha=0.3)
    _intervals(ax, bins, color=COLOURS[role], linewidth=1.1)
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


# ---------------------------------------------------------------- local bias


MAP_HEIGHT, CURVES_HEIGHT = 330.0, 220.0
_SHADES = 6  # shades of each sign
_MAX_CELLS = 30  # cells along each axis of a map whose points are not on a grid
_MAX_TICKS = 8  # ticks at the values of a covariate; beyond, ticks are at round numbers
_MARKED_Z = 2.0  # |z| above which a cell is marked


class MapScale(NamedTuple):
    """Cells of a map.

    Attributes
    ----------
    columns, rows : ndarray
        Edges of the cells along the covariate and the prediction.
    bias, z : (columns, rows) ndarray
        Means over the points of each cell, weighted by their effective rows; NaN without points.
    largest : float
        Bias of the darkest shade, the 98 % quantile of the absolute values.
    marked : int
        Number of cells with |z| above 2.
    """

    columns: Any
    rows: Any
    bias: Any
    z: Any
    largest: float
    marked: int


class BiasLine(NamedTuple):
    """Bias along x; None where too few rows are near the point."""

    name: str
    x: Sequence[float]
    bias: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]


def map_cells(
    x: Sequence[float], prediction: Sequence[float], bias: Sequence[float], z: Sequence[float],
    rows: Sequence[float],
) -> MapScale:  # fmt: skip
    """Collect points of local bias, with their z-scores and effective rows, in cells."""
    edges = _edges(x), _edges(prediction)
    weight = np.array(rows, dtype=float)
    counts = np.histogram2d(x, prediction, edges)[0]
    total = np.histogram2d(x, prediction, edges, weights=weight)[0]

    def means(values: Sequence[float]) -> Any:
        sums = np.histogram2d(x, prediction, edges, weights=weight * np.clip(values, -1e300, 1e300))
        return np.where(counts > 0, sums[0] / np.where(total > 0, total, 1), np.nan)

    mean_bias, mean_z = means(bias), means(z)
    sizes = np.sort(np.abs(mean_bias[counts > 0]))
    largest = sizes[int(0.98 * (len(sizes) - 1))] or 1e-12 if len(sizes) else 1e-12
    marked = int((np.abs(mean_z) > _MARKED_Z).sum())
    return MapScale(*edges, mean_bias, mean_z, float(largest), marked)


def plot_bias_map(
    cells: MapScale, covariate: str, names: Sequence[str] = (), ax: Any = None
) -> Any:
    """Draw the bias over a covariate and the prediction, with a colour for each sign.

    Parameters
    ----------
    cells : MapScale
        Cells of `map_cells`.
    covariate : str
    names : sequence of str
        Categories of a categorical covariate, empty for a numerical one.

    Examples
    --------
    >>> cells = map_cells([1, 2], [0.2, 0.8], [0.1, -0.1], [3.0, -1.0], [50, 50])
    >>> cells.marked
    1
    >>> plot_bias_map(cells, "age").get_xlabel()
    'age'
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    ax = axes(ax, MAP_HEIGHT)
    columns, rows = cells.columns, cells.rows
    ax.set(xlim=(columns[0], columns[-1]), ylim=(rows[0], rows[-1]))
    shade = np.ceil(_SHADES * np.abs(np.nan_to_num(cells.bias)) / cells.largest)
    shade = np.sign(np.nan_to_num(cells.bias)) * np.minimum(_SHADES, shade)
    for level in range(-_SHADES, _SHADES + 1):
        some = np.argwhere(shade == level)
        if level == 0 or not len(some):
            continue
        (i, j), role = some.T, "high" if level > 0 else "accent"
        across, up = (columns[i], columns[i + 1]), (rows[j], rows[j + 1])
        corners = [(across[a], up[b]) for a, b in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))]
        outlines = Path.make_compound_path_from_polys(np.array(corners).transpose(2, 0, 1))
        opacity = 0.08 + 0.82 * abs(level) / _SHADES
        ax.add_patch(PathPatch(outlines, facecolor=COLOURS[role], linewidth=0, alpha=opacity))
    centres = (columns[1:] + columns[:-1]) / 2, (rows[1:] + rows[:-1]) / 2
    for sign, marker in ((1, "+"), (-1, "_")):
        i, j = np.nonzero((np.abs(cells.z) > _MARKED_Z) & (np.sign(cells.bias) == sign))
        ax.plot(centres[0][i], centres[1][j], marker, color=COLOURS["ink"], markersize=5, mew=1,
                alpha=0.75, label="|z| above 2" if sign > 0 else "")  # fmt: skip
    for role, name in (("high", "low (bias above 0)"), ("accent", "high (bias below 0)")):
        ax.fill_between([], [], color=COLOURS[role], label=f"predictions too {name}")
    _covariate_ticks(ax, names, columns)
    framed(ax, short(covariate, 48), "prediction")
    ax.grid(visible=False)
    return ax


def plot_bias_curves(
    curves: Sequence[BiasLine], label: str, names: Sequence[str] = (),
    histogram: tuple[Sequence[float], Sequence[int]] | None = None, ax: Any = None,
) -> Any:  # fmt: skip
    """Draw the bias y − p along the prediction or a covariate, with pointwise 95 % intervals.

    Parameters
    ----------
    curves : sequence of BiasLine
    label : str
        Name of the x axis.
    names : sequence of str
        Categories of a categorical covariate, empty for a numerical one.
    histogram : tuple of (edges, counts), optional
        Histogram of the rows, drawn at the lower edge.

    Examples
    --------
    >>> curve = BiasLine("", [20, 40, 60], [0.01, 0.02, None], [0, 0, None], [0.02, 0.04, None])
    >>> len(plot_bias_curves([curve], "age").lines)
    2
    """
    ax = axes(ax, CURVES_HEIGHT)
    bias = [floats(curve.bias) for curve in curves]
    inner = np.concatenate([[0.0], *(b[np.isfinite(b)] for b in bias)])
    halfway = np.concatenate([  # halfway to the limits of the intervals
        [0.0], *((b + floats(end)) / 2 for c, b in zip(curves, bias, strict=True)
                 for end in (c.low, c.high))
    ])  # fmt: skip
    room = 0.7 * np.ptp(inner) + 0.01
    low = max(np.nanmin(halfway), inner.min() - room)
    high = min(np.nanmax(halfway), inner.max() + room)
    pad = 0.05 * (high - low) or 0.01
    low, high = low - (pad if histogram is None else 4 * pad), high + pad
    ends = [v for curve in curves for v in curve.x] or [0.0, 1.0]
    ax.set(ylim=(low, high), xlim=(min(ends), max(ends) if max(ends) > min(ends) else ends[0] + 1))
    if histogram is not None:
        edges, counts = np.array(histogram[0]), np.array(histogram[1])
        ax.bar(edges[:-1], 0.14 * counts / max(counts.max(), 1), np.diff(edges), align="edge",
               color=COLOURS["line"], transform=ax.get_xaxis_transform(), zorder=0,
               label="histogram of rows")  # fmt: skip
    ax.axhline(0, color=COLOURS["muted"], linewidth=1)
    for k, (curve, b) in enumerate(zip(curves, bias, strict=True)):
        role, dashes = LINES[k % len(LINES)]
        ax.fill_between(
            curve.x, np.clip(floats(curve.low), low, high), np.clip(floats(curve.high), low, high),
            color=COLOURS[role], alpha=0.16 if len(curves) == 1 else 0.1, linewidth=0,
            label="95 % interval" if k == 0 else "",
        )  # fmt: skip
        ax.plot(curve.x, np.clip(b, low, high), color=COLOURS[role], linewidth=1.6,
                linestyle=dashes, label=curve.name or "bias")  # fmt: skip
    ax.locator_params(axis="y", nbins=6)
    _covariate_ticks(ax, names)
    framed(ax, short(label, 48), "bias y − p")
    return ax


def _covariate_ticks(ax: Any, names: Sequence[str], edges: Any = ()) -> None:
    """Label the x axis with numbers, or with the names of categories."""
    low, high = ax.get_xlim()
    if names:
        values = [k for k in range(int(NO_LEVEL), len(names)) if low <= k <= high]
        letters = max(3, int((WIDTH - 60) / 7 / max(len(values), 1)) - 1)
        shown = [names[k] if k != NO_LEVEL else missing_name(names) for k in values]
        named_ticks(ax.xaxis, values, [short(name, letters) for name in shown])
    elif 0 < len(edges) <= _MAX_TICKS:
        ax.set_xticks(_values_of(edges))
    else:
        ax.locator_params(axis="x", nbins=6)


def _values_of(edges: Any) -> Any:
    """Values whose midpoints are the inner edges, with equal margins at both ends."""
    values = [(edges[0] + edges[1]) / 2]
    for edge in edges[1:-1]:
        values.append(2 * edge - values[-1])
    return values


def _edges(values: Sequence[float]) -> Any:
    """Edges of cells: midpoints between the values, or equally spaced if there are many values."""
    distinct = sorted(set(values))
    if len(distinct) > _MAX_CELLS:
        count = max(6, min(_MAX_CELLS, round(len(values) ** 0.5 / 1.5)))
        return np.linspace(distinct[0], distinct[-1], count + 1)
    if len(distinct) == 1:
        return np.array([distinct[0] - 0.5, distinct[0] + 0.5])
    inner = [(a + b) / 2 for a, b in pairwise(distinct)]
    return np.array([2 * distinct[0] - inner[0], *inner, 2 * distinct[-1] - inner[-1]])
