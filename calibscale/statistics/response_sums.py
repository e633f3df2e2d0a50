"""Sums of responses and residuals of predictions of a functional, over all rows and by cells."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import drawn_sums
from calibscale.data.covariates import Axis
from calibscale.errors import OptionError
from calibscale.predictions.outcomes import OutcomeChunk
from calibscale.statistics.segments import crossings
from calibscale.statistics.statistic import Replicates, Statistic, added, weights_of

_MOST_CROSSINGS = 2**14  # residuals of 199 replicates then have 26 MB


class ResponseState(NamedTuple):
    """Σ1, Σw, Σw², Σw·m of claimed means m, Σw·r of responses r, Σw²δ and Σw²δ² of residuals m − r.

    All fields are 0-d.
    """

    n: Floats
    weight: Floats
    weight2: Floats
    claimed: Floats
    responses: Floats
    residuals2: Floats
    squares: Floats


@dataclass(frozen=True)
class ResponseSums(Statistic):
    """Sums of the responses of a `Functional`, from which its bias and the bias's error follow."""

    drawn: ClassVar[tuple[str, ...]] = ("responses",)
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1, 2, 2)

    @property
    def countable(self) -> bool:
        return True

    def zero(self, classes: int) -> ResponseState:
        return ResponseState(*(np.zeros(()) for _ in range(7)))

    def accumulate(self, state: ResponseState, chunk: Any) -> ResponseState:
        claimed = chunk.target.claimed(chunk.values)
        delta = chunk.scalar_residual
        w = weights_of(chunk)
        strengths = w * delta
        return added(
            state,
            len(w),
            w.sum(),
            w @ w,
            w @ claimed,
            w @ (claimed - delta),
            w @ strengths,
            strengths @ strengths,
        )

    def draw(self, sums: tuple[Floats, ...], chunk: Any, replicates: Replicates) -> None:
        claimed = chunk.target.claimed(chunk.values)
        w = weights_of(chunk)
        delta = drawn_residuals(chunk, claimed, replicates)
        sums[0][...] += w @ claimed - delta @ w


class ResidualMomentState(NamedTuple):
    """Σwδ, Σw²δ² and Σw³δ³ of residuals δ, each 0-d."""

    sums: Floats
    squares: Floats
    cubes: Floats


@dataclass(frozen=True)
class ResidualMoments(Statistic):
    """Moments of the residuals of a `Functional`, from which the skewness of their sum follows.

    Replicates are for nulls that change the signs of residuals alone.
    """

    drawn: ClassVar[tuple[str, ...]] = ("sums", "cubes")
    powers: ClassVar[tuple[int, ...]] = (1, 2, 3)

    @property
    def condensable(self) -> bool:
        return True

    def zero(self, classes: int) -> ResidualMomentState:
        return ResidualMomentState(*(np.zeros(()) for _ in range(3)))

    def accumulate(self, state: ResidualMomentState, chunk: Any) -> ResidualMomentState:
        strengths = weights_of(chunk) * chunk.scalar_residual
        squares = strengths * strengths
        # Sums of huge residuals may be infinite, and tests then have no correction.
        with np.errstate(over="ignore", invalid="ignore"):
            return added(state, strengths.sum(), squares.sum(), squares @ strengths)

    def draw(self, sums: tuple[Floats, ...], chunk: Any, replicates: Replicates) -> None:
        claimed = chunk.target.claimed(chunk.values)
        drawn = drawn_residuals(chunk, claimed, replicates)
        w = weights_of(chunk)
        sums[0][...] += drawn @ w
        # Random signs keep the sizes of residuals, so that w³δ*³ = w³δ²·δ*.
        with np.errstate(over="ignore", invalid="ignore"):
            sums[1][...] += drawn @ (w * (w * chunk.scalar_residual) ** 2)


class ResponseCellState(NamedTuple):
    """Σ1, Σw, Σw², Σwx, Σwm, Σw²v, Σw⁴δ⁴, Σw²δ and Σwδ of every cell, each (B,).

    x are the numbers by which predictions are put in order, m the claimed means, and v the
    variances of the residuals δ.
    """

    rows: Floats
    weight: Floats
    squared_weights: Floats
    ordered: Floats
    claimed: Floats
    variance: Floats
    fourths: Floats
    residuals2: Floats
    residuals: Floats

    def merged(self, starts: Ints) -> ResponseCellState:
        """State of cells from the positions `starts` (C,) to the next ones."""
        return ResponseCellState(*(np.add.reduceat(field, starts) for field in self))


class ResponsesByCell(Statistic):
    """Base class of residuals of a `Functional` in cells.

    The variance v of a residual is the claimed one where responses are events, else δ².
    """

    drawn: ClassVar[tuple[str, ...]] = ("residuals",)
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1, 2, 4, 2, 1)

    @property
    def condensable(self) -> bool:
        return True

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of cells."""

    @abstractmethod
    def cells(self, chunk: OutcomeChunk) -> Any:
        """Cell of each row (c,)."""

    def weights(self, chunk: OutcomeChunk) -> Floats:
        """Weight of each row (c,)."""
        return weights_of(chunk)

    def zero(self, classes: int) -> ResponseCellState:
        return ResponseCellState(*np.zeros((9, self.count)))

    def accumulate(self, state: ResponseCellState, chunk: Any) -> ResponseCellState:
        target = chunk.target
        claimed = target.claimed(chunk.values)
        x = target.ordered_by(chunk.values)
        delta = chunk.scalar_residual
        w = self.weights(chunk)
        variance = chunk.residual_variance if target.draws_responses else delta * delta
        strengths = w * delta
        columns = (
            np.ones(len(w)),
            w,
            w * w,
            w * x,
            w * claimed,
            w * w * variance,
            strengths**4,
            w * strengths,
            strengths,
        )
        cells = self.cells(chunk)
        for total, column in zip(state, columns, strict=True):
            total += np.bincount(cells, column, len(total))
        return state

    def draw(self, sums: tuple[Floats, ...], chunk: Any, replicates: Replicates) -> None:
        claimed = chunk.target.claimed(chunk.values)
        drawn = drawn_residuals(chunk, claimed, replicates) * self.weights(chunk)
        drawn_sums.add_bins(drawn, self.cells(chunk), sums[0])


@dataclass(frozen=True)
class ResponseCells(ResponsesByCell):
    """Residuals of a `Functional` in cells of its predictions, between the `inner` edges.

    Cells are (lo, hi], and the outer ones are open.  With `by_size` they are cells of the sizes of
    intervals or sets, ∞ where a side is open.
    """

    inner: tuple[float, ...]
    by_size: bool = False

    @property
    def count(self) -> int:
        return len(self.inner) + 1

    def cells(self, chunk: OutcomeChunk) -> Any:
        target: Any = chunk.target
        numbers = target.sizes_of if self.by_size else target.ordered_by
        return np.searchsorted(np.array(self.inner), numbers(chunk.values))


@dataclass(frozen=True)
class ResponseCrossings(ResponsesByCell):
    """Residuals of a `Functional` in the crossings of all `axes` of covariates.

    If they are `relative`, weights are divided by the claimed means, and rows with claims that are
    not positive are left out.

    Raises
    ------
    OptionError
        If there are more than 2^14 crossings.
    """

    axes: tuple[Axis, ...]
    relative: bool = False

    def __post_init__(self) -> None:
        if self.count > _MOST_CROSSINGS:
            raise OptionError(
                f"{len(self.axes)} columns with {' × '.join(map(str, map(len, self.axes)))} parts "
                f"cross in more than {_MOST_CROSSINGS:,} ways: use fewer columns, or fewer bins"
            )

    @property
    def count(self) -> int:
        return math.prod(len(axis) + 1 for axis in self.axes)

    def cells(self, chunk: OutcomeChunk) -> Any:
        assert chunk.covariates is not None
        return crossings(self.axes, chunk.covariates)

    def weights(self, chunk: OutcomeChunk) -> Floats:
        w = super().weights(chunk)
        if not self.relative:
            return w
        target: Any = chunk.target
        claimed = target.claimed(chunk.values)
        return np.divide(w, claimed, out=np.zeros_like(w), where=claimed > 0)


def drawn_residuals(chunk: OutcomeChunk, claimed: Floats, replicates: Replicates) -> Floats:
    """Residuals of the replicates of a null (B, c), drawn once for all statistics of a pass."""
    null = replicates.null
    key = f"residuals of {null!r}: {replicates.first}..{replicates.last}"
    if key not in chunk.views:
        delta = chunk.scalar_residual
        chunk.views[key] = replicates.scalars("canonical", chunk.units, claimed, delta)
    return chunk.views[key]
