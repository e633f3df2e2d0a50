"""SQL expressions of recalibrations that are formulas of one probability."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from calibscale.array_types import Floats

LARGEST_EXPONENT = 700.0  # exponent whose exponential is finite in double precision


def number(value: float) -> str:
    """Literal of double precision, which an exponent makes it in standard SQL.

    >>> number(0.5), number(1e-20)
    ('0.5e0', '1e-20')
    """
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def limited(value: str, low: float, high: float) -> str:
    """A value within two numbers.  A missing value stays NULL, as with no LEAST or GREATEST."""
    cases = f"WHEN {value} < {number(low)} THEN {number(low)}"
    cases += f" WHEN {value} > {number(high)} THEN {number(high)}"
    return f"CASE {cases} ELSE {value} END"


@dataclass(frozen=True)
class SQLScore:
    """Column of P(y = 1), or of its log-odds if `is_logit`, in an SQL expression."""

    column: str
    is_logit: bool

    @property
    def probability(self) -> str:
        """P(y = 1)."""
        return sigmoid(f"({self.column})") if self.is_logit else f"({self.column})"

    def log_odds(self, clip: float) -> str:
        """Log-odds, of a probability that is at least `clip` away from 0 and 1."""
        if self.is_logit:
            return f"({self.column})"
        p = f"({limited(f'({self.column})', clip, 1.0 - clip)})"
        return f"LN({p} / (1e0 - {p}))"

    def logarithms(self, clip: float) -> tuple[str, str]:
        """Logarithms of p and of 1 − p."""
        if self.is_logit:
            z = f"({limited(f'({self.column})', -LARGEST_EXPONENT, LARGEST_EXPONENT)})"
            return f"(-LN(1e0 + EXP(-{z})))", f"(-LN(1e0 + EXP({z})))"
        p = f"({limited(f'({self.column})', clip, 1.0 - clip)})"
        return f"LN({p})", f"LN(1e0 - {p})"


def sigmoid(log_odds: str, within: bool = False) -> str:
    """1/(1 + exp(−z)) for an expression z, whose exponential is finite if it is `within` limits."""
    if not within:
        log_odds = limited(log_odds, -LARGEST_EXPONENT, LARGEST_EXPONENT)
    return f"(1e0 / (1e0 + EXP(-({log_odds}))))"


def interpolated(value: str, knots: Floats, values: Floats) -> str:
    """Piecewise linear function with `values` at increasing `knots`, constant beyond them."""
    points = list(zip(knots.tolist(), values.tolist(), strict=True))
    (first, lowest), (_, highest) = points[0], points[-1]
    cases = [f"WHEN {value} <= {number(first)} THEN {number(lowest)}"]
    for (left, low), (right, high) in pairwise(points):
        if right == left:
            continue
        result = number(high)
        if high != low:
            slope = (high - low) / (right - left)
            result = f"{number(low)} + ({value} - {number(left)}) * {number(slope)}"
        cases.append(f"WHEN {value} <= {number(right)} THEN {result}")
    # A comparison with NULL is never true: a missing value has none of the cases, nor the last one.
    cases.append(f"WHEN {value} IS NOT NULL THEN {number(highest)}")
    return f"CASE {' '.join(cases)} END"
