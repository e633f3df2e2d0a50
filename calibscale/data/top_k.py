"""The k most probable of many classes, and the rest of the classes together, as k + 1 classes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Ints
from calibscale.data.array_layouts import as_numpy, in_memory
from calibscale.data.read_errors import converting
from calibscale.data.row_shards import ComputedRows, read_rows
from calibscale.data.source import LAZY, sum_tolerance
from calibscale.errors import InvalidDataError, require
from calibscale.predictions.invalid_rows import place_of

_log = logging.getLogger(__name__)
_EXAMINED = 1000  # rows of columns on disk in which the rest is compared with the classes


def top_k_columns(
    kind: str, values: Any, labels: Any, classes: Any, spacing: float, name: str
) -> tuple[Any, Any]:
    """Probabilities of k classes and of the rest (n, k + 1), and positions of labels (n,).

    Columns that are not in memory stay where they are, and are converted when rows are read.

    Parameters
    ----------
    values, classes : (n, k), or (n,) of one class
        Probabilities of the k most probable classes, and these classes.
    labels : (n,)
        Classes, or −1 where the label is not yet known.
    spacing : float
        Distance from 1 to the next number of the type, see `ArraySource`.

    Raises
    ------
    OptionError, InvalidDataError
        If predictions are logits, shapes do not fit, or a row in memory violates a rule.
    """
    require(kind == "probabilities", "top_k= needs probabilities=, exp of log-probabilities")
    if not (hasattr(classes, "shape") and hasattr(classes, "dtype")):
        classes = as_numpy(classes, "top_k")
    _check_shapes(values, labels, classes, name)
    tolerance = sum_tolerance(values, spacing)
    if all(in_memory(column) for column in (values, labels, classes)):
        joined = joined_with_rest(values, classes, tolerance, name)
        warn_of_rest(joined, name)
        return joined, positions(labels, classes)
    with_rest = ValuesWithRest(values, classes, tolerance, name)
    examined = min(_EXAMINED, int(values.shape[0]))
    with converting("top_k"):
        rows = with_rest[:examined]
    warn_of_rest(rows, name)
    return with_rest, LabelPositions(labels, classes)


def _check_shapes(values: Any, labels: Any, classes: Any, name: str) -> None:
    shape = tuple(int(size) for size in values.shape)
    if np.dtype(values.dtype).kind != "f" or len(shape) not in (1, 2) or 0 in shape[1:]:
        raise InvalidDataError(
            f"{name}: probabilities with top_k must be floating point (rows, k), not "
            f"{values.dtype} of shape {shape}"
        )
    if tuple(labels.shape) != shape[:1]:
        raise InvalidDataError(
            f"{name}: {shape[0]} rows of probabilities, but labels of shape {tuple(labels.shape)}"
        )
    if tuple(classes.shape) != shape or np.dtype(classes.dtype).kind not in "iuf":
        raise InvalidDataError(
            f"{name}: top_k must be the integer classes of probabilities (n, k), not "
            f"{classes.dtype} of shape {tuple(classes.shape)} with probabilities of shape {shape}"
        )


def joined_with_rest(
    values: NDArray[Any], classes: NDArray[Any], tolerance: float, name: str, first: int = 0
) -> NDArray[Any]:
    """Probabilities of k classes and of the rest (n, k + 1), of rows from `first` on.

    Rows with a missing class (NaN) are NaN, and invalid like rows with a missing probability.
    """
    values, classes = map(_of_rows, (values, classes))
    missing = np.isnan(classes) if classes.dtype.kind == "f" else np.zeros(classes.shape, bool)
    remaining = 1.0 - values.sum(axis=1, dtype=np.float64)
    order = np.sort(classes, axis=1)
    # A missing class is NaN, which is smaller than no number and equal to no number.
    for wrong, fault in (
        ((order < 0).any(axis=1), "it has a negative class in top_k"),
        (
            ((order != np.floor(order)) & ~np.isnan(order)).any(axis=1),
            "it has a class in top_k that is no integer",
        ),
        ((order[:, 1:] == order[:, :-1]).any(axis=1), "it has a class twice in top_k"),
        (remaining < -tolerance, f"its top-k probabilities sum to more than 1 + {tolerance:g}"),
    ):
        if wrong.any():
            i = int(np.argmax(wrong))
            place = place_of(first + i, name, 1)
            raise InvalidDataError(f"{place}: {fault}. Fix or remove the row.", first + i)
    with_rest = np.column_stack([values, np.maximum(remaining, 0.0)]).astype(values.dtype)
    with_rest[missing.any(axis=1)] = np.nan
    return with_rest


def _of_rows(column: NDArray[Any]) -> NDArray[Any]:
    """Column (n, k), also of one class."""
    return column[:, None] if column.ndim == 1 else column


def positions(labels: NDArray[Any], classes: NDArray[Any]) -> Ints:
    """Position of each label among the classes of its row, k if it is one of the rest (n,)."""
    classes = _of_rows(classes)
    hit = classes == labels[:, None]
    # A label outside the k classes is in the rest, which is the last class.
    position = np.where(hit.any(axis=1), hit.argmax(axis=1), classes.shape[1])
    return np.where(labels < 0, labels, position)


def warn_of_rest(values: NDArray[Any], name: str) -> None:
    """Log a warning if the rest is more probable than every class of some rows."""
    if larger := np.count_nonzero(values[:, -1] > values[:, :-1].max(axis=1)):
        _log.warning(
            "%s: in %d of %d rows the rest is more probable than any of the k classes; it is then "
            "the top label",
            name,
            larger,
            len(values),
        )


class _OfTopK(ComputedRows):
    """Base class of columns that are computed when rows are read."""

    def __getattr__(self, name: str) -> Any:
        if name in (*LAZY, "chunks"):  # attributes by which a source recognises its columns
            for column in self.columns:
                if hasattr(column, name):
                    return getattr(column, name)
        raise AttributeError(name)


@dataclass(frozen=True, eq=False)
class ValuesWithRest(_OfTopK):
    """Probabilities of k classes and of the rest, read by slices of rows."""

    probabilities: Any
    classes: Any
    tolerance: float
    name: str

    @property
    def columns(self) -> tuple[Any, ...]:
        return self.probabilities, self.classes

    @property
    def shape(self) -> tuple[int, int]:
        n, k = (*self.probabilities.shape, 1)[:2]
        return int(n), int(k) + 1

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.probabilities.dtype)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        values, classes = (read_rows(column, start, stop) for column in self.columns)
        return joined_with_rest(values, classes, self.tolerance, self.name, start)


@dataclass(frozen=True, eq=False)
class LabelPositions(_OfTopK):
    """Positions of labels among the classes of their rows, read by slices of rows."""

    labels: Any
    classes: Any

    @property
    def columns(self) -> tuple[Any, ...]:
        return self.labels, self.classes

    @property
    def shape(self) -> tuple[int]:
        return (int(self.labels.shape[0]),)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int64)

    def __getitem__(self, rows: slice) -> Ints:
        start, stop, _ = rows.indices(self.shape[0])
        labels, classes = (read_rows(column, start, stop) for column in self.columns)
        return positions(labels, classes).astype(np.int64)
