"""Map of local calibration bias: size and sign of the bias at each point."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from scipy.special import stdtrit

from calibscale.array_types import Bools, Floats
from calibscale.auditing.range_scan import ScanSums, scanned_ranges
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.estimators.skce import KLCE, SKCE
from calibscale.intervals.excess import excess_deviate, excess_limits
from calibscale.kernels.bandwidths import local_kernel, named_bandwidths
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.predictions.functionals.functional import Functional
from calibscale.predictions.notions import problems
from calibscale.predictions.target import Target
from calibscale.results.bias_results import BiasMap
from calibscale.session import Session, SessionOptions, classes_only, verb
from calibscale.statistics.effective_rows import effective
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.smoother import (
    Direct,
    Measured,
    Points,
    ResidualStrengths,
    Strengths,
    choose,
)
from calibscale.statistics.statistic import Statistic

METHODS = ("auto", "spectral", "direct")
NOTIONS = ("positive", "top_label")
CONFIDENCE = 0.95  # of the interval of each point, and of the scan of ranges

_RANGE_ROWS = 30  # least effective rows of a range, where `min_rows` of a point are fewer


@verb
def local_bias(
    source: Any,
    covariates: str | Sequence[str] | SKCE,
    *,
    at: Any = "rows",
    points: int = 25,
    min_rows: float = 10,
    method: str = "auto",
    series_tolerance: float = 1e-12,
    n_replicates: int = 199,
    seed: int = 0,
    **options: Unpack[SessionOptions],
) -> BiasMap:
    """Estimate the bias Σ_i w_i (y_i − f_i) κ_i / Σ_i w_i κ_i, κ_i = k(f_i, f') l(x_i, x').

    Local calibration bias at points (f', x') [VF, eq. 7].  With ``prediction_kernel="none"``, k =
    1, it is the estimate of Luo et al. (2022).  The sum includes a row at the point itself.

    Predictions of means and expectiles have the bias of their response, the outcome of a mean.  As
    they do not say how outcomes vary, intervals are those of Student's t, and no ranges are tested.
    Quantiles, intervals and sets have the bias of the event that they claim, see `forecast_events`,
    and ``predicted_quantile``, ``interval_width`` or ``set_size`` is a further covariate.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    covariates : sequence of str, or KLCE
        Names of the columns x, or a `KLCE` with its covariates, bandwidths, kernels
        (``prediction_kernel="none"`` is k = 1), and notion (``positive`` or ``top_label``, by
        default ``positive`` for two classes).
    at : {"rows", "grid"} or (predictions (m,), covariates (m, d))
        Points of the map: every valid labelled row, a grid, or the given points.  Predictions may
        be None if k = 1.
    points : int
        Number of values on each axis of the grid: probabilities from 0 to 1, other predictions and
        covariates between the 1st and the 99th percentile of 1,000 rows, or all values of a
        covariate if these are no more.
    min_rows : float
        Effective rows, at least 2, below which a point is masked.
    method : {"auto", "spectral", "direct"}
        ``spectral``: a Fourier series, in one pass, for Gaussian kernels.  ``direct``: sums over
        all rows for every point.  ``auto``: ``direct`` for few rows and points, else ``spectral``
        where there is a series.
    series_tolerance : float
        The error of Σwκ is below series_tolerance·Σw.
    n_replicates, seed : int
        Number and seed of the replicates of drawn labels with which ranges of the prediction and of
        the covariates are tested, see `RangeScan`.  With 0 replicates no ranges are tested.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if a setting does not suit the data, or if the source cannot be
        read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale import local_bias
    >>> source = calibscale.from_arrays(
    ...     probabilities=np.full(40, 0.7), labels=np.ones(40, int), binary=True
    ... )
    >>> bias_map = local_bias(source, (), at=([0.7], None))
    >>> columns = bias_map.bias, bias_map.low, bias_map.high, bias_map.z
    >>> [float(column[0].round(2)) for column in columns]
    [0.3, 0.21, 0.3, 3.98]
    """
    started = time.perf_counter()
    with Session.open(source, **options) as opened:
        session = opened.of_events()
        data, profile = session.source, session.profile
        local = local_settings(covariates, data)
        names, notion = local.covariates, str(local.notion)
        _check(method, at, points, series_tolerance, min_rows)
        require(n_replicates >= 0, "n_replicates must be at least 0", n_replicates)
        kernel, notes = local_kernel(profile, notion, local)
        map_points = None  # the rows themselves
        if not isinstance(at, str):
            map_points = given_points(at, names, kernel, data.target)
        elif at == "grid":
            map_points = grid_points(profile, notion, kernel, names, points)
        plan, reason = choose(profile, notion, kernel, names, method, series_tolerance, map_points)
        notes.append(reason)

        def read(*statistics: Statistic) -> PassResult:
            return session.scan(statistics, covariates=names)

        direct = Direct(notion, kernel, tuple(data.covariate(name) for name in names))
        has_events = data.target.has_classes
        strengths = Strengths(notion) if has_events else ResidualStrengths(notion)
        measured = (plan or direct).measure(read, map_points, strengths)
        columns = (_event_columns if has_events else _residual_columns)(measured, min_rows)
        ranges = None
        if n_replicates and has_events:
            # Masked points show no bias.  Ranges of many rows also find a small bias that is spread
            # widely.
            scan = ScanSums.of(session, names, notion, local.categorical)
            states = read(*scan.needs).groups[None]
            rows = max(min_rows, _RANGE_ROWS)
            ranges = scanned_ranges(
                session, names, scan, states, n_replicates, seed, rows, CONFIDENCE
            )
            notes += ranges.notes
    parameters: dict[str, Any] = {
        "covariates": list(names),
        "categorical": list(local.categorical),
        "notion": data.target.named_notion(notion),
        "prediction_kernel": local.prediction_kernel,
        "prediction_bandwidth": kernel.prediction_bandwidth,
        "covariate_kernel": local.covariate_kernel,
        "covariate_bandwidth": named_bandwidths(local, kernel),
        "at": at if isinstance(at, str) else "given",
        "min_rows": min_rows,
        "method": "direct" if plan is None else "spectral",
    }
    if ranges is not None:
        parameters |= {"replicates": n_replicates, "seed": seed}
    # Only settings that had an effect are reported.
    if parameters["at"] == "grid":
        parameters["points"] = points
    if plan is not None:
        parameters |= {"series_tolerance": series_tolerance, "modes": plan.modes.series.modes}
    return BiasMap(
        covariates=names,
        predictions=_in_units(measured.points.predictions, data.target),
        values=measured.points.covariates,
        index=measured.points.rows,
        **columns,
        notes=tuple(notes),
        ranges=ranges,
        **session.outcome(measured.counts, started, **parameters),
    )


def local_settings(covariates: str | Sequence[str] | SKCE, source: ArraySource) -> SKCE:
    """KLCE on covariates, with the default notion and the categorical covariates of a source."""
    local = KLCE.on(covariates)
    if isinstance(source.target, Functional):
        notion = local.notion or "canonical"
        require(notion == "canonical", f"{source.target.in_words} have no notion", notion)
    else:
        classes_only("local bias", source)
        notion = local.notion or ("positive" if source.classes == 2 else "top_label")
        require(notion in NOTIONS, f"notion of a map must be {' or '.join(NOTIONS)}", notion)
        problems(notion, source.classes)
    return replace(
        local,
        notion=notion,
        categorical=source.categorical(local.covariates, local.categorical),
    )


def _check(method: str, at: Any, points: int, tolerance: float, min_rows: float) -> None:
    require(method in METHODS, f"method must be one of {', '.join(METHODS)}", method)
    if isinstance(at, str) and at not in ("rows", "grid"):
        raise OptionError(f"at must be rows, grid or (predictions, covariates), not {at!r}")
    # Below 1e-14 rounding errors dominate, above 0.1 the series is no approximation.
    require(1e-14 <= tolerance <= 0.1, "series_tolerance must be in 1e-14..0.1", tolerance)
    require(points >= 2, "points must be at least 2", points)
    require(2 <= min_rows < np.inf, "min_rows must be at least 2", min_rows)


def _in_units(points: Floats, target: Target) -> Floats:
    """Predictions of points (m,), which kernels may see on another scale."""
    return target.unembedded(points) if isinstance(target, Functional) else points


def _residual_columns(measured: Measured, min_rows: float) -> dict[str, Any]:
    """Columns of a map of residuals whose law is unknown: those of `_event_columns`."""
    residual, weight = measured.first[0], np.maximum(measured.first[1], 0.0)
    squares, residual_squares = np.maximum(measured.second[::2], 0.0)  # Σw²κ² and Σw²κ²δ²
    weights, rows, masked = effective(weight, squares, measured.errors, min_rows)
    mean = -residual / weights  # δ is prediction − response
    # Σw²κ²(δ − δ̄)², expanded
    around = residual_squares + mean * (2.0 * measured.second[1] + mean * squares)
    # Near few rows the spread is uncertain itself, which Student's t allows for.
    freedom = np.maximum(rows - 1.0, 1.0)
    error = np.sqrt(np.maximum(around, 0.0) * (rows / freedom)) / weights
    half = -stdtrit(freedom, (1 - CONFIDENCE) / 2) * error
    # The deviate is that of calibrated rows, whose residuals vary around 0.
    spread = np.sqrt(residual_squares) / weights
    z = np.divide(mean, spread, out=np.zeros_like(mean), where=spread > 0)
    columns = {
        "bias": mean,
        "standard_error": error,
        "low": mean - half,
        "high": mean + half,
        "z": z,
    }
    return _shown(columns, rows, masked)


def _shown(columns: dict[str, Floats], rows: Floats, masked: Bools) -> dict[str, Any]:
    """Columns of a map, without numbers where it is masked."""
    shown = {name: np.where(masked, np.nan, column) for name, column in columns.items()}
    return {**shown, "effective_rows": rows, "masked": masked}


def _event_columns(measured: Measured, min_rows: float) -> dict[str, Any]:
    """Bias, standard error, low, high, z, effective rows, and mask."""
    # A Fourier series has errors of either sign, which may turn small positive sums negative.  The
    # seventh sum with κ² may be negative by itself.
    first, second = (np.maximum(sums, 0.0) for sums in (measured.first, measured.second[:6]))
    # Σ of wκp, wκr, w²κ²p², w²κ²pr and w²κ²r², r = 1 − p, of rows without and with the event.
    no_events = np.vstack([first[:2], second[:3]])
    events = np.vstack([first[2:], second[3:]])
    moments = second[:3] + second[3:]
    squares = moments[0] + 2 * moments[1] + moments[2]  # Σw²κ², as p + r = 1
    spread = np.maximum(moments[1], measured.errors[1])  # Σw²κ²p(1 − p)
    weights, rows, masked = effective(first.sum(0), squares, measured.errors, min_rows)
    excess = events[1] - no_events[0]  # Σwκ(y − f)
    mean = excess / weights
    # Σw²κ²(δ − δ̄)², expanded
    residuals = no_events[2] + no_events[3] - events[3] - events[4]
    around = no_events[2] + events[4] + mean * (2 * residuals + mean * squares)
    # Never less than the variance of calibrated labels: near few rows the residuals may all agree.
    variance = np.maximum(around * (rows / np.maximum(rows - 1, 1.0)), spread)
    low, high = (
        limit / weights for limit in excess_limits(no_events, events, (1 - CONFIDENCE) / 2)
    )
    # The third moment needs κ³, which has no series here.  One effective weight stands for it, see
    # `BiasMap`.
    z = excess_deviate(excess, spread, measured.second[6] * (squares / weights))
    columns = {
        "bias": mean,
        "standard_error": np.sqrt(variance) / weights,
        "low": low,
        "high": high,
        "z": z,
    }
    return _shown(columns, rows, masked)


MAX_POINTS = 10**7  # points of a map, with 80 MB for each of its columns


def given_points(at: Any, names: tuple[str, ...], kernel: ProductKernel, target: Target) -> Points:
    """Points from the argument `at` of `local_bias`, validated."""
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
    # Without a kernel of predictions, the bias does not depend on f'.
    constant = kernel.prediction == "none"
    if predictions is None and not constant:
        raise OptionError("the points need predictions unless prediction_kernel is 'none'")
    p = np.full(len(x), np.nan) if predictions is None else np.array(predictions, np.float64)
    require(p.shape == (len(x),), f"{len(x)} points need {len(x)} predictions", p.shape)
    if not (np.isfinite(x).all() and (constant or np.isfinite(p).all())):
        raise OptionError("points to evaluate at must be finite")
    if isinstance(target, Functional) and not constant:
        with np.errstate(invalid="ignore", divide="ignore"):
            p = target.embedded(p[:, None], p)[:, 0]
        require(bool(np.isfinite(p).all()), "the points need positive predictions on a log scale")
    return Points(p, x)


def grid_points(
    setup: DataProfile, notion: str, kernel: ProductKernel, names: tuple[str, ...], points: int
) -> Points:
    """All combinations of the values of the axes, with predictions varying slowest."""
    columns = setup.columns(names)
    sample = setup.sample(notion).covariates
    constant = kernel.prediction == "none"
    lowest, highest = 0.0, 1.0
    if not setup.source.target.has_classes:
        lowest, highest = np.percentile(setup.sample(notion).points[:, 0], [1, 99])
    axes: list[Any] = [np.array([np.nan]) if constant else np.linspace(lowest, highest, points)]
    for column in columns.values():
        levels = column.levels
        if levels is not None and (column.position in kernel.categorical or len(levels) <= points):
            axes.append(np.array(levels))
            continue
        values = sample[:, column.position]
        values = values[np.isfinite(values)]
        # A few outliers would stretch the grid over an empty range.
        low, high = np.percentile(values, [1, 99]) if len(values) else (column.low, column.high)
        axes.append(np.unique(np.linspace(low, high, points)))
    count = math.prod(len(axis) for axis in axes)
    if count > MAX_POINTS:
        raise OptionError(
            f"the grid has {count:.3g} points, above {MAX_POINTS:.0e}: use fewer per axis than "
            f"points={points}, or fewer covariates"
        )
    p, *x = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    return Points(p, np.column_stack(x) if x else np.empty((count, 0)))
