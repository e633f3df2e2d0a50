"""Plots of a quantity along something: risk, bias over predictions and covariates, power."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from calibscale.report import words
from calibscale.report.drawing import (
    WIDTH,
    Picture,
    area,
    base_line,
    boxes,
    canvas,
    dots,
    line,
    rectangle,
    segments,
    tick_names,
    ticks,
    x_axis,
    y_axis,
)

_LEFT, _RIGHT = 48.0, WIDTH - 10.0
_LEVELS = 6  # shades of each sign
_MOST_CELLS = 30  # of a map along one axis, where points are no grid
_MOST_LEVELS = 8  # of a covariate, that are all named
_APART = 2.0  # |z| at which a cell is marked
_ROLES = ("accent", "high", "other", "ink")  # of the curves of one plot
MARKS = ("curve0", "curve1", "curve2", "curve3")  # the same in a legend


# ---------------------------------------------------------------- risk


def risk(
    label: str,
    x: Sequence[float],
    y: Sequence[float],
    spread: Sequence[float],
    best: float,
    floor: float,
    chosen: bool,
) -> Picture:
    """√risk along a grid with the error of its difference to the best of all, `floor`."""
    logarithmic = label != "bins" and min(x) > 0
    at = [math.log10(v) if logarithmic else v for v in x]
    middle = sorted(y)[len(y) // 2]
    most = max(min(max(y), middle + 2 * (middle - floor)), min(y), floor)
    low, high = min([*y, floor]), most
    room = max(0.08 * (high - low), 1e-9 * abs(high)) or 1.0
    low, high = low - room, high + 2 * room
    with canvas(210) as sheet:
        reach = (min(at), max(at)) if max(at) > min(at) else (at[0] - 1, at[0] + 1)
        side = 0.03 * (reach[1] - reach[0])
        axis = sheet.axes(
            _LEFT + 6, 22, _RIGHT, 170, (reach[0] - side, reach[1] + side), (low, high)
        )
        sheet.text(2, 11, "√risk × 100", "muted")
        shown = ticks(low, high, 4)
        y_axis(axis, shown, tick_names(shown))
        marks = _decades(*reach) if logarithmic else ticks(*reach, 5)
        names = [_number(10**v) for v in marks] if logarithmic else tick_names(marks)
        x_axis(axis, marks, names)
        base_line(axis)
        sheet.text(_RIGHT, 205, label, "muted", "right")
        inside = [v <= high for v in y]
        for shown_, run in groupby(zip(inside, at, y, spread, strict=True), key=lambda p: p[0]):
            some = list(run)
            if shown_ and len(some) > 1:
                edges = [[min(max(v + s * e, low), high) for _, _, v, e in some] for s in (-1, 1)]
                area(axis, [a for _, a, _, _ in some], edges[0], edges[1], "accent", 0.2)
        segments(axis, [((axis.get_xlim()[0], floor), (axis.get_xlim()[1], floor))], "high", 1.1,
                 (3, 3))  # fmt: skip
        line(axis, at, [v if v <= high else None for v in y], "accent", 1.4)
        kept = [(a, v) for a, v in zip(at, y, strict=True) if v <= high]
        dots(axis, [a for a, _ in kept], [v for _, v in kept], "accent", 4)
        i = list(x).index(best)
        dots(axis, [at[i]], [y[i]], "high" if chosen else "accent", 8)
    return sheet.picture


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten, or round numbers between them where there are few."""
    whole = [float(k) for k in range(math.ceil(low), math.floor(high) + 1)]
    if len(whole) >= 3:
        return whole[:: -(-len(whole) // 5)]
    found = [
        k + math.log10(d)
        for k in range(math.floor(low), math.ceil(high) + 1)
        for d in (1, 1.5, 2, 3, 5, 7)
        if low - 1e-9 <= k + math.log10(d) <= high + 1e-9
    ]
    return found[:: -(-len(found) // 5)] or [low, high]


def _number(value: float) -> str:
    return f"{value:.3g}" if 1e-4 < value < 1e6 else f"1e{round(math.log10(value))}"


# ---------------------------------------------------------------- the map of local bias


class Point(NamedTuple):
    """One place of the map."""

    x: float  # of the covariate
    prediction: float
    bias: float
    z: float
    rows: float


class Scale(NamedTuple):
    """What the darkest shade stands for, and how many cells are marked."""

    most: float
    marked: int


def bias_map(points: Sequence[Point], covariate: str) -> tuple[Picture, Scale]:
    """Bias over a covariate and the prediction: a colour for each sign, shades for its size."""
    columns, rows_ = _edges([p.x for p in points]), _edges([p.prediction for p in points])
    cells = _cells(points, columns, rows_)
    most = _largest([bias for bias, _ in cells.values()])
    with canvas(330) as sheet:
        axis = sheet.axes(_LEFT, 22, _RIGHT, 284, (columns[0], columns[-1]), (rows_[0], rows_[-1]))
        sheet.text(2, 11, "prediction", "muted")
        sheet.text(_RIGHT, 320, words.short(covariate, 48), "muted", "right")
        for role, sign in (("high", 1.0), ("low", -1.0)):
            for level in range(1, _LEVELS + 1):
                outlines = _runs(cells, columns, rows_, sign, level, most)
                boxes(axis, outlines, role, 0.08 + 0.82 * level / _LEVELS)
        marked = [key for key, (_, z) in cells.items() if abs(z) > _APART]
        segments(axis, _signs(cells, marked, columns, rows_), "ink", 1.0, opacity=0.75)
        across, up = ticks(columns[0], columns[-1], 6), ticks(rows_[0], rows_[-1], 6)
        levels = sorted({p.x for p in points})
        across = levels if len(levels) <= _MOST_LEVELS else across
        x_axis(axis, across, tick_names(across))
        y_axis(axis, up, tick_names(up), grid=False)
        base_line(axis)
    return sheet.picture, Scale(most, len(marked))


def _edges(values: Sequence[float]) -> list[float]:
    """Borders of cells: between the values, or evenly where there are many."""
    known = sorted(set(values))
    if len(known) > _MOST_CELLS:
        (low, *_, high), count = known, max(6, min(_MOST_CELLS, round(len(values) ** 0.5 / 1.5)))
        return [low + (high - low) * i / count for i in range(count + 1)]
    if len(known) == 1:
        return [known[0] - 0.5, known[0] + 0.5]
    inner = [(a + b) / 2 for a, b in pairwise(known)]
    return [2 * known[0] - inner[0], *inner, 2 * known[-1] - inner[-1]]


Cells = dict[tuple[int, int], tuple[float, float]]


def _cells(points: Sequence[Point], columns: list[float], rows_: list[float]) -> Cells:
    """Mean bias and z of the points in each cell, by their effective rows."""
    found: dict[tuple[int, int], list[Point]] = defaultdict(list)
    for point in points:
        i = min(bisect_right(columns, point.x), len(columns) - 1) - 1
        j = min(bisect_right(rows_, point.prediction), len(rows_) - 1) - 1
        found[i, j].append(point)
    out = {}
    for key, some in found.items():
        total = sum(p.rows for p in some) or 1.0
        out[key] = (
            sum(p.rows * p.bias for p in some) / total,
            sum(p.rows * p.z for p in some) / total,
        )
    return out


def _largest(values: Sequence[float]) -> float:
    """Of the sizes, but for the most extreme fiftieth."""
    sizes = sorted(map(abs, values))
    return sizes[int(0.98 * (len(sizes) - 1))] or 1e-12 if sizes else 1e-12


def _runs(
    cells: Cells, columns: list[float], rows_: list[float], sign: float, level: int, most: float
) -> list[list[tuple[float, float]]]:
    """Cells of one shade; neighbours in a row are one rectangle."""
    wanted = sorted(
        (j, i)
        for (i, j), (bias, _) in cells.items()
        if bias * sign > 0 and min(_LEVELS, math.ceil(_LEVELS * abs(bias) / most)) == level
    )
    outlines = []
    for _, run in groupby(enumerate(wanted), key=lambda item: (item[1][0], item[1][1] - item[0])):
        some = [place for _, place in run]
        (j, first), (_, last) = some[0], some[-1]
        outlines.append(rectangle(columns[first], columns[last + 1], rows_[j], rows_[j + 1]))
    return outlines


def _signs(
    cells: Cells, marked: Sequence[tuple[int, int]], columns: list[float], rows_: list[float]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """A + or a − in each of the cells."""
    unit_x = (columns[-1] - columns[0]) / (_RIGHT - _LEFT)
    unit_y = (rows_[-1] - rows_[0]) / 262
    found = []
    for i, j in marked:
        x, y = (columns[i] + columns[i + 1]) / 2, (rows_[j] + rows_[j + 1]) / 2
        wide = min(2.5 * unit_x, 0.35 * (columns[i + 1] - columns[i]))
        high = min(2.5 * unit_y, 0.35 * (rows_[j + 1] - rows_[j]))
        found.append(((x - wide, y), (x + wide, y)))
        if cells[i, j][0] > 0:
            found.append(((x, y - high), (x, y + high)))
    return found


# ---------------------------------------------------------------- bias along one axis


class Curve(NamedTuple):
    """Bias along x; None where too few rows are near."""

    name: str
    x: Sequence[float]
    bias: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]


def bias_curves(curves: Sequence[Curve], label: str) -> Picture:
    """Curves with the interval of each of their points."""
    ends = [v for curve in curves for v in curve.x]
    known = [  # half of the way to their ends
        (b + end) / 2 for c in curves for ends in (c.low, c.high)
        for b, end in zip(c.bias, ends, strict=True) if b is not None and end is not None
    ]  # fmt: skip
    inner = [b for c in curves for b in c.bias if b is not None]
    room = 0.7 * (max(inner, default=0.0) - min(inner, default=0.0)) + 0.01
    low = max(min([*known, 0.0]), min([*inner, 0.0]) - room)
    high = min(max([*known, 0.0]), max([*inner, 0.0]) + room)
    pad = 0.05 * (high - low) or 0.01
    low, high = low - pad, high + pad
    left, right = min(ends, default=0.0), max(ends, default=1.0)
    right = right if right > left else left + 1
    with canvas(220) as sheet:
        axis = sheet.axes(_LEFT, 22, _RIGHT - 4, 180, (left, right), (low, high))
        sheet.text(2, 11, "bias y − p", "muted")
        sheet.text(_RIGHT, 215, words.short(label, 48), "muted", "right")
        shown, across = ticks(low, high, 5), ticks(left, right, 5)
        y_axis(axis, shown, tick_names(shown))
        x_axis(axis, across, tick_names(across))
        segments(axis, [((left, 0.0), (right, 0.0))], "muted", 1.0)
        for k, curve in enumerate(curves):
            role = _ROLES[k % len(_ROLES)]
            cut = [None if v is None else min(max(v, low), high) for v in curve.bias]
            _around(axis, curve, role, (low, high), 0.16 if len(curves) == 1 else 0.1)
            line(axis, curve.x, cut, role, 1.6, ((), (6, 3), (2, 2), (8, 2, 2, 2))[k % 4])
    return sheet.picture


def _around(axis: Any, curve: Curve, role: str, reach: tuple[float, float], opacity: float) -> None:
    low, high = reach
    points = list(zip(curve.x, curve.low, curve.high, strict=True))
    for empty, run in groupby(points, key=lambda point: None in point):
        some: list[Any] = list(run)
        if empty or len(some) < 2:
            continue
        x = [a for a, _, _ in some]
        edges = [[min(max(point[k], low), high) for point in some] for k in (1, 2)]
        area(axis, x, edges[0], edges[1], role, opacity)


# ---------------------------------------------------------------- power


def power(
    sizes: Sequence[int], shares: Sequence[float], goal: float, needed: int | None,
    interval: tuple[float, float] | None,
) -> Picture:  # fmt: skip
    """Share of detections by the number of rows, on a logarithmic scale."""
    found = sorted(zip(sizes, shares, strict=True))
    needed = needed if needed is not None and needed > 0 else None
    every = [*sizes, *([needed] if needed else [])]
    low, high = math.log10(min(every)), math.log10(max(every))
    room = 0.06 * (high - low) or 0.2
    with canvas(220) as sheet:
        axis = sheet.axes(_LEFT, 22, _RIGHT, 180, (low - room, high + room), (0.0, 1.04))
        left, right = axis.get_xlim()
        sheet.text(2, 11, "power", "muted")
        sheet.text(_RIGHT, 215, "rows", "muted", "right")
        y_axis(axis, [0, 0.2, 0.4, 0.6, 0.8, 1], ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"])
        marks = _decades(left, right)
        x_axis(axis, marks, [f"{10**v:,.0f}" for v in marks])
        base_line(axis)
        segments(axis, [((left, goal), (right, goal))], "high", 1.2, (5, 3))
        if interval is not None and interval[0] > 0:
            ends = [min(max(math.log10(v), left), right) for v in interval]
            boxes(axis, [rectangle(ends[0], ends[1], 0.0, 1.04)], "high", 0.15)
        if needed:
            segments(axis, [((math.log10(needed), 0.0), (math.log10(needed), 1.04))], "high", 1.2)
        x, y = [math.log10(n) for n, _ in found], [s for _, s in found]
        line(axis, x, y, "accent", 1.5)
        dots(axis, x, y, "accent", 5)
    return sheet.picture
