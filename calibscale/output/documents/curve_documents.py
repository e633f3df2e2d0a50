"""Documents of Murphy diagrams, concentration curves and double lift charts."""

from __future__ import annotations

from functools import partial

import numpy as np

from calibscale.array_types import Ints
from calibscale.formatting import number_texts
from calibscale.output.documents import elements as doc
from calibscale.output.documents.estimates import interval_name
from calibscale.output.plots.model_curves import (
    MODEL_CURVE_HEIGHT,
    plot_concentration,
    plot_double_lift,
    plot_murphy_diagram,
    plot_murphy_difference,
)
from calibscale.results.curve_results import (
    ConcentrationCurve,
    CurveArea,
    DoubleLift,
    LiftBin,
    MurphyDiagram,
    MurphyDifference,
)

_ROWS = 11  # points of a curve in a table, as all of them would fill pages


def _some(count: int) -> Ints:
    """Positions of about equally spaced points of a curve, with both ends."""
    # A short curve has fewer points than a table, and each of them is listed once.
    return np.unique(np.linspace(0, count - 1, min(count, _ROWS)).astype(np.int64))


# ---------------------------------------------------------------- Murphy diagrams


def murphy(result: MurphyDiagram) -> doc.Article:
    """Document of ``calibscale curves murphy``."""
    figure = doc.Figure(
        partial(plot_murphy_diagram, result),
        MODEL_CURVE_HEIGHT,
        "Murphy diagram",
        "Mean elementary score by threshold, with pointwise "
        f"{interval_name(result.level)}s. A consistent score is a mixture of these scores.",
        _score_table(result),
        "Murphy diagram",
        in_text=True,
    )
    differences = [_difference_figure(result, pair) for pair in result.differences]
    return doc.article(
        f"Murphy diagram of {doc.source_name(result)}",
        doc.size_of(result),
        result.verdict.removesuffix("."),
        doc.section("scores", "Mean elementary scores", doc.figures([figure])),
        doc.section("differences", "Differences of models", doc.figures(differences)),
        *doc.closing(result, ["interval"]),
    )


def _score_table(result: MurphyDiagram) -> doc.Table:
    """Table of some thresholds with the scores of each model."""
    rows = [
        (
            number_texts.number(result.thresholds[i], 4),
            *(number_texts.number(curve.score[i]) for curve in result.curves),
        )
        for i in _some(len(result.thresholds))
    ]
    models = (curve.model for curve in result.curves)
    head = (doc.TableColumn("threshold"), *map(doc.TableColumn, models))
    count = len(result.thresholds)
    note = f"{len(rows)} of {count} thresholds are listed." if count > len(rows) else ""
    return doc.table("Mean elementary scores", head, rows, note)


def _difference_figure(result: MurphyDiagram, pair: MurphyDifference) -> doc.Figure:
    """Figure of the difference of two models, with a table of some thresholds."""
    rows = [
        (
            number_texts.number(result.thresholds[i], 4),
            number_texts.signed(float(pair.difference[i])),
            number_texts.span(pair.low[i], pair.high[i]),
            number_texts.span(pair.band_low[i], pair.band_high[i]),
            _smaller(pair, int(i)),
        )
        for i in _some(len(result.thresholds))
    ]
    head = (
        doc.TableColumn("threshold"),
        doc.TableColumn(
            "difference", legend=f"{pair.first} − {pair.second}, below 0 {pair.first} is better"
        ),
        doc.TableColumn(interval_name(result.level), optional=True),
        doc.TableColumn("band", legend="simultaneous over all thresholds and all pairs of models"),
        doc.TableColumn(
            "smaller", numbers=False, legend="model with the smaller score by the band"
        ),
    )
    names = f"{pair.first} − {pair.second}"
    return doc.Figure(
        partial(plot_murphy_difference, result, pair),
        MODEL_CURVE_HEIGHT,
        f"Difference of the mean elementary scores, {names}",
        f"Difference {names}; below 0 {pair.first} is better.",
        doc.table(f"Differences, {names}", head, rows),
        f"Difference {names}",
        in_text=True,
    )


def _smaller(pair: MurphyDifference, i: int) -> str:
    """Model with the smaller score at a threshold, by the band."""
    # A dash would read as undecided, which needs a band.
    if not pair.judged[i]:
        return "few rows"
    if pair.first_smaller[i]:
        return pair.first
    return pair.second if pair.second_smaller[i] else "undecided"


# ---------------------------------------------------------------- concentration curves


def concentration(result: ConcentrationCurve) -> doc.Article:
    """Document of ``calibscale curves concentration``."""
    points = [
        (
            number_texts.number(result.share[i], 3),
            number_texts.number(result.concentration[i]),
            number_texts.number(result.lorenz[i]),
            number_texts.number(result.ideal[i]),
        )
        for i in _some(len(result.share))
    ]
    head = (
        doc.TableColumn("share"),
        doc.TableColumn("outcomes", legend="concentration curve, in the order of the predictions"),
        doc.TableColumn("predictions", legend="Lorenz curve of the predictions"),
        doc.TableColumn("ideal", legend="Lorenz curve of the outcomes, in their own order"),
    )
    figure = doc.Figure(
        partial(plot_concentration, result),
        MODEL_CURVE_HEIGHT,
        "Concentration and Lorenz curves",
        "Shares of the sums that the rows with the smallest predictions have.",
        doc.table("Concentration and Lorenz curves", head, points),
        "Concentration curve",
    )
    return doc.article(
        f"Concentration curve of {doc.source_name(result)}",
        doc.size_of(result),
        result.verdict.removesuffix("."),
        doc.section("areas", "Areas and Gini indices", _areas(result)),
        doc.section("curves", "Curves", doc.figures([figure])),
        *doc.closing(result, []),
    )


def _areas(result: ConcentrationCurve) -> doc.Table:
    """Table of the numbers that follow from areas, with errors unless all are exact."""
    numbers: list[tuple[str, CurveArea, str]] = [
        ("area between the curves", result.abc, "near 0 if the predictions are calibrated"),
        ("Gini index of the predictions", result.gini, "1 − 2·area under the Lorenz curve"),
        (
            "Gini index of the outcomes by prediction",
            result.concentration_index,
            "1 − 2·area under the concentration curve",
        ),
        ("Gini index of the outcomes", result.ideal_gini, "in their own order"),
    ]
    rows = [
        (name, number_texts.number(area.value), number_texts.number(area.error, 2), remark)
        for name, area, remark in numbers
    ]
    error = doc.TableColumn("±", legend="bound of the error of cells of predictions or outcomes")
    remarks = doc.TableColumn("remark", numbers=False, optional=True)
    # Without errors the column would be a column of zeros.
    columns = ("number", "value", None if result.exact else error, remarks)
    return doc.table("Areas and Gini indices", columns, rows)


# ---------------------------------------------------------------- double lift charts


def double_lift(result: DoubleLift) -> doc.Article:
    """Document of ``calibscale curves double-lift``."""
    figure = doc.Figure(
        partial(plot_double_lift, result),
        MODEL_CURVE_HEIGHT,
        "Double lift chart",
        f"Mean predictions and outcomes by bins of the ratio {result.second}/{result.first}.",
        _bin_table(result),
        "Double lift chart",
        in_text=True,
    )
    shown = doc.figures([figure]) if result.bins else None
    return doc.article(
        f"Double lift of {result.first} and {result.second}",
        doc.size_of(result),
        result.verdict.removesuffix("."),
        doc.section("bins", "Bins of the ratio", shown),
        *doc.closing(result, ["interval"]),
    )


def _bin_table(result: DoubleLift) -> doc.Table:
    """Table of the bins, by increasing ratio."""
    rows = [_bin_row(result, part) for part in result.bins]
    head = (
        doc.TableColumn("ratio", legend=f"predictions of {result.second} by {result.first}"),
        doc.TableColumn("rows", optional=True),
        result.first,
        result.second,
        "outcome",
        interval_name(result.level),
        doc.TableColumn(
            "nearer",
            numbers=False,
            legend="model nearer to the mean outcome, by the interval of its bin alone",
        ),
    )
    return doc.table("Bins of the ratio of the predictions", head, rows)


def _bin_row(result: DoubleLift, part: LiftBin) -> tuple[str, ...]:
    """Row of the table of bins."""
    return (
        number_texts.span(part.lower, part.upper),
        number_texts.count(part.count),
        number_texts.number(part.first),
        number_texts.number(part.second),
        number_texts.number(part.outcome),
        number_texts.span(*(part.interval or (None, None))),
        result.nearer(part) or "undecided",
    )
