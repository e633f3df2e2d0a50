"""Estimators of other installed packages, which the entry points `calibscale.estimators` name.

A package with an estimator declares its name and class in its pyproject.toml:

    [project.entry-points."calibscale.estimators"]
    overconfidence = "own_package.estimators:Overconfidence"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from calibscale.errors import OptionError
from calibscale.formatting.naming import plain_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from calibscale.estimators.base import Estimator

GROUP = "calibscale.estimators"


@cache
def installed_estimators() -> Mapping[str, EntryPoint]:
    """Entry point of each estimator of another package, by its name."""
    # The module loads tens of others, and most programs name no such estimator.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def installed_name(name: Any) -> str | None:
    """Name of an installed estimator that a name means, or None if there is none."""
    plain = plain_name(name)
    names = (point for point in installed_estimators() if plain_name(point) == plain)
    return next(names, None)


def package_of(name: str) -> str:
    """Name and version of the package that an installed estimator belongs to."""
    distribution = installed_estimators()[name].dist
    return "" if distribution is None else f"{distribution.name} {distribution.version}"


def installed_class(name: str) -> type[Estimator]:
    """Class of an installed estimator.

    An OptionError is raised if it cannot be imported, or is no estimator of this name.
    """
    origin = f"the estimator {name} of {package_of(name) or 'another package'}"
    try:
        kind: Any = installed_estimators()[name].load()
    except (Exception, SystemExit) as error:  # the package may fail in any way
        raise OptionError(f"{origin} cannot be imported: {error}") from error
    if not (is_dataclass(kind) and hasattr(kind, "finalize")):
        raise OptionError(f"{origin} is not a dataclass derived from calibscale.Estimator")
    declared = getattr(kind, "name", None)
    if declared != name:
        raise OptionError(f"{origin} has the name {declared!r} in its class: use one name for both")
    return kind  # type: ignore[return-value]
