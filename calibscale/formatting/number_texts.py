"""Numbers formatted for people."""

from __future__ import annotations

import math
import re

_RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")


def number(value: float | None, digits: int = 4) -> str:
    """Number with `digits` significant digits, or a dash if there is no finite value.

    Integers, and the whole parts of floats below 10^15, have all their digits.

    >>> number(1234567), number(12345.6), number(0.5), number(0.00001234)
    ('1,234,567', '12,346', '0.5000', '1.234e−5')
    >>> number(9999.7), number(0.99996)
    ('10,000', '1.000')
    """
    if value is None or not math.isfinite(value):
        return "–"
    # The rounded number decides on the format, as 9999.7 has five digits before the point.
    magnitude = float(f"{abs(value):.{digits - 1}e}")
    if isinstance(value, int) or (value == round(value) and magnitude < 1e15):
        text = f"{int(value):,}"
    elif magnitude < 1e-4 or magnitude >= 1e15:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{mantissa}e{int(exponent)}"  # without leading zeros of the exponent
    elif magnitude >= 10**digits:
        text = f"{value:,.0f}"
    else:  # trailing zeros are significant digits
        decimals = max(0, digits - 1 - math.floor(math.log10(magnitude)))
        text = f"{value:.{decimals}f}"
    return text.replace("-", "−")


def fixed(value: float, decimals: int, plus: bool = False) -> str:
    """Number with fixed decimals, also with a sign before positive numbers.  Zero has no minus.

    >>> fixed(-0.03421, 3), fixed(0.2, 1, plus=True), fixed(-0.0001, 2)
    ('−0.034', '+0.2', '0.00')
    """
    text = f"{value:+z.{decimals}f}" if plus else f"{value:z.{decimals}f}"
    return text.replace("-", "−")


_MINUS = re.compile(r"(?<![\w.-])-(?=\.?[0-9])")


def with_minus(text: str) -> str:
    """Text with the sign − before its negative numbers, for names that are made of numbers.

    >>> with_minus("-1.5 < age-group ≤ -1")
    '−1.5 < age-group ≤ −1'
    """
    return _MINUS.sub("−", text)


def count(value: int | float | None) -> str:
    """Whole number with thousands separators."""
    return "–" if value is None else f"{value:,.0f}"


def signed(value: float | None, digits: int = 4) -> str:
    """Difference with its sign."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 else text


def known(value: float | None) -> float | None:
    """Return a number, or None for NaN."""
    return None if value is None or math.isnan(value) else value


def span(low: float | None, high: float | None, digits: int = 3) -> str:
    """Interval as text."""
    if known(low) is None or known(high) is None:
        return "–"
    return f"{number(low, digits)}\u00a0…\u00a0{number(high, digits)}"  # on one line


def p_value(value: float | None, least: bool = False) -> str:
    """P-value with three digits.  The sign ≤ precedes the smallest possible p-value."""
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
    if p > 0.99:
        return "> 0.99"
    return "< 0.01" if p < 0.01 else f"{p:.2f}"


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
    """Text with no line break between a number and its unit.

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


def plural(many: int, noun: str) -> str:
    """Count with a noun in singular or plural."""
    return f"{many:,} {noun}" if many == 1 else f"{many:,} {noun}s"


def shares_apart(first: float, second: float, decimals: int = 0) -> tuple[str, str]:
    """Two shares in percent, with as many decimals as tell them apart."""
    for places in range(decimals, 5):
        texts = tuple(f"{100 * share:.{places}f} %" for share in (first, second))
        if texts[0] != texts[1]:
            break
    return texts[0], texts[1]
