"""Values of single keys of a job file, and their checks."""

from __future__ import annotations

import math
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator, Field

from calibscale.addresses import HIDDEN, located, shown_address
from calibscale.data.times import WEEKDAYS
from calibscale.engine.memory import parse_bytes
from calibscale.estimators.settings import hint, shown

_DAYS = re.compile(r"([1-9][0-9]{0,5})d")
_PLACES = ("date", "model", "name")
_NAME_BYTES = 200  # in a part of a path.  File systems allow 255, and files add an ending


def _day(text: str) -> str:
    try:
        if date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise ValueError(f"a day must be a date such as 2026-11-21, not {shown(text)}")


def _off_day(text: str) -> str:
    named = [day for day in WEEKDAYS if day.lower() == text.lower()]
    try:
        return named[0] if named else _day(text)
    except ValueError:
        raise ValueError(
            f"must be a date such as 2026-12-25, or a day of the week such as Saturday, not "
            f"{shown(text)}"
        ) from None


def day_range(text: str) -> tuple[str, str] | None:
    """Ends of ``FIRST/LAST``, or None if the text has no slash."""
    first, slash, last = text.partition("/")
    if not slash:
        return None
    if _day(first) > _day(last):
        raise ValueError(f"the first day of {text!r} is after its last day")
    return first, last


def checked_window(text: str) -> str:
    if text not in ("day", "all") and not _DAYS.fullmatch(text) and day_range(text) is None:
        raise ValueError(f"a window is 'day', '7d', 'all' or 'FIRST/LAST', not {shown(text)}")
    return text


def checked_baseline(text: str) -> str:
    if not _DAYS.fullmatch(text) and day_range(text) is None:
        raise ValueError(f"a baseline is '30d' or 'FIRST/LAST', not {shown(text)}")
    return text


def _days(text: str) -> str:
    if not _DAYS.fullmatch(text):
        raise ValueError(f"a number of days is '7d', not {shown(text)}")
    return text


def _name(text: str) -> str:
    """Check a name that becomes a part of paths."""
    if not text or text in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", text):
        raise ValueError(f"must be a name without / or \\, not {shown(text)}")
    if len(quote(text, safe="")) > _NAME_BYTES:
        raise ValueError(f"must be at most {_NAME_BYTES} bytes long as a part of a URL")
    return text


def address_of(text: str) -> str | Path:
    """Address that shows no secrets.  Validators of pydantic 2.7 must have a single parameter."""
    return located(text)


def _template(text: str) -> str:
    """Check a path with placeholders in braces."""
    if not text or "\x00" in text:
        raise ValueError("must be a path")
    for place in re.findall(r"\{([^{}]*)\}", text):
        if place not in _PLACES:
            # A brace may belong to a password in a URL.
            named = f"{{{place}}}"
            named = named if named in shown_address(text) else HIDDEN
            raise ValueError(f"unknown placeholder {named}; {hint(place, _PLACES)}")
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", text)):
        raise ValueError(f"unmatched brace in {shown_address(text)!r}")
    return text


def _names(value: Any) -> str | tuple[str, ...]:
    """Check one name or a list of names."""
    many = value if isinstance(value, list | tuple) else [value]
    if not many or not all(isinstance(name, str) and name for name in many):
        raise ValueError(f"must be a name or a list of names, not {shown(value)}")
    return value if isinstance(value, str) else tuple(value)


def _group(value: Any) -> float | str:
    if isinstance(value, str) and value.strip():
        return value
    # In Python a bool is an int.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"must be the name or number of a group, or 'each', not {shown(value)}")
    return float(value)


def _size(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"must be a size such as '2GB', not {shown(value)}")
    if parse_bytes(value) <= 0:  # type: ignore[operator]
        raise ValueError(f"must be positive, not {shown(value)}")
    return value


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise ValueError(f"{shown(value)} is listed twice")
    return values


Day = Annotated[str, AfterValidator(_day)]
OffDay = Annotated[str, AfterValidator(_off_day)]
Window = Annotated[str, AfterValidator(checked_window)]
Baseline = Annotated[str, AfterValidator(checked_baseline)]
Days = Annotated[str, AfterValidator(_days)]
Name = Annotated[str, AfterValidator(_name)]
Template = Annotated[str, AfterValidator(_template)]
Address = Annotated[str, AfterValidator(_template), AfterValidator(address_of)]
Names = Annotated[str | tuple[str, ...], BeforeValidator(_names)]
Group = Annotated[float | str, BeforeValidator(_group)]
Size = Annotated[int | str, BeforeValidator(_size)]
Level = Annotated[float, Field(gt=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Unique = AfterValidator(_unique)
