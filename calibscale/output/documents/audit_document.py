"""Document of an audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calibscale import formatting
from calibscale.output.document import Article, Block, TableColumn, section, table
from calibscale.output.documents.articles import name_of, rows_left_out, size_of
from calibscale.output.documents.bias_sections import biased_groups, curve_figures, region_table
from calibscale.output.documents.comparisons import Tested, is_smallest_p, test_blocks
from calibscale.output.documents.estimates import interval_name
from calibscale.output.documents.shared_sections import notes, only, settings, terms


def audit(result: dict[str, Any]) -> Article:
    """Document of ``calibscale audit``."""
    level = result["level"]
    tests = _local_tests(result["tests"], "")
    against = result["against"]
    tests += _local_tests(against["tests"], against["name"]) if against else []
    overall = result["overall"]
    reasons: tuple[str, ...] = ()
    if overall is not None and overall["bias"] is not None:
        reasons = (f"Bias over all rows: {formatting.signed(overall['bias'], 3)} "
                   f"({formatting.p_is(overall['p_value'])}).",)  # fmt: skip
    reasons += tuple(_biased(result["groups"], level))
    where = result["source"]
    regions = region_table(result["map"]["regions"], where) if result["map"] is not None else None
    return Article(
        f"Audit of {name_of(result)}", f"{size_of(result)}, {formatting.notion(result['notion'])}",
        result["verdict"][:1].upper() + result["verdict"][1:],
        reasons=reasons,
        sections=only(
            section("tests", "Tests of local calibration",
                    *test_blocks(tests, "covariates", 1 - level + 1e-12)),
            section("groups", "Groups", *biased_groups(result["groups"], level)),
            section("curves", "Where predictions are biased",
                    curve_figures(result["curves"], where, result.get("histograms", {})), regions),
            section("recalibration", "After recalibration",
                    _scores(result["recalibration"], _held_out(result["recalibration"]))),
            section("against", "Comparison with another model", *_against(against, level)),
            rows_left_out(result),
            notes(result["notes"] or ()),
            terms(["calibrated", "map", "interval", "p-value", "critical", "adjusted"], ["klce"]),
            settings(result),
        ),
    )  # fmt: skip


def _biased(groups: list[dict[str, Any]], level: float) -> Iterator[str]:
    """Sentences that name the significantly biased groups by the direction of their bias."""
    biased = [g for g in groups if g["adjusted"] is not None and g["adjusted"] <= 1 - level + 1e-12]
    for direction, sign in (("low", 1), ("high", -1)):
        named = [f"{g['group']} ({formatting.signed(g['bias'], 3)})" for g in biased
                 if sign * g["bias"] > 0]  # fmt: skip
        if named:
            yield f"Predictions are too {direction} for {formatting.joined(named, 3)}."
    if groups and not biased:
        yield "No group has a significant bias."


def _held_out(scores: list[dict[str, Any]] | None) -> str:
    """Note about the rows of the scores after recalibration, and the null of their tests."""
    note = "on rows held out from the fits"
    if any(s["test"] is not None and s["test"]["null"] == "refit" for s in scores or ()):
        note += "; under the null, labels of all rows are drawn and the methods refitted"
    return note


def _local_tests(tests: dict[str, Any], model: str) -> list[Tested]:
    prefix = f"{model}: " if model else ""
    return [
        Tested(f"{prefix}all covariates", tests["joint"]),
        Tested(f"{prefix}no covariate", tests["calibration"]),
        *(Tested(f"{prefix}{t['covariate']}", t, t["adjusted"]) for t in tests["each"]),
    ]


def _scores(scores: list[dict[str, Any]] | None, note: str = "") -> Any:
    """Table of the scores of each method or model."""
    if not scores:
        return None
    infinite = [s["log_loss"] is None and s["brier"] is not None for s in scores]
    reasons = ["; ".join(filter(None, (formatting.fitted((s["fitted"] or {}).get("parameters")),
                                       s["reason"], s["note"],
                                       "a label had the probability 0" * unbounded)))
               for s, unbounded in zip(scores, infinite, strict=True)]  # fmt: skip
    remarks = any(reasons)
    rows = [
        (s["method"], formatting.count(s["n"]), formatting.number(s["ece"]),
         formatting.number(s["brier"]),
         "∞" if unbounded else formatting.number(s["log_loss"]), formatting.number(s["klce"]),
         formatting.p_value(s["p_value"], s["test"] is not None and is_smallest_p(s["test"])),
         *([reason] if remarks else []))
        for s, unbounded, reason in zip(scores, infinite, reasons, strict=True)
    ]  # fmt: skip
    head = ["method", "rows", "ece", "brier", "nll", "klce", "p-value"]
    last = [TableColumn("remark", numbers=False)] if remarks else []
    return table("Scores", [*head, *last], rows, note)


def _against(comparison: dict[str, Any] | None, level: float) -> list[Block]:
    if comparison is None:
        return []
    rows = []
    for d in comparison["differences"]:
        interval = d["interval"] or {"low": None, "high": None}
        rows.append((
            d["estimator"], formatting.number(d["first"]), formatting.number(d["second"]),
            formatting.signed(d["difference"]), formatting.span(interval["low"], interval["high"]),
        ))  # fmt: skip
    head = ("estimator", "this model", comparison["name"], "difference", interval_name(level))
    listed = table("Both models on the same rows", head, rows, "below 0 the other model is better")
    return [listed, _scores([comparison["first"], comparison["second"]])]
