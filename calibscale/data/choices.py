"""Choices in varying numbers, and the most likely of many classes, as rows of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from calibscale.data.array_layouts import as_numpy
from calibscale.data.row_shards import RowShards
from calibscale.data.top_k import top_k_columns
from calibscale.errors import InvalidDataError, require
from calibscale.predictions.invalid_rows import place_of


class ChoiceOptions(TypedDict, total=False):
    """Choices of the rows, with the meaning in `from_arrays`."""

    offsets: Any
    mask: Any
    top_k: Any
    per_choice: bool


class ChoiceColumns(NamedTuple):
    """Columns of a source, and the `names` of the covariates."""

    kind: str
    values: Any
    labels: Any
    weights: Any
    covariates: Any
    names: Sequence[str] | None


def of_choices(
    columns: ChoiceColumns, options: ChoiceOptions, spacing: float, name: str
) -> ChoiceColumns:
    """Columns with a row of equal length for each question, or with a row for each choice.

    `spacing` is the distance from 1 to the next number of the type, see `ArraySource`.

    Raises
    ------
    OptionError, InvalidDataError
        If options exclude each other, shapes do not fit, or a label is none of its row's choices.
    """
    offsets, mask, top_k = (options.get(option) for option in ("offsets", "mask", "top_k"))
    ways = sum(option is not None for option in (offsets, mask, top_k))
    require(ways <= 1, "give only one of offsets=, mask= and top_k=")
    if top_k is not None and not options.get("per_choice"):
        values, labels = top_k_columns(
            columns.kind, columns.values, columns.labels, top_k, spacing, name
        )
        return columns._replace(values=values, labels=labels)
    # Padding needs the lengths of all questions at once.
    for array in columns[1:5]:
        lazy = getattr(array, "chunks", None) is not None
        if lazy or isinstance(array, np.memmap | RowShards):
            raise InvalidDataError(
                f"{name}: choices must be arrays in memory; ingest others, such as JSON Lines "
                "(calibscale ingest), or append padded rows to a LogitStore in batches"
            )
    kind = columns.kind
    arrays: list[Any] = [None if array is None else as_numpy(array) for array in columns[1:5]]
    values, labels, weights, covariates = arrays
    if values.dtype.kind != "f" or values.ndim != (1 if offsets is not None else 2):
        raise InvalidDataError(
            f"{name}: {kind} must be floating point (rows, choices), or with offsets= (choices,), "
            f"not {values.dtype} of shape {values.shape}"
        )
    rows = labels.size if offsets is not None else len(values)
    for role, column in (("labels", labels), ("weights", weights), ("covariates", covariates)):
        if column is not None and (
            column.shape[:1] != (rows,) or (role == "labels" and column.ndim > 1)
        ):
            shape = column.shape
            raise InvalidDataError(f"{name}: {rows} rows of {kind}, but {role} of shape {shape}")
    # A choice that a question does not have has the probability 0.
    absent = -np.inf if kind == "logits" else 0.0
    if offsets is not None:
        exists = _exists(values, as_numpy(offsets, "offsets"), rows, name)
        padded = np.full(exists.shape, absent, values.dtype)
        padded[exists] = values
        values = padded
    elif mask is not None:
        exists = as_numpy(mask, "mask")
        if exists.dtype.kind != "b" or exists.shape != values.shape:
            raise InvalidDataError(
                f"{name}: mask must be booleans of shape {values.shape}, true where a choice "
                f"exists, not {exists.dtype} of shape {exists.shape}"
            )
        values = np.where(exists, values, values.dtype.type(absent))
    elif top_k is not None:
        values, labels = top_k_columns(
            kind, values, labels, as_numpy(top_k, "top_k"), spacing, name
        )
    if offsets is None and mask is None:
        exists = np.ones(values.shape, bool)
    # A label is a position among the choices of its row, or −1; rows without choices are wrong.
    outside = (labels < -1) | (labels >= exists.shape[1])
    outside |= ~exists[np.arange(rows), np.where(outside, 0, labels)] & (labels >= 0)
    if (wrong := outside | ~exists.any(axis=1)).any():
        i = int(np.argmax(wrong))
        choices = ", ".join(map(str, np.flatnonzero(exists[i])[:20])) or "none"
        raise InvalidDataError(
            f"{place_of(i, name, 1)}: its label is {labels[i]}, and its choices are {choices}; the "
            "label is the position of the right choice (−1: not yet known). Fix or remove the row.",
            i,
        )
    if not options.get("per_choice"):
        return ChoiceColumns(kind, values, labels, weights, covariates, columns.names)
    if top_k is not None:
        exists[:, -1] = False  # the last column has the remaining probability, and is no choice
    if kind == "logits":
        values = _log_odds(values)
    # The rows of all choices, in the order of the questions.
    question, choice = np.nonzero(exists)
    is_known = labels[question] >= 0
    covariates_of = np.empty((rows, 0)) if covariates is None else covariates.reshape(rows, -1)
    names = columns.names or [f"x{j}" for j in range(covariates_of.shape[1])]
    return ChoiceColumns(
        kind,
        values[exists],
        np.where(is_known, labels[question] == choice, -1),
        None if weights is None else weights[question],
        np.column_stack([covariates_of[question], question, choice]),
        [*names, "question", "choice"],
    )


def _exists(values: NDArray[Any], offsets: NDArray[Any], rows: int, name: str) -> NDArray[Any]:
    """Whether each row has a choice at each position (n, K), from the offsets of flat values."""
    if offsets.shape != (rows + 1,) or offsets.dtype.kind not in "iu":
        raise InvalidDataError(
            f"{name}: offsets of {rows} rows are {rows + 1} integers, not {offsets.dtype} of shape "
            f"{offsets.shape}"
        )
    counts = np.diff(offsets.astype(np.int64))
    if (counts < 1).any():
        i = int(np.argmax(counts < 1))
        raise InvalidDataError(f"{place_of(i, name, 1)}: it has {counts[i]} choices, not ≥ 1", i)
    if offsets[0] != 0 or offsets[-1] != len(values):
        raise InvalidDataError(
            f"{name}: offsets must go from 0 to the number of choices, {len(values)}, not from "
            f"{offsets[0]} to {offsets[-1]}"
        )
    return np.arange(counts.max()) < counts[:, None]


def _log_odds(z: NDArray[Any]) -> NDArray[Any]:
    """Logarithm of q/(1 − q) of each choice, q = softmax z, to all digits (n, K)."""
    # log q_k/(1 − q_k) = z_k − log Σ_{j≠k} e^{z_j}.  Without the largest term e⁰ in the sum, no
    # digits cancel for the largest z, and for all others the sum is at least 1.
    top = np.arange(z.shape[1]) == z.argmax(axis=1)[:, None]
    with np.errstate(invalid="ignore"):  # rows without a finite logit become NaN
        z = z - z.max(axis=1, keepdims=True).astype(np.float64)
    e = np.where(top, 0.0, np.exp(z))
    sum_of_others = e.sum(axis=1, keepdims=True) + np.where(top, 0.0, 1.0 - e)
    return z - np.log(np.maximum(sum_of_others, np.finfo(float).tiny))
