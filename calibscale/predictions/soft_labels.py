"""Labels that are probabilities of the classes: their validity, and the log loss."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.compiled import row_sums


def judged(labels: NDArray[Any], tolerance: float, status: Ints) -> Ints:
    """Status of rows with labels (c, K), from the `status` of their predictions (c,).

    A row has no label yet if its labels are all NaN.
    """
    # Labels may have a coarser type than predictions, with larger errors of their sums.
    tolerance = max(tolerance, float(np.finfo(labels.dtype).eps))
    fits = abs(labels.sum(axis=1, dtype=np.float64) - 1.0) <= tolerance
    wrong = np.where(np.isnan(labels).all(axis=1), row_sums.UNLABELLED, row_sums.BAD_SHARES)
    return np.where((status == row_sums.OK) & ~(fits & (labels >= 0).all(axis=1)), wrong, status)


def log_loss(values: NDArray[Any], kind: str, confidence: Floats, soft: Floats) -> Floats:
    """Cross entropy −Σ_k s_k log q_k of each row (c,), with 0 log 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # log q_k = z_k − max z + log(max q) for logits.
        log_q = values.astype(np.float64)
        if kind == "logits":
            log_q += np.log(confidence)[:, None] - log_q.max(axis=1, keepdims=True)
        else:
            log_q = np.log(log_q)
        return -np.where(soft > 0, soft * log_q, 0.0).sum(axis=1)
