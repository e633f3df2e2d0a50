"""Terms of results in words: measures, notions, settings, and what terms mean."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from calibscale.formatting.number_texts import rounded

SIGN = "mean of y − p; above 0, predictions are too low"  # sign of a bias
GAP_SIGN = "confidence_gap: prediction minus frequency, above 0 if predictions are too high"
NOTIONS = {
    "pit": "quantiles",
    "forecast": "forecast",
    "prediction": "prediction",
    "top_label": "top label",
    "class_wise": "class by class",
    "canonical": "all classes",
    "positive": "positive class",
    "event": "claimed event",
}
TERMS = {
    "calibrated": "of the rows with a prediction of 0.8, 80 % come true",
    "interval": "confidence interval: it covers the true value with the stated probability",
    "at this n": "the interval of a biased estimate covers its expectation at this number of rows, "
    "not the value of the population; a note below the table names such estimates",
    "root": "the square root of a squared error, in the units of a probability",
    "± approx.": "the error of a faster computation, not of sampling",
    "window": "a range of days, with the same results as one pass over all of their rows",
    "threshold": "a limit set in advance in the job file",
    "check": "a question about the days of the ledger, which the job file names",
    "p-value": "the probability of a value at least as large by chance alone; ≤ marks the smallest "
    "p-value of this number of replicates",
    "adjusted": "a p-value corrected for the number of tests (by Holm, or for groups by Westfall "
    "and Young)",
    "95 % null quantile": "a calibrated model stays below this value in 95 % of cases",
    "evidence": "E is the gain of a bet against calibration: if the model is calibrated, the "
    "probability that E ever reaches 20 is at most 5 %, at any number of looks",
    "drift": "change of the error since the baseline",
    "band": "range of a bin's frequency if the model were calibrated; red points lie outside",
    "rank": "position in the order of models, with its probability",
    "risk": "distance of an estimator from the true error, up to a constant; smaller is better",
    "bias": f"{SIGN}; here near a point",
    "unlabelled": "rows whose label is not known yet; they are used once it is",
    "power": "the probability that the test detects the bias",
}


class WithNotion(Protocol):
    """Number with the name of its estimator and with its notion."""

    @property
    def estimator(self) -> str:
        """Name of the estimator."""

    @property
    def notion(self) -> str | None:
        """Notion of calibration that is judged."""


class Named(NamedTuple):
    """Name of an estimator or of a statistic, and its notion."""

    estimator: str
    notion: str | None


def notion(name: str | None) -> str:
    return NOTIONS.get(name or "", name or "–")


def outcome(notion: str | None) -> str:
    """Name of the observed quantity of a reliability diagram."""
    if notion == "pit":
        return "outcomes below"
    return "accuracy" if notion in (None, "top_label") else "observed frequency"


def label(estimate: WithNotion) -> str:
    """Name of an estimator, with its notion if ambiguous."""
    name = estimate.estimator
    alone = estimate.notion in (None, "top_label", "forecast", "prediction", "pit")
    if alone or name in ("accuracy", "brier", "nll"):
        return name
    # The notion follows as a word, which the settings need not repeat.
    name = name.replace(f"(notion='{estimate.notion}')", "")
    return f"{name}, {notion(estimate.notion)}"


def fitted(parameters: dict[str, Any] | None) -> str:
    """Fitted parameters of a temperature or a logistic function, empty for other methods."""
    names = {"temperature": "T", "slope": "slope", "intercept": "intercept"}
    shown = [
        f"{names[key]} = {value:.4g}"
        for key, value in (parameters or {}).items()
        if key in names and isinstance(value, int | float)
    ]
    return ", ".join(shown).replace("-", "−")


def plain(value: Any) -> str:
    """Setting of any type as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value).replace("-", "−")
    if isinstance(value, float):
        return rounded(value, 10)
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {plain(item)}" for key, item in value.items()) or "none"
    return str(value)
