"""Bins of a reliability diagram, with intervals of their frequencies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc, ndtri

from calibscale.data import SCALAR_NOTIONS, Floats
from calibscale.errors import OptionError
from calibscale.results import Estimate
from calibscale.results.evaluation_results import Diagram, Range, ReliabilityBin, ReliabilityCurve


def wilson_interval(
    frequency: ArrayLike, count: ArrayLike, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Score interval of a proportion: all θ with (f − θ)² ≤ z² θ (1 − θ)/n.

    The ends are (f + z²/2n ± z √(f (1 − f)/n + z²/4n²))/(1 + z²/n) [Wilson 1927; Brown, Cai &
    DasGupta 2001, eq. 4].  Different probabilities of the rows of a bin make f less noisy than the
    binomial distribution that the formula assumes.

    Parameters
    ----------
    frequency : (B,)
        Observed proportions f.
    count : (B,)
        Numbers of rows n, positive; with weights (Σw)²/Σw².
    level : float
        Confidence level; z is the normal quantile of (1 + level)/2.

    Returns
    -------
    lower, upper : (B,) float64

    Raises
    ------
    OptionError
        If the level is not in (0, 1).
    """
    check_level(level)
    f, n = np.asarray(frequency, np.float64), np.asarray(count, np.float64)
    z2 = ndtri((1.0 + level) / 2.0) ** 2
    centre = f + z2 / (2.0 * n)
    spread = np.sqrt(z2 * (f * (1.0 - f) / n + z2 / (4.0 * n * n)))
    lower, upper = (centre - spread) / (1.0 + z2 / n), (centre + spread) / (1.0 + z2 / n)
    return np.clip(lower, 0.0, f), np.clip(upper, f, 1.0)


def consistency_interval(
    mean_p: ArrayLike, effective_count: ArrayLike, level: float = 0.95, *, whole: ArrayLike = True
) -> tuple[Floats, Floats]:
    """Range of the observed frequency with probability `level` if the predictions are right.

    The ends are the binomial quantiles (1 ∓ level)/2 at the mean prediction, divided by n.  The
    number of events of rows with different p is Poisson-binomial, which is narrower: it lies
    between these quantiles with probability at least `level`, for levels of at least 1/2
    [Hoeffding 1956, theorem 5].  The ranges correspond to the consistency bars of Bröcker & Smith
    (2007), without resampling.

    Parameters
    ----------
    mean_p : (B,)
        Mean predictions.
    effective_count : (B,)
        Numbers of rows n; with weights (Σw)²/Σw², for which the binomial distribution function is
        interpolated between integers, the ends are rounded outwards, and the level is approximate.
    level : float
        Probability of the range.
    whole : (B,) bool
        Whether n is a number of rows of equal weight, so that frequencies are multiples of 1/n.

    Returns
    -------
    lower, upper : (B,) float64

    Raises
    ------
    OptionError
        If the level is not in (0, 1).
    """
    check_level(level)
    p = np.clip(np.asarray(mean_p, np.float64), 0.0, 1.0)
    n = np.asarray(effective_count, np.float64)
    low, high = (_quantile(n, p, q) for q in ((1.0 - level) / 2.0, (1.0 + level) / 2.0))
    lower = np.where(whole, np.ceil(low), low)
    upper = np.where(whole, np.ceil(high), high + 1.0)
    return np.clip(lower, 0.0, n) / n, np.clip(upper, 0.0, n) / n


def _quantile(n: Floats, p: Floats, q: float) -> Floats:
    """Real k at which the binomial P(X ≤ k) = 1 − I_p(k + 1, n − k) reaches q, by bisection."""
    low, high = np.full_like(n, -1.0), n + 0.0
    for _ in range(64):
        k = (low + high) / 2.0
        below = (betaincc(k + 1.0, n - k, p) < q) & (k < n)
        low, high = np.where(below, k, low), np.where(below, high, k)
    return low


def drawn(estimates: Iterable[Estimate]) -> Diagram | None:
    """Diagram of the first binned error of a scalar notion; None without such an error.

    The level is that of the first interval, or 0.95 without intervals.
    """
    estimates = tuple(estimates)
    level = next((e.interval.level for e in estimates if e.interval is not None), 0.95)
    for e in estimates:
        if e.notion in SCALAR_NOTIONS and e.value is not None and "bins" in e.details:
            same = [o for o in estimates if (o.notion, o.parameters) == (e.notion, e.parameters)]
            values = {o.estimator: o.value for o in same}
            details = {**e.details, "tce2_debiased": values.get("tce2_debiased")}
            curve = curve_of_estimate(replace(e, value=values.get("ece"), details=details), level)
            return Diagram(e.notion, level, curve)
    return None


def check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise OptionError(f"level must be between 0 and 1, not {level}")


def curve_of_estimate(estimate: Estimate, level: float) -> ReliabilityCurve:
    """Bins of an estimate with their intervals."""
    table = estimate.details.get("bins", [])
    filled = [row for row in table if row["frequency"] is not None]
    p, f, n, rows = (
        np.array([row[key] for row in filled], np.float64)
        for key in ("mean_p", "frequency", "effective_count", "count")
    )
    whole = np.isclose(n, rows, rtol=1e-9, atol=0.0)
    n = np.where(whole, rows, n)
    intervals = zip(*wilson_interval(f, n, level), strict=True)
    bands = zip(*consistency_interval(p, n, level, whole=whole), strict=True)
    bins = []
    for row in table:
        if row["frequency"] is not None:
            observed, expected = next(intervals), next(bands)
            row = {
                **row,
                "interval": Range(*map(float, observed)),
                "consistency": Range(*map(float, expected)),
            }
        bins.append(ReliabilityBin(**row))
    return ReliabilityCurve(
        n=estimate.n,
        bins=tuple(bins),
        ece=estimate.value,
        tce2_debiased=estimate.details.get("tce2_debiased"),
        reason=estimate.reason,
    )
