"""Columns of texts and other named values as numbers: positions among their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data.missing import is_missing, plain
from calibscale.errors import InvalidDataError, OptionError

FLAGS = ("false", "true")  # names of booleans


def is_named(array: Any) -> bool:
    """Whether an array has texts or objects."""
    return np.dtype(array.dtype).kind in "OSUT"


def encoded(
    values: NDArray[Any], what: str, names: Sequence[Any] | None = None
) -> tuple[NDArray[np.int64], tuple[Any, ...]]:
    """Positions of values (n,) among `names`, −1 for those that are missing, and the names.

    Parameters
    ----------
    values : (n,) array of texts, numbers, booleans, or objects of one of these types
    what : str
        Name of the values in errors.
    names : sequence, optional
        Default: the sorted distinct values.

    Raises
    ------
    InvalidDataError
        If a value is not among the names, or values have several types.
    """
    import pyarrow as pa

    try:
        column = pa.array(values, from_pandas=True).dictionary_encode()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidDataError(
            f"{what} must be all texts, all numbers, or all booleans ({error}); convert them first"
        ) from error
    distinct = column.dictionary.to_pylist()
    present = [value for value in distinct if not is_missing(value)]
    names = sorted(present) if names is None else names
    names = tuple(names.tolist() if isinstance(names, np.ndarray) else names)
    positions = {name: k for k, name in enumerate(names)}
    if unknown := [value for value in present if value not in positions]:
        row = int(np.argmax(column.indices.to_numpy(False) == distinct.index(unknown[0])))
        listed = ", ".join(map(repr, names[:20])) + ", …" * (len(names) > 20)
        raise InvalidDataError(
            f"{what}: the value of row {row} is {unknown[0]!r}, which is not among {listed}", row
        )
    codes = np.array([*(positions.get(value, -1) for value in distinct), -1], np.int64)
    return codes[column.indices.fill_null(len(distinct)).to_numpy(False)], names


def named_columns(
    table: Any,
    names: Sequence[str] | None = None,
    categories: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[NDArray[Any], Sequence[str] | None, dict[str, tuple[str, ...]]]:
    """Covariates of a data frame or array as numbers, their names, and the names of categories.

    Texts and booleans of a frame, and texts of an array, are numbered by their sorted names, or
    those in `categories`.  Other arrays are returned as they are, with the given names.
    """
    headings = getattr(table, "column_names", getattr(table, "columns", None))
    if headings is not None:
        columns = [plain(np.asarray(table[heading])) for heading in headings]
        default = [*map(str, headings)]
    elif is_named(table) and len(table.shape) in (1, 2):
        columns = list(plain(np.asanyarray(table)).reshape(len(table), -1).T)
        default = [f"x{j}" for j in range(len(columns))]
    else:
        return table, names, {}
    names = default if names is None else names
    categories_of: dict[str, tuple[str, ...]] = {}
    for j, (name, column) in enumerate(zip(names, columns, strict=False)):
        if is_named(column):
            known = (categories or {}).get(name)
            codes, values = encoded(column, f"the covariate {name!r}", known)
            if known is None and categories is not None:
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
    return np.column_stack(columns).astype(np.float64), names, categories_of
