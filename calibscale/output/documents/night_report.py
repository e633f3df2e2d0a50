"""Report of a night: whether the model is calibrated, for which groups not, and since when."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from calibscale.formatting import day_names, naming, number_texts, terms
from calibscale.output.documents import comparisons, estimates
from calibscale.output.documents import elements as doc
from calibscale.output.documents.bias_documents import map_blocks
from calibscale.output.documents.night_headline import (
    head,
    impossible_sentence,
    limit_of,
    missing_value,
    observed,
    over,
    value_limits,
    what,
)
from calibscale.output.documents.night_sections import (
    DAYS,
    colour_note,
    day_figure,
    group_colours,
    restored_groups,
    size_figure,
    trend_figures,
)
from calibscale.output.plots.day_plots import EVIDENCE_HEIGHT, Line, newest, plot_evidence
from calibscale.output.plots.diagrams import DrawnDiagram
from calibscale.output.plots.style import GROUPS
from calibscale.results.bias_results import BiasMap
from calibscale.results.cluster_results import Clusters
from calibscale.results.comparison_results import Selection
from calibscale.results.estimate import Estimate, Interval
from calibscale.results.evaluation_results import Diagram
from calibscale.results.inference_results import TestResult
from calibscale.results.night_results import Night, evidence_logs


def nightly(night: dict[str, Any]) -> doc.Article:
    """Document of ``calibscale nightly``."""
    state, verdict, reasons = head(night)
    group = night["group_by"] or "group"
    selected = night["selection"]
    bias = night["bias"]
    risk = []
    if selected is not None:
        risk = comparisons.selection_blocks(Selection.from_dict(selected))
    local_bias = [] if bias is None else map_blocks(BiasMap.from_dict(bias))
    drift = []
    if night["drift"]:
        drift = comparisons.drift_blocks(_named_members(night["drift"]), night["group_by"])
    results = _every(night)
    return doc.article(
        f"{night['job']}, model {night['model']}",
        _subtitle(night),
        verdict,
        doc.section("key", "Key numbers", _facts(night)),
        doc.section("thresholds", "Thresholds", *_thresholds(night)),
        doc.section("estimates", "Estimates", *_estimates(night)),
        doc.section("reliability", "Reliability", _diagrams(night), detail=True),
        doc.section("trend", "Trend over days", trend_figures(night), detail=True),
        doc.section("evidence", "Evidence over time", *_evidence(night)),
        doc.section("drift", "Drift", *drift, detail=True),
        doc.section("groups", f"Groups by {group}", *_groups(night), detail=True),
        doc.section("tests", "Tests", *_tests(night), detail=True),
        doc.section("ranking", "Ranking of models", *_ranking(night), detail=True),
        doc.section("risk", "Selection of an estimator by risk", *risk, detail=True),
        doc.section(
            "map",
            "Local bias",
            *local_bias,
            detail=True,
        ),
        *doc.closing(
            _restored(night),
            _terms(night),
            [e.estimator for e in results],
            [*(night["notes"] or ()), *doc.estimator_notes(results)],
            _left_out(night),
            model=night["model"],
            day=night["day"],
            created=night["created"],
        ),
        state=state,
        reasons=reasons,
    )


def _restored(night: dict[str, Any]) -> Night:
    return Night.from_dict(night, fresh=False)


def _named_members(value: Any) -> Any:
    """JSON value whose objects have attributes."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _named_members(item) for name, item in value.items()})
    return [_named_members(item) for item in value] if isinstance(value, list) else value


def _every(night: dict[str, Any]) -> list[Estimate]:
    """Estimates of all windows and of their groups."""
    return [
        Estimate.from_dict(estimate)
        for window in night["windows"]
        for part in (window, *(window["groups"] or ()))
        for estimate in part["results"] or ()
    ]


def _subtitle(night: dict[str, Any]) -> str:
    created = night["created"]
    # The time of the computation tells reports of a repeated night apart.
    text = f"Night of {day_names.day(night['day'])}, computed {created[:16].replace('T', ' ')}"
    return f"{text} UTC" if created.endswith(("+00:00", "Z")) else text


# ---------------------------------------------------------------- key numbers


def _facts(night: dict[str, Any]) -> doc.Facts:
    clusters = None if not night["clusters"] else Clusters.from_dict(night["clusters"])
    text = doc.clusters_of(SimpleNamespace(clusters=clusters))
    remarks = [_exclusions(night), text.removeprefix(" ")]
    facts = [("rows of the day", number_texts.count(night["n"]), "; ".join(filter(None, remarks)))]
    for window, estimate in _key_estimates(night):
        remark = f"over {over(night, window)}"
        restored = Estimate.from_dict(estimate)
        if restored.interval is not None:
            remark += f", {number_texts.span(*estimates.ends(restored), 2)}"
        facts.append((terms.label(restored), number_texts.number(restored.value), remark))
    facts += _calibration(night.get("calibration"))
    alarms = night["alarms"]
    if alarms is not None:
        now = "yes" if alarms["alarm"] else "none"
        since = f"since {day_names.day(alarms['since'])}" if alarms["since"] else ""
        facts.append(("alarm", now, since))
    if night["thresholds"]:
        breached = sum(t["breached"] for t in night["thresholds"])
        facts.append(("thresholds breached", str(breached), f"of {len(night['thresholds'])}"))
    trend = night["trend"]
    if trend is not None and trend["days"]:
        # Results of earlier versions do not state these numbers.
        count, first = trend["ledger_days"], trend["first_day"]
        count = len(trend["days"]) if count is None else count
        since = day_names.day(trend["days"][0] if first is None else first)
        facts.append(("days in the ledger", number_texts.count(count), f"since {since}"))
    return doc.Facts(tuple(facts))


def _calibration(tests: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """Fact about the default tests of the day."""
    if not tests or tests["p_value"] is None:
        return []
    count = sum(test["adjusted"] is not None for test in tests["tests"])
    remark = f"{tests['statistic']}, of {count} tests together"
    if tests["finding"] and tests["p_value"] <= estimates.ALPHA:
        remark += f": {tests['finding']}"
    return [("calibration of the day", number_texts.p_is(tests["p_value"]), remark)]


def _exclusions(result: dict[str, Any]) -> str:
    """Remark on the number of excluded rows."""
    parts = []
    if result["n_unlabelled"]:
        parts.append(f"{number_texts.count(result['n_unlabelled'])} without a label yet")
    if result["n_dropped"]:
        parts.append(f"{number_texts.count(result['n_dropped'])} dropped")
    return " and ".join(parts) if parts else "none left out"


def _key_estimates(night: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Estimates with thresholds, or the first estimate with an interval if there are none."""
    limited: dict[str, tuple[str, dict[str, Any]]] = {}
    for t in night["thresholds"] or ():
        estimate = _estimate(night, t["window"], t["estimator"])
        # Key numbers are about all rows, each estimator once.
        if estimate is not None and t["group"] is None and t["estimator"] not in limited:
            limited[t["estimator"]] = (t["window"], estimate)
    if not limited:
        for window in night["windows"]:
            for estimate in window["results"] or ():
                if estimate["interval"] is not None:
                    return [(window["name"], estimate)]
    return list(limited.values())[:3]


def _estimate(night: dict[str, Any], window: str | None, name: str | None) -> dict[str, Any] | None:
    estimates = (e for w in night["windows"] if w["name"] == window for e in w["results"] or ())
    return next((e for e in estimates if e["estimator"] == name), None)


# ---------------------------------------------------------------- thresholds


def _thresholds(night: dict[str, Any]) -> list[doc.Block]:
    """Tables of the breached or unknown thresholds, and of the others, collapsed."""
    thresholds = night["thresholds"] or []
    # A threshold without a value is as urgent as a breach: nothing watches it.
    urgent = [t for t in thresholds if t["breached"] or t["observed"] is None]
    within = [t for t in thresholds if t not in urgent]
    caption = "Limits and observed values"
    # One table is enough if all limits are in the same state.
    if not urgent or not within:
        return [_limit_table(night, thresholds, caption)] if thresholds else []
    folded = (_limit_table(night, within, "Limits that are not breached"),)
    summary = f"{number_texts.plural(len(within), 'limit')} not breached"
    return [_limit_table(night, urgent, caption), doc.Folded(summary, folded)]


def _limit_table(
    night: dict[str, Any], thresholds: list[dict[str, Any]], caption: str
) -> doc.Table:
    column = night["group_by"]
    rows = []
    # Breached limits come first.  The sort keeps the order of the job.
    for t in sorted(thresholds, key=lambda t: not t["breached"]):
        side, limit = limit_of(t)
        sign = {"above": "> ", "below": "< ", "abs_above": "beyond ±"}[side]
        if t["observed"] is None:
            state = doc.Cell(missing_value(t), "breached" if t["breached"] else "faint")
        elif t["breached"]:
            state = doc.Cell("breached", "breached")
        else:
            state = doc.Cell("within", "fine")
        group_suffix = "" if t["group"] is None else f", {naming.group(column, t['group'])}"
        rows.append(
            (
                what(t) + group_suffix,
                state,
                observed(t),
                f"{sign}{number_texts.given(limit)}",
                over(night, t["window"]),
            )
        )
    text = doc.text_column
    head = ("quantity", text("state"), "observed", "breached if", text("window"))
    return doc.table(caption, head, rows)


def _limits(
    night: dict[str, Any], window: str, group: float | None
) -> tuple[dict[str, tuple[float, ...]], frozenset[str]]:
    """Thresholds of a window and group by estimator, and the estimators beyond a threshold."""
    limits: dict[str, tuple[float, ...]] = {}
    breached = set()
    for t, limit in value_limits(night):
        if (t["window"], t["group"]) == (window, group):
            limits[t["estimator"]] = (*limits.get(t["estimator"], ()), limit)
            if t["breached"]:
                breached.add(t["estimator"])
    return limits, frozenset(breached)


# ---------------------------------------------------------------- estimates


def _estimates(night: dict[str, Any]) -> list[doc.Block]:
    places = [
        estimates.Place(
            over(night, w["name"]),
            [Estimate.from_dict(e) for e in w["results"]],
            *_limits(night, w["name"], None),
        )
        for w in night["windows"]
        if w["results"]
    ]
    return estimates.estimate_blocks(places, "window")


def _diagrams(night: dict[str, Any]) -> doc.Figures | None:
    return doc.figures(
        estimates.reliability_figure(
            DrawnDiagram.of(Diagram.from_dict(window["reliability"])),
            f"over {over(night, window['name'])}",
        )
        for window in night["windows"]
        if window["reliability"] is not None
    )


def _groups(night: dict[str, Any]) -> list[doc.Block]:
    """Groups of the window with the most rows.  The groups of other windows are collapsed."""
    windows = [w for w in night["windows"] if w["groups"]]
    if not windows:
        return []
    # The window with the most rows has the most precise estimates of groups.
    first = max(windows, key=lambda w: w["n"] or 0)
    blocks = estimates.group_blocks(
        night["group_by"],
        restored_groups(first["groups"]),
        f"over {over(night, first['name'])}",
        lambda group: _limits(night, first["name"], group),
    )
    for window in windows:
        if window is not first:
            where = f"over {over(night, window['name'])}"
            ordered = sorted(restored_groups(window["groups"]), key=lambda g: -g.n)
            listed = estimates.group_tables(night["group_by"], ordered, where)
            blocks.append(doc.Folded(f"Groups {where}", tuple(listed)))
    return blocks


def _tests(night: dict[str, Any]) -> list[doc.Block | None]:
    tests = [
        comparisons.Tested(over(night, w["name"]), TestResult.from_dict(test))
        for w in night["windows"]
        for test in w["tests"] or ()
    ]
    tests.sort(key=lambda tested: tested.test.statistic)
    return comparisons.test_blocks(tests, "window", estimates.ALPHA)


def _ranking(night: dict[str, Any]) -> list[doc.Block | None]:
    ranking = night["ranking"]
    if ranking is None:
        return []
    models = [
        comparisons.RankedRow(
            m["model"],
            m["rank"],
            m["value"],
            None if m["interval"] is None else Interval.from_dict(m["interval"]),
            m["rank_probabilities"] or (),
        )
        for m in sorted(ranking["models"], key=lambda m: m["rank"])
    ]
    # The ranking of a night has the better model first.  The table shows worse minus better.
    differences = [
        comparisons.PairRow(
            d["b"],
            d["a"],
            d["difference"],
            d["low"],
            d["high"],
            d["adjusted_p_value"] if d["adjusted_p_value"] is not None else d["p_value"],
        )
        for d in ranking["differences"] or ()
    ]
    return [
        doc.Paragraph(f"Over {day_names.window(ranking['window'])}."),
        *comparisons.ranking_blocks(models, ranking["by"], ranking["level"]),
        comparisons.difference_table(differences, ranking["level"]),
    ]


# ---------------------------------------------------------------- evidence over time


def _evidence(night: dict[str, Any]) -> list[doc.Block]:
    """Plot of the e-processes over days, and table of their current values."""
    alarms, column = night["alarms"], night["group_by"]
    if alarms is None or not alarms["days"]:
        return []
    days = alarms["days"][-DAYS:]
    processes = alarms["processes"] or []
    notions = {p["notion"] for p in processes}

    def name(p: dict[str, Any]) -> str:
        group_name = naming.short(naming.group(column, p["group"]))
        return f"{group_name}, {terms.notion(p['notion'])}" if len(notions) > 1 else group_name

    combined = evidence_logs(alarms, alarms["days"])[-DAYS:]
    threshold = alarms["threshold"]
    process_threshold = alarms["process_threshold"]
    colours = group_colours(night)
    # Without groups there is a process for each notion, which then gets the colour.
    if not colours:  # processes of notions
        colours = dict(zip((p["notion"] for p in processes), GROUPS, strict=False))
    drawn = [
        Line(
            name(p),
            evidence_logs(p, alarms["days"])[-DAYS:],
            alarm=p["alarm"],
            threshold=p["threshold"],
            colour=colours.get(p["notion"] if p["group"] is None else p["group"], ""),
        )
        for p in processes
    ]
    groups = {p["group"] for p in processes} - {None}
    level = number_texts.percent(alarms["level"])
    now = number_texts.evidence(newest(combined))
    caption = f"Evidence against calibration after each day, currently E = {now}. "
    if alarms["since"]:
        caption += f"There has been an alarm since {day_names.day(alarms['since'])}."
    else:
        caption += "There is an alarm." if alarms["alarm"] else "There is no alarm."
    top = max([*(v or 0.0 for p in drawn for v in p.values), *(v or 0.0 for v in combined)])
    if top > 3 * max(threshold or 0.0, process_threshold or 0.0) + 7:
        caption += " Lines continue above the plot."
    if alarms.get("impossible"):
        caption += f" {impossible_sentence(night, alarms['impossible'])}"
    if len(groups) > len(colours):
        caption += f" {colour_note(night, len(groups))}"
    tolerance = alarms.get("tolerance")
    tolerated = "calibrated model"
    if tolerance:
        tolerated = f"model whose error is at most {tolerance} every day"
    caption += f" A {tolerated} ever raises an alarm with probability at most {level}."
    # E of all processes together raises the alarm.  Lines of single processes explain it.
    total = Line("combined", combined, threshold=threshold)
    figure = day_figure(
        partial(plot_evidence, days, total, drawn),
        EVIDENCE_HEIGHT,
        "Evidence against calibration over days",
        caption,
        "evidence E after each day",
        days,
        [(line.name, map(number_texts.evidence, line.values)) for line in (total, *drawn)],
    )
    lines = [
        Line(p.name, process["at_least"][-DAYS:], alarm=p.alarm, colour=p.colour)
        for p, process in zip(drawn, processes, strict=True)
        if process.get("at_least")
    ]
    sizes = [size_figure(days, lines, tolerance, level)] if tolerance and lines else []
    return [doc.Figures((figure, *sizes)), _process_table(night, processes)]


def _process_table(night: dict[str, Any], processes: list[dict[str, Any]]) -> doc.Table:
    days = night["alarms"]["days"]

    def now(p: dict[str, Any]) -> float | None:
        return newest(evidence_logs(p, days))

    named = [("combined", "–", night["alarms"])] + [
        (naming.group(night["group_by"], p["group"]), terms.notion(p["notion"]), p)
        for p in sorted(processes, key=lambda p: -(now(p) or 0.0))
    ]
    rows = []
    for name, notion, p in named:
        since = f"alarm since {day_names.day(p['since'])}" if p["since"] else "alarm"
        state = doc.Cell(since, "breached") if p["alarm"] else doc.Cell("no alarm", "fine")
        rows.append(
            (
                name,
                state,
                number_texts.evidence(now(p)),
                number_texts.evidence(p["threshold"]),
                notion,
            )
        )
    text = doc.text_column
    head = ("process", text("state"), "current E", "threshold", text("notion"))
    return doc.table("Evidence of each process", head, rows)


# ---------------------------------------------------------------- other sections


def _left_out(night: dict[str, Any]) -> list[doc.Block | None]:
    blocks: list[doc.Block | None] = [doc.left_out(_restored(night))]
    rows = []
    for w in night["windows"]:
        missing, damaged = w["missing"] or [], w["damaged"] or []
        named = naming.joined([day_names.day_short(day) for day in missing], 8)
        first, last = w["first"] or "–", w["last"] or "–"
        rows.append(
            (
                day_names.window(w["name"]),
                f"{first} … {last}",
                number_texts.count(len(w["days"] or ())),
                number_texts.count(w["n"]),
                named or "none",
                doc.Cell(f"{len(damaged)} damaged", "breached") if damaged else "none",
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
    damaged = dict.fromkeys(date for w in night["windows"] for date in w["damaged"] or ())
    return [*blocks, *map(doc.Paragraph, damaged)]


def _terms(night: dict[str, Any]) -> list[str]:
    results = _every(night)
    names = ["calibrated", "window", *doc.interval_terms(results)]
    names += ["threshold"] if night["thresholds"] else []
    if any(w["tests"] for w in night["windows"]):
        names += ["p-value", "95 % null quantile"]
    names += ["band"] if any(w["reliability"] for w in night["windows"]) else []
    names += ["evidence"] if night["alarms"] is not None else []
    names += ["drift", "adjusted"] if night["drift"] is not None else []
    for key, term in (("ranking", "rank"), ("selection", "risk"), ("bias", "bias")):
        names += [term] if night[key] is not None else []
    return [*names, *(["unlabelled"] if night["n_unlabelled"] else [])]
