"""Ensembles with missing members (NaN), against the members of each row that are there."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import calibscale as cs
from calibscale.compiled import random_draws
from calibscale.errors import InvalidDataError

N, M = 300, 7
FORECAST = cs.EnsembleForecast(bandwidth=1.2, centre=0.1, frequencies=20)


def _rows(n=N, m=M, share=0.3, seed=0, ties=False):
    """Calibrated ensembles with some members missing, and outcomes."""
    rng = np.random.default_rng(seed)
    centre, scale = rng.normal(size=(n, 1)), np.exp(0.5 * rng.normal(size=(n, 1)))
    pool = centre + scale * rng.normal(size=(n, m + 1))
    if ties:
        pool = np.maximum(np.round(pool), 0.0)
    members, y = pool[:, :m].copy(), pool[:, m].copy()
    gone = rng.random((n, m)) < share
    gone[np.arange(n), rng.integers(0, m, n)] = False
    gone[gone.sum(axis=1) > m - 2] = False
    members[gone] = np.nan
    return members, y


def _there(row):
    return row[~np.isnan(row)]


MEMBERS, Y = _rows(ties=True)
ROWS = [_there(row) for row in MEMBERS]
LEVELS = (0.03, 0.25, 0.5, 0.9)


# ---------------------------------------------------------------- row by row


def test_rows__have_several_numbers_of_members():
    assert len({len(row) for row in ROWS}) == 6


@pytest.mark.long
def test_crps__is_the_fair_one_of_the_members_of_each_row(scoringrules):
    expected = [
        float(scoringrules.crps_ensemble(y, row, estimator="fair"))
        for row, y in zip(ROWS, Y, strict=True)
    ]
    np.testing.assert_allclose(FORECAST.crps(MEMBERS, Y), expected, atol=1e-13)


def test_pit__is_the_rank_among_the_members_of_each_row():
    below, at_most = FORECAST.cdf(MEMBERS, Y)
    k = [len(row) + 1 for row in ROWS]
    lower = [np.sum(row < y) for row, y in zip(ROWS, Y, strict=True)]
    upper = [np.sum(row <= y) + 1 for row, y in zip(ROWS, Y, strict=True)]
    np.testing.assert_array_equal(below, np.divide(lower, k))
    np.testing.assert_array_equal(at_most, np.divide(upper, k))
    number = np.arange(N)
    v = random_draws.of_rows(number, 0, random_draws.PIT)
    np.testing.assert_array_equal(FORECAST.pit(MEMBERS, Y, number), below + v * (at_most - below))


@pytest.mark.parametrize("level", LEVELS)
def test_quantile__is_that_of_the_members_of_each_row(level):
    expected = [np.quantile(row, level, method="weibull") for row in ROWS]
    np.testing.assert_allclose(FORECAST.quantile(MEMBERS, level), expected, atol=1e-13)


def test_embedded__is_the_mean_of_members_and_outcome_of_each_row():
    expected = [
        FORECAST.of_outcomes(np.append(row, y)).mean(axis=0) for row, y in zip(ROWS, Y, strict=True)
    ]
    np.testing.assert_allclose(FORECAST.embedded(MEMBERS, Y), expected, atol=1e-13)
    np.testing.assert_allclose(FORECAST.mean(MEMBERS), [row.mean() for row in ROWS], atol=1e-13)


def test_drawn__is_each_member_that_is_there_and_the_outcome_equally_often():
    row, y = np.array([3.0, np.nan, 1.0, np.nan, 2.0]), 9.0
    u = (np.arange(400) + 0.5) / 400
    draws = FORECAST.drawn(np.tile(row, (400, 1)), np.full(400, y), u)
    values, counts = np.unique(draws, return_counts=True)
    np.testing.assert_array_equal(values, [1.0, 2.0, 3.0, 9.0])
    np.testing.assert_array_equal(counts, 100)


def _covered(members, y, level):
    low, high = (np.quantile(members, 0.5 + h * level, method="weibull") for h in (-0.5, 0.5))
    return low <= y <= high


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_expected_coverage__is_the_share_of_values_that_the_others_cover(level):
    expected = []
    for row, y in zip(ROWS, Y, strict=True):
        pool = np.append(row, y)
        covered = [_covered(np.delete(pool, j), pool[j], level) for j in range(len(pool))]
        expected.append(np.mean(covered))
    _, shares = FORECAST.covered_part(MEMBERS, Y, level, FORECAST.interval(MEMBERS, level))
    np.testing.assert_allclose(shares, expected, atol=1e-15)


def test_order_of_members__does_not_matter():
    """NaN at the end, as of ensembles of different sizes, is NaN anywhere."""
    shuffled = np.random.default_rng(1).permuted(MEMBERS, axis=1)
    for method in (FORECAST.crps, FORECAST.embedded, FORECAST.cdf):
        np.testing.assert_allclose(method(shuffled, Y), method(MEMBERS, Y), atol=1e-13)


def test_rows_without_missing_members__keep_their_bits():
    """Rows beside those with missing members have the values that they have alone."""
    complete, y = _rows(share=0.0)
    mixed = np.vstack([complete, MEMBERS])
    outcomes = np.concatenate([y, Y])
    for method in (FORECAST.crps, FORECAST.embedded):
        np.testing.assert_array_equal(method(mixed, outcomes)[:N], method(complete, y))
    for alone, beside in zip(FORECAST.cdf(complete, y), FORECAST.cdf(mixed, outcomes), strict=True):
        np.testing.assert_array_equal(beside[:N], alone)
    for level in LEVELS:
        quantiles = FORECAST.quantile(mixed, level)[:N]
        np.testing.assert_array_equal(quantiles, FORECAST.quantile(complete, level))


# ---------------------------------------------------------------- doors


def _source(members, y, **settings):
    return cs.from_arrays(predictions=members, forecast="ensemble", labels=y, **settings)


@pytest.mark.long
def test_missing_members__drop_no_rows(scoringrules):
    """2 % of 50 members were missing, and `drop` removed 64 % of the rows."""
    members, y = _rows(1000, 50, 0.02)
    assert np.isnan(members).any(axis=1).mean() > 0.5
    for on_invalid in ("raise", "drop"):
        result = cs.evaluate(_source(members, y), on_invalid=on_invalid)
        assert (result.n, result.dropped) == (1000, {})
    expected = [
        scoringrules.crps_ensemble(outcome, _there(row), estimator="fair")
        for row, outcome in zip(members, y, strict=True)
    ]
    assert result["crps"].value == pytest.approx(np.mean(expected), rel=1e-12)


def test_rows_of_fewer_than_two_members__are_invalid_and_named():
    members, y = _rows(60)
    members[11], members[12, 1:] = np.nan, np.nan
    members[12, 0] = 1.0
    source = _source(members, y)
    with pytest.raises(InvalidDataError, match="row 11 of arrays: 'predictions' is missing"):
        cs.evaluate(source, "crps")
    with pytest.raises(InvalidDataError, match=r"row 0 of arrays: it has 1 member, and 6 are miss"):
        cs.evaluate(_source(members[12:], y[12:]), "crps")
    result = cs.evaluate(source, "crps", on_invalid="drop")
    assert (result.n, result.dropped) == (
        58,
        {
            "predictions has too few members": 1,
            "predictions is missing": 1,
        },
    )
    members[13, 2] = np.inf
    with pytest.raises(InvalidDataError, match=r"is inf, not a finite number \(column 2\)"):
        cs.evaluate(_source(members[13:], y[13:]), "crps")


@pytest.mark.long
def test_rows_of_fewer_members__equal_a_narrower_ensemble():
    """An ensemble without its last members has the estimates of the narrower ensemble."""
    members, y = _rows(400, 5, 0.0)
    padded = np.column_stack([members, np.full((400, 3), np.nan)])
    names = ["crps", "coverage", "pinball_loss", "pit_kuiper", "jkce", "ckce"]
    narrow, wide = (cs.evaluate(_source(x, y), names) for x in (members, padded))
    for a, b in zip(narrow.estimates, wide.estimates, strict=True):
        assert b.value == pytest.approx(a.value, rel=1e-12), a.estimator
    tests = [
        cs.calibration_test(_source(x, y), ["jkce", "kce", "coverage"], n_replicates=49)
        for x in (members, padded)
    ]
    for a, b in zip(*(test.results for test in tests), strict=True):
        np.testing.assert_allclose(b.null_values, a.null_values, rtol=1e-9, atol=1e-15)


# ---------------------------------------------------------------- calibrated ensembles


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_pit__of_calibrated_ensembles_with_missing_members_is_uniform(share):
    members, y = _rows(4000, 6, share, seed=3, ties=True)
    pit = cs.EnsembleForecast().pit(members, y, np.arange(4000))
    # fails for one seed in a hundred
    assert stats.kstest(pit, "uniform").pvalue > 0.01
    for count in range(2, 7):  # of each number of members
        rows_of_count = (~np.isnan(members)).sum(axis=1) == count
        if rows_of_count.sum() > 50:
            assert stats.kstest(pit[rows_of_count], "uniform").pvalue > 0.005


@pytest.mark.slow
def test_tests__of_calibrated_ensembles_with_missing_members_have_their_level():
    names = ["pit_kuiper", "quantile_ece", "coverage", "kce"]
    sets, rejected, gaps = 80, np.zeros(len(names)), []
    for seed in range(sets):
        source = _source(*_rows(200, 6, 0.3, seed=seed))
        tests = cs.calibration_test(source, names, n_replicates=39, seed=seed).results
        rejected += [test.p_value <= 0.1 for test in tests]
        coverage = tests[2].parameters
        gaps.append(coverage["coverage"] - coverage["expected"])
    # a binomial count of 80 with probability 0.1 is below 17 with probability 0.998
    assert np.all(rejected < 17), dict(zip(names, rejected, strict=True))
    assert abs(np.mean(gaps)) < 4 * np.std(gaps) / sets**0.5


@pytest.mark.long
def test_kernel_errors__of_calibrated_ensembles_with_missing_members_are_0_on_average():
    values = [
        cs.evaluate(_source(*_rows(200, 6, 0.3, seed=seed)), "jkce", floor=False)["jkce"].value
        for seed in range(60)
    ]
    assert abs(np.mean(values)) < 4 * np.std(values) / 60**0.5


def test_tests__find_ensembles_that_agree_too_much():
    members, y = _rows(600, 8, 0.2)
    centre = np.nanmean(members, axis=1, keepdims=True)
    narrow = centre + 0.6 * (members - centre)
    tests = cs.calibration_test(_source(narrow, y), ["pit_kuiper", "coverage"], n_replicates=99)
    assert [test.p_value for test in tests.results] == [0.01, 0.01]
