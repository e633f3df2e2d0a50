"""What data that fit no rule probably are: the ends of messages."""

from __future__ import annotations

from typing import Any

import numpy as np

ARE_PROBABILITIES = (
    "%s: every row of the logits lies in 0..1 and sums to 1: are these probabilities? If so, say "
    "so: probabilities= (ingest --key probabilities=NAME)"
)
ARE_NEGATIVES = (
    "%s: all known labels are 1; −1 means not yet known, and such rows are left out; for labels "
    "−1/+1 use 0/1"
)

_SOME_ROWS, _PIECE = 4096, 2**20


def of_text(dtype: np.dtype) -> str:
    """For a column whose type is no number."""
    if dtype.kind not in "OSUT":
        return ""
    return "; categories must be numbers: np.searchsorted(classes, labels) counts them from 0"


def of_shape(shape: tuple[int, ...]) -> str:
    """For labels of another shape than (n,)."""
    one_hot = len(shape) == 2 and shape[1] > 1
    return "; are they one-hot? take labels.argmax(axis=1)" * one_hot


def of_range(labels: Any, classes: int) -> str:
    """For labels of which one is outside 0..K−1."""
    known = labels[labels >= 0]
    from_one = len(known) > 0 and known.min() == 1 and known.max() == classes
    return "; counted from 1? subtract 1" * bool(from_one)


def of_probabilities(values: Any, binary: bool) -> str:
    """For a row (K,) that is finite and no probabilities: a sum, or a sign, is wrong."""
    total, largest = float(values.sum()), float(values.max())
    if values.min() >= 0 and ((2 < largest <= 100) if binary else abs(total - 100) <= 1):
        return "; in percent? divide by 100"
    if values.min() >= -0.01 and largest <= 1.01 and (binary or values.min() < 0):
        return "; if this is rounding, clip it to 0..1"
    if not binary and values.min() >= 0 and abs(total - 1) <= 0.01:
        return "; if this is rounding, allow it with tolerance= (--tolerance)"
    if values.min() < 0 or largest > 1:
        return "; if these are logits, say so: logits= (ingest --key logits=NAME)"
    return ""


def seem_probabilities(values: Any) -> bool:
    """Whether what is called logits (n, K) lies in 0..1 and sums to 1, row by row."""
    some = np.asarray(values[:_SOME_ROWS])
    if some.ndim != 2 or some.shape[1] < 2 or not len(some):
        return False
    if not ((some >= 0) & (some <= 1)).all():
        return False
    return bool((abs(some.sum(axis=1, dtype=np.float64) - 1) <= 1e-3).all())


def negatives_lost(labels: Any) -> bool:
    """Whether labels of two classes (n,) are 1 and −1 alone."""
    seen: set[int] = set()
    for start in range(0, labels.shape[0], _PIECE):
        seen.update(np.unique(labels[start : start + _PIECE]).tolist())
        if 0 in seen:
            break
    return seen == {-1, 1}
