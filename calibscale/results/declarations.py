"""Declarations of results: annotations from which JSON, schemas and validation follow."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import cache, cached_property
from inspect import get_annotations
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)


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

    def to_dict(self) -> dict[str, Any]:
        """JSON object, in which NaN and ∞ are null."""
        out: dict[str, Any] = {"schema": self.schema} if self.schema else {}
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
    def from_dict(cls, value: dict[str, Any], **further: Any) -> Self:
        """Result with the fields of a JSON object.  Objects in it stay dictionaries."""
        declared = (m for m in members(cls) if "computed" not in m.marks)  # type: ignore[arg-type]
        present = (m for m in declared if m.key in value or "omitted" not in m.marks)
        read = {m.attribute: value[m.key] for m in present}
        return cls(**read, **further)


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
