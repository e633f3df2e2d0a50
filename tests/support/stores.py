"""Prediction stores to test, and their files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from calibscale import Accuracy, LogitStore

CHUNK = 64  # rows, where the fixture `small_chunks` is used

FAST = [Accuracy()]


def logits(rows: int, classes: int = 3, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, classes)).astype(dtype)


def labels(rows: int, classes: int = 3, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1, classes, rows)


def accuracy(z: np.ndarray, y: np.ndarray) -> float:
    labelled = y >= 0
    return float(np.mean(z[labelled].argmax(axis=1) == y[labelled]))


def filled(path: Any, rows: int = 200, **settings: Any) -> LogitStore:
    store = LogitStore.create(path, classes=3, **settings)
    with store.writer() as writer:
        writer.append(logits(rows), labels(rows))
    return store


def everything(path: Any) -> dict[str, np.ndarray]:
    """Columns of a store as read."""
    source = LogitStore.open(path, unfinished=True).source
    block = source.read(0, source.rows, covariates=True)
    columns = {"values": block.values, "labels": block.labels}
    if block.covariates is not None:
        columns["covariates"] = block.covariates
    if block.weights is not None:
        columns["weights"] = block.weights
    return columns


def files(path: Path) -> dict[str, bytes]:
    """Content of all files except the lock."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != ".writer.lock"
    }


def chunk_file(array: Path, number: int) -> Path:
    """File of chunk (or shard) `number` of a column."""
    tail = "/0" if len(json.loads((array / "zarr.json").read_text())["shape"]) == 2 else ""
    return array / f"c/{number}{tail}"


def python(code: str, *arguments: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in another process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **settings,
    )


def change_meta(path: Path, **changes: Any) -> None:
    """Edit the attributes of a store."""
    document = path / "zarr.json"
    content = json.loads(document.read_text())
    meta = content["attributes"]["calibscale"]
    for key, value in changes.items():
        if value is None:
            del meta[key]
        else:
            meta[key] = value
    document.write_text(json.dumps(content))


class Bomb:
    """Object that creates a folder when unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.trace,)


def write_v2(path: Path, shape: tuple, chunk: bytes, **settings: Any) -> None:
    path.mkdir(parents=True)
    described = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": shape,
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        **settings,
    }
    (path / ".zarray").write_text(json.dumps(described))
    (path / ".".join("0" * len(shape))).write_bytes(chunk)
