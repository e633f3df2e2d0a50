"""Reports of the results of one command: evaluate, reliability, test, select, bias, rank, …"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibscale.report import fields, words
from calibscale.report.blocks import Article, Block, Figure, Figures, Words, section, table
from calibscale.report.comparisons import difference_table, ranking_blocks, selection_blocks
from calibscale.report.estimates import (
    Place,
    Tested,
    at_least,
    estimate_blocks,
    group_blocks,
    interval_name,
    reliability_figure,
    test_blocks,
)
from calibscale.report.places import biased_groups, curve_figures, map_blocks, region_table
from calibscale.report.remarks import (
    estimator_notes,
    interval_terms,
    left_out,
    notes,
    only,
    settings,
    terms,
)

_MOST_DIAGRAMS = 12
_ALPHA = 0.05  # at which a test is told to reject


def _name(result: dict[str, Any]) -> str:
    source = result.get("source") or {}
    return words.base(source.get("name") or "predictions")


def _of(result: dict[str, Any]) -> str:
    """Rows, classes and time."""
    told = words.plural(result["n"], "row")
    classes = (result.get("source") or {}).get("classes")
    told += f" of {classes} classes" if classes is not None else ""
    return f"{told}, {words.seconds(result['seconds'])}" if result["seconds"] is not None else told


def _rows(result: dict[str, Any]) -> Any:
    return section("rows", "What was left out", left_out(result))


# ---------------------------------------------------------------- evaluate, reliability, test


def evaluation(result: dict[str, Any]) -> Article:
    """The report of ``calibscale evaluate``."""
    results, groups = result["results"], result["groups"]
    every = [*results, *(e for g in (groups or {"values": []})["values"] for e in g["results"])]
    grouped: list[Block] = []
    if groups is not None:
        found = [{"group": g["name"] or g["value"], "n": g["n"], "results": g["results"]}
                 for g in groups["values"]]  # fmt: skip
        grouped = group_blocks(groups["column"], found, "")
    blocks = estimate_blocks([Place("", results, result["n"])], "estimator")
    return Article(
        f"Calibration of {_name(result)}", _of(result), _first_value(results),
        sections=only(
            section("estimates", "Estimates", *blocks),
            section("groups", f"Groups by {groups['column'] if groups else ''}", *grouped),
            _rows(result),
            notes(estimator_notes(every)),
            terms(["calibrated", *interval_terms(every)], [e["estimator"] for e in every]),
            settings(result),
        ),
    )  # fmt: skip


def _first_value(results: list[dict[str, Any]]) -> str:
    """The calibration error that most people know, in a sentence."""
    known = {e["estimator"]: e for e in results if e["value"] is not None}
    for name in ("ece", "tce2_debiased", *known):
        if name in known:
            found = known[name]["interval"]
            told = f"{words.label(known[name])} is {words.number(known[name]['value'])}"
            if found is not None and found["low"] is not None and found["high"] is not None:
                told += (
                    f" ({interval_name(found['level'])} {words.span(found['low'], found['high'])})"
                )
            return told
    return "No estimate has a value"


def reliability(result: dict[str, Any]) -> Article:
    """The report of ``calibscale reliability``."""
    filled = [b for b in result["bins"] if b["frequency"] is not None]
    outside = sum(bool(b["outside"]) for b in filled)
    level = result["level"]
    verdict = f"{outside} of {words.plural(len(filled), 'bin')} outside the band"
    if level is not None:
        verdict += f"; at most {len(filled) * (1 - level):.2g} expected by chance"
    if not filled:
        verdict = result["reason"] or "There is no bin"
    groups = result["groups"]
    figures = [reliability_figure(result, "of all rows")]
    if groups is not None:
        for g in sorted(groups["values"], key=lambda g: -g["n"])[:_MOST_DIAGRAMS]:
            one = {**g, **{key: result[key] for key in ("notion", "class", "level", "source")}}
            name = words.group(groups["column"], g["name"] or g["value"])
            figures.append(reliability_figure(one, f"where {name}"))
    drawn = tuple(figure for figure in figures if figure is not None)
    listed = None
    if groups is not None:
        rows = [
            (words.group(groups["column"], g["name"] or g["value"]), words.count(g["n"]),
             words.number(g["ece"]), words.number(g["tce2_debiased"]))
            for g in sorted(groups["values"], key=lambda g: -g["n"])
        ]  # fmt: skip
        listed = table("Groups", ("group", "rows", "ece", "tce2_debiased"), rows)
    judged = words.notion(result["notion"])
    judged += "" if result["class"] is None else f" {result['class']}"
    return Article(
        f"Reliability of {_name(result)}", f"{_of(result)}, {judged}", verdict,
        sections=only(
            section("reliability", "Reliability", Figures(drawn) if drawn else None),
            section("groups", "Groups", listed),
            _rows(result),
            terms(["calibrated", "interval", "band"], ["ece", "tce2_debiased"]),
            settings(result),
        ),
    )  # fmt: skip


def test(result: dict[str, Any]) -> Article:
    """The report of ``calibscale test``."""
    tests = result["tests"]
    found = [(t, t["p_value"]) for t in tests if t["p_value"] is not None]
    small = [(t, p) for t, p in found if p <= _ALPHA]
    cited = sorted(small or found, key=lambda one: one[1])
    told = [f"{t['statistic']} {words.p_is(p, at_least(t))}" for t, p in cited]
    verdict = "Evidence of miscalibration" if small else "No evidence of miscalibration"
    if len(found) > 1:
        verdict += f" in {len(small)} of {len(found)} tests" if small else f" in {len(found)} tests"
    verdict = f"{verdict}: {words.joined(told, 4)}" if found else "No test has a p-value"
    several = ("The p-values are not adjusted for the number of tests.",) * (len(found) > 1)
    run = result["run"] or result["parameters"] or {}
    own = {t["statistic"]: t["parameters"] for t in tests if t["parameters"]}
    seed = tests[0]["seed"] if tests else None
    return Article(
        f"Tests of {_name(result)}", _of(result), verdict, reasons=several,
        sections=only(
            section("tests", "Tests",
                    *test_blocks([Tested("", t) for t in tests], "test", _ALPHA)),
            _rows(result),
            terms(["calibrated", "p-value", "critical"], [t["statistic"] for t in tests]),
            settings({**result, "parameters": {**run, **own, "seed": seed}}),
        ),
    )  # fmt: skip


# ---------------------------------------------------------------- select, bias, rank


def selection(result: dict[str, Any]) -> Article:
    """The report of ``calibscale select``."""
    chosen = result["selected"]
    verdict = f"{chosen['estimator']} has the smallest risk: the squared calibration error is "
    verdict += words.number(chosen["estimate"])
    limits = chosen["interval"]
    if limits is not None:
        between = words.span(limits["low"], limits["high"])
        verdict += f" ({interval_name(limits['level'])} {between})"
    features = result.get("features")
    return Article(
        f"Choice of the estimator for {_name(result)}",
        f"{_of(result)}, {words.notion(result['notion'])}", verdict,
        sections=only(
            section("risk", "Risk", *selection_blocks(result)),
            _rows(result),
            terms(["calibrated", "risk", "root"]),
            settings(result, **({"features": features} if features else {})),
        ),
    )  # fmt: skip


def bias(result: dict[str, Any]) -> Article:
    """The report of ``calibscale bias``."""
    points = result["points"]
    known = [b for b, hidden in zip(points["bias"], points["masked"], strict=True)
             if b is not None and not hidden]  # fmt: skip
    names = words.joined(list(points["covariates"]))
    verdict = "No point has enough rows near it"
    if known:
        verdict = f"The bias is between {words.signed(min(known), 3)} and "
        verdict += words.signed(max(known), 3)
    return Article(
        f"Local bias of {_name(result)}", f"{_of(result)}{', over ' + names if names else ''}",
        verdict,
        sections=only(
            section("map", "Map", *map_blocks(result)),
            _rows(result),
            notes(result["notes"] or ()),
            terms(["calibrated", "map"]),
            settings(result),
        ),
    )  # fmt: skip


def ranking(result: dict[str, Any]) -> Article:
    """The report of ``calibscale rank``."""
    models = sorted(result["models"], key=lambda m: (m["rank"] is None, m["rank"]))
    level = (result["parameters"] or {}).get("level")
    level = level if isinstance(level, int | float) else None
    verdict = "No model has a value"
    if models and models[0]["rank"] is not None:
        first = [m["name"] for m in models if m["rank"] == models[0]["rank"]]
        of = f"the best calibrated of {words.plural(len(models), 'model')}"
        verdict = f"{words.joined(first)} {'is' if len(first) == 1 else 'are equally'} {of}"
        best = (models[0]["rank_probabilities"] or [None])[0] if len(first) == 1 else None
        verdict += f" with probability {words.probability(best)}" if best is not None else ""
    told = []
    if result["p_order"] is not None and len(models) > 1:
        told.append(
            f"The whole order is right with probability {words.probability(result['p_order'])}."
        )
    for a in result["agreement"] or ():
        told.append(
            f"{a['trials']:,} random subsets of {a['size']:,} rows: "
            f"{words.percent(a['same_ranking'])} give this ranking, "
            f"{words.percent(a['same_best'])} this best model."
        )
    differences = [
        {"first": d["worse"], "second": d["better"], "value": d["value"],
         "low": (d["interval"] or {}).get("low"), "high": (d["interval"] or {}).get("high"),
         "p": d["p_adjusted"]}
        for d in result["differences"]
    ]  # fmt: skip
    rows = sorted({m["n"] for m in models if m["n"] is not None})
    subtitle = " to ".join(f"{n:,}" for n in ({rows[0], rows[-1]} if rows else set())) + " rows"
    gone = [
        (m["name"], why.replace("_", " "), words.count(n))
        for m in models
        for why, n in {
            **({"not labelled yet": m["n_unlabelled"]} if m["n_unlabelled"] else {}),
            **(m["dropped"] or {}),
        }.items()
    ]
    left = table("Rows that were left out", ("model", "why", "rows"), gone) if gone else None
    return Article(
        f"Ranking by {result['estimator']}", subtitle, verdict,
        sections=only(
            section("ranking", "Models", *ranking_blocks(models, result["estimator"], level, told),
                    difference_table(differences, level, ("model", "less"))),
            section("rows", "What was left out", left),
            notes(result["notes"] or ()),
            terms(["calibrated", "interval", "rank", "adjusted", *interval_terms(models)],
                  [result["estimator"]]),
            settings(result, **(result["common"] or {})),
        ),
    )  # fmt: skip


# ---------------------------------------------------------------- audit, power


def audit(result: dict[str, Any]) -> Article:
    """The report of ``calibscale audit``."""
    level = result["level"]
    tests = _local_tests(result["tests"], "")
    against = result["against"]
    found = [*tests, *(_local_tests(against["tests"], against["name"]) if against else [])]
    overall = result["overall"]
    told = []
    if overall is not None and overall["bias"] is not None:
        told.append(f"Bias over all rows: {words.signed(overall['bias'], 3)} "
                    f"({words.p_is(overall['p_value'])}).")  # fmt: skip
    where = result["source"]
    regions = region_table(result["map"]["regions"], where) if result["map"] is not None else None
    return Article(
        f"Audit of {_name(result)}", f"{_of(result)}, {words.notion(result['notion'])}",
        result["verdict"][:1].upper() + result["verdict"][1:],
        reasons=tuple(told),
        sections=only(
            section("tests", "Tests of local calibration",
                    *test_blocks(found, "covariates", 1 - level + 1e-12)),
            section("groups", "Groups", *biased_groups(result["groups"], level)),
            section("curves", "Where predictions are off", curve_figures(result["curves"], where),
                    regions),
            section("recalibration", "After recalibration",
                    _scores(result["recalibration"], _held_out(result["recalibration"]))),
            section("against", "Against another model", *_against(against, level)),
            _rows(result),
            notes(result["notes"] or ()),
            terms(["calibrated", "map", "interval", "p-value", "critical", "adjusted"], ["klce"]),
            settings(result),
        ),
    )  # fmt: skip


def _held_out(found: list[dict[str, Any]] | None) -> str:
    """What the scores after recalibration are of, and what their p-values count."""
    told = "on rows that were held out from the fits"
    if any(s["test"] is not None and s["test"]["null"] == "refit" for s in found or ()):
        told += "; labels of the null are drawn for fits and tests, and methods fitted again"
    return told


def _local_tests(tests: dict[str, Any], of: str) -> list[Tested]:
    before = f"{of}: " if of else ""
    found = [Tested(f"{before}all covariates", tests["joint"]),
             Tested(f"{before}no covariate", tests["calibration"])]  # fmt: skip
    return found + [Tested(f"{before}{t['covariate']}", t, t["adjusted"]) for t in tests["each"]]


def _scores(found: list[dict[str, Any]] | None, note: str = "") -> Any:
    """Scores of each method or model."""
    if not found:
        return None
    infinite = [s["log_loss"] is None and s["brier"] is not None for s in found]
    reasons = ["; ".join(filter(None, (s["reason"], s["note"],
                                       "a label had the probability 0" * endless)))
               for s, endless in zip(found, infinite, strict=True)]  # fmt: skip
    remarks = any(reasons)
    rows = [
        (s["method"], words.count(s["n"]), words.number(s["ece"]), words.number(s["brier"]),
         "∞" if endless else words.number(s["log_loss"]), words.number(s["klce"]),
         words.p_value(s["p_value"], s["test"] is not None and at_least(s["test"])),
         *([reason] if remarks else []))
        for s, endless, reason in zip(found, infinite, reasons, strict=True)
    ]  # fmt: skip
    head = ["method", "rows", "ece", "brier", "nll", "klce", "p-value"]
    return table("Scores", [*head, *(["remark"] if remarks else [])], rows, note)


def _against(found: dict[str, Any] | None, level: float) -> list[Block]:
    if found is None:
        return []
    rows = []
    for d in found["differences"]:
        interval = d["interval"] or {"low": None, "high": None}
        rows.append((
            d["estimator"], words.number(d["first"]), words.number(d["second"]),
            words.signed(d["difference"]), words.span(interval["low"], interval["high"]),
        ))  # fmt: skip
    head = ("estimator", "this model", found["name"], "difference", interval_name(level))
    listed = table("Both models on the same rows", head, rows, "below 0 the other model is better")
    return [listed, _scores([found["first"], found["second"]])]


def power(result: dict[str, Any]) -> Article:
    """The report of ``calibscale power``."""
    given = result["bias"]
    parts = [f"a bias of {given['shift']:+g}"] if given["shift"] else []
    parts += [f"the temperature {given['temperature']:g}"] if given["temperature"] != 1 else []
    what = " and ".join(parts) or "no bias"
    if given["where"] is not None:
        what += f" where {words.group(given['where']['covariate'], given['where']['value'])}"
    goal = f"to detect {what} with {result['statistic']} in {words.percent(result['power'])} of "
    goal += f"cases, at the level {result['level']:g}"
    if result["rows"] is None:
        verdict = f"More than {words.count(result['most_rows'])} rows are needed {goal}"
    else:
        low, high = result["interval"] or (result["rows"], result["rows"])
        verdict = f"{result['rows']:,} rows ({low:,.0f} … {high:,.0f}) are needed {goal}"
    curve = sorted(result["curve"], key=lambda t: t["rows"])
    listed = table(
        "Power by the number of rows",
        ("rows", "detected", "power"),
        [(words.count(t["rows"]), f"{t['rejections']} of {t['trials']}",
          f"{100 * t['power']:.1f} %") for t in curve],
    )  # fmt: skip
    figure = None
    if curve and all(t["rows"] > 0 for t in curve):
        picture = fields.power(
            [t["rows"] for t in curve], [t["power"] for t in curve], result["power"],
            result["rows"], result["interval"],
        )  # fmt: skip
        legend = (("line", "share of simulated data sets that were detected"),
                  ("goal", "power asked for, and rows needed"))  # fmt: skip
        caption = f"The share of detections grows with the number of rows. {verdict}."
        figure = Figures((Figure(picture, "Power by the number of rows", caption, listed, legend),))
    shown = figure if figure is not None else Words("Nothing was simulated.")
    return Article(
        f"Rows needed: {_name(result)}", f"{_of(result)}, {words.plural(len(curve), 'size')} tried",
        verdict,
        sections=only(
            section("power", "Power", shown),
            _rows(result),
            terms(["calibrated", "power", "p-value"], [result["statistic"]]),
            settings(result),
        ),
    )  # fmt: skip


REPORTS: dict[str, Callable[[dict[str, Any]], Article]] = {
    "evaluation": evaluation,
    "reliability": reliability,
    "test": test,
    "selection": selection,
    "bias": bias,
    "ranking": ranking,
    "audit": audit,
    "power": power,
}
