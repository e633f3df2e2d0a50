"""Families without a kernel: histogram binning, and temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import row_sums
from calibscale.errors import OptionError
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import CLASSES, FUNCTIONALS
from calibscale.predictions.notions import NotionView, problems, views
from calibscale.selection.families import (
    ROW_NOTIONS,
    Bilinear,
    Family,
    FamilyProfile,
    FoldPart,
    GridFamily,
    PairSums,
    PlugIn,
)
from calibscale.selection.point_ranks import PointRanks
from calibscale.selection.risk import plug_in_risk
from calibscale.statistics.bins import BinState, BinSums
from calibscale.statistics.statistic import Statistic


@dataclass(frozen=True)
class BinMoments(Statistic):
    """Sums over the rows of scalar problems in equal-width bins (lo, hi], (J, 5, B).

    Functionals are binned by their `ranks`, whose bins have equal mass.
    """

    notion: str
    bins: int
    ranks: PointRanks | None = None

    def zero(self, classes: int) -> BinState:
        J = problems(self.notion, classes)
        return BinState(np.zeros((J, 5, self.bins)))

    def accumulate(self, state: BinState, chunk: Chunk) -> BinState:
        edges = np.linspace(0.0, 1.0, self.bins + 1)
        for j, view in enumerate(views(chunk, self.notion)):
            p = _binned(view, self.ranks)
            delta = np.ascontiguousarray(view.delta[:, 0])
            row_sums.bin_column(p, delta, view.weights, edges, False, state.sums[j])
        return state


def _binned(view: NotionView, ranks: PointRanks | None) -> Floats:
    """Numbers in [0, 1] by which rows are binned (c,)."""
    points = view.points if ranks is None else ranks(view.points)
    return np.ascontiguousarray(points[:, 0])


def _sums(state: BinState) -> BinSums:
    """Sums of `BinMoments`, each (J, B)."""
    return BinSums(*state.sums.transpose(1, 0, 2))


class _FittedBins(Bilinear):
    """B = ddᵀ − diag(v) with d_b = conf_b − acc_b and the debiasing term v_b (J, B each)."""

    def __init__(self, d: Sequence[Floats], v: Sequence[Floats], ranks: PointRanks | None) -> None:
        self.d, self.v, self.ranks = d, v, ranks
        self.size = len(d)

    def pick(self, h: int) -> _FittedBins:
        return _FittedBins(self.d[h : h + 1], self.v[h : h + 1], self.ranks)

    def _positions(self, h: int, view: NotionView) -> Ints:
        p = _binned(view, self.ranks)
        out = np.empty(len(p), np.int64)
        row_sums.bin_numbers(p, np.linspace(0.0, 1.0, self.d[h].shape[1] + 1), False, out)
        return out

    def diagonal(self, rows: Sequence[NotionView]) -> Floats:
        out = np.empty((len(rows), self.size, len(rows[0].rows)))
        for j, view in enumerate(rows):
            for h in range(self.size):
                out[j, h] = (self.d[h][j] ** 2 - self.v[h][j])[self._positions(h, view)]
        return out

    def residuals(self, j: int, view: NotionView) -> Floats:
        r = [self.d[h][j][self._positions(h, view)] for h in range(self.size)]
        return np.array(r)[:, :, None]

    def pair_sums(self, part: FoldPart, rows: Sequence[NotionView], complete: bool) -> PairSums:
        sums = PairSums.zero(self.size, rows)
        for h in range(self.size):
            bin_sums = _sums(part.states[h])
            s, c = bin_sums.weight, bin_sums.delta
            d, v = self.d[h], self.v[h]
            # With S = diag(s), C = c and B = ddᵀ − diag(v), the traces are sums over bins.
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

    def estimates(self, part: FoldPart) -> Floats:
        out = np.empty(self.size)
        for h in range(self.size):
            out[h] = np.sum(_sums(part.states[h]).weight * (self.d[h] ** 2 - self.v[h]))
        return out / float(part.residuals.weight)

    def gains(self, part: FoldPart, h: int) -> tuple[float, float]:
        bin_sums = _sums(part.states[h])
        s, c = bin_sums.weight, bin_sums.delta
        d, weight = self.d[h], float(part.residuals.weight)
        return float(np.sum(d * c)) / weight, float(np.sum(d * d * s)) / weight


@dataclass(frozen=True)
class Bins(GridFamily):
    """Histogram binning: h(p, p') = d_b d_b' with d_b = conf_b − acc_b [GB eq. 23].

    Bins (lo, hi] have equal width.  An empty bin uses the global means.  Means, quantiles and other
    predictions of one number are binned by their ranks, so that bins have equal mass.

    Parameters
    ----------
    grid : sequence of int, optional
        Numbers of bins.  Default: {5, 10, …, 90}.
    debiased : bool
        Subtract acc_b (1 − acc_b)/(n_b − 1) where both points share a bin (Kumar et al. 2019).  A
        bin with one row contributes 0 in this case.
    """

    debiased: bool = False
    ranks: PointRanks | None = field(default=None, kw_only=True, repr=False)
    name: ClassVar[str] = "bins"
    hyperparameter: ClassVar[str] = "bins"
    notions: ClassVar[tuple[str, ...]] = ROW_NOTIONS
    judges: ClassVar[tuple[str, ...]] = (CLASSES, *FUNCTIONALS)
    most_columns: ClassVar[int | None] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(value != int(value) or value > 100_000 for value in self.grid or ()):
            raise OptionError(
                f"the grid of {self.name} must be whole numbers up to 100,000, not {self.grid}"
            )
        if self.grid is not None:
            object.__setattr__(self, "grid", tuple(map(int, self.grid)))

    @staticmethod
    def published(notion: str) -> tuple[float, ...]:
        return tuple(range(5, 91, 5))

    def resolve(self, profile: FamilyProfile) -> Self:
        if profile.ranks is None:
            return super().resolve(profile)
        if profile.ranks.width != self.most_columns:
            raise OptionError(
                f"{self.name} is for predictions of one number, and these have "
                f"{profile.ranks.width} columns; use kkr or ukkr"
            )
        if self.debiased:
            raise OptionError(f"{self.name} is for classes, whose labels have a known variance")
        grid = self.published(profile.notion) if self.grid is None else self.grid
        return replace(self, grid=grid, notion=profile.notion, ranks=profile.ranks)

    @property
    def needs(self) -> tuple[Statistic, ...]:  # type: ignore[override]
        return tuple(BinMoments(self.notion, int(bins), self.ranks) for bins in self.values)

    def fit(self, train: Sequence[FoldPart], profile: FamilyProfile, excluded: int) -> _FittedBins:
        by_grid = zip(*(part.states for part in train), strict=True)
        d, v = zip(*(_fit(states, self.debiased) for states in by_grid), strict=True)
        return _FittedBins(d, v, self.ranks)


@dataclass(frozen=True)
class DebiasedBins(Bins):
    """`Bins` with ``debiased=True``, named ``bins_debiased``.

    See Also
    --------
    KDE : Kernel density ratios for a grid of bandwidths.
    TCE2Kumar : The correction of Kumar, Liang & Ma.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import DebiasedBins, from_arrays, select
    >>> p = np.linspace(0.5, 1, 500)
    >>> source = from_arrays(probabilities=np.c_[p, 1 - p], labels=np.arange(500) % 5 == 0)
    >>> select(source, estimators=[DebiasedBins((5, 10))]).selected.estimator
    'bins_debiased'
    """

    debiased: bool = field(default=True, init=False)
    name: ClassVar[str] = "bins_debiased"
    judges: ClassVar[tuple[str, ...]] = (CLASSES,)


def _fit(states: Sequence[BinState], debiased: bool) -> tuple[Floats, Floats]:
    """Fit d and v, each (J, B)."""
    total = BinState(np.sum([state.sums for state in states], axis=0))
    rows, weight, weight2, p, delta = _sums(total)
    overall = delta.sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
    full = weight > 0
    safe = np.where(full, weight, 1.0)
    # An empty bin uses the mean of all rows, as in the published code of [GB].
    d = np.where(full, delta / safe, overall)
    if not debiased:
        return d, np.zeros_like(d)
    # v = acc (1 − acc)/(n − 1), and d² in a bin of one row, so that its d² − v is 0.
    frequency = np.clip(p / safe - d, 0.0, 1.0)
    effective = np.where(full, safe**2 / np.where(full, weight2, 1.0), 0.0)
    several = (rows > 1) & (effective > 1)
    noise = frequency * (1 - frequency) / np.where(several, effective - 1, 1.0)
    return d, np.where(full, np.where(several, noise, d**2), 0.0)


_STEP = 0.25  # step of the coarse search
_LOG_THETA = _STEP * np.arange(-16, 17)  # θ from e^−4 to e^4


def temperature_residuals(view: NotionView, theta: float) -> Floats:
    """q − softmax(θ log q), or p − σ(θ logit p) for a scalar, (c, e)."""
    z = theta * view.logs
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=1, keepdims=True)
    return view.points - z[:, : view.points.shape[1]]


class _FittedTemperature(PlugIn):
    """θ, and the sign of r̂ that agrees with the residuals.  The risk does not depend on it."""

    size = 1

    def __init__(self, theta: float, sign: float) -> None:
        self.theta, self.sign = theta, sign

    def pick(self, h: int) -> _FittedTemperature:
        return self

    def residuals(self, j: int, view: NotionView) -> Floats:
        return self.sign * temperature_residuals(view, self.theta)[None]


@dataclass(frozen=True)
class Temperature(Family):
    """Temperature model r̂(p) = p − softmax(θ log p) [GB §5.1].

    The model is exact if the predictions are miscalibrated by a temperature only.  One θ for all
    classes minimises the risk of the training rows that are kept in memory.  The risks of r̂ and
    −r̂ are equal, so with few rows θ may lie on the wrong side of 1.
    """

    name: ClassVar[str] = "temperature"

    def streamed(self, notion: str) -> bool:
        return True

    def fitted_parameters(self, fits: Sequence[_FittedTemperature]) -> dict[str, Any]:
        return {"theta": [fit.theta for fit in fits]}

    def fit(
        self, train: Sequence[FoldPart], profile: FamilyProfile, excluded: int
    ) -> _FittedTemperature:
        from scipy.optimize import minimize_scalar  # slow to import

        train_rows = (profile.folds >= 0) & (profile.folds != excluded)
        rows = [view.take(train_rows) for view in profile.subset]

        def risk(log_theta: float) -> float:
            theta = float(np.exp(log_theta))
            return sum(
                plug_in_risk(view.delta, temperature_residuals(view, theta), view.weights)
                for view in rows
            )

        # r̂ and −r̂ have the same risk, so there may be a minimum on either side of θ = 1.
        coarse = [risk(value) for value in _LOG_THETA]
        minima = list(zip(coarse, _LOG_THETA.tolist(), strict=True))
        for side in (_LOG_THETA <= 0.0, _LOG_THETA >= 0.0):
            # The coarse minimum of each side is refined between its neighbours.
            best = int(np.argmin(np.where(side, coarse, np.inf)))
            ends = _LOG_THETA[side][[0, -1]]
            bounds = np.clip(_LOG_THETA[best] + np.array([-_STEP, _STEP]), *ends)
            local = minimize_scalar(risk, bounds=bounds, method="bounded", options={"xatol": 1e-7})
            minima.append((float(local.fun), float(local.x)))
        _, log_theta = min(minima)
        theta = float(np.exp(log_theta))
        # ⟨r̂, δ⟩ is positive for the sign that agrees with the residuals.
        agreement = sum(
            float(view.weights @ np.sum(temperature_residuals(view, theta) * view.delta, axis=1))
            for view in rows
        )
        return _FittedTemperature(theta, -1.0 if agreement < 0 else 1.0)
