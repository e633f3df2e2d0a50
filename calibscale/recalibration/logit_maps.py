"""Recalibrations that are linear maps of logits, as numbers for other programs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibscale.array_types import Floats


@dataclass(frozen=True, eq=False)
class LogitMap:
    """Recalibrated logits η = weight · x + offset, whose softmax is the recalibrated prediction.

    Attributes
    ----------
    weight : (), (K,) or (K, K)
        One slope, a slope of each class, or the matrix W of η = x W.
    offset : (K,)
        Intercept of each class.
    lowest : float or None
        Inputs x are the logits themselves for None.  Else they are log-probabilities, raised to at
        least this number.
    centred : bool
        Whether the mean of each row is subtracted from the log-probabilities.
    """

    weight: Floats
    offset: Floats
    lowest: float | None = None
    centred: bool = False

    @classmethod
    def of_slope(cls, slope: float, classes: int) -> LogitMap:
        """One slope of all logits, such as the inverse of a temperature."""
        return cls(np.array(slope), np.zeros(classes))
