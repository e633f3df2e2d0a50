"""The picture of an audit: bias along each covariate, and the groups with the largest."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from calibscale.auditing.groups import Where
from calibscale.auditing.judged import Group
from calibscale.auditing.maps import BiasCurve, Histogram
from calibscale.auditing.results import Audit
from calibscale.bias.map import CONFIDENCE
from calibscale.plots import _CHOSEN, _FAINT, _INK, _OTHER, _plain, _save, check_format

_LEVELS = (_OTHER, "#d08a2e", "#3f8f7f", "#8a5a9e")  # red is for what is rejected
_MOST_GROUPS = 12
_MOST_PANELS = 12
_MOST_TICKS = 16
_HISTOGRAM = "#d9dce1"


def save_audit(result: Audit, path: str | Path) -> None:
    """Draw `plot_audit` into a file, which appears whole or not at all.

    Raises
    ------
    OptionError
        If the ending is not png, svg or pdf.
    """
    check_format(path)
    _save(plot_audit(result), path)


def plot_audit(result: Audit) -> Any:
    """A matplotlib figure: a panel of y − p for the prediction and each covariate, then groups.

    Curves are kernel smooths with the 95 % interval of each point, broken where rows are few; grey
    bars are where rows lie.  Covariates of few values are points with two standard errors.
    Colours are the levels of the first covariate with two to four.  The groups have their
    simultaneous intervals, red where the adjusted p-value is at most 1 − level.

    Parameters
    ----------
    result : Audit

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    by, levels = _colours(result)
    panels, listed = _panels(result)[:_MOST_PANELS], result.groups[:_MOST_GROUPS]
    columns = max(1, len(panels) if len(panels) < 5 else 3 if len(panels) < 7 else 4)
    rows = max(1, -(-len(panels) // columns))
    heights = [2.9 * rows, 0.9 + 0.26 * max(len(listed), 2)]
    size = (min(max(3.1 * columns, 8.4), 12.4), sum(heights) + 1.0)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.08))
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    above, below = parts
    widths = [1.0] * columns if rows > 1 else [_width(result, name, by) for name in panels]
    grid = above.add_gridspec(rows, columns, width_ratios=widths or [1.0])
    for i, name in enumerate(panels):
        axis = above.add_subplot(grid[i // columns, i % columns])
        axis.axhline(0, color=_FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        if any(curve.covariate == name for curve in result.curves):
            _smooth(axis, result, name, levels)
        else:
            _points(axis, result, str(name), by, levels)
        axis.set_ylim(*_reach(result, name))
        axis.locator_params(axis="y", nbins=7)
        axis.set_xlabel(name or _prediction(result), fontsize=9, color=_INK, parse_math=False)
        if i % columns == 0:
            axis.set_ylabel("bias: y − p", fontsize=9, color=_INK)
        _plain(axis)
    _forest(below.subplots(), result, listed)
    figure.suptitle(_title(result), fontsize=11, color=_INK, parse_math=False)
    _legend(figure, result, by, levels)
    return figure


def _title(result: Audit) -> str:
    name = str(result.source["name"]).rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr")
    name = name if len(name) <= 50 else f"{name[:49]}…"
    return "\n".join([f"{name}, {result.n:,} rows", *textwrap.wrap(result.verdict, 90)])


def _prediction(result: Audit) -> str:
    return "confidence p" if result.notion == "top_label" else "prediction p"


def _panels(result: Audit) -> list[str | None]:
    """What has a panel: the prediction and the covariates that vary."""
    drawn = [curve.covariate for curve in result.curves]
    levelled = {g.where[0].covariate for g in result.groups if g.where[0].value is not None}
    names = [name for name in result.covariates if name in drawn or name in levelled]
    return [*([None] if None in drawn else []), *names]


def _colours(result: Audit) -> tuple[str | None, dict[float | None, str]]:
    """The covariate that colours stand for, and the colour of each of its levels."""
    by = next((curve.by for curve in result.curves), None)
    levels = dict.fromkeys(curve.level for curve in result.curves)
    return by, dict(zip(levels, _LEVELS, strict=False))


def _width(result: Audit, name: str | None, by: str | None) -> float:
    """Of a panel: a few points need less than a curve."""
    if any(curve.covariate == name for curve in result.curves):
        return 1.0
    count = sum(_is(group, str(name)) for group in result.groups)
    return min(1.0, 0.3 + 0.1 * count * (1 if by in (None, name) else 2))


def _reach(result: Audit, name: str | None) -> tuple[float, float]:
    """The height of the prediction's panel, or of all others: of bias ± one standard error."""
    found = [(-0.02, 0.02)]
    for curve in result.curves:
        if (curve.covariate is None) is (name is None):
            known = np.isfinite(curve.bias)
            bias, error = curve.bias[known], curve.standard_error[known]
            found += zip((bias - error).tolist(), (bias + error).tolist(), strict=True)
    if name is not None:
        points = (g for g in result.groups if all(w.value is not None for w in g.where))
        found += [(g.bias - g.standard_error, g.bias + g.standard_error) for g in points]
    low, high = min(a for a, _ in found), max(b for _, b in found)
    room = high - low
    return low - 0.3 * room, high + 0.15 * room  # the histogram lies below


# ---------------------------------------------------------------- panels


def _smooth(axis: Any, result: Audit, name: str | None, levels: dict[float | None, str]) -> None:
    """Curves of one covariate over the histogram of its values."""
    for shown in result.histograms:
        if shown.covariate == name:
            _density(axis, shown)
    for curve in result.curves:
        if curve.covariate == name:
            _curve(axis, curve, levels[curve.level])
    axis.margins(x=0.02)
    axis.locator_params(axis="x", nbins=6)


def _curve(axis: Any, curve: BiasCurve, color: str) -> None:
    axis.fill_between(
        curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0, zorder=2
    )
    axis.plot(curve.x, curve.bias, color=color, linewidth=1.8, zorder=3)


def _density(axis: Any, shown: Histogram) -> None:
    """Where rows lie, along the lower edge."""
    edges, most = np.array(shown.edges), max(*shown.counts, 1)
    axis.bar(
        edges[:-1], 0.14 * np.array(shown.counts) / most, np.diff(edges), align="edge",
        color=_HISTOGRAM, linewidth=0, zorder=0, transform=axis.get_xaxis_transform(),
    )  # fmt: skip


def _points(
    axis: Any, result: Audit, name: str, by: str | None, levels: dict[float | None, str]
) -> None:
    """A point for each level, or for each level and colour."""
    alone = {g.where[0].value: g for g in result.groups if _is(g, name)}
    values = sorted(v for v in alone if v is not None)
    for i, value in enumerate(values):
        if by is None or by == name:
            _point(axis, i, alone[value], levels.get(value, _OTHER))
            continue
        _point(axis, i - 0.4 * len(levels) / (len(levels) + 1), alone[value], _FAINT)
        for offset, crossed, color in _dodged(result, Where(name, value), by, levels):
            _point(axis, i + offset, crossed, color)
    shown = range(0, len(values), -(-len(values) // _MOST_TICKS) or 1)
    axis.set_xticks(list(shown), [f"{values[i]:g}" for i in shown])
    axis.set_xlim(-0.6, len(values) - 0.4)


def _is(group: Group, name: str) -> bool:
    where = group.where
    return len(where) == 1 and where[0].covariate == name and where[0].value is not None


def _dodged(
    result: Audit, where: Where, by: str, levels: dict[float | None, str]
) -> Iterator[tuple[float, Group, str]]:
    """The crossings of a level with the colours, side by side."""
    for k, (level, color) in enumerate(levels.items()):
        for group in result.groups:
            if len(group.where) == 2 and set(group.where) == {where, Where(by, level)}:
                yield 0.8 * (k + 1 - len(levels) / 2) / (len(levels) + 1), group, color


def _point(axis: Any, x: float, group: Group, color: str) -> None:
    axis.errorbar(
        [x], [group.bias], [2 * group.standard_error], fmt="o", color=color, markersize=5,
        linewidth=1.4, capsize=0, zorder=3,
    )  # fmt: skip


# ---------------------------------------------------------------- groups


def _forest(axis: Any, result: Audit, listed: tuple[Group, ...]) -> None:
    """The groups of largest |z| with their simultaneous intervals."""
    axis.axvline(0, color=_FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    biased = set(result.biased_groups)
    for i, group in enumerate(listed):
        color = _CHOSEN if group in biased else _OTHER
        axis.plot([group.low, group.high], [i, i], color=color, linewidth=2.2, alpha=0.45)
        axis.plot([group.bias], [i], "o", color=color, markersize=5)
    names = [f"{group.name}   ({group.n:,})" for group in listed]
    axis.set_yticks(range(len(listed)), names, parse_math=False)
    axis.set_ylim(len(listed) - 0.4, -0.6)
    if not listed:
        axis.text(0.5, 0.5, "no group has enough rows", ha="center", transform=axis.transAxes)
    some, count = f"{len(listed)} groups (rows)", len(result.groups)
    some = (
        some if len(listed) == count else f"the {len(listed)} most biased of {count} groups (rows)"
    )
    axis.set_title(some, fontsize=9, color=_INK, loc="left")
    words = f"bias: y − p, {100 * result.level:g} % intervals over all {count} groups"
    axis.set_xlabel(words, fontsize=9, color=_INK)
    _plain(axis)
    axis.tick_params(axis="y", length=0)


def _legend(figure: Any, result: Audit, by: str | None, levels: dict[float | None, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    line: dict[str, Any] = {"linewidth": 1.8, "marker": "o", "markersize": 4.5}
    entries: list[tuple[Any, str]] = []
    if by is not None:
        entries = [
            (Line2D([], [], color=color, **line), f"{by} = {level:g}")
            for level, color in levels.items()
        ]
        if any(_is(g, name) for g in result.groups for name in result.covariates if name != by):
            entries.append((Line2D([], [], color=_FAINT, **line), "all rows"))
    if result.curves:
        told = f"{100 * CONFIDENCE:g} % interval of each point"
        entries.append((Patch(color=_OTHER, alpha=0.25), told))
    if any(_is(group, name) for group in result.groups for name in result.covariates):
        entries.append((Line2D([], [], color=_OTHER, **line), "± 2 standard errors"))
    if result.histograms:
        entries.append((Patch(color=_HISTOGRAM), "where rows are"))
    if result.biased_groups:
        dot = Line2D([], [], color=_CHOSEN, **line)
        entries.append((dot, f"group with adjusted p ≤ {1 - result.level:.2g}"))
    if not entries:
        return
    legend = figure.legend(
        *zip(*entries, strict=True), loc="outside lower center", ncols=min(len(entries), 6),
        columnspacing=1.4, fontsize=8, frameon=False, labelcolor=_INK,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
