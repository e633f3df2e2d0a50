"""Betting e-processes: evidence against calibration that is valid at any stopping time.

A bet is a recalibrated prediction g, fixed before the labels are observed.  Under calibration the
product of g_y / q_y over rows is a nonnegative martingale that starts at 1, so that the probability
that it ever reaches 1/α is at most α (Ville's inequality).  Bets of fixed strengths detect a drift
of the temperature or of the base rate within a night or two.  Bets learned from earlier days detect
any persistent shape.  `calibscale.inference.tolerant_e_process` refutes an error of at most a
tolerance instead of calibration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from calibscale.array_types import Bools, Floats, Ints
from calibscale.errors import OptionError, require
from calibscale.inference.learned_shifts import mean_shifts
from calibscale.predictions.chunk import LOG_SMALLEST, Chunk
from calibscale.statistics.cluster_sums import ClusterRows
from calibscale.statistics.ratios import ratio
from calibscale.statistics.statistic import Statistic

CLAIMED = "event"  # notion of the event that a quantile, an interval or a set claims
NOTIONS = ("canonical", "top_label", "positive", CLAIMED)
# Bets of fixed strengths, spaced so that a drift of any size is close to one of them.
SLOPES = (1 / 1.8, 1 / 1.4, 1 / 1.2, 1 / 1.1, 1 / 1.05, 1 / 1.025, 1.025, 1.05, 1.1, 1.2, 1.4, 1.8)
SHIFTS = (-0.5, -0.25, -0.1, -0.05, 0.05, 0.1, 0.25, 0.5)

STRENGTHS = (0.5, 1.0)  # multiples of the learned shifts
CELLS = 18  # cells of log-odds in which scalar bets are learned, at a resolution of 1
# Resolution of new ledgers: a change of sign is at most 0.012 in p from the border of a cell.
RESOLUTION = 16
_WIDTH = 0.75  # width of a cell at a resolution of 1, but the outermost cells are unbounded
_LARGEST = 1.0  # largest learned shift of log-odds at a resolution of 1
_DIGITS = 4  # digits of learned shifts, which are kept as JSON for each day
# Largest number of classes with shifts of their own for `top_label`.  Beyond it a class has few
# rows per night, and the shifts of a day would be large as JSON.
_MOST_CLASSES = 100
_LATE = 0.1  # share of the weight for groups that appear after the first night

Group = TypeVar("Group")
Learned = tuple[tuple[float | None, tuple[float, ...]], ...]


class WagerState(NamedTuple):
    """Log gains of the bets, and the sums from which later bets are learned.

    Numbers of rows, and of rows without a bet as q_y is 0 or 1 (0-d).  Σ log(g_y/q_y) of the fixed,
    then of the learned bets (bets,).  Σp, Σ1{event} and Σp(1−p) by cell or class (cells, 3).
    """

    n: Floats
    certain: Floats
    logs: Floats
    sums: Floats


@dataclass(frozen=True)
class BettingEProcess(Statistic):
    """Σ log(g_y/q_y) of every bet of a family.  Weights are ignored.

    Bets on scalar notions: logit g = a·logit p + b, and logit g = logit p + s·shift, with the shift
    of the cell of logit p or, for `top_label`, of the top class.  Canonical bets: g ∝ q^a, and
    g_k ∝ q_k·exp(s·shift_k).

    With the counts of `ClusterRows`, the factor of a row has the exponent 1/m, and its sums the
    weight 1/m, with at least as many rows m as its cluster has that day.  By Hölder's inequality
    the mean of a cluster's product is at most 1 under any dependence within the cluster.

    Parameters
    ----------
    bets : tuple of (float, float)
        Fixed (a, b).  By default the slopes a are from 1/1.8 to 1.8 and, for scalar notions, the
        shifts b from −0.5 to 0.5.
    learned : tuple of (group, tuple of float)
        Results of `learned_from` on earlier days, by value of the covariate at the position
        `column` (None: all rows).  Other groups have no learned bets.  All rows of a chunk are of
        the same group.
    resolution : int
        Number of cells in 0.75 of log-odds.  Ledgers of earlier versions have 1, without cells for
        certain predictions, without classes, and with shifts from one step of Newton's method.
    certainty : float
        Predictions p ≤ t are treated as t, and predictions p ≥ 1 − t as 1 − t.  The null hypothesis
        is that the event has a probability of at most t where p ≤ t, at least 1 − t where p ≥ 1 −
        t, and p elsewhere.  Bets that the event is rarer than t have the factor 1 there, and the
        factor of other bets increases with the probability π of the event: its mean is π·g/t + (1 −
        π)(1 − g)/(1 − t), which is 1 at π = t and at most 1 below it.
    """

    notion: str
    bets: tuple[tuple[float, float], ...] = ()
    learned: Learned = ()
    column: int | None = None
    resolution: int = 1
    certainty: float = 0.0
    clusters: Floats | None = field(default=None, compare=False, repr=False)
    powers: ClassVar[tuple[int, ...]] = ()
    sizes: ClassVar[tuple[float, ...]] = ()

    def __post_init__(self) -> None:
        require(self.notion in NOTIONS, f"notion must be one of {', '.join(NOTIONS)}", self.notion)
        require(0 <= self.certainty < 0.5, "certainty must be in [0, 0.5)", self.certainty)
        if not self.bets:
            shifts = SHIFTS if self.notion != "canonical" else ()
            bets = (*((a, 0.0) for a in SLOPES), *((1.0, b) for b in shifts))
            object.__setattr__(self, "bets", bets)
        if self.notion == "canonical" and any(b != 0 for _, b in self.bets):
            raise OptionError("canonical bets have slopes only, no shifts")
        if self.notion == "canonical" and self.certainty:
            raise OptionError("certainty is for a scalar notion, not for canonical bets")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the gains of a night: (bets,)."""
        # Learned bets are by cell of log-odds and, where there are classes, by class as well.
        kinds = 2 if self._has_classes else 1
        return (len(self.bets) + len(STRENGTHS) * kinds,)

    @property
    def weights(self) -> Floats | None:
        """Weights of the bets in their mixture (bets,), or None if they are equal."""
        return None

    @property
    def refutable(self) -> bool:
        """Whether a label of probability 0 refutes the null hypothesis, so that E is infinite."""
        return self.certainty == 0

    @property
    def cells(self) -> int:
        """Number of cells of log-odds.  The first and the last hold certain predictions."""
        return CELLS if self.resolution == 1 else CELLS * self.resolution + 2

    @property
    def _has_classes(self) -> bool:
        return self.resolution > 1 and self.notion == "top_label"

    def gains(self, state: WagerState) -> Floats:
        """Logarithm of the gain of each bet on the rows of a state."""
        return state.logs

    def learned_from(self, days: Sequence[Floats]) -> tuple[float, ...]:
        """Parameters of the learned bets from the sums of each earlier day, the latest day last."""
        if not len(days):
            return ()
        if self.resolution == 1:
            return learn(summed(days))
        return tuple(self.parameters(np.array(days)).tolist())

    def parameters(self, sums: Floats) -> Floats:
        """Parameters (…, parameters) from sums (days, …, cells, k), at a resolution above 1."""
        surplus, variance = sums[..., 1] - sums[..., 0], sums[..., 2]
        if self.notion == "canonical":
            return rounded(mean_shifts(surplus, variance, (1.0,)))
        cells = mean_shifts(surplus[..., : self.cells], variance[..., : self.cells])
        classes = surplus[..., self.cells :]
        if not classes.size:
            return rounded(cells)
        of_classes = mean_shifts(classes, variance[..., self.cells :], (1.0,))
        return rounded(np.concatenate([cells, of_classes], axis=-1))

    def zero(self, classes: int) -> WagerState:
        size = classes if self.notion == "canonical" else self.cells
        if self._has_classes and classes <= _MOST_CLASSES:
            size += classes
        (bets,) = self.shape
        return WagerState(
            n=np.zeros(()), certain=np.zeros(()), logs=np.zeros(bets), sums=np.zeros((size, 3))
        )

    def accumulate(self, state: WagerState, chunk: Chunk) -> WagerState:
        state.n[...] += len(chunk)
        if self.notion == "canonical":
            self._all_classes(state, chunk)
        else:
            self._events(state, chunk)
        return state

    def _events(self, state: WagerState, chunk: Chunk) -> None:
        """Add the rows of a chunk to the state of a scalar notion."""
        p, complement, _, event = chunk.event(self.notion)
        low = p <= self.certainty
        high = complement <= self.certainty
        if self.certainty:
            p, complement = self._uncertain(p, complement, low, high)
        # The factor of a row that is certain is 1, so that it is left out and counted.
        kept = (p > 0) & (complement > 0)
        state.certain[...] += len(chunk) - np.count_nonzero(kept)
        p, complement, happened = p[kept], complement[kept], event[kept] > 0.5
        low, high = low[kept], high[kept]
        exponents = self._exponents(chunk)[kept]
        log_odds = np.log(p) - np.log(complement)
        sign = np.where(happened, -1.0, 1.0)
        log_loss = _log_losses(sign * log_odds)

        def log_gain(moved: Floats) -> float:
            """Σ log(g_y/q_y) of a bet with the log-odds `moved` of g."""
            if self.certainty:
                # No bets on rarer events than the tolerated ones.
                moved = np.where(low, np.maximum(moved, log_odds), moved)
                moved = np.where(high, np.minimum(moved, log_odds), moved)
            return float(np.sum(exponents * (log_loss - _log_losses(sign * moved))))

        for bet, (slope, shift) in enumerate(self.bets):
            state.logs[bet] += log_gain(slope * log_odds + shift)
        cells = self._cells(log_odds, low, high)
        columns = (p, happened.astype(np.float64), p * complement)  # of `WagerState.sums`
        # The sums of this day, from which later days learn, are added after the bets of the day
        # were fixed, so that a bet never depends on its own labels.
        of_cells = state.sums[: self.cells]
        for column, values in enumerate(columns):
            of_cells[:, column] += np.bincount(cells, exponents * values, self.cells)
        shifts = self._shifts(chunk)  # of the cells, then of the classes
        first_of_cells = len(self.bets)
        if shifts is not None:
            for bet, strength in enumerate(STRENGTHS, first_of_cells):
                state.logs[bet] += log_gain(log_odds + strength * shifts[cells])
        of_classes = state.sums[self.cells :]
        if not len(of_classes):
            return
        top = chunk.top[kept]
        for column, values in enumerate(columns):
            of_classes[:, column] += np.bincount(top, exponents * values, len(of_classes))
        first_of_classes = first_of_cells + len(STRENGTHS)
        if shifts is not None:
            for bet, strength in enumerate(STRENGTHS, first_of_classes):
                state.logs[bet] += log_gain(log_odds + strength * shifts[self.cells + top])

    def _uncertain(
        self, p: Floats, complement: Floats, low: Bools, high: Bools
    ) -> tuple[Floats, Floats]:
        """p and 1 − p of predictions that are at least `certainty` away from 0 and 1."""
        smallest = self.certainty
        largest = 1.0 - smallest
        clipped_p = np.where(low, smallest, np.where(high, largest, p))
        clipped_complement = np.where(low, largest, np.where(high, smallest, complement))
        return clipped_p, clipped_complement

    def _all_classes(self, state: WagerState, chunk: Chunk) -> None:
        """Add the rows of a chunk to the state of canonical bets."""
        label_log_q = chunk.log_q[np.arange(len(chunk)), chunk.labels]
        # The factor of a row that is certain is 1, so that it is left out and counted.
        kept = (chunk.rest > 0) & (label_log_q > LOG_SMALLEST)
        state.certain[...] += len(chunk) - np.count_nonzero(kept)
        log_q, label_log_q, labels = chunk.log_q[kept], label_log_q[kept], chunk.labels[kept]
        exponents = self._exponents(chunk)[kept]
        for bet, (slope, _) in enumerate(self.bets):
            # g ∝ q^a has log(g_y/q_y) = (a − 1) log q_y − log Σ_k q_k^a.
            log_ratios = (slope - 1.0) * label_log_q - _log_sums(slope * log_q)
            state.logs[bet] += np.sum(exponents * log_ratios)
        # Sums over rows by class: Σq_k, the number of labels k, and Σq_k(1 − q_k).
        q, weights = chunk.q[kept], exponents[:, None]
        expected = (weights * q).sum(axis=0)
        events = np.bincount(labels, exponents, chunk.n_features)
        variance = (weights * (q * (1.0 - q))).sum(axis=0)
        state.sums[...] += np.column_stack([expected, events, variance])
        shifts = self._shifts(chunk)
        if shifts is not None:
            for bet, strength in enumerate(STRENGTHS, len(self.bets)):
                # g_k ∝ q_k exp(b_k) has log(g_y/q_y) = b_y − log Σ_k q_k exp(b_k).
                moved = strength * shifts
                state.logs[bet] += np.sum(exponents * (moved[labels] - _log_sums(log_q + moved)))

    def _cells(self, log_odds: Floats, low: Bools, high: Bools) -> Ints:
        """Cell of each log-odds (c,), where `low` and `high` mark certain predictions."""
        half = CELLS * self.resolution // 2  # cells of negative log-odds
        width = _WIDTH / self.resolution
        cells = np.clip(np.floor(log_odds / width) + half, 0, 2 * half - 1)
        if self.resolution > 1:
            # The first and the last cell are for certain predictions, whatever their log-odds.
            cells = np.where(low, 0, np.where(high, self.cells - 1, cells + 1))
        return cells.astype(np.int64)

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


def _log_losses(log_odds_of_others: Floats) -> Floats:
    """−log p = log(1 + exp(x)) of outcomes, from the log-odds x that they do not happen (c,)."""
    # `numpy.logaddexp` takes four times as long, as it is not vectorised.
    x = log_odds_of_others
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _log_sums(logs: Floats) -> Floats:
    """log Σ_k exp of each row of logarithms (c, K)."""
    largest = logs.max(axis=1)  # subtracted, as exp overflows
    return largest + np.log(np.exp(logs - largest[:, None]).sum(axis=1))


def learn(sums: Floats) -> tuple[float, ...]:
    """Shifts of log-odds by cell or class, from the sums (cells, 3) of earlier days.

    One Newton step (Σy − Σp) / Σp(1−p), shrunk for noise by 1 − 1/z², or to 0 for |z| ≤ 1.  A
    surplus where Σp(1−p) is 0 is not noise: all predictions of the cell are 0 or 1.
    """
    surplus, variance = sums[:, 1] - sums[:, 0], sums[:, 2]
    z2, step = ratio(surplus**2, variance), ratio(surplus, variance)
    shrunk = np.where(z2 > 1, step * (1 - 1 / np.maximum(z2, 1)), 0.0)
    # Without variance any surplus is an error.
    shrunk = np.where(variance > 0, shrunk, np.sign(surplus) * _LARGEST)
    return tuple(np.clip(shrunk, -_LARGEST, _LARGEST).tolist())


def summed(days: Sequence[Floats]) -> Floats:
    """Sums of several days, added one after the other."""
    total = np.zeros_like(days[0])
    for sums in days:
        total += sums
    return total


def rounded(shifts: Floats) -> Floats:
    """Shifts as they are kept in a ledger."""
    return np.round(shifts, _DIGITS) + 0.0


def log_e_value(p_value: float) -> float:
    """Logarithm of an e-value from a p-value, ∫ κ p^(κ − 1) dκ over [0, 1] [Vovk & Wang 2021].

    Examples
    --------
    >>> round(math.exp(log_e_value(0.005)), 2), math.exp(log_e_value(1.0))
    (6.9, 0.5)
    """
    log = math.log(p_value)
    if log > -1e-4:
        # The limit at p = 1, as the difference below is of nearly equal numbers.
        return math.log(0.5)
    return math.log((1.0 - p_value + p_value * log) / (p_value * log * log))


def advance(
    increments: Floats,
    running: Floats | None = None,
    night: int = 0,
    weights: Floats | None = None,
) -> tuple[Floats, Floats]:
    """log E_t after each night from `night` on, of a mixture over bets and over their first nights.

    E_t = Σ_k v_k Σ_s w_s Π_{s ≤ r ≤ t} exp(l_rk) + Σ_{s > t} w_s with w_s = 1/((s+1)(s+2)), so that
    some process starts when a late drift does.  The `weights` v_k of the bets (bets,) have the sum
    1, and are equal by default.  E is a martingale, as each term is one.  An infinite increment,
    for a label of probability 0, makes E infinite from its night on.
    `increments` (nights, …, bets) are sums of log(g_y/q_y) of each night.  `running` is the state
    before it, log Σ w_s Π exp(l_r) of each bet, and the second result the one after the last night.
    """
    running = np.full(increments.shape[1:], -np.inf) if running is None else running
    bets = increments.shape[-1]
    logs = np.empty(increments.shape[:-1])
    for at, increment in enumerate(increments):
        t = night + at
        # A process that starts tonight joins with the weight w_t.  The weights Σ_{s > t} w_s =
        # 1/(t + 2) of later ones are still 1.
        weight = -np.log(t + 1.0) - np.log(t + 2.0)
        running = np.logaddexp(running, weight) + increment
        if weights is None:
            mixed = np.logaddexp.reduce(running, axis=-1) - np.log(bets)
        else:
            mixed = np.logaddexp.reduce(running + np.log(weights), axis=-1)
        logs[at] = np.logaddexp(mixed, -np.log(t + 2.0))
    return logs, running


def mean_evidence(logs: Floats, weights: Floats) -> Floats:
    """log(Σ w E + 1 − Σ w), an e-process from several: (processes, nights) → (nights,)."""
    unused = max(0.0, 1.0 - float(weights.sum()))
    total = np.logaddexp.reduce(logs + np.log(weights)[:, None], axis=0)
    return np.logaddexp(total, np.log(unused)) if unused > 1e-12 else total


def places(assigned: Mapping[Group, int], first: Mapping[Group, int]) -> dict[Group, int]:
    """Places of groups in order of appearance.  The places in `assigned` do not change.

    If `assigned` is empty, the groups of the earliest night have place 0.  All others have the
    places 1, 2, … by the night (`first`) on which they appeared, in the order of `first` within a
    night.
    """
    numbers = dict(assigned)
    begun = min(first.values(), default=0)
    for group, night in sorted(first.items(), key=lambda item: item[1]):
        if group not in numbers:
            late = assigned or night > begun
            numbers[group] = max([*numbers.values(), 0]) + 1 if late else 0
    return numbers


def shares(assigned: Mapping[Group, int]) -> dict[Group, float]:
    """Weights of groups by their places.

    The groups of place 0 share nine tenths evenly.  Place j has 1/(j(j+1)) of the last tenth.  As
    places do not change, a weight is fixed before its process starts.
    """
    initial = sum(place == 0 for place in assigned.values())
    return {
        group: _LATE / (place * (place + 1)) if place else (1 - _LATE) / initial
        for group, place in assigned.items()
    }
