"""Student's limits of weighted means of residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import stdtrit


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
