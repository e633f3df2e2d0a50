"""The map of local calibration bias: how far, and in which direction, predictions are off where."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale import engine
from calibscale.chunk import Chunk, Floats, Ints, RowCounts, Rules
from calibscale.errors import OptionError
from calibscale.estimators.local import KLCE
from calibscale.evaluation import DataSetup, describe_scheduler, versions
from calibscale.local import MAX_NUMBERS, Modes, ModeState, local_kernel, spectral_statistic
from calibscale.products import ProductKernel, Rows, radial
from calibscale.results import finite
from calibscale.scan import Pass, scan
from calibscale.spectral import Complexes
from calibscale.statistics import Statistic
from calibscale.store import as_source
from calibscale.views import problems

BIAS_SCHEMA = "calibscale.bias/1"
METHODS = ("auto", "spectral", "direct")
NOTIONS = ("positive", "top_label")
MAX_POINTS = 10**7
MAX_PAIRS = 2 * 10**10  # some minutes on two cores

_FEW_PAIRS = 10**7  # a tenth of a second
_PIECE = 2**20  # points evaluated together
_TILE = 512, 1024  # rows and points whose kernel is in memory at once
_KNOWN = 100  # Σw²κ² must be so many times its error: effective rows are known to one percent
_ROUNDING = 1e-9  # two equal rows count as two


@dataclass(frozen=True, eq=False)
class BiasMap:
    """Local calibration bias at m points.

    Attributes
    ----------
    covariates : tuple of str
        Names of the d columns of `values`.
    predictions : (m,)
        f' of each point; NaN where the kernel asks for no prediction.
    values : (m, d)
        x' of each point.
    bias : (m,)
        Mean of y − f near the point: positive where predictions are too low; NaN where masked.
    standard_error : (m,)
        NaN where masked.
    effective_rows : (m,)
        (Σwκ)²/Σw²κ², 0 where no row is near enough to be told from none.
    masked : (m,) bool
        Fewer than two effective rows, or sums that are not known well enough.
    index : (m,) int64 or None
        Row numbers in the source, if the points are its rows.
    n, n_unlabelled, dropped
        Rows used, not yet labelled, and left out by reason.
    """

    covariates: tuple[str, ...]
    predictions: Floats
    values: Floats
    bias: Floats
    standard_error: Floats
    effective_rows: Floats
    masked: Any
    index: Ints | None
    parameters: dict[str, Any]
    n: int
    n_unlabelled: int
    dropped: dict[str, int]
    source: dict[str, Any]
    seconds: float
    versions: dict[str, str]
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.bias)

    @property
    def header(self) -> tuple[str, ...]:
        """What the numbers of `rows` are."""
        found = ("bias", "standard_error", "effective_rows", "masked")
        return (*(() if self.index is None else ("row",)), "prediction", *self.covariates, *found)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The points one by one, as a table has them; None for NaN."""
        columns = [self.predictions, *self.values.T, self.bias, self.standard_error]
        columns += [self.effective_rows, self.masked]
        if self.index is not None:
            columns.insert(0, self.index)
        for low in range(0, len(self), _PIECE):
            pieces = [column[low : low + _PIECE].tolist() for column in columns]
            for row in zip(*pieces, strict=True):
                yield tuple(finite(list(row)))

    def most_biased(self, count: int) -> Ints:
        """The points of largest |bias|/standard error, that first; no masked ones."""
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.nan_to_num(np.abs(self.bias) / self.standard_error, nan=0.0)
        points = np.flatnonzero(~self.masked)
        return points[np.argsort(-score[points], kind="stable")[: max(count, 0)]]

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object of ``calibscale bias --json``; NaN is null."""
        points: dict[str, Any] = {} if self.index is None else {"row": self.index.tolist()}
        points |= {
            "prediction": self.predictions.tolist(),
            "covariates": {
                name: column.tolist()
                for name, column in zip(self.covariates, self.values.T, strict=True)
            },
            "bias": self.bias.tolist(),
            "standard_error": self.standard_error.tolist(),
            "effective_rows": self.effective_rows.tolist(),
            "masked": self.masked.tolist(),
        }
        return finite(
            {
                "schema": BIAS_SCHEMA,
                "source": self.source,
                "n": self.n,
                "n_dropped": sum(self.dropped.values()),
                "n_unlabelled": self.n_unlabelled,
                "dropped": self.dropped,
                "seconds": self.seconds,
                "versions": self.versions,
                "parameters": self.parameters,
                "notes": list(self.notes),
                "n_masked": int(self.masked.sum()),
                "points": points,
            }
        )


def local_bias(
    source: Any,
    covariates: Sequence[str],
    *,
    at: Any = "rows",
    points: int = 25,
    prediction_bandwidth: float | None = None,
    covariate_bandwidth: float | Mapping[str, float] | None = None,
    categorical: Sequence[str] = (),
    prediction_kernel: str = "gaussian",
    covariate_kernel: str = "gaussian",
    notion: str | None = None,
    method: str = "auto",
    tolerance: float = 1e-12,
    on_invalid: str = "raise",
    simplex_tolerance: float = 1e-4,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> BiasMap:
    """Σ_i w_i (y_i − f_i) κ_i / Σ_i w_i κ_i at points (f', x'), κ_i = k(f_i, f') l(x_i, x').

    The local calibration bias of [VF, eq. 7]; with ``prediction_kernel="none"``, k = 1, that of
    Luo et al. (2022).  A row at the point itself is one of the rows i.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
    covariates : names of the columns x
    at : {"rows", "grid"} or (predictions (m,), covariates (m, d))
        The points: every valid labelled row; a grid; or these, None for predictions if k = 1.
    points : int
        Values of each axis of the grid: predictions from 0 to 1, covariates between the 1st and
        the 99th percentile of 1,000 rows, or their own values where these are no more.
    prediction_bandwidth, covariate_bandwidth, categorical, prediction_kernel, covariate_kernel
        As of `KLCE`.
    notion : {"positive", "top_label"}, optional
        Default: ``positive``, P(class 1), for two classes, ``top_label`` for more.
    method : {"auto", "spectral", "direct"}
        ``spectral``: a Fourier series, one pass, for Gaussian kernels; ``direct``: every row for
        every point.  ``auto``: the first of those that fits and is quick.
    tolerance : float
        Of the series: an error of Σwκ below tolerance·Σw.
    on_invalid, scheduler, memory_limit, progress
        See `evaluate`.
    simplex_tolerance : float
        How far from 1 a row of probabilities may sum.

    Returns
    -------
    BiasMap

    Raises
    ------
    InvalidDataError
        At the first bad row.
    OptionError, StoreError
        If a setting does not fit the data, or they cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.bias import local_bias
    >>> source = calibscale.from_arrays(
    ...     probabilities=np.full(9, 0.7), labels=np.ones(9, int), binary=True
    ... )
    >>> float(local_bias(source, (), at=([0.7], None)).bias[0].round(12))
    0.3
    """
    started = time.perf_counter()
    data = as_source(source)
    names = (covariates,) if isinstance(covariates, str) else tuple(covariates)
    levelled = (categorical,) if isinstance(categorical, str) else tuple(categorical)
    notion = notion or ("positive" if data.classes == 2 else "top_label")
    _check(notion, data.classes, method, at, points)
    KLCE(  # the settings that a map shares with it, checked
        names, prediction_bandwidth, covariate_bandwidth, levelled, prediction_kernel,
        covariate_kernel, notion,
    )  # fmt: skip
    rules = Rules(
        data.kind, data.classes, max(1, data.chunk_rows),
        tolerance=simplex_tolerance, on_invalid=on_invalid,
    )  # fmt: skip
    with engine.session(scheduler, memory_limit) as opened:
        setup = DataSetup(data, rules, opened)
        kernel, notes = local_kernel(
            setup, notion, names, levelled, prediction_kernel, prediction_bandwidth,
            covariate_kernel, covariate_bandwidth,
        )  # fmt: skip
        asked = None
        if not isinstance(at, str):
            asked = _given(at, names, kernel)
        elif at == "grid":
            asked = _grid(setup, notion, kernel, names, points)
        plan, why = _choose(setup, notion, kernel, names, method, tolerance, asked)
        notes.append(why)

        def read(*statistics: Statistic) -> Pass:
            return scan(
                data, statistics, covariates=names, on_invalid=on_invalid,
                tolerance=simplex_tolerance, scheduler=opened, memory_limit=memory_limit,
                progress=progress,
            )  # fmt: skip

        direct = _Direct(notion, kernel, tuple(data.covariate(name) for name in names))
        measured = (plan or direct).measure(read, asked)
    parameters: dict[str, Any] = {
        "covariates": list(names),
        "categorical": list(levelled),
        "notion": notion,
        "prediction_kernel": prediction_kernel,
        "prediction_bandwidth": kernel.prediction_bandwidth,
        "covariate_kernel": covariate_kernel,
        "covariate_bandwidth": dict(
            zip((n for n in names if n not in levelled), kernel.bandwidths, strict=True)
        ),
        "at": at if isinstance(at, str) else "given",
        "method": "direct" if plan is None else "spectral",
        "on_invalid": on_invalid,
        "simplex_tolerance": simplex_tolerance,
        "scheduler": describe_scheduler(scheduler),
        "memory_limit": engine.parse_bytes(memory_limit),
    }
    if parameters["at"] == "grid":
        parameters["points"] = points
    if plan is not None:
        parameters |= {"tolerance": tolerance, "modes": plan.modes.series.modes}
    where = measured.points
    return BiasMap(
        names, where.predictions, where.covariates, *_finish(measured), where.rows, parameters,
        n=measured.counts.used, n_unlabelled=measured.counts.unlabelled,
        dropped=measured.counts.dropped, source=data.describe(),
        seconds=time.perf_counter() - started, versions=versions(), notes=tuple(notes),
    )  # fmt: skip


def _check(notion: str, classes: int, method: str, at: Any, points: int) -> None:
    if notion not in NOTIONS:
        raise OptionError(f"a map is of notion {' or '.join(NOTIONS)}, not {notion!r}")
    problems(notion, classes)
    if method not in METHODS:
        raise OptionError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if isinstance(at, str) and at not in ("rows", "grid"):
        raise OptionError(f"at must be rows, grid or (predictions, covariates), not {at!r}")
    if points < 2:
        raise OptionError(f"points must be at least 2, not {points}")


# ---------------------------------------------------------------- points


class Points(NamedTuple):
    """Predictions (m,), the map's covariates (m, d), and row numbers (m,) or None."""

    predictions: Floats
    covariates: Floats
    rows: Any = None

    def take(self, index: Any) -> Points:
        """The points that `index` names."""
        return Points(self.predictions[index], self.covariates[index])


def _given(at: Any, names: tuple[str, ...], kernel: ProductKernel) -> Points:
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


def _grid(
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


# ---------------------------------------------------------------- from sums to biases


class _Measured(NamedTuple):
    """Σ wδκ, wκ, w²δ²κ², w²δκ², w²κ² at the points (5, m), and the errors of Σwκ and Σw²κ²."""

    points: Points
    sums: Floats
    errors: tuple[float, float]
    counts: RowCounts


def _strengths(rows: Rows) -> Floats:
    """wδ, w, then w²δ², w²δ, w² (5, c)."""
    w, delta = rows.weights, rows.delta[:, 0]
    w2 = w * w
    return np.stack([w * delta, w, w2 * delta * delta, w2 * delta, w2])


def _finish(found: _Measured) -> tuple[Floats, Floats, Floats, Any]:
    """Bias, standard error, effective rows and mask.

    The variance of the mean is Σw²κ²(δ − δ̄)²/(Σwκ)², multiplied out.
    """
    residuals, weights, squares2, residuals2, weights2 = found.sums
    known = (weights > found.errors[0]) & (weights2 > _KNOWN * found.errors[1])
    one = np.where(known, weights, 1.0)
    mean = residuals / one
    variance = squares2 - 2 * mean * residuals2 + mean * mean * weights2
    effective = np.where(known, one * (one / np.where(known, weights2, 1.0)), 0.0)
    masked = ~(effective >= 2 * (1 - _ROUNDING))
    error = np.sqrt(np.maximum(variance, 0.0)) / one
    return np.where(masked, np.nan, -mean), np.where(masked, np.nan, error), effective, masked


# ---------------------------------------------------------------- spectral


class SquareState(NamedTuple):
    """Fourier modes of w²δ², w²δ and w² by combination of levels."""

    squares: Complexes
    residuals: Complexes
    weights: Complexes


@dataclass(frozen=True)
class SquareModes(Statistic):
    """The `modes` of κ² instead of κ, with the squares of the weights."""

    modes: Modes
    large_chunks: ClassVar[bool] = True

    def zero(self, classes: int) -> SquareState:
        shape = (self.modes.combinations, *self.modes.series.shape)
        return SquareState(*(np.zeros(shape, complex) for _ in range(3)))

    def accumulate(self, state: SquareState, chunk: Chunk) -> SquareState:
        rows = Rows.of(chunk, self.modes.notion)
        strengths = _strengths(rows)[2:]
        points = self.modes.points(rows.points, rows.covariates)
        codes = self.modes.codes(rows.covariates)
        for code in np.unique(codes):
            here = codes == code if self.modes.combinations > 1 else slice(None)
            found = self.modes.series.transform(points[here], strengths[:, here])
            for total, value in zip(state, found, strict=True):
                total[code] += value
        return state


def _choose(
    setup: DataSetup,
    notion: str,
    kernel: ProductKernel,
    names: tuple[str, ...],
    method: str,
    tolerance: float,
    asked: Points | None,
) -> tuple[_Spectral | None, str]:
    """The series that the map comes from (None: every row for every point), and why."""
    pairs = setup.rows * (setup.rows if asked is None else len(asked.predictions))
    why = "as asked for"
    if method == "auto" and pairs <= _FEW_PAIRS:
        return None, f"direct: {pairs:,} pairs of rows and points are quick"
    if method != "direct":
        try:
            plan = _Spectral.fitting(setup, notion, kernel, names, tolerance, asked)
            modes = plan.modes.series.modes
            return plan, f"spectral: {why if method == 'spectral' else f'{modes} modes suffice'}"
        except OptionError as error:
            why = str(error).replace("tiles", "direct")  # the name of the estimators' other way
            if method == "spectral":
                raise OptionError(why) from error
    if pairs > MAX_PAIRS:
        remedy = f"there is no series: {why}" if method == "auto" else "use method='spectral'"
        raise OptionError(
            f"{pairs:.2g} pairs of rows and points are above {MAX_PAIRS:.0e}: take fewer points "
            f"(at='grid'), or {remedy}"
        )
    return None, f"direct: {why}"


@dataclass(frozen=True)
class _Spectral:
    """Series of κ and of κ², on a box that holds the rows and the points."""

    kernel: ProductKernel
    squared: ProductKernel
    modes: Modes
    squares: SquareModes
    tolerance: float
    positions: tuple[int, ...]

    @staticmethod
    def fitting(
        setup: DataSetup,
        notion: str,
        kernel: ProductKernel,
        names: tuple[str, ...],
        tolerance: float,
        asked: Points | None,
    ) -> _Spectral:
        """The series that the data, and the points asked for, need.

        Raises
        ------
        OptionError
            If there is none, or it is too long.
        """
        gaussian = not kernel.columns or kernel.covariate == "gaussian"
        if not (gaussian and kernel.prediction in ("gaussian", "none")):
            raise OptionError("the square of the kernel has a series only if it is Gaussian")
        narrow = 1 / math.sqrt(2.0)  # exp(−r²/2)² is a Gaussian of this bandwidth
        squared = replace(
            kernel,
            prediction_bandwidth=kernel.prediction_bandwidth * narrow,
            bandwidths=tuple(b * narrow for b in kernel.bandwidths),
        )
        modes, squares = (
            spectral_statistic(setup, notion, k, names, tolerance) for k in (kernel, squared)
        )
        positions = tuple(setup.source.covariate(name) for name in names)
        made = _Spectral(kernel, squared, modes, SquareModes(squares), tolerance, positions)
        if asked is not None and len(asked.predictions):
            # beyond, κ is below the tolerance for every row: those points will be masked
            near = asked.take(made._inside(asked, math.sqrt(-2 * math.log(tolerance))))
            modes, squares = made._reaching(modes, near), made._reaching(squares, near)
            made = replace(made, modes=modes, squares=SquareModes(squares))
        return made

    def _inside(self, points: Points, bandwidths: float = 0.0) -> Any:
        """Which points are in the box, or so many bandwidths from it at most (m,)."""
        z = self._coordinates(self.modes, points)
        factors = self.modes.series.factors
        low, high, bandwidth = np.hstack([(f.low, f.high, f.bandwidths) for f in factors])
        reach = bandwidths * bandwidth
        return ((z >= low - reach) & (z <= high + reach)).all(axis=1)

    def _coordinates(self, modes: Modes, points: Points) -> Floats:
        z = self._local(modes).points(points.predictions[:, None], points.covariates)
        return z if z.shape[1] else np.zeros((len(z), 1))  # nothing continuous

    def _local(self, modes: Modes) -> Modes:
        """The same for points, which have the named covariates alone."""
        place = {position: i for i, position in enumerate(self.positions)}
        return replace(
            modes,
            columns=tuple(place[c] for c in modes.columns),
            discrete=tuple(place[c] for c in modes.discrete),
        )

    def _reaching(self, modes: Modes, near: Points) -> Modes:
        """The modes on a box that also holds the points: a series is periodic beyond its box."""
        if not len(near.predictions):
            return modes
        z = self._coordinates(modes, near)
        lows, highs = list(z.min(axis=0)), list(z.max(axis=0))
        factors = []
        for f in modes.series.factors:
            low = tuple(min(a, float(lows.pop(0))) for a in f.low)
            high = tuple(max(b, float(highs.pop(0))) for b in f.high)
            factors.append(replace(f, low=low, high=high))
        series = replace(modes.series, factors=tuple(factors))
        if series.modes * modes.combinations > MAX_NUMBERS:
            raise OptionError(
                f"with these points the Fourier series would need {series.modes:.3g} modes for "
                f"each of {modes.combinations} combinations: leave out those far from the data, "
                "widen the bandwidths, or use method='direct'"
            )
        return replace(modes, series=series)

    def measure(self, read: Callable[..., Pass], asked: Points | None) -> _Measured:
        """One pass for the modes, which are then summed at the points."""
        gather = RowPoints(self.modes.notion, self.positions)
        statistics = (self.modes, self.squares, *(() if asked is not None else (gather,)))
        found = read(*statistics)
        states = found.groups.get(None) or {s: s.zero(2) for s in statistics}
        modes, squares = states[self.modes], states[self.squares]
        points = states[gather] if asked is None else asked
        sums = np.zeros((5, len(points.predictions)))
        with engine.one_thread():
            for first in range(0, sums.shape[1], _PIECE):
                piece = points.take(slice(first, first + _PIECE))
                here = np.arange(len(piece.predictions))
                if asked is not None:
                    here = np.flatnonzero(self._inside(piece))
                sums[:, first + here] = self._at(piece.take(here), modes, squares)
        errors = (self.tolerance * float(modes.weight), self.tolerance * float(modes.weight2))
        return _Measured(points, sums, errors, found.counts)

    def _at(self, points: Points, modes: ModeState, squares: SquareState) -> Floats:
        """The five sums at points inside the box (5, m)."""
        first = self._evaluate(self.modes, self.kernel, (modes.residuals, modes.weights), points)
        return np.vstack([first, self._evaluate(self.squares.modes, self.squared, squares, points)])

    def _evaluate(
        self, modes: Modes, kernel: ProductKernel, F: tuple[Complexes, ...], points: Points
    ) -> Floats:
        """Σ_c l(x', c) Σ_ω κ̂(ω) F_c(ω) exp(−i⟨ω, z'⟩) over combinations of levels c (s, m)."""
        z = self._coordinates(modes, points)
        first, group = _distinct(points.covariates[:, self._local(modes).discrete])
        seen = self._seen(modes, kernel, points.covariates[first])
        out = np.zeros((len(F), len(z)))
        if len(first) <= modes.combinations:  # few kinds of points: couple, then evaluate
            ends = np.cumsum(np.bincount(group, minlength=len(first)))
            split = np.split(np.argsort(group, kind="stable"), ends[:-1])
            for g, here in enumerate(split if len(z) else []):
                seen_by: Floats = np.ones(1)
                for part in seen:
                    seen_by = np.kron(seen_by, part[g])
                if seen_by.any():
                    coupled = np.stack([np.tensordot(seen_by, f, 1) for f in F])
                    out[:, here] = modes.series.evaluate(coupled, z[here])
            return out
        sizes = [part.shape[1] for part in seen]
        for code in range(modes.combinations):
            places = zip(seen, np.unravel_index(code, sizes), strict=True)
            share = math.prod(part[group, i] for part, i in places)
            here = np.flatnonzero(share)
            found = modes.series.evaluate(np.stack([f[code] for f in F]), z[here])
            out[:, here] += share[here] * found
        return out

    def _seen(self, modes: Modes, kernel: ProductKernel, x: Floats) -> list[Floats]:
        """The kernel between points and the levels of each discrete column, (m, levels)."""
        found = []
        for place, position, values in zip(
            self._local(modes).discrete, modes.discrete, modes.levels, strict=True
        ):
            gap = np.abs(np.subtract.outer(x[:, place], np.array(values)))
            if position in kernel.categorical:
                found.append((gap == 0).astype(np.float64))
            else:
                bandwidth = kernel.bandwidths[kernel.columns.index(position)]
                found.append(radial(kernel.covariate, gap / bandwidth))
        return found


def _distinct(x: Floats) -> tuple[Ints, Ints]:
    """Where each distinct row is first met, and which of them each row is."""
    group = np.zeros(len(x), np.int64)
    for column in x.T:
        values, place = np.unique(column, return_inverse=True)
        group = np.unique(group * len(values) + place, return_inverse=True)[1]
    first = np.unique(group, return_index=True)[1]
    return first, group


# ---------------------------------------------------------------- direct


@dataclass(frozen=True)
class _Direct:
    """Every row for every point."""

    notion: str
    kernel: ProductKernel
    positions: tuple[int, ...]

    def measure(self, read: Callable[..., Pass], asked: Points | None) -> _Measured:
        """One pass for the sums, and one before it for the points if they are the rows."""
        if asked is None:
            gather = RowPoints(self.notion, self.positions)
            states = read(gather).groups.get(None)
            asked = gather.zero(2) if states is None else states[gather]
        place = {position: i for i, position in enumerate(self.positions)}
        kernel = replace(
            self.kernel,
            columns=tuple(place[c] for c in self.kernel.columns),
            categorical=tuple(place[c] for c in self.kernel.categorical),
        )
        statistic = PointSums(self.notion, kernel, self.positions, asked)
        found = read(statistic)
        sums = (found.groups.get(None) or {statistic: statistic.zero(2)})[statistic].sums
        return _Measured(asked, sums, (0.0, 0.0), found.counts)


class PointState(NamedTuple):
    """Σ wδκ, wκ, w²δ²κ², w²δκ², w²κ² at the points, (5, m)."""

    sums: Floats


@dataclass(frozen=True, eq=False)
class PointSums(Statistic):
    """Kernel sums over the rows at given points; `kernel` counts the points' covariates."""

    notion: str
    kernel: ProductKernel
    positions: tuple[int, ...]
    points: Points

    def zero(self, classes: int) -> PointState:
        return PointState(np.zeros((5, len(self.points.predictions))))

    def accumulate(self, state: PointState, chunk: Chunk) -> PointState:
        rows = Rows.of(chunk, self.notion)
        mine = Points(rows.points[:, 0], rows.covariates[:, self.positions])
        strengths = _strengths(rows)
        tall, wide = _TILE
        for j in range(0, state.sums.shape[1], wide):
            theirs = self.points.take(slice(j, j + wide))
            into = state.sums[:, j : j + wide]
            for i in range(0, len(rows), tall):
                K = _kernel_matrix(self.kernel, mine.take(slice(i, i + tall)), theirs)
                into[:2] += strengths[:2, i : i + tall] @ K
                K *= K
                into[2:] += strengths[2:, i : i + tall] @ K
        return state


def _kernel_matrix(kernel: ProductKernel, a: Points, b: Points) -> Floats:
    """κ of each point of `a` and each of `b` (len(a), len(b))."""
    K = np.ones((len(a.predictions), len(b.predictions)))
    if kernel.prediction != "none":
        r = np.abs(np.subtract.outer(a.predictions, b.predictions)) / kernel.prediction_bandwidth
        if kernel.linear:
            K = np.multiply.outer(a.predictions, b.predictions) + radial("gaussian", r)
        else:
            K = radial(kernel.prediction, r)
    if kernel.columns:
        squares = np.zeros_like(K)
        both = zip(
            kernel.continuous(a.covariates).T, kernel.continuous(b.covariates).T, strict=True
        )
        for x, y in both:
            squares += np.subtract.outer(x, y) ** 2
        K *= radial(kernel.covariate, np.sqrt(squares))
    for c in kernel.categorical:
        K *= np.equal.outer(a.covariates[:, c], b.covariates[:, c])
    return K
