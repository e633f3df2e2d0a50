"""Section of a night about the champion of recalibration and its challengers."""

from __future__ import annotations

from functools import partial

from calibscale.formatting import day_names, number_texts
from calibscale.output.documents import elements as doc
from calibscale.output.documents.night_sections import DAYS, day_figure
from calibscale.output.plots import day_plots
from calibscale.output.plots.style import GROUPS
from calibscale.results.night_results import NightRecalibration


def recalibration_blocks(result: NightRecalibration | None) -> list[doc.Block]:
    """Sentences, table of challengers, plot of the scores over nights, and table of changes."""
    if result is None:
        return []
    blocks: list[doc.Block] = [doc.Paragraph(champion_sentence(result))]
    if result.note:
        blocks.append(doc.Paragraph(result.note))
    if result.challengers:
        blocks.append(_challengers(result))
    compared = [night for night in result.nights if night.champion_score is not None]
    # A single point shows no course.
    if len(compared) > 1:
        blocks.append(doc.Figures((_figure(result),)))
    changes = [
        (day_names.day(night.day), event) for night in result.nights for event in [night.event]
    ]
    listed = [(day, event) for day, event in changes if event]
    if listed:
        text = doc.text_column
        table = doc.table("Challengers that came and left", ("day", text("event")), listed)
        summary = f"{number_texts.plural(len(listed), 'night')} of changes"
        blocks.append(doc.Folded(summary, (table,)))
    return blocks


def champion_sentence(result: NightRecalibration) -> str:
    """Sentence about the champion, and the fault of the night if it has one."""
    if result.fault is not None:
        return f"Recalibration failed: {result.fault.removesuffix('.')}."
    since = "" if result.since is None else f" since {day_names.day(result.since)}"
    if result.replaced:
        sentence = f"This night replaced the champion, which is now {result.champion}."
    elif result.since is None:
        sentence = f"The champion is {result.champion}."
    else:
        sentence = f"The champion{since} is {result.champion}."
    level = number_texts.percent(result.alpha)
    return (
        f"{sentence} A challenger that is better on no night ever replaces it with probability at "
        f"most {level}."
    )


def _challengers(result: NightRecalibration) -> doc.Table:
    rows = []
    for challenger in result.challengers:
        rows.append(
            (
                f"{challenger.number}, {challenger.method}",
                challenger.state,
                day_names.day(challenger.day),
                number_texts.count(challenger.n),
                number_texts.number(challenger.gain, 3),
                number_texts.evidence(challenger.log_evidence),
                number_texts.evidence(challenger.log_threshold),
            )
        )
    text = doc.text_column
    head = ("challenger", text("state"), "since", "rows", "gain", "current E", "threshold")
    return doc.table("Evidence that challengers have a smaller Brier score", head, rows)


def _figure(result: NightRecalibration) -> doc.Figure:
    """Scores of each night: of the champion, and of the predictions as they are."""
    nights = result.nights[-DAYS:]
    days = [night.day for night in nights]
    champion = [night.champion_score for night in nights]
    before = [night.as_they_are for night in nights]
    line = day_plots.Line("champion", champion)
    others = [day_plots.Line("predictions as they are", before, colour=GROUPS[0])]
    caption = (
        "Half of the Brier score of each night, of the champion as it was on this night and of the "
        "predictions as they are. Smaller is better."
    )
    return day_figure(
        partial(day_plots.plot_trend, days, line, others, of="champion, each night"),
        day_plots.DAYS_HEIGHT,
        "Scores of the champion over nights",
        caption,
        "half of the Brier score of each night",
        days,
        [
            ("champion", map(number_texts.number, champion)),
            ("as they are", map(number_texts.number, before)),
        ],
    )
