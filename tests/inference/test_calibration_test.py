"""Calibration tests: level, power, ties, early stopping, published values, bounds, results."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import calibscale as cs
from calibscale.formatting.naming import name_of
from calibscale.inference import monte_carlo
from tests.support.null_values import (
    BOTH,
    DRAWS,
    FOURIER,
    LOCAL,
    MIXED,
    ONE_PASS,
    ROWS,
    B,
    labelled_rows,
    run_test,
)


@pytest.mark.slow
def test_level__of_drawn_labels_is_exact():
    """At n = 50 and 19 replicates 5 % of calibrated data sets are rejected by any statistic."""
    requested = (cs.ECE(bins=10), cs.JKCE(FOURIER, method="tiles"))
    rng = np.random.default_rng(77)
    count = 400
    rejected = np.zeros(2)
    for seed in range(count):
        q = rng.dirichlet([0.3, 0.3, 0.6], 50)
        y = (q.cumsum(1) < rng.random((50, 1))).sum(1)
        source = cs.from_arrays(probabilities=q, labels=np.minimum(y, 2))
        results = cs.calibration_test(
            source, requested, n_replicates=19, seed=seed, scheduler="serial"
        ).results
        rejected += [r.p_value <= 0.05 for r in results]
    # exact at 19 replicates, so that a rate outside is one in a thousand by chance
    low, high = binom.ppf([5e-4, 1 - 5e-4], count, 0.05)
    assert ((low <= rejected) & (rejected <= high)).all()


@pytest.mark.parametrize("kind", DRAWS)
def test_power__is_enough_to_reject_overconfidence(kind):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(600, 3))
    q = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (q.cumsum(1) < rng.random((600, 1))).sum(1)
    source = cs.from_arrays(logits=2.5 * logits, labels=y)
    requested = (cs.KCE(method="tiles"), cs.ECE(), cs.CKCE(FOURIER), cs.JKCE(FOURIER))
    if kind in ("residual", "permute"):
        # resampled residuals keep their mean: most of their statistics are as large as observed
        requested = requested[: 1 if kind == "permute" else 0] + requested[2:3]
    results = run_test(source, *requested, null=kind, n_replicates=39, block_rows=None)
    for r in results:
        assert r.p_value <= 0.05, r.statistic
        assert r.value > r.critical_value


def _everything(classes):
    local = () if classes > 2 else (cs.KCE(prediction_bandwidth=0.5, method="spectral"),)
    return (
        cs.ECE(),
        cs.MCE(),
        cs.TCE2(),
        cs.TCE2Debiased(),
        cs.CWCE2(),
        cs.SimplexECE(),
        cs.ECE(edges="equal-mass"),
        cs.CKCE(FOURIER),
        cs.CMMD(FOURIER),
        cs.JKCE(FOURIER),
        cs.JKCEBiased(FOURIER),
        cs.JKCE(FOURIER, method="tiles"),
        cs.JKCE(FOURIER, method="tiles", notion="top_label"),
        cs.KCE(prediction_bandwidth=0.5, method="tiles"),
        cs.KCE(prediction_bandwidth=0.5, method="features", n_features=10),
        *local,
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_ties__certain_predictions_that_come_true_have_p_one(rng, classes):
    y = rng.integers(0, classes, 60)
    q = np.eye(classes)[y]
    result = cs.calibration_test(
        cs.from_arrays(probabilities=q, labels=y), _everything(classes), n_replicates=19
    )
    for r in result.results:
        assert (r.p_value, r.exceedances, r.certain_rows) == (1.0, 19, 60)
    y[7] = (y[7] + 1) % classes  # impossible under the null
    source = cs.from_arrays(probabilities=q, labels=y)
    for r in cs.calibration_test(source, _everything(classes), n_replicates=19).results:
        if name_of(r.statistic) not in (
            "jkce",
            "kce",
            "tce2_debiased",
        ):  # one row has no pair: still 0
            assert r.p_value == 0.05


@pytest.mark.parametrize("logit", [9.0, 14.0, 20.0, 28.0, 34.0, 40.0, 60.0, 300.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_ties__nearly_certain_predictions_are_not_rejected_by_rounding(rng, classes, logit):
    """All observed and drawn labels are the top labels."""
    y = rng.integers(0, classes, 200)
    logits = np.eye(classes)[y] * rng.uniform(logit, 1.1 * logit, (200, 1))
    source = cs.from_arrays(logits=logits, labels=y)
    for r in cs.calibration_test(source, _everything(classes), n_replicates=19).results:
        if logit >= 20:
            assert r.p_value == 1.0, r.statistic
        assert r.p_value > 0.05, r.statistic
        assert r.certain_rows == 0 or logit > 60


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize(
    "estimator", [cs.JKCE(FOURIER, method="tiles"), cs.KLCE(method="tiles", **MIXED)]
)
def test_float32__is_tested_in_the_precision_of_its_replicates(estimator, kind):
    source = labelled_rows(4).source()
    double, single = run_test(source, estimator, replace(estimator, precision="float32"), null=kind)
    assert (double.value, double.p_value) == (single.value, single.p_value)
    np.testing.assert_array_equal(double.null_values, single.null_values)


def test_certain_rows__are_counted(rng):
    p = np.array([0.0, 1.0, 0.3, 0.5, 1.0])
    source = cs.from_arrays(probabilities=p, labels=np.array([0, 1, 1, 0, 1]), binary=True)
    (result,) = run_test(source, cs.ECE(notion="positive"))
    assert result.certain_rows == 3
    assert run_test(source, cs.ECE(notion="positive"), null="wild")[0].certain_rows == 0


@pytest.mark.long
def test_stop_after__stops_at_that_number_of_exceedances():
    data = labelled_rows(4, n=60)
    full = run_test(data.source(), *ONE_PASS, n_replicates=99)
    for h in (1, 3, 10):
        for passes in (256, 4):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(monte_carlo, "_MAX_BATCH", passes)
                stopped = run_test(data.source(), *ONE_PASS, n_replicates=99, stop_after=h)
            for a, b in zip(full, stopped, strict=True):
                above = np.flatnonzero(a.null_values >= a.value - 1e-12)
                if len(above) >= h:
                    assert b.stopped
                    assert b.replicates == above[h - 1] + 1
                    assert (b.p_value, b.exceedances) == (h / b.replicates, h)
                    assert b.critical_value is None
                else:
                    assert not b.stopped
                    assert (b.p_value, b.replicates) == (a.p_value, 99)
                np.testing.assert_allclose(
                    b.null_values, a.null_values[: b.replicates], rtol=1e-9, atol=1e-15
                )
    assert any(r.stopped for r in stopped)


@pytest.mark.parametrize("replicates", [9, 18, 19, 20, 39, 58, 59, 99, 998, 999])
def test_critical_value__separates_p_values_at_5_percent(replicates):
    (result,) = run_test(labelled_rows(4).source(), cs.ECE(), n_replicates=replicates)
    values, critical = result.null_values, result.critical_value
    if critical is None:
        assert replicates < 19
        return

    def p(value):
        return (1 + (values >= value).sum()) / (replicates + 1)

    assert p(critical * (1 + 1e-9)) <= 0.05
    assert p(critical) > 0.05


def _published(name, data_folder, method, **changes):
    golden = json.loads((data_folder.parent / "golden" / "klce.json").read_text())[name]
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(
            probabilities=arrays["p"], labels=arrays["y"], covariates=arrays["x"], binary=True
        )
    requested = cs.KLCE(
        source.covariate_names,
        prediction_bandwidth=golden["prob_width"] / np.sqrt(2),
        covariate_bandwidth=1 / np.sqrt(2 * golden["gamma"]),
        normalization="kernel_sum",
        method=method,
        tolerance=1e-9,
    )
    result = cs.calibration_test(source, requested, null="permute", **changes).results[0]
    assert result.value == pytest.approx(golden["kite_value"], rel=1e-6)
    return result, golden


def test_permute__is_kite_on_heart(data_folder):
    result, golden = _published("heart_lr", data_folder, "tiles", n_replicates=999)
    # 500 permutations there, 999 here: four standard errors of their difference are 0.1
    assert 0.22 <= result.p_value <= 0.31
    assert abs(result.p_value - golden["kite_p"]) < 0.1
    centred = result.null_values - result.null_values.mean()
    assert result.p_value == max(1, (centred > result.value).sum()) / 999
    reached = np.sort(centred)[-1 - 999 // 20]
    assert result.critical_value == reached


@pytest.mark.parametrize(
    ("name", "method", "replicates"),
    [("compas_rf", "tiles", 40), ("homeownership_lr", "spectral", 20)],
)
def test_permute__is_at_its_limit_on_others(data_folder, name, method, replicates):
    result, golden = _published(name, data_folder, method, n_replicates=replicates)
    assert golden["kite_p"] == 1 / golden["iterations"]
    assert result.p_value == 1 / replicates


@pytest.mark.parametrize(
    ("estimator", "classes", "b"),
    [
        (cs.JKCE(FOURIER), 4, 4),
        (cs.JKCE(FOURIER, kernel="gaussian"), 4, 2),
        (cs.JKCE(FOURIER, method="tiles", notion="top_label"), 4, 2),
        (cs.JKCE(FOURIER, kernel="gaussian", method="tiles", notion="positive"), 2, 1),
        (cs.KCE(prediction_bandwidth=0.2, method="tiles"), 2, 1),
        (cs.KLCE(BOTH, method="spectral", **LOCAL), 2, 1),
        (cs.KLCE(method="tiles", **MIXED), 4, 2),
        (cs.KLCE(prediction_kernel="linear+gaussian", method="tiles", **MIXED), 4, 4),
    ],
)
def test_hoeffding__is_the_bound(estimator, classes, b):
    data = labelled_rows(classes, n=131)
    (result,) = run_test(data.source(), estimator, null="hoeffding")
    half = 65
    expected = math.exp(-half * max(result.value, 0) ** 2 / (2 * b * b))
    assert result.p_value == pytest.approx(expected, rel=1e-12)
    at = math.exp(-half * result.critical_value**2 / (2 * b * b))
    assert at == pytest.approx(0.05, rel=1e-12)
    assert (result.replicates, result.certain_rows, len(result.null_values)) == (0, 0, 0)
    again = run_test(replace(data, w=np.full(131, 2.5)).source(), estimator, null="hoeffding")[0]
    assert again.p_value == pytest.approx(expected, rel=1e-9)  # equal weights have no effect
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "estimator",
    [
        cs.JKCE(FOURIER),
        cs.JKCE(FOURIER, method="tiles"),
        cs.KCE(method="tiles"),
        cs.KLCE(method="features", **MIXED),
    ],
)
def test_hoeffding__rejects_weights(estimator):
    with pytest.raises(cs.OptionError, match="equally weighted"):
        run_test(labelled_rows(4, weighted=True).source(), estimator, null="hoeffding")


def test_hoeffding__rejects_other_statistics():
    source = labelled_rows(2).source()
    for estimator in (cs.ECE(), cs.CKCE(), cs.JKCEBiased(), cs.SimplexECE()):
        with pytest.raises(cs.OptionError, match="is for jkce, kce and klce"):
            run_test(source, estimator, null="hoeffding")
    with pytest.raises(cs.OptionError, match="equally weighted pairs"):
        run_test(source, cs.KCE(normalization="kernel_sum", method="tiles"), null="hoeffding")


def test_to_dict__is_json_of_one_or_of_several():
    source = labelled_rows(4).source()
    keys = {"statistic", "value", "p_value", "null", "replicates", "schema", "n", "run"}
    for estimator in (cs.ECE(), cs.JKCE(FOURIER, method="tiles")):
        result = cs.calibration_test(source, estimator, n_replicates=B)
        out = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert keys <= set(out)
        assert out["statistic"] == estimator.name
        assert out["null_distribution"]["mean"] == result.results[0].null_values.mean()
        assert out["schema"] == "calibscale.test/1"
        assert out["run"]["tolerance"] == 1e-4
    result = cs.calibration_test(source, [cs.ECE(), cs.CKCE(FOURIER)], n_replicates=B)
    out = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [t["statistic"] for t in out["tests"]] == ["ece", "ckce"]
    assert keys - {"schema", "run"} <= set(out["tests"][1])
    assert out["tests"][1]["parameters"]["ridge"] == pytest.approx(ROWS**-0.25)
    assert result["ckce"] is result.results[1]
    with pytest.raises(KeyError):
        result["jkce"]


def test_estimators__may_be_an_iterator_and_repeat(source: Any):
    result = cs.calibration_test(source, iter([cs.ECE(), cs.ECE(), cs.ECE(bins=5)]), n_replicates=B)
    a, b, c = result.results
    np.testing.assert_array_equal(a.null_values, b.null_values)
    assert c.value != a.value
