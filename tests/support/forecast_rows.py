"""Rows of each kind of predictive distributions, and their distribution functions by SciPy."""

from __future__ import annotations

import numpy as np
from scipy import stats

import calibscale as cs

LEVELS, EDGES = (0.2, 0.5, 0.9), (-2.0, -0.5, 0.0, 1.0, 2.5)
FORECASTS = {
    "normal": cs.NormalForecast(),
    "mixture": cs.MixtureForecast(),
    "ensemble": cs.EnsembleForecast(),
    "quantiles": cs.QuantileForecast(LEVELS),
    "histogram": cs.HistogramForecast(EDGES),
    "ordinal": cs.OrdinalForecast(4),
}
PARTS = {"normal": 2, "mixture": 3}  # kinds whose predictions are a tuple of arrays


def rows(kind, n, seed=0):
    """Predictions (n, P) of a kind, and outcomes (n,)."""
    rng = np.random.default_rng(seed)
    y, mean = rng.normal(size=n), rng.normal(scale=0.5, size=n)
    shares = rng.dirichlet(np.ones(4), n)
    predictions = {
        "normal": np.column_stack([mean, rng.uniform(0.4, 1.5, n)]),
        "mixture": np.column_stack(
            [
                rng.dirichlet(np.ones(2), n),
                mean[:, None] + rng.normal(size=(n, 2)),
                rng.uniform(0.3, 1.0, (n, 2)),
            ]
        ),
        "ensemble": mean[:, None] + rng.normal(size=(n, 5)),
        "quantiles": mean[:, None] + np.sort(rng.normal(size=(n, 3)), axis=1),
        "histogram": shares,
        "ordinal": shares,
    }[kind]
    return predictions, rng.integers(0, 4, n).astype(float) if kind == "ordinal" else y


def parts(kind, predictions):
    """Predictions as `from_arrays` also takes them: a tuple of their parts."""
    if kind not in PARTS:
        return predictions
    split = np.split(predictions, PARTS[kind], axis=1)
    return tuple(part[:, 0] if part.shape[1] == 1 else part for part in split)


def source(kind, n, seed=0, **settings):
    predictions, y = rows(kind, n, seed)
    return cs.from_arrays(predictions=predictions, forecast=FORECASTS[kind], labels=y, **settings)


def distribution(kind, p, t):
    """P(Z ≤ t) of one prediction (P,) at the points t."""
    if kind == "normal":
        return stats.norm.cdf(t, p[0], p[1])
    if kind == "mixture":
        return sum(w * stats.norm.cdf(t, m, s) for w, m, s in zip(*np.split(p, 3), strict=True))
    if kind == "ensemble":
        return (p[:, None] <= t).mean(axis=0)
    if kind == "ordinal":
        return np.array([p[: int(k) + 1].sum() for k in np.floor(t)])
    if kind == "histogram":
        return np.interp(t, EDGES, np.concatenate([[0.0], p.cumsum()]))
    first = p[0] - LEVELS[0] * (p[1] - p[0]) / (LEVELS[1] - LEVELS[0])
    last = p[2] + (1 - LEVELS[2]) * (p[2] - p[1]) / (LEVELS[2] - LEVELS[1])
    return np.interp(t, [first, *p, last], [0.0, *LEVELS, 1.0])
