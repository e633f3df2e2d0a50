"""Nights of predictions of functionals: days that add, tests by random signs, and sentences."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.night import night
from tests.support.ten_nights import write_job

JOB = """
ledger = "ledger"
estimators = ["bias", "kce", "mean_score"]
windows = ["day", "7d"]
[source]
path = "{date}.zarr"
[test]
statistics = ["mean_score"]
replicates = 99
"""
DAYS = ("2026-11-18", "2026-11-19")


def _store(path, seed, factor):
    """600 rows with predicted means, whose outcomes have the mean times a factor."""
    rng = np.random.default_rng(seed)
    mean = rng.gamma(2.0, 1.0, 600)
    outcomes = factor * mean * rng.gamma(2.0, 0.5, 600)
    store = cs.LogitStore.create(path, forecast="mean")
    with store.writer() as writer:
        writer.append(mean, outcomes)
    return mean, outcomes


@pytest.mark.long
def test_nights__add_days_of_means_and_test_them(tmp_path):
    job = write_job(tmp_path, JOB)
    days = [
        _store(tmp_path / f"{day}.zarr", seed, factor)
        for seed, (day, factor) in enumerate(zip(DAYS, (1.0, 1.5), strict=True))
    ]
    calibrated, wrong = (night(job, day) for day in DAYS)
    mean, outcomes = (np.concatenate(columns) for columns in zip(*days, strict=True))
    week = {estimate.estimator: estimate for estimate in wrong.windows[1].results}
    assert week["bias"].value == pytest.approx((mean - outcomes).mean(), rel=1e-9)
    at_once = cs.evaluate(
        cs.from_arrays(predictions=mean, forecast="mean", labels=outcomes), "kce", interval=True
    )["kce"]
    # The bandwidth is that of the first day.
    assert week["kce"].value == pytest.approx(at_once.value, rel=0.2)
    day = {estimate.estimator: estimate for estimate in wrong.windows[0].results}
    # Drawn labels, which means do not have, would make the interval a hundred times as long.
    assert day["kce"].interval.high < 5 * at_once.interval.high
    p_values = [result.calibration.p_value for result in (calibrated, wrong)]
    assert p_values[0] > 0.05 > p_values[1]
    assert "the mean outcome is" in wrong.calibration.finding
