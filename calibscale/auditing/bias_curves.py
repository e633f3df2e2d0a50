"""Curves of the local bias along the prediction and each continuous covariate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibscale.array_types import Floats
from calibscale.auditing.local_bias import local_bias
from calibscale.data.covariates import Axis
from calibscale.errors import OptionError
from calibscale.estimators.skce import KLCE
from calibscale.results.bias_results import BiasCurve, Histogram
from calibscale.session import Session

MAX_COLOURS = 4  # levels of the covariate that separates curves
_CELLS = 40  # cells of a histogram
_CURVE = 81  # points of a curve
MAP_COLUMNS = ("bias", "standard_error", "low", "high", "effective_rows")


def curves(
    session: Session,
    notion: str,
    axes: tuple[Axis, ...],
    rows: int,
    min_rows: float,
) -> tuple[tuple[BiasCurve, ...], tuple[Histogram, ...], list[str]]:
    """Curves along the prediction and each continuous covariate, histograms of x, and notes.

    Each x takes one pass over the rows.  Notes say why a curve is missing.
    """
    sample = session.profile.sample(notion)
    few = (axis for axis in axes if axis.levels is not None and 2 <= len(axis) <= MAX_COLOURS)
    separating = next(few, None)
    n_curves = len(separating) if separating else 1
    drawn: list[BiasCurve] = []
    histograms: list[Histogram] = []
    notes: list[str] = []
    for axis in (None, *(axis for axis in axes if axis.levels is None)):
        values = sample.points[:, 0] if axis is None else sample.covariates[:, axis.position]
        values = values[np.isfinite(values)]
        name = None if axis is None else axis.name
        low, high = np.percentile(values, [1, 99]) if len(values) else (0.0, 0.0)
        if not high > low:
            continue
        bandwidth = _bandwidth(values, rows // n_curves)
        x = np.linspace(low, high, _CURVE)
        try:
            drawn += _along(session, notion, name, separating, x, bandwidth, min_rows)
        except OptionError as error:  # too many rows for direct sums, and no series
            subject = name or "the prediction"
            notes.append(f"no curve along {subject}: {error}")
            continue
        counts, edges = np.histogram(values, _CELLS, (low, high))
        histograms.append(Histogram(name, tuple(edges.tolist()), tuple(counts.tolist())))
    return tuple(drawn), tuple(histograms), notes


def _bandwidth(values: Floats, rows: int) -> float:
    """Bandwidth 1.5 σ n^(−1/5), with σ from the quartiles where tails are heavy.

    It is smaller than the bandwidth of a test, but larger than the bandwidth 1.06 σ n^(−1/5) of a
    density, because y − p is mostly noise.
    """
    quartiles = np.percentile(values, [25, 75])
    # The distance of the quartiles of a normal distribution is 1.349 σ.
    spreads = [values.std(), np.diff(quartiles)[0] / 1.349]
    return float(1.5 * min(s for s in spreads if s > 0) * max(rows, 1) ** -0.2)


def _along(
    session: Session,
    notion: str,
    name: str | None,
    separating: Axis | None,
    x: Floats,
    bandwidth: float,
    min_rows: float,
) -> list[BiasCurve]:
    """Curve of each level of `separating`, from one map."""
    levels: tuple[float | None, ...] = (None,)  # one curve
    if separating is not None:
        levels = separating.levels or ()
    names = [n for n in (name, separating.name if separating else None) if n is not None]
    points = np.tile(x, len(levels))
    columns = [] if name is None else [points]
    if separating is not None:
        columns.append(np.repeat(np.array(levels, np.float64), len(x)))
    covariates = np.column_stack(columns) if columns else None
    local = KLCE(
        tuple(names), categorical=() if separating is None else (separating.name,), notion=notion
    )
    if name is None:
        local = replace(local, prediction_bandwidth=bandwidth)
    else:
        local = replace(local, prediction_kernel="none", covariate_bandwidth={name: bandwidth})
    at = (points if name is None else None, covariates)
    bias_map = local_bias(session, local, at=at, min_rows=min_rows, n_replicates=0)
    drawn = []
    for i, level in enumerate(levels):
        part = slice(i * len(x), (i + 1) * len(x))
        values = (getattr(bias_map, column)[part] for column in MAP_COLUMNS)
        drawn.append(
            BiasCurve(
                name, None if separating is None else separating.name, level, bandwidth, x, *values
            )
        )
    return drawn
