"""Drifts between windows of days, beyond the noise of rows and the effects of days."""

from __future__ import annotations

from datetime import date, timedelta
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

import calibscale as cs
from calibscale.intervals.parts_of_rows import Parts
from calibscale.monitoring.ledger.drifts import DayEffects, drifts
from calibscale.monitoring.ledger.windows import WindowDays

LAWS = {
    "uniform": lambda rng, shape: rng.random(shape),
    "conf99": lambda rng, shape: 1 - rng.beta(0.5, 60, shape),
    "rare": lambda rng, shape: rng.beta(0.5, 60, shape),
}
ESTIMATORS = (cs.ECE(notion="positive"), cs.TCE2Debiased(notion="positive"), cs.ConfidenceGap())
BINS, MONTH, WEEK = 15, 30, 7


def _key(k):
    return (date(2026, 1, 1) + timedelta(k)).isoformat()


def _bins(p, y):
    """Sums Σ1, Σw, Σw², Σwp, Σwδ of bins (lo, hi] for each day: (days, 5, B)."""
    b = np.clip(np.ceil(p * BINS).astype(int) - 1, 0, BINS - 1)
    out = np.zeros((len(p), 5, BINS))
    for day, (cells, q, d) in enumerate(zip(b, p, p - y, strict=True)):
        out[day, :3] = np.bincount(cells, minlength=BINS)
        out[day, 3] = np.bincount(cells, q, BINS)
        out[day, 4] = np.bincount(cells, d, BINS)
    return out


def _values(sums):
    """ECE, debiased TCE₂ and gap of bins (…, 5, B), by their definitions."""
    n, p, d = sums[..., 0, :], sums[..., 3, :], sums[..., 4, :]
    N, g = n.sum(axis=-1), np.divide(d, n, out=np.zeros_like(d), where=n > 0)
    f = np.divide(p, n, out=np.zeros_like(p), where=n > 0) - g
    noise = np.divide(f * (1 - f), n - 1, out=np.zeros_like(f), where=n > 1)
    squares = n * np.where(n > 1, g**2 - noise, 0.0)
    return np.stack([np.abs(d).sum(-1) / N, squares.sum(-1) / N, d.sum(-1) / N], axis=-1)


def _window(p, y, first):
    """The attributes of a window that `drifts` reads, with the variance of the gap."""
    bins = _bins(p, y)
    total = bins.sum(axis=0)
    left_out, values = _values(total - bins), _values(total)
    rows = p.shape[1]
    return SimpleNamespace(
        estimators=ESTIMATORS,
        days=tuple(_key(first + k) for k in range(len(p))),
        runs=tuple(WindowDays((_key(first + k),), rows) for k in range(len(p))),
        parts=[Parts(values[k], left_out[:, k], np.empty(0)) for k in range(3)],
        within=[np.nan, np.nan, float(np.mean(p * (1 - p)) / p.size)],
        bins=[bins, bins, None],
    )


def _p_values(law, rows, count, effect=0.0, rho=0.0, later=0.0):
    """P-values of `count` models: 7 days against the 30 before them."""
    p_values = np.empty((count, 3))
    for k in range(count):
        rng = np.random.default_rng([5, rows, k])
        p = LAWS[law](rng, (MONTH + WEEK, rows))
        e = rng.normal(size=(MONTH + WEEK, 1))
        for t in range(1, len(e)):
            e[t] = rho * e[t - 1] + np.sqrt(1 - rho**2) * e[t]
        e = effect * e + later * (np.arange(len(e)) >= MONTH)[:, None]
        y = rng.random(p.shape) < np.clip(p + e, 0, 1)
        windows = _window(p[MONTH:], y[MONTH:], MONTH), _window(p[:MONTH], y[:MONTH], 0)
        p_values[k] = [drift.p_value for drift in drifts(*windows)]
    return p_values


def _levels(law, rows, count):
    """Check that the rejection rate is within 2 to 7 %, up to binomial noise."""
    rejections = (_p_values(law, rows, count) <= 0.05).sum(axis=0)
    for name, rejected in zip(ESTIMATORS, rejections, strict=True):
        low, high = binom.ppf(0.001, count, 0.02), binom.ppf(0.999, count, 0.07)
        assert low <= rejected <= high, (law, rows, name.name, rejected)


@pytest.mark.long
@pytest.mark.parametrize(("law", "rows"), [("uniform", 100), ("rare", 500)])
def test_drifts__of_a_stable_model_are_rare(law, rows):
    _levels(law, rows, 80)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rows", [100, 500])
def test_drifts__of_stable_models_are_rare(law, rows):
    _levels(law, rows, 1000)


def test_drifts__are_found():
    assert (_p_values("uniform", 500, 5, later=0.1) < 1e-3).all()


@pytest.mark.long
@pytest.mark.parametrize(("rho", "max_rate"), [(0.0, 0.05), (0.7, 0.1), (0.9, 0.12)])
def test_drifts__count_effects_of_days_as_noise(rho, max_rate):
    """Days differ by 0.03. Rows explain 0.018 of it. Neighbours are independent or alike."""
    rejected = (_p_values("uniform", 500, 60, 0.03, rho)[:, 2] <= 0.05).sum()
    # right code exceeds this bound for one seed in a thousand
    assert rejected <= binom.ppf(0.999, 60, max_rate)


@pytest.mark.long
def test_day_effects__are_those_of_an_autoregression():
    """Effects over many days with τ² = 4 and ρ = 0.8, and noise of variance 1."""
    rng = np.random.default_rng(2)
    earlier, later = (
        [WindowDays((_key(k),), 100) for k in range(a, b)] for a, b in ((0, 100), (100, 150))
    )
    effects = DayEffects(earlier, later)
    lags = np.abs(np.subtract.outer(np.arange(150), np.arange(150)))
    contrast = np.repeat([-1 / 100, 1 / 50], [100, 50])
    truth = contrast @ (4 * 0.8**lags) @ contrast
    root = np.linalg.cholesky(4 * 0.8**lags)
    days = (root @ rng.normal(size=(150, 20)) + rng.normal(size=(150, 20))).T
    variances = np.array([effects.variance(x, np.ones(150))[0] for x in days])
    assert truth < np.median(variances) < 3 * truth  # ρ is raised by its standard error, to 0.88
    calm = [effects.variance(x, np.ones(150))[0] for x in rng.normal(size=(20, 150))]
    assert np.median(calm) < 0.02 * truth
