"""Smooth calibration error: ECE with a kernel instead of bins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled.row_sums import divide_rows
from calibscale.estimators.base import ScalarEstimator, bound_notion, without_rows
from calibscale.estimators.score_measures import ScoreError, drawn_residuals
from calibscale.predictions.chunk import Chunk
from calibscale.results.estimate import Estimate, Floor
from calibscale.statistics.score_histogram import OccupiedCells, ScoreHistogram, scores_of
from calibscale.statistics.statistic import Replicates, Statistic, added, weights_of

_WIDTHS = 1024  # candidate bandwidths are k/1024, searched in 10 bisections
_EPS = 1e-3  # smaller bandwidths are not tried
# Draws of labels for a floor, and draws that are smoothed at once.  Values of many scores vary
# less.
_DRAWS_OF_FEW_SCORES = 1999, 100
_DRAWS_OF_MANY_SCORES = 499, 20
_FLOOR = 1e-4  # added to densities, which are sums over rows


def _intervals(k: int) -> int:
    """Number of intervals of the grid for the bandwidth k/1024."""
    # relplot has max(2000, 20/σ) points on the interval and its reflection.
    return max(2000, round(20 * _WIDTHS / k)) // 2


@cache
def _grids() -> tuple[dict[int, slice], int]:
    """Part of each grid, by its number of intervals, in the sums of all grids, and their length."""
    sizes = sorted({_intervals(k) for k in range(1, _WIDTHS + 1)})
    ends = np.cumsum([0, *(size + 1 for size in sizes)]).tolist()
    parts = [slice(a, b) for a, b in pairwise(ends)]
    return dict(zip(sizes, parts, strict=True)), ends[-1]


class GridState(NamedTuple):
    """n, Σw, Σw² (0-d), and wδ and w of the rows, divided among points of all grids."""

    n: Floats
    weight: Floats
    weight2: Floats
    residuals: Floats
    weights: Floats


@dataclass(frozen=True)
class GridSums(Statistic):
    """Residuals and weights of rows on regular grids of [0, 1], fine enough for any bandwidth.

    A row at p between two points of a grid is divided between them, in proportion to the distance
    from the other.
    """

    notion: str
    large_chunks: ClassVar[bool] = True
    drawn: ClassVar[tuple[str, ...]] = ("residuals",)
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1)

    def zero(self, classes: int) -> GridState:
        n, weight, weight2 = (np.zeros(()) for _ in range(3))
        return GridState(n, weight, weight2, *(np.zeros(_grids()[1]) for _ in range(2)))

    def accumulate(self, state: GridState, chunk: Chunk) -> GridState:
        p, _, delta, _ = chunk.event(self.notion)
        w = weights_of(chunk)
        _divide(p, (w * delta)[None], state.residuals[None])
        _divide(p, w[None], state.weights[None])
        return added(state, np.count_nonzero(w), w.sum(), w @ w)

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        (residuals,) = sums
        p = chunk.event(self.notion).p
        drawn = replicates.events(chunk, self.notion) * weights_of(chunk)
        _divide(p, drawn, residuals)


def _divide(p: Floats, strengths: Floats, sums: Floats) -> None:
    """Add strengths (B, c) at predictions (c,) to the sums (B, L) of all grids next to them."""
    divide_rows(p, strengths, np.array(list(_grids()[0])), sums)


@dataclass(frozen=True)
class SmoothECE(ScalarEstimator):
    """Smooth ECE ∫ |Σ_i w_i δ_i K_σ(t, p_i)| dt / Σ_i w_i (Błasiok & Nakkiran 2023).

    K_σ is a Gaussian reflected at 0 and 1, and σ the smallest bandwidth with σ ≥ smECE_σ, so that
    there is nothing to choose.  The error is not squared and has the unit of a probability.  It is
    a consistent calibration measure: a large value means that predictions are far from the
    predictions of a calibrated model.  Use it where the value of `ECE` depends on the bins.  Noise
    of labels biases it upwards.  Errors of opposite sign within σ cancel.  Kernel and integral are
    evaluated on the grids of the package relplot (arXiv 2309.12236).  One pass, with 0.5 MB of
    memory at any n, and 4 MB for the floor.  Parameters: see `ConfidenceGap`.

    See Also
    --------
    ECE : Mean distance of bins from calibration.
    ICI : Mean distance from the isotonic regression.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["smooth_ece"])["smooth_ece"].value, 4)
    0.2008
    """

    notion: str | None = None
    name: ClassVar[str] = "smooth_ece"
    by_default: ClassVar[bool] = False
    testable: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (GridSums(bound_notion(self)),)

    def value(self, *states: Any) -> float:
        (state,) = states
        return _smooth(state).errors[0] if state.weight > 0 else float("nan")

    def finalize(self, state: GridState) -> Estimate:
        if not state.weight > 0:
            return without_rows(self)
        (value,), (k,) = _smooth(state)
        details = {"bandwidth": k / _WIDTHS}
        return Estimate(
            self.name, bound_notion(self), float(value), details=details, n=int(state.n)
        )

    @property
    def floor_needs(self) -> tuple[Statistic, ...]:
        return (*self.needs, ScoreHistogram(bound_notion(self)))

    def floor(self, *states: Any) -> Floor:
        """Floor from labels drawn for scores.

        Rows that are divided between two points of a grid would be drawn as two.
        """
        state, histogram = states
        return self._floor(state, scores_of(histogram))

    def partial_floor(self, states: Mapping[Statistic, Any]) -> Floor | None:
        """Floor from labels drawn for points of the finest grid, without a histogram."""
        (sums,) = self.needs
        return self._floor(states[sums], _points(states[sums])) if sums in states else None

    def _floor(self, state: GridState, cells: OccupiedCells) -> Floor:
        draws, most, _ = ScoreError.floor_draws  # the same draws as other measures, to share them
        many = len(cells.score) > most
        needed, together = _DRAWS_OF_MANY_SCORES if many else _DRAWS_OF_FEW_SCORES
        cells = cells.coarse(most)
        values: list[float] = []
        for part in np.array_split(drawn_residuals(cells, draws)[:needed], needed // together):
            drawn = partial(_on_grid, cells.score, part.astype(np.float64))
            values += _smooth(state, drawn, len(part)).errors.tolist()
        return Floor.of(values, self.value(state))


def _points(state: GridState) -> OccupiedCells:
    """Points of the finest grid that have rows, with the weights of these rows."""
    part = _grids()[0][_intervals(1)]
    p = np.linspace(0.0, 1.0, _intervals(1) + 1)
    w = state.weights[part]
    p = p[w > 0]
    w = w[w > 0]
    unit = float(state.weight2 / state.weight)
    return OccupiedCells(p, w, w / unit, w * p, w * unit * p * (1.0 - p), np.zeros_like(p))


def _on_grid(p: Floats, strengths: Floats, size: int) -> Floats:
    """Strengths (B, c) at predictions (c,), divided among the points of one grid (B, size + 1)."""
    sums = np.zeros((len(strengths), size + 1))
    divide_rows(p, strengths, np.array([size]), sums)
    return sums


class _SmoothErrors(NamedTuple):
    """Smooth ECE, and k of its bandwidth k/1024, of each replicate (count,)."""

    errors: Floats
    widths: Ints


def _smooth(
    state: GridState, drawn: Callable[[int], Floats] | None = None, count: int = 1
) -> _SmoothErrors:
    """Smooth ECE of the state's residuals, or of `count` drawn ones, at their bandwidths.

    The bandwidth is the smallest candidate that is at least the error there.  `drawn` gives the
    residuals on the grid of a size (count, size + 1).
    """
    low, high = np.zeros(count, int), np.full(count, _WIDTHS)

    @cache
    def transform(size: int) -> Any:
        part = _grids()[0][size]
        residuals = state.residuals[None, part] if drawn is None else drawn(size)
        return _transform(np.vstack([residuals, state.weights[part]]))

    def errors(k: Ints) -> Floats:
        out = np.full(len(k), np.inf)
        for width in np.unique(k[k / _WIDTHS >= _EPS]).tolist():
            included = np.append(k == width, True)  # the last row has the weights
            smoothed = _smoothed(transform(_intervals(width))[included], width)
            out[k == width] = _errors(state, smoothed, width)
        return out

    # Bisection.  The error decreases with the bandwidth: invariant low/1024 < error at `low`, and
    # high/1024 ≥ error at `high`.
    for _ in range(_WIDTHS.bit_length() - 1):
        middle = (low + high) // 2
        narrow = middle / _WIDTHS < errors(middle)
        low, high = np.where(narrow, middle, low), np.where(narrow, high, middle)
    return _SmoothErrors(errors(high), high)


def _errors(state: GridState, smoothed: Floats, k: int) -> Floats:
    """Errors of residuals, followed by weights, that are smoothed with the bandwidth k/1024."""
    points = max(round(10 * _WIDTHS / k), 200)
    size = smoothed.shape[1] - 1
    places = np.linspace(0.0, size, points)
    left = np.minimum(places.astype(int), size - 1)
    values = smoothed[:, left] + (smoothed[:, left + 1] - smoothed[:, left]) * (places - left)
    floor = _FLOOR * points * float(state.weight / state.n)  # per row, in units of weight
    return np.abs(values[:-1]).sum(axis=1) / (values[-1].sum() + floor)


def _transform(sums: Floats) -> Any:
    """Fourier transform of sums on a grid (B, points), reflected at 0 and 1."""
    return np.fft.rfft(np.hstack([sums, sums[:, -2:0:-1]]))


def _smoothed(transform: Any, k: int) -> Floats:
    """Sums smoothed with the bandwidth k/1024 at the points of its grid (B, points)."""
    sigma, size = k / _WIDTHS, _intervals(k)
    z = (np.arange(size + 1) / size - 0.5) / sigma
    # The reflected sums are periodic, so that a circular convolution smooths them with the kernel
    # that is reflected at 0 and 1.
    kernel = np.zeros(2 * size)
    kernel[np.arange(size + 1) - (size + 1) // 2] = np.exp(-0.5 * z * z)
    kernel /= np.sqrt(2 * np.pi) * sigma
    return np.fft.irfft(transform * np.fft.rfft(kernel), 2 * size)[:, : size + 1]


def curve(p: Floats, weights: Floats, residuals: Floats, n: float) -> tuple[Floats, Floats, float]:
    """Grid, ΣwδK/ΣwK at its points, and the bandwidth, for n rows with sums Σw and Σwδ at each p.

    Points too far from all rows for the precision of the sums are left out.
    """
    totals = (np.array(total) for total in (n, weights.sum(), weights @ weights))
    sums = np.zeros((2, _grids()[1]))
    _divide(p, np.stack([residuals, weights]), sums)
    state = GridState(*totals, *sums)
    k = int(_smooth(state).widths[0])
    smoothed, density = _smoothed(_transform(sums[:, _grids()[0][_intervals(k)]]), k)
    grid = np.linspace(0.0, 1.0, len(density))
    seen = density > 1e-10 * density.max()  # which rounds to 1e-16 of it
    return grid[seen], smoothed[seen] / density[seen], k / _WIDTHS
