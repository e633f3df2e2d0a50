"""Scan of ranges of covariates and of the prediction, with p-values adjusted for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.auditing.group_tests import (
    DrawnGroups,
    GroupState,
    GroupSums,
    dispersion_of,
    drawn_batches,
    family_of,
    group_of,
    limits_of,
    totals_of,
    with_signs,
)
from calibscale.data.covariates import PREDICTION, Axis, cells_of, prediction_cells
from calibscale.results.group_results import Group, RangeScan, Where
from calibscale.session import Session
from calibscale.statistics.null_distributions import ClusterSigns, DrawnLabels
from calibscale.statistics.statistic import Statistic

# The ends of a range are edges of cells.  With 160 cells, the nearest range of cells differs from
# any tenth of the rows by at most about 3 % of its rows at either end.
_CELLS = 160
_WIDTHS = (0.05, 0.1, 0.2, 0.4)  # shares of the rows, with neighbours a quarter of a width apart
_OUTER = 0.1  # share of the rows of the first and of the last range of a covariate
# Shares of α.  Models err most at the ends of a covariate, where training rows are few.  An error
# of the prediction alone is what the tests without covariates are for.
_OUTER_SHARE = 0.6
_PREDICTION_SHARE = 0.05
# Weights are divided by p(1 − p) + c·mean p(1 − p).  c = 0 has the most power against a constant
# bias, but rows of nearly certain predictions would decide alone.  c = ∞ leaves weights unchanged.
_DAMPING = 0.25
_MAX_LISTED = 20  # ranges in a result
_MIN_LEVELS = 3  # a covariate of two values has two groups, and no other ranges


class Ranges(NamedTuple):
    """Ranges of the axes of a `GroupSums`: unions of adjacent cells.

    axes (M,): number of the axis of each range.  first, last (M,): its cells, the last excluded.
    shares (M,): shares of α, with the sum 1 unless a column has a range of all rows.
    """

    axes: Ints
    first: Ints
    last: Ints
    shares: Floats

    def __len__(self) -> int:
        return len(self.axes)

    def take(self, index: Ints) -> Ranges:
        """The ranges at `index`, with shares scaled to the sum 1."""
        shares = self.shares[index]
        return Ranges(self.axes[index], self.first[index], self.last[index], shares / shares.sum())

    def overlap(self, i: int, j: int) -> bool:
        """Whether two ranges are of one axis and have a cell in common."""
        same_axis = self.axes[i] == self.axes[j]
        return bool(same_axis and self.first[i] < self.last[j] and self.first[j] < self.last[i])


def scan_axes(
    session: Session, names: tuple[str, ...], notion: str, categorical: tuple[str, ...]
) -> tuple[Axis, ...]:
    """Cells of the prediction and of each covariate with ordered values."""
    sample = session.profile.sample(notion)
    title = "prediction"
    # A covariate may have the name of the prediction.
    while title in names:
        title = f"predicted {title}"
    axes = [prediction_cells(title, sample.points[:, 0], _CELLS)]
    for column in session.profile.columns(names).values():
        levels = column.levels
        if column.name in categorical or (levels is not None and len(levels) < _MIN_LEVELS):
            continue
        axes.append(cells_of(column, sample.covariates[:, column.position], _CELLS))
    return tuple(axis for axis in axes if len(axis) > 1)


def ranges_of(axes: tuple[Axis, ...], weights: Floats) -> Ranges:
    """Ranges of several widths of each axis, and their shares of α.

    `weights` are the weights of the cells of all axes, one axis after another.
    """
    covariates = sum(axis.position != PREDICTION for axis in axes)
    ends = np.cumsum([0, *map(len, axes)])
    shares: dict[tuple[int, int, int], float] = {}
    for number, axis in enumerate(axes):
        share = _PREDICTION_SHARE if covariates else 1.0
        if axis.position != PREDICTION:
            predicted = len(axes) > covariates
            share = (1.0 - _PREDICTION_SHARE * predicted) / covariates
        below = np.cumsum([0.0, *weights[ends[number] : ends[number + 1]]])
        for (first, last), part in _ranges(below / max(below[-1], 1e-300)):
            # The sum of all rows is tested by itself.
            if last - first == len(axis):  # all rows
                continue
            key = number, first, last
            # Ranges of different widths may end at the same edges, if cells are few.  Their
            # shares add up.
            shares[key] = shares.get(key, 0.0) + share * part
    keys = np.array(list(shares), np.int64).reshape(-1, 3)
    return Ranges(keys[:, 0], keys[:, 1], keys[:, 2], np.array(list(shares.values())))


def _ranges(below: Floats) -> Iterator[tuple[tuple[int, int], float]]:
    """Cells of each range of an axis, the last excluded, and its share of the α of the axis.

    `below` (C + 1,) is the share of the rows below each edge of a cell, 0 and 1 included.
    """
    # The first and the last tenth, where models err most.
    for start in (0.0, 1.0 - _OUTER):
        yield _nearest(below, start, start + _OUTER), _OUTER_SHARE / 2
    for width in _WIDTHS:
        starts = np.arange(0.0, 1.0 - width + 1e-9, width / 4)
        for start in starts.tolist():
            part = (1.0 - _OUTER_SHARE) / len(_WIDTHS) / len(starts)
            yield _nearest(below, start, start + width), part


def _nearest(below: Floats, start: float, end: float) -> tuple[int, int]:
    """At least one cell, between the edges nearest to two shares of the rows."""
    first = min(int(np.abs(below - start).argmin()), len(below) - 2)
    return first, max(first + 1, int(np.abs(below - end).argmin()))


class _Unions:
    """Sums of ranges, after the sum of all rows, from sums of the cells of a `GroupSums`."""

    def __init__(self, axes: tuple[Axis, ...], ranges: Ranges) -> None:
        offsets = 1 + np.cumsum([0, *map(len, axes)])[ranges.axes]  # group 0 is all rows
        bounds = np.stack([offsets + ranges.first, offsets + ranges.last], axis=1)
        self._bounds = np.vstack([[[0, 1]], bounds]).ravel()

    def __call__(self, cells: Floats) -> Floats:
        """Sums of cells (…, G) as sums of ranges (…, 1 + M).

        They are sums, not differences of cumulative sums: a sum of zeros stays exactly 0.
        """
        # `reduceat` adds the numbers from each bound to the next, so that every second sum is a
        # range and the others lie between ranges.  A bound may be the number of cells, which needs
        # the padding.
        padded = np.concatenate([cells, np.zeros((*cells.shape[:-1], 1))], axis=-1)
        return np.add.reduceat(padded, self._bounds, axis=-1)[..., ::2]

    def state(self, state: GroupState) -> GroupState:
        return GroupState(self(state.sums), self(state.thirds))

    def drawn(self, drawn: DrawnGroups) -> DrawnGroups:
        return DrawnGroups(self(drawn.deltas), drawn.squares)


@dataclass(frozen=True)
class ScanSums:
    """Sums over the cells of all axes.

    `plain` has the weights of the rows, from which biases follow.  `weighted`, which is tested, has
    the weights divided by p(1 − p) and a damping.
    """

    axes: tuple[Axis, ...]
    plain: GroupSums
    weighted: GroupSums

    @classmethod
    def of(
        cls, session: Session, names: tuple[str, ...], notion: str, categorical: tuple[str, ...]
    ) -> ScanSums:
        """Sums for a session.  With clusters, residuals have signs and all sums are plain."""
        axes = scan_axes(session, names, notion, categorical)
        plain = GroupSums(axes, notion, crossings=False)
        p = session.profile.sample(notion).points[:, 0]
        variance = float(np.mean(p * (1.0 - p))) if len(p) else 0.0
        if session.rules.cluster is not None or not variance > 0:
            return cls(axes, plain, plain)
        return cls(axes, plain, replace(plain, damping=_DAMPING * variance))

    @property
    def needs(self) -> tuple[GroupSums, ...]:
        """Statistics of one pass over the rows."""
        return tuple(dict.fromkeys((self.plain, self.weighted)))


def scanned_ranges(
    session: Session,
    names: tuple[str, ...],
    scan: ScanSums,
    states: Mapping[Statistic, GroupState],
    n_replicates: int,
    seed: int,
    min_rows: float,
    confidence_level: float,
) -> RangeScan:
    """Test the bias of every range with enough rows, from the states of `ScanSums.needs`."""
    columns = tuple(axis.name for axis in scan.axes)
    weights = totals_of(states[scan.plain]).w[1:]
    if not weights.any():
        return RangeScan(columns, 0)
    clustered = session.rules.cluster is not None
    null = ClusterSigns(seed) if clustered else DrawnLabels(seed)

    def draw(ranges: Ranges, flips: float = 0.0) -> Iterator[DrawnGroups]:
        statistic = replace(scan.weighted, flips=flips)
        batches = drawn_batches(session, statistic, null, n_replicates, names)
        return map(_Unions(scan.axes, ranges).drawn, batches)

    all_ranges = ranges_of(scan.axes, weights)
    sums = totals_of(_Unions(scan.axes, all_ranges).state(states[scan.plain]))
    least = min_rows * (1 - 1e-9)
    if clustered:
        # Rows count for as many independent rows as give the sum of all residuals its variance.
        label_variance = sums.spread[0]
        sums = with_signs(sums, draw(all_ranges))
        least *= max(1.0, sums.spread[0] / label_variance) if label_variance > 0 else 1.0
    large = (sums.w > 0) & (sums.w**2 >= least * sums.w2)
    large_enough = np.flatnonzero(large[1:])
    if not len(large_enough):
        return RangeScan(columns, 0)
    ranges = all_ranges.take(large_enough)
    sums = sums.take([0, *(1 + large_enough)])
    # Biases use plain weights.  Evidence uses damped weights, which have more power.
    weighted = sums
    if scan.weighted != scan.plain:
        weighted = totals_of(_Unions(scan.axes, ranges).state(states[scan.weighted]))
    listed = list(range(1, 1 + len(ranges)))  # after all rows
    tested = family_of(weighted, listed, partial(draw, ranges), ranges.shares)
    adjusted, alone = tested.family.adjusted, tested.family.alone
    alpha = 1 - confidence_level
    groups: list[Group] = []
    for i in _separate(ranges, tested.family.order, adjusted <= alpha + 1e-12):
        # The interval of a range has its share of α, which makes all intervals simultaneous.
        low, high = limits_of(sums, [1 + i], alpha * float(ranges.shares[i]) / 2)
        where = _where(scan.axes[ranges.axes[i]], ranges.first[i], ranges.last[i])
        group = group_of((where,), sums, 1 + i, dispersion_of(sums), alone[i])
        groups.append(
            replace(group, adjusted=float(adjusted[i]), low=float(low[0]), high=float(high[0]))
        )
    return RangeScan(
        columns,
        len(ranges),
        float(adjusted.min()),
        tested.dispersion,
        tested.flips,
        tuple(groups),
    )


def _separate(ranges: Ranges, order: Ints, significant: Any) -> list[int]:
    """Ranges without common cells, by decreasing evidence: the first of each axis, and others.

    The others are significant.
    """
    selected: list[int] = []
    for i in map(int, order):
        first = all(ranges.axes[i] != ranges.axes[j] for j in selected)
        if not (first or significant[i]) or any(ranges.overlap(i, j) for j in selected):
            continue
        selected.append(i)
    return selected[:_MAX_LISTED]


def _where(axis: Axis, first: int, last: int) -> Where:
    """Condition that defines a range of cells."""
    edges = (None, *axis.edges, None)
    return Where(axis.name, above=edges[first], up_to=edges[last])
