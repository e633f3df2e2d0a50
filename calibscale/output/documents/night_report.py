"""Report of a night: whether the model is calibrated, for which groups not, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from calibscale.formatting import day_names, naming, number_texts, terms
from calibscale.output.documents import comparisons, estimates, group_tables, reliability_figures
from calibscale.output.documents import elements as doc
from calibscale.output.documents.bias_documents import map_blocks
from calibscale.output.documents.night_headline import (
    head,
    impossible_sentence,
    limited,
    missing_value,
    observed,
    over,
)
from calibscale.output.documents.night_sections import (
    DAYS,
    colour_note,
    day_figure,
    group_colours,
    size_figure,
    trend_figures,
)
from calibscale.output.documents.recalibration_sections import recalibration_blocks
from calibscale.output.plots.day_plots import EVIDENCE_HEIGHT, Line, newest, plot_evidence
from calibscale.output.plots.diagrams import DrawnDiagram
from calibscale.output.plots.style import GROUPS
from calibscale.results.estimate import Estimate
from calibscale.results.night_results import (
    AlarmResult,
    CheckResult,
    ComparedPair,
    DayTests,
    Group,
    Night,
    ProcessResult,
    ThresholdResult,
)

_SIGNS = {"above": "> ", "below": "< ", "abs_above": "beyond ±"}


def nightly(night: Night) -> doc.Article:
    """Document of ``calibscale nightly``."""
    state, verdict, reasons = head(night)
    group = night.group_by or "group"
    results = _all_estimates(night)
    return doc.article(
        f"{night.job}, model {night.model}",
        _subtitle(night),
        verdict,
        doc.section("key", "Key numbers", _facts(night)),
        doc.section("thresholds", "Thresholds", *_thresholds(night)),
        doc.section("checks", "Checks", *_checks(night)),
        doc.section("estimates", "Estimates", *_estimates(night)),
        doc.section("reliability", "Reliability", _diagrams(night), detail=True),
        doc.section("trend", "Trend over days", trend_figures(night), detail=True),
        doc.section("evidence", "Evidence over time", *_evidence(night)),
        doc.section(
            "recalibration",
            "Champion of recalibration",
            *recalibration_blocks(night.recalibration),
        ),
        doc.section("drift", "Drift", *_drift(night), detail=True),
        doc.section("groups", f"Groups by {group}", *_groups(night), detail=True),
        doc.section("tests", "Tests", *_tests(night), detail=True),
        doc.section("ranking", "Ranking of models", *_ranking(night), detail=True),
        doc.section("risk", "Selection of an estimator by risk", *_risk(night), detail=True),
        doc.section("map", "Local bias", *_map(night), detail=True),
        *doc.closing(
            night,
            _terms(night),
            [estimate.estimator for estimate in results],
            [*night.notes, *doc.estimator_notes(results)],
            _left_out(night),
            model=night.model,
            day=night.day,
            created=night.created,
        ),
        state=state,
        reasons=reasons,
    )


def _all_estimates(night: Night) -> list[Estimate]:
    """Estimates of all windows and of their groups."""
    results: list[Estimate] = []
    for window in night.windows:
        results += window.results
        for group in window.groups:
            results += group.results
    return results


def _subtitle(night: Night) -> str:
    created = night.created
    # The time of the computation tells reports of a repeated night apart.
    text = f"Night of {day_names.day(night.day)}, computed {created[:16].replace('T', ' ')}"
    return f"{text} UTC" if created.endswith(("+00:00", "Z")) else text


# ---------------------------------------------------------------- key numbers


def _facts(night: Night) -> doc.Facts:
    remarks = [_exclusions(night), doc.clusters_of(night).removeprefix(" ")]
    facts = [("rows of the day", number_texts.count(night.n), "; ".join(filter(None, remarks)))]
    for window, estimate in _key_estimates(night):
        remark = f"over {over(night, window)}"
        if estimate.interval is not None:
            remark += f", {number_texts.span(estimate.interval.low, estimate.interval.high, 2)}"
        label = terms.label(estimate)
        facts.append((label, number_texts.number(estimate.value), remark))
    facts += _calibration(night.calibration)
    alarms = night.alarms
    if alarms is not None:
        now = "yes" if alarms.alarm else "none"
        since = f"since {day_names.day(alarms.since)}" if alarms.since else ""
        facts.append(("alarm", now, since))
    if night.thresholds:
        breached = sum(threshold.breached for threshold in night.thresholds)
        facts.append(("thresholds breached", str(breached), f"of {len(night.thresholds)}"))
    if night.checks:
        breached = sum(check.breached for check in night.checks)
        facts.append(("checks breached", str(breached), f"of {len(night.checks)}"))
    trend = night.trend
    if trend.days:
        # Results of earlier versions do not state the number of all days and the first of them.
        count = trend.ledger_days or len(trend.days)
        since = day_names.day(trend.first_day or trend.days[0])
        facts.append(("days in the ledger", number_texts.count(count), f"since {since}"))
    return doc.Facts(tuple(facts))


def _calibration(tests: DayTests | None) -> list[tuple[str, str, str]]:
    """Fact about the default tests of the day."""
    if tests is None or tests.p_value is None:
        return []
    count = sum(test.adjusted is not None for test in tests.tests)
    remark = f"{tests.statistic}, of {count} tests together"
    if tests.finding and tests.p_value <= estimates.ALPHA:
        remark += f": {tests.finding}"
    return [("calibration of the day", number_texts.p_is(tests.p_value), remark)]


def _exclusions(night: Night) -> str:
    """Remark on the number of excluded rows."""
    parts = []
    if night.n_unlabelled:
        parts.append(f"{number_texts.count(night.n_unlabelled)} without a label yet")
    if night.n_dropped:
        parts.append(f"{number_texts.count(night.n_dropped)} dropped")
    return " and ".join(parts) if parts else "none left out"


def _key_estimates(night: Night) -> list[tuple[str, Estimate]]:
    """Estimates with thresholds, or the first estimate with an interval if there are none.

    Each has the name of its window.
    """
    limited_estimates: dict[str, tuple[str, Estimate]] = {}
    for threshold in night.thresholds:
        estimate = _estimate(night, threshold)
        # Key numbers are about all rows, each estimator once.
        if estimate is not None and threshold.group is None:
            limited_estimates.setdefault(threshold.estimator, (threshold.window, estimate))
    if not limited_estimates:
        for window in night.windows:
            for estimate in window.results:
                if estimate.interval is not None:
                    return [(window.name, estimate)]
    return list(limited_estimates.values())[:3]


def _estimate(night: Night, threshold: ThresholdResult) -> Estimate | None:
    """Estimate of all rows that a threshold limits."""
    window = night.window(threshold.window)
    results = () if window is None else window.results
    return next((e for e in results if e.estimator == threshold.estimator), None)


# ---------------------------------------------------------------- thresholds


def _thresholds(night: Night) -> list[doc.Block]:
    """Tables of the breached or unknown thresholds, and of the others, collapsed."""
    # A threshold without a value is as urgent as a breach: nothing watches it.
    urgent = [t for t in night.thresholds if t.breached or t.observed is None]
    within = [t for t in night.thresholds if not (t.breached or t.observed is None)]
    caption = "Limits and observed values"
    # One table is enough if all limits are in the same state.
    if not urgent or not within:
        return [_limit_table(night, night.thresholds, caption)] if night.thresholds else []
    folded = (_limit_table(night, within, "Limits that are not breached"),)
    summary = f"{number_texts.plural(len(within), 'limit')} not breached"
    return [_limit_table(night, urgent, caption), doc.Folded(summary, folded)]


def _limit_table(night: Night, thresholds: Sequence[ThresholdResult], caption: str) -> doc.Table:
    rows = []
    # Breached limits come first.  The sort keeps the order of the job.
    for threshold in sorted(thresholds, key=lambda t: not t.breached):
        if threshold.observed is None:
            state = "breached" if threshold.breached else "faint"
            cell = doc.Cell(missing_value(threshold), state)
        elif threshold.breached:
            cell = doc.Cell("breached", "breached")
        else:
            cell = doc.Cell("within", "fine")
        quantity = limited(threshold)
        if threshold.group is not None:
            quantity += f", {naming.group(night.group_by, threshold.group)}"
        rows.append(
            (
                quantity,
                cell,
                observed(threshold),
                f"{_SIGNS[threshold.side]}{number_texts.given(threshold.limit)}",
                over(night, threshold.window),
            )
        )
    text = doc.text_column
    head = ("quantity", text("state"), "observed", "breached if", text("window"))
    return doc.table(caption, head, rows)


def _limits(
    night: Night, window: str, group: Group
) -> tuple[dict[str, tuple[float, ...]], frozenset[str]]:
    """Thresholds of a window and group by estimator, and the estimators beyond a threshold."""
    limits: dict[str, tuple[float, ...]] = {}
    breached = set()
    for threshold in night.thresholds:
        name, bounds = threshold.estimator, threshold.value_limits
        if bounds and (threshold.window, threshold.group) == (window, group):
            limits[name] = (*limits.get(name, ()), *bounds)
            if threshold.breached:
                breached.add(name)
    return limits, frozenset(breached)


# ---------------------------------------------------------------- checks


def _checks(night: Night) -> list[doc.Block]:
    """Table of the checks, with the breached ones first."""
    if not night.checks:
        return []
    rows = [
        (
            check.check,
            _state(check),
            number_texts.number(check.value),
            number_texts.given(check.limit),
            check.sentence,
        )
        for check in sorted(night.checks, key=lambda check: not check.breached)
    ]
    text = doc.text_column
    head = ("check", text("state"), "value", "limit", text("verdict"))
    return [doc.table("Verdicts of checks", head, rows)]


def _state(check: CheckResult) -> doc.Cell:
    if check.failed:
        return doc.Cell("failed", "breached")
    return doc.Cell("breached", "breached") if check.breached else doc.Cell("within", "fine")


# ---------------------------------------------------------------- estimates


def _estimates(night: Night) -> list[doc.Block]:
    places = [
        estimates.Place(
            over(night, window.name),
            window.results,
            *_limits(night, window.name, None),
        )
        for window in night.windows
        if window.results
    ]
    return estimates.estimate_blocks(places, "window")


def _diagrams(night: Night) -> doc.Figures | None:
    return doc.figures(
        reliability_figures.reliability_figure(
            DrawnDiagram.of(window.reliability), f"over {over(night, window.name)}"
        )
        for window in night.windows
        if window.reliability is not None
    )


def _groups(night: Night) -> list[doc.Block]:
    """Groups of the window with the most rows.  The groups of other windows are collapsed."""
    windows = [window for window in night.windows if window.groups]
    if not windows:
        return []
    # The window with the most rows has the most precise estimates of groups.
    first = max(windows, key=lambda window: window.n)
    blocks = group_tables.group_blocks(
        night.group_by,
        first.groups,
        f"over {over(night, first.name)}",
        lambda group: _limits(night, first.name, group),
    )
    for window in windows:
        if window is not first:
            where = f"over {over(night, window.name)}"
            ordered = sorted(window.groups, key=lambda group: -group.n)
            listed = group_tables.group_tables(night.group_by, ordered, where)
            blocks.append(doc.Folded(f"Groups {where}", tuple(listed)))
    return blocks


def _tests(night: Night) -> list[doc.Block | None]:
    tests = [
        comparisons.Tested(over(night, window.name), test)
        for window in night.windows
        for test in window.tests
    ]
    tests.sort(key=lambda tested: tested.test.statistic)
    return comparisons.test_blocks(tests, "window", estimates.ALPHA)


def _ranking(night: Night) -> list[doc.Block | None]:
    ranking = night.ranking
    if ranking is None:
        return []
    ordered = sorted(ranking.models, key=lambda compared: compared.rank)
    models = [
        comparisons.RankedRow(
            compared.model,
            compared.rank,
            compared.value,
            compared.interval,
            compared.rank_probabilities,
        )
        for compared in ordered
    ]
    differences = [_difference(pair) for pair in ranking.differences]
    return [
        doc.Paragraph(f"Over {day_names.window(ranking.window)}."),
        *comparisons.ranking_blocks(models, ranking.by, ranking.level),
        comparisons.difference_table(differences, ranking.level),
    ]


def _difference(pair: ComparedPair) -> comparisons.PairRow:
    """Difference of two models, the worse minus the better one."""
    # The ranking of a night has the better model first.
    p_value = pair.p_value if pair.adjusted_p_value is None else pair.adjusted_p_value
    return comparisons.PairRow(pair.b, pair.a, pair.difference, pair.low, pair.high, p_value)


def _drift(night: Night) -> list[doc.Block]:
    if night.drift is None:
        return []
    return comparisons.drift_blocks(night.drift, night.group_by)


def _risk(night: Night) -> list[doc.Block | None]:
    if night.selection is None:
        return []
    return comparisons.selection_blocks(night.selection)


def _map(night: Night) -> list[doc.Block]:
    return [] if night.bias is None else map_blocks(night.bias)


# ---------------------------------------------------------------- evidence over time


def _evidence(night: Night) -> list[doc.Block]:
    """Plot of the e-processes over days, and table of their current values."""
    alarms = night.alarms
    if alarms is None or not alarms.days:
        return []
    alarms = alarms.with_infinity()
    days = alarms.days[-DAYS:]
    drawn = _lines(night, alarms)
    # E of all processes together raises the alarm.  Lines of single processes explain it.
    total = Line("combined", alarms.log_evidence[-DAYS:], threshold=alarms.threshold)
    figure = day_figure(
        partial(plot_evidence, days, total, drawn),
        EVIDENCE_HEIGHT,
        "Evidence against calibration over days",
        _evidence_caption(night, alarms, [*drawn, total]),
        "evidence E after each day",
        days,
        [(line.name, map(number_texts.evidence, line.values)) for line in (total, *drawn)],
    )
    bounds = [
        Line(line.name, process.at_least[-DAYS:], alarm=line.alarm, colour=line.colour)
        for line, process in zip(drawn, alarms.processes, strict=True)
        if process.at_least
    ]
    figures = [figure]
    if alarms.tolerance and bounds:
        level = number_texts.percent(alarms.level)
        figures.append(size_figure(days, bounds, alarms.tolerance, level))
    return [doc.Figures(tuple(figures)), _process_table(night, alarms)]


def _lines(night: Night, alarms: AlarmResult) -> list[Line]:
    """Line of each process, named by its group, and by its notion if there are several."""
    notions = dict.fromkeys(process.notion for process in alarms.processes)
    by_group = group_colours(night)
    by_notion = {}
    if not by_group:
        by_notion = dict(zip((p.notion for p in alarms.processes), GROUPS, strict=False))
    lines = []
    for process in alarms.processes:
        name = naming.short(naming.group(night.group_by, process.group))
        if len(notions) > 1:
            name += f", {terms.notion(process.notion)}"
        if process.group is None:  # a process of all rows
            colour = by_notion.get(process.notion, "")
        else:
            colour = by_group.get(process.group, "")
        lines.append(
            Line(
                name,
                process.log_evidence[-DAYS:],
                alarm=process.alarm,
                threshold=process.threshold,
                colour=colour,
            )
        )
    return lines


def _evidence_caption(night: Night, alarms: AlarmResult, lines: Sequence[Line]) -> str:
    """Caption of the plot of the evidence, whose `lines` may leave it."""
    now = number_texts.evidence(newest(alarms.log_evidence[-DAYS:]))
    caption = f"Evidence against calibration after each day, currently E = {now}. "
    if alarms.since:
        caption += f"There has been an alarm since {day_names.day(alarms.since)}."
    else:
        caption += "There is an alarm." if alarms.alarm else "There is no alarm."
    top = max(log or 0.0 for line in lines for log in line.values)
    if top > 3 * max(alarms.threshold, alarms.process_threshold) + 7:
        caption += " Lines continue above the plot."
    if alarms.impossible is not None:
        caption += f" {impossible_sentence(alarms.impossible, night.group_by)}"
    groups = {process.group for process in alarms.processes} - {None}
    colours = group_colours(night)
    if len(groups) > len(colours):
        caption += f" {colour_note(night, len(groups))}"
    tolerated = "calibrated model"
    if alarms.tolerance:
        tolerated = f"model whose error is at most {alarms.tolerance} every day"
    level = number_texts.percent(alarms.level)
    return f"{caption} A {tolerated} ever raises an alarm with probability at most {level}."


def _process_table(night: Night, alarms: AlarmResult) -> doc.Table:
    named: list[tuple[str, str, AlarmResult | ProcessResult]] = [("combined", "–", alarms)]
    for process in sorted(alarms.processes, key=lambda p: -(newest(p.log_evidence) or 0.0)):
        rows_of = naming.group(night.group_by, process.group)
        named.append((rows_of, terms.notion(process.notion), process))
    rows = []
    for name, notion, evidence in named:
        since = f"alarm since {day_names.day(evidence.since)}" if evidence.since else "alarm"
        state = doc.Cell(since, "breached") if evidence.alarm else doc.Cell("no alarm", "fine")
        now = number_texts.evidence(newest(evidence.log_evidence))
        rows.append((name, state, now, number_texts.evidence(evidence.threshold), notion))
    text = doc.text_column
    head = ("process", text("state"), "current E", "threshold", text("notion"))
    return doc.table("Evidence of each process", head, rows)


# ---------------------------------------------------------------- other sections


def _left_out(night: Night) -> list[doc.Block | None]:
    blocks: list[doc.Block | None] = [doc.left_out(night)]
    rows = []
    for window in night.windows:
        missing = naming.joined([day_names.day_short(day) for day in window.missing], 8)
        damaged: str | doc.Cell = "none"
        if window.damaged:
            damaged = doc.Cell(f"{len(window.damaged)} damaged", "breached")
        rows.append(
            (
                day_names.window(window.name),
                f"{window.first} … {window.last}",
                number_texts.count(len(window.days)),
                number_texts.count(window.n),
                missing or "none",
                damaged,
            )
        )
    if rows:
        text = doc.text_column
        head = (
            "window",
            text("first … last"),
            "days",
            "rows",
            text("missing days"),
            text("damaged days"),
        )
        blocks.append(doc.table("Days of each window", head, rows))
    messages = dict.fromkeys(message for window in night.windows for message in window.damaged)
    return [*blocks, *map(doc.Paragraph, messages)]


def _terms(night: Night) -> list[str]:
    """Terms that the report explains."""
    results = list(_all_estimates(night))
    present = {
        "threshold": bool(night.thresholds),
        "check": bool(night.checks),
        "p-value": any(window.tests for window in night.windows),
        "95 % null quantile": any(window.tests for window in night.windows),
        "band": any(window.reliability is not None for window in night.windows),
        "evidence": night.alarms is not None,
        "drift": night.drift is not None,
        "adjusted": night.drift is not None,
        "rank": night.ranking is not None,
        "risk": night.selection is not None,
        "bias": night.bias is not None,
        "unlabelled": night.n_unlabelled > 0,
    }
    names = [name for name, needed in present.items() if needed]
    return ["calibrated", "window", *doc.interval_terms(results), *names]
