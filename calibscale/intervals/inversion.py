"""Factors along a ray of hypotheses that a test does not reject."""

from __future__ import annotations

from collections.abc import Callable

_HALVINGS = 8  # bisections of the interval of a limit's factor: to 0.4 %
_FARTHEST = 2.0**20  # largest factor that is searched


def lowest_factor(above: Callable[[float], float], tail: float) -> float:
    """Largest factor s below which all hypotheses are rejected, or 0 if calibration is not.

    Under hypothesis s ≥ 0, deviations from calibration are s times a fixed direction.
    ``above(s)`` is the probability of a statistic at least as large as the observed one.
    """
    return 0.0 if above(0.0) > tail else _bisect(lambda s: above(s) <= tail, 0.0, 1.0)[0]


def highest_factor(below: Callable[[float], float], tail: float) -> float:
    """Smallest factor s above which all hypotheses are rejected, or 0 if calibration is rejected.

    ``below(s)`` is the probability of a statistic at most as large as the observed one.
    """
    if below(0.0) <= tail:
        return 0.0
    first, last = 0.0, 1.0
    while below(last) > tail and last < _FARTHEST:
        first, last = last, 2.0 * last
    return _bisect(lambda s: below(s) > tail, first, last)[1]


def _bisect(condition: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Interval in which a condition turns from true to false."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if condition(middle) else (low, middle)
    return low, high
