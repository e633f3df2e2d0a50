"""All estimators: scores, weights, groups, golden values, default notions."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.estimators.known_estimators import ESTIMATORS, default_names
from calibscale.predictions.claims import CLASSES, includes
from calibscale.session import default_estimators
from tests.support import naive
from tests.support.logit_arrays import CLOSE, logit_source


@pytest.mark.parametrize("weighted", [False, True])
def test_scores__agree_with_direct_formulas(arrays, weighted):
    w = arrays["weights"] if weighted else None
    expected = naive.scores(arrays["logits"], arrays["labels"], w)
    result = cs.evaluate(
        logit_source(arrays, weighted), [cs.Accuracy(), cs.Brier(), cs.NLL(), cs.ConfidenceGap()]
    )
    for name, value in expected.items():
        assert result[name].value == pytest.approx(value, **CLOSE)


@pytest.mark.long
def test_defaults__share_one_set_of_moments(source):
    needs = [s for e in default_estimators() for s in e.needs]
    assert len({s for s in needs if type(s).__name__ == "Moments"}) == 1
    result = cs.evaluate(source)
    assert all(e.value is not None and np.isfinite(e.value) for e in result.estimates)
    assert len({e.estimator for e in result.estimates}) == len(result.estimates) == 16


@pytest.mark.long
def test_weights__scale_does_not_change_results(arrays):
    results = [
        cs.evaluate(
            cs.from_arrays(
                logits=arrays["logits"], labels=arrays["labels"], weights=scale * arrays["weights"]
            )
        )
        for scale in (1.0, 1e-3, 77.0)
    ]
    for first, *rescaled in zip(*(r.estimates for r in results), strict=True):
        for estimate in rescaled:
            assert estimate.value == pytest.approx(first.value, rel=1e-11)


@pytest.mark.long
def test_weights__equal_weights_do_not_change_results(arrays):
    plain = cs.evaluate(cs.from_arrays(logits=arrays["logits"], labels=arrays["labels"]))
    weighted = cs.evaluate(
        cs.from_arrays(logits=arrays["logits"], labels=arrays["labels"], weights=np.ones(400))
    )
    for a, b in zip(plain.estimates, weighted.estimates, strict=True):
        assert b.value == pytest.approx(a.value, rel=1e-13)


@pytest.mark.long
def test_weights__integers_repeat_rows(arrays):
    """Holds for estimators without pair diagonals and without n in λ."""
    repeats = np.arange(400) % 3 + 1
    weighted = cs.from_arrays(
        logits=arrays["logits"], labels=arrays["labels"], weights=repeats.astype(float)
    )
    repeated = cs.from_arrays(
        logits=np.repeat(arrays["logits"], repeats, axis=0),
        labels=np.repeat(arrays["labels"], repeats),
    )
    features = cs.RandomFourier(20, 1.0)
    kinds = [cs.Brier(), cs.ECE(), cs.MCE(), cs.TCE2(), cs.CWCE2(), cs.SimplexECE()]
    kinds += [cs.CKCE(features, ridge=0.1), cs.JKCEBiased(features)]
    first, second = cs.evaluate(weighted, kinds), cs.evaluate(repeated, kinds)
    for a, b in zip(first.estimates, second.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-11)


@pytest.mark.long
def test_group_by__equals_separate_runs(arrays, source):
    estimators = [cs.Accuracy(), cs.ECE(), cs.TCE2Debiased(), cs.CKCE(cs.RandomFourier(20, 1.0))]
    grouped = cs.evaluate(source, estimators, group_by="group")
    ungrouped = cs.evaluate(source, estimators)
    for a, b in zip(grouped.estimates, ungrouped.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-12)
    assert sorted(grouped.groups) == [0.0, 1.0, 2.0]
    for value, estimates in grouped.groups.items():
        rows = arrays["covariates"][:, 0] == value
        alone = cs.evaluate(
            cs.from_arrays(logits=arrays["logits"][rows], labels=arrays["labels"][rows]), estimators
        )
        for a, b in zip(estimates, alone.estimates, strict=True):
            assert a.n == rows.sum()
            assert a.value == pytest.approx(b.value, rel=1e-12)


GOLDEN = {
    "accuracy": "accuracy",
    "brier": "brier",
    "nll": "nll",
    "ece": "ece_15",
    "tce2": "tce2_squared_15",
    "tce2_kumar": "tce2_squared_15_debiased",
    "cwce2": "cwce2_squared_15_sum",
}


@pytest.mark.parametrize(
    "name",
    [
        "cifar10_resnet50",
        pytest.param("cifar10_resnet110", marks=pytest.mark.slow),
        pytest.param("cifar10_densenet121", marks=pytest.mark.slow),
        "cifar100_resnet110",
        pytest.param("cifar100_densenet121", marks=pytest.mark.slow),
    ],
)
def test_golden__scores_bins_and_kernel_errors_are_reproduced(name, data_folder, golden_scores):
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    expected = golden_scores[name]
    features = cs.RandomFourier(1000, bandwidth=expected["gamma"], seed=1)
    result = cs.evaluate(
        source,
        [
            *(cs.Accuracy(), cs.Brier(), cs.NLL(), cs.ECE(), cs.TCE2(), cs.TCE2Kumar()),
            *(cs.CWCE2(), cs.CKCE(features), cs.JKCE(features)),
        ],
    )
    for estimator, golden_name in GOLDEN.items():
        assert result[estimator].value == pytest.approx(expected[golden_name], abs=1e-10)
    # 1,000 random frequencies against the exact kernel
    assert result["ckce"].value == pytest.approx(expected["ckce"], rel=0.02)
    assert result["jkce"].value == pytest.approx(expected["jkce_unbiased"], rel=0.06)
    assert result["ckce"].parameters["ridge"] == pytest.approx(expected["lam"], rel=1e-12)


def test_errors__contain_the_right_call(rng):
    p, y = rng.dirichlet(np.ones(3), 20), rng.integers(0, 3, 20)
    with pytest.raises(
        cs.OptionError, match=r"evaluate\(calibscale.from_arrays\(probabilities=p, labels=y"
    ):
        cs.evaluate(p, y)
    source = cs.from_arrays(probabilities=p, labels=y)
    with pytest.raises(cs.OptionError, match="no estimator 'tce'; did you mean 'tce2'"):
        cs.evaluate(source, ["tce"])
    with pytest.raises(cs.OptionError, match="tce2 has no setting 'bin'; did you mean 'bins'"):
        cs.evaluate(source, ["tce2(bin=3)"])
    requested = [cs.ECE(), cs.TCE2()]
    for result in (
        cs.evaluate(source, requested),
        cs.calibration_test(source, requested, n_replicates=19),
    ):
        with pytest.raises(KeyError, match="'ckce' was not computed; computed: ece, tce2"):
            result["ckce"]


@pytest.mark.parametrize("weighted", [False, True])
def test_two_classes__are_judged_by_the_positive_one_by_default(rng, weighted):
    p = rng.beta(0.5, 8, 600)
    y = (rng.random(600) < 0.4 * p).astype(int)
    w = rng.uniform(0.1, 3.0, 600) if weighted else np.ones(600)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True, weights=w if weighted else None)
    kinds = (cs.ConfidenceGap, cs.ECE, cs.MCE, cs.TCE2, cs.TCE2Debiased, cs.BrierDecomposition)
    result = cs.evaluate(source, [kind() for kind in kinds], interval="jackknife").estimates
    named = cs.evaluate(source, [kind(notion="positive") for kind in kinds], interval="jackknife")
    assert {e.notion for e in result} == {"positive"}
    assert result == named.estimates
    gap = result[0]
    assert gap.value == pytest.approx(np.average(p - y, weights=w), rel=1e-12)
    assert gap.interval.low < gap.value < gap.interval.high
    top = cs.evaluate(source, [cs.ConfidenceGap(notion="top_label")])["confidence_gap"]
    right = np.where(p > 0.5, y, 1 - y)
    assert top.value == pytest.approx(np.average(np.maximum(p, 1 - p) - right, weights=w))
    assert (top.notion, top.value < 0 < gap.value) == ("top_label", True)


def test_several_classes__are_judged_by_the_top_label_by_default(arrays):
    requested = [cs.ConfidenceGap(), cs.ECE(), cs.TCE2Debiased()]
    result = cs.evaluate(logit_source(arrays), requested).estimates
    assert {e.notion for e in result} == {"top_label"}
    with pytest.raises(cs.OptionError, match="two classes"):
        cs.evaluate(logit_source(arrays), cs.ConfidenceGap(notion="positive"))
    with pytest.raises(cs.OptionError, match="one of top_label, positive"):
        cs.ConfidenceGap(notion="canonical")


def test_nll__notes_the_number_of_impossible_labels():
    p = np.array([0.0, 1.0, 0.0, 0.5, 0.7, 0.0])
    y = np.array([1, 1, 1, 0, 1, 0])
    w, group = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]), np.array([0, 0, 0, 0, 1, 1.0])
    source = cs.from_arrays(
        probabilities=p, labels=y, binary=True, weights=w, covariates=group[:, None]
    )
    result = cs.evaluate(source, cs.NLL(), group_by="x0", interval="jackknife")
    assert result["nll"].value == np.inf
    assert result["nll"].details["notes"] == ["1 of 5 rows have probability 0 for their label"]
    assert "notes" not in result.groups[1.0][0].details
    assert "nll: 1 of 5 rows have probability 0 for their label" in str(result)


def test_default_names__of_classes_are_those_of_the_estimators():
    kinds = {name: ESTIMATORS[name] for name in ESTIMATORS.built_in}
    by_class = [
        n for n, kind in kinds.items() if kind.by_default and includes(kind.judges, CLASSES)
    ]
    assert default_names(CLASSES) == by_class
