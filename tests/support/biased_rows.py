"""Rows for tests of bias maps, and sources of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from calibscale import ArraySource, from_arrays
from calibscale.simulation import GENERATORS

N = 1500
NAMES = ("age", "dose", "sex", "site")  # two continuous covariates, one of two values, one of three


def biased_rows() -> dict[str, np.ndarray]:
    """Weighted rows with predictions that are biased by sex and dose."""
    rng = np.random.default_rng(5)
    age, dose = rng.normal(50, 10, N), rng.normal(0, 1, N)
    sex, site = rng.integers(0, 2, N), rng.integers(1, 4, N)
    x = np.column_stack([age, dose, sex, site]).astype(float)
    p = rng.random(N)
    y = (rng.random(N) < np.clip(p + 0.1 * sex + 0.1 * dose, 0, 1)).astype(int)
    return {"p": p, "y": y, "x": x, "weights": rng.uniform(0.2, 3.0, N)}


def biased_source(data: dict[str, np.ndarray], **changes: Any) -> ArraySource:
    arguments = {
        "probabilities": data["p"],
        "labels": data["y"],
        "covariates": data["x"],
        "covariate_names": NAMES,
        "weights": data["weights"],
        "binary": True,
        **changes,
    }
    return from_arrays(**arguments)


def missing_covariate(seed: int, rows: int) -> tuple[ArraySource, Any, Any, Any]:
    """Source, predictions, P(y = 1) and covariates of a model that does not use x2."""
    draw = GENERATORS["missing"].draw(seed, 0, rows)
    truth = expit(draw.log_p[:, 1] - draw.log_p[:, 0])
    q = expit(draw.logits[:, 1] - draw.logits[:, 0])
    source = from_arrays(
        logits=draw.logits,
        labels=draw.labels,
        covariates=draw.covariates,
        covariate_names=["x1", "x2"],
    )
    return source, q, truth, draw.covariates
