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

BFLOAT16_SPACING = 2.0**-7  # distance from 1 to the next number


def is_bfloat16(array: Any) -> bool:
    """Whether an array has the type bfloat16, of PyTorch, JAX or ml_dtypes."""
    return "bfloat16" in str(getattr(array, "dtype", ""))


def as_numpy(array: Any, name: str = "the array") -> NDArray[Any]:
    """Convert an array with DLPack or the array protocol to a plain NumPy array.

    bfloat16 becomes float32, and missing entries, such as those that are masked, become NaN or
    None; see `calibscale.data.missing`.
    """
    with converting(name):
        for method in ("detach", "cpu"):  # of tensors of PyTorch
            array = getattr(array, method)() if hasattr(array, method) else array
        if is_bfloat16(array):
            array = array.float() if hasattr(array, "float") else array.astype(np.float32)
        if hasattr(array, "__dlpack__") and not _is_held(array):
            with suppress(Exception):  # the array protocol then says what is wrong
                return np.from_dlpack(array)
        values = np.asanyarray(array)
        if values.dtype.kind == "U" and not isinstance(array, np.ndarray):
            # NumPy has made texts of the missing entries of a list
            objects = np.asarray(array, object)
            values = objects if missing_entries(objects).any() else values
        return plain(values)


def _is_held(array: Any) -> bool:
    """Whether an array is one of NumPy or Arrow, whose missing entries DLPack does not tell."""
    return isinstance(array, np.ndarray) or hasattr(array, "__arrow_c_array__")


def in_memory(array: Any) -> bool:
    """Whether an array is one of NumPy that is not on disk."""
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


def rows_of(
    values: Any, labels: Any, *columns: Any, binary: bool, ignore_index: int | None, name: str
) -> list[Any]:
    """Columns with a row for each label, and labels of −1 in place of `ignore_index`.

    Predictions of labels (n, …), such as those of pixels, are (n, K, …), as in PyTorch: the class
    axis is 1; those of two classes may be (n, …).  Those of several labels that are true or false,
    (n, L), are (n, L), too: all rows of a label are neighbours, and a column (n,) is repeated.
    Arrays of other shapes are returned as they are.
    """
    shape, given = tuple(labels.shape), tuple(values.shape)
    by_class = len(given) == len(shape) + 1 > 2 and (given[0], *given[2:]) == shape
    special = by_class or (binary and len(shape) > 1 and given == shape)
    if special or ignore_index is not None:  # such as arrays of JAX, and columns of pandas
        values, labels = (
            as_numpy(each)
            if not isinstance(each, np.ndarray) and {"__dlpack__", "to_numpy"} & {*dir(type(each))}
            else each
            for each in (values, labels)
        )
    if special:
        if not all(in_memory(array) for array in (values, labels)):
            raise InvalidDataError(
                f"{name}: predictions of shape {given} must be arrays in memory; append them to a "
                "LogitStore in batches"
            )
        several = len(given) == 2
        values = np.moveaxis(values, 1, -1).reshape(-1, given[1]) if by_class else values
        values = values if by_class else (values.T if several else values).reshape(-1)
        labels, *columns = (  # type: ignore[assignment]
            (each.T if several else each).reshape(-1)
            if np.shape(each) == shape
            else np.tile(each, given[1])
            if several and each is not None
            else each
            for each in (labels, *columns)
        )
    if ignore_index is not None:
        require(in_memory(labels), "ignore_index= needs labels in memory; store −1 for such labels")
        classes = 2 if binary else (*values.shape, 0)[1]
        if 0 <= ignore_index < classes:
            raise OptionError(f"ignore_index={ignore_index} is one of the {classes} classes")
        labels = np.where(labels == ignore_index, np.int64(-1), labels)
    return [values, labels, *columns]


def label_codes(
    shape: tuple[int, int], names: Sequence[Any] | None
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Position of the label of each entry of (n, L), and the names of the labels."""
    names = tuple(map(str, range(shape[1]) if names is None else names))
    require(len(set(names)) == shape[1], f"{shape[1]} labels need {shape[1]} distinct label_names")
    return np.tile(np.arange(float(shape[1])), (shape[0], 1)), names
