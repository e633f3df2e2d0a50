"""What forecasts of quantiles and of bins state: probabilities of pieces, and levels."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import calibscale as cs
from calibscale import OptionError, QuantileForecast
from calibscale.predictions.distributions.quantile_names import levels_of_names
from tests.support.forecast_rows import FORECASTS, rows

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def quantiles_of_normals(n, seed, *, levels=LEVELS):
    """True quantiles of normal distributions, and outcomes drawn from these."""
    rng = np.random.default_rng(seed)
    mean = 3.0 * rng.normal(size=n)
    return mean[:, None] + stats.norm.ppf(levels), mean + rng.normal(size=n)


def test_pit__of_true_quantiles_is_uniform():
    # the density between two levels is not that of the forecast
    values, y = quantiles_of_normals(20_000, 0)
    u = QuantileForecast(LEVELS).pit(values, y, np.arange(len(y)))
    # fails for one seed in a thousand
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    interpolated = QuantileForecast(LEVELS).cdf(values, y)[1]
    assert stats.kstest(interpolated, "uniform").pvalue < 1e-9


def test_pit__of_an_outcome_is_between_the_levels_that_enclose_it():
    forecast, rows = QuantileForecast((0.2, 0.6)), np.arange(400)
    values = np.tile([1.0, 2.0], (400, 1))
    for y, low, high in ((-50.0, 0.0, 0.2), (1.0, 0.0, 0.2), (1.5, 0.2, 0.6), (9.0, 0.6, 1.0)):
        u = forecast.pit(values, np.full(400, y), rows)
        assert low <= u.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < u.max() <= high
    inner = QuantileForecast((0.1, 0.2, 0.6, 0.9))
    equal = inner.pit(np.tile([0.0, 1.0, 1.0, 2.0], (400, 1)), np.ones(400), rows)
    # of 400 uniform numbers, none is in the first eighth with a probability below 1e-23
    assert 0.2 <= equal.min() < 0.25 < 0.55 < equal.max() <= 0.6


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_pit__of_true_quantiles_with_an_outer_atom_is_uniform(sign):
    # half of the outcomes are 0, the smallest or largest possible value
    rng = np.random.default_rng(6)
    y = sign * np.maximum(rng.normal(size=20_000), 0.0)
    values = np.sort(sign * np.maximum(stats.norm.ppf([0.1, 0.5, 0.9]), 0.0))
    u = QuantileForecast((0.1, 0.5, 0.9)).pit(np.tile(values, (len(y), 1)), y, np.arange(len(y)))
    # fails for one seed in a thousand
    assert stats.kstest(u, "uniform").pvalue > 1e-3


def test_pit__of_bins_with_true_probabilities_is_uniform():
    edges = (-6.0, -1.0, 0.5, 6.0)
    rng = np.random.default_rng(1)
    y = rng.normal(size=20_000)
    values = np.tile(np.diff(stats.norm.cdf(edges)), (len(y), 1))
    values /= values.sum(axis=1, keepdims=True)
    u = cs.HistogramForecast(edges).pit(values, y, np.arange(len(y)))
    # fails for one seed in a thousand
    assert stats.kstest(u, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("kind", ["quantiles", "histogram"])
def test_placed__has_the_distribution_of_the_forecast(kind):
    forecast, (values, _) = FORECASTS[kind], rows(kind, 2000)
    y = forecast.drawn(values, np.zeros(len(values)), np.random.default_rng(2).random(len(values)))
    placed = forecast.placed(values, y, np.arange(len(y)))
    assert np.array_equal(*(forecast.range_of(values, x)[0] for x in (y, placed)))
    np.testing.assert_allclose(
        forecast.cdf(values, placed)[1], forecast.pit(values, y, np.arange(len(y))), atol=1e-12
    )


@pytest.mark.long
def test_check__does_not_refute_true_quantiles():
    values, y = quantiles_of_normals(4000, 3)
    data = cs.from_arrays(predictions=values, forecast=QuantileForecast(LEVELS), labels=y)
    state = cs.check(data, n_replicates=99).judgement.state
    assert state not in ("miscalibrated", "small", "refuted")
    wide = cs.from_arrays(
        predictions=0.8 * values + 0.2 * values.mean(axis=1, keepdims=True),
        forecast=QuantileForecast(LEVELS),
        labels=y,
    )
    assert cs.check(wide, n_replicates=99).judgement.state == "miscalibrated"


@pytest.mark.parametrize(
    ("levels", "covered"),
    [((0.05, 0.5, 0.95), 0.9), ((0.1, 0.25, 0.75, 0.9), 0.8), ((0.1, 0.5, 0.8), 0.9)],
)
def test_coverage__is_that_of_an_interval_between_levels(levels, covered):
    values, y = quantiles_of_normals(500, 4, levels=levels)
    data = cs.from_arrays(predictions=values, forecast=QuantileForecast(levels), labels=y)
    assert cs.evaluate(data, "coverage")["coverage"].details["level"] == covered


@pytest.mark.parametrize(
    ("names", "levels"),
    [
        (["q_0.05", "q_0.5", "q_0.95"], (0.05, 0.5, 0.95)),
        (["0.1", "0.9"], (0.1, 0.9)),
        (["q05", "q50", "q95"], (0.05, 0.5, 0.95)),
        (["p2.5", "p50", "p97.5"], (0.025, 0.5, 0.975)),
        ([f"q{percent}" for percent in range(1, 100)], tuple(k / 100 for k in range(1, 100))),
        ([f"q{k}" for k in range(1, 10)], None),  # numbers of the columns
        ([f"q_{k}" for k in range(60)], None),
        (["q_0.9", "q_0.1"], None),
        (["low", "q_0.9"], None),
        (["q_0.5"], None),
    ],
)
def test_levels__are_those_of_the_names_of_columns(names, levels):
    result = levels_of_names(names)
    assert result == (levels and pytest.approx(levels))


def test_levels__of_names_are_used_by_tables(tmp_path):
    values, y = quantiles_of_normals(50, 5)
    frame = pd.DataFrame(values, columns=[f"q_{level}" for level in LEVELS]).assign(y=y)
    frame.to_csv(tmp_path / "q.csv", index=False)
    named = {"predictions": "q_", "forecast": "quantiles", "labels": "y"}
    for source in (
        cs.from_frame(frame, **named),
        cs.from_file(tmp_path / "q.csv", **named),
        cs.from_arrays(predictions=frame.drop(columns="y"), forecast="quantiles", labels=y),
    ):
        assert source.forecast.levels == LEVELS
    reversed_columns = frame[frame.columns[::-1]]
    ordered = cs.from_frame(reversed_columns, **named).columns["predictions"]
    assert ordered == tuple(frame.columns[:5])
    percent = frame.set_axis([*(f"q{100 * level:g}" for level in LEVELS), "y"], axis=1)
    percent = percent.rename(columns={"q5": "q2.5", "q95": "q97.5"})
    assert cs.from_frame(percent, **named | {"predictions": "q"}).forecast.levels[0] == 0.025
    with pytest.raises(OptionError, match="do not state the levels"):
        cs.from_frame(frame, predictions=["q_0.5", "y"], forecast="quantiles", labels="y")
    with pytest.raises(OptionError, match=r"predictions= .*the columns are: q_0\.05"):
        cs.from_file(tmp_path / "q.csv", forecast="quantiles")
