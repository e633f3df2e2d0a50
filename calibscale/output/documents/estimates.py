"""Sections of estimates: plots and tables of values with intervals, noise and p-values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from calibscale.estimators.known_estimators import short_summary
from calibscale.formatting import naming, number_texts, terms
from calibscale.formatting.naming import name_of
from calibscale.output.documents import elements as doc
from calibscale.output.documents.details import CoverageLevels, ScoreParts, WorstSlab
from calibscale.output.plots.curve_plots import (
    IntervalPanel,
    IntervalRow,
    in_pictures,
    intervals_height,
    plot_intervals,
)
from calibscale.results.estimate import EXACT, POPULATION, Estimate, Floor, Interval

MAX_GROUPS = 12  # groups in a plot, while tables contain all groups
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
    return [forest(places, place_title, level), table, *_reasons(places)]


def forest(places: Sequence[Place], place_title: str, level: float | None) -> doc.Figures:
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
    remarks = [*sign_notes(estimates), *_remarks(places), *notion_note(estimates)]
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


def sign_notes(estimates: Sequence[Estimate]) -> list[str]:
    """Explanation of the sign of signed estimates."""
    if any(estimate.estimator == "confidence_gap" for estimate in estimates):
        return [terms.GAP_SIGN]
    return []


def _remarks(places: Sequence[Place]) -> list[str]:
    """What values at each of a few places mean: levels of coverages, slabs and parts of scores."""
    remarks = []
    for place in places[:MAX_GROUPS]:
        texts = filter(None, map(_remark, place.results))
        remarks += [f"{place.name}: {text}" if place.name else text for text in texts]
    return remarks


def _remark(estimate: Estimate) -> str:
    """What a value means, empty for most estimates."""
    slab = WorstSlab.of(estimate)
    if slab is not None:
        share = _tenths(estimate.value)
        return f"{estimate.estimator}: {share} of {slab.rows:,} rows with {slab.words}"
    parts = ScoreParts.of(estimate)
    if parts is not None:
        score, miscalibration, discrimination, uncertainty = map(
            number_texts.number,
            (parts.score, estimate.value, parts.discrimination, parts.uncertainty),
        )
        return (
            f"{estimate.estimator}: score {score} = {miscalibration} miscalibration − "
            f"{discrimination} discrimination + {uncertainty} uncertainty"
        )
    coverage = CoverageLevels.of(estimate)
    if coverage is None:
        return ""
    beside = "" if coverage.expected is None else f" (expected {_tenths(coverage.expected)})"
    return f"coverage of {number_texts.percent(coverage.level)}: {_tenths(estimate.value)}{beside}"


def _tenths(share: float | None) -> str:
    """Share in percent with one decimal."""
    return "–" if share is None else f"{100.0 * share:.1f} %"
