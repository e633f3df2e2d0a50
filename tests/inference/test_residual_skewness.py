"""Random signs of skewed residuals: the correction, and the level that it restores."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.statistics.null_distributions import RandomSigns

N, REPLICATES, SEED = 60, 99, 5


def _rows(seed=0, n=N):
    rng = np.random.default_rng(seed)
    mean = rng.lognormal(0.0, 0.5, n)
    return mean, mean * rng.exponential(size=n), rng.uniform(0.5, 2.0, n)


def _source(forecast="mean", **columns):
    mean, outcomes, weights = _rows()
    return cs.from_arrays(
        predictions=mean, forecast=forecast, labels=outcomes, weights=weights, **columns
    )


def _t_and_skewness():
    """Studentised sums and their skewness for the data and each replicate, by dense products."""
    mean, outcomes, weights = _rows()
    residuals = weights * (mean - outcomes)
    signs = np.vstack([np.ones(N), RandomSigns(SEED)._signs(np.arange(N), 0, REPLICATES)])
    scale = np.sqrt((residuals**2).sum())
    return signs @ residuals / scale, signs @ residuals**3 / scale**3


def _p_value(sizes):
    return np.mean(sizes >= sizes[0] * (1 - 1e-9))


# Both are functions of the mean residual alone, so that the regression on t² and |t| is exact.
@pytest.mark.parametrize("statistic", ["mean_score", "bias"])
def test_tests_of_the_mean__compare_hall_s_transformed_t(statistic):
    (test,) = cs.calibration_test(_source(), statistic, n_replicates=REPLICATES, seed=SEED).results
    t, a = _t_and_skewness()
    transformed = ((1 + a * t / 3) ** 3 - 1) / a + a / 6
    assert test.p_value == pytest.approx(_p_value(np.abs(transformed)))
    assert test.p_value != pytest.approx(_p_value(np.abs(t)))


def test_values__stay_as_they_are():
    statistics = ["bias", "kce", "smooth_test", "residual_scan"]
    corrected = cs.calibration_test(_source(), statistics, n_replicates=19)
    plain = cs.calibration_test(_source(), statistics, n_replicates=19, stop_after=19)
    for one, other in zip(corrected, plain, strict=True):
        assert one.value == other.value
        assert one.null_values != pytest.approx(other.null_values)


def test_tests_that_stop_early__are_not_corrected():
    (test,) = cs.calibration_test(
        _source(), "mean_score", n_replicates=REPLICATES, seed=SEED, stop_after=REPLICATES
    ).results
    t, _ = _t_and_skewness()
    assert test.p_value == pytest.approx(_p_value(np.abs(t)))


def test_events__are_not_corrected():
    # The variance of an event is known from its claim.
    source = _source("quantile(level=0.5)")
    results = [
        cs.calibration_test(source, "mean_score", null="wild", seed=SEED, stop_after=stop)
        for stop in (None, 199)
    ]
    corrected, plain = (result["mean_score"] for result in results)
    assert corrected.null_values == pytest.approx(plain.null_values)


def test_corrected_values__do_not_depend_on_chunks():
    results = [
        cs.calibration_test(_source(), n_replicates=19, block_rows=rows) for rows in (None, 7)
    ]
    for one, other in zip(*results, strict=True):
        assert one.null_values == pytest.approx(other.null_values, rel=1e-9, abs=1e-12)


def test_constant_residuals__have_a_p_value():
    source = cs.from_arrays(predictions=[1.0] * 8, forecast="mean", labels=[1.5] * 8)
    (test,) = cs.calibration_test(source, "mean_score", n_replicates=99).results
    # All signs are equal in one of 128 replicates.
    assert test.p_value <= 0.05


def test_huge_residuals__have_a_p_value():
    # Their cubes overflow.
    outcomes = np.array([1.0, 2.0, 3.0, 4.0]) * 1e140
    source = cs.from_arrays(predictions=outcomes[::-1], forecast="mean", labels=outcomes)
    (test,) = cs.calibration_test(source, "bias", n_replicates=19).results
    assert test.p_value is not None


@pytest.mark.slow
def test_level__of_skewed_residuals():
    rejected, count = 0, 400
    for seed in range(count):
        rng = np.random.default_rng([seed, 11])
        mean = rng.lognormal(0.0, 0.5, 100)
        outcomes = mean * rng.lognormal(-0.5, 1.0, 100)
        source = cs.from_arrays(predictions=mean, forecast="mean", labels=outcomes)
        judgement = cs.calibration_test(source, n_replicates=199, seed=seed).judgement
        rejected += judgement.p_value <= 0.05
    # 400 sets of a level of 7 % have at most 10.3 % of rejections in 99 % of such runs.  Without
    # the correction the level is 9 to 10 %.
    assert rejected / count <= 0.103
