"""Many tests at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibscale.chunk import Floats, Ints

_TIE = 1e-9  # relative, so that rounding does not decide


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) adjusted p-values: max over p_(j) ≤ p of min(1, (m − j + 1) p_(j)).

    Those at most α are a family of rejections of which any is wrong with probability at most α.
    None stays None and is not counted.

    Examples
    --------
    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    known = [(p, i) for i, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for j, (p, i) in enumerate(sorted(known)):
        largest = max(largest, min(1.0, (len(known) - j) * p))
        adjusted[i] = largest
    return adjusted


class StepDown:
    """Westfall & Young's step-down adjusted p-values, of replicates of all tests at once.

    With the scores of m tests ordered, p_(1) ≤ … ≤ p_(m), and those of B replicates in which every
    null hypothesis holds, the adjusted p-value of the j-th is

    ``max over i ≤ j of (1 + #{b: min over k ≥ i of p*_b(k) ≤ p_(i)}) / (B + 1)``.

    The family of those at most α has a wrong rejection with probability at most α, also where only
    some of the hypotheses hold, if the scores of these are then distributed as in the replicates
    (subset pivotality).  Unlike Holm's it makes use of tests that depend on each other, or cannot
    be as small as α/m.  A score need not be a p-value, but one that it is about puts tests on a
    common scale.  [Westfall & Young, Resampling-Based Multiple Testing (1993), algorithms 2.8 and
    4.1; ties count as in Phipson & Smyth (2010)]

    Parameters
    ----------
    scores : (m,)
        Small where a test finds much.

    Examples
    --------
    >>> family = StepDown(np.array([0.2, 0.01]))
    >>> family.add(np.array([[0.5, 0.6], [0.1, 0.9], [0.3, 0.005]]))
    >>> family.adjusted.tolist(), family.alone.tolist()
    ([0.5, 0.5], [0.5, 0.5])
    """

    def __init__(self, scores: Floats) -> None:
        self.order = np.argsort(scores, kind="stable")
        self._sorted = scores[self.order] * (1 + _TIE)
        self._family, self._alone = (np.zeros(len(scores), np.int64) for _ in range(2))
        self.replicates = 0

    def add(self, drawn: Floats) -> None:
        """The scores of more replicates (B, m)."""
        drawn = drawn[:, self.order]
        self._alone += (drawn <= self._sorted).sum(0)
        least = np.minimum.accumulate(drawn[:, ::-1], axis=1)[:, ::-1]
        self._family += (least <= self._sorted).sum(0)
        self.replicates += len(drawn)

    @property
    def adjusted(self) -> Floats:
        """The adjusted p-value of each test (m,)."""
        return self._p_values(np.maximum.accumulate(self._family))

    @property
    def alone(self) -> Floats:
        """The p-value of each test by itself (m,)."""
        return self._p_values(self._alone)

    def _p_values(self, counts: Ints) -> Floats:
        out = np.empty(len(counts))
        out[self.order] = (1 + counts) / (self.replicates + 1)
        return out
