"""Sections of a night's report over days: trends, and evidence against calibration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from calibscale import formatting
from calibscale.output.document import Block, Cell, Figure, Figures, Table, TableColumn, table
from calibscale.output.plots.day_plots import (
    DAYS_HEIGHT,
    EVIDENCE_HEIGHT,
    Limit,
    Line,
    near_limits,
    plot_day_rows,
    plot_evidence,
    plot_trend,
)

QUANTITIES = {
    "value": "value",
    "low": "lower bound",
    "high": "upper bound",
    "p_value": "p-value",
    "drift_p_value": "p-value of the drift",
}
_DAYS = 90  # latest days drawn in a trend
_GROUP_SERIES = 20  # maximum number of groups drawn in a trend
_NAMED_GROUPS, _LETTERS = 6, 12  # maximum number and length of group names beside their lines


def newest(values: Sequence[float | None]) -> float | None:
    """Last value that is not missing."""
    return next((v for v in reversed(values) if v is not None), None)


def trend_blocks(night: dict[str, Any]) -> list[Block]:
    """Plots of the rows and estimates of each day."""
    trend = night["trend"]
    if trend is None or len(trend["days"]) < 2:
        return []
    days = trend["days"][-_DAYS:]
    figures = [_rows_figure(days, trend["n"][-_DAYS:])] if trend["n"] is not None else []
    for series in trend["series"]:
        if series["group"] is None:
            groups = [
                other for other in trend["series"]
                if other["group"] is not None
                and (other["estimator"], other["notion"]) == (series["estimator"], series["notion"])
            ]  # fmt: skip
            figures.append(_trend_figure(night, days, series, groups))
    return [Figures(tuple(figures))] if figures else []


def _rows_figure(days: list[str], counts: list[int | None]) -> Figure:
    highest = max((n for n in counts if n is not None), default=0)
    return Figure(
        partial(plot_day_rows, days, counts), DAYS_HEIGHT,
        "Rows of each day",
        f"Rows of each day, at most {formatting.count(highest)}.",
        table("Data of the plot: rows of each day", ("day", "rows"),
              [(day, formatting.count(n)) for day, n in zip(days, counts, strict=True)]),
        "Rows",
    )  # fmt: skip


def _trend_figure(
    night: dict[str, Any], days: list[str], series: dict[str, Any], groups: list[dict[str, Any]]
) -> Figure:
    label, column = formatting.label(series), night["group_by"]
    missing: list[float | None] = [None] * len(days)
    values = series["values"][-_DAYS:]
    low, high = ((series[end] or missing)[-_DAYS:] for end in ("low", "high"))
    limits, alert = _trend_limits(night, series["estimator"])
    line = Line(label, values, low, high, alert)
    near = near_limits(line, limits)
    named = len(groups) <= _NAMED_GROUPS
    drawn = [
        Line(formatting.short(formatting.plain(g["group"]), _LETTERS) if named else "",
             g["values"][-_DAYS:])
        for g in groups[:_GROUP_SERIES]
    ]  # fmt: skip
    caption = f"{formatting.day(days[0])} to {formatting.day(days[-1])}, last "
    caption += f"{formatting.number(newest(values))}."
    for limit in limits:
        if limit not in near:
            caption += f" The threshold {limit.name} is far outside the plot."
    each = f"each {column or 'group'}{', named at its end' * named}"
    heads = [formatting.group(column, g["group"]) for g in groups]
    rows = [
        (day, formatting.number(v), formatting.span(a, b),
        *(formatting.number(g["values"][-_DAYS:][i], 3)
                                                  for g in groups))
        for i, (day, v, a, b) in enumerate(zip(days, values, low, high, strict=True))
    ]  # fmt: skip
    numbers = table(f"Data of the plot: {label} of each day", ("day", label, "interval", *heads),
                    rows)  # fmt: skip
    draw = partial(plot_trend, days, line, drawn, near, each)
    return Figure(draw, DAYS_HEIGHT, f"Trend of {label} over days", caption, numbers, label)


def _trend_limits(night: dict[str, Any], estimator: str) -> tuple[list[Limit], bool]:
    """Thresholds of an estimator over all rows, and whether one of them is breached."""
    limits, alert = {}, False
    for t in night["thresholds"] or ():
        quantity = t["quantity"] or "value"
        if t["estimator"] != estimator or quantity not in ("value", "low", "high"):
            continue
        if t["group"] is not None:
            continue
        limit = t["above"] if t["above"] is not None else t["below"]
        if limit is not None:
            bound = "" if quantity == "value" else f", {QUANTITIES[quantity]}"
            name = f"{formatting.given(limit)} ({formatting.window(t['window'])}{bound})"
            limits[name] = Limit(limit, name)
        alert = alert or t["breached"]
    return list(limits.values()), alert


def evidence_blocks(night: dict[str, Any]) -> list[Block]:
    """Plot of the e-processes over days, and table of their current values."""
    alarms, column = night["alarms"], night["group_by"]
    if alarms is None or not alarms["days"]:
        return []
    days = alarms["days"][-_DAYS:]
    processes = alarms["processes"] or []
    notions = {p["notion"] for p in processes}

    def name(p: dict[str, Any]) -> str:
        whom = formatting.group(column, p["group"])
        return f"{whom}, {formatting.notion(p['notion'])}" if len(notions) > 1 else whom

    combined = alarms["log_evidence"][-_DAYS:]
    threshold, each = alarms["threshold"], alarms["process_threshold"]
    drawn = [
        Line(name(p), p["log_evidence"][-_DAYS:], alarm=bool(p["alarm"]),
             threshold=p["threshold"] if p["threshold"] is not None else each)
        for p in processes
    ]  # fmt: skip
    level = formatting.percent(alarms["level"])
    now = formatting.evidence(newest(combined))
    caption = f"Evidence against calibration after each day, currently E = {now}. "
    if alarms["since"]:
        caption += f"There has been an alarm since {formatting.day(alarms['since'])}."
    else:
        caption += "There is an alarm." if alarms["alarm"] else "There is no alarm."
    top = max([*(v or 0.0 for p in drawn for v in p.values), *(v or 0.0 for v in combined)])
    if top > 3 * max(threshold or 0.0, each or 0.0) + 7:
        caption += " Lines continue above the plot."
    caption += f" A calibrated model ever raises an alarm with probability at most {level}."
    rows = [
        (day, formatting.evidence(v), *(formatting.evidence(p.values[i]) for p in drawn))
        for i, (day, v) in enumerate(zip(days, combined, strict=True))
    ]
    head = ("day", "combined", *(p.name for p in drawn))
    figure = Figure(
        partial(plot_evidence, days, Line("combined", combined, threshold=threshold), drawn),
        EVIDENCE_HEIGHT,
        "Evidence against calibration over days",
        caption,
        table("Data of the plot: evidence E after each day", head, rows),
    )
    return [Figures((figure,)), _process_table(night, processes)]


def _process_table(night: dict[str, Any], processes: list[dict[str, Any]]) -> Table:
    alarms = night["alarms"]
    each = alarms["process_threshold"]

    def row(name: str, notion: str, log: float | None, at: float | None, process: Any) -> Any:
        since = f"alarm since {formatting.day(process['since'])}" if process["since"] else "alarm"
        state = Cell(since, "breached") if process["alarm"] else Cell("no alarm", "fine")
        return name, state, formatting.evidence(log), formatting.evidence(at), notion

    combined = row("combined", "–", newest(alarms["log_evidence"]), alarms["threshold"], alarms)
    rows = [combined] + [
        row(formatting.group(night["group_by"], p["group"]), formatting.notion(p["notion"]),
            newest(p["log_evidence"]), p["threshold"] if p["threshold"] is not None else each, p)
        for p in sorted(processes, key=lambda p: -(newest(p["log_evidence"]) or 0.0))
    ]  # fmt: skip
    head = (
        "process", TableColumn("state", numbers=False), "current E", "threshold",
        TableColumn("notion", numbers=False),
    )  # fmt: skip
    return table("Evidence of each process", head, rows)
