"""python prepared_files.py KIND: the files that a page assumes, in the working folder."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from calibscale import LogitStore

JOB = """\
model = "v3"
estimators = ["ece", "tce2_debiased"]
windows = ["day", "7d"]

[source]
path = "predictions/{date}.zarr"
format = "store"

[[thresholds]]                  # is the error of a week beyond noise?
estimator = "tce2_debiased"
bound = "low"
window = "7d"
above = 0.01

[outputs]
json = "out/{date}.json"
report = "out/report.html"
"""


def predictions(
    rows: int, seed: int, classes: int = 10, temperature: float = 1.5
) -> dict[str, np.ndarray]:
    """Overconfident predictions, with a region: logits, labels, covariates (n, 1)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 2
    heat = np.exp(logits / temperature)
    p = heat / heat.sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((rows, 1))).sum(1).clip(max=classes - 1)
    region = rng.integers(0, 2, (rows, 1)).astype(float)
    return {"logits": logits, "labels": labels, "covariates": region}


def write_store(path: Path, arrays: dict[str, np.ndarray]) -> None:
    store = LogitStore.create(path, classes=arrays["logits"].shape[1], covariate_names=["region"])
    with store.writer() as writer:
        writer.append(arrays["logits"], arrays["labels"], covariates=arrays["covariates"])


def table() -> None:
    """Write predictions.csv: three classes by name, and a region."""
    arrays, names = predictions(4000, 0, 3), ("cat", "dog", "fox")
    p = np.exp(arrays["logits"])
    p /= p.sum(1, keepdims=True)
    with open("predictions.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*(f"p_{name}" for name in names), "animal", "region"])
        for row, label, region in zip(p, arrays["labels"], arrays["covariates"], strict=True):
            place = ("north", "south")[int(region[0])]
            lines.writerow([*row.round(5), names[label], place])


def days() -> None:
    """Write job.toml and predictions/DAY.zarr of a week."""
    Path("predictions").mkdir()
    for day in range(7, 14):
        write_store(Path(f"predictions/2026-11-{day:02d}.zarr"), predictions(800, day, 3))
    Path("job.toml").write_text(JOB)


def sets(rows: int = 2000) -> None:
    """Write sets.csv: sets of three classes with a coverage of 90 %, and the class."""
    rng = np.random.default_rng(3)
    names = np.array(["cat", "dog", "fox"])
    label = rng.integers(0, 3, rows)
    member = rng.random((rows, 3)) < 0.3
    member[np.arange(rows), label] = rng.random(rows) < 0.9
    with open("sets.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["set", "animal"])
        for row, animal in zip(member, names[label], strict=True):
            lines.writerow(["|".join(names[row]), animal])


def risks(rows: int = 40_000) -> None:
    """Write risks.csv: a risk score of a rare outcome that is too extreme, and the hospital.

    On the scale of log-odds, outcomes have 0.65 times the spread of the score, and in one of three
    hospitals they are more frequent.  The mean risk is about right.
    """
    rng = np.random.default_rng(1)
    score = rng.normal(-5, 1, rows)
    hospital = rng.integers(0, 3, rows)
    truth = -4.92 + 0.65 * (score + 5) + 0.5 * (hospital == 2)
    died = rng.random(rows) < 1 / (1 + np.exp(-truth))
    age = rng.integers(18, 95, rows)
    with open("risks.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["risk", "died", "hospital", "age"])
        for row, place in enumerate(np.array(["east", "north", "south"])[hospital]):
            risk = 1 / (1 + np.exp(-score[row]))
            lines.writerow([f"{risk:.6f}", "yes" if died[row] else "no", place, age[row]])


if __name__ == "__main__":
    {"table": table, "days": days, "risks": risks, "sets": sets}[sys.argv[1]]()
