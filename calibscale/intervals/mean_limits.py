"""Limits of weighted means of residuals and scores: Student's, and limits for skewed rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import binom, stdtrit

from calibscale.array_types import Floats
from calibscale.intervals.proportions import Limits


def mean_error(mean: Any, weight: Any, weight2: Any, residuals2: Any, squares: Any) -> Any:
    """Standard error of the mean Σwδ/Σw of residuals of independent rows.  It is 0 without rows.

    `weight2`, `residuals2` and `squares` are Σw², Σw²δ and Σw²δ².
    """
    # Σw²(δ − mean)² is the variance of the sum Σwδ.
    variance = squares - 2.0 * mean * residuals2 + mean**2 * weight2
    root = np.sqrt(np.maximum(variance, 0.0))
    return np.divide(root, weight, out=np.zeros_like(root), where=np.asarray(weight) > 0)


def student_half(error: float, rows: float, confidence_level: float) -> float:
    """Half the length of Student's interval from an error of at least two effective rows."""
    quantile = stdtrit(rows - 1.0, 0.5 + confidence_level / 2.0)
    return float(quantile * error * np.sqrt(rows / (rows - 1.0)))


# Effective number of rows below which a few rows decide about the length of an interval.
_FEW_EFFECTIVE_ROWS = 10.0
# Central moments that are smaller than this many roundings of their terms are unknown.
_ROUNDINGS = 64.0


def skewed_limits(
    moments: Any, confidence_level: float, dependence: float = 0.0, units: str = "rows"
) -> Limits | None:
    """Limits of the mean of the scores of independent rows, which may be skewed.

    With t the studentised mean, and a = Σw³δ³/(Σw²δ²)^1.5 its skewness for deviations δ from the
    mean, the distribution of g(t) = t + at²/3 + a²t³/27 + a/6 is symmetric up to terms of order 1/n
    [Hall, JRSS B 54 (1992), eq. 2.3].  The limits are mean − error·g⁻¹(±q).  The quantile q is
    Student's with the degrees of freedom by which the estimated variance is as variable as it is,
    2(Σw²δ²)²/Var(Σw²δ²) [Satterthwaite, Biometrics Bulletin 2 (1946)], because a few large scores
    make the variance uncertain.  The variance of the scores must be finite.

    Parameters
    ----------
    moments : calibscale.statistics.row_moments.RowMomentState
        Sums of the powers of the scores.
    confidence_level : float
        Confidence level.
    dependence : float
        Variance of the sum Σws that is added to that of independent rows.
    units : str
        What the scores are of, by which the note names them.

    Returns
    -------
    Limits or None
        None for fewer than two effective rows, or scores that are infinite.
    """
    sums = np.concatenate([np.ravel(field) for field in moments])
    if not (moments.weight > 0 and np.isfinite(sums).all()):
        return None
    mean = float(moments.total / moments.weight)
    rows = float(moments.weight**2 / moments.second[0])
    variance, third, fourth = (
        _central(sums, mean) for sums in (moments.second, moments.third, moments.fourth)
    )
    if rows < 2.0 or not np.isfinite([variance, third, fourth]).all():
        return None
    variance_of_sum = variance + dependence
    if variance_of_sum <= 0.0:
        return Limits(mean, mean, "skewness_corrected")
    error = np.sqrt(variance_of_sum * rows / (rows - 1.0)) / float(moments.weight)
    skewness = float(np.clip(third / variance_of_sum**1.5, -1.0, 1.0))
    # Σw⁴δ⁴/(Σw²δ²)² is 1 if one row dominates, and at least one over the number of rows.
    if variance <= 0.0 or fourth <= 0.0:  # equal scores, or by rounding
        skewness, concentration = 0.0, 3.0 / rows
    else:
        concentration = float(np.clip(fourth / variance**2, 1.0 / rows, 1.0))
    uncertainty = max(concentration - 1.0 / rows, 2.0 / rows)
    freedom = max(2.0 / uncertainty - 1.0, 1.0)
    quantile = float(stdtrit(freedom, 0.5 + confidence_level / 2.0))
    low = mean - error * _of_symmetric(quantile, skewness)
    high = mean - error * _of_symmetric(-quantile, skewness)
    effective = 1.0 / concentration
    note = ""
    if effective < _FEW_EFFECTIVE_ROWS:
        note = (
            f"a few {units} dominate the error of the mean, as if there were {effective:.0f}: the "
            "interval misses the true mean too often if larger values are possible but were not "
            "seen"
        )
    return Limits(low, high, "skewness_corrected", note=note)


def _central(sums: Floats, mean: float) -> float:
    """Σu(s − mean)^k from Σus^j for j = 0 … k, or 0 if it is not above its rounding."""
    order = len(sums) - 1
    powers = np.arange(order + 1)
    terms = binom(order, powers) * sums * (-mean) ** (order - powers)
    total = float(terms.sum())
    rounding = _ROUNDINGS * np.finfo(np.float64).eps * float(np.abs(terms).sum())
    return 0.0 if abs(total) <= rounding else total


def _of_symmetric(g: float, skewness: float) -> float:
    """Inverse t of Hall's transformation, which is [(1 + at/3)³ − 1]/a + a/6 = g."""
    a = skewness
    if abs(a) < 1e-6:
        return g - a * (g * g / 3.0 + 1.0 / 6.0)  # the first terms of the inverse
    return float(3.0 / a * (np.cbrt(1.0 + a * (g - a / 6.0)) - 1.0))
