"""Measures from the histogram of the score in nights: days, groups, windows and their tests."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.ledger import Ledger
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
    rows = cs.evaluate(source_of([0, 1]), NAMES, group_by="region")
    merged = result["windows"][1]
    found = {e["estimator"]: e for e in merged["results"]}
    for expected in rows:
        estimate = found[expected.estimator]
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
    for one, other in zip(merged["tests"], tested.results, strict=True):
        assert one["replicates"] == 39
        # 39 draws: four standard errors of their share are at most 0.33
        assert one["p_value"] == pytest.approx(other.p_value, abs=0.33)
    assert np.isfinite([e["value"] for e in merged["results"]]).all()
