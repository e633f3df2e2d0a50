"""Days as an axis, and the names of lines at the last of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from itertools import groupby, pairwise
from typing import Any

from calibscale.report import words
from calibscale.report.drawing import LETTER, TEXT, base_line, text, x_axis

_GAP = 8.0  # from the end of a line to its name


def ordinals(days: Sequence[str]) -> list[float]:
    """Days as numbers; parts of a day share it evenly."""
    found: list[float] = []
    for day, keys in groupby(days, key=lambda key: key[:10]):
        parts = len(list(keys))
        found += [date.fromisoformat(day).toordinal() + i / parts for i in range(parts)]
    return found


def step_of(x: Sequence[float]) -> float:
    """From one day, or part of one, to the next."""
    return min((b - a for a, b in pairwise(x)), default=1.0)


def day_reach(x: Sequence[float], letters: int = 0, width: float = 1.0) -> tuple[float, float]:
    """With room for so many letters after the last day of axes of a width."""
    if not x:
        return 0.0, 1.0
    first, last = min(x) - 0.7, max(x) + 0.7
    share = (LETTER * letters + _GAP) / width if letters else 0.0
    return first, max(last, (max(x) - share * first) / (1 - share))


def day_axis(axis: Any, days: Sequence[str]) -> None:
    """About four days by name, the last one among them."""
    x = ordinals(days)
    if not x:
        return
    first, last = math.floor(min(x)), math.floor(max(x))
    step = next(
        (s for s in (1, 2, 7, 14, 28, 56, 91, 182, 364) if (last - first) / s <= 4),
        -(-(last - first) // 4),
    )
    shown = list(range(last, first - 1, -step))[::-1]
    far = last - first > 300
    names = [words.day(date.fromordinal(v).isoformat()) for v in shown]
    names = [n.split(" ", 1)[1] if far else n.rsplit(" ", 1)[0] for n in names]
    x_axis(axis, [float(v) for v in shown], names)
    base_line(axis)


def line_ends(
    axis: Any, x: Sequence[float], lines: Sequence[Sequence[float | None]], names: Sequence[str]
) -> None:
    """The name of each line beside its last value, moved where names would overlap."""
    low, high = axis.get_ylim()
    step = TEXT * axis.figure.dpi / 72 * (high - low) / axis.bbox.height
    ends = [
        (min(max(known[-1], low), high), name)
        for one, name in zip(lines, names, strict=False)
        if (known := [v for v in one if v is not None])
    ]
    ends.sort()
    places: list[float] = []
    for value, _ in ends:
        places.append(max(value, places[-1] + step) if places else value)
    over = max(0.0, places[-1] - high) if places else 0.0
    for place, (_, name) in zip(places, ends, strict=True):
        text(axis, max(x), place - over, name, "muted", shift=(_GAP, 0.0))
