"""Number of decimals of predicted probabilities, by which rounded ones are recognised."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST_DECIMALS = 2  # votes of few members have one decimal, and classes none
MOST_DECIMALS = 4  # probabilities with more are not called rounded
MORE = MOST_DECIMALS + 1
_FIRST_ROWS = 8  # rows that show most unrounded probabilities, before all rows are read
# Errors of rounding that are allowed, in units of the last place: percentages, and 1 − p of two
# classes, are computed from rounded numbers.
_ULPS = 4


def decimals_of(probabilities: NDArray[Any]) -> int:
    """Smallest number of decimals that all probabilities (c, K) have, or `MORE` above 4.

    The number for several chunks is the maximum of their numbers.  Probabilities of 0 and 1 have 0.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale.predictions.decimals import decimals_of
    >>> [decimals_of(np.array([[p, 1 - p]])) for p in (0.0, 0.25, 0.0001, 1 / 3)]
    [0, 2, 4, 5]
    """
    # Most probabilities have more, which their first rows show.
    if not _are_rounded(probabilities[:_FIRST_ROWS], MOST_DECIMALS):
        return MORE
    for decimals in range(MORE):
        if _are_rounded(probabilities, decimals):
            return decimals
    return MORE


def _are_rounded(probabilities: NDArray[Any], decimals: int) -> bool:
    """Whether all probabilities have a number of decimals."""
    dtype = probabilities.dtype
    spacing = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    p = probabilities.astype(np.float64)
    rounded = np.rint(p * 10.0**decimals) / 10.0**decimals
    # The error is relative to the number: 1e-9 in float32 is not a rounded 0.
    allowed = _ULPS * (spacing * rounded + np.finfo(np.float64).eps)
    return bool((np.abs(p - rounded) <= allowed).all())
