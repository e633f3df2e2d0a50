"""Sections of estimates: with their intervals, as a diagram, by group, and tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from calibscale.report import charts, words
from calibscale.report.blocks import Block, Cell, Column, Figure, Figures, Folded, Table, table
from calibscale.report.blocks import Words as Paragraph
from calibscale.report.charts import Row, Strip

MOST_GROUPS = 12  # of one plot; tables have all of them
THIS_N = "the expectation at this n"


class Place(NamedTuple):
    """Estimates of one window, group or model, and what is set for them.

    `limits` and `breached` are by estimator: thresholds, and whether one of them is breached.
    """

    name: str
    results: Sequence[dict[str, Any]]
    n: int | None = None
    limits: dict[str, tuple[float, ...]] = {}  # noqa: RUF012
    breached: frozenset[str] = frozenset()


def level_of(results: Sequence[dict[str, Any]]) -> float | None:
    """The level of the first interval."""
    found = (e["interval"]["level"] for e in results if e["interval"] is not None)
    return next((level for level in found if level is not None), None)


def interval_name(level: float | None) -> str:
    return "interval" if level is None else f"{words.percent(level)} interval"


# ---------------------------------------------------------------- estimates


def estimate_blocks(places: Sequence[Place], what: str) -> list[Block]:
    """The same estimators in several places (`what` they are): plots, then one table."""
    if not any(place.results for place in places):
        return []
    level = level_of([e for place in places for e in place.results])
    return [_forest(places, what, level), estimate_table(places, what, level), *_reasons(places)]


def _forest(places: Sequence[Place], what: str, level: float | None) -> Figures:
    """A strip for each estimator; places are its rows."""
    found = []
    for label, rows in _by_estimator(places).items():
        drawn = tuple(_row(place, estimate) for place, estimate in rows[:MOST_GROUPS])
        if any(row.value is not None for row in drawn):
            found.append(Strip(label, drawn))
    pictures = charts.in_pictures(found)
    return Figures(tuple(_forest_figure(some, places, what, level) for some in pictures))


def _by_estimator(places: Sequence[Place]) -> dict[str, list[tuple[Place, dict[str, Any]]]]:
    found: dict[str, list[tuple[Place, dict[str, Any]]]] = {}
    for place in places:
        for estimate in place.results:
            found.setdefault(words.label(estimate), []).append((place, estimate))
    return found


def _row(place: Place, estimate: dict[str, Any]) -> Row:
    interval = estimate["interval"] or {"low": None, "high": None}
    name = estimate["estimator"]
    return Row(
        place.name, estimate["value"], interval["low"], interval["high"],
        name in place.breached, place.limits.get(name, ()),
    )  # fmt: skip


def _forest_figure(
    some: Sequence[Strip], places: Sequence[Place], what: str, level: float | None
) -> Figure:
    names = words.joined([strip.title for strip in some])
    told = f"{names} by {what}" if len(places) > 1 else names
    caption = f"{told}: each point is an estimate"
    caption += f", each bar its {interval_name(level)}" if level is not None else ""
    limited = any(charts.drawn_limits(strip) for strip in some)
    alerts = any(row.alert for strip in some for row in strip.rows)
    legend = [("dot", "estimate")]
    legend += [("bar", interval_name(level))] if level is not None else []
    legend += [("limit", "threshold")] if limited else []
    legend += [("alert", "threshold breached")] if alerts else []
    return Figure(
        charts.strips(some), f"Estimates of {told}", f"{caption}. Every strip has its own scale.",
        strip_table(some, f"Numbers of the plot: {told}", what, level), tuple(legend),
    )  # fmt: skip


def strip_table(
    some: Sequence[Strip], caption: str, what: str, level: float | None, value: str = "value"
) -> Table:
    """The numbers of strips."""
    named = any(row.label for strip in some for row in strip.rows)
    rows = [
        (strip.title or "–", *([row.label] if named else []), words.number(row.value),
         words.span(row.low, row.high, 4))
        for strip in some
        for row in strip.rows
    ]  # fmt: skip
    middle = [Column(what, numbers=False)] if named else []
    return table(caption, ("of", *middle, value, interval_name(level)), rows)


def estimate_table(places: Sequence[Place], what: str, level: float | None) -> Table:
    """Estimates with intervals, roots, and errors of approximations."""
    every = [e for place in places for e in place.results]
    several = len(places) > 1 or any(place.name for place in places)
    rooted = any(e["squared"] for e in every)
    near = any(_approximation(e) for e in every)
    head: list[str | Column] = ["estimator"]
    head += [Column(what, numbers=False), "value"] if several else ["value"]
    head += [interval_name(level)] if level is not None else []
    head += [*(["root"] if rooted else []), *(["±"] if near else []), "rows"]
    rows: list[list[str | Cell]] = []
    for label, found in _by_estimator(places).items():
        for i, (place, estimate) in enumerate(found):
            row: list[str | Cell] = [Cell(label, "strong" if i == 0 else "faint")]
            row += [place.name] if several else []
            state = "breached" if estimate["estimator"] in place.breached else ""
            row.append(Cell(words.number(estimate["value"]), state))
            row += [_interval(estimate)] if level is not None else []
            root = words.number(estimate["root"]) if estimate["squared"] else ""
            row += [root] if rooted else []
            row += [_approximation(estimate)] if near else []
            n = estimate["n"] if estimate["n"] is not None else place.n
            rows.append([*row, words.count(n)])
    told = ["root: √value of a squared error"] * rooted
    told += ["±: the error of a faster computation, not of sampling"] * near
    return table("Values and intervals", head, rows, "; ".join(told))


def _interval(estimate: dict[str, Any]) -> str:
    found = estimate["interval"]
    if found is None:
        return "–"
    biased = found["covers"] == THIS_N
    return words.span(found["low"], found["high"]) + (" at this n" if biased else "")


def _approximation(estimate: dict[str, Any]) -> str:
    found = estimate["approximation"]
    if found is None or found["kind"] in (None, "exact"):
        return ""
    return "unknown" if found["error"] is None else words.number(found["error"], 2)


def _reasons(places: Sequence[Place]) -> list[Block]:
    """Why a value is missing, each reason once."""
    found = dict.fromkeys(
        f"{words.label(e)}: {e['reason']}"
        for place in places
        for e in place.results
        if e["value"] is None and e["reason"]
    )
    return [Paragraph(f"No value of {text}.") for text in found]


# ---------------------------------------------------------------- groups


def group_blocks(
    column: str | None,
    groups: Sequence[dict[str, Any]],
    where: str,
    judged: Callable[[Any], tuple[dict[str, tuple[float, ...]], frozenset[str]]] | None = None,
) -> list[Block]:
    """Groups, largest first: a plot of the largest, and a table of all (`groups`: group, n).

    `judged` gives the thresholds of a group by estimator, and those that are breached.
    """
    ordered = sorted(groups, key=lambda g: -(g["n"] or 0))
    if not ordered:
        return []
    places = [
        Place(words.group(column, g["group"]), g["results"], g["n"],
              *(judged(g["group"]) if judged is not None else ()))
        for g in ordered
    ]  # fmt: skip
    level = level_of([e for g in ordered for e in g["results"]])
    many = len(places) > MOST_GROUPS
    shown = f"The {MOST_GROUPS} largest of {len(places):,} groups" if many else "All groups"
    return [
        Paragraph(f"{shown}, largest first{', ' + where if where else ''}."),
        _forest(places, "group", level),
        group_table(column, ordered, where),
    ]


def group_table(column: str | None, groups: Sequence[dict[str, Any]], where: str) -> Table:
    """A row for each group, a column for each estimator."""
    labels = list(dict.fromkeys(words.label(e) for g in groups for e in g["results"]))
    rows = []
    for g in groups:
        found = {words.label(e): e for e in g["results"]}
        cells = [_value_and_interval(found.get(label)) for label in labels]
        rows.append((words.group(column, g["group"]), words.count(g["n"]), *cells))
    note = "in brackets: intervals" if level_of([e for g in groups for e in g["results"]]) else ""
    caption = f"Groups {where}".rstrip()
    return table(caption, ("group", "rows", *labels), rows, note)


def _value_and_interval(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return "–"
    found, value = estimate["interval"], words.number(estimate["value"], 3)
    if found is None or found["low"] is None or found["high"] is None:
        return value
    return f"{value} [{words.span(found['low'], found['high'], 2)}]"


# ---------------------------------------------------------------- reliability


def outcome(notion: str | None) -> str:
    return "accuracy" if notion in (None, "top_label") else "observed frequency"


def prediction(notion: str | None, class_index: int | None, source: dict[str, Any] | None) -> str:
    if notion in (None, "top_label"):
        return "confidence"
    k, names = class_index if class_index is not None else 1, (source or {}).get("class_names")
    return f"predicted P(y = {names[k] if names else k})"


def reliability_figure(diagram: dict[str, Any], where: str) -> Figure | None:
    """A reliability diagram; none where there is no bin."""
    bins = diagram["bins"]
    filled = [b for b in bins if b["frequency"] is not None]
    if not filled:
        return None
    level = interval_name(diagram["level"])
    names = (
        outcome(diagram["notion"]),
        prediction(diagram["notion"], diagram["class"], diagram.get("source")),
    )
    outside = [b for b in filled if b["outside"]]
    ece = f", ECE {words.number(diagram['ece'])}" if diagram["ece"] is not None else ""
    told = f"{len(outside)} of {words.plural(len(filled), 'bin')} outside the band"
    high = sum(b["mean_p"] > b["frequency"] for b in outside)
    sides = [
        text
        for count, text in (
            (high, f"predictions are too high in {high}"),
            (len(outside) - high, f"too low in {len(outside) - high}"),
        )
        if count
    ]
    direction = f" ({' and '.join(sides)})" if sides else ""
    legend = [
        ("dash", "calibrated"),
        ("band", "where a bin would be if calibrated"),
        ("dot", f"{names[0]} with its {level}"),
        *([("alert", "outside the band")] if outside else []),
        ("rows", "rows of each bin"),
    ]
    rows = [
        (
            f"{words.number(b['lower'], 3)} – {words.number(b['upper'], 3)}",
            words.count(b["count"]),
            words.number(b["mean_p"]),
            words.number(b["frequency"]),
            words.span(*(b["interval"] or (None, None))),
            words.span(*(b["consistency"] or (None, None))),
            Cell("outside", "breached") if b["outside"] else "–" if b["mean_p"] is None else "in",
        )
        for b in bins
    ]
    head = ("bin", "rows", names[1], names[0], level, "band", Column("state", numbers=False))
    return Figure(
        charts.reliability(bins, (names[0], names[1])),
        f"Reliability diagram {where}: {told}",
        f"{words.count(diagram['n'])} rows{ece}: {told}{direction}.",
        table(f"Numbers of the plot: bins {where}", head, rows),
        tuple(legend),
        f"{where[:1].upper()}{where[1:]}",
    )


# ---------------------------------------------------------------- tests


class Tested(NamedTuple):
    """A test and where it was made."""

    place: str
    test: dict[str, Any]
    adjusted: float | None = None


def at_least(test: dict[str, Any]) -> bool:
    """Whether the p-value is the least that the replicates can show."""
    return test["null"] != "hoeffding" and test["exceedances"] == 0


def test_blocks(tests: Sequence[Tested], what: str, alpha: float) -> list[Block]:
    """P-values, and values beside what the null draws."""
    if not tests:
        return []
    adjusted = any(one.adjusted is not None for one in tests)
    several = any(one.place for one in tests)
    head: list[str | Column] = ["statistic"]
    head += [Column(what, numbers=False), "value"] if several else ["value"]
    head += ["95 % of the null below", "p-value", *(["adjusted"] if adjusted else [])]
    rows: list[list[str | Cell]] = []
    for place, test, holm in tests:
        p, least = test["p_value"], at_least(test)
        state = "breached" if p is not None and p <= alpha else ""
        row: list[str | Cell] = [_statistic(test), *([place] if several else [])]
        row += [words.number(test["value"]), words.number(test["critical_value"])]
        row += [Cell(words.p_value(p, least), state)]
        rows.append([*row, *([words.p_value(holm)] if adjusted else [])])
    blocks: list[Block] = [table("Tests of calibration", head, rows, _null_note(tests))]
    figures = _null_figures(tests, what, alpha)
    if figures is not None:
        blocks.insert(0, figures)
    missing = dict.fromkeys(
        f"{_statistic(one.test)}: {one.test['reason']}" for one in tests if one.test["reason"]
    )
    return [*blocks, *(Paragraph(f"{text}.") for text in missing)]


def _statistic(test: dict[str, Any]) -> str:
    return words.label({"estimator": test["statistic"], "notion": test["notion"]})


def _null_note(tests: Sequence[Tested]) -> str:
    first = tests[0].test
    if first["null"] == "hoeffding":
        return "p-values are upper bounds, by Hoeffding's inequality"
    if first["null"] is None:
        return ""
    most = max(one.test["replicates"] or 0 for one in tests)
    drawn = "labels drawn from the predictions" if first["null"] == "labels" else first["null"]
    return f"null: {drawn}, {words.plural(most, 'replicate')}"


def _null_figures(tests: Sequence[Tested], what: str, alpha: float) -> Figures | None:
    """Observed values over the range of the null, where that is known."""
    found: dict[str, list[Row]] = {}
    for place, test, _ in tests:
        drawn = test["null_distribution"]
        if drawn is None or test["value"] is None:
            continue
        quantiles = drawn["quantiles"]
        if "0.05" in quantiles and "0.95" in quantiles:
            alert = test["p_value"] is not None and test["p_value"] <= alpha
            ends = quantiles["0.05"], quantiles["0.95"]
            row = Row(place or "all rows", test["value"], *ends, alert, bar="rows")
            found.setdefault(_statistic(test), []).append(row)
    strips = [Strip(name, tuple(rows)) for name, rows in found.items()]
    if not strips:
        return None
    figures = []
    for some in charts.in_pictures(strips):
        names = words.joined([strip.title for strip in some])
        caption = f"{names}: each point is the value of the data, each bar what a calibrated "
        caption += "model gives in 90 % of cases. A point far to the right of its bar is evidence "
        caption += "against calibration."
        legend = [("dot", "value"), ("null", "5 % to 95 % of the null")]
        if any(row.alert for strip in some for row in strip.rows):
            legend.append(("alert", f"p ≤ {alpha:.2g}"))
        rows = [
            (strip.title, r.label, words.number(r.value), words.span(r.low, r.high, 4))
            for strip in some
            for r in strip.rows
        ]
        head = ("statistic", Column(what, numbers=False), "value", "5 % … 95 % of the null")
        numbers = table(f"Numbers of the plot: tests of {names}", head, rows)
        picture = charts.strips(some)
        figures.append(Figure(picture, f"Tests of {names}", caption, numbers, tuple(legend)))
    return Figures(tuple(figures))


def more(summary: str, *blocks: Block) -> Folded:
    """Blocks that not everyone needs."""
    return Folded(summary, blocks)
