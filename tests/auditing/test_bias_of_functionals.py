"""Maps of local bias of means and expectiles, beside dense kernel sums."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

import calibscale as cs

ROWS = 600
POINTS = np.array([0.7, 1.5, 3.0]), np.array([[-0.5], [0.0], [1.0]])
LEVEL = 0.7  # of the expectile


@pytest.fixture
def columns():
    """Predictions, outcomes, weights, and a covariate."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=ROWS)
    predicted = rng.lognormal(0.3, 0.5, ROWS)
    outcomes = predicted * rng.gamma(2.0, 0.5, ROWS) * np.where(x > 0.5, 1.3, 1.0)
    return predicted, outcomes, rng.integers(1, 4, ROWS).astype(float), x


def source_of(columns, forecast):
    predicted, outcomes, weights, x = columns
    return cs.from_arrays(
        predictions=predicted,
        forecast=forecast,
        labels=outcomes,
        weights=weights,
        covariates=x,
        covariate_names=["x"],
    )


def dense_columns(columns, gaps, parameters, at):
    """Bias, standard error, effective rows and limits at a point, by sums over all rows.

    `gaps` are the responses minus the claimed means.
    """
    predicted, _, weights, x = columns
    (row, covariate), scale = at, parameters["scale"]
    distance = (scale(predicted) - scale(row)) / parameters["prediction_bandwidth"]
    along = (x - covariate) / parameters["covariate_bandwidth"]["x"]
    near = weights * np.exp(-0.5 * (distance**2 + along**2))
    bias = near @ gaps / near.sum()
    rows = near.sum() ** 2 / (near @ near)
    error = np.sqrt(near**2 @ (gaps - bias) ** 2 * rows / (rows - 1)) / near.sum()
    half = t.ppf(0.975, rows - 1) * error
    z = near @ gaps / np.sqrt(near**2 @ gaps**2)
    return bias, error, rows, bias - half, bias + half, z


def expectile_gaps(predicted, outcomes):
    return 2 * np.abs((outcomes <= predicted) - LEVEL) * (outcomes - predicted)


@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize(
    ("forecast", "scale", "gaps_of"),
    [
        ("mean", np.asarray, lambda predicted, outcomes: outcomes - predicted),
        ("mean(scale=log)", np.log, lambda predicted, outcomes: outcomes - predicted),
        (f"expectile(level={LEVEL})", np.asarray, expectile_gaps),
    ],
)
def test_bias__is_the_dense_kernel_sum(columns, forecast, scale, gaps_of, method):
    result = cs.local_bias(source_of(columns, forecast), "x", at=POINTS, method=method)
    gaps = gaps_of(columns[0], columns[1])
    np.testing.assert_allclose(result.predictions, POINTS[0], rtol=1e-14)
    for i, at in enumerate(zip(POINTS[0], POINTS[1][:, 0], strict=True)):
        expected = dense_columns(columns, gaps, {**result.parameters, "scale": scale}, at)
        names = ("bias", "standard_error", "effective_rows", "low", "high", "z")
        measured = [getattr(result, name)[i] for name in names]
        # The series has an error of 1e-12 of the weight of all rows, of which a point has a tenth.
        np.testing.assert_allclose(measured, expected, rtol=1e-9, atol=1e-10)
    assert result.parameters["notion"] == "prediction"
    assert result.ranges is None


def test_grid__spans_the_predictions(columns):
    result = cs.local_bias(source_of(columns, "mean"), "x", at="grid", points=4)
    low, high = np.percentile(columns[0], [1, 99])
    assert result.predictions.min() == pytest.approx(low, rel=1e-9)
    assert result.predictions.max() == pytest.approx(high, rel=1e-9)


def test_points__of_a_log_scale_must_be_positive(columns):
    with pytest.raises(cs.OptionError, match="need positive predictions"):
        cs.local_bias(source_of(columns, "mean(scale=log)"), "x", at=([-1.0], [[0.0]]))


def test_notions__are_those_of_classes_alone(columns):
    with pytest.raises(cs.OptionError, match=r"predictions \(mean\) have no notion"):
        cs.local_bias(source_of(columns, "mean"), cs.KLCE(("x",), notion="top_label"))


def test_bias__of_quantiles_is_that_of_their_events(columns):
    predicted, outcomes, _, x = columns
    source = cs.from_arrays(
        predictions=predicted,
        forecast="quantile(level=0.6)",
        labels=outcomes,
        covariates=x,
        covariate_names=["x"],
    )
    names = ("x", "predicted_quantile")
    measured = cs.local_bias(source, names, n_replicates=0)
    binary = cs.from_arrays(
        probabilities=np.full(ROWS, 0.6),
        labels=(outcomes <= predicted).astype(int),
        binary=True,
        covariates=np.column_stack([x, predicted]),
        covariate_names=names,
    )
    expected = cs.local_bias(binary, names, n_replicates=0)
    np.testing.assert_array_equal(measured.bias, expected.bias)
    np.testing.assert_array_equal(measured.low, expected.low)


@pytest.mark.slow
def test_intervals__cover_at_a_point():
    """Skewed outcomes of calibrated means: 1,000 data sets, each with about 200 rows near it."""
    covered = 0
    for seed in range(1000):
        rng = np.random.default_rng([11, seed])
        predicted = rng.lognormal(0.3, 0.5, 400)
        source = cs.from_arrays(
            predictions=predicted,
            forecast="mean",
            labels=predicted * rng.gamma(2.0, 0.5, 400),
            covariates=rng.normal(size=400),
            covariate_names=["x"],
        )
        result = cs.local_bias(source, "x", at=([1.3], [[0.0]]))
        covered += bool(result.low[0] <= 0 <= result.high[0])
    # Three standard deviations of 95 % of 1,000 are 2 %, and skewness costs about 1 %.
    assert 920 <= covered <= 970
