"""Isotonic regression of outcomes on predictions of means and quantiles, by one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError
from calibscale.estimators.functional_decompositions import increasing_map, outcome_pairs
from calibscale.estimators.isotonic_fits import AsymmetricLoss, isotonic_fit
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.claims import QUANTILES
from calibscale.recalibration.recalibrator import Read
from calibscale.statistics.ordered_sums import OrderedState, OrderedSums
from calibscale.statistics.outcome_pairs import OutcomePairState
from calibscale.statistics.score_histogram import steps

_BY_MEAN = OrderedSums()
_MEAN_BITS = 40  # of a mean outcome, about 12 decimals


class OutcomeSteps(NamedTuple):
    """Isotonic regression: knots and values (k,), number of steps, rows of the fit, and notes."""

    knots: Floats
    values: Floats
    number: int
    rows: RowCounts
    notes: tuple[str, ...] = ()


def steps_of_outcomes(name: str, setup: DataProfile, read: Read) -> OutcomeSteps:
    """Isotonic regression of the outcomes of means or quantiles, by one pass.

    An OptionError with the `name` of the method is raised if a step is no valid prediction.
    """
    target: Any = setup.source.target
    if target.claim == QUANTILES:
        regression = _quantile_steps(target.level, setup, read)
    else:
        regression = _mean_steps(read)
    status = np.zeros(len(regression.values), np.int64)
    target.check_values(regression.values[:, None], status)
    if status.any():
        first = int(np.argmax(status != 0))
        reason = target.explained(status[first], regression.values[[first]], np.nan)
        remedy = "" if target.claim == QUANTILES else "; balance keeps positive means"
        raise OptionError(f"{name}: of a step, {reason}{remedy}")
    return regression


def _mean_steps(read: Read) -> OutcomeSteps:
    """Steps of mean outcomes."""
    result = read(_BY_MEAN)
    ordered: OrderedState = result.groups[None][_BY_MEAN]
    _, weight, predictions, residuals = ordered.sums[:, ordered.sums[1] > 0]
    # Rounding may raise a mean above the next.
    x = np.maximum.accumulate(predictions / weight)
    y = x - residuals / weight
    # The rounding errors of sums would add steps.  They are relative to the larger of both numbers.
    _, exponents = np.frexp(np.maximum(np.abs(x), np.abs(y)))
    y = np.ldexp(np.rint(np.ldexp(y, _MEAN_BITS - exponents)), exponents - _MEAN_BITS)
    knots, values, count = steps(x, y, weight)
    notes: tuple[str, ...] = ()
    if not ordered.exact:
        notes = (f"means are in cells of a relative width of {ordered.cell_width:.2g}",)
    return OutcomeSteps(knots, values, count, result.counts, notes)


def _quantile_steps(level: float, setup: DataProfile, read: Read) -> OutcomeSteps:
    """Steps of quantiles of outcomes, from pairs of a prediction and an outcome or their cells."""
    pairs, loss = outcome_pairs(setup), AsymmetricLoss(level, 1)
    result = read(pairs)
    state: OutcomePairState = result.groups[None][pairs]
    notes: tuple[str, ...] = ()
    if state.exact:
        state = state.sorted()
        ends = np.append(np.flatnonzero(np.diff(state.x)) + 1, len(state.x))
        fit = isotonic_fit(loss, ends, state.y, state.weights)
        first = last = state.x[ends - 1]
    else:
        cells = pairs.occupied(state)
        fit, _ = increasing_map(loss, cells)
        first, last = cells.first, cells.last
        notes = (
            f"pairs of a prediction and an outcome are in cells of {len(cells.first):,} and "
            f"{len(cells.low):,} ranges",
        )
    starts = np.append(0, np.flatnonzero(np.diff(fit)) + 1)
    ends = np.append(starts[1:], len(fit)) - 1
    knots = np.column_stack([first[starts], last[ends]]).ravel()
    values = np.repeat(fit[starts], 2)
    # A step of one prediction has one knot.
    is_new = np.append(True, np.diff(knots) > 0)
    return OutcomeSteps(knots[is_new], values[is_new], len(starts), result.counts, notes)
