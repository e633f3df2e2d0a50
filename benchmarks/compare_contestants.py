"""Contestants of the benchmark `compare`, which run in processes of their own.

Each function below a heading of a task imports its package and returns a metric: a function of
`Data` that returns the values of the task by name.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import compare_data
import numpy as np
from compare_data import Data
from measure import installed

BINS = 15
LAPLACE_BANDWIDTH = 0.4  # of MMCE in netcal
GAUSSIAN_BANDWIDTH = 0.5
_BLOCK_NUMBERS = 2**23  # of a block of the matrix of all pairs

Values = dict[str, float]
Metric = Callable[[Data], Values]
Tolerance = Callable[[int, int], float]  # of the numbers of rows and classes


def _rounding(rows: int, classes: int) -> float:
    return 1e-6


def _float32_sums(rows: int, classes: int) -> float:
    """Bound of the error of means of up to `rows` numbers in [0, 1] by float32 sums, n·2⁻²⁴."""
    return 1e-6 + rows * 2.0**-24


def _float32_sums_of_raised(rows: int, classes: int) -> float:
    """The same for probabilities that are raised to 10⁻⁷ and normalised again."""
    return _float32_sums(rows, classes) + 1e-7 * classes


def _one_percent(rows: int, classes: int) -> float:
    return 1e-2


@dataclass(frozen=True)
class Contestant:
    """A way to compute a task.

    Parameters
    ----------
    name : str
        Name in tables and plots.
    function : str
        Function of this module that returns the metric.
    package : str
        Distribution that has the version.
    reason : str
        Why its values differ by more than rounding from the values of the first contestant.
    tolerance : callable
        Difference that the reason explains, by the numbers of rows and classes.
    other : mapping
        Numbers of classes for which it computes another definition, which is not compared, with
        the definition in words.
    drops_missing : bool
        Whether it drops the classes that no row has as its label. Their values are not compared.
    """

    name: str
    function: str
    package: str
    reason: str = ""
    tolerance: Tolerance = _rounding
    other: Mapping[int, str] = field(default_factory=dict)
    drops_missing: bool = False

    @property
    def is_ours(self) -> bool:
        return self.package == "calibscale"

    @property
    def needs_calibscale_environment(self) -> bool:
        """Whether it runs in this interpreter. NumPy does, so that both have the same NumPy."""
        return self.package in ("calibscale", "numpy")

    @property
    def reads_store(self) -> bool:
        return self.function.endswith("_store")


@dataclass(frozen=True)
class Task:
    """A quantity, and those who compute it. The first contestant is the reference of values.

    Differences of values are relative where values are far below 1, as squared errors are.
    """

    title: str
    contestants: tuple[Contestant, ...]
    is_relative: bool = False


FLOAT32 = "sums in float32"
CLASS_1 = {2: "for two classes the error of class 1"}
TASKS = {
    "ece": Task(
        "ECE of the top label, 15 bins",
        (
            Contestant("calibscale", "calibscale_ece", "calibscale"),
            Contestant("calibscale, noise floor", "calibscale_ece_floor", "calibscale"),
            Contestant("calibscale, from disk", "calibscale_ece_store", "calibscale"),
            Contestant("NumPy", "numpy_ece", "numpy"),
            Contestant("scikit-learn", "scikit_learn_ece", "scikit-learn"),
            Contestant("torchmetrics", "torchmetrics_ece", "torchmetrics", FLOAT32, _float32_sums),
            Contestant("netcal", "netcal_ece", "netcal", other=CLASS_1),
            Contestant(
                "probmetrics",
                "probmetrics_ece",
                "probmetrics",
                "sums in float32, and probabilities raised to 10⁻⁷",
                _float32_sums_of_raised,
                CLASS_1,
                drops_missing=True,
            ),
        ),
    ),
    "smooth_ece": Task(
        "smooth ECE of the top label",
        (
            Contestant("calibscale", "calibscale_smooth_ece", "calibscale"),
            Contestant("relplot", "relplot_smooth_ece", "relplot"),
            Contestant(
                "probmetrics (relplot)", "probmetrics_smooth_ece", "probmetrics", other=CLASS_1
            ),
        ),
    ),
    "scores": Task(
        "log loss and Brier score",
        (
            Contestant("calibscale", "calibscale_scores", "calibscale"),
            Contestant("NumPy", "numpy_scores", "numpy"),
            Contestant("scikit-learn", "scikit_learn_scores", "scikit-learn"),
            Contestant("probmetrics", "probmetrics_scores", "probmetrics"),
        ),
    ),
    "recalibration": Task(
        "calibration error of the log loss: what a temperature removes",
        (
            Contestant("calibscale", "calibscale_recalibration", "calibscale"),
            Contestant(
                "probmetrics",
                "probmetrics_recalibration",
                "probmetrics",
                "mixes a share of the uniform distribution into its fit",
                _one_percent,
            ),
        ),
        is_relative=True,
    ),
    "kernel_top": Task(
        "kernel calibration error of the top label, Laplace kernel",
        (
            Contestant("calibscale", "calibscale_kernel_top", "calibscale"),
            Contestant("NumPy, all pairs", "numpy_kernel_top", "numpy"),
            Contestant("netcal MMCE", "netcal_kernel_top", "netcal"),
        ),
        is_relative=True,
    ),
    "kernel_canonical": Task(
        "kernel calibration error of all classes, Gaussian kernel",
        (
            Contestant("calibscale, all pairs", "calibscale_kernel_tiles", "calibscale"),
            Contestant("calibscale", "calibscale_kernel", "calibscale"),
            Contestant("NumPy, all pairs", "numpy_kernel", "numpy"),
            Contestant("torch, blocks of all pairs", "torch_kernel", "torch"),
        ),
        is_relative=True,
    ),
}


class Work:
    """Work of a process: it loads the data of a folder, computes the values, and unloads the data.

    Parameters
    ----------
    function : str
        Function of this module that returns the metric.
    package : str
        Distribution whose version `load` returns.
    reads_store : bool
        Whether the metric reads a store itself, so that nothing is in memory before.
    """

    def __init__(self, function: str, package: str, reads_store: bool) -> None:
        self._metric = globals()[function]()
        self._package, self._reads_store = package, reads_store
        self._has_run = False
        self._data: Any = None

    def __call__(self, step: str, folder: str = "") -> Any:
        if step == "load":
            return self._load(folder)
        if step == "unload":
            self._data = None
            return _return_memory()
        return self._metric(self._data)

    def _load(self, folder: str) -> str | None:
        if self._reads_store:
            self._data = compare_data.store_of(folder)
            if not self._has_run:
                self._metric(self._data)  # the first size is small
        else:
            self._data = compare_data.load(folder)
            self._metric(self._data.head)  # compiles what depends on the number of classes
        self._has_run = True
        _return_memory()
        return installed(self._package)


def _return_memory() -> None:
    """Give freed memory back to the system, so that it is not counted for the next size."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library keeps it


def _top(data: Data) -> tuple[Any, Any]:
    """Confidence of the predicted class in float64, and whether it is right, (n,) each."""
    predicted = data.p.argmax(axis=1)
    confidence = np.take_along_axis(data.p, predicted[:, None], axis=1)[:, 0]
    return confidence.astype(np.float64), (predicted == data.labels).astype(np.float64)


# ---------------------------------------------------------------- calibscale


def _calibscale(estimator: Any, name: str, floor: bool = False) -> Metric:
    import calibscale

    def metric(data: Data) -> Values:
        source = calibscale.from_arrays(probabilities=data.p, labels=data.labels)
        estimate = calibscale.evaluate(source, [estimator], floor=floor)[name]
        values = {name: estimate.value}
        if estimate.approximation.error:
            values["error"] = estimate.approximation.error
        return values

    return metric


def calibscale_ece() -> Metric:
    from calibscale import ECE

    return _calibscale(ECE(BINS, notion="top_label"), "ece")


def calibscale_ece_floor() -> Metric:
    from calibscale import ECE

    return _calibscale(ECE(BINS, notion="top_label"), "ece", floor=True)


def calibscale_ece_store() -> Callable[[str], Values]:
    from calibscale import ECE, evaluate

    estimator = ECE(BINS, notion="top_label")
    return lambda store: {"ece": evaluate(store, [estimator], floor=False)["ece"].value}


def calibscale_smooth_ece() -> Metric:
    from calibscale import SmoothECE

    return _calibscale(SmoothECE(notion="top_label"), "smooth_ece")


def calibscale_kernel_top() -> Metric:
    from calibscale import KCE

    kernel = {"prediction_kernel": "laplace", "prediction_bandwidth": LAPLACE_BANDWIDTH}
    return _calibscale(KCE(notion="top_label", **kernel), "kce")


def calibscale_kernel() -> Metric:
    from calibscale import KCE

    return _calibscale(KCE(notion="canonical", prediction_bandwidth=GAUSSIAN_BANDWIDTH), "kce")


def calibscale_kernel_tiles() -> Metric:
    from calibscale import KCE

    settings = {"prediction_bandwidth": GAUSSIAN_BANDWIDTH, "method": "tiles"}
    return _calibscale(KCE(notion="canonical", **settings), "kce")


def calibscale_scores() -> Metric:
    import calibscale

    def metric(data: Data) -> Values:
        source = calibscale.from_arrays(probabilities=data.p, labels=data.labels)
        result = calibscale.evaluate(source, ["nll", "brier"], floor=False)
        return {"log loss": result["nll"].value, "Brier score": result["brier"].value}

    return metric


def calibscale_recalibration() -> Metric:
    import calibscale

    def metric(data: Data) -> Values:
        source = calibscale.from_arrays(probabilities=data.p, labels=data.labels)
        fit = calibscale.recalibrate(source, "temperature", validate=False)
        return {"calibration error": fit.log_loss_before - fit.log_loss_after}

    return metric


# ---------------------------------------------------------------- binned errors


def numpy_ece() -> Metric:
    edges = np.linspace(0.0, 1.0, BINS + 1)[1:-1]

    def metric(data: Data) -> Values:
        confidence, right = _top(data)
        bins = np.searchsorted(edges, confidence)
        gaps = np.bincount(bins, confidence - right, minlength=BINS)
        return {"ece": float(np.abs(gaps).sum() / len(confidence))}

    return metric


def scikit_learn_ece() -> Metric:
    """`calibration_curve` has no counts of rows, which the ECE needs: NumPy counts them."""
    from sklearn.calibration import calibration_curve

    edges = np.linspace(0.0, 1.0, BINS + 1)[1:-1]

    def metric(data: Data) -> Values:
        confidence, right = _top(data)
        frequency, mean = calibration_curve(right, confidence, n_bins=BINS)
        counts = np.bincount(np.searchsorted(edges, confidence), minlength=BINS)
        shares = counts[counts > 0] / len(confidence)
        return {"ece": float(shares @ np.abs(frequency - mean))}

    return metric


def torchmetrics_ece() -> Metric:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    def metric(data: Data) -> Values:
        p, labels = torch.from_numpy(data.p), torch.from_numpy(data.labels)
        error = multiclass_calibration_error(p, labels, data.p.shape[1], n_bins=BINS)
        return {"ece": float(error)}

    return metric


def netcal_ece() -> Metric:
    from netcal.metrics import ECE

    return lambda data: {"ece": float(ECE(BINS).measure(data.p, data.labels))}


def _probmetrics(names: Mapping[str, str]) -> Metric:
    """Metrics of probmetrics, by their names in tables."""
    import torch
    from probmetrics.metrics import Metrics

    metrics = Metrics.from_names([*names.values()])

    def metric(data: Data) -> Values:
        p, labels = torch.from_numpy(data.p), torch.from_numpy(data.labels)
        values = metrics.compute_all_from_labels_probs(labels, p)
        return {shown: float(values[name]) for shown, name in names.items()}

    return metric


def probmetrics_ece() -> Metric:
    return _probmetrics({"ece": f"ece-{BINS}"})


# ---------------------------------------------------------------- smooth errors


def relplot_smooth_ece() -> Metric:
    from relplot import multiclass_logits_to_confidences, smECE

    def metric(data: Data) -> Values:
        confidence, right = multiclass_logits_to_confidences(data.p, data.labels, probs=True)
        return {"smooth_ece": float(smECE(confidence, right))}

    return metric


def probmetrics_smooth_ece() -> Metric:
    return _probmetrics({"smooth_ece": "smece"})


# ---------------------------------------------------------------- kernel errors


def _mean_of_pairs(matrix: Any) -> float:
    """Mean of the entries (n, n) off the diagonal."""
    n = len(matrix)
    return float((matrix.sum() - np.trace(matrix)) / (n * (n - 1)))


def _residuals(data: Data) -> Any:
    """Probabilities minus the one-hot labels, (n, K), in float64."""
    residuals = data.p.astype(np.float64)
    residuals[np.arange(len(residuals)), data.labels] -= 1.0
    return residuals


def numpy_kernel_top() -> Metric:
    """Σ_{i≠j} δ_i δ_j k(p_i, p_j) / (n(n−1)) [Kumar et al. 2018, eq. 3; Widmann et al. 2019]."""

    def metric(data: Data) -> Values:
        confidence, right = _top(data)
        residuals = confidence - right
        kernel = np.exp(-np.abs(confidence[:, None] - confidence) / LAPLACE_BANDWIDTH)
        return {"kce": _mean_of_pairs(residuals[:, None] * residuals * kernel)}

    return metric


def netcal_kernel_top() -> Metric:
    """MMCE is the root of the mean with pairs of a row with itself, which are subtracted."""
    from netcal.metrics import MMCE

    def metric(data: Data) -> Values:
        mean = float(MMCE().measure(data.p, data.labels)) ** 2
        confidence, right = _top(data)
        n = len(confidence)
        diagonal = float(np.sum((confidence - right) ** 2))
        return {"kce": (mean * n * n - diagonal) / (n * (n - 1))}

    return metric


def numpy_kernel() -> Metric:
    """Σ_{i≠j} ⟨δ_i, δ_j⟩ k(p_i, p_j) / (n(n−1)) [Widmann et al. 2019, Table 1, SKCE_uq]."""

    def metric(data: Data) -> Values:
        p, residuals = data.p.astype(np.float64), _residuals(data)
        norms = np.einsum("ij,ij->i", p, p)
        distances = norms[:, None] + norms - 2.0 * p @ p.T
        kernel = np.exp(-0.5 * distances / GAUSSIAN_BANDWIDTH**2)
        return {"kce": _mean_of_pairs(residuals @ residuals.T * kernel)}

    return metric


def torch_kernel() -> Metric:
    """The same formula for blocks of rows, whose matrices fit into memory."""
    import torch

    def metric(data: Data) -> Values:
        p, residuals = (
            torch.from_numpy(data.p.astype(np.float64)),
            torch.from_numpy(_residuals(data)),
        )
        n = len(p)
        norms = (p * p).sum(1)
        block = max(1, _BLOCK_NUMBERS // n)
        total = 0.0
        for start in range(0, n, block):
            rows = slice(start, start + block)
            distances = norms[rows, None] + norms - 2.0 * p[rows] @ p.T
            kernel = torch.exp(-0.5 * distances / GAUSSIAN_BANDWIDTH**2)
            total += float((residuals[rows] @ residuals.T * kernel).sum())
        diagonal = float((residuals * residuals).sum())
        return {"kce": (total - diagonal) / (n * (n - 1))}

    return metric


# ---------------------------------------------------------------- scores


def numpy_scores() -> Metric:
    def metric(data: Data) -> Values:
        chosen = np.take_along_axis(data.p, data.labels[:, None], axis=1)[:, 0].astype(np.float64)
        squares = np.einsum("ij,ij->i", data.p, data.p, dtype=np.float64)
        return {
            "log loss": float(-np.log(chosen).mean()),
            "Brier score": float((squares - 2.0 * chosen + 1.0).mean()),
        }

    return metric


def scikit_learn_scores() -> Metric:
    from sklearn.metrics import brier_score_loss, log_loss

    def metric(data: Data) -> Values:
        classes = np.arange(data.p.shape[1])
        return {
            "log loss": float(log_loss(data.labels, data.p, labels=classes)),
            "Brier score": float(
                brier_score_loss(
                    data.labels,
                    data.p if len(classes) > 2 else data.p[:, 1],
                    labels=classes,
                    scale_by_half=False,
                )
            ),
        }

    return metric


def probmetrics_scores() -> Metric:
    return _probmetrics({"log loss": "logloss", "Brier score": "brier"})


# ---------------------------------------------------------------- recalibration


def probmetrics_recalibration() -> Metric:
    return _probmetrics({"calibration error": "calib-err_logloss_ts-mix_all"})
