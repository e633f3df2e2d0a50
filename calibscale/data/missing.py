"""What is missing in a column of any origin, and columns as NumPy arrays of numbers or objects.

None, NaN, ``pandas.NA``, NaT, masked entries, nulls of Arrow and JSON, keys that a JSON object does
not have, empty cells and texts of blanks mean the same thing.  In arrays of numbers they are NaN,
in arrays of other values None.  The readers of files, the sources of arrays and frames, and the
functions of arrays convert their columns here.  The meaning of a missing value follows from the
role of its column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data.arrow_values import numpy_of
from calibscale.data.time_columns import without_zone

# Texts that mean a missing number in files of text, in lower case.
_NOT_NUMBERS = frozenset(("", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none"))


def is_missing(value: Any) -> bool:
    """Whether one value is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale.data.missing import is_missing
    >>> [is_missing(value) for value in (None, float("nan"), " ", np.ma.masked, 0, "0")]
    [True, True, True, True, False, False]
    """
    if value is None or value is np.ma.masked:
        return True
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Decimal):
        return value.is_nan()
    try:
        return bool(value != value)  # NaN and NaT
    except (TypeError, ValueError):  # pandas.NA has no truth value, and neither have arrays
        return type(value).__name__ == "NAType"


def is_missing_number(text: str) -> bool:
    """Whether a text that stands in place of a number means that the number is missing."""
    return text.strip().lower() in _NOT_NUMBERS


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """Array with NaN for missing entries, or with None if the other entries are no numbers.

    Arrays of numbers, booleans and dates without a mask are returned as they are, and not copied.
    Objects that are all numbers become numbers.  Objects that are all booleans become booleans
    unless some are missing.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale.data.missing import plain
    >>> plain(np.array([0.5, None, " "], object))
    array([0.5, nan, nan])
    >>> plain(np.ma.masked_array([1, 2], mask=[False, True]))
    array([ 1., nan])
    >>> plain(np.array(["north", ""])).tolist()
    ['north', None]
    """
    if isinstance(array, np.ma.MaskedArray):
        array = _unmasked(array)
    kind = array.dtype.kind
    if kind in "UT":
        return _of_texts(array)
    return _of_objects(array) if kind == "O" else array


def as_floats(array: NDArray[Any]) -> NDArray[Any]:
    """Numbers of a plain array in which some of the numbers or booleans may be missing.

    Arrays of other objects are returned as they are.
    """
    if array.dtype.kind != "O":
        return array
    values = array.reshape(-1)
    if not all(value is None or isinstance(value, bool | np.bool_) for value in values):
        return array
    numbers = [np.nan if value is None else float(value) for value in values]
    return np.array(numbers, np.float64).reshape(array.shape)


def missing_entries(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each entry of a plain array is missing."""
    kind = array.dtype.kind
    if kind in "fc":
        return np.isnan(array)
    if kind in "mM":
        return np.isnat(array)
    if kind in "OUT":
        return _missing_values(array.reshape(-1)).reshape(array.shape)
    return np.zeros(array.shape, bool)


def _missing_values(values: Iterable[Any]) -> NDArray[np.bool_]:
    return np.fromiter(map(is_missing, values), bool)


def _unmasked(array: np.ma.MaskedArray) -> NDArray[Any]:
    """Entries of a masked array, with NaN, NaT or None for masked ones."""
    mask = np.ma.getmaskarray(array)
    values = np.asarray(array.data)
    if not mask.any():
        return values
    if values.dtype.kind in "iu":
        values = values.astype(np.float64)
    elif values.dtype.kind not in "fcmM":
        values = values.astype(object)
    absent: Any = {"f": np.nan, "c": np.nan, "m": "NaT", "M": "NaT"}.get(values.dtype.kind)
    values = values.copy()
    values[mask] = absent
    return values


def _of_texts(array: NDArray[Any]) -> NDArray[Any]:
    """Texts as they are, or as objects if some of them are missing."""
    values = array.reshape(-1)
    gone = _missing_values(values)
    if not gone.any():
        return array
    objects = values.astype(object)
    objects[gone] = None
    return objects.reshape(array.shape)


def _of_objects(array: NDArray[Any]) -> NDArray[Any]:
    """Numbers or booleans if all objects are, else objects and None."""
    values = array.reshape(-1)
    gone = _missing_values(values)
    present = values[~gone]
    kinds = set(map(type, present))
    booleans = [kind for kind in kinds if issubclass(kind, bool | np.bool_)]
    # Missing booleans have no NumPy type, and stay objects.
    if booleans and len(booleans) == len(kinds) and not gone.any():
        return array.astype(bool)
    if not booleans and all(issubclass(kind, Number) for kind in kinds):
        numbers = _numbers(values, gone, present)
        if numbers is not None:
            return numbers.reshape(array.shape)
    objects = values.copy()
    objects[gone] = None
    return objects.reshape(array.shape)


def _numbers(
    values: NDArray[Any], gone: NDArray[np.bool_], present: NDArray[Any]
) -> NDArray[Any] | None:
    """Numbers of objects that are numbers or missing, or None if some are complex."""
    # Integers, such as ids, keep all their digits unless some are missing.
    if not gone.any() and all(isinstance(value, int | np.integer) for value in present):
        with suppress(OverflowError):  # integers beyond 64 bits become floating-point numbers
            return values.astype(np.int64)
    numbers = np.full(len(values), np.nan)
    try:
        numbers[~gone] = present.astype(np.float64)
    except OverflowError:
        numbers[~gone] = [_float(value) for value in present]
    except (TypeError, ValueError):
        return None
    return numbers


def _float(value: Any) -> float:
    """Number as floating point, infinite beyond its range."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


# ---------------------------------------------------------------- Arrow


def plain_arrow(array: Any) -> Any:
    """Arrow array of numbers, booleans, texts, dates, times, durations or lists.

    Dictionaries are decoded, views become texts, and decimals and columns of nulls become numbers.
    Timestamps are in the time of their zone.  Times of the day are durations since midnight.  The
    periods and intervals of pandas become texts.
    """
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        values = plain_arrow(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    if str(kind) == "string_view":
        return array.cast(pa.large_string())
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return array.cast(pa.float64())
    if isinstance(kind, pa.BaseExtensionType):
        texts = str(kind.extension_name).startswith("pandas.")
        return _texts_of_pandas(array) if texts else plain_arrow(array.storage)
    return without_zone(array)


def _texts_of_pandas(array: Any) -> Any:
    """Texts of periods or intervals, such as 2026-09 and (18, 30]."""
    import pyarrow as pa

    column = array.to_pandas().astype("category").cat
    texts = pa.array(map(str, column.categories), pa.string())
    codes = pa.array(column.codes, pa.int32(), mask=np.asarray(column.codes < 0))
    return pa.DictionaryArray.from_arrays(codes, texts).dictionary_decode()


def plain_type(kind: Any) -> Any:
    """Arrow type of the arrays that `plain_arrow` makes of arrays of a type."""
    import pyarrow as pa

    return plain_arrow(pa.nulls(0, kind)).type


def of_arrow(array: Any) -> NDArray[Any]:
    """NumPy array of a plain Arrow array without lists: NaN or None where entries are missing.

    Booleans become numbers if some are missing.
    """
    import pyarrow as pa

    if pa.types.is_boolean(array.type) and array.null_count:
        array = array.cast(pa.int8())
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        from pyarrow import compute  # slow to import

        # Texts of blanks are missing, as empty cells of files are.
        blank = compute.equal(compute.utf8_trim_whitespace(array), "")
        if compute.any(blank).as_py():
            array = compute.if_else(blank, pa.scalar(None, array.type), array)
    return numpy_of(array)


def texts_of(cells: Sequence[str | None]) -> NDArray[Any]:
    """Texts of the cells of a file, without blanks around them, or None where they are missing."""
    texts = np.empty(len(cells), object)
    texts[:] = [(cell.strip() or None) if cell else None for cell in cells]
    return texts
