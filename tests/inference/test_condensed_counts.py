"""Numbers of events of condensed rows: the cells, the draws, and the laws of drawn rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, ks_2samp, rankdata

import calibscale as cs
from calibscale.compiled import random_draws
from calibscale.data.covariates import Axis
from calibscale.inference import condensed_rows
from calibscale.statistics.condensed_counts import CondensedCounts
from calibscale.statistics.null_distributions import DrawnCounts
from tests.support.slow_cases import some_slow

ROWS = 20_000
STATISTICS = ["mean_score", "smooth_test", "residual_scan", "kce", "bias"]
KINDS = ["set", "quantile", "interval"]


def claims(kind, rows=ROWS, seed=0, **options):
    """Calibrated predictions of 80 % with a continuous covariate x and a group g."""
    rng = np.random.default_rng([seed, rows])
    x, group = rng.normal(size=rows), rng.integers(0, 3, rows)
    centre, scale = 0.5 * x + rng.normal(size=rows), np.exp(rng.normal(0, 0.3, rows))
    y = centre + scale * rng.normal(size=rows)
    if kind == "set":
        predictions = rng.poisson(3.0, rows) + group
        y = (rng.random(rows) < 0.8).astype(float)
    elif kind == "quantile":
        predictions = centre + 0.8416212335729143 * scale
    else:
        predictions = centre[:, None] + 1.2815515655446004 * scale[:, None] * np.array([-1, 1])
    claimed = {"set": "set(coverage=0.8)", "quantile": "quantile(level=0.8)"}
    return cs.from_arrays(
        predictions=predictions,
        forecast=claimed.get(kind, "interval(coverage=0.8)"),
        labels=y,
        covariates=np.column_stack([x, group]),
        covariate_names=["x", "g"],
        **options,
    )


def both_ways(monkeypatch, source, **options):
    """Results of a test with numbers of events of cells, and with events of all rows."""
    options = {"n_replicates": 199, "seed": 3, **options}
    by_rows = cs.calibration_test(source, **options)
    monkeypatch.setattr(condensed_rows, "MANY_ROWS", 1000)
    return cs.calibration_test(source, **options), by_rows


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("n", "p"), [(1, 0.1), (7, 0.9), (300, 1e-5), (50_000, 0.1), (10**6, 0.999), (10**9, 1e-3)]
)
def test_mean_events__are_quantiles_of_binomial_distributions(n, p):
    out = np.empty((501, 1))
    rows, counts = np.array([5]), np.array([n])
    random_draws.mean_events(np.uint64(3), rows, counts, np.array([p]), 101, out)
    pair = np.empty((2, 1))
    expected = []
    for j in range(301):
        random_draws.uniform_pairs(np.uint64(3), rows, j, pair)
        expected += binom.ppf(pair[:, 0], n, p).tolist()
    # Rounding of p − k/n is multiplied by n.
    np.testing.assert_allclose((p - out[:, 0]) * n, expected[101:602], rtol=0, atol=1e-6)


def test_squares__are_those_of_the_rows_of_a_cell():
    """With k = 2 of 5, and 3 of 3 events of probability 0.2."""
    with cs.Session.open(claims("quantile", 2)) as session:
        rows = session.profile.sample("canonical")
    events = [np.array([1, 1, 0, 0, 0]), np.array([1, 1, 1])]
    residuals = [0.2 - cell for cell in events]
    strengths = np.array([[cell.sum() for cell in residuals]])
    assert rows.rows.tolist() == [0, 1]
    squares = DrawnCounts(0, np.array([5, 3])).squares(rows, strengths)
    assert squares == pytest.approx([sum(cell @ cell for cell in residuals)], rel=1e-12)


def test_cells__count_rows_and_keep_the_first():
    source = claims("interval", 3000)
    edges, starts = (1.5, 2.5, 4.0), (-1.0, 0.5)
    axes = (Axis("g", 1, (0.0, 1.0, 2.0)),)
    statistic = CondensedCounts(edges, axes, starts=starts)
    with cs.Session.open(source, block_rows=700) as session:
        run = session.run([cs.SegmentScan(("g",))])  # reads the covariates
        state = run.scan([statistic]).groups[None][statistic]
    predictions, counts, columns = statistic.condensed(state)
    values, covariates = np.asarray(source.values), np.asarray(source.covariates)
    cells = [
        np.digitize(values[:, 0], starts, right=True),
        np.digitize(values[:, 1] - values[:, 0], edges, right=True),
        covariates[:, 1],
    ]
    _, first, sizes = np.unique(
        np.column_stack(cells), axis=0, return_index=True, return_counts=True
    )
    np.testing.assert_array_equal(counts, sizes)
    np.testing.assert_array_equal(predictions, values[first])
    np.testing.assert_array_equal(columns[:, 0], covariates[first, 1])


@pytest.mark.long
@pytest.mark.parametrize("names", some_slow([(), ("x", "g")], keep=[()]))
@pytest.mark.parametrize("kind", KINDS)
def test_null_values__have_the_law_of_drawn_rows(monkeypatch, kind, names):
    statistics = [*STATISTICS] if kind == "quantile" else [*STATISTICS, "coverage"]
    if names and kind != "interval":
        statistics += [cs.SegmentScan(names), cs.KLCE(names)]
    counted, by_rows = both_ways(
        monkeypatch, claims(kind), statistics=statistics, n_replicates=1000
    )
    for test, expected in zip(counted.results, by_rows.results, strict=True):
        assert test.value == pytest.approx(expected.value, rel=1e-9)
        assert not np.array_equal(test.null_values, expected.null_values)
        # About 40 comparisons: a chance of 1 in 250 that one of all is below 1e-4.
        assert ks_2samp(test.null_values, expected.null_values).pvalue > 1e-4, test.statistic


def test_null_values_of_sets__are_exact_for_one_size(monkeypatch):
    """All points are equal, and the sum over pairs of k binomial misses is (Σδ)² − Σδ²."""
    n, p = 5000, 1.0 - 0.8
    covered = np.random.default_rng(1).random(n) < 0.8
    source = cs.from_arrays(
        predictions=np.full(n, 3), forecast="set(coverage=0.8)", labels=covered.astype(float)
    )
    counted, _ = both_ways(monkeypatch, source, statistics="kce")
    pairs = np.empty((2, 1))
    uniform = []
    for j in range(100):
        random_draws.uniform_pairs(np.uint64(3), np.array([0]), j, pairs)
        uniform += pairs[:, 0].tolist()
    k = binom.ppf(uniform[:199], n, p)
    expected = (n * p - k) ** 2 - k * (1 - p) ** 2 - (n - k) * p**2
    values = counted["kce"].null_values * n * (n - 1)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-7 * n)  # of the Fourier series


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_null_values__have_the_same_bits_for_any_workers(monkeypatch, kind):
    monkeypatch.setattr(condensed_rows, "MANY_ROWS", 1000)
    source = claims(kind)
    serial, threads, blocks = (
        cs.calibration_test(source, STATISTICS, n_replicates=49, **options).results
        for options in ({"scheduler": "serial"}, {"scheduler": "threads"}, {"block_rows": 777})
    )
    for test, other, cut in zip(serial, threads, blocks, strict=True):
        np.testing.assert_array_equal(test.null_values, other.null_values)
        # Sums of the observed rows are rounded in another order.
        np.testing.assert_allclose(test.null_values, cut.null_values, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("rows", [2000, 700])  # with cells, and row by row
def test_coverage__has_the_draws_of_the_mean_score(monkeypatch, rows):
    """A joint p-value compares statistics of the same draws, so that they order them alike."""
    monkeypatch.setattr(condensed_rows, "MANY_ROWS", 1000)
    results = cs.calibration_test(claims("set", rows), ["coverage", "mean_score"])
    coverage, mean = (np.abs(test.null_values).round(9) for test in results.results)
    np.testing.assert_array_equal(rankdata(coverage), rankdata(mean))


@pytest.mark.parametrize("case", ["weights", "open", "narrow kernel", "bootstrap null"])
def test_other_rows_and_statistics__draw_for_all_rows(monkeypatch, case):
    options = {"statistics": "mean_score", "n_replicates": 19}
    source = claims("quantile", 3000)
    if case == "weights":
        source = claims("quantile", 3000, weights=np.linspace(1, 2, 3000))
    elif case == "open":
        ends = np.asarray(claims("interval", 3000).values).copy()
        ends[::7, 1] = np.inf
        y = np.random.default_rng(0).normal(size=3000)
        source = cs.from_arrays(predictions=ends, forecast="interval(coverage=0.8)", labels=y)
    elif case == "narrow kernel":
        options["statistics"] = "kce(prediction_bandwidth=1e-5)"
    else:
        options["null"] = "residual"
    counted, by_rows = both_ways(monkeypatch, source, **options)
    np.testing.assert_array_equal(counted.results[0].null_values, by_rows.results[0].null_values)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["set", "interval"])
def test_level__of_tests_with_counted_events(monkeypatch, kind):
    """5 % of 400 calibrated data sets: 99.9 % of binomial counts are within 1.8 and 9.2 %."""
    monkeypatch.setattr(condensed_rows, "MANY_ROWS", 1000)
    rejections = 0
    for seed in range(400):
        result = cs.calibration_test(claims(kind, 3000, seed), n_replicates=99)
        rejections += result.judgement.p_value <= 0.05
    assert 0.018 <= rejections / 400 <= 0.092
