"""Results of nights: their parts are dataclasses, also of nights that are read from JSON."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from calibscale.monitoring.night import night
from calibscale.results.night_results import (
    AlarmResult,
    Night,
    ThresholdResult,
    Trend,
    WindowResult,
)
from tests.support.named_days import JOB, columns_of, day_name, write_columns, write_job
from tests.support.partial_results import result_of

# Members that are JSON objects of their own: settings, details and descriptions of sources.
FREE = {"parameters", "details", "source", "job", "extras", "dropped", "versions", "quantiles"}
MORE = """
[test]
replicates = 19
keep = true
[[thresholds]]
estimator = "ece"
above = 0.001
group = "each"
[drift]
window = "2d"
baseline = "2d"
[ranking]
models = ["default", "other"]
by = "ece"
window = "7d"
"""


def _dictionaries(value: Any, where: str) -> list[str]:
    """Places of dictionaries in a result and its parts."""
    if isinstance(value, dict):
        return [where]
    places = []
    if is_dataclass(value):
        for field in fields(value):
            if field.name not in FREE:
                places += _dictionaries(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, list | tuple):
        for item in value:
            places += _dictionaries(item, f"{where}[]")
    return places


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Results of four nights of two models, with a label of probability 0 on the last one."""
    folder = tmp_path_factory.mktemp("nights")
    text = JOB.replace("windows =", 'ledger = "ledger"\nwindows =') + MORE
    jobs = []
    for model in ("other", "default"):
        path = write_job(folder, f'model = "{model}"\n{text}')
        jobs.append(path.rename(folder / f"{model}.toml"))
    results = []
    for k in range(4):
        columns = columns_of(k)
        if k == 3:
            columns["p"][5], columns["y"][5] = 0.0, 1
        write_columns(folder / "days" / f"{day_name(k)}.parquet", columns)
        results += [night(job, day_name(k)) for job in jobs]
    return results


@pytest.mark.long
def test_night__has_no_dictionaries_in_its_parts(nights):
    for result in nights:
        assert _dictionaries(result, "night") == []
    last = nights[-1]
    assert last.drift.results
    for part in (last.drift, last.alarms, last.ranking, last.calibration, last.incomplete_days):
        assert is_dataclass(part)


@pytest.mark.long
def test_night__of_json_is_the_same(nights):
    for result in nights:
        value = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        restored = Night.from_dict(value, fresh=True)
        assert json.loads(json.dumps(restored.to_dict(), allow_nan=False)) == value
        assert _dictionaries(restored, "night") == []
        assert list(restored.records()) == list(result.records())
        assert restored.alarms == result.alarms


@pytest.mark.long
def test_alarms__of_json_are_infinite_from_the_label_of_probability_0_on(nights):
    alarms = nights[-1].alarms
    value = json.loads(json.dumps(alarms.to_dict(), allow_nan=False))
    assert value["log_evidence"][-1] is None
    restored = AlarmResult.from_dict(value)
    assert restored.log_evidence[-1] == math.inf
    assert [p.log_evidence for p in restored.processes] == [
        p.log_evidence for p in alarms.processes
    ]
    assert restored.with_infinity() == restored
    # Other missing values stay missing.
    value["impossible"] = None
    assert AlarmResult.from_dict(value).log_evidence[-1] is None


def test_trend__of_an_earlier_version_lacks_the_days_of_the_ledger():
    trend = Trend.from_dict({"days": ["2026-11-01"], "n": [3], "series": []})
    assert (trend.ledger_days, trend.first_day, trend.n) == (0, None, (3,))


@pytest.mark.parametrize(
    ("limits", "quantity", "side", "value_limits"),
    [
        ({"above": 0.0}, "value", "above", (0.0,)),
        ({"below": 0.5}, "low", "below", (0.5,)),
        ({"abs_above": 0.1}, "high", "abs_above", (0.1, -0.1)),
        ({"below": 0.01}, "p_value", "below", ()),
        ({}, "value", "abs_above", ()),
    ],
)
def test_threshold__has_a_side_and_limits(limits, quantity, side, value_limits):
    threshold = result_of(ThresholdResult, {"quantity": quantity, **limits})
    assert (threshold.side, threshold.value_limits) == (side, value_limits)
    assert threshold.limit == next(iter(limits.values()), None)


@pytest.mark.long
def test_window__has_the_estimates_of_a_group(nights):
    (day, _) = nights[-1].windows
    assert isinstance(day, WindowResult)
    first = day.groups[0]
    assert day.results_of(first.group) == first.results
    assert day.results_of(None) == day.results
    assert day.results_of("nowhere") == ()
    assert nights[-1].window("day") is day
    assert nights[-1].window("30d") is None
