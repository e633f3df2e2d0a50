"""Defaults and values of settings of estimators, and of other classes that texts name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from calibscale.addresses import without_secrets
from calibscale.errors import OptionError
from calibscale.estimators.known_estimators import ESTIMATORS, named
from calibscale.estimators.setting_types import annotations_of, type_of, without_none
from calibscale.formatting.naming import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class Setting(NamedTuple):
    """Setting of a class: its type, as written in the class, and its default."""

    annotation: str
    default: Any

    @property
    def required(self) -> bool:
        """Whether there is no default: it is None, which the type does not allow."""
        return self.default is None and without_none(self.annotation) == self.annotation

    def checked(self, value: Any) -> Any:
        """Return the value converted to the type of the setting.

        An OptionError is raised for other types.
        """
        annotation = without_none(self.annotation)
        if value is None and annotation != self.annotation:
            return None
        setting_type = type_of(annotation)
        if not setting_type.fits(value):
            raise OptionError(f"must be {setting_type.description}, not {shown(value)}")
        return setting_type.converted(value)


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
    settings = settings_of_class(kind, kind.fixed)
    return settings | FEATURES if "features" in settings else settings


def settings_of_class(kind: Any, fixed: Collection[str] = ()) -> dict[str, Setting]:
    """Settings of a dataclass: its fields, without the `fixed` ones."""
    annotations = annotations_of(kind)
    return {
        f.name: Setting(annotations[f.name], _default(f))
        for f in fields(kind)
        if f.init and f.repr and f.name not in fixed
    }


def _default(field: Field[Any]) -> Any:
    """Default of a field, or None if there is none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def checked_values(
    name: str, accepted: Mapping[str, Setting], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Values of settings, converted to the types of the settings.

    An OptionError is raised if a setting is unknown, or if a value has another type.
    """
    values = {}
    for key, value in settings.items():
        if key not in accepted:
            raise OptionError(f"{name} has no setting {key!r}; {hint(key, accepted)}")
        try:
            values[key] = accepted[key].checked(value)
        except OptionError as error:
            raise OptionError(f"{name}: {key} {error}") from None
    return values


def build(name: str, settings: Mapping[str, Any]) -> Estimator:
    """Estimator of a name.

    An OptionError is raised if it or a setting is unknown, or if a value is impossible.
    """
    name, implied = named(name)
    accepted = settings_of(name)
    values = checked_values(name, accepted, {**implied, **settings})
    kind = ESTIMATORS[name]
    if "features" in accepted:
        from calibscale.kernels.features import RandomFourier

        from_map = [values.get(key, default) for key, (_, default) in FEATURES.items()]
        values["features"] = RandomFourier(*from_map)
        field_names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
        values = {key: value for key, value in values.items() if key in field_names}
    return kind(**values)
