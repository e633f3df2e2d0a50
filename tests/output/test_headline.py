"""Headline of a night's report: size and direction of the error, its start, and its groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.output.documents import elements as doc
from calibscale.output.documents.articles import document
from calibscale.output.documents.night_headline import head
from calibscale.results.night_results import Night
from tests.support.partial_results import result_of

DAYS = [f"2026-11-{k:02}" for k in range(1, 15)]


def estimate(name: str, value: float, low: float, high: float, notion: str) -> dict[str, Any]:
    interval = {"low": low, "high": high, "level": 0.95}
    return {"estimator": name, "notion": notion, "value": value, "interval": interval}


def errors(gap: float, ece: float, notion: str = "top_label") -> list[dict[str, Any]]:
    return [
        estimate("confidence_gap", gap, gap - 0.01, gap + 0.01, notion),
        estimate("ece", ece, 0.0, 1.0, notion),
    ]


def bins(*gaps: tuple[float, float]) -> dict[str, Any]:
    """Reliability diagram of bins of (weight, gap)."""
    rows = [
        {
            "lower": k / 10,
            "upper": (k + 1) / 10,
            "count": 1,
            "weight": weight,
            "mean_p": 0.5 + gap,
            "frequency": 0.5,
        }
        for k, (weight, gap) in enumerate(gaps)
    ]
    return {"n": len(rows), "notion": "top_label", "ece": 0.05, "bins": rows}


def process(group: float | None, since: str | None, notion: str = "top_label") -> dict[str, Any]:
    return {
        "notion": notion,
        "group": group,
        "log_evidence": [200.0] * 14,
        "alarm": since is not None,
        "since": since,
    }


def night(
    *processes: dict[str, Any],
    results: Any = (),
    groups: Any = None,
    reliability: Any = None,
    thresholds: Any = (),
) -> Night:
    """Night after 14 days. Its windows of 1 and 7 days have these results."""
    since = min((p["since"] for p in processes if p["since"]), default=None)
    alarms = {
        "level": 0.05,
        "alarm": since is not None,
        "since": since,
        "days": DAYS,
        "log_evidence": [110.9] * 14,
        "threshold": 3.0,
        "processes": list(processes),
    }
    windows = [
        {
            "name": name,
            "days": DAYS[-days:],
            "results": [*results],
            "reliability": reliability,
            "groups": [{"group": g, "n": 50, "results": r} for g, r in (groups or {}).items()],
        }
        for name, days in (("day", 1), ("7d", 7))
    ]
    result = {
        "schema": "calibscale.nightly/1",
        "n": 100,
        "job": "scores",
        "day": DAYS[-1],
        "model": "v3",
        "status": "fine",
        "group_by": "region",
        "windows": windows,
        "thresholds": [*thresholds],
        "alarms": alarms if processes else None,
    }
    return result_of(Night, result, fresh=True)


def breach(group: float | None = None, estimator: str = "ece") -> dict[str, Any]:
    return {
        "name": "ece over 7d above 0.05",
        "window": "7d",
        "group": group,
        "breached": True,
        "estimator": estimator,
        "quantity": "low",
        "above": 0.05,
        "observed": 0.06,
    }


def test_headline__states_size_direction_day_and_groups_but_not_evidence() -> None:
    result = night(
        process(None, "2026-11-07"),
        process(1.0, "2026-11-07"),
        process(2.0, "2026-11-09"),
        results=errors(0.0721, 0.074),
    )
    state, verdict, reasons = head(result)
    assert (state, verdict) == (
        "alarm",
        "Alarm: the model is 7.2 points too confident since 7 Nov 2026, every region",
    )
    assert reasons[0].startswith("Mean prediction minus frequency: +0.0721 (95 % interval 0.0621")
    assert reasons[0].endswith("over 7 days.")
    assert "E =" not in f"{verdict} {reasons}"


def test_headline__uses_the_longest_window_since_the_alarm() -> None:
    # the window of seven days begins before the alarm
    result = night(process(None, "2026-11-10"), results=errors(0.05, 0.05))
    assert head(result).reasons[0].endswith("over the day.")


@pytest.mark.parametrize(
    ("results", "text"),
    [
        (errors(-0.031, 0.04), "the model is 3.1 points too cautious"),
        # too high in some bins, too low in others
        (errors(0.0042, 0.12), "predictions are off by 12.0 points on average"),
        # the interval includes 0
        (errors(0.004, 0.006), "predictions are off by 0.6 points on average"),
        # the alarm is for the top label
        (errors(0.02, 0.02, "positive"), "the model is not calibrated"),
        ([], "the model is not calibrated"),
    ],
)
def test_headline__states_a_direction_only_if_it_is_significant(
    results: list[dict[str, Any]], text: str
) -> None:
    verdict = head(night(process(None, "2026-11-07"), results=results)).verdict
    assert verdict == f"Alarm: {text} since 7 Nov 2026, all rows"


def test_headline__of_the_positive_class_names_predictions() -> None:
    result = night(process(None, "2026-11-07", "positive"), results=errors(0.02, 0.02, "positive"))
    assert head(result).verdict.startswith("Alarm: predictions are 2.0 points too high since")


def test_headline__without_confidence_gap_uses_the_bins() -> None:
    # (3 · 0.06 + 0.02) / 4
    result = night(process(None, "2026-11-07"), reliability=bins((3.0, 0.06), (1.0, 0.02)))
    assert head(result).verdict.startswith("Alarm: the model is 5.0 points too confident since")
    # bins with errors of both signs have no direction
    result = night(process(None, "2026-11-07"), reliability=bins((1.0, 0.06), (1.0, -0.05)))
    assert head(result).verdict.startswith(
        "Alarm: predictions are off by 5.0 points on average since"
    )


def test_headline__of_some_groups_names_only_these() -> None:
    groups = {1.0: errors(0.09, 0.09), 2.0: errors(0.05, 0.05), 3.0: errors(0.0, 0.01)}
    quiet = process(None, None), process(3.0, None)
    single = night(*quiet, process(1.0, "2026-11-07"), process(2.0, None), groups=groups)
    assert head(single).verdict == (
        "Alarm: the model is 9.0 points too confident since 7 Nov 2026, region\u00a0=\u00a01"
    )
    alarms = process(1.0, "2026-11-08"), process(2.0, "2026-11-07")
    two = night(*quiet, *alarms, groups=groups)
    assert head(two).verdict == (
        "Alarm: the model is up to 9.0 points too confident since 7 Nov 2026, "
        "region\u00a0=\u00a02 and region\u00a0=\u00a01"
    )
    # two groups with errors of different signs
    groups[2.0] = errors(-0.05, 0.05)
    assert "off by up to 9.0 points on average" in (
        head(night(*quiet, *alarms, groups=groups)).verdict
    )


def test_headline__of_breaches_states_size_window_and_groups() -> None:
    quiet, groups = process(None, None), {1.0: errors(0.09, 0.09)}
    result = night(quiet, results=errors(0.06, 0.06), groups=groups, thresholds=[breach(1.0)])
    assert head(result)[:2] == (
        "breached",
        "Breached: 1 of 1 threshold; the model is 9.0 points too confident over 7 days, "
        "region\u00a0=\u00a01",
    )
    score = night(quiet, results=errors(0.06, 0.06), thresholds=[breach(estimator="brier")])
    assert head(score).verdict == "Breached: 1 of 1 threshold"
    alarmed = night(process(None, "2026-11-07"), results=errors(0.06, 0.06), thresholds=[breach()])
    assert head(alarmed)[:2] == (
        "breached",
        "Alarm: the model is 6.0 points too confident since 7 Nov 2026, all rows; "
        "1 of 1 threshold breached",
    )
    assert (
        head(alarmed).reasons[-1]
        == "ece, lower bound over 7 days, above 0.05: 0.06000 for all rows."
    )


@pytest.mark.parametrize(
    ("estimators", "advice"),
    [
        (["crps", "coverage"], 'pass interval="jackknife" (--interval jackknife), or use check.'),
        (["crps"], "scores alone cannot be judged: use check."),
        (["crps", "pit_smooth"], "neither an interval nor a noise floor: use check."),
    ],
)
def test_headline__without_a_verdict_says_what_to_pass(estimators, advice):
    """The values alone are no answer."""
    rng = np.random.default_rng(0)
    source = cs.from_arrays(
        predictions=np.tile([0.0, 1.0], (200, 1)), forecast="normal", labels=rng.normal(size=200)
    )
    result = cs.evaluate(source, estimators)
    assert result.verdict is None
    assert advice in " ".join(str(result).split())
    judged = cs.evaluate(source, estimators, interval="jackknife")
    assert (judged.verdict is not None) == ("coverage" in estimators)


def test_headline__says_that_all_labels_are_one_class():
    """The warning is a part of the headline, not one of the reasons below it."""
    source = cs.from_arrays(probabilities=np.full(300, 0.9), labels=np.ones(300, int), binary=True)
    result = cs.evaluate(source, "ece")
    headline = document(result).verdict
    assert headline == f"{result.verdict} {result.warnings[0]}".removesuffix(".")
    assert "All 300 known labels are 1" in headline


@pytest.mark.parametrize(("level", "marked"), [(0.95, False), (0.9, True)])
def test_p_values__are_red_at_the_level_of_the_result(level, marked):
    """The same p-value is significant at one level only."""
    source = cs.from_arrays(
        probabilities=np.linspace(0.05, 0.95, 50), labels=np.arange(50) % 2, binary=True
    )
    result = cs.check(source, n_replicates=99, confidence_level=level)
    # significant at 0.1, and not at 0.05
    p_values = dict.fromkeys(result.adjusted_p_values, 0.07)
    page = document(replace(result, adjusted_p_values=p_values))
    table = next(block for block in page.sections[0].blocks if isinstance(block, doc.Table))
    column = [column.title for column in table.head].index("p-value")
    assert {row[column].state == "breached" for row in table.rows} == {marked}
