"""Pictures of results; the only module that knows matplotlib."""

from __future__ import annotations

import math
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calibscale.errors import OptionError
from calibscale.files import replacing
from calibscale.selection.results import Candidate, Selection

if TYPE_CHECKING:
    from calibscale.diagram import Curve, Reliability, ReliabilityBin

_FORMATS = (".png", ".svg", ".pdf")
_CHOSEN, _OTHER = "#c1432e", "#4a6fa5"
_BAND, _ROWS, _FAINT, _INK = "#dde6f1", "#92a9cb", "#8a8f98", "#2b2f36"
_LABELS = {"h": "bandwidth h", "reg": "ridge reg", "bins": "bins"}


def check_format(path: str | Path) -> None:
    """Fail early where a picture could not be drawn.

    Raises
    ------
    OptionError
        If the ending is not png, svg or pdf.
    """
    if Path(path).suffix not in _FORMATS:
        raise OptionError(f"{path}: pictures end in {', '.join(_FORMATS)}")


def save_selection(result: Selection, path: str | Path) -> None:
    """Draw `plot_selection` into a file, which appears whole or not at all."""
    check_format(path)
    _save(plot_selection(result), path)


def save_reliability(result: Reliability, path: str | Path) -> None:
    """Draw `plot_reliability` into a file, which appears whole or not at all."""
    check_format(path)
    _save(plot_reliability(result), path)


def _save(figure: Any, path: str | Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    with replacing(path) as file:
        figure.savefig(file, format=Path(path).suffix[1:], dpi=150)


def plot_selection(result: Selection) -> Any:
    """A matplotlib figure: risk along each grid, and the estimates of the best of each estimator.

    Parameters
    ----------
    result : Selection

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure

    grids = {
        name: [c for c in result.candidates if c.estimator == name] for name in result.estimators
    }
    several = {name: grid for name, grid in grids.items() if len(grid) > 1}
    columns = max(1, len(several))
    figure = Figure(figsize=(3.0 * columns + 3.4, 3.6), layout="constrained")
    axes = figure.subplots(1, columns + 1, width_ratios=[1.0] * columns + [1.1], squeeze=False)[0]
    for axis, (name, grid) in zip(axes, several.items(), strict=False):
        _risk_curve(axis, result, name, grid)
    if several:
        axes[0].set_ylabel("√risk × 100")
    _estimates(axes[-1], result)
    title = f"{result.notion.replace('_', '-')} calibration, {result.n:,} rows"
    figure.suptitle(f"{title}: {result.selected.estimator} has the smallest risk", fontsize=11)
    return figure


def _root_risk(candidate: Candidate) -> float:
    return 100 * math.sqrt(max(candidate.risk, 0.0))


def _risk_curve(axis: Any, result: Selection, name: str, grid: list[Candidate]) -> None:
    """Risk along a grid; the band is the paired error of the difference to the best of all."""
    grid = sorted(grid, key=lambda c: next(iter(c.hyperparameter.values())))
    (label,) = grid[0].hyperparameter
    x = [c.hyperparameter[label] for c in grid]
    y = [_root_risk(c) for c in grid]
    spread = [50 * 2 * c.difference_error / math.sqrt(max(c.risk, 1e-300)) for c in grid]
    low = [a - b for a, b in zip(y, spread, strict=True)]
    high = [a + b for a, b in zip(y, spread, strict=True)]
    axis.fill_between(x, low, high, color=_OTHER, alpha=0.2, linewidth=0)
    axis.plot(x, y, "o-", color=_OTHER, markersize=3, linewidth=1)
    best = result.best_of(name)
    color = _CHOSEN if best is result.selected else _OTHER
    axis.plot([best.hyperparameter[label]], [_root_risk(best)], "o", color=color, markersize=7)
    if label != "bins":
        axis.set_xscale("log")
    floor = _root_risk(result.selected)
    top = sorted(y)[len(y) // 2] + 2 * (sorted(y)[len(y) // 2] - floor)
    axis.set_ylim(bottom=min(min(y), floor) - 0.05 * (max(min(max(y), top), floor) - floor))
    axis.set_ylim(top=max(min(max(y), top), min(y) * 1.0001) + 0.05 * (max(y) - min(y)) / len(y))
    axis.axhline(floor, color=_CHOSEN, linewidth=0.8, linestyle=":")
    axis.set_title(name, fontsize=10)
    axis.set_xlabel(_LABELS.get(label, label), fontsize=9)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.ticklabel_format(axis="y", useOffset=False)


def _estimates(axis: Any, result: Selection) -> None:
    """√estimate of the best of each estimator, with the interval of the calibration error."""
    best = [result.best_of(name) for name in reversed(result.estimators)]
    for i, candidate in enumerate(best):
        color = _CHOSEN if candidate is result.selected else _OTHER
        root = candidate.root or 0.0
        low, high = candidate.root_interval or (root, root)
        axis.plot([low, high], [i, i], color=color, linewidth=2, alpha=0.5)
        axis.plot([root], [i], "o", color=color, markersize=6)
    axis.set_yticks(range(len(best)), [c.estimator for c in best], fontsize=9)
    axis.set_ylim(-0.6, len(best) - 0.4)
    axis.margins(x=0.15)
    axis.locator_params(axis="x", nbins=4)
    axis.set_xlabel("calibration error (root), 95 % interval", fontsize=9)
    axis.set_title("estimate", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


# ---------------------------------------------------------------- reliability

MAX_PANELS = 12
_ZOOM = 0.4  # where everything lies below this, the axes end sooner than at 1
_COLUMNS = {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 6: 3}  # of that many panels; of more: 4


class _Frame(NamedTuple):
    """What the panels of one figure share."""

    end: float  # of both axes
    most: int  # rows of the fullest bin
    logarithmic: bool


def plot_reliability(result: Reliability) -> Any:
    """A matplotlib figure: observed frequency against prediction, and the rows of every bin.

    A point is the frequency of a bin, at its mean prediction, with its confidence interval.  The
    stem is its gap to the diagonal; both are red where the point lies outside the shaded band in
    which it would be were the model calibrated.  With groups there is a panel for each of the 12
    largest, over the frequencies of all rows in grey.

    Parameters
    ----------
    result : Reliability

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure

    shown = _largest(result.groups)
    curves = list(shown.values()) or [result.overall]
    frame = _frame(curves)
    columns = _COLUMNS.get(len(curves), 4)
    rows = -(-len(curves) // columns)
    size = (2.6 * columns + 0.4, 3.4 * rows + 1.5) if columns > 1 else (5.4, 6.4)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[3.6, 1] * rows)
    for i, (name, curve) in enumerate(zip(shown or [None], curves, strict=True)):
        row, column = 2 * (i // columns), i % columns
        upper = figure.add_subplot(grid[row, column])
        lower = figure.add_subplot(grid[row + 1, column], sharex=upper)
        if shown:
            _reference(upper, result.overall)
        _diagram(upper, curve, frame)
        _counts(lower, curve, frame)
        if name is not None:
            words = f"{result.group_by} = {name:g}\n{_numbers(curve)}"
            upper.set_title(words, fontsize=9, color=_INK, parse_math=False)
        upper.tick_params(labelbottom=False, labelleft=column == 0)
        lower.tick_params(labelbottom=i + columns >= len(curves), labelleft=column == 0)
        if i + columns >= len(curves):
            lower.set_xlabel(_prediction(result), fontsize=9)
        if column == 0:
            upper.set_ylabel(_outcome(result), fontsize=9)
            lower.set_ylabel("rows", fontsize=9)
    head = [_name(result), f"{result.judged}, {_numbers(result.overall)}"]
    if shown:
        head += [_left_out(result, shown)]
        figure.suptitle("\n".join(head).rstrip(), fontsize=11, color=_INK, parse_math=False)
    else:
        head += [result.verdict]
        upper.set_title("\n".join(head), fontsize=10, color=_INK, parse_math=False)
    _legend(figure, result, curves, columns={3: 3, 4: 5}.get(columns, 2))
    figure.align_ylabels()
    return figure


def _outcome(result: Reliability) -> str:
    return "accuracy" if result.notion == "top_label" else "observed frequency"


def _prediction(result: Reliability) -> str:
    if result.notion == "top_label":
        return "confidence"
    k = 1 if result.class_index is None else result.class_index
    names = result.source.get("class_names")
    return f"predicted P(y = {names[k] if names else k})"


def _name(result: Reliability) -> str:
    name = str(result.source["name"]).rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr")
    return name if len(name) <= 50 else f"{name[:49]}…"


def _numbers(curve: Curve) -> str:
    rows = f"{curve.n:,} row{'s' * (curve.n != 1)}"
    return rows if curve.ece is None else f"{rows}, ECE {curve.ece:.4f}"


def _left_out(result: Reliability, shown: dict[float, Curve]) -> str:
    absent = [f"{value:g}" for value in result.groups if value not in shown]
    listed = ", ".join(absent[:8]) + (", …" if len(absent) > 8 else "")
    groups = f"{len(absent)} smaller group{'s' * (len(absent) != 1)} not drawn"
    return f"{groups}: {result.group_by} = {listed}" if absent else ""


def _largest(groups: dict[float, Curve]) -> dict[float, Curve]:
    """The groups of most rows, in the order of their values."""
    kept = sorted(groups, key=lambda value: -groups[value].n)[:MAX_PANELS]
    return {value: groups[value] for value in groups if value in kept}


def _frame(curves: list[Curve]) -> _Frame:
    bins: list[Any] = [b for curve in curves for b in curve.filled]
    highest = max((max(b.mean_p, b.interval.upper, b.consistency.upper) for b in bins), default=1.0)
    counts = [b.count for b in bins]
    most, least = max(counts, default=1), min(counts, default=1)
    return _Frame(1.05 * highest if 0 < highest < _ZOOM else 1.0, most, most > 100 * least)


def _diagram(axis: Any, curve: Curve, frame: _Frame) -> None:
    """Band, diagonal, gaps, frequencies with their intervals."""
    end = frame.end
    axis.set_axisbelow(True)
    axis.grid(color="#eef0f3", linewidth=0.8)
    for empty, run in groupby(curve.bins, key=lambda b: b.frequency is None):
        if not empty:
            adjacent = list(run)
            _band(axis, adjacent, end)
            x, f = [b.mean_p for b in adjacent], [b.frequency for b in adjacent]
            axis.plot(x, f, color=_OTHER, linewidth=0.8, alpha=0.5, zorder=2)
    axis.plot([0, end], [0, end], color=_FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
    small = len(curve.filled) > 25
    for color, outside in ((_OTHER, False), (_CHOSEN, True)):
        some: list[Any] = [b for b in curve.filled if b.outside is outside]
        if not some:  # a line of no points would take up room in the layout
            continue
        x, f = [b.mean_p for b in some], [b.frequency for b in some]
        below = [b.frequency - b.interval.lower for b in some]
        above = [b.interval.upper - b.frequency for b in some]
        axis.vlines(x, x, f, color=color, linewidth=2 if small else 4, alpha=0.3)
        axis.errorbar(
            x, f, [below, above], fmt="o", color=color, linewidth=0.9, clip_on=False,
            markersize=2.5 if small else 4.5, capsize=0 if small else 2, zorder=3,
        )  # fmt: skip
    if not curve.filled:
        axis.text(0.5 * end, 0.25 * end, "no rows", ha="center", va="center", color=_FAINT)
    pad = 0.015 * end
    axis.set_xlim(-pad, end + pad)
    axis.set_ylim(-pad, end + pad)
    axis.locator_params(nbins=6)
    _plain(axis)


def _reference(axis: Any, overall: Curve) -> None:
    axis.plot(
        [b.mean_p for b in overall.filled], [b.frequency for b in overall.filled], "-",
        color=_FAINT, linewidth=2.5, alpha=0.45,
    )  # fmt: skip


def _counts(axis: Any, curve: Curve, frame: _Frame) -> None:
    """Rows of each bin, on the same scale in every panel."""
    for b in curve.bins:
        if b.count:
            _bar(axis, b, frame.end, 0, b.count, _ROWS)
    if frame.logarithmic:
        axis.set_yscale("log")
        axis.set_ylim(0.6, 2 * frame.most)
        axis.minorticks_off()
        axis.locator_params(axis="y", numticks=4)
    else:
        axis.set_ylim(0, 1.08 * frame.most)
        axis.locator_params(axis="y", nbins=4, integer=True)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _plain(axis)


def _band(axis: Any, run: list[Any], end: float) -> None:
    """The consistency intervals of adjacent bins, the outer ones moved along the diagonal."""
    first, last = run[0], run[-1]
    points = [(b.mean_p, *b.consistency) for b in run]
    points.insert(0, _moved(first, min(_span(first, end)[0], first.mean_p)))
    points.append(_moved(last, max(_span(last, end)[1], last.mean_p)))
    axis.fill_between(*zip(*points, strict=True), color=_BAND, linewidth=0.6)


def _moved(b: Any, x: float) -> tuple[float, float, float]:
    low, high = (min(max(edge + x - b.mean_p, 0.0), 1.0) for edge in b.consistency)
    return x, low, high


def _span(b: ReliabilityBin, end: float) -> list[float]:
    left = min(max(b.lower, 0.0), end)
    return [left, max(left, min(b.upper, end))]


def _bar(
    axis: Any, b: ReliabilityBin, end: float, bottom: float, height: float, color: str
) -> None:
    """A box over the bin; its outline keeps the narrowest visible."""
    left, right = _span(b, end)
    axis.bar(
        left, height, right - left, bottom, align="edge", color=color, edgecolor=color,
        linewidth=0.6,
    )  # fmt: skip


def _plain(axis: Any) -> None:
    axis.tick_params(labelsize=8, color=_FAINT)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(_FAINT)


def _legend(figure: Any, result: Reliability, curves: list[Curve], columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    level = f"{100 * result.level:g} %"
    entries = [
        (Line2D([], [], color=_FAINT, linewidth=0.9, linestyle=(0, (4, 3))), "calibrated"),
        (Patch(color=_BAND), f"where {level} would be if calibrated"),
        (_dot(_OTHER), f"{_outcome(result)}, {level} interval"),
    ]
    if any(curve.outside for curve in curves):
        entries.append((_dot(_CHOSEN), "outside the band"))
    if result.groups:
        entries.append((Line2D([], [], color=_FAINT, linewidth=2.5, alpha=0.45), "all rows"))
    handles, labels = zip(*entries, strict=True)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False,
        labelcolor=_INK,
    )  # fmt: skip


def _dot(color: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, marker="o", markersize=4.5, linewidth=0.9)
