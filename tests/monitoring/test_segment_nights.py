"""Nights with the multicalibration error: states that add, thresholds and tests on segments."""

from __future__ import annotations

import math

import numpy as np
import pytest

import calibscale as cs
from calibscale.estimators.multicalibration import Multicalibration
from calibscale.inference.e_process import log_e_value
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.night import night
from tests.support.ten_nights import write_job

JOB = """
ledger = "ledger"
estimators = [{ name = "multicalibration", covariates = ["a", "b"] }]
windows = ["day", "7d"]
[source]
path = "{date}.zarr"
[test]
statistics = ["multicalibration"]
replicates = 99
[alarms]
tests = ["multicalibration"]
[[thresholds]]
estimator = "multicalibration"
above = 0.02
[[thresholds]]
test = "multicalibration"
below = 0.02
"""


def _rows(seed: int, shift: float):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.integers(0, 3, 4000), rng.integers(0, 4, 4000)]).astype(float)
    p = rng.beta(1, 3, 4000)
    q = np.clip(p + shift * ((x[:, 0] == 1) & (x[:, 1] == 2)), 0, 1)
    return p, (rng.random(4000) < q).astype(int), x


@pytest.mark.parametrize("replicates", [19, 99, 999])
def test_e_values__of_calibrated_models_have_a_mean_of_at_most_one(replicates):
    p = np.arange(1, replicates + 2) / (replicates + 1)  # equally likely
    mean = np.mean([math.exp(log_e_value(float(p_value))) for p_value in p])
    assert 0.7 < mean <= 1.0


@pytest.mark.parametrize(
    ("alarms", "message"),
    [
        ('tests = ["ece"]', "alarms.tests.*not among the statistics of"),
        ('tests = ["multicalibration"]\ntolerance = 0.02', "tests have no tolerance"),
    ],
)
def test_job__with_impossible_alarms_is_refused(tmp_path, alarms, message):
    text = JOB.replace('tests = ["multicalibration"]', alarms)
    with pytest.raises(cs.OptionError, match=message):
        read_job(write_job(tmp_path, text))


@pytest.mark.long
def test_nights__add_segments_and_breach_thresholds(tmp_path):
    job = write_job(tmp_path, JOB)
    days = {"2026-11-18": _rows(0, 0.0), "2026-11-19": _rows(1, 0.3)}
    results = []
    for day, (p, y, x) in days.items():
        store = cs.LogitStore.create(
            tmp_path / f"{day}.zarr",
            classes=2,
            kind="probabilities",
            binary=True,
            covariate_names=["a", "b"],
        )
        with store.writer() as writer:
            writer.append(p, y, covariates=x)
        results.append(night(job, day).to_dict())
    breached = [[t["breached"] for t in result["thresholds"]] for result in results]
    assert breached == [[False, False], [True, True]]
    processes = [result["alarms"]["processes"] for result in results]
    assert [[p["notion"] for p in listed] for listed in processes] == 2 * [
        ["positive", "multicalibration"]
    ]
    evidence = processes[1][1]["log_evidence"]
    p_values = [result["windows"][0]["tests"][0]["p_value"] for result in results]
    first, second = (math.exp(log_e_value(p)) for p in p_values)
    # E = Σ_s w_s Π_{r ≥ s} e_r + the share of bets of later nights, w_s = 1/((s + 1)(s + 2))
    assert math.exp(evidence[0]) == pytest.approx(first / 2 + 1 / 2, rel=1e-12)
    assert math.exp(evidence[1]) == pytest.approx(
        first * second / 2 + second / 6 + 1 / 3, rel=1e-12
    )
    joined = [np.concatenate(parts) for parts in zip(*days.values(), strict=True)]
    source = cs.from_arrays(
        probabilities=joined[0],
        labels=joined[1],
        binary=True,
        covariates=joined[2],
        covariate_names=["a", "b"],
    )
    exact = cs.evaluate(source, [Multicalibration(("a", "b"))])["multicalibration"]
    (week,) = results[1]["windows"][1]["results"]
    assert abs(week["value"] - exact.value) <= week["approximation"]["error"]
