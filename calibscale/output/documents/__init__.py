"""Documents of results: one function of the JSON object of each result, for text and reports."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from calibscale.errors import require
from calibscale.estimators.registry import SCORES
from calibscale.formatting import escapes, naming, number_texts, terms
from calibscale.formatting.escapes import clean, one_line
from calibscale.output import document as doc
from calibscale.output.documents import comparisons, estimates
from calibscale.output.documents.bias_documents import audit, bias
from calibscale.output.documents.night_report import nightly
from calibscale.output.plots.curve_plots import CURVE_HEIGHT, plot_power
from calibscale.output.plots.prediction_plots import MAX_DIAGRAMS, worst_classes
from calibscale.results import Declared

# ---------------------------------------------------------------- evaluate, reliability, test


def evaluation(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale evaluate``."""
    results = result["results"]
    columns = [one for one in (result["groups"], *(result["other_groups"] or ())) if one]
    every = [*results, *(e for one in columns for g in one["values"] for e in g["results"])]
    audited = (result["source"] or {}).get("forecast") is None  # audits are of classes
    grouped = [
        doc.section(f"groups{i or ''}", f"Groups by {one['column']}", *estimates.group_blocks(
            one["column"], [{**g, "group": g["name"] or g["value"]} for g in one["values"]], "",
            worst_first=True,
        ), _audit_hint(one["column"]) if audited else None)
        for i, one in enumerate(columns)
    ]  # fmt: skip
    in_groups = [
        (naming.group(one["column"], g["name"] or g["value"]), g["results"])
        for one in columns
        for g in one["values"]
    ]
    p_values, warnings = result.get("adjusted_p_values"), result.get("warnings") or ()
    place = estimates.Place("", results, result["n"])
    blocks = estimates.estimate_blocks([place], "estimator", p_values, _alpha(result))
    plots, band = list(estimates.score_figures(results)), []
    diagram = {**(result["reliability"] or {"bins": ()}), "source": result["source"]}
    figure = estimates.reliability_figure(diagram, "of all rows")
    if figure is not None:
        band = ["band"]
        title = "Reliability of all rows" if columns else "Reliability diagram"
        plots.insert(0, replace(figure, title=title))
    if plots:
        blocks = [doc.Figures(tuple(plots)), *blocks[1:]]  # the table has the intervals
    return doc.article(
        f"Calibration of {doc.source_name(result)}", doc.size_of(result),
        " ".join([result["verdict"] or f"{_unjudged(results)}.", *warnings]).removesuffix("."),
        doc.section("estimates", "Estimates", *blocks),
        *grouped,
        *doc.closing(
            result,
            ["calibrated", *band, *doc.interval_terms(every), *(["p-value"] * bool(p_values))],
            [e["estimator"] for e in every],
            [*doc.estimator_notes(results), *doc.group_notes(in_groups)],
        ),
        state=_state(result),
    )  # fmt: skip


def check(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale check``."""
    article = evaluation(result)
    first, *others = article.sections
    further = _further_tests(result)
    sections = (first, *others) if further is None else (first, further, *others)
    return replace(article, title=f"Check of {doc.source_name(result)}", sections=sections)


def _further_tests(result: dict[str, Any]) -> doc.Section | None:
    """Section with the p-values of tests that are not of an estimate; None without any."""
    adjusted, alpha = result["adjusted_p_values"], _alpha(result)
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
    """Sentence about the range of predictions with the most evidence; None if not significant."""
    details = test["details"] or {}
    if "low" not in details or not estimates.significant(p, alpha):
        return None
    bias = details["observed"] - details["predicted"]
    of_class = f" of class {details['class']}" if "class" in details else ""
    low, high = (number_texts.number(details[end], 3) for end in ("low", "high"))
    return doc.Paragraph(
        f"Predictions{of_class} between {low} and {high} are {number_texts.points(bias)} too "
        f"{'low' if bias > 0 else 'high'} ({test['statistic']}, adjusted {number_texts.p_is(p)})."
    )


def _state(result: dict[str, Any]) -> str:
    """State of the judgement of a result; empty in results of earlier versions."""
    return (result.get("judgement") or {}).get("state", "")


def _alpha(result: dict[str, Any]) -> float:
    """Level of the tests of a result: 1 − its confidence level."""
    level = (result["parameters"] or {}).get("confidence_level")
    if not isinstance(level, int | float):
        return estimates.ALPHA
    return 1 - level + 1e-12  # 1 - 0.95 is below 0.05 in float64


def _audit_hint(column: str) -> doc.Paragraph:
    name = naming.grouped_column(column)
    command = f"calibscale audit STORE --covariates {shlex.quote(name)}"
    return doc.Paragraph(f"To test which groups are biased, run {command}")


def _unjudged(results: list[dict[str, Any]]) -> str:
    """Headline of estimates without a judgement, with what to pass for one."""
    text = _first_value(results)
    known = [e for e in results if e["value"] is not None]
    if not known or any(e["interval"] is not None for e in known):
        return text
    if all(naming.name_of(e["estimator"]) in SCORES for e in known):
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
        column, values = result["groups"]["column"], result["groups"]["values"]
        groups = worst_classes(values) if by_class else sorted(values, key=lambda g: -g["n"])
        whom = [naming.group(column, g["name"] or g["value"]) for g in groups]
        shared = {key: result[key] for key in ("notion", "class", "level", "source")}
        for name, g in list(zip(whom, groups, strict=True))[:MAX_DIAGRAMS]:
            judged = {**g, **shared} | ({"class": int(g["value"])} if by_class else {})
            where, reference = (f"of {name}", None) if by_class else (f"where {name}", result)
            plots.append(estimates.reliability_figure(judged, where, reference, title=name))
        rows = [
            (name, number_texts.count(g["n"]), number_texts.number(g["ece"]),
             *estimates.noise(g, "ece"), number_texts.number(g["tce2_debiased"]))
            for name, g in zip(whom, groups, strict=True)
        ]  # fmt: skip
        caption, head = ("Classes", "class") if by_class else ("Groups", "group")
        columns = (head, "rows", "ece", *estimates.NOISE, "tce2_debiased")
        listed = doc.table(caption, columns, rows)
    notion, k = terms.notion(result["notion"]), result["class"]
    if k is not None:
        names = (result["source"] or {}).get("class_names")
        notion = f"class {names[k] if names else k}"
    return doc.article(
        f"Reliability of {doc.source_name(result)}", f"{doc.size_of(result)}, {notion}", verdict,
        doc.section("reliability", "Reliability", doc.figures(plots), estimates.pit_table(result)),
        doc.section("groups", "Groups", listed),
        *doc.closing(
            result, ["calibrated", "interval", "band"],
            ["quantile_ece"] if result["notion"] == "pit" else ["ece", "tce2_debiased"],
        ),
    )  # fmt: skip


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
    own = {t["statistic"]: t["parameters"] for t in tests if t["parameters"]}
    seed = tests[0]["seed"] if tests else None
    shown = {**result, "parameters": {**run, **own, "seed": seed}}
    return doc.article(
        f"Tests of {doc.source_name(result)}", doc.size_of(result), verdict,
        doc.section("tests", "Tests", *comparisons.test_blocks(
            [comparisons.Tested("", t) for t in tests], "test", estimates.ALPHA)),
        *doc.closing(shown, ["calibrated", "p-value", "95 % null quantile"],
                     [t["statistic"] for t in tests]),
        state=_state(result),
        reasons=several,
    )  # fmt: skip


# ---------------------------------------------------------------- recalibrate


def recalibration(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale recalibrate``."""
    errors, texts = result["standard_errors"], []
    for name, value in result["estimates"].items():
        shown = "T" if name == "temperature" else name.replace("_", " ")
        number = number_texts.number if isinstance(value, int | float) else terms.plain
        error = (
            f" (standard error {number_texts.number(errors[name], 2)})" if name in errors else ""
        )
        texts.append(f"{shown} = {number(value)}{error}")
    before, after = (
        number_texts.number(result[key]) if result[key] is not None else "∞"
        for key in ("log_loss_before", "log_loss_after")
    )
    return doc.article(
        f"Recalibration fitted to {doc.source_name(result)}", doc.size_of(result),
        f"{result['method'].replace('_', ' ')}{': '[errors.keys() == {'temperature'}:]}"
        + ", ".join(texts),
        *doc.closing(result, ["calibrated"], ["nll"], result["notes"] or (), **result["settings"]),
        reasons=(f"Log loss on the rows of the fit: {before} before, {after} after.",),
    )  # fmt: skip


# ---------------------------------------------------------------- select, rank, power


def selection(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale select``."""
    chosen = result["selected"]
    verdict = f"{chosen['estimator']} has the smallest risk: the squared calibration error is "
    verdict += number_texts.number(chosen["estimate"]) + estimates.in_brackets(chosen)
    features = {"features": result["features"]} if result.get("features") else {}
    return doc.article(
        f"Selection of an estimator for {doc.source_name(result)}",
        f"{doc.size_of(result)}, {terms.notion(result['notion'])}", verdict,
        doc.section("risk", "Risk", *comparisons.selection_blocks(result)),
        *doc.closing(result, ["calibrated", "risk", "root"], **features),
    )  # fmt: skip


def ranking(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale rank``."""
    models = sorted(result["models"], key=lambda m: (m["rank"] is None, m["rank"]))
    level = (result["parameters"] or {}).get("level")
    level = level if isinstance(level, int | float) else None
    if result.get("verdict"):
        verdict = result["verdict"].removesuffix(".")
    elif models and models[0]["rank"] is not None:  # a result of a version without verdicts
        verdict = f"{models[0]['name']} has the smallest {result['estimator']}"
    else:
        verdict = "No model has a value"
    sentences = []
    tested = [d for d in result["differences"] if d["p_adjusted"] is not None]
    if len(tested) > 1:
        differ = sum(bool(d["distinguishable"]) for d in tested)
        sentences.append(f"{differ} of {len(tested)} pairs differ.")
    if result["p_order"] is not None and result["differences"]:
        probability = number_texts.probability(result["p_order"])
        sentences.append(f"The complete order is correct with probability {probability}.")
    for a in result["agreement"] or ():
        sentences.append(
            f"Of {a['trials']:,} random subsets of {a['size']:,} rows, "
            f"{number_texts.percent(a['same_ranking'])} have the same ranking and "
            f"{number_texts.percent(a['same_best'])} the same best model."
        )
    differences = [
        {"first": d["worse"], "second": d["better"], "value": d["value"], "p": d["p_adjusted"],
         **dict(zip(("low", "high"), estimates.ends(d), strict=True))}
        for d in result["differences"]
    ]  # fmt: skip
    rows = [m["n"] for m in models]
    sizes = [f"{n:,}" for n in sorted({min(rows), max(rows)})] if rows else []
    subtitle = f"{' to '.join(sizes)} rows{doc.clusters_of(result)}"
    excluded = [
        (m["name"], reason, number_texts.count(n))
        for m in models
        for reason, n in doc.exclusions(m)
    ]
    columns = ("model", "reason", "rows")
    left = doc.table("Rows that were left out", columns, excluded) if excluded else None
    return doc.article(
        f"Ranking by {result['estimator']}", subtitle, verdict,
        doc.section("ranking", "Models",
                    *comparisons.ranking_blocks(models, result["estimator"], level, sentences),
                    comparisons.difference_table(differences, level)),
        *doc.closing(
            result, ["calibrated", "interval", "rank", "adjusted", *doc.interval_terms(models)],
            [result["estimator"]], result["notes"] or (), [left], **(result["common"] or {}),
        ),
    )  # fmt: skip


def power(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale power``."""
    bias, where = result["bias"], result["bias"]["where"]
    parts = [f"a bias of {bias['shift']:+g}"] if bias["shift"] else []
    parts += [f"a temperature of {bias['temperature']:g}"] if bias["temperature"] != 1 else []
    what = " and ".join(parts) or "no bias"
    if where is not None:
        what += f" where {naming.group(where['covariate'], where['value'])}"
    share = number_texts.percent(result["power"])
    goal = f"to detect {what} with {result['statistic']} in {share} of cases, at level "
    goal += f"{result['level']:g}"
    if result["rows"] is None:
        verdict = f"More than {number_texts.count(result['most_rows'])} rows are needed {goal}"
    else:
        low, high = result["interval"] or (result["rows"], result["rows"])
        verdict = f"{result['rows']:,} rows ({low:,.0f} … {high:,.0f}) are needed {goal}"
    curve = sorted(result["curve"], key=lambda t: t["rows"])
    listed = doc.table(
        "Power by the number of rows",
        ("rows", "detected", "power"),
        [(number_texts.count(t["rows"]), f"{t['rejections']} of {t['trials']}",
          f"{100 * t['power']:.1f} %") for t in curve],
    )  # fmt: skip
    shown: doc.Block = doc.Paragraph("Nothing was simulated.")
    if curve and all(t["rows"] > 0 for t in curve):
        caption = f"Share of detections by the number of rows. {verdict}."
        draw, label = partial(plot_power, result), "Power by the number of rows"
        shown = doc.Figures((doc.Figure(draw, CURVE_HEIGHT, label, caption, listed, in_text=True),))
    return doc.article(
        f"Required rows: {doc.source_name(result)}",
        f"{doc.size_of(result)}, {number_texts.plural(len(curve), 'sample size')} simulated",
        verdict,
        doc.section("power", "Power", shown),
        *doc.closing(result, ["calibrated", "power", "p-value"], [result["statistic"]]),
    )  # fmt: skip


# ---------------------------------------------------------------- documents by result


DOCUMENTS: dict[str, Callable[[dict[str, Any]], doc.Article]] = {
    one.__name__: one
    for one in (
        *(audit, bias, check, evaluation, nightly, power),
        *(ranking, recalibration, reliability, selection, test),
    )
}


def article_of(result: dict[str, Any]) -> doc.Article:
    """Document of the JSON object of a result that has every key of its schema.

    An OptionError is raised if there is no report of such results.
    """
    name = result["schema"].removeprefix("calibscale.").partition("/")[0]
    kinds = ", ".join(DOCUMENTS)
    require(name in DOCUMENTS, f"no report can be made of {result['schema']}; use one of: {kinds}")
    article, seconds = DOCUMENTS[name](result), result.get("seconds")
    return article if seconds is None else replace(article, duration=number_texts.seconds(seconds))


class Completed(dict[str, Any]):
    """JSON object in which keys that it need not have, and has not, are None, as in `read`."""

    def __missing__(self, key: str) -> None:
        return None


def document(result: Any) -> doc.Article:
    """Document of a result; control characters of names are escaped.

    Parameters
    ----------
    result : Evaluation, Reliability, CalibrationTests, Selection, BiasMap, Ranking, Audit, Power,
        FittedRecalibration or Night

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_arrays(probabilities=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    >>> document(cs.evaluate(source, cs.Brier())).title
    'Calibration of arrays'
    """
    value = escapes.printed(Declared.to_dict(result), lambda text: clean(one_line(text)), Completed)
    histograms = getattr(result, "histograms", ())
    value["histograms"] = {one.covariate: (one.edges, one.counts) for one in histograms}
    return article_of(value)
