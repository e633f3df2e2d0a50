"""Kernel density estimates of accuracy at each confidence, on cells of the line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, gammaln

from calibscale.array_types import Floats, Ints
from calibscale.compiled import beta_cells as kernel_cells
from calibscale.compiled.beta_cells import GRADED, NODES
from calibscale.data.derived_sources import TEST
from calibscale.errors import OptionError
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.notions import NotionView, problems, views, width
from calibscale.results.estimate import EXACT, Approximation
from calibscale.selection.families import (
    Errors,
    FamilyProfile,
    FoldPart,
    FoldScores,
    GridFamily,
    PlugIn,
)
from calibscale.statistics.statistic import Statistic

_MAX_CELLS = 2**17  # cells for a bandwidth of 6e-10
_POINTS = np.empty(0, np.bool_)  # no point is a node


class KernelCellState(NamedTuple):
    """Chebyshev moments of w and w·event by problem and cell, or the points of cells with few.

    - moments, masses (J, cells, NODES, 2)
    - counts (J, cells), −1 after the list of points has overflowed
    - points (J, cells, NODES)
    """

    moments: Floats
    counts: Ints
    points: Floats
    masses: Floats


class KernelCells(NamedTuple):
    """Edges of the cells for a bandwidth, and the width of the cells that are not graded."""

    edges: Floats
    width: float

    @classmethod
    def of(cls, h: float) -> KernelCells:
        """Cells as wide as the kernel, repeatedly halved towards 0 and π/2."""
        # In θ = arcsin √f the kernel has about the width √h/2 everywhere.
        count = max(4, int(np.ceil(np.pi / np.sqrt(h))))
        if count > _MAX_CELLS:
            raise OptionError(f"kde: h = {h:g} is too small; scalar notions need 1e-9 or more")
        width = np.pi / 2 / count
        first = width * 0.5 ** np.arange(GRADED, 0, -1)
        inner = width * np.arange(1, count)
        edges = np.concatenate([[0.0], first, inner, np.pi / 2 - first[::-1], [np.pi / 2]])
        return cls(edges, width)

    def empty(self, J: int) -> KernelCellState:
        count = len(self.edges) - 1
        return KernelCellState(
            np.zeros((J, count, NODES, 2)),
            np.zeros((J, count), np.int64),
            np.zeros((J, count, NODES)),
            np.zeros((J, count, NODES, 2)),
        )

    def add(
        self, state: KernelCellState, j: int, theta: Floats, mass: Floats, node: NDArray = _POINTS
    ) -> None:
        """Add points with two masses each.  `node` marks points that are nodes of other cells."""
        kernel_cells.add_points(
            theta,
            mass,
            node,
            self.edges,
            self.width,
            state.moments[j],
            state.counts[j],
            state.points[j],
            state.masses[j],
        )

    def nodes(self, state: KernelCellState, j: int) -> tuple[Floats, Floats, Floats]:
        """θ (N,), masses (N, 2) and cells (N, 2) of the points of all cells, cell by cell.

        A cell of many points is represented by its nodes.  The masses are w and w·event.  The
        columns of a cell are the share of events in it, and the index of its first node, or −1
        where it stores points.
        """
        size = state.points[j].size
        theta, mass, cell = np.empty(size), np.empty((size, 2)), np.empty((size, 2))
        # The kernel fills the three arrays from the beginning, and counts the rows.
        N = kernel_cells.take_nodes(
            state.counts[j],
            state.points[j],
            state.masses[j],
            state.moments[j],
            self.edges,
            _TRANSFORM,
            theta,
            mass,
            cell,
        )
        return theta[:N], mass[:N], cell[:N]


# Matrix from moments to node masses: ℓ_k(t) = Σ_d (2 − 1{d=0})/NODES·T_d(t_k) T_d(t)
_ANGLES = np.pi * (np.arange(NODES)[::-1] + 0.5) / NODES
_TRANSFORM = 2.0 / NODES * np.cos(np.outer(_ANGLES, np.arange(NODES)))
_TRANSFORM[:, 0] *= 0.5


@dataclass(frozen=True)
class CellMasses(Statistic):
    """Points f of scalar problems with masses w and w·event, in cells for bandwidths ≥ h."""

    notion: str
    h: float

    @cached_property
    def cells(self) -> KernelCells:
        return KernelCells.of(self.h)

    def zero(self, classes: int) -> KernelCellState:
        return self.cells.empty(problems(self.notion, classes))

    def accumulate(self, state: KernelCellState, chunk: Chunk) -> KernelCellState:
        if chunk.fold == TEST:  # no function is fitted on the test part
            return state
        for j, view in enumerate(views(chunk, self.notion)):
            view = view.take(view.weights > 0)
            theta = _angles(view)
            mass = np.column_stack([view.weights, view.weights * view.events[:, 0]])
            self.cells.add(state, j, theta, mass)
        return state

    def merge(self, a: KernelCellState, b: KernelCellState) -> KernelCellState:
        np.add(a.moments, b.moments, out=a.moments)
        for j in range(len(a.counts)):
            kernel_cells.merge_points(
                a.counts[j], a.points[j], a.masses[j], b.counts[j], b.points[j], b.masses[j]
            )
        return a


def _angles(view: NotionView) -> Floats:
    """θ = arcsin √f of each prediction (c,), from f and 1 − f, which keeps digits at both ends."""
    root = np.sqrt(view.compositions)
    return np.arctan2(root[:, 0], root[:, 1])


class _Sources(NamedTuple):
    """Sorted f (N,), −log B(f/h + 1) (N,), masses and cells (N, 2) for one bandwidth."""

    f: Floats
    bias: Floats
    mass: Floats
    cell: Floats


_BETWEEN_NODES = np.array([-0.998, -0.41, 0.03, 0.76, 0.998])  # positions that check a series
_LAST = 2  # coefficients at the end of a series, which are smaller than its error
_LARGEST_ERROR = 1e-13  # of a trusted series at these positions: rounding of a sum of kernels
_LEAST_ROWS = 4  # training rows for each ratio of a series, with which it saves time


class _Series(NamedTuple):
    """Chebyshev series of the ratio on the cells of a bandwidth.

    `coefficients` are (cells, NODES).  `trusted` (cells,) marks the cells whose series equals the
    ratio up to rounding.  Elsewhere the ratio changes too quickly, as between few distant points.
    The cells at both ends are not trusted, because small powers of p are singular at 0 and 1.
    """

    cells: KernelCells
    coefficients: Floats
    trusted: NDArray[np.bool_]

    @classmethod
    def of(cls, sources: _Sources, h: float) -> _Series:
        cells = KernelCells.of(h)
        middle = 0.5 * (cells.edges[:-1] + cells.edges[1:])
        half = 0.5 * np.diff(cells.edges)
        positions = np.concatenate([np.cos(_ANGLES), _BETWEEN_NODES])
        theta = middle[:, None] + half[:, None] * positions
        with np.errstate(divide="ignore"):
            logs = 2.0 * np.log(np.stack([np.sin(theta), np.cos(theta)], axis=-1))
        ratios = np.empty(theta.size)
        kernel_cells.beta_ratios(logs.reshape(-1, 2), *sources, h, ratios)
        ratios = ratios.reshape(theta.shape)
        coefficients = ratios[:, :NODES] @ _TRANSFORM
        series = np.polynomial.chebyshev.chebval(_BETWEEN_NODES, coefficients.T)
        gaps = np.abs(series - ratios[:, NODES:]).max(axis=1)
        tails = np.abs(coefficients[:, -_LAST:]).max(axis=1)
        trusted = np.maximum(gaps, tails) < _LARGEST_ERROR
        trusted[[0, -1]] = False
        return cls(cells, coefficients, trusted)

    @staticmethod
    def evaluations(h: float) -> int:
        """Number of ratios that a series is made from."""
        return (len(KernelCells.of(h).edges) - 1) * (NODES + len(_BETWEEN_NODES))


class FittedCellKDE(PlugIn):
    """Kernel density ratios of scalar problems at any prediction.

    `error` is the largest deviation of h(p, p) from exact sums at the rows that were checked.
    `series` has the series of each bandwidth by problem, None where sums of kernels are faster.
    """

    error = 0.0

    def __init__(
        self,
        sources: Sequence[Sequence[_Sources]],
        bandwidths: Sequence[float],
        series: Sequence[Sequence[_Series | None]],
    ) -> None:
        self.sources, self.bandwidths, self.series = sources, bandwidths, series
        self.size = len(bandwidths)

    @classmethod
    def fit(
        cls,
        statistic: CellMasses,
        states: Sequence[KernelCellState],
        bandwidths: Sequence[float],
        rows: int = 0,
    ) -> FittedCellKDE:
        """Fit to states of training rows.  Their number `rows` decides whether series save time."""
        total = statistic.cells.empty(len(states[0].counts))
        for state in states:
            total = statistic.merge(total, state)
        sources = []
        for j in range(len(total.counts)):
            theta, mass, cell = statistic.cells.nodes(total, j)
            sources.append([_coarsen(theta, mass, cell[:, 1] >= 0, h) for h in bandwidths])
        worthwhile = [_LEAST_ROWS * _Series.evaluations(h) <= rows for h in bandwidths]
        series = [
            [
                _Series.of(s, h) if is_worthwhile else None
                for s, h, is_worthwhile in zip(by_bandwidth, bandwidths, worthwhile, strict=True)
            ]
            for by_bandwidth in sources
        ]
        return cls(sources, bandwidths, series)

    def pick(self, h: int) -> FittedCellKDE:
        sources = [by_bandwidth[h : h + 1] for by_bandwidth in self.sources]
        series = [by_bandwidth[h : h + 1] for by_bandwidth in self.series]
        picked = FittedCellKDE(sources, self.bandwidths[h : h + 1], series)
        picked.error = self.error
        return picked

    def residuals(self, j: int, view: NotionView) -> Floats:
        out = np.empty((self.size, len(view.rows), 1))
        theta = _angles(view)
        for h in range(self.size):
            out[h, :, 0] = view.points[:, 0] - self._fractions(j, h, view.logs, theta)
        return out

    def _fractions(self, j: int, h: int, logs: Floats, theta: Floats) -> Floats:
        """Share of events at each prediction (c,)."""
        sources, bandwidth, series = self.sources[j][h], self.bandwidths[h], self.series[j][h]
        fractions, known = np.empty(len(theta)), np.zeros(len(theta), bool)
        if series is not None:
            kernel_cells.interpolated_ratios(
                theta,
                series.cells.edges,
                series.cells.width,
                series.coefficients,
                series.trusted,
                fractions,
                known,
            )
        unknown = np.flatnonzero(~known)
        if len(unknown):
            summed = np.empty(len(unknown))
            kernel_cells.beta_ratios(logs[unknown], *sources, bandwidth, summed)
            fractions[unknown] = summed
        return fractions


def _coarsen(theta: Floats, mass: Floats, node: NDArray, h: float) -> _Sources:
    """Represent the same measure on the cells of bandwidth h."""
    cells = KernelCells.of(h)
    state = cells.empty(1)
    cells.add(state, 0, theta, mass, node)
    theta, mass, cell = cells.nodes(state, 0)
    f = np.sin(theta) ** 2
    # The kernel of a point f is the Beta density with α = f/h + 1 and β = (1 − f)/h + 1.
    return _Sources(f, -betaln(f / h + 1.0, np.cos(theta) ** 2 / h + 1.0), mass, cell)


# ---------------------------------------------------------------- Families


_CHECKED = 128  # rows at which compressed sums are compared with exact sums
_LEFT_OUT = 2000  # rows of a scalar notion with leave-one-out densities that select a bandwidth
_TILE = 2**17  # kernel values in one tile: 1 MB, which fits into the cache


def log_normaliser(compositions: Floats, h: float) -> Floats:
    """Log normalising constant log B(f/h + 1) of the Dirichlet density at each point f, (c,)."""
    alpha = compositions / h + 1.0
    return gammaln(alpha).sum(axis=1) - gammaln(alpha.sum(axis=1))


class KernelSumState(NamedTuple):
    """Largest log kernel value, and Σwk·[1, events]/e^top, by problem, bandwidth and query.

    The shape of `top` is (J, H, Q), and `sums` is (J, H, Q, 1 + e).
    """

    top: Floats
    sums: Floats


@dataclass(frozen=True)
class KernelSums(Statistic):
    """Σ_i w_i k_dir(p; f_i)·[1, e_{y_i}] at the queries p, over the other rows.

    The sums are softmax attention with log k = ⟨f, log p⟩/h − log B(f/h + 1): queries log p / h,
    keys f, bias −log B.  Sums are scaled by the largest exponent, which avoids overflow and 0/0.
    `family` is the name of the family that the queries belong to.
    """

    family: str
    notion: str
    bandwidths: tuple[float, ...]
    queries: Sequence[NotionView] = field(compare=False, repr=False)

    def zero(self, classes: int) -> KernelSumState:
        J = problems(self.notion, classes)
        e = width(self.notion, classes)
        shape = (J, len(self.bandwidths), len(self.queries[0].rows))
        return KernelSumState(np.full(shape, -np.inf), np.zeros((*shape, 1 + e)))

    def accumulate(self, state: KernelSumState, chunk: Chunk) -> KernelSumState:
        if chunk.fold == TEST:  # no function is fitted on the test part
            return state
        for j, view in enumerate(views(chunk, self.notion)):
            view = view.take(view.weights > 0)
            values = np.column_stack([np.ones(len(view.rows)), view.events])
            values *= view.weights[:, None]
            logs, rows = self.queries[j].logs, self.queries[j].rows
            # A query that is a row of the chunk gets the log kernel −∞ with itself.
            at = np.searchsorted(rows, view.rows)
            queried = np.flatnonzero(rows[np.minimum(at, len(rows) - 1)] == view.rows)
            step = max(1, _TILE // max(1, len(values)))
            for h, bandwidth in enumerate(self.bandwidths):
                keys = np.ascontiguousarray(view.compositions.T / bandwidth)
                bias = -log_normaliser(view.compositions, bandwidth)
                for low in range(0, len(logs), step):
                    part = slice(low, low + step)
                    tile = logs[part] @ keys
                    hidden = queried[(at[queried] >= low) & (at[queried] < low + step)]
                    tile[at[hidden] - low, hidden] = -np.inf
                    top = np.empty(len(tile))
                    kernel_cells.shifted_exp(tile, bias, top)
                    _absorb(state, (j, h, part), top, tile @ values)
        return state

    def merge(self, a: KernelSumState, b: KernelSumState) -> KernelSumState:
        _absorb(a, (slice(None),), b.top, b.sums)
        return a


def _absorb(state: KernelSumState, index: tuple, top: Floats, sums: Floats) -> None:
    """Add sums that are scaled by e^−top to a state, at the queries that `index` selects."""
    # Online log-sum-exp: both sums are brought to the larger exponent, which avoids overflow.
    old_top = state.top[index]
    new_top = np.maximum(old_top, top)
    # A query without any row yet has the exponent −∞, and −∞ minus −∞ would be NaN.
    finite = np.where(np.isfinite(new_top), new_top, 0.0)
    state.sums[index] *= np.exp(old_top - finite)[..., None]
    state.sums[index] += np.exp(top - finite)[..., None] * sums
    state.top[index] = new_top


class FittedKDE(PlugIn):
    """Ratios at the queries only, where `fractions` (J, H, Q, e) estimates E[e_y | p]."""

    anywhere = False

    def __init__(
        self, queries: Sequence[NotionView], fractions: Floats, bandwidths: Sequence[float]
    ) -> None:
        self.queries = queries
        self.fractions = fractions
        self.bandwidths = bandwidths
        self.size = fractions.shape[1]

    def pick(self, *columns: int) -> FittedKDE:
        bandwidths = [self.bandwidths[h] for h in columns]
        return FittedKDE(self.queries, self.fractions[:, list(columns)], bandwidths)

    def residuals(self, j: int, view: NotionView) -> Floats:
        at = np.searchsorted(self.queries[j].rows, view.rows)
        return view.points - self.fractions[j][:, at]


@dataclass(frozen=True)
class KDE(GridFamily):
    """Kernel density ratio: r̂(p) = p − Σ_i k_dir(p; f_i) e_{y_i}/Σ_i k_dir(p; f_i) [GB eq. 25].

    k_dir is the Dirichlet density with α = f_i/h + 1 at p (a Beta density for a scalar).  Sums of
    the canonical notion are exact, tile by tile, at the rows kept in memory.  Sums of scalar
    notions use cells (`calibscale.selection.kde`) and are compared with exact sums at a
    few rows.

    Parameters
    ----------
    grid : sequence of float, optional
        Bandwidths h.  Default: logspace(−5, −1, 15) and {0.2, 0.4, …, 1}.
    exact : bool
        Use exact sums for scalar notions, too, at the rows kept in memory and in quadratic time.

    See Also
    --------
    LeaveOneOutKDE : The bandwidth of the largest leave-one-out likelihood.
    UKKR : Kernel ridge regression of the residuals.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import KDE, from_arrays, select
    >>> p = np.linspace(0.5, 1, 500)
    >>> source = from_arrays(probabilities=np.c_[p, 1 - p], labels=np.arange(500) % 5 == 0)
    >>> select(source, estimators=[KDE((0.05, 0.1))]).selected.estimator
    'kde'
    """

    exact: bool = False
    queries: Sequence[NotionView] = field(default=(), compare=False, repr=False)
    name: ClassVar[str] = "kde"
    hyperparameter: ClassVar[str] = "h"
    queried: ClassVar[int] = _CHECKED

    @staticmethod
    def published(notion: str) -> tuple[float, ...]:
        """Grid of [GB, App. B], rounded to float32 as in the published code."""
        # float32 as in the published code, where 0.1 and 0.2 are not the float64 numbers.
        grid = np.concatenate([np.logspace(-5, -1, 15), np.linspace(0.2, 1.0, 5)])
        return tuple(np.unique(grid.astype(np.float32)).astype(float).tolist())

    def resolve(self, profile: FamilyProfile) -> Self:
        queries = profile.subset
        if profile.notion != "canonical" and not self.exact:
            n = len(queries[0].rows)
            few = np.arange(0, n, max(1, n // self.queried))
            queries = [view.take(few) for view in queries]
        return replace(super().resolve(profile), queries=queries)

    @property
    def compressed(self) -> bool:
        """Whether training points are compressed to cells, which allows any row as a query."""
        return self.notion != "canonical" and not self.exact

    def streamed(self, notion: str) -> bool:
        return self.compressed

    @property
    def summed(self) -> tuple[float, ...]:
        """Bandwidths of the exact sums."""
        return (min(self.values),) if self.compressed else self.values

    @property
    def needs(self) -> tuple[Statistic, ...]:  # type: ignore[override]
        sums = KernelSums(self.name, self.notion, self.summed, self.queries)
        return (sums, CellMasses(self.notion, min(self.values))) if self.compressed else (sums,)

    def fit(self, train: Sequence[FoldPart], profile: FamilyProfile, excluded: int) -> PlugIn:
        """Ratios at the queries, or at any row if training points are compressed."""
        first = train[0].states[0]
        total = KernelSumState(np.full_like(first.top, -np.inf), np.zeros_like(first.sums))
        sums = reduce(self.needs[0].merge, (part.states[0] for part in train), total)
        folds = profile.folds[np.searchsorted(profile.subset[0].rows, self.queries[0].rows)]
        # Queries of the fold that is left out, and of the test part, check the fit.
        trained = (folds >= 0) & (folds != excluded)
        grid = self._bandwidths(sums, trained)
        ratios = sums.sums[..., 1:] / sums.sums[..., :1]
        exact = FittedKDE(self.queries, ratios, self.summed)
        if not self.compressed:
            return exact.pick(*(self.summed.index(h) for h in grid))
        masses = self.needs[1]
        assert isinstance(masses, CellMasses)
        n = int(sum(part.residuals.n for part in train))
        fitted = FittedCellKDE.fit(masses, [part.states[1] for part in train], grid, n)
        smallest = int(np.argmin(grid))
        # The smallest bandwidth has the largest error of compression.
        alone = exact.pick(*(i for i, h in enumerate(self.summed) if h == grid[smallest]))
        if alone.size:
            rows = [view.take(~trained) for view in self.queries]
            gap = fitted.pick(smallest).diagonal(rows) - alone.diagonal(rows)
            fitted.error = float(np.abs(gap).sum(axis=0).max(initial=0.0))
        return fitted

    def approximations(
        self, scores: Sequence[FoldScores], fits: Sequence[Any], parts: Sequence[FoldPart]
    ) -> Sequence[Errors]:
        cells = Approximation("cells", max(fit.error for fit in fits)) if self.compressed else EXACT
        return [(EXACT, cells)] * fits[0].size

    def _bandwidths(self, sums: KernelSumState, trained: NDArray[np.bool_]) -> Sequence[float]:
        """Bandwidths of a fit, from sums at the queries, which include training rows."""
        return self.values


@dataclass(frozen=True)
class LeaveOneOutKDE(KDE):
    """`KDE` with the bandwidth of the largest leave-one-out likelihood.

    In each training set, the h of the grid with the largest Σ_i log Σ_{j≠i} k_dir(f_i; f_j) over
    the rows kept in memory (some of them for a scalar notion) is used, as in the published method.

    See Also
    --------
    KDE : Kernel density ratios for a grid of bandwidths.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import LeaveOneOutKDE, from_arrays, select
    >>> p = np.linspace(0.5, 1, 500)
    >>> source = from_arrays(probabilities=np.c_[p, 1 - p], labels=np.arange(500) % 5 == 0)
    >>> select(source, estimators=[LeaveOneOutKDE((0.05, 0.1))]).selected.estimator
    'kde_loo'
    """

    name: ClassVar[str] = "kde_loo"
    queried: ClassVar[int] = _LEFT_OUT

    @property
    def summed(self) -> tuple[float, ...]:
        return self.values

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        return [{}]

    def fitted_parameters(self, fits: Sequence[Any]) -> dict[str, Any]:
        return {"h": [fit.bandwidths[0] for fit in fits]}

    def _bandwidths(self, sums: KernelSumState, trained: NDArray[np.bool_]) -> Sequence[float]:
        # Kernel sums leave out each row itself, so that this is the leave-one-out density.
        density = sums.top + np.log(sums.sums[..., 0])
        likelihood = sum(
            density[j][:, trained] @ view.weights[trained] for j, view in enumerate(self.queries)
        )
        return (self.values[int(np.argmax(likelihood))],)
