"""Calibration tests with invalid options, and with undefined values."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import calibscale as cs
from calibscale.formatting.naming import name_of
from calibscale.results.schemas.result_models import validated
from calibscale.statistics import null_distributions
from tests.support.null_values import (
    DRAWS,
    FOURIER,
    MIXED,
    ROWS,
    SimulatedRows,
    labelled_rows,
    run_test,
)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"null": "bootstrap"}, "null must be one of labels, wild"),
        ({"n_replicates": 0}, "n_replicates must be at least 1"),
        ({"seed": -1}, "seed must be in"),
        ({"seed": 2**64}, "seed must be in"),
        ({"stop_after": 0}, "stop_after must be at least 1"),
        ({"stop_after": 5, "null": "permute"}, "not supported with null='permute'"),
        ({"bandwidths": 0}, "bandwidths must be in 1..100"),
        ({"bandwidths": 2, "stop_after": 5}, "compares all replicates"),
        ({"bandwidths": 2, "null": "permute"}, "compares all replicates"),
        ({"on_invalid": "ignore"}, "on_invalid must be"),
        ({"tolerance": 2}, "tolerance must be"),
        ({"block_rows": 0}, "block_rows must be"),
        ({"scheduler": "gpu"}, "unknown scheduler"),
        ({"memory_limit": 1000}, "cannot hold one block"),
    ],
)
def test_options__invalid_values_are_reported(options, match):
    with pytest.raises(cs.OptionError, match=match):
        run_test(labelled_rows(2).source(), cs.ECE(), **options)


@pytest.mark.parametrize(
    "estimator",
    [
        cs.Accuracy(),
        cs.Brier(),
        cs.NLL(),
        cs.ConfidenceGap(),
        cs.BrierDecomposition(),
        cs.NLLDecomposition(),
    ],
    ids=lambda e: e.name,
)
def test_estimators__that_are_not_errors_cannot_be_tested(estimator):
    with pytest.raises(cs.OptionError, match=f"{estimator.name} is not a calibration error"):
        run_test(labelled_rows(2).source(), estimator)


@pytest.mark.parametrize(
    "estimator",
    [cs.JKCE(method="blocks"), cs.JKCE(method="pairs"), cs.CKCE(method="exact")],
    ids=lambda e: e.method,
)
def test_methods__without_a_test_suggest_another(estimator):
    for null in ("labels", "hoeffding") if isinstance(estimator, cs.JKCE) else ("labels",):
        with pytest.raises(cs.OptionError, match="has no test; use method='features'"):
            run_test(labelled_rows(2).source(), estimator, null=null)


def test_statistics__none_is_an_error():
    with pytest.raises(cs.OptionError, match="no statistic"):
        run_test(labelled_rows(2).source())


def test_covariates__unknown_names_are_reported():
    with pytest.raises(cs.OptionError, match="no covariate 'weight'"):
        run_test(labelled_rows(2).source(), cs.KLCE(("weight",)))


def test_pool__too_large_is_an_error(monkeypatch):
    monkeypatch.setattr(null_distributions, "MAX_POOL", 4 * ROWS - 1)
    source = labelled_rows(4).source()
    for null in ("residual", "permute"):
        with pytest.raises(cs.OptionError, match="use null='labels'"):
            run_test(source, cs.CKCE(FOURIER), null=null)
        run_test(source, cs.ECE(), null=null)  # scalar residuals fit
    for null in ("labels", "wild"):
        run_test(source, cs.CKCE(FOURIER), null=null)


UNDEFINED = (
    cs.ECE(),
    cs.ECE(edges="equal-mass"),
    cs.MCE(),
    cs.TCE2Debiased(),
    cs.CWCE2(),
    cs.SimplexECE(),
    cs.CKCE(FOURIER),
    cs.CMMD(FOURIER),
    cs.JKCE(FOURIER),
    cs.JKCEBiased(FOURIER),
    cs.JKCE(FOURIER, method="tiles"),
    cs.JKCEBiased(FOURIER, method="tiles"),
    cs.KLCE(method="tiles", **MIXED),
    cs.KLCE(method="spectral", notion="top_label", **MIXED),
    cs.KLCE(method="features", n_features=5, **MIXED),
)


@pytest.mark.parametrize("kind", [*DRAWS, "hoeffding"])
def test_undefined__values_have_a_reason_and_no_p_value(kind):
    data = labelled_rows(4, weighted=True, n=20)
    unlabelled = data.source(np.full(20, -1))
    weightless = replace(data, w=np.zeros(20)).source()
    estimators = UNDEFINED
    if kind == "hoeffding":
        estimators = [
            e for e in UNDEFINED if isinstance(e, cs.JKCE | cs.KLCE) and e.name != "jkce_biased"
        ]
    for source in (unlabelled, weightless):
        results = run_test(source, *estimators, null=kind, n_replicates=5)
        for r in results:
            assert (r.value, r.p_value, r.replicates, r.critical_value) == (None, None, 0, None)
            assert "positive weight" in r.reason
            assert json.loads(json.dumps(r.to_dict(), allow_nan=False))["reason"] == r.reason


@pytest.mark.parametrize("kind", DRAWS)
def test_one_row__is_enough_for_errors_without_pairs(kind):
    data = labelled_rows(4)
    single = SimulatedRows(data.q[:1], data.y[:1], data.x[:1], None).source()
    for r in run_test(single, *UNDEFINED, null=kind, n_replicates=5):
        if name_of(r.statistic) in ("jkce", "klce"):
            assert (r.value, r.p_value) == (None, None)
            assert "two rows" in r.reason
        else:
            assert r.value is not None
            assert 0 < r.p_value <= 1


def test_nulls__one_of_another_name_is_stated_in_valid_results():
    @dataclass(frozen=True)
    class Flipped(null_distributions.RandomSigns):
        name: ClassVar[str] = "flipped"

    source = cs.from_arrays(probabilities=[0.3, 0.6], labels=[0, 1], binary=True)
    result = cs.calibration_test(source, cs.ECE(), null=Flipped(3), n_replicates=9)
    assert validated(json.loads(json.dumps(result.to_dict())))
    assert (result["ece"].null, result["ece"].seed) == ("flipped", 3)
