"""Stores that several tests of the command line read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from calibscale import LogitStore
from tests.support.command_store import ROWS, api


@pytest.fixture(scope="session")
def numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    z = 2 * rng.normal(size=(ROWS, 4))
    y = np.where(rng.random(ROWS) < 0.7, z.argmax(1), rng.integers(-1, 4, ROWS))
    site = rng.integers(0, 3, ROWS).astype(float)
    return {"logits": z, "labels": y, "covariates": np.column_stack([site, rng.random(ROWS)])}


@pytest.fixture(scope="session")
def store(tmp_path_factory, numbers) -> Path:
    path = tmp_path_factory.mktemp("cli") / "day.zarr"
    created = LogitStore.create(
        path,
        classes=4,
        dtype=np.float64,
        covariate_names=["site", "age"],
        class_names=["a", "b", "c", "d"],
        provenance={"model": "m7", "nested": {"x": [1, 2]}},
    )
    with created.writer() as writer:
        writer.append(numbers["logits"], numbers["labels"], covariates=numbers["covariates"])
    return path


@pytest.fixture(scope="session")
def binary(tmp_path_factory) -> Path:
    rng = np.random.default_rng(12)
    p = rng.random(ROWS)
    path = tmp_path_factory.mktemp("cli") / "binary.zarr"
    created = LogitStore.create(path, classes=2, kind="probabilities", binary=True, weights=True)
    with created.writer() as writer:
        writer.append(p, (rng.random(ROWS) < p).astype(int), weights=rng.random(ROWS))
    return path


@pytest.fixture(scope="session")
def spoiled(tmp_path_factory, numbers) -> Path:
    """Store with NaN in row 17 and the label 9 in row 2000."""
    z, y = numbers["logits"].copy(), np.maximum(numbers["labels"], 0)
    z[17], y[2000] = np.nan, 3
    path = tmp_path_factory.mktemp("cli") / "spoiled.zarr"
    created = LogitStore.create(path, classes=4)
    with created.writer() as writer:
        writer.append(z, y)
    zarr.open_group(path, mode="r+")["labels"][2000] = 9
    return path


@pytest.fixture(scope="session")
def everything(store) -> dict[str, dict]:
    """Estimates of the Python API for the store, with default settings, by estimator."""
    return {estimate["estimator"]: estimate for estimate in api(store)}
