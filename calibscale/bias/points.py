"""Points of a map: given, on a grid, or the rows themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.evaluation import DataSetup
from calibscale.products import ProductKernel, Rows
from calibscale.statistics import Statistic

MAX_POINTS = 10**7


class Points(NamedTuple):
    """Predictions (m,), the map's covariates (m, d), and row numbers (m,) or None."""

    predictions: Floats
    covariates: Floats
    rows: Any = None

    def take(self, index: Any) -> Points:
        """The points that `index` names."""
        return Points(self.predictions[index], self.covariates[index])


def given_points(at: Any, names: tuple[str, ...], kernel: ProductKernel) -> Points:
    """The caller's points, checked."""
    try:
        predictions, covariates = at
    except (TypeError, ValueError):
        raise OptionError("at must be rows, grid or (predictions, covariates)") from None
    if predictions is None and covariates is None:
        raise OptionError("at has neither predictions nor covariates")
    d = len(names)
    if covariates is None:
        covariates = np.empty((np.size(predictions), 0))
    x = np.array(covariates, np.float64)
    x = x.reshape(-1, 1) if x.ndim == 1 and d == 1 else x
    if x.ndim != 2 or x.shape[1] != d:
        raise OptionError(f"the points' covariates must be (m, {d}), not of shape {x.shape}")
    alone = kernel.prediction == "none"
    if predictions is None and not alone:
        raise OptionError("the points need predictions unless prediction_kernel is 'none'")
    p = np.full(len(x), np.nan) if predictions is None else np.array(predictions, np.float64)
    if p.shape != (len(x),):
        raise OptionError(f"{len(x)} points need as many predictions, not {p.shape}")
    if not (np.isfinite(x).all() and (alone or np.isfinite(p).all())):
        raise OptionError("a point to evaluate at is not finite")
    return Points(p, x)


def grid_points(
    setup: DataSetup, notion: str, kernel: ProductKernel, names: tuple[str, ...], points: int
) -> Points:
    """Every combination of values of the axes, predictions slowest."""
    columns = setup.columns(names)
    sample = setup.sample(notion).covariates
    alone = kernel.prediction == "none"
    axes: list[Any] = [np.array([np.nan]) if alone else np.linspace(0.0, 1.0, points)]
    for column in columns.values():
        levels = column.levels
        if levels is not None and (column.position in kernel.categorical or len(levels) <= points):
            axes.append(np.array(levels))
            continue
        values = sample[:, column.position]
        values = values[np.isfinite(values)]
        low, high = np.percentile(values, [1, 99]) if len(values) else (column.low, column.high)
        axes.append(np.unique(np.linspace(low, high, points)))
    count = math.prod(len(axis) for axis in axes)
    if count > MAX_POINTS:
        raise OptionError(
            f"the grid has {count:.3g} points, above {MAX_POINTS:.0e}: use fewer per axis "
            f"(points={points} now), or fewer covariates"
        )
    p, *x = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    return Points(p, np.column_stack(x) if x else np.empty((count, 0)))


@dataclass(frozen=True)
class RowPoints(Statistic):
    """The rows themselves as points, in their order."""

    notion: str
    positions: tuple[int, ...]

    def zero(self, classes: int) -> Points:
        return Points(np.empty(0), np.empty((0, len(self.positions))), np.empty(0, np.int64))

    def accumulate(self, state: Points, chunk: Chunk) -> Points:
        rows = Rows.of(chunk, self.notion)
        x = rows.covariates[:, self.positions]
        return self.merge(state, Points(rows.points[:, 0], x, chunk.rows))

    def merge(self, a: Points, b: Points) -> Points:
        return Points(*(np.concatenate(arrays) for arrays in zip(a, b, strict=True)))
