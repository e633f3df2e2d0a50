"""Arrays of other layouts and types than (rows, classes): images, and bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data.missing import missing_entries, plain
from calibscale.data.read_errors import converting
from calibscale.errors import InvalidDataError, OptionError, require

BFLOAT16_SPACING = 2.0**-7  # distance from 1 to the next number, as bfloat16 has 7 bits after it


def is_bfloat16(array: Any) -> bool:
    """Whether an array has the type bfloat16, of PyTorch, JAX or ml_dtypes."""
    return "bfloat16" in str(getattr(array, "dtype", ""))


def as_numpy(array: Any, name: str = "the array") -> NDArray[Any]:
    """Convert an array with DLPack or the array protocol to a plain NumPy array.

    bfloat16 becomes float32.  Missing entries, such as masked ones, become NaN or None, see
    `calibscale.data.missing`.
    """
    with converting(name):
        # Tensors of PyTorch convert only without gradients and on the CPU.
        for method in ("detach", "cpu"):
            array = getattr(array, method)() if hasattr(array, method) else array
        if is_bfloat16(array):
            array = array.float() if hasattr(array, "float") else array.astype(np.float32)
        if hasattr(array, "__dlpack__") and not _is_held(array):
            # The array protocol, tried next, says what is wrong with the array.
            with suppress(Exception):
                return np.from_dlpack(array)
        values = np.asanyarray(array)
        # Arrays of texts are as their owner made them, and lists are converted here.
        if values.dtype.kind == "U" and not isinstance(array, np.ndarray):
            # NumPy has turned the missing entries of a list of texts into texts, such as "None".
            objects = np.asarray(array, object)
            values = objects if missing_entries(objects).any() else values
        return plain(values)


def _is_held(array: Any) -> bool:
    """Whether an array is of NumPy or Arrow: DLPack does not tell their missing entries."""
    return isinstance(array, np.ndarray) or hasattr(array, "__arrow_c_array__")


def in_memory(array: Any) -> bool:
    """Whether an array is a NumPy array that is not on disk."""
    return isinstance(array, np.ndarray) and not isinstance(array, np.memmap)


def stacked(predictions: Any) -> Any:
    """Predictive distributions as one array of rows, from an array or from the tuple of its parts.

    A part is a column (n,), several columns (n, P), or one number for all rows.
    """
    if not isinstance(predictions, tuple):
        return predictions
    parts = [as_numpy(part, "predictions") for part in predictions]
    try:
        return np.column_stack(np.broadcast_arrays(*parts))
    except ValueError:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise InvalidDataError(f"the parts of predictions have the shapes {shapes}") from None


def interval_ends(intervals: Any) -> Any:
    """Prediction intervals as the predictions of `IntervalPrediction`: (n, 2), or low and high.

    A tuple is low and high, of which one may be None for an open side.  Ends (n, 2, 1) have one
    coverage.
    """
    if isinstance(intervals, tuple):
        require(len(intervals) == 2, "intervals must be (low, high)", len(intervals))
        require(any(end is not None for end in intervals), "intervals have two open sides")
        open_ends = (-np.inf, np.inf)
        ends = zip(intervals, open_ends, strict=True)
        return tuple(outer if end is None else end for end, outer in ends)
    shape = tuple(getattr(intervals, "shape", ()))
    if len(shape) == 3 and shape[1] == 2:
        if shape[2] != 1:
            raise InvalidDataError(
                f"intervals are of shape {shape}: choose one coverage, such as intervals[:, :, 0]"
            )
        return intervals[:, :, 0]
    return intervals


def rows_of(
    values: Any, labels: Any, *columns: Any, binary: bool, ignore_index: int | None, name: str
) -> list[Any]:
    """Columns with a row for each label, and labels of −1 in place of `ignore_index`.

    For labels (n, …), such as the labels of pixels, predictions are (n, K, …) as in PyTorch, with
    the classes on axis 1.  Predictions of two classes may be (n, …).  For several labels that are
    true or false, (n, L), predictions are (n, L), too.  All rows of a label are then neighbours,
    and a column (n,) is repeated.  Arrays of other shapes are returned as they are.
    """
    shape, value_shape = tuple(labels.shape), tuple(values.shape)
    by_class = (
        len(value_shape) == len(shape) + 1 > 2 and (value_shape[0], *value_shape[2:]) == shape
    )
    special = by_class or (binary and len(shape) > 1 and value_shape == shape)
    if special or ignore_index is not None:
        values, labels = _numpy_if_convertible(values), _numpy_if_convertible(labels)
    if special:
        if not all(in_memory(array) for array in (values, labels)):
            raise InvalidDataError(
                f"{name}: predictions of shape {value_shape} must be arrays in memory; append them "
                "to a LogitStore in batches"
            )
        # Several labels of a row: positions in the order of the labels, then of the rows.
        several = len(value_shape) == 2
        values = np.moveaxis(values, 1, -1).reshape(-1, value_shape[1]) if by_class else values
        values = values if by_class else (values.T if several else values).reshape(-1)
        count = value_shape[1]
        columns = tuple(_by_position(column, shape, several, count) for column in columns)
        labels = _by_position(labels, shape, several, count)
    if ignore_index is not None:
        require(in_memory(labels), "ignore_index= needs labels in memory; store −1 for such labels")
        classes = 2 if binary else (*values.shape, 0)[1]
        if 0 <= ignore_index < classes:
            raise OptionError(f"ignore_index={ignore_index} is one of the {classes} classes")
        labels = np.where(labels == ignore_index, np.int64(-1), labels)
    return [values, labels, *columns]


def _numpy_if_convertible(array: Any) -> Any:
    """Arrays such as those of JAX, and columns of pandas, as NumPy arrays; others as they are."""
    if isinstance(array, np.ndarray) or not {"__dlpack__", "to_numpy"} & {*dir(type(array))}:
        return array
    return as_numpy(array)


def _by_position(column: Any, shape: tuple[int, ...], several: bool, labels_per_row: int) -> Any:
    """Column of rows as a column of positions (pixels, or the labels of a row) in their order.

    A column of the shape of the labels is flattened, with `several` labels of a row label by label.
    A column with one value for each row is repeated for `several` labels.
    """
    if np.shape(column) == shape:
        return (column.T if several else column).reshape(-1)
    if several and column is not None:
        return np.tile(column, labels_per_row)
    return column


def label_codes(
    shape: tuple[int, int], names: Sequence[Any] | None
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Position of the label of each entry of (n, L), and the names of the labels."""
    names = tuple(map(str, range(shape[1]) if names is None else names))
    require(len(set(names)) == shape[1], f"{shape[1]} labels need {shape[1]} distinct label_names")
    return np.tile(np.arange(float(shape[1])), (shape[0], 1)), names
