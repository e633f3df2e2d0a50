"""Recalibration of many classes by linear maps of log-probabilities: vector, matrix, Dirichlet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field
from scipy.linalg import cho_factor, cho_solve

from calibscale.array_types import Floats
from calibscale.errors import require
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
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
    predicted,
    slope_places,
    slopes_of,
    with_slope,
)
from calibscale.recalibration.descent import InverseCurvature, minimised
from calibscale.recalibration.logit_maps import LogitMap
from calibscale.recalibration.onnx_graphs import OnnxScore, linear_map
from calibscale.recalibration.parametric import CLIP, clip_note, not_converged
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Measured,
    NonNegative,
    Read,
    RecalibrationMethod,
    StoredFit,
)
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.statistic import Statistic, weights_of

_SAMPLED_VALUES = 2**24  # of the rows by which a fit begins: 64 MB in float32
_SAMPLED_ROWS = 2**15
# Slopes and intercepts up to which their second derivatives are a matrix, of 32 MB.  With more, the
# derivatives by coefficients of different classes are left out.
_MAX_JOINT = 2048
_MAX_ERRORS = 512  # coefficients with exact second derivatives, and with standard errors
_MAX_MIXED = 256  # classes of a matrix: 65,000 coefficients
# Of a coefficient, above the last step of each round.  Second derivatives change with the
# coefficients: after a long step, they are computed again in the next round.
_PRECISIONS = (2.0, 0.5, 0.05, 1e-9)
# Of a fit that judges another one, whose coefficients have standard errors far above it.
_JUDGING_PRECISIONS = (2.0, 0.05, 1e-4)
_SAMPLE_PRECISION = 1e-4  # the fit to a sample is only a start
_MAX_CALLS = 200
_SLOPES = 2.0 ** np.arange(-6, 4)  # common slopes, of which the best for the sample is a start


@dataclass(frozen=True)
class _ClassMap(RecalibrationMethod):
    """Maximum penalised likelihood fit of p' = softmax(η), with η linear in log-probabilities."""

    slope_spread: float = 0.2
    intercept_spread: float = 0.5
    clip: float = CLIP
    two_classes: ClassVar[bool] = False
    centred: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.clip < 0.5, "clip must be in (0, 0.5)", self.clip)
        for name in ("slope_spread", "intercept_spread", "off_diagonal_spread"):
            spread = getattr(self, name, 1.0)
            # With hardly any shrinkage, rounding moves coefficients that rows do not determine.
            require(1e-6 <= spread <= 100.0, f"{name} must be in 1e-6..100", spread)

    @classmethod
    def unsuitable(cls, classes: int) -> str | None:
        if classes == 2:
            return "is for three classes or more; there are 2. Platt or beta is for two"
        return super().unsuitable(classes)

    @property
    def inputs(self) -> MapInputs:
        return MapInputs(self.clip, self.centred)

    @property
    def shrinkage(self) -> Shrinkage:
        off_diagonal = getattr(self, "off_diagonal_spread", 1.0)
        return Shrinkage(self.slope_spread, self.intercept_spread, off_diagonal)

    def coefficient_rows(self, classes: int) -> int:
        """Number of coefficients of each class."""
        return 2

    @classmethod
    def fit_class(cls) -> type[ClassMapFit]:
        return ClassMapFit

    def _fit(self, setup: DataProfile, read: Read) -> ClassMapFit:
        search = _Search(self, setup, read)
        return self._fitted(setup, search, search.minimum())

    def _fit_near(self, setup: DataProfile, read: Read, near: FittedRecalibrator) -> ClassMapFit:
        assert isinstance(near, ClassMapFit)
        search = _Search(self, setup, read)
        return self._fitted(setup, search, search.minimum_near(near.coefficients))

    def _fitted(self, setup: DataProfile, search: _Search, coefficients: Floats) -> ClassMapFit:
        errors: Floats = np.zeros((0, 0))
        common_error = math.nan
        # Beyond, the covariance would have more entries than a pass can sum in reasonable time.
        if coefficients.size <= _MAX_ERRORS:
            covariance = search.covariance(coefficients)
            errors = np.sqrt(np.diag(covariance).clip(0.0)).reshape(coefficients.shape)
            common_error = _common_error(self.shrinkage, coefficients, covariance)
        # The last pass was before the last step, which changes the loss by far less than rounding.
        state, result = search.last
        return ClassMapFit(
            coefficients=coefficients,
            errors=errors,
            common_error=common_error,
            log_loss=float(state.loss / state.weight),
            method=self,
            classes=setup.classes,
            counts=result.counts,
            passes=search.passes,
            notes=_notes(self, coefficients, state, result.counts),
        )


@dataclass(frozen=True)
class VectorScaling(_ClassMap):
    """Vector scaling p' = softmax(a ∘ z + b), with a slope and an intercept for each class.

    For three classes or more [Guo, Pleiss, Sun & Weinberger, ICML 2017, §4.2].  z are the logits of
    a row minus their mean, or logarithms of probabilities minus theirs, which is the same.  The fit
    minimises Σw·(−log p'_y) of (Σw)²/Σw² rows of mean weight 1, plus ½ Σ (deviation / spread)²:
    slopes are shrunk towards a common slope, the inverse of a temperature, and intercepts towards
    0.  So classes with few rows have nearly the map of a temperature, and classes with many rows
    a map of their own.  A minimum exists whatever the rows.  The common slope deviates from 1 with
    a spread of 1, which matters only where labels do not determine it.

    Parameters
    ----------
    slope_spread : float
        Standard deviation of slopes about the common slope, by which they are shrunk.  The default
        spreads were chosen by the log loss of half of the rows of networks for CIFAR-10 and
        CIFAR-100, with fits to 5,000 rows.
    intercept_spread : float
        Standard deviation of intercepts about 0.
    clip : float
        Probabilities below `clip` are raised to it before their logarithms are taken, also if they
        are stored as logits.

    See Also
    --------
    MatrixScaling, DirichletCalibration : Maps in which each class depends on all logits.
    calibscale.recalibration.parametric.TemperatureScaling : One slope of all classes.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.class_maps import VectorScaling
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(4000, 3))
    >>> truth = np.exp(logits + [0.5, 0, -0.5])
    >>> truth /= truth.sum(axis=1, keepdims=True)
    >>> labels = (truth.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    >>> fitted = VectorScaling().fit(calibscale.from_arrays(logits=logits, labels=labels))
    >>> fitted.intercepts.round(1)
    array([ 0.5,  0. , -0.5])
    """

    name: ClassVar[str] = "vector"


@dataclass(frozen=True)
class _MixedMap(_ClassMap):
    """Map in which each class depends on the logits of all classes."""

    off_diagonal_spread: float = 0.1

    @classmethod
    def unsuitable(cls, classes: int) -> str | None:
        if classes > _MAX_MIXED:
            return (
                f"is for at most {_MAX_MIXED} classes, as its matrix has K² entries; there are "
                f"{classes:,}. Vector is for any number"
            )
        return super().unsuitable(classes)

    def coefficient_rows(self, classes: int) -> int:
        return classes + 1


@dataclass(frozen=True)
class MatrixScaling(_MixedMap):
    """Matrix scaling p' = softmax(W z + b), shrunk off the diagonal (ODIR).

    For 3 to 256 classes [Guo et al. 2017, §4.2; Kull et al., NeurIPS 2019, §4.2].  z, the loss, and
    the shrinkage of the diagonal of W and of b are as in `VectorScaling`.  Entries off the diagonal
    are shrunk towards 0.  In the paper, off-diagonal and intercept regularisation (ODIR) adds
    λ/(K(K − 1)) Σ_{j≠k} W_kj² + μ/K Σ b_k² to the mean log loss of n rows: here λ = K(K − 1)/(2 n
    off_diagonal_spread²) and μ = K/(2 n intercept_spread²), so that more rows are shrunk less.

    Parameters
    ----------
    slope_spread, intercept_spread, clip
        See `VectorScaling`.
    off_diagonal_spread : float
        Standard deviation of the entries off the diagonal about 0.

    See Also
    --------
    DirichletCalibration : The same map of log-probabilities that are not centred.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.class_maps import MatrixScaling
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> source = calibscale.from_arrays(logits=logits, labels=rng.integers(0, 3, 300))
    >>> MatrixScaling().fit(source).matrix.shape
    (3, 3)
    """

    name: ClassVar[str] = "matrix"


@dataclass(frozen=True)
class DirichletCalibration(_MixedMap):
    """Dirichlet calibration p' = softmax(W log q + b), shrunk off the diagonal (ODIR).

    For 3 to 256 classes [Kull et al., NeurIPS 2019, §4.1].  It is right if the predictions q of the
    rows of each label have a Dirichlet distribution.  Unlike the inputs of `MatrixScaling`,
    log-probabilities are not centred, so that the map has other functions of q among those with
    little shrinkage.  Settings and shrinkage are the same.

    Parameters
    ----------
    slope_spread, intercept_spread, off_diagonal_spread, clip
        See `MatrixScaling`.

    See Also
    --------
    MatrixScaling : The same map of centred logits.
    calibscale.recalibration.logistic.Beta : Dirichlet calibration of two classes.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.class_maps import DirichletCalibration
    >>> rng = np.random.default_rng(0)
    >>> q = rng.dirichlet(np.ones(3), 300)
    >>> source = calibscale.from_arrays(probabilities=q, labels=rng.integers(0, 3, 300))
    >>> DirichletCalibration().fit(source).intercepts.shape
    (3,)
    """

    name: ClassVar[str] = "dirichlet"
    centred: ClassVar[bool] = False


# ---------------------------------------------------------------- search


@dataclass
class _Search:
    """Search for the coefficients, first by a sample of the rows, then by passes over all."""

    method: _ClassMap
    setup: DataProfile
    read: Read
    passes: int = 0

    def __post_init__(self) -> None:
        self._sampled_rows = min(_SAMPLED_ROWS, max(1, _SAMPLED_VALUES // self.setup.classes))
        self._share = min(1.0, self._sampled_rows / self.setup.rows)
        self._shape = (self.method.coefficient_rows(self.setup.classes), self.setup.classes)
        self._last: tuple[ClassLossState, PassResult] | None = None

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
                raise not_converged(self.method.name, self.passes)
            near, last_step = best.point, best.last_step
        return near.reshape(self._shape)

    def covariance(self, coefficients: Floats) -> Floats:
        """Sandwich covariance of the coefficients [White 1982], by one pass."""
        statistic = ClassCurvature(coefficients, self.method.inputs)
        result = self.read(statistic)
        self.passes += 1
        state = result.groups[None][statistic]
        # The penalty is in units of effective rows, as the loss of `_penalised`.
        scale = _rows_per_weight(self.last[0])
        hessian = scale * state.hessian + self.method.shrinkage.hessian(self._shape)
        inverse = np.linalg.inv(hessian)
        return inverse @ (scale**2 * state.squares) @ inverse

    def _start(self) -> Floats:
        """Map of the temperature that suits the sample best, among a few."""
        # The slope 1 is first, so that equal losses keep the predictions.
        maps = [with_slope(float(slope), *self._shape) for slope in (1.0, *_SLOPES)]
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
        return value, self._joint_inverse(curvature, derivatives, _rows_per_weight(state))

    def _objective(self, point: Floats, *further: Statistic) -> tuple[float, Floats]:
        """Penalised loss of all rows, and its gradient, by one pass with further statistics."""
        coefficients = point.reshape(self._shape)
        statistic = ClassLoss(coefficients, self.method.inputs)
        result = self.read(statistic, *further)
        self.passes += 1
        state: ClassLossState = result.groups[None][statistic]
        self._last = state, result
        return self._penalised(coefficients, state)

    def _sample_objective(self, point: Floats) -> tuple[float, Floats]:
        """Penalised loss of the sample, and its gradient."""
        coefficients = point.reshape(self._shape)
        statistic = ClassLoss(coefficients, self.method.inputs)
        state = statistic.zero(self.setup.classes)
        for chunk in self._sample:
            state = statistic.accumulate(state, chunk)
        return self._penalised(coefficients, state)

    def _penalised(self, coefficients: Floats, state: ClassLossState) -> tuple[float, Floats]:
        shrinkage = self.method.shrinkage
        scale = _rows_per_weight(state)
        value = scale * float(state.loss) + shrinkage.penalty(coefficients)
        gradient = scale * state.gradient + shrinkage.gradient(coefficients)
        return value, gradient.ravel()

    def _curvature(self, coefficients: Floats) -> SecondDerivatives | None:
        """Statistic of all second derivatives, or None if they are too many."""
        if coefficients.size <= _MAX_ERRORS:
            return ClassCurvature(coefficients, self.method.inputs)
        if len(coefficients) == 2 and coefficients.size <= _MAX_JOINT:
            return ClassCouplings(coefficients, self.method.inputs)
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
        loss = ClassLoss(coefficients, self.method.inputs)
        blocks = np.zeros((K, r, r))
        for chunk in self._sample:
            blocks += scale * class_hessians(loss, chunk)
        precisions = self.method.shrinkage.precisions(self._shape)
        return InverseCurvature(_class_inverse(blocks, precisions))

    def _joint_inverse(
        self, curvature: SecondDerivatives, state: Any, scale: float
    ) -> InverseCurvature:
        """Inverse of the second derivatives (rK, rK) of the scaled loss and the penalty."""
        penalty = self.method.shrinkage.hessian(self._shape)
        # The penalty is quadratic, so that its products are exact, too.
        known = tuple(
            (direction, scale * product + penalty @ direction)
            for direction, product in curvature.products(state)
        )
        hessian = scale * curvature.hessian(state) + penalty
        factor = cho_factor(hessian, overwrite_a=True, check_finite=False)
        return InverseCurvature(lambda v: cho_solve(factor, v, check_finite=False), known)


def _rows_per_weight(state: ClassLossState) -> float:
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


def _common_error(shrinkage: Shrinkage, coefficients: Floats, covariance: Floats) -> float:
    """Standard error of the common slope, a sum of the slopes."""
    K = coefficients.shape[1]
    slopes = slope_places(coefficients.shape)
    # The common slope is an equally weighted sum of the slopes, plus a constant.
    variance = covariance[np.ix_(slopes, slopes)].sum()
    return shrinkage.common_weights(K)[0] * math.sqrt(max(variance, 0.0))


def _notes(
    method: _ClassMap, coefficients: Floats, state: ClassLossState, counts: RowCounts
) -> tuple[str, ...]:
    """Sentences on clipped rows, and on classes with a map that shrinkage determines."""
    notes = list(clip_note(float(state.clipped), "whose label has", method.clip))
    shrinkage = method.shrinkage
    K = len(state.labels)
    empty = int(np.count_nonzero(state.labels == 0.0))
    # Precision of a slope by its rows alone, which is compared with the precision of its prior.
    information = _rows_per_weight(state) * state.information[0]
    shrunk = int(np.count_nonzero(information < shrinkage.slope_spread**-2))
    slope = shrinkage.common(coefficients)
    if shrunk:
        notes.append(
            f"the rows say less than the shrinkage of the slopes of {shrunk:,} of {K:,} classes: "
            f"they are near the common slope {slope:.3g} of a temperature"
        )
    if empty:
        notes.append(
            f"{empty:,} of {K:,} classes have no labelled row: shrinkage alone keeps their "
            "probabilities above 0"
        )
    if counts.used < coefficients.size:
        notes.append(
            f"{counts.used:,} rows are fewer than the {coefficients.size:,} coefficients, which "
            "shrinkage towards the map of a temperature determines"
        )
    return tuple(notes)


# ---------------------------------------------------------------- fits

_Coefficient = Annotated[float, Field(ge=-1e150, le=1e150)]


class StoredClassMap(StoredFit):
    """State of `ClassMapFit`."""

    coefficients: list[list[_Coefficient]]
    errors: list[list[NonNegative]]
    common_error: Measured
    log_loss: Measured


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassMapFit(FittedRecalibrator):
    """p' = softmax(η) with the `coefficients` (r, K), see `class_losses`, and their `errors`.

    `errors` is empty for more than 512 coefficients, and `common_error` is then not known.
    """

    method: _ClassMap
    coefficients: Floats
    errors: Floats
    common_error: float
    log_loss: float
    stored: ClassVar[type[StoredFit]] = StoredClassMap

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> Self:
        stored = StoredClassMap.read(state)
        classes = common["classes"]
        r = common["method"].coefficient_rows(classes)
        tables = {"coefficients": stored.coefficients, "errors": stored.errors}
        for name, table in tables.items():
            # Large fits have no standard errors.
            if name == "errors" and not table:
                continue
            lengths = {len(row) for row in table}
            require(
                len(table) == r and lengths == {classes},
                f"state.{name} must have {r} rows of {classes} numbers",
            )
        return super().restored(state, **common)

    @property
    def slopes(self) -> Floats:
        """Slope of each class by its own input (K,), the diagonal of a matrix."""
        # A copy, because the view would let a caller change the fit.
        return slopes_of(self.coefficients).copy()

    @property
    def intercepts(self) -> Floats:
        """Intercept of each class (K,)."""
        return self.coefficients[-1]

    @property
    def matrix(self) -> Floats:
        """Matrix W (K, K) of η = W z + b."""
        if len(self.coefficients) == 2:
            return np.diag(self.coefficients[0])
        return self.coefficients[:-1].T

    @property
    def parameters(self) -> dict[str, float]:
        parameters = {
            "common_slope": self.method.shrinkage.common(self.coefficients),
            "smallest_slope": float(self.slopes.min()),
            "largest_slope": float(self.slopes.max()),
            "smallest_intercept": float(self.intercepts.min()),
            "largest_intercept": float(self.intercepts.max()),
        }
        # The matrix itself is in the state, as it would fill pages.
        if len(self.coefficients) > 2:
            others = self.coefficients[:-1][~np.eye(self.classes, dtype=bool)]
            parameters["largest_off_diagonal"] = float(np.abs(others).max())
        return {**parameters, "log_loss_after": self.log_loss}

    @property
    def standard_errors(self) -> dict[str, float]:
        return {"common_slope": self.common_error} if math.isfinite(self.common_error) else {}

    def predictions(self, chunk: Chunk) -> Floats:
        return predicted(self.method.inputs, chunk, self.coefficients)

    @property
    def logit_map(self) -> LogitMap:
        inputs = self.method.inputs
        weight = self.coefficients[:-1]
        if len(weight) == 1:  # a slope of each class
            (weight,) = weight
        return LogitMap(weight, self.intercepts, inputs.lowest, inputs.centred)

    def onnx(self, score: OnnxScore) -> str:
        inputs = score.log_probabilities(self.method.inputs.clip)
        if self.method.inputs.centred:
            inputs = score.centred(inputs)
        return score.softmax(linear_map(score, inputs, self.coefficients))
