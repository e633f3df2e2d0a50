"""Nights with the multicalibration error: states that add, thresholds and tests on segments."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.estimators.multicalibration import Multicalibration
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


@pytest.mark.long
def test_nights__add_segments_and_breach_thresholds(tmp_path):
    job = write_job(tmp_path, JOB)
    days = {"2026-11-18": _rows(0, 0.0), "2026-11-19": _rows(1, 0.3)}
    results = []
    for day, (p, y, x) in days.items():
        store = cs.LogitStore.create(
            tmp_path / f"{day}.zarr", classes=2, kind="probabilities", binary=True,
            covariate_names=["a", "b"],
        )  # fmt: skip
        with store.writer() as writer:
            writer.append(p, y, covariates=x)
        results.append(night(job, day).to_dict())
    breached = [[t["breached"] for t in result["thresholds"]] for result in results]
    assert breached == [[False, False], [True, True]]
    both = [np.concatenate(parts) for parts in zip(*days.values(), strict=True)]
    source = cs.from_arrays(
        probabilities=both[0], labels=both[1], binary=True, covariates=both[2],
        covariate_names=["a", "b"],
    )  # fmt: skip
    exact = cs.evaluate(source, [Multicalibration(("a", "b"))])["multicalibration"]
    (week,) = results[1]["windows"][1]["results"]
    assert abs(week["value"] - exact.value) <= week["approximation"]["error"]
