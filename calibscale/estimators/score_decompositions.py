"""Decomposition of consistent scores of functionals by isotonic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import xlogy

from calibscale.array_types import Floats
from calibscale.errors import require
from calibscale.estimators.base import BoundEstimator, SimpleEstimator, without_rows
from calibscale.estimators.forecast_scores import PinballLoss
from calibscale.estimators.functional_decompositions import FunctionalDecomposition, outcome_pairs
from calibscale.estimators.functional_measures import Deviance, ExpectileLoss
from calibscale.estimators.isotonic_fits import AsymmetricLoss, steps_table
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import EXCEEDANCES, EXPECTILES, MEANS, QUANTILES
from calibscale.results.estimate import EXACT, Approximation, Estimate
from calibscale.statistics.forecast_totals import ForecastState
from calibscale.statistics.isotonic import isotonic_regression
from calibscale.statistics.ordered_sums import OrderedState, OrderedSums
from calibscale.statistics.statistic import Statistic


@dataclass(frozen=True)
class Decomposition(SimpleEstimator):
    """Miscalibration of a score: what an increasing map of the predictions improves.

    The score is miscalibration − discrimination + uncertainty.  It is the squared error or a
    deviance of means, the squared error of exceedances, the pinball loss of quantiles, and the
    asymmetric squared error of expectiles.  The recalibrated prediction is the isotonic regression
    of the outcomes on the prediction, which is the best increasing map for every consistent score
    [Jordan, Mühlemann & Ziegel, AISM 74 (2022); Gneiting & Resin, EJS 17 (2023)].  Discrimination
    is how much it improves on the best constant, and uncertainty is the score of that constant
    [Fissler, Lorentzen & Mayer, arXiv:2202.12780, eq. 8].

    The value is the miscalibration, in the unit of the score.  `details` has the other parts, the
    score, and the steps of the isotonic curve: lowest and highest prediction, observed functional
    and weight.  The observed quantile is the middle of the least and the greatest isotonic fit,
    where they differ.  The parts do not depend on this choice.  A map that is fitted to the same
    rows biases the miscalibration upwards, and only increasing maps are considered.

    Means with more than 65,536 different predictions are in cells of a relative width of 2⁻¹² or
    more.  Quantiles and expectiles with more than 2²⁰ different pairs of a prediction and an
    outcome are in cells of both.  `approximation` then has the error, which for quantiles and
    expectiles is a bound.

    Parameters
    ----------
    power : float
        Power of the mean in the variance of the Tweedie family of the score: 0 for the squared
        error, 1 for the Poisson and 2 for the gamma deviance, see `Deviance`.  For means and
        exceedances.

    See Also
    --------
    CORP : The same for the Brier score of events.
    Deviance, SquaredError, PinballLoss, ExpectileLoss : The scores.
    KCE : Kernel error, without the bias of a fit.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[1.0, 2.0, 3.0, 4.0], forecast="mean", labels=[1.0, 4.0, 2.0, 6.0]
    ... )
    >>> parts = cs.evaluate(data, "decomposition")["decomposition"]
    >>> parts.value, parts.details["discrimination"], parts.details["uncertainty"]
    (1.75, 3.1875, 3.6875)
    """

    power: float = 0.0
    name: ClassVar[str] = "decomposition"
    judges: ClassVar[tuple[str, ...]] = (MEANS, EXCEEDANCES, QUANTILES, EXPECTILES)
    by_default: ClassVar[bool] = False
    no_interval: ClassVar[str | None] = (
        "the value of a calibrated model is at the end of the range, and has no normal limit"
    )
    no_floor: ClassVar[str | None] = "sums by prediction have no replicates, unlike those of kce"
    notion = "prediction"

    def __post_init__(self) -> None:
        require(self.power == 0 or self.power >= 1, "power must be 0 or at least 1", self.power)

    def bind(self, profile: DataProfile) -> BoundEstimator:
        target: Any = profile.source.target
        if target.claim not in (QUANTILES, EXPECTILES):
            return self
        require(self.power == 0, f"power is for means, and there are {target.in_words}", self.power)
        is_quantile = target.claim == QUANTILES
        loss = AsymmetricLoss(target.level, 1 if is_quantile else 2)
        score = PinballLoss((target.level,)) if is_quantile else ExpectileLoss()
        return FunctionalDecomposition(self, outcome_pairs(profile), loss, score)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (OrderedSums(), *Deviance(self.power).needs)

    def finalize(self, *states: Any) -> Estimate:
        ordered: OrderedState
        totals: ForecastState
        ordered, totals = states
        if not totals.weight > 0:
            return without_rows(self)
        score = float(totals.totals[0] / totals.weight)
        miscalibration, discrimination, steps = _parts(ordered, self.power)
        near = EXACT
        if not ordered.exact:
            # Doubling the width of the cells changes the parts by more than their width has changed
            # them.  The factor is a margin.
            coarse, coarse_discrimination, _ = _parts(ordered.coarser(), self.power)
            changes = (miscalibration - coarse, discrimination - coarse_discrimination)
            near = Approximation("cells", 2.0 * max(map(abs, changes)))
        return Estimate(
            self.name,
            self.notion,
            miscalibration,
            n=int(ordered.sums[0].sum()),
            approximation=near,
            parameters={"power": self.power},
            details={
                "discrimination": discrimination,
                "uncertainty": score - miscalibration + discrimination,
                "score": score,
                "steps": steps,
            },
        )


def _parts(ordered: OrderedState, power: float) -> tuple[float, float, dict[str, list[float]]]:
    """Miscalibration, discrimination, and steps of the isotonic curve."""
    _, weight, predictions, residuals = ordered.sums[:, ordered.sums[1] > 0]
    # Means of rows with one prediction, or in one cell.
    x = predictions / weight
    y = x - residuals / weight
    fit = isotonic_regression(y, weights=weight).x
    mean = np.full(len(y), (weight @ y) / weight.sum())
    share = weight / weight.sum()
    miscalibration = float(share @ _improvement(y, x, fit, power))
    discrimination = float(share @ _improvement(y, mean, fit, power))
    return miscalibration, discrimination, steps_table(x, x, fit, weight)


def _improvement(y: Floats, a: Floats, b: Floats, power: float) -> Floats:
    """Unit deviance of a less that of b, d(y, a) − d(y, b), at mean outcomes y (c,).

    It is linear in y, so that outcomes of one prediction may be replaced by their mean.
    """
    if power == 0:
        return (a - b) * (a + b - 2.0 * y)
    if power == 1:
        return 2.0 * (xlogy(y, b) - xlogy(y, a) + a - b)
    if power == 2:
        return 2.0 * (np.log(a / b) + y / a - y / b)
    of_outcomes = (_linear_term(y, b, power) - _linear_term(y, a, power)) / (1.0 - power)
    return 2.0 * (of_outcomes + (a ** (2.0 - power) - b ** (2.0 - power)) / (2.0 - power))


def _linear_term(y: Floats, mean: Floats, power: float) -> Floats:
    """y·mean^(1−power), which is 0 where a mean is 0, as its outcomes are all 0."""
    positive = np.where(mean == 0, 1.0, mean)
    return np.where(y == 0, 0.0, y * positive ** (1.0 - power))
