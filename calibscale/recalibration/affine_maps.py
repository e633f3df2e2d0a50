"""Recalibration of predictive distributions by an affine map with the smallest CRPS."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from calibscale.array_types import Floats
from calibscale.errors import OptionError
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import FORECASTS
from calibscale.recalibration.parametric import MAX_PASSES, not_converged
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Measured,
    Read,
    RecalibrationMethod,
    StoredFit,
)
from calibscale.statistics.statistic import Statistic, weighted_sum, weights_of

_STEP = 0.01  # of the differences: their errors are about 1e-8 of a gradient, by the fourth power
_PRECISION = 1e-8  # of the parameters in units of the scale, above the last step
_KINKS = 1e-5  # relative increase of the CRPS that is no sign of a step that was too long
_LEAST_SPREAD = 0.05  # of the first one, as a distribution without any spread is none
# Spreads that are tried first, from which Newton's method takes a few steps.
_SPREADS = tuple(2.0**power for power in range(-40, 41, 4))
_LARGEST_STEP = 1.0  # in units of the scale, as differences far from the minimum say little
_NAMES = ("shift", "slope", "spread")


class AffineMap(NamedTuple):
    """Map of a distribution Z with the mean m to shift + slope·m + spread·(Z − m)."""

    shift: float
    slope: float
    spread: float


class _Units(NamedTuple):
    """Origin and scales of the parameters θ, in which the CRPS has curvatures of about 1.

    The map of θ has the slope s = slope + slope_scale·θ_1, the mean level + scale·θ_0 + s·(m −
    centre), and the spread spread·θ_2.  `level` is the mean outcome, `slope` the least-squares
    slope, `scale` the deviation of its errors, and `slope_scale` moves the mean of a row that is a
    deviation away from the centre by `scale`.  It is 0 where all predicted means are equal.
    """

    centre: float
    level: float
    scale: float
    slope: float
    slope_scale: float
    spread: float = 1.0

    def map_of(self, theta: Floats) -> AffineMap:
        """Map with the parameters θ (3,)."""
        slope = self.slope + self.slope_scale * float(theta[1])
        shift = self.level + self.scale * float(theta[0]) - slope * self.centre
        return AffineMap(shift, slope, self.spread * float(theta[2]))

    @property
    def jacobian(self) -> Floats:
        """Derivatives of the shift, slope and spread by θ (3, 3)."""
        shift = [self.scale, -self.slope_scale * self.centre, 0.0]
        return np.array([shift, [0.0, self.slope_scale, 0.0], [0.0, 0.0, self.spread]])


class MapScoreState(NamedTuple):
    """Σw, and Σw·CRPS of each map (maps,).  Σw²·g·gᵀ with the gradients g of rows (3, 3)."""

    weight: Floats
    scores: Floats
    squares: Floats


@dataclass(frozen=True)
class MapScores(Statistic):
    """Sums of the CRPS of distributions moved by each of several maps.

    With `gradients`, the maps are those of `_stencil`, and gradients of rows are differences.
    """

    maps: tuple[AffineMap, ...]
    gradients: bool = True

    def zero(self, classes: int) -> MapScoreState:
        return MapScoreState(np.zeros(()), np.zeros(len(self.maps)), np.zeros((3, 3)))

    def accumulate(self, state: MapScoreState, chunk: Chunk) -> MapScoreState:
        rows: Any = chunk
        w = weights_of(chunk)
        state.weight[...] += w.sum()
        scores = [
            rows.forecast.crps_of_members(rows.forecast.moved(rows.values, *m), rows.outcomes)
            for m in self.maps
        ]
        for i, score in enumerate(scores):
            state.scores[i] += weighted_sum(score, chunk.weights)
        if not self.gradients:
            return state
        # The differences of each row's scores, of which the sandwich needs the products.
        gradients = np.stack([_derivative(scores, k) for k in range(3)])
        state.squares[...] += (w * w * gradients) @ gradients.T
        return state


def _stencil(theta: Floats) -> Iterator[Floats]:
    """Points of the differences around θ (3,), 19 of them.

    They are θ, then for each parameter θ − 2h, θ − h, θ + h and θ + 2h, and then for each pair of
    parameters both of them one step up, and both one step down.
    """
    yield theta
    steps = _STEP * np.eye(3)
    for step in steps:
        for count in (-2, -1, 1, 2):
            yield theta + count * step
    for i, j in combinations(range(3), 2):
        yield theta + steps[i] + steps[j]
        yield theta - steps[i] - steps[j]


def _derivative(values: Any, k: int) -> Any:
    """Derivative by parameter `k` from values at the points of `_stencil`, of the fourth order."""
    low2, low, high, high2 = values[1 + 4 * k : 5 + 4 * k]
    return (8.0 * (high - low) - (high2 - low2)) / (12.0 * _STEP)


def _hessian(values: Floats) -> Floats:
    """Second derivatives (3, 3) from values at the points of `_stencil`."""
    out = np.empty((3, 3))
    middle = values[0]
    ends = [(values[2 + 4 * k], values[3 + 4 * k]) for k in range(3)]
    for k, (low, high) in enumerate(ends):
        out[k, k] = (high + low - 2.0 * middle) / _STEP**2
    for number, (i, j) in enumerate(combinations(range(3), 2)):
        both = values[13 + 2 * number] + values[14 + 2 * number]
        alone = sum(ends[i]) + sum(ends[j])
        out[i, j] = out[j, i] = (both - alone + 2.0 * middle) / (2.0 * _STEP**2)
    return out


# ---------------------------------------------------------------- the first pass


class ScaleState(NamedTuple):
    """Σ of w, wm, we, wm², wme and we² over rows (6,), see `ScaleSums`."""

    sums: Floats


@dataclass(frozen=True)
class ScaleSums(Statistic):
    """Sums for the least-squares line of the outcomes on the predicted means.

    m is the mean of a row minus the `origin`, near which squares keep their digits, and e is its
    error, the outcome minus the predicted mean.
    """

    origin: float = 0.0

    def zero(self, classes: int) -> ScaleState:
        return ScaleState(np.zeros(6))

    def accumulate(self, state: ScaleState, chunk: Chunk) -> ScaleState:
        rows: Any = chunk
        w, mean = weights_of(chunk), rows.forecast.mean(rows.values)
        error = rows.outcomes - mean
        mean = mean - self.origin
        squares = [w @ (mean * mean), w @ (mean * error), w @ (error * error)]
        state.sums[...] += [w.sum(), w @ mean, w @ error, *squares]
        return state


# ---------------------------------------------------------------- method


@dataclass(frozen=True)
class Affine(RecalibrationMethod):
    """Affine map of predictive distributions with the smallest mean CRPS.

    A distribution Z with the mean m becomes shift + slope·m + spread·(Z − m): normal distributions
    as in EMOS with a proportional spread [Gneiting, Raftery, Westveld & Goldman, Monthly Weather
    Review 133 (2005)], and each member of an ensemble [Van Schaeybroeck & Vannitsem, Quarterly
    Journal of the Royal Meteorological Society 141 (2015)].  The CRPS is convex in the three
    parameters.  Newton's method takes one pass per step.

    Members of an ensemble that are moved around their mean are no independent draws.  The fit, and
    the scores that say whether it helps, take the members as the forecast, ``crps(fair=False)``.
    """

    name: ClassVar[str] = "affine"
    two_classes: ClassVar[bool] = False
    judges: ClassVar[tuple[str, ...]] = (FORECASTS,)

    @classmethod
    def fit_class(cls) -> type[AffineFit]:
        return AffineFit

    def _fit(self, setup: DataProfile, read: Read) -> AffineFit:
        units = self._units(setup, read)
        theta, step, smallest = _START.copy(), np.zeros(3), math.inf
        for passes in range(3, MAX_PASSES + 1):  # after the two passes of the units
            statistic = MapScores(tuple(units.map_of(point) for point in _stencil(theta)))
            result = read(statistic)
            state: MapScoreState = result.groups[None][statistic]
            scores = state.scores / state.weight
            # A step that has passed the minimum of its direction by far is halved.  Near it, the
            # CRPS of ensembles has small kinks, which the differences smooth.
            if scores[0] > smallest * (1.0 + _KINKS):
                step = 0.5 * step
                theta = theta - step
                continue
            smallest = float(scores[0])
            hessian = _hessian(scores)
            step = _step(theta, scores, hessian, self.name)
            if np.abs(step).max() > _PRECISION:
                theta = theta + step
                continue
            return AffineFit(
                map=units.map_of(theta),
                errors=_errors(hessian, state, units),
                method=self,
                classes=0,
                counts=result.counts,
                passes=passes,
                notes=_notes(theta),
            )
        raise not_converged(self.name)

    def _units(self, setup: DataProfile, read: Read) -> _Units:
        """Units of the parameters: a least-squares line, and the best of several spreads."""
        sample = setup.sample("canonical").parameters[:, :-1]
        target: Any = setup.source.target
        line = ScaleSums(float(np.mean(target.mean(sample))) if len(sample) else 0.0)
        units = _units_of(read(line).groups[None][line].sums, line.origin, self.name)
        maps = tuple(units._replace(spread=spread).map_of(_START) for spread in _SPREADS)
        tried = MapScores(maps, gradients=False)
        scores: Floats = read(tried).groups[None][tried].scores
        return units._replace(spread=_SPREADS[int(np.argmin(scores))])


_START = np.array([0.0, 0.0, 1.0])  # parameters θ of the first map
_EQUAL = 1e-14  # share of the squares of the means, below which their variance is rounding


def _units_of(sums: Floats, origin: float, name: str) -> _Units:
    """Units of the least-squares line of the outcomes on the predicted means."""
    weight, *means = sums.tolist()
    mean, error, mean_square, product, error_square = (value / weight for value in means)
    variance = mean_square - mean**2
    slope, slope_scale = 0.0, 0.0
    of_errors = error_square - error**2
    if variance > _EQUAL * mean_square:
        slope = (product - mean * error) / variance  # of the errors on the means
        of_errors -= slope**2 * variance
    if not of_errors > _EQUAL * error_square:
        raise OptionError(f"{name}: the outcomes are the predicted means on a line")
    scale = math.sqrt(of_errors)
    if variance > _EQUAL * mean_square:
        slope_scale = scale / math.sqrt(variance)
    centre = origin + mean
    return _Units(centre, centre + error, scale, 1.0 + slope, slope_scale)


def _errors(hessian: Floats, state: MapScoreState, units: _Units) -> tuple[float, float, float]:
    """Standard errors of the parameters of the map, robust to a wrong model [White 1982]."""
    squares = state.squares / float(state.weight) ** 2
    # A slope that equal predictions leave undetermined has no error.
    inverse = np.linalg.pinv(hessian)
    covariance = units.jacobian @ inverse @ squares @ inverse @ units.jacobian.T
    shift, slope, spread = np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist()
    return shift, slope, spread


def _step(theta: Floats, scores: Floats, hessian: Floats, name: str) -> Floats:
    """Newton step from θ, limited in length, that keeps the spread at `_LEAST_SPREAD` or above."""
    gradient = np.array([_derivative(scores, k) for k in range(3)])
    # At the bound of the spread, a smaller one would be better still: the others move alone.
    at_bound = theta[2] <= _LEAST_SPREAD and gradient[2] > 0
    free = [0, 1] if at_bound else [0, 1, 2]
    step = np.zeros(3)
    # Predicted means that are all equal leave the slope undetermined: the shortest step keeps it.
    step[free] = -np.linalg.lstsq(hessian[np.ix_(free, free)], gradient[free], rcond=1e-9)[0]
    if not np.isfinite(step).all():
        raise OptionError(f"{name}: the CRPS of the rows is not finite")
    step *= min(1.0, _LARGEST_STEP / max(np.abs(step).max(), 1e-300))
    step[2] = max(step[2], _LEAST_SPREAD - theta[2])
    return step


def _notes(theta: Floats) -> tuple[str, ...]:
    if theta[2] > _LEAST_SPREAD:
        return ()
    return ("the spread is the smallest that is allowed: that of the predictions says nothing",)


class StoredAffine(StoredFit):
    """State of `AffineFit`."""

    map: tuple[float, float, Annotated[float, Field(gt=0.0)]]
    errors: tuple[Measured, Measured, Measured]


@dataclass(frozen=True, eq=False, kw_only=True)
class AffineFit(FittedRecalibrator):
    """Affine `map` with the standard `errors` of its parameters."""

    method: Affine
    map: AffineMap
    errors: tuple[float, float, float]
    stored: ClassVar[type[StoredFit]] = StoredAffine

    @property
    def parameters(self) -> dict[str, float]:
        return dict(zip(_NAMES, self.map, strict=True))

    @property
    def standard_errors(self) -> dict[str, float]:
        return dict(zip(_NAMES, self.errors, strict=True))

    def predictions(self, chunk: Chunk) -> Floats:
        rows: Any = chunk
        return rows.forecast.moved(rows.values, *self.map)
