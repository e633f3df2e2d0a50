"""Reach every kernel once, on a few rows."""

from __future__ import annotations

import numpy as np

from calibscale.estimators import ECE
from calibscale.evaluation import default_estimators, evaluate
from calibscale.source import from_arrays


def warm_up() -> None:
    """Compile (or load from the cache) every kernel of the package."""
    logits = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.0]])
    labels = np.array([1, 0, 1])
    estimators = (*default_estimators(), ECE(edges="equal-mass"))
    evaluate(from_arrays(logits=logits, labels=labels), estimators, scheduler="serial")
    halves = np.full((3, 2), 0.5)
    evaluate(from_arrays(probabilities=halves, labels=labels), estimators, scheduler="serial")
