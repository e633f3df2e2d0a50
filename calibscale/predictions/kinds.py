"""Kinds of predictions of outcomes by name, text and settings."""

from __future__ import annotations

from typing import Any

from calibscale.errors import OptionError, require
from calibscale.formatting.naming import parse
from calibscale.predictions.outcomes import OutcomeTarget
from calibscale.registry import Registry, RegistryEntry

_DISTRIBUTIONS = "calibscale.predictions.distributions"
_FUNCTIONALS = "calibscale.predictions.functionals"
# Kinds that a source declares with ``forecast=``, by name.
TARGETS: Registry[type[OutcomeTarget]] = Registry(
    "forecast",
    [
        RegistryEntry(
            "normal", f"{_DISTRIBUTIONS}.mixtures:NormalForecast", "normal distributions"
        ),
        RegistryEntry(
            "mixture", f"{_DISTRIBUTIONS}.mixtures:MixtureForecast", "mixtures of normal ones"
        ),
        RegistryEntry(
            "ensemble", f"{_DISTRIBUTIONS}.mixtures:EnsembleForecast", "members of an ensemble"
        ),
        RegistryEntry(
            "quantiles", f"{_DISTRIBUTIONS}.pieces:QuantileForecast", "quantiles at levels"
        ),
        RegistryEntry(
            "histogram", f"{_DISTRIBUTIONS}.pieces:HistogramForecast", "probabilities of bins"
        ),
        RegistryEntry("ordinal", f"{_DISTRIBUTIONS}.pieces:OrdinalForecast", "ordered classes"),
        RegistryEntry("mean", f"{_FUNCTIONALS}.means:MeanPrediction", "means"),
        RegistryEntry(
            "second_moment", f"{_FUNCTIONALS}.means:SecondMomentPrediction", "means of squares"
        ),
        RegistryEntry(
            "quantile", f"{_FUNCTIONALS}.quantiles:QuantilePrediction", "quantiles of one level"
        ),
        RegistryEntry("median", f"{_FUNCTIONALS}.quantiles:MedianPrediction", "medians"),
        RegistryEntry(
            "expectile", f"{_FUNCTIONALS}.expectiles:ExpectilePrediction", "expectiles of one level"
        ),
        RegistryEntry(
            "exceedance",
            f"{_FUNCTIONALS}.exceedances:ExceedancePrediction",
            "probabilities of outcomes above a threshold",
        ),
        RegistryEntry(
            "interval",
            f"{_FUNCTIONALS}.prediction_intervals:IntervalPrediction",
            "prediction intervals with a coverage",
        ),
        RegistryEntry(
            "set", f"{_FUNCTIONALS}.class_sets:SetPrediction", "sets of classes with a coverage"
        ),
    ],
    group="calibscale.targets",
    base="calibscale.predictions.outcomes:OutcomeTarget",
)


def role_of(forecast: Any, **passed: Any) -> str | None:
    """Role of the predictions that are passed, if any.

    An OptionError is raised if there are several, or if forecasts have no kind, or a kind has none.
    """
    roles = [role for role, predictions in passed.items() if predictions is not None]
    require(len(roles) < 2, f"give exactly one of {', '.join(f'{role}=' for role in passed)}")
    if (forecast is None) != ("predictions" not in roles):
        raise OptionError("give predictions= together with their kind, forecast=")
    return roles[0] if roles else None


def forecast_of(kind: str | OutcomeTarget | None, **settings: Any) -> Any:
    """Target of a kind given by name and settings, by text, or as it is.  None stays None."""
    if kind is None or isinstance(kind, OutcomeTarget):
        return kind
    if not settings:
        kind, settings = parse(str(kind), "a forecast", "quantiles(levels=[0.1, 0.5, 0.9])")
    require(kind in TARGETS, f"forecast must be one of {', '.join(TARGETS)}", kind)
    try:
        return TARGETS[kind](**settings)
    except (TypeError, ValueError) as error:
        raise OptionError(f"forecast {kind!r}: {error}") from None


def holds_sets(kind: str | OutcomeTarget | None) -> bool:
    """Whether columns of a kind, given by text or as it is, may hold sets of classes."""
    if isinstance(kind, OutcomeTarget):
        return kind.holds_sets
    try:
        name, _ = parse(kind or "")
    except OptionError:  # `forecast_of` raises it where the kind is needed
        return False
    return name in TARGETS and TARGETS[name].holds_sets
