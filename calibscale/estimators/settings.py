"""Types, defaults and values of settings of estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from calibscale.addresses import without_secrets
from calibscale.errors import OptionError
from calibscale.estimators.registry import ESTIMATORS, named
from calibscale.formatting.naming import plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from calibscale.estimators.base import Estimator


def hint(name: Any, valid: Iterable[str]) -> str:
    """The valid name closest to a misspelt one, or else all of them."""
    valid = list(valid)
    near = [candidate for candidate in valid if plain_name(candidate) == plain_name(name)]
    near = near or get_close_matches(str(name), valid, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    allowed = ", ".join(valid) or "none"
    return f"allowed: {allowed}"


def shown(value: Any) -> str:
    """A value as text, without the secrets of URLs, truncated if long."""
    text = without_secrets(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


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


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value))


def _name_or_floats(value: Any) -> str | tuple[float, ...]:
    return value if type(value) is str else _floats(value)


def _float_or_table(value: Any) -> float | dict[str, float]:
    if type(value) is dict:
        return {name: float(number) for name, number in value.items()}
    return float(value)


# Description, test and conversion of the values of a setting, by the annotation of its field.
_TYPES: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "int": ("a whole number", lambda value: type(value) is int, int),
    "float": ("a number", _is_number, float),
    "str": ("a string", lambda value: type(value) is str, str),
    "tuple[str, ...]": ("a list of names", _are_names, tuple),
    "Sequence[float]": ("a list of numbers", _are_numbers, _floats),
    "str | Sequence[float]": (
        "a name, or a list of numbers",
        _is_name_or_numbers,
        _name_or_floats,
    ),
    "float | Mapping[str, float]": (
        "a number, or a table of numbers by name",
        _is_number_or_table,
        _float_or_table,
    ),
}


class Setting(NamedTuple):
    """Setting of an estimator: its type, as written in the class, and its default."""

    annotation: str
    default: Any

    def checked(self, value: Any) -> Any:
        """Return the value converted to the type of the setting.

        An OptionError is raised for other types.
        """
        annotation = self.annotation.removesuffix(" | None")
        if value is None and annotation != self.annotation:
            return None
        description, fits, converted = _TYPES[annotation]
        if not fits(value):
            raise OptionError(f"must be {description}, not {shown(value)}")
        return converted(value)


# Settings of the feature map `RandomFourier`, in the order of its fields.
FEATURES = {
    "features": Setting("int", 100),
    "bandwidth": Setting("float | None", None),
    "seed": Setting("int", 0),
}


def settings_of(name: str) -> dict[str, Setting]:
    """Settings of an estimator by name.

    Settings of random features stand for the feature map.
    """
    kind = ESTIMATORS[name]
    settings = {
        f.name: Setting(str(f.type), None if f.default is MISSING else f.default)
        for f in fields(kind)  # type: ignore[arg-type]
        if f.init and f.repr and f.name not in kind.fixed
    }
    return settings | FEATURES if "features" in settings else settings


def build(name: str, settings: Mapping[str, Any]) -> Estimator:
    """Estimator of a name.

    An OptionError is raised if it or a setting is unknown, or if a value is impossible.
    """
    name, implied = named(name)
    accepted, values = settings_of(name), {}
    settings = {**implied, **settings}
    for key, value in settings.items():
        if key not in accepted:
            raise OptionError(f"{name} has no setting {key!r}; {hint(key, accepted)}")
        try:
            values[key] = accepted[key].checked(value)
        except OptionError as error:
            raise OptionError(f"{name}: {key} {error}") from None
    kind = ESTIMATORS[name]
    if "features" in accepted:
        from calibscale.kernels.features import RandomFourier

        from_map = [values.get(key, default) for key, (_, default) in FEATURES.items()]
        values["features"] = RandomFourier(*from_map)
        field_names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
        values = {key: value for key, value in values.items() if key in field_names}
    return kind(**values)
