"""Levels of tests of calibrated predictive distributions, of every kind of statistic."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from scipy.special import ndtri
from simulated import SEED, shared, within

KINDS = ("normal", "ensemble", "quantiles", "ordinal")
STATISTICS = ("jkce", "ckce", "kce", "klce(covariates=['x'])", "pit_kuiper")
ROWS, LEVEL = 200, 0.05
REPLICATES = 19  # an exact test has its level with any number that allows it


def run(report: Report, pool: Executor, laws: Sequence[Law], count: int) -> None:
    """Judge how often calibrated forecasts are rejected, for the laws of this module."""
    for kind in KINDS:
        rejected = np.concatenate(shared(pool, count, rejections, kind))
        for name, share in zip(STATISTICS, 100 * rejected.mean(axis=0), strict=True):
            report.row(what="level", kind=kind, statistic=name, count=count, level=float(share))
            within(report, f"{kind}, {name}, level", float(share), 4.4, 5.6, full_only=True)


def rejections(kind: str, first: int, last: int) -> Any:
    """Whether each data set is rejected by each test (data set, statistic)."""
    import calibscale as cs

    rejected = []
    for number in range(first, last):
        tests = cs.calibration_test(
            _source(kind, number),
            STATISTICS,
            n_replicates=REPLICATES,
            seed=number,
            scheduler="serial",
        )
        rejected.append([test.p_value <= LEVEL for test in tests.results])
    return np.array(rejected)


def _source(kind: str, number: int) -> Any:
    """Calibrated forecasts with a covariate that depends on them."""
    import calibscale as cs

    rng = np.random.default_rng([SEED, number])
    mean, scale = 1.5 * rng.normal(size=ROWS), np.exp(0.4 * rng.normal(size=ROWS))
    x = mean + rng.normal(size=ROWS)
    forecast: Any = kind
    if kind == "normal":
        predictions, y = np.column_stack([mean, scale]), mean + scale * rng.normal(size=ROWS)
    elif kind == "ensemble":
        predictions = mean[:, None] + scale[:, None] * rng.normal(size=(ROWS, 21))
        predictions, y = predictions[:, :20], predictions[:, 20]
    elif kind == "quantiles":
        forecast = cs.QuantileForecast(tuple(np.arange(1, 10) / 10))
        predictions = mean[:, None] + scale[:, None] * ndtri(forecast.levels)
        y = forecast.drawn(predictions, mean, rng.random(ROWS))
    else:
        forecast, predictions = cs.OrdinalForecast(5), rng.dirichlet([0.7] * 5, ROWS)
        y = (predictions.cumsum(axis=1)[:, :-1] < rng.random((ROWS, 1))).sum(axis=1)
    return cs.from_arrays(
        predictions=predictions, forecast=forecast, labels=y, covariates=x, covariate_names=["x"]
    )
