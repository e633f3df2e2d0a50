"""python examples/evaluation_loop.py [STORE]: write predictions batch by batch, then evaluate them.

The model is a stand-in: an overconfident one for half of the rows, a calibrated one for the rest.
Grouping by the column that separates them shows which half is miscalibrated.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np

from calibscale import LogitStore, evaluate

BATCHES, ROWS, CLASSES = 40, 2_500, 10


def batches(rng: np.random.Generator):
    """Yield logits, labels and one covariate, like an evaluation loop."""
    for _ in range(BATCHES):
        truth = rng.normal(size=(ROWS, CLASSES)) * 2
        p = np.exp(truth) / np.exp(truth).sum(axis=1, keepdims=True)
        labels = (p.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1).clip(max=CLASSES - 1)
        sharp = rng.integers(0, 2, (ROWS, 1))
        yield truth * (1 + sharp), labels, sharp


def main(path: str) -> None:
    store = LogitStore.create(
        path, classes=CLASSES, covariate_names=["sharp"], provenance={"model": "stand-in"}
    )
    with store.writer() as writer:
        for logits, labels, sharp in batches(np.random.default_rng(0)):
            writer.append(logits, labels, covariates=sharp)

    result = evaluate(path, group_by="sharp")
    for value, estimates in result.groups.items():
        shown = {e.estimator: e.value for e in estimates}
        print(
            f"sharp = {value:g}: confidence − accuracy {shown['confidence_gap']:+.3f}, "
            f"ECE {shown['ece']:.3f}, unbiased JKCE {shown['jkce']:.2e}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"{folder}/predictions.zarr")
