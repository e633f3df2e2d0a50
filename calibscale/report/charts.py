"""Plots of estimates: strips of intervals, reliability diagrams, trends and evidence over days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from calibscale.report import words
from calibscale.report.dates import day_axis, day_reach, line_ends, ordinals, step_of
from calibscale.report.drawing import (
    LETTER,
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
    text,
    tick_names,
    ticks,
    x_axis,
    y_axis,
)

_LEFT, _RIGHT = 48.0, WIDTH - 10.0  # of axes that stand alone
_LABELS = 17  # letters of labels that stand beside their bars; longer ones stand above
_STEP = 18.0  # from row to row
_STRIPS = 340.0  # units that strips of one picture may take
_DASHES = ((), (6, 2), (2, 2), (8, 2, 2, 2), (1, 2), (4, 1, 1, 1, 1, 1))  # of lines with names
_ZOOM = 0.4  # where everything lies below this, the axes end sooner than at 1


# ---------------------------------------------------------------- strips


class Row(NamedTuple):
    """A value with its interval."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    alert: bool = False
    limits: tuple[float, ...] = ()  # thresholds
    bar: str = ""  # role of the bar, where it is no interval of the value


class Strip(NamedTuple):
    """Values that share a scale."""

    title: str
    rows: tuple[Row, ...]
    zero: bool = False  # whether 0 is what they are compared with


def strips(found: Sequence[Strip]) -> Picture:
    """Strips one below the other, each with its own scale; numbers stand at the right."""
    above = any(len(row.label) > _LABELS for strip in found for row in strip.rows)
    letters = max((len(row.label) for strip in found for row in strip.rows), default=0)
    left = 6.0 if above else min(letters, _LABELS) * LETTER + 10
    step = 29.0 if above else _STEP
    shown = [words.number(row.value, 3) for strip in found for row in strip.rows]
    right = WIDTH - 1.05 * LETTER * max(6, *map(len, shown), 0) - 8
    middle = 0.7 if above else 0.5  # where in its part of the strip a bar lies
    height = sum(_strip_height(strip, step) for strip in found)
    with canvas(height) as sheet:
        top = 0.0
        for strip in found:
            bottom = top + _strip_height(strip, step) - 32
            axis = sheet.axes(
                left, top + _head(strip), right, bottom, _reach(strip), (len(strip.rows), 0.0)
            )
            if strip.title:
                sheet.text(2, top + 12, words.short(strip.title, 54), bold=True)
            _strip(axis, strip, middle)
            for i, row in enumerate(strip.rows):
                y = top + _head(strip) + step * (i + middle) + 4
                role = "alert" if row.alert else "ink"
                place = (2.0, y - 13, "left") if above else (left - 8, y, "right")
                sheet.text(place[0], place[1], words.short(row.label, 46), role, place[2])
                number = words.number(row.value, 3)
                sheet.text(WIDTH - 2, y, number, role, "right", row.alert)
            top = bottom + 32
    return sheet.picture


def in_pictures(found: Sequence[Strip]) -> list[list[Strip]]:
    """Strips in as many pictures as are high enough to be looked at."""
    pictures: list[list[Strip]] = []
    total = sum(_strip_height(strip, _STEP) for strip in found)
    goal = total / max(1, math.ceil(total / _STRIPS))
    used = 0.0
    for strip in found:
        height = _strip_height(strip, _STEP)
        if not pictures or used + height / 2 > goal:
            pictures.append([])
            used = 0.0
        pictures[-1].append(strip)
        used += height
    return pictures


def drawn_limits(strip: Strip) -> bool:
    """Whether a threshold is near enough to be drawn."""
    low, high = _reach(strip)
    return any(low <= limit <= high for row in strip.rows for limit in row.limits)


def _strip_height(strip: Strip, step: float) -> float:
    return _head(strip) + 32.0 + step * len(strip.rows)


def _head(strip: Strip) -> float:
    return 20.0 if strip.title else 4.0


def _reach(strip: Strip) -> tuple[float, float]:
    """From the least to the largest number, with some room."""
    found = [v for row in strip.rows for v in (row.value, row.low, row.high) if v is not None]
    limits = [limit for row in strip.rows for limit in row.limits]
    if strip.zero or not found:
        found.append(0.0)
    low, high = min(found), max(found)
    far = 3 * (high - low) if high > low else math.inf
    near = [v for v in limits if low - far <= v <= high + far]
    low, high = min([low, *near]), max([high, *near])
    if low >= 0 and low < 0.4 * high:
        low = 0.0
    room = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    return (low - room if low != 0 else 0.0), high + room


def _strip(axis: Any, strip: Strip, middle: float) -> None:
    left, right = axis.get_xlim()
    values = ticks(left, right, 4)
    x_axis(axis, values, tick_names(values), grid=True)
    if strip.zero and left <= 0 <= right:
        segments(axis, [((0.0, 0.0), (0.0, float(len(strip.rows))))], "muted", 1.0)
    for i, row in enumerate(strip.rows):
        y, role = i + middle, "alert" if row.alert else "accent"
        if row.low is not None and row.high is not None:
            bar, opacity = (row.bar, 1.0) if row.bar else (role, 0.45)
            segments(axis, [((row.low, y), (row.high, y))], bar, 4, opacity=opacity)
        if row.value is not None:
            dots(axis, [row.value], [y], role, 7)
        near = [limit for limit in row.limits if left <= limit <= right]
        reach = 0.8 * (1 - middle)
        marks = [((limit, y - reach), (limit, y + reach)) for limit in near]
        segments(axis, marks, "alert", 1.4, dashes=(3, 2))


# ---------------------------------------------------------------- reliability


def reliability(bins: Sequence[dict[str, Any]], names: tuple[str, str]) -> Picture:
    """Observed frequency against prediction with bands and intervals, above the rows of each bin.

    `names` are those of the outcome and of the prediction.
    """
    filled = [b for b in bins if b["frequency"] is not None and b["mean_p"] is not None]
    highest = max((v for b in filled for v in _values(b)), default=1.0)
    end = 1.05 * highest if 0 < highest < _ZOOM else 1.0
    pad = 0.02 * end
    with canvas(456) as sheet:
        axis = sheet.axes(_LEFT, 22, _RIGHT, 340, (-pad, end + pad), (-pad, end + pad))
        sheet.text(2, 11, names[0], "muted")
        values = [v for v in ticks(0, end, 5) if v <= end]
        y_axis(axis, values, tick_names(values))
        segments(axis, [((v, -pad), (v, end + pad)) for v in values], "line", 0.7)
        _diagram(axis, bins, end)
        counts = sheet.axes(_LEFT, 356, _RIGHT, 414, (-pad, end + pad), (0.0, 1.0))
        _counts(counts, bins, end)
        x_axis(counts, values, tick_names(values))
        sheet.text(_RIGHT, 449, names[1], "muted", "right")
        sheet.text(2, 354, "rows", "muted")
    return sheet.picture


def _values(b: dict[str, Any]) -> list[float]:
    found = [b["mean_p"], b["frequency"]]
    return [*found, *(v for name in ("interval", "consistency") for v in b[name] or ())]


def _diagram(axis: Any, bins: Sequence[dict[str, Any]], end: float) -> None:
    for empty, run in groupby(bins, key=lambda b: b["frequency"] is None or not b["consistency"]):
        if not empty:
            _band(axis, list(run), end)
    segments(axis, [((0.0, 0.0), (end, end))], "muted", 1.0, dashes=(4, 3))
    filled = [b for b in bins if b["frequency"] is not None and b["mean_p"] is not None]
    small = len(filled) > 25
    line(axis, [b["mean_p"] for b in filled], [b["frequency"] for b in filled], "accent", 0.8)
    for role, outside in (("accent", False), ("alert", True)):
        some = [b for b in filled if bool(b["outside"]) is outside]
        stems = [((b["mean_p"], b["mean_p"]), (b["mean_p"], b["frequency"])) for b in some]
        segments(axis, stems, role, 2 if small else 4, opacity=0.3)
        ends = [(b["mean_p"], *b["interval"]) for b in some if b["interval"]]
        segments(axis, [((x, low), (x, high)) for x, low, high in ends], role, 1.1)
        x, y = [b["mean_p"] for b in some], [b["frequency"] for b in some]
        dots(axis, x, y, role, 3.5 if small else 6)
    if not filled:
        text(axis, 0.5 * end, 0.25 * end, "no rows", "muted", "center")


def _band(axis: Any, run: list[dict[str, Any]], end: float) -> None:
    """Where bins would lie, the outer ones moved along the diagonal to their edges."""
    first, last = run[0], run[-1]
    points = [(b["mean_p"], *b["consistency"]) for b in run]
    points.insert(0, _moved(first, min(max(first["lower"], 0.0), first["mean_p"])))
    points.append(_moved(last, max(min(last["upper"], end), last["mean_p"])))
    x, low, high = zip(*points, strict=True)
    area(axis, x, low, [min(v, end) for v in high], "band")


def _moved(b: dict[str, Any], x: float) -> tuple[float, float, float]:
    low, high = (min(max(edge + x - b["mean_p"], 0.0), 1.0) for edge in b["consistency"])
    return x, low, high


def _counts(axis: Any, bins: Sequence[dict[str, Any]], end: float) -> None:
    """Bars as high as the rows, or their logarithm where they differ by more than a hundred."""
    found = [b["count"] for b in bins if b["count"] > 0]
    most, least = max(found, default=1), min(found, default=1)
    logarithmic = most > 100 * least
    decades = [10**k for k in range(12) if 10**k <= most]

    def height(n: float) -> float:
        if logarithmic:
            return (math.log10(n) + 0.3) / (math.log10(most) + 0.35)
        return n / (1.05 * most)

    outlines = []
    for b in bins:
        left = min(max(b["lower"], 0.0), end)
        right = max(left, min(b["upper"], end))
        if b["count"] > 0 and right > left:
            gap = 0.06 * (right - left)
            outlines.append(rectangle(left + gap, right - gap, 0.0, height(b["count"])))
    shown = decades[:: -(-len(decades) // 3)] if logarithmic else [0, *_half(most)]
    y_axis(axis, [height(v) if v else 0.0 for v in shown], [_thousands(v) for v in shown])
    boxes(axis, outlines, "rows")
    base_line(axis)


def _half(most: int) -> list[int]:
    found = [int(v) for v in ticks(0, most, 3) if v == int(v) and v > 0]
    return found[-2:] or [most]


def _thousands(value: float) -> str:
    """A count in few letters."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


# ---------------------------------------------------------------- over days


class Limit(NamedTuple):
    """A threshold of a trend."""

    value: float
    name: str


def trend(
    days: Sequence[str],
    values: Sequence[float | None],
    low: Sequence[float | None],
    high: Sequence[float | None],
    groups: Sequence[Sequence[float | None]] = (),
    limits: Sequence[Limit] = (),
    alert: bool = False,
    names: Sequence[str] = (),
) -> Picture:
    """One estimator over days; `limits` that lie far away are left out, see `near_limits`.

    `names` of the groups, if they are few, stand where their lines end.
    """
    reach = _trend_reach(values, low, high, groups, limits)
    x = ordinals(days)
    with canvas(196) as sheet:
        letters = max(map(len, names), default=0)
        axis = sheet.axes(_LEFT, 12, _RIGHT, 170, day_reach(x, letters, _RIGHT - _LEFT), reach)
        day_axis(axis, days)
        shown = ticks(*reach, 4)
        y_axis(axis, shown, tick_names(shown))
        if reach[0] < 0 < reach[1]:
            segments(axis, [((axis.get_xlim()[0], 0.0), (axis.get_xlim()[1], 0.0))], "muted", 0.9)
        _day_band(axis, x, low, high, reach)
        for k, one in enumerate(groups):
            inside = [v if v is not None and reach[0] <= v <= reach[1] else None for v in one]
            dashes, opacity = (_DASHES[k % len(_DASHES)], 0.9) if names else ((), 0.55)
            line(axis, x, inside, "other", 1.1 if names else 0.8, dashes, opacity)
        line_ends(axis, x, groups, names)
        line(axis, x, values, "accent", 1.6)
        known = [(a, b) for a, b in zip(x, values, strict=True) if b is not None]
        if len(known) <= 40:
            dots(axis, [at for at, _ in known], [v for _, v in known], "accent", 4.5)
        if known:
            dots(axis, [known[-1][0]], [known[-1][1]], "alert" if alert else "accent", 6.5)
        for limit in limits:
            if reach[0] <= limit.value <= reach[1]:
                left, right = axis.get_xlim()
                segments(axis, [((left, limit.value), (right, limit.value))], "alert", 1.2, (5, 3))
                below = limit.value > reach[0] + 0.85 * (reach[1] - reach[0])
                shift = (2.0, -11.0 if below else 4.0)
                text(axis, left, limit.value, limit.name, "alert", "left", shift, "baseline")
    return sheet.picture


def near_limits(
    values: Sequence[float | None],
    low: Sequence[float | None],
    high: Sequence[float | None],
    limits: Sequence[Limit],
) -> list[Limit]:
    """The thresholds that can be drawn without making the trend flat."""
    found = [v for some in (values, low, high) for v in some if v is not None]
    if not found:
        return []
    least, most = min(found), max(found)
    room = 3 * (most - least) or abs(most)
    return [limit for limit in limits if least - room <= limit.value <= most + room]


def _trend_reach(
    values: Sequence[float | None],
    low: Sequence[float | None],
    high: Sequence[float | None],
    groups: Sequence[Sequence[float | None]],
    limits: Sequence[Limit],
) -> tuple[float, float]:
    """Of values, thresholds and most of the groups; intervals that are much wider are cut."""
    inner = [v for v in values if v is not None] + [limit.value for limit in limits]
    crowd = sorted(v for some in groups for v in some if v is not None)
    if inner and crowd:  # all but the most extreme twentieth of each side
        inner += [crowd[len(crowd) // 20], crowd[-1 - len(crowd) // 20]]
    if not inner:
        return 0.0, 1.0
    least, most = min(inner), max(inner)
    room = 1.5 * (most - least) or 0.5 * abs(most) or 1.0
    outer = [v for some in (low, high) for v in some if v is not None]
    least = min(least, max(least - room, min(outer, default=least)))
    most = max(most, min(most + room, max(outer, default=most)))
    pad = 0.06 * (most - least) or 0.1 * abs(most) or 1.0
    return (least - pad if not 0 <= least <= pad else 0.0), most + pad


def _within(values: Sequence[float | None], reach: tuple[float, float]) -> list[float | None]:
    return [None if v is None else min(max(v, reach[0]), reach[1]) for v in values]


def _day_band(
    axis: Any,
    x: Sequence[float],
    low: Sequence[float | None],
    high: Sequence[float | None],
    reach: tuple[float, float],
) -> None:
    """Intervals of days that follow each other; one alone is a bar."""
    points = list(zip(x, _within(low, reach), _within(high, reach), strict=True))
    for empty, run in groupby(points, key=lambda point: None in point):
        some: list[Any] = list(run)
        if empty:
            continue
        if len(some) == 1:
            ((at, below, above),) = some
            segments(axis, [((at, below), (at, above))], "accent", 3, opacity=0.35)
        else:
            at, below, above = zip(*some, strict=True)
            area(axis, at, below, above, "accent", 0.2)


def rows(days: Sequence[str], counts: Sequence[int | None]) -> Picture:
    """Rows of each day as bars."""
    x = ordinals(days)
    most = max((n for n in counts if n is not None), default=1) or 1
    with canvas(196) as sheet:
        axis = sheet.axes(_LEFT, 12, _RIGHT, 170, day_reach(x), (0.0, 1.06 * most))
        day_axis(axis, days)
        shown = ticks(0, most, 4)
        y_axis(axis, shown, [_thousands(v) for v in shown])
        found = [(a, n) for a, n in zip(x, counts, strict=True) if n]
        half = 0.4 * min(1.0, step_of(x))
        boxes(axis, [rectangle(a - half, a + half, 0.0, float(n)) for a, n in found], "rows")
        base_line(axis)
    return sheet.picture


class Process(NamedTuple):
    """One line of the evidence."""

    name: str
    log: Sequence[float | None]
    alarm: bool
    threshold: float | None = None


def evidence(
    days: Sequence[str],
    whole: Sequence[float | None],
    processes: Sequence[Process],
    threshold: float | None,
    process_threshold: float | None,
) -> Picture:
    """E over days, on a logarithmic scale, of all together and of every process."""
    to_ten = 1 / math.log(10)
    x = ordinals(days)
    logs = [v for some in (whole, *(p.log for p in processes)) for v in some if v is not None]
    limits = [v for v in (threshold, process_threshold) if v is not None]
    low = max(min([*logs, 0.0]) * to_ten, -3.0) - 0.15
    top = max([*limits, 0.0]) * to_ten
    high = min(max([*logs, 0.0]) * to_ten, max(2.5 * top, top + 3)) + 0.3
    high = max(high, top + 0.5)
    with canvas(262) as sheet:
        axis = sheet.axes(_LEFT, 22, _RIGHT, 238, day_reach(x), (low, high))
        sheet.text(2, 11, "evidence E", "muted")
        day_axis(axis, days)
        shown = [float(k) for k in range(math.ceil(low), math.floor(high) + 1)]
        step = next(s for s in (1, 2, 3, 5, 10, 20, 50, 100, 1000) if len(shown) / s <= 7)
        shown = [k for k in shown if k % step == 0]
        y_axis(axis, shown, [words.ten(k) for k in shown])
        for process in sorted(processes, key=lambda p: p.alarm):
            role = "alert" if process.alarm else "other"
            line(axis, *_scaled(x, process.log, to_ten, (low, high)), role, 1.0, opacity=0.8)
        line(axis, *_scaled(x, whole, to_ten, (low, high)), "accent", 2.2)
        left, right = axis.get_xlim()
        named = ((threshold, "alarm"), (process_threshold, "alarm of one process"))
        for value, name in named:
            if value is None or (value == threshold and name != "alarm"):
                continue
            y = value * to_ten
            segments(axis, [((left, y), (right, y))], "alert", 1.3, (5, 3))
            below = name == "alarm" and process_threshold not in (None, threshold)
            shift = (2.0, -11.0 if below else 4.0)
            several = name != "alarm" and len({p.threshold for p in processes}) > 1
            words_ = f"{name}: E {'≥' if several else '='} {words.evidence(value)}"
            text(axis, left, y, words_, "alert", "left", shift, "baseline")
    return sheet.picture


def _scaled(
    x: Sequence[float], logs: Sequence[float | None], factor: float, reach: tuple[float, float]
) -> tuple[list[float], list[float | None]]:
    """A line that leaves the axes where it crosses their upper edge; it stays at the lower one."""
    low, high = reach
    across: list[float] = []
    up: list[float | None] = []
    before: tuple[float, float] | None = None
    for at, log in zip(x, logs, strict=True):
        value = None if log is None else max(log * factor, low)
        if value is not None and before is not None and (value > high) is not (before[1] > high):
            across.append(before[0] + (at - before[0]) * (high - before[1]) / (value - before[1]))
            up.append(high)
        across.append(at)
        up.append(None if value is None or value > high else value)
        before = None if value is None else (at, value)
    return across, up
