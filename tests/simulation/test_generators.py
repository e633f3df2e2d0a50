"""Simulated stores: distributions of the generators and their population values."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma, expit, gammaln, softmax

from calibscale import (
    CKCE,
    CMMD,
    ECE,
    JKCE,
    KCE,
    MCE,
    NLL,
    TCE2,
    Accuracy,
    Brier,
    ConfidenceGap,
    JKCEBiased,
    LogitStore,
    OptionError,
    RandomFourier,
    SimplexECE,
    StoreError,
    TCE2Debiased,
    evaluate,
    from_arrays,
)
from calibscale import simulation as simulation
from calibscale.compiled import random_draws
from calibscale.compiled import random_draws as kernels
from calibscale.compiled.jit import kernel
from calibscale.predictions.blocks import Block
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.session import default_estimators
from calibscale.simulation import GENERATORS, simulate, truth

NAMES = list(GENERATORS)
SCORES = (Accuracy(), Brier(), NLL(), ConfidenceGap())
SEED = np.uint64(7)


def drawn(name, rows, seed=0, start=0, **parameters):
    K = parameters.pop("classes", None)
    generator = simulation.configured(name, K, parameters, seed)
    return generator.draw(seed, start, start + rows)


def log_gammas(alpha, rows, classes=1, seed=SEED):
    out = np.empty((rows, classes))
    kernels.log_gamma_rows(seed, 0, alpha, out)
    return out


def gamma_cdf(alpha):
    """Distribution function of log G, G ~ Gamma(alpha), also where G is far below 1e-308."""

    def cdf(g):
        tail = np.exp(alpha * g - gammaln(alpha + 1.0))  # the first term of its series at 0
        return np.where(g < -40.0, tail, stats.gamma.cdf(np.exp(g), alpha))

    return cdf


def z_score(values, mean):
    return (values.mean(axis=0) - mean) / (values.std(axis=0, ddof=1) / np.sqrt(len(values)))


# ---------------------------------------------------------------- random numbers


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox__gives_the_published_vectors(counter, key, expected):
    words = [np.uint64(int(word, 16)) for word in (counter + " " + key).split()]
    assert " ".join(f"{int(word):08x}" for word in _philox(*words)) == expected


@kernel
def _philox(c0, c1, c2, c3, k0, k1):
    """`random_draws.philox`, which Python cannot call."""
    return random_draws.philox(c0, c1, c2, c3, k0, k1)


# ---------------------------------------------------------------- kernels


@pytest.mark.long
@pytest.mark.kernels
def test_log_gamma__has_its_first_moment():
    # few draws reach all branches: squeezed, accepted by logarithm, rejected, negative root
    g = log_gammas(0.5, 300)
    assert np.isfinite(g).all()
    assert abs(z_score(g, digamma(0.5))[0]) < 4


@pytest.mark.long
@pytest.mark.kernels
def test_label_rows__are_the_naive_inverse_distribution_function():
    logits = np.random.default_rng(0).normal(size=(50, 4)) * 3
    logits[0] = [-2000.0, 0.0, -2000.0, -2000.0]
    log_p, labels = logits.copy(), np.empty(50, np.int64)
    kernels.label_rows(SEED, 5, log_p, labels)
    u = np.empty((50, 1, 2))
    random_draws.uniform_rows(SEED, np.uint64(random_draws.LABELS), 5, u)
    P = softmax(logits, axis=1)
    assert labels.tolist() == (np.cumsum(P, axis=1) <= u[:, 0, :1]).sum(axis=1).tolist()
    np.testing.assert_allclose(np.exp(log_p), P, rtol=1e-13, atol=0)


@pytest.mark.kernels
@pytest.mark.parametrize("name", NAMES)
def test_draw__has_the_same_bits_in_every_range(name):
    parameters = {"d": 12.0} if name in ("missing", "bayes") else {}
    expected = drawn(name, 23, seed=3, **parameters)
    cuts = [0, 1, 2, 9, 23]
    parts = [drawn(name, b - a, 3, a, **parameters) for a, b in pairwise(cuts)]
    for column, pieces in zip(expected[1:], list(zip(*parts, strict=True))[1:], strict=True):
        if column is not None:
            assert np.concatenate(pieces).tobytes() == column.tobytes()


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.04, 0.1, 1.0, 5.0])
def test_log_gamma__has_the_distribution_of_scipy(alpha):
    # fails for one seed in a thousand
    assert stats.kstest(log_gammas(alpha, 100_000)[:, 0], gamma_cdf(alpha)).pvalue > 1e-3


def test_log_gamma__is_independent_across_rows_classes_and_seeds():
    u = gamma_cdf(0.1)(log_gammas(0.1, 50_000, 3))
    reseeded = gamma_cdf(0.1)(log_gammas(0.1, 50_000, 3, seed=SEED + np.uint64(1)))
    pairs = [
        (u[:, 0], u[:, 1]),
        (u[:, 1], u[:, 2]),
        (u[1:, 0], u[:-1, 0]),
        (u[:, 0], reseeded[:, 0]),
    ]
    for a, b in pairs:
        assert abs(stats.spearmanr(a, b).statistic) < 4 / np.sqrt(len(a))


def test_label_rows__frequencies_are_the_probabilities():
    P = np.array([0.5, 0.3, 0.15, 0.05])
    labels = np.empty(100_000, np.int64)
    kernels.label_rows(SEED, 0, np.tile(np.log(P), (len(labels), 1)), labels)
    counts = np.bincount(labels, minlength=4)
    # fails for one seed in a thousand
    assert stats.chisquare(counts, P * len(labels)).pvalue > 1e-3


# ---------------------------------------------------------------- distributions


@pytest.mark.parametrize(("name", "alpha", "K"), [("gb", 0.04, 5), ("ms-true", 0.1, 10)])
def test_dirichlet__has_the_moments_of_theory(name, alpha, K):
    P = np.exp(drawn(name, 100_000).log_p)
    np.testing.assert_allclose(P.sum(axis=1), 1.0, rtol=1e-12)
    variance = (K - 1) / (K**2 * (K * alpha + 1))
    # four standard errors of means of 100,000 draws
    assert np.abs(z_score(P, 1 / K)).max() < 4
    assert np.abs(z_score((P - 1 / K) ** 2, variance)).max() < 4
    product = (P[:, 0] - 1 / K) * (P[:, 1] - 1 / K)
    assert abs(z_score(product, -variance / (K - 1))) < 4


@pytest.mark.long
def test_gb__has_the_accuracy_of_the_paper():
    draw = drawn("gb", 200_000)
    hit = np.mean(draw.labels == draw.log_p.argmax(axis=1))
    assert hit == pytest.approx(0.90, abs=0.01)  # [GB, §5.1] says ≈ 90 %
    reference = np.random.default_rng(0).dirichlet([0.04] * 5, 200_000).max(axis=1)
    assert abs(hit - reference.mean()) < 4 * np.sqrt((0.1 * 0.9 + reference.var()) / 200_000)


def test_gb__is_finite_in_float32():
    draw = drawn("gb", 100_000)
    assert draw.log_p.min() < -300  # P itself would be 0 in float32
    assert np.isfinite(draw.logits.astype(np.float32)).all()


@pytest.mark.parametrize("name", NAMES)
def test_labels__follow_the_probabilities(name):
    draw = drawn(name, 50_000, seed=2)
    P = np.exp(draw.log_p)
    residual = np.eye(P.shape[1])[draw.labels] - P
    variance = (P * (1 - P)).sum(axis=0)
    assert np.abs(residual.sum(axis=0) / np.sqrt(variance)).max() < 4
    for level in range(1, 11):  # and at every level of P: counts are sums of Bernoullis
        inside = np.ceil(P * 10) == level
        if inside.sum() > 30:
            noise = np.sqrt((P * (1 - P))[inside].sum())
            assert abs(residual[inside].sum()) < 4.5 * noise + 1e-6


@pytest.mark.parametrize(
    ("name", "sharpness"), [("gb", 0.3), ("ms-true", 1), ("ms-under", 0.5), ("ms-over", 2)]
)
def test_dirichlet__logits_are_sharpened(name, sharpness):
    draw = drawn(name, 100)
    np.testing.assert_array_equal(draw.logits, sharpness * draw.log_p)


def test_dirichlet__models_of_one_seed_share_rows():
    over, under, marginal = (drawn(name, 100) for name in ("ms-over", "ms-under", "ms-marginal"))
    assert over.labels.tolist() == under.labels.tolist() == marginal.labels.tolist()
    assert not marginal.logits.any()


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.3, 1.0, 6.0])
def test_shift__has_a_truncated_normal_covariate(alpha):
    draw = drawn("shift", 50_000, alpha=alpha)
    x = draw.covariates[:, 0]
    reference = stats.truncnorm((-1 - alpha) / 0.25, (1 - alpha) / 0.25, alpha, 0.25)
    # fails for one seed in a thousand
    assert stats.kstest(x, reference.cdf).pvalue > 1e-3
    np.testing.assert_allclose(np.exp(draw.log_p)[:, 1], expit(x), rtol=1e-12)
    np.testing.assert_array_equal(draw.logits, np.column_stack([0 * x, 5 * x]))


@pytest.mark.parametrize("alpha", [-40.0, 40.0])
def test_shift__far_locations_stay_inside(alpha):
    x = drawn("shift", 1000, alpha=alpha).covariates
    assert (np.sign(alpha) * x > 0.98).all()
    assert (np.abs(x) <= 1).all()
    assert len(np.unique(x)) == 1000


@pytest.mark.parametrize(("name", "seen"), [("missing", 2), ("bayes", 3)])
def test_missing__has_normal_covariates_and_a_model_of_some(name, seen):
    draw = drawn(name, 50_000, d=3)
    x = draw.covariates
    # fails for one seed in a thousand
    assert stats.kstest(x.ravel(), "norm").pvalue > 1e-3
    # a variance of 50,000 normal draws has a standard error of 0.006
    np.testing.assert_allclose(np.cov(x.T), np.eye(3), atol=0.03)
    np.testing.assert_allclose(np.exp(draw.log_p)[:, 1], expit(x.sum(axis=1)), rtol=1e-12)
    np.testing.assert_allclose(draw.logits[:, 1], x[:, :seen].sum(axis=1), rtol=1e-14)


def test_missing__one_covariate_gives_probability_one_half():
    assert not drawn("missing", 10, d=1).logits.any()


# ---------------------------------------------------------------- stores


def test_simulate__writes_settings_and_rows(tmp_path):
    calls = []
    store = simulate(
        tmp_path / "s.zarr",
        rows=700,
        generator="missing",
        seed=5,
        parameters={"d": 3},
        progress=lambda *call: calls.append(call),
    )
    provenance = store.provenance["simulated"]
    assert provenance.pop("version")
    assert provenance == {
        "generator": "missing",
        "rows": 700,
        "classes": 2,
        "seed": 5,
        "parameters": {"d": 3},
    }
    assert (store.rows, store.classes, store.binary) == (700, 2, False)
    assert store.covariate_names == ("x1", "x2", "x3")
    assert calls[-1] == (700, 700)
    read = LogitStore.open(tmp_path / "s.zarr").source.read(0, 700, covariates=True)
    draw = drawn("missing", 700, seed=5, d=3)
    np.testing.assert_array_equal(read.values, draw.logits.astype(np.float32))
    np.testing.assert_array_equal(read.labels, draw.labels)
    np.testing.assert_array_equal(read.covariates, draw.covariates)


def test_simulate__interrupted_run_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "_BATCH_NUMBERS", 370)
    path = tmp_path / "s.zarr"

    def failing(count, total):
        if count > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(path, rows=1234, seed=1, progress=failing)
    unfinished = LogitStore.open(path)
    assert not unfinished.finished
    assert 100 < unfinished.rows < 1234
    with pytest.raises(StoreError, match=r"did not finish.*same `calibscale simulate` again"):
        evaluate(path)
    store = simulate(path, rows=1234, seed=1)
    assert store.finished
    expected = simulate(tmp_path / "whole.zarr", rows=1234, seed=1).source.read(0, 1234)
    np.testing.assert_array_equal(store.source.read(0, 1234).values, expected.values)


def test_simulate__rows_do_not_depend_on_batches_and_n(tmp_path, monkeypatch):
    long = simulate(tmp_path / "long.zarr", rows=5000, seed=1).source.read(0, 5000)
    monkeypatch.setattr(simulation, "_BATCH_NUMBERS", 370)
    monkeypatch.setattr(simulation, "available_cpus", lambda: 5)
    short = simulate(tmp_path / "short.zarr", rows=1234, seed=1).source.read(0, 1234)
    np.testing.assert_array_equal(short.values, long.values[:1234])
    np.testing.assert_array_equal(short.labels, long.labels[:1234])
    reseeded = simulate(tmp_path / "other.zarr", rows=1234, seed=2).source.read(0, 1234)
    assert (reseeded.values != short.values).mean() > 0.99


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_simulate__writes_the_dtype(tmp_path, dtype):
    # log P reaches −1e5 here, beyond float16
    store = simulate(tmp_path / "s.zarr", rows=2000, dtype=dtype, parameters={"alpha": 1e-4})
    assert store.info()["dtype"] == np.dtype(dtype).name
    assert evaluate(store, [Accuracy()])["accuracy"].n == 2000


def test_simulate__draws_many_classes(tmp_path):
    store = simulate(tmp_path / "s.zarr", rows=300, classes=1000)
    assert evaluate(store, [Brier()])["brier"].n == 300
    labels = store.source.read(0, 300).labels
    assert len(np.unique(labels)) > 200


def test_simulate__takes_a_seed_of_64_bits(tmp_path):
    assert simulate(tmp_path / "s.zarr", rows=10, seed=2**64 - 1).rows == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "rows"),
        ({"classes": 1}, "1 classes"),
        ({"classes": 0}, "0 classes"),
        ({"generator": "shift", "classes": 3}, "3 classes"),
        ({"generator": "nothing"}, "available: gb, ms-true"),
        ({"parameters": {"beta": 1.0}}, "available: alpha, sharpness"),
        ({"generator": "bayes", "parameters": {"alpha": 1.0}}, "available: d"),
        ({"parameters": {"alpha": 0.0}}, "alpha must be finite and at least"),
        ({"parameters": {"alpha": np.nan}}, "alpha must be finite"),
        ({"parameters": {"sharpness": -np.inf}}, "sharpness must be finite"),
        ({"generator": "shift", "parameters": {"scale": 0.0}}, "scale"),
        ({"generator": "missing", "parameters": {"d": 0}}, "d must be"),
        ({"generator": "missing", "parameters": {"d": 2.5}}, "whole number"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_simulate__invalid_settings_leave_an_existing_store(tmp_path, settings, message):
    simulate(tmp_path / "s.zarr", rows=10)
    with pytest.raises(OptionError, match=message):
        simulate(tmp_path / "s.zarr", **{"rows": 20, "overwrite": True, **settings})
    with pytest.raises(OptionError, match=message):
        truth([ECE()], **{"rows": 20, "sample": 10, **settings})
    assert LogitStore.open(tmp_path / "s.zarr").rows == 10


# ---------------------------------------------------------------- truth


@pytest.mark.parametrize("name", NAMES)
def test_soft_chunk__scores_are_means_over_labels(name):
    draw = drawn(name, 40)
    K = draw.logits.shape[1]
    rules = Rules("logits", Classes(K), 1)
    (soft,) = simulation.soft_chunks(draw, rules)
    P = np.exp(draw.log_p)
    expected = dict.fromkeys(("hit", "brier", "nll", "delta"), 0.0)
    for k in range(K):
        ((chunk, _),) = chunks(Block(0, draw.logits, np.full(40, k), None, None), rules)
        for score in expected:
            value = getattr(chunk, score)
            expected[score] += (P[:, k] if value.ndim == 1 else P[:, k : k + 1]) * value
    for score, value in expected.items():
        np.testing.assert_allclose(getattr(soft, score), value, rtol=1e-11, atol=1e-14)


@pytest.mark.long
@pytest.mark.parametrize("name", ["ms-true", "ms-marginal", "bayes"])
def test_truth__calibrated_models_have_no_error(name):
    estimates = truth(default_estimators(), rows=1000, generator=name, sample=20_000)
    for estimate in estimates:
        if estimate.estimator not in ("accuracy", "brier", "nll"):
            # 20,000 sums of p and of 1 − p, each rounded: 1e-13 of an entropy of 0.3
            tolerance = 1e-12 if estimate.estimator == "nll_decomposition" else 1e-15
            assert estimate.value == pytest.approx(0.0, abs=tolerance), estimate.estimator


@pytest.mark.long
def test_truth__has_the_scores_of_a_dirichlet():
    alpha, K, n = 0.1, 10, 200_000
    values = [e.value for e in truth([Brier(), NLL()], rows=1, generator="ms-true", sample=n)]
    log_p = drawn("ms-true", 20_000).log_p
    P = np.exp(log_p)
    noise = [np.sum(P * P, axis=1).std(), np.sum(P * log_p, axis=1).std()]
    # E|P|² and the mean entropy of a Dirichlet
    expected = [1 - (alpha + 1) / (K * alpha + 1), digamma(K * alpha + 1) - digamma(alpha + 1)]
    assert np.all(np.abs(np.subtract(values, expected)) < 4 * np.array(noise) / np.sqrt(n))


def test_truth__of_pairs_of_rows_is_refused():
    with pytest.raises(OptionError, match="kce: a population value needs sums over rows"):
        truth([ECE(), KCE()], rows=20, generator="ms-over", sample=300)
    # The remedy of the message works.
    for method in ("features", "landmarks"):
        (estimate,) = truth([KCE(method=method)], rows=20, generator="ms-over", sample=300)
        assert np.isfinite(estimate.value)


def test_truth__has_the_scores_of_the_marginal():
    estimates = truth(SCORES, rows=1, generator="ms-marginal", sample=1000)
    np.testing.assert_allclose([e.value for e in estimates], [0.1, 0.9, np.log(10), 0], atol=1e-12)


@pytest.mark.long
def test_truth__of_a_shift_equals_quadrature():
    # rows at the nodes of a quadrature, one for each label, weighted by density · P(y | x)
    nodes = (np.arange(20_000) + 0.5) / 10_000 - 1.0
    density = stats.norm.pdf(nodes, 0.3, 0.25)
    z = np.column_stack([np.zeros_like(nodes), 5 * nodes])
    source = from_arrays(
        logits=np.concatenate([z, z]),
        labels=np.repeat([0, 1], len(nodes)),
        weights=np.concatenate([density * expit(-nodes), density * expit(nodes)]),
    )
    features = RandomFourier(bandwidth=0.5)
    estimators = [
        *SCORES,
        ECE(),
        MCE(bins=5),
        TCE2(bins=7, notion="positive"),
        SimplexECE(),
        CKCE(features, ridge=0.01),
        CMMD(features, ridge=0.01),
        JKCEBiased(features),
    ]
    expected = evaluate(source, estimators)
    estimates = truth(estimators, rows=9, generator="shift", parameters={"alpha": 0.3})
    # 200,000 rows: the relative noise of the sample is below a third of a per cent
    for a, b in zip(estimates, expected.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=0.01), a.estimator


@pytest.fixture(scope="module", params=["gb", "ms-under", "ms-over", "shift", "missing"])
def pair(request, tmp_path_factory):
    """(estimates by name, truth by name, source) of a simulated store of 200,000 rows."""
    rows, seed = 200_000, 11
    features = RandomFourier(n_features=50)
    estimators = (*SCORES, ECE(), TCE2Debiased(), CKCE(features), JKCE(features))
    url = tmp_path_factory.mktemp("pair") / "s.zarr"
    store = simulate(url, rows=rows, generator=request.param, seed=seed)
    estimates = evaluate(store, estimators).estimates
    expected = truth(estimators, rows=rows, generator=request.param, seed=seed)
    return (
        {e.estimator: e for e in estimates},
        {e.estimator: e for e in expected},
        store.source,
    )


@pytest.mark.long
def test_truth__scores_of_a_store(pair):
    estimates, truths, source = pair
    block = source.read(0, source.rows)
    rules = Rules("logits", Classes(source.classes), 1)
    scores = []
    for chunk, _ in chunks(block, rules):
        gap = chunk.confidence - chunk.hit
        scores.append(np.column_stack([chunk.hit, chunk.brier, chunk.nll, gap]))
    rows = np.concatenate(scores)
    # the sample of the truth has as many rows and less variance: √2 standard errors
    limits = 4 * np.sqrt(2) * rows.std(axis=0) / np.sqrt(len(rows))
    for limit, name in zip(limits, ("accuracy", "brier", "nll", "confidence_gap"), strict=True):
        assert abs(estimates[name].value - truths[name].value) < limit, name


@pytest.mark.long
def test_truth__binned_errors_of_a_store(pair):
    estimates, truths, source = pair
    # Σ share·gap² has the influence 2·gap·(δ − gap) + gap² − mean; var δ ≤ ¼, gap² ≤ 0.1
    squared = truths["tce2_debiased"].value
    limit = 4 * np.sqrt(2 * (4 * 0.25 + 0.1) * squared / source.rows)
    assert abs(estimates["tce2_debiased"].value - squared) < limit
    ece = 4 * np.sqrt(2 / source.rows)
    assert abs(estimates["ece"].value - truths["ece"].value) < ece


@pytest.mark.long
def test_truth__kernel_errors_of_a_store(pair):
    estimates, truths, _ = pair
    for name in ("ckce", "jkce"):
        assert truths[name].approximation.kind == "random_features"
        # relative noise 2·sd(δ)/(√n·root of the error): 5 % except for the nearly calibrated model
        tolerance = 0.05 if truths["tce2_debiased"].value > 0.01 else 0.25
        assert estimates[name].value == pytest.approx(truths[name].value, rel=tolerance), name
    assert estimates["ckce"].parameters["ridge"] == truths["ckce"].parameters["ridge"]
    # medians of distances between other rows of the same law
    assert truths["ckce"].parameters["bandwidth"] == pytest.approx(
        estimates["ckce"].parameters["bandwidth"], rel=0.1
    )


def test_truth__uses_the_settings_of_the_estimators():
    features = RandomFourier(n_features=4, bandwidth=0.3)
    estimators = [
        CKCE(features),
        CMMD(features, ridge=0.2),
        JKCEBiased(features),
        TCE2Debiased(bins=3),
    ]
    ckce, cmmd, jkce, tce2 = truth(estimators, rows=10**8, sample=3000)
    assert (ckce.parameters["ridge"], ckce.parameters["bandwidth"]) == (1e-2, 0.3)
    assert (cmmd.parameters["ridge"], cmmd.parameters["exponent"]) == (0.2, 1.0)
    assert (jkce.estimator, tce2.estimator) == ("jkce_biased", "tce2_debiased")
    assert (tce2.parameters["bins"], tce2.n) == (3, 3000)
    plain = truth([JKCE(features), TCE2(bins=3)], rows=10**8, sample=3000)
    assert [e.value for e in plain] == [jkce.value, tce2.value]  # the same population values


def test_truth__independent_of_the_rows_of_a_store():
    fresh = truth([Accuracy()], rows=1000, sample=1000)[0].value
    P = np.exp(drawn("ms-over", 1000).log_p)
    assert fresh != P.max(axis=1).mean()
    assert fresh == truth([Accuracy()], rows=1000, sample=1000)[0].value
    assert fresh != truth([Accuracy()], rows=1000, sample=1000, seed=1)[0].value


def test_truth__unsupported_estimator_is_refused():
    with pytest.raises(OptionError, match="positive"):
        truth([ECE(notion="positive")], rows=10, sample=10)
