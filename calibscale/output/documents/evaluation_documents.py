"""Documents of evaluations, checks, reliability diagrams and tests."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from calibscale.estimators.known_estimators import SCORES
from calibscale.formatting import naming, number_texts, terms
from calibscale.output.documents import comparisons, estimates
from calibscale.output.documents import elements as doc
from calibscale.output.plots.prediction_plots import MAX_DIAGRAMS, worst_classes


def evaluation(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale evaluate``."""
    results = result["results"]
    groupings = [result["groups"], *(result["other_groups"] or ())]
    groupings = [grouping for grouping in groupings if grouping]
    in_all_groups = [
        estimate
        for grouping in groupings
        for group in grouping["values"]
        for estimate in group["results"]
    ]
    all_results = [*results, *in_all_groups]
    audited = (result["source"] or {}).get("forecast") is None  # audits are of classes
    grouped = [
        doc.section(
            "groups" if i == 0 else f"groups{i}",
            f"Groups by {grouping['column']}",
            *estimates.group_blocks(
                grouping["column"],
                [{**g, "group": g["name"] or g["value"]} for g in grouping["values"]],
                "",
                worst_first=True,
            ),
            _audit_hint(grouping["column"]) if audited else None,
        )
        for i, grouping in enumerate(groupings)
    ]
    in_groups = [
        (naming.group(grouping["column"], g["name"] or g["value"]), g["results"])
        for grouping in groupings
        for g in grouping["values"]
    ]
    p_values = result.get("adjusted_p_values")
    warnings = result.get("warnings") or ()
    place = estimates.Place("", results, result["n"])
    blocks = estimates.estimate_blocks([place], "estimator", p_values, _alpha(result))
    plots, band = list(estimates.score_figures(results)), []
    diagram = {**(result["reliability"] or {"bins": ()}), "source": result["source"]}
    figure = estimates.reliability_figure(diagram, "of all rows")
    if figure is not None:
        band = ["band"]
        title = "Reliability of all rows" if groupings else "Reliability diagram"
        plots.insert(0, replace(figure, title=title))
    if plots:
        # The first block plots intervals, which the table has too.
        blocks = [doc.Figures(tuple(plots)), *blocks[1:]]
    used_terms = ["calibrated", *band, *doc.interval_terms(all_results)]
    if p_values:
        used_terms.append("p-value")
    headline = result["verdict"] or f"{_unjudged(results)}."
    return doc.article(
        f"Calibration of {doc.source_name(result)}",
        doc.size_of(result),
        " ".join([headline, *warnings]).removesuffix("."),
        doc.section("estimates", "Estimates", *blocks),
        *grouped,
        *doc.closing(
            result,
            used_terms,
            [e["estimator"] for e in all_results],
            [*doc.estimator_notes(results), *doc.group_notes(in_groups)],
        ),
        state=_state(result),
    )


def check(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale check``."""
    article = evaluation(result)
    first, *remaining = article.sections
    further = _further_tests(result)
    sections = (first, *remaining) if further is None else (first, further, *remaining)
    return replace(article, title=f"Check of {doc.source_name(result)}", sections=sections)


def _further_tests(result: dict[str, Any]) -> doc.Section | None:
    """Section with the p-values of tests that belong to no estimate, or None without such tests."""
    adjusted, alpha = result["adjusted_p_values"], _alpha(result)
    # A check tests each of its estimates first, then statistics without a size.
    tests = result["tests"][len(result["results"]) :]
    rows = [
        (
            terms.label({"estimator": test["statistic"], "notion": test["notion"]}),
            estimates.p_cell(adjusted.get(test["statistic"]), alpha),
        )
        for test in tests
    ]
    if not rows:
        return None
    note = "p-value: adjusted for the number of tests"
    listed = doc.table(
        "p-values of statistics without a size", ("statistic", "p-value"), rows, note
    )
    ranges = [_biased_range(test, adjusted.get(test["statistic"]), alpha) for test in tests]
    return doc.section("tests", "Further tests", listed, *ranges)


def _biased_range(test: dict[str, Any], p: float | None, alpha: float) -> doc.Paragraph | None:
    """Sentence about the most significant range of predictions, or None if there is none."""
    details = test["details"] or {}
    if "low" not in details or not estimates.significant(p, alpha):
        return None
    bias = details["observed"] - details["predicted"]
    of_class = f" of class {details['class']}" if "class" in details else ""
    low, high = (number_texts.number(details[end], 3) for end in ("low", "high"))
    direction = "low" if bias > 0 else "high"
    return doc.Paragraph(
        f"Predictions{of_class} between {low} and {high} are {number_texts.points(bias)} too "
        f"{direction} ({test['statistic']}, adjusted {number_texts.p_is(p)})."
    )


def _state(result: dict[str, Any]) -> str:
    """State of the judgement of a result, empty in results of earlier versions."""
    return (result.get("judgement") or {}).get("state", "")


def _alpha(result: dict[str, Any]) -> float:
    """Level of the tests of a result, which is 1 − its confidence level."""
    level = (result["parameters"] or {}).get("confidence_level")
    if not isinstance(level, int | float):
        return estimates.ALPHA
    return 1 - level + 1e-12  # 1 - 0.95 is below 0.05 in float64


def _audit_hint(column: str) -> doc.Paragraph:
    name = naming.grouped_column(column)
    command = f"calibscale audit STORE --covariates {shlex.quote(name)}"
    return doc.Paragraph(f"To test which groups are biased, run {command}")


def _unjudged(results: list[dict[str, Any]]) -> str:
    """Headline of estimates without a judgement, with the option that adds a judgement."""
    text = _first_value(results)
    valued = [e for e in results if e["value"] is not None]
    if not valued or any(e["interval"] is not None for e in valued):
        return text
    if all(naming.name_of(e["estimator"]) in SCORES for e in valued):
        return f"{text}; scores alone cannot be judged: use check"
    return (
        f"{text}; no estimate is judged without an interval: pass "
        'interval="jackknife" (--interval jackknife), or use check'
    )


def _first_value(results: list[dict[str, Any]]) -> str:
    """Sentence about the most common calibration error among the results."""
    by_name = {e["estimator"]: e for e in results if e["value"] is not None}
    for name in ("ece", "tce2_debiased", "quantile_ece", *by_name):
        if name in by_name:
            estimate = by_name[name]
            text = f"{terms.label(estimate)} is {number_texts.number(estimate['value'])}"
            return text + estimates.in_brackets(estimate)
    return "No estimate has a value"


def reliability(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale reliability``."""
    # Without a chosen class, the curves of the classes take the place of groups.
    by_class = result["notion"] == "class_wise" and result["class"] is None
    curves = (result["groups"] or {"values": ()})["values"] if by_class else [result]
    filled = [b for curve in curves for b in curve["bins"] if b["frequency"] is not None]
    outside = sum(bool(b["outside"]) for b in filled)
    level = result["level"]
    bins = number_texts.plural(len(filled), estimates.unit(result))
    verdict = f"{outside} of {bins} outside the band"
    if level is not None:
        verdict += f"; at most {len(filled) * (1 - level):.2g} expected by chance"
    if not by_class and result["ece"] is not None:
        verdict += f"; {terms.ece(result)}"
    if not filled:
        verdict = result["reason"] or "There are no bins"
    alone = result["groups"] is None
    plots = [
        estimates.reliability_figure(
            result, "of all rows", in_text=True, alone=alone, title="All rows"
        )
    ]
    listed = None
    if result["groups"] is not None:
        column = result["groups"]["column"]
        values = result["groups"]["values"]
        groups = worst_classes(values) if by_class else sorted(values, key=lambda g: -g["n"])
        titles = [naming.group(column, g["name"] or g["value"]) for g in groups]
        shared = {key: result[key] for key in ("notion", "class", "level", "source")}
        for name, g in list(zip(titles, groups, strict=True))[:MAX_DIAGRAMS]:
            judged = {**g, **shared} | ({"class": int(g["value"])} if by_class else {})
            where, reference = (f"of {name}", None) if by_class else (f"where {name}", result)
            plots.append(estimates.reliability_figure(judged, where, reference, title=name))
        rows = [
            (
                name,
                number_texts.count(g["n"]),
                number_texts.number(g["ece"]),
                *estimates.noise(g, "ece"),
                number_texts.number(g["tce2_debiased"]),
            )
            for name, g in zip(titles, groups, strict=True)
        ]
        caption, head = ("Classes", "class") if by_class else ("Groups", "group")
        columns = (head, "rows", "ece", *estimates.NOISE, "tce2_debiased")
        listed = doc.table(caption, columns, rows)
    notion, k = terms.notion(result["notion"]), result["class"]
    if k is not None:
        names = (result["source"] or {}).get("class_names")
        class_name = names[k] if names else k
        notion = f"class {class_name}"
    return doc.article(
        f"Reliability of {doc.source_name(result)}",
        f"{doc.size_of(result)}, {notion}",
        verdict,
        doc.section("reliability", "Reliability", doc.figures(plots), estimates.pit_table(result)),
        doc.section("groups", "Groups", listed),
        *doc.closing(
            result,
            ["calibrated", "interval", "band"],
            ["quantile_ece"] if result["notion"] == "pit" else ["ece", "tce2_debiased"],
        ),
    )


def test(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale test``."""
    tests = result["tests"]
    p_values = [t["p_value"] for t in tests if t["p_value"] is not None]
    if result.get("verdict"):
        verdict = result["verdict"].removesuffix(".")
    elif p_values:  # a result of a version without verdicts
        verdict = f"The smallest p-value is {number_texts.p_value(min(p_values))}"
    else:
        verdict = "No test has a p-value"
    several: tuple[str, ...] = ()
    if len(p_values) > 1:
        several = ("The p-values of the table are not adjusted for the number of tests.",)
    run = result.get("run") or result["parameters"] or {}
    of_tests = {t["statistic"]: t["parameters"] for t in tests if t["parameters"]}
    seed = tests[0]["seed"] if tests else None
    shown = {**result, "parameters": {**run, **of_tests, "seed": seed}}
    return doc.article(
        f"Tests of {doc.source_name(result)}",
        doc.size_of(result),
        verdict,
        doc.section(
            "tests",
            "Tests",
            *comparisons.test_blocks(
                [comparisons.Tested("", t) for t in tests], "test", estimates.ALPHA
            ),
        ),
        *doc.closing(
            shown, ["calibrated", "p-value", "95 % null quantile"], [t["statistic"] for t in tests]
        ),
        state=_state(result),
        reasons=several,
    )
