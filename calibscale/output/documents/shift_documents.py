"""Document of an estimated shift of the class shares."""

from __future__ import annotations

from functools import partial

from calibscale.formatting import number_texts
from calibscale.output.documents import elements as doc
from calibscale.output.documents.estimates import interval_name
from calibscale.output.plots.share_plots import most_changed, plot_class_shares, shares_height
from calibscale.results.shift_results import ClassShare, LabelShift, ShiftTest

_METHODS = {
    "em": "maximum likelihood (EM)",
    "bbse": "black-box shift estimation (BBSE)",
    "bbse_hard": "black-box shift estimation (BBSE) by predicted labels",
}


def label_shift(result: LabelShift) -> doc.Article:
    """Document of ``calibscale shift``."""
    classes = most_changed(result)
    note = ""
    if len(classes) < len(result.classes):
        note = (
            f"{len(classes)} of {len(result.classes):,} classes, the ones with the largest changes."
        )
    head = (
        doc.text_column("class"),
        doc.TableColumn("old share", legend="of the labels of the old rows"),
        doc.TableColumn("new share", legend="estimated"),
        interval_name(result.level),
        doc.TableColumn("new/old", legend="ratio that probabilities are multiplied by"),
    )
    shares = doc.table("Shares of the classes", head, map(_row, classes), note)
    figure = doc.Figure(
        partial(plot_class_shares, result),
        shares_height(result),
        "Shares of the classes",
        "Old shares, and new shares with their intervals.",
        shares,
        "Shares of the classes",
        in_text=True,
    )
    new_rows = doc.rows_of(result.new.n, {})
    names = (doc.source_name(result), doc.source_name(result.new))
    dropped = [
        ("new rows", reason, number_texts.count(n)) for reason, n in result.new.dropped.items()
    ]
    left_out = doc.table("New rows that were left out", ("rows", "reason", "count"), dropped)
    return doc.article(
        f"Class shares from {names[0]} to {names[1]}",
        f"{doc.size_of(result)}, {new_rows} without labels",
        result.change.removesuffix("."),
        doc.section("shares", "Shares of the classes", doc.figures([figure])),
        doc.section("tests", "Tests", _tests(result)),
        doc.section("method", "Method", doc.Paragraph(_method(result))),
        *doc.closing(
            result,
            ["interval"],
            remarks=result.notes,
            excluded=[doc.left_out(result), left_out if dropped else None],
        ),
        reasons=tuple(filter(None, (result.purity, result.bias))),
    )


def _row(part: ClassShare) -> tuple[str, ...]:
    return (
        part.name,
        number_texts.number(part.old_share),
        number_texts.number(part.new_share),
        number_texts.span(*part.interval),
        number_texts.number(part.ratio, 3),
    )


def _tests(result: LabelShift) -> doc.Table | None:
    """Table of the tests that the rows allow."""
    tests: list[tuple[str, ShiftTest | None]] = [
        ("the shares are unchanged", result.no_shift),
        ("nothing else has changed", result.pure_shift),
        ("old predictions are calibrated", result.calibration),
    ]
    rows = [
        (
            hypothesis,
            number_texts.number(test.statistic),
            number_texts.count(test.degrees),
            number_texts.p_value(test.p_value),
        )
        for hypothesis, test in tests
        if test is not None
    ]
    head = (
        doc.text_column("hypothesis"),
        "statistic",
        doc.TableColumn("df", legend="about the statistic to expect under the hypothesis"),
        "p",
    )
    return doc.table("Tests of the shift", head, rows) if rows else None


def _method(result: LabelShift) -> str:
    """Sentence about the method of the estimate."""
    text = f"Shares are estimated by {_METHODS[result.method]} from "
    if result.recalibration != "identity":
        return f"{text}predictions that {result.recalibration} has recalibrated in the old rows."
    text += "the predictions as they are"
    # The confusion matrix of the old rows needs no calibration.
    if result.method == "em":
        text += ", which must be calibrated in the old rows"
    return f"{text}."
