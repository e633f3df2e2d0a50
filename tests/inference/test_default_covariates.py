"""The default test with covariates: its members, joint p-value, and what it finds."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.inference.multiple_testing import combined, joint_p_values


def drawn(seed, rows=600, error=None, classes=2):
    """Rows with a covariate x. The probability of the event is p plus `error` of (p, x)."""
    rng = np.random.default_rng([seed, rows])
    x = rng.random(rows)
    if classes > 2:
        q = rng.dirichlet(np.ones(classes), rows)
        labels = (q.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
        predictions = {"probabilities": q}
    else:
        p = rng.beta(2.0, 2.0, rows)
        truth = p if error is None else np.clip(p + error(p, x), 0.0, 1.0)
        labels = (rng.random(rows) < truth).astype(int)
        predictions = {"probabilities": p, "binary": True}
    return cs.from_arrays(
        **predictions, labels=labels, covariates=x[:, None], covariate_names=["x"]
    )


@pytest.mark.long
def test_members__are_those_of_predictions_and_klce_over_bandwidths():
    source = drawn(0)
    alone = cs.calibration_test(source, n_replicates=39, seed=2)
    result = cs.calibration_test(source, covariates="x", n_replicates=39, seed=2)
    names = [test.statistic for test in result.results]
    assert names == [*(test.statistic for test in alone.results), "klce"]
    for member, beside in zip(alone.results, result.results, strict=False):
        np.testing.assert_array_equal(member.null_values, beside.null_values)
    settings = cs.evaluate(source, cs.KLCE(("x",)))["klce"].parameters
    p_width, width = settings["prediction_bandwidth"], settings["covariate_bandwidth"]["x"]
    kernels = [
        cs.KLCE(("x",), prediction_kernel="none", covariate_bandwidth=0.1 * width),
        cs.KLCE(("x",), prediction_kernel="none", covariate_bandwidth=0.25 * width),
        cs.KLCE(("x",), prediction_bandwidth=p_width, covariate_bandwidth=width),
    ]
    single = cs.calibration_test(source, kernels, n_replicates=39, seed=2).results
    scores, _ = combined(np.array([[member.value, *member.null_values] for member in single]))
    assert result["klce"].value == pytest.approx(scores[0], rel=1e-9)
    np.testing.assert_allclose(result["klce"].null_values, scores[1:], rtol=1e-9)
    joint = joint_p_values(
        [member.value for member in result.results],
        [member.null_values for member in result.results],
    )
    assert result.judgement.p_value == min(joint)


ERRORS = {
    "a tenth of the covariate": lambda p, x: 0.2 * (x > 0.9),
    "a sign that changes with the covariate": lambda p, x: 0.12 * np.sign(x - 0.5),
    "the slope": lambda p, x: 0.35 * (0.5 - p),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ERRORS)
def test_error__is_found(name):
    source = drawn(1, 2000, ERRORS[name])
    result = cs.calibration_test(source, covariates="x", n_replicates=99)
    assert result.judgement.state == "miscalibrated"
    assert result.judgement.p_value <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
def test_level__of_calibrated_rows_is_kept(classes):
    rejected = sum(
        cs.calibration_test(
            drawn(seed, 100, classes=classes), covariates="x", n_replicates=19, seed=seed
        ).judgement.p_value
        <= 0.05
        for seed in range(40)
    )
    assert rejected <= 7  # P(more than 7 of 40 at 5 %) = 0.001


def test_categories__have_no_bandwidths():
    rng = np.random.default_rng(3)
    group = rng.integers(0, 3, 300)
    p = rng.uniform(0.2, 0.8, 300)
    source = cs.from_arrays(
        probabilities=p,
        labels=(rng.random(300) < p).astype(int),
        binary=True,
        covariates=group[:, None],
        covariate_names=["group"],
    )
    local = cs.KLCE(("group",), categorical=("group",))
    result = cs.calibration_test(source, covariates=local, n_replicates=19)
    (alone,) = cs.calibration_test(source, local, n_replicates=19).results
    assert result["klce"].value == alone.value
    np.testing.assert_array_equal(result["klce"].null_values, alone.null_values)


def test_clusters__draw_signs_for_all_members():
    rng = np.random.default_rng(4)
    unit, x = np.repeat(np.arange(60), 5), rng.random(300)
    p = rng.uniform(0.2, 0.8, 300)
    source = cs.from_arrays(
        probabilities=p,
        labels=(rng.random(60)[unit] < p).astype(int),
        binary=True,
        covariates=np.column_stack([unit, x]),
        covariate_names=["unit", "x"],
    )
    result = cs.calibration_test(source, covariates="x", cluster="unit", n_replicates=19)
    assert {test.null for test in result.results} == {"wild_cluster"}
    assert result["klce"].p_value is not None


def test_other_tests__are_of_klce_alone_or_refused():
    source = drawn(5, 80)
    result = cs.calibration_test(source, covariates=["x"], null="permute", n_replicates=19)
    assert [test.statistic for test in result.results] == ["klce"]
    stopped = cs.calibration_test(source, covariates="x", stop_after=2, n_replicates=19)
    assert "bandwidth_factors" not in stopped["klce"].parameters
    with pytest.raises(cs.OptionError, match="covariates= is for the default statistics"):
        cs.calibration_test(source, "ece", covariates="x")
    with pytest.raises(cs.OptionError, match="covariates must be a name or several, not 3"):
        cs.calibration_test(source, covariates=3)
    with pytest.raises(cs.OptionError, match="height"):
        cs.calibration_test(source, covariates="height")


@pytest.mark.parametrize(
    ("error", "rejected"), [(0.0, False), (0.9, True)], ids=["calibrated", "wrong"]
)
def test_several_covariates__have_features_at_narrow_bandwidths(error, rejected):
    rng = np.random.default_rng(6)
    q, x = rng.dirichlet(np.ones(3), 1500), rng.random((1500, 2))
    truth = q.copy()
    truth[:, 0] = np.where(x[:, 1] > 0.9, q[:, 0] * (1.0 - error), q[:, 0])
    truth[:, 1] += q[:, 0] - truth[:, 0]
    labels = (truth.cumsum(axis=1) < rng.random((1500, 1))).sum(axis=1)
    source = cs.from_arrays(
        probabilities=q, labels=labels, covariates=x, covariate_names=["a", "b"]
    )
    result = cs.calibration_test(source, covariates=["a", "b"], n_replicates=39)
    assert (result["klce"].p_value <= 0.05) == rejected
    assert result["klce"].parameters["bandwidth_factors"] == [0.1, 0.25, 1.0]
