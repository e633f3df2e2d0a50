"""Reports: one HTML file about any result, whatever the names in it are."""

from __future__ import annotations

import json
import math
import re
from datetime import date, timedelta
from typing import Any

import pytest

import calibscale
from calibscale import ECE, TCE2Debiased
from calibscale.formatting import number_texts
from calibscale.output.report import report as page_of
from tests.support.html_page import Page, checked, plain
from tests.support.report_results import (
    DIAGRAM,
    HOSTILE,
    KINDS,
    as_json,
    command_results,
    night,
    rows,
)

pytestmark = pytest.mark.long


def report(*arguments: Any, **options: Any) -> str:
    """Page that is easy to search."""
    return plain(page_of(*arguments, **options))


@pytest.fixture(scope="module")
def night_page() -> str:
    """Page of the night that tests do not change."""
    return report([night()])


def _with_few_plots() -> dict[str, Any]:
    """The night without the parts whose plots take the most time."""
    result = night()
    result |= {"drift": None, "ranking": None, "selection": None, "bias": None}
    for window in result["windows"]:
        window["tests"] = []
        window["groups"] = window["groups"][:1]
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_report__of_any_result_is_a_complete_page(kind: str) -> None:
    result = command_results()[kind]
    page = checked(report([result]))
    assert page.count("h1") == 1
    # a test has no figure
    assert page.count("svg") >= 1 or kind == "test"
    assert page.count("table") >= 2
    assert "Parameters" in page.text
    for version in result["versions"].values():
        assert str(version) in page.text


def test_report__of_a_night_has_every_section(night_page: str) -> None:
    result = night()
    page = checked(night_page)
    sections = re.findall(r'<section id="r1-(\w+)"', night_page)
    assert sections == [
        *("key", "thresholds", "estimates", "reliability", "trend", "evidence", "drift"),
        *("groups", "tests", "ranking", "risk", "map", "rows", "notes", "terms", "settings"),
    ]
    assert page.count("svg") > 15
    assert result["notes"][0] in page.text
    assert "the state of 2026-10-04 (v3) is damaged" in page.text
    assert "job.source.path" in page.text


def test_report__verdict_comes_first_and_names_groups_and_start(night_page: str) -> None:
    result = night()
    assert result["status"] == "breached"
    assert result["alarms"]["since"] is not None
    breached = [t for t in result["thresholds"] if t["breached"]]
    text = Page(night_page).text
    head = text[: text.index("Key numbers")]
    assert f"{len(breached)} of {len(result['thresholds'])} thresholds breached" in head
    # the alarm begins in September or October
    assert re.search(
        r"Alarm: the model is \d+\.\d points too confident since \d+ [SO]\w\w 2026, ", head
    )
    # e-values are explained below the verdict
    assert "E =" not in head
    assert "region = 1" in head
    rows = re.findall(r"<tr>.*?</tr>", night_page)
    assert sum('class="w breached">breached<' in row for row in rows) == len(breached)


def test_report__of_an_alarm_alone_does_not_mention_breaches() -> None:
    result = _with_few_plots()
    for threshold in result["thresholds"]:
        threshold["breached"] = False
    text = checked(report([result])).text
    assert re.search(r" Alarm: [^.]+\.\d points [a-z ]+ since \d+ [SO]\w\w 2026, ", text)
    head = text[text.index(" Alarm: ") : text.index("Key numbers")]
    assert "breached" not in head
    assert "Breached" not in text


def test_report__names_how_many_days_of_a_window_are_present(night_page: str) -> None:
    result = _with_few_plots()
    assert "of 7 days" not in night_page
    week = next(w for w in result["windows"] if w["name"] == "7d")
    # as if five days of the week were missing
    week["days"] = week["days"][-2:]
    html = report([result])
    assert '<td class="w">2 of 7 days</td>' in html
    assert "Over 2 of 7 days</p>" in html


def _trend_legend(html: str) -> str:
    """Legends of the plots over days."""
    parts = re.findall(r"<section.*?</section>", html, re.DOTALL)
    (trend,) = [part for part in parts if "Trend of ece over days" in part]
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', trend, re.DOTALL)
    return "".join(legends).replace("\u00a0", " ")


def test_report__lines_of_groups_have_colours_and_names(night_page: str) -> None:  # V10
    legend = _trend_legend(night_page)
    for k in range(3):
        assert f"region = {k}" in legend
    plot = re.findall(r'aria-label="Trend of ece over days">(.*?)</svg>', night_page)[0]
    colours = set(re.findall(r"stroke: ?var\(--(group\d)\)", plot))
    assert colours == {"group1", "group2", "group3"}
    assert "groups have colours" not in night_page


def test_report__of_many_groups_colours_those_with_alarms_and_the_worst() -> None:  # V10
    result = night(groups=3)
    # no group has an alarm, so that the size of the error decides
    result["alarms"] |= {"processes": [], "alarm": False, "since": None}
    series = result["trend"]["series"][0]
    result["trend"]["series"] = [series | {"group": k} for k in (None, *range(9))]
    for window in result["windows"]:
        (estimate,) = [e for e in window["results"] if e["estimator"] == "ece"][:1]
        # the error of group k is k / 10
        window["groups"] = [
            {"group": float(k), "n": 100, "results": [estimate | {"value": k / 10}]}
            for k in range(9)
        ]
    html = report([result])
    assert (
        "6 of 9 groups have colours: those with an alarm, then those with the largest ece." in html
    )
    legend = _trend_legend(html)
    named = {int(k) for k in re.findall(r"region = (\d)", legend)}
    # six colours for the largest errors
    assert named == {8, 7, 6, 5, 4, 3}
    assert "other groups" in legend


def test_report__headings_do_not_repeat_and_approximation_errors_have_a_note(
    night_page: str,
) -> None:
    parts = re.findall(r"<section.*?</section>", night_page, re.DOTALL)
    for part in parts:
        # the heading of a section is not the caption of its table
        assert re.findall(r"<h2>(.*?)</h2>", part)[0] not in re.findall(r"<caption>(.*?)<", part)
    estimates = next(part for part in parts if "s-estimates" in part)
    assert '<th scope="col">± approx.</th>' in estimates
    assert "± approx.: numerical error of an approximation, not sampling error" in estimates


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2, "0.2"), (1234.1, "1,234"), (3.12e10, "3.1e10"), (9.97e12, "1.0e13"), (4e-6, "4.0e−6")],
)
def test_evidence__has_two_digits(value: float, text: str) -> None:
    assert number_texts.evidence(math.log(value)) == text


def test_report__difference_is_worse_model_minus_better_model(night_page: str) -> None:
    result = night()
    (difference,) = result["ranking"]["differences"]
    values = {m["model"]: m["value"] for m in result["ranking"]["models"]}
    assert values[difference["b"]] - values[difference["a"]] == pytest.approx(
        difference["difference"]
    )
    row = f'<th scope="row" class="w">{difference["b"]}</th><td class="w">{difference["a"]}</td>'
    assert row in night_page


def test_report__without_breaches_is_fine() -> None:
    result = _with_few_plots()
    for threshold in result["thresholds"]:
        threshold["breached"] = False
    result["alarms"] |= {"alarm": False, "since": None}
    result["status"] = "fine"
    text = checked(report([result])).text
    assert "Fine: none of 17 thresholds is breached and there is no alarm." in text
    assert "Breached" not in text


def test_report__missing_parts_have_no_section() -> None:
    result = night()
    # as a job without these tables writes it
    for key in ("thresholds", "notes"):
        result[key] = []
    for key in ("drift", "alarms", "ranking", "selection", "bias", "group_by", "source"):
        result[key] = None
    result |= {"trend": {"days": [], "n": [], "series": []}, "dropped": {}, "n_dropped": 0}
    for window in result["windows"]:
        window |= {"tests": [], "groups": [], "reliability": None}
    html = report([result])
    checked(html)
    sections = re.findall(r'<section id="r1-(\w+)"', html)
    assert sections == ["key", "estimates", "rows", "terms", "settings"]


def test_report__of_a_night_without_rows_is_a_page() -> None:
    result = night()
    result |= {
        "windows": [],
        "thresholds": [],
        "n": 0,
        "n_unlabelled": 0,
        "dropped": {},
        "drift": None,
        "alarms": None,
        "trend": {"days": [], "n": [], "series": []},
        "ranking": None,
        "selection": None,
        "bias": None,
        "source": None,
        "notes": ["No row could be used."],
    }
    text = checked(report([result])).text
    assert "No row could be used." in text


def test_report__missing_values_are_dashes_with_a_reason() -> None:
    result = _with_few_plots()
    for window in result["windows"]:
        window["results"][0] |= {
            "value": None,
            "interval": None,
            "root": None,
            "reason": "all rows are of one class",
        }
        # empty bins
        for b in window["reliability"]["bins"][:3]:
            b |= {"mean_p": None, "frequency": None, "interval": None, "consistency": None}
    for series in result["trend"]["series"]:
        series["values"][3] = series["low"][3] = series["high"][3] = None
    # a night without evidence
    result["alarms"]["log_evidence"][0] = None
    assert "all rows are of one class" in checked(report([result])).text


def test_report__contains_the_numbers_of_the_result() -> None:
    result = command_results()["evaluation"]
    text = Page(report([result])).text
    for estimate in result["results"]:
        # signs and trailing zeros are written in another way
        assert f"{estimate['value']:.4g}".lstrip("-").rstrip("0") in text
    tests = command_results()["tests"]["tests"]
    assert f"≤ {1 / 50:.3g}" in Page(report([command_results()["tests"]])).text or all(
        t["exceedances"] for t in tests
    )


def test_report__of_an_evaluation_begins_with_its_verdict_and_its_diagram() -> None:
    source = rows(temperature=1.6)
    estimators = [calibscale.ConfidenceGap(), TCE2Debiased(bins=8), ECE(bins=8)]
    result = as_json(calibscale.evaluate(source, estimators, interval="jackknife"))
    diagram = as_json(calibscale.reliability(source, bins=8))
    # the diagram of the evaluation is that of `reliability`
    assert result["reliability"] == {key: diagram[key] for key in (*DIAGRAM, "floor")}
    html = report([result])
    text = checked(html).text
    assert result["verdict"].startswith("Overconfident by")
    assert result["verdict"] in text[: text.index("Estimates")]
    first = re.findall(r'<svg[^>]*aria-label="([^"]*)"', html)[0]
    outside = [b["outside"] for b in diagram["bins"] if b["frequency"] is not None]
    summary = f"{sum(outside)} of {len(outside)} bins outside the band"
    assert first == f"Reliability diagram of all rows: {summary}"


def test_report__of_an_evaluation_has_the_groups_of_every_column() -> None:
    result = json.loads(json.dumps(command_results()["evaluation"]))
    result["other_groups"] = [{**result["groups"], "column": "age"}]
    html = report([result])
    checked(html)
    assert re.findall(r"<h2>Groups by (.*?)</h2>", html) == ["region", "age"]


def test_report__of_an_evaluation_without_bins_has_no_diagram() -> None:
    result = as_json(calibscale.evaluate(rows(), [calibscale.Brier()]))
    assert result["reliability"] is None
    html = report([result])
    assert "Reliability diagram" not in html
    del result["reliability"], result["verdict"]  # of an older calibscale
    assert report([result]) == html


def test_report__of_tests_has_the_verdict() -> None:
    result = json.loads(json.dumps(command_results()["tests"]))
    text = Page(report([result])).text
    assert result["verdict"] in text
    assert "not adjusted for the number of tests" in text
    del result["verdict"], result["judgement"]  # of an older calibscale
    least = min(test["p_value"] for test in result["tests"])
    assert f"The smallest p-value is {least:.3g}." in Page(report([result])).text


def test_report__scores_show_infinity_and_mark_the_smallest_p_value() -> None:
    result = json.loads(json.dumps(command_results()["audit"]))
    before = result["recalibration"][0]
    # an infinite loss is null in JSON
    before |= {"log_loss": None, "p_value": 0.02}
    before["test"] |= {"p_value": 0.02, "exceedances": 0}
    (row,) = [r for r in re.findall(r"<tr>.*?</tr>", report([result]), re.S) if ">before<" in r]
    assert all(text in row for text in (">∞<", ">≤ 0.02<", "a label had the probability 0"))
    before["test"] = None
    checked(report([result]))


def test_report__escapes_names_from_data_everywhere() -> None:
    script, math_, quotes, control, markup = HOSTILE
    result = night(days=4, groups=2, size=100, drift_from=2, names=(script, quotes, math_))
    result["notes"] = [control, markup]
    result["dropped"] = {markup: 3}
    result["thresholds"][0]["reason"] = script
    result["windows"][0]["damaged"] = [markup]
    for window in result["windows"]:
        window["results"][0]["estimator"] = script
        window["results"][1]["estimator"] = math_ + "é" * 80
        window["results"][2]["estimator"] = markup
    for i, series in enumerate(result["trend"]["series"][:3]):
        series["estimator"] = HOSTILE[i]
    for i, model in enumerate(result["ranking"]["models"]):
        model["model"] = HOSTILE[i]
    result["ranking"]["by"] = markup
    result["parameters"][script] = {math_: [quotes, {markup: control}]}
    result["versions"][quotes] = script
    page = checked(report([result], title=script))
    for name in (script, math_, quotes, markup):
        assert name in page.text
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


@pytest.mark.parametrize("kind", ["evaluation", "bias at rows", "ranking", "audit"])
def test_report__escapes_names_of_covariates_and_models(kind: str) -> None:
    script, math_, quotes, *_ = HOSTILE
    page = checked(report([command_results(script, math_, quotes)[kind]]))
    assert (quotes if kind == "ranking" else script) in page.text
    if kind in ("audit", "bias at rows"):
        assert math_ in page.text


def test_report__of_several_results_has_a_table_of_contents() -> None:
    results = [night(), *command_results().values(), command_results()["evaluation"]]
    html = report(results)
    page = checked(html)
    assert page.count("article") == len(results)
    assert "Calibration report" in page.text
    assert checked(report(results[2:4], title="Both")).text.strip().startswith("Both")


@pytest.mark.slow
def test_report__of_sixty_days_and_ten_groups_is_a_small_file() -> None:
    # the size of the file depends on days and groups, not on rows
    html = report([night(days=60, groups=10, size=60, drift_from=40)])
    checked(html)
    assert len(html.encode()) < 700_000


def test_report__draws_only_the_latest_days() -> None:
    result = _with_few_plots()
    days = [(date(2025, 1, 1) + timedelta(days=i)).isoformat() for i in range(700)]
    series = result["trend"]["series"][0]
    repeated = {key: (series[key] * 100)[:700] for key in ("values", "low", "high")}
    result["trend"] = {"days": days, "n": [100] * 700, "series": [series | repeated]}
    html = report([result])
    checked(html)
    assert days[-1] in html
    assert days[0] not in html


def test_report__shows_parts_of_days() -> None:
    result = _with_few_plots()
    days = [f"2026-11-{19 + i // 4}T{6 * (i % 4):02}" for i in range(8)]
    result["alarms"]["days"] = result["trend"]["days"] = days
    result["day"] = days[-1]
    for series in result["trend"]["series"]:
        series |= {key: series[key][:8] for key in ("values", "low", "high")}
    result["trend"]["n"] = result["trend"]["n"][:8]
    for process in (result["alarms"], *result["alarms"]["processes"]):
        process |= {"log_evidence": process["log_evidence"][:8], "since": None, "alarm": False}
    text = checked(report([result])).text
    assert "Night of 20 Nov 2026, 18" in text
    assert days[3] in text


def test_report__of_the_same_results_is_the_same_page(night_page: str) -> None:
    assert report([night()]) == night_page
