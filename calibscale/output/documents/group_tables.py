"""Sections of estimates by group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from calibscale.estimators.known_estimators import BIASED
from calibscale.formatting import naming, number_texts
from calibscale.formatting.naming import name_of
from calibscale.output.documents import elements as doc
from calibscale.output.documents.estimates import (
    MAX_GROUPS,
    EstimatedGroup,
    Place,
    ends,
    forest,
    interval_name,
    level_of,
    notion_note,
    short_label,
    sign_notes,
    without_notion,
)
from calibscale.results.estimate import Estimate

_GROUP_COLUMNS = 5  # estimators in a table, which then fits a page


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
        forest(places, "group", level),
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
    remarks += [*sign_notes(results), *notion_note(results)]
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


def _value_and_interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    value = number_texts.number(estimate.value, 3)
    if None not in ends(estimate):
        value += f" [{number_texts.span(*ends(estimate), 2)}]"
    expected = estimate.details.get("expected")
    return value if expected is None else f"{value}, expected {number_texts.number(expected, 3)}"
