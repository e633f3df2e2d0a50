"""Isotonic regression."""

from __future__ import annotations

from typing import Any

from calibscale.array_types import Floats


def isotonic_regression(values: Floats, weights: Floats | None = None) -> Any:
    """Non-decreasing values that are nearest to `values` by weighted squares.

    See `scipy.optimize.isotonic_regression` for the attributes of the result.
    """
    from scipy import optimize  # slow to import

    return optimize.isotonic_regression(values, weights=weights)
