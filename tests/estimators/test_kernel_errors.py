"""Kernel errors from moments: dense references, the toy of [MS, App. A], stated errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

import calibscale as cs
from calibscale.kernels.features import frequencies
from tests.support import naive
from tests.support.logit_arrays import logit_source


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True])
def test_kernel_errors__agree_with_dense_duals_of_the_same_features(arrays, weighted):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    w = arrays["weights"] if weighted else None
    features = cs.RandomFourier(30, bandwidth=0.7, seed=3)
    phi = naive.fourier(q, frequencies(30, 5, 3) / 0.7)
    K, d = phi @ phi.T, naive.residuals(q, y)
    effective = len(q) if w is None else w.sum() ** 2 / (w**2).sum()
    source = logit_source(arrays, weighted)
    result = cs.evaluate(source, [cs.CKCE(features), cs.JKCE(features), cs.JKCEBiased(features)])
    # a solve with condition number up to n λ⁻¹ loses three digits
    assert result["ckce"].value == pytest.approx(
        naive.cmmd(K, d, effective**-0.25, 0, w), rel=1e-11
    )
    centred = cs.evaluate(source, [cs.CKCECentred(features)])["ckce_centred"].value
    # the value is a hundredth of the two sums that it is the difference of
    assert centred == pytest.approx(naive.ckce_centred(K, d, effective**-0.25, w), rel=1e-9)
    assert result["jkce"].value == pytest.approx(naive.jkce(K, d, w), rel=1e-11)
    biased = naive.jkce(K, d, w, unbiased=False)
    assert result["jkce_biased"].value == pytest.approx(biased, rel=1e-11)
    for level in (1, 2):
        value = cs.evaluate(source, [cs.CMMD(features, ridge=0.05, exponent=level)])["cmmd"].value
        assert value == pytest.approx(naive.cmmd(K, d, 0.05, level, w), rel=1e-10)


def test_cmmd__fractional_levels_lie_between_whole_ones(source):
    features = cs.RandomFourier(20, bandwidth=1.0)
    values = [
        cs.evaluate(source, [cs.CMMD(features, 0.1, level)])["cmmd"].value
        for level in (1.0, 1.0 + 1e-9, 1.5, 2.0 - 1e-9, 2.0)
    ]
    # a level that differs by 1e-9 changes a power of an eigenvalue λ by 1e-9 · |log λ|
    assert values[0] == pytest.approx(values[1], rel=1e-7)
    assert values[3] == pytest.approx(values[4], rel=1e-7)
    assert values[0] > values[2] > values[4]  # S/n has eigenvalues below 1 where C lives


@pytest.mark.long
def test_jkce__gaussian_kernel_excludes_the_linear_part(arrays):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    features = cs.RandomFourier(30, bandwidth=0.7, seed=3)
    phi = naive.fourier(q, frequencies(30, 5, 3) / 0.7)[:, 5:]
    value = cs.evaluate(logit_source(arrays), [cs.JKCE(features, kernel="gaussian")])["jkce"].value
    assert value == pytest.approx(naive.jkce(phi @ phi.T, naive.residuals(q, y)), rel=1e-11)


def test_bandwidth__defaults_to_the_median_of_positive_distances(arrays):
    q = softmax(arrays["logits"], axis=1)
    gaps = np.sqrt(((q[:, None] - q[None]) ** 2).sum(-1))[np.triu_indices(400, 1)]
    result = cs.evaluate(logit_source(arrays), [cs.CKCE()])["ckce"].parameters["bandwidth"]
    assert result == pytest.approx(np.median(gaps[gaps > 0]), rel=1e-12)


def test_bandwidth__is_one_where_all_predictions_are_equal():
    source = cs.from_arrays(logits=np.zeros((50, 3)), labels=np.arange(50) % 3)
    assert cs.evaluate(source, [cs.CKCE()])["ckce"].parameters["bandwidth"] == 1.0


@pytest.mark.long
def test_ckce_centred__has_mean_zero_at_calibration(rng):
    """Exact mean over all labels of 4 rows, weighted by their probabilities."""
    features = cs.RandomFourier(4, bandwidth=0.5)
    for p in (np.array([0.05, 0.3, 0.5, 0.99]), np.full(4, 0.5), rng.random(4)):
        mean = raw = 0.0
        for labels in np.ndindex(2, 2, 2, 2):
            y = np.array(labels)
            source = cs.from_arrays(probabilities=p, labels=y, binary=True)
            probability = np.prod(np.where(y == 1, p, 1 - p))
            result = cs.evaluate(
                source, [cs.CKCECentred(features), cs.CKCE(features)], scheduler="serial"
            )
            mean += probability * result["ckce_centred"].value
            raw += probability * result["ckce"].value
        assert raw > 1e-3
        assert abs(mean) < 1e-12


def test_ckce_centred__keeps_no_noise_of_a_miscalibrated_model(rng):
    """The mean over labels is ‖C A‖² of their expectations, minus the terms of single rows."""
    features = cs.RandomFourier(4, bandwidth=0.5)
    true, p = np.array([0.1, 0.3, 0.8, 0.6]), np.array([0.3, 0.6, 0.5, 0.45])
    mean = 0.0
    for labels in np.ndindex(2, 2, 2, 2):
        y = np.array(labels)
        source = cs.from_arrays(probabilities=p, labels=y, binary=True)
        result = cs.evaluate(source, [cs.CKCECentred(features)], scheduler="serial")
        mean += np.prod(np.where(y == 1, true, 1 - true)) * result["ckce_centred"].value
    phi = naive.fourier(np.column_stack([1 - p, p]), frequencies(4, 2, 0) / 0.5)
    d = np.column_stack([true - p, p - true])
    assert mean == pytest.approx(naive.ckce_centred(phi @ phi.T, d, 4**-0.25), rel=1e-10)


@pytest.mark.long
def test_ckce_centred__states_an_error_that_covers_more_frequencies(arrays):
    source = logit_source(arrays)
    few = cs.evaluate(source, [cs.CKCECentred(cs.RandomFourier(100, 1.0))])["ckce_centred"]
    many = cs.evaluate(source, [cs.CKCECentred(cs.RandomFourier(300, 1.0, 1))])["ckce_centred"]
    assert few.approximation.kind == "random_features"
    assert abs(few.value - many.value) < few.approximation.error + many.approximation.error
    assert 0 < few.approximation.error < abs(few.value)
    exact = cs.evaluate(
        cs.from_arrays(probabilities=[[0.7, 0.3], [0.4, 0.6]] * 5, labels=[0, 1] * 5),
        [cs.CKCECentred(cs.OneHot(((0.7, 0.3), (0.4, 0.6))))],
    )["ckce_centred"]
    assert exact.approximation.kind == "exact"


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_toy__has_the_values_of_the_paper_with_exact_frequencies(p):
    """[MS, App. A]: P(x=0) = p, Q(1|x) = 0.3 and 0.6, P(1|x) = ½, as weights."""
    q = np.array([[0.7, 0.3], [0.7, 0.3], [0.4, 0.6], [0.4, 0.6]])
    source = cs.from_arrays(
        probabilities=q,
        labels=np.array([0, 1, 0, 1]),
        weights=np.array([p, p, 1 - p, 1 - p]) / 2,
    )
    features = cs.OneHot(((0.7, 0.3), (0.4, 0.6)))
    expected = [0.1, 0.06 * p + 0.02, 0.1 * p**2 - 0.04 * p + 0.02]
    for level, value in enumerate(expected):
        result = cs.evaluate(source, [cs.CMMD(features, ridge=0.0, exponent=level)])["cmmd"].value
        assert result == pytest.approx(value, rel=1e-13)
    # level 2 at ridge 0 is the biased JKCE; the simplex ECE is 0.2 + 0.2p (the two predictions
    # lie in cells of their own)
    biased = cs.evaluate(source, [cs.JKCEBiased(features)])["jkce_biased"].value
    assert biased == pytest.approx(expected[2], rel=1e-13)
    ece = cs.evaluate(source, [cs.SimplexECE()])["simplex_ece"].value
    assert ece == pytest.approx(0.2 + 0.2 * p, rel=1e-13)


def test_one_hot__rejects_a_prediction_that_is_not_a_point(source):
    with pytest.raises(cs.OptionError, match="row 0 is none of the 1 points"):
        cs.evaluate(source, [cs.CKCE(cs.OneHot(((1.0, 0.0, 0.0, 0.0, 0.0),)))])


def test_singular_moments__with_ridge_zero_use_the_pseudo_inverse():
    q = np.array([[0.7, 0.3], [0.4, 0.6]] * 10)
    source = cs.from_arrays(probabilities=q, labels=np.arange(20) % 2)
    three = cs.OneHot(((0.7, 0.3), (0.4, 0.6), (0.5, 0.5)))
    two = cs.OneHot(((0.7, 0.3), (0.4, 0.6)))
    values = [cs.evaluate(source, [cs.CKCE(f, ridge=0.0)])["ckce"].value for f in (three, two)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize("method", ["tiles", "pairs"])
def test_jkce__of_the_positive_class_is_half_of_that_of_two_classes(rng, method):
    p = rng.random(300)
    source = cs.from_arrays(probabilities=p, labels=rng.integers(0, 2, 300), binary=True)
    # |q − q'| of the vectors is √2 |p − p'|
    positive, canonical = (
        cs.JKCE(cs.RandomFourier(bandwidth=width), "gaussian", method, notion, n_pairs=1000)
        for notion, width in (("positive", 0.3), ("canonical", 0.3 * np.sqrt(2)))
    )
    values = [cs.evaluate(source, [e]).estimates[0].value for e in (positive, canonical)]
    assert 2 * values[0] == pytest.approx(values[1], rel=1e-10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cs.RandomFourier(0),
        lambda: cs.RandomFourier(bandwidth=0.0),
        lambda: cs.RandomFourier(bandwidth=float("nan")),
        lambda: cs.RandomFourier(seed=-1),
        lambda: cs.CKCE(ridge=-1.0),
        lambda: cs.CMMD(exponent=-0.5),
        lambda: cs.JKCE(kernel="cubic"),
        lambda: cs.JKCE(cs.OneHot(((0.5, 0.5),)), kernel="gaussian"),
        lambda: cs.ECE(notion="canonical"),
    ],
)
def test_kernel_settings__invalid_values_are_rejected(make):
    with pytest.raises(cs.OptionError):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10_resnet50", "cifar100_resnet110"])
def test_stated_error__covers_and_is_of_the_right_size(name, data_folder, golden_scores):
    """At F = 100: 90 of 100 seeds covered, median stated error at most 3 × the true RMS error."""
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    expected = golden_scores[name]
    misses, stated = {"ckce": [], "jkce": []}, {"ckce": [], "jkce": []}
    for seed in range(100):
        features = cs.RandomFourier(100, expected["gamma"], seed)
        result = cs.evaluate(source, [cs.CKCE(features), cs.JKCE(features)])
        for key, golden in (("ckce", "ckce"), ("jkce", "jkce_unbiased")):
            misses[key].append(result[key].value - expected[golden])
            stated[key].append(result[key].approximation.error)
    for key in misses:
        error, bound = np.array(misses[key]), np.array(stated[key])
        assert (np.abs(error) <= bound).sum() >= 90
        assert np.median(bound) <= 3 * np.sqrt(np.mean(error**2))


def exact_cmmd(q, delta, bandwidth, ridge, level):
    """tr(ΔᵀA K (K/n)^s A Δ), A = (K + λnI)⁻¹, for the kernel itself and s = 0 or 1."""
    n = len(q)
    squares = ((q[:, None] - q[None]) ** 2).sum(-1)
    K = q @ q.T + np.exp(-squares / (2 * bandwidth**2))
    W = np.linalg.solve(K + ridge * n * np.eye(n), delta)
    return np.vdot(W, K @ (W if level == 0 else K @ W / n))


@pytest.mark.long
@pytest.mark.parametrize("level", [0.0, 1.0])
def test_stated_error__covers_where_frequencies_are_few(level, rng):
    """60 classes, a quarter of the median distance: the value of level 1 is twice the kernel's."""
    P = rng.dirichlet(np.full(60, 0.1), 500)
    y = (P.cumsum(1) < rng.random((500, 1))).sum(1).clip(0, 59)
    q = P**1.6 / (P**1.6).sum(1, keepdims=True)
    source = cs.from_arrays(probabilities=q, labels=y)
    bandwidth = cs.evaluate(source, [cs.CKCE()])["ckce"].parameters["bandwidth"] / 4
    exact = exact_cmmd(q, q - np.eye(60)[y], bandwidth, 0.2, level)
    seeds = 12
    result = [
        cs.evaluate(source, [cs.CMMD(cs.RandomFourier(100, bandwidth, s), 0.2, level)])["cmmd"]
        for s in range(seeds)
    ]
    miss = np.array([e.value for e in result]) - exact
    stated = np.array([e.approximation.error for e in result])
    assert (level == 0) or (miss > 0.5 * exact).all()  # the error is not negligible
    assert (np.abs(miss) <= stated).sum() >= 11
    # 3, and a fifth for the RMS of twelve seeds
    assert np.median(stated) <= 3.6 * np.sqrt(np.mean(miss**2))
