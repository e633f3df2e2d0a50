"""Plots of a night over days: trends of its estimates, and bounds of the error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from calibscale.formatting import day_names, naming, number_texts, terms
from calibscale.output.documents import elements as doc
from calibscale.output.documents.estimates import error_name, goodness
from calibscale.output.documents.night_headline import QUANTITIES, value_limits
from calibscale.output.plots import day_plots
from calibscale.output.plots.style import GROUPS
from calibscale.results.estimate import Estimate


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
    days: list[str], lines: list[day_plots.Line], tolerance: float, level: str
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


def trend_figures(night: dict[str, Any]) -> doc.Figures | None:
    """Plots of the rows and estimates of each day."""
    trend = night["trend"]
    if trend is None or len(trend["days"]) < 2:
        return None
    days = trend["days"][-DAYS:]
    plots = [_rows_figure(days, trend["n"][-DAYS:])] if trend["n"] is not None else []
    for series in trend["series"]:
        if series["group"] is None:
            groups = [
                candidate
                for candidate in trend["series"]
                if candidate["group"] is not None
                and (candidate["estimator"], candidate["notion"])
                == (series["estimator"], series["notion"])
            ]
            plots.append(_trend_figure(night, days, series, groups))
    return doc.figures(plots)


def group_colours(night: dict[str, Any]) -> dict[Any, str]:
    """Colours of lines by group: of groups with an alarm, then of the worst groups."""
    ranked = _worst_first(night)
    # Every group has a colour: keep the colours of other nights.
    if len(ranked) <= len(GROUPS):  # in the order of the groups, which is that of other nights
        ranked = [group for group in _all_groups(night) if group in ranked]
    return dict(zip(ranked, GROUPS, strict=False))


def colour_note(night: dict[str, Any], count: int) -> str:
    """Sentence about which of the groups have a colour."""
    names = error_name(_grouped_window(night))
    worst = f"the largest {names}" if names else "the most evidence"
    return (
        f"{len(group_colours(night))} of {count} groups have colours: those with an alarm, then "
        f"those with {worst}."
    )


def _processes(night: dict[str, Any]) -> list[dict[str, Any]]:
    return (night["alarms"] or {"processes": ()})["processes"] or []


class NightGroup(NamedTuple):
    """Estimates of a group of a night."""

    group: float | str | None
    n: int
    results: Sequence[Estimate]


def restored_groups(groups: Iterable[dict[str, Any]]) -> list[NightGroup]:
    """Groups with their estimates."""
    return [
        NightGroup(g["group"], g["n"], [Estimate.from_dict(e) for e in g["results"]])
        for g in groups
    ]


def _grouped_window(night: dict[str, Any]) -> list[NightGroup]:
    """Groups of the window with the most rows."""
    windows = [w for w in night["windows"] or () if w["groups"]]
    return restored_groups(max(windows, key=lambda w: w["n"] or 0)["groups"]) if windows else []


def _all_groups(night: dict[str, Any]) -> list[Any]:
    """Groups of the longest window and of the processes."""
    listed = [g.group for g in _grouped_window(night)]
    listed += [p["group"] for p in _processes(night)]
    return [group for group in dict.fromkeys(listed) if group is not None]


def _worst_first(night: dict[str, Any]) -> list[Any]:
    """Groups with an alarm by its day, then the others by their error."""
    groups = _grouped_window(night)
    alarmed = sorted(
        (p for p in _processes(night) if p["alarm"] and p["group"] is not None),
        key=lambda p: p["since"] or "",
    )
    name = error_name(groups)
    by_error = sorted(groups, key=partial(goodness, name)) if name else groups
    ranked = [p["group"] for p in alarmed] + [g.group for g in by_error]
    # The first place of a group counts: its alarm, then its error, then its order.
    return list(dict.fromkeys([*ranked, *_all_groups(night)]))


def _rows_figure(days: list[str], counts: list[int | None]) -> doc.Figure:
    highest = max((n for n in counts if n is not None), default=0)
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
    night: dict[str, Any], days: list[str], series: dict[str, Any], groups: list[dict[str, Any]]
) -> doc.Figure:
    label = terms.label(terms.Named(series["estimator"], series["notion"]))
    column = night["group_by"]
    missing: list[float | None] = [None] * len(days)
    values = series["values"][-DAYS:]
    low, high = ((series[end] or missing)[-DAYS:] for end in ("low", "high"))
    limits, alert = _trend_limits(night, series["estimator"])
    line = day_plots.Line(label, values, low, high, alert)
    near = day_plots.near_limits(line, limits)
    colours = group_colours(night)
    drawn = [
        day_plots.Line(
            naming.short(naming.group(column, g["group"]), _LETTERS),
            g["values"][-DAYS:],
            colour=colours.get(g["group"], ""),
        )
        for g in groups
    ]
    caption = f"{day_names.day(days[0])} to {day_names.day(days[-1])}, last "
    caption += f"{number_texts.number(day_plots.newest(values))}."
    for limit in limits:
        if limit not in near:
            caption += f" The threshold {limit.name} is far outside the plot."
    if len(groups) > len(colours):
        caption += f" {colour_note(night, len(groups))}"
    columns = [
        (label, map(number_texts.number, values)),
        ("interval", map(number_texts.span, low, high)),
        *(
            (
                naming.group(column, g["group"]),
                [number_texts.number(v, 3) for v in g["values"][-DAYS:]],
            )
            for g in groups
        ),
    ]
    draw = partial(day_plots.plot_trend, days, line, drawn, near, "other groups")
    return day_figure(
        draw,
        day_plots.DAYS_HEIGHT,
        f"Trend of {label} over days",
        caption,
        f"{label} of each day",
        days,
        columns,
        label,
    )


def _trend_limits(night: dict[str, Any], estimator: str) -> tuple[list[day_plots.Limit], bool]:
    """Thresholds of an estimator over all rows, and whether one of them is breached."""
    limits, alert = {}, False
    for t, limit in value_limits(night):
        if (t["estimator"], t["group"]) == (estimator, None):
            bound = "" if t["quantity"] == "value" else f", {QUANTITIES[t['quantity']]}"
            name = f"{number_texts.given(limit)} ({day_names.window(t['window'])}{bound})"
            limits[name] = day_plots.Limit(limit, name)
            alert = alert or t["breached"]
    return list(limits.values()), alert
