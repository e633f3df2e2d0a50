"""Recalibration of two classes by logistic regression: Platt scaling and beta calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field
from scipy.special import expit

from calibscale.array_types import Floats
from calibscale.compiled import logistic_sums
from calibscale.errors import OptionError, require
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.cell_fits import cells_of_scores, start_from_cells
from calibscale.recalibration.excluded_labels import (
    count_of_excluded,
    excluded_note,
    fit_to_possible_labels,
)
from calibscale.recalibration.logit_maps import LogitMap
from calibscale.recalibration.onnx_graphs import OnnxScore
from calibscale.recalibration.parametric import (
    CLIP,
    LARGEST_LOG_ODDS,
    LAST_STEP,
    MASKED,
    MAX_PASSES,
    below_clip,
    clip_note,
    not_converged,
)
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Measured,
    NonNegative,
    Read,
    RecalibrationMethod,
    StoredFit,
)
from calibscale.recalibration.sql_expressions import SQLScore, number, sigmoid
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.score_histogram import OccupiedCells
from calibscale.statistics.statistic import Statistic

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

    The columns of the `design` are functions of p, see `design_of`.  Classes with other columns
    override `columns`.
    """

    coefficients: tuple[float, ...]
    design: tuple[str, ...]
    clip: float = CLIP

    def columns(self, z: Floats) -> Floats:
        """Columns of the design at log-odds z (m, c)."""
        return design_of(z, self.design)

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
        totals = np.array([state.weight, state.loss])
        logistic_sums.add_logistic(
            self.columns(z),
            np.array(self.coefficients),
            chunk.labels,
            chunk.weights,
            totals,
            state.gradient,
            state.hessian,
            state.squares,
        )
        logistic_sums.widen_extents(z, chunk.labels, chunk.weights, state.extent)
        state.weight[...], state.loss[...] = totals
        others, events = below_clip(chunk, self.clip).T
        state.clipped[...] += np.count_nonzero(others | events)
        return state

    def merge(self, a: LogisticState, b: LogisticState) -> LogisticState:
        extent = np.minimum(a.extent, b.extent)
        return super().merge(a, b)._replace(extent=extent)


class ExtentState(NamedTuple):
    """Smallest log-odds and −log-odds by label (2, 2), as in `LogisticState`."""

    extent: Floats


@dataclass(frozen=True)
class LogOddsExtents(Statistic):
    """Extent of the log-odds of the rows of each label."""

    clip: float = CLIP

    def zero(self, classes: int) -> ExtentState:
        return ExtentState(np.full((2, 2), np.inf))

    def accumulate(self, state: ExtentState, chunk: Chunk) -> ExtentState:
        z = log_odds(chunk, self.clip)
        logistic_sums.widen_extents(z, chunk.labels, chunk.weights, state.extent)
        return state

    def merge(self, a: ExtentState, b: ExtentState) -> ExtentState:
        return ExtentState(np.minimum(a.extent, b.extent))


def log_odds(chunk: Chunk, clip: float) -> Floats:
    """Log-odds of two classes (c,), with probabilities raised to at least `clip`."""
    if chunk.kind == "probabilities":
        others, events = np.log(np.maximum(chunk.q, clip)).T
        return np.asarray(events - others)
    others, events = chunk.values.astype(np.float64).T
    # Columns of logits have the same difference as log p and log(1 − p).
    with np.errstate(invalid="ignore"):  # ∞ − ∞ is replaced
        z = events - others
    z[np.isneginf(others)] = -MASKED
    z[np.isneginf(events)] = MASKED
    return np.asarray(z)


def design_of(z: Floats, columns: tuple[str, ...]) -> Floats:
    """Functions of the log-odds z of p (m, c): z, log p, −log(1 − p), or 1."""
    functions = {
        "log_odds": lambda: z,
        "log_p": lambda: -np.logaddexp(0.0, -z),
        "minus_log_rest": lambda: np.logaddexp(0.0, z),
        "one": lambda: np.ones_like(z),
    }
    return np.stack([functions[name]() for name in columns])


class LogisticFit(NamedTuple):
    """Coefficients and their standard errors (m,), log loss, and the last pass.

    `loss_of_rows` is the log loss of the fitted probabilities, or None if one of them may be 0, or
    rows are left out of the fit.
    """

    coefficients: Floats
    errors: Floats
    loss: float
    loss_of_rows: float | None
    result: PassResult
    passes: int
    notes: tuple[str, ...]


def logistic_fit(
    name: str,
    setup: DataProfile,
    read: Read,
    cells: OccupiedCells | None,
    design: tuple[str, ...],
    clip: float,
) -> LogisticFit:
    """Maximum-likelihood fit, which starts from the fit to the cells of the scores if any.

    `read` leaves out rows by `of_possible_labels`.
    """
    start: Floats | None = None
    if cells is not None:
        start = start_from_cells(cells, lambda z: design_of(z, design), clip)
    if start is None:
        # With coefficients of 0 every row has p' = 1/2, and a finite loss whatever the data.
        start = np.zeros(len(design))
    first = LogisticLoss(tuple(start.tolist()), design, clip)
    return newton_fit(name, setup, read, first, np.zeros((len(design), len(design))))


def newton_fit(
    name: str, setup: DataProfile, read: Read, start: LogisticLoss, penalty: Floats
) -> LogisticFit:
    """Minimum of the mean log loss and ½⟨β, penalty·β⟩ by Newton's method, one pass per step.

    `start` has the first coefficients β (m,), and the penalty is (m, m).  The loss of the fit is
    without the penalty.  `read` leaves out rows by `of_possible_labels`.
    """
    best = np.array(start.coefficients)
    step: Floats = np.zeros(len(best))
    min_loss = math.inf
    for passes in range(1, MAX_PASSES + 1):
        statistic = replace(start, coefficients=tuple((best + step).tolist()))
        result = read(statistic)
        state: LogisticState = result.groups[None][statistic]
        if passes == 1:
            check_overlap(name, state.extent)
            _check_rank(name, state.hessian + state.weight * penalty)
        loss = float(state.loss / state.weight)
        penalised = loss + float((best + step) @ penalty @ (best + step)) / 2.0
        if penalised > min_loss + 1e-12 * abs(min_loss):  # the step is too long
            step = step / 2
            continue
        best, min_loss = best + step, penalised
        hessian = state.hessian + state.weight * penalty
        gradient = state.gradient + state.weight * (penalty @ best)
        try:
            step = -np.linalg.solve(hessian, gradient).astype(np.float64)
        except np.linalg.LinAlgError:  # every row is certain to rounding
            break
        if np.abs(step).max() <= LAST_STEP * max(1.0, np.abs(best).max()):
            # Sandwich covariance [White 1982], which does not assume that the model is right.
            inverse = np.linalg.inv(hessian)
            errors = np.sqrt(np.diag(inverse @ state.squares @ inverse).clip(0.0))
            excluded = count_of_excluded(setup, result.counts)
            notes = (
                *clip_note(float(state.clipped), "with", start.clip),
                *excluded_note(excluded, "the fit and its log loss"),
            )
            # To the second order in the last step.
            change = (state.gradient + 0.5 * state.hessian @ step) @ step / state.weight
            loss, coefficients = loss + float(change), best + step
            # Monotone log-odds are largest at the ends.  Beyond the limit, a probability is 0 while
            # the loss by log-odds is finite.
            ends = coefficients @ start.columns((state.extent * [1, -1]).ravel())
            is_finite = np.abs(ends).max() < LARGEST_LOG_ODDS
            loss_of_rows = loss if is_finite and not excluded else None
            return LogisticFit(coefficients, errors, loss, loss_of_rows, result, passes, notes)
    raise not_converged(name)


def check_overlap(name: str, extent: Floats) -> None:
    """Require overlapping log-odds of both labels, without which the likelihood has no maximum."""
    for label in (0, 1):
        if np.isposinf(extent[label]).all():
            raise OptionError(f"{name}: no row with the label {label} is left to fit")
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
    """Require predictions that differ enough to determine all coefficients."""
    scale = np.sqrt(np.diag(hessian))
    # A column of zeros, such as −log(1 − p) of tiny probabilities, determines nothing.
    scale[scale == 0.0] = 1.0
    # The diagonal is 1, so that the rank does not depend on the scales of the columns.
    rank = np.linalg.matrix_rank(hessian / np.outer(scale, scale), tol=1e-10)
    if rank < len(hessian):
        raise OptionError(
            f"{name}: the predictions differ too little to determine more than {rank} of "
            f"{len(hessian)} coefficients; use a method with fewer, such as temperature"
        )


Coefficient = Annotated[float, Field(ge=-1e150, le=1e150)]  # times log-odds, it is finite


# ---------------------------------------------------------------- Platt


@dataclass(frozen=True)
class Platt(RecalibrationMethod):
    """Maximum-likelihood fit of p' = sigmoid(a·logit p + b) for two classes (Platt 1999).

    Newton's method, one pass per step.  Labels are 0 and 1, without Platt's smoothing.  Rows with a
    logit of −∞ for the label are left out of the fit, because a single one would flatten the map.
    A note says how many they are.

    Parameters
    ----------
    clip : float
        p and 1 − p below `clip` are raised to it, so that p = 0 and 1 have finite log-odds (±36.7
        by default).  Log-odds of stored logits are not clipped, and a logit of −∞ gives log-odds of
        ±10,000.
    """

    clip: float = CLIP
    name: ClassVar[str] = "platt"

    def __post_init__(self) -> None:
        require(0 < self.clip < 0.5, "clip must be in (0, 0.5)", self.clip)

    @classmethod
    def fit_class(cls) -> type[PlattFit]:
        return PlattFit

    def _fit(self, setup: DataProfile, read: Read) -> PlattFit:
        with fit_to_possible_labels(setup, read) as read_possible:
            cells = cells_of_scores(setup, read_possible)
            fit = logistic_fit(
                self.name, setup, read_possible, cells, ("log_odds", "one"), self.clip
            )
        slope, intercept = fit.coefficients.tolist()
        return PlattFit(
            slope=slope,
            intercept=intercept,
            errors=fit.errors,
            log_loss=fit.loss,
            loss_of_rows=fit.loss_of_rows,
            method=self,
            classes=setup.classes,
            counts=fit.result.counts,
            passes=fit.passes + (cells is not None),
            notes=fit.notes,
        )


class StoredPlatt(StoredFit):
    """State of `PlattFit`."""

    slope: Coefficient
    intercept: Coefficient
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

    def predictions(self, chunk: Chunk) -> Floats:
        eta = self.slope * log_odds(chunk, self.method.clip) + self.intercept
        return np.column_stack([expit(-eta), expit(eta)])

    def sql(self, score: SQLScore) -> str:
        z = score.log_odds(self.method.clip)
        return sigmoid(f"({number(self.slope)} * {z} + {number(self.intercept)})")

    @property
    def keeps_order(self) -> bool:
        return self.slope > 0

    @property
    def logit_map(self) -> LogitMap:
        return LogitMap(np.array(self.slope), np.array([0.0, self.intercept]))

    def onnx(self, score: OnnxScore) -> str:
        scaled = score.times(score.log_odds(self.method.clip), self.slope)
        return score.of_two_classes(score.plus(scaled, self.intercept))


# ---------------------------------------------------------------- beta calibration


_BETA = ("log_p", "minus_log_rest", "one")  # columns of the design of a, b and c


@dataclass(frozen=True)
class Beta(RecalibrationMethod):
    """Beta calibration p' = sigmoid(a·log p − b·log(1 − p) + c) for two classes, with a, b ≥ 0.

    It corrects the two ends of the probabilities by different slopes, as the likelihood ratio of
    scores with Beta distributions does [Kull, Silva Filho & Flach, EJS 11 (2017), eq. 8].  With a =
    b it is `Platt`.  The fit is of maximum likelihood by Newton's method.  If a or b is negative,
    the map would decrease somewhere, and the fit is repeated without it, as its authors do.  Rows
    are left out as by `Platt`.

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
        with fit_to_possible_labels(setup, read) as read_possible:
            return self._fit_to(setup, read_possible)

    def _fit_to(self, setup: DataProfile, read: Read) -> BetaFit:
        """Fit without negative slopes, to rows that have a finite log loss."""
        design: tuple[str, ...] = _BETA
        cells = cells_of_scores(setup, read)
        passes = 0 if cells is None else 1
        while True:
            fit = logistic_fit(self.name, setup, read, cells, design, self.clip)
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
            loss_of_rows=fit.loss_of_rows,
            method=self,
            classes=setup.classes,
            counts=fit.result.counts,
            passes=passes,
            notes=(*fit.notes, *notes),
        )


class StoredBeta(StoredFit):
    """State of `BetaFit`."""

    coefficients: Annotated[list[Coefficient], Field(min_length=3, max_length=3)]
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

    def predictions(self, chunk: Chunk) -> Floats:
        eta = self.coefficients @ design_of(log_odds(chunk, self.method.clip), _BETA)
        return np.column_stack([expit(-eta), expit(eta)])

    @property
    def keeps_order(self) -> bool:
        # Slopes are not negative, and one of them may be 0.
        return bool(self.coefficients[:-1].sum() > 0)

    def sql(self, score: SQLScore) -> str:
        a, b, c = map(number, self.coefficients)
        log_p, log_rest = score.logarithms(self.method.clip)
        return sigmoid(f"({a} * {log_p} - {b} * {log_rest} + {c})")

    def onnx(self, score: OnnxScore) -> str:
        a, b, c = self.coefficients.tolist()
        z = score.log_odds(self.method.clip)
        # log p is −log(1 + exp(−z)), and −log(1 − p) is log(1 + exp z).
        of_events = score.times(score.softplus(score.of("Neg", z)), -a)
        of_others = score.times(score.softplus(z), b)
        return score.of_two_classes(score.plus(score.of("Add", of_events, of_others), c))
