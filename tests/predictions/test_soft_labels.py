"""Labels that are probabilities of the classes, such as the shares of annotators."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

import calibscale as cs
from calibscale.data.derived_sources import HoldOut, part_of
from tests.support import naive

N, K = 90, 3
rng = np.random.default_rng(7)
Q, S = rng.dirichlet(np.ones(K), N), rng.dirichlet(np.full(K, 0.7), N)
Y, W = rng.integers(0, K, N), rng.exponential(size=N)
X = rng.normal(size=N)
ESTIMATORS = [
    "accuracy",
    "brier",
    "nll",
    "confidence_gap",
    "ece(bins=8)",
    "tce2(bins=8)",
    "tce2_debiased(bins=8)",
    "cwce2(bins=8)",
    "ckce",
    "ckce(method=exact)",
    "ckce_centred",
    "cmmd",
    "jkce",
    "jkce_biased",
    "kce",
    "kce(method=features)",
    "klce(covariates=['x0'])",
    "kce(notion=top_label, method=spectral)",
    "kce(method=tiles, notion=top_label)",
]
BANDWIDTH = 0.4


def gaussian(d, s, *_):
    return np.exp(-(d**2) / (2 * BANDWIDTH**2))


def soft(**options):
    return cs.from_arrays(**{"probabilities": Q, "labels": S, "covariates": X, **options})


def values(source, estimators=ESTIMATORS, **options):
    estimates = cs.evaluate(source, estimators, **options).estimates
    return np.array([e.value for e in estimates])


# labels are shares of classes, here 1 and 0
@pytest.mark.long
@pytest.mark.parametrize("weights", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_one_hot__is_the_integer_label(kind, weights):
    predictions = {"probabilities": None, kind: np.log(Q) if kind == "logits" else Q}
    one_hot = soft(**predictions, labels=np.eye(K)[Y], weights=weights)
    hard = soft(**predictions, labels=Y, weights=weights)
    np.testing.assert_allclose(values(one_hot), values(hard), rtol=1e-12, atol=1e-14)
    wild = [
        cs.calibration_test(labelled, ["jkce", "ece", "cwce2", "kce"], null="wild", n_replicates=19)
        for labelled in (one_hot, hard)
    ]
    assert [t.p_value for t in wild[0].results] == [t.p_value for t in wild[1].results]


@pytest.mark.parametrize("weights", [None, W], ids=["plain", "weighted"])
def test_estimates__are_of_residuals_of_probabilities(weights):
    w = np.ones(N) if weights is None else weights
    delta, top = Q - S, Q.argmax(axis=1)
    p, event = Q.max(axis=1), S[np.arange(N), top]
    edges = np.linspace(0, 1, 9)
    binned = naive.binned(p, event, edges, weights)
    classes = [naive.binned(Q[:, k], S[:, k], edges, weights)["tce2"] for k in range(K)]
    # the share of the top class is its frequency
    expected = {
        "accuracy": np.average(event, weights=w),
        "brier": np.average([d @ d for d in delta], weights=w),
        "nll": np.average([-(s * np.log(q)).sum() for q, s in zip(Q, S, strict=True)], weights=w),
        "confidence_gap": np.average(p - event, weights=w),
        "ece(bins=8)": binned["ece"],
        "tce2(bins=8)": binned["tce2"],
        "tce2_debiased(bins=8)": binned["tce2_debiased"],
        "cwce2(bins=8)": sum(classes),
        "jkce(method=tiles, bandwidth=0.4)": naive.jkce(naive.kernel(Q, BANDWIDTH), delta, w),
        "kce(method=tiles, prediction_bandwidth=0.4)": naive.jkce(
            naive.kernel(Q, BANDWIDTH, linear=False), delta, w
        ),
        "ckce(method=exact, bandwidth=0.4, ridge=0.1)": naive.cmmd(
            naive.kernel(Q, BANDWIDTH), delta, 0.1, w=weights
        ),
    }
    computed = values(soft(weights=weights), [*expected])
    np.testing.assert_allclose(computed, [*expected.values()], rtol=1e-10)


def test_two_classes__are_judged_by_the_shares_of_the_second():
    # two of the classes, divided by their sum
    q, s = Q[:, :2] / Q[:, :2].sum(1, keepdims=True), S[:, :2] / S[:, :2].sum(1, keepdims=True)
    computed = values(soft(probabilities=q, labels=s), ["confidence_gap", "ece", "tce2_debiased"])
    expected = naive.binned(q[:, 1], s[:, 1], np.linspace(0, 1, 16))
    gap = (q - s)[:, 1].mean()
    assert computed == pytest.approx([gap, expected["ece"], expected["tce2_debiased"]], rel=1e-12)


def test_log_loss__of_impossible_classes_is_infinite():
    q, s = np.array([[1.0, 0, 0], [0.5, 0.5, 0]]), np.array([[1.0, 0, 0], [0.5, 0.5, 0]])
    assert values(soft(probabilities=q, labels=s, covariates=None), ["nll"])[0] == pytest.approx(
        np.log(2) / 2
    )
    with np.errstate(divide="ignore"):
        logits = soft(probabilities=None, logits=np.log(q), labels=s[::-1].copy(), covariates=None)
    estimate = cs.evaluate(logits, "nll").estimates[0]
    assert estimate.value == np.inf
    assert "1 of 2 rows" in str(estimate.details)


def test_chunks_and_workers__have_no_influence():
    few = ["brier", "ece", "jkce", "kce"]
    expected = values(soft(), few)
    # sums of blocks have another order
    np.testing.assert_allclose(values(soft(), few, block_rows=17), expected, rtol=1e-10)
    np.testing.assert_array_equal(values(soft(), few, scheduler="threads:2"), expected)
    assert cs.evaluate(soft(), few).source["soft_labels"] is True


def test_default__has_intervals_of_resampled_rows_and_floors_of_random_signs():
    result = cs.evaluate(soft(), interval=True)
    assert {e.estimator for e in result.estimates} == {
        "accuracy",
        "brier",
        "nll",
        "confidence_gap",
        "ece",
        "tce2",
        "tce2_debiased",
        "cwce2",
        "ckce",
        "cmmd",
        "jkce",
        "jkce_biased",
    }
    assert all(e.reason is None for e in result.estimates)
    # a diagram needs integer labels
    assert result.reliability is None
    floors = {e.estimator: e.floor.null for e in result.estimates if e.floor is not None}
    assert floors == dict.fromkeys(["ece", "tce2", "cwce2", "ckce", "cmmd", "jkce_biased"], "wild")
    methods = {e.estimator: e.interval.method for e in result.estimates}
    assert methods["accuracy"] == methods["confidence_gap"] == "jackknife"
    assert methods["ece"] == "binned"  # its lower limit is of the population's value
    event = S[np.arange(N), Q.argmax(axis=1)]
    error = result["accuracy"].interval.standard_error
    assert error == pytest.approx(event.std() / np.sqrt(N), rel=0.5)  # 20 groups of 4 or 5 rows


def test_tests__name_the_nulls_of_soft_labels():
    with pytest.raises(cs.OptionError, match=r"null='labels'.*'wild'.*'permute', 'residual' and"):
        cs.calibration_test(soft(), null="labels")
    for null in (None, "residual", "permute", "hoeffding"):
        result = cs.calibration_test(soft(), "jkce", null=null, n_replicates=19).results[0]
        assert result.null == (null or "wild")
        assert result.p_value is not None


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["jkce", "ece", "tce2_debiased"])
def test_wild__keeps_its_level_if_labels_are_right_on_average(statistic):
    trials, rows, rejected = 200, 200, 0
    for seed in range(trials):
        draws = np.random.default_rng(seed)
        q = draws.dirichlet(np.ones(K), rows)
        shares = np.array([draws.multinomial(5, row) for row in q]) / 5  # five annotators
        source = cs.from_arrays(probabilities=q, labels=shares)
        test = cs.calibration_test(source, statistic, n_replicates=19, seed=seed).results[0]
        rejected += test.p_value <= 0.05
    # exact at 19 replicates, so that a rate outside is one in a thousand by chance
    low, high = binom.ppf([5e-4, 1 - 5e-4], trials, 0.05)
    assert low <= rejected <= high


@pytest.mark.parametrize(
    ("row", "fault", "says"),
    [
        (
            [1, 0, 1],
            "labels does not sum to 1",
            r"row 5 of arrays: 'labels' sum to 2.*binary=True.*divide by their number",
        ),
        (
            [0.5, 0.2, 0.2],
            "labels does not sum to 1",
            r"row 5 of arrays: 'labels' sum to 0\.9, not to 1\.",
        ),
        (
            [1.2, 0.2, -0.4],
            "labels is negative",
            r"row 5 of arrays: 'labels', which are .* contain -0\.4",
        ),
        (
            [np.nan, 0.5, 0.5],
            "labels is missing",
            r"row 5 of arrays: some of its labels .* are missing",
        ),
    ],
    ids=str,
)
def test_bad_rows__are_named_or_dropped(row, fault, says):
    labels = S.copy()
    # row 5 is wrong, and row 8 has no label
    labels[5], labels[8] = row, np.nan
    with pytest.raises(cs.InvalidDataError, match=says):
        cs.evaluate(soft(labels=labels), "brier")
    result = cs.evaluate(soft(labels=labels), "brier", on_invalid="drop")
    assert (result.n, result.n_unlabelled) == (N - 2, 1)
    assert result.dropped == {fault: 1}


def test_several_right_answers__name_the_row_and_the_remedies():
    labels = np.eye(K, dtype=int)[Y]
    labels[4] = 1
    with pytest.raises(cs.InvalidDataError, match=r"row 4 sums to 3.*binary=True.*divide by"):
        soft(labels=labels)
    divided = labels / labels.sum(axis=1, keepdims=True)
    # shares in half precision sum to 1 within its rounding
    assert np.isfinite(values(soft(labels=divided.astype(np.float16)), ["brier"]))


@pytest.mark.parametrize(
    ("feature", "refused"),
    [
        ("mce", lambda s: cs.evaluate(s, "mce")),
        ("reliability", cs.reliability),
        ("rank", lambda s: cs.rank([s, s])),
        ("power", lambda s: cs.power(s, cs.Miscalibration(shift=0.1))),
        ("local bias", lambda s: cs.audit(s, ["x0"])),
        ("local bias", lambda s: cs.local_bias(s, ["x0"])),
        ("select", cs.select),
        ("recalibrate", cs.recalibrate),
        ("part_of", lambda s: part_of(s, HoldOut(0.5))),
        ("Accumulator", lambda s: cs.Accumulator(classes=K).update(probabilities=Q, labels=S)),
        ("choices", lambda s: soft(mask=np.ones((N, K), bool))),
    ],
)
def test_others__need_integer_labels(feature, refused):
    needs = {"choices": r"mask.* need integer labels"}
    with pytest.raises(
        cs.OptionError, match=needs.get(feature, f"^{feature} needs integer labels")
    ):
        refused(soft())


def test_stores__refuse_soft_labels(tmp_path):
    store = cs.LogitStore.create(tmp_path / "p.zarr", classes=K, kind="probabilities")
    with store.writer() as writer:
        with pytest.raises(cs.InvalidDataError, match="a store has no soft labels"):
            writer.append(Q, S)
        writer.append(Q, Y)
