"""Overconfident predictions of two classes for tests of recalibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from calibscale import ArraySource, from_arrays
from calibscale.data.derived_sources import HoldOut
from calibscale.recalibration.nonparametric import LocalBias
from calibscale.recalibration.recalibrator import RecalibrationMethod

N = 3000
HALF = HoldOut(0.5, 7)
LOCAL = LocalBias(("x2",), prediction_bandwidth=0.1, covariate_bandwidth=0.4)


def method_name(method: RecalibrationMethod) -> str:
    return method.name


def overconfident_rows() -> dict[str, np.ndarray]:
    """Weighted rows of an overconfident model that does not use x2. Some labels are unknown."""
    rng = np.random.default_rng(12)
    x = rng.normal(size=(N, 2))
    z = 1.5 * x[:, 0] - 0.5
    y = (rng.random(N) < expit(x[:, 0] + x[:, 1])).astype(int)
    y = np.where(rng.random(N) < 0.1, -1, y)
    return {"z": z, "p": expit(z), "y": y, "x": x, "w": rng.uniform(0.1, 4.0, N)}


def two_class_source(rows: dict[str, np.ndarray], **changes: Any) -> ArraySource:
    arguments = {
        "probabilities": rows["p"],
        "labels": rows["y"],
        "covariates": rows["x"],
        "covariate_names": ["x1", "x2"],
        "binary": True,
        **changes,
    }
    return from_arrays(**arguments)


def probabilities(source: ArraySource) -> Any:
    """Values of all rows of a source."""
    return source.read(0, source.rows).values
