"""Betting e-processes: evidence against calibration that is valid at any stopping time.

A bet is a recalibrated prediction g, fixed before the labels are observed.  Under calibration the
product of g_y / q_y over rows is a nonnegative martingale that starts at 1, so that the probability
that it ever reaches 1/α is at most α (Ville's inequality).  Bets of fixed strengths detect a drift
of the temperature or of the base rate within a night or two; bets learned from earlier days detect
any persistent shape.  A `TolerantEProcess` refutes an error of at most a tolerance in the place of
calibration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from calibscale.data import LOG_SMALLEST, Chunk, Floats
from calibscale.errors import OptionError, require
from calibscale.limits.excess import ratio
from calibscale.statistics import Statistic, weights_of
from calibscale.statistics.cluster_sums import ClusterRows

NOTIONS = ("canonical", "top_label", "positive")
# bets of fixed strengths, spaced so that a drift of any size is close to one of them
SLOPES = (1 / 1.8, 1 / 1.4, 1 / 1.2, 1 / 1.1, 1 / 1.05, 1 / 1.025, 1.025, 1.05, 1.1, 1.2, 1.4, 1.8)
SHIFTS = (-0.5, -0.25, -0.1, -0.05, 0.05, 0.1, 0.25, 0.5)

STRENGTHS = (0.5, 1.0)  # multiples of the learned shifts
CELLS = 18  # cells of log-odds in which scalar bets are learned
_WIDTH = 0.75  # width of a cell; the outermost cells are unbounded
_LARGEST = 1.0  # largest learned shift of log-odds
_LATE = 0.1  # share of the weight for groups that appear after the first night
RISKS = tuple(2.0**-k for k in range(1, 9))  # λ of the bets of a `TolerantEProcess`
_STEPS = tuple(2.0 ** (k / 6) for k in range(-12, 25))  # its sizes, over the tolerance

Group = TypeVar("Group")
Learned = tuple[tuple[float | None, tuple[float, ...]], ...]


class WagerState(NamedTuple):
    """Log gains of the bets, and the sums from which later bets are learned.

    Numbers of rows, and of rows without a bet as q_y is 0 or 1 (0-d); Σ log(g_y/q_y) of the fixed,
    then of the learned bets (bets,); Σp, Σ1{event} and Σp(1−p) by cell or class (cells, 3).
    """

    n: Floats
    certain: Floats
    logs: Floats
    sums: Floats


@dataclass(frozen=True)
class BettingEProcess(Statistic):
    """Σ log(g_y/q_y) of every bet of a family; weights are ignored.

    Bets on scalar notions: logit g = a·logit p + b, and logit g = logit p + s·shift, with the shift
    of the cell of logit p.  Canonical bets: g ∝ q^a, and g_k ∝ q_k·exp(s·shift_k).

    The fixed `bets` (a, b) have slopes from 1/1.8 to 1.8 and, for scalar notions, shifts from −0.5
    to 0.5 by default.  `learned` has the result of `learn` on earlier days, (group, shifts), by
    value of the covariate at the position `column` (None: all rows); other groups have no learned
    bets, and all rows of a chunk are of the same group.

    With the counts of `ClusterRows`, the factor of a row has the exponent 1/m, and its sums the
    weight 1/m, with at least as many rows m as its cluster has that day.  By Hölder's inequality
    the mean of a cluster's product is at most 1 under any dependence within the cluster.
    """

    notion: str
    bets: tuple[tuple[float, float], ...] = ()
    learned: Learned = ()
    column: int | None = None
    clusters: Floats | None = field(default=None, compare=False, repr=False)
    powers: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        require(self.notion in NOTIONS, f"notion must be one of {', '.join(NOTIONS)}", self.notion)
        if not self.bets:
            shifts = SHIFTS if self.notion != "canonical" else ()
            bets = (*((a, 0.0) for a in SLOPES), *((1.0, b) for b in shifts))
            object.__setattr__(self, "bets", bets)
        if self.notion == "canonical" and any(b != 0 for _, b in self.bets):
            raise OptionError("canonical bets have slopes only, no shifts")

    sizes: ClassVar[tuple[float, ...]] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the gains of a night: (bets,)."""
        return (len(self.bets) + len(STRENGTHS),)

    def gains(self, state: WagerState) -> Floats:
        """Logarithm of the gain of each bet on the rows of a state."""
        return state.logs

    def learn(self, sums: Floats) -> tuple[float, ...]:
        """Parameters of the learned bets from the sums of earlier days."""
        return learn(sums)

    def zero(self, classes: int) -> WagerState:
        cells = classes if self.notion == "canonical" else CELLS
        (bets,) = self.shape
        return WagerState(np.zeros(()), np.zeros(()), np.zeros(bets), np.zeros((cells, 3)))

    def accumulate(self, state: WagerState, chunk: Chunk) -> WagerState:
        state.n[...] += len(chunk)
        add = self._all_classes if self.notion == "canonical" else self._events
        add(state, chunk)
        return state

    def _events(self, state: WagerState, chunk: Chunk) -> None:
        p, rest, _, event = chunk.event(self.notion)
        open_ = (p > 0) & (rest > 0)
        state.certain[...] += len(chunk) - np.count_nonzero(open_)
        p, rest, happened = p[open_], rest[open_], event[open_] > 0.5
        a = self._exponents(chunk)[open_]
        x = np.log(p) - np.log(rest)
        sign = np.where(happened, -1.0, 1.0)
        base = np.logaddexp(0.0, sign * x)  # −log of the event's probability
        for k, (slope, b) in enumerate(self.bets):
            state.logs[k] += np.sum(a * (base - np.logaddexp(0.0, sign * (slope * x + b))))
        cells = _cells(x)
        for column, values in enumerate((p, 1.0 * happened, p * rest)):
            state.sums[:, column] += np.bincount(cells, a * values, CELLS)
        shifts = self._shifts(chunk)
        if shifts is not None:
            for k, strength in enumerate(STRENGTHS, len(self.bets)):
                moved = x + strength * shifts[cells]
                state.logs[k] += np.sum(a * (base - np.logaddexp(0.0, sign * moved)))

    def _all_classes(self, state: WagerState, chunk: Chunk) -> None:
        mine = chunk.log_q[np.arange(len(chunk)), chunk.labels]
        open_ = (chunk.rest > 0) & (mine > LOG_SMALLEST)
        state.certain[...] += len(chunk) - np.count_nonzero(open_)
        log_q, mine, labels = chunk.log_q[open_], mine[open_], chunk.labels[open_]
        a = self._exponents(chunk)[open_]
        for k, (slope, _) in enumerate(self.bets):
            state.logs[k] += np.sum(a * ((slope - 1.0) * mine - _log_sums(slope * log_q)))
        q, column = chunk.q[open_], a[:, None]
        events = np.bincount(labels, a, chunk.classes)
        spread = (column * (q * (1.0 - q))).sum(axis=0)
        state.sums[...] += np.column_stack([(column * q).sum(axis=0), events, spread])
        shifts = self._shifts(chunk)
        if shifts is not None:
            for k, strength in enumerate(STRENGTHS, len(self.bets)):
                moved = strength * shifts
                state.logs[k] += np.sum(a * (moved[labels] - _log_sums(log_q + moved)))

    def _exponents(self, chunk: Chunk) -> Floats:
        """Exponent of the factor of each row (c,)."""
        if self.clusters is None:
            return np.ones(len(chunk))
        return 1.0 / ClusterRows.at_most(self.clusters, chunk.units)

    def _shifts(self, chunk: Chunk) -> Floats | None:
        """Learned shifts for the group of a chunk."""
        if not self.learned or not len(chunk):
            return None
        key = None
        if self.column is not None:
            assert chunk.covariates is not None
            key = float(chunk.covariates[0, self.column])
        shifts = dict(self.learned).get(key)
        return None if shifts is None else np.array(shifts)


@dataclass(frozen=True)
class TolerantEProcess(BettingEProcess):
    """Bets that the L1 error E|E[δ | p]| of a scalar notion is above a size ε.

    X = s·δ, with a sign s for each cell of log-odds from earlier days (`learned`), has a mean of at
    most the error.  A row multiplies the gain by exp(λ(X − ε) − ψ(λ)X²) ≤ (1 + λX)·exp(−λε), with
    ψ(λ) = −log(1 − λ) − λ, so that the mean of the product over the rows of a night is at most 1 if
    their error is at most ε [Fan et al. 2015, eq. 4.11; Waudby-Smith & Ramdas 2023, Thm. 2].  Three
    sums determine it for all λ and ε.  The exponent of a row is min(1, weight / mean weight of
    earlier days), over m with clusters, which weighs the error as well.  A state has Σ of these
    weights, of X and of X² as `logs`, and in `sums` also Σw and Σ1 of the cells.
    """

    tolerance: float = 0.02

    def __post_init__(self) -> None:
        require(self.notion in NOTIONS[1:], "a tolerance is for a scalar notion", self.notion)

    @property
    def sizes(self) -> tuple[float, ...]:  # type: ignore[override]
        """The tolerance, and then the sizes of the confidence sequence."""
        return (self.tolerance, *(self.tolerance * step for step in _STEPS))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes), len(RISKS))

    def gains(self, state: WagerState) -> Floats:
        risk, (weight, first, second) = np.array(RISKS), state.logs
        return risk * (first - weight * np.array(self.sizes)[:, None]) - log_risk(risk) * second

    def learn(self, sums: Floats) -> tuple[float, ...]:
        """Mean weight and signs of the cells; empty without a cell that is off."""
        signs = -np.sign(learn(sums[:, :3]))
        weight, rows = sums[:, 3:].sum(axis=0)
        return (weight / rows, *signs.tolist()) if np.any(signs) else ()

    def zero(self, classes: int) -> WagerState:
        return WagerState(np.zeros(()), np.zeros(()), np.zeros(3), np.zeros((CELLS, 5)))

    def _events(self, state: WagerState, chunk: Chunk) -> None:
        p, rest, delta, event = chunk.event(self.notion)
        w, a = weights_of(chunk), self._exponents(chunk)
        with np.errstate(divide="ignore"):
            cells = _cells(np.log(p) - np.log(np.maximum(rest, 0.0)))
        once = a * w
        for k, values in enumerate((once * p, once * event, once * w * p * rest, w, w**0)):
            state.sums[:, k] += np.bincount(cells, values, CELLS)
        learned = self._shifts(chunk)
        if learned is not None:
            x, w = learned[1:][cells] * delta, a * np.minimum(w / learned[0], 1.0)
            state.logs[...] += w.sum(), w @ x, w @ (x * x)


def log_risk(risk: Floats) -> Floats:
    """ψ(λ) = −log(1 − λ) − λ: exp(λx − ψ(λ)x²) ≤ 1 + λx for x ≥ −1 and 0 ≤ λ < 1."""
    return -np.log1p(-risk) - risk


def _cells(x: Floats) -> Any:
    """Cell of each log-odds (c,)."""
    return np.clip(np.floor(x / _WIDTH) + CELLS // 2, 0, CELLS - 1).astype(np.int64)


def _log_sums(x: Floats) -> Floats:
    """log Σ exp of each row."""
    top = x.max(axis=1)
    return top + np.log(np.exp(x - top[:, None]).sum(axis=1))


def learn(sums: Floats) -> tuple[float, ...]:
    """Shifts of log-odds by cell or class, from the sums (cells, 3) of earlier days.

    One Newton step (Σy − Σp) / Σp(1−p), shrunk for noise by 1 − 1/z², or to 0 for |z| ≤ 1.
    """
    surplus, variance = sums[:, 1] - sums[:, 0], sums[:, 2]
    z2, step = ratio(surplus**2, variance), ratio(surplus, variance)
    shrunk = np.where(z2 > 1, step * (1 - 1 / np.maximum(z2, 1)), 0.0)
    return tuple(np.clip(shrunk, -_LARGEST, _LARGEST).tolist())


def log_e_value(p_value: float) -> float:
    """Logarithm of an e-value from a p-value, ∫ κ p^(κ − 1) dκ over [0, 1] [Vovk & Wang 2021].

    Examples
    --------
    >>> round(math.exp(log_e_value(0.005)), 2), math.exp(log_e_value(1.0))
    (6.9, 0.5)
    """
    log = math.log(p_value)
    if log > -1e-4:  # by its series, as the difference below is of nearly equal numbers
        return math.log(0.5)
    return math.log((1.0 - p_value + p_value * log) / (p_value * log * log))


def advance(
    increments: Floats, running: Floats | None = None, night: int = 0
) -> tuple[Floats, Floats]:
    """log E_t after each night from `night` on, of a mixture over bets and over their first nights.

    E_t = mean_k Σ_s w_s Π_{s ≤ r ≤ t} exp(l_rk) + Σ_{s > t} w_s with w_s = 1/((s+1)(s+2)), so that
    some process starts when a late drift does.  E is a martingale, as each term is one.
    `increments` (nights, …, bets) are sums of log(g_y/q_y) of each night.  `running` is the state
    before it, log Σ w_s Π exp(l_r) of each bet, and the second result the one after the last night.
    """
    running = np.full(increments.shape[1:], -np.inf) if running is None else running
    k = increments.shape[-1]
    logs = np.empty(increments.shape[:-1])
    for at, increment in enumerate(increments):
        t = night + at
        weight = -np.log(t + 1.0) - np.log(t + 2.0)
        running = np.logaddexp(running, weight) + increment
        mixed = np.logaddexp.reduce(running, axis=-1) - np.log(k)
        logs[at] = np.logaddexp(mixed, -np.log(t + 2.0))
    return logs, running


def mean_evidence(logs: Floats, weights: Floats) -> Floats:
    """log(Σ w E + 1 − Σ w), an e-process from several: (processes, nights) → (nights,)."""
    rest = max(0.0, 1.0 - float(weights.sum()))
    total = np.logaddexp.reduce(logs + np.log(weights)[:, None], axis=0)
    return np.logaddexp(total, np.log(rest)) if rest > 1e-12 else total


def places(known: Mapping[Group, int], first: Mapping[Group, int]) -> dict[Group, int]:
    """Places of groups in order of appearance; the places in `known` do not change.

    If `known` is empty, the groups of the earliest night have place 0.  All others have the places
    1, 2, … by the night (`first`) on which they appeared, in the order of `first` within a night.
    """
    numbers = dict(known)
    begun = min(first.values(), default=0)
    for group, night in sorted(first.items(), key=lambda item: item[1]):
        if group not in numbers:
            late = known or night > begun
            numbers[group] = max([*numbers.values(), 0]) + 1 if late else 0
    return numbers


def shares(taken: Mapping[Group, int]) -> dict[Group, float]:
    """Weights of groups by their places.

    The groups of place 0 share nine tenths evenly; place j has 1/(j(j+1)) of the last tenth.  As
    places do not change, a weight is fixed before its process starts.
    """
    initial = sum(place == 0 for place in taken.values())
    return {
        group: _LATE / (place * (place + 1)) if place else (1 - _LATE) / initial
        for group, place in taken.items()
    }
