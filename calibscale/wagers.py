"""Alarms that stay valid however often one looks: bets against calibration.

A bet is a recalibrated prediction g, fixed before the labels are seen.  Under calibration the
product of g_y / q_y over rows is a nonnegative martingale that starts at 1, so that it ever
reaches 1/α with probability at most α (Ville's inequality; design.md, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from calibscale.chunk import LOG_SMALLEST, Chunk, Floats
from calibscale.errors import OptionError
from calibscale.statistics import Statistic

NOTIONS = ("canonical", "top_label", "positive")
# strengths between which a drift of any size has a near neighbour
SLOPES = (1 / 1.8, 1 / 1.4, 1 / 1.2, 1 / 1.1, 1 / 1.05, 1 / 1.025, 1.025, 1.05, 1.1, 1.2, 1.4, 1.8)
SHIFTS = (-0.5, -0.25, -0.1, -0.05, 0.05, 0.1, 0.25, 0.5)


class WagerState(NamedTuple):
    """Rows, and those no bet touches, as q_y is 0 or 1 (0-d); Σ log(g_y/q_y) (k,)."""

    n: Floats
    certain: Floats
    logs: Floats


@dataclass(frozen=True)
class Wagers(Statistic):
    """Σ log(g_y/q_y) of every bet of a family; weights do not count.

    Scalar notions: logit g = a·logit p + b.  Canonical: g ∝ q^a.

    Parameters
    ----------
    notion : {"canonical", "top_label", "positive"}
    bets : tuple of (a, b)
        Default: slopes from 1/1.8 to 1.8 and, for scalar notions, shifts from −0.5 to 0.5.
    """

    notion: str
    bets: tuple[tuple[float, float], ...] = ()
    powers: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        if self.notion not in NOTIONS:
            raise OptionError(f"notion must be one of {', '.join(NOTIONS)}, not {self.notion!r}")
        if not self.bets:
            shifts = SHIFTS if self.notion != "canonical" else ()
            bets = (*((a, 0.0) for a in SLOPES), *((1.0, b) for b in shifts))
            object.__setattr__(self, "bets", bets)
        if self.notion == "canonical" and any(b != 0 for _, b in self.bets):
            raise OptionError("bets on all classes have slopes alone")

    def zero(self, classes: int) -> WagerState:
        return WagerState(np.zeros(()), np.zeros(()), np.zeros(len(self.bets)))

    def accumulate(self, state: WagerState, chunk: Chunk) -> WagerState:
        state.n[...] += len(chunk)
        if self.notion == "canonical":
            self._all_classes(state, chunk)
            return state
        p, rest, _, event = chunk.event(self.notion)
        open_ = (p > 0) & (rest > 0)
        state.certain[...] += len(chunk) - np.count_nonzero(open_)
        x = np.log(p[open_]) - np.log(rest[open_])
        sign = np.where(event[open_] > 0.5, -1.0, 1.0)
        base = np.logaddexp(0.0, sign * x)  # −log of the event's probability
        for k, (a, b) in enumerate(self.bets):
            state.logs[k] += np.sum(base - np.logaddexp(0.0, sign * (a * x + b)))
        return state

    def _all_classes(self, state: WagerState, chunk: Chunk) -> None:
        mine = chunk.log_q[np.arange(len(chunk)), chunk.labels]
        open_ = (chunk.rest > 0) & (mine > LOG_SMALLEST)
        state.certain[...] += len(chunk) - np.count_nonzero(open_)
        log_q, mine = chunk.log_q[open_], mine[open_]
        for k, (a, _) in enumerate(self.bets):
            scaled = a * log_q
            top = scaled.max(axis=1)
            total = top + np.log(np.exp(scaled - top[:, None]).sum(axis=1))
            state.logs[k] += np.sum((a - 1.0) * mine - total)


def log_evidence(increments: Floats) -> Floats:
    """log E_t after each of many nights, of a mixture over bets and over nights of restart.

    E_t = mean_k Σ_s w_s Π_{s ≤ r ≤ t} exp(l_rk) + Σ_{s > t} w_s with w_s = 1/((s+1)(s+2)): a drift
    that starts late has a process that starts then.  Each term is a martingale, so E is.

    Parameters
    ----------
    increments : (nights, bets)
        Sums of log(g_y/q_y), night after night.

    Returns
    -------
    (nights,)
    """
    nights, k = increments.shape
    running = np.full(k, -np.inf)
    found = np.empty(nights)
    for t in range(nights):
        weight = -np.log(t + 1.0) - np.log(t + 2.0)
        running = np.logaddexp(running, weight) + increments[t]
        found[t] = np.logaddexp(np.logaddexp.reduce(running) - np.log(k), -np.log(t + 2.0))
    return found


def mean_evidence(logs: Floats) -> Floats:
    """log of the mean of the e-values of groups, (groups, nights) → (nights,): one again."""
    return np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))
