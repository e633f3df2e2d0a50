"""The report of a night: is the model still calibrated, for whom not, since when?"""

from __future__ import annotations

import re
from typing import Any

from calibscale.report import words
from calibscale.report.blocks import (
    Article,
    Block,
    Cell,
    Column,
    Facts,
    Figures,
    Folded,
    Table,
    section,
    table,
)
from calibscale.report.blocks import Words as Paragraph
from calibscale.report.comparisons import (
    difference_table,
    drift_blocks,
    ranking_blocks,
    selection_blocks,
)
from calibscale.report.estimates import (
    Place,
    Tested,
    estimate_blocks,
    group_blocks,
    group_table,
    reliability_figure,
    test_blocks,
)
from calibscale.report.over_days import QUANTITIES, evidence_blocks, newest, trend_blocks
from calibscale.report.places import map_blocks
from calibscale.report.remarks import (
    estimator_notes,
    interval_terms,
    left_out,
    notes,
    only,
    rows_told,
    settings,
    terms,
)

_NAMED = 4  # reasons that the head of a report names


def article(night: dict[str, Any]) -> Article:
    """All that a night's result tells."""
    breached, state, verdict = _verdict(night)
    return Article(
        title=f"{night['job']}, model {night['model']}",
        subtitle=_subtitle(night),
        verdict=verdict,
        state=state,
        reasons=tuple(_reasons(night, breached)),
        sections=only(
            section("key", "Key numbers", _facts(night, breached)),
            section("thresholds", "Thresholds", _thresholds(night)),
            section("estimates", "Estimates", *_estimates(night)),
            section("reliability", "Reliability", _diagrams(night)),
            section("trend", "Trend over days", *trend_blocks(night)),
            section("evidence", "Evidence over time", *evidence_blocks(night)),
            section("drift", "Drift", *_drift(night)),
            section("groups", f"Groups by {night['group_by'] or 'group'}", *_groups(night)),
            section("tests", "Tests", *_tests(night)),
            section("ranking", "Ranking of models", *_ranking(night)),
            section("risk", "Choice of the estimator by its risk", *_selection(night)),
            section("map", "Local bias", *_map(night)),
            section("rows", "What was left out", *_left_out(night)),
            notes([*(night["notes"] or ()), *estimator_notes(_every(night))]),
            terms(_terms(night), [e["estimator"] for e in _every(night)]),
            settings(night, model=night["model"], day=night["day"], created=night["created"]),
        ),
    )


def _every(night: dict[str, Any]) -> list[dict[str, Any]]:
    """The estimates of all windows, and of their groups."""
    found: list[dict[str, Any]] = []
    for window in night["windows"]:
        found += window["results"] or []
        for group in window["groups"] or ():
            found += group["results"]
    return found


# ---------------------------------------------------------------- verdict


def _verdict(night: dict[str, Any]) -> tuple[list[dict[str, Any]], str, str]:
    """The thresholds that are breached, the state, and a sentence."""
    thresholds = night["thresholds"] or []
    breached = [t for t in thresholds if t["breached"]]
    alarms = night["alarms"]
    alarm = alarms is not None and alarms["alarm"]
    if not breached and not alarm:
        if night["status"] == "breached":
            return [], "breached", "Breached"
        unknown = sum(t["observed"] is None for t in thresholds)
        fine = f"none of {words.plural(len(thresholds), 'threshold')} is breached"
        if not thresholds:
            fine = "no threshold is set"
        elif unknown:
            fine += f", but {unknown} of them {'has' if unknown == 1 else 'have'} no value"
        fine += " and there is no alarm" if alarms is not None else ""
        return [], "fine", f"Fine: {fine}"
    told = []
    if breached:
        all_ = words.plural(len(thresholds), "threshold")
        told.append(f"{len(breached)} of {all_}")
    if alarm:
        told.append(f"alarm since {words.day(alarms['since'])}" if alarms["since"] else "alarm")
    if not breached:
        return [], "alarm", f"A{told[0][1:]}"
    return breached, "breached", f"Breached: {'; '.join(told)}"


def _reasons(night: dict[str, Any], breached: list[dict[str, Any]]) -> list[str]:
    """What is breached, for whom, and which alarm since when."""
    found = []
    alarms, column = night["alarms"], night["group_by"]
    if alarms is not None and alarms["alarm"]:
        log = newest(alarms["log_evidence"])
        at = words.evidence(alarms["threshold"])
        found.append(f"Evidence against calibration: E = {words.evidence(log)}, alarm at {at}.")
        processes = [p for p in alarms["processes"] or () if p["alarm"]]
        processes.sort(key=lambda p: (p["since"] or "", p["group"] is not None))
        whom = [
            f"{words.group(column, p['group'])} ({words.notion(p['notion'])})"
            + (f" since {words.day(p['since'])}" if p["since"] else "")
            for p in processes
        ]
        found += [f"Alarm for {name}." for name in whom[:_NAMED]]
        if len(whom) > _NAMED:
            found.append(f"Alarm for {words.plural(len(whom) - _NAMED, 'other')}, see below.")
    asked: dict[str, list[str]] = {}
    for t in breached:
        limit, whom_ = _limit_told(night, t), words.group(column, t["group"])
        if t["observed"] is None:
            asked.setdefault(f"{limit}, {_blind(t)}", []).append(whom_)
        else:
            asked.setdefault(limit, []).append(f"{_observed(t)} for {whom_}")
    found += [f"{limit}: {words.joined(some, 4)}." for limit, some in list(asked.items())[:_NAMED]]
    if len(asked) > _NAMED:
        found.append("And more, see below.")
    return found


def _limit_told(night: dict[str, Any], t: dict[str, Any]) -> str:
    over = f" over {_over(night, t['window'])}" if t["window"] else ""
    side, limit = ("above", t["above"]) if t["above"] is not None else ("below", t["below"])
    return f"{_what(t)}{over}, {side} {words.given(limit)}"


def _what(t: dict[str, Any]) -> str:
    """An estimator and which of its numbers is judged."""
    quantity = QUANTITIES.get(t["quantity"] or "value", t["quantity"])
    return f"{t['estimator'] or t['name']}, {quantity}"


def _observed(t: dict[str, Any]) -> str:
    show = words.p_value if t["quantity"] in ("p_value", "drift_p_value") else words.number
    return show(t["observed"])


def _blind(t: dict[str, Any]) -> str:
    """Why there is no value, and whether that is a breach."""
    reason = f" ({t['reason']})" if t["reason"] else ""
    return f"no value{': breached' * t['breached']}{reason}"


def _subtitle(night: dict[str, Any]) -> str:
    told = f"Night of {words.day(night['day'])}"
    created = night["created"]
    if created:
        told += f", computed {created[:16].replace('T', ' ')}"
        told += " UTC" if created.endswith(("+00:00", "Z")) else ""
    return told


# ---------------------------------------------------------------- key numbers


def _facts(night: dict[str, Any], breached: list[dict[str, Any]]) -> Facts:
    found = [("rows of the day", words.count(night["n"]), rows_told(night))]
    for window, estimate in _key_estimates(night):
        interval = estimate["interval"]
        told = f"over {_over(night, window)}"
        if interval is not None:
            told += f", {words.span(interval['low'], interval['high'], 2)}"
        found.append((words.label(estimate), words.number(estimate["value"]), told))
    alarms = night["alarms"]
    if alarms is not None:
        log = newest(alarms["log_evidence"])
        at = f"alarm at {words.evidence(alarms['threshold'])}" if alarms["threshold"] else ""
        since = f"alarm since {words.day(alarms['since'])}" if alarms["since"] else at
        found.append(("evidence E", words.evidence(log), since))
    if night["thresholds"]:
        of = f"of {len(night['thresholds'])}"
        found.append(("thresholds breached", str(len(breached)), of))
    trend = night["trend"]
    if trend is not None and trend["days"]:
        days = trend["days"]
        found.append(("days in the ledger", words.count(len(days)), f"since {words.day(days[0])}"))
    return Facts(tuple(found))


def _key_estimates(night: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What thresholds judge; else the first estimate that has an interval."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for t in night["thresholds"] or ():
        estimate = _estimate(night, t["window"], t["estimator"])
        if estimate is not None and t["group"] is None and t["estimator"] not in found:
            found[t["estimator"]] = (t["window"], estimate)
    if not found:
        for window in night["windows"]:
            for estimate in window["results"] or ():
                if estimate["interval"] is not None:
                    return [(window["name"], estimate)]
    return list(found.values())[:3]


def _estimate(night: dict[str, Any], window: str | None, name: str | None) -> dict[str, Any] | None:
    for one in night["windows"]:
        for estimate in one["results"] or ():
            if one["name"] == window and estimate["estimator"] == name:
                return estimate
    return None


# ---------------------------------------------------------------- thresholds


def _thresholds(night: dict[str, Any]) -> Table | None:
    thresholds = night["thresholds"]
    if not thresholds:
        return None
    column = night["group_by"]
    rows = []
    for t in sorted(thresholds, key=lambda t: not t["breached"]):
        sign, limit = (">", t["above"]) if t["above"] is not None else ("<", t["below"])
        if t["observed"] is None:
            state = Cell(_blind(t), "breached" if t["breached"] else "faint")
        elif t["breached"]:
            state = Cell("breached", "breached")
        else:
            state = Cell("within", "fine")
        whom = "" if t["group"] is None else f", {words.group(column, t['group'])}"
        rows.append((
            _what(t) + whom, state, _observed(t), f"{sign} {words.given(limit)}",
            _over(night, t["window"]),
        ))  # fmt: skip
    head = (
        "what", Column("state", numbers=False), "observed", "breached if",
        Column("window", numbers=False),
    )  # fmt: skip
    return table("Limits and what was observed", head, rows)


def _limits(
    night: dict[str, Any], window: str, group: float | None
) -> tuple[dict[str, tuple[float, ...]], frozenset[str]]:
    """Thresholds of one window and group by estimator, and the breached ones."""
    found: dict[str, tuple[float, ...]] = {}
    breached = set()
    for t in night["thresholds"] or ():
        if (t["window"], t["group"]) != (window, group) or t["estimator"] is None:
            continue
        if (t["quantity"] or "value") not in ("value", "low", "high"):
            continue
        limit = t["above"] if t["above"] is not None else t["below"]
        if limit is not None:
            found[t["estimator"]] = (*found.get(t["estimator"], ()), limit)
        if t["breached"]:
            breached.add(t["estimator"])
    return found, frozenset(breached)


# ---------------------------------------------------------------- estimates


def _over(night: dict[str, Any], name: str | None) -> str:
    """A window in words; “2 of 7 days” where the ledger has no more of it."""
    many = re.fullmatch(r"(\d+)d", name or "")
    for w in night["windows"]:
        there = len({day[:10] for day in w["days"] or ()})
        if w["name"] == name and many and 0 < there < int(many[1]):
            return f"{there} of {words.window(name)}"
    return words.window(name)


def _estimates(night: dict[str, Any]) -> list[Block]:
    places = [
        Place(_over(night, w["name"]), w["results"], w["n"], *_limits(night, w["name"], None))
        for w in night["windows"]
        if w["results"]
    ]
    return estimate_blocks(places, "window")


def _diagrams(night: dict[str, Any]) -> Figures | None:
    found = []
    for window in night["windows"]:
        if window["reliability"] is not None:
            told = f"over {_over(night, window['name'])}"
            figure = reliability_figure(window["reliability"], told)
            found += [figure] if figure is not None else []
    return Figures(tuple(found)) if found else None


def _groups(night: dict[str, Any]) -> list[Block]:
    """Of the window of most rows; the others are folded."""
    windows = [w for w in night["windows"] if w["groups"]]
    if not windows:
        return []
    first = max(windows, key=lambda w: w["n"] or 0)
    blocks = group_blocks(
        night["group_by"], first["groups"], f"over {_over(night, first['name'])}",
        lambda group: _limits(night, first["name"], group),
    )  # fmt: skip
    for window in windows:
        if window is not first:
            where = f"over {_over(night, window['name'])}"
            ordered = sorted(window["groups"], key=lambda g: -(g["n"] or 0))
            listed = group_table(night["group_by"], ordered, where)
            blocks.append(Folded(f"Groups {where}", (listed,)))
    return blocks


def _tests(night: dict[str, Any]) -> list[Block]:
    found = [
        Tested(_over(night, w["name"]), test) for w in night["windows"] for test in w["tests"] or ()
    ]
    found.sort(key=lambda one: one.test["statistic"])
    return test_blocks(found, "window", 0.05)


def _ranking(night: dict[str, Any]) -> list[Block]:
    ranking = night["ranking"]
    if ranking is None:
        return []
    models = [{**m, "name": m["model"]} for m in ranking["models"]]
    models.sort(key=lambda m: (m["rank"] is None, m["rank"]))
    differences = [
        {"first": d["b"], "second": d["a"], "value": d["difference"], "low": d["low"],
         "high": d["high"],
         "p": d["adjusted_p_value"] if d["adjusted_p_value"] is not None else d["p_value"]}
        for d in ranking["differences"] or ()
    ]  # fmt: skip
    by = ranking["by"] or "value"
    blocks = ranking_blocks(models, by, ranking["level"])
    if ranking["window"]:
        blocks.insert(0, Paragraph(f"Over {words.window(ranking['window'])}."))
    pairs = difference_table(differences, ranking["level"], ("model", "less"))
    return [*blocks, *([pairs] if pairs is not None else [])]


def _drift(night: dict[str, Any]) -> list[Block]:
    return [] if night["drift"] is None else drift_blocks(night["drift"], night["group_by"])


def _selection(night: dict[str, Any]) -> list[Block]:
    return [] if night["selection"] is None else selection_blocks(night["selection"])


def _map(night: dict[str, Any]) -> list[Block]:
    return [] if night["bias"] is None else map_blocks(night["bias"])


# ---------------------------------------------------------------- rest


def _left_out(night: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    of_day = left_out(night)
    if of_day is not None:
        blocks.append(of_day)
    rows = []
    for w in night["windows"]:
        missing, damaged = w["missing"] or [], w["damaged"] or []
        named = words.joined([words.day_short(day) for day in missing], 8) if missing else "none"
        rows.append((
            words.window(w["name"]), f"{w['first'] or '–'} … {w['last'] or '–'}",
            words.count(len(w["days"] or ())), words.count(w["n"]), named,
            Cell(f"{len(damaged)} damaged", "breached") if damaged else "none",
        ))  # fmt: skip
    if rows:
        head = (
            "window", Column("first … last", numbers=False), "days", "rows",
            Column("missing days", numbers=False), Column("damaged days", numbers=False),
        )  # fmt: skip
        blocks.append(table("Days of each window", head, rows))
    damaged = dict.fromkeys(text for w in night["windows"] for text in w["damaged"] or ())
    return [*blocks, *map(Paragraph, damaged)]


def _terms(night: dict[str, Any]) -> list[str]:
    every = _every(night)
    found = ["calibrated", "window", *interval_terms(every)]
    found += ["threshold"] if night["thresholds"] else []
    if any(w["tests"] for w in night["windows"]):
        found += ["p-value", "critical"]
    found += ["band"] if any(w["reliability"] for w in night["windows"]) else []
    found += ["evidence"] if night["alarms"] is not None else []
    found += ["drift", "adjusted"] if night["drift"] is not None else []
    for key, term in (("ranking", "rank"), ("selection", "risk"), ("bias", "map")):
        found += [term] if night[key] is not None else []
    return [*found, *(["unlabelled"] if night["n_unlabelled"] else [])]
