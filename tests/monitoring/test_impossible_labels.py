"""Labels of probability 0 in a night: they raise an alarm that says why."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from calibscale.monitoring.ledger.alarms import evidence
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night
from tests.support.named_days import JOB, columns_of, day_name, write_columns, write_job
from tests.support.ten_nights import invoke

pytestmark = pytest.mark.long

WHOLE = JOB.replace('group_by = "region"\n', "")
OUTPUTS = """[outputs]
json = 'out/{date}.json'
junit = 'out/junit.xml'
prometheus = 'out/metrics.prom'
report = 'out/report.html'
"""


def _write_day(folder, k, rows=(), p=0.0):
    """Day with the prediction p and the other label in `rows`."""
    columns = columns_of(k)
    for row in rows:
        columns["p"][row], columns["y"][row] = p, int(p < 0.5)
    write_columns(folder / "days" / f"{day_name(k)}.parquet", columns)
    return columns


def test_impossible_labels__raise_an_alarm_with_row_day_and_group(tmp_path):  # S2, V4
    job = write_job(tmp_path, JOB + OUTPUTS)
    for k in range(3):
        # three rows of the second day
        _write_day(tmp_path, k, (5, 6, 7) if k == 1 else ())
    assert "Fine: " in invoke("nightly", job, "--date", day_name(0)).stdout
    second = invoke("nightly", job, "--date", day_name(1))
    assert second.exit_code == 3
    text = " ".join(second.stdout.split())
    written = json.loads((tmp_path / f"out/{day_name(1)}.json").read_text())
    assert written["impossible"] == {"count": 3, "first_row": 5}
    alarms = written["alarms"]
    regions = columns_of(1)["region"]
    assert written["status"] == "breached"
    assert (alarms["alarm"], alarms["since"]) == (True, day_name(1))
    # JSON has no infinity
    assert alarms["log_evidence"][-1] is None
    assert alarms["log_evidence"][0] is not None
    # the first row of each region among the three
    expected = {
        region: {
            "day": day_name(1),
            "group": region,
            "count": regions[5:8].count(region),
            "first_row": 5 + regions[5:8].index(region),
        }
        for region in dict.fromkeys(regions[5:8])
    }
    for process in alarms["processes"]:
        assert process["impossible"] == expected.get(process["group"])
        assert process["alarm"] == (process["group"] in expected)
        assert (process["log_evidence"][-1] is None) == (process["group"] in expected)
    assert alarms["impossible"] == expected[regions[5]]
    assert (
        f"Alarm: a label for region = {regions[5]} on 2 Nov 2026 has the predicted probability 0 "
        "(row 5), which refutes calibration. "
    ) in text
    assert (
        f"E is infinite, as 2 labels for region = {regions[6]} on 2 Nov 2026 have the predicted "
        "probability 0 (first in row 6), which refutes calibration."
    ) in text
    junit = ET.parse(tmp_path / "out/junit.xml").getroot()
    (failure,) = junit.iter("failure")
    assert "the log evidence is inf" in failure.text
    assert "E is infinite" in failure.text
    assert "calibscale_log_evidence_overall{" in (tmp_path / "out/metrics.prom").read_text()
    assert "+Inf" in (tmp_path / "out/metrics.prom").read_text()
    assert "∞" in (tmp_path / "out/report.html").read_text()
    third = night(job, day_name(2))  # E stays infinite
    assert third.status == "breached"
    assert third.to_dict()["alarms"]["log_evidence"][-2:] == [None, None]
    assert "Alarm: " in str(third)


def test_impossible_labels__raise_alarms_of_all_rows_and_of_tests(tmp_path):  # S2
    text = WHOLE + "[test]\nreplicates = 19\n[alarms]\ntests = ['ece']\n"
    job = write_job(tmp_path, text)
    _write_day(tmp_path, 0, (300,), 1.0)
    alarms = night(job, day_name(0)).to_dict()["alarms"]
    assert [p["notion"] for p in alarms["processes"]] == ["positive", "ece"]
    expected = {"day": day_name(0), "group": None, "count": 1, "first_row": 300}
    assert [p["impossible"] for p in alarms["processes"]] == [expected, expected]
    assert alarms["impossible"] == expected


def test_impossible_labels__of_predictions_of_0_alarm_on_the_first_night(tmp_path):  # S2
    job = write_job(tmp_path, WHOLE)
    rng = np.random.default_rng(0)
    half = np.zeros(1500)
    p = np.concatenate([half, rng.beta(2, 3, 1500)])
    # a tenth of the predictions of 0 are events, and half of the rows have such predictions
    y = np.concatenate([rng.random(1500) < 0.1, rng.random(1500) < p[1500:]]).astype(int)
    columns = {"p": p.tolist(), "y": y.tolist(), "region": ["a"] * 3000, "age": [1.0] * 3000}
    write_columns(tmp_path / "days" / f"{day_name(0)}.parquet", columns)
    result = night(job, day_name(0))
    assert result.breached
    assert result.alarms.impossible.count == y[:1500].sum()


def test_certainty_tolerance__makes_evidence_of_certain_predictions_finite(tmp_path):
    text = WHOLE + "[alarms]\ncertainty_tolerance = 0.005\n"
    job = write_job(tmp_path, text)
    # one row of 400 is below the tolerance
    _write_day(tmp_path, 0, (5,))
    result = night(job, day_name(0))
    assert result.status == "fine"
    assert result.alarms.certainty_tolerance == 0.005
    assert result.alarms.impossible is None
    assert np.isfinite(result.alarms.log_evidence).all()
    assert "Fine: " in str(result)
    assert "1 label of the day has the predicted probability 0" in " ".join(str(result).split())
    _write_day(tmp_path, 1, range(40))  # a tenth of the rows
    assert night(job, day_name(1)).breached
    for changed in ("certainty_tolerance = 0.01", ""):
        write_job(tmp_path, text.replace("certainty_tolerance = 0.005", changed))
        with pytest.raises(Exception, match=r"alarms changed since[^$]*certainty_tolerance"):
            night(job, day_name(1))


def test_tolerance__finds_events_of_predictions_of_0(tmp_path):  # S3
    """L1 error 0.05 and tolerance 0.02: an alarm within three nights."""
    job = write_job(tmp_path, WHOLE + "[alarms]\ntolerance = 0.02\n")
    rng = np.random.default_rng(1)
    for k in range(3):
        p = np.concatenate([np.zeros(1500), rng.beta(2, 3, 1500)])
        y = np.concatenate([rng.random(1500) < 0.1, rng.random(1500) < p[1500:]]).astype(int)
        columns = {"p": p.tolist(), "y": y.tolist(), "region": ["a"] * 3000, "age": [1.0] * 3000}
        write_columns(tmp_path / "days" / f"{day_name(k)}.parquet", columns)
        result = night(job, day_name(k))
        assert result.alarms.impossible is None
    assert result.breached
    # a lower bound between the tolerance and the true error
    assert 0.02 < result.alarms.processes[0].at_least[-1] < 0.05


def test_evidence__of_groups_in_earlier_ledgers_has_the_labels_of_the_day(tmp_path):
    """Records of groups of earlier versions do not say which labels have probability 0."""
    job = write_job(tmp_path, JOB)
    for k in range(2):
        _write_day(tmp_path, k, (5,) if k else ())
        night(job, day_name(k))
    ledger = Ledger.open(tmp_path / "ledger")
    for entry in ledger.entries:
        if entry.group is not None:
            # as versions before this key wrote them
            del entry.info["impossible"]
    weights = {entry.group: 0.3 for entry in ledger.entries if entry.group is not None}
    collected = evidence(ledger, "default", day_name(0), weights, 10)
    for process in collected.processes:
        # the first day has no such labels
        assert np.isfinite(process.log_evidence[0])
        assert process.log_evidence[1] == np.inf
