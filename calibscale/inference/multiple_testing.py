"""p-values of several tests, adjusted for their number or combined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaincc

from calibscale.array_types import Floats, Ints

if TYPE_CHECKING:
    from calibscale.results.inference_results import TestResult

_TIE = 1e-9  # relative difference up to which scores are tied, so that rounding does not decide


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) adjusted p-values: max over p_(j) ≤ p of min(1, (m − j + 1) p_(j)).

    Rejecting where the adjusted p-value is at most α makes any wrong rejection with probability at
    most α.  None stays None and is not counted.

    Examples
    --------
    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    defined = [(p, i) for i, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for j, (p, i) in enumerate(sorted(defined)):
        largest = max(largest, min(1.0, (len(defined) - j) * p))
        adjusted[i] = largest
    return adjusted


class StepDown:
    """Westfall & Young's step-down adjusted p-values, from joint replicates of all tests.

    Let the scores of m tests be ordered, p_(1) ≤ … ≤ p_(m), and every null hypothesis hold in B
    replicates.  The adjusted p-value of the j-th is

    ``max over i ≤ j of (1 + #{b: min over k ≥ i of p*_b(k) ≤ p_(i)}) / (B + 1)``.

    Rejecting where the adjusted p-value is at most α makes any wrong rejection with probability at
    most α, also if only some of the hypotheses hold, provided that their scores are distributed as
    in the replicates (subset pivotality).  Unlike Holm's method it exploits dependence between
    tests, and p-values that cannot be as small as α/m.  Scores need not be p-values, but should
    have a common scale.  [Westfall & Young, Resampling-Based Multiple Testing (1993), algorithms
    2.8 and 4.1.  Ties count as in Phipson & Smyth (2010).]

    Parameters
    ----------
    scores : (m,)
        Score of each test.  Small scores are evidence against the null hypothesis.

    Examples
    --------
    >>> family = StepDown(np.array([0.2, 0.01]))
    >>> family.add(np.array([[0.5, 0.6], [0.1, 0.9], [0.3, 0.005]]))
    >>> family.adjusted.tolist(), family.alone.tolist()
    ([0.5, 0.5], [0.5, 0.5])
    """

    def __init__(self, scores: Floats) -> None:
        self.order = np.argsort(scores, kind="stable")
        ordered = scores[self.order]
        self._sorted = ordered + _TIE * np.abs(ordered)
        self._family, self._alone = (np.zeros(len(scores), np.int64) for _ in range(2))
        self.replicates = 0

    def add(self, drawn: Floats) -> None:
        """Add the scores of B replicates (B, m)."""
        drawn = drawn[:, self.order]
        self._alone += (drawn <= self._sorted).sum(0)
        # Minimum of the scores of this and all less significant tests.
        minima = np.minimum.accumulate(drawn[:, ::-1], axis=1)[:, ::-1]
        self._family += (minima <= self._sorted).sum(0)
        self.replicates += len(drawn)

    @property
    def adjusted(self) -> Floats:
        """Adjusted p-value of each test (m,)."""
        # A test is rejected only if all more significant ones are.
        return self._p_values(np.maximum.accumulate(self._family))

    @property
    def alone(self) -> Floats:
        """Unadjusted p-value of each test (m,)."""
        return self._p_values(self._alone)

    def _p_values(self, counts: Ints) -> Floats:
        out = np.empty(len(counts))
        out[self.order] = (1 + counts) / (self.replicates + 1)
        return out


def combined(values: Floats) -> tuple[Floats, int]:
    """Score of m statistics for the data and each replicate, and the data's largest residual u.

    u is a standardised statistic less its regression on the statistics after it, over its
    deviation.  It is the error that a narrow kernel sees beyond the wider ones, without their
    noise.  The score is −log of the smaller of two p-values.  The first is the p-value of Σ_k
    (max(u_k, 0) + max(u_{k+1}, 0))², as neighbouring kernels see the same error.  The second is
    twice the p-value of the largest −log p of a statistic.  Both follow from the gamma distribution
    with the mean, variance and skewness over data and replicates.  As data and replicates are
    treated alike, the scores are exchangeable if the statistics are, and the rank of the first is
    an exact test.  1e-4 is added to variances.  [After Chatterjee & Bhattacharya (2023), *Boosting
    the power of kernel two-sample tests*]

    Parameters
    ----------
    values : (m, 1 + B)
        Statistics of the data, then of the replicates, from narrow to wide kernels.

    Examples
    --------
    >>> scores, which = combined(np.array([[3.0, 1, 2, 2], [90.0, 10, 10, 10]]))
    >>> scores.round(2).tolist(), which
    ([2.75, 0.18, 0.53, 0.53], 1)
    """
    # From wide to narrow kernels, the inverse of the Cholesky factor subtracts from each statistic
    # its regression on the wider ones.
    z = _standardised(values)[::-1]
    covariance = z @ z.T / z.shape[1] + 1e-4 * np.eye(len(z))
    u = np.linalg.solve(np.linalg.cholesky(covariance), z)
    seen = np.pad(np.maximum(u, 0.0), ((1, 1), (0, 0)))
    statistics = np.stack([np.sum((seen[1:] + seen[:-1]) ** 2, axis=0), _surprise(z).max(axis=0)])
    pairs, largest = _surprise(_standardised(statistics))
    scores = np.maximum(np.maximum(pairs, largest - math.log(2.0)), 0.0)
    return scores, len(z) - 1 - int(u[:, 0].argmax())


def _standardised(values: Floats) -> Floats:
    """Rows less their means, over their deviations, or 0 where they vary by rounding alone."""
    spread = values.std(axis=1, keepdims=True)
    varies = spread > 1e-12 * np.abs(values).max(axis=1, keepdims=True)
    return (values - values.mean(axis=1, keepdims=True)) / np.where(varies, spread, np.inf)


def _surprise(z: Floats) -> Floats:
    """−log p of standardised rows by gamma distributions, 0 for rows of zeros."""
    # The gamma distribution of skewness s has the shape 4/s².  Near 0 it is normal, and √8 is the
    # skewness of χ² of one degree of freedom.
    skewness = np.clip(np.mean(z**3, axis=1, keepdims=True), 0.01, math.sqrt(8.0))
    shape = 4.0 / skewness**2
    tail = gammaincc(shape, np.maximum(shape + z * np.sqrt(shape), 0.0))
    p = np.where(z.any(axis=1, keepdims=True), np.maximum(tail, 1e-300), 1.0)
    return np.abs(np.log(p))


def surprise(value: float, drawn: Floats) -> float:
    """−log p of a value by the gamma distribution fitted to it and its draws, 0 without draws."""
    if not len(drawn):
        return 0.0
    return float(_surprise(_standardised(np.array([[value, *drawn]])))[0, 0])


def joint_p_values(values: Sequence[float | None], drawn: Sequence[Floats]) -> list[float | None]:
    """p-values of tests that share their draws, adjusted for each other, None without draws.

    Each statistic is replaced by −log of its p-value by the gamma distribution that has the mean,
    variance and skewness of the value and its draws, so that statistics of any scale and tail are
    comparable by `StepDown`.  The value and its draws are treated alike, so that the p-value of the
    most extreme statistic is exact if they are exchangeable.

    Parameters
    ----------
    values : sequence of float or None
        Value of each test.
    drawn : sequence of (B,) arrays
        Values under the null hypothesis.  Tests with another number of draws than most have None.

    Examples
    --------
    >>> draws = np.arange(19.0)
    >>> joint_p_values([30.0, 5.0, None], [draws, draws, draws])
    [0.05, 0.75, None]
    """
    lengths = [len(draws) for draws in drawn if len(draws)]
    common = max(set(lengths), key=lengths.count) if lengths else 0
    shared = [
        i
        for i, value in enumerate(values)
        if value is not None and common and len(drawn[i]) == common
    ]
    adjusted: list[float | None] = [None] * len(values)
    if not shared:
        return adjusted
    scores = _surprise(_standardised(np.array([[values[i], *drawn[i]] for i in shared])))
    family = StepDown(-scores[:, 0])
    family.add(-scores[:, 1:].T)
    for i, p in zip(shared, family.adjusted.tolist(), strict=True):
        adjusted[i] = p
    return adjusted


def adjusted_tests(tests: Sequence[TestResult]) -> list[float | None]:
    """p-values of tests, adjusted for each other, None without draws.

    Tests that share their draws have a joint null distribution, see `joint_p_values`.  Tests of
    several sets of draws are families, over which p-values are adjusted by Bonferroni.

    Parameters
    ----------
    tests : sequence of TestResult
        Tests with p-values by rank among their draws.  Tests without a p-value have None.
    """
    families: dict[str, list[int]] = {}
    for i, test in enumerate(tests):
        if test.p_value is not None:
            families.setdefault(test.draws, []).append(i)
    adjusted: list[float | None] = [None] * len(tests)
    for members in families.values():
        values = [tests[i].value for i in members]
        joint = joint_p_values(values, [tests[i].null_values for i in members])
        for i, p in zip(members, joint, strict=True):
            if p is not None:
                # The level of an earlier look at other draws, see `TestResult.looks`.
                spent = (tests[i].looks - 1) / (len(tests[i].null_values) + 1)
                adjusted[i] = min(1.0, len(families) * (p + spent))
    return adjusted
