"""Replicates from condensed rows, in place of the rows of a large source.

A test with 199 replicates of 10⁷ rows would draw 2·10⁹ signs.  Sums of the signed residuals of many
rows are nearly normal, and depend on the rows only through their variances.  These are the same for
few condensed rows, see `CondensedResiduals`.  The number of events of rows that claim the same
probability is binomial, see `CondensedCounts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.arrays import from_arrays
from calibscale.data.covariates import PREDICTION, Axis, ColumnSummary
from calibscale.predictions.functionals.functional import Functional
from calibscale.session import Run
from calibscale.statistics.condensed_counts import CondensedCounts
from calibscale.statistics.condensed_residuals import CondensedResiduals
from calibscale.statistics.null_distributions import DrawnCounts, DrawnLabels, Null, RandomSigns
from calibscale.statistics.response_sums import ResponseCells, ResponseCrossings
from calibscale.statistics.statistic import Statistic, redraws

Condensed = CondensedResiduals | CondensedCounts

MANY_ROWS = 2**18  # rows from which replicates come from condensed rows
_CONDENSED = 2**16  # condensed rows, of which replicates take about a second
_MOST_CELLS = 512  # cells of predictions, if no covariate has many values
_MOST_COUNTS = 2**14  # the same where numbers of events are drawn, from cells without parts
_FEWEST_CELLS = 64  # cells of predictions and of a covariate: fewer would be seen by kernels
_WIDTHS_OF_KERNEL = 2.0  # smallest bandwidth, in units of the width of the middle cells


def condensing(run: Run, null: Null | None) -> Condensed | None:
    """Statistic of the condensed rows of a run, or None if replicates need the rows themselves.

    Condensed rows serve random signs of predictions of functionals, and events that all predictions
    claim with one probability.  Statistics must be smooth in the prediction and in at most one
    covariate of many values, or cut them at known edges.
    """
    if run.source.rows < MANY_ROWS:
        return None
    # Estimators without states that merge, such as all pairs, draw for the rows themselves.
    drawn = [s for e in run.fitting for s in e.needs if redraws(s)]
    target: Any = run.source.target
    if not drawn:
        return None
    if type(null) is RandomSigns and target.condensed is not None:
        if not all(s.condensable for s in drawn):
            return None
        cells = _cells(run, drawn, _MOST_CELLS)
        if cells is None:
            return None
        unreplicated = CondensedResiduals(cells.inner, cells.axes)
        return replace(unreplicated, parts=max(1, _CONDENSED // unreplicated.count))
    if type(null) is DrawnLabels and _has_equal_events(run):
        cells = _cells(run, drawn, _MOST_COUNTS) if all(s.countable for s in drawn) else None
        return None if cells is None else CondensedCounts(cells.inner, cells.axes, 1, cells.starts)
    return None


def condensed_run(
    run: Run, null: Null, condensed: Condensed, state: Any
) -> tuple[Run, Null] | None:
    """Run over the condensed rows and the null of its replicates, or None if they are too few."""
    if not condensed.represents_rows(state):
        return None
    target: Any = run.source.target
    if isinstance(condensed, CondensedCounts):
        predictions, counts, columns = condensed.condensed(state)
        predictions = predictions[:, : target.columns]
        labels, weights = np.zeros(len(counts)), counts.astype(np.float64)
        null = DrawnCounts(null.seed, counts)
    else:
        predictions, residuals, columns = condensed.rows(state)
        labels, weights = predictions - residuals, None
        target = target.condensed
    names = run.source.covariate_names
    covariates = np.zeros((len(predictions), len(names)))
    for axis, column in zip(condensed.axes, columns.T, strict=True):
        covariates[:, axis.position] = column
    source = from_arrays(
        predictions=predictions,
        forecast=target,
        labels=labels,
        covariates=covariates if names else None,
        covariate_names=list(names) if names else None,
        weights=weights,
    )
    rules = replace(run.rules, kind=source.kind, target=source.target, chunk_rows=1, group=None)
    return replace(run.reporting(None), source=source, rules=rules), null


def _has_equal_events(run: Run) -> bool:
    """Whether all rows have one weight, and claim one probability."""
    target = run.source.target
    is_constant = isinstance(target, Functional) and target.has_constant_claim
    return is_constant and run.source.weights is None


class _Cells(NamedTuple):
    """Inner edges of cells of predictions, of axes of covariates, and of starts of intervals."""

    inner: tuple[float, ...]
    axes: tuple[Axis, ...]
    starts: tuple[float, ...]


def _cells(run: Run, drawn: Sequence[Statistic], most: int) -> _Cells | None:
    """Cells of condensed rows, at most so many of predictions, or None if `drawn` would see them.

    Cells of intervals are the crossings of their widths and starts.
    """
    columns = list(run.columns.values())
    target: Any = run.source.target
    continuous = [column for column in columns if column.levels is None]
    levels = math.prod(len(column.levels) + 1 for column in columns if column.levels is not None)
    most_each = int((_CONDENSED / levels) ** (1 / (target.columns + len(continuous))))
    count = min(math.isqrt(most) if target.columns == 2 else most, most_each)
    if len(continuous) > 1 or count < _FEWEST_CELLS:
        return None
    sample = run.profile.sample("canonical")
    values = sample.parameters[:, :-1]
    inner, width = _cells_of_predictions(run, values, count, drawn)
    starts: tuple[float, ...] = ()
    if target.columns == 2:
        starts = _edges(values[:, 0], _even(run.profile.prediction_range, count), [])
        width += _width(values[:, 0], count)
    axes = tuple(_axis(column, sample.covariates, count, drawn) for column in columns)
    widths = {PREDICTION: width}
    for column in continuous:
        widths[column.position] = _width(sample.covariates[:, column.position], count)
    for statistic in drawn:
        for position, bandwidth in statistic.kernel_widths.items():
            # Narrow kernels would see the cells, and the random parts of a cell as one row.
            if bandwidth < _WIDTHS_OF_KERNEL * widths.get(position, 0.0):
                return None
    return _Cells(inner, axes, starts)


def _cells_of_predictions(
    run: Run, sample: Floats, count: int, drawn: Iterable[Statistic]
) -> tuple[tuple[float, ...], float]:
    """Inner edges of about `count` cells of predictions, and the width of the middle cells."""
    target: Any = run.source.target
    ordered = target.ordered_by(sample)
    if target.has_scalar_points:
        low, high = target.unembedded(np.array(run.profile.prediction_range))
        points = target.embedded(sample, ordered)[:, 0]
        even = target.unembedded(_even(run.profile.prediction_range, count))
    else:
        points = ordered
        finite = ordered[np.isfinite(ordered)]
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        even = _even((low, high), count)
    if target.holds_sets and high - low < count:  # each size is a cell
        return tuple((np.arange(np.rint(low), np.rint(high)) + 0.5).tolist()), 0.0
    # Relative residuals leave out claims that are not positive.
    of_sign = [0.0] if any(isinstance(s, ResponseCrossings) and s.relative for s in drawn) else []
    of_cells = [edge for s in drawn if isinstance(s, ResponseCells) for edge in s.inner]
    return _edges(ordered, even, [*of_sign, *of_cells]), _width(points, count)


def _axis(column: ColumnSummary, sample: Floats, count: int, drawn: Iterable[Statistic]) -> Axis:
    """Cells of a covariate: its values if there are few, else fine ranges."""
    if column.levels is not None:
        return Axis(column.name, column.position, column.levels)
    cuts = [
        edge
        for statistic in drawn
        if isinstance(statistic, ResponseCrossings)
        for axis in statistic.axes
        if axis.position == column.position
        for edge in axis.edges
    ]
    values = sample[:, column.position]
    inner = _edges(values, _even((column.low, column.high), count), cuts)
    return Axis(column.name, column.position, None, inner)


def _width(sample: Floats, count: int) -> float:
    """Width of the cells in the middle half of a sample, of which `count` / 2 are quantiles."""
    sample = sample[np.isfinite(sample)]
    if not len(sample):
        return 0.0
    low, high = np.quantile(sample, (0.25, 0.75))
    return float(high - low) / (count / 4)


def _even(ends: tuple[float, float], count: int) -> Floats:
    """Inner edges of half of `count` equally wide cells."""
    return np.linspace(*ends, count // 2 + 1)[1:-1]


def _edges(sample: Floats, even: Floats, cuts: Sequence[float]) -> tuple[float, ...]:
    """Inner edges of cells: quantiles, as many equal steps, and the `cuts` of statistics.

    Quantiles give cells with about equally many rows, and equal steps narrow cells in the tails.
    """
    sample = sample[np.isfinite(sample)]
    shares = np.arange(1, len(even) + 1) / (len(even) + 1)
    quantiles = np.quantile(sample, shares, method="lower") if len(sample) else sample
    return tuple(np.unique(np.concatenate([quantiles, even, cuts])).tolist())
