"""Recalibration by at most three numbers: none, temperature, Platt scaling and beta calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import expit

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Measured,
    NonNegative,
    Read,
    Recalibrator,
    StoredFit,
)
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.statistic import Statistic, weighted_sum

CLIP = 2.0**-53  # 1 − p of the largest float64 below 1: log-odds of ±36.7

_PRECISION = 1e-8  # of a parameter, above the last step
_MAX_PASSES = 60  # passes of Newton's method, after which an error is raised
# A step changes θ by at most this factor: far from the root, the curvature tells little.
_LARGEST_STEP = math.log(16.0)
_MASKED = -1e4  # logit of a masked class


def clipped(chunk: Chunk, clip: float) -> Floats:
    """Logits, or logarithms of probabilities raised to at least `clip`, with maximum 0 (c, K)."""
    if chunk.kind == "logits":
        z = chunk.values.astype(np.float64)
    else:
        z = np.log(np.maximum(chunk.q, clip))
    z -= z.max(axis=1, keepdims=True)
    z[np.isneginf(z)] = _MASKED  # its product with a probability of 0 is 0
    return z


def _below(chunk: Chunk, clip: float) -> NDArray[np.bool_]:
    """Whether each entry of q was clipped (c, K)."""
    if chunk.kind == "logits":
        return np.zeros(chunk.values.shape, bool)
    return chunk.q < clip


# ---------------------------------------------------------------- no recalibration


@dataclass(frozen=True)
class Identity(Recalibrator):
    """Predictions as they are, a candidate where a method is chosen."""

    name: ClassVar[str] = "identity"
    two_classes: ClassVar[bool] = False

    @classmethod
    def fit_class(cls) -> type[IdentityFit]:
        return IdentityFit

    def _fit(self, setup: DataProfile, read: Read) -> IdentityFit:
        return IdentityFit(method=self, classes=setup.classes, counts=read().counts, passes=1)


class StoredIdentity(StoredFit):
    """State of `IdentityFit`, which has no numbers."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentityFit(FittedRecalibrator):
    """Predictions as they are, as probabilities."""

    stored: ClassVar[type[StoredFit]] = StoredIdentity

    @property
    def parameters(self) -> dict[str, float]:
        return {}

    def probabilities(self, chunk: Chunk) -> Floats:
        return chunk.q


# ---------------------------------------------------------------- temperature


class TemperState(NamedTuple):
    """Sums over rows, each a 0-d array.

    Σw, the log loss of softmax(θz), its first two derivatives by θ and the sum of the squares of
    the first one of each row, the limits of the slope at θ → 0 and θ → ∞, and the number of rows
    with a label of a probability below the clip.
    """

    weight: Floats
    loss: Floats
    slope: Floats
    curvature: Floats
    squares: Floats
    slope_zero: Floats
    slope_infinity: Floats
    clipped: Floats


@dataclass(frozen=True)
class TemperedLoss(Statistic):
    """Σ w (log Σ_k exp θz_k − θz_y) and its derivatives, convex in θ, the inverse temperature."""

    theta: float
    clip: float = CLIP

    def zero(self, classes: int) -> TemperState:
        return TemperState(*(np.zeros(()) for _ in TemperState._fields))

    def accumulate(self, state: TemperState, chunk: Chunk) -> TemperState:
        z, rows = clipped(chunk, self.clip), np.arange(len(chunk))
        label_logits = z[rows, chunk.labels]
        e = np.exp(self.theta * z)
        total = e.sum(axis=1)
        e *= z / total[:, None]  # in this order: e is 0 where the square of z overflows
        # E_θ[z] and Var_θ[z] under softmax(θz): derivatives of log Σ exp θz by θ.
        mean = e.sum(axis=1)
        spread = np.einsum("ij,ij->i", e, z) - mean * mean
        w = chunk.weights
        state.weight[...] += len(chunk) if len(w) == 0 else w.sum()
        state.loss[...] += weighted_sum(np.log(total) - self.theta * label_logits, w)
        state.slope[...] += weighted_sum(mean - label_logits, w)
        state.curvature[...] += weighted_sum(spread, w)
        with np.errstate(over="ignore"):
            state.squares[...] += weighted_sum((mean - label_logits) ** 2, w * w)
        # The slope is Σw(E_θ[z] − z_y).  At θ = 0 the mean is over equal probabilities, and at θ =
        # ∞ it is the largest z, which is 0.
        state.slope_zero[...] += weighted_sum(z.mean(axis=1) - label_logits, w)
        state.slope_infinity[...] += weighted_sum(-label_logits, w)
        state.clipped[...] += _below(chunk, self.clip)[rows, chunk.labels].sum()
        return state


@dataclass(frozen=True)
class TemperatureScaling(Recalibrator):
    """Maximum-likelihood fit of q' = softmax(z / T), one T for all classes (Guo et al. 2017).

    Newton's method on log T, one pass per step.

    Parameters
    ----------
    clip : float
        Probabilities below `clip` are raised to it before their logarithms are taken as logits z.
        Stored logits are not clipped.
    """

    clip: float = CLIP
    name: ClassVar[str] = "temperature"
    two_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(0 < self.clip < 0.5, "clip must be in (0, 0.5)", self.clip)

    @classmethod
    def fit_class(cls) -> type[TemperatureFit]:
        return TemperatureFit

    def _fit(self, setup: DataProfile, read: Read) -> TemperatureFit:
        theta, low, high = 1.0, 0.0, math.inf
        for passes in range(1, _MAX_PASSES + 1):
            statistic = TemperedLoss(theta, self.clip)
            result = read(statistic)
            state: TemperState = result.groups[None][statistic]
            if passes == 1:
                _check_temperature(state)
                before = float(state.loss / state.weight)
            slope = float(state.slope)
            # The loss is convex in θ: its minimum lies above θ where the slope is negative, else
            # below.
            low, high = (theta, high) if slope < 0 else (low, theta)
            following = _next_theta(theta, slope, float(state.curvature), low, high)
            step = math.log(following / theta)
            theta = following
            if abs(step) <= _PRECISION:
                notes = _clip_note(float(state.clipped), "whose label has", self.clip)
                # Sandwich standard error of θ [White 1982], times |dT/dθ| = 1/θ² for T = 1/θ.
                curvature = float(state.curvature) or math.nan  # 0: every row is certain
                error = math.sqrt(state.squares) / curvature / theta**2
                return TemperatureFit(
                    temperature=1.0 / theta,
                    standard_error=error,
                    log_loss=(before, float(state.loss / state.weight)),
                    method=self,
                    classes=setup.classes,
                    counts=result.counts,
                    passes=passes,
                    notes=notes,
                )
        raise _not_converged(self.name)


def _next_theta(theta: float, slope: float, curvature: float, low: float, high: float) -> float:
    """Newton step in log θ towards the root of the slope, within the bracket (low, high)."""
    if slope == 0:
        return theta
    # d slope / d log θ = θ · curvature.  Steps in log θ keep θ positive.
    step = -slope / (theta * curvature) if curvature > 0 else -math.copysign(math.inf, slope)
    following = theta * math.exp(min(max(step, -_LARGEST_STEP), _LARGEST_STEP))
    if low < following < high or following == theta:
        return following
    # Outside of the bracket: bisect it in log θ if it has two ends, else take the longest step.
    if low > 0 and high < math.inf:
        return math.sqrt(low * high)
    return theta * math.exp(math.copysign(_LARGEST_STEP, step))


def _check_temperature(state: TemperState) -> None:
    """Require a change of sign of the slope between θ = 0 and ∞."""
    if not (state.slope_infinity > 0 or state.slope_zero < 0):
        raise OptionError("temperature: every prediction is uniform, which no temperature changes")
    if not state.slope_infinity > 0:
        raise OptionError(
            "temperature: every labelled row is classified correctly, so that the log loss keeps "
            "decreasing as the temperature goes to 0; fit to more rows"
        )
    if not state.slope_zero < 0:
        raise OptionError(
            "temperature: labels agree with the predictions no better than by chance, so that "
            "the log loss keeps decreasing as the temperature grows; check that labels and "
            "predictions are of the same rows and classes"
        )


def _clip_note(count: float, subject: str, clip: float) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"{count:.0f} rows {subject} a probability below {clip:.3g}, which it was raised to",)


def _not_converged(name: str) -> OptionError:
    return OptionError(
        f"{name}: no convergence after {_MAX_PASSES} passes, because the labels hardly determine "
        "the fit: fit to more rows"
    )


class StoredTemperature(StoredFit):
    """State of `TemperatureFit`."""

    temperature: Annotated[float, Field(gt=0.0)]
    standard_error: Measured
    log_loss: tuple[Measured, Measured]


@dataclass(frozen=True, eq=False, kw_only=True)
class TemperatureFit(FittedRecalibrator):
    """Softmax of logits divided by `temperature`, with `log_loss` of the rows before and after."""

    method: TemperatureScaling
    temperature: float
    standard_error: float
    log_loss: tuple[float, float]
    stored: ClassVar[type[StoredFit]] = StoredTemperature

    @property
    def parameters(self) -> dict[str, float]:
        before, after = self.log_loss
        return {
            "temperature": self.temperature,
            "log_loss_before": before,
            "log_loss_after": after,
        }

    @property
    def standard_errors(self) -> dict[str, float]:
        return {"temperature": self.standard_error}

    def probabilities(self, chunk: Chunk) -> Floats:
        q = clipped(chunk, self.method.clip)
        q /= self.temperature
        np.exp(q, out=q)
        q /= q.sum(axis=1, keepdims=True)
        return q


# ---------------------------------------------------------------- logistic regression


class LogisticState(NamedTuple):
    """Sums over rows for Newton's method, and extent of the log-odds.

    Σw and the log loss (), its derivatives by the m coefficients, (m,) and (m, m), and the sum of
    the outer squares of the gradients of each row (m, m).  The smallest log-odds and smallest
    −log-odds (columns) where y is 0 and 1 (rows), ∞ if none (2, 2).  The number of rows with p or
    1 − p below the clip ().
    """

    weight: Floats
    loss: Floats
    gradient: Floats
    hessian: Floats
    squares: Floats
    extent: Floats
    clipped: Floats


@dataclass(frozen=True)
class LogisticLoss(Statistic):
    """Σ w (log(1 + e^η) − yη) of η = ⟨coefficients, design⟩, and its derivatives.

    The columns of the `design` are functions of p, see `design_of`.
    """

    coefficients: tuple[float, ...]
    design: tuple[str, ...]
    clip: float = CLIP

    def zero(self, classes: int) -> LogisticState:
        m = len(self.coefficients)
        return LogisticState(
            np.zeros(()),
            np.zeros(()),
            np.zeros(m),
            np.zeros((m, m)),
            np.zeros((m, m)),
            np.full((2, 2), np.inf),
            np.zeros(()),
        )

    def accumulate(self, state: LogisticState, chunk: Chunk) -> LogisticState:
        z = log_odds(chunk, self.clip)
        y = chunk.labels.astype(np.float64)
        w = chunk.weights if len(chunk.weights) else np.ones(len(chunk))
        design = design_of(z, self.design)
        eta = np.array(self.coefficients) @ design
        p, complement = expit(eta), expit(-eta)
        # The log loss log(1 + e^η) − yη is log(1 + e^−η) where y = 1.
        state.weight[...] += w.sum()
        state.loss[...] += w @ np.logaddexp(0.0, np.where(y == 1, -eta, eta))
        slopes = w * np.where(y == 1, -complement, p)
        state.gradient[...] += design @ slopes
        state.squares[...] += (design * slopes**2) @ design.T
        state.hessian[...] += (design * (w * p * complement)) @ design.T
        for label in (0, 1):
            values = z[(y == label) & (w > 0)]
            extents = [values.min(initial=np.inf), (-values).min(initial=np.inf)]
            np.minimum(state.extent[label], extents, out=state.extent[label])
        state.clipped[...] += _below(chunk, self.clip).any(axis=1).sum()
        return state

    def merge(self, a: LogisticState, b: LogisticState) -> LogisticState:
        extent = np.minimum(a.extent, b.extent)
        return super().merge(a, b)._replace(extent=extent)


def log_odds(chunk: Chunk, clip: float) -> Floats:
    # Columns of logits have the same difference as log p and log(1 − p).
    z = clipped(chunk, clip)
    return z[:, 1] - z[:, 0]


def design_of(z: Floats, columns: tuple[str, ...]) -> Floats:
    """Functions of the log-odds z of p (m, c): z, log p, −log(1 − p), or 1."""
    functions = {
        "log_odds": lambda: z,
        "log_p": lambda: -np.logaddexp(0.0, -z),
        "minus_log_rest": lambda: np.logaddexp(0.0, z),
        "one": lambda: np.ones_like(z),
    }
    return np.stack([functions[name]() for name in columns])


class _LogisticFit(NamedTuple):
    """Coefficients and their standard errors (m,), log loss, and the last pass."""

    coefficients: Floats
    errors: Floats
    loss: float
    result: PassResult
    passes: int
    notes: tuple[str, ...]


def _logistic_fit(name: str, read: Read, design: tuple[str, ...], clip: float) -> _LogisticFit:
    """Maximum-likelihood fit by Newton's method, one pass per step."""
    # With coefficients of 0 every row has p' = 1/2, and a finite loss whatever the data.
    best: Floats = np.zeros(len(design))
    step: Floats = np.zeros(len(design))
    min_loss = math.inf
    for passes in range(1, _MAX_PASSES + 1):
        statistic = LogisticLoss(tuple((best + step).tolist()), design, clip)
        result = read(statistic)
        state: LogisticState = result.groups[None][statistic]
        if passes == 1:
            _check_overlap(name, state.extent)
            _check_rank(name, state.hessian)
        loss = float(state.loss / state.weight)
        if loss > min_loss + 1e-12 * abs(min_loss):  # the step is too long
            step = step / 2
            continue
        best, min_loss = best + step, loss
        try:
            step = -np.linalg.solve(state.hessian, state.gradient).astype(np.float64)
        except np.linalg.LinAlgError:  # every row is certain to rounding
            break
        if np.abs(step).max() <= _PRECISION * max(1.0, np.abs(best).max()):
            # Sandwich covariance [White 1982], which does not assume that the model is right.
            inverse = np.linalg.inv(state.hessian)
            errors = np.sqrt(np.diag(inverse @ state.squares @ inverse).clip(0.0))
            notes = _clip_note(float(state.clipped), "have", clip)
            return _LogisticFit(best + step, errors, loss, result, passes, notes)
    raise _not_converged(name)


def _check_overlap(name: str, extent: Floats) -> None:
    """Require overlapping log-odds of both labels, without which the likelihood has no maximum."""
    (low0, high0), (low1, high1) = extent * [1, -1]
    all_equal = low0 == high0 and low1 == high1 and low0 == low1
    if all_equal:
        raise OptionError(f"{name}: all predictions are equal, so that no slope is determined")
    if high0 <= low1 or high1 <= low0:
        raise OptionError(
            f"{name}: the predictions separate the labels, so that the log loss keeps decreasing "
            "as the slope grows; fit to more rows"
        )


def _check_rank(name: str, hessian: Floats) -> None:
    """Require as many different predictions as coefficients."""
    scale = np.sqrt(np.diag(hessian))
    # The diagonal is 1, so that the rank does not depend on the scales of the columns.
    rank = np.linalg.matrix_rank(hessian / np.outer(scale, scale), tol=1e-10)
    if rank < len(hessian):
        raise OptionError(
            f"{name}: {rank} different predictions do not determine {len(hessian)} coefficients; "
            "use a method with fewer, such as temperature"
        )


_Coefficient = Annotated[float, Field(ge=-1e150, le=1e150)]  # times log-odds, it is finite


# ---------------------------------------------------------------- Platt


@dataclass(frozen=True)
class Platt(Recalibrator):
    """Maximum-likelihood fit of p' = sigmoid(a·logit p + b) for two classes (Platt 1999).

    Newton's method, one pass per step.  Labels are 0 and 1, without Platt's smoothing.

    Parameters
    ----------
    clip : float
        p and 1 − p below `clip` are raised to it, so that p = 0 and 1 have finite log-odds (±36.7
        by default).  Log-odds of stored logits are not clipped.
    """

    clip: float = CLIP
    name: ClassVar[str] = "platt"

    def __post_init__(self) -> None:
        require(0 < self.clip < 0.5, "clip must be in (0, 0.5)", self.clip)

    @classmethod
    def fit_class(cls) -> type[PlattFit]:
        return PlattFit

    def _fit(self, setup: DataProfile, read: Read) -> PlattFit:
        fit = _logistic_fit(self.name, read, ("log_odds", "one"), self.clip)
        slope, intercept = fit.coefficients.tolist()
        return PlattFit(
            slope=slope,
            intercept=intercept,
            errors=fit.errors,
            log_loss=fit.loss,
            method=self,
            classes=setup.classes,
            counts=fit.result.counts,
            passes=fit.passes,
            notes=fit.notes,
        )


class StoredPlatt(StoredFit):
    """State of `PlattFit`."""

    slope: _Coefficient
    intercept: _Coefficient
    errors: Annotated[list[NonNegative], Field(min_length=2, max_length=2)]
    log_loss: Measured


@dataclass(frozen=True, eq=False, kw_only=True)
class PlattFit(FittedRecalibrator):
    """p' = sigmoid(slope · logit p + intercept)."""

    method: Platt
    slope: float
    intercept: float
    errors: Floats
    log_loss: float
    stored: ClassVar[type[StoredFit]] = StoredPlatt

    @property
    def parameters(self) -> dict[str, float]:
        return {"slope": self.slope, "intercept": self.intercept, "log_loss_after": self.log_loss}

    @property
    def standard_errors(self) -> dict[str, float]:
        return dict(zip(("slope", "intercept"), self.errors.tolist(), strict=True))

    def probabilities(self, chunk: Chunk) -> Floats:
        eta = self.slope * log_odds(chunk, self.method.clip) + self.intercept
        return np.column_stack([expit(-eta), expit(eta)])


# ---------------------------------------------------------------- beta calibration


_BETA = ("log_p", "minus_log_rest", "one")  # columns of the design of a, b and c


@dataclass(frozen=True)
class Beta(Recalibrator):
    """Beta calibration p' = sigmoid(a·log p − b·log(1 − p) + c) for two classes, with a, b ≥ 0.

    It corrects the two ends of the probabilities by different slopes, as the likelihood ratio of
    scores with Beta distributions does [Kull, Silva Filho & Flach, EJS 11 (2017), eq. 8].  With a =
    b it is `Platt`.  The fit is of maximum likelihood by Newton's method.  If a or b is negative,
    the map would decrease somewhere, and the fit is repeated without it, as its authors do.

    Parameters
    ----------
    clip : float
        See `Platt`.
    """

    clip: float = CLIP
    name: ClassVar[str] = "beta"

    def __post_init__(self) -> None:
        require(0 < self.clip < 0.5, "clip must be in (0, 0.5)", self.clip)

    @classmethod
    def fit_class(cls) -> type[BetaFit]:
        return BetaFit

    def _fit(self, setup: DataProfile, read: Read) -> BetaFit:
        design: tuple[str, ...] = _BETA
        passes = 0
        while True:
            fit = _logistic_fit(self.name, read, design, self.clip)
            passes += fit.passes
            # One slope at a time is left out, the more negative one first.
            slopes = fit.coefficients[:-1]
            if len(slopes) == 0 or slopes.min() >= 0:
                break
            negative = int(slopes.argmin())
            design = tuple(name for i, name in enumerate(design) if i != negative)
        coefficients, errors = np.zeros(3), np.zeros(3)
        kept = [_BETA.index(name) for name in design]
        coefficients[kept], errors[kept] = fit.coefficients, fit.errors
        notes = [
            f"{letter} would be negative, so that the map would decrease: it is 0"
            for letter, column in zip("ab", _BETA[:-1], strict=True)
            if column not in design
        ]
        return BetaFit(
            coefficients=coefficients,
            errors=errors,
            log_loss=fit.loss,
            method=self,
            classes=setup.classes,
            counts=fit.result.counts,
            passes=passes,
            notes=(*fit.notes, *notes),
        )


class StoredBeta(StoredFit):
    """State of `BetaFit`."""

    coefficients: Annotated[list[_Coefficient], Field(min_length=3, max_length=3)]
    errors: Annotated[list[NonNegative], Field(min_length=3, max_length=3)]
    log_loss: Measured


@dataclass(frozen=True, eq=False, kw_only=True)
class BetaFit(FittedRecalibrator):
    """p' = sigmoid(a·log p − b·log(1 − p) + c) with the `coefficients` a, b and c (3,)."""

    method: Beta
    coefficients: Floats
    errors: Floats
    log_loss: float
    stored: ClassVar[type[StoredFit]] = StoredBeta

    @property
    def parameters(self) -> dict[str, float]:
        a, b, c = self.coefficients.tolist()
        return {"a": a, "b": b, "c": c, "log_loss_after": self.log_loss}

    @property
    def standard_errors(self) -> dict[str, float]:
        # A slope that is left out is 0, and has no error.
        pairs = zip("abc", self.coefficients.tolist(), self.errors.tolist(), strict=True)
        return {letter: error for letter, coefficient, error in pairs if coefficient or error}

    def probabilities(self, chunk: Chunk) -> Floats:
        eta = self.coefficients @ design_of(log_odds(chunk, self.method.clip), _BETA)
        return np.column_stack([expit(-eta), expit(eta)])
