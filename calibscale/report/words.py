"""Numbers, names and terms as people read them."""

from __future__ import annotations

import math
from typing import Any

MOST = 60  # characters of a name in a sentence; tables have all of it
_HIDDEN = (  # characters that command a terminal, or turn the direction of what follows
    *range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F,
    *range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000),
)  # fmt: skip
_ESCAPED = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _HIDDEN}
_RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

NOTIONS = {
    "top_label": "top label",
    "class_wise": "class by class",
    "canonical": "all classes",
    "positive": "positive class",
}

ESTIMATORS = {
    "accuracy": "share of rows whose most probable class is the right one",
    "brier": "mean squared error of the probabilities; good if small, not calibration alone",
    "nll": "mean log loss in nats; good if small, not calibration alone",
    "confidence_gap": "confidence less accuracy: above 0 predictions are overconfident",
    "ece": "expected calibration error: how far bins lie from the diagonal, on average",
    "mce": "the largest distance of a bin from the diagonal",
    "tce2": "squared top-label error of bins; its noise makes it too large",
    "tce2_debiased": "the same without what noise adds, so that it can fall below 0",
    "cwce2": "squared error class by class, summed over classes",
    "simplex_ece": "calibration error on cells of the simplex of all classes",
    "brier_decomposition": "the part of the Brier score that recalibration would remove",
    "nll_decomposition": "the part of the log loss that recalibration would remove",
    "ckce": "conditional kernel error, squared; its noise makes it too large",
    "ckce_centred": "the same less what noise adds: around 0 if calibrated, made to rank models",
    "cmmd": "conditional maximum mean discrepancy, squared",
    "jkce": "joint kernel error, squared, unbiased, so that it can fall below 0",
    "jkce_biased": "joint kernel error, squared; its noise makes it too large",
    "kce": "kernel calibration error, squared, unbiased, so that it can fall below 0",
    "klce": "local calibration error on the covariates, squared: who is treated wrongly",
}

TERMS = {
    "calibrated": "of the rows with a prediction of 0.8, 80 % come true",
    "interval": "what the data leave open: it covers the true value with the stated probability",
    "expectation": "an interval marked “at this n” covers the expectation of a biased estimate, "
    "not the value of the population",
    "root": "the square root of a squared error, in the units of a probability",
    "approximation": "the error of a faster computation, not of sampling",
    "window": "a range of days, merged as if it had been read at once",
    "threshold": "a limit that was set beforehand in the job file",
    "p-value": "how often chance alone gives a value at least as large; ≤ marks the least that "
    "the number of replicates can show",
    "adjusted": "a p-value that allows for the number of questions asked (by Holm, or of groups by "
    "Westfall and Young)",
    "critical": "a calibrated model stays below this value in 95 % of cases",
    "evidence": "E is the gain of a bet against calibration: if the model is calibrated, E ever "
    "reaches 20 with a probability of at most 5 %, however often one looks",
    "drift": "how much the error has changed since the baseline",
    "band": "where a bin would lie if the model were calibrated; red points lie outside",
    "rank": "the probability of a rank says how sure the order is",
    "risk": "how far an estimator is from the true error, up to a constant; the least is chosen",
    "map": "the mean of y − p near a point: above 0 predictions are too low",
    "unlabelled": "rows whose label is not known yet; they count once it is",
    "power": "the probability that the test detects the bias",
}


def number(value: float | None, digits: int = 4) -> str:
    """Four digits, thousands apart; a dash where there is no value."""
    if value is None or not math.isfinite(value):
        return "–"
    if isinstance(value, int) or (value == round(value) and abs(value) < 1e15):
        return f"{int(value):,}".replace("-", "−")
    if abs(value) >= 10**digits:
        return f"{value:,.0f}".replace("-", "−") if abs(value) < 1e15 else _power(value, digits)
    return _power(value, digits) if abs(value) < 1e-4 else _plain(value, digits)


def _plain(value: float, digits: int) -> str:
    """Trailing zeros stay: they are digits that are known."""
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}".replace("-", "−")


def _power(value: float, digits: int) -> str:
    """As mantissa and exponent, without the zeros of the exponent."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def count(value: int | float | None) -> str:
    """A whole number with its thousands apart."""
    return "–" if value is None else f"{value:,.0f}"


def signed(value: float | None, digits: int = 4) -> str:
    """A difference, with its sign."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 else text


def span(low: float | None, high: float | None, digits: int = 3) -> str:
    """An interval."""
    if low is None or high is None:
        return "–"
    return f"{number(low, digits)}\u00a0…\u00a0{number(high, digits)}"  # on one line


def p_value(value: float | None, least: bool = False) -> str:
    """Three digits, as the command line prints them; the least there can be has a sign before."""
    if value is None:
        return "–"
    return f"≤ {value:.3g}" if least else f"{value:.3g}"


def p_is(value: float | None, least: bool = False) -> str:
    """The same within a sentence."""
    text = p_value(value, least)
    return f"p {text}" if text.startswith("≤") else f"p = {text}"


def probability(p: float | None) -> str:
    """Two digits; certainty is not for draws to claim."""
    if p is None:
        return "–"
    return "> 0.99" if p > 0.99 else "< 0.01" if p < 0.01 else f"{p:.2f}"


def given(value: float | None) -> str:
    """A number that someone has chosen, as it was written."""
    return "–" if value is None else f"{value:.6g}".replace("-", "−")


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.4g} %"


def evidence(log: float | None) -> str:
    """E of its natural logarithm."""
    if log is None:
        return "–"
    if not -9 < log < 11:
        return _power_of_ten(log / math.log(10))
    value = math.exp(log)
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _power_of_ten(exponent: float) -> str:
    """Two digits, also where the number itself is too large for a computer."""
    whole = math.floor(exponent)
    mantissa = f"{10 ** (exponent - whole):.1f}"
    if mantissa == "10.0":
        mantissa, whole = "1.0", whole + 1
    return f"{mantissa}e{whole}".replace("-", "−")


def ten(exponent: float) -> str:
    """A power of ten."""
    if -3 <= exponent <= 4:
        return f"{10**exponent:,g}"
    return f"10{f'{exponent:.0f}'.translate(_RAISED)}"


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 120:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def plural(many: int, what: str) -> str:
    """A number of things."""
    return f"{many:,} {what}{'s' * (many != 1)}"


def joined(names: list[str], most: int = 6) -> str:
    """Names with commas and an “and”; of many the first ones."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def short(text: str, most: int = MOST) -> str:
    """Text that is cut where it is too long to be drawn."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def base(name: str) -> str:
    """The last part of a path or URL."""
    return name.rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr") or name


def notion(name: str | None) -> str:
    return NOTIONS.get(name or "", name or "–")


def label(estimate: dict[str, Any]) -> str:
    """An estimator and what it judges, where that can be doubted."""
    name = str(estimate["estimator"])
    if estimate.get("notion") in (None, "top_label") or name in ("accuracy", "brier", "nll"):
        return name
    return f"{name}, {notion(estimate['notion'])}"


def group(column: str | None, value: float | str | None) -> str:
    """A group as its condition; all rows where there is none."""
    if value is None:
        return "all rows"
    shown = f"{value:.10g}" if isinstance(value, int | float) else value
    return f"{column or 'group'}\u00a0=\u00a0{shown}"


def level(source: dict[str, Any] | None, covariate: str | None, value: Any) -> Any:
    """A value of a covariate; the name of its category where the source of a result has that."""
    names = ((source or {}).get("categories") or {}).get(covariate, ())
    named = isinstance(value, int | float) and value in range(len(names))
    return names[int(value)] if named else value


def window(name: str | None) -> str:
    """A window in words."""
    text = name or "–"
    first, _, last = text.partition("/")
    if last:
        return f"{day(first)} to {day(last)}"
    if text[-1] == "d" and text[:-1].isdecimal():
        return plural(int(text[:-1]), "day")
    return {"all": "all days", "day": "the day"}.get(text, text)


def day(text: str) -> str:
    """2026-10-18 as on a calendar; of a part of a day, 2026-10-18T06, with that part."""
    whole, _, part = text.partition("T")
    try:
        year, month, number_ = whole.split("-")
        told = f"{int(number_)} {_MONTHS[int(month) - 1]} {int(year)}"
        return f"{told}, {part}" if part else told
    except (ValueError, IndexError):
        return text


def day_short(text: str) -> str:
    """The same without its year."""
    return day(text.partition("T")[0]).rsplit(" ", 1)[0]


def plain(value: Any) -> str:
    """A setting."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {plain(item)}" for key, item in value.items()) or "none"
    return str(value)


def printable(text: str) -> str:
    """A text whose control and direction characters are escaped: a terminal obeys none of them.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return text.translate(_ESCAPED)
