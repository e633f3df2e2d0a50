"""Hints for error messages: what invalid data probably are, and the remedy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

REMEDY = "pass percent=True (--percent)"  # for probabilities in percent
ARE_PROBABILITIES = (
    "%s: every row of the logits is in 0..1 and sums to 1: are these probabilities? If so, pass "
    "them as probabilities= (ingest --probabilities NAME)"
)
SEVERAL = (
    "are these several labels per row? Pass binary=True, and group_by='label' to evaluate; if one "
    "of several right answers is enough, divide by their number in the row"
)

_FIRST_ROWS = 4096  # rows of logits that show whether they are probabilities


def of_text(dtype: np.dtype) -> str:
    """Hint for a column of a type that is not numeric."""
    if dtype.kind not in "OSUT":
        return ""
    return "; categories must be numbers from 0: np.searchsorted(classes, labels)"


def of_shape(shape: tuple[int, ...], labels: Any = None) -> str:
    """Hint for labels of a shape other than (n,); `labels` are passed if they are in memory."""
    if len(shape) != 2 or shape[1] < 2:
        return of_images(shape, 3)
    one_hot = "; are they one-hot? take labels.argmax(axis=1)"
    if not isinstance(labels, np.ndarray):
        return f"{one_hot}; {SEVERAL}"
    wrong = np.flatnonzero(abs(labels.sum(axis=1) - 1) > 1e-3)
    if not len(wrong):
        return one_hot
    return f"; row {wrong[0]} sums to {labels[wrong[0]].sum():g}; {SEVERAL}"


def of_images(shape: tuple[int, ...], dimensions: int = 4) -> str:
    """Hint for predictions (n, K, h, w) or labels (n, h, w) of pixels."""
    if len(shape) < dimensions:
        return ""
    return (
        "; predictions of pixels are (n, K, height, width), with labels (n, height, width) and "
        "ignore_index= for pixels without one"
    )


def of_range(labels: Any, classes: int) -> str:
    """Hint for labels with a value outside 0..K−1."""
    for ignored in (255, -100):  # usual values of masks of images, and of PyTorch
        if not -1 <= ignored < classes and (labels == ignored).any():
            return (
                f"; if {ignored} means no label, pass ignore_index={ignored} (--ignore-index "
                f"{ignored}), or store −1"
            )
    labels = labels[labels >= 0]
    if classes == 2 and len(labels) and labels.min() == 0 and labels.max() > 1:
        return (
            "; if the probabilities are those of the predicted class, pass as labels whether it "
            "was right"
        )
    if not len(labels) or labels.min() != 1 or labels.max() != classes:
        return ""
    if classes == 2:
        return "; counted from 1? pass positive=2 (--positive 2)"
    return f"; counted from 1? pass class_names=range(1, {classes + 1}) (--class-names 1,2,…)"


def of_sums(sums: Any) -> str:
    """Hint for rows of nonnegative probabilities with `sums` (n,) other than 1."""
    error = float(np.abs(sums - 1).max(initial=0.0))
    # A larger deviation is no rounding, and a tolerance would hide a missing class.
    if not 0 < error <= 0.01:
        return ""
    return (
        f"; the rows of this chunk sum to 1 within {error:.2g}, as float16 or rounded numbers do: "
        f"pass {_tolerance(error)}"
    )


def _tolerance(error: float) -> str:
    """Option that allows an error, in Python and on the command line."""
    # Twice the error of the rows seen, rounded up to a power of 10: other rows may err more.
    enough = 10.0 ** math.ceil(math.log10(2 * error))
    return f"tolerance={enough:g} (--tolerance {enough:g})"


def of_probabilities(values: Any, binary: bool) -> str:
    """Hint for a finite row (K,) with a negative probability or a wrong sum."""
    total, largest = float(values.sum()), float(values.max())
    if values.min() >= 0 and ((2 < largest <= 100) if binary else abs(total - 100) <= 1):
        return f"; in percent? {REMEDY}"
    if values.min() >= -0.01 and largest <= 1.01 and (binary or values.min() < 0):
        error = max(-float(values.min()), largest - 1.0)
        return f"; if this is rounding, clip it to 0..1, or pass {_tolerance(error)}"
    if values.min() < 0 or largest > 1:
        return "; if these are logits, pass them as logits= (ingest --logits NAME)"
    return ""


def seem_probabilities(values: Any) -> bool:
    """Whether each row of logits (n, K) is in 0..1 and sums to 1."""
    first = np.asarray(values[:_FIRST_ROWS])
    if first.ndim != 2 or first.shape[1] < 2 or not len(first):
        return False
    if not ((first >= 0) & (first <= 1)).all():
        return False
    return bool((abs(first.sum(axis=1, dtype=np.float64) - 1) <= 1e-3).all())
