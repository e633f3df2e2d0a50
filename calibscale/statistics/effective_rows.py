"""Number of rows near a point, from kernel sums with errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats

_PRECISION = 100  # minimum ratio of Σw²κ² to its error: effective rows are exact to one percent
_ROUNDING = 1e-9  # two equal rows count as two


class Effective(NamedTuple):
    """Σwκ (1 where too inexact), effective rows, and whether the point is masked, each (m,)."""

    weights: Floats
    rows: Floats
    masked: Any


def effective(weights: Floats, squares: Floats, errors: Any, min_rows: float) -> Effective:
    """Effective rows near each point from Σwκ and Σw²κ², and the `errors` of these sums."""
    exact = (weights > errors[0]) & (squares > _PRECISION * errors[1])
    positive = np.where(exact, weights, 1.0)
    rows = np.where(exact, positive * (positive / np.where(exact, squares, 1.0)), 0.0)
    return Effective(positive, rows, ~(rows >= min_rows * (1 - _ROUNDING)))
