"""Betting e-processes: evidence against calibration that is valid at any stopping time.

A bet is a recalibrated prediction g, fixed before the labels are observed.  Under calibration the
product of g_y / q_y over rows is a nonnegative martingale that starts at 1, so that the probability
that it ever reaches 1/α is at most α (Ville's inequality).  Bets of fixed strengths detect a drift
of the temperature or of the base rate within a night or two; bets learned from earlier days detect
any persistent shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from calibscale.data import LOG_SMALLEST, Chunk, Floats
from calibscale.errors import OptionError
from calibscale.limits.excess import ratio
from calibscale.statistics import Statistic

NOTIONS = ("canonical", "top_label", "positive")
# bets of fixed strengths, spaced so that a drift of any size is close to one of them
SLOPES = (1 / 1.8, 1 / 1.4, 1 / 1.2, 1 / 1.1, 1 / 1.05, 1 / 1.025, 1.025, 1.05, 1.1, 1.2, 1.4, 1.8)
SHIFTS = (-0.5, -0.25, -0.1, -0.05, 0.05, 0.1, 0.25, 0.5)

STRENGTHS = (0.5, 1.0)  # multiples of the learned shifts
CELLS = 18  # cells of log-odds in which scalar bets are learned
_WIDTH = 0.75  # width of a cell; the outermost cells are unbounded
_LARGEST = 1.0  # largest learned shift of log-odds
_LATE = 0.1  # share of the weight for groups that appear after the first night

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
    """

    notion: str
    bets: tuple[tuple[float, float], ...] = ()
    learned: Learned = ()
    column: int | None = None
    powers: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        if self.notion not in NOTIONS:
            raise OptionError(f"notion must be one of {', '.join(NOTIONS)}, not {self.notion!r}")
        if not self.bets:
            shifts = SHIFTS if self.notion != "canonical" else ()
            bets = (*((a, 0.0) for a in SLOPES), *((1.0, b) for b in shifts))
            object.__setattr__(self, "bets", bets)
        if self.notion == "canonical" and any(b != 0 for _, b in self.bets):
            raise OptionError("canonical bets have slopes only, no shifts")

    def zero(self, classes: int) -> WagerState:
        cells = classes if self.notion == "canonical" else CELLS
        bets = len(self.bets) + len(STRENGTHS)
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
        x = np.log(p) - np.log(rest)
        sign = np.where(happened, -1.0, 1.0)
        base = np.logaddexp(0.0, sign * x)  # −log of the event's probability
        for k, (a, b) in enumerate(self.bets):
            state.logs[k] += np.sum(base - np.logaddexp(0.0, sign * (a * x + b)))
        cells = np.clip(np.floor(x / _WIDTH) + CELLS // 2, 0, CELLS - 1).astype(np.int64)
        for column, values in enumerate((p, happened, p * rest)):
            state.sums[:, column] += np.bincount(cells, values, CELLS)
        shifts = self._shifts(chunk)
        if shifts is not None:
            for k, strength in enumerate(STRENGTHS, len(self.bets)):
                moved = x + strength * shifts[cells]
                state.logs[k] += np.sum(base - np.logaddexp(0.0, sign * moved))

    def _all_classes(self, state: WagerState, chunk: Chunk) -> None:
        mine = chunk.log_q[np.arange(len(chunk)), chunk.labels]
        open_ = (chunk.rest > 0) & (mine > LOG_SMALLEST)
        state.certain[...] += len(chunk) - np.count_nonzero(open_)
        log_q, mine, labels = chunk.log_q[open_], mine[open_], chunk.labels[open_]
        for k, (a, _) in enumerate(self.bets):
            state.logs[k] += np.sum((a - 1.0) * mine - _log_sums(a * log_q))
        q = chunk.q[open_]
        events = np.bincount(labels, minlength=chunk.classes)
        state.sums[...] += np.column_stack([q.sum(axis=0), events, (q * (1.0 - q)).sum(axis=0)])
        shifts = self._shifts(chunk)
        if shifts is not None:
            for k, strength in enumerate(STRENGTHS, len(self.bets)):
                moved = strength * shifts
                state.logs[k] += np.sum(moved[labels] - _log_sums(log_q + moved))

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


def log_evidence(increments: Floats) -> Floats:
    """log E_t after each night (nights,), of a mixture over bets and over their first nights.

    E_t = mean_k Σ_s w_s Π_{s ≤ r ≤ t} exp(l_rk) + Σ_{s > t} w_s with w_s = 1/((s+1)(s+2)), so that
    some process starts when a late drift does.  E is a martingale, as each term is one.
    `increments` (nights, bets) are sums of log(g_y/q_y) of each night.
    """
    return advance(no_evidence(increments.shape[1]), increments, 0)[0]


def no_evidence(bets: int) -> Floats:
    """Initial state of `advance`: log Σ w_s Π exp(l_r) of each bet before the first night."""
    return np.full(bets, -np.inf)


def advance(running: Floats, increments: Floats, night: int) -> tuple[Floats, Floats]:
    """`log_evidence` of the nights from `night` on, and the state for the next night."""
    k = increments.shape[1]
    logs = np.empty(len(increments))
    for at, increment in enumerate(increments):
        t = night + at
        weight = -np.log(t + 1.0) - np.log(t + 2.0)
        running = np.logaddexp(running, weight) + increment
        logs[at] = np.logaddexp(np.logaddexp.reduce(running) - np.log(k), -np.log(t + 2.0))
    return logs, running


def mean_evidence(logs: Floats, weights: Floats) -> Floats:
    """log(Σ w E + 1 − Σ w), an e-process from several: (processes, nights) → (nights,)."""
    rest = max(0.0, 1.0 - float(weights.sum()))
    total = np.logaddexp.reduce(logs + np.log(weights)[:, None], axis=0)
    return np.logaddexp(total, np.log(rest)) if rest > 1e-12 else total


def places(known: Mapping[float, int], first: Mapping[float, int]) -> dict[float, int]:
    """Places of groups in order of appearance; the places in `known` do not change.

    If `known` is empty, the groups of the earliest night have place 0.  All others have the places
    1, 2, … by the night (`first`) on which they appeared.
    """
    numbers = dict(known)
    begun = min(first.values(), default=0)
    for group, night in sorted(first.items(), key=lambda item: (item[1], item[0])):
        if group not in numbers:
            late = known or night > begun
            numbers[group] = max([*numbers.values(), 0]) + 1 if late else 0
    return numbers


def shares(taken: Mapping[float, int]) -> dict[float, float]:
    """Weights of groups by their places.

    The groups of place 0 share nine tenths evenly; place j has 1/(j(j+1)) of the last tenth.  As
    places do not change, a weight is fixed before its process starts.
    """
    initial = sum(place == 0 for place in taken.values())
    return {
        group: _LATE / (place * (place + 1)) if place else (1 - _LATE) / initial
        for group, place in taken.items()
    }
