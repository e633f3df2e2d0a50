"""Dates and times as numbers, and the periods that they are grouped by.

A time is a number of seconds since 1970-01-01, in local time where a column has a time zone.  A
time of the day is a number of seconds since midnight.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from typing import Any

import numpy as np

from calibscale.array_types import Floats

PERIODS = ("year", "quarter", "month", "week", "day", "hour", "weekday")
DATE, TIMESTAMP, CLOCK = "date", "timestamp", "time of the day"
DURATION = "duration"  # a number of seconds, and no time
KINDS_OF_TIMES = (DATE, TIMESTAMP, CLOCK)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_HOUR, _DAY = 3600, 86400
_MONDAY = 3  # days from 1970-01-01, a Thursday, back to its Monday
_EPOCH = datetime(1970, 1, 1)
_QUARTER = re.compile("([0-9]{4})-?Q([1-4])")


def period_numbers(seconds: Floats, period: str) -> Floats:
    """Number of the period of each time (c,), NaN for NaN.

    Years, months and so on are counted from 1970.  Hours are hours of the day, 0 to 23, and
    weekdays begin with Monday, 0.
    """
    numbers = np.full(seconds.shape, np.nan)
    is_known = np.isfinite(seconds)
    whole_seconds = np.floor(seconds[is_known]).astype(np.int64)
    # Divisions round down, also for times before 1970.
    days = whole_seconds // _DAY
    if period == "hour":
        numbers[is_known] = whole_seconds % _DAY // _HOUR
    elif period == "weekday":
        numbers[is_known] = (days + _MONDAY) % len(WEEKDAYS)
    elif period == "day":
        numbers[is_known] = days
    elif period == "week":
        numbers[is_known] = (days + _MONDAY) // len(WEEKDAYS)
    else:
        months = days.astype("M8[D]").astype("M8[M]").astype(np.int64)
        numbers[is_known] = months // {"month": 1, "quarter": 3, "year": 12}[period]
    return numbers


def period_label(number: float, period: str) -> str:
    """Name of a period, such as 2026, 2026-Q3, 2026-09, 2026-W37, 2026-09-14, 13:00 or Monday."""
    count = int(number)
    if period == "hour":
        return f"{count:02d}:00"
    if period == "weekday":
        return WEEKDAYS[count]
    if period == "day":
        return str(np.datetime64(count, "D"))
    if period == "month":
        return str(np.datetime64(count, "M"))
    if period == "quarter":
        return f"{1970 + count // 4}-Q{count % 4 + 1}"
    if period == "year":
        return str(1970 + count)
    # In ISO 8601, the year of a week is the year of its Thursday.  1970-01-01 was a Thursday.
    thursday = np.datetime64(7 * count, "D")
    year = thursday.astype("M8[Y]")
    return f"{year}-W{int((thursday - year.astype('M8[D]')).astype(int)) // 7 + 1:02d}"


def time_label(seconds: float, kind: str) -> str:
    """Name of a time of a column of a kind, such as 2026-09-14 or 2026-09-14 13:05:00."""
    if not np.isfinite(seconds):
        return str(seconds)
    milliseconds = np.datetime64(round(1000 * seconds), "ms")
    date, _, clock = str(milliseconds).partition("T")
    clock = clock.removesuffix(".000")
    return {DATE: date, CLOCK: clock}.get(kind, f"{date} {clock}")


def parsed_time(text: Any) -> float | None:
    """Seconds of a date or time in ISO 8601, such as 2026-09 or 2026-09-14T13:05; None otherwise.

    The local time is taken where a zone is stated.  A period of pandas, such as 2026Q3 or
    2026-09-14/2026-09-20, has the time of its start.

    >>> parsed_time("1970-01-02"), parsed_time("1970-01-01 01:00+02:00"), parsed_time("north")
    (86400.0, 3600.0, None)
    """
    if not isinstance(text, str) or not text[:4].isdecimal():
        return None
    text = text.partition("/")[0]
    # A quarter begins with its first month.
    if quarter := _QUARTER.fullmatch(text):
        text = f"{quarter[1]}-{3 * int(quarter[2]) - 2:02d}"
    if "-" not in text:
        return None
    # A month begins on its first day.
    iso_text = f"{text}-01" if len(text) == len("2026-09") else text
    try:
        moment = datetime.fromisoformat(iso_text).replace(tzinfo=None)
    except ValueError:
        return None
    return (moment - _EPOCH) / timedelta(seconds=1)


def parsed_clock(text: Any) -> float | None:
    """Seconds since midnight of a time of the day, such as 13:05 or 13:05:10, or None otherwise.

    >>> parsed_clock("01:00:30"), parsed_clock("2026-09-14")
    (3630.0, None)
    """
    if not isinstance(text, str) or ":" not in text:
        return None
    try:
        clock = time.fromisoformat(text)
    except ValueError:
        return None
    return clock.hour * 3600.0 + clock.minute * 60 + clock.second + clock.microsecond / 1e6
