"""Reliability diagrams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from calibscale.errors import OptionError
from calibscale.formatting.naming import base
from calibscale.formatting.number_texts import number, percent
from calibscale.output.plots.diagrams import DrawnDiagram, judges_each_class
from calibscale.output.plots.histograms import draw_counts, draw_pit, pit_shares
from calibscale.output.plots.probability_axes import ProbabilityAxes, probability_axes
from calibscale.output.plots.response_plots import draw_responses
from calibscale.output.plots.style import (
    COLOURS,
    LINES,
    TEXT,
    WIDTH,
    add_remark,
    framed,
    short_count,
    write,
)
from calibscale.output.plots.style import axes as new_axes
from calibscale.results.evaluation_results import GroupCurve, Reliability, ReliabilityBin

RELIABILITY_HEIGHT = 456.0  # points
MAX_DIAGRAMS = 12  # of groups or classes
# Markers of points whose prediction or frequency is exactly 0 or 1, at the edge of log-odds
_EDGE_MARKERS = {("y", 0.0): "v", ("y", 1.0): "^", ("x", 0.0): "<", ("x", 1.0): ">"}


def plot_reliability(
    result: Any,
    reference: Any = None,
    ax: Any = None,
    names: Sequence[str] | None = None,
    axes: str = "linear",
) -> Any:
    """Draw the observed frequency against the prediction, and the number of rows of each bin.

    For forecasts, draw the share of outcomes below each quantile, and the PIT histogram.

    A point is the frequency of a bin at its mean prediction, with its confidence interval.  The
    stem is the gap to the diagonal.  Both are red if the point lies outside the shaded band that is
    expected of a calibrated model.  Several models are lines with intervals on the same axes.  If
    each class is judged, the axes are divided among the classes (at most 12, of largest ECE).

    The limits of the axes follow from the points, intervals and bands.  They are 0 and 1 if these
    fill most of the square.

    Parameters
    ----------
    result : Reliability or dict, or list of these
        Result of `calibscale.reliability` or its JSON object, or a list of them for several models.
    reference : Reliability or dict, optional
        Diagram of all rows, drawn as a grey line behind the diagram of a group.
    ax : matplotlib.axes.Axes, optional
        Axes with room below for the number of rows, as ``layout="constrained"`` leaves.
        Default: axes of a new figure.
    names : sequence of str, optional
        Names of several models.  Default: the names of their sources.
    axes : {"linear", "logit", "auto"}
        Scale of both axes.  "logit" stretches predictions near 0 and 1, as of rare events.  Points
        at exactly 0 or 1 are triangles at the edge.  "auto" is "logit" if more than half of the
        rows have predictions below 5 % or above 95 %.  Quantile levels of forecasts are always on
        linear axes.

    Raises
    ------
    OptionError
        If the number of names differs from the number of models, or `axes` is another name.

    See Also
    --------
    calibscale.reliability : Compute the result.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, reliability
    >>> p = np.linspace(0.01, 0.99, 200)
    >>> result = reliability(from_arrays(probabilities=p, labels=p > 0.4, binary=True))
    >>> bool(plot_reliability(result).get_xlim()[1] > 1)
    True
    >>> plot_reliability(result, axes="logit").get_xscale()
    'logit'
    """
    if isinstance(result, list | tuple):
        return _several(result, names, ax, axes)
    restored = _restored(result)
    if judges_each_class(restored):
        return _classes(restored, ax, axes)
    diagram = DrawnDiagram.of(restored)
    behind = None if reference is None else DrawnDiagram.of(_restored(reference))
    ax = draw_reliability(diagram, behind, ax, axes)
    if diagram.ece:
        add_remark(ax, diagram.ece)
    return ax


def _restored(result: Any) -> Reliability:
    """Result, or the result of a JSON object."""
    return Reliability.from_dict(result) if isinstance(result, dict) else result


def draw_reliability(
    diagram: DrawnDiagram,
    reference: DrawnDiagram | None = None,
    ax: Any = None,
    axes: str = "linear",
) -> Any:
    """Draw the diagram of one model without its ECE, with parameters as in `plot_reliability`."""
    if diagram.response:
        return draw_responses(diagram, reference, ax)
    filled, pit = diagram.drawn, diagram.of_levels
    shown = [filled] if reference is None else [filled, reference.drawn]
    scale = _scale(axes, shown, pit)
    ax = _square(ax, scale, pit)
    # A band is drawn for each run of bins with rows, and is interrupted at empty bins.
    for banded, run in groupby(diagram.curve.bins, key=_has_band):
        if banded:
            _band(ax, list(run), scale)
    if reference is not None:
        x, y = _places(reference.drawn, scale)
        ax.plot(x, y, color=COLOURS.other, linewidth=2.5, alpha=0.45, label="all rows")
    # A thin line guides the eye from bin to bin.
    ax.plot(*_places(filled, scale), color=COLOURS.accent, linewidth=0.8)
    quantity = "share of outcomes" if pit else diagram.outcome
    name = f"{quantity} with its {percent(diagram.level)} interval"
    for role, outside, label in (("accent", False, name), ("alert", True, "outside the band")):
        points = [b for b in filled if b.outside is outside]
        _points(ax, points, role, label, scale, small=len(filled) > 25)
    if not filled:
        write(ax, 0.5, 0.25, "no rows", "muted", ha="center", xycoords="axes fraction")
    if pit:
        draw_pit(_below(ax, diagram), diagram.curve.pit)
    else:
        draw_counts(_below(ax, diagram), diagram.curve.bins, scale)
    return ax


def _has_band(b: ReliabilityBin) -> bool:
    return b.frequency is not None and b.consistency is not None


def _means(bins: Sequence[ReliabilityBin]) -> tuple[list[Any], list[Any]]:
    """Mean predictions and frequencies of bins."""
    return [b.mean_p for b in bins], [b.frequency for b in bins]


def _places(bins: Sequence[ReliabilityBin], scale: ProbabilityAxes) -> tuple[Any, Any]:
    """Places of mean predictions and frequencies of bins."""
    x, y = _means(bins)
    return scale.x.place(x), scale.y.place(y)


def _intervals(
    ax: Any, bins: Sequence[ReliabilityBin], scale: ProbabilityAxes, **style: Any
) -> None:
    """Draw the intervals of the frequencies."""
    limits = [(b.mean_p, *b.interval) for b in bins if b.interval is not None]
    if limits:
        x, low, high = zip(*limits, strict=True)
        ax.vlines(scale.x.place(x), scale.y.place(low), scale.y.place(high), **style)


def _scale(axes: str, diagrams: Sequence[Sequence[ReliabilityBin]], pit: bool) -> ProbabilityAxes:
    """Axes that show the bins of all diagrams.  For quantile levels they are linear."""
    # Diagrams that are compared have the same axes.
    bins = [b for diagram in diagrams for b in diagram]
    x, y = _means(bins)
    counts = None if pit else [b.count for b in bins]
    # An unknown name is an error for forecasts as well.
    scale = probability_axes(axes, x, y, [end for b in bins for end in _ends(b)], counts)
    return probability_axes("linear", x, y) if pit else scale


def _ends(b: ReliabilityBin) -> Iterator[float]:
    """Ends of the interval and of the band of a bin."""
    yield from b.interval or ()
    yield from b.consistency or ()


def _square(ax: Any, scale: ProbabilityAxes, pit: bool) -> Any:
    """Axes of a diagram with its diagonal.  PIT values have a histogram in the room below."""
    ax = new_axes(ax, RELIABILITY_HEIGHT)
    if pit:
        ax.set_axis_off()
        ax = new_axes(ax.inset_axes((0.0, 0.4, 1.0, 0.6)))
    scale.draw_on(ax)
    return ax


def _below(ax: Any, diagram: DrawnDiagram) -> Any:
    """Frame a diagram, and return axes for the numbers of rows below it."""
    framed(ax, "", diagram.outcome, base=False)
    ax.grid(axis="x", color=COLOURS.line, linewidth=0.7)
    ax.tick_params(labelbottom=False)
    pit = diagram.of_levels
    box = (0.0, -0.65, 1.0, 0.5) if pit else (0.0, -0.26, 1.0, 0.18)
    counts = new_axes(ax.inset_axes(box, sharex=ax))
    framed(counts, diagram.prediction, "outcomes by PIT value, 1 if calibrated" if pit else "rows")
    return counts


def _several(results: Sequence[Any], names: Sequence[str] | None, ax: Any, axes: str) -> Any:
    """Draw the bins of several models as lines with intervals, and their numbers of rows."""
    restored = [_restored(result) for result in results]
    diagrams = [DrawnDiagram.of(result) for result in restored]
    if names is None:
        names = [base(result.source.get("name") or "predictions") for result in restored]
    if len(names) != len(diagrams) or not diagrams:
        raise OptionError(f"{len(diagrams)} results need as many names, not {len(names)}")
    pit = diagrams[0].of_levels
    scale = _scale(axes, [diagram.drawn for diagram in diagrams], pit)
    ax = _square(ax, scale, pit)
    counts = _below(ax, diagrams[0])
    for k, (diagram, name) in enumerate(zip(diagrams, names, strict=True)):
        role, dashes = LINES[k % len(LINES)]
        bins = diagram.drawn
        x, frequency = _places(bins, scale)
        _intervals(ax, bins, scale, color=COLOURS[role], linewidth=1, alpha=0.6)
        error = "" if diagram.curve.ece is None else f", ECE {number(diagram.curve.ece, 3)}"
        ax.plot(
            x,
            frequency,
            # Lines repeat after four models, which markers then tell apart.
            "os^D"[k // len(LINES) % 4],
            linestyle=dashes,
            color=COLOURS[role],
            markersize=5,
            mew=0,
            label=f"{name}{error}",
        )
        if pit:
            edges, heights = pit_shares(diagram.curve.pit)
            counts.stairs(heights, edges, linestyle=dashes, color=COLOURS[role], baseline=None)
        else:
            counts.plot(x, [b.count for b in bins], linestyle=dashes, color=COLOURS[role])
            counts.yaxis.set_major_formatter(short_count)
    counts.set_ylim(bottom=0)
    counts.locator_params(axis="y", nbins=3)
    legend = ax.legend(loc="best", fontsize=0.9 * TEXT, frameon=False, labelcolor=COLOURS.ink)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return ax


def worst_classes(values: Sequence[GroupCurve]) -> Sequence[GroupCurve]:
    """Curves of classes in their order, or by decreasing ECE if they are too many to draw."""
    if len(values) <= MAX_DIAGRAMS:
        return values
    # Readers look for the classes with the largest errors first.
    return sorted(values, key=lambda group: -(group.curve.ece or 0.0))


def _classes(result: Reliability, ax: Any, axes: str) -> Any:
    """Divide the axes among the diagrams of the classes."""
    grouped = result.grouped
    curves = worst_classes(() if grouped is None else grouped.values)[:MAX_DIAGRAMS]
    columns = min(len(curves), 4 if len(curves) > 6 else 3)
    lines = -(-len(curves) // columns)
    ax = new_axes(ax, 0.85 * RELIABILITY_HEIGHT * lines, 0.8 * WIDTH * columns)
    ax.set_axis_off()
    for i, group in enumerate(curves):
        line, column = divmod(i, columns)
        box = ((column + 0.1) / columns, 1 - (line + 0.7) / lines, 0.85 / columns, 0.6 / lines)
        diagram = DrawnDiagram.of_group(result, group)
        drawn = draw_reliability(diagram, ax=ax.inset_axes(box), axes=axes)
        if diagram.curve.ece is not None:
            add_remark(drawn, f"ECE {number(diagram.curve.ece, 3)}")
    return ax


def _points(
    ax: Any,
    bins: Sequence[ReliabilityBin],
    role: str,
    name: str,
    scale: ProbabilityAxes,
    small: bool,
) -> None:
    """Draw frequencies with their intervals, and stems from the diagonal."""
    if not bins:
        return
    x, y = _places(bins, scale)
    start = scale.y.place([b.mean_p for b in bins])
    ax.vlines(x, start, y, color=COLOURS[role], linewidth=2 if small else 4, alpha=0.3)
    _intervals(ax, bins, scale, color=COLOURS[role], linewidth=1.1)
    # Points at the edge of log-odds are triangles that point to their place at infinity.
    by_marker: dict[str, list[tuple[float, float]]] = {}
    for b, across, up in zip(bins, x, y, strict=True):
        by_marker.setdefault(_marker(b, scale), []).append((across, up))
    # Circles come first in the legend.
    for marker, places in sorted(by_marker.items(), key=lambda item: item[0] != "o"):
        marker_size = 3.5 if small else 6
        label = name
        if marker != "o":
            marker_size += 2
            label = "exactly 0 or 1, at the edge"
        ax.plot(
            *zip(*places, strict=True),
            marker,
            linestyle="none",
            color=COLOURS[role],
            mew=0,
            markersize=marker_size,
            clip_on=False,
            zorder=3,
            label=label,
        )


def _marker(b: ReliabilityBin, scale: ProbabilityAxes) -> str:
    """Marker of a point: a triangle at the edge of log-odds if it is exactly 0 or 1 there."""
    if scale.logit:
        for name, value in (("y", b.frequency), ("x", b.mean_p)):
            if value is not None and value in (0.0, 1.0):
                return _EDGE_MARKERS[name, float(value)]
    return "o"


def _band(ax: Any, run: Sequence[ReliabilityBin], scale: ProbabilityAxes) -> None:
    """Draw the consistency intervals of adjacent bins, extended along the diagonal at both ends."""
    first, *between, last = [_BandPoint.of(b) for b in (run[0], *run, run[-1])]
    # A band ends at mean predictions, which are inside of the outer bins.
    points = [
        first.moved(min(max(run[0].lower, 0.0), first.x)),
        *between,
        last.moved(max(min(run[-1].upper, 1.0), last.x)),
    ]
    x, low, high = zip(*points, strict=True)
    ax.fill_between(
        scale.x.place(x),
        scale.y.place(low),
        scale.y.place(high),
        color=COLOURS.band,
        linewidth=0,
        label="range of bins if calibrated",
    )


class _BandPoint(NamedTuple):
    """Mean prediction of a bin, and the range of its frequency if calibrated."""

    x: float
    low: float
    high: float

    @classmethod
    def of(cls, b: ReliabilityBin) -> _BandPoint:
        assert b.mean_p is not None
        assert b.consistency is not None
        return cls(b.mean_p, *b.consistency)

    def moved(self, x: float) -> _BandPoint:
        """Point moved along the diagonal."""
        low, high = (min(max(edge + x - self.x, 0.0), 1.0) for edge in (self.low, self.high))
        return _BandPoint(x, low, high)
