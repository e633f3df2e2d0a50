"""Decompositions of scores of quantiles and expectiles by model-diagnostics, on four data sets.

``python -m tests.support.functional_peers FILE`` writes what
`tests/estimators/test_functional_decompositions.py` compares with, where model-diagnostics 1.5 is
installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).with_name("functional_peers.json")
LAWS = ("normal", "heavy", "counts", "rounded")
LEVELS = (0.1, 0.5, 0.75)
PARTS = ("miscalibration", "discrimination", "uncertainty", "score")


def rows(law: str, n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, outcomes and weights of a data set (n,)."""
    rng = np.random.default_rng([len(law), 17])
    mean = rng.gamma(3.0, 1.0, n)
    weights = rng.uniform(0.5, 2.0, n)
    if law == "normal":
        return 1.2 * mean - 0.3, mean + rng.normal(size=n), weights
    if law == "heavy":
        return mean, mean * rng.pareto(1.5, n), weights
    if law == "counts":
        return np.round(mean, 1), rng.poisson(mean).astype(float), weights
    return np.round(mean**1.2), np.round(mean + rng.normal(size=n), 1), weights


def peers(law: str) -> dict[str, dict[str, list[float]]]:
    """Parts of the score of each functional.  Weights are supported for expectiles alone."""
    from model_diagnostics.scoring import PinballLoss, decompose

    x, y, weights = rows(law)

    def asymmetric_loss(y_obs, y_pred, weights=None):
        factors = np.where(y_obs <= y_pred, 1.0 - level, level)
        return np.average(factors * (y_obs - y_pred) ** 2, weights=weights)

    values = {}
    for level in LEVELS:
        quantile = decompose(y, x, scoring_function=PinballLoss(level=level))
        expectiles = decompose(
            y, x, weights, scoring_function=asymmetric_loss, functional="expectile", level=level
        )
        for name, frame in (("quantile", quantile), ("expectile", expectiles)):
            row = frame.row(0, named=True)
            values[f"{name}(level={level})"] = [row[part] for part in PARTS]
    return values


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({law: peers(law) for law in LAWS}, indent=1) + "\n")
