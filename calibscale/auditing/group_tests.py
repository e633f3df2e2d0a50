"""Tests of groups: one of each group, with p-values adjusted for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from calibscale.array_types import Floats, Ints
from calibscale.compiled import drawn_sums
from calibscale.data.covariates import PREDICTION, Axis
from calibscale.inference.multiple_testing import StepDown
from calibscale.intervals.excess import excess_limits, upper_tail
from calibscale.predictions.chunk import Chunk
from calibscale.results.group_results import Group, Where
from calibscale.session import Session
from calibscale.statistics.null_distributions import ClusterSigns, DrawnLabels, Null
from calibscale.statistics.statistic import Replicates, Statistic, weights_of


class GroupState(NamedTuple):
    """Sums of each of G groups.

    sums (8, 2, G): number of rows with a positive weight, then Σ of w, w², wp, wr, w²p², w²pr,
    w²r², with r = 1 − p, over the rows without the event and over those with it.  thirds (2, G):
    Σw³pr(r − p) over the rows with p ≤ 1/2, and over the others.
    """

    sums: Floats
    thirds: Floats


class DrawnGroups(NamedTuple):
    """Sums of B replicates, with δ* = p − y* for y* drawn with probability p.

    deltas (B, G): Σwδ* of each group.  squares (B, 2): Σw²δ* and Σw²δ*² over all rows.
    """

    deltas: Floats
    squares: Floats


@dataclass(frozen=True)
class GroupSums(Statistic):
    """Residuals summed over all rows, over the parts of each axis, and over crossings of two axes.

    Groups are numbered in this order, crossings in row-major order.  Replicates draw labels with
    probability p + ε(1 − 2p), which flips a share ε = `flips` of labels drawn with probability p.
    Without `crossings` there are no groups of two axes.  With a `damping` c, weights are divided by
    p(1 − p) + c.
    """

    axes: tuple[Axis, ...]
    notion: str
    flips: float = 0.0
    crossings: bool = True
    damping: float | None = None

    @cached_property
    def crossed(self) -> tuple[tuple[Axis, ...], ...]:
        """Axes of each table of groups: none, one, or two."""
        pairs = combinations(self.axes, 2) if self.crossings else ()
        return ((), *((axis,) for axis in self.axes), *pairs)

    @property
    def _sizes(self) -> list[int]:
        """Number of groups of each table."""
        return [math.prod(map(len, axes)) for axes in self.crossed]

    def zero(self, classes: int) -> GroupState:
        count = sum(self._sizes)
        return GroupState(np.zeros((8, 2, count)), np.zeros((2, count)))

    def accumulate(self, state: GroupState, chunk: Chunk) -> GroupState:
        p, complement, _, hit = chunk.event(self.notion)
        w = self._weights(chunk, p, complement)
        a, b = w * p, w * complement
        event = (hit > 0.5).astype(np.int64)
        high = (p > complement).astype(np.int64)
        # Rows without and with the event have sums of their own.  δ is p without the event and −r
        # with it, so that sums of δ are differences of positive sums, see `totals_of`.
        split = [(event, value) for value in (w > 0, w, w * w, a, b, a * a, a * b, b * b)]
        # w³pr(r − p) is the third moment of w(y − p).  It changes its sign at p = 1/2, so that rows
        # on both sides have sums of their own.
        split.append((high, w * a * b * (complement - p)))
        codes = self._codes(chunk, p)
        first = 0
        for axes in self.crossed:
            code, size = np.zeros(len(chunk), np.int64), 1
            for axis in axes:
                code, size = code * len(axis) + codes[axis], size * len(axis)
            for total, (half, value) in zip((*state.sums, state.thirds), split, strict=True):
                # One count for both halves: the groups of the second half follow the groups of the
                # first.
                counts = np.bincount(code + size * half, value, 2 * size)
                total[:, first : first + size] += counts.reshape(2, size)
            first += size
        return state

    def _weights(self, chunk: Chunk, p: Floats, complement: Floats) -> Floats:
        """Weights of the rows of a chunk (c,)."""
        w = weights_of(chunk)
        return w if self.damping is None else w / (np.maximum(p * complement, 0.0) + self.damping)

    def _codes(self, chunk: Chunk, p: Floats) -> dict[Axis, Ints]:
        """Part of each axis that contains each row, which has the prediction p."""
        codes = {}
        for axis in self.axes:
            if axis.position == PREDICTION:
                codes[axis] = axis.codes(p)
            else:
                assert chunk.covariates is not None
                codes[axis] = axis.codes(chunk.covariates[:, axis.position])
        return codes

    def zero_drawn(self, classes: int, count: int) -> DrawnGroups:
        return DrawnGroups(np.zeros((count, sum(self._sizes))), np.zeros((count, 2)))

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        deltas, squares = sums
        p, complement, delta, _ = chunk.event(self.notion)
        w = self._weights(chunk, p, complement)
        codes = self._codes(chunk, p)
        # The probability of the event after a share of labels is flipped, see `Groups`.
        p = p + self.flips * (1 - 2 * p)
        drawn = replicates.scalars(self.notion, chunk.units, p, delta)
        drawn *= w
        # The last bit of a product by BLAS would depend on the number of replicates.
        squares[:, 0] += np.einsum("bi,i->b", drawn, w)
        squares[:, 1] += np.einsum("bi,bi->b", drawn, drawn)
        starts = np.cumsum([0, *self._sizes])
        todo = dict(zip(self.crossed, starts.tolist(), strict=False))
        while todo:
            axes = next(reversed(todo))  # crossings first: other tables are sums over their cells
            shape = tuple(map(len, axes))
            code = np.zeros(len(chunk), np.int64)
            for axis in axes:
                code = code * len(axis) + codes[axis]
            table = np.zeros((len(drawn), math.prod(shape)))
            drawn_sums.add_bins(drawn, code, table)
            table = table.reshape(-1, *shape)
            # Every table over a subset of these axes, all rows included, is a sum over this table.
            # It leaves `todo`, so that rows are counted once for each crossing only.
            for parts in [parts for parts in todo if set(parts) <= set(axes)]:
                summed_axes = tuple(1 + i for i, axis in enumerate(axes) if axis not in parts)
                totals = table.sum(axis=summed_axes).reshape(len(drawn), -1)
                first = todo.pop(parts)
                deltas[:, first : first + totals.shape[1]] += totals

    def conditions(self) -> Iterator[tuple[Where, ...]]:
        """Conditions that define each group, in order of groups."""
        for axes in self.crossed:
            for parts in np.ndindex(*map(len, axes)):
                yield tuple(axis.where(part) for axis, part in zip(axes, parts, strict=True))


# ---------------------------------------------------------------- Tests


_STATE_BYTES = 2**25  # memory of the replicates of one pass
_ALPHA = 0.01  # share of replicates with the observed dispersion at which it is significant
_MIN_DISPERSION = 1.1  # a smaller dispersion raises z by less than 5 % and is ignored


class Groups(NamedTuple):
    """Bias over all rows (None without weight), listed groups by decreasing |z|, and dispersion.

    The dispersion is max(1, Σw²(δ − δ̄)²/Σw²p(1 − p)) over all rows: where predictions are too
    extreme, y − p varies more than they imply, and unbiased groups would be called biased.  If it
    is above 1.1, and is reached by at most 1 % of the replicates, labels are drawn again with a
    share ε of flips at which Σw²q(1 − q), q = p + ε(1 − 2p), equals the observed value.
    """

    overall: Group | None
    listed: tuple[Group, ...]
    dispersion: float
    flips: float = 0.0

    @property
    def notes(self) -> list[str]:
        if not self.flips:
            return []
        return [
            f"y − p varies {self.dispersion:.2f} times as much as the predictions imply: "
            f"{100 * self.flips:.2g} % of the labels drawn to test groups are flipped"
        ]


Draw = Callable[["GroupSums"], Iterable[DrawnGroups]]


def group_biases(
    statistic: GroupSums,
    state: GroupState,
    draw: Draw,
    min_rows: float,
    confidence_level: float,
    clustered: bool = False,
) -> Groups:
    """Groups with enough effective rows, with p-values and intervals over all of them.

    A crossing is not listed if one of its conditions alone has the same rows.  `draw` yields
    replicates in any number of parts.  Replicates of `clustered` rows, with signs, have the
    variances.
    """
    sums = totals_of(state)
    if not sums.w[0] > 0:  # weight of all rows
        return Groups(None, (), 1.0)
    if clustered:
        sums = with_signs(sums, draw(statistic))
    conditions = list(statistic.conditions())
    listed = _listed(conditions, sums, min_rows)

    def flipped(flips: float) -> Iterable[DrawnGroups]:
        return draw(replace(statistic, flips=flips))

    tested = family_of(sums, listed, flipped)
    family = tested.family
    # The first group has all rows.
    overall = group_of(conditions[0], sums, 0, tested.dispersion, tested.all_rows.alone[0])
    # Bonferroni over both limits of all groups makes the intervals simultaneous.
    tail = (1 - confidence_level) / (2 * max(len(listed), 1))
    lows, highs = limits_of(sums, listed, tail)
    groups = []
    for i, p_value, adjusted, low, high in zip(
        listed, family.alone, family.adjusted, lows, highs, strict=True
    ):
        group = group_of(conditions[i], sums, i, tested.dispersion, p_value)
        groups.append(replace(group, adjusted=float(adjusted), low=float(low), high=float(high)))
    groups.sort(key=lambda group: -abs(group.z))
    return Groups(overall, tuple(groups), tested.dispersion, tested.flips)


class GroupFamily(NamedTuple):
    """Tests of all rows and of the listed groups, see `Groups` about dispersion and flips."""

    all_rows: StepDown
    family: StepDown
    dispersion: float
    flips: float


def family_of(
    sums: GroupTotals,
    listed: list[int],
    draw: Callable[[float], Iterable[DrawnGroups]],
    shares: Any = 1.0,
) -> GroupFamily:
    """Test all rows, which are group 0, and the listed groups, with a share of α for each group.

    `draw` yields replicates with a share of flips.
    """
    dispersion, flips = dispersion_of(sums), 0.0
    all_rows, family, above = _families(sums, listed, dispersion, draw(0.0), shares)
    # Labels are drawn again only if chance explains the dispersion rarely, and it matters.
    if dispersion > _MIN_DISPERSION and above <= _ALPHA * family.replicates:
        flips = _flips(sums, dispersion)
        all_rows, family, _ = _families(sums, listed, dispersion, draw(flips), shares)
    return GroupFamily(all_rows, family, dispersion, flips)


def with_signs(sums: GroupTotals, drawn: Iterable[DrawnGroups]) -> GroupTotals:
    """Sums with the variances of replicates with random signs, or of drawn labels if larger.

    Where events are rare, a group may have none by chance.  Its residuals then have one sign, and
    the residuals of replicates vary less than labels do.  The skewness remains the skewness of
    labels.
    """
    squares, count = np.zeros(len(sums.w)), 0
    for part in drawn:
        squares = squares + np.sum(part.deltas**2, axis=0)
        count = count + len(part.deltas)
    return sums._replace(spread=np.maximum(squares / count, sums.spread), clustered=True)


def limits_of(sums: GroupTotals, groups: list[int], tail: float) -> tuple[Floats, Floats]:
    """Limits of the bias of groups, each exceeded with a probability of about `tail`."""
    low, high = excess_limits(sums.no_events[:, groups], sums.events[:, groups], tail)
    if sums.clustered:
        # Exact limits need independent labels.  Sums of signed clusters are nearly normal.
        half = -ndtri(tail) * np.sqrt(sums.spread[groups])
        low, high = -sums.d[groups] - half, -sums.d[groups] + half
    return low / sums.w[groups], high / sums.w[groups]


def _families(
    sums: GroupTotals,
    listed: list[int],
    dispersion: float,
    drawn: Iterable[DrawnGroups],
    shares: Any,
) -> tuple[StepDown, StepDown, int]:
    """Test of all rows, tests of groups, and number of replicates with at least the dispersion."""
    members: tuple[tuple[list[int], Any], ...] = (([0], 1.0), (listed, shares))
    # A score is like a p-value: the smallest one decides.  Division by its share of α lets a group
    # with a larger share win more often.
    families = [StepDown(_scores(sums, i, sums.d[i], dispersion) / share) for i, share in members]
    above = 0
    for part in drawn:
        scale = _dispersion(sums, part.deltas[:, 0], *part.squares.T)
        above += int((scale >= dispersion * (1 - 1e-9)).sum())
        for (i, share), family in zip(members, families, strict=True):
            family.add(_scores(sums, i, part.deltas[:, i], scale[:, None]) / share)
    return families[0], families[1], above


def _flips(sums: GroupTotals, dispersion: float) -> float:
    """Solution ε of Σw²(pr + e(1 − 4pr)) = dispersion·Σw²pr, e = ε(1 − ε)."""
    spread = float(sums.spread[0])
    # Σw²(1 − 4pr), the increase of the variance with e
    slope = float(sums.w2[0]) - 4 * spread
    # e = 1/4 is ε = 1/2: every label is a coin flip, which varies most.
    e = min(0.25, (dispersion - 1) * spread / slope) if slope > 0 else 0.25
    return (1 - math.sqrt(1 - 4 * e)) / 2


class GroupTotals(NamedTuple):
    """Number of rows, Σ of w, w², wp, wy, wδ, w²δ, w²δ², w²p(1 − p) (G,), and arrays of a state."""

    n: Floats
    w: Floats
    w2: Floats
    p: Floats
    y: Floats
    d: Floats
    w2d: Floats
    w2d2: Floats
    spread: Floats
    thirds: Floats
    no_events: Floats
    events: Floats
    clustered: bool = False

    def take(self, groups: list[int]) -> GroupTotals:
        """Sums of some of the groups."""
        names = [name for name in self._fields if name != "clustered"]
        columns: dict[str, Any] = {name: getattr(self, name)[..., groups] for name in names}
        return self._replace(**columns)


def totals_of(state: GroupState) -> GroupTotals:
    n, w, w2, p, _, _, spread, _ = state.sums.sum(1)
    no_events, events = state.sums[3:, 0], state.sums[3:, 1]
    # Σw²δ, where δ is p = p² + pr without the event, and −r = −(pr + r²) with it.
    w2d = no_events[2] + no_events[3] - events[3] - events[4]
    return GroupTotals(
        n,
        w,
        w2,
        p,
        state.sums[1, 1],
        no_events[0] - events[1],
        w2d,
        no_events[2] + events[4],
        spread,
        state.thirds,
        no_events,
        events,
    )


def _listed(conditions: list[tuple[Where, ...]], sums: GroupTotals, min_rows: float) -> list[int]:
    """Numbers of the groups that are tested."""
    rows = dict(zip(conditions, sums.n.tolist(), strict=True))
    listed = []
    for i, (where, w, w2) in enumerate(zip(conditions, sums.w, sums.w2, strict=True)):
        # A crossing with as many rows as one of its conditions has the same rows.
        repeated = len(where) > 1 and any(rows[(alone,)] == sums.n[i] for alone in where)
        if where and w > 0 and w * w / w2 >= min_rows * (1 - 1e-9) and not repeated:
            listed.append(i)
    return listed


def dispersion_of(sums: GroupTotals) -> float:
    """Observed dispersion."""
    return float(_dispersion(sums, sums.d[0], sums.w2d[0], sums.w2d2[0]))


def _dispersion(sums: GroupTotals, d: Any, w2d: Any, w2d2: Any) -> Any:
    """Dispersion from Σ of wδ, w²δ and w²δ² over all rows, observed or of replicates."""
    spread = sums.spread[0]
    if not spread > 1e-300 or sums.clustered:  # every prediction is certain, or nearly certain
        return np.ones(np.shape(d))
    return np.maximum(1.0, _around_mean(d / sums.w[0], w2d, w2d2, sums.w2[0]) / spread)


def _around_mean(gap: Any, w2d: Any, w2d2: Any, w2: Any) -> Any:
    """Σw²(δ − δ̄)²."""
    return np.maximum(w2d2 - 2 * gap * w2d + gap * gap * w2, 0.0)


def _scores(sums: GroupTotals, groups: list[int], d: Floats, dispersion: Any) -> Floats:
    """Approximate p-value of Σwδ (…, groups) under calibration, see `Group.p_value`."""
    spread = sums.spread[groups]
    rare, frequent = sums.thirds[:, groups]
    certain = ~(spread > 0)
    safe = np.where(certain, 1.0, spread)
    # The skewness of calibrated labels is used at any dispersion.  Otherwise observed scores would
    # be small more often than scores of replicates, which cannot be small where few events are
    # expected.
    skewness = np.maximum(np.where(d < 0, rare, -frequent) / safe / np.sqrt(safe), 0.0)
    tail = upper_tail(np.abs(d) / np.sqrt(safe * dispersion) - skewness / 2, skewness)
    return np.where(certain, (d == 0).astype(np.float64), np.minimum(1.0, 2 * tail))


def group_of(
    where: tuple[Where, ...], sums: GroupTotals, i: int, dispersion: Any, p_value: float
) -> Group:
    """Bias of the i-th group."""
    w = float(sums.w[i])
    w2 = float(sums.w2[i])
    spread = float(sums.spread[i])
    mean_p, f, gap = (float(column[i]) / w for column in (sums.p, sums.y, sums.d))
    # The squares include one row of either label, of weight Σw²/Σw, at the mean prediction.
    around = float(_around_mean(gap, sums.w2d[i], sums.w2d2[i], w2))
    squares = around + (w2 / w) ** 2 * (f * f + (1 - f) ** 2)
    null = math.sqrt(max(spread, 0.0)) / w
    squares = spread if sums.clustered else squares
    if null > 0:
        z = -gap / (null * math.sqrt(dispersion))
    else:  # every prediction is certain
        z = 0.0 if gap == 0 else math.copysign(math.inf, -gap)
    return Group(
        where,
        int(sums.n[i]),
        w * w / w2,
        mean_p,
        f,
        -gap,
        math.sqrt(squares) / w,
        null,
        z,
        float(p_value),
    )


# ---------------------------------------------------------------- replicates


def tested_groups(
    session: Session,
    names: tuple[str, ...],
    statistic: GroupSums,
    n_replicates: int,
    seed: int,
    min_rows: float,
    confidence_level: float,
    state: GroupState,
) -> Groups:
    """`group_biases` of a state, from passes with a limited number of replicates each."""
    clustered = session.rules.cluster is not None
    null = ClusterSigns(seed) if clustered else DrawnLabels(seed)

    def draw(drawn: GroupSums) -> Iterator[DrawnGroups]:
        return drawn_batches(session, drawn, null, n_replicates, names)

    return group_biases(statistic, state, draw, min_rows, confidence_level, clustered)


def drawn_batches(
    session: Session, statistic: Statistic, null: Null, n_replicates: int, names: tuple[str, ...]
) -> Iterator[Any]:
    """Sums of replicates, of as many in one pass over the rows as fit into 32 MB, or a limit."""
    # Bytes of the state of one replicate.
    size = sum(array.nbytes for array in statistic.zero_drawn(session.source.n_features, 1))
    max_replicates = _STATE_BYTES // size
    room = session.execution.room()
    if room.limit is not None:
        replicate_bytes = 4 * session.states_alive * size
        max_replicates = min(max_replicates, (room.limit - room.used) // replicate_bytes)
    step = max(2, max_replicates // 2 * 2)
    for first in range(0, n_replicates, step):
        part = Replicates(statistic, null, first, min(n_replicates, first + step))
        yield session.scan([part], covariates=names).groups[None][part]
