"""Declarations of results: annotations from which JSON, schemas and validation follow."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from functools import cache, cached_property
from inspect import get_annotations
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np


class Mark(NamedTuple):
    """Mark of the annotation of a field or property, for its member of the JSON object."""

    kind: str
    key: str = ""


class Bounds(NamedTuple):
    """Bounds of a number in JSON."""

    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None


class Values(tuple[str, ...]):
    """Values that a text in JSON may have."""


class Having(tuple[str, ...]):
    """Keys that a JSON object has, besides others."""


class Object:
    """Declaration of a dictionary: types of its members by key, and a description."""

    def __init__(self, name: str, about: str = "", /, **types: Any) -> None:
        self.__name__, self.__doc__ = name, about
        self.members = tuple(_member(key, hint) for key, hint in types.items())


def key(name: str) -> Mark:
    """Mark of a member with another name than its attribute."""
    return Mark("key", name)


Json = dict[str, Any]
_T = TypeVar("_T")
Hidden = Annotated[_T, Mark("hidden")]  # field that is no member
Computed = Annotated[_T, Mark("computed")]  # property that is a member
Omitted = Annotated[_T, Mark("omitted")]  # left out if None or empty
Later = Annotated[_T, Mark("later")]  # missing in results of earlier versions
Inline = Annotated[_T, Mark("inline")]  # its members are those of the object that has it
# A float in JSON is a number, or null where it is NaN or infinite.  With limits it is a number.
Finite = Annotated[float, Bounds()]
Count = Annotated[int, Bounds(ge=0)]
Size = Annotated[float, Bounds(ge=0)]
Share = Annotated[float, Bounds(ge=0, le=1)]
Fraction = Annotated[float, Bounds(gt=0, lt=1)]
DAY = "day"
Day = Annotated[str, DAY]  # such as 2026-11-20, or a part of a day


class Member(NamedTuple):
    """Member of a JSON object: its key, attribute, type, and kinds of marks."""

    key: str
    attribute: str
    type: Any
    marks: frozenset[str]


@cache
def members(declared: Any) -> tuple[Member, ...]:
    """Members of the JSON object that a dataclass or `Object` declares.

    Members are the fields, then the properties that return a `Computed`, from base classes on.
    """
    if isinstance(declared, Object):
        return declared.members
    hints = get_type_hints(declared, include_extras=True)
    by_attribute: dict[str, Member] = {}
    names = {f.name for f in fields(declared)}
    for base in reversed(declared.__mro__):
        # A derived class may narrow the type of a member, which then keeps its place.
        by_attribute |= {
            name: _member(name, hints[name]) for name in get_annotations(base) if name in names
        }
        # The type of a property is the annotation of its return value.
        for name, value in vars(base).items():
            getter = _getter(value)
            if getter is not None and "return" in getter.__annotations__:
                member = _member(name, get_type_hints(getter, include_extras=True)["return"])
                if "computed" in member.marks:
                    by_attribute[name] = member
    return tuple(member for member in by_attribute.values() if "hidden" not in member.marks)


def _getter(attribute: Any) -> Any:
    """Return the function of a property, or None for another attribute."""
    if isinstance(attribute, cached_property):
        return attribute.func
    return attribute.fget if isinstance(attribute, property) else None


def _member(name: str, hint: Any) -> Member:
    marks: list[Mark] = []
    if get_origin(hint) is Annotated:
        plain, *data = get_args(hint)
        marks += [d for d in data if isinstance(d, Mark)]
        constraints = [d for d in data if not isinstance(d, Mark)]
        hint = Annotated[plain, *constraints] if constraints else plain
    named = [mark.key for mark in marks if mark.key]
    return Member(named[0] if named else name, name, hint, frozenset(m.kind for m in marks))


class Declared:
    """Dataclass with fields and `Computed` properties that declare a JSON object.

    The declaration gives `to_dict`, the published JSON Schema, and the validation of result files
    (`calibscale.results.schemas`).
    """

    schema: ClassVar[str] = ""

    def to_dict(self) -> Json:
        """JSON object, in which NaN and ∞ are null."""
        out: Json = {"schema": self.schema} if self.schema else {}
        for member in members(type(self)):  # type: ignore[arg-type]
            value = as_json(getattr(self, member.attribute))
            if "inline" in member.marks:
                # A member of the object itself replaces an inline member of the same name.
                out |= {name: item for name, item in value.items() if name not in out}
            # Numbers of 0 and flags that are false say something, unlike None and empty lists.
            elif value or value in (0, False) or "omitted" not in member.marks:
                out[member.key] = value
        return out

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore a result from its JSON object, with all of its parts.

        Parameters
        ----------
        value : dict
            JSON object.  Members of earlier versions may be missing.
        **further
            Fields that are no members.  Classes that can derive their hidden fields from the
            members do so in a method of this name.

        Notes
        -----
        A member that is missing has its default, or is None.  A computed member that is a
        `property` follows from the restored members.  If it is a `cached_property`, it follows from
        hidden fields that JSON does not have, and keeps the value of the JSON object.
        """
        restored = dict.fromkeys(_without_default(cls))
        cached: dict[str, object] = {}
        for member in members(cls):  # type: ignore[arg-type]
            if "inline" in member.marks:
                restored[member.attribute] = restored_value(value, member.type)
            elif _is_missing(member, value):
                continue
            elif "computed" not in member.marks:
                restored[member.attribute] = restored_value(value[member.key], member.type)
            elif isinstance(getattr(cls, member.attribute), cached_property):
                cached[member.attribute] = restored_value(value[member.key], member.type)
        result = cls(**restored | further)
        vars(result).update(cached)
        return result


def _without_default(declared: Any) -> list[str]:
    """Names of the members of earlier versions, which may be missing, that have no default."""
    optional = {m.attribute for m in members(declared) if m.marks & {"omitted", "later"}}
    return [
        f.name
        for f in fields(declared)
        if f.name in optional and f.default is MISSING and f.default_factory is MISSING
    ]


def _is_missing(member: Member, value: Json) -> bool:
    """Whether a JSON object of this or an earlier version lacks a member."""
    if "omitted" in member.marks:
        return value.get(member.key) is None
    return "later" in member.marks and member.key not in value


def restored_value(value: Any, hint: Any) -> Any:
    """Value of an annotation for its JSON value, where null is NaN if it has to be a float."""
    if value is None:
        return math.nan if plain_type(hint) is float and not allows_none(hint) else None
    if get_origin(hint) is Annotated and isinstance(get_args(hint)[1], Object):
        return _without_missing(value, get_args(hint)[1])
    hint = plain_type(hint)
    if isinstance(hint, type) and issubclass(hint, Declared):
        return hint.from_dict(value)
    if isinstance(hint, type) and hasattr(hint, "_fields"):  # NamedTuple
        return hint(*map(restored_value, value, get_type_hints(hint).values()))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is np.ndarray:
        return np.array(value, get_args(arguments[1])[0])
    if origin is dict:
        return {name: restored_value(item, arguments[1]) for name, item in value.items()}
    if origin in (list, tuple):
        return origin(map(restored_value, value, item_types(hint, len(value))))
    return value


def _without_missing(value: Json, declared: Object) -> Json:
    """Copy of a dictionary that lacks its omitted members, which a validated file has as null."""
    omitted = {member.key for member in declared.members if "omitted" in member.marks}
    return {name: item for name, item in value.items() if item is not None or name not in omitted}


def plain_type(hint: Any) -> Any:
    """Type of an annotation without its constraints, and without None if it is one type or None.

    A dictionary that declares its members stays a dictionary.
    """
    alias = getattr(get_origin(hint), "__value__", None)  # NDArray since NumPy 2.5
    if alias is not None:
        return alias[get_args(hint)]
    if get_origin(hint) is Annotated:
        return plain_type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        types = [argument for argument in get_args(hint) if argument is not NoneType]
        return plain_type(types[0]) if len(types) == 1 else hint
    return hint


def allows_none(hint: Any) -> bool:
    """Whether a value of an annotation may be None."""
    if get_origin(hint) is Annotated:
        return allows_none(get_args(hint)[0])
    return get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)


def item_types(hint: Any, count: int) -> list[Any]:
    """Annotations of the `count` items of a list or tuple."""
    arguments = get_args(hint)
    if get_origin(hint) is list or arguments[-1] is Ellipsis:
        return [arguments[0]] * count
    return list(arguments)


def as_json(value: Any) -> Any:
    """JSON value of a result, array or collection.  NaN and ∞ become None."""
    if isinstance(value, Declared):
        return value.to_dict()
    if hasattr(value, "tolist"):  # NumPy arrays and numbers
        value = value.tolist()
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
