"""Distances of the probability integral transforms (PIT values) of forecasts from uniform."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import require
from calibscale.estimators.base import SimpleEstimator, bound_notion, without_rows
from calibscale.estimators.forecast_scores import AtLevels
from calibscale.intervals.gap_limits import level_limits
from calibscale.intervals.proportions import Limits
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import FORECASTS
from calibscale.results.estimate import EXACT, Approximation, Estimate, Floor
from calibscale.statistics.forecast_totals import (
    CELLS,
    PITCells,
    PITCurve,
    PITState,
    PITValues,
    uniform_order,
)
from calibscale.statistics.statistic import Statistic

# Draws of a floor at a time, rows of each draw, and number of times.
_DRAWS, _ROWS, _PARTS = 125, 1000, 16
_BINS, _MOST_RANKS = 20, 101  # bins of a PIT histogram, and the most ranks of ensembles


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
class QuantileECE(AtLevels, _PITError):
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
