"""Shared by all tests: where real data lie, and small random sources."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import calibscale

for _name in (
    *("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("COLUMNS", "LINES"),
):
    os.environ.pop(_name, None)  # tests read tables


def _shared(folder: str) -> Path:
    root = os.environ.get("CALIBSCALE_DATA")
    if not root:
        pytest.skip("CALIBSCALE_DATA does not name the folder of real data and golden values")
    path = Path(root) / folder
    if not path.is_dir():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(scope="session")
def data_folder() -> Path:
    return _shared("data")


@pytest.fixture(scope="session")
def golden_scores() -> dict[str, dict[str, float]]:
    return json.loads((_shared("golden") / "first_2000_rows.json").read_text())


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


@pytest.fixture
def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """400 rows of 5 classes, labels drawn from tempered predictions, a group and weights."""
    logits = rng.normal(size=(400, 5)) * 2
    heat = np.exp(logits / 2)
    p = heat / heat.sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((400, 1))).sum(1)
    return {
        "logits": logits,
        "labels": labels,
        "covariates": rng.integers(0, 3, (400, 1)).astype(float),
        "weights": rng.uniform(0.2, 3.0, 400),
    }


@pytest.fixture
def source(arrays: dict[str, np.ndarray]) -> calibscale.ArraySource:
    return calibscale.from_arrays(
        logits=arrays["logits"],
        labels=arrays["labels"],
        covariates=arrays["covariates"],
        covariate_names=["group"],
    )
