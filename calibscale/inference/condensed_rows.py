"""Replicates of random signs from condensed rows, in place of the rows of a large source.

A test with 199 replicates of 10⁷ rows would draw 2·10⁹ signs.  Sums of the signed residuals of many
rows are nearly normal, and depend on the rows only through their variances.  These are the same for
few condensed rows, see `CondensedResiduals`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.arrays import from_arrays
from calibscale.data.covariates import PREDICTION, Axis, ColumnSummary
from calibscale.session import Run
from calibscale.statistics.condensed_residuals import CondensedResiduals, CondensedState
from calibscale.statistics.null_distributions import Null, RandomSigns
from calibscale.statistics.response_sums import ResponseCells, ResponseCrossings
from calibscale.statistics.statistic import Statistic, redraws

MANY_ROWS = 2**18  # rows from which replicates come from condensed rows
_CONDENSED = 2**16  # condensed rows, of which replicates take about a second
_MOST_CELLS = 512  # cells of predictions, if no covariate has many values
_FEWEST_CELLS = 64  # cells of predictions and of a covariate: fewer would be seen by kernels
_WIDTHS_OF_KERNEL = 2.0  # smallest bandwidth, in units of the width of the middle cells


def condensing(run: Run, null: Null | None) -> CondensedResiduals | None:
    """Statistic of the condensed rows of a run, or None if replicates need the rows themselves.

    Condensed rows serve random signs of predictions of functionals, for statistics that are smooth
    in the prediction and in at most one covariate of many values, or cut them at known edges.
    """
    target: Any = run.source.target
    if target.condensed is None or type(null) is not RandomSigns or run.source.rows < MANY_ROWS:
        return None
    # Estimators without states that merge, such as all pairs, draw for the rows themselves.
    drawn = [s for e in run.fitting for s in e.needs if redraws(s)]
    if not drawn or not all(s.condensable for s in drawn):
        return None
    columns = list(run.columns.values())
    n_continuous = sum(column.levels is None for column in columns)
    levels = math.prod(len(column.levels) + 1 for column in columns if column.levels is not None)
    count = min(_MOST_CELLS, int((_CONDENSED / levels) ** (1 / (1 + n_continuous))))
    if n_continuous > 1 or count < _FEWEST_CELLS:
        return None
    sample = run.profile.sample("canonical")
    # Relative residuals leave out claims that are not positive.
    of_sign = [0.0] if any(isinstance(s, ResponseCrossings) and s.relative for s in drawn) else []
    inner = _edges(
        target.ordered_by(sample.parameters[:, :-1]),
        target.condensed.unembedded(_even(run.profile.prediction_range, count)),
        [*of_sign, *(edge for s in drawn if isinstance(s, ResponseCells) for edge in s.inner)],
    )
    axes = tuple(_axis(column, sample.covariates, count, drawn) for column in columns)
    widths = {PREDICTION: _width(sample.points[:, 0], count)}
    for column in columns:
        if column.levels is None:
            widths[column.position] = _width(sample.covariates[:, column.position], count)
    for statistic in drawn:
        for position, bandwidth in statistic.kernel_widths.items():
            # Narrow kernels would see the cells, and the random parts of a cell as one row.
            if bandwidth < _WIDTHS_OF_KERNEL * widths.get(position, 0.0):
                return None
    unreplicated = CondensedResiduals(inner, axes, parts=1)
    return replace(unreplicated, parts=max(1, _CONDENSED // unreplicated.count))


def condensed_run(run: Run, condensed: CondensedResiduals, state: CondensedState) -> Run | None:
    """Run over the condensed rows, or None if they are too few."""
    if not condensed.has_enough(state):
        return None
    predictions, residuals, columns = condensed.rows(state)
    names = run.source.covariate_names
    covariates = np.zeros((len(predictions), len(names)))
    for axis, column in zip(condensed.axes, columns.T, strict=True):
        covariates[:, axis.position] = column
    target: Any = run.source.target.condensed
    source = from_arrays(
        predictions=predictions,
        forecast=target,
        labels=predictions - residuals,
        covariates=covariates if names else None,
        covariate_names=list(names) if names else None,
    )
    rules = replace(run.rules, kind=source.kind, target=source.target, chunk_rows=1, group=None)
    return replace(run.reporting(None), source=source, rules=rules)


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
