"""Search for the coefficients of a map of many classes, by passes over the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from calibscale.array_types import Floats
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.class_losses import (
    ClassCouplings,
    ClassCurvature,
    ClassLoss,
    ClassLossState,
    MapInputs,
    SecondDerivatives,
    Shrinkage,
    class_hessians,
    with_slope,
)
from calibscale.recalibration.descent import InverseCurvature, minimised
from calibscale.recalibration.parametric import not_converged
from calibscale.recalibration.recalibrator import Read
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.statistic import Statistic, weights_of

_SAMPLED_VALUES = 2**24  # of the rows by which a fit begins: 64 MB in float32
_SAMPLED_ROWS = 2**15
# Slopes and intercepts up to which their second derivatives are a matrix, of 32 MB.  With more, the
# derivatives by coefficients of different classes are left out.
_MAX_JOINT = 2048
_MAX_ERRORS = 512  # coefficients with exact second derivatives, and with standard errors
# Of a coefficient, above the last step of each round.  Second derivatives change with the
# coefficients: after a long step, they are computed again in the next round.
_PRECISIONS = (2.0, 0.5, 0.05, 1e-9)
# Of a fit that judges another one, whose coefficients have standard errors far above it.
_JUDGING_PRECISIONS = (2.0, 0.05, 1e-3)
_SAMPLE_PRECISION = 1e-4  # the fit to a sample is only a start
_MAX_CALLS = 200
_SLOPES = 2.0 ** np.arange(-6, 4)  # common slopes, of which the best for the sample is a start


@dataclass
class ClassMapSearch:
    """Search for the coefficients, first by a sample of the rows, then by passes over all.

    `name` is the name of the method, for an error, and `coefficient_rows` the number r of
    coefficients of each class.
    """

    name: str
    inputs: MapInputs
    coefficient_rows: int
    shrinkage: Shrinkage
    setup: DataProfile
    read: Read
    passes: int = 0
    _last: tuple[ClassLossState, PassResult] | None = field(default=None, init=False)

    @property
    def _shape(self) -> tuple[int, int]:
        """Shape (r, K) of the coefficients."""
        return self.coefficient_rows, self.setup.classes

    @property
    def _sampled_rows(self) -> int:
        """Largest number of rows of the sample."""
        return min(_SAMPLED_ROWS, max(1, _SAMPLED_VALUES // self.setup.classes))

    @property
    def _share(self) -> float:
        """Share of the rows that are in the sample."""
        return min(1.0, self._sampled_rows / self.setup.rows)

    @cached_property
    def _sample(self) -> list[Chunk]:
        """Labelled rows of a sample."""
        return self.setup.labelled_sample(self._sampled_rows)

    @property
    def last(self) -> tuple[ClassLossState, PassResult]:
        """State and result of the last pass."""
        assert self._last is not None
        return self._last

    def minimum(self) -> Floats:
        """Coefficients (r, K) that minimise the penalised loss of all rows."""
        start = self._start()
        # The sample has its own few rows and the full shrinkage, because its minimum without enough
        # shrinkage is far from the minimum of all rows.
        near = minimised(
            self._sample_objective,
            start.ravel(),
            self._sample_objective(start.ravel()),
            self._inverse_by_sample(start, 1.0),
            _SAMPLE_PRECISION,
            _MAX_CALLS,
        ).point
        return self._descent(near, _PRECISIONS)

    def minimum_near(self, coefficients: Floats) -> Floats:
        """Coefficients (r, K) near the minimum, from those of a fit to most of the same rows."""
        return self._descent(coefficients.ravel(), _JUDGING_PRECISIONS)

    def _descent(self, start: Floats, precisions: tuple[float, ...]) -> Floats:
        """Coefficients (r, K) at which the last step has the last one of the precisions."""
        near, last_step = start, math.inf
        for precision in precisions:
            # A round that the last step has overtaken would only compute derivatives again.
            if precision >= last_step:
                continue
            value, inverse = self._at(near)
            best = minimised(self._objective, near, value, inverse, precision, _MAX_CALLS)
            if not best.converged:
                raise not_converged(self.name, self.passes)
            near, last_step = best.point, best.last_step
        return near.reshape(self._shape)

    def covariance(self, coefficients: Floats) -> Floats | None:
        """Sandwich covariance of the coefficients [White 1982], by one pass, or None for too many.

        Of many coefficients, the covariance would have more entries than a pass can sum in
        reasonable time.
        """
        if coefficients.size > _MAX_ERRORS:
            return None
        statistic = ClassCurvature(coefficients, self.inputs)
        result = self.read(statistic)
        self.passes += 1
        state = result.groups[None][statistic]
        # The penalty is in units of effective rows, as the loss of `_penalised`.
        scale = rows_per_weight(self.last[0])
        hessian = scale * state.hessian + self.shrinkage.hessian(self._shape)
        inverse = np.linalg.inv(hessian)
        return inverse @ (scale**2 * state.squares) @ inverse

    def _start(self) -> Floats:
        """Map of the temperature that suits the sample best, among a few."""
        # The slope that others are shrunk to is first, so that equal losses take it.
        slopes = (self.shrinkage.centre, *_SLOPES)
        maps = [with_slope(float(slope), *self._shape) for slope in slopes]
        losses = [self._sample_objective(coefficients.ravel())[0] for coefficients in maps]
        return maps[int(np.argmin(losses))]

    def _at(self, point: Floats) -> tuple[tuple[float, Floats], InverseCurvature]:
        """Value and gradient at a point, and about the inverse of the second derivatives there."""
        coefficients = point.reshape(self._shape)
        curvature = self._curvature(coefficients)
        # A sample of all rows has their second derivatives.
        if curvature is None or self._share == 1.0:
            return self._objective(point), self._inverse_by_sample(coefficients, self._share)
        value = self._objective(point, curvature)
        state, result = self.last
        derivatives = result.groups[None][curvature]
        return value, self._joint_inverse(curvature, derivatives, rows_per_weight(state))

    def _objective(self, point: Floats, *further: Statistic) -> tuple[float, Floats]:
        """Penalised loss of all rows, and its gradient, by one pass with further statistics."""
        coefficients = point.reshape(self._shape)
        statistic = ClassLoss(coefficients, self.inputs)
        result = self.read(statistic, *further)
        self.passes += 1
        state: ClassLossState = result.groups[None][statistic]
        self._last = state, result
        return self._penalised(coefficients, state)

    def _sample_objective(self, point: Floats) -> tuple[float, Floats]:
        """Penalised loss of the sample, and its gradient."""
        coefficients = point.reshape(self._shape)
        statistic = ClassLoss(coefficients, self.inputs)
        state = statistic.zero(self.setup.classes)
        for chunk in self._sample:
            state = statistic.accumulate(state, chunk)
        return self._penalised(coefficients, state)

    def _penalised(self, coefficients: Floats, state: ClassLossState) -> tuple[float, Floats]:
        scale = rows_per_weight(state)
        value = scale * float(state.loss) + self.shrinkage.penalty(coefficients)
        gradient = scale * state.gradient + self.shrinkage.gradient(coefficients)
        return value, gradient.ravel()

    def _curvature(self, coefficients: Floats) -> SecondDerivatives | None:
        """Statistic of all second derivatives, or None if they are too many."""
        if coefficients.size <= _MAX_ERRORS:
            return ClassCurvature(coefficients, self.inputs)
        if len(coefficients) == 2 and coefficients.size <= _MAX_JOINT:
            return ClassCouplings(coefficients, self.inputs)
        return None

    def _inverse_by_sample(self, coefficients: Floats, share: float) -> InverseCurvature:
        """About the inverse of the second derivatives.

        The sample stands for rows of which it is a share.
        """
        r, K = self._shape
        weights = [weights_of(chunk) for chunk in self._sample]
        squares = sum(float(w @ w) for w in weights)
        scale = sum(float(w.sum()) for w in weights) / squares / share if squares else 0.0
        curvature = self._curvature(coefficients)
        if curvature is not None:
            state = curvature.zero(K)
            for chunk in self._sample:
                state = curvature.accumulate(state, chunk)
            return self._joint_inverse(curvature, state, scale)
        loss = ClassLoss(coefficients, self.inputs)
        blocks = np.zeros((K, r, r))
        for chunk in self._sample:
            blocks += scale * class_hessians(loss, chunk)
        precisions = self.shrinkage.precisions(self._shape)
        return InverseCurvature(_class_inverse(blocks, precisions))

    def _joint_inverse(
        self, curvature: SecondDerivatives, state: Any, scale: float
    ) -> InverseCurvature:
        """Inverse of the second derivatives (rK, rK) of the scaled loss and the penalty."""
        penalty = self.shrinkage.hessian(self._shape)
        # The penalty is quadratic, so that its products are exact, too.
        known = tuple(
            (direction, scale * product + penalty @ direction)
            for direction, product in curvature.products(state)
        )
        hessian = scale * curvature.hessian(state) + penalty
        factor = cho_factor(hessian, overwrite_a=True, check_finite=False)
        return InverseCurvature(lambda v: cho_solve(factor, v, check_finite=False), known)


def rows_per_weight(state: ClassLossState) -> float:
    """Effective rows (Σw)²/Σw² divided by Σw: rows of equal weight count fully."""
    return float(state.weight / state.weight2) if state.weight2 else 0.0


def _class_inverse(blocks: Floats, precisions: Floats) -> Callable[[Floats], Floats]:
    """Product with the inverses of the blocks of each class."""
    shape = precisions.shape
    # A view of the diagonals, to which the penalty is added in place.
    diagonals = np.einsum("kii->ki", blocks)
    diagonals += precisions.T
    inverses = np.linalg.inv(blocks)

    def times(vector: Floats) -> Floats:
        return np.einsum("kij,jk->ik", inverses, vector.reshape(shape)).ravel()

    return times
