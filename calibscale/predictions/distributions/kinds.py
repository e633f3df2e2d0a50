"""Kinds of forecasts by name, text and settings."""

from __future__ import annotations

from typing import Any

from calibscale.errors import OptionError, require
from calibscale.formatting.naming import parse
from calibscale.predictions.distributions import mixtures, pieces
from calibscale.predictions.distributions.forecast import Forecast
from calibscale.predictions.outcomes import OutcomeTarget


def kinds_of_forecasts() -> list[type[Forecast]]:
    """Class of each kind of forecasts."""
    return [
        value
        for module in (mixtures, pieces)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Forecast) and hasattr(value, "name")
    ]


def role_of(forecast: Any, **passed: Any) -> str | None:
    """Role of the predictions that are passed, if any.

    An OptionError is raised if there are several, or if forecasts have no kind, or a kind has none.
    """
    roles = [role for role, predictions in passed.items() if predictions is not None]
    require(len(roles) < 2, f"give exactly one of {', '.join(f'{role}=' for role in passed)}")
    if (forecast is None) != ("predictions" not in roles):
        raise OptionError("give predictions= together with their kind, forecast=")
    return roles[0] if roles else None


def forecast_of(kind: str | OutcomeTarget, **settings: Any) -> Any:
    """Forecast of a kind given by name and settings, by text, or as it is."""
    if isinstance(kind, OutcomeTarget):
        return kind
    if not settings:
        kind, settings = parse(str(kind), "a forecast", "quantiles(levels=[0.1, 0.5, 0.9])")
    kinds = {forecast_class.name: forecast_class for forecast_class in kinds_of_forecasts()}
    require(kind in kinds, f"forecast must be one of {', '.join(kinds)}", kind)
    try:
        return kinds[kind](**settings)
    except (TypeError, ValueError) as error:
        raise OptionError(f"forecast {kind!r}: {error}") from None
