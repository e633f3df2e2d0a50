"""Terms of results in words: measures, notions, settings, and what terms mean."""

from __future__ import annotations

from typing import Any

from calibscale.formatting.naming import name_of
from calibscale.formatting.number_texts import number, percent, rounded

SIGN = "mean of y − p; above 0, predictions are too low"  # sign of a bias
GAP_SIGN = "confidence_gap: prediction minus frequency, above 0 if predictions are too high"
NOTIONS = {
    "pit": "quantiles",
    "forecast": "forecast",
    "top_label": "top label",
    "class_wise": "class by class",
    "canonical": "all classes",
    "positive": "positive class",
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


def ece(diagram: dict[str, Any]) -> str:
    """ECE of a reliability diagram with its noise floor."""
    name = "quantile ECE" if diagram.get("notion") == "pit" else "ECE"
    text = f"{name} {number(diagram['ece'], 3)}"
    floor = diagram.get("floor")
    if not floor:
        return text
    within = "within noise" if diagram["ece"] <= floor["high"] else "noise"
    high = f"{100 * floor['level']:g} % {number(floor['high'], 3)}"
    return f"{text}, {within} (mean {number(floor['mean'], 3)}; {high})"


def coverage(estimate: dict[str, Any]) -> str:
    """Coverage of an estimate and of a calibrated forecast, empty for other estimates."""
    details = estimate.get("details") or {}
    if name_of(estimate["estimator"]) != "coverage" or estimate["value"] is None or not details:
        return ""
    expected = details.get("expected")
    beside = "" if expected is None else f" (expected {_tenths(expected)})"
    return f"coverage of {percent(details['level'])}: {_tenths(estimate['value'])}{beside}"


def _tenths(share: float) -> str:
    """Share in percent with one decimal."""
    return f"{100.0 * share:.1f} %"


def notion(name: str | None) -> str:
    return NOTIONS.get(name or "", name or "–")


def outcome(notion: str | None) -> str:
    """Name of the observed quantity of a reliability diagram."""
    if notion == "pit":
        return "outcomes below"
    return "accuracy" if notion in (None, "top_label") else "observed frequency"


def prediction(diagram: dict[str, Any]) -> str:
    """Name of the predicted quantity of a reliability diagram."""
    if diagram["notion"] in (None, "top_label", "pit"):
        return "quantile level" if diagram["notion"] == "pit" else "confidence"
    k = 1 if diagram.get("class") is None else diagram["class"]  # "positive" is class 1
    names = (diagram.get("source") or {}).get("class_names")
    class_name = names[k] if names else k
    return f"predicted P(y = {class_name})"


def label(estimate: dict[str, Any]) -> str:
    """Name of an estimator, with its notion if ambiguous."""
    name = str(estimate["estimator"])
    alone = estimate.get("notion") in (None, "top_label", "forecast", "pit")
    if alone or name in ("accuracy", "brier", "nll"):
        return name
    # The notion follows as a word, which the settings need not repeat.
    name = name.replace(f"(notion='{estimate['notion']}')", "")
    return f"{name}, {notion(estimate['notion'])}"


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
