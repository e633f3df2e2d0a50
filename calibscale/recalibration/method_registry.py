"""Recalibration methods by name, those of other packages included."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from calibscale.errors import OptionError, require
from calibscale.estimators.settings import hint
from calibscale.formatting.naming import parse
from calibscale.recalibration import (
    affine_maps,
    balance,
    boosting,
    class_maps,
    conformal,
    ensemble_temperature,
    hierarchical,
    histogram_binning,
    logistic,
    nonparametric,
    one_vs_rest,
    parametric,
    prior_shift,
    spline_map,
    top_label_histogram,
    venn_abers,
)
from calibscale.recalibration.choice import AUTO
from calibscale.recalibration.recalibrator import RecalibrationMethod
from calibscale.registry import Registry, RegistryEntry

METHODS: Registry[type[RecalibrationMethod]] = Registry(
    "recalibration method",
    [
        RegistryEntry(method.name, f"{method.__module__}:{method.__name__}", summary)
        for method, summary in (
            (parametric.Identity, "predictions as they are"),
            (parametric.TemperatureScaling, "one temperature of all classes"),
            (
                ensemble_temperature.EnsembleTemperature,
                "a temperature, mixed with the predictions and equal probabilities",
            ),
            (class_maps.VectorScaling, "a slope and an intercept of each class, for many classes"),
            (class_maps.MatrixScaling, "a shrunk matrix of logits, for many classes"),
            (class_maps.DirichletCalibration, "a shrunk matrix of log-probabilities"),
            (
                class_maps.StructuredScaling,
                "a matrix that is shrunk towards a temperature, for many classes",
            ),
            (one_vs_rest.OneVsRest, "a method for two classes, for each class against the rest"),
            (logistic.Platt, "logistic regression on the log-odds, for two classes"),
            (logistic.Beta, "beta calibration, with a slope for each end, for two classes"),
            (spline_map.Spline, "rising spline of the log-odds, for two classes"),
            (nonparametric.Isotonic, "isotonic regression, for two classes, means or quantiles"),
            (venn_abers.VennAbers, "two isotonic regressions with an interval, for two classes"),
            (histogram_binning.HistogramBinning, "bins with a guarantee, for two classes"),
            (
                top_label_histogram.TopLabelHistogram,
                "bins of each predicted class with a guarantee, for many classes",
            ),
            (nonparametric.BBQ, "average of binnings, for two classes"),
            (nonparametric.LocalBias, "local bias by a kernel, for two classes"),
            (hierarchical.Hierarchical, "Platt scaling by groups with shrinkage, for two classes"),
            (boosting.MCBoost, "boosting of segments, for two classes"),
            (boosting.PMCBoost, "boosting by ratios of segments, for two classes"),
            (prior_shift.PriorShift, "new shares of the classes, by Bayes' theorem"),
            (affine_maps.Affine, "affine map of predictive distributions"),
            (conformal.Conformal, "conformal adjustment of intervals and quantiles"),
            (balance.Balance, "balance of means, by groups too"),
        )
    ],
    group="calibscale.recalibration",
    base="calibscale.recalibration.recalibrator:RecalibrationMethod",
)


def method_of(text: str, **settings: Any) -> RecalibrationMethod:
    """Parse a recalibration method, such as ``mc(depth=1)``, and add settings."""
    name, text_settings = parse(text)
    if name not in METHODS:
        # The list of all methods reads the entry points of other packages.
        require(False, f"method must be one of {AUTO}, {', '.join(METHODS)}", name)
    # A setting of another method names the methods that have it.
    for key in {**settings, **text_settings}:
        owners = ", ".join(method for method in METHODS.built_in if key in _settings_of(method))
        near = f"methods with it: {owners}" if owners else hint(key, vars(METHODS[name]()))
        require(key in _settings_of(name), f"{name} has no {key} ({near})")
    try:
        return METHODS[name](**{**settings, **text_settings})
    except TypeError as error:
        raise OptionError(f"{text}: {error}") from None


def _settings_of(name: str) -> set[str]:
    """Names of the settings of a method."""
    return {field.name for field in fields(METHODS[name]) if field.init}
