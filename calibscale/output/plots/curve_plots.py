"""Curves of risks, and panels of estimates with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibscale.formatting.naming import short
from calibscale.formatting.number_texts import known, number
from calibscale.output.plots.style import (
    COLOURS,
    DASHED,
    TEXT,
    axes,
    framed,
    named_ticks,
    some_ticks,
    tick,
    write,
)

if TYPE_CHECKING:
    from calibscale.results.comparison_results import Candidate

CURVE_HEIGHT = 220.0  # points


def root_risk(candidate: Candidate) -> float:
    """Return √risk × 100 of a candidate that has a risk."""
    return 100 * math.sqrt(max(candidate.risk, 0.0))


def root_spread(candidate: Candidate) -> float:
    """Two standard errors of the difference from the best, on the scale of √risk × 100."""
    error = known(candidate.difference_error) or 0.0
    # d√r = dr/(2√r), so that two standard errors of √r are one standard error of r over √r.
    return 100 * error / math.sqrt(max(candidate.risk, 1e-300))


def plot_risk(
    candidates: Sequence[Candidate],
    best: Candidate,
    selected: Candidate,
    ax: Any = None,
) -> Any:
    """Draw √risk along the grid of one hyper-parameter.

    The area is ± 2 standard errors of the difference from the smallest risk of all estimators.

    Parameters
    ----------
    candidates : sequence of Candidate
        Candidates of one estimator, in the order of the hyper-parameter.
    best, selected : Candidate
        Candidate of this estimator, and of all estimators, with the smallest risk.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, select
    >>> p = np.linspace(0.5, 1, 500)
    >>> source = from_arrays(probabilities=np.c_[p, 1 - p], labels=np.arange(500) % 5 == 0)
    >>> selection = select(source, estimators=["bins"])
    >>> plot_risk(selection.candidates, selection.selected, selection.selected).get_xlabel()
    'bins'
    """
    (label,) = best.hyperparameter
    x = [float(c.hyperparameter[label]) for c in candidates]
    y = np.array([root_risk(c) for c in candidates])
    floor, top = root_risk(selected), float(np.median(y))
    spread = [root_spread(c) for c in candidates]
    # A few bad candidates at an end of the grid must not flatten the minimum.
    high = max(min(y.max(), top + 2 * (top - floor)), y.min(), floor)
    low = min(y.min(), floor)
    room = max(0.08 * (high - low), 1e-9 * abs(high)) or 1.0
    ax = axes(ax, CURVE_HEIGHT)
    ax.set_ylim(low - room, high + 2 * room)
    # Bandwidths and ridges span orders of magnitude, numbers of bins do not.
    scaled_sizes(ax, x, "linear" if label == "bins" or min(x) <= 0 else "log")
    ax.fill_between(
        x,
        y - spread,
        y + spread,
        color=COLOURS.accent,
        alpha=0.2,
        linewidth=0,
        label="± 2 standard errors of the difference from the best",
    )
    ax.axhline(
        floor,
        color=COLOURS.high,
        linewidth=1.1,
        linestyle=DASHED,
        label="smallest risk of all estimators",
    )
    ax.plot(
        x, y, "o-", color=COLOURS.accent, linewidth=1.4, markersize=4, mew=0, label="√risk × 100"
    )
    role = "high" if best.estimator == selected.estimator else "accent"
    at = float(best.hyperparameter[label])
    ax.plot([at], [root_risk(best)], "o", color=COLOURS[role], markersize=8, mew=0)
    ax.locator_params(axis="y", nbins=5)
    framed(ax, label, "√risk × 100")
    return ax


def scaled_sizes(ax: Any, values: Sequence[float], scale: str) -> None:
    """Scale the x axis, with ticks at some of the values."""
    ax.set_xscale(scale)
    ax.minorticks_off()
    ax.margins(x=0.04)
    ax.set_xticks(some_ticks(sorted(set(values))))
    ax.xaxis.set_major_formatter(lambda value, _: tick(value))


# ---------------------------------------------------------------- Intervals


_LABELS = 17  # maximum letters of labels beside the bars, longer labels are above
_STEP, _HIGH_STEP = 18.0, 29.0  # height of a row, and of a row with its label above
_HEIGHT = 230.0  # preferred maximum height of a picture


class IntervalRow(NamedTuple):
    """Value with its interval.

    `limits` are thresholds.  `bar` is the colour of a bar that is not an interval of the value.
    """

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    alert: bool = False
    limits: tuple[float, ...] = ()
    bar: str = ""


class IntervalPanel(NamedTuple):
    """Values on a common scale, with a line at 0 if `zero`."""

    title: str
    rows: tuple[IntervalRow, ...]
    zero: bool = False


def plot_intervals(
    panels: Sequence[IntervalPanel],
    point: str = "estimate",
    interval: str = "interval",
    alert: str = "threshold breached",
    ax: Any = None,
) -> Any:
    """Draw panels of values with intervals below each other, each panel with its own scale.

    Parameters
    ----------
    panels : sequence of IntervalPanel
    point, interval, alert : str
        Legend of the points, of the bars, and of the points with an alert.

    Examples
    --------
    >>> rows = (IntervalRow("a", 0.03, 0.02, 0.04), IntervalRow("b", 0.05, 0.03, 0.06))
    >>> ax = plot_intervals([IntervalPanel("ece", rows)])
    >>> len(ax.child_axes)
    1
    """
    ax = axes(ax, intervals_height(panels))
    ax.set_axis_off()
    # All panels of a picture have their labels at the same side.
    above = _above(panels)
    heights = [_height(panel, above) for panel in panels]
    top = 0.0
    for panel, height in zip(panels, heights, strict=True):
        first, last = top + _head(panel), top + height - 20.0
        box = (0.0, 1 - last / sum(heights), 1.0, (last - first) / sum(heights))
        _panel(axes(ax.inset_axes(box)), panel, above, (point, interval, alert))
        top += height
    return ax


def in_pictures(panels: Sequence[IntervalPanel]) -> list[list[IntervalPanel]]:
    """Distribute panels over pictures of similar height."""
    pictures: list[list[IntervalPanel]] = []
    total = sum(_height(panel, False) for panel in panels)
    # Pictures of equal heights, not full ones and a short last one.
    goal = total / max(1, math.ceil(total / _HEIGHT))
    used = 0.0
    for panel in panels:
        height = _height(panel, False)
        # A panel goes to the picture that contains its middle.
        if not pictures or used + height / 2 > goal:
            pictures.append([])
            used = 0.0
        pictures[-1].append(panel)
        used += height
    return pictures


def intervals_height(panels: Sequence[IntervalPanel]) -> float:
    """Height of a plot of the panels, in points."""
    return sum(_height(panel, _above(panels)) for panel in panels)


def _above(panels: Sequence[IntervalPanel]) -> bool:
    return any(len(row.label) > _LABELS for panel in panels for row in panel.rows)


def _head(panel: IntervalPanel) -> float:
    return 20.0 if panel.title else 4.0


def _height(panel: IntervalPanel, above: bool) -> float:
    return _head(panel) + 32.0 + (_HIGH_STEP if above else _STEP) * len(panel.rows)


def _reach(panel: IntervalPanel) -> tuple[float, float]:
    """Range of the numbers and of near thresholds, with a margin."""
    values = [v for row in panel.rows for v in (row.value, row.low, row.high) if v is not None]
    if panel.zero or not values:
        values.append(0.0)
    low, high = min(values), max(values)
    # A far threshold would squeeze the bars, and is named in the table.
    far = 3 * (high - low) if high > low else math.inf
    limits = [v for row in panel.rows for v in row.limits if low - far <= v <= high + far]
    low, high = min([low, *limits]), max([high, *limits])
    # Numbers that are not far above 0 are compared with 0.
    if low >= 0 and low < 0.4 * high:
        low = 0.0
    room = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    return (low - room if low != 0 else 0.0), high + room


def _panel(ax: Any, panel: IntervalPanel, above: bool, names: tuple[str, str, str]) -> None:
    low, high = _reach(panel)
    ax.set_xlim(low, high)
    ax.set_ylim(len(panel.rows), 0)
    ax.locator_params(axis="x", nbins=4)
    framed(ax, base=False)
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", color=COLOURS.line, linewidth=0.7)
    ax.set_title(
        panel.title,
        loc="left",
        fontsize=TEXT,
        fontweight="bold",
        color=COLOURS.ink,
        x=0.0,
        pad=3,
        parse_math=False,
    )
    # Labels above the bars need the upper half of a row.
    middle = 0.7 if above else 0.5  # position of a bar within its row
    if panel.zero:
        ax.axvline(0, color=COLOURS.muted, linewidth=1)
    for alert in (False, True):
        rows = [(i + middle, r) for i, r in enumerate(panel.rows) if r.alert is alert]
        role = "alert" if alert else "accent"
        bars = [(y, r) for y, r in rows if r.low is not None and r.high is not None]
        if bars:
            bar = bars[0][1].bar
            ax.hlines(
                [y for y, _ in bars],
                [r.low for _, r in bars],
                [r.high for _, r in bars],
                color=COLOURS[bar or role],
                linewidth=4,
                alpha=1.0 if bar else 0.45,
                label="" if alert and not bar else names[1],
            )
        dots = [(r.value, y) for y, r in rows if r.value is not None]
        if dots:
            ax.plot(
                *zip(*dots, strict=True),
                "o",
                color=COLOURS[role],
                markersize=7,
                mew=0,
                clip_on=False,
                label=names[2 if alert else 0],
            )
    limits = [
        (v, i + middle) for i, r in enumerate(panel.rows) for v in r.limits if low <= v <= high
    ]
    if limits:
        x, y = np.array(limits).T
        ax.vlines(
            x,
            y - 0.8 * (1 - middle),
            y + 0.8 * (1 - middle),
            color=COLOURS.alert,
            linewidth=1.4,
            linestyle=DASHED,
            label="threshold",
        )
    _labels(ax, panel, above, middle)


def _labels(ax: Any, panel: IntervalPanel, above: bool, middle: float) -> None:
    """Write the labels of the rows at the left, or above the bars, and the values at the right."""
    places = [i + middle for i in range(len(panel.rows))]
    names = [short(row.label, 46) for row in panel.rows]
    named_ticks(ax.yaxis, places, [""] * len(places) if above else names)
    across = ax.get_yaxis_transform()
    for y, name, row, label in zip(places, names, panel.rows, ax.get_yticklabels(), strict=True):
        role = "alert" if row.alert else "ink"
        label.set_color(COLOURS[role])
        if above:
            write(
                ax,
                0,
                y,
                name,
                role,
                xycoords=across,
                xytext=(0.0, 9.0),
                va="baseline",
                in_layout=False,
            )
        weight = "bold" if row.alert else "normal"
        write(
            ax,
            1,
            y,
            number(row.value, 3),
            role,
            xycoords=across,
            xytext=(8.0, 0.0),
            fontweight=weight,
        )
