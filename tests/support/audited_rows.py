"""Rows for tests of audits, and the source of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibscale import ArraySource, from_arrays

N = 1400
NAMES = ("age", "sex", "site")


def audited_rows() -> dict[str, np.ndarray]:
    """Predictions that are 0.15 too low where sex = 1, and right for all ages and sites."""
    rng = np.random.default_rng(3)
    x = np.column_stack([rng.normal(50, 10, N), rng.integers(0, 2, N), rng.integers(1, 4, N)])
    p = rng.uniform(0.1, 0.8, N)
    y = (rng.random(N) < p + 0.15 * x[:, 1]).astype(int)
    return {"p": p, "y": y, "x": x.astype(float), "w": rng.uniform(0.5, 2.0, N)}


def audited_source(data: dict[str, np.ndarray], **changes: Any) -> ArraySource:
    arguments = {
        "probabilities": data["p"],
        "labels": data["y"],
        "covariates": data["x"],
        "covariate_names": NAMES,
        "binary": True,
        **changes,
    }
    return from_arrays(**arguments)
