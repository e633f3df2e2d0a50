"""Plots over days: trends of estimates, numbers of rows, and evidence against calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from calibscale.formatting import day_names, number_texts
from calibscale.output.plots.style import (
    COLOURS,
    DASHED,
    GROUPS,
    axes,
    floats,
    framed,
    short_count,
    write,
)

DAYS_HEIGHT, EVIDENCE_HEIGHT = 196.0, 262.0  # points
_DASHES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (1, 2)), (0, (4, 1, 1, 1, 1, 1)))


class Limit(NamedTuple):
    """Threshold in a trend."""

    value: float
    name: str


class Line(NamedTuple):
    """Values of one quantity on each day.  `threshold` is the alarm of an e-process.

    `colour` is a role of `COLOURS`.  A line without a colour is grey, and the legend omits its
    name.
    """

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    alarm: bool = False
    threshold: float | None = None
    colour: str = ""


def plot_day_rows(days: Sequence[str], counts: Sequence[int | None], ax: Any = None) -> Any:
    """Draw the number of rows of each day as bars.

    Parameters
    ----------
    days : sequence of str
        Days such as 2026-11-20, or parts of days such as 2026-11-20T06.
    counts : sequence of int or None

    Examples
    --------
    >>> len(plot_day_rows(["2026-11-20", "2026-11-21"], [300, 200]).patches)
    2
    """
    ax, x = _day_axes(ax, days, DAYS_HEIGHT)
    step = min((b - a for a, b in pairwise(x)), default=1.0)
    heights = np.nan_to_num(floats(counts))
    ax.bar(x, heights, 0.8 * min(1.0, step), color=COLOURS.rows, label="rows")
    ax.set_ylim(0, 1.06 * (heights.max(initial=0.0) or 1.0))
    ax.yaxis.set_major_formatter(short_count)
    framed(ax)
    return ax


def plot_trend(
    days: Sequence[str],
    line: Line,
    groups: Sequence[Line] = (),
    limits: Sequence[Limit] = (),
    by: str = "group",
    ax: Any = None,
    of: str = "all rows, each day",
) -> Any:
    """Draw one estimate over days, with its intervals, groups and thresholds.

    Parameters
    ----------
    days : sequence of str
    line : Line
        Estimates of all rows.  The last point is red if `line.alarm`.
    groups : sequence of Line
        Estimates of groups.  Groups with a colour are in the legend.
    limits : sequence of Limit
        Thresholds, see `near_limits`.
    by : str
        Name of the groups without a colour in the legend.
    of : str
        Name of the line in the legend.

    Examples
    --------
    >>> days = ["2026-11-20", "2026-11-21"]
    >>> ax = plot_trend(days, Line("ece", [0.02, 0.03]), limits=[Limit(0.05, "0.05")])
    >>> bool(ax.get_ylim()[1] > 0.05)
    True
    """
    reach = _trend_reach(line, groups, limits)
    ax, x = _day_axes(ax, days, DAYS_HEIGHT)
    ax.set_ylim(*reach)
    ax.locator_params(axis="y", nbins=5)
    framed(ax)
    if reach[0] < 0 < reach[1]:
        ax.axhline(0, color=COLOURS.muted, linewidth=0.9)
    values = floats(line.values)
    if any(v is not None for v in line.low):
        low, high = np.clip(floats(line.low), *reach), np.clip(floats(line.high), *reach)
        ax.fill_between(
            x, low, high, color=COLOURS.accent, alpha=0.2, linewidth=0, label="interval"
        )
        # A day with an interval between days without one has no area, and gets a bar.
        edges = np.isnan(np.concatenate(([np.nan], low + high, [np.nan])))
        alone = edges[:-2] & ~edges[1:-1] & edges[2:]  # an area needs two days
        ax.vlines(x[alone], low[alone], high[alone], color=COLOURS.accent, linewidth=3, alpha=0.35)
    _plot_groups(ax, x, [(group, floats(group.values)) for group in groups], by)
    # Markers of many days would touch each other.
    marker = "o" if np.isfinite(values).sum() <= 40 else ""
    ax.plot(
        x,
        values,
        marker=marker,
        color=COLOURS.accent,
        linewidth=1.6,
        markersize=4.5,
        mew=0,
        label=of,
    )
    last = np.flatnonzero(np.isfinite(values))[-1:]
    role, name = ("alert", "threshold breached") if line.alarm else ("accent", "")
    ax.plot(x[last], values[last], "o", color=COLOURS[role], markersize=6.5, mew=0, label=name)
    for limit in limits:
        _limit(ax, limit.value, limit.name, limit.value > reach[0] + 0.85 * (reach[1] - reach[0]))
    return ax


def near_limits(line: Line, limits: Sequence[Limit]) -> list[Limit]:
    """Thresholds close enough to the values that the trend stays visible."""
    drawn = [v for values in (line.values, line.low, line.high) for v in values if v is not None]
    if not drawn:
        return []
    bottom, top = min(drawn), max(drawn)
    # A threshold farther away than three times the spread would flatten the trend.
    room = 3 * (top - bottom) or abs(top)
    return [limit for limit in limits if bottom - room <= limit.value <= top + room]


def plot_evidence(
    days: Sequence[str], combined: Line, processes: Sequence[Line] = (), ax: Any = None
) -> Any:
    """Draw the evidence E over days on a logarithmic scale.

    Parameters
    ----------
    days : sequence of str
    combined : Line
        Natural logarithms of the combined E, and the threshold of its alarm.
    processes : sequence of Line
        Natural logarithms of each process, and the threshold of its alarm.

    Examples
    --------
    >>> days = ["2026-11-20", "2026-11-21"]
    >>> plot_evidence(days, Line("combined", [0.1, 0.4], threshold=3.0)).get_title("left")
    'evidence E'
    """
    to_ten = 1 / math.log(10)
    ax, x = _day_axes(ax, days, EVIDENCE_HEIGHT)
    logs = [v for drawn in (combined, *processes) for v in drawn.values if v is not None]
    thresholds = [p.threshold for p in processes if p.threshold is not None]
    lowest = min(thresholds, default=None)
    limits = [v for v in (combined.threshold, *thresholds[:1]) if v is not None]
    # E far below 1 is no evidence, and needs no room: the axis starts at 10⁻³ at the lowest.
    low = max(min([*logs, 0.0]) * to_ten, -3.0) - 0.15
    top = max([*limits, 0.0]) * to_ten
    # The axis ends at 2.5 times the height of the alarm, or three powers of ten above it.  Higher
    # lines leave the plot.
    high = max(min(max([*logs, 0.0]) * to_ten, max(2.5 * top, top + 3)) + 0.3, top + 0.5)
    ax.set_ylim(low, high)
    ax.locator_params(axis="y", nbins=7, integer=True)
    ax.yaxis.set_major_formatter(lambda value, _: number_texts.ten(round(value)))
    framed(ax, "", "evidence E")

    def height(line: Line) -> Any:
        """Powers of ten, at least the lower end of the axis, where ∞ is far above the upper end."""
        powers = to_ten * np.maximum(floats(line.values), low / to_ten)
        return np.where(np.isposinf(powers), 10.0 * high, powers)

    _plot_groups(ax, x, [(p, height(p)) for p in processes], "other processes")
    ax.plot(x, height(combined), linewidth=2.2, color=COLOURS.accent, label="combined")
    if combined.threshold is not None:
        name = f"alarm: E = {number_texts.evidence(combined.threshold)}"
        _limit(ax, combined.threshold * to_ten, name, lowest not in (None, combined.threshold))
    if lowest is not None and lowest != combined.threshold:
        sign = "≥" if len(set(thresholds)) > 1 else "="
        name = f"alarm of one process: E {sign} {number_texts.evidence(lowest)}"
        _limit(ax, lowest * to_ten, name, False)
    return ax


# ---------------------------------------------------------------- axes and marks


def newest(values: Sequence[float | None]) -> float | None:
    """Last value that is not missing."""
    return next((v for v in reversed(values) if v is not None), None)


def ordinals(days: Sequence[str]) -> list[float]:
    """Days as numbers, with parts of a day spaced evenly."""
    numbers: list[float] = []
    for day, keys in groupby(days, key=lambda key: key[:10]):
        parts = len(list(keys))
        # Parts of a day are equally far apart, and the first is at the date.
        numbers += [date.fromisoformat(day).toordinal() + i / parts for i in range(parts)]
    return numbers


def _plot_groups(ax: Any, x: Any, lines: Sequence[tuple[Line, Any]], dimension: str) -> None:
    """Draw lines of groups: grey lines first, then coloured lines, thicker with an alarm."""
    grey = dimension
    for line, values in sorted(lines, key=lambda pair: bool(pair[0].colour)):
        if not line.colour:
            ax.plot(x, values, color=COLOURS.other, linewidth=0.8, alpha=0.55, label=grey)
            grey = ""
            continue
        dashes = _DASHES[GROUPS.index(line.colour) % len(_DASHES)]
        name = f"{line.name}, alarm" if line.alarm else line.name
        ax.plot(
            x,
            values,
            color=COLOURS[line.colour],
            linestyle=dashes,
            label=name,
            linewidth=2.4 if line.alarm else 1.5,
        )


def _day_axes(ax: Any, days: Sequence[str], height: float) -> tuple[Any, Any]:
    """Axes of days, and the days."""
    ax, x = axes(ax, height), np.array(ordinals(days))
    if len(x):
        ax.set_xlim(x.min() - 0.7, x.max() + 0.7)
    far = len(x) > 0 and x.max() - x.min() > 300

    def name(value: float, _: Any) -> str:
        text = day_names.day(date.fromordinal(round(value)).isoformat())
        return text.split(" ", 1)[1] if far else text.rsplit(" ", 1)[0]

    ax.xaxis.set_major_formatter(name)
    ax.locator_params(axis="x", nbins=5, integer=True, steps=[1, 2, 3, 4, 7, 10])
    return ax, x


def _trend_reach(
    line: Line, groups: Sequence[Line], limits: Sequence[Limit]
) -> tuple[float, float]:
    """Range of values, thresholds and most group values.  Much wider intervals are clipped."""
    inner = [v for v in line.values if v is not None] + [limit.value for limit in limits]
    crowd = sorted(v for group in groups for v in group.values if v is not None)
    if inner and crowd:  # without the 5 % most extreme values at each end
        inner += [crowd[len(crowd) // 20], crowd[-1 - len(crowd) // 20]]
    if not inner:
        return 0.0, 1.0
    bottom, top = min(inner), max(inner)
    # Intervals may extend the range of values by 1.5 times on either side.
    room = 1.5 * (top - bottom) or 0.5 * abs(top) or 1.0
    outer = [v for ends in (line.low, line.high) for v in ends if v is not None]
    bottom = min(bottom, max(bottom - room, min(outer, default=bottom)))
    top = max(top, min(top + room, max(outer, default=top)))
    pad = 0.06 * (top - bottom) or 0.1 * abs(top) or 1.0
    # A range that starts close above 0 starts at 0, which is the natural origin of errors.
    return (bottom - pad if not 0 <= bottom <= pad else 0.0), top + pad


def _limit(ax: Any, y: float, name: str, below: bool) -> None:
    """Draw a threshold with its name above or below the line."""
    ax.axhline(y, color=COLOURS.alert, linewidth=1.3, linestyle=DASHED, label="threshold")
    write(
        ax,
        0,
        y,
        name,
        "alert",
        xycoords=ax.get_yaxis_transform(),
        va="baseline",
        xytext=(2.0, -11.0 if below else 4.0),
    )
