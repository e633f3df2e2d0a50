"""Documents of evaluations, checks, reliability diagrams and tests."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from calibscale.estimators.known_estimators import SCORES, WITHOUT_JUDGEMENT
from calibscale.formatting import naming, number_texts, terms
from calibscale.formatting.response_texts import is_compared, range_text
from calibscale.output.documents import comparisons, estimates, group_tables, reliability_figures
from calibscale.output.documents import elements as doc
from calibscale.output.documents.details import BiasedRange, number_in
from calibscale.output.plots.diagrams import DrawnDiagram, judges_each_class
from calibscale.output.plots.prediction_plots import MAX_DIAGRAMS, worst_classes
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import Evaluation, GroupCurve, Reliability
from calibscale.results.outcome import RunResult
from calibscale.results.verdict_results import Judgement

if TYPE_CHECKING:
    from calibscale.results.inference_results import CalibrationTests, Check, TestResult


def evaluation(result: Evaluation) -> doc.Article:
    """Document of ``calibscale evaluate``."""
    return _evaluation(result, {}, estimates.ALPHA)


def check(result: Check) -> doc.Article:
    """Document of ``calibscale check``."""
    article = _evaluation(result, result.adjusted_p_values, _alpha(result))
    first, *remaining = article.sections
    further = _further_tests(result)
    sections = (first, *remaining) if further is None else (first, further, *remaining)
    return replace(article, title=f"Check of {doc.source_name(result)}", sections=sections)


def _evaluation(result: Evaluation, p_values: dict[str, float | None], alpha: float) -> doc.Article:
    """Document of an evaluation, with the adjusted p-values of its estimates."""
    groupings = result.groupings
    in_groups = [
        (naming.group(grouped.column, group.group), group.results)
        for grouped in groupings
        for group in grouped.values
    ]
    all_results = [*result.estimates, *(e for _, results in in_groups for e in results)]
    audited = result.source.get("forecast") is None  # audits are of classes
    grouped_sections = [
        doc.section(
            "groups" if i == 0 else f"groups{i}",
            f"Groups by {grouped.column}",
            *group_tables.group_blocks(grouped.column, grouped.values, "", worst_first=True),
            _audit_hint(grouped.column) if audited else None,
        )
        for i, grouped in enumerate(groupings)
    ]
    place = estimates.Place("", result.estimates)
    blocks = estimates.estimate_blocks([place], "estimator", p_values, alpha)
    plots, band = list(reliability_figures.score_figures(result.estimates)), []
    figure = None
    if result.reliability is not None:
        diagram = DrawnDiagram.of(result.reliability, result.source)
        figure = reliability_figures.reliability_figure(diagram, "of all rows")
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
    headline = result.verdict or f"{_unjudged(result.estimates)}."
    return doc.article(
        f"Calibration of {doc.source_name(result)}",
        doc.size_of(result),
        " ".join([headline, *result.warnings]).removesuffix("."),
        doc.section("estimates", "Estimates", *blocks),
        *grouped_sections,
        *doc.closing(
            result,
            used_terms,
            [e.estimator for e in all_results],
            [*doc.estimator_notes(result.estimates), *doc.group_notes(in_groups)],
        ),
        state=_state(result.judgement),
    )


def _further_tests(result: Check) -> doc.Section | None:
    """Section with the p-values of tests that belong to no estimate, or None without such tests."""
    adjusted, alpha = result.adjusted_p_values, _alpha(result)
    # A check tests each of its estimates first, then statistics without a size.
    tests = result.tests[len(result.estimates) :]
    rows = [
        (
            terms.label(comparisons.named(test)),
            estimates.p_cell(adjusted.get(test.statistic), alpha),
        )
        for test in tests
    ]
    if not rows:
        return None
    note = "p-value: adjusted for the number of tests"
    listed = doc.table(
        "p-values of statistics without a size", ("statistic", "p-value"), rows, note
    )
    ranges = [_biased_range(test, adjusted.get(test.statistic), alpha) for test in tests]
    return doc.section("tests", "Further tests", listed, *ranges)


def _biased_range(test: TestResult, p: float | None, alpha: float) -> doc.Paragraph | None:
    """Sentence about the most significant range of predictions, or None if there is none."""
    scanned = BiasedRange.of(test)
    if scanned is None or not estimates.significant(p, alpha):
        return None
    found_by = f"({test.statistic}, adjusted {number_texts.p_is(p)})"
    # Means, quantiles and intervals have units of their own, and their bias is no probability.
    if is_compared(test.details):
        comparison = range_text(test.details)
        return doc.Paragraph(f"{comparison[0].upper()}{comparison[1:]} {found_by}.")
    of_class = "" if scanned.class_name is None else f" of class {scanned.class_name}"
    low, high = number_texts.number(scanned.low, 3), number_texts.number(scanned.high, 3)
    direction = "low" if scanned.bias > 0 else "high"
    return doc.Paragraph(
        f"Predictions{of_class} between {low} and {high} are {number_texts.points(scanned.bias)} "
        f"too {direction} {found_by}."
    )


def _state(judgement: Judgement | None) -> str:
    """State of the judgement of a result, empty in results of earlier versions."""
    return "" if judgement is None else judgement.state


def _alpha(result: RunResult) -> float:
    """Level of the tests of a result, which is 1 − its confidence level."""
    level = number_in(result.parameters, "confidence_level")
    if level is None:
        return estimates.ALPHA
    return 1 - level + 1e-12  # 1 - 0.95 is below 0.05 in float64


def _audit_hint(column: str) -> doc.Paragraph:
    name = naming.grouped_column(column)
    command = f"calibscale audit STORE --covariates {shlex.quote(name)}"
    return doc.Paragraph(f"To test which groups are biased, run {command}")


def _unjudged(results: Sequence[Estimate]) -> str:
    """Headline of estimates without a judgement, with the option that adds a judgement."""
    text = _first_value(results)
    valued = [e for e in results if e.value is not None]
    if not valued or any(e.interval is not None for e in valued):
        return text
    if all(naming.name_of(e.estimator) in SCORES for e in valued):
        return f"{text}; scores alone cannot be judged: use check"
    if all(naming.name_of(e.estimator) in (*SCORES, *WITHOUT_JUDGEMENT) for e in valued):
        return f"{text}; these estimates have neither an interval nor a noise floor: use check"
    return (
        f"{text}; no estimate is judged without an interval: pass "
        'interval="jackknife" (--interval jackknife), or use check'
    )


def _first_value(results: Sequence[Estimate]) -> str:
    """Sentence about the most common calibration error among the results."""
    by_name = {e.estimator: e for e in results if e.value is not None}
    for name in ("ece", "tce2_debiased", "quantile_ece", *by_name):
        if name in by_name:
            estimate = by_name[name]
            text = f"{terms.label(estimate)} is {number_texts.number(estimate.value)}"
            return text + estimates.in_brackets(estimate)
    return "No estimate has a value"


# ---------------------------------------------------------------- reliability


def reliability(result: Reliability) -> doc.Article:
    """Document of ``calibscale reliability``."""
    # Without a chosen class, the curves of the classes take the place of groups.
    by_class, grouped = judges_each_class(result), result.grouped
    diagram = DrawnDiagram.of(result)
    plots = [
        reliability_figures.reliability_figure(
            diagram, "of all rows", in_text=True, alone=grouped is None, title="All rows"
        )
    ]
    listed = None
    if grouped is not None:
        groups: Sequence[GroupCurve] = sorted(grouped.values, key=lambda group: -group.curve.n)
        if by_class:
            groups = worst_classes(grouped.values)
        titles = [naming.group(grouped.column, group.group) for group in groups]
        for name, group in list(zip(titles, groups, strict=True))[:MAX_DIAGRAMS]:
            where, reference = (f"of {name}", None) if by_class else (f"where {name}", diagram)
            group_diagram = DrawnDiagram.of_group(result, group)
            plots.append(
                reliability_figures.reliability_figure(group_diagram, where, reference, title=name)
            )
        rows = [
            (
                name,
                number_texts.count(group.curve.n),
                number_texts.number(group.curve.ece),
                *estimates.noise(group.curve.ece, group.curve.floor),
                number_texts.number(group.curve.tce2_debiased),
            )
            for name, group in zip(titles, groups, strict=True)
        ]
        caption, head = ("Classes", "class") if by_class else ("Groups", "group")
        columns = (head, "rows", "ece", *estimates.NOISE, "tce2_debiased")
        listed = doc.table(caption, columns, rows)
    notion = terms.notion(result.notion)
    if result.class_index is not None:
        notion = f"class {diagram.class_name}"
    return doc.article(
        f"Reliability of {doc.source_name(result)}",
        f"{doc.size_of(result)}, {notion}",
        _outside_bands(result, diagram),
        doc.section(
            "reliability", "Reliability", doc.figures(plots), reliability_figures.pit_table(diagram)
        ),
        doc.section("groups", "Groups", listed),
        *doc.closing(
            result,
            ["calibrated", "interval", "band"],
            _EXPLAINED.get(result.notion, ["ece", "tce2_debiased"]),
        ),
    )


# Terms that the document of a reliability diagram explains, by notion.
_EXPLAINED = {"pit": ["quantile_ece"], "prediction": ["bias"]}


def _outside_bands(result: Reliability, diagram: DrawnDiagram) -> str:
    """Number of bins outside the bands, with the number expected by chance, and the ECE."""
    curves = [result.overall]
    if judges_each_class(result):
        curves = [] if result.grouped is None else [g.curve for g in result.grouped.values]
    filled = sum(len(curve.filled) for curve in curves)
    if not filled:
        return result.overall.reason or "There are no bins"
    outside = sum(len(curve.outside) for curve in curves)
    verdict = f"{outside} of {number_texts.plural(filled, diagram.unit)} outside the band"
    verdict += f"; at most {filled * (1 - result.level):.2g} expected by chance"
    if not judges_each_class(result) and diagram.ece:
        verdict += f"; {diagram.ece}"
    return verdict


# ---------------------------------------------------------------- tests


def test(result: CalibrationTests) -> doc.Article:
    """Document of ``calibscale test``."""
    tests = result.results
    p_values = [test.p_value for test in tests if test.p_value is not None]
    if result.verdict:
        verdict = result.verdict.removesuffix(".")
    elif p_values:  # a result of a version without verdicts
        verdict = f"The smallest p-value is {number_texts.p_value(min(p_values))}"
    else:
        verdict = "No test has a p-value"
    several: tuple[str, ...] = ()
    if len(p_values) > 1:
        several = ("The p-values of the table are not adjusted for the number of tests.",)
    of_tests = {test.statistic: test.parameters for test in tests if test.parameters}
    seed = tests[0].seed if tests else None
    shown = replace(result, parameters={**result.parameters, **of_tests, "seed": seed})
    return doc.article(
        f"Tests of {doc.source_name(result)}",
        doc.size_of(result),
        verdict,
        doc.section(
            "tests",
            "Tests",
            *comparisons.test_blocks(
                [comparisons.Tested("", test) for test in tests], "test", estimates.ALPHA
            ),
        ),
        *doc.closing(
            shown, ["calibrated", "p-value", "95 % null quantile"], [t.statistic for t in tests]
        ),
        state=_state(result.judgement),
        reasons=several,
    )
