"""python examples/wandb_run.py FOLDER: log a calibration result to Weights & Biases, offline.

``wandb sync FOLDER/wandb/offline-run-*`` uploads the run. Without ``mode="offline"`` it is online.
"""

from __future__ import annotations

import sys

import numpy as np
import wandb

from calibscale import evaluate, from_arrays, reliability


def main(folder: str) -> None:
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    source = from_arrays(probabilities=p, labels=rng.random(len(p)) < p**1.3, binary=True)
    with wandb.init(project="calibration", dir=folder, mode="offline") as run:
        result = evaluate(source, ["ece", "brier"], interval=True)
        run.log(result.metrics())
        run.log({"bins": wandb.Table(dataframe=reliability(source).to_frame())})
        run.log({"reliability": wandb.Html(result._repr_html_())})
        for name, value in result.metrics().items():
            print(f"{name:>12}  {value:.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
