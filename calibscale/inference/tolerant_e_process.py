"""E-processes against the hypothesis that the calibration error is at most a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.inference.e_process import (
    CELLS,
    NOTIONS,
    RESOLUTION,
    BettingEProcess,
    WagerState,
    learn,
    rounded,
    summed,
)
from calibscale.inference.learned_shifts import mean_shifts
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.statistic import weights_of

RISKS = tuple(2.0**-k for k in range(1, 9))  # risks λ of the bets
_STEPS = tuple(2.0 ** (k / 6) for k in range(-12, 25))  # sizes of the error, over the tolerance
_SURE = 0.005  # learned shift of log-odds from which a cell has its full sign
# Shares of the mixture: patterns of signs that are fixed, learned signs, and learned bets of the
# best size at each risk.
_SHARES = (0.2, 0.2, 0.6)
_EARLIER_SHARES = (0.25, 0.25, 0.5)  # at an earlier resolution, with equal weights of the risks
_FIXED = 3  # number of fixed patterns


@dataclass(frozen=True)
class TolerantEProcess(BettingEProcess):
    """Bets that the L1 error E|E[δ | p]| of a scalar notion is above a size ε.

    A pattern s assigns a number in [−1, 1] to each cell of log-odds.  A row with X = s·δ multiplies
    the gain by exp(λ(X − ε) − ψ(λ)X²), with ψ(λ) = −log(1 − λ) − λ.  The sums Σw, ΣwX and ΣwX² of
    each pattern determine the gain for all λ and ε.  A state has them as `logs`, (patterns, 3), or
    (3,) at a resolution of 1.  Its `sums` are Σp, Σ1{event}, Σp(1 − p), Σw and Σ1 of the cells and,
    except at a resolution of 1, Σδ².

    The patterns are +1, −1, events of probability 0 or 1, and those learned from earlier days: the
    signs of the shifts b of log-odds, and clip(b/λ, −1, 1) for each risk λ.  As the growth of a
    cell is λsb·v − λ²s²v/2 for a variance v of its labels, s = b/λ is the best bet there, and
    |s| = 1 the largest one.  At a resolution of 1 the signs of the cells are the only pattern.

    The exponent of a row is min(1, weight / mean weight of earlier days), over m with clusters,
    which weighs the error as well.  On the first day rows with weights have no bets.

    Notes
    -----
    A row has the exponent a ∈ [0, 1], the prediction p, and an event of the probability π.  The
    hypothesis is that Σa·|p − π| ≤ ε·Σa over the rows of each day.  Given the rows of a day and all
    that is known before it, which determines s and a,

    1. exp(λx − ψ(λ)x²) ≤ 1 + λx for x ≥ −1 and 0 ≤ λ < 1 [Fan et al. 2015, eq. 4.11], and
       (1 + λx)^a ≤ 1 + aλx by Bernoulli's inequality, so that the factor of a row is at most (1 +
       aλX)·exp(−aλε).
    2. X = s(p − y) has the mean s(p − π) ≤ |p − π|, so that the mean of the factor is at most
       (1 + aλ|p − π|)·exp(−aλε) ≤ exp(aλ(|p − π| − ε)).
    3.  Labels are independent, so that the mean of the product over the rows of a day is at most
       exp(λΣa|p − π| − λεΣa) ≤ 1.

    The product over days is therefore a supermartingale for each pattern and each λ, and so is a
    mixture of them with fixed weights [Waudby-Smith & Ramdas 2023, Thm. 2].  Where p ≤ t with
    `certainty` t, the error of a row is the distance of π from [0, t], δ is t − y, and patterns are
    at most 0: X has the mean |s|(π − t), which is at most that distance.  The same holds near 1.
    """

    tolerance: float = 0.02

    def __post_init__(self) -> None:
        require(self.notion in NOTIONS[1:], "a tolerance is for a scalar notion", self.notion)
        if self.certainty and self.resolution == 1:
            raise OptionError("certainty requires a resolution above 1")

    @property
    def sizes(self) -> tuple[float, ...]:  # type: ignore[override]
        """The tolerance, and then the sizes of the confidence sequence."""
        return (self.tolerance, *(self.tolerance * step for step in _STEPS))

    @property
    def _slots(self) -> tuple[list[int], list[float], list[float] | None]:
        """Pattern, risk and weight of each bet."""
        count = len(RISKS)
        if self.resolution == 1:
            return [0] * count, [*RISKS], None
        patterns: list[int] = []
        risks: list[float] = []
        weights: list[float] = []
        of_fixed, of_signs, of_bets = self._shares
        for pattern in range(_FIXED + 1):  # each at all risks
            share = of_fixed / _FIXED if pattern < _FIXED else of_signs
            patterns += [pattern] * count
            risks += RISKS
            weights += (share * self._risk_weights).tolist()
        patterns += [_FIXED + 1 + k for k in range(count)]  # each at its own risk
        risks += RISKS
        weights += (of_bets * self._risk_weights).tolist()
        return patterns, risks, weights

    @property
    def _is_earlier(self) -> bool:
        """Whether a ledger of an earlier version chose the resolution.

        The weights of a mixture are fixed before the first night, so that such a ledger keeps its.
        """
        return self.resolution < RESOLUTION

    @property
    def _shares(self) -> tuple[float, float, float]:
        return _EARLIER_SHARES if self._is_earlier else _SHARES

    @property
    def _risk_weights(self) -> Floats:
        """Weights of the risks, which have the sum 1.

        The best risk for an error e of labels with the variance v is (e − ε)/v, which is at least
        4ε for e ≥ 2ε as v ≤ 1/4.  Weights fall slowly above 4ε, as rare events have small
        variances, and faster below it, as small errors take many days anyway.
        """
        if self._is_earlier:
            return np.full(len(RISKS), 1.0 / len(RISKS))
        octaves = np.log2(np.array(RISKS) / (4.0 * self.tolerance))
        weights = 1.0 / (1.0 + np.where(octaves > 0, octaves / 2.0, octaves) ** 2)
        return weights / weights.sum()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes), len(self._slots[0]))

    @property
    def weights(self) -> Floats | None:
        weights = self._slots[2]
        return None if weights is None else np.array(weights)

    @property
    def refutable(self) -> bool:
        """False: events of predictions of 0 are an error, which the tolerance allows in part."""
        return False

    def gains(self, state: WagerState) -> Floats:
        patterns, risks, _ = self._slots
        risk = np.array(risks)
        sums = state.logs.reshape(-1, 3)[patterns]
        weight, first, second = sums.T
        # Σ (λ(X − ε) − ψ(λ)X²) for each ε (rows) and each bet (columns).
        return risk * (first - weight * np.array(self.sizes)[:, None]) - log_risk(risk) * second

    def learned_from(self, days: Sequence[Floats]) -> tuple[float, ...]:
        """Mean weight, and shifts of the cells (signs at a resolution of 1).

        Empty without rows, and at a resolution of 1 without a cell that is off.  The shifts are 0
        if they make an error of at most the tolerance: a bet on such an error is expected to lose.
        """
        if not len(days):
            return ()
        total = summed(days)
        weight, rows = total[:, 3:5].sum(axis=0)
        if rows == 0:
            return ()
        if self.resolution > 1:
            return tuple(self.parameters(np.array(days)).tolist())
        signs = -np.sign(learn(total[:, :3]))
        return (weight / rows, *signs.tolist()) if np.any(signs) else ()

    def parameters(self, sums: Floats) -> Floats:
        total = sums.sum(axis=0)
        mean = (total[..., 3].sum(axis=-1) / total[..., 4].sum(axis=-1))[..., None]
        surplus = (sums[..., 1] - sums[..., 0]) / mean
        # Σδ² where the predictions are 0 or 1, or labels vary more than they should.
        variance = np.maximum(sums[..., 2], sums[..., 5]) / mean**2
        shifts = mean_shifts(surplus, variance)
        error = np.sum(np.abs(shifts) * variance.sum(axis=0), axis=-1, keepdims=True)
        tolerated = self.tolerance * total[..., 6].sum(axis=-1, keepdims=True) / mean
        return np.concatenate([mean, rounded(np.where(error > tolerated, shifts, 0.0))], axis=-1)

    def zero(self, classes: int) -> WagerState:
        if self.resolution == 1:
            return WagerState(np.zeros(()), np.zeros(()), np.zeros(3), np.zeros((CELLS, 5)))
        patterns = _FIXED + 1 + len(RISKS)
        logs, sums = np.zeros((patterns, 3)), np.zeros((self.cells, 7))
        return WagerState(np.zeros(()), np.zeros(()), logs, sums)

    def _events(self, state: WagerState, chunk: Chunk) -> None:
        p, complement, delta, event = chunk.event(self.notion)
        low, high = p <= self.certainty, complement <= self.certainty
        if self.certainty:
            p, complement = self._uncertain(p, complement, low, high)
            delta = np.where(low | high, p - event, delta)
        w = weights_of(chunk)
        exponents = self._exponents(chunk)
        with np.errstate(divide="ignore"):
            cells = self._cells(np.log(p) - np.log(np.maximum(complement, 0.0)), low, high)
        # Columns of `WagerState.sums`: Σawp, Σaw1{event}, Σaw²p(1−p), Σw and the number of rows,
        # and at a resolution above 1 also Σaw²δ² and Σaw, with the exponents a.
        once = exponents * w
        columns = [once * p, once * event, once * w * p * complement, w, np.ones(len(w))]
        if self.resolution > 1:
            columns += [once * w * delta * delta, once]
        for column, values in enumerate(columns):
            state.sums[:, column] += np.bincount(cells, values, self.cells)
        learned = self._shifts(chunk)
        if self.resolution == 1:
            if learned is not None:
                mean_weight, signs = learned[0], learned[1:]
                bounded = exponents * np.minimum(w / mean_weight, 1.0)
                state.logs[...] += _sums_of_bet(bounded, signs[cells] * delta)
            return
        if learned is None:
            if len(chunk.weights):
                return  # the mean weight of earlier days is not known yet
            learned = np.concatenate([[1.0], np.zeros(self.cells)])
        mean_weight, shifts = learned[0], learned[1:]
        # Exponents of at most 1, for Bernoulli's inequality.
        bounded = exponents * np.minimum(w / mean_weight, 1.0)
        for sums, pattern in zip(state.logs, self._patterns(shifts), strict=True):
            if np.any(pattern):  # without a sign in any cell there is no bet
                sums += _sums_of_bet(bounded, pattern[cells] * delta)

    def _patterns(self, shifts: Floats) -> Floats:
        """Patterns of a group from the learned shifts of its cells (patterns, cells)."""
        patterns = np.zeros((_FIXED + 1 + len(RISKS), self.cells))
        # All predictions are too high, all are too low, or certain ones alone are off.
        patterns[0] = 1.0
        patterns[1] = -1.0
        patterns[2, 0] = -1.0
        patterns[2, -1] = 1.0
        # Signs of the shifts, up to a soft threshold, and then the best bet at each risk.
        scales = np.array([_SURE, *RISKS])
        patterns[_FIXED:] = np.clip(-shifts / scales[:, None], -1.0, 1.0)
        # An event of a prediction of 0 can only be more frequent, and of 1 only rarer.
        patterns[:, 0] = np.minimum(patterns[:, 0], 0.0)
        patterns[:, -1] = np.maximum(patterns[:, -1], 0.0)
        return patterns


def _sums_of_bet(exponents: Floats, x: Floats) -> tuple[float, float, float]:
    """Σa, ΣaX and ΣaX² of rows with the exponents a (c,), from which the gains follow."""
    return float(exponents.sum()), float(exponents @ x), float(exponents @ (x * x))


def log_risk(risk: Floats) -> Floats:
    """ψ(λ) = −log(1 − λ) − λ: exp(λx − ψ(λ)x²) ≤ 1 + λx for x ≥ −1 and 0 ≤ λ < 1."""
    return -np.log1p(-risk) - risk
