"""Arrays of other layouts and types than (rows, classes): images, and bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.errors import InvalidDataError, OptionError

BFLOAT16_SPACING = 2.0**-7  # distance from 1 to the next number


def is_bfloat16(array: Any) -> bool:
    """Whether an array has the type bfloat16, of PyTorch, JAX or ml_dtypes."""
    return "bfloat16" in str(getattr(array, "dtype", ""))


def as_numpy(array: Any, name: str = "the array") -> NDArray[Any]:
    """Convert an array with DLPack or the array protocol to NumPy; bfloat16 becomes float32."""
    if hasattr(array, "detach"):  # a tensor of PyTorch, of any device
        array = array.detach().cpu()
    if is_bfloat16(array):
        array = array.float() if hasattr(array, "float") else array.astype(np.float32)
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        try:
            return np.from_dlpack(array)
        except (TypeError, BufferError, RuntimeError):
            pass
    try:
        return np.asarray(array)
    except ValueError as error:
        raise InvalidDataError(f"{name} cannot be an array of numbers: {error}") from error


def pixel_rows(values: Any, labels: Any, *columns: Any, binary: bool, name: str) -> list[Any]:
    """Columns with a row for each position of labels (n, …), such as the pixels of images.

    Predictions are (n, K, …), as in PyTorch: the class axis is 1; one column may also be (n, …).
    Those of `columns` that have the shape of the labels have a row for each position, too.  Arrays
    of other shapes are returned as they are.
    """
    shape, given = tuple(labels.shape), tuple(values.shape)
    by_class = len(given) == len(shape) + 1 and (given[0], *given[2:]) == shape
    if len(shape) < 2 or not (by_class or (binary and len(shape) > 2 and given == shape)):
        return [values, labels, *columns]
    if not all(type(array) is np.ndarray for array in (values, labels)):
        raise InvalidDataError(
            f"{name}: predictions of shape {given} must be arrays in memory; append them to a "
            "LogitStore in batches"
        )
    values = np.moveaxis(values, 1, -1).reshape(-1, given[1]) if by_class else values.reshape(-1)
    return [
        values,
        *(
            column.reshape(-1) if tuple(getattr(column, "shape", ())) == shape else column
            for column in (labels, *columns)
        ),
    ]


def without_ignored(labels: Any, ignore_index: int | None, classes: int) -> NDArray[Any]:
    """Labels with −1, not yet known, in place of `ignore_index`."""
    if ignore_index is None:
        return labels
    if type(labels) is not np.ndarray:
        raise OptionError("ignore_index= needs labels in memory; store −1 for such labels")
    if 0 <= ignore_index < classes:
        raise OptionError(f"ignore_index={ignore_index} is a class; classes are 0..{classes - 1}")
    return np.where(labels == ignore_index, -1, labels.astype(np.int64))
