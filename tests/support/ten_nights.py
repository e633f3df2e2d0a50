"""A job with all kinds of tables, and the days of its ten nights."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
from click.testing import CliRunner

import calibscale as cs
from calibscale.cli import cli
from calibscale.data.arrays import from_arrays
from calibscale.monitoring.night import night

DAYS, ROWS, CLASSES = 10, 400, 4


JOB = """
model = "v1"
group_by = "region"
windows = ["day", "7d", "all"]
estimators = [
    "ece", "tce2_debiased", "brier", "jkce", {name = "ckce", features = 20},
    {name = "klce", covariates = ["age"]},
]
[source]
path = "days/{date}.zarr"
[test]
statistics = ["ckce", "klce", "tce2_debiased"]
replicates = 39
keep = true
[[thresholds]]
estimator = "ece"
above = 1.0
[[thresholds]]
estimator = "tce2_debiased"
bound = "low"
window = "7d"
above = -1.0
group = "each"
[[thresholds]]
test = "ckce"
window = "all"
below = 0.03
[[thresholds]]
drift = "ckce"
below = 1e-9
[drift]
window = "7d"
baseline = "30d"
[alarms]
notions = ["top_label", "canonical"]
[outputs]
json = "out/{date}.json"
history = "out/history.csv"
"""


FILES = """estimators = ["ece"]
[source]
path = "{date}.csv"
format = "files"
binary = true
[source.columns]
labels = "y"
probabilities = "p"
covariates = ["a", "g"]
"""


def day_name(k):
    return (date(2026, 3, 1) + timedelta(k)).isoformat()


def day_rows(k, sharper=1.0, labelled=ROWS):
    """Logits, labels, covariates of a day. The last rows may have no label yet."""
    rng = np.random.default_rng([4, k])
    # log 0 is not a logit
    truth = np.maximum(rng.dirichlet(np.full(CLASSES, 0.5), ROWS), 1e-12)
    labels = (truth.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1).clip(0, CLASSES - 1)
    x = np.column_stack([rng.integers(0, 2, ROWS), rng.normal(50, 10, ROWS)])
    # labels of the last rows come late
    labels[labelled:] = -1
    return sharper * np.log(truth), labels, x


def write_day(folder, k, **settings):
    logits, labels, x = day_rows(k, **settings)
    store = cs.LogitStore.create(
        str(folder / "days" / f"{day_name(k)}.zarr"),
        classes=CLASSES,
        dtype="float64",
        covariate_names=("region", "age"),
        overwrite=True,
    )
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x)


def source_of(days):
    logits, labels, x = (np.concatenate(c) for c in zip(*map(day_rows, days), strict=True))
    return from_arrays(
        logits=logits, labels=labels, covariates=x, covariate_names=("region", "age")
    )


def write_job(folder, text=JOB):
    (folder / "job.toml").write_text(text)
    return folder / "job.toml"


def run_again(folder, k, **settings):
    return night(folder / "job.toml", day_name(k), **settings)


def invoke(*arguments):
    """Run a command of calibscale in this process."""
    return CliRunner().invoke(cli, [str(a) for a in arguments])
