"""Recalibration of many classes by linear maps of log-probabilities, with shrunk coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field

from calibscale.array_types import Floats
from calibscale.errors import require
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.class_losses import (
    ClassLossState,
    MapInputs,
    Shrinkage,
    predicted,
    slope_places,
    slopes_of,
)
from calibscale.recalibration.class_map_search import ClassMapSearch, rows_per_weight
from calibscale.recalibration.logit_maps import LogitMap
from calibscale.recalibration.onnx_graphs import OnnxScore, linear_map
from calibscale.recalibration.parametric import (
    CLIP,
    JUDGING_STEP,
    LAST_STEP,
    FittedSlope,
    TemperedLoss,
    clip_note,
    slope_or_none,
)
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Measured,
    NonNegative,
    Read,
    RecalibrationMethod,
    StoredFit,
)

_MAX_MIXED = 256  # classes of a matrix: 65,000 coefficients


class _ClassMap(RecalibrationMethod):
    """Maximum penalised likelihood fit of p' = softmax(η), with η linear in log-probabilities."""

    clip: float
    two_classes: ClassVar[bool] = False
    centred: ClassVar[bool] = True

    @classmethod
    def unsuitable(cls, classes: int) -> str | None:
        if classes == 2:
            return "is for three classes or more; there are 2. Platt or beta is for two"
        return super().unsuitable(classes)

    @property
    def inputs(self) -> MapInputs:
        return MapInputs(self.clip, self.centred)

    def coefficient_rows(self, classes: int) -> int:
        """Number of coefficients of each class."""
        return 2

    def _fields(
        self,
        shrinkage: Shrinkage,
        setup: DataProfile,
        read: Read,
        near: FittedRecalibrator | None = None,
    ) -> dict[str, Any]:
        """Fields of a `ClassMapFit` with this shrinkage, by some passes.

        They are those of a fit that judges the fit `near`, at which the search starts.
        """
        K = setup.classes
        rows = self.coefficient_rows(K)
        search = ClassMapSearch(self.name, self.inputs, rows, shrinkage, setup, read)
        if near is None:
            coefficients = search.minimum()
        else:
            assert isinstance(near, ClassMapFit)
            coefficients = search.minimum_near(near.coefficients)
        covariance = search.covariance(coefficients)
        errors: Floats = np.zeros((0, 0))
        common_error = math.nan
        if covariance is not None:
            errors = np.sqrt(np.diag(covariance).clip(0.0)).reshape(coefficients.shape)
            common_error = _common_error(shrinkage, coefficients, covariance)
        # The last pass was before the last step, which changes the loss by far less than rounding.
        state, result = search.last
        return {
            "coefficients": coefficients,
            "errors": errors,
            "common_error": common_error,
            "log_loss": float(state.loss / state.weight),
            "method": self,
            "classes": K,
            "counts": result.counts,
            "passes": search.passes,
            "notes": _notes(self.clip, shrinkage, coefficients, state, result.counts),
        }


@dataclass(frozen=True)
class _SpreadMap(_ClassMap):
    """Map with the standard deviations of its coefficients as settings."""

    slope_spread: float = 0.2
    intercept_spread: float = 0.5
    clip: float = CLIP

    def __post_init__(self) -> None:
        _check_clip(self.clip)
        for name in ("slope_spread", "intercept_spread", "off_diagonal_spread"):
            spread = getattr(self, name, 1.0)
            # With hardly any shrinkage, rounding moves coefficients that rows do not determine.
            require(1e-6 <= spread <= 100.0, f"{name} must be in 1e-6..100", spread)

    @property
    def shrinkage(self) -> Shrinkage:
        off_diagonal = getattr(self, "off_diagonal_spread", 1.0)
        return Shrinkage(self.slope_spread, self.intercept_spread, off_diagonal)

    @classmethod
    def fit_class(cls) -> type[ClassMapFit]:
        return ClassMapFit

    def _fit(self, setup: DataProfile, read: Read) -> ClassMapFit:
        return ClassMapFit(**self._fields(self.shrinkage, setup, read))

    def _fit_near(self, setup: DataProfile, read: Read, near: FittedRecalibrator) -> ClassMapFit:
        return ClassMapFit(**self._fields(self.shrinkage, setup, read, near))


def _check_clip(clip: float) -> None:
    require(0 < clip < 0.5, "clip must be in (0, 0.5)", clip)


@dataclass(frozen=True)
class VectorScaling(_SpreadMap):
    """Vector scaling p' = softmax(a ∘ z + b), with a slope and an intercept for each class.

    For three classes or more [Guo, Pleiss, Sun & Weinberger, ICML 2017, §4.2].  z are the logits of
    a row minus their mean, or logarithms of probabilities minus theirs, which is the same.  The fit
    minimises Σw·(−log p'_y) of (Σw)²/Σw² rows of mean weight 1, plus ½ Σ (deviation / spread)²:
    slopes are shrunk towards a common slope, the inverse of a temperature, and intercepts towards
    0.  So classes with few rows have nearly the map of a temperature, and classes with many rows
    a map of their own.  A minimum exists whatever the rows.  The common slope deviates from 1 with
    a spread of 1.  So it is the mean of the slopes, moved towards 1 by the share 1 / (1 + K /
    slope_spread²) of their distance, which is 1.3 % for three classes.  It may therefore lie above
    all slopes, where logits are so large that the slopes are near 0.

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


class _MixedMap(_ClassMap):
    """Map in which each class depends on the logits of all classes."""

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
class _MixedSpreadMap(_MixedMap, _SpreadMap):
    """Map of all logits, with the standard deviations of its coefficients as settings."""

    off_diagonal_spread: float = 0.1


@dataclass(frozen=True)
class MatrixScaling(_MixedSpreadMap):
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
    StructuredScaling : The same map, shrunk more for more classes.

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
class DirichletCalibration(_MixedSpreadMap):
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


@dataclass(frozen=True)
class StructuredScaling(_MixedMap):
    """Structured matrix scaling p' = softmax((I + V + M) z / T + b), shrunk towards a temperature.

    For 3 to 256 classes, or any number from 3 without a matrix [Berta, Holzmüller, Jordan & Bach,
    AISTATS 2026, arXiv 2511.03685].  V is diagonal, M has the entries off the diagonal, and z are
    centred logits as in `VectorScaling`.  The temperature T has the smallest log loss of softmax(z
    / T), without shrinkage.  It is fitted first, and kept.  With n rows of mean weight 1,
    V, M and b then minimise

        mean(−log p'_y) + (K/n) (λ_b ‖b‖² + λ_V ‖V‖² + λ_M (K − 1) ‖M‖²).

    So the shrinkage grows with the number K of classes, most of all of the K(K − 1) entries of M,
    and fades with more rows.  In terms of `MatrixScaling`, intercepts have the spread 1/√(2 K λ_b),
    slopes the spread 1/(T √(2 K λ_V)) about 1/T, and the other entries the spread
    1/(T √(2 K (K − 1) λ_M)).  With weights, n is the effective number (Σw)²/Σw² of rows.

    Where rows determine no temperature, because all of them are right or labels agree with the
    predictions by chance, T is 1 and a note says so.  Standard errors are for a known T.

    Parameters
    ----------
    intercept_strength, slope_strength, off_diagonal_strength : float
        λ_b, λ_V and λ_M.
    matrix : bool
        Whether there are entries off the diagonal.  False is structured vector scaling (SVS).
    clip : float
        See `VectorScaling`.

    See Also
    --------
    MatrixScaling : The same map, with a shrinkage that does not depend on the number of classes.
    calibscale.recalibration.parametric.TemperatureScaling : The map that this one is shrunk to.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.class_maps import StructuredScaling
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(4000, 3))
    >>> truth = np.exp(logits + [0.5, 0, -0.5])
    >>> truth /= truth.sum(axis=1, keepdims=True)
    >>> labels = (truth.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    >>> fitted = StructuredScaling().fit(calibscale.from_arrays(logits=logits, labels=labels))
    >>> fitted.intercepts.round(1)
    array([ 0.5,  0. , -0.5])
    """

    intercept_strength: float = 1.0
    slope_strength: float = 1.0
    off_diagonal_strength: float = 1.0
    matrix: bool = True
    clip: float = CLIP
    name: ClassVar[str] = "structured"

    def __post_init__(self) -> None:
        _check_clip(self.clip)
        for name in ("intercept_strength", "slope_strength", "off_diagonal_strength"):
            strength = getattr(self, name)
            # Within these limits, spreads are neither so small nor so large that rounding matters.
            require(1e-4 <= strength <= 1e4, f"{name} must be in 1e-4..1e4", strength)

    def unsuitable_with_settings(self, classes: int) -> str | None:
        # Without entries off the diagonal, there is no matrix that could be too large.
        return self.unsuitable(classes) if self.matrix else VectorScaling.unsuitable(classes)

    def coefficient_rows(self, classes: int) -> int:
        return classes + 1 if self.matrix else 2

    def shrinkage(self, classes: int, slope: float) -> Shrinkage:
        """Shrinkage of K classes towards a slope, the inverse of a temperature."""
        # λ ‖v‖² is ½ ‖v‖² / spread² for these spreads, in units of one row.
        each = 2.0 * classes
        of_others = each * (classes - 1) * self.off_diagonal_strength
        return Shrinkage(
            slope_spread=slope / math.sqrt(each * self.slope_strength),
            intercept_spread=1.0 / math.sqrt(each * self.intercept_strength),
            off_diagonal_spread=slope / math.sqrt(of_others),
            common_spread=0.0,
            centre=slope,
        )

    @classmethod
    def fit_class(cls) -> type[StructuredFit]:
        return StructuredFit

    def _fit(self, setup: DataProfile, read: Read) -> StructuredFit:
        return self._shrunk(setup, read, None)

    def _fit_near(self, setup: DataProfile, read: Read, near: FittedRecalibrator) -> StructuredFit:
        assert isinstance(near, StructuredFit)
        return self._shrunk(setup, read, near)

    def _shrunk(self, setup: DataProfile, read: Read, near: StructuredFit | None) -> StructuredFit:
        """Fit of the temperature, and of the map that is shrunk towards it."""
        common = self._common_slope(read, near)
        slope = 1.0 if common is None else common.theta
        fitted = self._fields(self.shrinkage(setup.classes, slope), setup, read, near)
        if common is None:
            fitted["passes"] += 1  # of the search, which ended without a temperature
            fitted["notes"] = (_NO_TEMPERATURE, *fitted["notes"])
            fitted["common_error"] = math.nan
        else:
            fitted["passes"] += common.passes
            fitted["common_error"] = common.standard_error
        return StructuredFit(temperature=1.0 / slope, **fitted)

    def _common_slope(self, read: Read, near: StructuredFit | None) -> FittedSlope | None:
        """One slope of the inputs of the map, which may be clipped, or None."""
        start = 1.0 if near is None else near.common_slope
        last_step = LAST_STEP if near is None else JUDGING_STEP
        return slope_or_none(TemperedLoss(start, self.clip, clips_logits=True), read, last_step)


_NO_TEMPERATURE = (
    "the rows determine no temperature: the map is shrunk towards the predictions as they are"
)


# ---------------------------------------------------------------- results of a search


def _common_error(shrinkage: Shrinkage, coefficients: Floats, covariance: Floats) -> float:
    """Standard error of the common slope, a sum of the slopes."""
    K = coefficients.shape[1]
    slopes = slope_places(coefficients.shape)
    # The common slope is an equally weighted sum of the slopes, plus a constant.
    variance = covariance[np.ix_(slopes, slopes)].sum()
    return shrinkage.common_weights(K)[0] * math.sqrt(max(variance, 0.0))


def _notes(
    clip: float,
    shrinkage: Shrinkage,
    coefficients: Floats,
    state: ClassLossState,
    counts: RowCounts,
) -> tuple[str, ...]:
    """Sentences on clipped rows, and on classes with a map that shrinkage determines."""
    notes = list(clip_note(float(state.clipped), "whose label has", clip))
    K = len(state.labels)
    empty = int(np.count_nonzero(state.labels == 0.0))
    # Precision of a slope by its rows alone, which is compared with the precision of its prior.
    information = rows_per_weight(state) * state.information[0]
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
        # The state of a subclass has further fields, which the end of this function reads.
        stored = cls.stored.read(state)
        assert isinstance(stored, StoredClassMap)
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
    def common_slope(self) -> float:
        """Slope that the slopes of all classes are shrunk to.

        It is the mean of the slopes, moved towards 1, and may lie outside of their range.
        """
        assert isinstance(self.method, _SpreadMap)
        return self.method.shrinkage.common(self.coefficients)

    @property
    def parameters(self) -> dict[str, float]:
        parameters = {
            "common_slope": self.common_slope,
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


class StoredStructuredMap(StoredClassMap):
    """State of `StructuredFit`."""

    temperature: Annotated[float, Field(gt=0.0)]


@dataclass(frozen=True, eq=False, kw_only=True)
class StructuredFit(ClassMapFit):
    """A `ClassMapFit` that is shrunk towards one `temperature`."""

    method: StructuredScaling
    temperature: float
    stored: ClassVar[type[StoredFit]] = StoredStructuredMap

    @property
    def common_slope(self) -> float:
        return 1.0 / self.temperature
