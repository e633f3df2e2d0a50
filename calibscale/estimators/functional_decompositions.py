"""Decomposition of the scores of quantiles and expectiles by isotonic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.estimators.base import BoundEstimator, Estimator, without_rows
from calibscale.estimators.isotonic_fits import (
    AsymmetricLoss,
    isotonic_fit,
    isotonic_steps_of,
    steps_table,
)
from calibscale.kernels.data_profile import DataProfile
from calibscale.results.estimate import EXACT, Approximation, Estimate
from calibscale.statistics.forecast_totals import ForecastState, ForecastTotals
from calibscale.statistics.outcome_pairs import CellPairs, OutcomePairs, OutcomePairState
from calibscale.statistics.statistic import Statistic

_PREDICTION_CELLS, _OUTCOME_CELLS = 4000, 300  # between the ends of a sample
_OUTER_CELLS = 24  # on each side of the sample, each twice as wide as the one before
_FINEST = 16.0  # part of the tail of a sample that the first outer cell has
_TAIL = 0.01  # share of a sample in each tail


@dataclass(frozen=True)
class FunctionalDecomposition(BoundEstimator):
    """Miscalibration of the loss of quantiles or expectiles, see `Decomposition`.

    Up to 2^20 different pairs of a prediction and an outcome are kept.  Beyond that, pairs are in
    cells of about 4,000 ranges of predictions and 300 ranges of outcomes, which are quantiles of a
    sample of rows.  The parts then are bounded from both sides.  The loss of a map of the cells of
    predictions is an upper bound of the smallest loss of increasing maps.  The lower bound has the
    outcomes of each cell of predictions in increasing order, which no order of the predictions in
    the cell improves, and the outcomes of a cell at their mean, by Jensen's inequality.
    """

    settings: Estimator
    pairs: OutcomePairs
    loss: AsymmetricLoss
    score: Any
    name = "decomposition"
    notion = "prediction"

    @property
    def no_interval(self) -> str | None:
        return getattr(self.settings, "no_interval", None)

    @property
    def no_floor(self) -> str | None:
        return getattr(self.settings, "no_floor", None)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (self.pairs, ForecastTotals(self.score))

    def finalize(self, *states: Any) -> Estimate:
        pairs: OutcomePairState
        totals: ForecastState
        pairs, totals = states
        if not totals.weight > 0:
            return without_rows(self)
        score = float(totals.totals[0] / totals.weight)
        if pairs.exact:
            parts = _exact_parts(self.loss, pairs.sorted())
        else:
            parts = _bounded_parts(self.loss, self.pairs.occupied(pairs), score)
        return Estimate(
            self.name,
            self.notion,
            parts.miscalibration,
            n=int(totals.n),
            approximation=Approximation("cells", parts.error) if parts.error else EXACT,
            parameters={"level": self.loss.level},
            details={
                "discrimination": parts.discrimination,
                "uncertainty": score - parts.miscalibration + parts.discrimination,
                "score": score,
                "steps": parts.steps,
            },
        )


def outcome_pairs(profile: DataProfile) -> OutcomePairs:
    """Pairs with cells of about as many rows each, from a sample of rows."""
    target: Any = profile.source.target
    parameters = profile.sample("canonical").parameters
    predictions = target.ordered_by(parameters[:, :-1])
    outcomes = parameters[:, -1]
    return OutcomePairs(
        _edges(predictions, _PREDICTION_CELLS),
        _edges(outcomes[np.isfinite(outcomes)], _OUTCOME_CELLS),
        None if profile.is_stream else profile.rows,
    )


def _edges(sample: Floats, count: int) -> tuple[float, ...]:
    """Edges at quantiles of a sample, and beyond its ends at distances that double."""
    if not len(sample):
        return (0.0,)
    levels = np.linspace(0.0, 1.0, count + 1)
    inner = np.unique(np.quantile(sample, levels))
    low, lower, upper, high = np.quantile(sample, [0.0, _TAIL, 1.0 - _TAIL, 1.0])
    # A sample of one number has the scale of that number.
    smallest = max(float(np.spacing(max(abs(low), abs(high), 1.0))), 1e-9 * (high - low))
    widths = 2.0 ** np.arange(_OUTER_CELLS)
    below = low - max(lower - low, smallest) / _FINEST * widths
    above = high + max(high - upper, smallest) / _FINEST * widths
    edges = np.unique(np.concatenate([below, inner, above]))
    return tuple(edges[np.isfinite(edges)].tolist())


# ---------------------------------------------------------------- parts of the score


class DecomposedScore(NamedTuple):
    """Miscalibration and discrimination, a bound of their error, and steps of the curve."""

    miscalibration: float
    discrimination: float
    error: float
    steps: dict[str, list[float]]


def _exact_parts(loss: AsymmetricLoss, pairs: OutcomePairState) -> DecomposedScore:
    """Parts from pairs of a prediction and an outcome, in order."""
    x, y, weights = pairs.x, pairs.y, pairs.weights
    ends = np.append(np.flatnonzero(np.diff(x)) + 1, len(x))
    fit = isotonic_fit(loss, ends, y, weights)
    fitted = loss.of(np.repeat(fit, np.diff(ends, prepend=0)), y)
    constant = loss.of(isotonic_fit(loss, ends[-1:], y, weights), y)
    total = weights.sum()
    # Differences of the losses of rows keep the digits of small parts.
    miscalibration = weights @ (loss.of(x, y) - fitted) / total
    discrimination = weights @ (constant - fitted) / total
    starts = ends - np.diff(ends, prepend=0)
    steps = steps_table(x[starts], x[starts], fit, np.add.reduceat(weights, starts))
    return DecomposedScore(float(miscalibration), float(discrimination), 0.0, steps)


def _bounded_parts(loss: AsymmetricLoss, cells: CellPairs, score: float) -> DecomposedScore:
    """Parts from cells, with the losses of maps that exist, and bounds of the smallest losses."""
    together = cells.by_outcome()
    fit, of_fit = increasing_map(loss, cells)
    _, of_constant = increasing_map(loss, together)
    # The predictions as they are, and a constant, are increasing maps as well.
    least = min(of_fit, of_constant, score)
    each = np.arange(1, len(cells.mean) + 1)
    error = max(
        least - _lower_bound(loss, cells, each),
        of_constant - _lower_bound(loss, together, together.ends),
    )
    starts = cells.ends - np.diff(cells.ends, prepend=0)
    weights = np.add.reduceat(cells.weight, starts)
    steps = steps_table(cells.first, cells.last, fit, weights)
    return DecomposedScore(score - least, of_constant - least, error, steps)


def increasing_map(loss: AsymmetricLoss, cells: CellPairs) -> tuple[Floats, float]:
    """Increasing map of the cells of predictions (g,), and a bound of its mean loss from above."""
    fit = isotonic_fit(loss, cells.ends, cells.mean, cells.weight)
    if not loss.by_distance:
        fit = _at_ends(fit, cells)
    x = np.repeat(fit, np.diff(cells.ends, prepend=0))
    is_below, is_above = cells.high[cells.column] <= x, cells.low[cells.column] >= x
    losses = loss.of(x, cells.mean)
    if loss.by_distance:
        # Of a cell with outcomes on both sides, the variance has the larger factor at most.
        larger = max(loss.level, 1.0 - loss.level)
        factors = np.where(is_below | is_above, loss.factors(is_below), larger)
        losses += factors * cells.variance
    return fit, _mean(losses, cells.weight)


def _at_ends(fit: Floats, cells: CellPairs) -> Floats:
    """Fit (g,) that is moved out of cells of outcomes, whose pinball loss is then exact."""
    column = np.minimum(np.searchsorted(cells.high, fit), len(cells.high) - 1)
    low, high = cells.low[column], cells.high[column]
    nearest = np.where(fit - low < high - fit, low, high)
    return np.where((low < fit) & (fit < high), nearest, fit)


def _lower_bound(loss: AsymmetricLoss, cells: CellPairs, ends: Ints) -> float:
    """Bound from below of the mean loss of increasing maps of groups of cells."""
    fit = isotonic_fit(loss, ends, cells.mean, cells.weight)
    sizes = np.diff(ends, prepend=0)
    losses = loss.of(np.repeat(fit, sizes), cells.mean)
    if loss.by_distance:
        # A smallest loss has its fit between two ends of cells of outcomes.  The outcomes of all
        # other cells are then on one side of it, and have the variance with the factor of that.
        steps = isotonic_steps_of(
            loss.level, True, ends, cells.mean, cells.column, cells.weight, cells.high
        )
        step = np.repeat(steps, sizes)
        smaller = min(loss.level, 1.0 - loss.level)
        known = loss.factors(cells.column < step)
        losses += np.where(cells.column == step, smaller, known) * cells.variance
    return _mean(losses, cells.weight)


def _mean(losses: Floats, weights: Floats) -> float:
    return float(weights @ losses / weights.sum())
