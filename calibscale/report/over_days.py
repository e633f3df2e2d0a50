"""What a night tells over days: trends, and evidence against calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibscale.report import charts, words
from calibscale.report.blocks import Block, Cell, Column, Figure, Figures, Table, table
from calibscale.report.charts import Limit, Process

QUANTITIES = {
    "value": "value",
    "low": "lower bound",
    "high": "upper bound",
    "p_value": "p-value",
    "drift_p_value": "p-value of the drift",
}
_DAYS = 400  # of a trend; older ones are not drawn
_GROUP_SERIES = 20  # of a trend's plot
_NAMED_GROUPS, _LETTERS = 6, 12  # beside their lines


def newest(values: Sequence[float | None]) -> float | None:
    """The last value that is known."""
    return next((v for v in reversed(values) if v is not None), None)


def trend_blocks(night: dict[str, Any]) -> list[Block]:
    """Rows and estimates of each day, as small multiples."""
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
    most = max((n for n in counts if n is not None), default=0)
    return Figure(
        charts.rows(days, counts),
        "Rows of each day",
        f"Rows of each day, at most {words.count(most)}.",
        table("Numbers of the plot: rows of each day", ("day", "rows"),
              [(day, words.count(n)) for day, n in zip(days, counts, strict=True)]),
        (("rows", "rows"),), "Rows",
    )  # fmt: skip


def _trend_figure(
    night: dict[str, Any], days: list[str], series: dict[str, Any], groups: list[dict[str, Any]]
) -> Figure:
    label, column = words.label(series), night["group_by"]
    nothing: list[float | None] = [None] * len(days)
    values = series["values"][-_DAYS:]
    low, high = ((series[end] or nothing)[-_DAYS:] for end in ("low", "high"))
    limits, alert = _trend_limits(night, series["estimator"])
    near = charts.near_limits(values, low, high, limits)
    drawn = [g["values"][-_DAYS:] for g in groups[:_GROUP_SERIES]]
    some = [words.short(words.plain(g["group"]), _LETTERS) for g in groups]
    named = some if len(some) <= _NAMED_GROUPS else []
    picture = charts.trend(days, values, low, high, drawn, near, alert, named)
    caption = f"{words.day(days[0])} to {words.day(days[-1])}, last "
    caption += f"{words.number(newest(values))}."
    for limit in limits:
        if limit not in near:
            caption += f" The threshold {limit.name} is far outside the plot."
    legend = [("line", "all rows, each day")]
    legend += [("area", "interval")] if any(v is not None for v in low) else []
    each = f"each {column or 'group'}{', named at its end' * bool(named)}"
    legend += [("thin", each)] if drawn else []
    legend += [("limit", "threshold")] if near else []
    legend += [("alert", "threshold breached")] if alert else []
    heads = [words.group(column, g["group"]) for g in groups]
    rows = [
        (day, words.number(v), words.span(a, b), *(words.number(g["values"][-_DAYS:][i], 3)
                                                  for g in groups))
        for i, (day, v, a, b) in enumerate(zip(days, values, low, high, strict=True))
    ]  # fmt: skip
    numbers = table(f"Numbers of the plot: {label} of each day", ("day", label, "interval", *heads),
                    rows)  # fmt: skip
    return Figure(picture, f"Trend of {label} over days", caption, numbers, tuple(legend), label)


def _trend_limits(night: dict[str, Any], estimator: str) -> tuple[list[Limit], bool]:
    """The thresholds of an estimator over all rows, and whether one is breached."""
    found, alert = {}, False
    for t in night["thresholds"] or ():
        quantity = t["quantity"] or "value"
        if t["estimator"] != estimator or quantity not in ("value", "low", "high"):
            continue
        if t["group"] is not None:
            continue
        limit = t["above"] if t["above"] is not None else t["below"]
        if limit is not None:
            bound = "" if quantity == "value" else f", {QUANTITIES[quantity]}"
            name = f"{words.given(limit)} ({words.window(t['window'])}{bound})"
            found[name] = Limit(limit, name)
        alert = alert or t["breached"]
    return list(found.values()), alert


def evidence_blocks(night: dict[str, Any]) -> list[Block]:
    """E-processes over days, and a table of where they are now."""
    alarms, column = night["alarms"], night["group_by"]
    if alarms is None or not alarms["days"]:
        return []
    days = alarms["days"][-_DAYS:]
    processes = alarms["processes"] or []
    notions = {p["notion"] for p in processes}

    def name(p: dict[str, Any]) -> str:
        whom = words.group(column, p["group"])
        return f"{whom}, {words.notion(p['notion'])}" if len(notions) > 1 else whom

    drawn = [
        Process(name(p), p["log_evidence"][-_DAYS:], bool(p["alarm"]), p["threshold"])
        for p in processes
    ]
    whole = alarms["log_evidence"][-_DAYS:]
    threshold, each = alarms["threshold"], alarms["process_threshold"]
    level = words.percent(alarms["level"])
    now = words.evidence(newest(whole))
    caption = f"Evidence against calibration after each day, now E = {now}. "
    caption += f"There is an alarm since {words.day(alarms['since'])}." if alarms["since"] else (
        "There is an alarm." if alarms["alarm"] else "There is no alarm."
    )  # fmt: skip
    top = max([*(v or 0.0 for p in drawn for v in p.log), *(v or 0.0 for v in whole)])
    if top > 3 * max(threshold or 0.0, each or 0.0) + 7:
        caption += " Lines go on above the plot."
    caption += f" A calibrated model ever gives an alarm with a probability of at most {level}."
    legend = [("line", "all together")]
    legend += [("thin", "each process")] if any(not p.alarm for p in drawn) else []
    legend += [("alertline", "process with an alarm")] if any(p.alarm for p in drawn) else []
    legend += [("limit", "alarm")]
    rows = [
        (day, words.evidence(v), *(words.evidence(p.log[i]) for p in drawn))
        for i, (day, v) in enumerate(zip(days, whole, strict=True))
    ]
    head = ("day", "all together", *(p.name for p in drawn))
    figure = Figure(
        charts.evidence(days, whole, drawn, threshold, each),
        "Evidence against calibration over days",
        caption,
        table("Numbers of the plot: evidence E after each day", head, rows),
        tuple(legend),
    )
    return [Figures((figure,)), _process_table(night, processes)]


def _process_table(night: dict[str, Any], processes: list[dict[str, Any]]) -> Table:
    alarms = night["alarms"]
    each = alarms["process_threshold"]

    def row(name: str, notion: str, log: float | None, at: float | None, found: Any) -> Any:
        since = f"alarm since {words.day(found['since'])}" if found["since"] else "alarm"
        state = Cell(since, "breached") if found["alarm"] else Cell("no alarm", "fine")
        return name, state, words.evidence(log), words.evidence(at), notion

    whole = row("all together", "–", newest(alarms["log_evidence"]), alarms["threshold"], alarms)
    rows = [whole] + [
        row(words.group(night["group_by"], p["group"]), words.notion(p["notion"]),
            newest(p["log_evidence"]), p["threshold"] if p["threshold"] is not None else each, p)
        for p in sorted(processes, key=lambda p: -(newest(p["log_evidence"]) or 0.0))
    ]  # fmt: skip
    head = (
        "process", Column("state", numbers=False), "E now", "alarm at",
        Column("judges", numbers=False),
    )  # fmt: skip
    return table("Evidence of each process", head, rows)
