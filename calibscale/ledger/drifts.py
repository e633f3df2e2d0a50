"""Whether the estimates of two windows of days differ by more than rows and days explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from calibscale import engine
from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.estimators import ECE, Estimator
from calibscale.ledger.windows import Run, Window, has_bins

_GRID = np.linspace(0.0, 0.98, 50)  # of correlations between days
_HOUR, _MINUTE = 1 / 24, 1 / 1440


@dataclass(frozen=True)
class Drift:
    """How an estimate differs between two windows that share no day.

    Attributes
    ----------
    difference : float
        The later value less the earlier; of `ece` and `tce2` without what their unlike numbers of
        rows explain.
    low, high : float
        Interval of the level asked for.
    p_value : float
        Two-sided, by t.
    """

    estimator: str
    difference: float
    low: float
    high: float
    p_value: float


def drifts(later: Window, earlier: Window, level: float = 0.95) -> tuple[Drift, ...]:
    """How the estimates of two windows differ; none where one of them has no interval.

    The square of a standard error is the noise of rows within days plus what days differ by beyond
    it: effects of variance τ² and correlation ρ^lag (`DayEffects`).

    Raises
    ------
    OptionError
        If the windows share a day.
    """
    shared = sorted(set(later.days) & set(earlier.days))
    if shared:
        raise OptionError(f"the windows share days: {', '.join(shared[:3])}")
    if len(later.runs) < 2 or len(earlier.runs) < 2:
        return ()
    with engine.one_thread():
        return _compared(later, earlier, level)


def _compared(later: Window, earlier: Window, level: float) -> tuple[Drift, ...]:
    effects = DayEffects(earlier.runs, later.runs)
    found = []
    for k, e in enumerate(later.estimators):
        sides = [_Side.of(part, k) for part in (earlier, later)]
        change = _of_bins(e, *sides) or _of_values(*sides)
        if change is None:
            continue
        between, freedom = effects.variance(change.days, change.noise)
        variance = change.variance + between
        if not variance > 0:
            continue
        error = float(np.sqrt(variance))
        if between > 0:
            freedom *= (variance / between) ** 2  # Satterthwaite: the noise of rows is known
        half = float(student.ppf(0.5 + level / 2, freedom)) * error
        p_value = 2 * float(student.sf(abs(change.value) / error, freedom))
        found.append(Drift(e.name, change.value, change.value - half, change.value + half, p_value))
    return tuple(found)


# ---------------------------------------------------------------- what is compared


@dataclass(frozen=True, eq=False)
class _Side:
    """An estimate of one of two windows, by run of days (r,); its bins (r, 5, B), if any."""

    value: float
    rows: Floats
    left_out: Floats
    variance: float
    bins: Floats | None

    @classmethod
    def of(cls, window: Window, k: int) -> _Side:
        rows = np.array([run.n for run in window.runs], dtype=np.float64)
        part = window.parts[k]
        return cls(part.value, rows, part.left_out, window.within[k], window.bins[k])


@dataclass(frozen=True, eq=False)
class _Change:
    """A difference, its variance by rows, and by run its deviation (r,) and the noise of that."""

    value: float
    variance: float
    days: Floats
    noise: Floats


def _of_values(earlier: _Side, later: _Side) -> _Change | None:
    """Of any estimate: what its value is without each run tells how the run deviates."""
    value = later.value - earlier.value
    deviations, noise = [], []
    for side in (earlier, later):
        rest = side.rows.sum() - side.rows
        deviations.append((side.value - side.left_out) * rest / side.rows)
        noise.append(side.variance * side.rows.sum() / side.rows)
    days = np.concatenate(deviations)
    if not (np.isfinite(days).all() and np.isfinite(value)):
        return None
    if not np.isfinite(earlier.variance + later.variance):  # days alone tell of the noise
        return _Change(value, 0.0, days, np.zeros(len(days)))
    return _Change(value, earlier.variance + later.variance, days, np.concatenate(noise))


def _of_bins(e: Estimator, earlier: _Side, later: _Side) -> _Change | None:
    """Of a binned estimate: the noise of rows from the bins of both windows together.

    With g_b the gap of all rows of a bin and s² = f̃(1 − f̃)/n_b its noise in a window, f̃ the
    frequency of the bin shrunk by one row, the size of the bin's bias is taken to be
    μ_b = √max(g_b² − s², 0).  Then |g_b| of a window has the mean and variance of a folded normal
    (Leone, Nelson, Nottingham 1961), g_b² mean μ² + s² and variance 2s⁴ + 4μ²s².
    """
    if earlier.bins is None or later.bins is None:
        return None
    whole = earlier.bins.sum(axis=0) + later.bins.sum(axis=0)
    g, v = _gaps(whole)
    mu = np.sqrt(np.maximum(g**2 - _over(v * whole[2], whole[1] ** 2), 0.0))
    slope = np.divide(mu, g, out=np.zeros_like(g), where=g != 0) ** 2  # what of g is bias
    slope *= np.sign(g) if isinstance(e, ECE) else 2 * g
    value, variance, days, noise = 0.0, 0.0, [], []
    for sign, side in ((-1, earlier), (1, later)):
        assert side.bins is not None
        sums = side.bins.sum(axis=0)
        share = sums[1] / sums[1].sum()
        s2 = _over(v * sums[2], sums[1] ** 2)
        floor, spread, size = _noise(e, mu, s2)
        value += sign * (side.value - float(share @ floor))
        variance += float(share**2 @ spread)
        n = sums[1].sum() ** 2 / sums[2].sum()
        variance += float(share @ size**2 - (share @ size) ** 2) / n  # of the shares
        weight = side.bins[:, 1].sum(axis=1)
        days.append((side.bins[:, 4] - g * side.bins[:, 1]) @ slope / weight)
        noise.append((side.bins[:, 2] * v) @ slope**2 / weight**2)
    return _Change(value, variance, np.concatenate(days), np.concatenate(noise))


def _gaps(sums: Floats) -> tuple[Floats, Floats]:
    """conf_b − acc_b, and the variance of a row's label; of bins (5, B)."""
    g, p = _over(sums[4], sums[1]), _over(sums[3], sums[1])
    n = _over(sums[1] ** 2, sums[2])
    f = (n * np.clip(p - g, 0.0, 1.0) + p) / (n + 1.0)
    return g, f * (1.0 - f)


def _noise(e: Estimator, mu: Floats, s2: Floats) -> tuple[Floats, Floats, Floats]:
    """What noise adds to the size of a bin's bias, by how much that varies, and the size."""
    if not isinstance(e, ECE):
        added = np.zeros_like(s2) if e.unbiased else s2
        return added, 2 * s2**2 + 4 * mu**2 * s2, mu**2
    s = np.sqrt(s2)
    z = np.divide(mu, s, out=np.full_like(mu, np.inf), where=s > 0)
    mean = mu * (1 - 2 * norm.cdf(-z)) + 2 * s * norm.pdf(z)
    return mean - mu, mu**2 + s2 - mean**2, mu


def _over(a: Floats, b: Floats) -> Floats:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def comparable(e: Estimator) -> bool:
    """Whether a difference of two windows is free of what their numbers of rows do."""
    return e.unbiased or has_bins(e)


# ---------------------------------------------------------------- how days differ


class DayEffects:
    """Effects of days with variance τ² and correlation ρ^lag, an autoregression of order 1.

    Both are found by the method of moments: the sums Σ w x² and Σ √(w w') x x' of runs and of
    neighbours among them, less what the noise of rows adds to them, are set equal to what an
    effect of that ρ would make of them after each window's mean is taken off.  As ρ is
    underestimated more often than not, its standard error 1/√(r − 2) is added.
    """

    def __init__(self, earlier: Sequence[Run], later: Sequence[Run]) -> None:
        sides = (earlier, later)
        count = len(earlier) + len(later)
        shares = [np.array([run.n for run in side]) / sum(run.n for run in side) for side in sides]
        contrast = np.concatenate([-shares[0], shares[1]])
        M = np.eye(count)
        M[: len(earlier), : len(earlier)] -= shares[0]
        M[len(earlier) :, len(earlier) :] -= shares[1]
        root = np.sqrt(np.concatenate([s * len(s) for s in shares]))
        pairs = (np.eye(count, k=1) + np.eye(count, k=-1)) / 2
        self._squares, self._products = np.diag(root**2), root[:, None] * pairs * root
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
        """What effects of days add to the variance of a difference, and its degrees of freedom.

        Parameters
        ----------
        days, noise : (runs,)
            Deviations of the runs of both windows, and the variances that rows give them.
        """
        x = self._center @ days
        made = (self._center * noise) @ self._center.T
        square = x @ self._squares @ x - np.trace(self._squares @ made)
        product = x @ self._products @ x - np.trace(self._products @ made)
        if not square > 0:
            return 0.0, float("inf")
        rho = product / square + 1 / np.sqrt(max(self._count - 2, 1))
        at = int(np.argmin(np.abs(self._product / self._square - rho)))
        return float(square / self._square[at] * self._contrast[at]), float(self._freedom[at])


def _correlations(sides: tuple[Sequence[Run], Sequence[Run]]) -> list[Floats]:
    """Of the means of runs, for each ρ of the grid: (r, r)."""
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
    """Of a key, in days."""
    hour, minute = (int(part or 0) for part in (day[11:13], day[14:16]))
    return date.fromisoformat(day[:10]).toordinal() + hour * _HOUR + minute * _MINUTE
