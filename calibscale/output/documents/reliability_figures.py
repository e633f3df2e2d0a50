"""Figures of reliability diagrams, PIT histograms, and curves of scores, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from calibscale.errors import OptionError
from calibscale.formatting import number_texts, terms
from calibscale.formatting.naming import name_of
from calibscale.output.documents import elements as doc
from calibscale.output.documents.estimates import alert_cell, interval_name
from calibscale.output.plots.diagrams import DrawnDiagram
from calibscale.output.plots.prediction_plots import RELIABILITY_HEIGHT, draw_reliability
from calibscale.output.plots.score_plots import SCORE_PLOTS, curve_of, plot_corp
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import ReliabilityBin


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
    # A bin of PIT values has the share of the outcomes within it.
    legend = f"range of the {'share' if row_unit == 'PIT' else names[0]} if calibrated"
    band = doc.TableColumn("band", optional=True, legend=legend)
    head = (row_unit, counts, names[1], names[0], level, band, doc.text_column("state"))
    return doc.table(caption, head, rows, notes)


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
