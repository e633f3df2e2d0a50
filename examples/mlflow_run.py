"""python examples/mlflow_run.py FOLDER: log a calibration result to MLflow.

Metrics, parameters and the report go to a run in the database FOLDER/mlflow.db. Look at it with
``mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlflow
import numpy as np

from calibscale import evaluate, from_arrays


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    region = np.where(rng.random(len(p)) < 0.5, "north", "south")
    y = rng.random(len(p)) < p ** np.where(region == "north", 1.0, 1.3)  # too high in the south
    source = from_arrays(
        probabilities=p, labels=y, binary=True, covariates=region, covariate_names=["region"]
    )
    result = evaluate(source, ["ece", "brier"], group_by="region", interval=True)
    result.save(folder / "calibration.html")

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    experiment = mlflow.create_experiment("calibration", f"{folder.as_uri()}/artifacts")
    with mlflow.start_run(experiment_id=experiment):
        mlflow.log_metrics(result.metrics())
        mlflow.log_param("rows", result.n)
        mlflow.log_artifact(str(folder / "calibration.html"))
    for name, value in result.metrics().items():
        print(f"{name:>25}  {value:.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
