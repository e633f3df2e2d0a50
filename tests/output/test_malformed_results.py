"""Malformed results: errors name the faulty value, and files are not overwritten."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from calibscale import OptionError
from calibscale.output.report import report, save_report
from tests.support.html_page import checked
from tests.support.report_results import KINDS, command_results, night
from tests.support.slow_cases import some_slow

pytestmark = pytest.mark.long

ALARMS = {
    "level": 0.05,
    "alarm": False,
    "since": None,
    "first_day": "2026-11-01",
    "days": [],
    "log_evidence": [],
    "processes": [],
    "threshold": 3.0,
    "process_threshold": 3.0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "calibscale.nightly/2"}, "newer calibscale: upgrade"),
        ({"schema": "calibscale.plan/1"}, "no report can be made of calibscale.plan/1"),
        ({"schema": "other.thing/1"}, "not a schema of calibscale"),
        ({"schema": 3}, "it has no schema"),
        ({"windows": {}}, "windows must be a list"),
        ({"windows": [{"n": 3}]}, "has no 'name'"),
        ({"n": "many"}, "n must be a whole number, not 'many'"),
        ({"day": "yesterday"}, "day must be a day such as 2026-11-20"),
        ({"model": None}, "model must be text"),
        ({"trend": {"days": ["2026-11-01"], "n": [1, 2], "series": []}}, "2 n for 1 days"),
        ({"alarms": ALARMS | {"log_evidence": [1.0]}}, "1 log_evidence for 0 days"),
        ({"thresholds": [{"name": "x", "breached": "yes"}]}, "breached must be true or false"),
    ],
)
def test_report__names_the_malformed_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        report([night() | change])


def _short_night() -> dict[str, Any]:
    """Night with one item of every kind, which is drawn quickly."""
    result = night(days=3, groups=1)
    result["windows"] = result["windows"][:1]
    for key in ("results", "tests", "groups"):
        result["windows"][0][key] = result["windows"][0][key][:1]
    result["trend"]["series"] = result["trend"]["series"][:1]
    result["drift"]["results"] = result["drift"]["results"][:1]
    return result


@pytest.mark.parametrize(
    "kind", some_slow([*KINDS, "nightly"], keep=["evaluation", "ranking", "nightly"])
)
def test_report__missing_or_mistyped_keys_give_a_page_or_an_error(kind: str) -> None:
    complete = _short_night() if kind == "nightly" else command_results()[kind]
    messages: list[str] = []
    for key in complete:
        for value in ("absent", -1, [{}]):
            changed = {k: v for k, v in complete.items() if k != key or value != "absent"}
            if value != "absent":
                changed[key] = value
            try:
                html = report([changed])
            except OptionError as error:
                messages.append(str(error))
            else:
                checked(html)
    assert all("result 1" in text for text in messages)


def test_report__needs_a_result() -> None:
    with pytest.raises(OptionError, match="needs at least one result"):
        report([])


def test_save_report__replaces_the_file_atomically(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("old")
    with pytest.raises(OptionError):
        save_report([{}], path)
    assert path.read_text() == "old"
    save_report([command_results()["test"]], path)
    assert path.read_text() == report([command_results()["test"]])
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]
