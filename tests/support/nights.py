"""Real nights for tests: days of predictions, and a job that judges them."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np

from calibscale.data.store import LogitStore

CLASSES = 3
FIRST = date(2026, 3, 1)


def day_name(k: int) -> str:
    return (FIRST + timedelta(k)).isoformat()


def write_day(folder: Path, k: int, rows: int = 300, heat: float = 1.0, model: str = "v1") -> None:
    """Write a store of a day. With `heat` above 1 the model is overconfident."""
    # other models have other rows
    rng = np.random.default_rng([k, len(model)])
    logits = rng.normal(size=(rows, CLASSES)) * 2
    p = np.exp(logits / heat)
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(0, CLASSES - 1)
    # labels of some rows come late
    labels[rng.random(rows) < 0.05] = -1
    covariates = np.column_stack([rng.normal(40, 10, rows), rng.integers(0, 2, rows)])
    place = folder / model / f"{day_name(k)}.zarr"
    place.parent.mkdir(parents=True, exist_ok=True)
    store = LogitStore.create(place, classes=CLASSES, covariate_names=("age", "region"))
    with store.writer() as writer:
        writer.append(logits, labels, covariates=covariates)


JOB = """
name = "scores"
model = "v1"
group_by = "region"
estimators = [
    "ece", "tce2_debiased", "brier", "cwce2",
    {name = "ckce", features = 20, bandwidth = 0.5, ridge = 0.1},
]
windows = ["day", "7d", "all"]
[source]
path = "{model}/{date}.zarr"
[test]
statistics = ["ece", "ckce"]
replicates = 39
keep = true
[[thresholds]]
estimator = "ece"
above = 0.9
[[thresholds]]
estimator = "ece"
bound = "low"
above = 0.0001
window = "7d"
group = "each"
[[thresholds]]
test = "ckce"
below = 0.05
window = "7d"
[[thresholds]]
drift = "ckce"
below = 0.01
[drift]
window = "2d"
baseline = "2020-01-01/2020-01-31"
[alarms]
notions = ["top_label", "canonical"]
[report]
map = ["age"]
risk = true
"""


def write_job(folder: Path, text: str = JOB) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path
