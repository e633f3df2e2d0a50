"""Results restored from JSON, with all of their parts."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from calibscale.results.declarations import Declared, Json, Member, members

_D = TypeVar("_D", bound=Declared)


class Restored(Declared):
    """Declared result that restores its parts as well."""

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore a result from its JSON object, with `further` fields that are no members."""
        return restored(cls, value, **further)


def restored(declared: type[_D], value: Json, **further: Any) -> _D:
    """Restore a declared result from its JSON object, with all of its parts.

    A member that is missing has its default, or is None.  A computed member that is a
    `cached_property` follows from hidden fields that JSON does not have, and keeps the value of
    the JSON object.
    """
    read: dict[str, Any] = {}
    cached: dict[str, Any] = {}
    for member in members(declared):  # type: ignore[arg-type]
        if "inline" in member.marks:
            read[member.attribute] = _restored_value(value, member.type)
        elif _is_missing(member, value):
            continue
        elif "computed" not in member.marks:
            read[member.attribute] = _restored_value(value[member.key], member.type)
        elif isinstance(getattr(declared, member.attribute), cached_property):
            cached[member.attribute] = _restored_value(value[member.key], member.type)
    for field in fields(declared):  # type: ignore[arg-type]
        if field.name in read or field.name in further:
            continue
        # A hidden field may be the source of a computed member with the name of the field.
        if field.name in value:
            read[field.name] = value[field.name]
        elif field.default is MISSING and field.default_factory is MISSING:
            read[field.name] = None
    result = declared(**read, **further)
    vars(result).update(cached)
    return result


def _is_missing(member: Member, value: Json) -> bool:
    """Whether a JSON object of this or an earlier version lacks a member."""
    return bool(member.marks & {"omitted", "later"}) and value.get(member.key) is None


def _restored_value(value: Any, hint: Any) -> Any:
    """Value of an annotation for its JSON value, where null is NaN if it has to be a float."""
    hint, optional = _plain_type(hint)
    if value is None:
        return math.nan if hint is float and not optional else None
    if isinstance(hint, type) and issubclass(hint, Declared):
        overrides = issubclass(hint, Restored)
        return hint.from_dict(value) if overrides else restored(hint, value)
    if isinstance(hint, type) and hasattr(hint, "_fields"):  # NamedTuple
        return hint(*map(_restored_value, value, get_type_hints(hint).values()))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is np.ndarray:
        return np.array(value, get_args(arguments[1])[0])
    if origin is dict and arguments[1] is not Any:
        return {name: _restored_value(item, arguments[1]) for name, item in value.items()}
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return origin(_restored_value(item, arguments[0]) for item in value)
    if origin is tuple:
        return tuple(map(_restored_value, value, arguments))
    return value


def _plain_type(hint: Any) -> tuple[Any, bool]:
    """Type of an annotation without constraints and None, and whether it allows None."""
    alias = getattr(get_origin(hint), "__value__", None)  # NDArray since NumPy 2.5
    if alias is not None:
        return alias[get_args(hint)], False
    if get_origin(hint) is Annotated:
        return _plain_type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        types = [argument for argument in get_args(hint) if argument is not NoneType]
        optional = len(types) < len(get_args(hint))
        return (_plain_type(types[0])[0] if len(types) == 1 else hint), optional
    return hint, False
