"""Recalibration of two classes by a natural cubic spline of the log-odds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.interpolate import CubicSpline, PPoly
from scipy.special import expit, logit

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.cell_fits import HISTOGRAM, cell_hessian, cell_minimum
from calibscale.recalibration.excluded_labels import fit_to_possible_labels
from calibscale.recalibration.log_odds_cells import LogOddsCells, LogOddsHistogram
from calibscale.recalibration.logistic import (
    LogisticFit,
    LogisticLoss,
    LogOddsExtents,
    check_overlap,
    log_odds,
    newton_fit,
)
from calibscale.recalibration.onnx_graphs import OnnxScore, piecewise_polynomial
from calibscale.recalibration.parametric import CLIP
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Measured,
    NonNegative,
    Read,
    RecalibrationMethod,
    StoredFit,
    increasing,
)
from calibscale.recalibration.sql_expressions import LARGEST_EXPONENT, SQLScore, number, sigmoid
from calibscale.statistics.score_histogram import OccupiedCells

MAX_KNOTS = 20
_CELLS = 4096  # cells by which the smoothing is chosen and the fit is started
_FIRST_SHARE = 0.05  # share of the rows below the first knot, and above the last [Harrell 2015]
_LEAST_GAP = 1e-3  # between knots, as a share of their range, so that values determine the curve
# From nearly a line to nearly no smoothing for 10^10 rows.
_SMOOTHINGS = tuple(10.0 ** np.arange(1.0, -12.5, -0.5))
_AS_GOOD = 0.01  # difference of two criteria that says nothing
_ROUNDING = 1e-9  # of slopes, relative to the steepest one
_BEYOND = 1.0  # log-odds beyond those of the clip that scores do not tell


# ---------------------------------------------------------------- splines


def natural_spline(knots: Floats, values: Floats) -> PPoly:
    """Natural cubic spline with values (m,) or (m, k) at m knots, a line beyond them."""
    inner = CubicSpline(knots, values, bc_type="natural")
    # Pieces beyond the knots are lines with the slopes at the ends.
    pieces = np.zeros((4, len(knots) + 1, *np.shape(values)[1:]))
    pieces[:, 1:-1] = inner.c
    pieces[2:, 0] = inner(knots[0], 1), inner(knots[0])
    pieces[2:, -1] = inner(knots[-1], 1), inner(knots[-1])
    # A line starts where its piece does.  The first one starts a distance of 1 below the knots.
    pieces[3, 0] -= pieces[2, 0]
    breaks = np.concatenate([[knots[0] - 1.0], knots, [knots[-1] + 1.0]])
    return PPoly(pieces, breaks)


def curvature(knots: Floats) -> Floats:
    """Matrix (m, m) of the quadratic form r³ ∫ f''² of the values of a natural spline at knots.

    With the range r of the knots, it does not depend on the scale of the log-odds.
    """
    cardinal = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    second = cardinal(knots, 2)
    gaps = np.diff(knots)
    # ∫ f''² of a function f'' that is linear between knots [Green & Silverman 1994, §2.1].
    products = np.zeros((len(knots), len(knots)))
    for i, gap in enumerate(gaps):
        products[i : i + 2, i : i + 2] += gap / 6.0 * np.array([[2.0, 1.0], [1.0, 2.0]])
    matrix = (knots[-1] - knots[0]) ** 3 * (second.T @ products @ second)
    return (matrix + matrix.T) / 2.0


def rises(knots: Floats, values: Floats) -> bool:
    """Whether a natural spline decreases nowhere."""
    slope = CubicSpline(knots, values, bc_type="natural").derivative()
    # A quadratic function is smallest at an end of its interval, or where its slope is 0.
    turns = slope.derivative().roots(discontinuity=False, extrapolate=False)
    slopes = slope(np.concatenate([knots, turns[np.isfinite(turns)]]))
    return bool(slopes.min() >= -_ROUNDING * np.abs(slopes).max())


@dataclass(frozen=True)
class SplineLoss(LogisticLoss):
    """`LogisticLoss` of a natural spline of the log-odds, with its values at `knots`."""

    knots: tuple[float, ...] = ()

    @cached_property
    def _cardinal(self) -> PPoly:
        """Splines that are 1 at one knot and 0 at the others."""
        return natural_spline(np.array(self.knots), np.eye(len(self.knots)))

    def columns(self, z: Floats) -> Floats:
        return np.ascontiguousarray(self._cardinal(z).T)


# ---------------------------------------------------------------- choice of knots and smoothing


class _Start(NamedTuple):
    """Values at knots (m,), smoothing, and effective number of parameters."""

    knots: Floats
    values: Floats
    smoothing: float
    parameters: float

    @property
    def penalty(self) -> Floats:
        return self.smoothing * curvature(self.knots)


def knots_of(z: Floats, share: Floats, count: int) -> Floats:
    """Knots at quantiles of the log-odds z (c,) of cells with shares (c,) of the weight."""
    levels = np.linspace(_FIRST_SHARE, 1.0 - _FIRST_SHARE, count)
    below = np.cumsum(share)
    places = np.minimum(np.searchsorted(below, levels * below[-1]), len(z) - 1)
    quantiles = z[places]
    if quantiles[0] == quantiles[-1]:  # most rows have one score
        quantiles = z[[0, -1]]
    knots = [quantiles[0]]
    least = _LEAST_GAP * (quantiles[-1] - quantiles[0])
    for quantile in quantiles[1:]:
        if quantile - knots[-1] > least:
            knots.append(quantile)
    return np.array(knots)


def _starts(cells: LogOddsCells, method: Spline) -> list[_Start]:
    """Fits to cells, from the smoothing with the smallest criterion to the line.

    The criterion is Akaike's, Σ log loss plus the effective number of parameters tr((H + P)⁻¹H)
    with the second derivatives H and the penalty P [Wood 2017, §6.2].  With weights, a row counts
    as Σw/Σw² effective rows.
    """
    z = cells.z
    if z[0] == z[-1]:
        raise OptionError(
            f"{method.name}: all predictions are nearly equal, so that no curve is determined; "
            "use platt"
        )
    knots = knots_of(z, cells.share, method.knots)
    weight, events = cells.weight / cells.unit, cells.events / cells.unit
    line = np.array([knots[0], knots[-1]])
    # Values of 0 give every row p' = 1/2, and a finite loss whatever the log-odds.
    fits = [_fit_to_cells(z, weight, events, line, 0.0, np.zeros(2))]
    criteria = [fits[0][1]]
    smoothings = _SMOOTHINGS
    if method.smoothing is not None:
        # Smoother curves are fitted as well, in case the curve of this smoothing decreases.
        more = [smoothing for smoothing in _SMOOTHINGS if smoothing > method.smoothing]
        smoothings = (*more, method.smoothing)
    if len(knots) > 2:
        values = natural_spline(line, fits[0][0].values)(knots)
        for smoothing in smoothings:
            start, criterion = _fit_to_cells(z, weight, events, knots, smoothing, values)
            values = start.values  # of more smoothing, near those of less
            fits.append((start, criterion))
            criteria.append(criterion)
    # A criterion that is larger by less than this is as good, and its curve is smoother.
    best = int(np.argmax(np.array(criteria) <= min(criteria) + _AS_GOOD))
    if method.smoothing is not None:
        best = len(fits) - 1
    return [start for start, _ in fits[best::-1]]


def _fit_to_cells(
    z: Floats, weight: Floats, events: Floats, knots: Floats, smoothing: float, first: Floats
) -> tuple[_Start, float]:
    """Penalised fit to cells from first values, and its criterion."""
    design = natural_spline(knots, np.eye(len(knots)))(z).T
    total = weight.sum()
    penalty = smoothing * curvature(knots)

    values = cell_minimum(design, weight, events, penalty, first)
    eta = values @ design
    log_loss = float(weight @ np.logaddexp(0.0, eta) - events @ eta)
    with_penalty = cell_hessian(design, weight, values) / total + penalty
    parameters = float(np.trace(np.linalg.lstsq(with_penalty, with_penalty - penalty)[0]))
    return _Start(knots, values, smoothing, parameters), log_loss + parameters


def _of_all_cells(cells: LogOddsCells, start: _Start) -> Floats:
    """Values at the knots (m,) of a fit to all cells, by which a fit to the rows takes one pass."""
    curves = natural_spline(start.knots, np.eye(len(start.knots)))(cells.z)
    design = np.ascontiguousarray(curves.T)
    return cell_minimum(design, cells.weight, cells.events, start.penalty, start.values)


# ---------------------------------------------------------------- method and fit


@dataclass(frozen=True)
class Spline(RecalibrationMethod):
    """p' = sigmoid(f(logit p)) with a natural cubic spline f that does not decrease.

    For two classes [Lucena, Spline-based probability calibration, arXiv:1809.07751 (2018)].  f is
    cubic between `knots` at equidistant quantiles of the scores from 5 to 95 %, and a line beyond
    them, so that p' is not extrapolated wildly.  Its values at the knots minimise the mean log loss
    plus ½λr³∫f''², with the range r of the knots, by Newton's method with one pass per step.

    Knots and λ come from a histogram of the scores in one pass before.  Logits beyond the log-odds
    of `clip` need another pass for a histogram of them.  λ has the smallest Akaike criterion of 27
    values and of a line, which is `Platt`.  If f decreases somewhere, λ is raised to the next value
    until it does not.  Only a line may decrease, and a note says so.  Rows with a logit of −∞ for
    the label are left out of the fit, as by `Platt`.

    Parameters
    ----------
    knots : int
        Number of knots, from 3 to 20.  Knots that are nearly equal are joined.
    smoothing : float, optional
        λ, at least 0.  Default: by Akaike's criterion.
    clip : float
        See `Platt`.

    See Also
    --------
    calibscale.recalibration.logistic.Platt : A line instead of a spline.
    calibscale.recalibration.logistic.Beta : A family of three parameters.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> p = (np.arange(4000) + 0.5) / 4000
    >>> y = (np.arange(4000) * 0.618 % 1 < 0.2 + 0.6 * p**3).astype(int)
    >>> source = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
    >>> calibscale.recalibrate(source, "spline").transform([0.1, 0.5, 0.9]).round(2)
    array([0.19, 0.29, 0.6 ])
    """

    knots: int = 6
    smoothing: float | None = None
    clip: float = CLIP
    name: ClassVar[str] = "spline"

    def __post_init__(self) -> None:
        allowed = 3 <= self.knots <= MAX_KNOTS
        require(allowed, f"knots must be from 3 to {MAX_KNOTS}", self.knots)
        smooth = self.smoothing is None or 0 <= self.smoothing < np.inf
        require(smooth, "smoothing must be at least 0", self.smoothing)
        require(0 < self.clip < 0.5, "clip must be in (0, 0.5)", self.clip)

    @classmethod
    def fit_class(cls) -> type[SplineFit]:
        return SplineFit

    def _fit(self, setup: DataProfile, read: Read) -> SplineFit:
        with fit_to_possible_labels(setup, read) as read_possible:
            return self._fit_to(setup, read_possible)

    def _fit_to(self, setup: DataProfile, read: Read) -> SplineFit:
        """Fit to rows that have a finite log loss."""
        extents = LogOddsExtents(self.clip)
        states = read(HISTOGRAM, extents).groups[None]
        extent: Floats = states[extents].extent
        check_overlap(self.name, extent)
        scores = OccupiedCells.of(states[HISTOGRAM].sums)
        coarse, cells = (
            LogOddsCells.of_scores(part, self.clip) for part in (scores.coarse(_CELLS), scores)
        )
        passes, raised = 1, False
        # Probabilities are raised to the clip, and logits are not.
        if -extent.min() > _BEYOND - np.log(self.clip):
            histogram = LogOddsHistogram(self.clip)
            coarse = cells = read(histogram).groups[None][histogram].cells
            passes = 2
        for start in _starts(coarse, self):
            # Cells say without a pass which curves decrease.  A line is the last resort.
            if len(start.knots) > 2 and not rises(start.knots, start.values):
                raised = True
                continue
            values = _of_all_cells(cells, start)
            loss = SplineLoss(tuple(values.tolist()), (), self.clip, tuple(start.knots))
            fit = newton_fit(self.name, setup, read, loss, start.penalty)
            passes += fit.passes
            if rises(start.knots, fit.coefficients):
                break
            raised = True
        return self._fitted(setup, start, fit, passes, raised)

    def _fitted(
        self, setup: DataProfile, start: _Start, fit: LogisticFit, passes: int, raised: bool
    ) -> SplineFit:
        notes = [*fit.notes]
        is_line = len(start.knots) == 2
        if is_line:
            notes.append(
                "a line of the log-odds, as by platt: a curve is no better, would decrease, or has "
                "too few different scores"
            )
        elif raised:
            notes.append(
                "more smoothing than the criterion or the setting asks for, because the map would "
                "decrease"
            )
        if fit.coefficients[-1] < fit.coefficients[0]:
            notes.append("the map decreases: events are rarer for larger predictions")
        return SplineFit(
            knots=start.knots,
            values=fit.coefficients,
            errors=fit.errors,
            smoothing=start.smoothing,
            effective_parameters=start.parameters,
            log_loss=fit.loss,
            loss_of_rows=fit.loss_of_rows,
            method=self,
            classes=setup.classes,
            counts=fit.result.counts,
            passes=passes,
            notes=tuple(notes),
        )


_Logit = Annotated[float, Field(ge=-1e150, le=1e150)]
_OfKnots = Field(min_length=2, max_length=MAX_KNOTS)


class StoredSpline(StoredFit):
    """State of `SplineFit`."""

    knots: Annotated[list[_Logit], _OfKnots]
    values: Annotated[list[_Logit], _OfKnots]
    errors: Annotated[list[NonNegative], _OfKnots]
    smoothing: NonNegative
    effective_parameters: NonNegative
    log_loss: Measured

    @model_validator(mode="after")
    def _is_spline(self) -> Self:
        require(increasing(self.knots), "knots must increase")
        for name in ("values", "errors"):
            same = len(getattr(self, name)) == len(self.knots)
            require(same, f"{name} must be as many as knots")
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class SplineFit(FittedRecalibrator):
    """Values of the spline at its knots (m,), which are log-odds, and their standard errors (m,).

    `effective_parameters` is the trace of the penalised fit, 2 for a line and m without a penalty.
    """

    method: Spline
    knots: Floats
    values: Floats
    errors: Floats
    smoothing: float
    effective_parameters: float
    log_loss: float
    stored: ClassVar[type[StoredFit]] = StoredSpline

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "knots": len(self.knots),
            "smoothing": self.smoothing,
            "effective_parameters": self.effective_parameters,
            "log_loss_after": self.log_loss,
        }

    @cached_property
    def _map(self) -> PPoly:
        """Recalibrated log-odds by the log-odds."""
        return natural_spline(self.knots, self.values)

    def predictions(self, chunk: Chunk) -> Floats:
        eta = self._map(log_odds(chunk, self.method.clip))
        return np.column_stack([expit(-eta), expit(eta)])

    @property
    def keeps_order(self) -> bool:
        # A spline that decreases nowhere is constant only between equal values at knots.
        return increasing(self.values.tolist())

    def sql(self, score: SQLScore) -> str:
        z = score.log_odds(self.method.clip)
        compared, borders = z, self.knots.tolist()
        # Probabilities of knots within the clip have an order, and are shorter than log-odds.
        if not score.is_logit and np.abs(self.knots).max() < -np.log(self.method.clip):
            compared, borders = score.probability, expit(self.knots).tolist()
        spline = CubicSpline(self.knots, self.values, bc_type="natural")
        low, high = spline(self.knots[[0, -1]], 1).tolist()
        first, last = self.knots[[0, -1]].tolist()
        below = _line(z, first, self.values[0], low)
        cases = [f"WHEN {compared} < {number(borders[0])} THEN {below}"]
        for left, border, cubic in zip(self.knots, borders[1:], spline.c.T, strict=False):
            step = f"({z} - {number(left)})"
            a, b, c, d = map(number, cubic)
            polynomial = f"(({a} * {step} + {b}) * {step} + {c}) * {step} + {d}"
            cases.append(f"WHEN {compared} < {number(border)} THEN {polynomial}")
        above = _line(z, last, self.values[-1], high)
        # A comparison with NULL is never true: a missing score has none of the cases.
        cases.append(f"WHEN {compared} IS NOT NULL THEN {above}")
        # The log-odds of clipped probabilities have a largest size, at one of their ends.
        ends = logit([self.method.clip, 1.0 - self.method.clip])
        largest = np.abs(self._map(ends)).max()
        within = not score.is_logit and largest < LARGEST_EXPONENT
        return sigmoid(f"(CASE {' '.join(cases)} END)", within)

    def onnx(self, score: OnnxScore) -> str:
        spline = CubicSpline(self.knots, self.values, bc_type="natural")
        # Lines beyond the knots.
        low, high = spline(self.knots[[0, -1]], 1)
        below = [0.0, 0.0, low, self.values[0]]
        above = [0.0, 0.0, high, self.values[-1]]
        pieces = np.column_stack([below, spline.c, above])
        z = score.log_odds(self.method.clip)
        return score.of_two_classes(piecewise_polynomial(score, z, self.knots, pieces))


def _line(z: str, at: float, value: float, slope: float) -> str:
    """SQL expression of a line through a point."""
    return f"{number(value)} + {number(slope)} * ({z} - {number(at)})"
