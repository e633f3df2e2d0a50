"""Histogram binning of a scalar prediction [GB eq. 23], with and without debiasing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from calibscale.chunk import Floats, Ints
from calibscale.errors import OptionError
from calibscale.kernels.bins import bin_numbers
from calibscale.selection.families import (
    ROW_NOTIONS,
    Bilinear,
    Family,
    PairSums,
    Part,
    Setting,
    check_grid,
)
from calibscale.selection.statistics import BinMoments, BinMomentState
from calibscale.statistics import Statistic
from calibscale.views import View


class _FittedBins(Bilinear):
    """B = ddᵀ − diag(v): d_b = conf_b − acc_b, v_b what debiasing takes off (J, B each)."""

    def __init__(self, d: Sequence[Floats], v: Sequence[Floats]) -> None:
        self.d, self.v = d, v
        self.size = len(d)

    def pick(self, h: int) -> _FittedBins:
        return _FittedBins(self.d[h : h + 1], self.v[h : h + 1])

    def _positions(self, h: int, view: View) -> Ints:
        p = np.ascontiguousarray(view.points[:, 0])
        out = np.empty(len(p), np.int64)
        bin_numbers(p, np.linspace(0.0, 1.0, self.d[h].shape[1] + 1), False, out)
        return out

    def diagonal(self, rows: Sequence[View]) -> Floats:
        out = np.empty((len(rows), self.size, len(rows[0].rows)))
        for j, view in enumerate(rows):
            for h in range(self.size):
                out[j, h] = (self.d[h][j] ** 2 - self.v[h][j])[self._positions(h, view)]
        return out

    def residuals(self, j: int, view: View) -> Floats:
        r = [self.d[h][j][self._positions(h, view)] for h in range(self.size)]
        return np.array(r)[:, :, None]

    def judge(self, part: Part, rows: Sequence[View], whole: bool) -> PairSums:
        sums = PairSums.zero(self.size, rows)
        for h in range(self.size):
            s, c = part.states[h].sums[:, 1], part.states[h].sums[:, 4]
            d, v = self.d[h], self.v[h]
            cd, sdd = np.sum(c * d, axis=1), np.sum(s * d * d, axis=1)
            sums.cross[h] = np.sum(cd**2) - np.sum(c * c * v)
            sums.square[h] = np.sum(sdd**2) + np.sum(s * s * v * (v - 2.0 * d * d))
            for j, view in enumerate(rows):
                b = self._positions(h, view)
                square = d[j] ** 2 * (sdd[j] - 2.0 * s[j] * v[j]) + s[j] * v[j] ** 2
                cross = d[j] * cd[j] - c[j] * v[j]
                sums.diagonal[j, h] = (d[j] ** 2 - v[j])[b]
                sums.first[h] += square[b] - 2.0 * view.delta[:, 0] * cross[b]
        return sums

    def estimates(self, part: Part) -> Floats:
        out = np.empty(self.size)
        for h in range(self.size):
            out[h] = np.sum(part.states[h].sums[:, 1] * (self.d[h] ** 2 - self.v[h]))
        return out / float(part.residuals.weight)

    def gains(self, part: Part, h: int) -> tuple[float, float]:
        s, c = part.states[h].sums[:, 1], part.states[h].sums[:, 4]
        d, weight = self.d[h], float(part.residuals.weight)
        return float(np.sum(d * c)) / weight, float(np.sum(d * d * s)) / weight


@dataclass(frozen=True)
class Bins(Family):
    """h(p, p') = d_b d_b', d_b = conf_b − acc_b of equal-width bins (lo, hi] [GB eq. 23].

    An empty bin predicts the global means.

    Parameters
    ----------
    grid : sequence of int, optional
        Numbers of bins; default {5, 10, …, 90}.
    debiased : bool
        Subtract acc_b (1 − acc_b)/(n_b − 1) where both points share a bin (Kumar et al. 2019); a
        bin of one row contributes 0 there.
    """

    grid: Sequence[float] | None = None
    debiased: bool = False
    notion: str = "top_label"
    name: ClassVar[str] = "bins"
    notions: ClassVar[tuple[str, ...]] = ROW_NOTIONS

    def __post_init__(self) -> None:
        if self.grid is None:
            return
        grid = check_grid(self.name, self.grid)
        if any(value != int(value) or value > 100_000 for value in grid):
            raise OptionError(
                f"the grid of {self.name} must be whole numbers up to 100,000, not {grid}"
            )
        object.__setattr__(self, "grid", tuple(int(value) for value in grid))

    def resolve(self, setting: Setting) -> Self:
        super().resolve(setting)
        grid = tuple(range(5, 91, 5)) if self.grid is None else self.grid
        return replace(self, grid=grid, notion=setting.notion)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        assert self.grid is not None
        return tuple(BinMoments(self.notion, int(bins)) for bins in self.grid)

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        assert self.grid is not None
        return [{"bins": bins} for bins in self.grid]

    def fit(self, train: Sequence[Part], setting: Setting, excluded: int) -> _FittedBins:
        d, v = [], []
        for states in zip(*(part.states for part in train), strict=True):
            gap, taken = _fit(states, self.debiased)
            d.append(gap)
            v.append(taken)
        return _FittedBins(d, v)


@dataclass(frozen=True)
class DebiasedBins(Bins):
    """`Bins` with ``debiased=True``, as a family of its own name."""

    debiased: bool = field(default=True, init=False)
    name: ClassVar[str] = "bins_debiased"


def _fit(states: Sequence[BinMomentState], debiased: bool) -> tuple[Floats, Floats]:
    """d and v, each (J, B)."""
    rows, weight, weight2, p, delta = np.sum([state.sums for state in states], axis=0).transpose(
        1, 0, 2
    )
    overall = delta.sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
    full = weight > 0
    safe = np.where(full, weight, 1.0)
    d = np.where(full, delta / safe, overall)
    if not debiased:
        return d, np.zeros_like(d)
    frequency = np.clip(p / safe - d, 0.0, 1.0)
    effective = np.where(full, safe**2 / np.where(full, weight2, 1.0), 0.0)
    several = (rows > 1) & (effective > 1)
    noise = frequency * (1 - frequency) / np.where(several, effective - 1, 1.0)
    return d, np.where(full, np.where(several, noise, d**2), 0.0)
