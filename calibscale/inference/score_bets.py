"""Bets that one set of predictions has a smaller expected score than another.

The Brier score of a row is divided by 2, so that it is in [0, 1] for any number of classes, and the
difference D of two predictions of a row is in [−1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibscale.array_types import Floats
from calibscale.inference.e_process import advance

# Stakes in units of 1/D.  The best stake on predictions that are true is 1/(4q(1 − q)) or more, and
# larger for predictions that are only a little better: steps of 4 lose at most a third of the
# growth.
STAKES = tuple(4.0**k for k in range(-1, 5))
_LARGEST = 0.5  # largest share of E that a single row may cost


@dataclass(frozen=True)
class DuelSums:
    """Sums over the rows of a night of D, the score of a champion minus that of a challenger.

    Attributes
    ----------
    gain, squares : float
        ΣaD and ΣaD², with the exponents a of the rows: 1, or with clusters 1/m of a cluster of m
        rows.  With weights, D is multiplied by the weight over the mean weight of the night.
    largest : float
        Largest |D| that any label of the rows of the night would give.
    """

    gain: float = 0.0
    squares: float = 0.0
    largest: float = 0.0

    @property
    def reversed(self) -> DuelSums:
        """Sums of the challenger's score minus that of the champion."""
        return DuelSums(-self.gain, self.squares, self.largest)


def log_gains(sums: DuelSums) -> Floats:
    """Logarithms of the gains of a night, one for each stake (stakes,).

    A stake s multiplies E by exp(sΣaD − ψ(λ)ΣaD²/c²), with the largest possible |D| = c of the
    night, λ = min(sc, 1/2), the stake λ/c, and ψ(λ) = −log(1 − λ) − λ.

    Notes
    -----
    The hypothesis is that ΣaE[D] ≤ 0 over the rows of each night, given their predictions: the
    challenger is not better on any night.  As exp(λx − ψ(λ)x²) ≤ 1 + λx for x ≥ −1 [Fan et al.
    2015, eq. 4.11], the mean of the factor of a row is at most exp((λ/c)E[D]), and the mean of the
    product over independent rows at most exp((λ/c)ΣE[D]) ≤ 1.  Rows of a cluster may depend on
    each other, as exponents 1/m make the mean of their product at most the geometric mean of theirs
    (Hölder's inequality).  c is known before the labels, so that stakes may depend on it.

    Examples
    --------
    >>> from calibscale.inference.score_bets import DuelSums, log_gains
    >>> bool(log_gains(DuelSums(4.0, 1.0, 0.2)).max() > 3)
    True
    """
    stakes = np.array(STAKES)
    if sums.largest == 0.0:  # equal predictions
        return np.zeros(len(stakes))
    shares = np.minimum(stakes * sums.largest, _LARGEST)
    penalties = -np.log1p(-shares) - shares
    return shares / sums.largest * sums.gain - penalties / sums.largest**2 * sums.squares


def log_evidence(nights: Sequence[Sequence[DuelSums]]) -> Floats:
    """log E after each night that the challenger was better on at least one night (nights,).

    A night may have several parts, or none.  E is a mixture over stakes and first nights, see
    `calibscale.inference.e_process.advance`.
    """
    increments = np.zeros((len(nights), len(STAKES)))
    for increment, parts in zip(increments, nights, strict=True):
        for sums in parts:
            increment += log_gains(sums)
    logs, _ = advance(increments)
    return logs


def log_threshold(number: int, alpha: float) -> float:
    """log of the E at which the challenger of a number replaces the champion.

    Challenger j has the share α/(j(j + 1)) of α.  The shares sum to α, so that the probability that
    a challenger that was never better is ever chosen is at most α, over all challengers.

    Examples
    --------
    >>> from calibscale.inference.score_bets import log_threshold
    >>> round(math.exp(log_threshold(1, 0.05)), 6), round(math.exp(log_threshold(2, 0.05)), 6)
    (40.0, 120.0)
    """
    return math.log(number * (number + 1) / alpha)
