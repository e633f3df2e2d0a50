"""Documents of recalibrations, selections, rankings and sample sizes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from calibscale.formatting import naming, number_texts, terms
from calibscale.output.documents import comparisons, estimates
from calibscale.output.documents import elements as doc
from calibscale.output.documents.details import number_in
from calibscale.output.plots.curve_plots import CURVE_HEIGHT
from calibscale.output.plots.power_plots import plot_power
from calibscale.results.audit_results import (
    GroupChange,
    Improvement,
    RecalibrationResult,
    ScoreChange,
)
from calibscale.results.comparison_results import RankedModel, Ranking, Selection
from calibscale.results.declarations import Json
from calibscale.results.inference_results import Miscalibration, Power

_MAX_GROUPS = 20  # rows of a table of groups
_GROUP_WIDTH = 24  # characters of the name of a group


def recalibration(result: RecalibrationResult) -> doc.Article:
    """Document of ``calibscale recalibrate``."""
    errors, texts = result.standard_errors, []
    for name, value in result.estimates.items():
        shown = "T" if name == "temperature" else name.replace("_", " ")
        error = (
            f" (standard error {number_texts.number(errors[name], 2)})" if name in errors else ""
        )
        if isinstance(value, dict):  # numbers of groups, whose names have an equals sign
            groups = (f"{group}: {number_texts.number(item)}" for group, item in value.items())
            texts.append(f"{shown} ({'; '.join(groups)})")
        else:
            number = number_texts.number if isinstance(value, int | float) else terms.plain
            texts.append(f"{shown} = {number(value)}{error}")
    improvement = result.improvement
    sentences = [] if improvement is None else [improvement.sentence, *improvement.costs]
    if "classes" in result.source:
        before, after = _log_loss(result.log_loss_before), _log_loss(result.log_loss_after)
        sentences.append(f"Log loss on the rows of the fit: {before} before, {after} after.")
    scores = ["nll"] if "classes" in result.source else ["crps"]
    method = result.method.replace("_", " ")
    # "temperature T = 1.2" reads on, other methods have a list of parameters.
    separator = " " if errors.keys() == {"temperature"} else ": "
    if not texts:
        texts = ["the predictions are kept as they are"]
    notes = [*result.notes, *_interval_notes(improvement)]
    return doc.article(
        f"Recalibration fitted to {doc.source_name(result)}",
        doc.size_of(result),
        f"{method}{separator}" + ", ".join(texts),
        _improvement(result.improvement),
        *doc.closing(result, ["calibrated"], scores, notes, **result.settings),
        reasons=tuple(sentences),
    )


def _improvement(improvement: Improvement | None) -> doc.Section | None:
    """Section on the rows that the fit has not used, if it was judged by such rows."""
    if improvement is None:
        return None
    changes = list(improvement.changes)
    changes += [share for share in (improvement.accuracy, improvement.auc) if share is not None]
    rows = [(change.score, *_numbers(change), change.p_value) for change in changes]
    columns = ("score", "before", "after", "change", "95 % interval", "p")
    tables = [doc.table("Scores before and after recalibration", columns, _shown(rows))]
    if improvement.groups:
        # The largest increases first, as a score increases where recalibration harms.
        ordered = sorted(improvement.groups, key=_increase, reverse=True)
        shown = [
            (naming.short(group.name, _GROUP_WIDTH), *_numbers(group), group.adjusted)
            for group in ordered[:_MAX_GROUPS]
        ]
        title = f"{improvement.changes[0].score} by group, the largest increases first"
        if len(ordered) > len(shown):
            title += f" ({len(shown)} of {len(ordered):,})"
        columns = ("group", "before", "after", "change", "simultaneous", "p")
        tables.append(doc.table(title, columns, _shown(shown)))
    return doc.section("improvement", "Rows that the fit has not used", *tables)


def _interval_notes(improvement: Improvement | None) -> list[str]:
    """Limitations of the intervals of an improvement, each with the names of its scores."""
    if improvement is None:
        return []
    by_note: dict[str, list[str]] = {}
    changes = [*improvement.changes, improvement.accuracy, improvement.auc]
    named = [(change.score, change.note) for change in changes if change is not None]
    named += [(group.name, group.note) for group in improvement.groups]
    for name, note in named:
        if note:
            by_note.setdefault(note, []).append(name)
    return [f"change of {naming.joined(names, 5)}: {note}" for note, names in by_note.items()]


def _increase(group: GroupChange) -> float:
    """Change of the score of a group, infinite if the score has become so, 0 if it is unknown."""
    if group.change is None:
        return math.inf if group.became_worse else 0.0
    return group.change


def _numbers(change: ScoreChange | GroupChange) -> tuple[str, str, str, str]:
    """Score before and after, its change, and the interval of the change."""
    return (
        _log_loss(change.before),
        _log_loss(change.after),
        number_texts.signed(change.change),
        number_texts.span(change.low, change.high),
    )


def _shown(rows: list[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """Rows of a table with p-values as text in the last column."""
    return [(*cells, number_texts.p_value(p)) for *cells, p in rows]


def _log_loss(value: float | None) -> str:
    """Log loss, which is infinite where it is missing, because JSON has no infinity."""
    return "∞" if value is None else number_texts.number(value)


def selection(result: Selection) -> doc.Article:
    """Document of ``calibscale select``."""
    chosen = result.selected
    verdict = f"{chosen.estimator} has the smallest risk: the squared calibration error is "
    verdict += number_texts.number(chosen.estimate) + estimates.in_brackets(chosen)
    features: Json = {"features": result.features} if result.features else {}
    return doc.article(
        f"Selection of an estimator for {doc.source_name(result)}",
        doc.judged_rows(result),
        verdict,
        doc.section("risk", "Risk", *comparisons.selection_blocks(result)),
        *doc.closing(result, ["calibrated", "risk", "root"], **features),
    )


# ---------------------------------------------------------------- rankings


def ranking(result: Ranking) -> doc.Article:
    """Document of ``calibscale rank``."""
    models = sorted(result.models, key=_order)
    level = number_in(result.parameters, "level")
    if result.verdict:
        verdict = result.verdict.removesuffix(".")
    elif models and models[0].rank is not None:  # a result of a version without verdicts
        verdict = f"{models[0].name} has the smallest {result.estimator}"
    else:
        verdict = "No model has a value"
    differences = [
        comparisons.PairRow(d.worse, d.better, d.value, *estimates.ends(d), d.p_adjusted)
        for d in result.differences
    ]
    rows = [model.n for model in models]
    sizes = [f"{n:,}" for n in sorted({min(rows), max(rows)})] if rows else []
    subtitle = f"{' to '.join(sizes)} rows{doc.clusters_of(result)}"
    excluded = [
        (model.name, reason, number_texts.count(n))
        for model in models
        for reason, n in doc.exclusions(model)
    ]
    columns = ("model", "reason", "rows")
    left = doc.table("Rows that were left out", columns, excluded) if excluded else None
    listed = [_row(model) for model in models]
    return doc.article(
        f"Ranking by {result.estimator}",
        subtitle,
        verdict,
        doc.section(
            "ranking",
            "Models",
            *comparisons.ranking_blocks(listed, result.estimator, level, _sentences(result)),
            comparisons.difference_table(differences, level),
        ),
        *doc.closing(
            result,
            [
                *("calibrated", "interval", "rank", "adjusted"),
                *doc.interval_terms([model.estimate for model in models]),
            ],
            [result.estimator],
            result.notes,
            [left],
            **result.common,
        ),
    )


def _order(model: RankedModel) -> tuple[bool, int]:
    """Sort key: models by rank, those without a rank last."""
    return model.rank is None, model.rank or 0


def _row(model: RankedModel) -> comparisons.RankedRow:
    """Row of a model, with the quality of its predictions."""
    return comparisons.RankedRow(
        model.name,
        model.rank,
        model.value,
        model.estimate.interval,
        model.probabilities,
        model.estimate.floor,
        {
            **{name: getattr(model, name) for name in ("accuracy", "brier", "nll", "crps")},
            **(model.scores or {}),
        },
    )


def _sentences(result: Ranking) -> list[str]:
    """Sentences about the pairs, the order and the rankings of subsets."""
    sentences = []
    tested = [d for d in result.differences if d.p_adjusted is not None]
    if len(tested) > 1:
        differ = sum(d.distinguishable for d in tested)
        sentences.append(f"{differ} of {len(tested)} pairs differ.")
    if result.p_order is not None and result.differences:
        probability = number_texts.probability(result.p_order)
        sentences.append(f"The complete order is correct with probability {probability}.")
    for agreement in result.agreement:
        sentences.append(
            f"Of {agreement.trials:,} random subsets of {agreement.size:,} rows, "
            f"{number_texts.percent(agreement.same)} have the same ranking and "
            f"{number_texts.percent(agreement.same_best)} the same best model."
        )
    return sentences


# ---------------------------------------------------------------- power


def power(result: Power) -> doc.Article:
    """Document of ``calibscale power``."""
    share = number_texts.percent(result.power)
    goal = f"to detect {_bias(result.bias)} with {result.statistic} in {share} of cases, at level "
    goal += f"{result.level:g}"
    if result.rows is None:
        verdict = f"More than {number_texts.count(result.max_rows)} rows are needed {goal}"
    else:
        low, high = result.interval or (result.rows, result.rows)
        verdict = f"{result.rows:,} rows ({low:,.0f} … {high:,.0f}) are needed {goal}"
    curve = sorted(result.curve, key=lambda point: point.rows)
    listed = doc.table(
        "Power by the number of rows",
        ("rows", "detected", "power"),
        [
            (
                number_texts.count(point.rows),
                f"{point.rejections} of {point.trials}",
                f"{100 * point.power:.1f} %",
            )
            for point in curve
        ],
    )
    shown: doc.Block = doc.Paragraph("Nothing was simulated.")
    if curve and all(point.rows > 0 for point in curve):
        caption = f"Share of detections by the number of rows. {verdict}."
        draw = partial(plot_power, result)
        label = "Power by the number of rows"
        shown = doc.Figures((doc.Figure(draw, CURVE_HEIGHT, label, caption, listed, in_text=True),))
    return doc.article(
        f"Required rows: {doc.source_name(result)}",
        f"{doc.size_of(result)}, {number_texts.plural(len(curve), 'sample size')} simulated",
        verdict,
        doc.section("power", "Power", shown),
        *doc.closing(result, ["calibrated", "power", "p-value"], [result.statistic]),
    )


def _bias(bias: Miscalibration) -> str:
    """Miscalibration that a test is to detect, in words."""
    plus = "+" if bias.shift > 0 else ""
    parts = [f"a bias of {plus}{number_texts.given(bias.shift)}"] if bias.shift else []
    parts += [f"a temperature of {bias.temperature:g}"] if bias.temperature != 1 else []
    text = " and ".join(parts)
    if bias.biased_rows is not None:
        text += f" where {naming.group(bias.biased_rows.covariate, bias.biased_rows.value)}"
    return text
