"""Names of calibration errors in papers and other packages, and the estimators that they mean.

One table has every such name.  A value is the text of an estimator where it is the same quantity,
or else a sentence that says what to use instead.
"""

from __future__ import annotations

_CLASS_WISE = "Use cwce2, the squared binned error of each class, summed over the classes."
_ROOT = "Use tce2, the square of this error; results have its root."
_ADAPTIVE = (
    "The adaptive calibration error of Nixon et al. (2019) is a mean over all classes. "
    "ece(edges=equal-mass) is the adaptive error of the top label, and cwce2 the squared error of "
    "every class."
)
_HOSMER_LEMESHOW = (
    "Use calibration_test (calibscale test) with the statistic tce2(bins=10, edges=equal-mass), "
    "which tests the same hypothesis by drawn labels."
)
_CUMULATIVE = "Use ecce_mad, the largest cumulative difference."
_ISOTONIC = "Use ici, the mean distance from the isotonic regression."
_PARTS = "Use brier_decomposition, whose details have the parts of the Brier score."
_DISCRIMINATION = "It measures discrimination, not calibration: use sklearn.metrics.roc_auc_score."

# Keys are written as `plain_name` writes them: in lower case, without separators.
SYNONYMS = {
    # accuracy and the average of the predictions
    "acc": "accuracy",
    "top1accuracy": "accuracy",
    "calibrationinthelarge": "confidence_gap",
    # proper scores
    "brierscore": "brier",
    "quadraticscore": "brier",
    "crossentropy": "nll",
    "crossentropyloss": "nll",
    "ignorancescore": "nll",
    "logloss": "nll",
    "negativeloglikelihood": "nll",
    "nllloss": "nll",
    "continuousrankedprobabilityscore": "crps",
    "logarithmicscore": "log_score",
    "quantileloss": "pinball_loss",
    "pinball": "pinball_loss",
    # binned errors
    "calibrationerror": "ece",
    "eceequalwidth": "ece",
    "ecel1": "ece",
    "expectedcalibrationerror": "ece",
    "adaptiveece": "ece(edges=equal-mass)",
    "eceem": "ece(edges=equal-mass)",
    "eceequalmass": "ece(edges=equal-mass)",
    "equalmassece": "ece(edges=equal-mass)",
    "quantilebinnedece": "ece(edges=equal-mass)",
    "ecesweep": "ece(edges=sweep)",
    "sweepece": "ece(edges=sweep)",
    "maximumcalibrationerror": "mce",
    "maxcalibrationerror": "mce",
    # errors without bins
    "smece": "smooth_ece",
    "smoothcalibrationerror": "smooth_ece",
    "smoothedece": "smooth_ece",
    "integratedcalibrationindex": "ici",
    "calibrationslope": "cox_slope",
    "cox": "cox_slope",
    "spiegelhalterz": "spiegelhalter",
    "spiegelhaltersz": "spiegelhalter",
    "mcb": "corp",
    "corpmcb": "corp",
    "ecekuiper": "ecce_range",
    "ecceks": "ecce_mad",
    # predictive distributions
    "intervalcoverage": "coverage",
    "picp": "coverage",
    "kuiper": "pit_kuiper",
    "pitkolmogorovsmirnov": "pit_ks",
    "pitcramervonmises": "pit_cvm",
    "localcalibrationerror": "klce",
    # other quantities
    "ace": _ADAPTIVE,
    "adaptivecalibrationerror": _ADAPTIVE,
    "classwiseece": _CLASS_WISE,
    "cwece": _CLASS_WISE,
    "sce": _CLASS_WISE,
    "staticece": _CLASS_WISE,
    "staticcalibrationerror": _CLASS_WISE,
    "tace": _CLASS_WISE,
    "rmsce": _ROOT,
    "rmscalibrationerror": _ROOT,
    "rootmeansquarecalibrationerror": _ROOT,
    "ecel2": _ROOT,
    "l2ece": _ROOT,
    "debiasedece": "Use tce2_debiased, the squared error without bias.",
    "ecedebiased": "Use tce2_debiased, the squared error without bias.",
    "debiasedrmsce": "Use tce2_debiased, the squared error without bias; results have its root.",
    "brierscoreloss": (
        "Use brier, the sum over all classes; brier_score_loss of scikit-learn is half of it for "
        "two classes."
    ),
    "brierskillscore": "Use brier, and compare it with the score of the reference forecast.",
    "hosmerlemeshow": _HOSMER_LEMESHOW,
    "hltest": _HOSMER_LEMESHOW,
    "mmce": "Use kce, an unbiased kernel calibration error of the whole prediction.",
    "skce": "Use kce, the squared kernel calibration error of the whole prediction, or jkce.",
    "kscalibrationerror": _CUMULATIVE,
    "kserror": _CUMULATIVE,
    "calibrationintercept": "Use cox_intercept, whose details have the intercept with slope 1.",
    "emax": "Use mce, the largest distance of a bin, or ici, the mean distance.",
    "e50": _ISOTONIC,
    "e90": _ISOTONIC,
    "reliabilitydiagram": "Use the function reliability (calibscale reliability).",
    "refinement": _PARTS,
    "resolution": _PARTS,
    "auc": _DISCRIMINATION,
    "auroc": _DISCRIMINATION,
    "rocaucscore": _DISCRIMINATION,
    "f1": "It measures decisions, not probabilities: use sklearn.metrics.f1_score.",
}
