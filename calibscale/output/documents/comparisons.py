"""Sections on rankings, selections, power and tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from calibscale.formatting import day_names, naming, number_texts, terms
from calibscale.output.documents import elements as doc
from calibscale.output.documents.estimates import (
    NOISE,
    ends,
    interval_figure,
    interval_name,
    level_of,
    noise,
    notion_note,
    p_cell,
    short_label,
    significant,
    without_notion,
)
from calibscale.output.plots.curve_plots import (
    CURVE_HEIGHT,
    IntervalPanel,
    IntervalRow,
    in_pictures,
    plot_risk,
    root_risk,
    root_spread,
)
from calibscale.results.declarations import Json
from calibscale.results.estimate import Floor, Interval

if TYPE_CHECKING:
    from calibscale.results.comparison_results import Candidate, Selection
    from calibscale.results.inference_results import TestResult


class Tested(NamedTuple):
    """Test of one window, model or set of covariates."""

    place: str
    test: TestResult
    adjusted: float | None = None


class RankedRow(NamedTuple):
    """Model of a ranking, the row of its table.

    `scores` are further numbers of the model by name, in the order of their columns.
    """

    name: str
    rank: int | None
    value: float | None
    interval: Interval | None
    probabilities: Sequence[float | None]
    floor: Floor | None = None
    scores: Mapping[str, float | None] = {}


class PairRow(NamedTuple):
    """Difference of the estimates of two models, first − second, and its adjusted p-value."""

    first: str
    second: str
    difference: float | None
    low: float | None
    high: float | None
    p: float | None


def is_smallest_p(test: TestResult) -> bool:
    """Whether the p-value is the smallest that the replicates allow."""
    return test.replicates > 0 and test.exceedances == 0


def test_blocks(tests: Sequence[Tested], place_title: str, alpha: float) -> list[doc.Block | None]:
    """Values compared with the null, and p-values."""
    if not tests:
        return []
    # Tests are named like estimates.
    clear = without_notion(named(tested.test) for tested in tests)
    head = (
        "statistic",
        doc.text_column(place_title) if any(tested.place for tested in tests) else None,
        "value",
        "95 % null quantile",
        "p-value",
        "adjusted" if any(tested.adjusted is not None for tested in tests) else None,
    )
    rows = [
        (
            short_label(named(test), clear),
            place,
            number_texts.number(test.value),
            number_texts.number(test.critical_value),
            p_cell(test.p_value, alpha, is_smallest_p(test)),
            number_texts.p_value(adjusted),
        )
        for place, test, adjusted in tests
    ]
    # Places with the same reason share a sentence.
    missing = dict.fromkeys(
        f"{terms.label(named(tested.test))}: {tested.test.reason}"
        for tested in tests
        if tested.test.reason
    )
    return [
        _null_figures(tests, place_title, alpha),
        doc.table("Tests of calibration", head, rows, _null_notes(tests)),
        *(doc.Paragraph(f"{text}.") for text in missing),
    ]


def named(test: TestResult) -> terms.Named:
    """Name of the statistic of a test with its notion, as of an estimate."""
    return terms.Named(test.statistic, test.notion)


def _null_notes(tests: Sequence[Tested]) -> list[str]:
    """Sentences about the null, and about the notion of statistics that are named without it."""
    notion = notion_note([named(tested.test) for tested in tests])
    first = tests[0].test
    if first.null == "hoeffding":
        return ["The p-values are upper bounds, by Hoeffding's inequality.", *notion]
    # Tests that stopped early have fewer replicates.
    count = max(tested.test.replicates for tested in tests)
    responses = "outcomes" if first.notion in ("forecast", "pit") else "labels"
    drawn = f"{responses} drawn from the predictions" if first.null == "labels" else first.null
    text = f"null: {drawn}, {number_texts.plural(count, 'replicate')}, seed {first.seed}"
    notes = [text]
    if any(tested.test.looks > 1 for tested in tests):
        notes.append("p-values of a second look, which add the level that the first look has spent")
    factors = first.parameters.get("bandwidth_factors")
    if factors:
        notes.append(f"value: the statistics of {len(factors)} bandwidths combined")
    if first.certain_rows:
        notes.append(
            f"{first.certain_rows:,} rows have a prediction of 0 or 1, so that their labels are "
            "the same in every draw."
        )
    return [*notes, *notion]


def _null_figures(tests: Sequence[Tested], place_title: str, alpha: float) -> doc.Figures | None:
    """Plots of observed values over the range of the null, if its quantiles are available."""
    by_statistic: dict[str, list[IntervalRow]] = {}
    for place, test, _ in tests:
        drawn = test.null_distribution
        # Tests by an inequality draw no values of the null.
        if drawn is None or test.value is None or drawn.central is None:
            continue
        low, high = drawn.central
        row = IntervalRow(
            place or "all rows",
            test.value,
            number_texts.known(low),
            number_texts.known(high),
            alert=significant(test.p_value, alpha),
            bar="rows",  # colour of a bar that is not an interval of the value
        )
        by_statistic.setdefault(terms.label(named(test)), []).append(row)
    strips = [IntervalPanel(name, tuple(rows)) for name, rows in by_statistic.items()]
    plots = []
    for panels in in_pictures(strips):
        names = naming.joined([strip.title for strip in panels])
        caption = (
            f"{names}: each point is the observed value, each bar the central 90 % of values "
            "under calibration. A point far to the right of its bar is evidence against "
            "calibration."
        )
        plots.append(
            interval_figure(
                panels,
                f"Tests of {names}",
                caption,
                f"tests of {names}",
                ("statistic", place_title, "value", "5 % … 95 % null quantiles"),
                point="value",
                interval="central 90 % of the null",
                alert=f"p ≤ {alpha:.2g}",
            )
        )
    return doc.figures(plots)


# ---------------------------------------------------------------- ranking


def ranking_blocks(
    models: Sequence[RankedRow], estimator: str, level: float | None, notes: Sequence[str] = ()
) -> list[doc.Block]:
    """Plot and table of ranked models."""
    if not models:
        return []
    rows = tuple(IntervalRow(model.name, model.value, *ends(model)) for model in models)
    figure = interval_figure(
        [IntervalPanel(estimator, rows)],
        f"Models by {estimator}",
        f"{estimator} of each model, smallest first. If bars overlap, the order is uncertain.",
        f"models by {estimator}",
        ("quantity", "model", "value", interval_name(level)),
        point=estimator,
    )
    return [
        doc.Figures((figure,)),
        _models_table(models, estimator, level),
        *map(doc.Paragraph, notes),
    ]


def _models_table(models: Sequence[RankedRow], estimator: str, level: float | None) -> doc.Block:
    # Models without an estimate have no probabilities, and fewer ranks are possible.
    n_ranks = max((len(model.probabilities) for model in models), default=0)
    n_ranks = n_ranks if n_ranks > 1 else 0  # the only rank is certain
    # A score that no model has is no column.
    scored = [name for model in models for name, x in model.scores.items() if x is not None]
    extra = [name for name in models[0].scores if name in scored]
    noisy = any(model.floor for model in models)
    rows = []
    for model in models:
        rank_shares = model.probabilities[:n_ranks]
        # Models without probabilities of ranks get dashes in every column of ranks.
        probabilities: list[str | doc.Cell] = []
        for share in rank_shares:
            if share is None:
                probabilities.append("–")
            else:
                text = number_texts.probability(share)
                probabilities.append(doc.Cell(text, "share", round(share, 3)))
        while len(probabilities) < n_ranks:
            probabilities.append("–")
        rank = "–" if model.rank is None else str(model.rank)
        rows.append(
            (
                model.name,
                rank,
                number_texts.number(model.value),
                number_texts.span(*ends(model)),
                *noise(model.value, model.floor),
                *probabilities,
                *(number_texts.number(model.scores.get(name)) for name in extra),
            )
        )
    head = ("model", "rank", estimator, interval_name(level), *(NOISE if noisy else (None, None)))
    ranks = [doc.TableColumn(f"P(rank {i + 1})", optional=i > 0) for i in range(n_ranks)]
    scores_head = [doc.TableColumn(name, optional=True) for name in extra]
    notes = ["P(rank): probability of the rank"] if n_ranks else []
    return doc.table(f"Models by {estimator}", (*head, *ranks, *scores_head), rows, notes)


def difference_table(differences: Sequence[PairRow], level: float | None) -> doc.Block | None:
    """Table of paired differences."""
    if not differences:
        return None
    rows = []
    for d in differences:
        # 1e-12 keeps p = 1 − level significant in spite of rounding.
        differ = level is not None and significant(d.p, 1 - level + 1e-12)
        state = doc.Cell("different", "strong") if differ else "undecided"
        rows.append(
            (
                d.first,
                d.second,
                number_texts.signed(d.difference),
                number_texts.span(d.low, d.high),
                number_texts.p_value(d.p),
                "–" if d.p is None else state,
            )
        )
    head = (
        "model",
        doc.text_column("minus"),
        "difference",
        interval_name(level),
        doc.TableColumn("p", legend="p-value, adjusted for the number of pairs"),
        doc.text_column("state"),
    )
    return doc.table("Pairwise differences", head, rows)


# ---------------------------------------------------------------- drift


def drift_blocks(drift: Any, column: str | None) -> list[doc.Block]:
    """Plot and table of differences from the baseline."""
    results = drift.results
    base = drift.baseline
    window = day_names.window(drift.window)
    title = f"{window[:1].upper()}{window[1:]} against the baseline, {day_names.day(base.first)}"
    # The baseline is a fixed period, which a reader must know to judge a drift.
    title += f" to {day_names.day(base.last)} ({number_texts.count(base.n)} rows)"
    if not results:
        return [doc.Paragraph(f"{title}: no comparison is possible yet.")]
    level = results[0].level
    by_estimator: dict[str, list[IntervalRow]] = {}
    # All rows come first, then the groups in their order.
    for d in sorted(results, key=lambda d: d.group is not None):
        # Records of single comparisons have no adjusted p-value.
        p = d.adjusted_p_value if d.adjusted_p_value is not None else d.p_value
        row = IntervalRow(
            naming.group(column, d.group),
            d.difference,
            d.low,
            d.high,
            significant(p, 1 - level + 1e-12),
        )
        by_estimator.setdefault(terms.label(d), []).append(row)
    strips = [IntervalPanel(name, tuple(rows), zero=True) for name, rows in by_estimator.items()]
    plots = doc.Figures(
        tuple(_drift_figure(panels, title, level) for panels in in_pictures(strips))
    )
    rows = [
        (
            terms.label(d),
            naming.group(column, d.group),
            number_texts.signed(d.difference),
            number_texts.span(d.low, d.high),
            number_texts.p_value(d.p_value),
            number_texts.p_value(d.adjusted_p_value),
        )
        for d in results
    ]
    head = (
        "estimator",
        doc.text_column("group"),
        "difference",
        interval_name(level),
        "p-value",
        "adjusted",
    )
    listed = doc.table("Drift since the baseline", head, rows)
    return [doc.Paragraph(f"{title}."), plots, doc.Folded("Differences and p-values", (listed,))]


def _drift_figure(panels: Sequence[IntervalPanel], title: str, level: float) -> doc.Figure:
    names = naming.joined([strip.title for strip in panels])
    caption = (
        f"{names}: change since the baseline. Significance is by p-values adjusted for all "
        "comparisons; each bar is the unadjusted interval of one comparison."
    )
    return interval_figure(
        panels,
        f"Drift of {names}. {title}",
        caption,
        f"drift of {names}",
        ("quantity", "group", "change", interval_name(level)),
        point="difference",
        alert="significant change",
    )


# ---------------------------------------------------------------- selection


def selection_blocks(result: Selection) -> list[doc.Block | None]:
    """Table of risks, plots of risk along grids, and the best estimate of each estimator."""
    grids = {
        name: [c for c in result.candidates if c.estimator == name] for name in result.estimators
    }
    # Each estimator is represented by its best point of the grid.
    best = {name: min(grid, key=_risk) for name, grid in grids.items()}
    chosen = result.selected
    root = "" if chosen.root is None else f", its root {number_texts.number(chosen.root)}"
    settings = _settings(chosen)
    if settings:
        settings = f" with {settings}"
    blocks: list[doc.Block | None] = [
        doc.Paragraph(
            f"The estimator with the smallest risk is {chosen.estimator}"
            f"{settings}"
            f": the squared calibration error is {number_texts.number(chosen.estimate)}"
            f"{root}. {_interval_sentence(chosen)}"
        ),
        _risk_table(list(best.values()), chosen),
    ]
    plots: list[doc.Figure | None] = [_root_figure(list(best.values()), chosen)]
    for name, grid in grids.items():
        figure = _risk_figure(name, grid, best[name], chosen)
        plots.append(figure)
        if figure is not None and figure.caption.endswith("may be better."):
            text = f"{name}: {_settings(best[name])} is at the end of its grid"
            blocks.append(doc.Paragraph(f"{text}; extend it (--grid)."))
    if result.nested is not None:
        nested = number_texts.number(result.nested.estimate)
        blocks.append(doc.Paragraph(f"Nested cross-validation: {nested}."))
    return [*blocks, doc.figures(plots)]


def _risk(candidate: Candidate) -> float:
    """Risk of a candidate, infinite without a risk."""
    return math.inf if math.isnan(candidate.risk) else candidate.risk


def _settings(candidate: Candidate) -> str:
    """Hyper-parameter and fitted parameters, the latter as means over folds."""
    settings: Json = dict(candidate.hyperparameter)
    for name, values in candidate.fitted.items():
        numbers = values if isinstance(values, list) else [values]
        if numbers and all(isinstance(v, int | float) for v in numbers):
            # Folds have fits of their own.  A reader needs their order of magnitude.
            settings[name.replace("theta", "θ")] = sum(numbers) / len(numbers)
    return ", ".join(f"{name} = {_digits(value)}" for name, value in settings.items())


def _digits(value: Any) -> str:
    number = isinstance(value, int | float)
    return number_texts.rounded(value, 4) if number else terms.plain(value)


def _risk_table(best: Sequence[Candidate], chosen: Candidate) -> doc.Block:
    rows = []
    for c in sorted(best, key=_risk):
        is_chosen = c.estimator == chosen.estimator
        state = "worse" if c.distinguishable else "undecided"
        rows.append(
            (
                doc.Cell(c.estimator, "strong" if is_chosen else ""),
                _settings(c) or "–",
                number_texts.number(None if math.isnan(c.risk) else root_risk(c), 6),
                "–" if is_chosen else number_texts.signed(c.difference),
                "–" if is_chosen else number_texts.number(c.difference_error, 2),
                number_texts.number(c.estimate),
                number_texts.number(c.root),
                number_texts.span(*_roots(c)),
                doc.Cell("selected", "strong") if is_chosen else state,
            )
        )
    head = (
        "estimator",
        doc.text_column("setting"),
        doc.TableColumn("√risk × 100", optional=True),
        doc.TableColumn("risk − best", legend="difference from the smallest risk"),
        doc.TableColumn("±", legend="standard error of the difference, paired by rows"),
        doc.TableColumn("estimate", optional=True, legend="squared calibration error"),
        doc.TableColumn("root", legend="square root of the estimate, with its interval"),
        interval_name(level_of([chosen])),
        doc.text_column("state"),
    )
    caption = "Best candidate of each estimator by risk"
    return doc.table(caption, head, rows)


def _roots(candidate: Candidate) -> tuple[float | None, float | None]:
    """Square roots of the limits of the interval."""
    low, high = ends(candidate)
    if low is None or high is None:
        return None, None
    # The limits are of a square, and may be 0 after the correction for noise.
    return math.sqrt(max(low, 0.0)), math.sqrt(max(high, 0.0))


def _interval_sentence(chosen: Candidate) -> str:
    """Sentence about the interval of the selected estimate."""
    low, high = ends(chosen)
    if low is None or high is None:
        return ""
    between = number_texts.span(low, high)
    text = f"The {interval_name(level_of([chosen]))} of the squared error is {between}"
    # A mean of squares is positive by its noise alone, which an interval must not hide.
    if low <= 0:
        return f"{text}. It includes 0, although the estimate, a mean of squares, is positive."
    return f"{text}."


def _root_figure(best: Sequence[Candidate], chosen: Candidate) -> doc.Figure:
    rows = tuple(IntervalRow(c.estimator, c.root, *_roots(c)) for c in best)
    interval = interval_name(level_of([chosen]))
    return interval_figure(
        [IntervalPanel("", rows)],
        "Calibration error by estimator",
        f"Calibration error (root) by each estimator, with its {interval}; "
        f"{chosen.estimator} has the smallest risk.",
        "calibration error by estimator",
        ("quantity", "estimator", "value", interval),
        "Calibration error (root)",
    )


def _risk_figure(
    name: str, grid: Sequence[Candidate], best: Candidate, selected: Candidate
) -> doc.Figure | None:
    """Plot of the risk along a grid of one hyper-parameter."""
    # A line needs one hyper-parameter, and three points to show a minimum.
    drawn = [c for c in grid if not math.isnan(c.risk) and len(c.hyperparameter) == 1]
    if len(drawn) < 3 or math.isnan(selected.risk) or best not in drawn:
        return None
    (label,) = best.hyperparameter
    if not all(isinstance(c.hyperparameter.get(label), int | float) for c in drawn):
        return None
    drawn.sort(key=lambda c: c.hyperparameter[label])
    values = [c.hyperparameter[label] for c in drawn]
    rows = [
        (
            number_texts.number(value, 4),
            number_texts.number(root_risk(c)),
            number_texts.number(root_spread(c), 2),
            number_texts.number(c.estimate),
        )
        for value, c in zip(values, drawn, strict=True)
    ]
    at, y_name = best.hyperparameter[label], "√risk × 100"
    caption = f"Risk of {name} along its grid; the minimum is at {label} = {_digits(at)}"
    end = at in (values[0], values[-1])
    caption += ", an end of the grid: a wider grid may be better." if end else "."
    return doc.Figure(
        partial(plot_risk, drawn, best, selected),
        CURVE_HEIGHT,
        f"Risk of {name} by {label}",
        caption,
        doc.table(f"Data of the plot: risk of {name}", (label, y_name, "±", "estimate"), rows),
        f"Risk of {name}",
    )
