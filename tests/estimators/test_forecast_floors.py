"""Noise floors of kernel errors of forecasts, beside many calibrated data sets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

import calibscale as cs
from tests.support import forecast_rows
from tests.support.slow_cases import some_slow

SETS = 40
NAMES = ["ckce(bandwidth=0.4)", "cmmd(bandwidth=0.4)", "jkce_biased(bandwidth=0.4)"]


def _redrawn(kind, predictions, y, rng):
    """Predictions and outcomes of a calibrated data set with the same distributions."""
    if kind == "ensemble":  # the outcome and the members are exchangeable
        pool = rng.permuted(np.column_stack([predictions, y]), axis=1)
        return pool[:, :-1], pool[:, -1]
    grid = np.arange(4.0) if kind == "ordinal" else np.linspace(-6.0, 8.0, 801)
    out = np.empty(len(y))
    for i, u in enumerate(rng.random(len(y))):
        reached = forecast_rows.distribution(kind, predictions[i], grid)
        k = min(int(np.searchsorted(reached, u)), len(grid) - 1)
        out[i] = grid[k]
        if kind != "ordinal" and k:
            out[i] = np.interp(u, reached[k - 1 : k + 1], grid[k - 1 : k + 1])
    return predictions, out


@pytest.mark.long
@pytest.mark.parametrize("kind", some_slow(forecast_rows.FORECASTS, keep=("normal", "quantiles")))
def test_floor_of_forecasts__is_the_mean_and_quantile_over_calibrated_data_sets(kind):
    # S8: kernel errors of forecasts had no floors
    rng, n = np.random.default_rng(5), 120
    predictions, y = forecast_rows.rows(kind, n, 3)
    settings = forecast_rows.FORECASTS[kind].with_target(y)
    weights = rng.uniform(0.5, 1.5, n)

    def source(values, outcomes):
        return cs.from_arrays(
            predictions=values, forecast=settings, labels=outcomes, weights=weights
        )

    drawn = (_redrawn(kind, predictions, y, rng) for _ in range(SETS))
    values = np.array(
        [[e.value for e in cs.evaluate(source(*data), NAMES, floor=False)] for data in drawn]
    )
    result = cs.evaluate(source(*_redrawn(kind, predictions, y, rng)), NAMES)
    for estimate, sample in zip(result, values.T, strict=True):
        floor = estimate.floor
        # four standard errors of the mean; 4 % for the outcome among the members of q
        error = 4 * sample.std() / np.sqrt(SETS)
        assert floor.mean == pytest.approx(sample.mean(), abs=error, rel=0.04)
        # 1 % for the quantile of the floor itself; each limit is exceeded once in 100,000 times
        above = np.sum(sample >= floor.high)
        assert binom.isf(1 - 1e-5, SETS, 0.04) <= above <= binom.isf(1e-5, SETS, 0.06)
        assert 0 < floor.p_value <= 1
