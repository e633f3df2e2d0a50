"""Numbers, names and terms formatted for people."""

from __future__ import annotations

import ast
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calibscale.errors import OptionError

SIGN = "mean of y − p; above 0, predictions are too low"  # sign of a bias
GAP_SIGN = "confidence_gap: prediction minus frequency, above 0 if predictions are too high"
MAX_NAME = 60  # characters of a name in a sentence; tables show the full name
_HIDDEN = (  # control characters of terminals, and characters that change the text direction
    *range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F,
    *range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000),
)  # fmt: skip
_ESCAPED = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _HIDDEN}
_RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")
_RUN = 3  # columns of one name and different numbers that a message lists
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

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


def name_of(label: str) -> str:
    """Name of an estimator in its label."""
    return label.partition("(")[0]


def plain_name(name: Any) -> str:
    """Name in lower case without separators, by which names are compared.

    Examples
    --------
    >>> plain_name("Smooth-ECE"), plain_name("smooth_ece")
    ('smoothece', 'smoothece')
    """
    return re.sub(r"[\s_-]+", "", str(name)).lower()


def parse(
    text: str, what: str = "an estimator", example: str = "ece(bins=10)"
) -> tuple[str, dict[str, Any]]:
    """Name and settings of an estimator or another thing, from text such as ``ckce(ridge=0.03)``.

    An OptionError is raised if the text is not a name, or a name with settings in parentheses.
    """
    usage = f"is not {what}: write a name, or a name and its settings such as {example}"
    name, bracket, settings = text.strip().partition("(")
    if re.fullmatch(r"[A-Za-z][\w -]*", name):  # adaptive-ece is a name, not a difference
        name = re.sub("[ -]+", "_", name.strip())
    written = name + bracket + settings
    try:
        call = ast.parse(written, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise OptionError(f"{text[:200]!r} {usage}") from None
    if isinstance(call, ast.Name):
        return call.id, {}
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise OptionError(f"{text[:200]!r} {usage}")
    return call.func.id, {k.arg or "**": _setting(written, k.value) for k in call.keywords}


def _setting(text: str, node: ast.expr) -> Any:
    """Value of a setting; a text without quotes, such as ``equal-mass``, is a string."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.get_source_segment(text, node)


def number(value: float | None, digits: int = 4) -> str:
    """Number with four digits and thousands separators; a dash if there is no value."""
    if value is None or not math.isfinite(value):
        return "–"
    if isinstance(value, int) or (value == round(value) and abs(value) < 1e15):
        text = f"{int(value):,}"
    elif not 1e-4 <= abs(value) < 1e15:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{mantissa}e{int(exponent)}"  # without leading zeros of the exponent
    elif abs(value) >= 10**digits:
        text = f"{value:,.0f}"
    else:  # trailing zeros are significant digits
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.{decimals}f}"
    return text.replace("-", "−")


def count(value: int | float | None) -> str:
    """Whole number with thousands separators."""
    return "–" if value is None else f"{value:,.0f}"


def signed(value: float | None, digits: int = 4) -> str:
    """Difference with its sign."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 else text


def span(low: float | None, high: float | None, digits: int = 3) -> str:
    """Interval as text."""
    if low is None or high is None:
        return "–"
    return f"{number(low, digits)}\u00a0…\u00a0{number(high, digits)}"  # on one line


def ece(diagram: dict[str, Any]) -> str:
    """ECE of a reliability diagram with its noise floor."""
    name = "quantile ECE" if diagram.get("notion") == "pit" else "ECE"
    text, floor = f"{name} {number(diagram['ece'], 3)}", diagram.get("floor")
    if not floor:
        return text
    within = "within noise" if diagram["ece"] <= floor["high"] else "noise"
    high = f"{100 * floor['level']:g} % {number(floor['high'], 3)}"
    return f"{text}, {within} (mean {number(floor['mean'], 3)}; {high})"


def coverage(estimate: dict[str, Any]) -> str:
    """Coverage with its level and that of a calibrated forecast; empty for other estimates."""
    details = estimate.get("details") or {}
    if name_of(estimate["estimator"]) != "coverage" or estimate["value"] is None or not details:
        return ""
    expected = details.get("expected")
    beside = "" if expected is None else f" (expected {_tenths(expected)})"
    return f"coverage of {percent(details['level'])}: {_tenths(estimate['value'])}{beside}"


def _tenths(share: float) -> str:
    """Share in percent with one decimal."""
    return f"{100.0 * share:.1f} %"


def p_value(value: float | None, least: bool = False) -> str:
    """P-value with three digits; ≤ precedes the smallest possible one."""
    if value is None:
        return "–"
    return f"≤ {rounded(value, 3)}" if least else rounded(value, 3)


def p_is(value: float | None, least: bool = False) -> str:
    """P-value for use within a sentence."""
    text = p_value(value, least)
    return f"p {text}" if text.startswith("≤") else f"p = {text}"


def probability(p: float | None) -> str:
    """Probability with two digits, never shown as 0 or 1."""
    if p is None:
        return "–"
    return "> 0.99" if p > 0.99 else "< 0.01" if p < 0.01 else f"{p:.2f}"


def given(value: float | None, digits: int = 6) -> str:
    """Setting or threshold, as the user wrote it."""
    return "–" if value is None else rounded(value, digits)


_EXPONENT = re.compile(r"e([+-])0*(?=[0-9])")


def rounded(value: float, digits: int) -> str:
    """Number without trailing zeros.

    >>> rounded(-6.1e-05, 3), rounded(0.25, 3)
    ('−6.1e−5', '0.25')
    """
    text = _EXPONENT.sub(lambda e: "e" if e[1] == "+" else "e-", f"{value:.{digits}g}")
    return text.replace("-", "−").replace("inf", "∞")


_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=%|(?:points?|s|min|h|[kMGT]?B)\b)|(?<=%) (?=\d)"  # 95 %, 1.6 points, 3 min
    r"|(?<=\S) (?== \S)|(?<=\S =) (?=\S)|(?<=\bp) (?=[≤<>] )"  # h = 0.01
    r"|(?<=[≤≥<>]) (?=[\d−])|(?<=±) "
)


def unbroken(text: str) -> str:
    """Text whose lines do not break between a number and its unit.

    >>> unbroken("95 % interval, p = 0.01")
    '95\\xa0% interval, p\\xa0=\\xa00.01'
    """
    return _BEFORE_UNIT.sub("\u00a0", text)


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.4g} %"


def points(difference: float) -> str:
    """Size of a difference of probabilities in percentage points."""
    size = 100 * abs(difference)
    return f"{size:.1f} points" if size >= 1 else f"{size:.2g} points"


def evidence(log: float | None) -> str:
    """Value of E from its natural logarithm."""
    if log is None:
        return "–"
    if log == math.inf:
        return "∞"
    if not -9 < log < 11:
        return _power_of_ten(log / math.log(10))
    value = math.exp(log)
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _power_of_ten(exponent: float) -> str:
    """Power of ten with two digits, also beyond the range of floating-point numbers."""
    power = math.floor(exponent)
    mantissa = f"{10 ** (exponent - power):.1f}"
    if mantissa == "10.0":
        mantissa, power = "1.0", power + 1
    return f"{mantissa}e{power}".replace("-", "−")


def ten(exponent: float) -> str:
    """Power of ten."""
    if -3 <= exponent <= 4:
        return f"{10**exponent:,g}"
    return f"10{f'{exponent:.0f}'.translate(_RAISED)}"


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 120:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 172_800 else f"{value / 86400:.0f} days"


def size(count: float) -> str:
    """Format a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def plural(many: int, what: str) -> str:
    """Count with a noun in singular or plural."""
    return f"{many:,} {what}{'s' * (many != 1)}"


def joined(names: list[str], max_names: int = 6) -> str:
    """Names joined by commas and “and”; at most `max_names` of them."""
    if len(names) > max_names:
        return f"{', '.join(names[:max_names])} and {len(names) - max_names:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def listed_columns(names: Sequence[str], max_names: int = 20) -> str:
    """Names of columns in a message, numbered ones by their ends; at most `max_names` of them.

    The index that pandas writes to CSV has no name.

    >>> listed_columns(["", "m_0", "m_1", "m_2", "m_3", "outcome"])
    "'', m_0 … m_3, outcome"
    """
    runs: list[list[str]] = []
    for name in (each or repr(each) for each in names):
        stem = name.rstrip("0123456789")
        if runs and stem != name and runs[-1][-1].rstrip("0123456789") == stem:
            runs[-1].append(name)
        else:
            runs.append([name])
    ends = [[f"{run[0]} … {run[-1]}"] if len(run) > _RUN else run for run in runs]
    shown = [name for run in ends for name in run]
    return ", ".join([*shown[:max_names], *(["…"] if len(shown) > max_names else [])]) or "nothing"


def short(text: str, length: int = MAX_NAME) -> str:
    """Text truncated to a length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def base(name: str) -> str:
    """Last part of a path or URL."""
    return name.rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr") or name


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
    k = 1 if diagram.get("class") is None else diagram["class"]
    names = (diagram.get("source") or {}).get("class_names")
    return f"predicted P(y = {names[k] if names else k})"


def label(estimate: dict[str, Any]) -> str:
    """Name of an estimator, with its notion if ambiguous."""
    name = str(estimate["estimator"])
    alone = estimate.get("notion") in (None, "top_label", "forecast", "pit")
    if alone or name in ("accuracy", "brier", "nll"):
        return name
    name = name.replace(f"(notion='{estimate['notion']}')", "")
    return f"{name}, {notion(estimate['notion'])}"


def group(column: str | None, value: float | str | None) -> str:
    """Group as its condition; “all rows” without a group.

    >>> group("region", "north"), group("net income:4", "net income ≤ 4.5")
    ('region\\xa0=\\xa0north', 'net income ≤ 4.5')
    >>> group("age:5", "missing")
    'age\\xa0=\\xa0missing'
    """
    if value is None:
        return "all rows"
    shown = f"{value:.10g}" if isinstance(value, int | float) else value
    covariate = grouped_column(column or "")
    if covariate != column and f" {covariate} " in f" {shown} ":  # the name of a range
        return shown
    if shown.strip("()") == MISSING:  # a value of the column, and no range or period
        column = covariate
    return f"{column or 'group'}\u00a0=\u00a0{shown}"


def grouped_column(grouping: str) -> str:
    """Column of a grouping such as age:5, age:[18,30,65] or signup:month."""
    return re.sub(r":([0-9]+|\[.*\]|[a-z]+)$", "", grouping) or grouping


MISSING = "missing"
NO_LEVEL = -1.0  # number of a missing value of a categorical covariate


def missing_name(names: Sequence[str]) -> str:
    """Name of the missing values of a covariate with these names.

    >>> missing_name(["north"]), missing_name(["missing", "north"])
    ('missing', '(missing)')
    """
    name = MISSING
    while name in names:
        name = f"({name})"
    return name


def categories(source: dict[str, Any] | None, covariate: str | None) -> Sequence[str]:
    """Names of the values 0, 1, … of a categorical covariate; empty for a numerical one."""
    return ((source or {}).get("categories") or {}).get(covariate, ())


def level(source: dict[str, Any] | None, covariate: str | None, value: Any) -> Any:
    """Value of a covariate, or the name of its category if the source has names."""
    names = categories(source, covariate)
    if names and value == NO_LEVEL:
        return missing_name(names)
    has_name = isinstance(value, int | float) and value in range(len(names))
    return names[int(value)] if has_name else value


def window(name: str | None) -> str:
    """Name of a window in words."""
    text = name or "–"
    first, _, last = text.partition("/")
    if last:
        return f"{day(first)} to {day(last)}"
    if text[-1] == "d" and text[:-1].isdecimal():
        return plural(int(text[:-1]), "day")
    return {"all": "all days", "day": "the day"}.get(text, text)


def day(text: str) -> str:
    """Date 2026-10-18 as “18 Oct 2026”; 2026-10-18T06 with the part of the day."""
    date, _, part = text.partition("T")
    try:
        year, month, number_ = date.split("-")
        shown = f"{int(number_)} {_MONTHS[int(month) - 1]} {int(year)}"
        return f"{shown}, {part}" if part else shown
    except (ValueError, IndexError):
        return text


def day_short(text: str) -> str:
    """Day without its year."""
    return day(text.partition("T")[0]).rsplit(" ", 1)[0]


def fitted(parameters: dict[str, Any] | None) -> str:
    """Fitted parameters of a temperature or a logistic function; empty for other methods."""
    names = {"temperature": "T", "slope": "slope", "intercept": "intercept"}
    return ", ".join(
        f"{names[key]} = {value:.4g}" for key, value in (parameters or {}).items()
        if key in names and isinstance(value, int | float)
    ).replace("-", "−")  # fmt: skip


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


def printable(text: str) -> str:
    """Text with control and direction characters escaped, safe to print on a terminal.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return text.translate(_ESCAPED)


_LISTED_FAULTS = 5  # of dropped rows; a table may have a fault for each of many columns


_ROLES = ("probabilities", "logits", "predictions", "labels", "weights", "covariates")
_PLURAL_VERBS = {"is": "are", "has": "have", "does": "do"}


def fault_text(fault: str) -> str:
    """Fault of dropped rows as text; those of earlier versions had underscores.

    Columns without names are called by their role, which takes a plural verb.

    >>> fault_text("p_cat is missing"), fault_text("not_finite")
    ('p_cat is missing', 'not finite')
    >>> fault_text("predictions has crossing quantiles")
    'predictions have crossing quantiles'
    """
    column, _, said = fault.partition(" ")
    verb, _, predicate = said.partition(" ")
    if column in _ROLES and verb in _PLURAL_VERBS:
        return f"{column} {_PLURAL_VERBS[verb]} {predicate}"
    return fault if said else fault.replace("_", " ")


def listed_faults(dropped: Mapping[str, int]) -> str:
    """Faults of dropped rows with their numbers, the most frequent ones first.

    >>> listed_faults({"y is not a class": 3, "score is missing": 190})
    'score is missing (190), y is not a class (3)'
    """
    ordered = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{fault_text(fault)} ({count:,})" for fault, count in ordered[:_LISTED_FAULTS]]
    if others := sum(count for _, count in ordered[_LISTED_FAULTS:]):
        listed.append(f"other faults ({others:,})")
    return ", ".join(listed)


def dropped_text(dropped: Mapping[str, int]) -> str:
    """Sentence about dropped rows.

    >>> dropped_text({"score is missing": 1})
    '1 row was dropped: score is missing (1)'
    """
    number = sum(dropped.values())
    verb = "was" if number == 1 else "were"
    return f"{plural(number, 'row')} {verb} dropped: {listed_faults(dropped)}"


def one_line(text: str) -> str:
    """Text as by `printable`, with line ends and tabs escaped as well.

    >>> one_line("a\\nb")
    'a\\\\nb'
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f]")  # marks that reorder text


def clean(text: str) -> str:
    """Return the text on one line, without control and direction characters."""
    if text.isascii() and text.isprintable():
        return text
    visible = (c if unicodedata.category(c) not in ("Cc", "Cs", "Cn") else " " for c in text)
    return _DIRECTION.sub("", "".join(visible))


def printed(value: Any, shown: Callable[[str], str], kind: type[dict[str, Any]] = dict) -> Any:
    """Return a JSON value with converted texts, and objects of `kind`; NaN and ∞ become None."""
    if isinstance(value, dict):
        items = value.items()
        return kind((shown(str(key)), printed(item, shown, kind)) for key, item in items)
    if isinstance(value, list | tuple):
        return [printed(item, shown, kind) for item in value]
    if isinstance(value, str):
        return shown(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
