"""Results as JSON holds them, checked and made safe to print before anything is written."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import date
from typing import Any

from calibscale.errors import OptionError
from calibscale.report.shapes import ONE_TEST, SHAPES, Each, Maybe, Shape

_SCHEMA = re.compile(r"calibscale\.([a-z]+)/(\d+)")
_PART = re.compile(r"(T[0-9A-Za-z_.:+-]{1,20})?")
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f]")  # they reorder what stands near
_KINDS = {
    date: "a day such as 2026-11-20",
    str: "text",
    float: "a number",
    int: "a whole number",
    bool: "true or false",
}


def read(value: Any, where: str = "the result") -> dict[str, Any]:
    """A result with every key of its schema: None where JSON has none, NaN or infinity.

    Raises
    ------
    OptionError
        If it is no result, of a schema that a report is not made from, newer, or malformed.
    """
    if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
        raise OptionError(f"{where}: not a result of calibscale: it names no schema")
    schema = value["schema"]
    found = _SCHEMA.fullmatch(schema)
    if found is None:
        raise OptionError(f"{where}: {schema[:80]!r} is no schema of calibscale")
    name, version = found[1], int(found[2])
    if name not in SHAPES:
        known = ", ".join(sorted(SHAPES))
        raise OptionError(f"{where}: there is no report of {schema}; there is one of: {known}")
    if version != 1:
        told = "was written by a newer calibscale: upgrade this one, which reads" * (version > 1)
        raise OptionError(
            f"{where}: {schema} {told or 'is unknown; this calibscale reads'} {name}/1"
        )
    out = _fitted(value, SHAPES[name], where)
    _check_days(out, where)
    if name == "test" and out["tests"] is None:  # one alone stands in the result itself
        out["tests"] = [_fitted(value, ONE_TEST, where)]
    return out


def _check_days(result: dict[str, Any], where: str) -> None:
    """Whatever is told of days must be told of each of them."""
    trend, alarms = result.get("trend"), result.get("alarms")
    if trend is not None:
        many = [("values", series["values"]) for series in trend["series"]]
        many += [("n", trend["n"])] if trend["n"] is not None else []
        _each_day(trend["days"], many, f"{where}.trend")
    if alarms is not None:
        every = [alarms, *(alarms["processes"] or ())]
        many = [("log_evidence", one["log_evidence"]) for one in every]
        _each_day(alarms["days"], many, f"{where}.alarms")


def _each_day(days: list[str], found: list[tuple[str, list[Any]]], where: str) -> None:
    for name, values in found:
        if len(values) != len(days):
            raise OptionError(f"{where}: {len(values):,} {name} for {len(days):,} days")


def _fitted(value: Any, shape: Shape, where: str) -> Any:
    """The value, if it has the shape."""
    if isinstance(shape, Maybe):
        return None if _missing(value) else _fitted(value, shape.shape, where)
    if isinstance(shape, Each):
        if not isinstance(value, dict):
            raise OptionError(f"{where} must be an object, not {_told(value)}")
        return {clean(k): _fitted(v, shape.shape, f"{where}.{k}") for k, v in value.items()}
    if isinstance(shape, tuple) and isinstance(value, list) and len(value) != len(shape):
        raise OptionError(f"{where} must have {len(shape)} items, not {len(value)}")
    if isinstance(shape, list | tuple):
        if not isinstance(value, list):
            raise OptionError(f"{where} must be a list, not {_told(value)}")
        return [_fitted(item, shape[0], f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(shape, dict):
        return _object(value, shape, where)
    if shape is object:
        return _anything(value)
    return _simple(value, shape, where)


def _object(value: Any, shape: dict[str, Shape], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"{where} must be an object, not {_told(value)}")
    out = {clean(key): _anything(item) for key, item in value.items() if key not in shape}
    for key, inner in shape.items():
        if key not in value and not isinstance(inner, Maybe):
            raise OptionError(f"{where} has no {key!r}")
        out[key] = _fitted(value.get(key), inner, f"{where}.{key}")
    _same_lengths(out, where)
    return out


_SERIES = ("values", "low", "high", "x", "bias", "standard_error", "z", "masked", "prediction")


def _same_lengths(value: dict[str, Any], where: str) -> None:
    """Series must be as long as their days, points as their coordinates."""
    lists = {key: len(value[key]) for key in _SERIES if isinstance(value.get(key), list)}
    if len(set(lists.values())) > 1:
        told = ", ".join(f"{key} {length:,}" for key, length in lists.items())
        raise OptionError(f"{where}: lists of different lengths: {told}")


def _simple(value: Any, shape: Any, where: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        date: isinstance(value, str) and _is_day(value),
        str: isinstance(value, str),
        bool: isinstance(value, bool),
        int: number and math.isfinite(value) and value == int(value),
        float: number and math.isfinite(value),
    }
    if not fits[shape]:
        raise OptionError(f"{where} must be {_KINDS[shape]}, not {_told(value)}")
    if shape is int:
        return int(value)
    return clean(value) if shape is str else value


def _is_day(text: str) -> bool:
    """Whether it is a day, or a part of one such as 2026-11-20T06."""
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return _PART.fullmatch(text[10:]) is not None


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _anything(value: Any) -> Any:
    """A JSON value with clean texts; NaN and infinity are None."""
    if isinstance(value, dict):
        return {clean(str(key)): _anything(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_anything(item) for item in value]
    if isinstance(value, str):
        return clean(value)
    return None if _missing(value) else value


def clean(text: str) -> str:
    """Text on one line, without what steers a terminal or turns the direction of writing."""
    kept = (c if unicodedata.category(c) not in ("Cc", "Cs", "Cn") else " " for c in text)
    return _TURNS.sub("", "".join(kept))


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
