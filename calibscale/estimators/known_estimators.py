"""Estimators by name: module, class and summary of each, imported on first use."""

# ruff: noqa: E501 (one line for each estimator)

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from calibscale.errors import OptionError
from calibscale.estimators.synonyms import SYNONYMS
from calibscale.formatting.naming import name_of, parse, plain_name
from calibscale.predictions.claims import CLASSES, includes
from calibscale.registry import Registry, RegistryEntry

if TYPE_CHECKING:
    from calibscale.estimators.base import Estimator

# Module, class, and summary of each estimator, and whether its expectation depends on n, in the
# order in which they are computed.  Tables of results show a summary up to its first comma, colon
# or semicolon.
# fmt: off
_ENTRIES = {
    "accuracy": ("scores", "Accuracy", "share of correct top labels", False),
    "brier": ("scores", "Brier", "mean squared error of the probabilities; good if small, not calibration alone", False),
    "nll": ("scores", "NLL", "mean log loss in nats; good if small, not calibration alone", False),
    "confidence_gap": ("scores", "ConfidenceGap", "confidence minus accuracy: above 0 predictions are overconfident", False),
    "ece": ("binned", "ECE", "expected calibration error: how far bins lie from the diagonal, on average", True),
    "mce": ("binned", "MCE", "the largest distance of a bin from the diagonal", True),
    "smooth_ece": ("smooth_ece", "SmoothECE", "expected calibration error with a kernel in the place of bins, and nothing to choose", True),
    "tce2": ("binned", "TCE2", "squared binned error of the top label; biased upwards by noise", True),
    "tce2_debiased": ("binned", "TCE2Debiased", "squared binned error without bias, so that it can fall below 0", False),
    "tce2_kumar": ("binned", "TCE2Kumar", "squared binned error less its bias by the formula of Kumar et al. (2019)", False),
    "cwce2": ("vector_bins", "CWCE2", "squared binned error of each class, summed over classes", True),
    "simplex_ece": ("vector_bins", "SimplexECE", "calibration error on cells of the simplex of all classes", True),
    "ecce_mad": ("score_measures", "ECCEMAD", "largest cumulative difference of events and predictions; no bins", True),
    "ecce_range": ("score_measures", "ECCERange", "range of cumulative differences of events and predictions; no bins", True),
    "corp": ("score_measures", "CORP", "miscalibration of the Brier score by isotonic regression", True),
    "murphy": ("score_curves", "Murphy", "largest loss of decisions by a threshold for lack of recalibration; no bins", True),
    "ici": ("score_measures", "ICI", "mean distance of predictions from their isotonic regression", True),
    "cox_slope": ("parametric_measures", "CoxSlope", "slope of the logistic recalibration: below 1 predictions are too extreme", False),
    "cox_intercept": ("parametric_measures", "CoxIntercept", "intercept of the logistic recalibration: below 0 predictions are too high", False),
    "spiegelhalter": ("parametric_measures", "Spiegelhalter", "z of the Brier score: above 0 it is worse than a calibrated model's", False),
    "mean_score": ("residual_tests", "MeanScore", "test of calibration in the large: predictions too high or too low on average", True),
    "cox_score": ("residual_tests", "CoxScore", "test of Cox's slope and intercept: predictions too extreme, too moderate, too high or too low", True),
    "spread_score": ("residual_tests", "SpreadScore", "square of Spiegelhalter's z by cells: Brier score other than that of calibrated predictions", True),
    "temperature_score": ("residual_tests", "TemperatureScore", "test of a temperature of all classes: predictions too extreme or too moderate", True),
    "smooth_test": ("residual_tests", "SmoothTest", "Neyman's smooth test: errors of any shape that is not too narrow", True),
    "residual_scan": ("residual_tests", "ResidualScan", "largest standardised residual of an interval of predictions: errors in one place", True),
    "atb": ("two_bin", "ATB", "squared error of two bins, averaged over the threshold between them", True),
    "atb_debiased": ("two_bin", "ATBDebiased", "averaged two-bin error without bias, so that it can fall below 0", False),
    "aurc": ("score_curves", "AURC", "mean error rate when the least confident rows are left out; not calibration", True),
    "certified_l1": ("certified", "CertifiedL1", "lower confidence bound of the L1 calibration error, valid at every n", True),
    "certified_l2": ("certified", "CertifiedL2", "lower confidence bound of the squared L2 error, valid at every n", True),
    "segment_scan": ("segment_scan", "SegmentScan", "largest standardised bias of a group or an intersection: errors in one segment", True),
    "multicalibration": ("multicalibration", "Multicalibration", "largest calibration error of all intersections of groups", True),
    "brier_decomposition": ("scores", "BrierDecomposition", "the part of the Brier score that recalibration would remove", True),
    "nll_decomposition": ("scores", "NLLDecomposition", "the part of the log loss that recalibration would remove", True),
    "crps": ("forecast_scores", "CRPS", "mean continuous ranked probability score; good if small, not calibration alone", False),
    "log_score": ("forecast_scores", "LogScore", "mean −log density of the outcomes; good if small, not calibration alone", False),
    "pinball_loss": ("forecast_scores", "PinballLoss", "mean loss of quantiles; good if small, not calibration alone", False),
    "coverage": ("forecast_scores", "Coverage", "share of outcomes in prediction intervals or sets: should be their level", False),
    "pit_kuiper": ("pit_distances", "PITKuiper", "distance of PIT values from uniform: largest excess of outcomes between two quantiles", True),
    "pit_ks": ("pit_distances", "PITKS", "distance of PIT values from uniform: largest excess of outcomes below a quantile", True),
    "pit_cvm": ("pit_distances", "PITCvM", "distance of PIT values from uniform, squared, averaged over quantiles", True),
    "normal_scores": ("pit_tests", "NormalScores", "test of the mean and variance of normal scores: forecasts too high, low, narrow or wide", True),
    "pit_smooth": ("pit_tests", "PITSmooth", "Neyman's smooth test of PIT values: forecasts of a wrong shape", True),
    "pit_by_forecast": ("pit_tests", "PITByForecast", "normal scores related to the forecast: errors that cancel between rows", True),
    "quantile_ece": ("pit_distances", "QuantileECE", "distance of levels from the shares of outcomes below their quantiles, on average", True),
    "bias": ("functional_measures", "Bias", "mean prediction minus mean outcome, or shares: above 0 predictions are too high", False),
    "squared_error": ("functional_measures", "SquaredError", "mean squared error of means; good if small, not calibration alone", False),
    "deviance": ("functional_measures", "Deviance", "mean deviance of positive means; good if small, not calibration alone", False),
    "decomposition": ("score_decompositions", "Decomposition", "miscalibration of the score of means, quantiles or expectiles by isotonic regression", True),
    "expectile_loss": ("functional_measures", "ExpectileLoss", "mean loss of expectiles; good if small, not calibration alone", False),
    "interval_score": ("functional_measures", "IntervalScore", "mean width of intervals and penalty of outcomes outside; good if small, not calibration alone", False),
    "size_stratified_coverage": ("size_strata", "SizeStratifiedCoverage", "smallest coverage of intervals or sets among strata of their size: should be their level", False),
    "worst_slab_coverage": ("worst_slabs", "WorstSlabCoverage", "coverage of intervals or sets where covariates make it smallest: should be their level", False),
    "ckce": ("ckce", "CKCE", "conditional kernel error, squared; biased upwards by noise", True),
    "ckce_centred": ("ckce", "CKCECentred", "conditional kernel error without bias: around 0 if calibrated, ranks models", False),
    "cmmd": ("ckce", "CMMD", "conditional maximum mean discrepancy, squared", True),
    "jkce": ("skce", "JKCE", "joint kernel error, squared, unbiased, so that it can fall below 0", False),
    "jkce_biased": ("skce", "JKCEBiased", "joint kernel error, squared; biased upwards by noise", True),
    "kce": ("skce", "KCE", "kernel calibration error, squared, unbiased, so that it can fall below 0", False),
    "klce": ("skce", "KLCE", "local calibration error, squared: are predictions right at all covariates", False),
}
# fmt: on
BIASED = {name for name, (_, _, _, biased) in _ENTRIES.items() if biased}
# Scores and shares, which a calibrated model need not have at any particular value.
SCORES = (
    *("accuracy", "brier", "nll", "crps", "log_score", "pinball_loss", "aurc"),
    *("squared_error", "deviance", "expectile_loss", "interval_score", "size_stratified_coverage"),
    "worst_slab_coverage",
)
# Estimators with `by_default` that judge classes, by name, so that an evaluation need not import all
# others.  A test compares the names with the classes.
_DEFAULTS_OF_CLASSES = (
    *("accuracy", "brier", "nll", "confidence_gap", "ece", "mce", "tce2", "tce2_debiased"),
    *("cwce2", "simplex_ece", "brier_decomposition", "nll_decomposition"),
    *("ckce", "cmmd", "jkce", "jkce_biased"),
)
# Estimators with neither an interval nor a noise floor, by name, so that a headline need not import
# them.
WITHOUT_JUDGEMENT = (
    *("decomposition", "pit_smooth", "pit_by_forecast", "normal_scores", "mean_score"),
    *("cox_score", "spread_score", "temperature_score", "smooth_test", "residual_scan"),
    *("segment_scan", "certified_l1", "certified_l2"),
)
LOCAL = (
    "klce",
    "multicalibration",
    "segment_scan",
    "worst_slab_coverage",
)  # have no default covariates
_LISTED = "`calibscale estimators` lists all estimators"

ESTIMATORS: Registry[type[Estimator]] = Registry(
    "estimator",
    [
        RegistryEntry(name, f"calibscale.estimators.{module}:{kind}", summary)
        for name, (module, kind, summary, _) in _ENTRIES.items()
    ],
    group="calibscale.estimators",
    base="calibscale:Estimator",
    protocol=2,
    # A name that this package explains only, because it has no such estimator, is free for others.
    synonyms=[plain for plain, meaning in SYNONYMS.items() if name_of(meaning) in _ENTRIES],
)
SUMMARIES = ESTIMATORS.summaries


def default_names(claim: str) -> list[str]:
    """Names of the estimators with `by_default` that judge a claim, in the order of computation."""
    if claim == CLASSES:
        return list(_DEFAULTS_OF_CLASSES)
    kinds = {name: ESTIMATORS[name] for name in ESTIMATORS.built_in}
    return [n for n, kind in kinds.items() if kind.by_default and includes(kind.judges, claim)]


def named(name: Any) -> tuple[str, dict[str, Any]]:
    """Name of the estimator that a name means, and the settings that it implies.

    Names are compared without regard to case, ``-`` and ``_``.  See `SYNONYMS` for other names.
    Names and synonyms of this package come before names of other packages.

    Raises
    ------
    OptionError
        If there is no such estimator.  The message names a replacement.

    Examples
    --------
    >>> from calibscale.estimators.known_estimators import named
    >>> named("smECE"), named("adaptive_ece")
    (('smooth_ece', {}), ('ece', {'edges': 'equal-mass'}))
    """
    plain = plain_name(name)
    spelt = ESTIMATORS.spelt(name)
    if spelt is not None:
        return spelt, {}
    meaning = SYNONYMS.get(plain)
    if meaning is None:
        meaning = _nearest(plain)
    elif name_of(meaning) in ESTIMATORS.built_in:
        return parse(meaning)
    raise OptionError(f"there is no estimator {name!r}; {meaning[0].lower()}{meaning[1:]}")


def _nearest(plain: str) -> str:
    """Question whether a similar name is meant, or the command that lists all names."""
    names = {plain_name(name): name for name in ESTIMATORS}
    meant = {key: text for key, text in SYNONYMS.items() if name_of(text) in ESTIMATORS.built_in}
    meant |= names
    near = get_close_matches(plain, names, 1) or get_close_matches(plain, meant, 1)
    return f"did you mean {meant[near[0]]!r}?" if near else _LISTED


def short_summary(label: str) -> str:
    """First clause of the summary of an estimator, empty if it is user-defined."""
    return re.split("[;:,]", SUMMARIES.get(name_of(label), ""))[0]
