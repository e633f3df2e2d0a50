"""Measures of a scalar prediction that need no bins, from the histogram of its score."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import stdtrit

from calibscale.array_types import Floats
from calibscale.estimators.base import ScalarEstimator, bound_notion, without_rows
from calibscale.results.estimate import EXACT, Approximation, Estimate, Floor
from calibscale.statistics.bins import BinState, FineHistogram, residual_draws, shared_residuals
from calibscale.statistics.isotonic import isotonic_regression
from calibscale.statistics.ratios import ratio
from calibscale.statistics.score_histogram import OccupiedCells, ScoreHistogram, cells_of, scores_of
from calibscale.statistics.score_sums import LabelVariances, ScalarScores, SquareState
from calibscale.statistics.statistic import Statistic

_MAX_STEPS, _ROUNDING = 1000, 1e-12  # steps of an isotonic curve in results, and their least height
_CELLS = 4096  # cells that events are drawn for
# `ScoreError.floor_draws` of walks, which need few cells and are fast.
WALK_DRAWS = 16_383, 256, 24
_BAND_DRAWS, _POINTS = 100, 101  # draws of the band, and points of curves in results


@dataclass(frozen=True)
class ScoreMeasure(ScalarEstimator):
    """Base class of measures from `ScoreHistogram`, in one pass and 4 MB of memory.

    Scores are exact while there are at most 65,536 different ones.  Beyond that, cells replace
    them, with a width of at most 1/512 of the distance to 0 or 1, and `approximation` bounds the
    effect.

    Parameters
    ----------
    notion : {"top_label", "positive"}, optional
        Default: ``positive`` for two classes, else ``top_label``.
    """

    notion: str | None = None
    fixed_cells: bool = field(default=False, repr=False, kw_only=True)  # states that are added
    by_default: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[Statistic, ...]:
        if not self.fixed_cells:
            return (ScoreHistogram(bound_notion(self)),)
        cells = FineHistogram(bound_notion(self))
        return (cells, LabelVariances(cells))

    def mergeable(self, classes: int) -> Self:
        return replace(self, fixed_cells=True)

    @property
    def parted(self) -> Self:
        return self if self.fixed_cells else replace(self, fixed_cells=True)

    def _cells(self, *states: Any) -> OccupiedCells:
        """Occupied cells of the states of `needs`, which begin with the histogram's."""
        return scores_of(cells_of(*states) if self.fixed_cells else states[0])

    def finalize(self, *states: Any) -> Estimate:
        scores = self._cells(*states)
        if not len(scores.score):
            return without_rows(self)
        extra_states = states[2 if self.fixed_cells else 1 :]
        return replace(self._estimate(scores, *extra_states), n=int(states[0].sums[0].sum()))

    @abstractmethod
    def _estimate(self, scores: OccupiedCells, *extra_states: Any) -> Estimate:
        """Estimate from the occupied cells, at least one."""

    def _result(self, value: float, error: float = 0.0, **details: Any) -> Estimate:
        near = Approximation("cells", error) if error > 0.0 else EXACT
        return Estimate(self.name, bound_notion(self), value, approximation=near, details=details)


class ScoreError(ScoreMeasure):
    """Measure with its smallest values at calibrated predictions.

    `floor_draws` are the number of draws of events for a floor, the number of cells, made of
    neighbours, that they are for, and a number of draws for all cells, which give the mean effect
    of joining cells.
    """

    floor_draws: ClassVar[tuple[int, int, int]] = (1999, _CELLS, 24)
    testable: ClassVar[bool] = True
    no_interval: ClassVar[str | None] = (
        "the value of a calibrated model is at the end of the range, and has no normal limit"
    )

    @property
    def floor_needs(self) -> tuple[Statistic, ...]:
        return self.needs[: 2 if self.fixed_cells else 1]

    def floor(self, *states: Any) -> Floor:
        cells = self._cells(*states)
        (draws, most, full_draws) = self.floor_draws
        joined = cells.coarse(most)
        parts = np.array_split(drawn_residuals(joined, draws), 16)
        sizes = np.concatenate([self._sizes(joined, part) for part in parts])
        if joined is not cells and full_draws:
            drawn = drawn_residuals(cells, full_draws)
            # Joining cells changes all sizes by about the same amount, which few draws for all
            # cells estimate.
            coarse = (replicate.coarse(most) for replicate in _with_residuals(cells, drawn))
            sizes += self._sizes(cells, drawn).mean() - np.mean([*map(self._size, coarse)])
        mean = self._mean(cells)
        # A mean in closed form corrects the mean of finitely many draws.
        sizes *= 1.0 if mean is None or not sizes.any() else mean / sizes.mean()
        return Floor.of(sizes, self._size(cells))

    def _sizes(self, cells: OccupiedCells, residuals: Floats) -> Floats:
        """Values for residuals Σwδ of the cells (B, c)."""
        return np.array([*map(self._size, _with_residuals(cells, residuals))])

    def _mean(self, cells: OccupiedCells) -> float | None:
        """Mean over drawn labels, where it has a closed form."""
        return None

    def cell_values(self, states: Sequence[Any], seed: int, replicates: range) -> Iterator[float]:
        rngs = (np.random.default_rng([seed, replicate]) for replicate in replicates)
        return map(self._size, _drawn_cells(self._cells(*states), rngs))

    @abstractmethod
    def _size(self, cells: OccupiedCells) -> float:
        """Value, computed from the cells alone."""


def drawn_residuals(cells: OccupiedCells, draws: int) -> Floats:
    """Residuals of cells (draws, c) for drawn labels, which all measures of the cells share."""
    columns = (cells.score, cells.weight, cells.effective, cells.variance)
    return shared_residuals(draws, *(column.tobytes() for column in columns))


def _with_residuals(cells: OccupiedCells, residuals: Iterable[Floats]) -> Iterator[OccupiedCells]:
    """Cells with the events that residuals Σwδ (c,) each leave."""
    expected = cells.weight * cells.score
    return (cells._replace(events=expected - residual) for residual in residuals)


def _drawn_cells(
    cells: OccupiedCells, rngs: Iterable[np.random.Generator]
) -> Iterator[OccupiedCells]:
    """Cells with events that each generator draws from the scores."""
    draw = residual_draws(cells.score, cells.weight, cells.effective, cells.variance)
    return _with_residuals(cells, (draw(1, rng)[0] for rng in rngs))


def curve(**columns: Floats) -> dict[str, list[float]]:
    """Columns of a curve as lists, for results."""
    return {name: values.tolist() for name, values in columns.items()}


# ---------------------------------------------------------------- cumulative differences


class _Cumulative(ScoreError):
    """Base class of sizes of the walk C_j = Σ_{i ≤ j} w_i (event_i − p_i)/Σw over sorted scores."""

    floor_draws: ClassVar[tuple[int, int, int]] = WALK_DRAWS

    def _sizes(self, cells: OccupiedCells, residuals: Floats) -> Floats:
        return self._of_walks(walk(cells, residuals))

    def _size(self, cells: OccupiedCells) -> float:
        return float(self._of_walks(walk(cells)))

    @abstractmethod
    def _of_walks(self, walks: Floats) -> Floats:
        """Sizes of walks, along the last axis."""

    def _estimate(self, cells: OccupiedCells, *extra_states: Any) -> Estimate:
        value, total = self._size(cells), float(cells.weight.sum())
        sigma = math.sqrt(cells.variance.sum()) / total
        # Within a cell the walk rises by at most its events, and falls by at most Σwp.
        inner = np.where(cells.width > 0, np.maximum(cells.events, cells.weight * cells.score), 0)
        scaled = value / sigma if sigma > 0 else None
        reached = walk(cells)
        share = np.append(0.0, np.cumsum(cells.share))
        places = np.searchsorted(share, np.linspace(0.0, 1.0, _POINTS)).clip(0, len(share) - 1)
        # Results have evenly spaced points of the walk, and its extremes.
        points = np.unique([*places, reached.argmin(), reached.argmax()])
        drawn = curve(
            share=share[points],
            score=cells.score[np.maximum(points - 1, 0)],
            difference=reached[points],
            sigma=np.sqrt(np.append(0.0, np.cumsum(cells.variance)))[points] / total,
        )
        error = float(inner.max()) / total
        return self._result(value, error, sigma=sigma, scaled=scaled, walk=drawn)


def walk(cells: OccupiedCells, residuals: Floats | None = None) -> Floats:
    """Cumulative differences after each cell, from 0 on (c + 1,), or for residuals (B, c)."""
    if residuals is None:
        residuals = cells.weight * cells.score - cells.events
    out = np.zeros((*residuals.shape[:-1], residuals.shape[-1] + 1))
    np.cumsum(residuals, axis=-1, out=out[..., 1:])
    out /= -cells.weight.sum()
    return out


@dataclass(frozen=True)
class ECCEMAD(_Cumulative):
    """Largest cumulative difference max_j |C_j| of events and predictions in order of the score.

    C_j = Σ_{i ≤ j} w_i (event_i − p_i)/Σw, the ECCE-MAD of Arrieta-Ibarra et al. (2022) and the
    Kolmogorov–Smirnov statistic of calibration.  The error is not squared and has the unit of a
    probability.  It has no bins and nothing to choose.  A large value means that predictions of
    some range below a score are off on average.  `details` has `sigma`, the standard deviation of
    the last C of a calibrated model, `scaled`, the value divided by it, and the `walk`.

    See Also
    --------
    ECCERange : Range of the cumulative differences.
    ECE : Mean distance of bins from calibration.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["ecce_mad"])["ecce_mad"].value, 4)
    0.15
    """

    name: ClassVar[str] = "ecce_mad"

    def _of_walks(self, walks: Floats) -> Floats:
        return np.abs(walks).max(axis=-1)


@dataclass(frozen=True)
class ECCERange(_Cumulative):
    """Range max_j C_j − min_j C_j of cumulative differences in order of the score.

    The ECCE-R of Arrieta-Ibarra et al. (2022) and Kuiper's statistic of calibration: the
    largest total difference Σw(event − p)/Σw over any range of scores.  See `ECCEMAD`.

    See Also
    --------
    ECCEMAD : Largest cumulative difference.
    Multicalibration : Largest error of intersections of covariates.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["ecce_range"])["ecce_range"].value, 4)
    0.15
    """

    name: ClassVar[str] = "ecce_range"

    def _of_walks(self, walks: Floats) -> Floats:
        return np.ptp(walks, axis=-1)


# ---------------------------------------------------------------- isotonic regression


def isotonic(cells: OccupiedCells) -> Floats:
    """Isotonic regression of the events on the score (c,)."""
    return isotonic_regression(cells.frequency, weights=cells.weight).x


def _brier(frequency: Floats, forecast: Floats, share: Floats) -> float:
    """Mean squared error of forecasts of events with frequencies by cell."""
    return float(share @ (frequency * (1.0 - forecast) ** 2 + (1.0 - frequency) * forecast**2))


def _refined(cells: OccupiedCells) -> float:
    """Lower bound of the Brier score of isotonic regression of the rows: zeros first in cells."""
    outcomes = np.tile([0.0, 1.0], len(cells.score))
    weights = np.column_stack([cells.weight - cells.events, cells.events]).ravel()
    occupied = weights > 0
    fit = isotonic_regression(outcomes[occupied], weights=weights[occupied]).x
    return _brier(outcomes[occupied], fit, weights[occupied] / weights.sum())


@dataclass(frozen=True)
class CORP(ScoreError):
    """Miscalibration of the Brier score by isotonic regression (CORP, Dimitriadis et al. 2021).

    The Brier score of the event is miscalibration − discrimination + uncertainty, with the isotonic
    regression of the events on the score as the recalibrated forecast.  The value is the
    miscalibration, a squared error.  `details` has the other parts, the score, the steps of the
    reliability curve (lowest and highest score, frequency, weight), and the `band` of 95 % of these
    curves for labels drawn from the predictions.  It needs no bins.  Recalibration that is fitted
    to the same rows biases it upwards, and only increasing maps are considered.

    See Also
    --------
    BrierDecomposition : Calibration and refinement parts of the Brier score.
    ICI : Mean distance from the isotonic regression.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["corp"])["corp"].value, 4)
    0.065
    """

    name: ClassVar[str] = "corp"

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (*super().needs, ScalarScores(bound_notion(self)))

    def _size(self, cells: OccupiedCells) -> float:
        frequency, share = cells.frequency, cells.share
        score = _brier(frequency, cells.score, share)
        return score - _brier(frequency, isotonic(cells), share)

    def _estimate(self, cells: OccupiedCells, *extra_states: Any) -> Estimate:
        (exact,) = extra_states
        score = float(exact.squared / exact.weight)
        fit, share = isotonic(cells), cells.share
        recalibrated = _brier(cells.frequency, fit, share)
        # Isotonic regression of single rows fits at least as well as of cells, and at most as well
        # as with zeros first in every cell.
        error = recalibrated - _refined(cells) if cells.width.any() else 0.0
        rate = float(share @ cells.frequency)
        uncertainty = rate * (1.0 - rate)
        estimate = self._result(
            score - recalibrated,
            error,
            discrimination=uncertainty - recalibrated,
            uncertainty=uncertainty,
            score=score,
            steps=_steps(cells, fit),
            band=_band(cells),
        )
        return replace(estimate, squared=True)


def _band(cells: OccupiedCells) -> dict[str, list[float]]:
    """Range of 95 % of the isotonic curves of events that are drawn from the scores."""
    cells = cells.coarse(_CELLS)
    points = np.unique(np.linspace(0, len(cells.score) - 1, _POINTS).astype(int))
    drawn = _drawn_cells(cells, [np.random.default_rng(0)] * _BAND_DRAWS)
    curves = [isotonic(replicate)[points] for replicate in drawn]
    # Pointwise quantiles, without a claim on the whole curve.
    low, high = np.quantile(curves, [0.025, 0.975], axis=0)
    return curve(score=cells.score[points], low=low, high=high)


def _steps(cells: OccupiedCells, fit: Floats) -> dict[str, list[float]]:
    """Steps of an isotonic curve.  The shortest are left out where there are too many."""
    starts = np.append(0, np.flatnonzero(np.diff(fit) > _ROUNDING) + 1)
    ends = np.append(starts[1:], len(fit)) - 1
    weight = np.add.reduceat(cells.weight, starts)
    longest = np.sort(np.argsort(-weight, kind="stable")[:_MAX_STEPS])
    low = cells.score[starts[longest]]
    high = cells.score[ends[longest]]
    return curve(low=low, high=high, frequency=fit[starts[longest]], weight=weight[longest])


@dataclass(frozen=True)
class ICI(ScoreError):
    """Integrated calibration index Σw|p − f(p)|/Σw with the isotonic regression f.

    After Austin & Steyerberg (2019), with isotonic regression, which has nothing to choose, instead
    of loess.  The error is not squared and has the unit of a probability.  `details` has the median
    `e50`, the 90 % quantile `e90` and the maximum `emax` of |p − f(p)| over the rows.  Noise biases
    it upwards.  Its lower limit holds for the mean distance of p from the frequency given p.  Its
    upper limit holds for the index, which equals this distance where the frequency increases with
    p.

    See Also
    --------
    ECE : Mean distance of bins from calibration.
    CORP : Miscalibration part of the Brier score, without bins.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["ici"])["ici"].value, 4)
    0.25
    """

    name: ClassVar[str] = "ici"
    no_interval: ClassVar[str | None] = None

    def low_of_groups(self, confidence_level: float, states: Sequence[Any], counted: bool) -> float:
        """Lower limit from signs of p − f(p) that are fitted to a third of the groups of rows.

        The mean of s(p)(p − event) is at most the mean distance of p from the frequency for any
        signs s, and the other groups, which had no part in the fit, estimate it without bias.
        Fits to all groups but one would share their noise, and the limit would be too high.
        """
        histogram, variances = states[:2]
        # A third of the groups fits the signs, two thirds estimate the mean.
        fitted = np.arange(len(histogram.sums)) % 3 == 0
        squares = SquareState(variances.squares[fitted].sum(axis=0))
        cells = self._cells(BinState(histogram.sums[fitted].sum(axis=0)), squares)
        sums = histogram.sums[~fitted]
        sums = sums[sums[:, 1].sum(axis=1) > 0]
        if not len(cells.score) or len(sums) < 2:
            return 0.0
        _, weight, _, predicted, _ = sums.sum(axis=0)
        # The mean and its standard error over groups, with Student's quantile for few groups.
        score = ratio(predicted, weight)
        signs = np.sign(score - np.interp(score, cells.score, isotonic(cells)))
        weights = sums[:, 1].sum(axis=1)
        by_group = sums[:, 4] @ signs / weights
        share = weights / weights.sum()
        freedom = 1.0 / float(share @ share) - 1.0
        mean = float(share @ by_group)
        error = math.sqrt(
            float(share**2 @ (by_group - mean) ** 2) * len(by_group) / (len(by_group) - 1)
        )
        return max(mean - float(stdtrit(freedom, 0.5 + confidence_level / 2)) * error, 0.0)

    def _size(self, cells: OccupiedCells) -> float:
        return float(cells.share @ np.abs(cells.score - isotonic(cells)))

    def _estimate(self, cells: OccupiedCells, *extra_states: Any) -> Estimate:
        fit = isotonic(cells)
        distance = np.abs(cells.score - fit)
        order = np.argsort(distance, kind="stable")
        reached = np.cumsum(cells.share[order])
        ranks = np.minimum(np.searchsorted(reached, [0.5 - 1e-12, 0.9 - 1e-12]), len(order) - 1)
        e50, e90 = distance[order[ranks]].tolist()
        error = 0.0
        if cells.width.any():
            # The mean of |f of rows − f of cells|² is at most the gain of the finer fit.
            gain = _brier(cells.frequency, fit, cells.share) - _refined(cells)
            error = float(cells.share @ cells.width) + math.sqrt(max(gain, 0.0))
        return self._result(self._size(cells), error, e50=e50, e90=e90, emax=float(distance.max()))
