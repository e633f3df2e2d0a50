"""Murphy diagrams and risk–coverage curves, from the histogram of the score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.estimators.base import NO_CALIBRATED_VALUE
from calibscale.estimators.score_measures import ScoreError, ScoreMeasure, curve
from calibscale.results.estimate import Estimate
from calibscale.statistics.isotonic import isotonic_regression
from calibscale.statistics.score_histogram import OccupiedCells

_POINTS = 50  # intervals of thresholds, and of shares of the rows, of a Murphy diagram


def _scores(cells: OccupiedCells, k: Ints, thresholds: Floats) -> Floats:
    """Mean elementary score at each threshold, which the forecasts of the first k cells are below.

    A forecast that equals the threshold is below it.
    """
    missed = np.append(0.0, np.cumsum(cells.events))
    non_events = np.append(0.0, np.cumsum(cells.weight - cells.events))
    costs = (1.0 - thresholds) * missed[k] + thresholds * (non_events[-1] - non_events[k])
    return np.asarray(costs / cells.weight.sum())


def _fitted(cells: OccupiedCells, thresholds: Floats) -> Floats:
    """Mean elementary scores of the isotonic regression."""
    fit = isotonic_regression(cells.frequency, weights=cells.weight)
    # Blocks have increasing values.  All cells of the first blocks, up to θ, are below it.
    below = np.searchsorted(fit.x[fit.blocks[:-1]], thresholds, "right")
    return _scores(cells, fit.blocks[below], thresholds)


@dataclass(frozen=True)
class Murphy(ScoreError):
    """Largest miscalibration part of an elementary score, of any threshold θ.

    The elementary score S_θ of a decision by p > θ is θ for a row with p > θ and no event, 1 − θ
    for a row with p ≤ θ and the event, else 0 (Ehm, Gneiting, Jordan & Krüger 2016).  Every proper
    score is a mixture of them.  The Brier score of the event is 2∫S_θ dθ.  The isotonic regression
    f of the events minimises all of them among increasing maps of p, and the value is max_θ (S_θ(p)
    − S_θ(f)) ≥ 0, the loss of decisions for lack of recalibration, at the worst ratio of costs.
    The mean over θ is half the value of `CORP` (Dimitriadis et al. 2021).

    `details` has the `threshold` of the maximum, and the Murphy diagram as `murphy`: thresholds
    with their mean score, its miscalibration and its discrimination.  Noise biases it upwards.

    See Also
    --------
    CORP : Miscalibration part of the Brier score, without bins.
    ICI : Mean distance from the isotonic regression.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["murphy"])["murphy"].value, 4)
    0.15
    """

    name: ClassVar[str] = "murphy"

    def _parts(self, cells: OccupiedCells) -> tuple[Floats, Floats]:
        """Scores, and numbers just below, as thresholds, with the miscalibration at each (2c,)."""
        thresholds = np.append(cells.score, np.nextafter(cells.score, 0.0))
        first = np.arange(len(cells.score))
        scores = _scores(cells, np.append(first + 1, first), thresholds)
        return thresholds, scores - _fitted(cells, thresholds)

    def _size(self, cells: OccupiedCells) -> float:
        # The miscalibration is convex in θ between two scores, so that it is largest at one of
        # them.
        return float(self._parts(cells)[1].max())

    def _estimate(self, cells: OccupiedCells, *extra_states: Any) -> Estimate:
        thresholds, parts = self._parts(cells)
        best = thresholds[parts.argmax()]
        ranks = np.linspace(0, len(cells.score) - 1, _POINTS + 1).astype(int)
        even = np.linspace(0.0, 1.0, _POINTS + 1)
        thresholds = np.unique(np.concatenate([even, cells.score[ranks], [best]]))
        score = _scores(cells, np.searchsorted(cells.score, thresholds, "right"), thresholds)
        fitted = _fitted(cells, thresholds)
        rate = cells.share @ cells.frequency
        # Score of the constant forecast of the rate, which decides alike for all rows.
        constant = np.minimum(thresholds * (1.0 - rate), (1.0 - thresholds) * rate)
        return self._result(
            float(parts.max()),
            self._cell_error(cells),
            threshold=float(best),
            murphy=curve(
                threshold=thresholds,
                score=score,
                miscalibration=score - fitted,
                discrimination=constant - fitted,
            ),
        )

    @staticmethod
    def _cell_error(cells: OccupiedCells) -> float:
        """Bound of the error of the value from cells that join scores."""
        non_events = cells.weight - cells.events
        wide = cells.width > 0
        # Rows of a cell may lie on both sides of θ, and f may have a step within a cell.
        moved = np.maximum(
            (cells.score + cells.width) * non_events,
            (1.0 - cells.score + cells.width) * cells.events,
        )
        error = moved.max(initial=0.0, where=wide)
        error += (non_events * cells.events / cells.weight).max(initial=0.0, where=wide)
        return float(error / cells.weight.sum())


@dataclass(frozen=True)
class AURC(ScoreMeasure):
    """Area under the risk–coverage curve Σ_i w_i r_i/Σw of the top label.

    r_i is the error rate of the rows that are at least as confident as row i: the risk of a model
    that abstains from the others (Geifman & El-Yaniv 2017).  It is between 0 and 1, and small if
    errors have the lowest confidence.  It does not change with recalibration that keeps the order
    of confidences, and does not measure calibration.  Its bias is of the order log n/n, and the
    jackknife gives its interval.

    `details` has the `error_rate` r of all rows, the `excess` over the best order of the same
    errors, AURC − r − (1 − r) log(1 − r) (Geifman, Uziel & El-Yaniv 2019), and the curve as
    `risk_coverage`.

    See Also
    --------
    Accuracy : Share of correct top labels.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["aurc"])["aurc"].value, 4)
    0.5
    """

    notion: str | None = "top_label"
    name: ClassVar[str] = "aurc"
    fixed: ClassVar[tuple[str, ...]] = ("notion",)
    notions: ClassVar[tuple[str, ...]] = ("top_label",)
    no_floor: ClassVar[str | None] = NO_CALIBRATED_VALUE

    def _estimate(self, cells: OccupiedCells, *extra_states: Any) -> Estimate:
        # Cells are in the order of coverage, from the largest confidence on.
        weight, hits = cells.weight[::-1], cells.events[::-1]
        errors = np.maximum(weight - hits, 0.0)
        covered, failed = np.cumsum(weight), np.cumsum(errors)
        risk = failed / covered
        value, rate = float(weight @ risk / covered[-1]), float(risk[-1])
        # The order of rows is unknown within a cell that joins confidences.
        joined = np.where(cells.width[::-1] > 0, weight, 0.0) / covered[-1]
        error = float(joined @ _risk_ranges(hits, errors, covered, failed))
        # Area under the curve if all errors had the lowest confidence.
        best = rate + (1.0 - rate) * math.log1p(-rate) if rate < 1.0 else 1.0
        places = np.searchsorted(covered, np.linspace(0.0, covered[-1], 2 * _POINTS + 1))
        points = np.unique(np.minimum(places, len(risk) - 1))
        return self._result(
            value,
            error,
            excess=value - best,
            error_rate=rate,
            risk_coverage=curve(
                coverage=covered[points] / covered[-1],
                risk=risk[points],
                confidence=cells.score[::-1][points],
            ),
        )


def _risk_ranges(hits: Floats, errors: Floats, covered: Floats, failed: Floats) -> Floats:
    """Largest distance of the risk at a row of each cell from the risk after the cell (c,).

    `hits` and `errors` are the weights of correct and wrong rows of the cells.  `covered` and
    `failed` are the weights of all and of wrong rows up to the end of each cell.
    """
    risk = failed / covered
    # The risk is highest where all errors of the cell come first, after the last error.
    highest = failed / (covered - hits).clip(np.finfo(float).tiny)
    # It is lowest where all hits come first, after the last hit.
    covered_by_hits = covered - errors
    lowest = np.divide(
        failed - errors, covered_by_hits, np.zeros_like(risk), where=covered_by_hits > 0
    )
    return np.maximum(highest - risk, risk - lowest)
