"""Estimators as text: a name, with settings in parentheses where they differ from the defaults.

Examples are ``ece`` or ``ckce(ridge=0.03, features=200)``.  The command line, job files and
functions that take estimators accept this text.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from calibscale.errors import OptionError
from calibscale.estimators.settings import FEATURES, build
from calibscale.formatting.naming import parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calibscale.estimators.base import Estimator


def estimator(requested: Any) -> Estimator:
    """Estimator from its text, or the settings of an estimator.

    Raises
    ------
    OptionError
        If the text names no estimator, or the value is of another type.

    Examples
    --------
    >>> from calibscale.estimators.estimator_texts import estimator
    >>> estimator("ece(bins=10)")
    ECE(bins=10, edges='equal-width', notion=None)
    """
    if isinstance(requested, str):
        return build(*parse(requested))
    # The settings of a bound estimator, which this module does not import, because commands show
    # settings without loading NumPy.
    settings = getattr(requested, "settings", requested)
    if isinstance(settings, type) or not hasattr(settings, "bind"):
        raise OptionError(f"an estimator is needed, such as 'ece' or ECE(), not {requested!r}")
    return settings


def text_of(requested: Estimator) -> str:
    """Name of an estimator, with the settings that differ from their defaults."""
    settings: dict[str, Any] = {}
    for f in fields(requested):  # type: ignore[arg-type]
        value = getattr(requested, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if not f.init or not f.repr or value == default:
            continue
        if f.name == "features":
            pairs = zip(FEATURES, (f.name for f in fields(value)), strict=False)
            of_map = {key: getattr(value, inner) for key, inner in pairs}
            settings |= {key: v for key, v in of_map.items() if v != FEATURES[key].default}
        else:
            settings[f.name] = value
    listed = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return f"{requested.name}({listed})" if listed else requested.name


def labels(requested: Iterable[Estimator]) -> list[str]:
    """Label of each estimator, its name, or its text if another estimator has the same name."""
    requested = list(requested)
    names = [e.name for e in requested]
    return [text_of(e) if names.count(e.name) > 1 else e.name for e in requested]
