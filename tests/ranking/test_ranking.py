"""Rankings against naive computations and known orders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import binom
from scipy.stats import t as student

from calibscale import (
    CKCE,
    CMMD,
    ECE,
    JKCE,
    KCE,
    KLCE,
    NLL,
    Accuracy,
    CKCECentred,
    ConfidenceGap,
    Jackknife,
    OptionError,
    RandomFourier,
    SimplexECE,
    TCE2Debiased,
    evaluate,
    from_arrays,
)
from calibscale.intervals.parts_of_rows import Parts
from calibscale.intervals.resampling import Grouped
from calibscale.ranking.model_estimates import _adjusted, distinct_names, rank_probabilities, ranks
from calibscale.ranking.rank import rank
from calibscale.results.comparison_results import Difference
from calibscale.simulation import GENERATORS
from calibscale.statistics.score_sums import Totals
from tests.support.models import (
    N,
    jackknife_error,
    logits_and_labels,
    simulated_models,
    softmax_of,
    sources_of,
)


@pytest.mark.long
@pytest.mark.parametrize(
    "estimator",
    [
        ECE(bins=8),
        TCE2Debiased(bins=8),
        SimplexECE(),
        NLL(),
        CKCE(RandomFourier(10, 0.8), ridge=N**-0.25),
        CKCECentred(RandomFourier(10, 0.8), ridge=N**-0.25),
        CMMD(RandomFourier(10, 0.8), ridge=0.1, exponent=1.5),
        JKCE(RandomFourier(10, 0.8)),
        KCE(prediction_bandwidth=0.2, notion="top_label", method="spectral"),
    ],
    ids=lambda estimator: estimator.name,
)
def test_rank__differences_leave_out_the_same_groups_of_both_models(data, estimator):
    models, y = data
    ranking = rank(sources_of(models, y), estimator, groups=7, seed=3)
    groups = Grouped(Totals(), 7, 3).of(np.arange(N))

    def value(z, keep):
        return evaluate(from_arrays(logits=z[keep], labels=y[keep]), [estimator]).estimates[0].value

    full = {name: value(z, groups >= 0) for name, z in models.items()}
    left_out = {
        name: np.array([value(z, groups != g) for g in range(7)]) for name, z in models.items()
    }
    assert ranking.names == tuple(sorted(models, key=full.__getitem__))
    factor = student.ppf(0.975, 6)
    for model in ranking.models:
        error = jackknife_error(left_out[model.name])
        assert model.value == pytest.approx(full[model.name], rel=1e-9)
        interval = model.estimate.interval
        assert interval.low <= max(model.value, 0.0) <= interval.high
        if estimator.name == "nll":  # other intervals are wider or have their own limits
            assert interval.standard_error == pytest.approx(error, rel=1e-6)
            assert interval.low == pytest.approx(model.value - factor * error, rel=1e-6)
    assert len(ranking.differences) == 3
    for d in ranking.differences:
        error = jackknife_error(left_out[d.worse] - left_out[d.better])
        value_ = full[d.worse] - full[d.better]
        assert d.paired
        # a difference loses the digits that two models share
        assert d.value == pytest.approx(value_, rel=1e-7)
        assert d.interval.standard_error == pytest.approx(error, rel=1e-6)
        assert d.interval.high == pytest.approx(value_ + factor * error, rel=1e-6)
        assert d.t == pytest.approx(value_ / error, rel=1e-6)
        assert d.p_value == pytest.approx(2 * student.sf(value_ / error, 6), rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "estimator", [JKCE(RandomFourier(1, 0.7), method="tiles"), KCE(prediction_bandwidth=0.4)]
)
def test_rank__pair_sums_leave_out_one_row_of_both_models(data, estimator):
    models, y = data
    models, y = {name: models[name][:40] for name in ("bold", "true")}, y[:40]

    def values(z):
        left_out = []
        for i in range(40):
            others = from_arrays(logits=np.delete(z, i, 0), labels=np.delete(y, i))
            left_out.append(evaluate(others, [estimator]).estimates[0].value)
        return np.array(left_out)

    ranking = rank(sources_of(models, y), estimator)
    (d,) = ranking.differences
    error = jackknife_error(values(models[d.worse]) - values(models[d.better]))
    # an error of left-out values loses the digits that they share
    assert d.interval.standard_error == pytest.approx(error, rel=1e-8)
    assert d.interval.parts == 40
    np.testing.assert_allclose(ranking.probabilities.sum(1), 1)


@pytest.mark.long
def test_rank__one_model_is_its_evaluation(data):
    models, y = data
    source = from_arrays(logits=models["bold"], labels=y)
    ranking = rank([source])
    (expected,) = evaluate(source, [CKCECentred()], interval="jackknife").estimates
    (model,) = ranking.models
    assert model.estimate.value == expected.value
    assert model.estimate.interval == expected.interval
    assert model.estimate.parameters["bandwidth"] == expected.parameters["bandwidth"]
    assert (model.rank, model.p_best, ranking.p_order) == (1, 1.0, 1.0)
    assert ranking.differences == ()
    scores = evaluate(source)
    for name in ("accuracy", "brier", "nll"):
        assert getattr(model, name) == pytest.approx(scores[name].value, rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("estimator", [CKCE(), CKCECentred(), JKCE(), CKCE(method="exact")])
def test_rank__models_share_bandwidth_and_ridge(data, estimator):
    models, y = data
    ranking = rank(sources_of(models, y), estimator)
    distances = np.concatenate([pdist(softmax_of(z)) for z in models.values()])
    assert ranking.common["bandwidth"] == pytest.approx(np.median(distances), rel=1e-12)
    if not isinstance(estimator, JKCE):
        assert ranking.common["ridge"] == pytest.approx(N**-0.25, rel=1e-12)
    for model in ranking.models:
        settings = {"features": RandomFourier(bandwidth=ranking.common["bandwidth"])}
        alone = replace(estimator, **settings)
        source = from_arrays(logits=models[model.name], labels=y)
        assert model.value == pytest.approx(evaluate(source, [alone]).estimates[0].value, rel=1e-10)


def test_rank__explicit_settings_are_used(data):
    models, y = data
    ranking = rank(sources_of(models, y), CKCE(RandomFourier(20, 0.3), ridge=0.02))
    assert (ranking.common["bandwidth"], ranking.common["ridge"]) == (0.3, 0.02)


@pytest.mark.long
def test_rank__a_constant_model_does_not_move_the_bandwidth(data):
    models, y = data
    alone = rank(sources_of(models, y)).common["bandwidth"]
    ranking = rank(sources_of({**models, "marginal": np.zeros((N, 3))}, y))
    assert ranking.common["bandwidth"] == alone
    assert rank(sources_of({"marginal": np.zeros((N, 3))}, y)).common["bandwidth"] == 1.0


@pytest.mark.long
def test_rank__weights_set_the_ridge_and_their_scale_changes_nothing(data, rng):
    models, y = data
    w = rng.uniform(0.2, 3.0, N)
    ranking = rank(sources_of(models, y, weights=w))
    assert ranking.paired
    assert ranking.common["ridge"] == pytest.approx((w.sum() ** 2 / (w @ w)) ** -0.25, rel=1e-12)
    scaled = rank(sources_of(models, y, weights=1e3 * w))
    assert scaled.names == ranking.names
    for a, b in zip(ranking.differences, scaled.differences, strict=True):
        # t is a ratio of differences, which lose the digits that two models share
        assert a.t == pytest.approx(b.t, rel=1e-8)
    mixed = {
        "none": from_arrays(logits=models["bold"], labels=y),
        "ones": from_arrays(logits=models["true"], labels=y, weights=np.ones(N)),
        "others": from_arrays(logits=models["shy"], labels=y, weights=w),
    }
    pairs = {frozenset((d.better, d.worse)): d.paired for d in rank(mixed, ECE()).differences}
    assert pairs[frozenset(("none", "ones"))]
    assert not pairs[frozenset(("none", "others"))]


@pytest.mark.long
@pytest.mark.parametrize("method", ["auto", "spectral", "features", "nystrom"])
def test_rank__local_calibration_has_common_bandwidths(rng, method):
    x = rng.normal(size=(N, 2))
    p = 1 / (1 + np.exp(-x[:, 0]))
    y = (rng.random(N) < 1 / (1 + np.exp(-x[:, 0] - x[:, 1]))).astype(int)
    models = {"blind": p, "bold": p**2 / (p**2 + (1 - p) ** 2)}
    sources = {
        name: from_arrays(probabilities=q, labels=y, covariates=x, binary=True)
        for name, q in models.items()
    }
    ranking = rank(sources, KLCE(("x0", "x1"), method=method, n_features=50))
    assert ranking.notion == "positive"
    distances = np.concatenate([pdist(q[:, None]) for q in models.values()])
    assert ranking.common["prediction_bandwidth"] == pytest.approx(np.median(distances))
    spread = np.median(pdist(x / x.std(0))) * x.std(0)
    assert ranking.common["covariate_bandwidth"] == pytest.approx(
        {"x0": spread[0], "x1": spread[1]}, rel=1e-6
    )
    assert ranking.common["method"] == ("tiles" if method == "auto" else method)
    assert (ranking.probabilities.size == 0) == (method == "nystrom")


@pytest.mark.long
@pytest.mark.parametrize("estimator", [CKCE(), CKCECentred(), JKCE(), ECE(), SimplexECE()])
def test_rank__finds_a_known_order(estimator):
    sources = simulated_models(["over4", "true", "over2"], 5000, over2=2.0, over4=4.0)
    ranking = rank(sources, estimator)
    assert ranking.names == ("true", "over2", "over4")
    assert [model.rank for model in ranking.models] == [1, 2, 3]
    assert ranking.p_order > 0.99
    assert all(d.distinguishable for d in ranking.differences)
    assert (np.diag(ranking.probabilities) > 0.99).all()
    assert ranking["over4"].p_best < 0.01


def _calibrated(seed, n):
    """Two calibrated models of 10 classes: the truth, and its means over five of them."""
    rng = np.random.default_rng(seed)
    sharp = rng.dirichlet(np.full(10, 0.1), n)
    sharp /= sharp.sum(axis=1, keepdims=True)
    y = (sharp.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, 9)
    blunt = np.repeat(sharp.reshape(n, 2, 5).mean(axis=2), 5, axis=1)
    return {
        name: from_arrays(probabilities=q, labels=y)
        for name, q in (("sharp", sharp), ("blunt", blunt))
    }


def _n_distinguished(estimator, count, n):
    return sum(
        rank(_calibrated(seed, n), estimator, scheduler="serial").differences[0].distinguishable
        for seed in range(count)
    )


@pytest.mark.long
def test_rank__calibrated_models_of_different_sharpness_are_not_distinguished():
    few = RandomFourier(20)
    # right code exceeds this bound for one seed in ten thousand
    assert _n_distinguished(CKCECentred(few), 12, 300) <= binom.ppf(0.9999, 12, 0.05)
    assert _n_distinguished(CKCE(few), 12, 300) >= 9  # biases differ


@pytest.mark.slow
@pytest.mark.parametrize("n", [500, 2000])
def test_rank__calibrated_models_of_different_sharpness_are_distinguished_by_chance_only(n):
    # right code exceeds this bound for one seed in ten thousand
    assert _n_distinguished(None, 200, n) <= binom.ppf(0.9999, 200, 0.05)


def _n_ordered_correctly(n, trials):
    """Counts of correctly ordered pairs of a calibrated and a miscalibrated model of [MS]."""
    n_right = np.zeros(4, int)
    for trial in range(trials):
        values = {}
        for name in ("true", "marginal", "under", "over"):
            draw = GENERATORS[f"ms-{name}"].draw(9, trial * n, trial * n + n)
            source = from_arrays(logits=draw.logits, labels=draw.labels)
            values[name] = evaluate(source, CKCECentred(), scheduler="serial").estimates[0].value
        n_right += [
            values[good] < values[bad] for good in ("true", "marginal") for bad in ("under", "over")
        ]
    return n_right


@pytest.mark.long
def test_ckce_centred__ranks_a_calibrated_model_first():
    assert _n_ordered_correctly(200, 6).sum() >= 23  # of 24: 99.9 % each


@pytest.mark.slow
@pytest.mark.parametrize(("n", "share"), [(50, 0.84), (100, 0.97), (200, 0.995)])
def test_ckce_centred__ranks_few_rows_correctly(n, share):
    assert _n_ordered_correctly(n, 300).sum() >= binom.ppf(1e-3, 1200, share)


def _equally_bad(seed, n=800):
    """Two models that are overconfident on different halves of the rows."""
    rng = np.random.default_rng(seed)
    z, y = logits_and_labels(rng, n)
    half = rng.integers(0, 2, n)[:, None]
    return sources_of({"a": z * np.where(half, 2.5, 1), "b": z * np.where(half, 1, 2.5)}, y)


@pytest.mark.slow
def test_rank__equally_bad_models_are_not_distinguished():
    rankings = [rank(_equally_bad(seed), TCE2Debiased()) for seed in range(40)]
    claims = sum(r.differences[0].distinguishable for r in rankings)
    # right code exceeds this bound for one seed in ten thousand
    assert claims <= binom.ppf(0.9999, 40, 0.05)
    first = np.array([r["a"].p_best for r in rankings])
    # P(best) is near uniform: a quarter of them lie above 3/4
    low, high = binom.ppf([1e-4, 1 - 1e-4], 40, 0.25)
    assert low <= (first > 0.75).sum() <= high
    assert low <= (first < 0.25).sum() <= high


@pytest.mark.long
def test_rank__a_model_compared_with_itself_shares_its_rank(data):
    models, y = data
    ranking = rank(sources_of({"one": models["bold"], "two": models["bold"]}, y))
    (d,) = ranking.differences
    assert (d.value, d.t, d.p_value, d.distinguishable) == (0.0, 0.0, 1.0, False)
    # shares of 100,000 draws have a standard error of at most 0.0016
    np.testing.assert_allclose(ranking.probabilities, 0.5, atol=0.01)
    assert [model["rank"] for model in ranking.to_dict()["models"]] == [1, 1]
    assert ranking.p_order == 1.0  # ties may be in any order
    three = rank(sources_of({**dict.fromkeys("abc", models["bold"]), "best": models["true"]}, y))
    assert [(m.name == "best", m.rank) for m in three] == [(True, 1), *[(False, 2)] * 3]
    np.testing.assert_allclose(three.probabilities[1:, 1:], 1 / 3, atol=0.015)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([0.3], [1]),
        ([-0.1, -0.1, 0.2, 0.2, 0.3], [1, 1, 3, 3, 5]),
        ([0.1, 0.1 * (1 + 1e-12), 0.1 * (1 + 1e-6)], [1, 1, 3]),
        ([0.0, 0.0, 1e-300], [1, 1, 3]),
    ],
)
def test_ranks__are_shared_by_equal_values(values, expected):
    assert ranks(values) == expected


def test_rank__ignores_rounding(data):
    """Logits shifted by a constant change the estimate by rounding only."""
    models, y = data
    shifted = sources_of({"one": models["bold"], "two": models["bold"] + 7.0}, y)
    ranking = rank(shifted, TCE2Debiased())
    assert ranking.differences[0].value < 1e-12
    assert not ranking.differences[0].distinguishable
    assert [model.rank for model in ranking] == [1, 1]
    np.testing.assert_allclose(ranking.probabilities, 0.5, atol=0.05)


def _parts(left_out, value):
    return Parts(value, np.asarray(left_out, float), np.empty(0))


def test_rank_probabilities__of_two_models_are_the_t_test(data):
    models, y = data
    ranking = rank(sources_of({"a": models["shy"], "b": models["true"] * 1.3}, y), ECE())
    (d,) = ranking.differences
    assert 0.3 < d.t < 6
    # as above, four standard errors of a share of draws
    assert ranking.models[0].p_best == pytest.approx(student.cdf(d.t, 19), abs=0.006)
    np.testing.assert_allclose(ranking.probabilities.sum(0), 1)
    np.testing.assert_allclose(ranking.probabilities.sum(1), 1)
    assert ranking.p_order == ranking.models[0].p_best


def test_rank_probabilities__of_independent_models_are_integrals(rng):
    parts = [_parts(v + 0.1 * rng.normal(size=20), v) for v in (0.0, 0.3)]
    matrix, order = rank_probabilities(parts, [0, 1], 0)
    errors = [jackknife_error(part.left_out) for part in parts]
    # two independent t variables of 19 degrees of freedom, integrated
    u = (np.arange(4000) + 0.5) / 4000
    draws = student.ppf(u, 19)
    expected = student.cdf((0.3 + errors[1] * draws) / errors[0], 19).mean()
    # as above, four standard errors of a share of draws
    assert matrix[0, 0] == pytest.approx(expected, abs=0.006)
    assert order == matrix[0, 0]


def test_rank_probabilities__depend_on_the_seed(rng):
    parts = [_parts(rng.normal(size=20), 0.1 * i) for i in range(4)]
    first, second, reseeded = (rank_probabilities(parts, [0] * 4, seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - reseeded).max() < 0.01
    assert not np.array_equal(first, reseeded)


def test_adjusted__p_values_are_holms():
    p = [0.04, 0.001, 0.03, None, 0.2]
    adjusted = _adjusted([Difference("a", "b", 1.0, True, p_value=value) for value in p], 0.05)
    assert [d.p_adjusted for d in adjusted] == pytest.approx([0.09, 0.004, 0.09, None, 0.2])
    assert [d.distinguishable for d in adjusted] == [False, True, False, False, False]


@pytest.mark.long
def test_rank__errors_of_shared_features_cancel():
    """The difference of two nearly equal models has a smaller error than their estimates."""
    sources = simulated_models(["a", "b"], 1000, a=2.0, b=2.05)
    estimator = CKCE(RandomFourier(8, 1.0), ridge=0.1, method="exact")
    truth = rank(sources, estimator).differences[0].value
    few = [rank(sources, CKCE(RandomFourier(8, 1.0, s), ridge=0.1)) for s in range(8)]
    inside = sum(
        abs(r.differences[0].value - truth) <= r.differences[0].approximation_error for r in few
    )
    assert inside >= 6
    for r in few:
        alone = [model.estimate.approximation.error for model in r.models]
        assert r.differences[0].approximation_error < 0.3 * np.hypot(*alone)


@pytest.mark.long
def test_rank__notes_too_few_features():
    z, y = logits_and_labels(np.random.default_rng(1), 3000)
    sources = sources_of({"true": z, "bold": 2.5 * z}, y)
    ranking = rank(sources, JKCE(RandomFourier(2, 0.3), kernel="gaussian"))
    (d,) = ranking.differences
    assert d.distinguishable
    assert d.value < d.approximation_error
    assert any("error of the approximation" in note for note in ranking.notes)
    enough = rank(sources, JKCE(RandomFourier(100, 0.3), kernel="gaussian"))
    assert enough.notes == ()
    ranking = rank(sources, CKCE(RandomFourier(1, 0.3)))
    assert ranking.differences[0].approximation_error is None


def _numbers(ranking):
    result = ranking.to_dict()
    for name in ("seconds", "parameters"):
        result.pop(name)
    return result


@pytest.mark.long
@pytest.mark.parametrize("estimator", [CKCE(RandomFourier(10)), ECE()])
def test_rank__does_not_depend_on_the_scheduler(data, estimator):
    models, y = data
    sources = sources_of(models, y)
    settings = dict(subset_size=150, trials=6, block_rows=100)
    serial = rank(sources, estimator, scheduler="serial", **settings)
    threads = rank(sources, estimator, scheduler="threads:3", memory_limit="4GB", **settings)
    assert _numbers(threads) == _numbers(serial)
    unblocked = rank(sources, estimator, **{**settings, "block_rows": None})
    for a, b in zip(serial.models, unblocked.models, strict=True):
        assert (a.name, a.value) == (b.name, pytest.approx(b.value, rel=1e-10))
    np.testing.assert_allclose(
        serial.agreement[0].values, unblocked.agreement[0].values, rtol=1e-9, atol=1e-15
    )


@pytest.mark.long
def test_rank__does_not_depend_on_the_order_of_models(data):
    models, y = data
    sources = sources_of(models, y)
    in_order = rank(sources)
    reversed_order = rank(dict(reversed(sources.items())))
    assert reversed_order.names == in_order.names
    assert reversed_order.differences == in_order.differences
    np.testing.assert_array_equal(reversed_order.probabilities, in_order.probabilities)


def test_rank__progress_reaches_its_total(data):
    models, y = data
    calls = []
    rank(
        sources_of(models, y),
        ECE(),
        subset_size=100,
        trials=5,
        block_rows=100,
        progress=lambda count, total: calls.append((count, total)),
    )
    assert calls == sorted(calls)
    assert calls[-1] == (600, 600)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": Accuracy()}, "not a calibration error"),
        ({"by": ConfidenceGap()}, "not a calibration error"),
        ({"by": KCE(bandwidth_share=0.2)}, "chosen by power"),
        ({"by": KCE(method="tiles"), "subset_size": 100}, "another method"),
        ({"by": ECE(notion="positive")}, "two classes"),
        ({"subset_size": 1}, "at least 2"),
        ({"subset_size": N + 1}, "larger than the data"),
        ({"subset_size": 100, "trials": 0}, "trials"),
        ({"confidence_level": 1.0}, "confidence_level"),
        ({"groups": 1}, "groups"),
        ({"seed": -1}, "seed"),
    ],
)
def test_rank__invalid_settings_are_refused(data, settings, message):
    models, y = data
    with pytest.raises(OptionError, match=message):
        rank(sources_of(models, y), **settings)


def test_rank__models_with_different_numbers_of_classes_are_refused(data):
    models, y = data
    with pytest.raises(OptionError, match="no model"):
        rank({})
    wide = from_arrays(logits=np.zeros((N, 4)), labels=y)
    with pytest.raises(OptionError, match="a has 3, b has 4"):
        rank({"a": from_arrays(logits=models["true"], labels=y), "b": wide})


def test_distinct_names__use_as_few_parts_of_a_path_as_possible():
    assert distinct_names(["/x/a.zarr", "y/b"]) == ["a", "b"]
    assert distinct_names(["/x/m/p.zarr", "/y/m/p.zarr/", "q"]) == ["x/m/p", "y/m/p", "q"]
    assert distinct_names(["arrays", "arrays", "arrays"]) == ["arrays", "arrays (2)", "arrays (3)"]
    assert distinct_names(["/x/a.zarr", "/x/a", "/a.zarr"]) == ["x/a", "x/a (2)", "/a"]
    assert distinct_names(["a (2)", "a", "a"]) == ["a (2)", "a", "a (3)"]


def test_rank__uses_the_groups_of_intervals(data):
    models, y = data
    source = from_arrays(logits=models["shy"], labels=y)
    jackknife = Jackknife(groups=9, confidence_level=0.8, seed=5)
    (expected,) = evaluate(source, [ECE()], interval=jackknife).estimates
    ranking = rank({"shy": source}, ECE(), groups=9, confidence_level=0.8, seed=5)
    ours = ranking["shy"].estimate.interval
    assert (ours.method, ours.level) == (expected.interval.method, 0.8)
    # sums over groups against sums over rows
    assert ours.low == pytest.approx(expected.interval.low, rel=1e-9)
    assert ours.high == pytest.approx(expected.interval.high, rel=1e-9)


@pytest.mark.parametrize("large", [True, False])
def test_clusters__too_large_have_no_p_values(large):  # S9
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    unit = np.arange(400) // 4
    if large:
        unit[:200] = 0
    models = {
        name: from_arrays(
            probabilities=np.clip(0.5 + error * (y - 0.5) + 0.1 * rng.normal(size=400), 0.01, 0.99),
            labels=y,
            binary=True,
            covariates=unit[:, None],
            covariate_names=["unit"],
        )
        for name, error in {"a": 0.2, "b": 0.7}.items()
    }
    result = rank(models, ECE(), cluster="unit")
    (difference,) = result.differences
    assert (difference.p_adjusted is None) == (result.p_order is None) == large
    refused = any("one cluster has 50 % of the rows" in note for note in result.notes)
    assert refused == large
    assert "effectively" in str(result)
