"""Sections that say where predictions are off: the map of local bias, groups, curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from calibscale.report import charts, fields, words
from calibscale.report.blocks import Block, Cell, Column, Figure, Figures, Table, Words, table
from calibscale.report.charts import Row, Strip
from calibscale.report.estimates import interval_name, strip_table
from calibscale.report.fields import Curve, Point

_LISTED = 15  # points of a map's table
_MOST_BARS = 14  # groups of a plot
_INTERVAL = "95 % interval"


def _with_limits(points: dict[str, Any]) -> dict[str, Any]:
    """Points or a curve with the limits, and z, that older results do not have."""
    if points.get("low") is not None:
        return points
    both = list(zip(points["bias"], points["standard_error"], strict=True))
    made = {
        name: [None if b is None or e is None else b + sign * e for b, e in both]
        for name, sign in (("low", -2), ("high", 2))
    }
    return {**points, **made, "z": [b / e if b is not None and e else None for b, e in both]}


# ---------------------------------------------------------------- the map


def _z(points: dict[str, Any], i: int) -> float:
    """Infinite, which has no number, is that of a bias where every prediction is certain."""
    bias, z = points["bias"][i], points["z"][i]
    return z if z is not None else math.copysign(math.inf, bias) if bias else 0.0


def map_blocks(result: dict[str, Any]) -> list[Block]:
    """A map for each covariate, or a curve where there is none, and the most biased points."""
    points = {**_with_limits(result["points"]), "source": result["source"]}
    bias, masked = points["bias"], points["masked"]
    known = [
        i for i, value in enumerate(bias)
        if value is not None and not masked[i] and points["standard_error"][i] is not None
    ]  # fmt: skip
    told = f"{words.plural(len(bias), 'point')} of the map"
    blank = len(bias) - len(known)
    told += f"; {blank:,} have too few rows near them and are left blank." if blank else "."
    if not known:
        return [Words(told)]
    figures = []
    for name, values in points["covariates"].items():
        figure = _map_figure(points, known, name, values)
        figures += [figure] if figure is not None else []
    if not points["covariates"]:
        figures.append(_curve_figure(points, known))
    return [Words(told), Figures(tuple(figures))] if figures else [
        Words(told), _most_biased(points, known)
    ]  # fmt: skip


def _map_figure(
    points: dict[str, Any], known: list[int], name: str, values: list[float | None]
) -> Figure | None:
    kept = [i for i in known if values[i] is not None and points["prediction"][i] is not None]
    if not kept:
        return None
    places = [
        Point(values[i] or 0.0, points["prediction"][i], points["bias"][i],
              _z(points, i), points["effective_rows"][i] or 0.0)
        for i in kept
    ]  # fmt: skip
    picture, scale = fields.bias_map(places, name)
    low = sum(p.bias > 0 for p in places)
    caption = f"Bias over {name} and the prediction: predictions are too low at {low:,} and too "
    caption += f"high at {len(places) - low:,} points; in {words.plural(scale.marked, 'cell')} the "
    caption += "bias has |z| above 2 (2.3 % of calibrated cells on either side)."
    caption += f" The strongest shade is a bias of {words.number(scale.most, 2)} or more."
    legend = (
        ("high", "predictions too low (bias above 0)"),
        ("low", "predictions too high (bias below 0)"),
        ("none", "+ and −: |z| above 2"),
    )
    numbers = _most_biased(points, kept, f"Numbers of the plot: the most biased points ({name})")
    return Figure(picture, f"Map of local bias over {name}", caption, numbers, legend)


def _curve_figure(points: dict[str, Any], known: list[int]) -> Figure:
    order = sorted((points["prediction"][i] or 0.0, i) for i in known)
    step = max(1, len(order) // 200)
    some = order[::step]
    x = [a for a, _ in some]
    curve = Curve("", x, *([points[key][i] for _, i in some] for key in ("bias", "low", "high")))
    return Figure(
        fields.bias_curves([curve], "prediction"),
        "Bias over the prediction",
        "Bias over the prediction: above 0 predictions are too low.",
        _most_biased(points, known, "Numbers of the plot: the most biased points"),
        (("line", "bias"), ("area", _INTERVAL)),
    )


def _value(source: dict[str, Any] | None, name: str, value: float | None) -> str:
    """A value of a covariate, by name where it is a category."""
    found = words.level(source, name, value)
    return found if isinstance(found, str) else words.number(found)


def _most_biased(
    points: dict[str, Any], known: list[int], caption: str = "The most biased points"
) -> Table:
    """By |z|."""
    names = list(points["covariates"])
    rows = [
        (
            words.number(points["prediction"][i]),
            *(_value(points["source"], name, points["covariates"][name][i]) for name in names),
            words.signed(points["bias"][i]), words.span(points["low"][i], points["high"][i]),
            words.number(points["z"][i], 2), words.number(points["effective_rows"][i], 3),
        )
        for i in sorted(known, key=lambda i: -abs(_z(points, i)))[:_LISTED]
    ]  # fmt: skip
    head = (Column("prediction"), *names, "bias y − p", _INTERVAL, "z", "effective rows")
    return table(caption, head, rows, "the largest of many, no tests")


# ---------------------------------------------------------------- groups of an audit


def biased_groups(groups: Sequence[dict[str, Any]], level: float) -> list[Block]:
    """Groups by |z| with their simultaneous intervals."""
    if not groups:
        return []
    alpha = 1 - level + 1e-12

    def alert(g: dict[str, Any]) -> bool:
        return g["adjusted"] is not None and g["adjusted"] <= alpha

    shown = groups[:_MOST_BARS]
    rows = tuple(
        Row(f"{g['group']} ({words.count(g['n'])})", g["bias"], g["low"], g["high"], alert(g))
        for g in shown
    )
    strip = Strip("bias y − p", rows, zero=True)
    many = len(groups)
    some = f"The {len(shown)} most biased of {many:,} groups" if many > len(shown) else "All groups"
    several = f"simultaneous {interval_name(level)}s over all {many:,}"
    figure = Figure(
        charts.strips([strip]),
        f"Bias of groups: {some}",
        f"{some} (rows in brackets) with {several}. Above 0 predictions are too low.",
        strip_table([strip], "Numbers of the plot: bias of groups", "group", level, "bias"),
        (("dot", "bias"), ("bar", "interval"),
         *([("alert", f"adjusted p ≤ {1 - level:.2g}")] if any(map(alert, shown)) else [])),
    )  # fmt: skip
    listed = [
        (
            g["group"], words.count(g["n"]), words.number(g["mean_prediction"]),
            words.number(g["frequency"]), words.signed(g["bias"]), words.span(g["low"], g["high"]),
            Cell(words.p_value(g["adjusted"]), "breached" if alert(g) else ""),
        )
        for g in groups
    ]  # fmt: skip
    head = (
        "group", "rows", "mean prediction", "frequency", "bias", interval_name(level),
        "adjusted p",
    )  # fmt: skip
    return [Figures((figure,)), table("Groups by their bias", head, listed)]


# ---------------------------------------------------------------- curves of an audit


def curve_figures(
    curves: Sequence[dict[str, Any]], source: dict[str, Any] | None
) -> Figures | None:
    """The bias along the prediction and along each covariate."""
    found: dict[str | None, list[dict[str, Any]]] = {}
    for curve in curves:
        found.setdefault(curve["covariate"], []).append(curve)
    figures = []
    for name, some in found.items():
        label = "prediction" if name is None else name
        drawn = [
            Curve(words.group(c["by"], words.level(source, c["by"], c["level"])) if c["by"] else "",
                  c["x"], c["bias"], c["low"], c["high"])
            for c in map(_with_limits, some)
        ]  # fmt: skip
        by = some[0]["by"]
        split = f", for each value of {by}" if len(some) > 1 and by else ""
        named = [(mark, curve.name) for mark, curve in zip(fields.MARKS, drawn, strict=False)]
        figures.append(
            Figure(
                fields.bias_curves(drawn, label),
                f"Bias over {label}{split}",
                f"Bias over {label}{split}: above 0 predictions are too low.",
                _curve_table(drawn, label),
                (
                    *(named if len(drawn) > 1 else [("line", "bias")]),
                    ("area", _INTERVAL),
                ),
            )
        )
    return Figures(tuple(figures)) if figures else None


def _curve_table(curves: Sequence[Curve], label: str) -> Table:
    """About 20 points of each curve."""
    several = len(curves) > 1
    rows = []
    for curve in curves:
        step = max(1, len(curve.x) // 20)
        for i in range(0, len(curve.x), step):
            row = [words.number(curve.x[i]), words.signed(curve.bias[i]),
                   words.span(curve.low[i], curve.high[i])]  # fmt: skip
            rows.append([curve.name, *row] if several else row)
    head: list[str | Column] = [Column(label), "bias", _INTERVAL]
    return table(f"Numbers of the plot: bias over {label}", ["curve", *head] if several else head,
                 rows)  # fmt: skip


def region_table(regions: Sequence[dict[str, Any]], source: dict[str, Any] | None) -> Table | None:
    """The most biased places of the map of an audit."""
    if not regions:
        return None
    names = list(regions[0]["covariates"])
    rows = [
        (
            words.number(r["prediction"]),
            *(_value(source, name, r["covariates"].get(name)) for name in names),
            words.signed(r["bias"]), words.span(r.get("low"), r.get("high")),
            words.number(r.get("z"), 2), words.number(r["effective_rows"], 3),
        )
        for r in regions[:_LISTED]
    ]  # fmt: skip
    head = (Column("prediction"), *names, "bias y − p", _INTERVAL, "z", "effective rows")
    return table("The most biased places of the map", head, rows, "the largest of many, no tests")
