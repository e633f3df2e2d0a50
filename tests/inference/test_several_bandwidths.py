"""Tests over several bandwidths: values and p-values from single bandwidths, and the level."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

import calibscale as cs

FACTORS = np.geomspace(0.2, 2.5, 5)


def drawn(seed: int, rows: int = 120, wave: float = 0.0) -> cs.ArraySource:
    """Events of two classes, with a covariate. `wave` is the size of an error in p and x."""
    rng = np.random.default_rng(seed)
    p, x = rng.beta(0.5, 4.0, rows), rng.normal(size=rows)
    rate = np.clip(p + wave * np.sin(20.0 * p) * np.sign(x), 0.0, 1.0)
    labels = (rng.random(rows) < rate).astype(int)
    return cs.from_arrays(
        probabilities=p, labels=labels, binary=True, covariates=x[:, None], covariate_names=["x"]
    )


def at(statistic: str, factor: float, source: cs.ArraySource) -> cs.Estimator:
    """Statistic with its default bandwidths times a factor, set by hand."""
    parameters = cs.evaluate(source, statistic).estimates[0].parameters
    if statistic.startswith("jkce"):
        return cs.JKCE(cs.RandomFourier(100, bandwidth=factor * parameters["bandwidth"]))
    scaled = {name: factor * b for name, b in parameters["covariate_bandwidth"].items()}
    return cs.KLCE(
        tuple(parameters["covariates"]),
        method=parameters["method"],
        covariate_bandwidth=scaled or None,
        prediction_bandwidth=factor * parameters["prediction_bandwidth"],
    )


def beyond_wider(values: np.ndarray) -> np.ndarray:
    """Standardised values of each bandwidth less their ridge regression on wider bandwidths."""
    z = (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)
    n, out = z.shape[1], []
    for k, narrow in enumerate(z):
        wider = z[k + 1 :].T
        extended = np.vstack([wider, np.sqrt(1e-4 * n) * np.eye(wider.shape[1])])
        target = np.concatenate([narrow, np.zeros(wider.shape[1])])
        fit = np.linalg.lstsq(extended, target, rcond=None)[0]
        variance = np.sum((target - extended @ fit) ** 2) / n + 1e-4
        out.append((narrow - wider @ fit) / np.sqrt(variance))
    return np.array(out)


def tail(values: np.ndarray) -> np.ndarray:
    """P-values of values by the Pearson distribution of type III with their three moments."""
    skewness = np.clip(stats.skew(values), 0.01, 8.0**0.5)
    return stats.pearson3.sf(values, skewness, loc=values.mean(), scale=values.std())


@pytest.mark.long
@pytest.mark.parametrize(
    "statistic",
    ["klce(covariates=['x'])", "klce(covariates=['x'], method=spectral)", "kce", "jkce"],
)
def test_value__is_minus_log_p_of_what_pairs_see_beyond_wider_ones_or_of_the_largest(statistic):
    source = drawn(1, wave=0.3)
    options = {"n_replicates": 39, "seed": 3}
    result = cs.calibration_test(source, statistic, bandwidths=5, **options).results[0]
    singles = [
        cs.calibration_test(source, at(statistic, f, source), **options).results[0] for f in FACTORS
    ]
    values = np.array([[single.value, *single.null_values] for single in singles])
    beyond = beyond_wider(values)
    seen = [np.zeros(40), *np.maximum(beyond, 0.0), np.zeros(40)]
    pairs = sum((a + b) ** 2 for a, b in pairwise(seen))
    largest = -np.log(np.min([tail(row) for row in values], axis=0))
    scores = -np.log(np.minimum(tail(pairs), 2.0 * tail(largest)))
    assert [result.value, *result.null_values] == pytest.approx(scores, rel=1e-6)
    assert result.p_value == np.mean(scores >= scores[0] - 1e-6)
    assert result.parameters["largest_at"] == pytest.approx(FACTORS[beyond[:, 0].argmax()])
    assert result.statistic == statistic.partition("(")[0]


def test_undefined__values_keep_their_reason():
    source = cs.from_arrays(probabilities=[0.4], labels=[1], binary=True)
    result = cs.calibration_test(source, "kce", n_replicates=9, bandwidths=3).results[0]
    assert result.p_value is None
    assert "two rows" in result.reason


def test_predictions__that_are_certain_have_no_evidence():
    source = cs.from_arrays(probabilities=[0.0, 1.0] * 20, labels=[0, 1] * 20, binary=True)
    result = cs.calibration_test(source, "kce", n_replicates=19, bandwidths=3).results[0]
    assert (result.value, result.p_value) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("statistic", "match"),
    [("ece", "ece has no bandwidths"), ("kce(bandwidth_share=0.3)", "leave none to choose")],
)
def test_statistics__without_several_bandwidths_are_refused(statistic, match):
    with pytest.raises(cs.OptionError, match=match):
        cs.calibration_test(drawn(0, 400), statistic, bandwidths=2)


@pytest.mark.slow
@pytest.mark.parametrize("sets", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_level__is_exact(sets):
    """Calibrated data sets are rejected at 5 % and at 20 % as often as binomial numbers are."""
    klce, options = "klce(covariates=['x'])", {"n_replicates": 39, "bandwidths": 5}
    p_values = []
    for seed in range(sets):
        test = cs.calibration_test(drawn(seed, 60), klce, **options).results[0]
        p_values.append(test.p_value)
    for level in (0.05, 0.2):
        rejected = np.sum(np.array(p_values) <= level)
        # each of four limits is exceeded for one seed in 40,000
        fewest, most = (stats.binom.isf(tail, sets, level) for tail in (1 - 2.5e-5, 2.5e-5))
        assert fewest <= rejected <= most


@pytest.mark.slow
@pytest.mark.parametrize("sets", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_power__of_waves_is_near_that_of_the_best_bandwidth(sets):
    """Of data sets with a wave, all bandwidths together find as many as the best one does."""
    together, single = 0, np.zeros(5)
    for seed in range(sets):
        rng = np.random.default_rng(seed)
        p = rng.random(200)
        labels = (rng.random(200) < np.clip(p + 0.18 * np.sin(14.0 * p), 0.0, 1.0)).astype(int)
        source = cs.from_arrays(probabilities=p, labels=labels, binary=True)
        options = {"n_replicates": 99, "seed": seed}
        result = cs.calibration_test(source, "kce", bandwidths=5, **options).results[0]
        kernels = [at("kce", f, source) for f in FACTORS]
        alone = cs.calibration_test(source, kernels, **options).results
        together += result.p_value <= 0.05
        single += [test.p_value <= 0.05 for test in alone]
    assert together >= single.max() - 0.05 * sets
    assert single.min() < 0.2 * sets < 0.6 * sets < single.max()
