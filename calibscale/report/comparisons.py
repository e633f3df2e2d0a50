"""Sections that compare: models ranked, estimators chosen, and what the null would be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from calibscale.report import charts, fields, words
from calibscale.report.blocks import Block, Cell, Column, Figure, Figures, Words, table
from calibscale.report.charts import Row, Strip
from calibscale.report.estimates import interval_name, strip_table

_MOST_PAIRS = 15  # of a table of differences that is not folded

# ---------------------------------------------------------------- ranking


def ranking_blocks(
    models: Sequence[dict[str, Any]], by: str, level: float | None, notes: Sequence[str] = ()
) -> list[Block]:
    """Models in order (`models`: name, rank, value, interval, rank_probabilities)."""
    if not models:
        return []
    rows = tuple(_model_row(model) for model in models)
    strip = Strip(by, rows)
    legend = [("dot", by), *([("bar", interval_name(level))] if any(r.low for r in rows) else [])]
    figure = Figure(
        charts.strips([strip]),
        f"Models by {by}",
        f"{by} of each model, the best calibrated first. Bars that overlap leave the order open.",
        strip_table([strip], f"Numbers of the plot: models by {by}", "model", level),
        tuple(legend),
    )
    return [Figures((figure,)), _models_table(models, by, level), *map(Words, notes)]


def _model_row(model: dict[str, Any]) -> Row:
    interval = model["interval"] or {"low": None, "high": None}
    return Row(model["name"], model["value"], interval["low"], interval["high"])


def _models_table(models: Sequence[dict[str, Any]], by: str, level: float | None) -> Block:
    most = max((len(model["rank_probabilities"] or ()) for model in models), default=0)
    extra = [k for k in ("accuracy", "brier", "nll") if any(m.get(k) is not None for m in models)]
    rows = []
    for model in models:
        interval = model["interval"] or {"low": None, "high": None}
        found = list(model["rank_probabilities"] or ())
        shares = [
            Cell(words.probability(p), "share", round(p, 3)) if p is not None else Cell("–")
            for p in [*found, *[None] * (most - len(found))]
        ]
        rank = "–" if model["rank"] is None else str(model["rank"])
        rows.append((
            model["name"], rank, words.number(model["value"]),
            words.span(interval["low"], interval["high"]), *shares,
            *(words.number(model.get(key)) for key in extra),
        ))  # fmt: skip
    head = ("model", "rank", by, interval_name(level))
    ranks = [f"P(rank {i + 1})" for i in range(most)]
    note = "the darker a cell, the more probable the rank" if most else ""
    return table(f"Models by {by}", (*head, *ranks, *extra), rows, note)


def difference_table(
    differences: Sequence[dict[str, Any]], level: float | None, names: tuple[str, str]
) -> Block | None:
    """Differences of pairs (`differences`: first, second, value, low, high, p)."""
    if not differences:
        return None
    rows = []
    for d in differences:
        told = d["p"] is not None and level is not None and d["p"] <= 1 - level + 1e-12
        apart = "–" if d["p"] is None else Cell("differ", "strong") if told else "not told apart"
        rows.append((
            d["first"], d["second"], words.signed(d["value"]), words.span(d["low"], d["high"]),
            words.p_value(d["p"]), apart,
        ))  # fmt: skip
    head = (
        names[0], Column(names[1], numbers=False), "difference", interval_name(level),
        "adjusted p", Column("state", numbers=False),
    )  # fmt: skip
    return table(
        "Differences of pairs", head, rows, "p-values are adjusted for the number of pairs"
    )


# ---------------------------------------------------------------- drift


def drift_blocks(drift: dict[str, Any], column: str | None) -> list[Block]:
    """Differences to the baseline: a plot and a table."""
    results = drift["results"]
    base = drift["baseline"]
    told = words.window(drift["window"]) if drift["window"] else "the window"
    told = f"{told[:1].upper()}{told[1:]} against the baseline"
    if base is not None and base["first"] and base["last"]:
        told += f", {words.day(base['first'])} to {words.day(base['last'])}"
        told += f" ({words.count(base['n'])} rows)" if base["n"] is not None else ""
    if not results:
        return [Words(f"{told}: nothing can be compared yet.")]
    level = next((d["level"] for d in results if d["level"] is not None), None)
    alpha = 0.05 if level is None else 1 - level
    found: dict[str, list[Row]] = {}
    for d in sorted(results, key=lambda d: d["group"] is not None):
        p = d["adjusted_p_value"] if d["adjusted_p_value"] is not None else d["p_value"]
        row = Row(
            words.group(column, d["group"]), d["difference"], d["low"], d["high"],
            p is not None and p <= alpha + 1e-12,
        )  # fmt: skip
        found.setdefault(words.label(d), []).append(row)
    strips = [Strip(name, tuple(rows), zero=True) for name, rows in found.items()]
    figures = Figures(
        tuple(_drift_figure(some, told, level) for some in charts.in_pictures(strips))
    )
    rows = [
        (
            words.label(d), words.group(column, d["group"]), words.signed(d["difference"]),
            words.span(d["low"], d["high"]), words.p_value(d["p_value"]),
            words.p_value(d["adjusted_p_value"]),
        )
        for d in results
    ]  # fmt: skip
    head = (
        "estimator", Column("group", numbers=False), "difference", interval_name(level), "p-value",
        "adjusted",
    )  # fmt: skip
    return [Words(f"{told}."), figures, table("Drift since the baseline", head, rows)]


def _drift_figure(some: Sequence[Strip], told: str, level: float | None) -> Figure:
    names = words.joined([strip.title for strip in some])
    alerts = any(row.alert for strip in some for row in strip.rows)
    legend = [("dot", "difference"), ("bar", interval_name(level))]
    legend += [("alert", "changed")] if alerts else []
    caption = (
        f"{names}: change since the baseline. Called changed by the p-value that is adjusted for "
        "all comparisons; a bar is the interval of one of them alone."
    )
    numbers = strip_table(some, f"Numbers of the plot: drift of {names}", "group", level, "change")
    return Figure(charts.strips(some), f"Drift of {names}. {told}", caption, numbers, tuple(legend))


# ---------------------------------------------------------------- selection


def selection_blocks(result: dict[str, Any]) -> list[Block]:
    """The risk table, plots of risk along grids, and estimates of the best of each estimator."""
    candidates = result["candidates"]
    names = list(dict.fromkeys(c["estimator"] for c in candidates))
    best = {name: _best([c for c in candidates if c["estimator"] == name]) for name in names}
    chosen = result["selected"]
    blocks: list[Block] = [
        Words(
            f"The estimator of smallest risk is {chosen['estimator']}"
            + (f" with {_settings(chosen)}" if _settings(chosen) else "")
            + f": the squared calibration error is {words.number(chosen['estimate'])}"
            + (f", its root {words.number(chosen['root'])}" if chosen["root"] is not None else "")
            + f". {_interval_words(chosen)}"
        ),
        _risk_table(list(best.values()), chosen),
    ]
    figures = [_root_figure(list(best.values()), chosen)]
    floor = _root_risk(chosen)
    for name in names:
        figure = _risk_figure(name, [c for c in candidates if c["estimator"] == name],
                              best[name], floor, name == chosen["estimator"])  # fmt: skip
        figures += [figure] if figure is not None else []
    nested = result["nested"]
    if nested is not None:
        blocks.append(Words(f"Nested cross-validation: {words.number(nested['estimate'])}."))
    return [*blocks, Figures(tuple(figures))]


def _best(candidates: list[dict[str, Any]]) -> dict[str, Any]:
    return min(candidates, key=lambda c: math.inf if c["risk"] is None else c["risk"])


def _root_risk(candidate: dict[str, Any]) -> float | None:
    return None if candidate["risk"] is None else 100 * math.sqrt(max(candidate["risk"], 0.0))


def _settings(candidate: dict[str, Any]) -> str:
    """The hyper-parameter, and what was fitted, as means over folds."""
    found = dict(candidate["hyperparameter"] or {})
    for name, values in (candidate["fitted"] or {}).items():
        numbers = values if isinstance(values, list) else [values]
        if numbers and all(isinstance(v, int | float) for v in numbers):
            found[name.replace("theta", "θ")] = sum(numbers) / len(numbers)
    return ", ".join(f"{name} = {_digits(value)}" for name, value in found.items())


def _digits(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else words.plain(value)


def _risk_table(best: list[dict[str, Any]], chosen: dict[str, Any]) -> Block:
    rows = []
    for c in sorted(best, key=lambda c: math.inf if c["risk"] is None else c["risk"]):
        mine = c["estimator"] == chosen["estimator"]
        state = "chosen" if mine else "worse" if c["distinguishable"] else "not told apart"
        rows.append((
            Cell(c["estimator"], "strong" if mine else ""), _settings(c) or "–",
            words.number(_root_risk(c), 6), "–" if mine else words.signed(c["difference"]),
            "–" if mine else words.number(c["difference_standard_error"], 2),
            words.number(c["estimate"]), words.number(c["root"]), words.span(*_roots(c)),
            Cell(state, "strong" if mine else ""),
        ))  # fmt: skip
    head = (
        "estimator", Column("setting", numbers=False), "√risk × 100", "risk − best", "±",
        "estimate", "root", f"{interval_name(_level(chosen))} of the root",
        Column("state", numbers=False),
    )  # fmt: skip
    caption = "The best of each estimator by its risk"
    return table(caption, head, rows, "±: standard errors of differences paired by rows")


def _level(candidate: dict[str, Any]) -> float | None:
    return None if candidate["interval"] is None else candidate["interval"]["level"]


def _roots(candidate: dict[str, Any]) -> tuple[float | None, float | None]:
    """Roots of the limits of the interval."""
    limits = candidate["interval"] or {"low": None, "high": None}
    if limits["low"] is None or limits["high"] is None:
        return None, None
    return math.sqrt(max(limits["low"], 0.0)), math.sqrt(max(limits["high"], 0.0))


def _interval_words(chosen: dict[str, Any]) -> str:
    """What the interval says beside an estimate that is never negative."""
    limits = chosen["interval"]
    if limits is None or limits["low"] is None or limits["high"] is None:
        return ""
    between = words.span(limits["low"], limits["high"])
    told = f"The {interval_name(limits['level'])} of the squared error is {between}"
    if limits["low"] <= 0:
        return f"{told}: the rows do not tell it from 0, and an estimate from squares is above 0."
    return f"{told}."


def _root_figure(best: list[dict[str, Any]], chosen: dict[str, Any]) -> Figure:
    rows = []
    for c in best:
        rows.append(Row(c["estimator"], c["root"], *_roots(c)))
    strip, level = Strip("", tuple(rows)), _level(chosen)
    return Figure(
        charts.strips([strip]),
        "Calibration error by estimator",
        f"The calibration error (root) by each estimator, with its {interval_name(level)}; "
        f"{chosen['estimator']} has the smallest risk.",
        strip_table([strip], "Numbers of the plot: calibration error by estimator", "estimator",
                    level),
        (("dot", "estimate"), ("bar", interval_name(level))), "Calibration error (root)",
    )  # fmt: skip


def _risk_figure(
    name: str, grid: list[dict[str, Any]], best: dict[str, Any], floor: float | None, chosen: bool
) -> Figure | None:
    """Risk along a grid of one hyper-parameter."""
    known = [c for c in grid if c["risk"] is not None and len(c["hyperparameter"] or {}) == 1]
    if len(known) < 3 or floor is None or best not in known:
        return None
    label, _ = next(iter(known[0]["hyperparameter"].items()))
    points = sorted((c["hyperparameter"].get(label), i) for i, c in enumerate(known))
    if not all(isinstance(value, int | float) for value, _ in points):
        return None
    known = [known[i] for _, i in points]
    x = [float(value) for value, _ in points]
    y = [_root_risk(c) or 0.0 for c in known]
    spread = [
        100 * (c["difference_standard_error"] or 0.0) / math.sqrt(max(c["risk"], 1e-300))
        for c in known
    ]
    at = float(best["hyperparameter"][label])
    rows = [
        (words.number(a, 4), words.number(b), words.number(s, 2), words.number(c["estimate"]))
        for a, b, s, c in zip(x, y, spread, known, strict=True)
    ]
    y_name = "√risk × 100"
    end = at in (x[0], x[-1])
    caption = f"Risk of {name} along its grid; the least is at {label} = {_digits(at)}"
    caption += ", the end of its grid: a wider one may be better." if end else "."
    return Figure(
        fields.risk(label, x, y, spread, at, floor, chosen),
        f"Risk of {name} by {label}",
        caption,
        table(f"Numbers of the plot: risk of {name}", (label, y_name, "±", "estimate"), rows),
        (("line", "√risk × 100"), ("area", "± 2 standard errors of the difference to the best"),
         ("goal", "least risk of all")),
        f"Risk of {name}",
    )  # fmt: skip
