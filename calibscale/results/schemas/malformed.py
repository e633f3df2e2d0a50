"""Messages of malformed JSON values: the place, what is accepted, and what was found."""

from __future__ import annotations

import math
from typing import Any

from pydantic import ValidationError

from calibscale.errors import OptionError
from calibscale.formatting.naming import short

_KINDS = {
    "model_type": "an object",
    "dict_type": "an object",
    "dataclass_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "text",
    "float_type": "a number",
    "finite_number": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_pattern_mismatch": "a day such as 2026-11-20",
    "extra_forbidden": "left out",
    "unexpected_keyword_argument": "left out",
}
_DEEPEST = 100  # levels of lists and objects


def message_of(error: ValidationError, where: str = "") -> str:
    """Message of the first value of a wrong type, or else of the first missing key."""
    # A wrong type explains more than a missing key, which may follow from it.
    first = min(error.errors(include_url=False), key=lambda detail: detail["type"] in _MISSING)
    outer, key = first["loc"][:-1], first["loc"][-1:]
    if first["type"] in _MISSING:
        outside = _place(where, outer) or "the object"
        return f"{outside} has no {key[0]!r}"
    place, expected = _place(where, (*outer, *key)), first["msg"]
    if first["type"] == "value_error":  # raised by a check of several values
        reason = str(first["ctx"]["error"])
        return f"{place}: {reason}" if place else reason
    value = short(repr(first["input"]), 40)
    if first["type"] in ("too_short", "too_long"):
        length = first["ctx"]["actual_length"]
        limit = first["ctx"].get("min_length", first["ctx"].get("max_length"))
        bound = "at least" if first["type"] == "too_short" else "at most"
        return f"{place} must have {bound} {limit:,} values, not {length}"
    expected = expected.removeprefix("Input should ").removeprefix("be ")
    subject = place or "it"
    return f"{subject} must be {_KINDS.get(first['type'], expected)}, not {value}"


_MISSING = ("missing", "missing_argument")


def _place(where: str, keys: tuple[Any, ...]) -> str:
    """Path to a value, such as ``where.days[3]``."""
    path = where + "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys)
    return path.removeprefix(".")


def require_plain(value: Any) -> None:
    """Require that numbers are finite float64 numbers and that nesting is not deep."""
    # A list of pending values instead of recursion: the nesting is what is checked.
    pending: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while pending:
        keys, item = pending.pop()
        if len(keys) > _DEEPEST:
            raise OptionError(
                f"{_place('', keys[:1])} has more than {_DEEPEST} nested lists or objects, which "
                "no result has"
            )
        if isinstance(item, dict):
            pending += [((*keys, key), member) for key, member in item.items()]
        elif isinstance(item, list):
            pending += [((*keys, i), member) for i, member in enumerate(item)]
        elif isinstance(item, float) and not math.isfinite(item):
            raise OptionError(f"{_place('', keys)} must be a finite number or null, not {item}")
        elif isinstance(item, int) and item.bit_length() > 1023:
            raise OptionError(
                f"{_place('', keys)} must be a number below 1e308, not a whole number of "
                f"{item.bit_length():,} bits"
            )
