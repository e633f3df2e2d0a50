"""Which groups are biased: p-values from labels drawn from the predictions, and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from calibscale import engine
from calibscale.auditing.groups import DrawnGroups, GroupState, GroupSums, Where
from calibscale.chunk import Floats
from calibscale.excess import excess_limits, upper_tail
from calibscale.multiplicity import StepDown
from calibscale.nulls import Null, Replicates
from calibscale.results import finite
from calibscale.scan import Pass

_STATE_BYTES = 2**25  # of the replicates of one pass
_BY_CHANCE = 0.01  # of replicates: a dispersion that no more of them have is of the predictions
_DISPERSED = 1.1  # less does not matter: z grows by 5 %


@dataclass(frozen=True)
class Group:
    """The bias of a group of rows.

    Attributes
    ----------
    where : tuple of Where
        What its rows have in common; none: all rows.
    n : int
        Rows with a weight above 0.
    effective_rows : float
        (Σw)²/Σw²; n without weights.
    mean_prediction, frequency : float
        Weighted means of p and of the event.
    bias : float
        frequency − mean_prediction: positive where predictions are too low.
    standard_error : float
        Of the bias, from the spread of y − p in the group, as if it had one row more of either
        label, of weight Σw²/Σw, at the mean prediction: a group of equal labels has an error too.
    null_error : float
        Of the bias if the group is calibrated, √(Σw²p(1 − p))/Σw.
    z : float
        bias in units of null_error·√dispersion, see `Groups`.
    p_value : float
        (1 + #{score* ≤ score})/(replicates + 1), of labels drawn from the predictions.  A score is
        about the two-sided p-value of z, so that groups large and small are alike.  A few rare
        events are far from normal: each tail is that of a Pearson III distribution, of the skewness
        that the events rare on its side give, half an event nearer to 0.
    adjusted : float or None
        Westfall & Young's, over the groups listed, from the same scores and replicates, see
        `StepDown`: exact where the rows of the groups that are not biased are calibrated.
    low, high : float or None
        The bias, by intervals that cover simultaneously over the groups listed (Bonferroni), few
        and rare events included, see `excess_limits`; not symmetric, so no multiple of an error.
    """

    where: tuple[Where, ...]
    n: int
    effective_rows: float
    mean_prediction: float
    frequency: float
    bias: float
    standard_error: float
    null_error: float
    z: float
    p_value: float
    adjusted: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def name(self) -> str:
        return " & ".join(map(str, self.where)) or "all rows"

    @property
    def direction(self) -> str:
        """How its predictions are off."""
        return "too low" if self.bias > 0 else "too high"

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        identity = {"group": self.name, "where": [w.to_dict() for w in self.where]}
        return finite(identity | {key: v for key, v in asdict(self).items() if key != "where"})


class Groups(NamedTuple):
    """All rows, if any has weight; the groups listed by |z|, largest first; and what they share.

    The dispersion is max(1, Σw²(δ − δ̄)²/Σw²p(1 − p)) over all rows: where predictions are too
    extreme, y − p varies more than they say, and groups would be called biased that are not.  If it
    is above 1.1, and more than all but 1 % of replicates have, labels are drawn again, with a share
    of flips ε such that Σw²q(1 − q), q = p + ε(1 − 2p), is what was observed.
    """

    overall: Group | None
    listed: tuple[Group, ...]
    dispersion: float
    flips: float = 0.0


Draw = Callable[["GroupSums"], Iterable[DrawnGroups]]


def found_groups(
    statistic: GroupSums, state: GroupState, draw: Draw, min_rows: float, level: float
) -> Groups:
    """The groups of enough effective rows, with p-values and intervals over all of them.

    A crossing that holds the same rows as one of its conditions alone is not listed again.
    `draw` makes replicates, in any number of parts.
    """
    sums = _totals(state)
    if not sums.w[0] > 0:  # of all rows
        return Groups(None, (), 1.0)
    conditions = list(statistic.conditions())
    dispersion = float(_dispersion(sums, sums.d[0], sums.w2d[0], sums.w2d2[0]))
    listed, flips = _listed(conditions, sums, min_rows), 0.0
    whole, family, above = _families(sums, listed, dispersion, draw(statistic))
    if dispersion > _DISPERSED and above <= _BY_CHANCE * family.replicates:
        flips = _flips(sums, dispersion)
        flipped = draw(replace(statistic, flips=flips))
        whole, family, _ = _families(sums, listed, dispersion, flipped)
    overall = _group(conditions, sums, 0, dispersion, whole.alone[0])
    tail = (1 - level) / (2 * max(len(listed), 1))
    low, high = excess_limits(sums.others[:, listed], sums.events[:, listed], tail)
    found = [
        replace(
            _group(conditions, sums, i, dispersion, alone), adjusted=float(adjusted),
            low=float(a / sums.w[i]), high=float(b / sums.w[i]),
        )
        for i, alone, adjusted, a, b in zip(
            listed, family.alone, family.adjusted, low, high, strict=True
        )
    ]  # fmt: skip
    found.sort(key=lambda group: -abs(group.z))
    return Groups(overall, tuple(found), dispersion, flips)


def _families(
    sums: _Totals, listed: list[int], dispersion: float, drawn: Iterable[DrawnGroups]
) -> tuple[StepDown, StepDown, int]:
    """The test of all rows, those of groups, and how many replicates have that dispersion."""
    chosen = ([0], listed)
    families = [StepDown(_scores(sums, i, sums.d[i], dispersion)) for i in chosen]
    above = 0
    for part in drawn:
        scale = _dispersion(sums, part.deltas[:, 0], *part.squares.T)
        above += int((scale >= dispersion * (1 - 1e-9)).sum())
        for i, family in zip(chosen, families, strict=True):
            family.add(_scores(sums, i, part.deltas[:, i], scale[:, None]))
    return families[0], families[1], above


def _flips(sums: _Totals, dispersion: float) -> float:
    """ε of Σw²(pr + e(1 − 4pr)) = dispersion·Σw²pr, e = ε(1 − ε)."""
    spread = float(sums.spread[0])
    room = float(sums.w2[0]) - 4 * spread
    e = min(0.25, (dispersion - 1) * spread / room) if room > 0 else 0.25
    return (1 - math.sqrt(1 - 4 * e)) / 2


class _Totals(NamedTuple):
    """Of the groups (G,): rows, Σ of w, w², wp, wy, wδ, w²δ, w²δ², w²p(1 − p); state's columns."""

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
    others: Floats
    events: Floats


def _totals(state: GroupState) -> _Totals:
    n, w, w2, p, _, _, spread, _ = state.sums.sum(1)
    others, events = state.sums[3:, 0], state.sums[3:, 1]
    w2d = others[2] + others[3] - events[3] - events[4]
    return _Totals(
        n, w, w2, p, state.sums[1, 1], others[0] - events[1], w2d, others[2] + events[4], spread,
        state.thirds, others, events,
    )  # fmt: skip


def _listed(conditions: list[tuple[Where, ...]], sums: _Totals, min_rows: float) -> list[int]:
    """Which groups are tested."""
    rows = dict(zip(conditions, sums.n.tolist(), strict=True))
    listed = []
    for i, (where, w, w2) in enumerate(zip(conditions, sums.w, sums.w2, strict=True)):
        repeated = len(where) > 1 and any(rows[(alone,)] == sums.n[i] for alone in where)
        if where and w > 0 and w * w / w2 >= min_rows * (1 - 1e-9) and not repeated:
            listed.append(i)
    return listed


def _dispersion(sums: _Totals, d: Any, w2d: Any, w2d2: Any) -> Any:
    """From Σ of wδ, w²δ and w²δ² of all rows, those of replicates among them."""
    spread = sums.spread[0]
    if not spread > 1e-300:  # every prediction is certain, or all but certain
        return np.ones(np.shape(d))
    return np.maximum(1.0, _around_mean(d / sums.w[0], w2d, w2d2, sums.w2[0]) / spread)


def _around_mean(gap: Any, w2d: Any, w2d2: Any, w2: Any) -> Any:
    """Σw²(δ − δ̄)²."""
    return np.maximum(w2d2 - 2 * gap * w2d + gap * gap * w2, 0.0)


def _scores(sums: _Totals, groups: list[int], d: Floats, dispersion: Any) -> Floats:
    """About the p-value of Σwδ (…, groups) under calibration; see `Group.p_value`."""
    spread, (rare, frequent) = sums.spread[groups], sums.thirds[:, groups]
    certain = ~(spread > 0)
    safe = np.where(certain, 1.0, spread)
    # of calibrated labels, whatever the dispersion: else observed scores were small by chance more
    # often than those of replicates, which cannot be small where hardly an event is expected
    skewness = np.maximum(np.where(d < 0, rare, -frequent) / safe / np.sqrt(safe), 0.0)
    tail = upper_tail(np.abs(d) / np.sqrt(safe * dispersion) - skewness / 2, skewness)
    return np.where(certain, (d == 0).astype(np.float64), np.minimum(1.0, 2 * tail))


def _group(
    conditions: list[tuple[Where, ...]], sums: _Totals, i: int, dispersion: Any, p_value: float
) -> Group:
    w, w2, spread = float(sums.w[i]), float(sums.w2[i]), float(sums.spread[i])
    mean_p, f, gap = (float(column[i]) / w for column in (sums.p, sums.y, sums.d))
    # and a row of the weight that counts and the mean prediction with either label
    around = float(_around_mean(gap, sums.w2d[i], sums.w2d2[i], w2))
    squares = around + (w2 / w) ** 2 * (f * f + (1 - f) ** 2)
    null = math.sqrt(max(spread, 0.0)) / w
    if null > 0:
        z = -gap / (null * math.sqrt(dispersion))
    else:  # every prediction is certain
        z = 0.0 if gap == 0 else math.copysign(math.inf, -gap)
    return Group(
        conditions[i], int(sums.n[i]), w * w / w2, mean_p, f, -gap, math.sqrt(squares) / w, null,
        z, float(p_value),
    )  # fmt: skip


# ---------------------------------------------------------------- replicates


def judged_groups(
    read: Callable[..., Pass],
    statistic: GroupSums,
    blocks: int,
    limit: int | None,
    replicates: int,
    seed: int,
    min_rows: float,
    level: float,
) -> Groups:
    """`found_groups` of what passes over the rows find, so many replicates in each.

    States of one pass take 32 MB each, or what `limit` leaves of memory.
    """
    null = Null("labels", seed)
    one = sum(array.nbytes for array in statistic.zero_drawn(2, 1))
    most = _STATE_BYTES // one
    if limit is not None:
        alive = blocks.bit_length() + 3  # states of one worker at a time
        most = min(most, (limit - engine.resident_bytes()) // (4 * alive * one))
    step = max(2, most // 2 * 2)

    def draw(drawn: GroupSums) -> Iterator[DrawnGroups]:
        for first in range(0, replicates, step):
            part = Replicates(drawn, null, first, min(replicates, first + step))
            yield DrawnGroups(*read(part).groups[None][part])

    states = read(statistic).groups.get(None)
    state = statistic.zero(2) if states is None else states[statistic]
    return found_groups(statistic, state, draw, min_rows, level)
