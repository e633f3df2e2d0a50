"""Types of settings: what values of a type are, and how they are converted."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from calibscale.errors import OptionError


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(name) is str for name in value)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_number, value))


def _is_name_or_numbers(value: Any) -> bool:
    return type(value) is str or _are_numbers(value)


def _is_number_or_table(value: Any) -> bool:
    if isinstance(value, dict):
        return _are_names([*value]) and _are_numbers([*value.values()])
    return _is_number(value)


def _is_truth(value: Any) -> bool:
    # A text such as ece(flag=true) has the word, and a TOML file the value.
    return type(value) is bool or value in ("true", "false")


def _truth(value: Any) -> bool:
    return value in (True, "true")


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value))


def _name_or_floats(value: Any) -> str | tuple[float, ...]:
    return value if type(value) is str else _floats(value)


def _float_or_table(value: Any) -> float | dict[str, float]:
    if type(value) is dict:
        return {name: float(number) for name, number in value.items()}
    return float(value)


class SettingType(NamedTuple):
    """Description, test and conversion of the values of a setting."""

    description: str
    fits: Callable[[Any], bool]
    converted: Callable[[Any], Any]


_TYPES = {
    "bool": SettingType("true or false", _is_truth, _truth),
    "int": SettingType("a whole number", lambda value: type(value) is int, int),
    "float": SettingType("a number", _is_number, float),
    "str": SettingType("a string", lambda value: type(value) is str, str),
    "tuple[str, ...]": SettingType("a list of names", _are_names, tuple),
    "Sequence[float]": SettingType("a list of numbers", _are_numbers, _floats),
    "str | Sequence[float]": SettingType(
        "a name, or a list of numbers", _is_name_or_numbers, _name_or_floats
    ),
    "float | Mapping[str, float]": SettingType(
        "a number, or a table of numbers by name", _is_number_or_table, _float_or_table
    ),
}


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """Types that a union joins."""
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def without_none(annotation: str) -> str:
    """Annotation without the alternative None.

    >>> without_none("int | None"), without_none("str")
    ('int', 'str')
    """
    try:
        types = map(ast.unparse, _alternatives(ast.parse(annotation, mode="eval").body))
    except SyntaxError:  # a member of an enumeration, such as Literal[<Colour.RED: 1>]
        return annotation
    return " | ".join(name for name in types if name != "None")


def _choices(annotation: str) -> tuple[Any, ...]:
    """Values of a Literal, or nothing for other types."""
    try:
        node = ast.parse(annotation, mode="eval").body
    except SyntaxError:  # as above
        return ()
    if not isinstance(node, ast.Subscript) or ast.unparse(node.value) != "Literal":
        return ()
    try:
        values = ast.literal_eval(node.slice)
    except ValueError:  # a member of an enumeration
        return ()
    return values if isinstance(values, tuple) else (values,)


def type_of(annotation: str) -> SettingType:
    """Type of the values of an annotation without None.

    An OptionError is raised for types whose values have no text.
    """
    if annotation in _TYPES:
        return _TYPES[annotation]
    choices = _choices(annotation)
    if choices:
        listed = ", ".join(map(repr, choices))

        def is_choice(value: Any) -> bool:
            # 1 and True are equal, but only one of them is the choice.
            return any(type(value) is type(choice) and value == choice for choice in choices)

        return SettingType(f"one of {listed}", is_choice, lambda value: value)
    raise OptionError(f"has the type {annotation}, which cannot be given as text; pass an object")


class _Plain(ast.NodeTransformer):
    """Annotations without the modules of types, and with unions for Optional and Union."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(node.attr)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        container = ast.unparse(node.value)
        if container not in ("Optional", "Union"):
            return node
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        union, *others = parts
        for part in others:
            union = ast.BinOp(union, ast.BitOr(), part)
        if container == "Optional":
            union = ast.BinOp(union, ast.BitOr(), ast.Constant(None))
        return union


@cache  # an evaluation asks for every estimator, and type hints are slow to read
def annotations_of(kind: type[Any]) -> Mapping[str, str]:
    """Annotation of each field of a dataclass, in one form however the class has written it."""
    try:
        types: dict[str, Any] = get_type_hints(kind)
    except (NameError, AttributeError, TypeError):  # types imported for type checkers only
        types = {field.name: field.type for field in fields(kind)}
    return MappingProxyType({f.name: _plain_text(types[f.name]) for f in fields(kind)})


def _plain_text(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    try:
        return ast.unparse(_Plain().visit(ast.parse(text, mode="eval").body))
    except SyntaxError:  # an object whose text is no expression
        return text
