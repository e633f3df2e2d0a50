"""Thresholds of the size of signed estimates, and the warning about one-sided ones."""

from __future__ import annotations

import numpy as np
import pytest

from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.monitoring.dry_runs import dry_run
from calibscale.monitoring.job.job_consistency import Signed, one_sided
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.night import night
from tests.support.named_days import JOB, columns_of, day_name, write_columns, write_job

TABLE = "[[thresholds]]\nestimator = 'confidence_gap'\n"


def _thresholds(folder, shift, *tables):
    """Thresholds, without groups, of a day with predictions that are too high by a shift."""
    text = JOB.replace('group_by = "region"\n', "") + "".join(f"{TABLE}{t}\n" for t in tables)
    job = write_job(folder, text)
    columns = columns_of(0, rows=4000)
    columns["p"] = np.clip(np.array(columns["p"]) + shift, 0, 1).tolist()
    write_columns(folder / "days" / f"{day_name(0)}.parquet", columns)
    return night(job, day_name(0)).to_dict(), columns


@pytest.mark.long
@pytest.mark.parametrize("shift", [-0.048, 0.048])
def test_abs_above__sees_errors_of_both_signs(tmp_path, shift):  # V9
    bounds = [f"bound = '{bound}'\nabs_above = 0.01" for bound in ("value", "low", "high")]
    result, columns = _thresholds(tmp_path, shift, "above = 0.01", *bounds, "abs_above = 0.2")
    signed, *sizes, far = result["thresholds"]
    assert signed["breached"] == (shift > 0)
    assert [t["breached"] for t in sizes] == [True] * 3
    assert not far["breached"]
    gap = np.mean(columns["p"]) - np.mean(columns["y"])
    observed = [t["observed"] for t in sizes]
    assert observed[0] == pytest.approx(gap, rel=1e-9)
    assert abs(observed[1]) < abs(observed[0]) < abs(observed[2])
    assert {np.sign(value) for value in observed} == {np.sign(shift)}
    assert sizes[1]["name"] == "|confidence_gap.low| over day above 0.01"
    assert (sizes[0]["abs_above"], sizes[0]["above"]) == (0.01, None)


@pytest.mark.long
def test_abs_above__of_an_interval_with_0_observes_0(tmp_path):
    result, _ = _thresholds(tmp_path, 0.0, "bound = 'low'\nabs_above = 0.0")
    (threshold,) = result["thresholds"]
    assert (threshold["observed"], threshold["breached"]) == (0.0, False)


@pytest.mark.long
def test_one_sided_threshold__is_warned_of_in_plan_and_night(tmp_path):  # V9
    result, _ = _thresholds(tmp_path, 0.0, "above = 0.01")
    sentence = (
        "The threshold confidence_gap above 0.01 over the day does not limit errors below −0.01: "
        "abs_above = 0.01 limits both sides."
    )
    assert sentence in result["notes"]
    assert dry_run(tmp_path / "job.toml", day_name(0)).warnings == [sentence]


@pytest.mark.parametrize(
    ("tables", "count"),
    [
        (["above = 0.01"], 1),
        (["below = -0.01"], 1),
        (["above = 0.01", "below = -0.01"], 0),
        (["abs_above = 0.01"], 0),
        (["above = 0.01", "below = -0.01\nwindow = '7d'"], 2),
    ],
)
def test_warning__is_about_limits_without_a_counterpart(tmp_path, tables, count):
    job = read_job(write_job(tmp_path, JOB + "".join(f"{TABLE}{t}\n" for t in tables)))
    assert len(one_sided(job)) == count


def test_warning__is_not_about_estimates_of_one_sign(tmp_path):
    text = JOB + "[[thresholds]]\nestimator = 'ece'\nabove = 0.01\n"
    assert one_sided(read_job(write_job(tmp_path, text))) == []
    assert {name for name, kind in ESTIMATORS.items() if isinstance(kind, Signed)} == {
        "bias",
        "confidence_gap",
        "spiegelhalter",
    }
