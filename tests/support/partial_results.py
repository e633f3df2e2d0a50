"""Results with the members alone that a test is about."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from calibscale.results.declarations import Declared, members

_Result = TypeVar("_Result", bound=Declared)


def result_of(declared: type[_Result], value: dict[str, Any], **further: Any) -> _Result:
    """Result of a JSON object in which other members are empty."""
    return declared.from_dict(_filled(declared, value), **further)


def _filled(declared: Any, value: dict[str, Any]) -> dict[str, Any]:
    """JSON object with every member of a declaration."""
    out = dict(value)
    for member in members(declared):
        # members of an inline object are members of the object around it
        if "inline" in member.marks:
            out |= _filled(member.type, value)
        elif "computed" not in member.marks:
            out[member.key] = _filled_value(member.type, value.get(member.key))
    return out


def _filled_value(hint: Any, value: Any) -> Any:
    """JSON value of an annotation, empty if it is None."""
    if get_origin(hint) is Annotated:
        return _filled_value(get_args(hint)[0], value)
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        optional = value is None and NoneType in get_args(hint)
        # an optional member stays away
        return None if optional else _filled_value(kinds[0], value)
    origin = get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, Declared):
        return _filled(origin, value or {})
    if origin in (list, tuple):
        return [_filled_value(get_args(hint)[0], item) for item in value or ()]
    return origin() if value is None else value
