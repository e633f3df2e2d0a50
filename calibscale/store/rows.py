"""Rows as a store takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calibscale import hints
from calibscale.errors import InvalidDataError
from calibscale.source import as_numpy

if TYPE_CHECKING:
    from calibscale.store.logits import LogitStore


def fitting(
    store: LogitStore, dtype: Any, values: Any, labels: Any, covariates: Any, weights: Any
) -> dict[str, np.ndarray]:
    """The columns of a store; raises `InvalidDataError` for what does not fit it."""
    width = 1 if store.binary else store.classes
    given = as_numpy(values, store.kind)
    given = given.reshape(-1, 1) if store.binary and given.ndim == 1 else given
    labels = as_numpy(labels)
    if given.ndim != 2 or given.shape[1] != width or given.dtype.kind not in "fiu":
        raise InvalidDataError(
            f"{store.kind} must be (rows, {width}) numbers, not {given.dtype} {given.shape}"
            + hints.of_images(given.shape)
        )
    if labels.shape != given.shape[:1] or labels.dtype.kind not in "iu":
        raise InvalidDataError(
            f"labels must be {len(given)} integers, not {labels.dtype} {labels.shape}"
            + (hints.of_text(labels.dtype) or hints.of_shape(labels.shape, labels))
        )
    outside = (labels < -1) | (labels >= store.classes)
    if outside.any():
        i = int(np.argmax(outside))
        raise InvalidDataError(
            f"row {i} of those appended has the label {labels[i]}, outside "
            f"0..{store.classes - 1} (−1: not yet known)" + hints.of_range(labels, store.classes),
            i,
        )
    with np.errstate(over="ignore"):  # told below, with the row
        part = {store.kind: given.astype(dtype), "labels": labels}
    lost = np.isfinite(given) & ~np.isfinite(part[store.kind])
    if lost.any():
        i = int(np.argmax(lost.any(axis=1)))
        raise InvalidDataError(
            f"row {i} of those appended has {given[i][lost[i]][0]:g}, too large for {dtype}", i
        )
    n, d = len(given), len(store.covariate_names)
    for name, column, shape, expected in (
        ("covariates", covariates, (n, d), d > 0),
        ("weights", weights, (n,), store.has_weights),
    ):
        if (column is not None) != expected:
            raise InvalidDataError(f"the store has {'' if expected else 'no '}{name}")
        if column is None:
            continue
        column = as_numpy(column)
        if column.ndim == 1 and (*column.shape, 1) == shape:
            column = column[:, None]
        if column.shape != shape:
            raise InvalidDataError(f"{name} must be of shape {shape}, not {column.shape}")
        if column.dtype.kind not in "fiub":
            raise InvalidDataError(f"{name} must be numbers, not {column.dtype}")
        part[name] = column
    return {name: np.array(column) for name, column in part.items()}
