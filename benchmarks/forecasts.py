"""Predictive distributions: all default estimators and the default test of normal forecasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from measure import Report, Settings, measure

BLOCK_ROWS = 1_000_000
FREQUENCIES = (16, 64)  # the default, and as many as the bounds are for
REPLICATES = 199


def run(settings: Settings) -> Report:
    report = Report("forecasts", settings)
    few = _store(settings, 2000)
    for frequencies in FREQUENCIES:
        for name, piece, full_rows, runs, seconds in (
            ("all default estimators", "everything", 10_000_000, settings.runs, 60.0),
            (f"test, {REPLICATES} replicates", "kce_test", 1_000_000, 1, 40.0),
        ):
            rows = settings.rows(full_rows)
            store = _store(settings, rows)
            m = measure(f"forecasts:{piece}", store, few, frequencies, runs=runs)
            report.row(
                what=name,
                rows=rows,
                frequencies=frequencies,
                seconds=m.median,
                cpu_seconds=m.cpu_median,
                peak_mb=m.peak / 1e6,
            )
            title = f"{name}, {rows:,} rows, {frequencies} frequencies"
            report.check(title, m.median, seconds, "s")
            report.check(f"{title}, peak memory", m.peak / 1e6, 500.0, "MB")
    return report


def _store(settings: Settings, rows: int) -> str:
    """Store of calibrated normal forecasts, made once."""
    from calibscale import LogitStore, NormalForecast, StoreError

    url = str(settings.folder / f"{rows}_normal.zarr")
    try:
        if LogitStore.open(url).rows == rows:
            return url
    except StoreError:
        pass
    rng = np.random.default_rng(0)
    with LogitStore.create(url, forecast=NormalForecast(), overwrite=True).writer() as writer:
        for first in range(0, rows, BLOCK_ROWS):
            n = min(BLOCK_ROWS, rows - first)
            mean, scale = 2.0 * rng.normal(size=n), np.exp(0.3 * rng.normal(size=n))
            writer.append((mean, scale), mean + scale * rng.normal(size=n))
    return url


def _source(url: str, frequencies: int) -> Any:
    from dataclasses import replace

    from calibscale import LogitStore, NormalForecast

    source = LogitStore.open(url).source
    return replace(source, forecast=NormalForecast(frequencies=frequencies))


def everything(store: str, warm: str, frequencies: int) -> Callable[[], Any]:
    """Every default estimator."""
    from calibscale import evaluate

    evaluate(_source(warm, frequencies))
    return lambda: evaluate(_source(store, frequencies))["crps"].value


def kce_test(store: str, warm: str, frequencies: int) -> Callable[[], Any]:
    """The default test."""
    from calibscale import calibration_test

    calibration_test(_source(warm, frequencies), "kce", n_replicates=3)

    def work() -> float:
        test = calibration_test(_source(store, frequencies), "kce", n_replicates=REPLICATES)
        return test["kce"].p_value

    return work
