"""Documents of recalibrations, selections, rankings and sample sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

from calibscale.formatting import naming, number_texts, terms
from calibscale.output.documents import comparisons, estimates
from calibscale.output.documents import elements as doc
from calibscale.output.plots.curve_plots import CURVE_HEIGHT, plot_power


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
    method = result["method"].replace("_", " ")
    # "temperature T = 1.2" reads on, other methods have a list of parameters.
    separator = " " if errors.keys() == {"temperature"} else ": "
    return doc.article(
        f"Recalibration fitted to {doc.source_name(result)}",
        doc.size_of(result),
        f"{method}{separator}" + ", ".join(texts),
        *doc.closing(result, ["calibrated"], ["nll"], result["notes"] or (), **result["settings"]),
        reasons=(f"Log loss on the rows of the fit: {before} before, {after} after.",),
    )


def selection(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale select``."""
    chosen = result["selected"]
    verdict = f"{chosen['estimator']} has the smallest risk: the squared calibration error is "
    verdict += number_texts.number(chosen["estimate"]) + estimates.in_brackets(chosen)
    features = {"features": result["features"]} if result.get("features") else {}
    return doc.article(
        f"Selection of an estimator for {doc.source_name(result)}",
        f"{doc.size_of(result)}, {terms.notion(result['notion'])}",
        verdict,
        doc.section("risk", "Risk", *comparisons.selection_blocks(result)),
        *doc.closing(result, ["calibrated", "risk", "root"], **features),
    )


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
        {
            "first": d["worse"],
            "second": d["better"],
            "value": d["value"],
            "p": d["p_adjusted"],
            **dict(zip(("low", "high"), estimates.ends(d), strict=True)),
        }
        for d in result["differences"]
    ]
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
        f"Ranking by {result['estimator']}",
        subtitle,
        verdict,
        doc.section(
            "ranking",
            "Models",
            *comparisons.ranking_blocks(models, result["estimator"], level, sentences),
            comparisons.difference_table(differences, level),
        ),
        *doc.closing(
            result,
            ["calibrated", "interval", "rank", "adjusted", *doc.interval_terms(models)],
            [result["estimator"]],
            result["notes"] or (),
            [left],
            **(result["common"] or {}),
        ),
    )


def power(result: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale power``."""
    bias, where = result["bias"], result["bias"]["where"]
    plus = "+" if bias["shift"] > 0 else ""
    parts = [f"a bias of {plus}{number_texts.given(bias['shift'])}"] if bias["shift"] else []
    parts += [f"a temperature of {bias['temperature']:g}"] if bias["temperature"] != 1 else []
    bias_text = " and ".join(parts) or "no bias"
    if where is not None:
        bias_text += f" where {naming.group(where['covariate'], where['value'])}"
    share = number_texts.percent(result["power"])
    goal = f"to detect {bias_text} with {result['statistic']} in {share} of cases, at level "
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
        [
            (
                number_texts.count(t["rows"]),
                f"{t['rejections']} of {t['trials']}",
                f"{100 * t['power']:.1f} %",
            )
            for t in curve
        ],
    )
    shown: doc.Block = doc.Paragraph("Nothing was simulated.")
    if curve and all(t["rows"] > 0 for t in curve):
        caption = f"Share of detections by the number of rows. {verdict}."
        draw = partial(plot_power, result)
        label = "Power by the number of rows"
        shown = doc.Figures((doc.Figure(draw, CURVE_HEIGHT, label, caption, listed, in_text=True),))
    return doc.article(
        f"Required rows: {doc.source_name(result)}",
        f"{doc.size_of(result)}, {number_texts.plural(len(curve), 'sample size')} simulated",
        verdict,
        doc.section("power", "Power", shown),
        *doc.closing(result, ["calibrated", "power", "p-value"], [result["statistic"]]),
    )
