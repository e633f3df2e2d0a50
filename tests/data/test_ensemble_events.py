"""Events of ensembles: their probabilities are calibrated if members and outcome are alike."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs


def _source(m, n=400, seed=0, bias=0.0, share=0.0):
    """Ensembles of m members around a mean, which are too large by `bias`, and outcomes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1)) + rng.normal(size=(n, m + 1))
    members, y = x[:, :m] + bias, x[:, m]
    members[rng.random((n, m)) < share] = np.nan
    return cs.from_arrays(predictions=members, forecast="ensemble", labels=y)


def test_probability__is_the_share_of_members_and_outcome():
    members = np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0], [1.0, 2.0, 3.0]])
    source = cs.from_arrays(predictions=members, forecast="ensemble", labels=[0.0, 9.0, np.nan])
    block = cs.forecast_events(source, threshold=2.0).read(0, 3)
    # one of three members has none of 4 values fewer; without an outcome members count alone
    np.testing.assert_allclose(block.values, [3 / 4, 1 / 3, 2 / 3])
    np.testing.assert_array_equal(block.labels, [1, 0, -1])


@pytest.mark.parametrize("m", [2, 5])
def test_probability__is_exact_given_itself(m):
    """Over all orders of the same values, the event is as frequent as its probability."""
    pool = np.random.default_rng(0).normal(size=(200, m + 1))
    turns = np.concatenate([np.roll(pool, k, axis=1) for k in range(m + 1)])
    source = cs.from_arrays(predictions=turns[:, :m], forecast="ensemble", labels=turns[:, m])
    events = cs.forecast_events(source, threshold=0.2).read(0, len(turns))
    for p in np.unique(events.values):
        assert events.labels[events.values == p].mean() == pytest.approx(p)


@pytest.mark.slow
@pytest.mark.parametrize("m", [5, pytest.param(20, marks=pytest.mark.slow), 50])
def test_calibrated_ensembles__are_rarely_declared_miscalibrated(m):
    """V8: the ECE of events of 50 calibrated members was 0.051 with p = 0.0001."""
    sets, rejected = 30, 0
    for seed in range(sets):
        events = cs.forecast_events(_source(m, seed=seed, share=0.02), threshold=0.3)
        p = cs.check(events, n_replicates=99).adjusted_p_values.values()
        rejected += min(p) <= 0.05
    # a binomial count of 30 with probability 0.05 is 8 or more with probability 8.5e-5
    assert rejected < 8


@pytest.mark.long
@pytest.mark.parametrize("m", [5, 20, 50])
def test_biased_ensembles__are_found(m):
    events = cs.forecast_events(_source(m, 1000, bias=0.5), threshold=0.3)
    result = cs.check(events, n_replicates=99)
    assert min(result.adjusted_p_values.values()) <= 0.01
    truth = cs.evaluate(
        cs.forecast_events(_source(400, 1000, bias=0.5), threshold=0.3), "confidence_gap"
    )["confidence_gap"].value
    gap = result["confidence_gap"].value
    # errors are those of the share of the members times m/(m + 1); three standard errors
    assert gap * (m + 1) / m == pytest.approx(truth, abs=0.05)


def test_events_at_a_level__have_that_probability_with_missing_members():
    events = cs.forecast_events(_source(9, 2000, share=0.05), level=0.3)
    assert set(events.read(0, 2000).values) == {0.3}
    test = cs.calibration_test(events, "ece(bins=1, notion=positive)", n_replicates=199)
    assert test.results[0].p_value > 0.01
