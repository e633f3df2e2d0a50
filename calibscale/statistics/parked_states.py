"""States that wait for their neighbours in a merge tree, without the rows of zeros of their arrays.

A pass over many blocks keeps about one state for each level of its tree.  Most cells of the simplex
are empty, and their sums would be the larger part of the memory of the pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_LARGE = 2**20  # bytes of an array above which it is parked


class FilledRows(NamedTuple):
    """Array of zeros, except for the rows, along the last axis, at the positions `rows`."""

    shape: tuple[int, ...]
    rows: NDArray[np.intp]
    values: NDArray[np.float64]


def parked(state: Any) -> Any:
    """State in which large arrays with many rows of zeros are `FilledRows`."""
    return _mapped(state, _packed) if isinstance(state, tuple) else state


def resumed(state: Any) -> Any:
    """State as it was before `parked`, bit for bit."""
    return _mapped(state, _unpacked) if isinstance(state, tuple) else state


def _mapped(state: tuple[Any, ...], convert: Any) -> Any:
    fields = [convert(field) for field in state]
    return type(state)(*fields) if hasattr(state, "_fields") else tuple(fields)


def _packed(field: Any) -> Any:
    suits = isinstance(field, np.ndarray) and field.ndim > 1 and field.nbytes > _LARGE
    if not (suits and field.dtype == np.float64 and field.flags.c_contiguous):
        return field
    table = field.reshape(-1, field.shape[-1])
    # Rows with a number in the last column are not empty, and most large arrays have so many of
    # these rows that the other columns do not matter.
    if 2 * np.count_nonzero(table[:, -1]) > len(table):
        return field
    # A row is empty if all bits are 0, so that −0 is not lost.
    rows = np.flatnonzero(table.view(np.uint64).any(axis=1))
    return field if 2 * len(rows) > len(table) else FilledRows(field.shape, rows, table[rows])


def _unpacked(field: Any) -> Any:
    if not isinstance(field, FilledRows):
        return field
    array = np.zeros(field.shape)
    array.reshape(-1, field.shape[-1])[field.rows] = field.values
    return array
