"""Documents about where predictions are biased: maps of local bias, and audits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.formatting import naming, number_texts, terms
from calibscale.output.documents import comparisons, estimates
from calibscale.output.documents import elements as doc
from calibscale.output.plots.bias_plots import (
    CURVES_HEIGHT,
    MAP_HEIGHT,
    BiasLine,
    map_cells,
    plot_bias_curves,
    plot_bias_map,
)
from calibscale.output.plots.curve_plots import IntervalPanel, IntervalRow
from calibscale.results.audit_results import (
    Against,
    Audit,
    LocalTests,
    Scores,
    Segment,
    SegmentErrors,
)
from calibscale.results.bias_results import BiasCurve, BiasMap, BiasPoints, Histogram, Region
from calibscale.results.declarations import Json
from calibscale.results.group_results import Group, RangeScan

_SIGN = f"bias: {terms.SIGN}"
_MANY = (_SIGN, "The largest of many z-scores is not a test.")
_LISTED = 15  # points in the table of a map
_MAX_BARS = 14  # groups in a plot
_MAX_COLUMNS = 6  # names of scanned columns in a sentence
_MAX_SENTENCES = 3  # about biased ranges
_LEVEL = 0.95  # of the intervals of a map
_INTERVAL = "95 % interval"


# ---------------------------------------------------------------- the map


def map_blocks(result: BiasMap) -> list[doc.Block]:
    """A map for each covariate, or a curve without covariates, and the most biased points."""
    points = result.points
    # Points with too few rows near them are masked, and null in JSON.
    shown = np.flatnonzero(
        ~points.masked & np.isfinite(points.bias) & np.isfinite(points.standard_error)
    )
    text = f"The map has {number_texts.plural(len(points), 'point')}"
    blank = len(points) - len(shown)
    text += f"; {blank:,} of them are blank because too few rows are near them." if blank else "."
    if not len(shown):
        return [doc.Paragraph(text)]
    drawn = DrawnMap(points, shown, result.source)
    maps = [_map_figure(drawn, name) for name in points.covariates]
    block = doc.figures(maps if points.covariates else [_curve_figure(drawn)])
    return [doc.Paragraph(text), block or _most_biased(drawn)]


class DrawnMap(NamedTuple):
    """Points of a map, the positions of the points that are not blank, and the source."""

    points: BiasPoints
    shown: Ints
    source: Json

    @property
    def z(self) -> Floats:
        """z of every point, infinite (null in JSON) for a bias of certain predictions."""
        bias, z = self.points.bias, self.points.z
        # Certain predictions that are wrong have an infinite z, which JSON writes as null.
        infinite = np.where(bias == 0, 0.0, np.copysign(np.inf, bias))
        return np.where(np.isfinite(z), z, infinite)

    def at(self, positions: Ints) -> DrawnMap:
        """Return the map with other points."""
        return self._replace(shown=positions)


def _map_figure(drawn: DrawnMap, name: str) -> doc.Figure | None:
    points = drawn.points
    values, prediction = points.covariates[name], points.prediction
    at = drawn.shown[np.isfinite(values[drawn.shown]) & np.isfinite(prediction[drawn.shown])]
    if not len(at):
        return None
    drawn = drawn.at(at)
    rows = np.nan_to_num(points.effective_rows[at], posinf=0.0, neginf=0.0)
    cells = map_cells(values[at], prediction[at], points.bias[at], drawn.z[at], rows)
    low = int((points.bias[at] > 0).sum())
    caption = f"Bias over {name} and the prediction: predictions are too low at {low:,} and too "
    caption += f"high at {len(at) - low:,} points. {number_texts.plural(cells.marked, 'cell')} "
    caption += "has" if cells.marked == 1 else "have"
    # Normal tails beyond ±2.
    caption += " |z| above 2 (expected if calibrated: 2.3 % above 2 and 2.3 % below −2). "
    caption += f"The darkest shade is a bias of {number_texts.number(cells.largest, 2)} or more."
    numbers = _most_biased(drawn, f"Data of the plot: most biased points ({name})")
    draw = partial(plot_bias_map, cells, name, naming.categories(drawn.source, name))
    return doc.Figure(draw, MAP_HEIGHT, f"Map of local bias over {name}", caption, numbers)


def _curve_figure(drawn: DrawnMap) -> doc.Figure:
    points, shown = drawn.points, drawn.shown
    prediction = np.nan_to_num(points.prediction[shown], posinf=0.0, neginf=0.0)
    order = np.argsort(prediction, kind="stable")
    # More than about 200 points make the page larger, and the curve no better.
    thinned = order[:: max(1, len(order) // 200)]
    at = shown[thinned]
    curve = BiasLine("", prediction[thinned], points.bias[at], points.low[at], points.high[at])
    return doc.Figure(
        partial(plot_bias_curves, [curve], "prediction"),
        CURVES_HEIGHT,
        "Bias over the prediction",
        "Bias over the prediction; above 0 predictions are too low.",
        _most_biased(drawn, "Data of the plot: most biased points"),
    )


def _value(source: Json, name: str, value: float | None) -> str:
    """Format a value of a covariate, by name if it is a category."""
    level = naming.level(source, name, value)
    return level if isinstance(level, str) else number_texts.number(level)


def _most_biased(drawn: DrawnMap, caption: str = "Most biased points") -> doc.Table:
    """Table of the points of largest |z|."""
    points, shown = drawn.points, drawn.shown
    # A stable sort keeps the order of points with equal z.
    largest = shown[np.argsort(-np.abs(drawn.z[shown]), kind="stable")][:_LISTED]
    regions = [
        Region(
            prediction=points.prediction[i],
            covariates={name: values[i] for name, values in points.covariates.items()},
            bias=points.bias[i],
            standard_error=points.standard_error[i],
            low=points.low[i],
            high=points.high[i],
            effective_rows=points.effective_rows[i],
            z=points.z[i],
        )
        for i in largest
    ]
    return region_table(regions, drawn.source, caption)


def region_table(regions: Sequence[Region], source: Json, caption: str) -> doc.Table:
    """Table of biased points or regions of a map."""
    names = list(regions[0].covariates)
    rows = [
        (
            number_texts.number(r.prediction),
            *(_value(source, name, r.covariates.get(name)) for name in names),
            number_texts.signed(r.bias),
            number_texts.span(r.low, r.high),
            number_texts.number(r.z, 2),
            number_texts.number(r.effective_rows, 3),
        )
        for r in regions[:_LISTED]
    ]
    columns = (*names, "bias y − p", _INTERVAL, "z", "effective rows")
    return doc.table(caption, [doc.TableColumn("prediction"), *columns], rows, _MANY)


# ---------------------------------------------------------------- groups of an audit


def biased_groups(
    groups: Sequence[Group | Segment], level: float, kind: str = "group", count: int | None = None
) -> list[doc.Block]:
    """Plot and table of groups by |z|, or of segments or ranges, with simultaneous intervals.

    The intervals are simultaneous over a `count` of groups.
    """
    if not groups:
        return []
    alpha = 1 - level + 1e-12
    shown = groups[:_MAX_BARS]
    rows = tuple(
        IntervalRow(
            f"{number_texts.with_minus(g.name)} ({number_texts.count(g.n)})",
            number_texts.known(g.bias),
            number_texts.known(g.low),
            number_texts.known(g.high),
            estimates.significant(g.adjusted, alpha),
        )
        for g in shown
    )
    panel = IntervalPanel("bias y − p", rows, zero=True)
    # A scan lists a few of the ranges, and its intervals are simultaneous over all of them.
    count = count or len(groups)
    selection = f"The {len(shown)} most biased of {count:,} {kind}s"
    if kind == "range":
        selection = f"The ranges with the most evidence, of {count:,}"
    elif count == len(shown):
        selection = f"All {kind}s"
    intervals = f"simultaneous {estimates.interval_name(level)}s over all {count:,}"
    figure = estimates.interval_figure(
        [panel],
        f"Bias of {kind}s: {selection}",
        f"{selection} (rows in brackets) with {intervals}. Above 0 predictions are too low.",
        f"bias of {kind}s",
        ("quantity", kind, "bias", estimates.interval_name(level)),
        point="bias",
        interval="interval",
        alert=f"adjusted p ≤ {1 - level:.2g}",
    )
    listed = [
        (
            number_texts.with_minus(g.name),
            number_texts.count(g.n),
            number_texts.number(g.mean_prediction),
            number_texts.number(g.frequency),
            number_texts.signed(g.bias),
            number_texts.span(g.low, g.high),
            number_texts.number(g.scaled if isinstance(g, Segment) else None),
            estimates.p_cell(g.adjusted, alpha),
        )
        for g in groups
    ]
    head = (
        kind,
        "rows",
        doc.TableColumn("mean prediction", optional=True),
        doc.TableColumn("frequency", optional=True),
        "bias",
        estimates.interval_name(level),
        "ECCE/σ" if kind == "segment" else None,
        doc.TableColumn("p", legend=f"p-value, adjusted for the number of {kind}s"),
    )
    title = "Ranges by evidence" if kind == "range" else f"{kind.capitalize()}s by their bias"
    return [doc.Figures((figure,)), doc.table(title, head, listed, _SIGN)]


def range_blocks(scan: RangeScan | None, level: float) -> list[doc.Block]:
    """Scan of ranges as sentences, and the ranges with the most evidence as a plot and a table."""
    if scan is None or not scan.listed:
        return []
    columns = naming.joined(list(scan.columns), _MAX_COLUMNS)
    text = f"The bias of {number_texts.plural(scan.count, 'range')} of {columns} was estimated. "
    text += "Ranges have about 5, 10, 20 or 40 % of the rows."
    if scan.p_value is not None:
        smallest = number_texts.p_value(scan.p_value)
        text += f" The smallest p-value, adjusted for all of them, is {smallest}."
    return [doc.Paragraph(text), *biased_groups(scan.listed, level, "range", scan.count)]


def segment_blocks(errors: SegmentErrors | None, level: float) -> list[doc.Block]:
    """Multicalibration error as a sentence, and its segments as a plot and a table."""
    if errors is None:
        return []
    if not errors.count:
        return [doc.Paragraph("There are no rows, and no segments.")]
    columns = naming.joined(list(errors.columns), len(errors.columns))
    text = f"Multicalibration error {number_texts.number(errors.error)}: the largest ECCE of "
    text += f"{number_texts.plural(errors.count, 'segment')} of {columns} is "
    text += f"{number_texts.number(errors.scaled)} σ ({number_texts.p_is(errors.p_value)} for "
    text += "the largest of all segments)."
    return [doc.Paragraph(text), *biased_groups(errors.listed, level, "segment")]


# ---------------------------------------------------------------- curves of an audit


def curve_figures(
    curves: Sequence[BiasCurve], source: Json, histograms: Sequence[Histogram]
) -> doc.Figures | None:
    """Plots of the bias along the prediction and along each covariate."""
    by_covariate: dict[str | None, list[BiasCurve]] = {}
    for curve in curves:
        # Curves of one covariate for each value of another one share a plot.
        by_covariate.setdefault(curve.covariate, []).append(curve)
    counted = {histogram.covariate: histogram for histogram in histograms}
    plots = []
    for name, curve_set in by_covariate.items():
        label = "prediction" if name is None else name
        drawn = [
            BiasLine(
                naming.group(c.by, naming.level(source, c.by, c.level)) if c.by else "",
                c.x,
                c.bias,
                c.low,
                c.high,
            )
            for c in curve_set
        ]
        separating = curve_set[0].by
        split = ""
        if len(curve_set) > 1 and separating:
            split = f", for each value of {separating}"
        title = f"Bias over {label}{split}"
        names = naming.categories(source, name)
        draw = partial(plot_bias_curves, drawn, label, names, counted.get(name))
        caption = f"{title}; above 0 predictions are too low."
        numbers = _curve_table(drawn, label, source, name)
        plots.append(doc.Figure(draw, CURVES_HEIGHT, title, caption, numbers))
    return doc.figures(plots)


def _curve_table(
    curves: Sequence[BiasLine], label: str, source: Json, name: str | None
) -> doc.Table:
    """Table of about 20 points of each curve."""
    rows = [
        (
            curve.name,
            _value(source, name or "", float(curve.x[i])),
            number_texts.signed(float(curve.bias[i])),
            number_texts.span(curve.low[i], curve.high[i]),
        )
        for curve in curves
        for i in range(0, len(curve.x), max(1, len(curve.x) // 20))
    ]
    head = ("curve" if len(curves) > 1 else None, doc.TableColumn(label), "bias", _INTERVAL)
    return doc.table(f"Data of the plot: bias over {label}", head, rows)


# ---------------------------------------------------------------- documents


def bias(result: BiasMap) -> doc.Article:
    """Document of ``calibscale bias``."""
    # Masked points have too few rows, and their bias is noise.
    biases = result.bias[np.isfinite(result.bias) & ~result.masked]
    names = naming.joined(list(result.covariates))
    over = f", over {names}" if names else ""
    verdict = "No point has enough rows near it"
    if len(biases):
        verdict = f"The bias is between {number_texts.signed(float(biases.min()), 3)} and "
        verdict += number_texts.signed(float(biases.max()), 3)
    return doc.article(
        f"Local bias of {doc.source_name(result)}",
        f"{doc.size_of(result)}{over}",
        verdict,
        doc.section("map", "Map", *map_blocks(result)),
        doc.section("ranges", "Ranges", *range_blocks(result.ranges, _LEVEL)),
        *doc.closing(result, ["calibrated", "bias"], remarks=result.notes),
        reasons=tuple(range_sentences(result.ranges, _LEVEL)),
    )


def audit(result: Audit) -> doc.Article:
    """Document of ``calibscale audit``."""
    level, against, overall = result.level, result.against, result.overall
    tests = _local_tests(result.tests, "")
    # Tests of both models share a table, so that they can be compared.
    tests += _local_tests(against.tests, against.name) if against else []
    reasons: tuple[str, ...] = ()
    if overall is not None and not math.isnan(overall.bias):
        reasons = (
            f"Bias over all rows: {number_texts.signed(overall.bias, 3)} "
            f"({number_texts.p_is(overall.p_value)}).",
        )
    reasons += tuple(_without_covariates(result.tests))
    reasons += tuple(_biased(result.groups, level))
    reasons += tuple(range_sentences(result.ranges, level))
    regions = result.map_summary.regions if result.map_summary is not None else ()
    listed = None
    if regions:
        listed = region_table(regions, result.source, "Most biased regions of the map")
    return doc.article(
        f"Audit of {doc.source_name(result)}",
        doc.judged_rows(result),
        result.verdict[:1].upper() + result.verdict[1:],
        doc.section(
            "tests",
            "Tests of local calibration",
            *comparisons.test_blocks(tests, "covariates", 1 - level + 1e-12),
        ),
        doc.section("groups", "Groups", *biased_groups(result.groups, level)),
        doc.section("ranges", "Ranges", *range_blocks(result.ranges, level)),
        doc.section("segments", "Segments", *segment_blocks(result.segments, level)),
        doc.section(
            "curves",
            "Where predictions are biased",
            curve_figures(result.curves, result.source, result.histograms),
            listed,
        ),
        doc.section(
            "recalibration",
            "After recalibration",
            _scores(result.recalibration, _held_out(result.recalibration)),
        ),
        doc.section("against", "Comparison with another model", *_against(against, level)),
        *doc.closing(
            result,
            ["calibrated", "bias", "interval", "p-value", "95 % null quantile", "adjusted"],
            ["klce"],
            result.notes,
        ),
        reasons=reasons,
    )


def _without_covariates(tests: LocalTests) -> Iterator[str]:
    """Sentence about all tests without covariates, or None for results of earlier versions."""
    # Results of earlier versions have one test without covariates, and no adjusted p-value.
    adjusted = {tests.plain.statistic: tests.plain_adjusted}
    adjusted |= {tested.test.statistic: tested.adjusted for tested in tests.whole}
    p_values = {name: p for name, p in adjusted.items() if p is not None}
    if len(p_values) > 1:
        name = min(p_values, key=lambda statistic: p_values[statistic])
        count = len(p_values)
        text = f"{number_texts.p_is(p_values[name])}, the smallest of {count} statistics together"
        yield f"Calibration without covariates: {name} has {text}."


def _biased(groups: Sequence[Group], level: float) -> Iterator[str]:
    """Sentences that name the significantly biased groups by the direction of their bias."""
    biased = [g for g in groups if estimates.significant(g.adjusted, 1 - level + 1e-12)]
    # The bias is y − p: above 0, predictions are too low.
    for direction, sign in (("low", 1), ("high", -1)):
        named = [
            f"{number_texts.with_minus(g.name)} ({number_texts.signed(g.bias, 3)})"
            for g in biased
            if sign * g.bias > 0
        ]
        if named:
            yield f"Predictions are too {direction} for {naming.joined(named, 3)}."
    if any(g.adjusted is not None for g in groups) and not biased:
        yield "No group has a significant bias."


def range_sentences(scan: RangeScan | None, level: float) -> Iterator[str]:
    """Sentences that name significantly biased ranges, with their bias and p-value."""
    listed = () if scan is None else scan.listed
    biased = [g for g in listed if estimates.significant(g.adjusted, 1 - level + 1e-12)]
    for scanned in biased[:_MAX_SENTENCES]:
        range_name = number_texts.with_minus(scanned.name)
        yield (
            f"{range_name}: predictions are {number_texts.points(scanned.bias)} "
            f"{scanned.direction} (adjusted {number_texts.p_is(scanned.adjusted)})."
        )
    more = len(biased) - _MAX_SENTENCES
    if more > 0:
        verb = "is" if more == 1 else "are"
        yield f"{number_texts.plural(more, 'further range')} {verb} biased."


def _held_out(scores: Sequence[Scores]) -> str:
    """Note about the rows of the scores after recalibration, and the null of their tests."""
    note = "on rows held out from the fits"
    if any(s.test is not None and s.test.null == "refit" for s in scores):
        # The bootstrap of `refits_of` draws the labels of the fit as well.
        note += "; under the null, labels of all rows are drawn and the methods refitted"
    return note


def _local_tests(tests: LocalTests, model: str) -> list[comparisons.Tested]:
    prefix = f"{model}: " if model else ""
    return [
        comparisons.Tested(f"{prefix}all covariates", tests.joint),
        comparisons.Tested(f"{prefix}no covariate", tests.plain, tests.plain_adjusted),
        *(
            comparisons.Tested(f"{prefix}no covariate", tested.test, tested.adjusted)
            for tested in tests.whole
        ),
        *(
            comparisons.Tested(f"{prefix}{tested.covariate}", tested.test, tested.adjusted)
            for tested in tests.each
        ),
    ]


def _scores(scores: Sequence[Scores], note: str = "") -> doc.Table | None:
    """Table of the scores of each method or model."""
    if not scores:
        return None
    rows = []
    for s in scores:
        # JSON has no infinity: with a Brier score, the missing log loss was infinite.
        unbounded = s.log_loss is None and s.brier is not None
        least = s.test is not None and comparisons.is_smallest_p(s.test)
        remarks = (
            terms.fitted((s.fitted or {}).get("parameters")),
            s.reason,
            s.note,
            "a label had the probability 0" if unbounded else "",
        )
        rows.append(
            (
                s.name,
                number_texts.count(s.n),
                number_texts.number(s.ece),
                number_texts.number(s.brier),
                "∞" if unbounded else number_texts.number(s.log_loss),
                number_texts.number(s.klce),
                number_texts.p_value(s.p_value, least),
                "; ".join(filter(None, remarks)),
            )
        )
    last = doc.text_column("remark") if any(row[-1] for row in rows) else None
    head = ("method", "rows", "ece", "brier", "nll", "klce", "p-value", last)
    return doc.table("Scores", head, rows, note)


def _against(comparison: Against | None, level: float) -> list[doc.Block | None]:
    """Differences of errors, the other model minus this one, and the scores of both models."""
    if comparison is None:
        return []
    rows = [
        (
            change.estimator,
            number_texts.number(change.first),
            number_texts.number(change.second),
            number_texts.signed(change.difference),
            number_texts.span(*estimates.ends(change)),
        )
        for change in comparison.differences
    ]
    interval_heading = estimates.interval_name(level)
    head = ("estimator", "this model", comparison.name, "difference", interval_heading)
    listed = doc.table(
        "Both models on the same rows", head, rows, "below 0 the other model is better"
    )
    return [listed, _scores([comparison.first, comparison.second])]
