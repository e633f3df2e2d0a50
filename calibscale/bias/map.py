"""The map of local calibration bias: how far, and in which direction, predictions are off where."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from calibscale import engine
from calibscale.bias.points import given_points, grid_points
from calibscale.bias.sums import Direct, Measured, Strengths, choose
from calibscale.chunk import Floats, Ints, Rules
from calibscale.errors import OptionError
from calibscale.estimators.local import KLCE
from calibscale.evaluation import DataSetup, describe_scheduler, versions
from calibscale.excess import excess_deviate, excess_limits
from calibscale.local import local_kernel
from calibscale.results import finite
from calibscale.scan import Pass, scan
from calibscale.statistics import Statistic
from calibscale.store import as_source
from calibscale.views import problems

BIAS_SCHEMA = "calibscale.bias/1"
METHODS = ("auto", "spectral", "direct")
NOTIONS = ("positive", "top_label")
CONFIDENCE = 0.95  # of the interval of each point

_KNOWN = 100  # Σw²κ² must be so many times its error: effective rows are known to one percent
_ROUNDING = 1e-9  # two equal rows count as two
_PIECE = 2**16  # rows written together
_COLUMNS = ("bias", "standard_error", "low", "high", "z", "effective_rows")


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
        √max(Σw²κ²(δ − δ̄)²·n′/(n′ − 1), Σw²κ²p(1 − p))/Σwκ, with n′ effective rows: the spread of
        y − f near the point, and no less than calibrated labels have.  NaN where masked.
    low, high : (m,)
        The 95 % interval of the bias at this point alone, by `excess_limits` with the weights wκ.
        Where events are rare it is far from symmetric, so no multiple of an error.
    z : (m,)
        The normal deviate of the bias if all rows are calibrated, see `excess_deviate`; its third
        moment takes Σw³κ³p(1 − p)(1 − 2p) as Σw²κ²p(1 − p)(1 − 2p)·Σw²κ²/Σwκ.
    effective_rows : (m,)
        (Σwκ)²/Σw²κ², 0 where no row is near enough to be told from none.
    masked : (m,) bool
        Fewer than `min_rows` effective rows, or sums that are not known well enough.
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
    low: Floats
    high: Floats
    z: Floats
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
        index = () if self.index is None else ("row",)
        return (*index, "prediction", *self.covariates, *_COLUMNS, "masked")

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The points one by one, as a table has them; None for NaN."""
        columns = [self.predictions, *self.values.T]
        columns += [*(getattr(self, name) for name in _COLUMNS), self.masked]
        if self.index is not None:
            columns.insert(0, self.index)
        for low in range(0, len(self), _PIECE):
            pieces = [column[low : low + _PIECE].tolist() for column in columns]
            for row in zip(*pieces, strict=True):
                yield tuple(finite(list(row)))

    def most_biased(self, count: int) -> Ints:
        """The points of largest |z|, that first; no masked ones."""
        points = np.flatnonzero(~self.masked)
        return points[np.argsort(-np.abs(self.z[points]), kind="stable")[: max(count, 0)]]

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object of ``calibscale bias --json``; NaN is null."""
        points: dict[str, Any] = {} if self.index is None else {"row": self.index.tolist()}
        points |= {
            "prediction": self.predictions.tolist(),
            "covariates": {
                name: column.tolist()
                for name, column in zip(self.covariates, self.values.T, strict=True)
            },
            **{name: getattr(self, name).tolist() for name in _COLUMNS},
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
    min_rows: float = 10,
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
    min_rows : float
        Effective rows that a point needs, 2 or more, not to be masked.
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
    ...     probabilities=np.full(40, 0.7), labels=np.ones(40, int), binary=True
    ... )
    >>> found = local_bias(source, (), at=([0.7], None))
    >>> [float(x[0].round(2)) for x in (found.bias, found.low, found.high, found.z)]
    [0.3, 0.21, 0.3, 4.0]
    """
    started = time.perf_counter()
    data = as_source(source)
    names = (covariates,) if isinstance(covariates, str) else tuple(covariates)
    levelled = (categorical,) if isinstance(categorical, str) else tuple(categorical)
    levelled = data.categorical(names, levelled)
    notion = notion or ("positive" if data.classes == 2 else "top_label")
    _check(notion, data.classes, method, at, points, tolerance, min_rows)
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
            asked = given_points(at, names, kernel)
        elif at == "grid":
            asked = grid_points(setup, notion, kernel, names, points)
        plan, why = choose(setup, notion, kernel, names, method, tolerance, asked)
        notes.append(why)

        def read(*statistics: Statistic) -> Pass:
            return scan(
                data, statistics, covariates=names, on_invalid=on_invalid,
                tolerance=simplex_tolerance, scheduler=opened, memory_limit=memory_limit,
                progress=progress,
            )  # fmt: skip

        direct = Direct(notion, kernel, tuple(data.covariate(name) for name in names))
        measured = (plan or direct).measure(read, asked, Strengths(notion))
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
        "min_rows": min_rows,
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
        covariates=names, predictions=where.predictions, values=where.covariates,
        **_finish(measured, min_rows), index=where.rows, parameters=parameters,
        n=measured.counts.used, n_unlabelled=measured.counts.unlabelled,
        dropped=measured.counts.dropped, source=data.describe(),
        seconds=time.perf_counter() - started, versions=versions(), notes=tuple(notes),
    )  # fmt: skip


def _check(
    notion: str, classes: int, method: str, at: Any, points: int, tolerance: float, min_rows: float
) -> None:
    if notion not in NOTIONS:
        raise OptionError(f"a map is of notion {' or '.join(NOTIONS)}, not {notion!r}")
    problems(notion, classes)
    if method not in METHODS:
        raise OptionError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if isinstance(at, str) and at not in ("rows", "grid"):
        raise OptionError(f"at must be rows, grid or (predictions, covariates), not {at!r}")
    if not 1e-14 <= tolerance <= 0.1:
        raise OptionError(f"tolerance must be in 1e-14..0.1, not {tolerance}")
    if points < 2:
        raise OptionError(f"points must be at least 2, not {points}")
    if not 2 <= min_rows < np.inf:
        raise OptionError(f"min_rows must be at least 2, not {min_rows}")


class Effective(NamedTuple):
    """Σwκ (1 where it is not known), effective rows, and which points are masked, each (m,)."""

    weights: Floats
    rows: Floats
    masked: Any


def effective(weights: Floats, squares: Floats, errors: Any, min_rows: float) -> Effective:
    """What Σwκ and Σw²κ², which have these errors, say of the rows near each point."""
    known = (weights > errors[0]) & (squares > _KNOWN * errors[1])
    one = np.where(known, weights, 1.0)
    rows = np.where(known, one * (one / np.where(known, squares, 1.0)), 0.0)
    return Effective(one, rows, ~(rows >= min_rows * (1 - _ROUNDING)))


def _finish(found: Measured, min_rows: float) -> dict[str, Any]:
    """Bias, standard error, low, high, z, effective rows, and mask."""
    first, second = (np.maximum(sums, 0.0) for sums in (found.first, found.second[:6]))
    others, events = np.vstack([first[:2], second[:3]]), np.vstack([first[2:], second[3:]])
    both = second[:3] + second[3:]
    squares, spread = both[0] + 2 * both[1] + both[2], np.maximum(both[1], found.errors[1])
    weights, rows, masked = effective(first.sum(0), squares, found.errors, min_rows)
    excess = events[1] - others[0]  # Σwκ(y − f)
    mean = excess / weights
    # Σw²κ²(δ − δ̄)², multiplied out
    residuals = others[2] + others[3] - events[3] - events[4]
    around = others[2] + events[4] + mean * (2 * residuals + mean * squares)
    variance = np.maximum(around * (rows / np.maximum(rows - 1, 1.0)), spread)
    low, high = (limit / weights for limit in excess_limits(others, events, (1 - CONFIDENCE) / 2))
    z = excess_deviate(excess, spread, found.second[6] * (squares / weights))
    columns = {
        "bias": mean, "standard_error": np.sqrt(variance) / weights, "low": low, "high": high,
        "z": z,
    }  # fmt: skip
    shown = {name: np.where(masked, np.nan, column) for name, column in columns.items()}
    return {**shown, "effective_rows": rows, "masked": masked}
