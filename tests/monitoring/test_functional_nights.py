"""Nights of predictions of functionals: days that add, tests by random signs, and sentences."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.dry_runs import dry_run
from calibscale.monitoring.night import night
from calibscale.statistics.null_distributions import RandomSigns
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


@pytest.mark.long
@pytest.mark.parametrize("keep", ["", "keep = true"])
def test_tests_of_a_day__are_corrected_for_skewness(tmp_path, keep):
    """Few outcomes of a lognormal law, whose correction changes each p-value."""
    job = write_job(tmp_path, JOB + keep)
    rng = np.random.default_rng(1)
    mean = rng.gamma(2.0, 1.0, 60)
    outcomes = mean * rng.lognormal(-0.5, 1.0, 60)
    store = cs.LogitStore.create(tmp_path / f"{DAYS[0]}.zarr", forecast="mean")
    with store.writer() as writer:
        writer.append(mean, outcomes)
    result = night(job, DAYS[0])
    (test,) = result.windows[0].tests
    source = cs.from_arrays(predictions=mean, forecast="mean", labels=outcomes)
    options = {"null": RandomSigns(test.seed), "n_replicates": 99}
    corrected = cs.calibration_test(source, **options)
    plain = cs.calibration_test(source, stop_after=99, **options)
    assert test.p_value == corrected["mean_score"].p_value
    of_day = {entry.test.statistic: entry.test.p_value for entry in result.calibration.tests}
    for name in ("mean_score", "smooth_test", "residual_scan"):
        assert of_day[name] == corrected[name].p_value
    changed = [of_day[name] != plain[name].p_value for name in of_day if name != "kce"]
    assert any(changed)


INTERVALS = """
ledger = "ledger"
estimators = ["coverage"]
windows = ["day", "7d"]
group_by = "region"
[source]
path = "{date}.zarr"
[test]
statistics = ["coverage"]
replicates = 39
keep = true
"""
WEEK = tuple(f"2026-11-{day}" for day in range(11, 18))


def _intervals(path, seed, factor):
    """500 intervals of 90 % of a normal law, which is wider by a factor in region 1."""
    rng = np.random.default_rng(seed)
    centre, region = rng.normal(size=500), rng.integers(0, 2, 500).astype(float)
    y = centre + np.where(region == 1, factor, 1.0) * rng.normal(size=500)
    store = cs.LogitStore.create(
        path, forecast="interval(coverage=0.9)", covariate_names=("region",)
    )
    with store.writer() as writer:
        writer.append(
            np.column_stack([centre - 1.645, centre + 1.645]), y, covariates=region[:, None]
        )
    return (np.abs(y - centre) <= 1.645), region


@pytest.mark.long
@pytest.mark.parametrize("settings", ["", "[alarms]\ntolerance = 0.03\n"])
def test_alarms__of_intervals_name_the_region_and_the_day(tmp_path, settings):
    job = write_job(tmp_path, INTERVALS + settings)
    covered = []
    for seed, day in enumerate(WEEK):
        hits, region = _intervals(tmp_path / f"{day}.zarr", seed, 1.5 if seed >= 3 else 1.0)
        covered.append((hits, region))
        result = night(job, day)
        if seed < 3:
            assert not result.alarms.alarm
    assert result.alarms.alarm
    assert result.alarms.since in WEEK[3:5]
    alarmed = [process.group for process in result.alarms.processes if process.alarm]
    assert alarmed == [1.0]
    hits, _ = map(np.concatenate, zip(*covered, strict=True))
    assert result.windows[1].results[0].value == pytest.approx(hits.mean(), rel=1e-12)
    # The replicates of seven days are added: the test of the week finds the missing coverage.
    assert result.windows[1].tests[0].p_value == pytest.approx(1 / 40)


def test_dry_run__says_that_alarms_are_of_the_claimed_event(tmp_path):
    job = write_job(tmp_path, INTERVALS)
    _intervals(tmp_path / f"{WEEK[0]}.zarr", 0, 1.0)
    assert "on: claimed event" in str(dry_run(job, WEEK[0]))


def test_night__of_another_coverage_is_refused(tmp_path):
    job = write_job(tmp_path, INTERVALS)
    _intervals(tmp_path / f"{WEEK[0]}.zarr", 0, 1.0)
    night(job, WEEK[0])
    store = cs.LogitStore.create(
        tmp_path / f"{WEEK[1]}.zarr",
        forecast="interval(coverage=0.5)",
        covariate_names=("region",),
    )
    with store.writer() as writer:
        writer.append(np.zeros((9, 2)), np.zeros(9), covariates=np.zeros((9, 1)))
    with pytest.raises(cs.InvalidDataError, match=r"coverage=0.5\), but the ledger has .*=0.9\)"):
        night(job, WEEK[1])
