"""Replicates of all statistics of forecasts have the same drawn outcomes."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.inference.multiple_testing import joint_p_values
from calibscale.statistics.forecast_totals import PITState
from calibscale.statistics.null_distributions import DrawnLabels
from tests.support.forecast_rows import FORECASTS, rows

N, B, SEED = 60, 3, 5
STATISTICS = ("coverage", "normal_scores", "pit_smooth")


def _outcomes(forecast, predictions, y):
    null = DrawnLabels(SEED)
    for u in null.uniforms(np.arange(len(y)), 0, B):
        yield u, forecast.drawn(predictions, y, u)


@pytest.mark.parametrize("kind", ["normal", "mixture", "quantiles", "histogram", "ordinal"])
def test_replicates__are_values_of_the_drawn_outcomes(kind):
    predictions, y = rows(kind, N)
    forecast = FORECASTS[kind].with_target(y)
    source = cs.from_arrays(predictions=predictions, forecast=forecast, labels=y)
    tests = cs.calibration_test(source, STATISTICS, n_replicates=B, seed=SEED)
    for b, (_, drawn) in enumerate(_outcomes(forecast, predictions, y)):
        again = cs.from_arrays(predictions=predictions, forecast=forecast, labels=drawn)
        values = cs.evaluate(again, STATISTICS)
        coverage = values["coverage"]
        distance = abs(coverage.value - coverage.details["expected"])
        assert tests["coverage"].null_values[b] == pytest.approx(distance, abs=1e-12)
        for name in STATISTICS[1:]:
            # quantiles of mixtures and of pieces are inverted to 1e-12
            assert tests[name].null_values[b] == pytest.approx(values[name].value, rel=1e-6)


def test_replicates__of_quantiles_with_atoms_are_values_of_the_drawn_outcomes():
    rng = np.random.default_rng(2)
    levels = (0.2, 0.4, 0.6, 0.8)
    predictions = np.maximum(np.sort(rng.normal(size=(N, 4)), axis=1), 0.0)  # such as rain
    kind = cs.QuantileForecast(levels, bandwidth=1.0, centre=0.0)
    y = kind.drawn(predictions, np.zeros(N), rng.random(N))
    source = cs.from_arrays(predictions=predictions, forecast=kind, labels=y)
    test = cs.calibration_test(source, "pit_smooth", n_replicates=B, seed=SEED).results[0]
    for b, (_, drawn) in enumerate(_outcomes(kind, predictions, y)):
        again = cs.from_arrays(predictions=predictions, forecast=kind, labels=drawn)
        value = cs.evaluate(again, "pit_smooth")["pit_smooth"].value
        assert test.null_values[b] == pytest.approx(value, rel=1e-6)


def test_replicates__of_an_ensemble_exchange_the_outcome_with_a_member():
    rng = np.random.default_rng(0)
    members, y = rng.normal(size=(N, 6)).round(1), rng.normal(size=N).round(1)  # with ties
    kind = cs.EnsembleForecast(bandwidth=1.0, centre=0.0)
    source = cs.from_arrays(predictions=members, forecast=kind, labels=y)
    tests = cs.calibration_test(
        source, ("coverage", "kce", "pit_smooth"), n_replicates=B, seed=SEED
    )
    pools = np.sort(np.column_stack([members, y]), axis=1)
    for b, u in enumerate(DrawnLabels(SEED).uniforms(np.arange(N), 0, B)):
        k = (u * 7).astype(int)
        drawn = pools[np.arange(N), k]
        left = np.array([np.delete(pool, i) for pool, i in zip(pools, k, strict=True)])
        again = cs.from_arrays(predictions=left, forecast=kind, labels=drawn)
        coverage = cs.evaluate(again, "coverage")["coverage"]
        distance = abs(coverage.value - coverage.details["expected"])
        assert tests["coverage"].null_values[b] == pytest.approx(distance, abs=1e-12)
        pit = cs.evaluate(again, "pit_smooth")["pit_smooth"].value
        assert tests["pit_smooth"].null_values[b] == pytest.approx(pit, rel=1e-9)
        parameters = tests["kce"].parameters
        kernel = cs.KCE(
            prediction_bandwidth=parameters["prediction_bandwidth"],
            method=parameters["method"],
            n_features=parameters["n_features"],
        )
        value = cs.evaluate(again, [kernel]).estimates[0].value
        assert tests["kce"].null_values[b] == pytest.approx(value, rel=1e-6, abs=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("members", [3, 20])
def test_pit_by_forecast__of_calibrated_ensembles_has_its_level(members):
    """Medians of members are low where the outcome is high. Medians of all m + 1 values are not."""
    rejected = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, members])
        values = rng.normal(size=(400, 1)) + rng.normal(size=(400, members + 1))
        source = cs.from_arrays(predictions=values[:, 1:], forecast="ensemble", labels=values[:, 0])
        test = cs.calibration_test(source, "pit_by_forecast", n_replicates=19, seed=seed)
        rejected += test.results[0].p_value <= 0.05
    assert rejected <= 7  # P(more than 7 of 40 at 5 %) = 0.001


def test_check__adjusts_tests_with_other_draws_by_bonferroni():
    rng = np.random.default_rng(1)
    mean = rng.normal(size=200)
    source = cs.from_arrays(
        predictions=np.column_stack([mean, np.ones(200)]),
        forecast="normal",
        labels=mean + 0.2 + rng.normal(size=200),
    )
    result = cs.check(source, n_replicates=99, seed=3)
    tests = {test.statistic: test for test in result.tests}
    cells = [tests.pop(name) for name in ("quantile_ece", "pit_kuiper")]
    for family in (list(tests.values()), cells):
        joint = joint_p_values([t.value for t in family], [t.null_values for t in family])
        for test, p in zip(family, joint, strict=True):
            assert result.adjusted_p_values[test.statistic] == min(1.0, 2.0 * p)
    # the draws of cells are the same for both, so that they are one family
    drawn = [test.null_values for test in cells]
    assert abs(np.corrcoef(*drawn)[0, 1]) > 0.5
    assert abs(np.corrcoef(drawn[0], tests["pit_smooth"].null_values)[0, 1]) < 0.4


@pytest.mark.parametrize("weighted", [False, True])
def test_distances_of_pit_values__share_drawn_curves(weighted, monkeypatch):
    predictions, y = rows("normal", N)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, N) if weighted else None
    source = cs.from_arrays(predictions=predictions, forecast="normal", labels=y, weights=weights)
    names = ("pit_kuiper", "quantile_ece", "pit_cvm")
    apart = {name: cs.calibration_test(source, name, n_replicates=B, seed=SEED) for name in names}
    drawn, curves = PITState.drawn, []

    def counted(state, rngs):
        for curve in drawn(state, rngs):
            curves.append(curve)
            yield curve

    monkeypatch.setattr(PITState, "drawn", counted)
    tests = cs.calibration_test(source, names, n_replicates=B, seed=SEED)
    assert len(curves) == B
    for name in names:
        np.testing.assert_array_equal(tests[name].null_values, apart[name][name].null_values)
