"""Sections of estimates: intervals, reliability diagrams, groups, and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from calibscale.errors import OptionError
from calibscale.estimators.known_estimators import BIASED, short_summary
from calibscale.formatting import naming, number_texts, terms
from calibscale.formatting.naming import name_of
from calibscale.output.documents import elements as doc
from calibscale.output.documents.details import CoverageLevels
from calibscale.output.plots.curve_plots import (
    IntervalPanel,
    IntervalRow,
    in_pictures,
    intervals_height,
    plot_intervals,
)
from calibscale.output.plots.diagrams import DrawnDiagram
from calibscale.output.plots.prediction_plots import RELIABILITY_HEIGHT, draw_reliability
from calibscale.output.plots.score_plots import SCORE_PLOTS, curve_of, plot_corp
from calibscale.results.estimate import EXACT, POPULATION, Estimate, Floor, Interval
from calibscale.results.evaluation_results import ReliabilityBin

MAX_GROUPS = 12  # groups in a plot, while tables contain all groups
_GROUP_COLUMNS = 5  # estimators in a table of groups, which then fits a page
ALPHA = 0.05  # level of tests without another one


class Place(NamedTuple):
    """Estimates of one window, group or model.

    `limits` are the thresholds of each estimator, `breached` the estimators beyond a threshold.
    """

    name: str
    results: Sequence[Estimate]
    limits: dict[str, tuple[float, ...]] = {}  # noqa: RUF012
    breached: frozenset[str] = frozenset()


class WithInterval(Protocol):
    """Result with an interval."""

    @property
    def interval(self) -> Interval | None:
        """Confidence interval, or None."""


class EstimatedGroup(Protocol):
    """Estimates of the rows with one value of a covariate."""

    @property
    def group(self) -> float | str | None:
        """Name or number of the group."""

    @property
    def n(self) -> int:
        """Number of rows."""

    @property
    def results(self) -> Sequence[Estimate]:
        """Estimates of these rows."""


def level_of(results: Iterable[WithInterval]) -> float | None:
    """The level of the first interval."""
    return next((e.interval.level for e in results if e.interval is not None), None)


def interval_name(level: float | None) -> str:
    return "interval" if level is None else f"{number_texts.percent(level)} interval"


def ends(result: WithInterval) -> tuple[float | None, float | None]:
    """Ends of the interval of a result, or None without an interval."""
    if result.interval is None:
        return None, None
    return number_texts.known(result.interval.low), number_texts.known(result.interval.high)


def in_brackets(result: WithInterval) -> str:
    """Interval of a result with its level, in brackets after a space, or an empty text."""
    if None in ends(result):
        return ""
    return f" ({interval_name(level_of([result]))} {number_texts.span(*ends(result))})"


# ---------------------------------------------------------------- estimates


def estimate_blocks(
    places: Sequence[Place],
    place_title: str,
    p_values: dict[str, float | None] | None = None,
    alpha: float = ALPHA,
) -> list[doc.Block]:
    """Plots and a table of the same estimators at several places of the kind `place_title`.

    p-values of at most `alpha` are marked.
    """
    if not any(place.results for place in places):
        return []
    level = level_of([e for place in places for e in place.results])
    table = estimate_table(places, place_title, level, p_values, alpha)
    return [_forest(places, place_title, level), table, *_reasons(places)]


def _forest(places: Sequence[Place], place_title: str, level: float | None) -> doc.Figures:
    """Strips of each estimator, with a row for each place."""
    panels = []
    for label, rows in _by_estimator(places).items():
        drawn = tuple(_row(place, estimate) for place, estimate in rows[:MAX_GROUPS])
        if any(row.value is not None for row in drawn):
            panels.append(IntervalPanel(label, drawn))
    pictures = in_pictures(panels)
    return doc.Figures(
        tuple(_forest_figure(chunk, places, place_title, level) for chunk in pictures)
    )


def _by_estimator(places: Sequence[Place]) -> dict[str, list[tuple[Place, Estimate]]]:
    groups: dict[str, list[tuple[Place, Estimate]]] = {}
    clear = without_notion([e for place in places for e in place.results])
    for place in places:
        for estimate in place.results:
            groups.setdefault(short_label(estimate, clear), []).append((place, estimate))
    return groups


def without_notion(estimates: Iterable[terms.WithNotion]) -> frozenset[str]:
    """Estimators that a table has only for the positive class, so that names need no notion."""
    notions: dict[str, set[str | None]] = {}
    for estimate in estimates:
        notions.setdefault(name_of(estimate.estimator), set()).add(estimate.notion)
    return frozenset(name for name, judged in notions.items() if judged == {"positive"})


def short_label(estimate: terms.WithNotion, clear: frozenset[str]) -> str:
    """Label of an estimate, without its notion if its estimator is in `clear`."""
    name = estimate.estimator
    return name if name_of(name) in clear else terms.label(estimate)


def notion_note(estimates: Sequence[terms.WithNotion]) -> list[str]:
    """Sentence about the notion of estimators that are named without it."""
    clear = without_notion(estimates)
    names = dict.fromkeys(name for e in estimates if (name := name_of(e.estimator)) in clear)
    if not names:
        return []
    verb = "is an error" if len(names) == 1 else "are errors"
    return [f"{naming.joined([*names])} {verb} of the positive class."]


def _row(place: Place, estimate: Estimate) -> IntervalRow:
    name = estimate.estimator
    breached = name in place.breached
    limits = place.limits.get(name, ())
    return IntervalRow(place.name, estimate.value, *ends(estimate), breached, limits)


def _forest_figure(
    panels: Sequence[IntervalPanel], places: Sequence[Place], place_title: str, level: float | None
) -> doc.Figure:
    names = naming.joined([strip.title for strip in panels])
    title = f"{names} by {place_title}" if len(places) > 1 else names
    caption = f"{title}: each point is an estimate"
    caption += f", each bar its {interval_name(level)}" if level is not None else ""
    return interval_figure(
        panels,
        f"Estimates of {title}",
        f"{caption}. Every strip has its own scale.",
        title,
        ("quantity", place_title, "value", interval_name(level)),
    )


def interval_figure(
    panels: Sequence[IntervalPanel],
    label: str,
    caption: str,
    numbers: str,
    head: tuple[str, str, str, str],
    title: str = "",
    **legend: str,
) -> doc.Figure:
    """Figure of panels of intervals.

    `numbers` names its table.  `head` has the headers for panels, rows, values and intervals.
    """
    quantity, row, value, interval = head
    named = any(row.label for panel in panels for row in panel.rows)
    rows = [
        (
            panel.title or "–",
            row.label,
            number_texts.number(row.value),
            number_texts.span(row.low, row.high, 4),
        )
        for panel in panels
        for row in panel.rows
    ]
    heads = (quantity, doc.text_column(row) if named else None, value, interval)
    return doc.Figure(
        partial(plot_intervals, panels, **{"interval": interval, **legend}),
        intervals_height(panels),
        label,
        caption,
        doc.table(f"Data of the plot: {numbers}", heads, rows),
        title,
    )


def estimate_table(
    places: Sequence[Place],
    place_title: str,
    level: float | None,
    p_values: dict[str, float | None] | None = None,
    alpha: float = ALPHA,
) -> doc.Table:
    """Table of estimates with intervals, adjusted p-values, roots, and approximation errors."""
    estimates = [e for place in places for e in place.results]
    several = len(places) > 1 or any(place.name for place in places)
    rooted = any(e.root is not None for e in estimates)
    noisy = any(e.floor for e in estimates)
    approximate = any(_approximation(e) for e in estimates)
    unit = "a residual" if any(e.notion == "prediction" for e in estimates) else "a probability"
    root = f"square root of a squared error, in the unit of {unit}"
    error = "numerical error of an approximation, not sampling error"
    adjusted = "adjusted for the number of estimators"
    head = (
        "estimator",
        doc.text_column(place_title) if several else None,
        "value",
        None if level is None else interval_name(level),
        *(NOISE if noisy else (None, None)),
        doc.TableColumn("p-value", legend=adjusted) if p_values else None,
        doc.TableColumn("root", legend=root) if rooted else None,
        doc.TableColumn("± approx.", optional=True, legend=error) if approximate else None,
        doc.TableColumn("rows" if several else "description", numbers=several, optional=True),
    )
    rows = []
    for label, members in _by_estimator(places).items():
        for i, (place, estimate) in enumerate(members):
            name = estimate.estimator
            rows.append(
                (
                    doc.Cell(label, "faint" if i else "strong"),
                    place.name,
                    alert_cell(number_texts.number(estimate.value), name in place.breached),
                    _interval(estimate),
                    *noise(estimate.value, estimate.floor),
                    p_cell((p_values or {}).get(name), alpha),
                    number_texts.number(estimate.root) if estimate.squared else "",
                    _approximation(estimate),
                    number_texts.count(estimate.n) if several else short_summary(name),
                )
            )
    remarks = [*_signs(estimates), *_coverages(places), *notion_note(estimates)]
    # An interval of a biased estimator covers its expectation at this n, which readers may take for
    # the population value.
    covered: dict[str, list[str]] = {}
    for e in estimates:
        if e.interval is not None and e.interval.covers != POPULATION:
            covered.setdefault(e.interval.covers, []).append(e.estimator)
    for covers, names in covered.items():
        listed = naming.joined([*dict.fromkeys(names)])
        remarks.append(
            f"The intervals of {listed} cover {covers}, which exceeds the population value."
        )
    return doc.table("Values and intervals", head, rows, remarks)


def _interval(estimate: WithInterval) -> str:
    return number_texts.span(*ends(estimate))


def alert_cell(text: str, alert: bool) -> doc.Cell:
    """Cell that is red if `alert`."""
    return doc.Cell(text, "breached" if alert else "")


def p_cell(p: float | None, alpha: float, least: bool = False) -> doc.Cell:
    """Cell of a p-value, red if it is at most `alpha`, with ≤ if it is the smallest possible."""
    return alert_cell(number_texts.p_value(p, least), significant(p, alpha))


def significant(p: float | None, alpha: float) -> bool:
    """Whether there is a p-value of at most `alpha`."""
    return p is not None and p <= alpha


NOISE = (
    doc.TableColumn(
        "noise",
        legend="mean … 95 % quantile if the model were calibrated",
    ),
    doc.TableColumn(
        "p", legend="probability of an estimate at least as large if the model were calibrated"
    ),
)


def noise(value: float | None, floor: Floor | None) -> list[str | doc.Cell]:
    """Noise floor of an estimate, faint if the estimate is within it, and its p-value."""
    if floor is None:
        return ["", ""]
    within = value is not None and value <= floor.high
    text = number_texts.span(floor.mean, floor.high, 3)
    return [doc.Cell(text, "faint" if within else ""), number_texts.p_value(floor.p_value)]


def _approximation(estimate: Estimate) -> str:
    error = estimate.approximation.error
    if estimate.approximation.kind == EXACT.kind:
        return ""
    return "unknown" if error is None else number_texts.number(error, 2)


def _reasons(places: Sequence[Place]) -> list[doc.Block]:
    """Sentences about missing values, each once."""
    reasons = dict.fromkeys(
        f"{terms.label(e)}: {e.why}"
        for place in places
        for e in place.results
        if e.value is None and e.why
    )
    return [doc.Paragraph(f"There is no value of {text}.") for text in reasons]


# ---------------------------------------------------------------- groups


def group_blocks(
    column: str | None,
    groups: Sequence[EstimatedGroup],
    where: str,
    judged: Callable[[Any], tuple[dict[str, tuple[float, ...]], frozenset[str]]] | None = None,
    worst_first: bool = False,
) -> list[doc.Block]:
    """Plot of the first groups and table of all groups, largest or worst first, with notes.

    `judged` returns the thresholds of a group by estimator, and the estimators that breach a
    threshold.
    """
    # Groups by size are in the same order every night.  The worst groups first answer where errors
    # are.
    order, ordered = "largest", sorted(groups, key=lambda g: -g.n)
    if worst_first and (name := error_name(groups)) is not None:
        order, ordered = f"largest {name}", sorted(groups, key=partial(goodness, name))
    if not ordered:
        return []
    places = [
        Place(
            naming.group(column, g.group),
            g.results,
            *(judged(g.group) if judged is not None else ()),
        )
        for g in ordered
    ]
    level = level_of(e for g in ordered for e in g.results)
    many = len(places) > MAX_GROUPS
    shown = f"The plots show {MAX_GROUPS} of {len(places):,} groups" if many else "All groups"
    of_window = f", {where}" if where else ""
    return [
        doc.Paragraph(f"{shown}, {order} first{of_window}."),
        _forest(places, "group", level),
        *group_tables(column, ordered, where),
        *map(doc.Paragraph, _size_notes(ordered)),
    ]


def error_name(groups: Sequence[EstimatedGroup]) -> str | None:
    """Name of the error by which groups are ordered: ece, or else the first error."""
    names = [e.estimator for g in groups for e in g.results]
    return "ece" if "ece" in names else next(iter(names), None)


def goodness(name: str, group: EstimatedGroup) -> float:
    """Sort key: worst estimates first, missing values last."""
    value = next((e.value for e in group.results if e.estimator == name), None)
    if value is None:
        return math.inf
    if name == "accuracy":
        return value
    return -abs(value) if name == "confidence_gap" else -value


def _size_notes(groups: Sequence[EstimatedGroup]) -> Iterator[str]:
    """Sentences about estimates that are not comparable between groups of different sizes."""
    if len({g.n for g in groups}) < 2:
        return
    by_name: dict[str, list[Estimate]] = {}
    for estimate in (e for g in groups for e in g.results):
        by_name.setdefault(estimate.estimator, []).append(estimate)
    # The default λ depends on n, so that groups of different sizes are regularised differently.
    ridges = [
        name
        for name, members in by_name.items()
        if len({e.parameters.get("ridge") for e in members if e.value is not None}) > 1
    ]
    biased = [name for name in by_name if name_of(name) in BIASED and name not in ridges]
    if ridges:
        listed = ", ".join(ridges)
        yield f"{listed}: not comparable between groups, as λ decreases with n; set ridge."
    if biased:
        yield f"Biased upwards, most in small groups: {', '.join(biased)}."


def group_tables(
    column: str | None, groups: Sequence[EstimatedGroup], where: str
) -> list[doc.Table]:
    """Tables with a row for each group and a column for each estimator, few in each table."""
    results = [e for g in groups for e in g.results]
    clear = without_notion(results)
    labels = list(dict.fromkeys(short_label(e, clear) for e in results))
    level = level_of(results)
    remarks = [] if level is None else [f"The {interval_name(level)} is in brackets."]
    remarks += [*_signs(results), *notion_note(results)]
    # Tables of nearly equal width instead of full ones and a narrow last one.
    count = max(1, -(-len(labels) // _GROUP_COLUMNS))
    tables = []
    for part in range(count):
        shown = labels[part * len(labels) // count : (part + 1) * len(labels) // count]
        rows = []
        for g in groups:
            estimates = {short_label(e, clear): e for e in g.results}
            cells = [_value_and_interval(estimates.get(label)) for label in shown]
            rows.append((naming.group(column, g.group), number_texts.count(g.n), *cells))
        caption = f"Groups {where}".rstrip()
        if part > 0:
            caption += f", part {part + 1} of {count}"
        last = part == count - 1
        tables.append(doc.table(caption, ("group", "rows", *shown), rows, remarks if last else []))
    return tables


def _signs(estimates: Sequence[Estimate]) -> list[str]:
    """Explanation of the sign of signed estimates."""
    if any(estimate.estimator == "confidence_gap" for estimate in estimates):
        return [terms.GAP_SIGN]
    return []


def _coverages(places: Sequence[Place]) -> list[str]:
    """Coverage at each of a few places with its level and its expectation."""
    remarks = []
    for place in places[:MAX_GROUPS]:
        texts = filter(None, map(_coverage, place.results))
        remarks += [f"{place.name}: {text}" if place.name else text for text in texts]
    return remarks


def _coverage(estimate: Estimate) -> str:
    """Coverage of an estimate and of a calibrated forecast, empty for other estimates."""
    coverage = CoverageLevels.of(estimate)
    if coverage is None:
        return ""
    beside = "" if coverage.expected is None else f" (expected {_tenths(coverage.expected)})"
    return f"coverage of {number_texts.percent(coverage.level)}: {_tenths(estimate.value)}{beside}"


def _tenths(share: float | None) -> str:
    """Share in percent with one decimal."""
    return "–" if share is None else f"{100.0 * share:.1f} %"


def _value_and_interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    value = number_texts.number(estimate.value, 3)
    if None not in ends(estimate):
        value += f" [{number_texts.span(*ends(estimate), 2)}]"
    expected = estimate.details.get("expected")
    return value if expected is None else f"{value}, expected {number_texts.number(expected, 3)}"


# ---------------------------------------------------------------- reliability


def reliability_figure(
    diagram: DrawnDiagram,
    where: str,
    reference: DrawnDiagram | None = None,
    in_text: bool = False,
    alone: bool = False,
    title: str | None = None,
) -> doc.Figure | None:
    """Reliability diagram, or None if every bin is empty.

    If it is `alone` in a document, the caption does not repeat the rows, the error and the bins,
    because the title and the verdict state them.  `title` is by default made from `where`.
    """
    curve, filled = diagram.curve, diagram.curve.filled
    if not filled:
        return None
    outside = [b for b in filled if b.outside]
    summary = f"{len(outside)} of {number_texts.plural(len(filled), diagram.unit)} outside the band"
    # In a diagram of levels the x axis is the level, so that a high frequency means outcomes below
    # the predicted quantiles: predictions are too high.
    high = sum(((b.gap or 0.0) > 0) != diagram.of_levels for b in outside)
    sides = [
        text
        for count, text in (
            (high, f"predictions too high in {high}"),
            (len(outside) - high, f"too low in {len(outside) - high}"),
        )
        if count
    ]
    direction = f" ({' and '.join(sides)})" if sides else ""
    ece = f", {diagram.ece}" if diagram.ece else ""
    caption = f"{number_texts.count(curve.n)} rows{ece}: {summary}{direction}."
    if title is None:
        title = f"{where[:1].upper()}{where[1:]}"
    if alone:
        title = ""
        caption = ""
        if sides:
            sentence = " and ".join(sides)
            caption = f"{sentence[:1].upper()}{sentence[1:]} {diagram.unit}s."
    return doc.Figure(
        partial(draw_reliability, diagram, reference),
        RELIABILITY_HEIGHT,
        f"Reliability diagram {where}: {summary}",
        caption,
        _bin_table(
            f"Data of the plot: {diagram.unit}s {where}",
            curve.bins,
            (diagram.outcome, "predicted" if diagram.response else diagram.prediction),
            interval_name(diagram.level),
            "PIT" if diagram.of_levels else "bin",
        ),
        title,
        in_text,
        diagram.ece,
        probabilities=True,
    )


def pit_table(diagram: DrawnDiagram) -> doc.Table | None:
    """PIT histogram of forecasts, or None for other predictions."""
    if not diagram.of_levels:
        return None
    names = "within", "calibrated"
    level = interval_name(diagram.level)
    return _bin_table("PIT histogram", diagram.curve.pit, names, level, "PIT")


def _bin_table(
    caption: str, bins: Sequence[ReliabilityBin], names: tuple[str, str], level: str, row_unit: str
) -> doc.Table:
    """Table of bins with rows.  `names` are the names of the observed and the predicted quantity.

    Bins of PIT values have no numbers of rows, because each of them is about all rows.
    """
    rows = [
        (
            f"{number_texts.given(b.lower, 3)}\u00a0–\u00a0{number_texts.given(b.upper, 3)}",
            number_texts.count(b.count),
            number_texts.number(b.mean_p),
            number_texts.number(b.frequency),
            number_texts.span(*(b.interval or (None, None))),
            number_texts.span(*(b.consistency or (None, None))),
            "–" if b.mean_p is None else alert_cell("outside" if b.outside else "in", b.outside),
        )
        for b in bins
        if b.count != 0
    ]
    empty = len(bins) - len(rows)
    notes = f"{number_texts.plural(empty, row_unit)} without rows left out." if empty else ""
    counts = "rows" if row_unit == "bin" else None
    band = doc.TableColumn("band", optional=True, legend="range of the frequency if calibrated")
    head = (row_unit, counts, names[1], names[0], level, band, doc.text_column("state"))
    return doc.table(caption, head, rows, notes)


# ---------------------------------------------------------------- curves of the score


def score_figures(estimates: Sequence[Estimate]) -> Iterator[doc.Figure]:
    """Plots of the curves of estimates, each once for a notion."""
    drawn = set()
    for estimate in estimates:
        name = name_of(estimate.estimator)
        notion = estimate.notion
        # Estimators that share a plot, such as an error and its score, would repeat it.
        if name not in SCORE_PLOTS or (SCORE_PLOTS[name], notion) in drawn:
            continue
        key, plot, height, title = SCORE_PLOTS[name]
        with suppress(OptionError):  # there is no value, or the result is malformed
            curve = curve_of(estimate, key)
            drawn.add((SCORE_PLOTS[name], notion))
            points = [*zip(*curve.values(), strict=True)]
            # About 25 points are enough to read.  The JSON output has all points.
            rows = [map(number_texts.number, point) for point in points[:: -(-len(points) // 25)]]
            text = f"{terms.label(estimate)} {number_texts.number(estimate.value)}"
            if estimate.floor is not None:
                mean = number_texts.number(estimate.floor.mean)
                p = number_texts.p_is(estimate.floor.p_value)
                text += f"; {mean} on average if calibrated, {p}"
            yield doc.Figure(
                partial(plot, estimate),
                height,
                f"{title}: {text}",
                f"{text}.",
                doc.table(f"Data of the plot: {title}", tuple(curve), [*map(tuple, rows)]),
                title,
                probabilities=plot is plot_corp,
            )
