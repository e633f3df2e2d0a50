"""Isotonic regression of quantiles and expectiles on predictions, and its mean loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibscale.array_types import Bools, Floats, Ints
from calibscale.compiled import isotonic_steps
from calibscale.statistics.isotonic import isotonic_regression

_MAX_STEPS = 1000  # steps of an isotonic curve in results


@dataclass(frozen=True)
class AsymmetricLoss:
    """Loss |1{y ≤ x} − level|·|x − y|^power, consistent for a quantile or an expectile.

    The power is 1 for quantiles, with the pinball loss, and 2 for expectiles.
    """

    level: float
    power: int

    @property
    def by_distance(self) -> bool:
        """Whether the rate at which the loss grows depends on the distance |x − y|."""
        return self.power == 2

    def of(self, x: Floats, y: Floats) -> Floats:
        """Loss of predictions x of outcomes y (c,)."""
        distances: Floats = np.abs(x - y) ** self.power
        return self.factors(y <= x) * distances

    def factors(self, is_below: Bools) -> Floats:
        """Factor of the loss of outcomes that are below the prediction, or not (c,)."""
        return np.where(is_below, 1.0 - self.level, self.level)


def isotonic_fit(loss: AsymmetricLoss, ends: Ints, y: Floats, weights: Floats) -> Floats:
    """Isotonic fit of groups of rows in the order of their predictions (g,).

    Among several quantiles of a fit, the middle of the least and the greatest fit is taken.

    Parameters
    ----------
    ends
        Index after the last row of each group (g,).
    y, weights
        Outcomes and positive weights of the rows (n,).
    """
    outcomes, ranks = np.unique(y, return_inverse=True)
    steps = isotonic_steps_of(loss.level, loss.by_distance, ends, y, ranks, weights, outcomes)
    if not loss.by_distance:
        # The greatest fit is the least one of mirrored rows.
        mirrored = isotonic_steps_of(
            1.0 - loss.level,
            False,
            ends[-1] - np.append(ends[-2::-1], 0),
            -y[::-1],
            len(outcomes) - 1 - ranks[::-1],
            weights[::-1],
            -outcomes[::-1],
        )
        greatest = len(outcomes) - 1 - mirrored[::-1]
        return 0.5 * outcomes[steps] + 0.5 * outcomes[greatest]
    # The side of each outcome is known from the steps, and with it the factor of its square.  The
    # fit is then a mean.
    sizes = np.diff(ends, prepend=0)
    factors = weights * loss.factors(ranks < np.repeat(steps, sizes))
    starts = ends - sizes
    totals = np.add.reduceat(factors, starts)
    means = np.add.reduceat(factors * y, starts) / totals
    return isotonic_regression(means, weights=totals).x


def isotonic_steps_of(
    level: float,
    by_distance: bool,
    ends: Ints,
    y: Floats,
    ranks: Ints,
    weights: Floats,
    thresholds: Floats,
) -> Ints:
    """Number of thresholds (m,) below the least isotonic fit of each group (g,).

    `ranks` (n,) are the numbers of thresholds below the outcomes.
    """
    steps = np.empty(len(ends), np.int64)
    rows = (np.ascontiguousarray(column) for column in (y, ranks, weights))
    isotonic_steps.set_steps(
        np.ascontiguousarray(ends),
        *rows,
        np.ascontiguousarray(thresholds),
        level,
        by_distance,
        steps,
    )
    return steps


def steps_table(low: Floats, high: Floats, fit: Floats, weight: Floats) -> dict[str, list[float]]:
    """Steps of an isotonic curve.  The lightest are left out where there are too many.

    `low` and `high` (g,) are the ends of the predictions with each value of the fit.
    """
    starts = np.append(0, np.flatnonzero(np.diff(fit) > 0) + 1)
    ends = np.append(starts[1:], len(fit)) - 1
    weights = np.add.reduceat(weight, starts)
    heaviest = np.sort(np.argsort(-weights, kind="stable")[:_MAX_STEPS])
    columns = {
        "low": low[starts],
        "high": high[ends],
        "observed": fit[starts],
        "weight": weights,
    }
    return {name: column[heaviest].tolist() for name, column in columns.items()}
