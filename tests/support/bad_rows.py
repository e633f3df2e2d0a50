"""Rows to break, and the evaluation of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from calibscale import Accuracy, evaluate, from_arrays

ROWS, CLASSES, BLOCK = 700, 4, 64

REMEDY = "on_invalid='drop' (--on-invalid drop)"


def columns(kind: str = "logits", rows: int = ROWS) -> dict[str, np.ndarray]:
    """Valid rows."""
    rng = np.random.default_rng(7)
    z = rng.normal(size=(rows, CLASSES))
    if kind == "probabilities":
        z = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return {
        kind: z,
        "labels": rng.integers(0, CLASSES, rows),
        "covariates": rng.integers(0, 3, (rows, 1)).astype(float),
        "weights": rng.uniform(0.5, 2.0, rows),
    }


FAST = (Accuracy(),)


def run(data: dict[str, Any], estimators: Any = FAST, **options: Any) -> Any:
    chosen = None if estimators is None else list(estimators)
    return evaluate(from_arrays(**data), chosen, **{"block_rows": BLOCK, **options})


def assert_json_is_clean(result: Any) -> dict:
    """Check that JSON has no NaN or ∞, and a reason for each null value."""
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    everyone = list(document["results"])
    for group in document.get("groups", {}).get("values", []):
        everyone += group["results"]
    for estimate in everyone:
        assert estimate["interval"] is None
        if estimate["value"] is None or (estimate["squared"] and estimate["root"] is None):
            assert estimate["reason"], estimate["estimator"]
    return document


def spoil(data: dict[str, Any], how: str, row: int) -> None:
    """Break one row."""
    kind = "logits" if "logits" in data else "probabilities"
    q = data[kind][row]
    if how == "nan":
        q[2] = np.nan
    elif how == "all nan":
        q[:] = np.nan
    elif how == "+inf":
        q[1] = np.inf
    elif how == "-inf":
        q[3] = -np.inf
    elif how == "negative":
        q[0] = -0.25
    elif how == "sum":
        q *= 1.01
    elif how == "zeros":
        q[:] = 0.0
    elif how == "label K":
        data["labels"][row] = CLASSES
    elif how == "label -2":
        data["labels"][row] = -2
    elif how == "label huge":
        data["labels"][row] = 2**62
    elif how == "negative weight":
        data["weights"][row] = -0.5
    elif how == "nan weight":
        data["weights"][row] = np.nan
    elif how == "inf weight":
        data["weights"][row] = np.inf
    elif how == "no group":
        data["covariates"][row] = np.inf
