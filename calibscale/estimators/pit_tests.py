"""Test statistics from PIT values of forecasts, each strong against one kind of error.

`calibscale.inference.calibration_test` computes them by default.  All follow from one set of sums,
so that the replicates of all of them come from one set of draws.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.estimators.base import NO_ROWS
from calibscale.estimators.sum_tests import Sums, SumTest
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import FORECASTS
from calibscale.statistics.pit_moments import WAVES, PITMoments, PITMomentState
from calibscale.statistics.statistic import Statistic

_QUANTILES = 33  # of the medians and widths of a sample of forecasts
_BY_RANK = 3  # Hermite polynomials that are related to the rank of the forecast


@dataclass(frozen=True)
class PITTest(SumTest):
    """Base class of test statistics that are functions of `PITMoments`."""

    medians: tuple[float, ...] = field(default=(), repr=False, kw_only=True)
    widths: tuple[float, ...] = field(default=(), repr=False, kw_only=True)
    judges: ClassVar[tuple[str, ...]] = (FORECASTS,)
    notion = "forecast"

    def bind(self, profile: DataProfile) -> Self:
        if self.medians:
            return self
        rows = profile.sample("canonical")
        forecast: Any = profile.source.target
        if not len(rows):
            return replace(self, medians=(0.0,), widths=(0.0,))
        spread = forecast.spread(rows.parameters[:, :-1], rows.parameters[:, -1])
        levels = np.linspace(0.0, 1.0, _QUANTILES)
        medians, widths = (np.quantile(x, levels) for x in spread)
        return replace(self, medians=tuple(medians.tolist()), widths=tuple(widths.tolist()))

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (PITMoments(self.medians, self.widths),)

    def split(self, state: PITMomentState) -> Sums:
        return Sums(int(state.n), state, state.sums)

    def undefined(self, state: PITMomentState) -> str | None:
        return None if state.weight > 0 else NO_ROWS

    @abstractmethod
    def sizes(self, state: PITMomentState, sums: Floats) -> Floats:
        """Value for each of B sets of sums (B, H, G)."""


@dataclass(frozen=True)
class NormalScores(PITTest):
    """Squared mean and variance scores of the normal scores z = Φ⁻¹(u) of PIT values u.

    (Σwz)²/Σw² + (Σw(z² − 1))²/2Σw², χ² with two degrees of freedom for calibrated forecasts and
    many rows.  For normal forecasts z is the standardised outcome.  The statistic sees forecasts
    that are too high or too low, too narrow or too wide.  `details` has the mean of z, in predicted
    standard deviations, and the root of the mean of z², 1 if calibrated.  [Berkowitz 2001]

    See Also
    --------
    PITSmooth : Test of the shape of PIT values.
    PITByForecast : Test of the relation of PIT values to the forecast.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> y = 1.5 * np.random.default_rng(0).normal(size=400)
    >>> q = np.tile([0.0, 1.0], (400, 1))
    >>> data = cs.from_arrays(predictions=q, forecast="normal", labels=y)
    >>> cs.calibration_test(data, "normal_scores", n_replicates=99).results[0].p_value
    0.01
    """

    name: ClassVar[str] = "normal_scores"

    def sizes(self, state: PITMomentState, sums: Floats) -> Floats:
        return (sums[:, WAVES : WAVES + 2, 0] ** 2).sum(axis=1) / float(state.weight2)

    def finding(self, state: PITMomentState, sums: Floats) -> dict[str, Any]:
        mean, square = sums[WAVES : WAVES + 2, 0] / float(state.weight)
        # The second Hermite polynomial is (z² − 1)/√2, so that the mean of z² is 1 + √2·square.
        dispersion = np.sqrt(max(0.0, 1.0 + np.sqrt(2.0) * square))
        by_mean = bool(abs(mean) > abs(square))
        return {"mean_score": float(mean), "dispersion": float(dispersion), "by_mean": by_mean}


@dataclass(frozen=True)
class PITSmooth(PITTest):
    """Neyman's smooth test of the PIT values: squared scores of Legendre polynomials, summed.

    The polynomials have degree 1 to 8, so that the statistic sees any distribution of PIT values
    that is not uniform, such as a wrong shape.  [Neyman 1937]

    See Also
    --------
    NormalScores : Test of the mean and spread of PIT values.
    PITKuiper : Largest excess of PIT values between two quantiles.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> y = np.random.default_rng(0).exponential(size=400) - 1.0
    >>> q = np.tile([0.0, 1.0], (400, 1))
    >>> data = cs.from_arrays(predictions=q, forecast="normal", labels=y)
    >>> cs.calibration_test(data, "pit_smooth", n_replicates=99).results[0].p_value
    0.01
    """

    name: ClassVar[str] = "pit_smooth"

    def sizes(self, state: PITMomentState, sums: Floats) -> Floats:
        return (sums[:, :WAVES, 0] ** 2).sum(axis=1) / float(state.weight2)

    def finding(self, state: PITMomentState, sums: Floats) -> dict[str, Any]:
        return {"degree": 1 + int(np.abs(sums[:WAVES, 0]).argmax())}


@dataclass(frozen=True)
class PITByForecast(PITTest):
    """Normal scores of PIT values related to the median and the width of the forecast.

    Squared scores of Hermite polynomials of degree 1 to 3 times linear and quadratic functions of
    the ranks of the forecast's median and width, summed.  The statistic sees errors that cancel
    between rows, such as a spread that should depend on the forecast.

    See Also
    --------
    NormalScores : Test of the mean and spread of PIT values.
    KCE : Kernel error without covariates.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> m = np.linspace(-1, 1, 600)
    >>> y = m + np.exp(m) * np.random.default_rng(0).normal(size=600)
    >>> q = np.column_stack([m, np.full(600, 1.2)])
    >>> data = cs.from_arrays(predictions=q, forecast="normal", labels=y)
    >>> cs.calibration_test(data, "pit_by_forecast", n_replicates=99).results[0].p_value
    0.01
    """

    name: ClassVar[str] = "pit_by_forecast"

    def sizes(self, state: PITMomentState, sums: Floats) -> Floats:
        variance = np.diag(state.ranks)[1:]
        squares = (sums[:, WAVES : WAVES + _BY_RANK, 1:] ** 2).sum(axis=1)
        # A function of ranks that is constant, as of equal forecasts, has no score.
        scaled = squares / np.where(variance > 0, variance, np.inf)
        return scaled.sum(axis=1)

    def finding(self, state: PITMomentState, sums: Floats) -> dict[str, Any]:
        parts = np.abs(sums[WAVES : WAVES + _BY_RANK, 1:])
        return {"degree": 1 + int(parts.max(axis=1).argmax())}
