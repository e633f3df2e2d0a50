"""The KDE of a scalar prediction for any number of rows: training points compressed to cells.

In θ = arcsin √f the Beta kernel of bandwidth h has the width √h/2 everywhere, so that cells of
that width and 16 Chebyshev nodes reproduce its sums to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln

from calibscale.chunk import Chunk, Floats, Ints
from calibscale.errors import OptionError
from calibscale.kernels import cells as kernel_cells
from calibscale.kernels.cells import GRADED, NODES
from calibscale.selection.families import PlugIn
from calibscale.splits import TEST
from calibscale.statistics import Statistic
from calibscale.views import View, problems, views

_MOST_CELLS = 2**17
_POINTS = np.empty(0, np.bool_)


class CellState(NamedTuple):
    """By problem and cell: Chebyshev moments of Σw and Σw·event, and the points while few.

    moments, masses (J, cells, NODES, 2); counts (J, cells), −1 once the list overflowed; points
    (J, cells, NODES).
    """

    moments: Floats
    counts: Ints
    points: Floats
    masses: Floats


class Cells(NamedTuple):
    """Edges of the cells for a bandwidth, and the width of those that are not graded."""

    edges: Floats
    width: float

    @classmethod
    def of(cls, h: float) -> Cells:
        """Cells as wide as the kernel, half as wide again and again towards 0 and π/2."""
        count = max(4, int(np.ceil(np.pi / np.sqrt(h))))
        if count > _MOST_CELLS:
            raise OptionError(f"kde: h = {h:g} is too small; scalar notions need 1e-9 or more")
        width = np.pi / 2 / count
        first = width * 0.5 ** np.arange(GRADED, 0, -1)
        inner = width * np.arange(1, count)
        edges = np.concatenate([[0.0], first, inner, np.pi / 2 - first[::-1], [np.pi / 2]])
        return cls(edges, width)

    def empty(self, J: int) -> CellState:
        count = len(self.edges) - 1
        return CellState(
            np.zeros((J, count, NODES, 2)), np.zeros((J, count), np.int64),
            np.zeros((J, count, NODES)), np.zeros((J, count, NODES, 2)),
        )  # fmt: skip

    def add(
        self, state: CellState, j: int, theta: Floats, mass: Floats, node: NDArray = _POINTS
    ) -> None:
        """Add points with two masses each; `node` says which are nodes of other cells."""
        kernel_cells.add_points(
            theta, mass, node, self.edges, self.width, state.moments[j], state.counts[j],
            state.points[j], state.masses[j],
        )  # fmt: skip

    def nodes(self, state: CellState, j: int) -> tuple[Floats, Floats, Floats]:
        """θ (N,) in order, masses (N, 2) that stand for all points, and their cells (N, 2)."""
        theta = np.empty(state.points[j].size)
        mass, cell = np.empty((2, len(theta), 2))
        N = kernel_cells.take_nodes(
            state.counts[j], state.points[j], state.masses[j], state.moments[j], self.edges,
            _TRANSFORM, theta, mass, cell,
        )  # fmt: skip
        return theta[:N], mass[:N], cell[:N]


def _node_masses() -> Floats:
    """Masses of the nodes from the moments: ℓ_k(t) = Σ_d (2 − 1{d=0})/NODES·T_d(t_k) T_d(t)."""
    angle = np.pi * (np.arange(NODES)[::-1] + 0.5) / NODES
    transform = 2.0 / NODES * np.cos(np.outer(angle, np.arange(NODES)))
    transform[:, 0] *= 0.5
    return transform


_TRANSFORM = _node_masses()


@dataclass(frozen=True)
class CellMasses(Statistic):
    """Points f of scalar problems with masses w and w·event, on cells for bandwidth h and above."""

    notion: str
    h: float

    @cached_property
    def cells(self) -> Cells:
        return Cells.of(self.h)

    def zero(self, classes: int) -> CellState:
        return self.cells.empty(problems(self.notion, classes))

    def accumulate(self, state: CellState, chunk: Chunk) -> CellState:
        if chunk.fold == TEST:  # no function is fitted on those
            return state
        for j, view in enumerate(views(chunk, self.notion)):
            view = view.take(view.weights > 0)
            root = np.sqrt(view.compositions)
            theta = np.arctan2(root[:, 0], root[:, 1])
            mass = np.column_stack([view.weights, view.weights * view.events[:, 0]])
            self.cells.add(state, j, theta, mass)
        return state

    def merge(self, a: CellState, b: CellState) -> CellState:
        np.add(a.moments, b.moments, out=a.moments)
        for j in range(len(a.counts)):
            kernel_cells.merge_points(
                a.counts[j], a.points[j], a.masses[j], b.counts[j], b.points[j], b.masses[j]
            )
        return a


class _Sources(NamedTuple):
    """f (N,) in order, −log B(f/h + 1) (N,), masses and cells (N, 2) for one bandwidth."""

    f: Floats
    bias: Floats
    mass: Floats
    cell: Floats


class FittedCellKDE(PlugIn):
    """Kernel density ratios of scalar problems at any prediction.

    `error` is how far h(p, p) was from exact sums where that was looked at.
    """

    error = 0.0

    def __init__(self, sources: Sequence[Sequence[_Sources]], bandwidths: Sequence[float]) -> None:
        self.sources, self.bandwidths = sources, bandwidths
        self.size = len(bandwidths)

    @classmethod
    def fit(
        cls, statistic: CellMasses, states: Sequence[CellState], bandwidths: Sequence[float]
    ) -> FittedCellKDE:
        total = statistic.cells.empty(len(states[0].counts))
        for state in states:
            total = statistic.merge(total, state)
        sources = []
        for j in range(len(total.counts)):
            theta, mass, cell = statistic.cells.nodes(total, j)
            if not len(theta):
                raise OptionError("kde: a training set has no rows with a positive weight")
            sources.append([_coarsen(theta, mass, cell[:, 1] >= 0, h) for h in bandwidths])
        return cls(sources, bandwidths)

    def pick(self, h: int) -> FittedCellKDE:
        one = FittedCellKDE([mine[h : h + 1] for mine in self.sources], self.bandwidths[h : h + 1])
        one.error = self.error
        return one

    def residuals(self, j: int, view: View) -> Floats:
        out = np.empty((self.size, len(view.rows), 1))
        fraction = np.empty(len(view.rows))
        for i, (sources, h) in enumerate(zip(self.sources[j], self.bandwidths, strict=True)):
            kernel_cells.beta_ratios(view.logs, *sources, h, fraction)
            out[i, :, 0] = view.points[:, 0] - fraction
        return out


def _coarsen(theta: Floats, mass: Floats, node: NDArray, h: float) -> _Sources:
    """The same measure on cells of bandwidth h."""
    cells = Cells.of(h)
    state = cells.empty(1)
    cells.add(state, 0, theta, mass, node)
    theta, mass, cell = cells.nodes(state, 0)
    f = np.sin(theta) ** 2
    return _Sources(f, -betaln(f / h + 1.0, np.cos(theta) ** 2 / h + 1.0), mass, cell)
