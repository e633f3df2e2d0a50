"""Correction of tests with random signs for skewed residuals.

Random signs make residuals symmetric.  If residuals are skewed, such as losses of insurance, their
sum and the sum of their squares depend on each other, and a test with random signs rejects too
often.  The correction needs two further sums of each replicate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Floats
from calibscale.estimators.base import BoundEstimator
from calibscale.inference.monte_carlo import MonteCarloTest
from calibscale.predictions.claims import FUNCTIONALS
from calibscale.results.estimate import Estimate
from calibscale.statistics.null_distributions import Null, RandomSigns
from calibscale.statistics.response_sums import ResidualMoments
from calibscale.statistics.statistic import Statistic


class MeanResidual(BoundEstimator):
    """Studentised sum of the residuals, t = Σwδ/√Σw²δ²."""

    name: ClassVar[str] = "mean_residual"
    notion = "prediction"

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (ResidualMoments(),)

    def finalize(self, *states: Any) -> Estimate:
        (state,) = states
        root = np.sqrt(state.squares)
        if not (0 < root < np.inf and np.isfinite(state.cubes)):
            return Estimate(self.name, self.notion, None, reason="residuals have no skewness")
        # The third power of the root might overflow.
        skewness = float(state.cubes / root / root / root)
        return Estimate(self.name, self.notion, self._value(float(state.sums / root), skewness))

    def _value(self, t: float, skewness: float) -> float:
        return t


class SymmetricMeanResidual(MeanResidual):
    """Studentised sum of the residuals, transformed so that its distribution is symmetric."""

    name: ClassVar[str] = "symmetric_mean_residual"

    def _value(self, t: float, skewness: float) -> float:
        return symmetric(t, skewness)


def symmetric(t: float, skewness: float) -> float:
    """Transform a studentised sum t with Σδ³/(Σδ²)^1.5 = `skewness`, so that it is symmetric.

    It is g(t) = t + at²/3 + a²t³/27 + a/6, which increases with t and removes the term of order
    n^(−1/2) of the distribution of t [Hall, JRSS B 54 (1992), eq. 2.3].
    """
    a = skewness
    return t + a * t**2 / 3.0 + a**2 * t**3 / 27.0 + a / 6.0


MEAN_RESIDUALS: tuple[BoundEstimator, ...] = (MeanResidual(), SymmetricMeanResidual())


def corrects_skewness(null: Null, target: Any) -> bool:
    """Whether a test has random signs for residuals of which the distribution is unknown."""
    return (
        isinstance(null, RandomSigns) and target.claim in FUNCTIONALS and not target.draws_responses
    )


def correct_skewness(
    trials: Iterable[MonteCarloTest], mean: MonteCarloTest, symmetric_mean: MonteCarloTest
) -> None:
    """Replace the null values of tests by values that are corrected for skewed residuals.

    Each statistic U is regressed on t² and |t| over the data and the replicates.  The statistic of
    residuals without skewness has g instead of t, see `symmetric`, and differs by the slopes times
    g² − t² and |g| − |t|.  The data and the replicates are treated alike, so that the test stays
    exact for symmetric residuals.  The difference of the data is subtracted from all, so that the
    value of the data stays as it is.

    Parameters
    ----------
    trials : iterable of MonteCarloTest
        Tests with all their replicates.
    mean, symmetric_mean : MonteCarloTest
        Tests of `MEAN_RESIDUALS` with the same replicates.
    """
    if mean.estimate.reason is not None:
        return
    t, g = (_of_data_and_replicates(trial) for trial in (mean, symmetric_mean))
    terms = _terms(t)  # (1 + B, 2)
    changes = _terms(g) - terms
    centred = terms - terms.mean(axis=0)
    for trial in trials:
        if trial.estimate.reason is not None:
            continue
        u = _of_data_and_replicates(trial)
        slopes = np.linalg.lstsq(centred, u - u.mean(), rcond=None)[0]
        differences = changes @ slopes
        trial.replace_values((u + differences - differences[0])[1:].tolist())


def _of_data_and_replicates(trial: MonteCarloTest) -> Floats:
    return np.array([trial.value, *trial.values])


def _terms(t: Floats) -> Floats:
    """t² and |t| (1 + B, 2): statistics are about quadratic, or a size, along the mean."""
    return np.column_stack([t * t, np.abs(t)])
