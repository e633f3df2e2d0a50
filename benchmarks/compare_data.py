"""Data of the benchmark `compare`: overconfident predictions, drawn into files once per size."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPREAD = 2.0  # standard deviation of logits: few probabilities are below 10⁻⁷, see `log_loss`
TEMPERATURE = 1.3  # of the labels, so that predictions are overconfident
WARM_ROWS = 1000
_CHUNK_NUMBERS = 4_000_000


class Data(NamedTuple):
    """Probabilities (n, K), float32 as models give them, and labels (n,), int64."""

    p: NDArray[np.float32]
    labels: NDArray[np.int64]

    @property
    def head(self) -> Data:
        return Data(self.p[:WARM_ROWS], self.labels[:WARM_ROWS])


def size_in_bytes(rows: int, classes: int) -> int:
    """Bytes of the probabilities, and of the logits that they were."""
    return rows * classes * np.dtype(np.float32).itemsize


def cell_folder(folder: Path, rows: int, classes: int) -> Path:
    return folder / f"compare-{rows}x{classes}"


def store_of(folder: str | Path) -> str:
    return str(Path(folder) / "store.zarr")


def write(folder: Path, rows: int, classes: int) -> Path:
    """Draw the data of a size into arrays and a store, once, and return their folder."""
    cell = cell_folder(folder, rows, classes)
    complete = cell / "complete"
    if not complete.exists():
        cell.mkdir(parents=True, exist_ok=True)
        _write_arrays(cell, rows, classes)
        _write_store(cell)
        complete.touch()
    return cell


def load(folder: str) -> Data:
    return Data(np.load(Path(folder) / "p.npy"), np.load(Path(folder) / "labels.npy"))


def has_all_classes(cell: Path) -> bool:
    """Whether every class is the label of a row."""
    labels = np.load(cell / "labels.npy", mmap_mode="r")
    classes = np.load(cell / "p.npy", mmap_mode="r").shape[1]
    return bool(np.all(np.bincount(labels, minlength=classes) > 0))


def _write_arrays(cell: Path, rows: int, classes: int) -> None:
    rng = np.random.default_rng([rows, classes])
    p = np.lib.format.open_memmap(cell / "p.npy", "w+", np.float32, (rows, classes))
    labels = np.lib.format.open_memmap(cell / "labels.npy", "w+", np.int64, (rows,))
    chunk = max(1, _CHUNK_NUMBERS // classes)
    for start in range(0, rows, chunk):
        part = slice(start, min(start + chunk, rows))
        logits = SPREAD * rng.standard_normal((part.stop - start, classes), dtype=np.float32)
        p[part] = _softmax(logits)
        cumulative = _softmax(logits / np.float32(TEMPERATURE)).cumsum(axis=1)
        u = rng.random((len(logits), 1)) * cumulative[:, -1:]
        labels[part] = (cumulative < u).sum(axis=1)
    p.flush()
    labels.flush()


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _write_store(cell: Path) -> None:
    import calibscale

    p = np.load(cell / "p.npy", mmap_mode="r")
    labels = np.load(cell / "labels.npy", mmap_mode="r")
    rows, classes = p.shape
    store = calibscale.LogitStore.create(
        store_of(cell), classes=classes, kind="probabilities", overwrite=True
    )
    chunk = max(1, _CHUNK_NUMBERS // classes)
    with store.writer() as writer:
        for start in range(0, rows, chunk):
            writer.append(p[start : start + chunk], labels[start : start + chunk])
