"""Days and windows of days in words."""

from __future__ import annotations

from calibscale.formatting.number_texts import plural

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def window(name: str | None) -> str:
    """Name of a window in words."""
    text = name or "–"
    first, _, last = text.partition("/")
    if last:
        return f"{day(first)} to {day(last)}"
    if text[-1] == "d" and text[:-1].isdecimal():
        return plural(int(text[:-1]), "day")
    return {"all": "all days", "day": "the day"}.get(text, text)


def day(text: str) -> str:
    """Date 2026-10-18 as “18 Oct 2026”, and 2026-10-18T06 with the part of the day."""
    date, _, part = text.partition("T")
    try:
        year, month, number_ = date.split("-")
        shown = f"{int(number_)} {_MONTHS[int(month) - 1]} {int(year)}"
        return f"{shown}, {part}" if part else shown
    except (ValueError, IndexError):
        return text


def day_short(text: str) -> str:
    """Day without its year."""
    return day(text.partition("T")[0]).rsplit(" ", 1)[0]
