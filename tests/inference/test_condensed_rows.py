"""Random signs of condensed rows: the cells, and the null distributions of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

import calibscale as cs
from calibscale.data.covariates import Axis
from calibscale.inference import condensed_rows
from calibscale.statistics.condensed_residuals import CondensedResiduals
from tests.support.slow_cases import some_slow

ROWS = 20_000
CHOICES = [(), ("x",), ("group",), ("x", "group")]  # of covariates


def means(rows=ROWS, seed=0, noise=None, weights=None, forecast="mean"):
    """Predicted means with a continuous covariate x and a group of three values."""
    rng = np.random.default_rng([seed, rows])
    predicted = rng.lognormal(0, 0.7, rows)
    factors = rng.gamma(2.0, 0.5, rows) if noise is None else noise(rng, rows)
    covariates = np.column_stack([rng.normal(size=rows), rng.integers(0, 3, rows)])
    return cs.from_arrays(
        predictions=predicted,
        forecast=forecast,
        labels=predicted * factors,
        weights=weights,
        covariates=covariates,
        covariate_names=["x", "group"],
    )


def both_ways(monkeypatch, source, **options):
    """Results of a test by signs of condensed rows, and by signs of all rows."""
    options = {"n_replicates": 199, "seed": 3, **options}
    by_rows = cs.calibration_test(source, **options)
    monkeypatch.setattr(condensed_rows, "MANY_ROWS", 1000)
    return cs.calibration_test(source, **options), by_rows


def condensed_of(source, statistic):
    """Predictions, residuals and covariates of the condensed rows of a statistic."""
    with cs.Session.open(source) as session:
        named = [cs.SegmentScan(source.covariate_names)] if source.covariate_names else []
        run = session.run(named)  # reads the covariates
        state = run.scan([statistic]).groups[None][statistic]
    return statistic.rows(state)


def predictions_of(source):
    """Predictions (n,) of a source of arrays."""
    return np.asarray(source.read(0, source.rows, False).values).ravel()


def test_condensed_rows__are_the_cells_of_rows():
    weights = np.random.default_rng(1).uniform(0.5, 2, 3000)
    source = means(3000, weights=weights)
    edges = (0.5, 1.0, 2.5)
    axes = (Axis("x", 0, None, (-0.3, 0.8)), Axis("group", 1, (0.0, 1.0, 2.0)))
    x, residuals, columns = condensed_of(source, CondensedResiduals(edges, axes, parts=1))
    predicted, covariates = predictions_of(source), np.asarray(source.covariates)
    squares = (weights * (predicted - np.asarray(source.labels))) ** 2
    part = np.digitize(covariates[:, 0], (-0.3, 0.8), right=True)
    cell = np.digitize(predicted, edges, right=True)
    expected = []
    for c in range(4):
        for a in range(3):
            for group in range(3):
                rows = (cell == c) & (part == a) & (covariates[:, 1] == group)
                w = squares[rows]
                expected.append(
                    [
                        np.sqrt(w.sum()),
                        np.average(predicted[rows], weights=w),
                        np.average(covariates[rows, 0], weights=w),
                        group,
                    ]
                )
    np.testing.assert_allclose(np.column_stack([residuals, x, columns]), expected, rtol=1e-11)


def test_condensed_rows__of_equal_predictions_stay_in_their_cells():
    """A mean of equal numbers is rounded, and could leave a cell that ends at the number."""
    source = cs.from_arrays(
        predictions=np.repeat([0.1, 0.3, 0.7], 1001),
        forecast="mean",
        labels=np.random.default_rng(0).exponential(size=3003),
    )
    x, residuals, _ = condensed_of(source, CondensedResiduals((0.1, 0.3), (), parts=4))
    assert np.digitize(x, (0.1, 0.3), right=True).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    total = np.sum((predictions_of(source) - np.asarray(source.labels)) ** 2)
    assert residuals @ residuals == pytest.approx(total, rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("names", some_slow(CHOICES, keep=[(), ("x", "group")]))
@pytest.mark.parametrize("forecast", ["mean", "mean(scale=log)"])
def test_null_values__have_the_distribution_of_signs_of_all_rows(monkeypatch, names, forecast):
    statistics = [cs.MeanScore(), cs.SmoothTest(), cs.ResidualScan(), cs.KCE()]
    if names:
        statistics += [cs.SegmentScan(names), cs.KLCE(names)]
    if "x" in names:
        statistics.append(cs.KLCE(("x",), prediction_kernel="none", covariate_bandwidth={"x": 0.1}))
    condensed, by_rows = both_ways(
        monkeypatch, means(forecast=forecast), statistics=statistics, n_replicates=1000
    )
    for test, expected in zip(condensed.results, by_rows.results, strict=True):
        assert test.value == pytest.approx(expected.value, rel=1e-9)
        assert not np.array_equal(test.null_values, expected.null_values)
        # About 50 comparisons: a chance of 1 in 200 that one of all is below 1e-4.
        assert ks_2samp(test.null_values, expected.null_values).pvalue > 1e-4, test.statistic


@pytest.mark.long
def test_condensed_rows__do_not_depend_on_blocks_and_workers(monkeypatch):
    source = means()
    monkeypatch.setattr(condensed_rows, "MANY_ROWS", 1000)
    results = [
        cs.calibration_test(source, covariates="x", n_replicates=49, **options)
        for options in ({"scheduler": "serial"}, {"block_rows": 777}, {"scheduler": "threads"})
    ]
    for other in results[1:]:
        for test, expected in zip(other.results, results[0].results, strict=True):
            np.testing.assert_allclose(test.null_values, expected.null_values, rtol=1e-7)
            assert test.p_value == expected.p_value


@pytest.mark.long
def test_null_values__of_rows_with_most_of_the_variance_are_not_normal(monkeypatch):
    """Tails of infinite variance: the rows that dominate have signs of their own."""
    source = means(noise=lambda rng, rows: 1 + rng.standard_t(1.2, rows))
    statistics = [cs.MeanScore(), cs.KCE()]
    condensed, by_rows = both_ways(monkeypatch, source, statistics=statistics, n_replicates=1000)
    for test, expected in zip(condensed.results, by_rows.results, strict=True):
        assert not np.array_equal(test.null_values, expected.null_values)
        assert ks_2samp(test.null_values, expected.null_values).pvalue > 1e-4, test.statistic


def test_few_condensed_rows__are_not_enough(monkeypatch):
    """Predictions that are nearly all equal, without covariates."""
    source = means()
    predicted = predictions_of(source)
    predicted = np.where(np.arange(ROWS) % 100 == 0, predicted, 1.0)
    source = cs.from_arrays(predictions=predicted, forecast="mean", labels=source.labels)
    monkeypatch.setattr("calibscale.inference.condensed_rows._CONDENSED", 1000)
    condensed, by_rows = both_ways(monkeypatch, source)
    for test, expected in zip(condensed.results, by_rows.results, strict=True):
        np.testing.assert_array_equal(test.null_values, expected.null_values)


@pytest.mark.parametrize(
    "options",
    [
        {"null": "permute", "statistics": "kce"},
        {"statistics": "bias"},
        {"statistics": "klce(covariates=['x'],bandwidth_share=0.2)"},
        {"statistics": "kce(prediction_bandwidth=0.002)"},
        {"statistics": "klce(covariates=['x'],covariate_bandwidth={'x':0.01})"},
    ],
)
def test_other_nulls_and_statistics__draw_for_all_rows(monkeypatch, options):
    condensed, by_rows = both_ways(monkeypatch, means(5000), n_replicates=19, **{**options})
    (test,), (expected,) = condensed.results, by_rows.results
    np.testing.assert_array_equal(test.null_values, expected.null_values)


def test_huge_units__have_signs_of_their_own(monkeypatch):
    """The fourth powers of residuals near 1e80 overflow."""
    rng = np.random.default_rng(0)
    predicted = 1e80 * rng.gamma(2.0, 1.0, 3000)
    source = cs.from_arrays(
        predictions=predicted, forecast="mean", labels=predicted * rng.gamma(2.0, 0.5, 3000)
    )
    condensed, by_rows = both_ways(monkeypatch, source, statistics="kce", n_replicates=19)
    np.testing.assert_array_equal(condensed.results[0].null_values, by_rows.results[0].null_values)


@pytest.mark.slow
def test_level__of_many_condensed_rows(monkeypatch):
    """5 % of 400 calibrated sets: 99.9 % of binomial counts are within 1.8 and 9.2 %."""
    monkeypatch.setattr(condensed_rows, "MANY_ROWS", 1000)
    rejections = 0
    for seed in range(400):
        result = cs.calibration_test(means(5000, seed), covariates="x", n_replicates=99)
        rejections += result.judgement.p_value <= 0.05
    assert 0.018 <= rejections / 400 <= 0.092
