"""Isotonic regression, automatic equal-mass bins and the smooth ECE, fitted to sums by score."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.derived_sources import TEST
from calibscale.estimators import smooth_ece
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.notions import NotionView, problems, views
from calibscale.selection.families import ROW_NOTIONS, Family, FamilyProfile, FoldPart, PlugIn
from calibscale.statistics.bins import mass_bins
from calibscale.statistics.score_histogram import OccupiedCells, cell_steps
from calibscale.statistics.statistic import Statistic

_DIGITS, _EXPONENTS = 36, 64  # binary digits of the distance to 0 or 1, and its powers of two
_HALF = _EXPONENTS << _DIGITS  # cells below ½
_LENGTH = _HALF.bit_length()  # bits of the number of a cell without its problem


class ScoreSumState(NamedTuple):
    """Occupied cells, of 2^shift finest ones each and from j·2^43/2^shift on in problem j (c,).

    They are in increasing order, with Σ1, Σw, Σw², Σwp and Σwδ of each (5, c).
    """

    cells: Ints
    sums: Floats
    shift: Ints


@dataclass(frozen=True)
class ScoreSums(Statistic):
    """Sums of the training rows by the score of every scalar problem, in cells that adapt to it.

    The finest cells are 2^−36 of the distance to 0 or 1 wide, so that only equal scores share a
    cell.  Where more than 2^16 cells are occupied, neighbours are joined until no more are.  The
    size of cells then depends on the set of all scores alone.
    """

    notion: str
    most: ClassVar[int] = 2**16  # occupied cells

    def zero(self, classes: int) -> ScoreSumState:
        return ScoreSumState(np.zeros(0, np.int64), np.zeros((5, 0)), np.zeros((), np.int64))

    def nbytes(self, classes: int) -> int:
        return 48 * self.most

    def accumulate(self, state: ScoreSumState, chunk: Chunk) -> ScoreSumState:
        if chunk.fold == TEST:  # no function is fitted on the test part
            return state
        rows = views(chunk, self.notion)
        p = np.concatenate([view.points[:, 0] for view in rows])
        delta = np.concatenate([view.delta[:, 0] for view in rows])
        w = np.tile(rows[0].weights, len(rows))
        # Leading bits of the distance to the nearer end, exponent first, as in the fine histogram.
        bits = np.where(p > 0.5, 1.0 - p, p).view(np.int64) >> (52 - _DIGITS)
        cells = np.clip(bits - ((1023 - _EXPONENTS) << _DIGITS), 0, _HALF - 1)
        cells = np.where(p > 0.5, 2 * _HALF - 1 - cells, cells)
        cells += np.repeat(np.arange(len(rows)) << _LENGTH, len(chunk))
        sums = np.stack([np.ones_like(w), w, w * w, w * p, w * delta])
        return self.merge(state, ScoreSumState(cells, sums, np.zeros((), np.int64)))

    def merge(self, *parts: ScoreSumState) -> ScoreSumState:
        """State of all rows of the parts.  Their cells may be in any order."""
        shift = max(int(part.shift) for part in parts)
        cells = np.concatenate([part.cells >> (shift - int(part.shift)) for part in parts])
        cells, numbers = np.unique(cells, return_inverse=True)
        # Halving the numbers joins neighbours, and problems stay apart.
        while len(cells) > self.most:
            shift += 1
            cells, joined = np.unique(cells >> 1, return_inverse=True)
            numbers = joined[numbers]
        columns = np.hstack([part.sums for part in parts])
        sums: Floats = np.array([np.bincount(numbers, column, len(cells)) for column in columns])
        return ScoreSumState(cells, sums, np.array(shift))


class Curve(NamedTuple):
    """Piecewise linear r̂ with `values` at `knots` (m,), and the setting that the fit has chosen."""

    knots: Floats
    values: Floats
    setting: float


@dataclass(frozen=True)
class _FittedCurves(PlugIn):
    """Curve of each problem."""

    curves: Sequence[Curve]
    size = 1

    def pick(self, h: int) -> _FittedCurves:
        return self

    def residuals(self, j: int, view: NotionView) -> Floats:
        return np.interp(view.points, *self.curves[j][:2])[None]


@dataclass(frozen=True)
class ScoreFamily(Family):
    """Base class of families fitted to `ScoreSums`.  A fit chooses its `setting` itself."""

    notion: str = field(default="top_label", kw_only=True)
    notions: ClassVar[tuple[str, ...]] = ROW_NOTIONS
    setting: ClassVar[str]

    def resolve(self, profile: FamilyProfile) -> Self:
        return replace(super().resolve(profile), notion=profile.notion)

    @property
    def needs(self) -> tuple[Statistic, ...]:  # type: ignore[override]
        return (ScoreSums(self.notion),)

    def fitted_parameters(self, fits: Sequence[_FittedCurves]) -> dict[str, Any]:
        settings = [[curve.setting for curve in fit.curves] for fit in fits]
        # A single problem has a number instead of a list.
        return {self.setting: [chosen[0] if len(chosen) == 1 else chosen for chosen in settings]}

    def fit(self, train: Sequence[FoldPart], profile: FamilyProfile, excluded: int) -> PlugIn:
        total = ScoreSums(self.notion).merge(*(part.states[0] for part in train))
        first = np.arange(problems(self.notion, profile.classes)) << (_LENGTH - int(total.shift))
        parts = np.split(total.sums, np.searchsorted(total.cells, first)[1:], axis=1)
        return _FittedCurves([self._curve(sums) for sums in parts])

    @abstractmethod
    def _curve(self, sums: Floats) -> Curve:
        """Curve fitted to the sums of cells (5, c)."""


class IsotonicCurve(ScoreFamily):
    """p minus the isotonic regression of the event on p, linear between its steps."""

    name = "isotonic"
    setting = "steps"

    def _curve(self, sums: Floats) -> Curve:
        knots, values, count = cell_steps(OccupiedCells.of(sums))
        # Constant beyond the first and the last step.
        knots = np.r_[0.0, knots, 1.0]
        values = np.r_[values[0], values, values[-1]]
        return Curve(knots, knots - values, count)


class CubeRootBins(ScoreFamily):
    """conf − acc of n^(1/3) equal-mass bins, linear between the scores of two bins."""

    name = "bins_cube_root"
    setting = "bins"
    edges = "cube-root"

    def _curve(self, sums: Floats) -> Curve:
        # Edges are positions of cells.  The first and last cell of each bin become knots.
        table = mass_bins(sums, 0, self.edges, np.arange(sums.shape[1] + 1))  # positions of cells
        ends = np.column_stack([table.edges[:-1], table.edges[1:] - 1]).ravel()
        return Curve(OccupiedCells.of(sums).score[ends], np.repeat(table.gap, 2), len(table.gap))


class SweepBins(CubeRootBins):
    """conf − acc of as many equal-mass bins as a monotone sweep allows (Roelofs et al. 2022)."""

    name = "bins_sweep"
    edges = "sweep"


class SmoothCurve(ScoreFamily):
    """Kernel estimate of E[δ | p] with the bandwidth of the smooth ECE."""

    name = "smooth_ece"
    setting = "bandwidth"

    def _curve(self, sums: Floats) -> Curve:
        rows, weight, _, p, delta = sums
        return Curve(*smooth_ece.curve(p / weight, weight, delta, float(rows.sum())))
