"""Headline of a night, and trends of its estimates over days."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from calibscale import formatting
from calibscale.output import document as doc
from calibscale.output.documents.estimates import ends, in_brackets
from calibscale.output.plots import day_plots

_NAMED = 4  # maximum number of reasons of each kind
_SIDES = {"top_label": ("too confident", "too cautious"), "positive": ("too high", "too low")}
_SCORES = ("accuracy", "brier", "nll")  # these are not calibration errors


class Head(NamedTuple):
    """State (``fine``, ``breached`` or ``alarm``), verdict and reasons of a night."""

    state: str
    verdict: str
    reasons: tuple[str, ...] = ()


def head(night: dict[str, Any]) -> Head:
    """Summarize the state of a night in a sentence, with its reasons."""
    thresholds, alarms = night["thresholds"] or [], night["alarms"]
    breached = [t for t in thresholds if t["breached"]]
    alarm = alarms is not None and alarms["alarm"]
    count = f"{len(breached)} of {formatting.plural(len(thresholds), 'threshold')}"
    limits = tuple(_limits(night, breached))
    if alarm:
        whom, groups = _alarmed(night)
        size, basis = _size(_since(night), groups, _notions(alarms), night["group_by"])
        above = alarms.get("tolerance")
        verdict = f"Alarm: error above {above:g}; " if above else "Alarm: "
        verdict += size or "not calibrated"
        verdict += f" since {formatting.day(alarms['since'])}" if alarms["since"] else ""
        verdict += f", {whom}" + (f"; {count} breached" if breached else "")
        state = "breached" if breached else "alarm"
        return Head(state, verdict, (*basis, *_processes(night), *limits))
    if breached:
        size, basis = _breach(night)
        return Head("breached", f"Breached: {count}{size and '; '}{size}", (*basis, *limits))
    if night["status"] == "breached":
        return Head("breached", "Breached")
    return Head("fine", f"Fine: {_fine(thresholds, alarms is not None)}")


def _fine(thresholds: list[dict[str, Any]], alarms: bool) -> str:
    unknown = sum(t["observed"] is None for t in thresholds)
    text = f"none of {formatting.plural(len(thresholds), 'threshold')} is breached"
    if not thresholds:
        text = "no threshold is set"
    elif unknown:
        text += f", but {unknown} of them {'has' if unknown == 1 else 'have'} no value"
    return text + f"{';' if unknown else ' and'} there is no alarm" * alarms


# ---------------------------------------------------------------- alarms


def _raised(alarms: dict[str, Any]) -> list[dict[str, Any]]:
    """Processes with an alarm, by day, those of all rows first."""
    raised = [p for p in alarms["processes"] or () if p["alarm"]]
    return sorted(raised, key=lambda p: (p["since"] or "", p["group"] is not None))


def _alarmed(night: dict[str, Any]) -> tuple[str, list[float | None]]:
    """Name the rows with an alarm, and list the groups whose error is reported."""
    alarms, column = night["alarms"], night["group_by"]
    every = {p["group"] for p in alarms["processes"] or ()} - {None}
    raised = list(dict.fromkeys(p["group"] for p in _raised(alarms)))
    some = [group for group in raised if group is not None]
    all_rows = None in raised or not raised
    sized = [None] if all_rows else some
    if every and {*some} == every:
        return f"every {column or 'group'}", sized
    names = ["all rows"] * all_rows + [formatting.group(column, group) for group in some]
    return formatting.joined(names, 3), sized


def _notions(alarms: dict[str, Any]) -> tuple[str, ...]:
    """Notions of one probability that have an alarm; both if no process has one."""
    raised = {p["notion"] for p in _raised(alarms)}
    return tuple(notion for notion in _SIDES if not raised or notion in raised)


def _since(night: dict[str, Any]) -> dict[str, Any] | None:
    """The longest window that starts at or after the alarm, else the shortest window."""
    since = night["alarms"]["since"]
    windows = [w for w in night["windows"] if w["days"]]
    after = [w for w in windows if since and min(w["days"]) >= since]
    if after:
        return max(after, key=lambda w: len(w["days"]))
    return min(windows, key=lambda w: len(w["days"]), default=None)


def _processes(night: dict[str, Any]) -> list[str]:
    raised = _raised(night["alarms"])
    sentences = [
        f"Alarm for {formatting.group(night['group_by'], p['group'])} "
        f"({formatting.notion(p['notion'])})"
        + (f" since {formatting.day(p['since'])}." if p["since"] else ".")
        for p in raised[:_NAMED]
    ]
    if len(raised) > _NAMED:
        more = formatting.plural(len(raised) - _NAMED, "more alarm")
        sentences.append(f"For {more} see the section on evidence.")
    return sentences


# ---------------------------------------------------------------- size of the error


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
    """Plot over days; `columns` are the headers and cells of its table, which `numbers` names."""
    names, cells = zip(*columns, strict=True)
    rows = zip(days, *cells, strict=True)
    listed = doc.table(f"Data of the plot: {numbers}", ("day", *names), list(rows))
    return doc.Figure(draw, height, label, caption, listed, title)


def size_figure(
    days: list[str], lines: list[day_plots.Line], tolerance: float, level: str
) -> doc.Figure:
    """Plot of the lower confidence sequence of the error of each process."""
    largest = max(lines, key=lambda line: line.values[-1] or 0.0)
    others = [line for line in lines if line is not largest]
    limit = day_plots.Limit(tolerance, f"tolerance {tolerance:g}")
    caption = (
        f"Lower bounds of the size of the calibration error (L1), currently "
        f"{formatting.number(largest.values[-1], 3)} for {largest.name}. The probability that "
        f"a bound is ever above the error of all days is at most {level}."
    )
    return day_figure(
        partial(day_plots.plot_trend, days, largest, others, [limit]), day_plots.DAYS_HEIGHT,
        "Lower bound of the calibration error", caption, "the error is at least", days,
        [(line.name, [formatting.number(v, 3) for v in line.values]) for line in lines],
    )  # fmt: skip


class _Error(NamedTuple):
    """Distance in probabilities, its direction (empty if it has none), and its source."""

    size: float
    side: str
    basis: str = ""


def _size(
    window: dict[str, Any] | None, groups: Sequence[float | None], notions: Sequence[str],
    column: str | None,
) -> tuple[str, list[str]]:  # fmt: skip
    """Size of the error in percentage points, and the numbers that it is based on."""
    if window is None:
        return "", []
    errors = {group: _error(window, group, notions) for group in groups}
    present = [(group, e) for group, e in errors.items() if e is not None]
    if not present:
        return "", []
    worst = max(e.size for _, e in present)
    size = f"{'up to ' * (len(present) > 1)}{formatting.points(worst)}"
    sides = {e.side for _, e in present}
    side = sides.pop() if len(sides) == 1 else ""
    over = f"over {_days(window)}"
    basis = [
        f"{e.basis} {over}{'' if group is None else ' for ' + formatting.group(column, group)}."
        for group, e in present[:_NAMED]
    ]
    return (f"{size} {side}" if side else f"off by {size} on average"), basis


def _error(window: dict[str, Any], group: float | None, notions: Sequence[str]) -> _Error | None:
    """Signed gap of one notion if it explains most of the error, else the binned error."""
    results = window["results"] or []
    if group is not None:
        results = next((g["results"] for g in window["groups"] or () if g["group"] == group), [])
    for notion in notions:
        named = {e["estimator"]: e for e in results if e["notion"] == notion}
        drawn = window["reliability"] if group is None else None
        drawn = drawn if drawn is not None and drawn["notion"] == notion else None
        gap, basis = _gap(named.get("confidence_gap"), drawn)
        ece = named["ece"]["value"] if "ece" in named else drawn["ece"] if drawn else None
        if gap is not None and abs(gap) >= 0.5 * (ece or 0.0):
            return _Error(abs(gap), _SIDES[notion][gap < 0], basis)
        if ece is not None:
            return _Error(ece, "", f"ECE {formatting.number(ece, 3)}")
    return None


def _gap(
    estimate: dict[str, Any] | None, diagram: dict[str, Any] | None
) -> tuple[float | None, str]:
    """Mean prediction minus frequency, None if the interval includes 0, and its description."""
    if estimate is not None and estimate["value"] is not None:
        value, (low, high) = estimate["value"], ends(estimate)
        basis = f"Mean prediction minus frequency: {formatting.signed(value, 3)}"
        certain = low is None or high is None or not low <= 0 <= high
        return (value if certain else None), basis + in_brackets(estimate)
    filled = [b for b in (diagram or {"bins": ()})["bins"] if b["frequency"] is not None]
    rows = [b["count"] if b["weight"] is None else b["weight"] for b in filled]
    if not sum(rows):
        return None, ""
    gaps = ((b["mean_p"] or 0.0) - b["frequency"] for b in filled)
    value = sum(w * gap for w, gap in zip(rows, gaps, strict=True)) / sum(rows)
    return value, f"Mean prediction minus frequency: {formatting.signed(value, 3)}"


# ---------------------------------------------------------------- thresholds


def _breach(night: dict[str, Any]) -> tuple[str, list[str]]:
    """Size of the error in the window of the first breached threshold, and its groups."""
    breached = [t for t, _ in value_limits(night) if t["breached"]]
    errors = [t for t in breached if t["estimator"] not in _SCORES]
    first = errors[0]["window"] if errors else None
    window = next((w for w in night["windows"] if w["name"] == first), None)
    if window is None:
        return "", []
    groups = [t["group"] for t in errors if t["window"] == window["name"]]
    groups = [None] if None in groups else list(dict.fromkeys(groups))
    size, basis = _size(window, groups, tuple(_SIDES), night["group_by"])
    whom = formatting.joined([formatting.group(night["group_by"], group) for group in groups], 3)
    return (f"{size} over {_days(window)}, {whom}" if size else ""), basis


def _limits(night: dict[str, Any], breached: list[dict[str, Any]]) -> list[str]:
    """Sentences about the breached limits, each with the groups that breach it."""
    by_limit: dict[str, list[str]] = {}
    for t in breached:
        limit, whom = _limit_text(night, t), formatting.group(night["group_by"], t["group"])
        if t["observed"] is None:
            by_limit.setdefault(f"{limit}, {missing_value(t)}", []).append(whom)
        else:
            by_limit.setdefault(limit, []).append(f"{observed(t)} for {whom}")
    listed = list(by_limit.items())[:_NAMED]
    sentences = [f"{limit}: {formatting.joined(some, 4)}." for limit, some in listed]
    if len(by_limit) > _NAMED:
        sentences.append("For further breaches see the section on thresholds.")
    return sentences


def _limit_text(night: dict[str, Any], t: dict[str, Any]) -> str:
    side, limit = ("above", t["above"]) if t["above"] is not None else ("below", t["below"])
    return f"{what(t)} over {over(night, t['window'])}, {side} {formatting.given(limit)}"


def what(t: dict[str, Any]) -> str:
    """Estimator and quantity that a threshold limits."""
    return f"{t['estimator']}, {QUANTITIES[t['quantity']]}"


def observed(t: dict[str, Any]) -> str:
    """Format the observed value of a threshold."""
    is_p = t["quantity"] in ("p_value", "drift_p_value")
    return formatting.p_value(t["observed"]) if is_p else formatting.number(t["observed"])


def missing_value(t: dict[str, Any]) -> str:
    """Reason why there is no observed value, and whether this is a breach."""
    reason = f" ({t['reason']})" if t["reason"] else ""
    return f"no value{': breached' * t['breached']}{reason}"


def over(night: dict[str, Any], name: str | None) -> str:
    """Name of a window; “2 of 7 days” if only these days are in the ledger."""
    window = next((w for w in night["windows"] if w["name"] == name), None)
    return formatting.window(name) if window is None else _days(window)


def _days(window: dict[str, Any]) -> str:
    length = re.fullmatch(r"(\d+)d", window["name"])
    present = len({day[:10] for day in window["days"] or ()})
    text = formatting.window(window["name"])
    return f"{present} of {text}" if length and 0 < present < int(length[1]) else text


# ---------------------------------------------------------------- trends


QUANTITIES = {
    "value": "value",
    "low": "lower bound",
    "high": "upper bound",
    "p_value": "p-value",
    "drift_p_value": "p-value of the drift",
}
DAYS = 90  # latest days drawn in a trend
_GROUP_SERIES = 20  # maximum number of groups drawn in a trend
_NAMED_GROUPS, _LETTERS = 6, 12  # maximum number and length of group names beside their lines


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
                other for other in trend["series"]
                if other["group"] is not None
                and (other["estimator"], other["notion"]) == (series["estimator"], series["notion"])
            ]  # fmt: skip
            plots.append(_trend_figure(night, days, series, groups))
    return doc.figures(plots)


def _rows_figure(days: list[str], counts: list[int | None]) -> doc.Figure:
    highest = max((n for n in counts if n is not None), default=0)
    return day_figure(
        partial(day_plots.plot_day_rows, days, counts), day_plots.DAYS_HEIGHT, "Rows of each day",
        f"Rows of each day, at most {formatting.count(highest)}.", "rows of each day", days,
        [("rows", map(formatting.count, counts))], "Rows",
    )  # fmt: skip


def _trend_figure(
    night: dict[str, Any], days: list[str], series: dict[str, Any], groups: list[dict[str, Any]]
) -> doc.Figure:
    label, column = formatting.label(series), night["group_by"]
    missing: list[float | None] = [None] * len(days)
    values = series["values"][-DAYS:]
    low, high = ((series[end] or missing)[-DAYS:] for end in ("low", "high"))
    limits, alert = _trend_limits(night, series["estimator"])
    line = day_plots.Line(label, values, low, high, alert)
    near = day_plots.near_limits(line, limits)
    named = len(groups) <= _NAMED_GROUPS
    drawn = [
        day_plots.Line(formatting.short(formatting.plain(g["group"]), _LETTERS) if named else "",
             g["values"][-DAYS:])
        for g in groups[:_GROUP_SERIES]
    ]  # fmt: skip
    caption = f"{formatting.day(days[0])} to {formatting.day(days[-1])}, last "
    caption += f"{formatting.number(day_plots.newest(values))}."
    for limit in limits:
        if limit not in near:
            caption += f" The threshold {limit.name} is far outside the plot."
    each = f"each {column or 'group'}{', named at its end' * named}"
    columns = [
        (label, map(formatting.number, values)), ("interval", map(formatting.span, low, high)),
        *((formatting.group(column, g["group"]),
           [formatting.number(v, 3) for v in g["values"][-DAYS:]]) for g in groups),
    ]  # fmt: skip
    return day_figure(
        partial(day_plots.plot_trend, days, line, drawn, near, each), day_plots.DAYS_HEIGHT,
        f"Trend of {label} over days", caption, f"{label} of each day", days, columns, label,
    )  # fmt: skip


def _trend_limits(night: dict[str, Any], estimator: str) -> tuple[list[day_plots.Limit], bool]:
    """Thresholds of an estimator over all rows, and whether one of them is breached."""
    limits, alert = {}, False
    for t, limit in value_limits(night):
        if (t["estimator"], t["group"]) == (estimator, None):
            bound = "" if t["quantity"] == "value" else f", {QUANTITIES[t['quantity']]}"
            name = f"{formatting.given(limit)} ({formatting.window(t['window'])}{bound})"
            limits[name] = day_plots.Limit(limit, name)
            alert = alert or t["breached"]
    return list(limits.values()), alert


def value_limits(night: dict[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
    """Thresholds of values and of their intervals, not of p-values, with their limits."""
    for t in night["thresholds"] or ():
        limit = t["above"] if t["above"] is not None else t["below"]
        if limit is not None and not t["quantity"].endswith("p_value"):
            yield t, limit
