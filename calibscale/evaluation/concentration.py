"""`concentration_curve`, the concentration of outcomes in the order of their predictions."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Unpack

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.joined_models import functional_source
from calibscale.errors import OptionError, require
from calibscale.intervals.mean_limits import student_half
from calibscale.intervals.proportions import check_level
from calibscale.predictions.claims import EXCEEDANCES, MEANS
from calibscale.results.curve_results import ConcentrationCurve, CurveArea
from calibscale.results.evaluation_results import Range
from calibscale.session import Session, SessionOptions, source_of_argument, verb
from calibscale.statistics.ordered_sums import (
    ConcentrationState,
    ConcentrationSums,
    OrderedResponses,
    OrderedState,
)

_FEWEST_OUTCOMES = 50.0  # effective number of rows with an outcome for an interval
_SHARES = 100  # intervals of shares in the result


@verb
def concentration_curve(
    source: Any, *, confidence_level: float = 0.95, **options: Unpack[SessionOptions]
) -> ConcentrationCurve:
    """Compute the concentration curve of outcomes and the Lorenz curve of their predictions.

    Rows are put in the order of their predictions.  At a share α of the exposure, which is the
    weight, the concentration curve is the share of the sum of the outcomes that the rows with the
    smallest predictions have.  The Lorenz curve is their share of the sum of the predictions.  In
    the population both are equal if the predictions are calibrated, and the area between the curves
    (ABC) is then 0 [Denuit, Sznajder & Trufin, Insurance: Mathematics and Economics 89 (2019)].
    The ideal curve is the Lorenz curve of the outcomes, in their own order.  Rows with equal
    predictions are one straight piece, so that the result does not depend on their order.

    One pass keeps sums by prediction, and sums by outcome.  With more than 65,536 different
    predictions or outcomes they are in cells of a relative width of 2⁻¹² or more.  A curve that
    increases is within the rectangle of each cell, which bounds the errors.  Areas differ by at
    most half of these rectangles.

    The interval of the ABC holds the predictions fixed, and is for independent rows.  The area
    under the concentration curve is a ratio of sums of outcomes, and its variance follows by the
    delta method from residuals of the predictions, scaled to the mean outcome.  It is too wide
    where the predictions are far from calibrated.  The interval includes the bound of the error of
    cells.  Predictions with an ABC of 0 need not be calibrated, as parts may cancel:
    `calibration_test` has no such gap.

    Parameters
    ----------
    source, **options
        See `evaluate`.  Predictions are means of outcomes that are at least 0, probabilities that
        an outcome exceeds a threshold, or probabilities of two classes.
    confidence_level : float
        Level of the interval of the ABC, in (0, 1).

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if a prediction or an outcome is negative, if the sum of the
        predictions or of the outcomes is 0, if predictions are no means, or if data cannot be read.

    See Also
    --------
    Decomposition : Discrimination and miscalibration of a score of means.
    double_lift : Two models by the ratio of their predictions.

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_arrays(predictions=[1.0, 3.0], forecast="mean", labels=[0.0, 4.0])
    >>> curve = cs.concentration_curve(source)
    >>> curve.gini.value, curve.concentration_index.value, curve.abc.value
    (0.25, 0.5, -0.125)
    """
    started = time.perf_counter()
    check_level(confidence_level)
    data = functional_source(source_of_argument(source), "concentration_curve")
    require_means(data.target, "concentration_curve")
    with Session.open(source, **options) as opened:
        session = opened.on(data)
        by_prediction, by_outcome = ConcentrationSums(), OrderedResponses()
        result = session.scan([by_prediction, by_outcome])
        states = result.groups[None]
        outcome = session.outcome(result.counts, started, level=confidence_level)
    return _curve(states[by_prediction], states[by_outcome], confidence_level, outcome)


def require_means(target: Any, user: str) -> None:
    """Raise an OptionError unless predictions are means, or probabilities of exceedances."""
    require(
        target.claim in (MEANS, EXCEEDANCES),
        f"{user} is for predictions of means, such as forecast='mean', and the source has "
        f"{target.in_words}",
    )


class _Polygon(NamedTuple):
    """Curve through its corners.

    `share` are the shares of the exposure (c + 1,), and `height` the shares of the sum of a
    quantity.  `slack` is how far the curve of single rows may be from each piece (c,).
    """

    share: Floats
    height: Floats
    slack: Floats

    @property
    def area(self) -> CurveArea:
        """Area under the curve, with the bound of its error."""
        widths = np.diff(self.share)
        middles = 0.5 * (self.height[1:] + self.height[:-1])
        # A curve that increases within a rectangle has half of it above or below its diagonal.
        return CurveArea(float(widths @ middles), float(0.5 * widths @ self.slack))

    @property
    def error(self) -> float:
        """Bound of the error of the curve at any share."""
        return float(self.slack.max(initial=0.0))

    def at(self, shares: Floats) -> Floats:
        """Height of the curve at shares (m,)."""
        return np.interp(shares, self.share, self.height)


def _polygon(weight: Floats, amount: Floats, slack: float, noun: str) -> _Polygon:
    """Curve of the shares of `amount` (c,) in cells with the weights (c,), in their order.

    `slack` is the largest distance of the curve from a piece, as a share of the piece's height.
    """
    total = float(amount.sum())
    require(total > 0, f"the sum of the {noun} is 0, and has no concentration curve")
    share = np.append(0.0, np.cumsum(weight)) / weight.sum()
    height = np.append(0.0, np.cumsum(amount)) / total
    # Rounding of the sums would leave the end beside the corner (1, 1).
    share[-1], height[-1] = 1.0, 1.0
    return _Polygon(share, height, slack * amount / total)


def _curve(
    predicted: OrderedState, observed: OrderedState, level: float, outcome: dict[str, Any]
) -> ConcentrationCurve:
    """Curves and areas from the sums by prediction and by outcome."""
    _refuse_negative(predicted, 3, "predictions")
    _refuse_negative(observed, 2, "outcomes")
    require(predicted.sums.shape[1], "there are no rows with a positive weight")
    sums = ConcentrationState(*predicted.sums)
    _, weight_of_outcome, outcomes = observed.sums
    # Predictions of a cell differ by less than its width, and their Lorenz curve is as straight.
    # The outcomes of a cell may be in any order.
    order_unknown = 0.0 if predicted.exact else 1.0
    lorenz = _polygon(sums.weight, sums.claimed, predicted.cell_width, "predictions")
    concentration = _polygon(sums.weight, sums.responses, order_unknown, "outcomes")
    ideal = _polygon(weight_of_outcome, outcomes, observed.cell_width, "outcomes")
    shares = _shares(concentration.share)
    curves = (concentration, lorenz, ideal)
    areas = [curve.area for curve in curves]
    # Errors of both areas may have any sign, so that they add up.
    abc = CurveArea(areas[0].value - areas[1].value, areas[0].error + areas[1].error)
    of_concentration, of_lorenz, of_ideal = (
        CurveArea(1.0 - 2.0 * area.value, 2.0 * area.error) for area in areas
    )
    return ConcentrationCurve(
        share=shares,
        concentration=concentration.at(shares),
        lorenz=lorenz.at(shares),
        ideal=ideal.at(shares),
        curve_error=max(curve.error for curve in curves),
        level=level,
        abc=abc,
        abc_interval=_interval(sums, concentration, abc, level),
        gini=of_lorenz,
        concentration_index=of_concentration,
        ideal_gini=of_ideal,
        exact=predicted.exact and observed.exact,
        **outcome,
    )


def _interval(
    sums: ConcentrationState, concentration: _Polygon, abc: CurveArea, level: float
) -> Range | None:
    """Interval of the area between the curves, or None for too few rows with an outcome."""
    rows = float(sums.weight.sum() ** 2 / sums.weight2.sum())
    # Student's interval misses too often for rare events and heavy tails, which are skewed.
    seen = float(sums.responses.sum() / np.sqrt(sums.squared_responses.sum())) ** 2
    if rows < 2.0 or not seen >= _FEWEST_OUTCOMES:
        return None
    # The area is Σw·y·c/Σw·y, where c is the share of the exposure that is above the row.
    above = 1.0 - 0.5 * (concentration.share[1:] + concentration.share[:-1])
    total = float(sums.responses.sum())
    factors = (above - concentration.area.value) / total
    # The curves do not depend on the scale of the predictions, and the residuals must not either.
    scale = total / float(sums.claimed.sum())
    squares = sums.squared_responses - 2.0 * scale * sums.products + scale**2 * sums.squared_claims
    # Rounding leaves small negative sums where all residuals of a cell are 0.
    error = float(np.linalg.norm(factors * np.sqrt(np.maximum(squares, 0.0))))
    half = student_half(error, rows, level) + abc.error
    # Squares of huge outcomes are beyond float64.
    return Range(abc.value - half, abc.value + half) if np.isfinite(half) else None


def _shares(corners: Floats) -> Floats:
    """Shares of the result: equally spaced, and the corners of a curve that has few of them."""
    # A curve of few predictions has visible corners, which equally spaced shares would cut off.
    even = np.linspace(0.0, 1.0, _SHARES + 1)
    return np.union1d(even, corners) if len(corners) <= _SHARES else even


def _refuse_negative(state: OrderedState, amount: int, noun: str) -> None:
    """Raise an OptionError if a prediction or an outcome, whose sum is row `amount`, is below 0."""
    # Keys of negative numbers are negative.  The least numbers come first.
    if len(state.keys) and state.keys[0] < 0:
        least = float(state.sums[amount, 0] / state.sums[1, 0])
        about = "" if state.exact else "about "
        raise OptionError(
            f"a concentration curve needs {noun} that are at least 0: the smallest is "
            f"{about}{least:g}"
        )
