"""Coverage in nights: its expectation over windows, and its test by default."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.night import night
from tests.support.ten_nights import write_job

JOB = """
ledger = "ledger"
estimators = ["crps", "coverage"]
windows = ["day", "7d"]
[source]
path = "{date}.zarr"
format = "store"
[test]
replicates = 49
keep = true
"""
DAYS = ("2026-11-18", "2026-11-19")


def _members(k, m):
    """Calibrated ensembles of a day with the first m members alone, and outcomes."""
    x = np.random.default_rng(k).normal(size=(300, 10))
    members = x[:, :9].copy()
    members[:, m:] = np.nan
    return members, x[:, 9]


@pytest.mark.long
def test_night__has_the_expectation_of_coverage_in_windows(tmp_path):
    job = write_job(tmp_path, JOB)
    for k, (day, m) in enumerate(zip(DAYS, (5, 8), strict=True)):
        path = tmp_path / f"{day}.zarr"
        store = cs.LogitStore.create(path, forecast="ensemble", columns=9)
        with store.writer() as writer:
            writer.append(*_members(k, m))
        result = night(job, day)
    (today, week) = (window["results"][1] for window in result.to_dict()["windows"])
    assert today["details"]["expected"] == pytest.approx(7 / 9)
    assert week["details"] == {"level": 0.9, "expected": pytest.approx((4 / 6 + 7 / 9) / 2)}
    text = " ".join(cs.as_text(result).split())
    assert f"coverage of 90 %: {100 * week['value']:.1f} % (expected 72.2 %)" in text
    (test,) = result.to_dict()["windows"][1]["tests"]
    assert test["statistic"] == "coverage"
    assert test["value"] == pytest.approx(abs(week["value"] - week["details"]["expected"]))
    assert test["p_value"] > 0.02
