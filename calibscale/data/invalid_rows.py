"""Errors that name the first invalid row, what is wrong with it, and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data import forecasts, input_hints
from calibscale.errors import InvalidDataError
from calibscale.kernels import row_sums as kernel_rows

LOWEST, HIGHEST = 1e-100, 1e100  # of weights: sums of squares neither vanish nor overflow
DROP_REMEDY = (
    "Fix the row, or pass on_invalid='drop' (--on-invalid drop) to skip and count such rows."
)

REASONS = {
    kernel_rows.NOT_FINITE: "not_finite",
    kernel_rows.LABEL_RANGE: "label_out_of_range",
    kernel_rows.NEGATIVE: "negative_probability",
    kernel_rows.OFF_SIMPLEX: "off_simplex",
    kernel_rows.BAD_WEIGHT: "bad_weight",
    kernel_rows.NO_GROUP: "no_group",
    kernel_rows.BAD_COVARIATE: "covariate_not_finite",
    kernel_rows.NO_CLUSTER: "no_cluster",
    kernel_rows.BAD_SHARES: "labels_off_simplex",
    **forecasts.REASONS,
}


def place_of(row: int, name: str, chunk_rows: int) -> str:
    """Name of a row in messages, with its chunk if chunks have several rows."""
    chunk = f" (chunk {row // chunk_rows} of {chunk_rows} rows)" if chunk_rows > 1 else ""
    return f"row {row} of {name}{chunk}"


def invalid_row(block: Any, rules: Any, status: NDArray[Any]) -> InvalidDataError:
    """Error that names the first invalid row of a block, what is wrong, and the remedy."""
    i = int(np.argmax(status > kernel_rows.UNLABELLED))
    reason = int(status[i])
    row = block.start + i
    values = np.asarray(block.values[i], dtype=np.float64).reshape(-1)
    shared = (
        kernel_rows.BAD_WEIGHT, kernel_rows.NO_GROUP, kernel_rows.BAD_COVARIATE,
        kernel_rows.NO_CLUSTER,
    )  # fmt: skip
    if row in block.faults and reason not in shared:
        what = block.faults[row]
    elif rules.forecast is not None and reason not in shared:
        what = rules.forecast.explained(reason, values, float(block.labels[i]))
    elif reason == kernel_rows.BAD_SHARES:
        soft = np.asarray(block.labels[i], np.float64)
        what = f"its labels sum to {soft.sum():.6g}, not to 1"
        if not soft.min() >= 0:
            what = f"its labels, which are probabilities of the classes, contain {soft.min():.6g}"
        elif soft.max() == 1:
            what += f"; {input_hints.SEVERAL}"
    elif reason == kernel_rows.NOT_FINITE:
        if np.isnan(values).all():
            what = f"all its {rules.kind} are NaN (a missing chunk of a store reads like this)"
        elif rules.kind == "logits" and np.isneginf(values).all():
            what = "all its logits are −inf: at least one class must be possible"
        else:
            fine = np.isfinite(values) | (np.isneginf(values) & (rules.kind == "logits"))
            k = int(np.argmin(fine))
            what = f"its {rules.kind} contain {values[k]} (class {k})"
    elif reason == kernel_rows.LABEL_RANGE:
        what = f"its label is {block.labels[i]}, outside 0..{rules.classes - 1} (−1: not yet known"
        what += ", and a missing chunk of a store reads as −2)" if block.labels[i] == -2 else ")"
        what += input_hints.of_range(block.labels, rules.classes)
    elif reason == kernel_rows.NEGATIVE:
        what = f"it has the negative probability {values.min():.6g}"
        if len(values) == 1 and values[0] > 1:
            what = f"it has the probability {values[0]:.6g}, above 1"
        what += input_hints.of_probabilities(values, len(values) == 1)
    elif reason == kernel_rows.OFF_SIMPLEX:
        what = (
            f"its probabilities sum to {values.sum():.9g}, "
            f"further from 1 than the tolerance {rules.tolerance:g}"
        )
        sums = block.values.sum(axis=1, dtype=np.float64)[status == kernel_rows.OFF_SIMPLEX]
        what += input_hints.of_sums(sums) or input_hints.of_probabilities(values, False)
    elif reason == kernel_rows.BAD_WEIGHT:
        assert block.weights is not None
        what = f"its weight is {block.weights[i]}, neither 0 nor in {LOWEST:g}..{HIGHEST:g}"
        if np.isnan(block.weights[i]):
            what += " (a missing chunk of a store reads like this)"
    elif reason == kernel_rows.BAD_COVARIATE:
        what = "a covariate is not finite"
    elif reason == kernel_rows.NO_CLUSTER:
        what = "its cluster is empty or not finite"
    else:
        what = f"its group is {block.covariates[i, rules.group]:g}, not a finite number"
    what += "."
    if "; " not in what or 20 * np.count_nonzero(status == reason) <= len(status):
        # not if many rows have the same fault and a hint says how to fix it
        what += f" {DROP_REMEDY}"
    return InvalidDataError(f"{place_of(row, block.name, rules.chunk_rows)}: {what}", row)
