"""Results with texts that are safe to print, from which documents are made."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from calibscale.formatting.escapes import printed
from calibscale.results.declarations import (
    Declared,
    allows_none,
    as_json,
    item_types,
    members,
    plain_type,
)
from calibscale.results.levels import Level

_Result = TypeVar("_Result", bound=Declared)


def printed_result(result: _Result, shown: Callable[[str], str]) -> _Result:
    """Copy of a result with converted texts.

    Numbers that are not finite are NaN, or None where a number may be missing, as in results read
    from JSON, so that documents of both are the same.
    """
    hints = _hints(type(result))  # type: ignore[arg-type]
    out = copy.copy(result)
    for name, value in vars(result).items():
        if name in hints:
            vars(out)[name] = _printed(value, hints[name], shown)
    return out


@cache
def _hints(declared: Any) -> dict[str, object]:
    """Annotations of the fields of a result and of its computed members."""
    hints = get_type_hints(declared, include_extras=True)
    computed = {member.attribute: member.type for member in members(declared)}
    return {f.name: hints[f.name] for f in fields(declared)} | computed


def _printed(value: Any, hint: Any, shown: Callable[[str], str]) -> Any:
    """Value of an annotation with converted texts."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Level):
        return Level(float(value), shown(value.name))
    if isinstance(value, float) and not math.isfinite(value):
        return None if allows_none(hint) else math.nan
    if isinstance(value, Declared):
        return printed_result(value, shown)
    if isinstance(value, str):
        return shown(value)
    plain = plain_type(hint)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # NamedTuple
        return value
    if isinstance(value, dict):
        item = get_args(plain)[1]
        if item is Any:
            return printed(as_json(value), shown)
        return {_printed(k, Any, shown): _printed(v, item, shown) for k, v in value.items()}
    if isinstance(value, list | tuple) and get_origin(plain) in (list, tuple):
        hints = item_types(plain, len(value))
        return type(value)(_printed(v, h, shown) for v, h in zip(value, hints, strict=True))
    return value
