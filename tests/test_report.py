"""Reports: one HTML file about any result, whatever the names in it are."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from datetime import date, timedelta
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale
from calibscale import ECE, KCE, OptionError, TCE2Debiased, from_arrays
from calibscale.auditing import audit
from calibscale.bias import local_bias
from calibscale.multiplicity import holm
from calibscale.report import report, save_report, words
from tests.test_cli import run  # noqa: F401

DIAGRAM = ("notion", "level", "n", "ece", "tce2_debiased", "bins")
HOSTILE = ("<script>alert(1)</script>", "$x_1^2$", "\"&'", "a\x1b[31mb\u202ec", "</text><g id='x'>")
VOID = {"meta", "link", "br", "hr", "img", "input"}

# ---------------------------------------------------------------- results of small arrays


def rows(
    n: int = 600, seed: int = 0, temperature: float = 1.0, groups: int = 3, names: Any = None
) -> Any:
    """Rows of 4 classes whose labels are drawn from tempered predictions."""
    rng = np.random.default_rng(seed)
    logits = 1.6 * rng.normal(size=(n, 4))
    region = rng.integers(0, groups, n).astype(float)
    heat = np.where(region == 1, temperature * 1.4, temperature)[:, None]
    p = np.exp(logits / heat)
    p /= p.sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((n, 1))).sum(1)
    age = rng.uniform(20, 70, n)
    return from_arrays(
        logits=logits, labels=labels, covariates=np.column_stack([region, age]),
        covariate_names=list(names or ("region", "age")), weights=None,
    )  # fmt: skip


def _json(result: Any) -> dict[str, Any]:
    return json.loads(json.dumps(result.to_dict(), allow_nan=False))


@cache
def _results(region: str = "region", age: str = "age", model: str = "v3") -> dict[str, Any]:
    source = rows(names=(region, age), temperature=1.3)
    tempered = from_arrays(logits=source.values / 1.3, labels=source.labels)
    binary = from_arrays(
        probabilities=np.random.default_rng(1).uniform(0.1, 0.9, 300),
        labels=np.random.default_rng(2).integers(0, 2, 300),
        binary=True,
    )
    estimators = [ECE(), TCE2Debiased(), calibscale.CKCE(), KCE()]
    return {
        "evaluation": _json(
            calibscale.evaluate(source, estimators, group_by=region, interval="jackknife")
        ),
        "reliability": _json(calibscale.reliability(source, bins=10, group_by=region)),
        "test": _json(calibscale.test(source, ECE(), replicates=49)),
        "tests": _json(calibscale.test(source, [ECE(), KCE()], replicates=49)),
        "selection": _json(
            calibscale.select(source, "top_label", ["bins", "ukkr", "temperature"], nested=True)
        ),
        "bias": _json(local_bias(source, (age,), at="grid", points=15)),
        "bias at rows": _json(local_bias(source, (region, age))),
        "bias of predictions": _json(local_bias(binary, (), at="grid")),
        "ranking": _json(
            calibscale.rank(
                {model: source, "v2": tempered},
                calibscale.CKCE(), subset_size=200, trials=20,
            )
        ),
        "audit": _json(
            audit(
                source, (region, age), replicates=49, recalibrate=("temperature",),
                against=tempered,
            )
        ),
        "power": _json(
            calibscale.power(
                binary, calibscale.Bias(shift=0.1), most=2000, trials=20, replicates=19
            )
        ),
    }  # fmt: skip


# ---------------------------------------------------------------- a night of real estimates

NIGHT_ESTIMATORS = (
    ECE(), TCE2Debiased(), calibscale.CKCE(), calibscale.CWCE2(), calibscale.Brier(),
    calibscale.NLLDecomposition(),
)  # fmt: skip


@cache
def _night(
    days: int, groups: int, size: int, drift_from: int, names: tuple[str, ...]
) -> dict[str, Any]:
    """What a night after that many days could say; the predictions get too bold from one day on."""
    job, model, column = names
    dates = [(date(2026, 9, 22) + timedelta(days=i)).isoformat() for i in range(days)]
    distinct = {
        (k, bold): rows(size, seed=k, temperature=1.5 if bold else 1.0, groups=groups,
                        names=(column, "age"))
        for k in range(6) for bold in (False, True)
    }  # fmt: skip
    kinds = [(i % 6, i >= drift_from) for i in range(days)]  # days are repeated to save time
    made = [distinct[kind] for kind in kinds]

    def merged(first: int, last: int) -> Any:
        some = made[first:last]
        return from_arrays(
            logits=np.concatenate([np.asarray(s.values) for s in some]),
            labels=np.concatenate([np.asarray(s.labels) for s in some]),
            covariates=np.concatenate([np.asarray(s.covariates) for s in some]),
            covariate_names=[column, "age"],
        )

    known = {
        kind: _json(calibscale.evaluate(s, NIGHT_ESTIMATORS, group_by=column, interval="jackknife"))
        for kind, s in distinct.items()
    }
    daily = [known[kind] for kind in kinds]
    spans = {"day": days - 1, "7d": max(0, days - 7), "30d": max(0, days - 30)}
    windows = []
    for name, first in spans.items():
        source = merged(first, days)
        found = _json(
            calibscale.evaluate(source, NIGHT_ESTIMATORS, group_by=column, interval="jackknife")
        )
        diagram = _json(calibscale.reliability(source))
        tests = _json(calibscale.test(source, [ECE(), calibscale.CKCE()], replicates=19))
        windows.append({
            "name": name, "first": dates[first], "last": dates[-1], "days": dates[first:],
            "missing": ["2026-10-03"] if name == "30d" else [],
            "damaged": ["the state of 2026-10-04 (v3) is damaged"] if name == "30d" else [],
            "n": found["n"], "results": found["results"], "tests": tests["tests"],
            "groups": [
                {"group": g["value"], "n": g["n"], "results": g["results"]}
                for g in found["groups"]["values"]
            ],
            "reliability": {key: diagram[key] for key in DIAGRAM},
        })  # fmt: skip
    small = _results()
    ranked = small["ranking"]
    thresholds = _thresholds(windows)
    alarms = _alarms(made, dates, groups, column)
    breached = any(t["breached"] for t in thresholds) or alarms["alarm"]
    return {
        "schema": "calibscale.nightly/1", "job": job, "day": dates[-1], "model": model,
        "status": "breached" if breached else "fine",
        "created": "2026-11-21T02:00:00+00:00", "seconds": 12.3,
        "versions": {"calibscale": calibscale.__dict__.get("__version__", "0.1.0"), "numpy": "2"},
        "parameters": {
            "job": {"name": job, "windows": list(spans), "source": {"path": "p/{date}.zarr"}},
            "estimators": [e["parameters"] for e in windows[0]["results"]],
            "key": "0f3a",
        },
        "source": {"name": "p/2026-11-20.zarr", "kind": "logits", "rows": size, "classes": 4},
        "n": size, "n_dropped": 3, "n_unlabelled": 20,
        "dropped": {"probabilities do not sum to 1": 3}, "group_by": column,
        "windows": windows, "thresholds": thresholds, "alarms": alarms,
        "drift": _drift(windows, daily), "trend": _trend(daily, dates),
        "ranking": {
            "window": "30d", "by": ranked["estimator"], "level": 0.95,
            "models": [
                {"model": m["name"], **{k: m[k] for k in ("value", "interval", "rank",
                                                          "rank_probabilities")}}
                for m in ranked["models"]
            ],
            "differences": [
                {"a": d["better"], "b": d["worse"], "difference": d["value"],
                 "low": d["interval"]["low"], "high": d["interval"]["high"],
                 "p_value": d["p_value"], "adjusted_p_value": d["p_adjusted"]}
                for d in ranked["differences"]
            ],
        },
        "selection": small["selection"], "bias": small["bias"],
        "notes": ["The clock went back: 2026-11-19 was written after 2026-11-20."],
    }  # fmt: skip


def _thresholds(windows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    asked = (("tce2_debiased", "7d", "low", 0.01), ("ece", "day", "value", 0.3),
             ("ckce", "30d", "high", 0.4), ("ece", "7d", "value", 0.05))  # fmt: skip
    for name, over, quantity, above in asked:
        window = next(w for w in windows if w["name"] == over)
        places = [(None, window["results"])]
        places += [(g["group"], g["results"]) for g in window["groups"][:3]]
        for group, results in places:
            estimate = next(e for e in results if e["estimator"] == name)
            interval = estimate["interval"] or {}
            seen = estimate["value"] if quantity == "value" else interval.get(quantity)
            found.append({
                "name": f"{name}.{quantity} over {over} above {above}", "window": over,
                "group": group, "estimator": name, "quantity": quantity, "above": above,
                "below": None, "observed": seen, "breached": seen is not None and seen > above,
                "reason": None if seen is not None else "there is no interval",
            })  # fmt: skip
    found.append({
        "name": "p-value of ckce over day below 0.001", "window": "day", "group": None,
        "estimator": "ckce", "quantity": "p_value", "above": None, "below": 0.001,
        "observed": 0.05, "breached": False, "reason": None,
    })  # fmt: skip
    return found


def _alarms(made: list[Any], dates: list[str], groups: int, column: str) -> dict[str, Any]:
    """E-processes over the days, of all rows and of every group."""
    slope = 1 / 1.4  # the bet: less confident by that
    found = []
    for group in (None, *range(groups)):
        gains = []
        for s in made:
            keep = np.ones(s.rows, bool)
            if group is not None:
                keep = np.asarray(s.covariates)[:, 0] == group
            p = np.exp(np.asarray(s.values)[keep])
            p /= p.sum(1, keepdims=True)
            top, hit = p.max(1), p.argmax(1) == np.asarray(s.labels)[keep]
            odds, sign = np.log(top / (1 - top)), np.where(hit, -1.0, 1.0)
            bet = np.logaddexp(0, sign * odds) - np.logaddexp(0, sign * slope * odds)
            gains.append(bet.sum())
        found.append((group, np.cumsum(gains)))
    logs = np.array([log for _, log in found])
    whole = np.logaddexp.reduce(logs, axis=0) - math.log(len(logs))
    threshold, each = math.log(20), math.log(20 * len(found))

    def since(log: Any, at: float) -> str | None:
        return next((day for day, v in zip(dates, log, strict=True) if v >= at), None)

    return {
        "level": 0.05, "alarm": since(whole, threshold) is not None,
        "since": since(whole, threshold), "first_day": dates[0], "days": dates,
        "log_evidence": whole.tolist(), "threshold": threshold, "process_threshold": each,
        "processes": [
            {"notion": "top_label", "group": None if group is None else float(group),
             "log_evidence": log.tolist(), "alarm": since(log, each) is not None,
             "since": since(log, each)}
            for group, log in found
        ],
    }  # fmt: skip


def _trend(daily: list[dict[str, Any]], dates: list[str]) -> dict[str, Any]:
    series = []
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in daily:
        for e in result["results"]:
            found.setdefault((e["estimator"], e["notion"], None), []).append(e)
        for g in result["groups"]["values"]:
            for e in g["results"]:
                found.setdefault((e["estimator"], e["notion"], g["value"]), []).append(e)
    for (name, notion, group), some in found.items():
        if len(some) == len(dates):
            ends = [e["interval"] or {"low": None, "high": None} for e in some]
            series.append({
                "estimator": name, "notion": notion, "group": group,
                "values": [e["value"] for e in some], "low": [i["low"] for i in ends],
                "high": [i["high"] for i in ends],
            })  # fmt: skip
    return {"days": dates, "n": [result["n"] for result in daily], "series": series}


def _drift(windows: list[dict[str, Any]], daily: list[dict[str, Any]]) -> dict[str, Any]:
    found = []
    later = next(w for w in windows if w["name"] == "7d")
    for now, then in zip(later["results"], daily[0]["results"], strict=True):
        error = math.hypot(*(e["interval"]["standard_error"] for e in (now, then)))
        difference = now["value"] - then["value"]
        found.append({
            "estimator": now["estimator"], "notion": now["notion"], "group": None,
            "difference": difference, "low": difference - 2 * error, "high": difference + 2 * error,
            "level": 0.95, "p_value": math.erfc(abs(difference) / error / math.sqrt(2)),
        })  # fmt: skip
    for one, p in zip(found, holm([one["p_value"] for one in found]), strict=True):
        one["adjusted_p_value"] = p
    baseline = {"first": "2026-09-22", "last": "2026-10-06", "n": 4500}
    return {"window": "7d", "baseline": baseline, "results": found}


def night(
    days: int = 12, groups: int = 3, size: int = 300, drift_from: int = 6,
    names: tuple[str, ...] = ("scores", "v3", "region"),
) -> dict[str, Any]:  # fmt: skip
    """A fresh copy of the result of a night."""
    return json.loads(json.dumps(_night(days, groups, size, drift_from, names)))


# ---------------------------------------------------------------- the page as a browser sees it


class Page(HTMLParser):
    """A well-formed page: what it has, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.figures: list[set[str]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attributes]
        assert len(set(names)) == len(names), f"an attribute twice: {tag} {names}"
        self.tags.append((tag, dict(attributes)))
        if tag == "figure":
            self.figures.append(set())
        if "figure" in self.open:
            self.figures[-1].add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open[-1] == tag, f"</{tag}> within {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data + " "

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def checked(html: str) -> Page:
    """The page, after what holds for every page."""
    page = Page(html)
    assert "<script" not in html.lower()
    assert not re.search(r"https?://", html)
    assert not re.search(r"url\(|@import|\bsrc=", html)
    for tag, attributes in page.tags:
        assert tag not in ("script", "iframe", "object", "embed", "img", "form", "base")
        assert not [name for name in attributes if name.startswith("on")]
        if "href" in attributes:
            assert (attributes["href"] or "").startswith(("#", "data:"))
    ids = Counter(a["id"] for _, a in page.tags if "id" in a)
    assert not [name for name, count in ids.items() if count > 1]
    targets = [a["href"] for tag, a in page.tags if tag == "a"]
    assert all(target and target[1:] in ids for target in targets)
    for figure in page.figures:
        assert figure >= {"svg", "figcaption", "details", "table"}
    assert page.count("figure") == page.count("svg")
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
    assert "nan" not in re.findall(r"[\w.]+", page.text.lower())
    assert "None" not in re.findall(r"\w+", page.text)
    return page


KINDS = (
    "evaluation", "reliability", "test", "tests", "selection", "bias", "bias at rows",
    "bias of predictions", "ranking", "audit", "power",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_report__is_one_whole_page_of_any_result(kind: str) -> None:
    result = _results()[kind]
    page = checked(report([result]))
    assert page.count("h1") == 1
    assert page.count("svg") >= 1 or kind == "test"
    assert page.count("table") >= 2
    assert "Parameters" in page.text
    for version in result["versions"].values():
        assert str(version) in page.text


def test_report__a_night_has_every_section() -> None:
    found = night()
    html = report([found])
    page = checked(html)
    sections = re.findall(r'<section id="r1-(\w+)"', html)
    assert sections == [
        *("key", "thresholds", "estimates", "reliability", "trend", "evidence", "drift"),
        *("groups", "tests", "ranking", "risk", "map", "rows", "notes", "terms", "settings"),
    ]
    assert page.count("svg") > 15
    assert found["notes"][0] in page.text
    assert "the state of 2026-10-04 (v3) is damaged" in page.text
    assert "job.source.path" in page.text


def test_report__the_verdict_comes_first_and_names_whom_and_since_when() -> None:
    found = night()
    assert found["status"] == "breached"
    assert found["alarms"]["since"] is not None
    html = report([found])
    breached = [t for t in found["thresholds"] if t["breached"]]
    text = Page(html).text
    head = text[: text.index("Key numbers")]
    assert f"Breached: {len(breached)} of {len(found['thresholds'])} thresholds" in head
    assert "alarm since" in head
    assert "region\u00a0=\u00a01" in head
    rows = re.findall(r"<tr>.*?</tr>", html)
    assert sum('class="w breached">breached<' in row for row in rows) == len(breached)


def test_report__of_an_alarm_alone_does_not_speak_of_breaches() -> None:
    found = night()
    for threshold in found["thresholds"]:
        threshold["breached"] = False
    text = checked(report([found])).text
    assert re.search(r" Alarm since \d+ [SO]\w\w 2026\.", text)
    assert "Breached" not in text


def test_report__a_window_says_how_many_of_its_days_there_are() -> None:
    found = night()
    assert "of 7 days" not in report([found])
    week = next(w for w in found["windows"] if w["name"] == "7d")
    week["days"] = week["days"][-2:]
    html = report([found])
    assert '<td class="w">2 of 7 days</td>' in html
    assert "Over 2 of 7 days</p>" in html


def test_report__names_few_groups_at_the_ends_of_their_lines() -> None:
    found = night(groups=3)
    plot = re.findall(r'aria-label="Trend of ece over days">(.*?)</svg>', report([found]))[0]
    assert {"0", "1", "2"} <= set(re.findall(r"<text[^>]*>([^<]*)<", plot))
    assert "named at its end" in report([found])
    many = [one | {"group": k} for one in found["trend"]["series"][:1] for k in (None, *range(7))]
    found["trend"]["series"] = many
    assert "named at its end" not in report([found])


def test_report__headings_are_there_once_and_the_error_has_a_note() -> None:
    html = report([night()])
    parts = re.findall(r"<section.*?</section>", html, re.DOTALL)
    for part in parts:
        assert re.findall(r"<h2>(.*?)</h2>", part)[0] not in re.findall(r"<caption>(.*?)<", part)
    estimates = next(part for part in parts if "s-estimates" in part)
    assert '<th scope="col">±</th>' in estimates
    assert "±: the error of a faster computation, not of sampling" in estimates


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.2, "0.2"), (1234.1, "1,234"), (3.12e10, "3.1e10"), (9.97e12, "1.0e13"), (4e-6, "4.0e−6")],
)
def test_evidence__has_two_digits(value: float, told: str) -> None:
    assert words.evidence(math.log(value)) == told


def test_report__a_difference_is_that_of_the_worse_model_less_the_better() -> None:
    found = night()
    (one,) = found["ranking"]["differences"]
    values = {m["model"]: m["value"] for m in found["ranking"]["models"]}
    assert values[one["b"]] - values[one["a"]] == pytest.approx(one["difference"])
    row = f'<th scope="row" class="w">{one["b"]}</th><td class="w">{one["a"]}</td>'
    assert row in report([found])


def test_report__without_breaches_it_says_so() -> None:
    found = night()
    for threshold in found["thresholds"]:
        threshold["breached"] = False
    found["alarms"] |= {"alarm": False, "since": None}
    found["status"] = "fine"
    text = checked(report([found])).text
    assert "Fine: none of 17 thresholds is breached and there is no alarm." in text
    assert "Breached" not in text


def test_report__what_is_not_there_has_no_section() -> None:
    found = night()
    for key in ("thresholds", "notes"):
        found[key] = []
    for key in ("drift", "alarms", "ranking", "selection", "bias", "group_by", "source"):
        found[key] = None
    found |= {"trend": {"days": [], "n": [], "series": []}, "dropped": {}, "n_dropped": 0}
    for window in found["windows"]:
        window |= {"tests": [], "groups": [], "reliability": None}
    html = report([found])
    checked(html)
    sections = re.findall(r'<section id="r1-(\w+)"', html)
    assert sections == ["key", "estimates", "rows", "terms", "settings"]


def test_report__a_night_without_rows_is_a_page() -> None:
    found = night()
    found |= {
        "windows": [], "thresholds": [], "n": 0, "n_unlabelled": 0, "dropped": {}, "drift": None,
        "alarms": None, "trend": {"days": [], "n": [], "series": []}, "ranking": None,
        "selection": None, "bias": None, "source": None, "notes": ["No row could be used."],
    }  # fmt: skip
    text = checked(report([found])).text
    assert "No row could be used." in text


def test_report__values_that_are_missing_are_dashes_with_their_reason() -> None:
    found = night()
    for window in found["windows"]:
        window["results"][0] |= {"value": None, "interval": None, "root": None,
                                 "reason": "all rows are of one class"}  # fmt: skip
        for b in window["reliability"]["bins"][:3]:
            b |= {"mean_p": None, "frequency": None, "interval": None, "consistency": None}
    for series in found["trend"]["series"]:
        series["values"][3] = series["low"][3] = series["high"][3] = None
    found["trend"]["n"][2] = None
    found["alarms"]["log_evidence"][0] = None
    assert "all rows are of one class" in checked(report([found])).text


def test_report__numbers_are_those_of_the_result() -> None:
    result = _results()["evaluation"]
    text = Page(report([result])).text
    for estimate in result["results"]:
        assert f"{estimate['value']:.4g}".lstrip("-").rstrip("0") in text
    tests = _results()["tests"]["tests"]
    assert f"≤ {1 / 50:.3g}" in Page(report([_results()["tests"]])).text or all(
        t["exceedances"] for t in tests
    )


def test_report__tests_that_find_something_are_cited_and_counted() -> None:
    found = json.loads(json.dumps(_results()["tests"]))
    ece, kce = found["tests"]
    ece |= {"p_value": 0.635, "exceedances": 31}
    kce |= {"p_value": 0.02, "exceedances": 0}
    text = Page(report([found])).text
    assert "Evidence of miscalibration in 1 of 2 tests: kce p ≤ 0.02." in text
    assert "not adjusted for the number of tests" in text
    kce |= {"p_value": 0.5, "exceedances": 24}
    text = Page(report([found])).text
    assert "No evidence of miscalibration in 2 tests: kce p = 0.5 and ece p = 0.635." in text


def test_report__scores_tell_infinity_and_the_least_p_value() -> None:
    found = json.loads(json.dumps(_results()["audit"]))
    before = found["recalibration"][0]
    before |= {"log_loss": None, "p_value": 0.02}
    before["test"] |= {"p_value": 0.02, "exceedances": 0}
    (row,) = [r for r in re.findall(r"<tr>.*?</tr>", report([found]), re.S) if ">before<" in r]
    assert all(told in row for told in (">∞<", ">≤ 0.02<", "a label had the probability 0"))
    del before["test"]
    checked(report([found]))


def test_report__names_from_data_are_text_everywhere() -> None:
    script, math_, quotes, control, markup = HOSTILE
    found = night(days=8, groups=2, size=200, names=(script, quotes, math_))
    found["notes"] = [control, markup]
    found["dropped"] = {markup: 3}
    found["thresholds"][0]["reason"] = script
    found["windows"][0]["damaged"] = [markup]
    for window in found["windows"]:
        window["results"][0]["estimator"] = script
        window["results"][1]["estimator"] = math_ + "é" * 80
        window["results"][2]["estimator"] = markup
    for i, series in enumerate(found["trend"]["series"][:3]):
        series["estimator"] = HOSTILE[i]
    for i, model in enumerate(found["ranking"]["models"]):
        model["model"] = HOSTILE[i]
    found["ranking"]["by"] = markup
    found["parameters"][script] = {math_: [quotes, {markup: control}]}
    found["versions"][quotes] = script
    page = checked(report([found], title=script))
    for name in (script, math_, quotes, markup):
        assert name in page.text
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


@pytest.mark.parametrize("kind", ["evaluation", "bias at rows", "ranking", "audit"])
def test_report__covariates_and_models_of_hostile_names(kind: str) -> None:
    script, math_, quotes, *_ = HOSTILE
    page = checked(report([_results(script, math_, quotes)[kind]]))
    assert (quotes if kind == "ranking" else script) in page.text
    if kind in ("audit", "bias at rows"):
        assert math_ in page.text


def test_report__several_results_are_one_page_with_a_table_of_contents() -> None:
    found = [night(), night(), *_results().values()]
    html = report(found)
    page = checked(html)
    assert page.count("article") == len(found)
    assert "Calibration report" in page.text
    assert checked(report(found[:2], title="Both")).text.strip().startswith("Both")


def test_report__sixty_days_of_ten_groups_are_a_small_file() -> None:
    html = report([night(days=60, groups=10, size=400, drift_from=40)])
    checked(html)
    assert len(html.encode()) < 700_000


def test_report__a_year_of_days_is_thinned() -> None:
    found = night()
    days = [(date(2025, 1, 1) + timedelta(days=i)).isoformat() for i in range(700)]
    one = found["trend"]["series"][0]
    repeated = {key: (one[key] * 100)[:700] for key in ("values", "low", "high")}
    found["trend"] = {"days": days, "n": [100] * 700, "series": [one | repeated]}
    html = report([found])
    checked(html)
    assert days[-1] in html
    assert days[0] not in html


def test_report__parts_of_days_have_their_place() -> None:
    found = night()
    days = [f"2026-11-{19 + i // 4}T{6 * (i % 4):02}" for i in range(8)]
    found["alarms"]["days"] = found["trend"]["days"] = days
    found["day"] = days[-1]
    for series in found["trend"]["series"]:
        series |= {key: series[key][:8] for key in ("values", "low", "high")}
    found["trend"]["n"] = found["trend"]["n"][:8]
    for one in (found["alarms"], *found["alarms"]["processes"]):
        one |= {"log_evidence": one["log_evidence"][:8], "since": None, "alarm": False}
    text = checked(report([found])).text
    assert "Night of 20 Nov 2026, 18" in text
    assert days[3] in text


def test_report__same_results_give_the_same_page() -> None:
    assert report([night()]) == report([night()])


# ---------------------------------------------------------------- what cannot be reported


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": "calibscale.nightly/2"}, "newer calibscale: upgrade"),
        ({"schema": "calibscale.plan/1"}, "there is no report of calibscale.plan/1"),
        ({"schema": "other.thing/1"}, "no schema of calibscale"),
        ({"schema": 3}, "names no schema"),
        ({"windows": {}}, "windows must be a list"),
        ({"windows": [{"n": 3}]}, "has no 'name'"),
        ({"n": "many"}, "n must be a whole number, not 'many'"),
        ({"day": "yesterday"}, "day must be a day such as 2026-11-20"),
        ({"model": None}, "model must be text"),
        ({"trend": {"days": ["2026-11-01"], "n": [1, 2], "series": []}}, "2 n for 1 days"),
        ({"alarms": {"level": 0.05, "alarm": False, "days": [], "log_evidence": [1.0]}},
         "1 log_evidence for 0 days"),
        ({"thresholds": [{"name": "x", "breached": "yes"}]}, "breached must be true or false"),
    ],
)  # fmt: skip
def test_report__what_is_malformed_is_named(change: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=re.escape(told)):
        report([night() | change])


def _short_night() -> dict[str, Any]:
    """Something of everything, quickly drawn."""
    found = night(days=3, groups=1)
    found["windows"] = found["windows"][:1]
    for key in ("results", "tests", "groups"):
        found["windows"][0][key] = found["windows"][0][key][:1]
    found["trend"]["series"] = found["trend"]["series"][:1]
    found["drift"]["results"] = found["drift"]["results"][:1]
    return found


@pytest.mark.parametrize("kind", [*KINDS, "nightly"])
def test_report__whatever_is_cut_out_gives_a_page_or_a_clear_error(kind: str) -> None:
    whole = _short_night() if kind == "nightly" else _results()[kind]
    told: list[str] = []
    for key in whole:
        for value in ("absent", -1, [{}]):
            found = {k: v for k, v in whole.items() if k != key or value != "absent"}
            if value != "absent":
                found[key] = value
            try:
                html = report([found])
            except OptionError as error:
                told.append(str(error))
            else:
                checked(html)
    assert all("result 1" in text for text in told)


def test_report__no_result_is_an_error() -> None:
    with pytest.raises(OptionError, match="needs a result"):
        report([])


def test_save_report__replaces_the_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("old")
    with pytest.raises(OptionError):
        save_report([{}], path)
    assert path.read_text() == "old"
    save_report([_results()["test"]], path)
    assert path.read_text() == report([_results()["test"]])
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]


# ---------------------------------------------------------------- the command


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A folder of nights of two models, of which one has a slash in its name."""
    folder = tmp_path / "ledger"
    for name, model in (("v3", "v3"), ("team%2Fv4", "team/v4")):
        (folder / "results" / name).mkdir(parents=True)
        for day in ("2026-11-19", "2026-11-20"):
            text = json.dumps(night() | {"model": model, "day": day})
            (folder / "results" / name / f"{day}.json").write_text(text)
    (folder / "index.json").write_text("{}")
    return folder


def test_cli_report__of_files(run: Any, tmp_path: Path) -> None:  # noqa: F811
    paths = []
    for kind in ("test", "ranking"):
        paths.append(tmp_path / f"{kind}.json")
        paths[-1].write_text(json.dumps(_results()[kind]))
    out = tmp_path / "out.html"
    ran = run("report", *paths, "-o", out, "--title", "Both")
    assert ran.code == 0
    assert checked(out.read_text()).text.strip().startswith("Both")
    assert run("report", paths[0], "-o", "-").out == report([_results()["test"]])


def test_cli_report__of_a_ledger_has_the_newest_night_of_each_model(
    run: Any, ledger: Path, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    out = tmp_path / "out.html"
    assert run("report", ledger, "-o", out).code == 0
    page = checked(out.read_text())
    assert page.count("article") == 2
    assert "Night of 19 Nov" not in page.text
    assert run("report", ledger, "-o", out, "--model", "team/v4", "--date", "2026-11-19").code == 0
    page = checked(out.read_text())
    assert page.count("article") == 1
    assert "team/v4" in page.text
    assert "Night of 19 Nov 2026" in page.text


def test_cli_report__does_not_read_the_store(ledger: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from calibscale.cli import main\n"
        f"try: main(['report', {str(ledger)!r}, '-o', {str(tmp_path / 'out.html')!r}])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'zarr', 'dask', 'numba', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("missing.json", "-o", "out.html"), 2, "missing.json: there is no such file"),
        (("text.json", "-o", "out.html"), 2, "text.json: not JSON"),
        (("list.json", "-o", "out.html"), 2, "list.json: not a result of calibscale"),
        (
            ("newer.json", "-o", "out.html"),
            2,
            "newer.json: calibscale.test/7 was written by a newer",
        ),
        (("good.json", "-o", "no/such/folder/out.html"), 2, "cannot be written"),
        (("good.json", "-o", "folder"), 2, "is a folder"),
        (("folder", "-o", "out.html"), 2, "neither a result nor a ledger"),
        (("good.json", "-o", "out.html", "--date", "2026-11-19"), 2, "choose among the nights"),
        (("good.json",), 2, "--output"),
        (("ledger", "-o", "out.html", "--model", "v9"), 2, "no night of model 'v9'; models: "),
        (("ledger", "-o", "out.html", "--date", "2026-01-01"), 2, "no night of 2026-01-01"),
    ],
)
def test_cli_report__errors_name_what_is_wrong(
    run: Any, ledger: Path, monkeypatch: Any, arguments: tuple[str, ...], code: int, told: str  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.chdir(ledger.parent)
    Path("text.json").write_text("{")
    Path("list.json").write_text("[]")
    Path("newer.json").write_text(json.dumps(_results()["test"] | {"schema": "calibscale.test/7"}))
    Path("good.json").write_text(json.dumps(_results()["test"]))
    Path("folder").mkdir()
    ran = run("report", *arguments)
    assert ran.code == code
    assert told in ran.err
    assert not Path("out.html").exists()
