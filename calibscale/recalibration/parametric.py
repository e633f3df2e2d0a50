"""Predictions as they are, and recalibration by one temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from calibscale.array_types import Floats
from calibscale.compiled import tempered_classes
from calibscale.errors import OptionError, require
from calibscale.formatting import number_texts
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import CLASSES, FORECASTS, INTERVALS, MEANS, QUANTILES
from calibscale.recalibration.cell_fits import HISTOGRAM, start_from_cells
from calibscale.recalibration.class_losses import MapInputs
from calibscale.recalibration.excluded_labels import (
    count_of_excluded,
    excluded_note,
    fit_to_possible_labels,
)
from calibscale.recalibration.logit_maps import LogitMap
from calibscale.recalibration.onnx_graphs import OnnxScore
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Measured,
    Read,
    RecalibrationMethod,
    StoredFit,
)
from calibscale.recalibration.sql_expressions import SQLScore, number, sigmoid
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.score_histogram import OccupiedCells
from calibscale.statistics.statistic import Statistic

CLIP = 2.0**-53  # 1 − p of the largest float64 below 1: log-odds of ±36.7

# Of Newton's method, relative to the parameters.  The next step would be about its square, so that
# parameters are exact to about 1e-10.
LAST_STEP = 1e-5
LARGEST_LOG_ODDS = 700.0  # whose probabilities are not 0
JUDGING_STEP = 1e-3  # of a fit that judges another one, which is then exact to about 1e-6
MAX_PASSES = 60  # passes of Newton's method, after which an error is raised
# A step changes θ by at most this factor: far from the root, the curvature tells little.
_LARGEST_STEP = math.log(16.0)
# Log-odds of a class that a logit of −∞ excludes, where maps of log-odds need a number.
MASKED = -1e4


def _raw_logits(chunk: Chunk, clip: float) -> Floats:
    """Logits, or logarithms of probabilities raised to at least `clip` (c, K)."""
    return chunk.values if chunk.kind == "logits" else np.log(np.maximum(chunk.q, clip))


def clipped(chunk: Chunk, clip: float) -> Floats:
    """Logits, or logarithms of probabilities raised to at least `clip`, with maximum 0 (c, K)."""
    z = _raw_logits(chunk, clip).astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    return z


def tempered(chunk: Chunk, theta: float, clip: float) -> Floats:
    """Probabilities softmax(θz) of the rows of a chunk (c, K)."""
    values = _raw_logits(chunk, clip)
    q = np.empty(values.shape)
    tempered_classes.tempered_softmax(values, theta, q)
    return q


def below_clip(chunk: Chunk, clip: float) -> NDArray[np.bool_]:
    """Whether each entry of q was clipped (c, K)."""
    if chunk.kind == "logits":
        return np.zeros(chunk.values.shape, bool)
    return chunk.q < clip


# ---------------------------------------------------------------- no recalibration


@dataclass(frozen=True)
class Identity(RecalibrationMethod):
    """Predictions as they are, a candidate where a method is chosen."""

    name: ClassVar[str] = "identity"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, FORECASTS, INTERVALS, QUANTILES, MEANS)
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
    """Predictions as they are, those of classes as probabilities."""

    stored: ClassVar[type[StoredFit]] = StoredIdentity

    @property
    def parameters(self) -> dict[str, float]:
        return {}

    def predictions(self, chunk: Chunk) -> Floats:
        return chunk.q if self.classes else chunk.values

    def sql(self, score: SQLScore) -> str:
        return score.probability

    @property
    def keeps_order(self) -> bool:
        return self.classes == 2

    @property
    def logit_map(self) -> LogitMap:
        require(self.classes, "a map of logits is of classes")
        return LogitMap.of_slope(1.0, self.classes)

    def onnx(self, score: OnnxScore) -> str:
        return score.probabilities


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
    """Σ w (log Σ_k exp θz_k − θz_y) and its derivatives, convex in θ, the inverse temperature.

    z are logits, or logarithms of probabilities raised to at least `clip`.  If `clips_logits`, the
    probabilities of stored logits are raised to it as well, as for the maps of `class_maps`.  A
    label must not have a logit of −∞, see `of_possible_labels`.
    """

    theta: float
    clip: float = CLIP
    clips_logits: bool = False

    def zero(self, classes: int) -> TemperState:
        return TemperState(*(np.zeros(()) for _ in TemperState._fields))

    def _inputs(self, chunk: Chunk) -> Floats:
        """z (c, K), up to a constant of each row."""
        if self.clips_logits:
            return MapInputs(self.clip, centred=False).of(chunk)
        return _raw_logits(chunk, self.clip)

    def accumulate(self, state: TemperState, chunk: Chunk) -> TemperState:
        labels, values = chunk.labels, self._inputs(chunk)
        if chunk.kind != "logits":
            below = chunk.values[np.arange(len(chunk)), labels] < self.clip
            state.clipped[...] += np.count_nonzero(below)
        sums = np.zeros(len(state) - 1)
        tempered_classes.add_tempered(values, labels, chunk.weights, self.theta, sums)
        for total, part in zip(state, sums, strict=False):
            total[...] += part
        return state


@dataclass(frozen=True)
class TemperatureScaling(RecalibrationMethod):
    """Maximum-likelihood fit of q' = softmax(z / T), one T for all classes (Guo et al. 2017).

    Newton's method on log T, one pass per step.  Rows with a logit of −∞ for the label are left out
    of the fit, because their log loss is infinite at every T.  A note says how many they are.

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
        # Cells of the scores of two classes say after the first pass nearly where the minimum is.
        loss = TemperedLoss(1.0, self.clip)
        has_cells = setup.classes == 2
        with fit_to_possible_labels(setup, read) as read_possible:
            slope = fitted_slope(loss, read_possible, LAST_STEP, has_cells)
        return self._fit_of(slope, setup)

    def _fit_near(self, setup: DataProfile, read: Read, near: FittedRecalibrator) -> TemperatureFit:
        assert isinstance(near, TemperatureFit)
        return self.fit_from(near.temperature, setup, read)

    def fit_from(self, temperature: float, setup: DataProfile, read: Read) -> TemperatureFit:
        """Fit that judges a fit with another temperature, at which the search starts."""
        loss = TemperedLoss(1.0 / temperature, self.clip)
        with fit_to_possible_labels(setup, read) as read_possible:
            slope = fitted_slope(loss, read_possible, JUDGING_STEP)
        return self._fit_of(slope, setup)

    def _fit_of(self, slope: FittedSlope, setup: DataProfile) -> TemperatureFit:
        """Fit with the result of a search."""
        # Logarithms of probabilities have a largest size, and logits have none.
        largest = -math.log(self.clip) * slope.theta
        is_finite = setup.source.kind == "probabilities" and largest < LARGEST_LOG_ODDS
        excluded = count_of_excluded(setup, slope.counts)
        # Rows that are left out have an infinite log loss at every temperature.
        log_loss = (math.inf, math.inf) if excluded else slope.log_loss
        return TemperatureFit(
            temperature=slope.temperature,
            standard_error=slope.standard_error / slope.theta**2,  # |dT/dθ| of T = 1/θ
            log_loss=log_loss,
            loss_of_rows=slope.log_loss[-1] if is_finite else None,
            method=self,
            classes=setup.classes,
            counts=slope.counts,
            passes=slope.passes,
            notes=(
                *clip_note(slope.clipped, "whose label has", self.clip),
                *excluded_note(excluded, "the fit of the temperature"),
            ),
        )


class FittedSlope(NamedTuple):
    """Inverse temperature θ with the smallest log loss, and numbers of the search for it.

    The standard error is that of θ.  The log losses are those at the start and at the end of the
    search, and `clipped` is the number of rows with a label of a probability below the clip.
    """

    theta: float
    standard_error: float
    log_loss: tuple[float, float]
    clipped: float
    counts: RowCounts
    passes: int

    @property
    def temperature(self) -> float:
        return 1.0 / self.theta


def fitted_slope(
    loss: TemperedLoss, read: Read, last_step: float, has_cells: bool = False
) -> FittedSlope:
    """Minimum of a loss by Newton's method, from its own θ until a step is short enough."""
    low, high, first = 0.0, math.inf, math.nan
    for passes in range(1, MAX_PASSES + 1):
        with_cells = passes == 1 and has_cells
        result = read(loss, HISTOGRAM) if with_cells else read(loss)
        state: TemperState = result.groups[None][loss]
        if passes == 1:
            _check_temperature(state)
            first = float(state.loss / state.weight)
        theta, slope = loss.theta, float(state.slope)
        # The loss is convex in θ: its minimum lies above θ where the slope is negative, else below.
        low, high = (theta, high) if slope < 0 else (low, theta)
        following = _next_theta(theta, slope, float(state.curvature), low, high)
        if with_cells:
            of_cells = _theta_of_cells(result, loss.clip)
            following = of_cells if low < of_cells < high else following
        if abs(math.log(following / theta)) <= last_step:
            # Sandwich standard error [White 1982].
            curvature = float(state.curvature) or math.nan  # 0: every row is certain
            return FittedSlope(
                theta=following,
                standard_error=math.sqrt(state.squares) / curvature,
                log_loss=(first, float(state.loss / state.weight)),
                clipped=float(state.clipped),
                counts=result.counts,
                passes=passes,
            )
        loss = replace(loss, theta=following)
    raise not_converged(TemperatureScaling.name)


def _theta_of_cells(result: PassResult, clip: float) -> float:
    """Inverse temperature of the cells of the scores of two classes, or NaN."""
    cells = OccupiedCells.of(result.groups[None][HISTOGRAM].sums)
    coefficients = start_from_cells(cells, np.atleast_2d, clip)
    return math.nan if coefficients is None else float(coefficients[0])


def slope_or_none(
    loss: TemperedLoss, read: Read, last_step: float = LAST_STEP
) -> FittedSlope | None:
    """`fitted_slope`, or None if the rows do not determine it.

    They do not if every row is right, or if labels agree with the predictions by chance.
    """
    try:
        return fitted_slope(loss, read, last_step)
    except OptionError:
        return None


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
    if not state.weight > 0:
        raise OptionError("temperature: no labelled row is left to fit")
    if not (state.slope_infinity > 0 or state.slope_zero < 0):
        raise OptionError(
            "temperature: every prediction is uniform over its possible classes, which no "
            "temperature changes"
        )
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


def clip_note(count: float, having: str, clip: float) -> tuple[str, ...]:
    """Sentence on the rows of a fit that have a probability below the clip, if there are any."""
    if not count:
        return ()
    rows = number_texts.plural(int(count), "row")
    were = "was" if count == 1 else "were"
    return (f"{rows} {having} a probability below {clip:.3g} {were} fitted with that probability",)


def not_converged(name: str, passes: int | None = None) -> OptionError:
    """Error of a method whose search had a number of passes, by default `MAX_PASSES`."""
    count = MAX_PASSES if passes is None else passes
    return OptionError(
        f"{name}: no convergence after {count} passes, because the labels hardly determine "
        "the fit: fit to more rows"
    )


class StoredTemperature(StoredFit):
    """State of `TemperatureFit`."""

    temperature: Annotated[float, Field(gt=0.0)]
    standard_error: Measured
    log_loss: tuple[Measured, Measured]


@dataclass(frozen=True, eq=False, kw_only=True)
class TemperatureFit(FittedRecalibrator):
    """Softmax of logits divided by `temperature`.

    `log_loss` has the log losses of the rows at the start of the search, which are those before
    recalibration unless the search started near another fit, and after recalibration.
    """

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

    def predictions(self, chunk: Chunk) -> Floats:
        return tempered(chunk, 1.0 / self.temperature, self.method.clip)

    def sql(self, score: SQLScore) -> str:
        return sigmoid(f"{score.log_odds(self.method.clip)} / {number(self.temperature)}")

    @property
    def keeps_order(self) -> bool:
        return self.classes == 2

    @property
    def logit_map(self) -> LogitMap:
        return LogitMap.of_slope(1.0 / self.temperature, self.classes)

    def onnx(self, score: OnnxScore) -> str:
        logits = score.relative_logits(self.method.clip)
        return score.softmax(score.times(logits, 1.0 / self.temperature))
