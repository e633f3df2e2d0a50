"""Maps and curves of local bias."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from calibscale.array_types import Floats
from calibscale.formatting.naming import NO_LEVEL, missing_name, short
from calibscale.output.plots.style import COLOURS, LINES, WIDTH, axes, floats, framed, named_ticks
from calibscale.results.bias_results import Histogram

MAP_HEIGHT, CURVES_HEIGHT = 330.0, 220.0  # points
_SHADES = 6  # shades of each sign
_MAX_CELLS = 30  # cells along each axis of a map whose points are not on a grid
_MAX_TICKS = 8  # ticks at the values of a covariate, else ticks are at round numbers
_MARKED_Z = 2.0  # |z| above which a cell is marked


class MapScale(NamedTuple):
    """Cells of a map.

    Attributes
    ----------
    columns, rows : ndarray
        Edges of the cells along the covariate and the prediction.
    bias, z : (columns, rows) ndarray
        Means over the points of each cell, weighted by their effective rows, or NaN without points.
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


Numbers: TypeAlias = Floats | Sequence[float]


class BiasLine(NamedTuple):
    """Bias along x, or NaN where too few rows are near the point."""

    name: str
    x: Numbers
    bias: Numbers
    low: Numbers
    high: Numbers


def map_cells(
    x: Numbers, prediction: Numbers, bias: Numbers, z: Numbers, rows: Numbers
) -> MapScale:
    """Collect points of local bias, with their z-scores and effective rows, in cells."""
    edges = _edges(x), _edges(prediction)
    weight = np.array(rows, dtype=float)
    counts = np.histogram2d(x, prediction, edges)[0]
    total = np.histogram2d(x, prediction, edges, weights=weight)[0]

    def means(values: Numbers) -> Any:
        # An infinite z times an effective weight of 0 would be NaN.
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
    # A few shades make one path each, which is much smaller than a patch for each cell.
    shade = np.ceil(_SHADES * np.abs(np.nan_to_num(cells.bias)) / cells.largest)
    shade = np.sign(np.nan_to_num(cells.bias)) * np.minimum(_SHADES, shade)
    for level in range(-_SHADES, _SHADES + 1):
        marked_cells = np.argwhere(shade == level)
        if level == 0 or not len(marked_cells):
            continue
        (i, j), role = marked_cells.T, "high" if level > 0 else "accent"
        across, up = (columns[i], columns[i + 1]), (rows[j], rows[j + 1])
        corners = [(across[a], up[b]) for a, b in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))]
        outlines = Path.make_compound_path_from_polys(np.array(corners).transpose(2, 0, 1))
        opacity = 0.08 + 0.82 * abs(level) / _SHADES
        ax.add_patch(PathPatch(outlines, facecolor=COLOURS[role], linewidth=0, alpha=opacity))
    centres = (columns[1:] + columns[:-1]) / 2, (rows[1:] + rows[:-1]) / 2
    for sign, marker in ((1, "+"), (-1, "_")):
        i, j = np.nonzero((np.abs(cells.z) > _MARKED_Z) & (np.sign(cells.bias) == sign))
        ax.plot(
            centres[0][i],
            centres[1][j],
            marker,
            color=COLOURS.ink,
            markersize=5,
            mew=1,
            alpha=0.75,
            label="|z| above 2" if sign > 0 else "",
        )
    for role, name in (("high", "low (bias above 0)"), ("accent", "high (bias below 0)")):
        ax.fill_between([], [], color=COLOURS[role], label=f"predictions too {name}")
    _covariate_ticks(ax, names, columns)
    framed(ax, short(covariate, 48), "prediction")
    ax.grid(visible=False)
    return ax


def plot_bias_curves(
    curves: Sequence[BiasLine],
    label: str,
    names: Sequence[str] = (),
    histogram: Histogram | None = None,
    ax: Any = None,
) -> Any:
    """Draw the bias y − p along the prediction or a covariate, with pointwise 95 % intervals.

    Parameters
    ----------
    curves : sequence of BiasLine
    label : str
        Name of the x axis.
    names : sequence of str
        Categories of a categorical covariate, empty for a numerical one.
    histogram : Histogram, optional
        Histogram of the rows, drawn at the lower edge.

    Examples
    --------
    >>> from math import nan
    >>> curve = BiasLine("", [20, 40, 60], [0.01, 0.02, nan], [0, 0, nan], [0.02, 0.04, nan])
    >>> len(plot_bias_curves([curve], "age").lines)
    2
    """
    ax = axes(ax, CURVES_HEIGHT)
    bias = [floats(curve.bias) for curve in curves]
    inner = np.concatenate([[0.0], *(b[np.isfinite(b)] for b in bias)])
    halfway = np.concatenate(
        [  # halfway to the limits of the intervals
            [0.0],
            *(
                (b + floats(end)) / 2
                for c, b in zip(curves, bias, strict=True)
                for end in (c.low, c.high)
            ),
        ]
    )
    # Wide intervals of few rows may extend the axis by 70 % of the range of the bias.
    room = 0.7 * np.ptp(inner) + 0.01
    low = max(np.nanmin(halfway), inner.min() - room)
    high = min(np.nanmax(halfway), inner.max() + room)
    pad = 0.05 * (high - low) or 0.01
    # The histogram needs room below the curves.
    low, high = low - (pad if histogram is None else 4 * pad), high + pad
    ends = [v for curve in curves for v in curve.x] or [0.0, 1.0]
    ax.set(ylim=(low, high), xlim=(min(ends), max(ends) if max(ends) > min(ends) else ends[0] + 1))
    if histogram is not None:
        edges, counts = np.array(histogram.edges), np.array(histogram.counts)
        ax.bar(
            edges[:-1],
            0.14 * counts / max(counts.max(), 1),
            np.diff(edges),
            align="edge",
            color=COLOURS.line,
            transform=ax.get_xaxis_transform(),
            zorder=0,
            label="histogram of rows",
        )
    ax.axhline(0, color=COLOURS.muted, linewidth=1)
    for k, (curve, b) in enumerate(zip(curves, bias, strict=True)):
        role, dashes = LINES[k % len(LINES)]
        ax.fill_between(
            curve.x,
            np.clip(floats(curve.low), low, high),
            np.clip(floats(curve.high), low, high),
            color=COLOURS[role],
            alpha=0.16 if len(curves) == 1 else 0.1,
            linewidth=0,
            label="95 % interval" if k == 0 else "",
        )
        ax.plot(
            curve.x,
            np.clip(b, low, high),
            color=COLOURS[role],
            linewidth=1.6,
            linestyle=dashes,
            label=curve.name or "bias",
        )
    ax.locator_params(axis="y", nbins=6)
    _covariate_ticks(ax, names)
    framed(ax, short(label, 48), "bias y − p")
    return ax


def _covariate_ticks(ax: Any, names: Sequence[str], edges: Any = ()) -> None:
    """Label the x axis with numbers, or with the names of categories."""
    low, high = ax.get_xlim()
    if names:
        # The missing category has the number before the first one.
        values = [k for k in range(int(NO_LEVEL), len(names)) if low <= k <= high]
        letters = max(3, int((WIDTH - 60) / 7 / max(len(values), 1)) - 1)
        shown = [names[k] if k != NO_LEVEL else missing_name(names) for k in values]
        named_ticks(ax.xaxis, values, [short(name, letters) for name in shown])
    elif 0 < len(edges) <= _MAX_TICKS:
        ax.set_xticks(_values_of(edges))
    else:
        ax.locator_params(axis="x", nbins=6)


def _values_of(edges: Any) -> Any:
    """Values at ticks: the inner edges are their midpoints, and both ends have equal margins."""
    values = [(edges[0] + edges[1]) / 2]
    for edge in edges[1:-1]:
        # The edge is the middle of the value before it and the value after it.
        values.append(2 * edge - values[-1])
    return values


def _edges(values: Numbers) -> Any:
    """Edges of cells: midpoints between the values, or equally spaced if there are many values."""
    distinct = sorted(set(values))
    if len(distinct) > _MAX_CELLS:
        # About √n/1.5 cells on each axis leave a few points for each cell.
        count = max(6, min(_MAX_CELLS, round(len(values) ** 0.5 / 1.5)))
        return np.linspace(distinct[0], distinct[-1], count + 1)
    if len(distinct) == 1:
        return np.array([distinct[0] - 0.5, distinct[0] + 0.5])
    inner = [(a + b) / 2 for a, b in pairwise(distinct)]
    return np.array([2 * distinct[0] - inner[0], *inner, 2 * distinct[-1] - inner[-1]])
