"""Tests of whether estimates of two windows differ by more than the noise of rows and days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from calibscale.array_types import Floats
from calibscale.engine.threads import one_thread
from calibscale.errors import require
from calibscale.estimators.base import BoundEstimator
from calibscale.monitoring.ledger.windows import MeanGap, Window, WindowDays, has_bins
from calibscale.statistics.ratios import ratio

# Correlations between neighbouring days.  With 1 all days would have the same effect.
_GRID = np.linspace(0.0, 0.98, 50)
_HOUR, _MINUTE = 1 / 24, 1 / 1440


@dataclass(frozen=True)
class Drift:
    """Difference of an estimate between two windows that share no day.

    Attributes
    ----------
    difference : float
        Later value minus earlier value, for `ece` and `tce2` corrected for the effect of different
        numbers of rows.
    low, high : float
        Ends of the confidence interval.
    p_value : float
        P-value of the two-sided t-test.
    """

    estimator: str
    difference: float
    low: float
    high: float
    p_value: float


def drifts(later: Window, earlier: Window, confidence_level: float = 0.95) -> tuple[Drift, ...]:
    """Differences of the estimates of two windows, empty if one has fewer than two runs of days.

    The square of a standard error is the noise of rows within days plus the additional variation
    between days, which are effects of variance τ² and correlation ρ^lag (`DayEffects`).

    Raises
    ------
    OptionError
        If the windows share a day.
    """
    shared = sorted(set(later.days) & set(earlier.days))
    require(not shared, f"the windows share days: {', '.join(shared[:3])}")
    if len(later.runs) < 2 or len(earlier.runs) < 2:
        return ()
    out = []
    with one_thread():
        effects = DayEffects(earlier.runs, later.runs)
        for k, e in enumerate(later.estimators):
            change = _of_bins(e, earlier, later, k) or _of_values(earlier, later, k)
            if change is None:
                continue
            value = change.value
            between, freedom = effects.variance(change.days, change.noise)
            variance = change.variance + between
            if not variance > 0:
                continue
            error = float(np.sqrt(variance))
            if between > 0:
                # Satterthwaite's degrees of freedom, where only `between` is uncertain.
                freedom *= (variance / between) ** 2
            half = float(stdtrit(freedom, 0.5 + confidence_level / 2)) * error
            p_value = 2 * float(stdtr(freedom, -abs(value) / error))
            out.append(Drift(e.name, value, value - half, value + half, p_value))
    return tuple(out)


# ---------------------------------------------------------------- changes


@dataclass(frozen=True, eq=False)
class _Change:
    """Difference, its variance from rows, deviations of the runs (r,), and their noise (r,)."""

    value: float
    variance: float
    days: Floats
    noise: Floats


def _of_values(earlier: Window, later: Window, k: int) -> _Change | None:
    """Change of any estimate, with deviations of runs from the values without each run."""
    value = later.parts[k].value - earlier.parts[k].value
    variance = earlier.within[k] + later.within[k]
    deviations, noise = [], []
    for window in (earlier, later):
        part = window.parts[k]
        rows = np.array([run.n for run in window.runs], np.float64)
        deviations.append((part.value - part.left_out) * (rows.sum() - rows) / rows)
        noise.append(window.within[k] * rows.sum() / rows)
    days = np.concatenate(deviations)
    if not (np.isfinite(days).all() and np.isfinite(value)):
        return None
    if not np.isfinite(variance):  # only days show the noise
        return _Change(value, 0.0, days, np.zeros(len(days)))
    return _Change(value, variance, days, np.concatenate(noise))


def _of_bins(e: BoundEstimator, earlier: Window, later: Window, k: int) -> _Change | None:
    """Change of a binned estimate, with the noise of rows from the bins of both windows.

    Let g_b be the gap of all rows of a bin, s² = f̃(1 − f̃)/n_b its noise in a window, and f̃ the
    frequency of the bin shrunk by one row.  The bias of the bin is estimated by
    μ_b = √max(g_b² − s², 0).  Then |g_b| of a window has the mean and variance of a folded normal
    (Leone, Nelson, Nottingham 1961), and g_b² has mean μ² + s² and variance 2s⁴ + 4μ²s².
    """
    before, after = earlier.bins[k], later.bins[k]
    if before is None or after is None or not has_bins(e):
        return None
    total = before.sum(axis=0) + after.sum(axis=0)
    g, v = _gaps(total)
    mu = np.sqrt(np.maximum(g**2 - ratio(v * total[2], total[1] ** 2), 0.0))
    slope = np.divide(mu, g, out=np.zeros_like(g), where=g != 0) ** 2  # fraction of g that is bias
    slope *= np.sign(g) if e.gap_power == 1 else 2 * g  # derivative of |g| or of g²
    value, variance, days, noise = 0.0, 0.0, [], []
    for sign, bins, part in ((-1, before, earlier.parts[k]), (1, after, later.parts[k])):
        sums = bins.sum(axis=0)
        share = sums[1] / sums[1].sum()
        s2 = ratio(v * sums[2], sums[1] ** 2)
        floor, spread, size = _noise(e, mu, s2)
        value += sign * (part.value - float(share @ floor))
        variance += float(share**2 @ spread)
        n = sums[1].sum() ** 2 / sums[2].sum()
        variance += float(share @ size**2 - (share @ size) ** 2) / n  # of the shares
        weight = bins[:, 1].sum(axis=1)
        days.append((bins[:, 4] - g * bins[:, 1]) @ slope / weight)
        noise.append((bins[:, 2] * v) @ slope**2 / weight**2)
    return _Change(value, variance, np.concatenate(days), np.concatenate(noise))


def _gaps(sums: Floats) -> tuple[Floats, Floats]:
    """Gaps conf_b − acc_b and label variances of bins (5, B), each (B,)."""
    g, p = ratio(sums[4], sums[1]), ratio(sums[3], sums[1])
    n = ratio(sums[1] ** 2, sums[2])
    f = (n * np.clip(p - g, 0.0, 1.0) + p) / (n + 1.0)
    return g, f * (1.0 - f)


def _noise(e: MeanGap, mu: Floats, s2: Floats) -> tuple[Floats, Floats, Floats]:
    """Noise added to the size of the bias of bins, its variance, and the size itself, each (B,)."""
    if e.gap_power != 1:
        added = np.zeros_like(s2) if e.unbiased else s2
        return added, 2 * s2**2 + 4 * mu**2 * s2, mu**2
    s = np.sqrt(s2)
    z = np.divide(mu, s, out=np.full_like(mu, np.inf), where=s > 0)
    mean = mu * (1 - 2 * ndtr(-z)) + 2 * s * np.exp(-(z**2) / 2.0) / np.sqrt(2 * np.pi)
    return mean - mu, mu**2 + s2 - mean**2, mu


def comparable(e: BoundEstimator) -> bool:
    """Whether a difference of two windows does not depend on their numbers of rows."""
    return e.unbiased or has_bins(e)


# ---------------------------------------------------------------- variation between days


class DayEffects:
    """Effects of days with variance τ² and correlation ρ^lag, an autoregression of order 1.

    Both are estimated by the method of moments: the sums Σ w x² over runs and Σ √(w w') x x' over
    neighbouring runs, minus the noise of rows in them, are set equal to their expectations under
    an effect with that ρ, after the mean of each window is subtracted.  As ρ is usually
    underestimated, its standard error 1/√(r − 2) is added.
    """

    def __init__(self, earlier: Sequence[WindowDays], later: Sequence[WindowDays]) -> None:
        sides = (earlier, later)
        count = len(earlier) + len(later)
        shares = [np.array([run.n for run in side]) / sum(run.n for run in side) for side in sides]
        contrast = np.concatenate([-shares[0], shares[1]])
        M = np.eye(count)
        M[: len(earlier), : len(earlier)] -= shares[0]
        M[len(earlier) :, len(earlier) :] -= shares[1]
        # Long runs have more weight, because their means have less noise.
        root = np.sqrt(np.concatenate([s * len(s) for s in shares]))
        pairs = (np.eye(count, k=1) + np.eye(count, k=-1)) / 2
        self._squares = np.diag(root**2)
        self._products = root[:, None] * pairs * root
        self._center = M
        self._count = count
        expected = []
        for correlation in _correlations(sides):
            V = self._squares @ M @ correlation @ M.T
            square = np.trace(V)
            product = np.trace(self._products @ M @ correlation @ M.T)
            freedom = max(1.0, square**2 / np.sum(V * V.T))
            expected.append((square, product, contrast @ correlation @ contrast, freedom))
        self._square, self._product, self._contrast, self._freedom = np.array(expected).T

    def variance(self, days: Floats, noise: Floats) -> tuple[float, float]:
        """Variance that effects of days add to a difference, and its degrees of freedom.

        Parameters
        ----------
        days, noise : (runs,)
            Deviations of the runs of both windows, and their variances from the noise of rows.
        """
        x = self._center @ days
        covariance = (self._center * noise) @ self._center.T
        square = x @ self._squares @ x - np.trace(self._squares @ covariance)
        product = x @ self._products @ x - np.trace(self._products @ covariance)
        if not square > 0:
            return 0.0, float("inf")
        # The correlation of the grid with the expected ratio closest to the observed ratio.
        rho = product / square + 1 / np.sqrt(max(self._count - 2, 1))
        at = int(np.argmin(np.abs(self._product / self._square - rho)))
        return float(square / self._square[at] * self._contrast[at]), float(self._freedom[at])


def _correlations(sides: tuple[Sequence[WindowDays], Sequence[WindowDays]]) -> list[Floats]:
    """Correlation matrix (r, r) of the means of runs, for each ρ of the grid."""
    runs = [run for side in sides for run in side]
    times = np.array([_time(day) for run in runs for day in run.days])
    mean = np.zeros((len(runs), len(times)))
    at = 0
    for row, run in zip(mean, runs, strict=True):
        row[at : at + len(run.days)] = 1 / len(run.days)
        at += len(run.days)
    lags = np.abs(np.subtract.outer(times, times))
    return [mean @ rho**lags @ mean.T for rho in _GRID]


def _time(day: str) -> float:
    """Time of a day's key, in days."""
    hour, minute = (int(part or 0) for part in (day[11:13], day[14:16]))
    return date.fromisoformat(day[:10]).toordinal() + hour * _HOUR + minute * _MINUTE
