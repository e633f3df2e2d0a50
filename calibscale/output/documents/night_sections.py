"""Plots of a night over days: trends of its estimates, and bounds of the error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from calibscale.formatting import day_names, naming, number_texts, terms
from calibscale.output.documents import elements as doc
from calibscale.output.documents.group_tables import error_name, goodness
from calibscale.output.documents.night_headline import QUANTITIES
from calibscale.output.plots import day_plots
from calibscale.output.plots.style import GROUPS
from calibscale.results.night_results import Group, GroupResult, Night, ProcessResult, Series


def day_figure(
    draw: Callable[..., Any],
    height: float,
    label: str,
    caption: str,
    numbers: str,
    days: Sequence[str],
    columns: Iterable[tuple[str, Iterable[str]]],
    title: str = "",
) -> doc.Figure:
    """Plot over days.  `numbers` names its table, and `columns` are its headers and cells."""
    names, cells = zip(*columns, strict=True)
    rows = zip(days, *cells, strict=True)
    listed = doc.table(f"Data of the plot: {numbers}", ("day", *names), list(rows))
    return doc.Figure(draw, height, label, caption, listed, title)


def size_figure(
    days: Sequence[str], lines: Sequence[day_plots.Line], tolerance: float, level: str
) -> doc.Figure:
    """Plot of the lower confidence sequence of the error of each process."""
    # The line of the largest bound is drawn as the main line, the others as groups.
    largest = max(lines, key=lambda line: line.values[-1] or 0.0)
    smaller = [line for line in lines if line is not largest]
    limit = day_plots.Limit(tolerance, f"tolerance {tolerance:g}")
    caption = (
        f"Lower bounds of the size of the calibration error (L1), currently "
        f"{number_texts.number(largest.values[-1], 3)} for {largest.name}. The probability that "
        f"a bound is ever above the error of all days is at most {level}."
    )
    draw = partial(day_plots.plot_trend, days, largest, smaller, [limit], of=largest.name)
    return day_figure(
        draw,
        day_plots.DAYS_HEIGHT,
        "Lower bound of the calibration error",
        caption,
        "the error is at least",
        days,
        [(line.name, [number_texts.number(v, 3) for v in line.values]) for line in lines],
    )


# ---------------------------------------------------------------- trends


DAYS = 90  # latest days drawn in a trend
_LETTERS = 40  # of the names of groups in legends


def trend_figures(night: Night) -> doc.Figures | None:
    """Plots of the rows and estimates of each day."""
    trend = night.trend
    if len(trend.days) < 2:
        return None
    days = trend.days[-DAYS:]
    plots = [_rows_figure(days, trend.n[-DAYS:])]
    # The series of groups belong to the plot of their estimator.
    of_groups: dict[tuple[str, str], list[Series]] = {}
    for series in trend.series:
        if series.group is not None:
            of_groups.setdefault((series.estimator, series.notion), []).append(series)
    for series in trend.series:
        if series.group is None:
            groups = of_groups.get((series.estimator, series.notion), [])
            plots.append(_trend_figure(night, days, series, groups))
    return doc.figures(plots)


def group_colours(night: Night) -> dict[Group, str]:
    """Colours of lines by group: of groups with an alarm, then of the worst groups."""
    ranked = _worst_first(night)
    # Every group has a colour: keep the colours of other nights.
    if len(ranked) <= len(GROUPS):  # in the order of the groups, which is that of other nights
        ranked = [group for group in _all_groups(night) if group in ranked]
    return dict(zip(ranked, GROUPS, strict=False))


def colour_note(night: Night, count: int) -> str:
    """Sentence about which of the groups have a colour."""
    names = error_name(list(_groups_of_most_rows(night)))
    worst = f"the largest {names}" if names else "the most evidence"
    return (
        f"{len(group_colours(night))} of {count} groups have colours: those with an alarm, then "
        f"those with {worst}."
    )


def _processes(night: Night) -> tuple[ProcessResult, ...]:
    return () if night.alarms is None else night.alarms.processes


def _groups_of_most_rows(night: Night) -> tuple[GroupResult, ...]:
    """Groups of the window with the most rows."""
    windows = [window for window in night.windows if window.groups]
    return max(windows, key=lambda window: window.n).groups if windows else ()


def _all_groups(night: Night) -> list[Group]:
    """Groups of the longest window and of the processes."""
    listed: list[Group] = [group.group for group in _groups_of_most_rows(night)]
    listed += [process.group for process in _processes(night)]
    return [group for group in dict.fromkeys(listed) if group is not None]


def _worst_first(night: Night) -> list[Group]:
    """Groups with an alarm by its day, then the others by their error."""
    groups = _groups_of_most_rows(night)
    alarmed = [] if night.alarms is None else night.alarms.raised
    name = error_name(groups)
    by_error: Sequence[GroupResult] = groups
    if name is not None:
        by_error = sorted(groups, key=lambda group: goodness(name, group))
    ranked: list[Group] = [process.group for process in alarmed if process.group is not None]
    ranked += [group.group for group in by_error]
    # The first place of a group counts: its alarm, then its error, then its order.
    return list(dict.fromkeys([*ranked, *_all_groups(night)]))


def _rows_figure(days: Sequence[str], counts: Sequence[int]) -> doc.Figure:
    highest = max(counts, default=0)
    return day_figure(
        partial(day_plots.plot_day_rows, days, counts),
        day_plots.DAYS_HEIGHT,
        "Rows of each day",
        f"Rows of each day, at most {number_texts.count(highest)}.",
        "rows of each day",
        days,
        [("rows", map(number_texts.count, counts))],
        "Rows",
    )


def _trend_figure(
    night: Night, days: Sequence[str], series: Series, groups: Sequence[Series]
) -> doc.Figure:
    label, column = terms.label(series), night.group_by
    values, low, high = series.values[-DAYS:], series.low[-DAYS:], series.high[-DAYS:]
    limits, alert = _trend_limits(night, series.estimator)
    line = day_plots.Line(label, values, low, high, alert)
    near = day_plots.near_limits(line, limits)
    colours = group_colours(night)
    drawn = [
        day_plots.Line(
            naming.short(naming.group(column, part.group), _LETTERS),
            part.values[-DAYS:],
            colour=colours.get(part.group, ""),
        )
        for part in groups
    ]
    caption = f"{day_names.day(days[0])} to {day_names.day(days[-1])}, last "
    caption += f"{number_texts.number(day_plots.newest(values))}."
    for limit in limits:
        if limit not in near:
            caption += f" The threshold {limit.name} is far outside the plot."
    if len(groups) > len(colours):
        caption += f" {colour_note(night, len(groups))}"
    columns: list[tuple[str, Iterable[str]]] = [
        (label, map(number_texts.number, values)),
        ("interval", map(number_texts.span, low, high)),
    ]
    for part in groups:
        texts = [number_texts.number(value, 3) for value in part.values[-DAYS:]]
        columns.append((naming.group(column, part.group), texts))
    return day_figure(
        partial(day_plots.plot_trend, days, line, drawn, near, "other groups"),
        day_plots.DAYS_HEIGHT,
        f"Trend of {label} over days",
        caption,
        f"{label} of each day",
        days,
        columns,
        label,
    )


def _trend_limits(night: Night, estimator: str) -> tuple[list[day_plots.Limit], bool]:
    """Thresholds of an estimator over all rows, and whether one of them is breached."""
    limits, alert = {}, False
    for threshold in night.thresholds:
        if (threshold.estimator, threshold.group) != (estimator, None):
            continue
        bound = ""
        if threshold.quantity != "value":
            bound = f", {QUANTITIES[threshold.quantity]}"
        for limit in threshold.value_limits:
            place = day_names.window(threshold.window)
            name = f"{number_texts.given(limit)} ({place}{bound})"
            limits[name] = day_plots.Limit(limit, name)
            alert = alert or threshold.breached
    return list(limits.values()), alert
