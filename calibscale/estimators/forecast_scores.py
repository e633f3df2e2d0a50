"""Scores of forecasts, and the coverage of their intervals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, SimpleEstimator, bound_notion, without_rows
from calibscale.intervals.mean_limits import skewed_limits
from calibscale.intervals.proportions import Limits, share_limits
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import FORECASTS, INTERVALS, QUANTILES, SETS
from calibscale.predictions.distributions.forecast import Forecast
from calibscale.results.estimate import Estimate
from calibscale.statistics.forecast_totals import (
    CoverageState,
    CoverageTotals,
    ForecastState,
    ForecastTotals,
)
from calibscale.statistics.row_moments import RowMoments, RowMomentState
from calibscale.statistics.statistic import Statistic


class RowScore(SimpleEstimator):
    """Base class of means over rows of a score, the first of `columns` numbers of each row."""

    unbiased: ClassVar[bool] = True
    judges: ClassVar[tuple[str, ...]] = (FORECASTS,)
    notion = "forecast"
    columns: int = 1

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (ForecastTotals(self),)

    @abstractmethod
    def rows(self, forecast: Forecast, values: Floats, y: Floats) -> Sequence[Any]:
        """Columns of the rows, each (c,)."""

    def finalize(self, state: ForecastState) -> Estimate:
        if not state.weight > 0:
            return without_rows(self)
        return self._estimate(state.totals / state.weight, int(state.n))

    def _estimate(self, means: Floats, n: int, **about: Any) -> Estimate:
        return Estimate(self.name, bound_notion(self), float(means[0]), n=n, **about)


@dataclass(frozen=True)
class CRPS(RowScore):
    """Continuous ranked probability score, the mean of ∫(F(t) − 1{y ≤ t})² dt over rows.

    A proper score ≥ 0 in the units of the target [Gneiting & Raftery 2007, eq. 20].  A large value
    means miscalibrated or uninformative forecasts.  For ensembles it is the fair score, the score
    of the distribution that the members are independent draws of.  For ordered classes it is the
    ranked probability score.

    Parameters
    ----------
    fair : bool
        False is the score of the members as the forecast itself, which suits members that are not
        independent, such as those of a recalibration.  Other kinds have one score.

    See Also
    --------
    LogScore : Negative log density of the outcome.
    PinballLoss : Mean loss of predicted quantiles.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[[0.0, 1.0]] * 2, forecast="normal", labels=[0.5, -2.5])
    >>> round(cs.evaluate(data, "crps")["crps"].value, 4)
    1.1356
    """

    fair: bool = True
    name: ClassVar[str] = "crps"

    def rows(self, forecast: Forecast, values: Floats, y: Floats) -> Sequence[Any]:
        return [forecast.crps(values, y) if self.fair else forecast.crps_of_members(values, y)]


@dataclass(frozen=True)
class LogScore(RowScore):
    """Logarithmic score, the mean of −log f(y) with the density f, or the probability of a class.

    A proper score in nats that depends on the units of the target.  It is infinite if the density
    is 0 at an outcome, as the density of quantiles is far beyond the outer quantiles.  Ensembles
    have no density.

    See Also
    --------
    CRPS : Continuous ranked probability score.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[[0.0, 1.0]] * 2, forecast="normal", labels=[0.5, -2.5])
    >>> round(cs.evaluate(data, "log_score")["log_score"].value, 4)
    2.5439
    """

    name: ClassVar[str] = "log_score"
    columns = 2

    def bind(self, profile: DataProfile) -> Self:
        target: Any = profile.source.target
        if not target.has_density:
            raise OptionError(f"predictions of kind {profile.source.kind} have no density")
        return self

    def rows(self, forecast: Forecast, values: Floats, y: Floats) -> Sequence[Any]:
        score = forecast.log_score(values, y)
        # The second column counts the rows with an infinite score.
        return [score, np.isposinf(score)]

    def _estimate(self, means: Floats, n: int, **about: Any) -> Estimate:
        estimate = super()._estimate(means, n)
        share = f"{100 * means[1]:.2g} %"
        note = f"the density is 0 at the outcomes of {share} of the rows"
        return estimate.with_note(note) if means[1] > 0 else estimate


@dataclass(frozen=True)
class AtLevels(SimpleEstimator):
    """Base class of measures at levels."""

    levels: Sequence[float] | None = None
    by_default: ClassVar[bool] = False
    steps: ClassVar[int]  # the default levels are k/steps

    def __post_init__(self) -> None:
        if self.levels is not None:
            levels = tuple(map(float, self.levels))
            increase = bool(levels) and all(np.diff([0.0, *levels, 1.0]) > 0)
            require(increase, "levels must increase within (0, 1)", levels)
            object.__setattr__(self, "levels", levels)

    def bind(self, profile: DataProfile) -> Self:
        default = tuple((np.arange(1, self.steps) / self.steps).tolist())
        return replace(
            self, levels=self.levels or getattr(profile.source.target, "levels", default)
        )


@dataclass(frozen=True)
class PinballLoss(AtLevels, RowScore):
    """Pinball loss (y − q)(τ − 1{y < q}) of the quantiles q at levels τ, its mean over both.

    A proper score of quantiles ≥ 0 in the units of the target [Koenker & Bassett 1978].  `details`
    has the mean of each level.  Quantiles of mixtures need bisection, which takes longer.

    Parameters
    ----------
    levels : sequence of float, optional
        Increasing levels in (0, 1).  Default: the levels of forecasts of quantiles, else 0.1 … 0.9.

    See Also
    --------
    CRPS : Continuous ranked probability score.
    QuantileECE : Mean distance of the quantile reliability diagram.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[[0.0, 1.0]] * 2, forecast="normal", labels=[0.5, -2.5])
    >>> cs.evaluate(data, cs.PinballLoss((0.5,)))["pinball_loss"].value
    0.75
    """

    name: ClassVar[str] = "pinball_loss"
    judges: ClassVar[tuple[str, ...]] = (FORECASTS, QUANTILES)
    steps: ClassVar[int] = 10

    @property
    def columns(self) -> int:  # type: ignore[override]
        return len(self.levels or ())

    def rows(self, forecast: Forecast, values: Floats, y: Floats) -> Sequence[Any]:
        quantiles = ((level, forecast.quantile(values, level)) for level in self.levels or ())
        return [(y - q) * (level - (y < q)) for level, q in quantiles]

    def _estimate(self, means: Floats, n: int, **about: Any) -> Estimate:
        levels = {"levels": list(self.levels or ())}
        details = {**levels, "losses": means.tolist()}
        return super()._estimate(means.mean(keepdims=True), n, details=details, parameters=levels)

    @property
    def moments(self) -> Statistic | None:
        # The losses of several levels of a row depend on each other.
        return RowMoments(self) if self.columns == 1 else None

    def row_limits(self, confidence_level: float, state: RowMomentState) -> Limits | None:
        return skewed_limits(state, confidence_level)


_COVERED = 0.9  # coverage of intervals by default


def _central_level(levels: Sequence[float]) -> float:
    """Coverage nearest to 0.9 of an interval between levels t and 1 − t, or 0.9 without any."""
    coverages = [
        round(high - low, 12)
        for low in levels
        for high in levels
        if high > low and abs(low + high - 1.0) < 1e-9
    ]
    return min(coverages, key=lambda coverage: abs(coverage - _COVERED), default=_COVERED)


@dataclass(frozen=True)
class Coverage(RowScore):
    """Share of outcomes in the central prediction interval [q((1 − level)/2), q((1 + level)/2)].

    It should be near the `expected` coverage in `details`, which a calibrated forecast with these
    predictions has: the mean probability of the closed intervals.  The expected coverage is
    `level`, unless an end of an interval has a probability of its own, such as no rain or one of
    few ordered classes, or members are too few.  Each of the m members of an ensemble could be the
    outcome as well.  The expected coverage is the share of these m + 1 values that lie in the
    interval of the others, such as (m − 1)/(m + 1) for the extremes of fewer than (1 + level)/(1 −
    level) members.  A row with missing members has the expected coverage of its other members.

    `details` also has the `level` and the `mean_width`, of sets of classes their mean size.  The
    confidence interval is the one of Clopper and Pearson with (Σw)²/Σw² rows.  A test is two-sided,
    of |coverage − expected|.  The nulls ``labels``, ``wild`` and ``wild_cluster`` draw whether each
    outcome is covered.

    Parameters
    ----------
    level : float, optional
        Nominal coverage, in (0, 1).  Default: 0.9.  For forecasts of quantiles it is the nearest
        level between two of their levels t and 1 − t, if there are such levels, as these forecasts
        state no other interval.

    See Also
    --------
    QuantileECE : Mean distance of the quantile reliability diagram.
    PITKuiper : Largest excess of PIT values between two quantiles.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[[0.0, 1.0]] * 2, forecast="normal", labels=[0.5, -2.5])
    >>> coverage = cs.evaluate(data, "coverage(level=0.9)")["coverage"]
    >>> coverage.value, round(coverage.details["mean_width"], 3)
    (0.5, 3.29)

    Two of five members are the ends of the interval, which has 4 of 6 outcomes:

    >>> data = cs.from_arrays(predictions=[[1, 2, 3, 4, 5]], forecast="ensemble", labels=[6])
    >>> round(cs.evaluate(data, "coverage")["coverage"].details["expected"], 3)
    0.667
    """

    level: float | None = None
    expects: bool = field(default=False, repr=False, kw_only=True)  # ledgers may have no such sums
    name: ClassVar[str] = "coverage"
    judges: ClassVar[tuple[str, ...]] = (FORECASTS, INTERVALS, SETS)
    testable: ClassVar[bool] = True
    smaller_is_better: ClassVar[bool] = False
    columns = 2

    def __post_init__(self) -> None:
        require(0 < self.nominal < 1, "level must be in (0, 1)", self.level)

    @property
    def nominal(self) -> float:
        """Nominal coverage.  Ledgers of earlier versions leave out a coverage of 0.9."""
        return _COVERED if self.level is None else self.level

    def bind(self, profile: DataProfile) -> Self:
        level = self.level
        if level is None:
            level = _central_level(getattr(profile.source.target, "levels", ()))
        return replace(self, level=level, expects=True)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (CoverageTotals(self.nominal),) if self.expects else (ForecastTotals(self),)

    def rows(self, forecast: Forecast, values: Floats, y: Floats) -> Sequence[Any]:
        low, high = forecast.interval(values, self.nominal)
        return [(low <= y) & (y <= high), high - low]

    def finalize(self, state: CoverageState | ForecastState) -> Estimate:
        if not state.weight > 0:
            return without_rows(self)
        level = {"level": self.nominal}
        if isinstance(state, ForecastState):
            covered, width = (state.totals / state.weight).tolist()
            expected = {}
        else:
            covered, width = float(state.covered / state.weight), float(state.width / state.weight)
            expected = {"expected": float(state.expected / state.weight)}
        details = {**level, **expected, "mean_width": width}
        return Estimate(
            self.name,
            bound_notion(self),
            covered,
            n=int(state.n),
            details=details,
            parameters=level,
        )

    def limits(self, confidence_level: float, *states: Any) -> Limits | None:
        (state,) = states
        covered = state.totals[0] if isinstance(state, ForecastState) else state.covered
        return share_limits(state, covered, confidence_level)

    @property
    def as_error(self) -> BoundEstimator:
        return _CoverageError(self.level, expects=True)


class _CoverageError(Coverage):
    """Distance of the coverage from its expectation, by which it is tested."""

    smaller_is_better: ClassVar[bool] = True

    def finalize(self, state: CoverageState | ForecastState) -> Estimate:
        estimate = super().finalize(state)
        if estimate.value is None:
            return estimate
        expected = estimate.details["expected"]
        parameters = {**estimate.parameters, "coverage": estimate.value, "expected": expected}
        return replace(estimate, value=abs(estimate.value - expected), parameters=parameters)

    @property
    def as_error(self) -> BoundEstimator:
        return self
