"""Columns of dates, times and durations of any origin as columns of numbers of seconds.

A date is the number of seconds from 1970-01-01 to its midnight.  A timestamp is the number of
seconds to its wall time: the local time of the zone that the column states, or the time as it is
written.  A time of the day is the number of seconds since midnight, and a duration is its number of
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats
from calibscale.data.arrow_values import numpy_of
from calibscale.data.times import CLOCK, DATE, DURATION, KINDS_OF_TIMES, TIMESTAMP, parsed_time
from calibscale.errors import InvalidDataError

_TICKS = {"ns": 10**9, "us": 10**6, "ms": 10**3, "s": 1}  # ticks per second


def seconds_of(array: NDArray[Any]) -> Floats:
    """Seconds of dates, times or durations of NumPy, NaN where they are missing.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale.data.time_columns import seconds_of
    >>> seconds_of(np.array(["1970-01-02", "NaT"], "M8[D]"))
    array([86400.,    nan])
    >>> seconds_of(np.array([90], "m8[m]"))
    array([5400.])
    """
    kind = array.dtype.kind
    unit, count = np.datetime_data(array.dtype)
    if unit not in _TICKS or count != 1:
        # Units below nanoseconds are rounded, and days or months become seconds.
        if unit in ("ps", "fs", "as", "ns"):
            unit = "ns"
        elif unit not in ("us", "ms"):
            unit = "s"
        array = array.astype(f"{kind}8[{unit}]")
    ticks = array.astype(np.int64)
    whole_seconds, fraction = np.divmod(ticks, _TICKS[unit])
    seconds = whole_seconds + fraction / _TICKS[unit]
    # The last nanoseconds of a second are rounded down: the next second may be in another day.
    below = np.nextafter(whole_seconds + 1.0, -np.inf)
    return np.where(np.isnat(array), np.nan, np.minimum(seconds, below))


def kind_of_type(dtype: np.dtype) -> str:
    """Kind of the times of a type of NumPy, or an empty text for numbers and other types."""
    if dtype.kind == "m":
        return DURATION
    if dtype.kind == "M":
        return DATE if np.datetime_data(dtype)[0] in ("Y", "M", "W", "D") else TIMESTAMP
    return ""


def kind_of_arrow(kind: Any) -> str:
    """Kind of the times of an Arrow type, or an empty text for numbers and other types."""
    import pyarrow as pa

    types = pa.types
    if types.is_date(kind):
        return DATE
    if types.is_timestamp(kind):
        return TIMESTAMP
    if types.is_time(kind):
        return CLOCK
    return DURATION if types.is_duration(kind) else ""


def without_zone(array: Any) -> Any:
    """Arrow array of times of the day as durations, and of timestamps in the time of their zone.

    Raises
    ------
    InvalidDataError
        If the time zone is unknown.
    """
    import pyarrow as pa

    kind = array.type
    if pa.types.is_time(kind):
        # Arrow casts times of the day to integers of their own width only.
        ticks = array.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
        return ticks.cast(pa.int64()).cast(pa.duration(kind.unit))
    if not (pa.types.is_timestamp(kind) and kind.tz):
        return array
    from pyarrow import compute  # slow to import

    try:
        return compute.local_timestamp(array)
    except pa.ArrowInvalid as error:
        raise InvalidDataError(
            f"the time zone {kind.tz!r} is not in the database of this system; install tzdata, or "
            "convert the column to UTC or to times without a zone"
        ) from error


def texts_of_objects(values: NDArray[Any]) -> NDArray[Any]:
    """Objects with texts in place of periods and intervals of pandas, or None where missing."""
    if values.dtype.kind != "O":
        return values
    if not any(type(value).__name__ in ("Period", "Interval") for value in values):
        return values
    texts = [None if value is None else str(value) for value in values]
    return np.array(texts, object)


def of_objects(values: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Seconds of objects (n,) such as dates, and their kind; other objects as they are, and ""."""
    import pyarrow as pa

    values = texts_of_objects(values)
    types = {type(value).__name__ for value in values if value is not None}
    if not types or types <= {"str", "bool", "bool_", "int", "float"}:
        return values, ""
    try:
        array = pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError):
        return values, ""
    kind = kind_of_arrow(array.type)
    if not kind:
        return values, ""
    return seconds_of(numpy_of(without_zone(array))), kind


def times_named(names: Sequence[str], kinds: Sequence[str]) -> dict[str, str]:
    """Kinds of the columns that are dates or times, by name.  Durations are numbers."""
    return {n: kind for n, kind in zip(names, kinds, strict=True) if kind in KINDS_OF_TIMES}


class TextTimes:
    """Seconds of texts, for a column of texts that are all dates or times."""

    def get(self, text: str | None) -> float | None:
        """Seconds of a text, or None if it is no date."""
        return parsed_time(text)


def are_times(texts: Iterable[str]) -> bool:
    """Whether all texts are dates or times."""
    return all(parsed_time(text) is not None for text in texts)
