"""Scores of forecasts, and measures of their probability integral transforms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, SimpleEstimator, bound_notion, without_rows
from calibscale.intervals.gap_limits import level_limits
from calibscale.intervals.mean_limits import skewed_limits
from calibscale.intervals.proportions import Limits, share_limits
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import FORECASTS, INTERVALS, QUANTILES, SETS
from calibscale.predictions.distributions.forecast import Forecast
from calibscale.results.estimate import EXACT, Approximation, Estimate, Floor
from calibscale.statistics.forecast_totals import (
    CELLS,
    CoverageState,
    CoverageTotals,
    ForecastState,
    ForecastTotals,
    PITCells,
    PITCurve,
    PITState,
    PITValues,
    uniform_order,
)
from calibscale.statistics.row_moments import RowMoments, RowMomentState
from calibscale.statistics.statistic import Statistic

# Draws of a floor at a time, rows of each draw, and number of times.
_DRAWS, _ROWS, _PARTS = 125, 1000, 16
_BINS, _MOST_RANKS = 20, 101  # bins of a PIT histogram, and the most ranks of ensembles


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
class _AtLevels(SimpleEstimator):
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
class PinballLoss(_AtLevels, RowScore):
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


# ---------------------------------------------------------------- probability integral transforms


@dataclass(frozen=True)
class _PITError(SimpleEstimator):
    """Base class of distances of PIT values from uniform."""

    fixed_cells: bool = field(default=False, repr=False, kw_only=True)  # states that are added
    judges: ClassVar[tuple[str, ...]] = (FORECASTS,)
    testable: ClassVar[bool] = True
    by_default: ClassVar[bool] = False
    no_interval: ClassVar[str | None] = (
        "the value of a calibrated model is at the end of the range, and has no normal limit"
    )
    notion = "pit"
    squared: ClassVar[bool] = False
    shift: ClassVar[tuple[float, float]] = (0.0, 0.0)  # the law of value·(√n + a + b/√n) has no n

    @property
    def needs(self) -> tuple[Statistic, ...]:
        # Ledgers add states, and values of single rows do not add.
        return (PITCells() if self.fixed_cells else PITValues(),)

    floor_needs = needs

    def mergeable(self, classes: int) -> Self:
        return replace(self, fixed_cells=True)

    def finalize(self, state: PITState) -> Estimate:
        if not state.weight > 0:
            return without_rows(self)
        curve = state.curve()
        near = EXACT if state.exact else Approximation("cells", self._error(curve))
        about = self._about(state, curve)
        value = float(self._sizes(curve))
        return Estimate(
            self.name, bound_notion(self), value, self.squared, near, n=int(state.n), **about
        )

    def cell_values(self, states: Sequence[Any], seed: int, replicates: range) -> Iterator[float]:
        return map(self.drawn_value, self.drawn_cells(states, seed, replicates))

    def drawn_cells(
        self, states: Sequence[Any], seed: int, replicates: range
    ) -> Iterator[PITCurve]:
        """Curve of each replicate."""
        rngs = (np.random.default_rng([seed, replicate]) for replicate in replicates)
        return states[0].drawn(rngs)

    def drawn_value(self, drawn: PITCurve) -> float:
        return float(self._sizes(drawn))

    def floor(self, *states: Any) -> Floor:
        (state,), rng = states, np.random.default_rng(0)
        shape = (_DRAWS, min(state.rows, _ROWS))
        even = np.ones(min(state.rows, _ROWS))
        curves = (PITCurve.of(even, uniform_order(rng, shape)) for _ in range(_PARTS))
        sizes = np.concatenate([self._sizes(curve) for curve in curves])
        # Sizes for up to `_ROWS` rows are scaled to all rows by Stephens' modification, under which
        # the distribution hardly depends on n.
        (a, b), roots = self.shift, np.sqrt([shape[1], state.rows])
        of_draws, of_state = (roots + a + b / roots) ** (1 + self.squared)
        return Floor.of(sizes * (of_draws / of_state), float(self._sizes(state.curve())))

    def _about(self, state: PITState, curve: PITCurve) -> dict[str, Any]:
        """Details and parameters of the estimate."""
        return {}

    @abstractmethod
    def _sizes(self, curve: PITCurve) -> Floats:
        """Values of curves (…)."""

    @abstractmethod
    def _error(self, curve: PITCurve) -> float:
        """Bound of the difference between the values of cells and of rows."""


@dataclass(frozen=True)
class PITKuiper(_PITError):
    """Kuiper's distance max (F(u) − u) + max (u − F(u)) of the PIT values from uniform.

    The largest excess or lack of outcomes between two quantiles [Kuiper 1960], between 0 and 1.  It
    sees wrong spread as well as shifts, and misses errors that cancel between rows, which `CKCE`
    and `KLCE` find.

    The PIT value of a row is F(y−) + v(F(y) − F(y−)), v uniform by row number (seed 0) [Czado,
    Gneiting & Held 2009], so that the values of calibrated forecasts are exactly uniform for every
    kind.  Ensembles have the rank of the outcome among m + 1.  Up to 65,536 rows are exact.
    Beyond, `approximation` bounds the effect of as many cells.  Tests and floors draw uniform
    numbers.  With weights these are weighted as the rows are in a test of up to 65,536 rows, else
    they are (Σw)²/Σw² numbers of equal weight.

    See Also
    --------
    PITKS : Largest distance of PIT values from uniform.
    PITCvM : Mean squared distance of PIT values from uniform.
    QuantileECE : Mean distance of the quantile reliability diagram.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[[0.0, 1.0]] * 2, forecast="normal", labels=[0.0, 1.0])
    >>> round(cs.evaluate(data, "pit_kuiper")["pit_kuiper"].value, 4)
    0.6587
    """

    name: ClassVar[str] = "pit_kuiper"
    by_default: ClassVar[bool] = True
    shift: ClassVar[tuple[float, float]] = (0.155, 0.24)  # Stephens (1970)

    def _sizes(self, curve: PITCurve) -> Floats:
        after, before = curve.gaps
        return after.max(axis=-1) - before.min(axis=-1)

    def _error(self, curve: PITCurve) -> float:
        # Each of the two distances changes by at most the width of a cell.
        return 2.0 / CELLS


@dataclass(frozen=True)
class PITKS(_PITError):
    """Kolmogorov–Smirnov distance max |F(u) − u| of the PIT values from uniform.

    An error between 0 and 1.  It sees shifts best.  Otherwise see `PITKuiper`.

    See Also
    --------
    PITKuiper : Largest excess of PIT values between two quantiles.
    PITCvM : Mean squared distance of PIT values from uniform.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[[0.0, 1.0]] * 2, forecast="normal", labels=[0.0, 1.0])
    >>> round(cs.evaluate(data, "pit_ks")["pit_ks"].value, 4)
    0.5
    """

    name: ClassVar[str] = "pit_ks"
    shift: ClassVar[tuple[float, float]] = (0.12, 0.11)  # Stephens (1970)

    def _sizes(self, curve: PITCurve) -> Floats:
        after, before = curve.gaps
        return np.maximum(after.max(axis=-1), -before.min(axis=-1))

    def _error(self, curve: PITCurve) -> float:
        return 1.0 / CELLS


@dataclass(frozen=True)
class PITCvM(_PITError):
    """Cramér–von Mises distance ∫(F(u) − u)² du of the PIT values from uniform.

    A squared error, the usual statistic divided by n.  Otherwise see `PITKuiper`.

    See Also
    --------
    PITKuiper : Largest excess of PIT values between two quantiles.
    PITKS : Largest distance of PIT values from uniform.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[[0.0, 1.0]] * 2, forecast="normal", labels=[0.0, 1.0])
    >>> round(cs.evaluate(data, "pit_cvm")["pit_cvm"].value, 4)
    0.0563
    """

    name: ClassVar[str] = "pit_cvm"
    squared: ClassVar[bool] = True

    def _sizes(self, curve: PITCurve) -> Floats:
        after, before = curve.gaps
        # F(u) − u is linear from a to b between two points, and ∫ of its square is (a² + ab + b²)/3
        # times the distance.
        a, b = after[..., :-1], before[..., 1:]
        return np.einsum("...i,...i->...", np.diff(curve.x), a * a + a * b + b * b) / 3.0

    def _error(self, curve: PITCurve) -> float:
        # Within a cell F rises by at most its weight, so that (F − u)² changes by at most 2|F −
        # u|·weight + weight².
        weights, gaps = np.diff(curve.at), np.abs(curve.gaps[0])
        return float(weights @ (2.0 * np.maximum(gaps[:-1], gaps[1:]) + weights)) / CELLS


@dataclass(frozen=True)
class QuantileECE(_AtLevels, _PITError):
    """Quantile calibration error: mean over levels of |share of PIT values ≤ level − level|.

    The mean distance of the quantile reliability diagram from the diagonal, at most 1/2 [Kuleshov,
    Fenner & Ermon 2018, with absolute values].  `details` has the diagram and the PIT histogram, in
    which `frequency` is a share of all rows, and `mean_p` the share for calibrated forecasts.  It
    has an interval.  Otherwise see `PITKuiper`.

    Parameters
    ----------
    levels : sequence of float, optional
        Increasing levels in (0, 1).  Default: the levels of forecasts of quantiles, else 0.05 …
        0.95.
    bins : int, optional
        Bins of the histogram.  Default: the m + 1 ranks of ensembles of m ≤ 100, the bins between
        the levels of forecasts of quantiles, else 20.

    See Also
    --------
    PITKuiper : Largest excess of PIT values between two quantiles.
    Coverage : Share of outcomes in central prediction intervals.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(predictions=[[0.0, 1.0]] * 2, forecast="normal", labels=[0.0, 1.0])
    >>> round(cs.evaluate(data, "quantile_ece")["quantile_ece"].value, 4)
    0.1895
    """

    bins: int | None = None
    name: ClassVar[str] = "quantile_ece"
    by_default: ClassVar[bool] = True
    steps: ClassVar[int] = 20
    no_interval: ClassVar[str | None] = None
    no_resampling: ClassVar[str | None] = "the noise of dependent rows is not known at the levels"

    def bind(self, profile: DataProfile) -> Self:
        source, bins = profile.source, self.bins
        if bins is None and not hasattr(source.target, "levels"):
            ranks = source.values.shape[1] + 1 if source.kind == "ensemble" else _BINS
            bins = ranks if ranks <= _MOST_RANKS else _BINS
        require(bins is None or 1 <= bins <= CELLS, f"bins must be in 1..{CELLS:,}", bins)
        return replace(super().bind(profile), bins=bins)

    def _sizes(self, curve: PITCurve) -> Floats:
        levels = tuple(self.levels or ())
        return np.abs(curve.shares(levels) - levels).mean(axis=-1)

    def limits(self, confidence_level: float, *states: Any) -> Limits | None:
        """Limits by `calibscale.intervals.gap_limits.level_limits`."""
        (state,), levels = states, np.array(self.levels)
        if not state.weight > 0:
            return None
        rows = float(state.weight**2 / state.weight2)
        shares = state.curve().shares(self.levels)
        return level_limits(levels, shares, rows, (1.0 - confidence_level) / 2.0)

    def _error(self, curve: PITCurve) -> float:
        # The values of a cell that contains a level may lie on either side of the level.
        return float(np.diff(curve.at)[(np.array(self.levels) * CELLS).astype(np.int64)].mean())

    def _about(self, state: PITState, curve: PITCurve) -> dict[str, Any]:
        levels = np.array(self.levels)
        edges = np.linspace(0.0, 1.0, self.bins + 1) if self.bins else np.hstack([0.0, levels, 1.0])
        reached = np.append(curve.shares(edges[:-1]), 1.0)
        reached[0] = 0.0  # the first bin has the value 0
        all_rows = {
            "count": int(state.n),
            "weight": float(state.weight),
            "effective_count": float(state.weight**2 / state.weight2),
        }
        names = ("lower", "upper", "mean_p", "frequency")
        columns = {
            "bins": (0.0 * levels, levels, levels, curve.shares(levels)),
            "pit": (edges[:-1], edges[1:], np.diff(edges), np.diff(reached)),
        }
        details = {
            key: [
                dict(zip(names, row, strict=True)) | all_rows for row in np.transpose(bins).tolist()
            ]
            for key, bins in columns.items()
        }
        return {"details": details, "parameters": {"levels": levels.tolist(), "bins": self.bins}}
