"""The same arrays in other libraries: time, extra memory, and the value.

It is also a command: ``python benchmarks/peers.py --python INTERPRETER`` measures the peers
that are installed for that interpreter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measure import NotInstalled, Report, Settings, measure
from numpy.typing import NDArray

BINS = 15
CLASSES = 10
WARM_ROWS = 1000


class Data(NamedTuple):
    """Probabilities, (n,) of class 1 or (n, K), float32 as models give them. Labels are int64."""

    p: NDArray[np.float32]
    labels: NDArray[np.int64]

    @property
    def binary(self) -> bool:
        return self.p.ndim == 1

    @property
    def head(self) -> Data:
        return Data(self.p[:WARM_ROWS], self.labels[:WARM_ROWS])


Metric = Callable[[Data], float | None]


# ---------------------------------------------------------------- the data


def draw(name: str, n: int) -> Data:
    """Labels follow the predictions exactly, or not at all."""
    rng = np.random.default_rng(0)
    kind, _, truth = name.partition(", ")
    if kind == "binary":
        p = (1.0 - rng.beta(1, 99, n)).astype(np.float32)
        chance = p.astype(np.float64) * (1.0 if truth == "calibrated" else 0.9)
        return Data(p, (rng.random(n) < chance).astype(np.int64))
    logits = 10.0 * rng.normal(size=(n, CLASSES))  # confident, as trained networks are
    p = _softmax(logits).astype(np.float32)
    chance = p.astype(np.float64) if truth == "calibrated" else _softmax(logits / 2)
    cumulative = chance.cumsum(axis=1)
    u = rng.random((n, 1)) * cumulative[:, -1:]
    return Data(p, (cumulative < u).sum(axis=1))


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


DATA = [f"{kind}, {truth}" for kind in ("binary", "10 classes") for truth in ("calibrated", "not")]


# ---------------------------------------------------------------- the libraries


def calibscale_arrays() -> tuple[Metric, str]:
    import calibscale

    def metric(data: Data) -> float:
        source = calibscale.from_arrays(
            probabilities=data.p, labels=data.labels, binary=data.binary
        )
        estimator = calibscale.ECE(BINS, notion="positive" if data.binary else "top_label")
        return calibscale.evaluate(source, [estimator])["ece"].value

    return metric, "calibscale"


def torchmetrics() -> tuple[Metric, str]:
    import torch
    from torchmetrics.functional.classification import (
        binary_calibration_error,
        multiclass_calibration_error,
    )

    def metric(data: Data) -> float:
        p, labels = torch.from_numpy(data.p), torch.from_numpy(data.labels)
        if data.binary:
            return float(binary_calibration_error(p, labels, n_bins=BINS))
        return float(multiclass_calibration_error(p, labels, CLASSES, n_bins=BINS))

    return metric, "torchmetrics"


def torchmetrics_float64() -> tuple[Metric, str]:
    metric, package = torchmetrics()
    return (lambda data: metric(Data(data.p.astype(np.float64), data.labels))), package


def netcal() -> tuple[Metric, str]:
    from netcal.metrics import ECE

    return (lambda data: float(ECE(BINS).measure(data.p, data.labels))), "netcal"


def uncertainty_calibration() -> tuple[Metric, str]:
    from calibration import get_ece

    def metric(data: Data) -> float:
        return float(get_ece(data.p, data.labels, num_bins=BINS))

    return metric, "uncertainty-calibration"


def scikit_learn() -> tuple[Metric, str]:
    from sklearn.calibration import calibration_curve

    def metric(data: Data) -> None:
        calibration_curve(data.labels, data.p, n_bins=BINS)  # means without counts: no ECE

    return metric, "scikit-learn"


PEERS = {
    "torchmetrics": "torchmetrics",
    "torchmetrics, float64 given": "torchmetrics_float64",
    "netcal": "netcal",
    "uncertainty-calibration": "uncertainty_calibration",
    "scikit-learn, curve only": "scikit_learn",
}


# ---------------------------------------------------------------- measuring


def in_memory(library: str, folder: str) -> Callable[[], Any]:
    """A library on arrays in memory before timing starts."""
    from measure import installed

    metric, package = globals()[library]()
    data = Data(np.load(Path(folder) / "p.npy"), np.load(Path(folder) / "labels.npy"))
    metric(data.head)
    return lambda: {"ece": metric(data), "version": installed(package)}


def from_store(store: str, notion: str) -> Callable[[], Any]:
    """calibscale on a store: nothing is in memory before timing starts."""
    import calibscale

    estimators = [calibscale.ECE(BINS, notion=notion)]

    def work() -> dict[str, Any]:
        result = calibscale.evaluate(store, estimators)
        return {"ece": result["ece"].value, "version": result.versions["calibscale"]}

    work()
    return work


def run(settings: Settings) -> Report:
    from exact import exact_errors

    report = Report("peers", settings)
    n = settings.rows(1_000_000)
    for number, name in enumerate(DATA):
        data = draw(name, n)
        folder = settings.folder / f"peers-{number}"
        folder.mkdir(exist_ok=True)
        np.save(folder / "p.npy", data.p)
        np.save(folder / "labels.npy", data.labels)
        if data.binary:
            exact = float(exact_errors(data.p, data.labels == 1)[0])
        else:
            exact = float(exact_errors(data.p.max(axis=1), data.p.argmax(axis=1) == data.labels)[0])
        calls = {
            "calibscale, arrays": ("peers:in_memory", "calibscale_arrays", str(folder)),
            "calibscale, store": (
                "peers:from_store",
                _store(folder / "store.zarr", data),
                "positive" if data.binary else "top_label",
            ),
            **{
                peer: ("peers:in_memory", library, str(folder))
                for peer, library in PEERS.items()
                if data.binary or library != "scikit_learn"
            },
        }
        for tool, call in calls.items():
            python = settings.peers_python if tool in PEERS else sys.executable
            row = {"data": name, "rows": n, "tool": tool, "version": None, "exact": exact}
            try:
                m = measure(*call, runs=settings.runs, python=python)
            except NotInstalled:
                report.row(**row, seconds=None, megabytes=None, ece=None)
                continue
            row["version"] = m.value["version"]
            extra = (m.peak - m.before) / 1e6
            report.row(**row, seconds=m.median, megabytes=extra, ece=m.value["ece"])
            if tool not in PEERS:
                error = abs(m.value["ece"] - exact)
                report.check(f"{name}, {tool}, error", error, 1e-12)
    return report


def _store(path: Path, data: Data) -> str:
    import calibscale

    store = calibscale.LogitStore.create(
        path,
        classes=2 if data.binary else CLASSES,
        kind="probabilities",
        binary=data.binary,
        overwrite=True,
    )
    with store.writer() as writer:
        writer.append(data.p, data.labels)
    return str(path)


if __name__ == "__main__":
    from run import main

    sys.exit(main(["peers", *sys.argv[1:]]))
