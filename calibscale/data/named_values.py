"""Columns of texts and other named values as numbers: positions among their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.data.array_layouts import as_numpy
from calibscale.data.arrow_values import numpy_of
from calibscale.data.missing import is_missing, plain
from calibscale.data.time_columns import (
    kind_of_type,
    of_objects,
    seconds_of,
    texts_of_objects,
    without_zone,
)
from calibscale.data.times import KINDS_OF_TIMES
from calibscale.errors import InvalidDataError, OptionError, require
from calibscale.formatting.lists import leading_values

FLAGS = ("false", "true")  # names of booleans
_INTERVAL = re.compile(r"[(\[]\s*([^,\s]+)\s*,\s*([^,\s]+)\s*[)\]]")


def in_native_order(values: NDArray[Any]) -> NDArray[Any]:
    """Array in the byte order of this machine, as Arrow needs it."""
    values = np.asanyarray(values)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def is_named(array: Any) -> bool:
    """Whether an array has texts or objects."""
    return np.dtype(array.dtype).kind in "OSUT"


def in_order(names: Iterable[Any]) -> tuple[Any, ...]:
    """Sorted names; intervals, such as “(18, 30]”, are sorted by their ends if all names are.

    >>> in_order(["south", "north"]), in_order(["(100, inf]", "[-3, 18)", "(18.5, 100]"])
    (('north', 'south'), ('[-3, 18)', '(18.5, 100]', '(100, inf]'))
    """
    names = sorted(names)
    ends = [_INTERVAL.fullmatch(name) if isinstance(name, str) else None for name in names]
    if not all(ends):
        return tuple(names)
    try:
        keys = [(float(end[1]), float(end[2])) for end in ends if end is not None]
    except ValueError:
        return tuple(names)
    # Intervals with equal ends keep the order of their texts.
    order = sorted(range(len(names)), key=keys.__getitem__)
    return tuple(names[k] for k in order)


def encoded(
    values: NDArray[Any], subject: str, names: Sequence[Any] | None = None
) -> tuple[NDArray[np.int64], tuple[Any, ...]]:
    """Positions of values (n,) among `names`, −1 for missing values, and the names.

    Parameters
    ----------
    values : (n,) array of texts, numbers, booleans, or objects of one of these types
    subject : str
        Name of the values in errors.
    names : sequence, optional
        Default: the sorted distinct values.

    Raises
    ------
    InvalidDataError
        If a value is not among the names, or values have several types.
    """
    import pyarrow as pa

    values = in_native_order(values)
    try:
        column = pa.array(values, from_pandas=True).dictionary_encode()
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidDataError(
            f"{subject} must be all texts, all numbers, or all booleans ({error}); convert them "
            "first"
        ) from error
    distinct = column.dictionary.to_pylist()
    present = [value for value in distinct if not is_missing(value)]
    names = in_order(present) if names is None else names
    names = tuple(names.tolist() if isinstance(names, np.ndarray) else names)
    positions = {name: k for k, name in enumerate(names)}
    if unknown := [value for value in present if value not in positions]:
        # The index of a value in the dictionary leads to the first row that has it.
        row = int(np.argmax(column.indices.to_numpy(False) == distinct.index(unknown[0])))
        listed = leading_values(names, 20)
        raise InvalidDataError(
            f"{subject}: the value of row {row} is {unknown[0]!r}, which is not among {listed}", row
        )
    # Null entries point to the last code.
    codes = np.array([*(positions.get(value, -1) for value in distinct), -1], np.int64)
    return codes[column.indices.fill_null(len(distinct)).to_numpy(False)], names


class NamedColumns(NamedTuple):
    """Covariates (n, d) and their names, the names of categories, and the kinds of times."""

    values: Any
    names: Sequence[str] | None
    categories: dict[str, tuple[str, ...]]
    times: dict[str, str]


def is_table(columns: Any) -> bool:
    """Whether columns have names, as in a data frame, an Arrow table, or a dictionary."""
    return headings(columns) is not None


def headings(table: Any) -> list[Any] | None:
    """Names of the columns of a table, or None for arrays."""
    if isinstance(table, Mapping):
        return list(table)
    names = getattr(table, "column_names", getattr(table, "columns", None))
    return None if names is None else list(names)


def _columns_of(table: Any, headings: Sequence[Any]) -> list[NDArray[Any]]:
    """Columns of a table as arrays.  An error if columns of a dictionary differ in length."""
    if not isinstance(table, Mapping):
        return [_plain_column(table[heading]) for heading in headings]
    require(headings, "the dictionary of covariates has no columns")
    columns: list[NDArray[Any]] = []
    for heading in headings:
        values = table[heading]
        column = _plain_column(as_numpy(values) if hasattr(values, "__dlpack__") else values)
        if column.ndim != 1:
            raise InvalidDataError(
                f"the covariate {str(heading)!r} has the shape {column.shape}; a dictionary of "
                "covariates has one-dimensional columns (n,)"
            )
        if columns and len(column) != len(columns[0]):
            raise InvalidDataError(
                f"the covariate {str(heading)!r} has {len(column):,} rows, and "
                f"{str(headings[0])!r} has {len(columns[0]):,}"
            )
        columns.append(column)
    return columns


def named_columns(
    table: Any,
    names: Sequence[str] | None = None,
    categories: Mapping[str, tuple[str, ...]] | None = None,
) -> NamedColumns:
    """Covariates of a data frame, a dictionary of columns, or an array as numbers, with names.

    Texts and booleans of named columns, and texts of an array, are numbered by their sorted names,
    or by the names in `categories`.  Dates, times and durations become seconds.  Other arrays are
    returned as they are, with the given names.
    """
    heading = headings(table)
    if heading is not None:
        columns = _columns_of(table, heading)
        default = [*map(str, heading)]
    elif (is_named(table) or kind_of_type(table.dtype)) and len(table.shape) in (1, 2):
        columns = list(plain(np.asanyarray(table)).reshape(len(table), -1).T)
        default = [f"x{j}" for j in range(len(columns))]
    else:
        return NamedColumns(table, names, {}, {})
    names = default if names is None else names
    categories_of: dict[str, tuple[str, ...]] = {}
    times: dict[str, str] = {}
    for j, (name, column) in enumerate(zip(names, columns, strict=False)):
        column, kind = _with_times(column)
        columns[j] = column
        if kind in KINDS_OF_TIMES:
            times[name] = kind
        if is_named(column):
            declared = (categories or {}).get(name)
            codes, values = encoded(column, f"the covariate {name!r}", declared)
            if declared is None and categories is not None:
                raise OptionError(
                    f"the covariate {name!r} has texts; name its values, in the same order "
                    f"everywhere: categories={{{name!r}: {list(values)}}}"
                )
            if values and isinstance(values[0], str):
                categories_of[name] = values
                columns[j] = np.where(codes < 0, np.nan, codes)
            else:
                columns[j] = np.array([*values, np.nan], np.float64)[codes]
        elif column.dtype.kind == "b":
            categories_of[name] = FLAGS
    numbers = np.column_stack(columns).astype(np.float64)
    return NamedColumns(numbers, names, categories_of, times)


def _plain_column(column: Any) -> NDArray[Any]:
    """Column of a frame as an array, with timestamps in the time of their zone.

    Categories that are intervals, as of ``pandas.cut``, are texts.
    """
    if str(getattr(column, "dtype", "")) == "category" and hasattr(column, "cat"):
        categories = np.asarray(column.cat.categories)
        texts = texts_of_objects(categories)
        if texts is not categories:  # NumPy would convert the ends of intervals to float64
            return np.array([*texts, None], object)[np.asarray(column.cat.codes)]
    zoned = getattr(column.dtype, "time_zone", None) if hasattr(column, "dtype") else None
    kind = getattr(column, "type", None)
    if zoned or getattr(kind, "tz", None):
        # Columns of polars and Arrow lose the zone in the conversion to NumPy arrays.
        import pyarrow as pa

        arrow = pa.chunked_array(column).combine_chunks()
        return plain(numpy_of(without_zone(arrow)))
    return as_numpy(column, "a column of the covariates")


def _with_times(column: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Column with dates, times and durations as seconds, and their kind; empty for others."""
    if kind := kind_of_type(column.dtype):
        return seconds_of(column), kind
    if column.dtype.kind == "O":
        return of_objects(column)
    return column, ""
