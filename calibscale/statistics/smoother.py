"""Kernel sums at the points of a bias map, by Fourier modes or directly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.engine.threads import one_thread
from calibscale.errors import OptionError, require
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.fourier_series import Complexes, NoSeries
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.product_kernel import ProductKernel, radial
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.fourier_modes import MAX_NUMBERS, Modes, spectral_statistic
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.statistic import Statistic, added, weights_of

MAX_PAIRS = 2 * 10**10  # some minutes on two cores

_FEW_PAIRS = 10**7  # a tenth of a second
_PIECE = 2**20  # points evaluated together
_TILE = 512, 1024  # rows and points of a tile of the kernel matrix


class Points(NamedTuple):
    """Predictions (m,), covariates of the map (m, d), and row numbers (m,) or None."""

    predictions: Floats
    covariates: Floats
    rows: Any = None

    def take(self, index: Any) -> Points:
        """The points at `index`, without row numbers."""
        return Points(self.predictions[index], self.covariates[index])


@dataclass(frozen=True)
class RowPoints(Statistic):
    """The rows as points, in order of rows."""

    notion: str
    positions: tuple[int, ...]

    def zero(self, classes: int) -> Points:
        return Points(np.empty(0), np.empty((0, len(self.positions))), np.empty(0, np.int64))

    def accumulate(self, state: Points, chunk: Chunk) -> Points:
        rows = NotionRows.of(chunk, self.notion)
        x = rows.covariates[:, self.positions]
        return self.merge(state, Points(rows.points[:, 0], x, chunk.rows))

    def merge(self, a: Points, b: Points) -> Points:
        return Points(*(np.concatenate(arrays) for arrays in zip(a, b, strict=True)))


class Measured(NamedTuple):
    """Sums of strengths at points, with κ (s, m) and κ² (t, m), and errors of Σwκ and Σw²κ²."""

    points: Points
    first: Floats
    second: Floats
    errors: tuple[float, float]
    counts: RowCounts


@dataclass(frozen=True)
class Strengths:
    """Terms of each row that a map sums with κ, and with κ².

    Without `limits`, they are wδ and w for κ, and w² for κ².  With `limits` and r = 1 − p, they are
    wp and wr of rows without the event and then of rows with it for κ.  For κ², they are w²p², w²pr
    and w²r² of rows without the event and then of rows with it, and w²pr(r − p) of all rows.
    """

    notion: str
    limits: bool = True

    @property
    def counts(self) -> tuple[int, int]:
        """Number of sums with κ, and with κ²."""
        # Rows without and with the event have 2 sums each with κ, and 3 each with κ².  The seventh
        # is the third moment of all rows.
        return (4, 7) if self.limits else (2, 1)

    def of(self, chunk: Chunk) -> tuple[Floats, Floats]:
        """Terms of each row of a chunk that are summed with κ (s, c), and with κ² (t, c)."""
        p, r, delta, hit = chunk.event(self.notion)
        w = weights_of(chunk)
        if not self.limits:
            return np.stack([w * delta, w]), (w * w)[None]
        event = hit > 0.5
        wp, wr = w * p, w * r
        with_kernel, with_square = [], []
        for counted in (~event, event):
            for term in (wp, wr):
                with_kernel.append(np.where(counted, term, 0.0))
            for term in (wp * wp, wp * wr, wr * wr):
                with_square.append(np.where(counted, term, 0.0))
        with_square.append(wp * wr * (r - p))
        return np.stack(with_kernel), np.stack(with_square)


@dataclass(frozen=True)
class ResidualStrengths:
    """Terms of each row of a functional: wδ and w for κ, and w², w²δ and w²δ² for κ²."""

    notion: str
    counts: ClassVar[tuple[int, int]] = (2, 3)

    def of(self, chunk: Chunk) -> tuple[Floats, Floats]:
        """Terms of each row of a chunk that are summed with κ (2, c), and with κ² (3, c)."""
        w = weights_of(chunk)
        weighted = w * chunk.delta[:, 0]
        return np.stack([weighted, w]), np.stack([w * w, w * weighted, weighted * weighted])


class MapStrengths(Protocol):
    """Terms of each row that a map sums with κ, and with κ²."""

    @property
    def notion(self) -> str:
        """Notion of the points and of the residuals."""

    @property
    def counts(self) -> tuple[int, int]:
        """Number of sums with κ, and with κ²."""

    def of(self, chunk: Chunk) -> tuple[Floats, Floats]:
        """Terms of each row of a chunk that are summed with κ (s, c), and with κ² (t, c)."""


# ---------------------------------------------------------------- spectral


class StrengthState(NamedTuple):
    """Σw or Σw² (0-d), and Fourier modes of the strengths by combination of levels, (s, C, …)."""

    weight: Floats
    sums: Complexes


@dataclass(frozen=True)
class StrengthModes(Statistic):
    """Fourier modes of the `strengths` that are summed with κ, or with κ² if `squared`."""

    modes: Modes
    strengths: MapStrengths
    squared: bool
    large_chunks: ClassVar[bool] = True

    def zero(self, classes: int) -> StrengthState:
        shape = (self.modes.combinations, *self.modes.series.shape)
        kernel_count, square_count = self.strengths.counts
        count = square_count if self.squared else kernel_count
        return StrengthState(np.zeros(()), np.zeros((count, *shape), complex))

    def accumulate(self, state: StrengthState, chunk: Chunk) -> StrengthState:
        w = weights_of(chunk)
        with_kernel, with_square = self.strengths.of(chunk)
        if self.squared:
            strengths = with_square
            added(state, w @ w)
        else:
            strengths = with_kernel
            added(state, w.sum())
        rows = NotionRows.of(chunk, self.modes.notion)
        points = self.modes.points(rows.points, rows.covariates)
        for code, members in self.modes.levelled(rows.covariates):
            state.sums[:, code] += self.modes.series.transform(
                points[members], strengths[:, members]
            )
        return state


def _square_of(kernel: ProductKernel) -> ProductKernel:
    """κ² of a Gaussian κ."""
    narrow = 1 / math.sqrt(2.0)  # exp(−r²/2)² is a Gaussian of this bandwidth
    return replace(
        kernel,
        prediction_bandwidth=kernel.prediction_bandwidth * narrow,
        bandwidths=tuple(b * narrow for b in kernel.bandwidths),
    )


def _require_modes(name: str, modes: Modes, kernel: ProductKernel) -> None:
    """Raise an OptionError unless modes belong to a kernel and are few."""
    series = modes.series
    bandwidths = [kernel.prediction_bandwidth] if kernel.prediction != "none" else []
    bandwidths += [
        b for c, b in zip(kernel.columns, kernel.bandwidths, strict=True) if c in modes.columns
    ]
    require(modes.notion == "positive", f"{name}.notion must be positive", modes.notion)
    require(
        modes.predictions == (kernel.prediction != "none"),
        f"{name}.predictions must say whether the kernel depends on them",
    )
    require(
        {*modes.columns, *modes.discrete} == {*kernel.columns, *kernel.categorical},
        f"{name} must have the columns of the kernel",
    )
    require(
        len({*modes.columns, *modes.discrete}) == len(modes.columns) + len(modes.discrete),
        f"{name} must have each column once",
    )
    require(
        all(factor.kernel == "gaussian" for factor in series.factors),
        f"{name}.series must have Gaussian factors",
    )
    require(
        [b for factor in series.factors for b in factor.bandwidths] == (bandwidths or [1.0]),
        f"{name}.series must have the bandwidths of the kernel",
    )
    require(len(modes.levels) == len(modes.discrete), f"{name} must have levels for each column")
    require(
        all(values and list(values) == sorted(set(values)) for values in modes.levels),
        f"{name}.levels must be different numbers in increasing order",
    )
    require(
        [len(coupling) for coupling in modes.couplings] == [len(v) ** 2 for v in modes.levels],
        f"{name}.couplings must have a number for each pair of levels",
    )
    require(
        modes.numbers <= MAX_NUMBERS,
        f"{name} must be at most {MAX_NUMBERS:,} numbers",
        modes.numbers,
    )


def _box_of(modes: Modes) -> Any:
    factors = [(factor.low, factor.high) for factor in modes.series.factors]
    return factors, modes.columns, modes.discrete, modes.levels, modes.clipped


def choose(
    setup: DataProfile,
    notion: str,
    kernel: ProductKernel,
    names: tuple[str, ...],
    method: str,
    tolerance: float,
    points: Points | None,
) -> tuple[Spectral | None, str]:
    """Fourier series of the map at points (None: the rows), or None, and the reason for it."""
    pairs = setup.rows * (setup.rows if points is None else len(points.predictions))
    reason = "as requested"
    # Direct sums have no error of a series, and are no slower for few pairs.
    if method == "auto" and pairs <= _FEW_PAIRS:
        return None, f"direct: {pairs:,} pairs of rows and points are quick"
    if method != "direct":
        try:
            plan = Spectral.fitting(setup, notion, kernel, names, tolerance, points)
            if method == "auto":
                reason = f"a Fourier series of {plan.modes.series.modes} modes"
            return plan, f"spectral: {reason}"
        except NoSeries as error:
            reason = error.advice("direct")
            if method == "spectral":
                raise OptionError(reason) from error
    if pairs > MAX_PAIRS:
        remedy = f"there is no series: {reason}" if method == "auto" else "use method='spectral'"
        raise OptionError(
            f"{pairs:.2g} pairs of rows and points are above {MAX_PAIRS:.0e}: use fewer points "
            f"(at='grid'), or {remedy}"
        )
    return None, f"direct: {reason}"


@dataclass(frozen=True)
class Spectral:
    """Fourier series of κ and of κ², on a box that contains the rows and the points."""

    kernel: ProductKernel
    squared: ProductKernel
    modes: Modes
    squares: Modes
    tolerance: float
    positions: tuple[int, ...]

    def statistics(self, strengths: MapStrengths) -> tuple[StrengthModes, StrengthModes]:
        """Statistics of κ and of κ²."""
        return (
            StrengthModes(self.modes, strengths, False),
            StrengthModes(self.squares, strengths, True),
        )

    @staticmethod
    def fitting(
        setup: DataProfile,
        notion: str,
        kernel: ProductKernel,
        names: tuple[str, ...],
        tolerance: float,
        points: Points | None,
    ) -> Spectral:
        """Series on the box of the data and of the points, if any.  NoSeries if it is too long."""
        # κ² must have a series on the same box, for effective rows and variances.
        gaussian = not kernel.columns or kernel.covariate == "gaussian"
        if not (gaussian and kernel.prediction in ("gaussian", "none")):
            raise NoSeries("the square of the kernel has a series only if it is Gaussian")
        squared = _square_of(kernel)
        modes, squares = (
            spectral_statistic(setup, notion, k, names, tolerance) for k in (kernel, squared)
        )
        positions = tuple(setup.source.covariate(name) for name in names)
        spectral = Spectral(kernel, squared, modes, squares, tolerance, positions)
        if points is not None and len(points.predictions):
            # exp(−r²/2) is below the tolerance for r > √(−2 log tolerance).  Points that are
            # farther from all rows will be masked.
            near = points.take(spectral._inside(points, math.sqrt(-2 * math.log(tolerance))))
            modes, squares = spectral._reaching(modes, near), spectral._reaching(squares, near)
            spectral = replace(spectral, modes=modes, squares=squares)
        return spectral

    def require_sound(self) -> None:
        """Raise an OptionError unless a plan from a file is like one of `fitting`, and as small."""
        kernel, places = self.kernel, set(self.positions)
        require(len(places) == len(self.positions), "plan.positions must be different numbers")
        require(
            {kernel.prediction, kernel.covariate} <= {"gaussian", "none"},
            "plan.kernel must be gaussian or none",
        )
        require(
            len(kernel.columns) == len(kernel.bandwidths) == len(kernel.centres),
            "plan.kernel must have a bandwidth and a centre for each column",
        )
        require(
            {*kernel.columns, *kernel.categorical} == places,
            "plan.kernel must have the columns of plan.positions",
        )
        require(self.squared == _square_of(kernel), "plan.squared must be the square of the kernel")
        for name, modes, factors in (
            ("modes", self.modes, kernel),
            ("squares", self.squares, self.squared),
        ):
            _require_modes(f"plan.{name}", modes, factors)
            require(
                modes.series.tolerance == self.tolerance,
                f"plan.{name}.series.tolerance must be plan.tolerance",
            )
        require(
            _box_of(self.modes) == _box_of(self.squares),
            "plan.modes and plan.squares must have equal boxes, columns and levels",
        )

    def _inside(self, points: Points, bandwidths: float = 0.0) -> Any:
        """Whether each point is in the box, or within `bandwidths` of it (m,)."""
        z = self._coordinates(self.modes, points)
        factors = self.modes.series.factors
        low, high, bandwidth = np.hstack([(f.low, f.high, f.bandwidths) for f in factors])
        # The reach of each coordinate, in the units of the coordinate.
        reach = bandwidths * bandwidth
        return ((z >= low - reach) & (z <= high + reach)).all(axis=1)

    def _coordinates(self, modes: Modes, points: Points) -> Floats:
        return self._local(modes).points(points.predictions[:, None], points.covariates)

    def _local(self, modes: Modes) -> Modes:
        """Modes with positions among the covariates of the points, not of the source."""
        place = {position: i for i, position in enumerate(self.positions)}
        return replace(
            modes,
            columns=tuple(place[c] for c in modes.columns),
            discrete=tuple(place[c] for c in modes.discrete),
        )

    def _reaching(self, modes: Modes, near: Points) -> Modes:
        """Modes on a box that includes the points: a series is periodic outside its box."""
        # The box needs no extension, as no point is near the data.
        if not len(near.predictions):
            return modes
        z = self._coordinates(modes, near)
        # The coordinates of the points are those of the factors, one factor after another.
        lowest, highest = iter(z.min(axis=0).tolist()), iter(z.max(axis=0).tolist())
        factors = []
        for factor in modes.series.factors:
            low = tuple(min(edge, next(lowest)) for edge in factor.low)
            high = tuple(max(edge, next(highest)) for edge in factor.high)
            factors.append(replace(factor, low=low, high=high))
        series = replace(modes.series, factors=tuple(factors))
        if series.modes * modes.combinations > MAX_NUMBERS:
            raise NoSeries(
                f"with these points the Fourier series would need {series.modes:.3g} modes for "
                f"each of {modes.combinations} combinations",
                "leave out those far from the data, widen the bandwidths, or use method='{pairs}'",
            )
        return replace(modes, series=series)

    def measure(
        self, read: Callable[..., PassResult], points: Points | None, strengths: MapStrengths
    ) -> Measured:
        """Sums at the points, or at the rows, from the modes of one pass."""
        statistics = self.statistics(strengths)
        if points is None:
            gather = RowPoints(self.modes.notion, self.positions)
            result = read(*statistics, gather)
            at = result.groups[None][gather]
        else:
            result = read(*statistics)
            at = points
        states = result.groups[None]
        sums = [np.zeros((count, len(at.predictions))) for count in strengths.counts]
        with one_thread():
            # Points in pieces bound the memory of their modes.
            for first in range(0, len(at.predictions), _PIECE):
                piece = at.take(slice(first, first + _PIECE))
                inside = np.arange(len(piece.predictions))
                if points is not None:
                    # Outside of its box the series is periodic, and would repeat rows far away.
                    # Sums there stay 0.
                    inside = np.flatnonzero(self._inside(piece))
                piece = piece.take(inside)
                for out, statistic, kernel in zip(
                    sums, statistics, (self.kernel, self.squared), strict=True
                ):
                    F = states[statistic].sums
                    out[:, first + inside] = self._evaluate(statistic.modes, kernel, F, piece)
        error, squared_error = (
            self.tolerance * float(states[statistic].weight) for statistic in statistics
        )
        return Measured(at, sums[0], sums[1], (error, squared_error), result.counts)

    def _evaluate(
        self, modes: Modes, kernel: ProductKernel, F: Complexes, points: Points
    ) -> Floats:
        """Σ_c l(x', c) Σ_ω κ̂(ω) F_c(ω) exp(−i⟨ω, z'⟩) over combinations of levels c (s, m).

        x' are the discrete covariates of the points, z' their coordinates in the box of the series,
        and l is the kernel of discrete covariates.  F has the shape (s, C, …).
        """
        z = self._coordinates(modes, points)
        first, group = _distinct(points.covariates[:, self._local(modes).discrete])
        seen = self._seen(modes, kernel, points.covariates[first])
        # The sums over c and ω commute.  The first order evaluates a series for each distinct x',
        # and the second one for each combination.
        if len(first) <= modes.combinations:
            return _evaluated_by_point(modes, F, z, group, seen)
        return _evaluated_by_combination(modes, F, z, group, seen)

    def _seen(self, modes: Modes, kernel: ProductKernel, x: Floats) -> list[Floats]:
        """Kernel between points and the levels of each discrete column, (m, levels)."""
        kernels = []
        for place, position, values in zip(
            self._local(modes).discrete, modes.discrete, modes.levels, strict=True
        ):
            gap = np.abs(np.subtract.outer(x[:, place], np.array(values)))
            if position in kernel.categorical:
                kernels.append((gap == 0).astype(np.float64))
            else:
                bandwidth = kernel.bandwidths[kernel.columns.index(position)]
                kernels.append(radial(kernel.covariate, gap / bandwidth))
        return kernels


def _evaluated_by_point(
    modes: Modes, F: Complexes, z: Floats, group: Ints, seen: list[Floats]
) -> Floats:
    """Sums (s, m) at z (m, d), from modes that are summed over c for each distinct point first.

    `group` (m,) is the number of the distinct point, whose kernels with levels are rows of `seen`.
    """
    out = np.zeros((len(F), len(z)))
    # Points in order of the distinct point, so that each takes one slice of them.
    numbers, starts = np.unique(np.sort(group), return_index=True)
    by_number = np.split(np.argsort(group, kind="stable"), starts[1:])
    for number, members in zip(numbers, by_number, strict=False):
        # Kronecker products run over the combinations of levels in the order of their codes.
        seen_by: Floats = np.ones(1)
        for part in seen:
            seen_by = np.kron(seen_by, part[number])
        if seen_by.any():
            coupled = np.stack([np.tensordot(seen_by, f, 1) for f in F])
            out[:, members] = modes.series.evaluate(coupled, z[members])
    return out


def _evaluated_by_combination(
    modes: Modes, F: Complexes, z: Floats, group: Ints, seen: list[Floats]
) -> Floats:
    """Sums as those of `_evaluated_by_point`, from the modes of each combination of levels."""
    out = np.zeros((len(F), len(z)))
    sizes = [part.shape[1] for part in seen]
    for code in range(modes.combinations):
        places = zip(seen, np.unravel_index(code, sizes), strict=True)
        # Kernel between each point and this combination of levels, 0 for most points.
        share = math.prod(part[group, i] for part, i in places)
        near = np.flatnonzero(share)
        out[:, near] += share[near] * modes.series.evaluate(F[:, code], z[near])
    return out


def _distinct(x: Floats) -> tuple[Ints, Ints]:
    """First index of each distinct row, and the number of the distinct row of each row."""
    group = np.zeros(len(x), np.int64)
    for column in x.T:
        values, place = np.unique(column, return_inverse=True)
        # Numbers are renewed after each column, so that they stay below the number of rows.
        group = np.unique(group * len(values) + place, return_inverse=True)[1]
    first = np.unique(group, return_index=True)[1]
    return first, group


# ---------------------------------------------------------------- direct


@dataclass(frozen=True)
class Direct:
    """Sums over all rows for every point."""

    notion: str
    kernel: ProductKernel
    positions: tuple[int, ...]

    def measure(
        self, read: Callable[..., PassResult], points: Points | None, strengths: MapStrengths
    ) -> Measured:
        """Sums at the points from one pass, after one that gathers the rows if points is None."""
        if points is None:
            gather = RowPoints(self.notion, self.positions)
            points = read(gather).groups[None][gather]
        place = {position: i for i, position in enumerate(self.positions)}
        kernel = replace(
            self.kernel,
            columns=tuple(place[c] for c in self.kernel.columns),
            categorical=tuple(place[c] for c in self.kernel.categorical),
        )
        statistic = PointSums(strengths, kernel, self.positions, points)
        result = read(statistic)
        sums = result.groups[None][statistic]
        return Measured(points, sums.first, sums.second, (0.0, 0.0), result.counts)


class PointState(NamedTuple):
    """Sums with κ and with κ² at the points, (s, m) and (t, m)."""

    first: Floats
    second: Floats


@dataclass(frozen=True, eq=False)
class PointSums(Statistic):
    """Kernel sums over the rows at points.  `kernel` has the columns of the points."""

    strengths: MapStrengths
    kernel: ProductKernel
    positions: tuple[int, ...]
    points: Points

    def zero(self, classes: int) -> PointState:
        m = len(self.points.predictions)
        return PointState(*(np.zeros((count, m)) for count in self.strengths.counts))

    def accumulate(self, state: PointState, chunk: Chunk) -> PointState:
        rows = NotionRows.of(chunk, self.strengths.notion)
        row_points = Points(rows.points[:, 0], rows.covariates[:, self.positions])
        first, second = self.strengths.of(chunk)
        # Tiles keep the kernel matrix in the cache.
        tall, wide = _TILE
        for j in range(0, len(self.points.predictions), wide):
            map_points = self.points.take(slice(j, j + wide))
            for i in range(0, len(rows), tall):
                K = _kernel_matrix(self.kernel, row_points.take(slice(i, i + tall)), map_points)
                state.first[:, j : j + wide] += first[:, i : i + tall] @ K
                # κ² in place: κ of this tile is not needed again.
                K *= K
                state.second[:, j : j + wide] += second[:, i : i + tall] @ K
        return state


def _kernel_matrix(kernel: ProductKernel, a: Points, b: Points) -> Floats:
    """Kernel between each point of `a` and each of `b` (len(a), len(b))."""
    distances = np.abs(np.subtract.outer(a.predictions, b.predictions))
    products = partial(np.multiply.outer, a.predictions, b.predictions)
    K = kernel.of_predictions(distances, products)
    if kernel.columns:
        squares = np.zeros_like(K)
        columns = (kernel.continuous(points.covariates).T for points in (a, b))
        for x, y in zip(*columns, strict=True):
            squares += np.subtract.outer(x, y) ** 2
        K *= radial(kernel.covariate, np.sqrt(squares))
    for c in kernel.categorical:
        K *= np.equal.outer(a.covariates[:, c], b.covariates[:, c])
    return K
