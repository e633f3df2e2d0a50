"""Default tests of all rows of a day."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

import calibscale as cs
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night

JOB = """
estimators = ["ece"]
windows = ["day"]
[source]
path = "{date}.csv"
format = "files"
binary = true
[source.columns]
probabilities = "p"
labels = "y"
covariates = ["unit"]
[test]
replicates = 99
"""


def _write(folder, day, slope=1.0, large=False):
    rng = np.random.default_rng(day)
    p = rng.beta(2.0, 2.0, 600)
    y = (rng.random(600) < expit(slope * logit(p))).astype(int)
    unit = np.arange(600) // 5
    if large:
        unit[:300] = 0
    lines = (f"{a!r},{b},{c}" for a, b, c in zip(p.tolist(), y, unit, strict=True))
    path = folder / f"2026-03-0{day}.csv"
    path.write_text("\n".join(["p,y,unit", *lines]) + "\n")
    return path.stem, p, y


@pytest.mark.long
def test_calibration__of_a_day_is_the_default_test(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    day, p, y = _write(tmp_path, 1, slope=0.4)
    result = night(job, day)
    null = Ledger.open(tmp_path / "ledger").recipe.null(day)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    expected = cs.calibration_test(source, null=null, n_replicates=99)
    for member, alone in zip(result.calibration.tests, expected.results, strict=True):
        assert member.test.statistic == alone.statistic
        assert member.test.value == pytest.approx(alone.value, rel=1e-9)
        assert member.test.p_value == alone.p_value
    assert result.calibration.p_value == expected.judgement.p_value == 0.01
    assert [test.statistic for test in result.windows[0].tests] == ["ece"]
    text = " ".join(str(result).split())
    assert "calibration of the day: p = 0.01" in text
    assert "predictions are too extreme" in text


@pytest.mark.long
def test_calibration__is_that_of_each_day_and_needs_tests(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    first, _, _ = _write(tmp_path, 1, slope=0.4)
    night(job, first)
    second, _, _ = _write(tmp_path, 2)
    assert night(job, second).calibration.p_value > 0.05
    (tmp_path / "other.toml").write_text(JOB.partition("[test]")[0])
    untested = night(tmp_path / "other.toml", first)
    assert untested.calibration is None
    assert "calibration of the day" not in str(untested)


def test_calibration__is_refused_beside_a_large_cluster(tmp_path):  # S9
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace('windows = ["day"]', 'windows = ["day"]\ncluster = "unit"'))
    day, _, _ = _write(tmp_path, 1, large=True)
    result = night(job, day)
    assert result.calibration.p_value is None
    assert all("one cluster has 50 %" in member.test.reason for member in result.calibration.tests)
    assert "calibration of the day" not in str(result)


def test_calibration__of_forecasts_is_of_pit_values(tmp_path):
    rng = np.random.default_rng(3)
    mean = rng.normal(size=300)
    y = mean + 1.6 * rng.normal(size=300)
    lines = (f"{m!r},1.0,{t!r}" for m, t in zip(mean.tolist(), y.tolist(), strict=True))
    (tmp_path / "2026-03-01.csv").write_text("\n".join(["m,s,y", *lines]) + "\n")
    (tmp_path / "job.toml").write_text("""
estimators = ["pit_kuiper"]
windows = ["day"]
[source]
path = "{date}.csv"
format = "files"
forecast = "normal"
[source.columns]
predictions = ["m", "s"]
labels = "y"
[test]
replicates = 19
""")
    result = night(tmp_path / "job.toml", "2026-03-01")
    assert result.calibration.p_value == 0.05
    names = [member.test.statistic for member in result.calibration.tests]
    assert names == ["normal_scores", "pit_smooth", "pit_by_forecast", "kce"]
