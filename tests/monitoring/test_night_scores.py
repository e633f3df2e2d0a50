"""Measures from the histogram of the score in nights: days, groups, windows and their tests."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.windows import window
from calibscale.monitoring.night import night
from tests.support.ten_nights import day_name, source_of, write_day, write_job

NAMES = [
    "ecce_mad",
    "ecce_range",
    "corp",
    "murphy",
    "ici",
    "cox_slope",
    "spiegelhalter",
    "atb",
    "atb_debiased",
    "aurc",
]
TESTED = ["ecce_mad", "ecce_range", "corp", "murphy", "ici", "atb"]
JOB = f"""
estimators = {NAMES}
group_by = "region"
windows = ["day", "2d"]
[source]
path = "days/{{date}}.zarr"
[test]
statistics = {TESTED}
replicates = 39
keep = true
"""


@pytest.mark.long
def test_windows__have_values_groups_and_tests_of_the_rows(tmp_path):
    job = write_job(tmp_path, JOB)
    for k in (0, 1):
        write_day(tmp_path, k)
        result = night(job, day_name(k)).to_dict()
    rows = cs.evaluate(source_of([0, 1]), NAMES, group_by="region", floor=False)
    merged = result["windows"][1]
    by_name = {e["estimator"]: e for e in merged["results"]}
    for expected in rows:
        estimate = by_name[expected.estimator]
        error = estimate["approximation"]["error"]
        assert abs(estimate["value"] - expected.value) <= error + 1e-12
    assert [test["statistic"] for test in merged["tests"]] == [n for n in NAMES if n in TESTED]
    ledger = Ledger.open(tmp_path / "ledger")
    for group, estimates in rows.groups.items():
        part = window(ledger, day_name(0), day_name(1), group=group)
        for estimate, expected in zip(part.estimates, estimates, strict=True):
            assert abs(estimate.value - expected.value) <= estimate.approximation.error + 1e-12
    # p-values of drawn labels of the same rows, by other draws
    tested = cs.calibration_test(source_of([0, 1]), TESTED, n_replicates=399)
    for test, reference in zip(merged["tests"], tested.results, strict=True):
        assert test["replicates"] == 39
        # 39 draws: four standard errors of their share are at most 0.33
        assert test["p_value"] == pytest.approx(reference.p_value, abs=0.33)
    assert np.isfinite([e["value"] for e in merged["results"]]).all()


@pytest.mark.long
def test_results__have_noise_floors(tmp_path):
    names = ["ece", "tce2(edges='equal-mass')", "corp", "ckce(bandwidth=0.4)", "tce2_debiased"]
    text = f"estimators = {names}\nwindows = ['day', '2d']\n[source]\npath = 'days/{{date}}.zarr'\n"
    outputs = "[outputs]\nprometheus = 'night.prom'\nhistory = 'history.csv'\n"
    job = write_job(tmp_path, text + outputs)
    for k in (0, 1):
        write_day(tmp_path, k)
        result = night(job, day_name(k)).to_dict()
    day, two_days = result["windows"]
    expected = cs.evaluate(source_of([1]), names)
    for estimate, of_rows in zip(day["results"], expected, strict=True):
        if of_rows.estimator == "corp":  # of cells, not of scores; 199 draws
            assert estimate["floor"]["high"] == pytest.approx(of_rows.floor.high, rel=0.05)
        else:
            # the same draws; sums of chunks of other sizes are rounded in other ways on some CPUs
            floor = of_rows.floor and pytest.approx(of_rows.floor.to_dict(), rel=1e-12)
            assert estimate.get("floor") == floor
    assert day["reliability"]["floor"]["high"] == pytest.approx(
        expected["ece"].floor.high, rel=0.01
    )
    for estimate, of_rows in zip(
        two_days["results"], cs.evaluate(source_of([0, 1]), names), strict=True
    ):
        if of_rows.estimator == "ckce":  # the sample of rows is that of a day
            assert estimate.get("floor") is None
        elif of_rows.floor is not None:
            # windows take predictions of a bin as equal, which adds up to 1 % to the noise
            error = 0.05 if of_rows.estimator == "corp" else 0.02
            assert estimate["floor"]["high"] == pytest.approx(of_rows.floor.high, rel=error)
    high = two_days["results"][0]["floor"]["high"]
    assert f'window="2d"}} {high!r}' in (tmp_path / "night.prom").read_text()
    assert two_days["results"][4].get("floor") is None
